/*
 * The package writer. See pkg_write.h.
 *
 * Owns the source, the cut and the lists of one run. Refuses a folder that is not empty (unless resumed), a source
 * without provenance, projectors whose names clash, and a disk without room.
 */
#include "package/pkg_write.h"

#include "base/file.h"
#include "base/path.h"
#include "package/pkg_build.h"
#include "package/pkg_generation2.h"
#include "package/pkg_infer.h"
#include "package/pkg_outdir.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct job {
    const struct pkg_write_options *opt;
    struct gguf_source *src;
    struct pkg_inventory inv;
    struct pkg_cut cut;
    struct pkg_identity identity;
    uint32_t width;
    json_t *generation;
    uint64_t created_at;
    struct pkg_copy *copies;
    uint8_t (*sums)[DIGEST_BYTES];
    struct pkg_source_file *files;
    char (*file_names)[PKG_IDENTITY_MAX];
    struct pkg_emitted *pieces, *copied;
};

static void note(const struct job *j, const char *text) {
    if (j->opt->note) j->opt->note(j->opt->note_user, text);
}

/* ---- projectors ---- */

static strata_err name_projector(struct job *j, size_t i, struct strata_errmsg *em) {
    struct pkg_copy *c = &j->copies[i];
    const char *base = path_basename(j->opt->projectors[i]), *why = "";
    c->from = j->opt->projectors[i];
    int n = snprintf(c->path, sizeof c->path, "projectors/%s", base);
    if (n < 0 || (size_t)n >= sizeof c->path || !path_is_safe_relative(c->path, strlen(c->path), &why))
        return err_set(em, STRATA_EINVAL, "projector '%.200s' has a name that a package cannot hold (%s): rename it",
                       c->from, *why ? why : "too long");
    if (gguf_source_is_split_name(base))
        return err_set(em, STRATA_EINVAL, "projector %s is named like a part of a split model: rename it", c->from);
    for (size_t k = 0; k < i; k++)
        if (strcasecmp(j->copies[k].path, c->path) == 0)
            return err_set(em, STRATA_EINVAL, "two projectors are named %s: rename one of them", base);
    return STRATA_OK;
}

/* A file that cannot be read, or is no GGUF file, is found out before anything is written. */
static strata_err check_projector(const char *path, struct strata_errmsg *em) {
    struct file_map map = {0};
    struct gguf_reader *r = NULL;
    strata_err rc = file_map_open(path, &map, em);
    if (!rc) rc = gguf_reader_new(map.data, map.size, path, &r, em);
    gguf_reader_free(r);
    file_map_close(&map);
    return rc;
}

static strata_err plan_projectors(struct job *j, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    j->copies = calloc(j->opt->n_projectors + 1, sizeof *j->copies);
    j->copied = calloc(j->opt->n_projectors + 1, sizeof *j->copied);
    if (!j->copies || !j->copied) return err_nomem(em, "the list of projectors");
    for (size_t i = 0; i < j->opt->n_projectors && !rc; i++) {
        rc = name_projector(j, i, em);
        if (!rc) rc = check_projector(j->opt->projectors[i], em);
    }
    return rc;
}

/* ---- before anything is written ---- */

/* What was inferred, as far as schema 2 has a place for it. */
static strata_err keep_for_schema2(struct job *j, struct strata_errmsg *em) {
    char dropped[200] = "", text[300];
    json_t *kept = NULL;
    if (!j->generation) return STRATA_OK;
    strata_err rc = pkg_generation2_convert(j->generation, 2, j->inv.layer_count, &kept, dropped, sizeof dropped, em);
    if (rc) return rc;
    json_decref(j->generation);
    j->generation = kept;
    snprintf(text, sizeof text, "schema 2 has no place for %s: left out", dropped);
    if (dropped[0]) note(j, text);
    return STRATA_OK;
}

static strata_err plan_generation(struct job *j, struct strata_errmsg *em) {
    if (j->opt->generation_file)
        return pkg_infer_load_file(j->opt->generation_file, j->opt->schema, j->inv.layer_count, &j->generation, em);
    struct pkg_infer_notes notes = {0};
    strata_err rc = pkg_infer_generation(&j->inv, &j->generation, &notes, em);
    for (size_t i = 0; i < notes.n && !rc; i++) note(j, notes.text[i]);
    pkg_infer_notes_deinit(&notes);
    if (!rc && j->opt->schema == 2) rc = keep_for_schema2(j, em);
    return rc;
}

static strata_err plan_cut(struct job *j, struct strata_errmsg *em) {
    uint64_t max = j->opt->max_artifact_bytes ? j->opt->max_artifact_bytes : PKG_WRITE_MAX_ARTIFACT;
    strata_err rc =
        j->opt->schema == 2 ? pkg_cut_package2(&j->inv, max, &j->cut, em) : pkg_cut_package(&j->inv, &j->cut, em);
    if (rc) return rc;
    j->cut.slim = j->opt->slim;
    size_t shards = gguf_source_shard_count(j->src);
    j->pieces = calloc(j->cut.n_pieces, sizeof *j->pieces);
    j->sums = calloc(shards, sizeof *j->sums);
    j->files = calloc(shards, sizeof *j->files);
    j->file_names = calloc(shards, sizeof *j->file_names);
    return j->pieces && j->sums && j->files && j->file_names ? STRATA_OK : err_nomem(em, "the list of files");
}

static strata_err prepare(struct job *j, const char *source, struct strata_errmsg *em) {
    strata_err rc = pkg_build_time(&j->created_at, em);
    if (!rc) rc = gguf_source_open(source, &j->src, em);
    if (!rc) rc = pkg_inventory_init(&j->inv, j->src, em);
    if (!rc) rc = plan_cut(j, em);
    if (!rc) rc = pkg_inventory_width(&j->inv, &j->width, em);
    if (!rc) rc = pkg_identity_resolve(&j->opt->identity, source, j->src, &j->identity, em);
    if (!rc) rc = plan_generation(j, em);
    if (!rc) rc = plan_projectors(j, em);
    if (!rc) rc = pkg_outdir_check(j->opt->out_dir, j->src, j->opt->how.resume, em);
    return rc;
}

/* A folder whose manifest names another model is not ours to finish. */
static strata_err check_resumed(struct job *j, struct strata_errmsg *em) {
    struct pkg_manifest *old = NULL;
    struct strata_errmsg why;
    if (!j->opt->how.resume || pkg_manifest_load(j->opt->out_dir, &old, &why) != STRATA_OK) return STRATA_OK;
    strata_err rc = STRATA_OK;
    if (strcmp(old->model_id, j->identity.model_id) != 0 || old->layer_count != j->inv.layer_count)
        rc = err_set(em, STRATA_EINVAL, "%s holds a complete package of another model (%.100s): name another folder",
                     j->opt->out_dir, old->model_id);
    else if (old->created_at)
        j->created_at = old->created_at; /* so that a finished package stays as it is, byte for byte */
    pkg_manifest_free(old);
    return rc;
}

static strata_err make_folders(const struct job *j, struct strata_errmsg *em) {
    strata_err rc = file_mkdirs(j->opt->out_dir, 0777, em);
    if (!rc) rc = pkg_outdir_sub(j->opt->out_dir, "shared", em);
    if (!rc) rc = pkg_outdir_sub(j->opt->out_dir, "layers", em);
    if (!rc && j->opt->n_projectors) rc = pkg_outdir_sub(j->opt->out_dir, "projectors", em);
    if (!rc && j->opt->how.resume) rc = pkg_outdir_reopen(j->opt->out_dir, em);
    return rc;
}

/* ---- the manifest ---- */

static strata_err list_source(struct job *j, struct pkg_source_model *s, struct strata_errmsg *em) {
    const struct pkg_identity *id = &j->identity;
    strata_err rc = STRATA_OK;
    /* The name alone: a folder of the packager's machine would help nobody and tell too much. */
    *s = (struct pkg_source_model){.path = path_basename(gguf_source_shard_path(j->src, 0)),
                                   .repo = id->repo,
                                   .revision = id->revision,
                                   .primary_file = id->primary_file,
                                   .canonical_ref = id->canonical_ref,
                                   .distribution_id = id->distribution_id,
                                   .files = j->files,
                                   .n_files = gguf_source_shard_count(j->src)};
    memcpy(s->sha256, j->sums[0], sizeof s->sha256);
    for (size_t i = 0; i < s->n_files && !rc; i++) {
        size_t len;
        gguf_source_shard_bytes(j->src, i, &len);
        rc = pkg_identity_shard(id, j->src, i, j->file_names[i], em);
        j->files[i] =
            (struct pkg_source_file){.path = j->file_names[i], .has_size = true, .has_sha256 = true, .size_bytes = len};
        memcpy(j->files[i].sha256, j->sums[i], DIGEST_BYTES);
    }
    return rc;
}

static strata_err build(struct job *j, json_t **out, struct strata_errmsg *em) {
    struct pkg_build b = {.model_id = j->identity.model_id,
                          .cut = &j->cut,
                          .pieces = j->pieces,
                          .copies = j->copies,
                          .copied = j->copied,
                          .n_copies = j->opt->n_projectors,
                          .activation_width = j->width,
                          .generation = j->generation,
                          .abi_version = j->opt->abi_version ? j->opt->abi_version : PKG_MANIFEST_ABI,
                          .created_at = j->created_at};
    strata_err rc = list_source(j, &b.source, em);
    if (rc) return rc;
    return j->opt->schema == 2 ? pkg_build_manifest2(&b, "strata " STRATA_VERSION, out, em)
                               : pkg_build_manifest(&b, out, em);
}

static strata_err write_manifest(struct job *j, struct pkg_write_result *res, struct strata_errmsg *em) {
    json_t *root = NULL;
    strata_err rc = build(j, &root, em);
    if (!rc)
        rc = pkg_build_finish(root, j->opt->out_dir, !j->opt->no_card, res->manifest_sha256, &res->total_bytes, em);
    if (rc)
        json_decref(root);
    else
        res->manifest = root;
    return rc;
}

/* ---- all together ---- */

static strata_err write_files(struct job *j, struct strata_errmsg *em) {
    const struct pkg_emit_options how = {.out_dir = j->opt->out_dir,
                                         .jobs = j->opt->how.jobs,
                                         .resume = j->opt->how.resume,
                                         .after_command = j->opt->after_command,
                                         .progress = j->opt->how.progress,
                                         .cancelled = j->opt->how.cancelled};
    const struct pkg_emit_job job = {.cut = &j->cut,
                                     .copies = j->copies,
                                     .n_copies = j->opt->n_projectors,
                                     .hash_source = j->src,
                                     .source_sha256 = j->sums,
                                     .pieces = j->pieces,
                                     .copied = j->copied};
    strata_err rc = pkg_emit_run(&job, &how, em);
    if (rc) pkg_outdir_explain(j->opt->out_dir, rc, em);
    return rc;
}

static void summarize(const struct job *j, struct pkg_write_result *res) {
    res->identity = j->identity;
    res->layer_count = j->inv.layer_count;
    res->file_count = j->cut.n_pieces + j->opt->n_projectors + 1;
    for (size_t i = 0; i < j->cut.n_pieces + j->opt->n_projectors; i++) {
        const struct pkg_emitted *x = i < j->cut.n_pieces ? &j->pieces[i] : &j->copied[i - j->cut.n_pieces];
        res->total_bytes += x->artifact_bytes;
        res->kept_count += x->kept;
    }
    if (j->cut.schema == 1) res->replicated_bytes = j->pieces[PKG_ROLE_METADATA].tensor_bytes * (j->cut.n_pieces - 1);
}

strata_err pkg_write(const char *source, const struct pkg_write_options *opt, struct pkg_write_result *out,
                     struct strata_errmsg *em) {
    struct job j = {.opt = opt};
    struct pkg_write_result res = {0};
    bool existed = file_is_dir(opt->out_dir), touched = false;
    strata_err rc = prepare(&j, source, em);
    if (!rc) rc = check_resumed(&j, em);
    if (rc) goto out;
    touched = true;
    rc = make_folders(&j, em);
    if (!rc) rc = write_files(&j, em);
    if (!rc) rc = write_manifest(&j, &res, em);
    if (rc) goto out;
    summarize(&j, &res);
    *out = res;
out:
    if (rc && touched) pkg_outdir_tidy(opt->out_dir, existed);
    json_decref(j.generation);
    free(j.copies);
    free(j.copied);
    free(j.pieces);
    free(j.sums);
    free(j.files);
    free(j.file_names);
    pkg_cut_deinit(&j.cut);
    pkg_inventory_deinit(&j.inv);
    gguf_source_free(j.src);
    return rc;
}

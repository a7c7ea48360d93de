/*
 * Single slices and stage files. See pkg_write.h.
 *
 * A slice is a GGUF file that a stage can load alone. The last stage of a tied model computes its logits with the token
 * embeddings, so they are in its slice too. Owns the source and the lists of one run.
 */
#include "package/pkg_write.h"

#include "base/file.h"
#include "base/path.h"
#include "package/pkg_build.h"
#include "package/pkg_outdir.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct job {
    struct gguf_source *src;
    struct pkg_inventory inv;
    struct pkg_cut cut;
    struct pkg_emitted *files;
    uint8_t (*sums)[DIGEST_BYTES]; /* of the source's files; NULL when nobody asks for them */
};

static strata_err open_job(struct job *j, const char *source, bool hash, struct strata_errmsg *em) {
    strata_err rc = gguf_source_open(source, &j->src, em);
    if (!rc) rc = pkg_inventory_init(&j->inv, j->src, em);
    if (rc || !hash) return rc;
    j->sums = calloc(gguf_source_shard_count(j->src), sizeof *j->sums);
    return j->sums ? STRATA_OK : err_nomem(em, "digests");
}

static void close_job(struct job *j) {
    free(j->files);
    free(j->sums);
    pkg_cut_deinit(&j->cut);
    pkg_inventory_deinit(&j->inv);
    gguf_source_free(j->src);
}

/* The slice of a range, by the one rule that says what a stage needs. */
static strata_err slice_of(const struct job *j, struct pkg_range want, uint32_t stage_index, const char *source,
                           struct pkg_slice *out, struct strata_errmsg *em) {
    struct pkg_select sel;
    pkg_select_init(&sel, j->inv.layer_count);
    for (size_t i = 0; i < j->inv.n_tensors; i++) pkg_select_note(&sel, j->inv.tensors[i].t->name);
    strata_err rc = pkg_select_resolve(want, j->inv.layer_count, source, &sel.range, em);
    if (rc) return rc;
    *out = (struct pkg_slice){.stage_index = stage_index,
                              .range = sel.range,
                              .embeddings = pkg_select_embeddings(&sel),
                              .tokens_only = !pkg_select_is_first(&sel),
                              .output = pkg_select_output(&sel)};
    return STRATA_OK;
}

static strata_err emit(struct job *j, const char *dir, const struct pkg_write_how *how, struct strata_errmsg *em) {
    const struct pkg_emit_options opt = {.out_dir = dir,
                                         .jobs = how->jobs,
                                         .resume = how->resume,
                                         .progress = how->progress,
                                         .cancelled = how->cancelled};
    j->files = calloc(j->cut.n_pieces, sizeof *j->files);
    if (!j->files) return err_nomem(em, "the list of files");
    const struct pkg_emit_job job = {
        .cut = &j->cut, .hash_source = j->sums ? j->src : NULL, .source_sha256 = j->sums, .pieces = j->files};
    return pkg_emit_run(&job, &opt, em);
}

/* ---- the slice manifest ---- */

static strata_err set_bool(json_t *o, const char *key, bool v, struct strata_errmsg *em) {
    return json_object_set_new(o, key, json_boolean(v)) ? err_nomem(em, "a manifest") : STRATA_OK;
}

static strata_err add_stage(const struct job *j, size_t i, json_t *stages, struct strata_errmsg *em) {
    const struct pkg_piece *p = &j->cut.pieces[i];
    const struct pkg_emitted *x = &j->files[i];
    json_t *o = pkg_build_nest(stages, NULL, json_object());
    strata_err rc = o ? pkg_build_num(o, "stage_index", p->slice.stage_index, em) : err_nomem(em, "a manifest");
    if (!rc) rc = pkg_build_num(o, "layer_start", p->slice.range.first, em);
    if (!rc) rc = pkg_build_num(o, "layer_end", p->slice.range.end, em);
    if (!rc) rc = set_bool(o, "includes_embeddings", p->slice.embeddings, em);
    if (!rc) rc = set_bool(o, "includes_output", p->slice.output, em);
    if (!rc) rc = pkg_build_str(o, "path", p->path, em);
    if (!rc) rc = pkg_build_num(o, "tensor_count", x->tensor_count, em);
    if (!rc) rc = pkg_build_num(o, "tensor_bytes", x->tensor_bytes, em);
    if (!rc) rc = pkg_build_num(o, "artifact_bytes", x->artifact_bytes, em);
    if (!rc) rc = pkg_build_hex(o, "sha256", x->sha256, em);
    return rc;
}

static strata_err slice_manifest(const struct job *j, json_t **out, struct strata_errmsg *em) {
    json_t *root = json_object();
    if (!root) return err_nomem(em, "a manifest");
    strata_err rc = pkg_build_num(root, "schema_version", 1, em);
    if (!rc) rc = pkg_build_str(root, "source_model", path_basename(gguf_source_shard_path(j->src, 0)), em);
    if (!rc && j->sums) rc = pkg_build_hex(root, "source_sha256", j->sums[0], em);
    if (!rc) rc = pkg_build_num(root, "stage_count", j->cut.n_pieces, em);
    if (!rc) rc = pkg_build_num(root, "layer_count", j->inv.layer_count, em);
    json_t *stages = rc ? NULL : pkg_build_nest(root, "stages", json_array());
    if (!rc && !stages) rc = err_nomem(em, "a manifest");
    for (size_t i = 0; i < j->cut.n_pieces && !rc; i++) rc = add_stage(j, i, stages, em);
    if (rc) {
        json_decref(root);
        return rc;
    }
    *out = root;
    return STRATA_OK;
}

static strata_err write_text(const json_t *manifest, const char *path, struct strata_errmsg *em) {
    struct buf text;
    buf_init(&text, PKG_MANIFEST_MAX_BYTES);
    strata_err rc = pkg_build_text(manifest, &text, em);
    if (!rc) rc = file_write_all(path, text.data, text.len, 0644, em);
    buf_deinit(&text);
    return rc;
}

/* ---- one slice ---- */

static strata_err check_target(const struct job *j, const char *path, struct strata_errmsg *em) {
    if (gguf_source_is_split_name(path))
        return err_set(em, STRATA_EINVAL,
                       "%s is named like a part of a split model, whose other parts programs would look for: choose "
                       "another name",
                       path);
    if (file_is_dir(path)) return err_set(em, STRATA_EINVAL, "%s is a folder: name a file", path);
    return pkg_outdir_not_source(path, j->src, em);
}

strata_err pkg_write_slice(const char *source, const struct pkg_write_slice *slice, const struct pkg_write_how *how,
                           json_t **report, struct strata_errmsg *em) {
    struct job j = {0};
    struct pkg_slice s;
    char dir[PATH_MAX_LEN];
    json_t *root = NULL;
    const char *name = path_basename(slice->out);
    strata_err rc = open_job(&j, source, slice->manifest != NULL, em);
    if (!rc) rc = check_target(&j, slice->out, em);
    if (!rc && slice->manifest) rc = pkg_outdir_not_source(slice->manifest, j.src, em);
    if (!rc) rc = slice_of(&j, slice->range, slice->stage_index, source, &s, em);
    if (rc) goto out;
    if (slice->embeddings) s.tokens_only = false; /* asked for by name: all of them */
    s.embeddings |= slice->embeddings;
    s.output |= slice->output;
    rc = pkg_cut_slices(&j.inv, &s, &name, 1, &j.cut, em);
    if (!rc) rc = path_dirname(dir, sizeof dir, slice->out, em);
    if (!rc) rc = emit(&j, dir, how, em);
    if (!rc) rc = slice_manifest(&j, &root, em);
    if (!rc && slice->manifest) rc = write_text(root, slice->manifest, em);
    if (rc) goto out;
    *report = root;
    root = NULL;
out:
    json_decref(root);
    close_job(&j);
    return rc;
}

/* ---- stages ---- */

static strata_err cut_stages(struct job *j, const struct pkg_range *ranges, uint32_t n, const char *source,
                             struct strata_errmsg *em) {
    struct pkg_slice *slices = calloc(n, sizeof *slices);
    const char **paths = calloc(n, sizeof *paths);
    char(*names)[24] = calloc(n, sizeof *names);
    strata_err rc = slices && paths && names ? STRATA_OK : err_nomem(em, "the list of stages");
    for (uint32_t i = 0; i < n && !rc; i++) {
        snprintf(names[i], sizeof names[i], "stage-%03" PRIu32 ".gguf", i);
        paths[i] = names[i];
        rc = slice_of(j, ranges[i], i, source, &slices[i], em);
    }
    if (!rc) rc = pkg_cut_slices(&j->inv, slices, paths, n, &j->cut, em);
    free(slices);
    free(paths);
    free(names);
    return rc;
}

strata_err pkg_write_stages(const char *source, const struct pkg_range *ranges, uint32_t n_stages, const char *out_dir,
                            const struct pkg_write_how *how, json_t **manifest, struct strata_errmsg *em) {
    struct job j = {0};
    char path[PATH_MAX_LEN];
    json_t *root = NULL;
    bool existed = file_is_dir(out_dir), touched = false;
    strata_err rc = open_job(&j, source, true, em);
    if (!rc) rc = pkg_outdir_check(out_dir, j.src, how->resume, em);
    if (!rc) rc = cut_stages(&j, ranges, n_stages, source, em);
    if (!rc) rc = path_join(path, sizeof path, out_dir, "slice-manifest.json", em);
    if (rc) goto out;
    touched = true;
    rc = file_mkdirs(out_dir, 0777, em);
    if (!rc && how->resume) rc = pkg_outdir_reopen(out_dir, em);
    if (!rc) rc = emit(&j, out_dir, how, em);
    if (rc) {
        pkg_outdir_explain(out_dir, rc, em);
        goto out;
    }
    rc = slice_manifest(&j, &root, em);
    if (!rc) rc = write_text(root, path, em);
    if (rc) goto out;
    *manifest = root;
    root = NULL;
out:
    if (rc && touched) pkg_outdir_tidy(out_dir, existed);
    json_decref(root);
    close_job(&j);
    return rc;
}

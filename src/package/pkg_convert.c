/* Converts packages between schemas. See pkg_convert.h. Owns the opened source and the lists of one run. */
#include "package/pkg_convert.h"

#include "base/file.h"
#include "base/path.h"
#include "package/pkg_apart.h"
#include "package/pkg_build.h"
#include "package/pkg_generation2.h"
#include "package/pkg_model.h"
#include "package/pkg_outdir.h"
#include "package/pkg_part.h"

#include <stdlib.h>
#include <string.h>

struct job {
    const struct pkg_convert_options *opt;
    char dir[PATH_MAX_LEN]; /* of the source */
    struct pkg_model *model;
    const struct pkg_manifest *from; /* view */
    struct pkg_inventory inv;
    struct pkg_cut cut;
    uint32_t width;
    json_t *generation;
    struct pkg_copy *copies;
    char **names; /* owned: where each copy comes from */
    size_t n_copies;
    struct pkg_emitted *pieces, *copied;
};

static void note(const struct job *j, const char *text) {
    if (j->opt->note) j->opt->note(j->opt->note_user, text);
}

/* ---- what goes along ---- */

static strata_err plan_generation(struct job *j, struct strata_errmsg *em) {
    char dropped[200], text[STRATA_ERRMSG_MAX];
    if (!j->from->generation) return STRATA_OK;
    strata_err rc = pkg_generation2_convert(j->from->generation, j->opt->to_schema, j->from->layer_count,
                                            &j->generation, dropped, sizeof dropped, em);
    if (rc || !dropped[0]) return rc;
    snprintf(text, sizeof text, "schema %u has no place for this part of the generation block: %s; left out",
             j->opt->to_schema, dropped);
    note(j, text);
    return STRATA_OK;
}

/* A projector must be what the manifest says before it is copied. */
static strata_err check_projector(const struct job *j, const struct pkg_artifact *a, struct strata_errmsg *em) {
    struct pkg_faults faults;
    struct pkg_part part;
    pkg_faults_init(&faults);
    strata_err rc = pkg_part_open(j->dir, a, true, NULL, &faults, &part, em);
    if (!rc) rc = pkg_faults_first(&faults, j->dir, em);
    pkg_part_close(&part);
    pkg_faults_deinit(&faults);
    return rc;
}

static strata_err plan_projector(struct job *j, const struct pkg_artifact *a, struct strata_errmsg *em) {
    char from[PATH_MAX_LEN];
    struct pkg_copy *c = &j->copies[j->n_copies];
    if (strlen(a->path) >= sizeof c->path) return err_set(em, STRATA_ELIMIT, "file name too long: %.200s", a->path);
    strata_err rc = check_projector(j, a, em);
    if (!rc) rc = path_join(from, sizeof from, j->dir, a->path, em);
    if (rc) return rc;
    char *own = strdup(from);
    if (!own) return err_nomem(em, "the list of projectors");
    j->names[j->n_copies] = own;
    memcpy(c->path, a->path, strlen(a->path) + 1);
    c->from = own;
    j->n_copies++;
    return STRATA_OK;
}

static strata_err plan_projectors(struct job *j, struct strata_errmsg *em) {
    size_t n = j->from->n_artifacts, publisher = 0;
    strata_err rc = STRATA_OK;
    j->copies = calloc(n, sizeof *j->copies);
    j->copied = calloc(n, sizeof *j->copied);
    j->names = calloc(n, sizeof *j->names);
    if (!j->copies || !j->copied || !j->names) return err_nomem(em, "the list of projectors");
    for (size_t i = 0; i < n && !rc; i++) {
        const struct pkg_artifact *a = &j->from->artifacts[i];
        if (a->role == PKG_ROLE_PROJECTOR) rc = plan_projector(j, a, em);
        publisher += a->role == PKG_ROLE_PUBLISHER;
    }
    if (!rc && publisher) note(j, "schema 1 has no place for publisher_metadata and its files; left out");
    return rc;
}

/* ---- before anything is written ---- */

static strata_err open_source(struct job *j, const char *package, struct strata_errmsg *em) {
    const struct pkg_model_options all = {
        .range = {0, PKG_RANGE_ALL}, .flags = PKG_MODEL_VERIFY, .progress = j->opt->how.progress};
    if (!pkg_part_folder(package, j->dir, sizeof j->dir))
        return err_set(em, STRATA_EINVAL, "%s is not a layer package: give its folder or its %s", package,
                       PKG_MANIFEST_FILE);
    /* Its schema is looked at before all of it is hashed. */
    struct pkg_manifest *m = NULL;
    strata_err rc = pkg_manifest_load(j->dir, &m, em);
    if (!rc && m->schema == j->opt->to_schema)
        rc = err_set(em, STRATA_EINVAL, "%s is a package of schema %u already", j->dir, m->schema);
    pkg_manifest_free(m);
    if (!rc) rc = pkg_model_open(j->dir, &all, &j->model, em);
    if (!rc) rc = pkg_inventory_from_model(&j->inv, j->model, em);
    if (!rc) j->from = pkg_model_manifest(j->model);
    return rc;
}

static strata_err plan_cut(struct job *j, struct strata_errmsg *em) {
    uint64_t max = j->opt->max_artifact_bytes ? j->opt->max_artifact_bytes : PKG_WRITE_MAX_ARTIFACT;
    strata_err rc =
        j->opt->to_schema == 2 ? pkg_cut_package2(&j->inv, max, &j->cut, em) : pkg_cut_package(&j->inv, &j->cut, em);
    if (rc) return rc;
    j->cut.slim = j->opt->slim;
    j->pieces = calloc(j->cut.n_pieces, sizeof *j->pieces);
    if (!j->pieces) return err_nomem(em, "the list of files");
    j->width = j->from->activation_width;
    return j->width ? STRATA_OK : pkg_inventory_width(&j->inv, &j->width, em);
}

/* A resumed folder whose manifest names another model is not ours to finish. */
static strata_err check_folder(const struct job *j, struct strata_errmsg *em) {
    struct pkg_manifest *old = NULL;
    struct strata_errmsg why;
    strata_err rc = pkg_outdir_check(j->opt->out_dir, NULL, j->opt->how.resume, em);
    if (!rc) rc = pkg_apart_check(j->opt->out_dir, em);
    if (rc || !j->opt->how.resume || pkg_manifest_load(j->opt->out_dir, &old, &why) != STRATA_OK) return rc;
    if (old->schema != j->opt->to_schema || strcmp(old->model_id, j->from->model_id) != 0 ||
        old->layer_count != j->from->layer_count)
        rc = err_set(em, STRATA_EINVAL, "%s holds another package (%.100s): name another folder", j->opt->out_dir,
                     old->model_id);
    pkg_manifest_free(old);
    return rc;
}

static strata_err prepare(struct job *j, const char *package, struct strata_errmsg *em) {
    strata_err rc = open_source(j, package, em);
    if (!rc) rc = check_folder(j, em);
    if (!rc) rc = plan_cut(j, em);
    if (!rc) rc = plan_generation(j, em);
    if (!rc) rc = plan_projectors(j, em);
    return rc;
}

static strata_err make_folders(const struct job *j, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN], folder[PATH_MAX_LEN];
    const char *dir = j->opt->out_dir;
    strata_err rc = file_mkdirs(dir, 0777, em);
    if (!rc) rc = pkg_outdir_sub(dir, "shared", em);
    if (!rc) rc = pkg_outdir_sub(dir, "layers", em);
    for (size_t i = 0; i < j->n_copies && !rc; i++) {
        rc = path_join(path, sizeof path, dir, j->copies[i].path, em);
        if (!rc) rc = path_dirname(folder, sizeof folder, path, em);
        if (!rc) rc = file_mkdirs(folder, 0777, em);
    }
    if (!rc && j->opt->how.resume) rc = pkg_outdir_reopen(dir, em);
    return rc;
}

/* ---- writing ---- */

static strata_err write_files(struct job *j, struct strata_errmsg *em) {
    const struct pkg_emit_options how = {.out_dir = j->opt->out_dir,
                                         .jobs = j->opt->how.jobs,
                                         .resume = j->opt->how.resume,
                                         .progress = j->opt->how.progress,
                                         .cancelled = j->opt->how.cancelled};
    const struct pkg_emit_job job = {
        .cut = &j->cut, .copies = j->copies, .n_copies = j->n_copies, .pieces = j->pieces, .copied = j->copied};
    strata_err rc = pkg_emit_run(&job, &how, em);
    if (rc) pkg_outdir_explain(j->opt->out_dir, rc, em);
    return rc;
}

static strata_err build(const struct job *j, json_t **out, struct strata_errmsg *em) {
    struct pkg_build b = {.model_id = j->from->model_id,
                          .source = j->from->source,
                          .cut = &j->cut,
                          .pieces = j->pieces,
                          .copies = j->copies,
                          .copied = j->copied,
                          .n_copies = j->n_copies,
                          .activation_width = j->width,
                          .generation = j->generation,
                          .abi_version = j->from->abi_version,
                          .created_at = j->from->created_at};
    if (b.source.path) b.source.path = path_basename(b.source.path);
    return j->opt->to_schema == 2 ? pkg_build_manifest2(&b, "strata " STRATA_VERSION, out, em)
                                  : pkg_build_manifest(&b, out, em);
}

static strata_err write_manifest(const struct job *j, struct pkg_convert_result *res, struct strata_errmsg *em) {
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

static void summarize(const struct job *j, struct pkg_convert_result *res) {
    res->from_schema = j->from->schema;
    res->file_count = j->cut.n_pieces + j->n_copies + 1;
    for (size_t i = 0; i < j->cut.n_pieces; i++) res->total_bytes += j->pieces[i].artifact_bytes;
    for (size_t i = 0; i < j->n_copies; i++) res->total_bytes += j->copied[i].artifact_bytes;
}

static void job_deinit(struct job *j) {
    for (size_t i = 0; i < j->n_copies; i++) free(j->names[i]);
    free(j->names);
    free(j->copies);
    free(j->copied);
    free(j->pieces);
    json_decref(j->generation);
    pkg_cut_deinit(&j->cut);
    pkg_inventory_deinit(&j->inv);
    pkg_model_free(j->model);
}

strata_err pkg_convert(const char *package, const struct pkg_convert_options *opt, struct pkg_convert_result *out,
                       struct strata_errmsg *em) {
    struct job j = {.opt = opt};
    struct pkg_convert_result res = {0};
    bool existed = file_is_dir(opt->out_dir), touched = false;
    strata_err rc = prepare(&j, package, em);
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
    job_deinit(&j);
    return rc;
}

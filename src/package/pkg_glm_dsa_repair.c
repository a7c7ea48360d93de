/*
 * Puts policy and thresholds of glm-dsa-v1 into a manifest. See pkg_glm_dsa.h. Owns the document and the texts.
 *
 * The contract is checked with the block as it would become, before anything is written; the file is replaced whole.
 */
#include "package/pkg_glm_dsa_priv.h"

#include "base/file.h"
#include "package/pkg_diff.h"
#include "package/pkg_manifest.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DIFF_MAX = 8 << 20 };

struct repair {
    struct pkg_glm_dsa_files *files;
    struct buf original, before, after; /* the file; the document in our form, as it is and as it becomes */
    json_t *root;
    json_t *generation; /* view */
};

/* The parsed manifest was checked when the files were opened; this is the same document, to be changed. */
static strata_err read_document(struct repair *x, const char *path, struct strata_errmsg *em) {
    strata_err rc = file_read_all(path, PKG_MANIFEST_MAX_BYTES, &x->original, em);
    if (!rc) rc = jsonx_parse(buf_cstr(&x->original), x->original.len, &x->root, em);
    if (!rc) rc = jsonx_dump(x->root, true, &x->before, em);
    if (!rc) rc = buf_append_str(&x->before, "\n", em);
    if (rc) return rc;
    const json_t *version = json_object_get(x->root, "schema_version");
    if (!json_is_integer(version) || json_integer_value(version) != 1)
        return err_set(em, STRATA_EUNSUPPORTED,
                       "%s: only packages of schema version 1 have a generation policy; this is not one", path);
    return STRATA_OK;
}

static strata_err change_document(struct repair *x, bool *changed, struct strata_errmsg *em) {
    x->generation = json_object_get(x->root, "generation");
    if (!json_is_object(x->generation)) {
        if (json_object_set_new(x->root, "generation", json_object())) return err_nomem(em, "a manifest");
        x->generation = json_object_get(x->root, "generation");
    }
    strata_err rc = pkg_glm_dsa_set_policy(x->generation, changed, em);
    if (!rc) rc = jsonx_dump(x->root, true, &x->after, em);
    return rc ? rc : buf_append_str(&x->after, "\n", em);
}

/* The contract with the new block. A breach is a refusal here. */
static strata_err validate(struct repair *x, const char *package, struct pkg_glm_dsa_report *out,
                           struct strata_errmsg *em) {
    const struct pkg_glm_dsa_options opt = {.require_generation_policy = true};
    char errors[STRATA_ERRMSG_MAX - 350] = ""; /* what is left beside the path and the sentence */
    strata_err rc = pkg_glm_dsa_check(pkg_glm_dsa_inventory(x->files), x->generation, &opt, out, em);
    if (!rc) rc = pkg_glm_dsa_describe(x->files, out, em);
    if (rc || out->valid) return rc;
    pkg_glm_dsa_errors_text(out, errors, sizeof errors);
    return err_set(em, STRATA_EFORMAT,
                   "%.200s does not fulfil the GLM-DSA contract, so nothing was changed: %s; 'strata "
                   "validate-glm-dsa-contract' lists all of it",
                   package, errors);
}

static strata_err make_diff(const struct repair *x, char **out, struct strata_errmsg *em) {
    struct buf diff;
    buf_init(&diff, DIFF_MAX);
    strata_err rc = pkg_diff_unified(PKG_MANIFEST_FILE, buf_cstr(&x->before), PKG_MANIFEST_FILE " (repaired)",
                                     buf_cstr(&x->after), &diff, em);
    char *text = rc ? NULL : strdup(buf_cstr(&diff));
    buf_deinit(&diff);
    if (!rc && !text) rc = err_nomem(em, "a diff");
    if (!rc) *out = text;
    return rc;
}

/* The file keeps its permissions. */
static strata_err replace(const struct repair *x, const char *path, struct strata_errmsg *em) {
    struct stat st;
    unsigned mode = stat(path, &st) == 0 ? st.st_mode & 0777u : 0644u;
    return file_write_all(path, buf_cstr(&x->after), x->after.len, mode, em);
}

/* Into path goes where the manifest of a package stands. */
static strata_err find_manifest(const char *package, char *path, size_t cap, struct strata_errmsg *em) {
    if (file_is_dir(package)) return path_join(path, cap, package, PKG_MANIFEST_FILE, em);
    if (strlen(package) >= cap) return err_set(em, STRATA_ELIMIT, "the path is too long");
    memcpy(path, package, strlen(package) + 1);
    return STRATA_OK;
}

strata_err pkg_glm_dsa_repair(const char *package, bool dry_run, struct pkg_glm_dsa_repair *out,
                              struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct pkg_glm_dsa_repair r = {0};
    struct repair x = {0};
    buf_init(&x.original, PKG_MANIFEST_MAX_BYTES);
    buf_init(&x.before, 2 * PKG_MANIFEST_MAX_BYTES); /* indents can make a file larger */
    buf_init(&x.after, PKG_MANIFEST_MAX_BYTES);
    strata_err rc = pkg_glm_dsa_open(package, &x.files, em);
    if (!rc && !pkg_glm_dsa_manifest(x.files))
        rc = err_set(em, STRATA_EINVAL, "%s is not a layer package: give its folder or its %s", package,
                     PKG_MANIFEST_FILE);
    if (!rc) rc = find_manifest(package, path, sizeof path, em);
    if (!rc) rc = read_document(&x, path, em);
    if (!rc) rc = change_document(&x, &r.changed, em);
    if (!rc) rc = validate(&x, package, &r.validation, em);
    if (!rc) rc = make_diff(&x, &r.diff, em);
    if (rc) goto out;
    r.kept_speculation = json_object_get(x.generation, "speculative_decoding") != NULL;
    r.reformatted = strcmp(buf_cstr(&x.original), buf_cstr(&x.before)) != 0;
    r.manifest_path = strdup(path);
    if (!r.manifest_path) {
        rc = err_nomem(em, "a path");
        goto out;
    }
    if (r.changed && !dry_run) rc = replace(&x, path, em);
    r.written = !rc && r.changed && !dry_run;
out:
    pkg_glm_dsa_close(x.files);
    json_decref(x.root);
    buf_deinit(&x.original);
    buf_deinit(&x.before);
    buf_deinit(&x.after);
    if (rc)
        pkg_glm_dsa_repair_deinit(&r);
    else
        *out = r;
    return rc;
}

void pkg_glm_dsa_repair_deinit(struct pkg_glm_dsa_repair *r) {
    if (!r) return;
    free(r->manifest_path);
    free(r->diff);
    pkg_glm_dsa_deinit(&r->validation);
    *r = (struct pkg_glm_dsa_repair){0};
}

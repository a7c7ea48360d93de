/* The manifest as a document, schema 2. See pkg_build.h. Owns nothing between calls. */
#include "base/path.h"
#include "package/pkg_build.h"
#include "package/pkg_package_id.h"
#include "package/pkg_schema2.h"

#include <stdio.h>
#include <string.h>

enum { ID_MAX = 32 };

static void projector_id(size_t i, char out[ID_MAX]) {
    snprintf(out, ID_MAX, "projector-%05zu", i);
}

/* ---- source_model ---- */

/* Schema 2 wants every source file with its size and digest, and the first one among them. */
static strata_err set_source_file(json_t *files, const struct pkg_source_file *f, struct strata_errmsg *em) {
    if (!f->path || !f->has_size || !f->has_sha256)
        return err_set(em, STRATA_EUNSUPPORTED,
                       "schema 2 needs the size and SHA-256 of every source file; those of %.200s are not known: write "
                       "the package from the source instead",
                       f->path ? f->path : "one");
    json_t *o = pkg_build_nest(files, NULL, json_object());
    if (!o) return err_nomem(em, "a manifest");
    strata_err rc = pkg_build_str(o, "path", f->path, em);
    if (!rc) rc = pkg_build_num(o, "byte_size", f->size_bytes, em);
    return rc ? rc : pkg_build_hex(o, "sha256", f->sha256, em);
}

/* The file that source.sha256 is of. */
static const char *primary_file(const struct pkg_source_model *s) {
    for (size_t i = 0; i < s->n_files; i++)
        if (s->files[i].path && (!s->primary_file || strcmp(s->files[i].path, s->primary_file) == 0) &&
            s->files[i].has_sha256 && memcmp(s->files[i].sha256, s->sha256, DIGEST_BYTES) == 0)
            return s->files[i].path;
    return NULL;
}

static strata_err set_source(const struct pkg_build *b, json_t *root, struct strata_errmsg *em) {
    const struct pkg_source_model *s = &b->source;
    const char *primary = primary_file(s);
    if (!primary)
        return err_set(em, STRATA_EUNSUPPORTED,
                       "schema 2 needs the list of source files, with the one that source_model.sha256 is of; it is "
                       "not known: write the package from the source instead");
    json_t *obj = pkg_build_nest(root, "source_model", json_object());
    if (!obj) return err_nomem(em, "a manifest");
    strata_err rc = pkg_build_hex(obj, "sha256", s->sha256, em);
    if (!rc) rc = pkg_build_str(obj, "metadata_artifact_id", b->cut->pieces[0].id, em);
    if (!rc) rc = pkg_build_str(obj, "repo", s->repo, em);
    if (!rc) rc = pkg_build_str(obj, "revision", s->revision, em);
    if (!rc) rc = pkg_build_str(obj, "primary_file", primary, em);
    if (!rc) rc = pkg_build_str(obj, "canonical_ref", s->canonical_ref, em);
    if (!rc) rc = pkg_build_str(obj, "distribution_id", s->distribution_id, em);
    json_t *files = rc ? NULL : pkg_build_nest(obj, "files", json_array());
    if (!rc && !files) rc = err_nomem(em, "a manifest");
    for (size_t i = 0; i < s->n_files && !rc; i++) rc = set_source_file(files, &s->files[i], em);
    return rc;
}

/* ---- artifacts ---- */

static strata_err add_artifact(json_t *entries, const char *id, const char *path, const struct pkg_emitted *x,
                               struct strata_errmsg *em) {
    json_t *o = pkg_build_nest(entries, NULL, json_object());
    if (!o) return err_nomem(em, "a manifest");
    strata_err rc = pkg_build_str(o, "id", id, em);
    if (!rc) rc = pkg_build_str(o, "path", path, em);
    if (!rc) rc = pkg_build_num(o, "byte_size", x->artifact_bytes, em);
    return rc ? rc : pkg_build_hex(o, "sha256", x->sha256, em);
}

static strata_err set_artifacts(const struct pkg_build *b, json_t *root, struct strata_errmsg *em) {
    char id[ID_MAX];
    json_t *catalog = pkg_build_nest(root, "artifact_catalog", json_object());
    json_t *entries = catalog ? pkg_build_nest(catalog, "entries", json_array()) : NULL;
    strata_err rc = entries ? STRATA_OK : err_nomem(em, "a manifest");
    for (size_t i = 0; i < b->cut->n_pieces && !rc; i++)
        rc = add_artifact(entries, b->cut->pieces[i].id, b->cut->pieces[i].path, &b->pieces[i], em);
    for (size_t i = 0; i < b->n_copies && !rc; i++) {
        projector_id(i, id);
        rc = add_artifact(entries, id, b->copies[i].path, &b->copied[i], em);
    }
    return rc;
}

static strata_err set_sidecars(const struct pkg_build *b, json_t *root, struct strata_errmsg *em) {
    char id[ID_MAX];
    if (b->n_copies == 0) return STRATA_OK;
    json_t *list = pkg_build_nest(root, "sidecars", json_array());
    strata_err rc = list ? STRATA_OK : err_nomem(em, "a manifest");
    for (size_t i = 0; i < b->n_copies && !rc; i++) {
        json_t *o = pkg_build_nest(list, NULL, json_object());
        projector_id(i, id);
        rc = o ? pkg_build_str(o, "kind", pkg_schema2_sidecar_kinds[0], em) : err_nomem(em, "a manifest");
        if (!rc) rc = pkg_build_str(o, "artifact_id", id, em);
        if (!rc) rc = pkg_build_str(o, "name", id, em);
    }
    return rc;
}

strata_err pkg_build_manifest2(const struct pkg_build *b, const char *generator, json_t **out,
                               struct strata_errmsg *em) {
    char id[PKG_PACKAGE_ID_MAX] = "-"; /* holds the place until the rest is known */
    json_t *root = json_object();
    if (!root) return err_nomem(em, "a manifest");
    strata_err rc = pkg_build_num(root, "schema_version", 2, em);
    if (!rc) rc = pkg_build_str(root, "package_id", id, em);
    if (!rc) rc = pkg_build_str(root, "model_id", b->model_id, em);
    if (!rc) rc = set_source(b, root, em);
    if (!rc) rc = pkg_build_str(root, "format", PKG_SCHEMA2_FORMAT, em);
    if (!rc) rc = pkg_build_num(root, "layer_count", b->cut->inv->layer_count, em);
    if (!rc) rc = set_artifacts(b, root, em);
    if (!rc) rc = set_sidecars(b, root, em);
    if (!rc && b->generation && json_object_set(root, "generation", (json_t *)(uintptr_t)b->generation))
        rc = err_nomem(em, "a manifest");
    if (!rc) rc = pkg_build_str(root, "native_abi_version", b->abi_version, em);
    if (!rc) rc = pkg_build_str(root, "generator_version", generator, em);
    if (!rc) rc = pkg_build_num(root, "created_at_unix_secs", b->created_at, em);
    if (!rc) rc = pkg_package_id(root, id, em);
    if (!rc) rc = pkg_build_str(root, "package_id", id, em);
    if (rc) {
        json_decref(root);
        return rc;
    }
    *out = root;
    return STRATA_OK;
}

/* The result of validating a package: as JSON, and as a file of the package. See pkg_validate_package.h. */
#include "package/pkg_validate_package.h"

#include "base/file.h"
#include "package/pkg_build.h"
#include "package/pkg_json.h"

typedef struct pkg_validate_package_report report;

/* ---- artifacts ---- */

static const struct pkg_check_item *item(const report *r, size_t i) {
    return &r->check.items[i];
}

static bool is_projector(const report *r, size_t i) {
    return item(r, i)->artifact->role == PKG_ROLE_PROJECTOR;
}

/* The four comparisons with the manifest. What schema 2 does not state, nothing can differ from. */
static int set_matches(json_t *o, const report *r, size_t i) {
    const struct pkg_artifact *a = item(r, i)->artifact;
    const struct pkg_compared *x = &r->artifacts[i];
    bool count = a->has_counts ? x->hashed && x->tensor_count == a->tensor_count : x->hashed;
    bool bytes = a->has_counts ? x->hashed && x->tensor_bytes == a->tensor_bytes : x->hashed;
    int bad = json_object_set_new(o, "sha256_matches_manifest", json_boolean(item(r, i)->digest_ok));
    if (!bad) bad = json_object_set_new(o, "tensor_count_matches_manifest", json_boolean(count));
    if (!bad) bad = json_object_set_new(o, "tensor_bytes_matches_manifest", json_boolean(bytes));
    if (!bad)
        bad = json_object_set_new(o, "artifact_bytes_matches_manifest",
                                  json_boolean(item(r, i)->present && item(r, i)->actual_bytes == a->artifact_bytes));
    return bad;
}

/* What the older tool does not tell. */
static int set_more(json_t *o, const report *r, size_t i) {
    const struct pkg_check_item *it = item(r, i);
    const struct pkg_compared *x = &r->artifacts[i];
    int bad = json_object_set_new(o, "role", json_string(pkg_role_name(it->artifact->role)));
    if (!bad && it->artifact->role == PKG_ROLE_LAYER)
        bad = json_object_set_new(o, "layer_index", pkg_json_number(it->artifact->layer));
    if (!bad && it->artifact->id) bad = json_object_set_new(o, "id", pkg_json_text(it->artifact->id));
    if (!bad) bad = json_object_set_new(o, "present", json_boolean(it->present));
    if (!bad && x->hashed) bad = json_object_set_new(o, "sha256", pkg_json_hex(x->sha256));
    if (!bad) bad = json_object_set_new(o, "compared_tensor_count", pkg_json_number(x->compared_count));
    if (!bad) bad = json_object_set_new(o, "compared_bytes", pkg_json_number(x->compared_bytes));
    if (!bad) bad = pkg_json_set_list(o, "mismatches", x->mismatches);
    return bad;
}

static json_t *artifact_to_json(const report *r, size_t i, bool older) {
    const struct pkg_artifact *a = item(r, i)->artifact;
    const struct pkg_compared *x = &r->artifacts[i];
    json_t *o = json_object();
    int bad = json_object_set_new(o, "path", pkg_json_text(a->path ? a->path : ""));
    if (!bad && is_projector(r, i)) bad = json_object_set_new(o, "kind", pkg_json_text(a->kind ? a->kind : ""));
    if (!bad) bad = json_object_set_new(o, "tensor_count", pkg_json_number(x->tensor_count));
    if (!bad && !is_projector(r, i))
        bad = json_object_set_new(o, "owned_tensor_count", pkg_json_number(x->owned_count));
    if (!bad) bad = json_object_set_new(o, "tensor_bytes", pkg_json_number(x->tensor_bytes));
    if (!bad) bad = json_object_set_new(o, "artifact_bytes", pkg_json_number(item(r, i)->actual_bytes));
    if (!bad) bad = set_matches(o, r, i);
    if (!bad && !is_projector(r, i)) bad = pkg_json_set_list(o, "missing_from_full", x->unknown);
    if (!bad && !older) bad = set_more(o, r, i);
    return pkg_json_finish(o, bad);
}

static int set_artifacts(json_t *o, const report *r, bool projectors, bool older) {
    json_t *list = json_array();
    int bad = list ? 0 : -1;
    for (size_t i = 0; i < r->check.n_items && !bad; i++)
        if (is_projector(r, i) == projectors) bad = json_array_append_new(list, artifact_to_json(r, i, older));
    if (!bad)
        bad = json_object_set_new(o, projectors ? "checked_projector_count" : "checked_artifact_count",
                                  pkg_json_number(json_array_size(list)));
    if (!bad) bad = json_object_set(o, projectors ? "projectors" : "artifacts", list);
    json_decref(list);
    return bad;
}

/* ---- the report ---- */

static int set_facts(json_t *o, const report *r) {
    const struct pkg_manifest *m = r->check.manifest;
    int bad = json_object_set_new(o, "valid", json_boolean(pkg_validate_package_is_valid(r)));
    if (!bad) bad = json_object_set_new(o, "full_tensor_count", pkg_json_number(r->full_tensor_count));
    if (!bad) bad = json_object_set_new(o, "layer_count", pkg_json_number(m ? m->layer_count : 0));
    if (!bad) bad = json_object_set_new(o, "manifest_layer_count_matches_model", json_boolean(r->layer_count_matches));
    if (!bad) bad = json_object_set_new(o, "activation_width_matches_model", json_boolean(r->width_matches));
    if (!bad) bad = json_object_set_new(o, "expected_activation_width", pkg_json_number(r->source_width));
    if (!bad)
        bad = json_object_set_new(o, "manifest_activation_width",
                                  m && m->activation_width ? pkg_json_number(m->activation_width) : json_null());
    if (!bad) bad = json_object_set_new(o, "source_sha256_matches_manifest", json_boolean(r->source_sha256_matches));
    if (!bad) bad = json_object_set_new(o, "required_owned_tensor_count", pkg_json_number(r->required_owned_count));
    return bad;
}

static int set_source(json_t *o, const report *r) {
    json_t *list = json_array();
    int bad = list ? 0 : -1;
    for (size_t i = 0; i < r->n_source && !bad; i++) {
        json_t *f = json_object();
        bad = json_object_set_new(f, "path", pkg_json_text(r->source[i].name));
        if (!bad) bad = json_object_set_new(f, "size_bytes", pkg_json_number(r->source[i].bytes));
        if (!bad) bad = json_object_set_new(f, "sha256", pkg_json_hex(r->source[i].sha256));
        if (!bad) bad = json_array_append(list, f);
        json_decref(f);
    }
    if (!bad) bad = json_object_set(o, "source_files", list);
    json_decref(list);
    return bad;
}

static int set_issues(json_t *o, const report *r, json_t *issues) {
    int bad = json_object_set_new(o, "error_count", pkg_json_number(r->check.faults.n_errors));
    if (!bad)
        bad =
            json_object_set_new(o, "issue_count", pkg_json_number(json_array_size(issues) + r->check.faults.n_dropped));
    return bad ? bad : json_object_set(o, "issues", issues);
}

static int set_ours(json_t *o, const report *r, json_t *issues) {
    const struct pkg_manifest *m = r->check.manifest;
    int bad = json_object_set_new(o, "package_path", pkg_json_text(r->check.dir));
    if (!bad && m) bad = json_object_set_new(o, "manifest_sha256", json_string(m->sha256));
    if (!bad && m) bad = json_object_set_new(o, "manifest_schema_version", json_integer(m->schema));
    if (!bad) bad = json_object_set_new(o, "compared_tensor_count", pkg_json_number(r->compared_count));
    if (!bad) bad = json_object_set_new(o, "compared_bytes", pkg_json_number(r->compared_bytes));
    if (!bad) bad = json_object_set_new(o, "source_layer_count", pkg_json_number(r->source_layer_count));
    /* Without a manifest the source was not read to its end. */
    if (!bad && m) bad = set_source(o, r);
    return bad ? bad : set_issues(o, r, issues);
}

strata_err pkg_validate_package_to_json(const report *r, bool older, json_t **out, struct strata_errmsg *em) {
    json_t *issues = NULL, *o = json_object();
    strata_err rc = older ? STRATA_OK : pkg_faults_to_json(&r->check.faults, &issues, em);
    int bad = rc ? -1 : set_facts(o, r);
    if (!bad) bad = pkg_json_set_list(o, "missing_owned_tensors", r->missing);
    if (!bad) bad = pkg_json_set_list(o, "duplicate_owned_tensors", r->duplicate);
    if (!bad) bad = set_artifacts(o, r, false, older);
    if (!bad) bad = set_artifacts(o, r, true, older);
    if (!bad) bad = pkg_json_set_list(o, "missing_layers", r->missing_layers);
    if (!bad) bad = pkg_json_set_list(o, "duplicate_layers", r->duplicate_layers);
    if (!bad && !older) bad = set_ours(o, r, issues);
    json_decref(issues);
    if (bad) {
        json_decref(o);
        return rc ? rc : err_nomem(em, "a report");
    }
    *out = o;
    return STRATA_OK;
}

/* ---- validation.json ---- */

static size_t count_role(const report *r, bool projectors) {
    size_t n = 0;
    for (size_t i = 0; i < r->check.n_items; i++) n += is_projector(r, i) == projectors;
    return n;
}

static strata_err build_record(const report *r, json_t **out, struct strata_errmsg *em) {
    json_t *issues = NULL, *o = json_object();
    uint64_t now = 0;
    strata_err rc = pkg_build_time(&now, em);
    if (!rc) rc = pkg_faults_to_json(&r->check.faults, &issues, em);
    int bad = rc ? -1 : json_object_set_new(o, "schema_version", json_integer(1));
    if (!bad) bad = json_object_set_new(o, "tool", json_string("strata " STRATA_VERSION));
    if (!bad) bad = json_object_set_new(o, "command", json_string("validate-package"));
    if (!bad) bad = json_object_set_new(o, "created_at_unix_secs", pkg_json_number(now));
    if (!bad) bad = json_object_set_new(o, "manifest_sha256", json_string(r->check.manifest->sha256));
    if (!bad) bad = json_object_set_new(o, "valid", json_boolean(pkg_validate_package_is_valid(r)));
    if (!bad) bad = json_object_set_new(o, "layer_count", pkg_json_number(r->source_layer_count));
    if (!bad) bad = json_object_set_new(o, "full_tensor_count", pkg_json_number(r->full_tensor_count));
    if (!bad) bad = json_object_set_new(o, "required_owned_tensor_count", pkg_json_number(r->required_owned_count));
    if (!bad) bad = json_object_set_new(o, "checked_artifact_count", pkg_json_number(count_role(r, false)));
    if (!bad) bad = json_object_set_new(o, "checked_projector_count", pkg_json_number(count_role(r, true)));
    if (!bad) bad = json_object_set_new(o, "compared_tensor_count", pkg_json_number(r->compared_count));
    if (!bad) bad = json_object_set_new(o, "compared_bytes", pkg_json_number(r->compared_bytes));
    if (!bad) bad = set_source(o, r);
    if (!bad) bad = set_issues(o, r, issues);
    json_decref(issues);
    if (bad) {
        json_decref(o);
        return rc ? rc : err_nomem(em, "a validation result");
    }
    *out = o;
    return STRATA_OK;
}

strata_err pkg_validate_package_record(const report *r, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct buf out;
    json_t *root = NULL;
    if (!r->check.manifest)
        return err_set(em, STRATA_EINVAL, "%s has no manifest that a result could be about", r->check.dir);
    buf_init(&out, PKG_MANIFEST_MAX_BYTES);
    strata_err rc = build_record(r, &root, em);
    if (!rc) rc = pkg_build_text(root, &out, em);
    if (!rc) rc = path_join(path, sizeof path, r->check.dir, PKG_CHECK_VALIDATION_FILE, em);
    if (!rc) rc = file_write_all(path, out.data, out.len, 0644, em);
    json_decref(root);
    buf_deinit(&out);
    return rc;
}

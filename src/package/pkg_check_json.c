/* Preflight: the report as JSON. See pkg_check.h. Keys stand in a fixed order; a value that cannot be made for want of
 * memory makes the whole report fail. */
#include "package/pkg_check.h"
#include "package/pkg_json.h"

static json_t *item_to_json(const struct pkg_check_item *it, bool older) {
    const struct pkg_artifact *a = it->artifact;
    json_t *o = json_object();
    int bad = json_object_set_new(o, "role", json_string(pkg_role_name(a->role)));
    if (!bad && a->role == PKG_ROLE_LAYER) bad = json_object_set_new(o, "layer_index", pkg_json_number(a->layer));
    if (!bad && !older && a->id) bad = json_object_set_new(o, "id", pkg_json_text(a->id));
    /* The older report always has the key. */
    if (!bad && (a->path || older)) bad = json_object_set_new(o, "path", pkg_json_text(a->path ? a->path : ""));
    if (!bad) bad = json_object_set_new(o, "present", json_boolean(it->present));
    if (!bad) bad = json_object_set_new(o, "declared_artifact_bytes", pkg_json_number(a->artifact_bytes));
    if (!bad && it->present) bad = json_object_set_new(o, "actual_artifact_bytes", pkg_json_number(it->actual_bytes));
    if (!bad && it->present)
        bad = json_object_set_new(o, "size_matches_manifest", json_boolean(it->actual_bytes == a->artifact_bytes));
    if (!bad && it->digest_checked)
        bad = json_object_set_new(o, "sha256_matches_manifest", json_boolean(it->digest_ok));
    return pkg_json_finish(o, bad);
}

static json_t *items_to_json(const struct pkg_check_report *r, bool older) {
    json_t *list = json_array();
    int bad = list ? 0 : -1;
    for (size_t i = 0; i < r->n_items && !bad; i++)
        bad = json_array_append_new(list, item_to_json(&r->items[i], older));
    return pkg_json_finish(list, bad);
}

/* The names of a stage's parts; of those that are not there. */
static json_t *parts_to_json(const struct pkg_check_report *r, const struct pkg_check_stage *s, bool missing) {
    char name[PKG_CHECK_NAME];
    json_t *list = json_array();
    int bad = list ? 0 : -1;
    for (size_t i = 0; i < s->n_parts && !bad; i++)
        if (!missing || !r->items[s->parts[i]].present)
            bad = json_array_append_new(list, pkg_json_text(pkg_check_part_name(r, s->parts[i], name)));
    return pkg_json_finish(list, bad);
}

static json_t *stage_to_json(const struct pkg_check_report *r, size_t index) {
    const struct pkg_check_stage *s = &r->stages[index];
    json_t *o = json_object();
    int bad = json_object_set_new(o, "stage_index", pkg_json_number(index));
    if (!bad) bad = json_object_set_new(o, "layer_start", pkg_json_number(s->range.first));
    if (!bad) bad = json_object_set_new(o, "layer_end", pkg_json_number(s->range.end));
    if (!bad) bad = json_object_set_new(o, "includes_embeddings", json_boolean(s->embeddings));
    if (!bad) bad = json_object_set_new(o, "includes_output", json_boolean(s->output));
    if (!bad) bad = json_object_set_new(o, "part_count", pkg_json_number(s->n_parts));
    if (!bad) bad = json_object_set_new(o, "artifact_bytes", pkg_json_number(s->bytes));
    if (!bad) bad = json_object_set_new(o, "parts", parts_to_json(r, s, false));
    if (!bad) bad = json_object_set_new(o, "missing_parts", parts_to_json(r, s, true));
    return pkg_json_finish(o, bad);
}

static json_t *stages_to_json(const struct pkg_check_report *r) {
    json_t *list = json_array();
    int bad = list ? 0 : -1;
    for (size_t i = 0; i < r->n_stages && !bad; i++) bad = json_array_append_new(list, stage_to_json(r, i));
    return pkg_json_finish(list, bad);
}

static int set_head(json_t *o, const struct pkg_check_report *r) {
    const struct pkg_manifest *m = r->manifest;
    int bad = json_object_set_new(o, "schema_version", json_integer(1));
    if (!bad) bad = json_object_set_new(o, "package_path", pkg_json_text(r->dir));
    if (!bad) bad = json_object_set_new(o, "valid", json_boolean(pkg_check_is_valid(r)));
    if (!bad) bad = json_object_set_new(o, "model_id", pkg_json_text_or_null(m ? m->model_id : NULL));
    if (!bad) bad = json_object_set_new(o, "layer_count", m ? pkg_json_number(m->layer_count) : json_null());
    if (!bad)
        bad = json_object_set_new(o, "activation_width",
                                  m && m->activation_width ? pkg_json_number(m->activation_width) : json_null());
    if (!bad && r->generation) bad = json_object_set(o, "generation", r->generation);
    if (!bad) bad = json_object_set_new(o, "manifest_sha256", pkg_json_text_or_null(m ? m->sha256 : NULL));
    return bad;
}

static int set_ours(json_t *o, const struct pkg_check_report *r, struct strata_errmsg *em) {
    const struct pkg_manifest *m = r->manifest;
    json_t *signature = NULL;
    int bad = json_object_set_new(o, "manifest_schema_version", m ? json_integer(m->schema) : json_null());
    if (!bad) bad = json_object_set_new(o, "error_count", pkg_json_number(r->faults.n_errors));
    if (!bad) bad = json_object_set_new(o, "checked_bytes", pkg_json_number(r->checked_bytes));
    if (!bad && m && m->package_id) bad = json_object_set_new(o, "package_id", pkg_json_text(m->package_id));
    if (!bad && m) bad = json_object_set_new(o, "skippy_abi_version", pkg_json_text_or_null(m->abi_version));
    if (!bad && m) bad = pkg_sign_to_json(&r->signature, &signature, em) ? -1 : 0;
    if (!bad && m) bad = json_object_set_new(o, "signature", signature);
    return bad;
}

strata_err pkg_check_to_json(const struct pkg_check_report *r, bool older, json_t **out, struct strata_errmsg *em) {
    json_t *issues = NULL, *o = json_object();
    size_t missing = 0, dropped = older ? 0 : r->faults.n_dropped;
    for (size_t i = 0; i < r->n_items; i++) missing += !r->items[i].present;
    strata_err rc = older ? pkg_faults_errors_to_json(&r->faults, PKG_MANIFEST_FILE, &issues, em)
                          : pkg_faults_to_json(&r->faults, &issues, em);
    int bad = rc ? -1 : set_head(o, r);
    if (!bad) bad = json_object_set_new(o, "checked_artifact_count", pkg_json_number(r->n_items));
    if (!bad) bad = json_object_set_new(o, "missing_artifact_count", pkg_json_number(missing));
    if (!bad) bad = json_object_set_new(o, "issue_count", pkg_json_number(json_array_size(issues) + dropped));
    if (!bad) bad = json_object_set(o, "issues", issues);
    if (!bad) bad = json_object_set_new(o, "artifacts", items_to_json(r, older));
    if (!bad) bad = json_object_set_new(o, "stages", stages_to_json(r));
    if (!bad && !older) bad = set_ours(o, r, em);
    json_decref(issues);
    if (bad) {
        json_decref(o);
        return rc ? rc : err_nomem(em, "a report");
    }
    *out = o;
    return STRATA_OK;
}

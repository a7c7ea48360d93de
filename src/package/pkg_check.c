/* Preflight of a package. See pkg_check.h. Owns the report until it is handed over. */
#include "package/pkg_check.h"

#include "base/file.h"
#include "base/path.h"
#include "package/pkg_part.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static strata_err read_manifest(struct pkg_check_report *r, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct buf text;
    struct strata_errmsg why;
    buf_init(&text, PKG_MANIFEST_MAX_BYTES);
    strata_err rc = path_join(path, sizeof path, r->dir, PKG_MANIFEST_FILE, em);
    if (rc) goto out;
    strata_err read_rc = file_read_all(path, PKG_MANIFEST_MAX_BYTES, &text, &why);
    if (read_rc == STRATA_ENOMEM)
        rc = err_nomem(em, "a manifest");
    else if (read_rc == STRATA_ELIMIT)
        pkg_faults_add(&r->faults, PKG_FAULT_MANIFEST_TOO_LARGE, PKG_MANIFEST_FILE, "%s", why.text);
    else if (read_rc)
        pkg_faults_add(&r->faults, PKG_FAULT_MISSING_MANIFEST, PKG_MANIFEST_FILE, "%s", why.text);
    else
        rc = pkg_manifest_check(buf_cstr(&text), text.len, &r->faults, &r->manifest, em);
out:
    buf_deinit(&text);
    return rc;
}

/* What the metadata part says about the whole model, beside what the manifest says. */
static void compare_metadata(struct pkg_check_report *r, const struct gguf_reader *meta) {
    const char *path = r->manifest->artifacts[PKG_ROLE_METADATA].path;
    struct gguf_str arch;
    struct strata_errmsg em;
    char key[128];
    uint64_t width = 0, blocks = 0;
    if (gguf_reader_get_str(meta, "general.architecture", true, &arch, &em) || arch.len > 64) return;
    snprintf(key, sizeof key, "%.*s.embedding_length", (int)arch.len, arch.data);
    if (r->manifest->activation_width && gguf_reader_get_u64(meta, key, true, &width, &em) == STRATA_OK &&
        width != r->manifest->activation_width)
        pkg_faults_add(&r->faults, PKG_FAULT_ACTIVATION_WIDTH_MISMATCH, path,
                       "activation_width is %" PRIu32 ", but %s is %" PRIu64, r->manifest->activation_width, key,
                       width);
    snprintf(key, sizeof key, "%.*s.block_count", (int)arch.len, arch.data);
    if (gguf_reader_get_u64(meta, key, true, &blocks, &em) == STRATA_OK && blocks != r->manifest->layer_count)
        pkg_faults_add(&r->faults, PKG_FAULT_LAYER_COUNT_MISMATCH, path,
                       "layer_count is %" PRIu32 ", but %s is %" PRIu64, r->manifest->layer_count, key, blocks);
}

static strata_err check_item(struct pkg_check_report *r, const struct pkg_check_options *opt, struct progress *progress,
                             struct pkg_check_item *it, struct strata_errmsg *em) {
    struct pkg_part part;
    strata_err rc = pkg_part_open(r->dir, it->artifact, !opt->skip_digests, progress, &r->faults, &part, em);
    if (!rc) {
        it->present = part.present;
        it->actual_bytes = part.actual_bytes;
        it->digest_checked = part.digest_checked;
        it->digest_ok = part.digest_ok;
        r->checked_bytes += part.actual_bytes;
        if (part.reader && it->artifact->role == PKG_ROLE_METADATA) compare_metadata(r, part.reader);
    }
    pkg_part_close(&part);
    return rc;
}

static strata_err check_items(struct pkg_check_report *r, const struct pkg_check_options *opt,
                              struct strata_errmsg *em) {
    uint64_t total = 0;
    while (r->n_items < r->manifest->n_artifacts) {
        uint64_t bytes = r->manifest->artifacts[r->n_items++].artifact_bytes;
        total = bytes < UINT64_MAX - total ? total + bytes : UINT64_MAX; /* for the bar only */
    }
    r->items = calloc(r->n_items, sizeof *r->items);
    if (!r->items) return err_nomem(em, "a report");
    struct progress progress;
    progress_begin(&progress, opt->skip_digests ? NULL : opt->progress, "verifying", total);
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < r->n_items && !rc; i++) {
        r->items[i].artifact = &r->manifest->artifacts[i];
        if (opt->cancelled && opt->cancelled())
            rc = err_set(em, STRATA_ECANCELLED, "interrupted");
        else
            rc = check_item(r, opt, &progress, &r->items[i], em);
    }
    progress_end(&progress);
    return rc;
}

strata_err pkg_check_run(const char *path, const struct pkg_check_options *opt, struct pkg_check_report *out,
                         struct strata_errmsg *em) {
    char dir[PATH_MAX_LEN];
    struct pkg_check_report r = {0};
    strata_err rc;
    pkg_faults_init(&r.faults);
    if (!pkg_part_folder(path, dir, sizeof dir)) {
        rc =
            err_set(em, STRATA_EINVAL, "%s is not a layer package: give its folder or its %s", path, PKG_MANIFEST_FILE);
        goto out;
    }
    r.dir = strdup(dir);
    rc = r.dir ? read_manifest(&r, em) : err_nomem(em, "a report");
    if (!rc && r.manifest) rc = check_items(&r, opt, em);
    if (!rc && r.faults.out_of_memory) rc = err_nomem(em, "a report");
    if (rc) goto out;
    *out = r;
    return STRATA_OK;
out:
    pkg_check_deinit(&r);
    return rc;
}

void pkg_check_deinit(struct pkg_check_report *r) {
    if (!r) return;
    free(r->dir);
    free(r->items);
    pkg_manifest_free(r->manifest);
    pkg_faults_deinit(&r->faults);
    *r = (struct pkg_check_report){0};
}

bool pkg_check_is_valid(const struct pkg_check_report *r) {
    return r->faults.n_errors == 0;
}

/* Sets key only when v is there; takes v. */
static int set_optional(json_t *obj, const char *key, json_t *v) {
    return v ? json_object_set_new(obj, key, v) : 0;
}

static json_t *item_to_json(const struct pkg_check_item *it) {
    const struct pkg_artifact *a = it->artifact;
    json_t *o = json_pack("{s:s}", "role", pkg_role_name(a->role));
    int bad = o ? 0 : -1;
    if (!bad && a->role == PKG_ROLE_LAYER) bad = set_optional(o, "layer_index", json_integer(a->layer));
    if (!bad && a->path) bad = set_optional(o, "path", json_string(a->path));
    if (!bad) bad = json_object_set_new(o, "present", json_boolean(it->present));
    if (!bad) bad = json_object_set_new(o, "declared_artifact_bytes", json_integer((json_int_t)a->artifact_bytes));
    if (!bad && it->present) {
        bad = json_object_set_new(o, "actual_artifact_bytes", json_integer((json_int_t)it->actual_bytes));
        if (!bad)
            bad = json_object_set_new(o, "size_matches_manifest", json_boolean(it->actual_bytes == a->artifact_bytes));
    }
    if (!bad && it->digest_checked)
        bad = json_object_set_new(o, "sha256_matches_manifest", json_boolean(it->digest_ok));
    if (bad) {
        json_decref(o);
        return NULL;
    }
    return o;
}

strata_err pkg_check_to_json(const struct pkg_check_report *r, json_t **out, struct strata_errmsg *em) {
    const struct pkg_manifest *m = r->manifest;
    json_t *issues = NULL, *artifacts = json_array();
    size_t missing = 0;
    strata_err rc = pkg_faults_to_json(&r->faults, &issues, em);
    for (size_t i = 0; i < r->n_items && !rc; i++) {
        if (!r->items[i].present) missing++;
        if (!artifacts || json_array_append_new(artifacts, item_to_json(&r->items[i]))) rc = err_nomem(em, "a report");
    }
    if (!artifacts && !rc) rc = err_nomem(em, "a report");
    if (rc) goto out;
    json_t *o = json_pack("{s:i, s:o, s:b, s:s*, s:s*}", "schema_version", 1, "package_path",
                          jsonx_text(r->dir, strlen(r->dir)), "valid", pkg_check_is_valid(r), "model_id",
                          m ? m->model_id : NULL, "manifest_sha256", m ? m->sha256 : NULL);
    int bad = o ? 0 : -1;
    if (!bad && m) bad = json_object_set_new(o, "layer_count", json_integer(m->layer_count));
    if (!bad && m && m->activation_width)
        bad = json_object_set_new(o, "activation_width", json_integer(m->activation_width));
    if (!bad && m && m->generation) bad = json_object_set(o, "generation", (json_t *)(uintptr_t)m->generation);
    if (!bad) bad = json_object_set_new(o, "checked_artifact_count", json_integer((json_int_t)(r->n_items - missing)));
    if (!bad) bad = json_object_set_new(o, "missing_artifact_count", json_integer((json_int_t)missing));
    if (!bad)
        bad = json_object_set_new(o, "issue_count",
                                  json_integer((json_int_t)r->faults.n + (json_int_t)r->faults.n_dropped));
    if (!bad) bad = json_object_set(o, "issues", issues);
    if (!bad) bad = json_object_set(o, "artifacts", artifacts);
    if (bad) {
        json_decref(o);
        rc = err_nomem(em, "a report");
    } else {
        *out = o;
    }
out:
    json_decref(issues);
    json_decref(artifacts);
    return rc;
}

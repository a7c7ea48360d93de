/*
 * Any bytes into the manifest reader. Checking and parsing must agree; whatever is accepted keeps its promises: every
 * layer is there, every path is safe; and the list of faults always becomes a JSON document.
 */
#include "base/path.h"
#include "package/pkg_manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile size_t sink;

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

static void touch_text(const char *s) {
    if (s) sink += strlen(s);
}

static void walk(const struct pkg_manifest *m, bool sound) {
    for (size_t i = 0; i < m->n_artifacts; i++) {
        const struct pkg_artifact *a = &m->artifacts[i];
        touch_text(a->path);
        touch_text(a->kind);
        require(!a->path || path_is_safe_relative(a->path, strlen(a->path), NULL), "an unsafe path got through");
        require(!sound || (a->path && a->has_sha256 && a->artifact_bytes > 0),
                "a sound manifest has an incomplete entry");
    }
    for (uint32_t i = 0; i < m->layer_count; i++) {
        size_t n;
        const struct pkg_artifact *a = pkg_manifest_layer(m, i, &n);
        for (size_t k = 0; k < n; k++)
            require(a[k].role == PKG_ROLE_LAYER && a[k].layer == i, "layers are not in order");
    }
    for (size_t i = 0; i < m->source.n_files; i++) touch_text(m->source.files[i].path);
    touch_text(m->model_id);
    touch_text(m->abi_version);
    touch_text(m->source.path);
    touch_text(m->source.repo);
    touch_text(m->source.revision);
    touch_text(m->source.primary_file);
    touch_text(m->source.canonical_ref);
    touch_text(m->source.distribution_id);
    touch_text(m->sha256);
    require(!sound || (m->model_id && m->abi_version && m->source.path && m->layer_count > 0),
            "a sound manifest lacks a field");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pkg_faults faults;
    struct pkg_manifest *checked = NULL, *parsed = NULL;
    struct strata_errmsg em = {0};
    json_t *list = NULL;
    pkg_faults_init(&faults);
    require(pkg_manifest_check(data, size, &faults, &checked, &em) == STRATA_OK, "the check itself failed");
    require(checked || faults.n_errors > 0, "nothing came out, and no fault says why");
    if (checked) walk(checked, faults.n_errors == 0);
    require(pkg_faults_to_json(&faults, &list, &em) == STRATA_OK, "faults cannot be written as JSON");
    strata_err rc = pkg_manifest_parse(data, size, "fuzz", &parsed, &em);
    require((rc == STRATA_OK) == (faults.n_errors == 0), "check and parse disagree");
    require((rc == STRATA_OK) == (parsed != NULL), "a result without success, or the reverse");
    if (parsed) walk(parsed, true);
    json_decref(list);
    pkg_manifest_free(checked);
    pkg_manifest_free(parsed);
    pkg_faults_deinit(&faults);
    return 0;
}

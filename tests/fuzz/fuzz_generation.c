/*
 * Any JSON into the check of the generation block. It must list faults and never stop; its report and its summary must
 * become JSON documents; what it calls sound must keep its promises; and the policy can be set into any object.
 */
#include "package/pkg_generation.h"
#include "package/pkg_glm_dsa.h"
#include "package/pkg_inventory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

static void require_json(const json_t *v, const char *what) {
    struct buf text;
    struct strata_errmsg em;
    buf_init(&text, 64 << 20);
    require(jsonx_dump(v, true, &text, &em) == STRATA_OK, what);
    buf_deinit(&text);
}

/* Errors of one check; the report is built, and thrown away. */
static size_t check(const json_t *block, uint32_t layers, json_t **summary) {
    struct pkg_faults faults;
    struct strata_errmsg em;
    json_t *list;
    pkg_faults_init(&faults);
    require(pkg_generation_check(block, layers, &faults, summary, &em) == STRATA_OK, "the check itself failed");
    require(pkg_faults_to_json(&faults, &list, &em) == STRATA_OK, "faults make no JSON");
    require_json(list, "faults cannot be written");
    size_t n = faults.n_errors;
    require((pkg_faults_first(&faults, "fuzz", &em) == STRATA_OK) == (n == 0), "the first error is none");
    json_decref(list);
    pkg_faults_deinit(&faults);
    return n;
}

/* A sound block's default can be looked up, and is of a type that is known. */
static void check_promises(const json_t *block) {
    const json_t *speculation = json_object_get(block, "speculative_decoding");
    if (!json_is_object(speculation)) return;
    const char *name = json_string_value(json_object_get(speculation, "default"));
    require(name && *name, "no default");
    const json_t *strategy = json_object_get(json_object_get(speculation, "strategies"), name);
    const char *type = json_string_value(json_object_get(strategy, "type"));
    require(type && (strcmp(type, PKG_GENERATION_MTP) == 0 || strcmp(type, PKG_GENERATION_NGRAM_CACHE) == 0 ||
                     strcmp(type, PKG_GENERATION_NGRAM_SUFFIX) == 0 || strcmp(type, PKG_GENERATION_COMPOSITE) == 0),
            "a default of a type that nobody knows");
}

/* A model without keys and tensors: the least that a block can be compared with. */
static void check_against_nothing(const json_t *block) {
    static const uint8_t empty[24] = {'G', 'G', 'U', 'F', 3};
    struct pkg_inventory inv = {.layer_count = 48};
    struct gguf_reader *reader;
    struct pkg_faults faults;
    struct strata_errmsg em;
    require(gguf_reader_new(empty, sizeof empty, "empty", &reader, &em) == STRATA_OK, "the empty model is refused");
    inv.meta = reader;
    pkg_faults_init(&faults);
    require(pkg_generation_check_tensors(block, &inv, &faults, &em) == STRATA_OK, "the comparison itself failed");
    pkg_faults_deinit(&faults);
    gguf_reader_free(reader);
}

static void check_policy(const json_t *block) {
    bool changed;
    struct strata_errmsg em;
    json_t *copy = json_deep_copy(block);
    require(copy != NULL, "no copy");
    require(pkg_glm_dsa_set_policy(copy, &changed, &em) == STRATA_OK, "the policy cannot be set");
    require(changed || json_equal(copy, block), "changed in silence");
    require(pkg_glm_dsa_set_policy(copy, &changed, &em) == STRATA_OK && !changed, "set twice, changed twice");
    json_decref(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *block, *summary = NULL;
    struct strata_errmsg em;
    if (jsonx_parse((const char *)data, size, &block, &em)) return 0;
    size_t errors = check(block, 48, &summary);
    require(json_is_object(summary), "no summary");
    require_json(summary, "the summary cannot be written");
    require(check(block, 48, NULL) == errors, "the same block, other errors");
    require(check(block, 0, NULL) <= errors, "more errors when less is known");
    if (errors == 0) check_promises(block);
    check_against_nothing(block);
    if (json_is_object(block)) check_policy(block);
    json_decref(summary);
    json_decref(block);
    return 0;
}

/* The generation block against the tensors of the model. See pkg_generation.h. Owns nothing. */
#include "package/pkg_generation.h"

#include "package/pkg_glm_dsa.h"
#include "package/pkg_inventory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *const pkg_generation_nextn_tensors[] = {"nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight",
                                                    NULL};

/* The first NextN tensor that a layer lacks, or NULL. */
static const char *lacks(const struct pkg_inventory *inv, uint32_t layer) {
    char name[64];
    for (size_t i = 0; pkg_generation_nextn_tensors[i]; i++) {
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", layer, pkg_generation_nextn_tensors[i]);
        if (!pkg_inventory_find(inv, name)) return pkg_generation_nextn_tensors[i];
    }
    return NULL;
}

/* Indices that are no numbers, or beyond the model, are the other check's. */
static void check_layers(const json_t *source, const char *where, const struct pkg_inventory *inv,
                         struct pkg_faults *faults) {
    const json_t *type = json_object_get(source, "type"), *list = json_object_get(source, "layer_indices");
    if (!json_is_string(type) || strcmp(json_string_value(type), PKG_GENERATION_MTP) != 0) return;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t n = json_integer_value(v);
        if (!json_is_integer(v) || n < 0 || n >= (json_int_t)inv->layer_count) continue;
        const char *what = lacks(inv, (uint32_t)n);
        if (what)
            pkg_faults_add(faults, PKG_FAULT_NATIVE_MTP_LAYER_WITHOUT_TENSORS, NULL,
                           "%s.layer_indices names layer %lld, which holds no blk.%lld.%s", where, (long long)n,
                           (long long)n, what);
    }
}

static void check_sources(const json_t *speculation, const char *map, const struct pkg_inventory *inv,
                          struct pkg_faults *faults) {
    char where[160];
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(speculation, map), name, value) {
        snprintf(where, sizeof where, "generation.speculative_decoding.%s.%.60s", map, name);
        check_layers(value, where, inv, faults);
    }
}

static strata_err check_profile(const json_t *generation, const struct pkg_inventory *inv, struct pkg_faults *faults,
                                struct strata_errmsg *em) {
    const struct pkg_glm_dsa_options opt = {0};
    struct pkg_glm_dsa_report report;
    const char *profile = json_string_value(json_object_get(json_object_get(generation, "policy"), "profile"));
    if (!profile || strcmp(profile, PKG_GENERATION_GLM_DSA_V1) != 0) return STRATA_OK;
    /* The artifact alone: what the policy says beside its profile is a publisher's to decide. */
    strata_err rc = pkg_glm_dsa_check(inv, NULL, &opt, &report, em);
    if (rc) return rc;
    char errors[STRATA_ERRMSG_MAX];
    if (pkg_glm_dsa_errors_text(&report, errors, sizeof errors))
        pkg_faults_add(faults, PKG_FAULT_GLM_DSA_CONTRACT, NULL,
                       "generation.policy.profile is " PKG_GENERATION_GLM_DSA_V1
                       ", but the model does not fulfil its contract: %s",
                       errors);
    pkg_glm_dsa_deinit(&report);
    return STRATA_OK;
}

strata_err pkg_generation_check_tensors(const json_t *generation, const struct pkg_inventory *inv,
                                        struct pkg_faults *faults, struct strata_errmsg *em) {
    const json_t *speculation = json_object_get(generation, "speculative_decoding");
    check_sources(speculation, "proposers", inv, faults);
    check_sources(speculation, "strategies", inv, faults);
    strata_err rc = check_profile(generation, inv, faults, em);
    if (!rc && faults->out_of_memory) rc = err_nomem(em, "the list of faults");
    return rc;
}

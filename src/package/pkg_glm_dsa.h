/*
 * The GLM-DSA contract: what a model must hold before a package may advertise the profile glm-dsa-v1.
 *
 * GLM-DSA models (architecture glm-dsa: GLM-5 and later) attend sparsely: an indexer picks top-k positions, on Full
 * layers from tensors of their own, on Shared layers by reusing the choice of the nearest Full layer before them
 * (IndexShare). The contract names the metadata, the role of every layer, the tensors of every layer with their shapes,
 * and, for packages, the policy that goes with it. Every breach is listed.
 *
 * Life cycle: pkg_glm_dsa_check (or pkg_glm_dsa_check_path), pkg_glm_dsa_deinit; a zeroed report is empty.
 */
#ifndef PKG_GLM_DSA_H
#define PKG_GLM_DSA_H

#include "base/jsonx.h"

#include <stdbool.h>
#include <stdint.h>

struct pkg_inventory;

struct pkg_glm_dsa_options {
    bool require_generation_policy; /* a package must carry policy and thresholds of glm-dsa-v1 */
};

enum pkg_glm_dsa_list {
    PKG_GLM_DSA_METADATA,   /* errors */
    PKG_GLM_DSA_TENSORS,    /* errors */
    PKG_GLM_DSA_POLICY,     /* errors */
    PKG_GLM_DSA_THRESHOLDS, /* errors */
    PKG_GLM_DSA_WARNINGS,
    PKG_GLM_DSA_LISTS
};

/* Where the role of each layer was found. */
enum pkg_glm_dsa_roles { PKG_GLM_DSA_NO_ROLES, PKG_GLM_DSA_TYPES, PKG_GLM_DSA_FREQUENCY, PKG_GLM_DSA_PRESENCE };

struct pkg_glm_dsa_report {
    bool valid;                /* none of the four lists of errors has an entry */
    char *path;                /* owned; NULL unless a path was checked, like the next two */
    const char *artifact_kind; /* "model_package", "gguf_directory" or "gguf_file" */
    json_t *gguf_files;        /* owned; array of paths */
    char *architecture;        /* owned; NULL when the metadata does not say */
    size_t tensor_count;
    uint32_t layer_count;    /* 0 when not known: all blocks, NextN included */
    uint32_t decoder_layers; /* 0 when not known: those before the NextN layers */
    uint32_t nextn_layers;
    enum pkg_glm_dsa_roles role_source;
    json_t *full_layers, *shared_layers; /* owned; arrays of numbers */
    bool policy_required;
    json_t *policy, *thresholds;     /* owned; what the generation block says, or NULL */
    json_t *list[PKG_GLM_DSA_LISTS]; /* owned; arrays of strings */
    bool out_of_memory;
};

/*
 * Checks a whole model. generation is its package's block, or NULL. A model that breaks the contract is a report with
 * errors; the function fails only without memory.
 */
strata_err pkg_glm_dsa_check(const struct pkg_inventory *inv, const json_t *generation,
                             const struct pkg_glm_dsa_options *opt, struct pkg_glm_dsa_report *out,
                             struct strata_errmsg *em);

/*
 * Checks what stands under a path: a layer package (its folder or manifest), a GGUF file or any member of a split set,
 * or a folder of GGUF files (all that are in it and below, projectors left out, taken as one model). Fails when that
 * cannot be read; a generation block that is itself faulty does not hinder.
 */
strata_err pkg_glm_dsa_check_path(const char *path, const struct pkg_glm_dsa_options *opt,
                                  struct pkg_glm_dsa_report *out, struct strata_errmsg *em);

void pkg_glm_dsa_deinit(struct pkg_glm_dsa_report *r);

/* The first error as a view into the report, NULL when there is none. *more (may be NULL): how many others there are.
 */
const char *pkg_glm_dsa_first_error(const struct pkg_glm_dsa_report *r, size_t *more);

/* The same as a text: "<first error> (and 3 more)". False, and nothing is written, when there is no error. */
bool pkg_glm_dsa_errors_text(const struct pkg_glm_dsa_report *r, char *out, size_t cap);

/* "metadata_types" and the like; NULL for PKG_GLM_DSA_NO_ROLES. */
const char *pkg_glm_dsa_roles_name(enum pkg_glm_dsa_roles source);
/* The list's key in the report, such as "metadata_errors". */
const char *pkg_glm_dsa_list_name(enum pkg_glm_dsa_list list);

/* A new JSON object. */
strata_err pkg_glm_dsa_to_json(const struct pkg_glm_dsa_report *r, json_t **out, struct strata_errmsg *em);

/*
 * Sets policy and thresholds of a generation block to those of glm-dsa-v1. Other keys, and the order of all keys, stay
 * as they are. *changed tells whether anything was different.
 */
strata_err pkg_glm_dsa_set_policy(json_t *generation, bool *changed, struct strata_errmsg *em);

struct pkg_glm_dsa_repair {
    char *manifest_path;   /* owned */
    bool changed;          /* the manifest differed from what it should say */
    bool written;          /* and was replaced: never in a dry run */
    bool kept_speculation; /* it declares speculative decoding, which was left alone */
    bool reformatted;      /* line breaks or indents of the file differ from ours, so that writing changes them too */
    char *diff;            /* owned; unified diff of the lines that change, "" when there are none */
    struct pkg_glm_dsa_report validation; /* of the manifest as it is then, or would be */
};

/*
 * Puts policy and thresholds of glm-dsa-v1 into a package's manifest, atomically. Refuses a package that does not
 * fulfil the contract, or whose manifest is faulty elsewhere than in its generation block.
 */
strata_err pkg_glm_dsa_repair(const char *package, bool dry_run, struct pkg_glm_dsa_repair *out,
                              struct strata_errmsg *em);
void pkg_glm_dsa_repair_deinit(struct pkg_glm_dsa_repair *r);

#endif

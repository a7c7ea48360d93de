/*
 * The generation block of model-package.json, schema 1: what a publisher recommends for running this very artifact.
 *
 * Two checks. The first needs the block alone: types, names, bounds, references between strategies and proposers. The
 * second needs the model too: a block must not promise tensors that the package does not hold. Both add to a list of
 * faults and never stop at the first. What the standard wants tolerated (keys and policy values that it does not name,
 * a strategy of an unknown type that nothing selects) is a note or a warning; what existing readers refuse is an error.
 */
#ifndef PKG_GENERATION_H
#define PKG_GENERATION_H

#include "package/pkg_fault.h"

#include <stdint.h>

struct pkg_inventory;

/* Speculation types, and the profile of GLM-DSA models, as the manifest spells them. */
#define PKG_GENERATION_MTP "native-mtp"
#define PKG_GENERATION_NGRAM_CACHE "ngram-cache"
#define PKG_GENERATION_NGRAM_SUFFIX "ngram-suffix"
#define PKG_GENERATION_COMPOSITE "composite"
#define PKG_GENERATION_GLM_DSA_V1 "glm-dsa-v1"

enum {
    PKG_GENERATION_MTP_DEPTH = 1,  /* the only prediction_depth there is */
    PKG_GENERATION_CACHE_MAX = 4,  /* longest match of an ngram-cache proposer, in tokens */
    PKG_GENERATION_SUFFIX_MIN = 3, /* shortest and longest match of an ngram-suffix proposer */
    PKG_GENERATION_SUFFIX_MAX = 64,
    PKG_GENERATION_PIPELINE_MAX = 64 /* verification windows in flight */
};

/* The tensors, beside those of an ordinary layer, that make a layer a NextN layer; NULL at the end. Suffixes of
 * "blk.N.", such as "nextn.eh_proj.weight". */
extern const char *const pkg_generation_nextn_tensors[];

/*
 * Checks a block (of any JSON type). layer_count 0 means that it is not known: layer indices are then not compared.
 * summary may be NULL; see pkg_generation_summary. Fails only without memory.
 */
strata_err pkg_generation_check(const json_t *generation, uint32_t layer_count, struct pkg_faults *faults,
                                json_t **summary, struct strata_errmsg *em);

/*
 * The block as reports show it, a new object: policy and thresholds as they stand, speculative_decoding with its
 * proposers and strategies as lists, sorted by name, each with its name first. Nothing is dropped but what has no place
 * in that shape, such as a strategy that is a number; a block that is no object at all gives an empty one.
 */
strata_err pkg_generation_summary(const json_t *generation, json_t **out, struct strata_errmsg *em);

/*
 * Compares a block with the tensors of the whole model: every layer that a native-mtp source lists must hold complete
 * NextN tensors, and the profile glm-dsa-v1 needs a model that fulfils its contract. A NextN layer that is not listed
 * is no fault: a publisher may leave one unused. Fails only without memory.
 */
strata_err pkg_generation_check_tensors(const json_t *generation, const struct pkg_inventory *inv,
                                        struct pkg_faults *faults, struct strata_errmsg *em);

#endif

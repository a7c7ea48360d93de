/* What the files of the GLM-DSA contract share among themselves. */
#ifndef PKG_GLM_DSA_PRIV_H
#define PKG_GLM_DSA_PRIV_H

#include "package/pkg_glm_dsa.h"
#include "package/pkg_inventory.h"

#define PKG_GLM_DSA_ARCH "glm-dsa"
#define PKG_GLM_DSA_KEY(name) PKG_GLM_DSA_ARCH "." name

/* Sizes that shapes are made of, in elements; 0 means that the metadata does not say, so that nothing is compared. */
enum pkg_glm_dsa_dim {
    DIM_NONE, /* ends a shape */
    DIM_ANY,
    DIM_EMBD,
    DIM_EMBD2,
    DIM_FF,
    DIM_Q_RANK,
    DIM_KV_RANK,
    DIM_KV_ROPE, /* kv rank + rotated part */
    DIM_HEADS,
    DIM_Q_ALL, /* heads x query head */
    DIM_NOPE,  /* the part of a query head that is not rotated */
    DIM_V,     /* a value head */
    DIM_V_ALL, /* heads x value head */
    DIM_EXPERTS,
    DIM_EXPERT_FF,
    DIM_SHARED_FF,
    DIM_INDEX_KEY,
    DIM_INDEX_HEADS,
    DIM_INDEX_ALL, /* indexer heads x indexer key */
    DIM_COUNT
};

struct pkg_glm_dsa_check {
    const struct pkg_inventory *inv;
    struct pkg_glm_dsa_report *r;
    uint64_t dim[DIM_COUNT];
    uint32_t dense_layers; /* the first blocks, whose feed-forward is not a mixture of experts */
    bool *full;            /* owned by pkg_glm_dsa_check: role of each decoder layer, or NULL */
};

/* Adds a line to a list, up to a maximum that the last line then tells of. */
void pkg_glm_dsa_add(struct pkg_glm_dsa_report *r, enum pkg_glm_dsa_list list, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether a layer has all five indexer tensors. */
bool pkg_glm_dsa_has_indexer(const struct pkg_inventory *inv, uint32_t layer);

/* Fills full[] and role_source from the metadata, or else from the tensors. */
void pkg_glm_dsa_find_roles(struct pkg_glm_dsa_check *c);
/* Presence and shape of every tensor; needs the roles. */
void pkg_glm_dsa_check_tensors(struct pkg_glm_dsa_check *c);
/* What the generation block says, against glm-dsa-v1. */
void pkg_glm_dsa_check_policy(struct pkg_glm_dsa_report *r, const json_t *generation);

/* ---- a model on disk ---- */

struct pkg_manifest;
struct pkg_glm_dsa_files; /* what was opened */

/* Opens what stands under a path (see pkg_glm_dsa_check_path). The inventory is a view; manifest is NULL unless the
 * path is a package. */
strata_err pkg_glm_dsa_open(const char *path, struct pkg_glm_dsa_files **out, struct strata_errmsg *em);
void pkg_glm_dsa_close(struct pkg_glm_dsa_files *f);
const struct pkg_inventory *pkg_glm_dsa_inventory(const struct pkg_glm_dsa_files *f);
const struct pkg_manifest *pkg_glm_dsa_manifest(const struct pkg_glm_dsa_files *f);
/* Fills path, artifact_kind and gguf_files of a report. */
strata_err pkg_glm_dsa_describe(const struct pkg_glm_dsa_files *f, struct pkg_glm_dsa_report *r,
                                struct strata_errmsg *em);

#endif

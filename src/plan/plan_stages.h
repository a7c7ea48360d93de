/*
 * The cut of a model over stages, with what each stage loads.
 *
 * What a stage loads is asked of pkg_select, tensor by tensor: the planner counts what the loader will open, tied
 * embeddings and those that MTP layers borrow included.
 * Life cycle: plan_stages_make, plan_stages_deinit. The inventory is not kept.
 */
#ifndef PLAN_STAGES_H
#define PLAN_STAGES_H

#include "package/pkg_inventory.h"
#include "plan/plan_cut.h"

enum plan_by { PLAN_BY_BYTES, PLAN_BY_COUNT };

struct plan_stage {
    struct pkg_range range;
    bool embeddings, output; /* it is the first, the last */
    /* What a file for the range alone holds: each owned tensor is in exactly one stage. */
    uint64_t tensor_count, tensor_bytes;
    /* What the stage loads, in all and by class; replicated tensors are in every stage. */
    uint64_t loaded_count, loaded_bytes;
    uint64_t layer_bytes, embedding_bytes, output_bytes, replicated_bytes;
};

struct plan_stages {
    enum plan_by by;
    struct plan_stage *list; /* owned */
    uint32_t n;
    uint32_t layer_count, mtp_layers; /* the latter of the former */
    bool tied;
    bool mtp_borrows;       /* an MTP layer has no token embeddings of its own */
    uint64_t total_bytes;   /* of all stages */
    uint64_t largest;       /* loaded_bytes of the largest stage */
    bool has_other;         /* the other way to cut is possible, too ... */
    uint64_t other_largest; /* ... and this would be its largest stage */
};

/*
 * name (a path) is for messages. By bytes, MTP layers stay with the last trunk layer; by count, nothing but the number
 * of layers matters. EUNSUPPORTED for a model without layers, EINVAL for a number of stages that cannot be.
 */
strata_err plan_stages_make(const struct pkg_inventory *inv, const char *name, uint32_t n_stages, enum plan_by by,
                            struct plan_stages *out, struct strata_errmsg *em);
void plan_stages_deinit(struct plan_stages *p);

/* The largest stage over the mean one: 1 is perfectly even. 1 when nothing has a size. */
double plan_stages_balance(const struct plan_stages *p);

#endif

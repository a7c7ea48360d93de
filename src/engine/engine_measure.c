/* Judges what engine_measure found against the memory that is there. See engine.h. Owns nothing. */
#include "base/progress.h"
#include "engine/engine.h"

uint64_t engine_info_bytes(const struct engine_info *i) {
    return i->weight_bytes + i->kv_bytes + i->scratch_bytes; /* state is below 2^63, and the others address space */
}

/* The largest part that can be made smaller, and how. */
static const char *advice(const struct engine_info *i, uint64_t available) {
    if (i->weight_bytes > available) return "run fewer layers here, or a model quantized to fewer bits";
    if (i->kv_bytes < i->scratch_bytes) return "lower the batch or the context length";
    return i->n_seq > 1 ? "lower the context length or the number of sequences, or take a smaller type of KV cache"
                        : "lower the context length, or take a smaller type of KV cache";
}

strata_err engine_info_fits(const struct engine_info *i, bool over_memory, uint64_t available,
                            struct strata_errmsg *em) {
    char total[32], weights[32], kv[32], scratch[32], have[32];
    uint64_t need = engine_info_bytes(i);
    /* Mapped weights need not stay in memory, copies of them must. */
    uint64_t must = over_memory ? need - (i->weight_bytes - i->copied_bytes - i->repacked_bytes) : need;
    if (must <= available) return STRATA_OK;
    return err_set(em, STRATA_ENOMEM,
                   "layers %u..%u need %s: weights %s, KV cache %s (%u positions), scratch %s (batches of %u tokens); "
                   "%s of memory is available: %s",
                   (unsigned)i->range.first, (unsigned)i->range.end, progress_bytes(total, sizeof total, need),
                   progress_bytes(weights, sizeof weights, i->weight_bytes), progress_bytes(kv, sizeof kv, i->kv_bytes),
                   (unsigned)i->n_pool, progress_bytes(scratch, sizeof scratch, i->scratch_bytes), (unsigned)i->n_batch,
                   progress_bytes(have, sizeof have, available), advice(i, available));
}

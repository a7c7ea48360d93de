/* Judges what engine_measure found against the memory that is there. See engine.h. Owns nothing. */
#include "base/progress.h"
#include "engine/engine.h"

uint64_t engine_info_bytes(const struct engine_info *i) {
    /* State is below 2^63, and the others address space. */
    return i->weight_bytes + i->both_bytes + i->kv_bytes + i->scratch_bytes;
}

bool engine_info_fits_twice(const struct engine_info *i, uint64_t available) {
    return engine_info_bytes(i) + i->weight_bytes <= available;
}

/* The largest part that can be made smaller, and how. */
static const char *advice(const struct engine_info *i, uint64_t weights, uint64_t scratch, uint64_t available) {
    if (weights > available) return "run fewer layers here, or a model quantized to fewer bits";
    if (i->kv_bytes < scratch) return "lower the batch or the context length";
    return i->n_seq > 1 ? "lower the context length or the number of sequences, or take a smaller type of KV cache"
                        : "lower the context length, or take a smaller type of KV cache";
}

/* What lies on a device whose memory is not the host's. */
static strata_err fits_there(const struct engine_info *i, uint64_t need, struct strata_errmsg *em) {
    char total[32], weights[32], kv[32], scratch[32], have[32];
    if (need <= i->device_free) return STRATA_OK;
    return err_set(
        em, STRATA_ENOMEM,
        "layers %u..%u need %s of the memory of %s, which has %s free: weights %s, KV cache %s (%u "
        "positions), scratch %s (batches of %u tokens): %s",
        (unsigned)i->range.first, (unsigned)i->range.end, progress_bytes(total, sizeof total, need), i->device,
        progress_bytes(have, sizeof have, i->device_free), progress_bytes(weights, sizeof weights, i->device_bytes),
        progress_bytes(kv, sizeof kv, i->kv_bytes), (unsigned)i->n_pool,
        i->device_scratch_bytes ? progress_bytes(scratch, sizeof scratch, i->device_scratch_bytes) : "unknown",
        (unsigned)i->n_batch, advice(i, i->device_bytes, i->device_scratch_bytes, i->device_free));
}

strata_err engine_info_fits(const struct engine_info *i, bool over_memory, uint64_t available,
                            struct strata_errmsg *em) {
    char total[32], weights[32], kv[32], scratch[32], have[32];
    uint64_t there = i->is_apart ? i->device_bytes + i->kv_bytes + i->device_scratch_bytes : 0;
    strata_err rc = i->is_apart ? fits_there(i, there, em) : STRATA_OK;
    uint64_t w = i->weight_bytes + i->both_bytes - (i->is_apart ? i->device_bytes : 0);
    uint64_t s = i->scratch_bytes - (i->is_apart ? i->device_scratch_bytes : 0),
             kv_here = i->is_apart ? 0 : i->kv_bytes;
    uint64_t need = w + kv_here + s;
    /* Mapped weights need not stay in memory, copies of them must. */
    uint64_t copies = i->copied_bytes + i->repacked_bytes + (i->is_apart ? 0 : i->device_bytes);
    uint64_t must = over_memory ? need - w + copies : need;
    if (rc || must <= available) return rc;
    return err_set(em, STRATA_ENOMEM,
                   "layers %u..%u need %s: weights %s, KV cache %s (%u positions), scratch %s (batches of %u tokens); "
                   "%s of memory is available: %s",
                   (unsigned)i->range.first, (unsigned)i->range.end, progress_bytes(total, sizeof total, need),
                   progress_bytes(weights, sizeof weights, w), progress_bytes(kv, sizeof kv, kv_here),
                   (unsigned)i->n_pool, progress_bytes(scratch, sizeof scratch, s), (unsigned)i->n_batch,
                   progress_bytes(have, sizeof have, available), advice(i, w, s, available));
}

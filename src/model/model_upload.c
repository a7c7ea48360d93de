/* Weights to a device. See model_upload.h. Owns the blocks and their events. */
#include "model/model_upload.h"

#include <stdio.h>
#include <string.h>

/* Large enough that starting a transfer costs nothing beside it, small enough for memory that cannot be swapped. */
enum { BLOCK_BYTES = 16 << 20 };

static void drop_blocks(struct model_upload *u) {
    for (int i = 0; i < MODEL_UPLOAD_BLOCKS; i++) {
        if (u->fetched[i]) ggml_backend_event_free(u->fetched[i]);
        if (u->block[i]) ggml_backend_buffer_free(u->block[i]);
        u->fetched[i] = NULL;
        u->block[i] = NULL;
    }
}

/* That there are none is no error: it is only slower. */
static void make_blocks(struct model_upload *u) {
    struct ggml_backend_dev_props props;
    ggml_backend_dev_t dev = u->backend->dev;
    ggml_backend_dev_get_props(dev, &props);
    ggml_backend_buffer_type_t buft = ggml_backend_dev_host_buffer_type(dev);
    if (!props.caps.async || !props.caps.host_buffer || !props.caps.events || !buft) return;
    for (int i = 0; i < MODEL_UPLOAD_BLOCKS; i++) {
        u->block[i] = ggml_backend_buft_alloc_buffer(buft, BLOCK_BYTES);
        u->fetched[i] = ggml_backend_event_new(dev);
        if (u->block[i] && u->fetched[i]) continue;
        drop_blocks(u);
        return;
    }
}

strata_err model_upload_begin(struct model_upload *u, const struct model_backend *backend, struct ggml_context *ctx,
                              ggml_backend_buffer_t *buffer, struct strata_errmsg *em) {
    char want[32], have[32];
    const char *name = ggml_backend_dev_name(backend->dev);
    *u = (struct model_upload){.backend = backend};
    *buffer = NULL;
    size_t need = ggml_backend_alloc_ctx_tensors_from_buft_size(ctx, backend->buft);
    uint64_t available = model_backend_memory_free(backend);
    if (need > available)
        return err_set(em, STRATA_ENOMEM,
                       "the weights of this range need %s of the memory of %s, which has %s free; give it fewer layers",
                       progress_bytes(want, sizeof want, need), name, progress_bytes(have, sizeof have, available));
    if (need == 0) return STRATA_OK;
    *buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, backend->buft);
    if (!*buffer)
        return err_set(em, STRATA_ENOMEM,
                       "%s does not give the %s of memory that the weights of this range need; give it fewer layers",
                       name, progress_bytes(want, sizeof want, need));
    ggml_backend_buffer_set_usage(*buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    make_blocks(u);
    snprintf(u->label, sizeof u->label, "copying weights to %s", name);
    progress_begin(&u->progress, backend->progress, u->label, need);
    return STRATA_OK;
}

static void in_pieces(struct model_upload *u, struct ggml_tensor *t, const char *data, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        unsigned i = u->next++ % MODEL_UPLOAD_BLOCKS;
        void *block = ggml_backend_buffer_get_base(u->block[i]);
        if (u->next > MODEL_UPLOAD_BLOCKS) ggml_backend_event_synchronize(u->fetched[i]);
        memcpy(block, data + at, n);
        ggml_backend_tensor_set_async(u->backend->handle, t, block, at, n);
        ggml_backend_event_record(u->fetched[i], u->backend->handle);
        progress_add(&u->progress, n);
        at += n;
    }
}

void model_upload_tensor(struct model_upload *u, struct ggml_tensor *t, const void *data, size_t bytes) {
    if (u->block[0]) {
        in_pieces(u, t, data, bytes);
    } else {
        ggml_backend_tensor_set(t, data, 0, bytes);
        progress_add(&u->progress, bytes);
    }
}

void model_upload_end(struct model_upload *u) {
    if (!u->backend) return;
    ggml_backend_synchronize(u->backend->handle);
    drop_blocks(u);
    progress_end(&u->progress);
    u->backend = NULL;
}

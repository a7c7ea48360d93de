/*
 * Copies weights to a device, once, straight from the mapped file.
 *
 * A device that works while the host prepares the next piece gets them in pieces through two blocks of memory that it
 * can fetch by itself, so that reading the file and moving the bytes overlap; any other one gets each tensor in one
 * call. Either way no second copy of the model is made in main memory.
 *
 * Life cycle: model_upload_begin, model_upload_tensor for each tensor, model_upload_end whatever happened.
 */
#ifndef MODEL_UPLOAD_H
#define MODEL_UPLOAD_H

#include "base/progress.h"
#include "model/model_backend.h"

#include <ggml.h>

enum { MODEL_UPLOAD_BLOCKS = 2 };

struct model_upload {
    const struct model_backend *backend; /* borrowed */
    struct progress progress;
    char label[96];
    /* Blocks that the device fetches from; none: it does not work beside the host. */
    ggml_backend_buffer_t block[MODEL_UPLOAD_BLOCKS];
    ggml_backend_event_t fetched[MODEL_UPLOAD_BLOCKS];
    unsigned next;
};

/* Takes memory of the device for all tensors of ctx that have none yet; *buffer is the caller's. ENOMEM tells how much
 * is wanted and how much there is. */
strata_err model_upload_begin(struct model_upload *u, const struct model_backend *backend, struct ggml_context *ctx,
                              ggml_backend_buffer_t *buffer, struct strata_errmsg *em);
void model_upload_tensor(struct model_upload *u, struct ggml_tensor *t, const void *data, size_t bytes);
/* Waits until everything is there. */
void model_upload_end(struct model_upload *u);

#endif

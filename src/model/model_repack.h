/*
 * Copies of matrices, in the order that the processor's kernels like best.
 *
 * ggml's CPU backend brings buffer types of its own ("extra"), which interleave the rows of a matrix when it is copied
 * into them; products are then faster, with many columns by half. Others gain by a copy as they are: it lies in large
 * pages. The price is private memory instead of pages of the file. Whether a matrix can be in another order follows
 * from its type, its shape and the processor alone, so that a layer is computed the same way wherever a model is cut; a
 * copy as it is changes no number.
 */
#ifndef MODEL_REPACK_H
#define MODEL_REPACK_H

#include "model/model_backend.h"

#include <ggml.h>

/* What a tensor is used for: nothing that reads it whole for every token; products that want it in the order of the
 * file; products. */
enum model_product { MODEL_PRODUCT_NONE, MODEL_PRODUCT_AS_IT_IS, MODEL_PRODUCT_MATRIX, MODEL_PRODUCT_EXPERTS };

/* The buffer type for a copy of a matrix (w is without memory) that is used so, or NULL: leave it where it is. */
ggml_backend_buffer_type_t model_repack_type(const struct model_backend *b, const struct ggml_tensor *w,
                                             enum model_product use);

#endif

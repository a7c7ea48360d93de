/* What tells operations of our own from each other. See model_own.h. Owns nothing. */
#include "model/model_own.h"

#include "model/model_attn.h"
#include "model/model_rows.h"

enum ggml_op model_own_op(const struct ggml_tensor *t) {
    if (t->op != GGML_OP_CUSTOM) return t->op;
    if (t->type != GGML_TYPE_F32) return GGML_OP_CPY;
    if (t->src[3]) return GGML_OP_FLASH_ATTN_EXT; /* no product has a mask */
    return t->src[2] ? GGML_OP_MUL_MAT_ID : GGML_OP_MUL_MAT;
}

size_t model_own_overhead(void) {
    size_t rows = model_rows_overhead(), attn = model_attn_overhead();
    return rows > attn ? rows : attn;
}

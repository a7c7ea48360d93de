/*
 * Matrices quantized by ggml's own functions, as llama-quantize makes them. See mk.h.
 *
 * The weights are the random ones of the unquantized model, so that both can be compared. What the importance matrix of
 * a calibration would say is made up: some of a row's numbers count more than others.
 */
#include "mk.h"

#include <ggml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_whole_blocks(uint32_t type, uint64_t n_in) {
    return n_in % gguf_types_tensor(type)->block_elems == 0;
}

/* Routers and convolutions stay as they are, as llama-quantize has it. */
static bool is_kept(const char *tensor) {
    return strstr(tensor, "ffn_gate_inp") || strstr(tensor, "shortconv.conv");
}

bool mk_quant_type(const struct mk_options *o, const char *tensor, uint64_t n_in, uint32_t *type) {
    char rule[64], *name;
    const char *at = o->quantize;
    int chosen = -1;
    if (!at || is_kept(tensor)) return true;
    for (size_t len; *at; at += len + (at[len] == ',')) {
        len = strcspn(at, ",");
        if (len >= sizeof rule) return false;
        memcpy(rule, at, len);
        rule[len] = '\0';
        char *equals = strchr(rule, '=');
        name = equals ? equals + 1 : rule;
        if (equals) *equals = '\0';
        int id = gguf_types_tensor_id(name);
        if (id < 0) return false;
        if (!equals || strstr(tensor, rule)) chosen = id;
    }
    if (chosen >= 0 && is_whole_blocks((uint32_t)chosen, n_in)) *type = (uint32_t)chosen;
    return true;
}

const char *mk_quant_row(uint32_t type, const float *x, uint64_t n, uint8_t *dst) {
    enum { PERIOD = 7 };
    if (type >= GGML_TYPE_COUNT || !ggml_get_type_traits((enum ggml_type)type)->to_float)
        return "not a type of weights";
    float *importance = malloc(n * sizeof *importance);
    if (!importance) return "out of memory";
    for (uint64_t i = 0; i < n; i++) importance[i] = 1 + (float)(i % PERIOD) / 4;
    ggml_quantize_chunk((enum ggml_type)type, x, dst, 0, 1, (int64_t)n, importance);
    free(importance);
    return NULL;
}

/* One small model of each kind of state and of each way to lay out weights, as files. */
#ifndef STATE_KINDS_H
#define STATE_KINDS_H

#include "chain.h"

struct state_kind {
    const char *name, *arch;
    uint32_t layers, window;
    bool convs, experts, latent, tied, fused;
    uint32_t alignment; /* of tensors in the file; 0: 32 */
};

static const struct state_kind state_kinds[] = {
    {.name = "plain", .arch = "llama", .layers = 4},
    {.name = "tied", .arch = "llama", .layers = 3, .tied = true, .fused = true},
    {.name = "unaligned", .arch = "llama", .layers = 3, .alignment = 8},
    {.name = "experts", .arch = "qwen3moe", .layers = 4, .experts = true},
    {.name = "window", .arch = "gemma3", .layers = 7, .window = 40}, /* layer 5 sees everything */
    {.name = "convolution", .arch = "lfm2", .layers = 4, .convs = true},
    {.name = "both", .arch = "lfm2", .layers = 4, .convs = true, .window = 40},
    {.name = "latent", .arch = "deepseek2", .layers = 4, .experts = true, .latent = true},
};

enum { N_STATE_KINDS = sizeof state_kinds / sizeof state_kinds[0] };

static inline const char *state_kind_path(const struct tmp_folder *folder, const struct state_kind *k) {
    char name[64];
    snprintf(name, sizeof name, "%s.gguf", k->name);
    return tmp_path(folder, name);
}

static inline struct model_file state_kind_file(const struct state_kind *k) {
    struct model_file f = model_file_small();
    f.arch = k->arch;
    f.window = k->window;
    f.layers = k->layers;
    f.heads = f.kv_heads = 2; /* heads of 32: whole blocks of a quantized cache */
    f.head_norms = strcmp(k->arch, "llama") != 0;
    f.post_norms = strcmp(k->arch, "gemma3") == 0;
    f.convs = k->convs;
    f.latent = k->latent;
    if (k->latent) f.kv_heads = 1;
    f.experts = k->experts ? 6 : 0;
    f.used = 2;
    f.tied = k->tied;
    f.fused = k->fused;
    f.alignment = k->alignment;
    f.scale = k->alignment == 8; /* tensors of 4 bytes, which move the next one */
    return f;
}

static inline void state_kinds_write(const struct tmp_folder *folder) {
    for (int i = 0; i < N_STATE_KINDS; i++) {
        struct model_file f = state_kind_file(&state_kinds[i]);
        model_file_write(&f, state_kind_path(folder, &state_kinds[i]));
    }
}

#endif

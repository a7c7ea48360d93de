/* The registry of architectures. See arch.h. To add one, write its file and name it in the list below. */
#include "model/arch.h"

#include <string.h>

/* Each entry: its description, and its name as text, from which the list for error messages is made. */
/* clang-format off */
#define ARCH_LIST(X)           \
    X(arch_llama, "llama")       \
    X(arch_qwen2, "qwen2")       \
    X(arch_qwen3, "qwen3")       \
    X(arch_qwen3moe, "qwen3moe") \
    X(arch_glm4moe, "glm4moe")   \
    X(arch_gemma3, "gemma3")     \
    X(arch_gpt_oss, "gpt-oss")   \
    X(arch_lfm2, "lfm2")         \
    X(arch_lfm2moe, "lfm2moe")   \
    X(arch_deepseek2, "deepseek2")
/* clang-format on */

#define ARCH_TABLE(description, text) &description,
#define ARCH_NAME(description, text) ", " text

static const struct arch *const archs[] = {ARCH_LIST(ARCH_TABLE)};

const struct arch *arch_find(const char *name, size_t len) {
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (strlen(archs[i]->name) == len && memcmp(archs[i]->name, name, len) == 0) return archs[i];
    return NULL;
}

const struct arch *arch_at(size_t i) {
    return i < sizeof archs / sizeof archs[0] ? archs[i] : NULL;
}

const char *arch_names(void) {
    return &(ARCH_LIST(ARCH_NAME))[2]; /* without the first comma */
}

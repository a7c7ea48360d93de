/* The registry of architectures. See arch.h. To add one, write its file and name it in the list below. */
#include "model/arch.h"

#include <string.h>

/* Each entry: its description, and its name as text, from which the list for error messages is made. */
#define ARCH_LIST(X, SEP) X(arch_llama, "llama")

#define ARCH_TABLE(description, text) &description
#define ARCH_NAME(description, text) text
#define COMMA ,
#define COMMA_TEXT ", "

static const struct arch *const archs[] = {ARCH_LIST(ARCH_TABLE, COMMA)};

const struct arch *arch_find(const char *name, size_t len) {
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (strlen(archs[i]->name) == len && memcmp(archs[i]->name, name, len) == 0) return archs[i];
    return NULL;
}

const char *arch_names(void) {
    return ARCH_LIST(ARCH_NAME, COMMA_TEXT);
}

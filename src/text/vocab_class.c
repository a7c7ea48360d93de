/* The table of character classes. See vocab_class.h. */
#include "text/vocab_class.h"

#include <stdlib.h>
#include <string.h>

strata_err vocab_class_new(uint8_t **out, struct strata_errmsg *em) {
    uint8_t *t = calloc(CLASS_COUNT, 1); /* pages of planes without characters are never touched */
    if (!t) return err_nomem(em, "the classes of characters");
    for (unsigned i = 0; i < vocab_class_n_changes; i++) {
        uint32_t start = vocab_class_changes[i] >> 8, c = vocab_class_changes[i] & 0xFF;
        uint32_t end = i + 1 < vocab_class_n_changes ? vocab_class_changes[i + 1] >> 8 : CLASS_COUNT;
        if (c) memset(t + start, (int)c, end - start);
    }
    *out = t;
    return STRATA_OK;
}

/*
 * Fuzz target: vocabularies. The input is a GGUF file, then (behind its last four bytes' count) a text: the last four
 * bytes tell how many of the bytes before them are text. A vocabulary that loads must encode any text, with every flag,
 * and decode the ids again.
 */
#include "text/detok.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct vocab *v, const char *text, size_t len) {
    struct strata_errmsg em;
    for (unsigned flags = 0; flags < 4; flags++) {
        struct vocab_ids ids = {0};
        struct detok d;
        struct buf out;
        buf_init(&out, (size_t)1 << 24);
        detok_init(&d, v, flags & 1);
        if (vocab_encode(v, text, len, flags, &ids, &em) == STRATA_OK) {
            for (size_t i = 0; i < ids.len; i++) {
                if (ids.id[i] < 0 || (uint32_t)ids.id[i] >= vocab_size(v)) abort(); /* the property under test */
                (void)detok_push(&d, ids.id[i], &out, &em);
            }
            (void)detok_flush(&d, &out, &em);
        }
        detok_deinit(&d);
        buf_deinit(&out);
        vocab_ids_deinit(&ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct strata_errmsg em;
    struct gguf_reader *meta = NULL;
    struct vocab *v = NULL;
    uint32_t len;
    if (size < 4) return 0;
    size -= 4;
    memcpy(&len, data + size, 4);
    if (len > size) len = (uint32_t)size;
    /* The reader wants memory that ends where the file does, so that reading beyond is seen. */
    uint8_t *file = malloc(size - len ? size - len : 1);
    if (!file) return 0;
    memcpy(file, data, size - len);
    if (gguf_reader_new(file, size - len, "fuzz.gguf", &meta, &em) == STRATA_OK &&
        vocab_new(meta, &v, &em) == STRATA_OK) {
        use(v, (const char *)data + size - len, len);
    }
    vocab_free(v);
    gguf_reader_free(meta);
    free(file);
    return 0;
}

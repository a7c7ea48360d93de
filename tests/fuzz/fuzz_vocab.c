/*
 * Fuzz target: vocabularies. The input is a GGUF file, then (behind its last four bytes' count) a text: the last four
 * bytes tell how many of the bytes before them are text. A vocabulary that loads must encode any text, with every flag,
 * and decode the ids again. Text that comes from a conversation becomes no control token, and texts are cut the same
 * way by the hand-written splitters and by the patterns.
 */
#include "base/utf8.h"
#include "text/detok.h"
#include "text/vocab_class.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { COMPARED_MAX = 2048 /* bytes: patterns take their time for some texts */ };

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

/* The ids of `len` bytes of which [from, to) come from a conversation; false when it fails. */
static bool encode_own(const struct vocab *v, const char *text, size_t len, size_t from, size_t to,
                       struct vocab_ids *ids) {
    struct strata_errmsg em;
    struct text_spans own = {0};
    bool ok = text_spans_add(&own, from, to, &em) == STRATA_OK &&
              vocab_encode_marked(v, text, len, &own, VOCAB_PARSE_SPECIAL, ids, &em) == STRATA_OK;
    text_spans_deinit(&own);
    return ok;
}

static size_t count(const struct vocab_ids *ids, int32_t id) {
    size_t n = 0;
    for (size_t i = 0; i < ids->len; i++) n += ids->id[i] == id;
    return n;
}

static void converse(const struct vocab *v, const char *text, size_t len) {
    struct strata_errmsg em;
    struct vocab_ids plain = {0}, own = {0}, half = {0};
    if (len <= COMPARED_MAX && vocab_encode(v, text, len, 0, &plain, &em) == STRATA_OK &&
        encode_own(v, text, len, 0, len, &own)) {
        /* All of it from the conversation: no control token but those that special tokens off gives too, which is the
         * unknown token for bytes that the vocabulary lacks. */
        for (size_t i = 0; i < own.len; i++) {
            if (vocab_is_guarded(v, own.id[i]) && count(&own, own.id[i]) > count(&plain, own.id[i])) abort();
        }
    }
    (void)encode_own(v, text, len, len / 3, len / 2, &half);
    vocab_ids_deinit(&plain);
    vocab_ids_deinit(&own);
    vocab_ids_deinit(&half);
}

/* Whether all characters are older than what any version of PCRE2 might know besides. */
static bool comparable(const char *text, size_t len) {
    static uint8_t *class_of;
    struct strata_errmsg em;
    if (!class_of && vocab_class_new(&class_of, &em) != STRATA_OK) return false;
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t cp;
        n = utf8_decode(text + i, len - i, &cp);
        if (n > 0 && cp >= 0x80 && !class_of[cp]) return false;
        if (n == 0) n = 1;
    }
    return len <= COMPARED_MAX;
}

static void compare(const struct vocab *fast, const struct vocab *slow, const char *text, size_t len) {
    struct strata_errmsg em;
    struct vocab_ids a = {0}, b = {0};
    if (vocab_encode(fast, text, len, 0, &a, &em) == STRATA_OK &&
        vocab_encode(slow, text, len, 0, &b, &em) == STRATA_OK) {
        if (a.len != b.len || (a.len > 0 && memcmp(a.id, b.id, a.len * sizeof *a.id) != 0)) abort();
    }
    vocab_ids_deinit(&a);
    vocab_ids_deinit(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct strata_errmsg em;
    struct gguf_reader *meta = NULL;
    struct vocab *v = NULL, *slow = NULL;
    uint32_t len;
    if (size < 4) return 0;
    size -= 4;
    memcpy(&len, data + size, 4);
    if (len > size) len = (uint32_t)size;
    /* The reader wants memory that ends where the file does, so that reading beyond is seen; so does the text. */
    uint8_t *file = malloc(size - len ? size - len : 1);
    char *text = malloc(len ? len : 1);
    if (!file || !text) goto out;
    memcpy(file, data, size - len);
    memcpy(text, data + size - len, len);
    if (gguf_reader_new(file, size - len, "fuzz.gguf", &meta, &em) != STRATA_OK) goto out;
    if (vocab_new(meta, &v, &em) != STRATA_OK) goto out;
    use(v, text, len);
    converse(v, text, len);
    if (comparable(text, len) && vocab_new_with(meta, VOCAB_PATTERNS, &slow, &em) == STRATA_OK)
        compare(v, slow, text, len);
out:
    vocab_free(slow);
    vocab_free(v);
    gguf_reader_free(meta);
    free(text);
    free(file);
    return 0;
}

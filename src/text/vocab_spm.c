/*
 * SentencePiece BPE (`llama`): spaces become U+2581, symbols begin as UTF-8 characters, and neighbours are merged by
 * the score of the token that they make (vocab_merge.c). A character that is no token comes out as one byte token per
 * byte. Refuses byte tokens that name no byte and scores that are not numbers.
 */
#include "text/vocab_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* The byte that "<0xNN>" names, or -1. */
static int byte_of(const struct vocab_token *t) {
    if (t->len != 6 || memcmp(t->text, "<0x", 3) != 0 || t->text[5] != '>') return -1;
    int hi = hex_digit(t->text[3]), lo = hex_digit(t->text[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

/*
 * Where a text may be cut without changing its ids: between two characters that stand side by side in no token. Whether
 * they do is kept by the last byte of the one and the first byte of the other, which is right for ASCII and on the safe
 * side for the rest. U+2581 counts as a byte of its own, 0xFF, because nearly every token begins with it.
 */
static inline unsigned char first_byte(const char *s, size_t left) {
    bool space = left >= VOCAB_SPACE_LEN && memcmp(s, VOCAB_SPACE, VOCAB_SPACE_LEN) == 0;
    return space ? 0xFF : (unsigned char)*s;
}

static inline bool joined(const struct vocab *v, unsigned char last, unsigned char first) {
    return v->joins[last * 32 + first / 8] >> first % 8 & 1;
}

/* Calls are in order of ids, but the order does not matter. */
static void add_joins(struct vocab *v, const struct vocab_token *t) {
    for (size_t i = 0, n; i < t->len; i += n) {
        unsigned char first = first_byte(t->text + i, t->len - i);
        n = vocab_symbol_len(t->text + i, t->len - i);
        if (i + n == t->len) break;
        unsigned char last = first == 0xFF ? 0xFF : (unsigned char)t->text[i + n - 1];
        unsigned char next = first_byte(t->text + i + n, t->len - i - n);
        v->joins[last * 32 + next / 8] |= (uint8_t)(1u << next % 8);
    }
}

static size_t piece_end(const struct vocab *v, const char *text, size_t start, size_t len) {
    size_t i = start;
    for (;;) {
        unsigned char first = first_byte(text + i, len - i), last;
        size_t n = vocab_symbol_len(text + i, len - i);
        last = first == 0xFF ? 0xFF : (unsigned char)text[i + n - 1];
        i += n;
        if (i == len || !joined(v, last, first_byte(text + i, len - i))) return i;
    }
}

strata_err vocab_spm_load(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em) {
    v->add_bos = true;
    v->add_space_prefix = true;
    strata_err rc = gguf_reader_get_bool(meta, "tokenizer.ggml.add_space_prefix", false, &v->add_space_prefix, em);
    if (rc != STRATA_OK) return rc;
    for (uint32_t i = 0; i < v->n; i++) {
        const struct vocab_token *t = &v->token[i];
        if (t->type == VOCAB_TYPE_BYTE && byte_of(t) < 0) {
            return err_set(em, STRATA_EFORMAT,
                           "token %u is a byte token, but its text '%.*s' is not of the form <0xNN>", i,
                           t->len > 64 ? 64 : (int)t->len, t->text);
        }
    }
    v->joins = calloc(256, 32);
    if (!v->joins) return err_nomem(em, "the vocabulary's pairs of characters");
    for (uint32_t i = 0; i < v->n; i++) {
        if (vocab_mergeable(&v->token[i])) add_joins(v, &v->token[i]);
    }
    for (int b = 0; b < 256; b++) {
        char text[8];
        int n = snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        v->byte_id[b] = vocab_text_find(&v->by_text, text, (size_t)n);
        if (v->byte_id[b] < 0) { /* a vocabulary without this byte token may have the byte itself */
            text[0] = (char)b;
            v->byte_id[b] = vocab_text_find(&v->by_text, text, 1);
        }
    }
    return STRATA_OK;
}

/* Writes the fragment into w->text with U+2581 for spaces. */
static strata_err escape(const char *text, size_t len, bool prefix, struct buf *out, struct strata_errmsg *em) {
    buf_clear(out);
    strata_err rc = prefix ? buf_append(out, VOCAB_SPACE, VOCAB_SPACE_LEN, em) : STRATA_OK;
    size_t start = 0;
    for (size_t i = 0; i <= len && rc == STRATA_OK; i++) {
        if (i < len && text[i] != ' ') continue;
        rc = buf_append(out, text + start, i - start, em);
        if (rc == STRATA_OK && i < len) rc = buf_append(out, VOCAB_SPACE, VOCAB_SPACE_LEN, em);
        start = i + 1;
    }
    return rc;
}

strata_err vocab_spm_bytes(const struct vocab *v, const char *s, size_t n, struct vocab_ids *out,
                           struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < n && rc == STRATA_OK; i++) {
        int32_t id = v->byte_id[(unsigned char)s[i]];
        if (id < 0) id = v->unk;
        if (id < 0) {
            return err_set(em, STRATA_EINVAL, "the vocabulary has no token for byte 0x%02X and none for the unknown",
                           (unsigned char)s[i]);
        }
        rc = vocab_ids_add(out, id, em);
    }
    return rc;
}

strata_err vocab_spm_encode(const struct vocab *v, const char *text, size_t len, bool prefix, struct vocab_work *w,
                            struct vocab_ids *out, struct strata_errmsg *em) {
    strata_err rc = escape(text, len, prefix && v->add_space_prefix, &w->text, em);
    size_t start = 0, n = w->text.len;
    while (rc == STRATA_OK && start < n) {
        size_t end = piece_end(v, w->text.data, start, n);
        rc = vocab_merge(v, w->text.data + start, end - start, w, out, em);
        start = end;
    }
    return rc;
}

strata_err vocab_spm_piece(const struct vocab *v, const struct vocab_token *t, struct buf *out,
                           struct strata_errmsg *em) {
    (void)v;
    if (t->type == VOCAB_TYPE_BYTE) {
        char byte = (char)byte_of(t);
        return buf_append(out, &byte, 1, em);
    }
    if (t->type != VOCAB_TYPE_NORMAL) return STRATA_OK;
    strata_err rc = STRATA_OK;
    size_t start = 0;
    for (size_t i = 0; i < t->len && rc == STRATA_OK;) {
        if (t->len - i < VOCAB_SPACE_LEN || memcmp(t->text + i, VOCAB_SPACE, VOCAB_SPACE_LEN) != 0) {
            i++;
            continue;
        }
        rc = buf_append(out, t->text + start, i - start, em);
        if (rc == STRATA_OK) rc = buf_append(out, " ", 1, em);
        i += VOCAB_SPACE_LEN;
        start = i;
    }
    return rc == STRATA_OK ? buf_append(out, t->text + start, t->len - start, em) : rc;
}

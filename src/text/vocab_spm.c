/*
 * SentencePiece BPE (`llama`): spaces become U+2581, symbols begin as UTF-8 characters, and the neighbouring pair whose
 * text is the token with the highest score is merged, leftmost first, until none is left. A character that is no token
 * comes out as one byte token per byte. Refuses byte tokens that name no byte and scores that are not numbers.
 */
#include "text/vocab_impl.h"

#include <stdio.h>
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

/* Bytes of the symbol at s: what its first byte announces, valid or not, as far as there are bytes. */
static uint32_t symbol_len(const char *s, size_t left) {
    static const uint8_t by_high_bits[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
    size_t n = by_high_bits[(unsigned char)s[0] >> 4];
    return (uint32_t)(n < left ? n : left);
}

/* Orders scores from high to low as unsigned numbers. */
static uint32_t score_key(float score) {
    uint32_t bits;
    score += 0.0f; /* one zero, not two */
    memcpy(&bits, &score, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~bits;
}

static strata_err queue_merge(const struct vocab *v, struct vocab_work *w, uint32_t left, struct strata_errmsg *em) {
    if (left == VOCAB_NONE || w->symbol[left].next == VOCAB_NONE) return STRATA_OK;
    const struct vocab_symbol *l = &w->symbol[left];
    uint32_t n = l->len + w->symbol[l->next].len;
    if (n > v->max_len) return STRATA_OK;
    int32_t id = vocab_text_find(&v->by_text, w->text.data + l->start, n);
    if (id < 0 || !vocab_type_mergeable(v->token[id].type)) return STRATA_OK;
    struct vocab_heap_item it = {(uint64_t)score_key(v->token[id].score) << 32 | left, (uint32_t)id, n};
    return vocab_heap_push(&w->heap, it, em);
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

static strata_err emit(const struct vocab *v, const struct vocab_work *w, const struct vocab_symbol *s,
                       struct vocab_ids *out, struct strata_errmsg *em) {
    if (s->id >= 0) return vocab_ids_add(out, s->id, em);
    strata_err rc = STRATA_OK;
    for (uint32_t i = 0; i < s->len && rc == STRATA_OK; i++) {
        int32_t id = v->byte_id[(unsigned char)w->text.data[s->start + i]];
        if (id < 0) id = v->unk;
        if (id < 0) {
            return err_set(em, STRATA_EINVAL, "the vocabulary has no token for byte 0x%02X and none for the unknown",
                           (unsigned char)w->text.data[s->start + i]);
        }
        rc = vocab_ids_add(out, id, em);
    }
    return rc;
}

/* Cuts w->text into characters. *n gets their number. */
static strata_err seed(const struct vocab *v, struct vocab_work *w, uint32_t *n, struct strata_errmsg *em) {
    size_t len = w->text.len, count = 0;
    for (size_t i = 0; i < len; count++) i += symbol_len(w->text.data + i, len - i);
    strata_err rc = vocab_work_symbols(w, count, em);
    if (rc != STRATA_OK) return rc;
    size_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t k = symbol_len(w->text.data + at, len - at);
        int32_t id = vocab_text_find(&v->by_text, w->text.data + at, k);
        if (id >= 0 && !vocab_type_mergeable(v->token[id].type)) id = -1;
        w->symbol[i] =
            (struct vocab_symbol){(uint32_t)at, k, i ? i - 1 : VOCAB_NONE, i + 1 < count ? i + 1 : VOCAB_NONE, id};
        at += k;
    }
    *n = (uint32_t)count;
    return STRATA_OK;
}

strata_err vocab_spm_encode(const struct vocab *v, const char *text, size_t len, bool prefix, struct vocab_work *w,
                            struct vocab_ids *out, struct strata_errmsg *em) {
    uint32_t n = 0;
    strata_err rc = escape(text, len, prefix && v->add_space_prefix, &w->text, em);
    if (rc == STRATA_OK) rc = seed(v, w, &n, em);
    if (rc != STRATA_OK || n == 0) return rc;
    struct vocab_symbol *s = w->symbol;
    w->heap.len = 0;
    for (uint32_t i = 0; i < n && rc == STRATA_OK; i++) rc = queue_merge(v, w, i, em);
    struct vocab_heap_item it;
    while (rc == STRATA_OK && vocab_heap_pop(&w->heap, &it)) {
        uint32_t left = (uint32_t)it.key;
        struct vocab_symbol *l = &s[left];
        /* An entry is stale when either side has been merged with something else since: the lengths tell. */
        if (l->len == 0 || l->next == VOCAB_NONE || l->len + s[l->next].len != it.b) continue;
        struct vocab_symbol *r = &s[l->next];
        l->id = (int32_t)it.a;
        l->len += r->len;
        r->len = 0;
        l->next = r->next;
        if (r->next != VOCAB_NONE) s[r->next].prev = left;
        rc = queue_merge(v, w, l->prev, em);
        if (rc == STRATA_OK) rc = queue_merge(v, w, left, em);
    }
    for (uint32_t i = 0; i != VOCAB_NONE && rc == STRATA_OK; i = s[i].next) rc = emit(v, w, &s[i], out, em);
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

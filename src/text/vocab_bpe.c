/*
 * Byte-level BPE (`gpt2`): text is cut into pieces (vocab_split.h), and in each piece neighbouring symbols are merged
 * by rank (vocab_merge.c). Symbols begin as single bytes.
 *
 * In the file each byte of a token is written as one printable character: itself when it is printable Latin-1, else one
 * from U+0100 on. This file owns that mapping. It refuses vocabularies whose merges name anything but tokens.
 */
#include "base/utf8.h"
#include "text/vocab_impl.h"

#include <string.h>

/* The code point that stands for a byte. */
static uint32_t byte_to_cp(unsigned b) {
    if ((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE) return b;
    if (b <= 0x20) return 0x100 + b;
    if (b < 0xA1) return 0x121 + (b - 0x7F);
    return 0x143; /* 0xAD */
}

/* The byte that a code point stands for, or -1. */
static int cp_to_byte(uint32_t cp) {
    if (cp < 0x100) return byte_to_cp(cp) == cp ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}

/* Finds both halves of a merge; they are separated by the first space that is not the first byte. */
static strata_err add_merge(struct vocab *v, uint32_t rank, const struct gguf_str *m, struct buf *joined,
                            struct strata_errmsg *em) {
    const char *space = m->len > 1 ? memchr(m->data + 1, ' ', m->len - 1) : NULL;
    int shown = m->len > 64 ? 64 : (int)m->len;
    if (!space) {
        return err_set(em, STRATA_EFORMAT, "merge %u of the vocabulary, '%.*s', is not a pair", rank, shown, m->data);
    }
    size_t n_left = (size_t)(space - m->data), n_right = m->len - n_left - 1;
    buf_clear(joined);
    strata_err rc = buf_append(joined, m->data, n_left, em);
    if (rc == STRATA_OK) rc = buf_append(joined, space + 1, n_right, em);
    if (rc != STRATA_OK) return err_prefix(em, "merge %u of the vocabulary", rank);
    int32_t left = vocab_text_find(&v->by_text, m->data, n_left);
    int32_t right = vocab_text_find(&v->by_text, space + 1, n_right);
    int32_t both = vocab_text_find(&v->by_text, joined->data, joined->len);
    if (left < 0 || right < 0 || both < 0) {
        return err_set(em, STRATA_EFORMAT, "merge %u of the vocabulary, '%.*s', %s is not a token", rank, shown,
                       m->data,
                       left < 0    ? "has a left part that"
                       : right < 0 ? "has a right part that"
                                   : "makes what");
    }
    /* No text may turn into a control token by merging. */
    if (!vocab_mergeable(&v->token[both])) return STRATA_OK;
    return vocab_merge_add(&v->merges, left, right, rank, both, em);
}

strata_err vocab_bpe_load(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em) {
    struct buf joined;
    buf_init(&joined, 2 * (size_t)VOCAB_TOKEN_BYTES_MAX);
    const struct gguf_kv *merges = NULL;
    struct gguf_str pre = {0};
    struct vocab_split_traits traits;
    strata_err rc = gguf_reader_get_str(meta, "tokenizer.ggml.pre", false, &pre, em);
    if (rc != STRATA_OK) goto out;
    if (pre.len == 0) pre = (struct gguf_str){"default", 7};
    rc = vocab_split_new(pre.data, pre.len, v->patterns, &v->split, &traits, em);
    if (rc != STRATA_OK) goto out;
    v->ignore_merges = traits.ignore_merges;
    v->add_bos = traits.add_bos;
    v->lstrip = traits.lstrip;
    for (unsigned b = 0; b < 256; b++) {
        char text[4];
        int32_t id = vocab_text_find(&v->by_text, text, utf8_encode(byte_to_cp(b), text));
        v->byte_id[b] = id >= 0 && vocab_mergeable(&v->token[id]) ? id : -1;
    }
    rc = gguf_reader_get_array(meta, "tokenizer.ggml.merges", true, GGUF_KIND_STRING, &merges, em);
    if (rc != STRATA_OK) goto out;
    if (merges->count > VOCAB_MERGES_MAX) {
        rc = err_set(em, STRATA_ELIMIT, "the vocabulary has %llu merges; the limit is %d",
                     (unsigned long long)merges->count, VOCAB_MERGES_MAX);
        goto out;
    }
    rc = vocab_merge_init(&v->merges, (size_t)merges->count, em);
    size_t cursor = 0;
    struct gguf_str m;
    for (uint32_t rank = 0; rc == STRATA_OK && gguf_reader_next_str(merges, &cursor, &m); rank++) {
        rc = add_merge(v, rank, &m, &joined, em);
    }
out:
    buf_deinit(&joined);
    return rc;
}

/* Sets *id to the token whose text is the whole piece, or to -1. */
static strata_err whole_piece(const struct vocab *v, const unsigned char *p, size_t n, struct vocab_work *w,
                              int32_t *id, struct strata_errmsg *em) {
    *id = -1;
    if (n > v->max_len) return STRATA_OK;
    buf_clear(&w->piece);
    char *text = buf_reserve(&w->piece, 2 * n, em);
    if (!text) return err_nomem(em, "a piece of text");
    size_t len = 0;
    for (size_t i = 0; i < n; i++) len += utf8_encode(byte_to_cp(p[i]), text + len);
    int32_t found = vocab_text_find(&v->by_text, text, len);
    if (found >= 0 && vocab_mergeable(&v->token[found])) *id = found;
    return STRATA_OK;
}

static strata_err encode_piece(const struct vocab *v, const char *text, size_t n, struct vocab_work *w,
                               struct vocab_ids *out, struct strata_errmsg *em) {
    if (v->ignore_merges) {
        int32_t id;
        strata_err rc = whole_piece(v, (const unsigned char *)text, n, w, &id, em);
        if (rc != STRATA_OK) return rc;
        if (id >= 0) return vocab_ids_add(out, id, em);
    }
    return vocab_merge(v, text, n, w, out, em);
}

/*
 * Invalid UTF-8: the pieces are cut as if each bad byte were U+FFFD, which is how the peer cuts them; what is encoded
 * is the bytes as they came, so that nothing is lost (the peer encodes U+FFFD).
 */
static strata_err encode_invalid(const struct vocab *v, const char *text, size_t len, struct vocab_work *w,
                                 struct vocab_ids *out, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    buf_clear(&w->text);
    for (size_t i = 0; i < len && rc == STRATA_OK;) {
        uint32_t cp;
        size_t n = utf8_decode(text + i, len - i, &cp);
        rc = n ? buf_append(&w->text, text + i, n, em) : buf_append_str(&w->text, UTF8_REPLACEMENT, em);
        i += n ? n : 1;
    }
    if (rc == STRATA_OK) rc = vocab_split_run(v->split, w->text.data, w->text.len, &w->split, em);
    size_t clean = 0, at = 0, start = 0;
    for (size_t i = 0; i < w->split.ends.len && rc == STRATA_OK; i++) {
        while (clean < w->split.ends.end[i] && at < len) {
            uint32_t cp;
            size_t n = utf8_decode(text + at, len - at, &cp);
            clean += n ? n : strlen(UTF8_REPLACEMENT);
            at += n ? n : 1;
        }
        rc = encode_piece(v, text + start, at - start, w, out, em);
        start = at;
    }
    return rc;
}

strata_err vocab_bpe_encode(const struct vocab *v, const char *text, size_t len, struct vocab_work *w,
                            struct vocab_ids *out, struct strata_errmsg *em) {
    if (!utf8_valid(text, len)) return encode_invalid(v, text, len, w, out, em);
    strata_err rc = vocab_split_run(v->split, text, len, &w->split, em);
    size_t start = 0;
    for (size_t i = 0; i < w->split.ends.len && rc == STRATA_OK; i++) {
        rc = encode_piece(v, text + start, w->split.ends.end[i] - start, w, out, em);
        start = w->split.ends.end[i];
    }
    return rc;
}

strata_err vocab_bpe_piece(const struct vocab *v, const struct vocab_token *t, struct buf *out,
                           struct strata_errmsg *em) {
    (void)v;
    if (t->type != VOCAB_TYPE_NORMAL) return STRATA_OK;
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < t->len && rc == STRATA_OK;) {
        uint32_t cp;
        size_t k = utf8_decode(t->text + i, t->len - i, &cp);
        int b = k ? cp_to_byte(cp) : -1;
        size_t n = k ? k : 1;
        char byte = (char)b;
        /* A character outside the mapping stands for itself. */
        rc = b >= 0 ? buf_append(out, &byte, 1, em) : buf_append(out, t->text + i, n, em);
        i += n;
    }
    return rc;
}

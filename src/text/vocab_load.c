/*
 * A vocabulary from GGUF metadata: the tokens with their types and scores, then what their kind needs.
 * Refuses arrays of different lengths, duplicate texts, unknown types and scores that are not numbers, each by name.
 */
#include "text/vocab_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static strata_err load_texts(struct vocab *v, const struct gguf_kv *tokens, struct strata_errmsg *em) {
    strata_err rc = vocab_text_init(&v->by_text, v->n, em);
    size_t cursor = 0;
    struct gguf_str s;
    for (uint32_t i = 0; rc == STRATA_OK && i < v->n; i++) {
        if (!gguf_reader_next_str(tokens, &cursor, &s)) {
            return err_set(em, STRATA_EFORMAT, "tokenizer.ggml.tokens ends at token %u of %u", i, v->n);
        }
        if (s.len > VOCAB_TOKEN_BYTES_MAX) {
            return err_set(em, STRATA_ELIMIT, "token %u has %zu bytes; the limit is %d", i, s.len,
                           VOCAB_TOKEN_BYTES_MAX);
        }
        v->token[i] = (struct vocab_token){.text = s.data, .len = (uint32_t)s.len, .type = VOCAB_TYPE_NORMAL};
        if (v->max_len < s.len) v->max_len = (uint32_t)s.len;
        if (s.len == 0) continue; /* a hole in the numbering: matches nothing, means nothing */
        int32_t old;
        rc = vocab_text_add(&v->by_text, s.data, s.len, (int32_t)i, &old, em);
        if (rc == STRATA_OK && old >= 0) {
            return err_set(em, STRATA_EFORMAT, "tokens %d and %u of the vocabulary have the same text '%.*s'", old, i,
                           s.len > 64 ? 64 : (int)s.len, s.data);
        }
    }
    return rc;
}

static strata_err check_count(const struct vocab *v, const struct gguf_kv *kv, struct strata_errmsg *em) {
    if (kv->count >= v->n) return STRATA_OK;
    return err_set(em, STRATA_EFORMAT, "%s has %llu entries for %u tokens", kv->key, (unsigned long long)kv->count,
                   v->n);
}

static strata_err load_types(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em) {
    const struct gguf_kv *kv = NULL;
    strata_err rc = gguf_reader_get_array(meta, "tokenizer.ggml.token_type", false, GGUF_KIND_I32, &kv, em);
    if (rc != STRATA_OK || !kv) return rc;
    rc = check_count(v, kv, em);
    for (uint32_t i = 0; rc == STRATA_OK && i < v->n; i++) {
        int64_t t = gguf_reader_int_at(kv, i);
        if (t < 0 || t > VOCAB_TYPE_BYTE) {
            return err_set(em, STRATA_EFORMAT, "token %u has type %lld in %s; types are 0 to %d", i, (long long)t,
                           kv->key, VOCAB_TYPE_BYTE);
        }
        v->token[i].type = (uint8_t)t;
    }
    return rc;
}

static strata_err load_scores(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em) {
    static const char key[] = "tokenizer.ggml.scores";
    const struct gguf_kv *kv = gguf_reader_find_kv(meta, key);
    if (!kv) return STRATA_OK;
    bool whole = kv->kind == GGUF_KIND_ARRAY && kv->elem_kind == GGUF_KIND_I32;
    strata_err rc = gguf_reader_get_array(meta, key, true, whole ? GGUF_KIND_I32 : GGUF_KIND_F32, &kv, em);
    if (rc == STRATA_OK) rc = check_count(v, kv, em);
    for (uint32_t i = 0; rc == STRATA_OK && i < v->n; i++) {
        v->token[i].score = whole ? (float)gguf_reader_int_at(kv, i) : (float)gguf_reader_float_at(kv, i);
        if (isnan(v->token[i].score)) {
            return err_set(em, STRATA_EFORMAT, "the score of token %u in %s is not a number", i, key);
        }
    }
    return rc;
}

static strata_err load_kind(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em) {
    struct gguf_str model = {0};
    strata_err rc = gguf_reader_get_str(meta, "tokenizer.ggml.model", true, &model, em);
    if (rc != STRATA_OK) return rc;
    if (model.len == 4 && memcmp(model.data, "gpt2", 4) == 0) {
        v->kind = VOCAB_KIND_BPE;
    } else if (model.len == 5 && memcmp(model.data, "llama", 5) == 0) {
        v->kind = VOCAB_KIND_SPM;
    } else {
        rc = err_set(em, STRATA_EUNSUPPORTED,
                     "the vocabulary kind '%.*s' is not supported; known are gpt2 (byte-level BPE) and llama "
                     "(SentencePiece BPE)",
                     model.len > 64 ? 64 : (int)model.len, model.data);
    }
    return rc;
}

strata_err vocab_load(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em) {
    v->bos = v->eos = v->unk = -1;
    const struct gguf_kv *tokens = NULL;
    strata_err rc = load_kind(v, meta, em);
    if (rc == STRATA_OK) {
        rc = gguf_reader_get_array(meta, "tokenizer.ggml.tokens", true, GGUF_KIND_STRING, &tokens, em);
    }
    if (rc != STRATA_OK) return rc;
    if (tokens->count == 0 || tokens->count > VOCAB_TOKENS_MAX) {
        return err_set(em, STRATA_EFORMAT, "the vocabulary has %llu tokens; there must be 1 to %d",
                       (unsigned long long)tokens->count, VOCAB_TOKENS_MAX);
    }
    v->n = (uint32_t)tokens->count;
    v->token = calloc(v->n, sizeof *v->token);
    if (!v->token) return err_nomem(em, "the vocabulary");
    rc = load_texts(v, tokens, em);
    if (rc == STRATA_OK) rc = load_types(v, meta, em);
    if (rc == STRATA_OK) rc = load_scores(v, meta, em);
    if (rc == STRATA_OK) rc = vocab_special_load(v, meta, em);
    if (rc == STRATA_OK) rc = v->kind == VOCAB_KIND_BPE ? vocab_bpe_load(v, meta, em) : vocab_spm_load(v, meta, em);
    if (rc == STRATA_OK) rc = vocab_special_finish(v, meta, em);
    return rc;
}

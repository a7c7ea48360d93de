/* Vocabularies: the public calls. See vocab.h; the loading is in vocab_load.c, the kinds in vocab_bpe.c and
 * vocab_spm.c. */
#include "text/vocab_impl.h"

#include <stdlib.h>
#include <string.h>

strata_err vocab_new(const struct gguf_reader *meta, struct vocab **out, struct strata_errmsg *em) {
    return vocab_new_with(meta, 0, out, em);
}

strata_err vocab_new_with(const struct gguf_reader *meta, unsigned how, struct vocab **out, struct strata_errmsg *em) {
    struct vocab *v = calloc(1, sizeof *v);
    if (!v) return err_nomem(em, "the vocabulary");
    v->patterns = how & VOCAB_PATTERNS;
    strata_err rc = vocab_load(v, meta, em);
    if (rc == STRATA_OK) {
        *out = v;
    } else {
        const char *name = gguf_reader_name(meta); /* which the reader's own messages have already */
        if (em && strncmp(em->text, name, strlen(name)) != 0) err_prefix(em, "%s", name);
        vocab_free(v);
    }
    return rc;
}

void vocab_free(struct vocab *v) {
    if (!v) return;
    vocab_text_deinit(&v->by_text);
    vocab_merge_deinit(&v->merges);
    vocab_trie_deinit(&v->all);
    vocab_trie_deinit(&v->user);
    vocab_split_free(v->split);
    free(v->joins);
    free(v->token);
    free(v->eog);
    free(v);
}

uint32_t vocab_size(const struct vocab *v) {
    return v->n;
}

int32_t vocab_bos(const struct vocab *v) {
    return v->bos;
}

int32_t vocab_eos(const struct vocab *v) {
    return v->eos;
}

bool vocab_add_space_prefix(const struct vocab *v) {
    return v->kind == VOCAB_KIND_SPM && v->add_space_prefix;
}

bool vocab_is_control(const struct vocab *v, int32_t id) {
    if (id < 0 || (uint32_t)id >= v->n) return false;
    return v->token[id].type == VOCAB_TYPE_CONTROL || v->token[id].type == VOCAB_TYPE_UNKNOWN;
}

bool vocab_is_guarded(const struct vocab *v, int32_t id) {
    return id >= 0 && (uint32_t)id < v->n && v->token[id].guarded;
}

bool vocab_is_eog(const struct vocab *v, int32_t id) {
    for (size_t i = 0; i < v->n_eog; i++) {
        if (v->eog[i] == id) return true;
    }
    return false;
}

const int32_t *vocab_eog(const struct vocab *v, size_t *count) {
    *count = v->n_eog;
    return v->eog;
}

void vocab_ids_deinit(struct vocab_ids *ids) {
    free(ids->id);
    *ids = (struct vocab_ids){0};
}

strata_err vocab_ids_add(struct vocab_ids *ids, int32_t id, struct strata_errmsg *em) {
    if (ids->len == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 256;
        int32_t *p = realloc(ids->id, cap * sizeof *p);
        if (!p) return err_nomem(em, "token ids");
        ids->id = p;
        ids->cap = cap;
    }
    ids->id[ids->len++] = id;
    return STRATA_OK;
}

strata_err vocab_work_symbols(struct vocab_work *w, size_t n, struct strata_errmsg *em) {
    if (n <= w->symbols) return STRATA_OK;
    free(w->id);
    free(w->len);
    w->id = malloc(n * sizeof *w->id);
    w->len = malloc(n * sizeof *w->len);
    w->symbols = w->id && w->len ? n : 0;
    return w->symbols ? STRATA_OK : err_nomem(em, "the symbols of a text");
}

static strata_err encode_parts(const struct vocab *v, const char *text, const struct vocab_parts *parts,
                               struct vocab_work *w, struct vocab_ids *out, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    bool after_special = true; /* the beginning of a text counts as such */
    for (size_t i = 0; i < parts->len && rc == STRATA_OK; i++) {
        const struct vocab_part *p = &parts->part[i];
        if (p->id >= 0) {
            rc = vocab_ids_add(out, p->id, em);
        } else if (v->kind == VOCAB_KIND_BPE) {
            rc = vocab_bpe_encode(v, text + p->start, p->len, w, out, em);
        } else {
            rc = vocab_spm_encode(v, text + p->start, p->len, after_special, w, out, em);
        }
        after_special = p->id >= 0;
    }
    return rc;
}

strata_err vocab_encode(const struct vocab *v, const char *text, size_t len, unsigned flags, struct vocab_ids *out,
                        struct strata_errmsg *em) {
    return vocab_encode_marked(v, text, len, NULL, flags, out, em);
}

strata_err vocab_encode_marked(const struct vocab *v, const char *text, size_t len, const struct text_spans *own,
                               unsigned flags, struct vocab_ids *out, struct strata_errmsg *em) {
    struct vocab_parts parts = {0};
    struct vocab_work w = {0};
    size_t before = out->len;
    strata_err rc = STRATA_OK;
    buf_init(&w.text, 4 * VOCAB_TEXT_MAX);
    buf_init(&w.piece, 4 * VOCAB_TEXT_MAX);
    if (len > VOCAB_TEXT_MAX) {
        rc = err_set(em, STRATA_ELIMIT, "a text of %zu bytes is too long to tokenize; the limit is %zu", len,
                     VOCAB_TEXT_MAX);
        goto out;
    }
    if ((flags & VOCAB_ADD_SPECIAL) && v->add_bos) rc = vocab_ids_add(out, v->bos, em);
    if (rc == STRATA_OK) {
        rc = vocab_partition(v, flags & VOCAB_PARSE_SPECIAL ? &v->all : &v->user, text, len, own, &parts, em);
    }
    if (rc == STRATA_OK) rc = encode_parts(v, text, &parts, &w, out, em);
    if (rc == STRATA_OK && (flags & VOCAB_ADD_SPECIAL) && v->add_eos) rc = vocab_ids_add(out, v->eos, em);
out:
    if (rc != STRATA_OK) out->len = before;
    vocab_parts_deinit(&parts);
    vocab_split_work_deinit(&w.split);
    vocab_queue_deinit(&w.queue);
    free(w.id);
    free(w.len);
    buf_deinit(&w.text);
    buf_deinit(&w.piece);
    return rc;
}

strata_err vocab_piece(const struct vocab *v, int32_t id, bool special, struct buf *out, struct strata_errmsg *em) {
    if (id < 0 || (uint32_t)id >= v->n) {
        return err_set(em, STRATA_EINVAL, "token %d is not in the vocabulary of %u tokens", id, v->n);
    }
    const struct vocab_token *t = &v->token[id];
    bool control = t->type == VOCAB_TYPE_CONTROL || t->type == VOCAB_TYPE_UNKNOWN;
    if (control && !special) return STRATA_OK;
    if (control || t->type == VOCAB_TYPE_USER) return buf_append(out, t->text, t->len, em);
    return v->kind == VOCAB_KIND_BPE ? vocab_bpe_piece(v, t, out, em) : vocab_spm_piece(v, t, out, em);
}

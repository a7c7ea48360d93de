/*
 * Cutting a text at special tokens, before anything else is tokenized.
 *
 * The rule: longer tokens first; among tokens of one length, from the left; what a longer token has taken no other may
 * use. Instead of searching the whole text once per token, each position offers the longest token that begins there,
 * and a queue hands the offers out by length; an offer that no longer fits is replaced by the next shorter one.
 */
#include "text/vocab_impl.h"

#include <stdlib.h>
#include <string.h>

static strata_err new_node(struct vocab_trie *t, uint8_t byte, uint32_t *out, struct strata_errmsg *em) {
    if (t->len == t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 64;
        struct vocab_trie_node *p = realloc(t->node, cap * sizeof *p);
        if (!p) return err_nomem(em, "the special tokens");
        t->node = p;
        t->cap = cap;
        if (t->len == 0) t->len = 1; /* node 0 means "none" */
    }
    t->node[t->len] = (struct vocab_trie_node){.id = -1, .byte = byte};
    *out = t->len++;
    return STRATA_OK;
}

static uint32_t step(const struct vocab_trie *t, uint32_t first, uint8_t byte) {
    while (first && t->node[first].byte != byte) first = t->node[first].sibling;
    return first;
}

strata_err vocab_trie_add(struct vocab_trie *t, const char *text, size_t len, int32_t id, struct strata_errmsg *em) {
    uint32_t at = 0;
    for (size_t i = 0; i < len; i++) {
        uint8_t byte = (uint8_t)text[i];
        uint32_t next = i == 0 ? t->root[byte] : step(t, t->node[at].child, byte);
        if (!next) {
            strata_err rc = new_node(t, byte, &next, em);
            if (rc != STRATA_OK) return rc;
            if (i == 0) {
                t->root[byte] = next;
            } else {
                t->node[next].sibling = t->node[at].child;
                t->node[at].child = next;
            }
        }
        at = next;
    }
    if (at) t->node[at].id = id;
    return STRATA_OK;
}

void vocab_trie_deinit(struct vocab_trie *t) {
    free(t->node);
    *t = (struct vocab_trie){0};
}

void vocab_parts_deinit(struct vocab_parts *p) {
    free(p->part);
    *p = (struct vocab_parts){0};
}

static strata_err add_part(struct vocab_parts *p, size_t start, size_t len, int32_t id, struct strata_errmsg *em) {
    if (p->len == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 16;
        struct vocab_part *q = realloc(p->part, cap * sizeof *q);
        if (!q) return err_nomem(em, "the parts of a text");
        p->part = q;
        p->cap = cap;
    }
    p->part[p->len++] = (struct vocab_part){start, len, id};
    return STRATA_OK;
}

/* What is being cut. */
struct cutting {
    const struct vocab *v;
    const struct vocab_trie *t;
    const char *text;
    size_t len;
    uint8_t *taken; /* for each byte: TAKEN, OWN */
};
enum { TAKEN = 1 /* by a token */, OWN = 2 /* of the conversation: no guarded token may take it */ };

/* The longest token of at most `room` bytes that begins at pos; its length, or 0. */
static size_t longest(const struct cutting *c, size_t pos, size_t room, int32_t *id) {
    size_t best = 0;
    bool own = false;
    const char *s = c->text + pos;
    uint32_t at = room ? c->t->root[(uint8_t)s[0]] : 0;
    for (size_t i = 1; at; i++) {
        own = own || (c->taken && (c->taken[pos + i - 1] & OWN));
        int32_t found = c->t->node[at].id;
        if (found >= 0 && !(own && c->v->token[found].guarded)) {
            best = i;
            *id = found;
        }
        at = i < room ? step(c->t, c->t->node[at].child, (uint8_t)s[i]) : 0;
    }
    return best;
}

static strata_err offer(const struct cutting *c, size_t pos, size_t room, struct vocab_queue *q,
                        struct strata_errmsg *em) {
    int32_t id = -1;
    size_t n = longest(c, pos, room, &id);
    return n ? vocab_queue_push(q, (uint64_t)(UINT32_MAX - n) << 32 | (uint32_t)pos, em) : STRATA_OK;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* One offer: taken when its bytes are free, else replaced by a shorter one. */
static strata_err take(const struct cutting *c, uint64_t key, struct vocab_queue *q, struct vocab_parts *found,
                       struct strata_errmsg *em) {
    size_t pos = (uint32_t)key, n = UINT32_MAX - (uint32_t)(key >> 32), room = 0;
    while (room < n && !(c->taken[pos + room] & TAKEN)) room++;
    if (room < n) return offer(c, pos, room, q, em);
    int32_t id = -1;
    (void)longest(c, pos, n, &id);
    size_t start = pos, end = pos + n;
    if (c->v->token[id].lstrip) {
        while (start > 0 && !(c->taken[start - 1] & TAKEN) && is_space(c->text[start - 1])) start--;
    }
    if (c->v->token[id].rstrip) {
        while (end < c->len && !(c->taken[end] & TAKEN) && is_space(c->text[end])) end++;
    }
    for (size_t i = start; i < end; i++) c->taken[i] |= TAKEN;
    return add_part(found, start, end - start, id, em);
}

/* Takes matches off the queue; parts come out in the order of acceptance. */
static strata_err settle(const struct cutting *c, struct vocab_queue *q, struct vocab_parts *found,
                         struct strata_errmsg *em) {
    for (;;) {
        uint64_t key;
        bool some;
        strata_err rc = vocab_queue_pop(q, &key, &some, em);
        if (rc == STRATA_OK && some) rc = take(c, key, q, found, em);
        if (rc != STRATA_OK || !some) return rc;
    }
}

static int by_start(const void *a, const void *b) {
    size_t x = ((const struct vocab_part *)a)->start, y = ((const struct vocab_part *)b)->start;
    return x < y ? -1 : x > y;
}

/* Puts the text between the matches, which are sorted, into its place. */
static strata_err fill_gaps(const struct vocab_parts *found, size_t len, struct vocab_parts *out,
                            struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    size_t at = 0;
    for (size_t i = 0; i < found->len && rc == STRATA_OK; i++) {
        const struct vocab_part *p = &found->part[i];
        if (p->start > at) rc = add_part(out, at, p->start - at, -1, em);
        if (rc == STRATA_OK) rc = add_part(out, p->start, p->len, p->id, em);
        at = p->start + p->len;
    }
    if (rc == STRATA_OK && at < len) rc = add_part(out, at, len - at, -1, em);
    return rc;
}

/* Whether any token of the trie may begin somewhere. */
static bool any_begins(const struct vocab_trie *t, const char *text, size_t len) {
    for (size_t i = 0; t->len > 0 && i < len; i++) {
        if (t->root[(uint8_t)text[i]]) return true;
    }
    return false;
}

strata_err vocab_partition(const struct vocab *v, const struct vocab_trie *t, const char *text, size_t len,
                           const struct text_spans *own, struct vocab_parts *out, struct strata_errmsg *em) {
    struct vocab_queue queue = {0};
    struct vocab_parts found = {0};
    struct cutting c = {v, t, text, len, NULL};
    strata_err rc = STRATA_OK;
    if (any_begins(t, text, len)) {
        c.taken = calloc(len, 1);
        if (!c.taken) {
            rc = err_nomem(em, "marking special tokens");
            goto out;
        }
        for (size_t i = 0; own && i < own->len; i++) {
            for (size_t k = own->span[i].start; k < own->span[i].end && k < len; k++) c.taken[k] = OWN;
        }
        for (size_t i = 0; i < len && rc == STRATA_OK; i++) {
            if (t->root[(uint8_t)text[i]]) rc = offer(&c, i, len - i, &queue, em);
        }
        if (rc == STRATA_OK) rc = settle(&c, &queue, &found, em);
        if (rc != STRATA_OK) goto out;
        if (found.len > 1) qsort(found.part, found.len, sizeof *found.part, by_start);
    }
    rc = fill_gaps(&found, len, out, em);
out:
    free(c.taken);
    vocab_parts_deinit(&found);
    vocab_queue_deinit(&queue);
    return rc;
}

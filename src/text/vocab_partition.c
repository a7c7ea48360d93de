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

/* The longest token of at most `room` bytes that begins at s; its length, or 0. */
static size_t longest(const struct vocab_trie *t, const char *s, size_t room, int32_t *id) {
    size_t best = 0;
    uint32_t at = room ? t->root[(uint8_t)s[0]] : 0;
    for (size_t i = 1; at; i++) {
        if (t->node[at].id >= 0) {
            best = i;
            *id = t->node[at].id;
        }
        at = i < room ? step(t, t->node[at].child, (uint8_t)s[i]) : 0;
    }
    return best;
}

static strata_err offer(const struct vocab_trie *t, const char *text, size_t pos, size_t room, struct vocab_heap *heap,
                        struct strata_errmsg *em) {
    int32_t id = -1;
    size_t n = longest(t, text + pos, room, &id);
    if (n == 0) return STRATA_OK;
    struct vocab_heap_item it = {(uint64_t)(UINT32_MAX - n) << 32 | (uint32_t)pos, (uint32_t)id, (uint32_t)n};
    return vocab_heap_push(heap, it, em);
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Takes matches off the queue and marks their bytes in `taken`; parts come out in the order of acceptance. */
static strata_err settle(const struct vocab *v, const struct vocab_trie *t, const char *text, size_t len,
                         struct vocab_heap *heap, uint8_t *taken, struct vocab_parts *found, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    struct vocab_heap_item it;
    while (rc == STRATA_OK && vocab_heap_pop(heap, &it)) {
        size_t pos = (uint32_t)it.key, n = it.b, room = 0;
        while (room < n && !taken[pos + room]) room++;
        if (room < n) {
            rc = offer(t, text, pos, room, heap, em);
            continue;
        }
        if (v->token[it.a].rstrip) {
            while (pos + n < len && !taken[pos + n] && is_space(text[pos + n])) n++;
        }
        memset(taken + pos, 1, n);
        rc = add_part(found, pos, n, (int32_t)it.a, em);
    }
    return rc;
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

strata_err vocab_partition(const struct vocab *v, const struct vocab_trie *t, const char *text, size_t len,
                           struct vocab_parts *out, struct strata_errmsg *em) {
    struct vocab_heap heap = {0};
    struct vocab_parts found = {0};
    uint8_t *taken = NULL;
    strata_err rc = STRATA_OK;
    if (t->len > 0) {
        for (size_t i = 0; i < len && rc == STRATA_OK; i++) {
            if (t->root[(uint8_t)text[i]]) rc = offer(t, text, i, len - i, &heap, em);
        }
        if (rc != STRATA_OK) goto out;
    }
    if (heap.len > 0) {
        taken = calloc(len, 1);
        if (!taken) {
            rc = err_nomem(em, "marking special tokens");
            goto out;
        }
        rc = settle(v, t, text, len, &heap, taken, &found, em);
        if (rc != STRATA_OK) goto out;
        qsort(found.part, found.len, sizeof *found.part, by_start);
    }
    rc = fill_gaps(&found, len, out, em);
out:
    free(taken);
    vocab_parts_deinit(&found);
    vocab_heap_deinit(&heap);
    return rc;
}

/* The tree of kept prefixes. See prefix.h. Owns its nodes; a table of chains finds them by parent and tokens. */
#include "serve/prefix.h"

#include <stdlib.h>
#include <string.h>

struct prefix_node {
    uint64_t id;
    struct prefix_node *parent;        /* NULL: the block starts a sequence */
    struct prefix_node *chain;         /* next in its bucket */
    struct prefix_node *older, *newer; /* by use */
    uint64_t hash;
    uint32_t n_children, n_holds;
    bool lost;  /* not found any more, and not in the table */
    bool stays; /* it, or one that continues it, is held: only while that is counted */
    int32_t tokens[PREFIX_BLOCK];
};

struct prefix {
    void (*forget)(void *ctx, uint64_t first, uint32_t count);
    void *ctx;
    struct prefix_node **bucket;
    size_t mask;
    struct prefix_node *oldest, *newest;
    uint32_t n, n_reserved, max;
    uint64_t next_number;
    struct prefix_stats stats;
};

strata_err prefix_new(uint32_t max_blocks, void (*forget)(void *ctx, uint64_t first, uint32_t count), void *ctx,
                      struct prefix **out, struct strata_errmsg *em) {
    struct prefix *p = calloc(1, sizeof *p);
    size_t buckets = 2;
    if (!p) return err_nomem(em, "the prefix cache");
    while (buckets < max_blocks) buckets *= 2;
    *p = (struct prefix){.forget = forget, .ctx = ctx, .max = max_blocks, .mask = buckets - 1, .next_number = 1};
    p->bucket = calloc(buckets, sizeof *p->bucket);
    if (!p->bucket) {
        free(p);
        return err_nomem(em, "the prefix cache");
    }
    *out = p;
    return STRATA_OK;
}

void prefix_clear(struct prefix *p) {
    for (struct prefix_node *node = p->oldest, *next; node; node = next) {
        next = node->newer;
        free(node);
    }
    memset(p->bucket, 0, (p->mask + 1) * sizeof *p->bucket);
    p->oldest = p->newest = NULL;
    p->n = p->n_reserved = 0;
}

void prefix_free(struct prefix *p) {
    if (!p) return;
    prefix_clear(p);
    free(p->bucket);
    free(p);
}

void prefix_stats(const struct prefix *p, struct prefix_stats *out) {
    *out = p->stats;
    out->blocks = p->n;
    out->max_blocks = p->max;
}

/* ---- finding ---- */

/* FNV-1a over the tokens, from the parent's number: equal hashes are compared in full. */
static uint64_t hash_of(const struct prefix_node *parent, const int32_t *tokens) {
    uint64_t h = UINT64_C(14695981039346656037) ^ (parent ? parent->id * UINT64_C(0x9E3779B97F4A7C15) : 0);
    for (int i = 0; i < PREFIX_BLOCK; i++) h = (h ^ (uint32_t)tokens[i]) * UINT64_C(1099511628211);
    return h ^ h >> 32;
}

static struct prefix_node *find(const struct prefix *p, const struct prefix_node *parent, const int32_t *tokens,
                                uint64_t hash) {
    struct prefix_node *node = p->bucket[hash & p->mask];
    while (node &&
           (node->hash != hash || node->parent != parent || memcmp(node->tokens, tokens, sizeof node->tokens) != 0))
        node = node->chain;
    return node;
}

/* ---- order of use ---- */

static void unlink_node(struct prefix *p, struct prefix_node *node) {
    *(node->older ? &node->older->newer : &p->oldest) = node->newer;
    *(node->newer ? &node->newer->older : &p->newest) = node->older;
}

static void link_newest(struct prefix *p, struct prefix_node *node) {
    node->older = p->newest;
    node->newer = NULL;
    *(p->newest ? &p->newest->newer : &p->oldest) = node;
    p->newest = node;
}

/* A block is used whenever one behind it is: parents come after children in the order, and go later. */
static void touch(struct prefix *p, struct prefix_node *node) {
    for (; node; node = node->parent) {
        unlink_node(p, node);
        link_newest(p, node);
    }
}

static bool is_free(const struct prefix_node *node) {
    return node->n_children == 0 && node->n_holds == 0;
}

static void remove_from_table(struct prefix *p, struct prefix_node *node) {
    struct prefix_node **at = &p->bucket[node->hash & p->mask];
    if (node->lost) return;
    while (*at != node) at = &(*at)->chain;
    *at = node->chain;
    node->lost = true;
}

static void remove_node(struct prefix *p, struct prefix_node *node) {
    remove_from_table(p, node);
    unlink_node(p, node);
    if (node->parent) node->parent->n_children--;
    p->n--;
    p->forget(p->ctx, node->id, 1);
    free(node);
}

/* ---- prefixes of requests ---- */

struct prefix_node *prefix_match(struct prefix *p, const int32_t *tokens, uint32_t max, uint32_t *n_blocks) {
    struct prefix_node *tip = NULL, *next;
    uint32_t n = 0;
    while (n < max) {
        const int32_t *t = tokens + (size_t)n * PREFIX_BLOCK;
        next = find(p, tip, t, hash_of(tip, t));
        if (!next) break;
        tip = next;
        n++;
    }
    if (tip) {
        tip->n_holds++;
        touch(p, tip);
    }
    if (max) *(n ? &p->stats.hits : &p->stats.misses) += 1;
    p->stats.reused_positions += (uint64_t)n * PREFIX_BLOCK;
    *n_blocks = n;
    return tip;
}

void prefix_ids(const struct prefix_node *tip, uint64_t *ids, uint32_t n) {
    for (; n && tip; tip = tip->parent) ids[--n] = tip->id;
}

void prefix_release(struct prefix *p, struct prefix_node *tip) {
    (void)p;
    if (tip) tip->n_holds--;
}

/* Blocks that cannot go: those that are held, and what they continue. Parents come later in the order. */
static uint32_t count_staying(struct prefix *p) {
    uint32_t n = 0;
    for (struct prefix_node *node = p->oldest; node; node = node->newer) {
        bool stays = node->stays || node->n_holds;
        if (stays && node->parent) node->parent->stays = true;
        node->stays = false;
        n += stays;
    }
    return n;
}

bool prefix_reserve(struct prefix *p, uint32_t n) {
    if (n > p->max - p->n_reserved) return false;
    uint32_t room = p->max - p->n_reserved - n;
    if (p->n > room && count_staying(p) > room) return false;
    for (struct prefix_node *node = p->oldest, *newer; node && p->n > room; node = newer) {
        newer = node->newer;
        if (!is_free(node)) continue;
        /* Its parent may be free now, and comes later in the order. */
        remove_node(p, node);
        p->stats.evictions++;
    }
    p->n_reserved += n;
    return true;
}

void prefix_unreserve(struct prefix *p, uint32_t n) {
    p->n_reserved -= n < p->n_reserved ? n : p->n_reserved;
}

uint64_t prefix_numbers(struct prefix *p, uint32_t n) {
    uint64_t first = p->next_number;
    p->next_number += n;
    return first;
}

struct prefix_node *prefix_extend(struct prefix *p, struct prefix_node *tip, const int32_t *tokens, uint64_t id) {
    uint64_t hash = hash_of(tip, tokens);
    struct prefix_node *node = find(p, tip, tokens, hash);
    prefix_unreserve(p, 1);
    if (node) {
        p->forget(p->ctx, id, 1);
    } else {
        node = calloc(1, sizeof *node);
        if (!node) {
            p->forget(p->ctx, id, 1);
            return NULL;
        }
        *node = (struct prefix_node){.id = id, .parent = tip, .hash = hash, .chain = p->bucket[hash & p->mask]};
        memcpy(node->tokens, tokens, sizeof node->tokens);
        p->bucket[hash & p->mask] = node;
        link_newest(p, node);
        p->n++;
        if (tip) tip->n_children++;
    }
    node->n_holds++;
    prefix_release(p, tip);
    touch(p, node);
    return node;
}

void prefix_discard(struct prefix *p, struct prefix_node *tip) {
    prefix_release(p, tip);
    while (tip) {
        struct prefix_node *parent = tip->parent;
        remove_from_table(p, tip);
        if (is_free(tip)) remove_node(p, tip);
        tip = parent;
    }
}

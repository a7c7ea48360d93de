/*
 * One GGUF file or a split set, mapped and checked as one. See gguf_source.h.
 *
 * Owns the maps and the readers. A set is recognised by its file name, which is how every tool that makes one
 * names it; what the metadata says (split.count, split.no, split.tensors.count) must agree.
 */
#include "gguf/gguf_source.h"

#include "base/file.h"
#include "base/path.h"
#include "gguf/gguf_index.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SHARDS = 4096 };

struct shard {
    char *path;
    struct file_map map;
    struct gguf_reader *reader;
};

struct place {
    const struct gguf_tensor *tensor;
    size_t shard;
};

struct gguf_source {
    struct shard *shards;
    size_t n_shards;
    struct place *places;
    size_t n_places;
    struct gguf_index index;
};

/* Where the numbers of a split name stand: "<prefix>-NNNNN-of-NNNNN.gguf". */
static const char split_tail[] = "-00000-of-00000.gguf";

/* Whether path is named like a member of a split set; *no counts from 1. */
static bool parse_split_name(const char *path, uint32_t *no, uint32_t *count) {
    const char *base = path_basename(path);
    size_t len = strlen(base), tail = sizeof split_tail - 1;
    if (len <= tail) return false;
    const char *p = base + len - tail;
    uint32_t n[2] = {0, 0};
    size_t group = 0;
    for (size_t i = 0; i < tail; i++) {
        bool digit = split_tail[i] == '0';
        if (digit ? (p[i] < '0' || p[i] > '9') : p[i] != split_tail[i]) return false;
        if (i == strlen("-00000-of-")) group = 1;
        if (digit) n[group] = n[group] * 10 + (uint32_t)(p[i] - '0');
    }
    *no = n[0];
    *count = n[1];
    return true;
}

bool gguf_source_is_split_name(const char *path) {
    uint32_t no, count;
    return parse_split_name(path, &no, &count);
}

static strata_err open_shard(struct shard *s, const char *path, struct strata_errmsg *em) {
    s->path = strdup(path);
    if (!s->path) return err_nomem(em, "a file name");
    strata_err rc = file_map_open(path, &s->map, em);
    if (!rc) rc = gguf_reader_new(s->map.data, s->map.size, path, &s->reader, em);
    return rc;
}

static strata_err open_set(struct gguf_source *s, const char *path, uint32_t count, struct strata_errmsg *em) {
    size_t prefix = strlen(path) - (sizeof split_tail - 1);
    char name[PATH_MAX_LEN];
    if (prefix + sizeof split_tail > sizeof name) return err_set(em, STRATA_ELIMIT, "path too long: %.200s", path);
    memcpy(name, path, prefix);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(name + prefix, sizeof name - prefix, "-%05" PRIu32 "-of-%05" PRIu32 ".gguf", i + 1, count);
        strata_err rc = open_shard(&s->shards[i], name, em);
        if (rc == STRATA_ENOENT)
            return err_set(em, rc,
                           "%s is missing: it is part %" PRIu32 " of %" PRIu32
                           " of this model, and all must stand side by side",
                           name, i + 1, count);
        if (rc) return rc;
    }
    return STRATA_OK;
}

static strata_err check_split_keys(const struct gguf_source *s, struct strata_errmsg *em) {
    for (size_t i = 0; i < s->n_shards; i++) {
        const struct gguf_reader *r = s->shards[i].reader;
        uint32_t count = 1, no = 0;
        bool in_set = s->n_shards > 1;
        strata_err rc = gguf_reader_get_u32(r, "split.count", in_set, &count, em);
        if (!rc) rc = gguf_reader_get_u32(r, "split.no", in_set, &no, em);
        if (rc) return rc;
        /* Some tools write a count of 0 into files that were never split. */
        if (!in_set && count > 1)
            return err_set(em, STRATA_EFORMAT,
                           "%s is part %" PRIu32 " of %" PRIu32 " of a split model, but its name does not end in "
                           "-%05" PRIu32 "-of-%05" PRIu32 ".gguf, so the other parts cannot be found: rename it",
                           s->shards[i].path, no + 1, count, no + 1, count);
        if (in_set && count != s->n_shards)
            return err_set(em, STRATA_EFORMAT,
                           "%s: split.count is %" PRIu32
                           ", but its name says %zu parts: files of different models are mixed",
                           s->shards[i].path, count, s->n_shards);
        if (in_set && no != i)
            return err_set(em, STRATA_EFORMAT, "%s: split.no is %" PRIu32 "; by its name it must be %zu",
                           s->shards[i].path, no, i);
    }
    return STRATA_OK;
}

static strata_err list_tensors(struct gguf_source *s, struct strata_errmsg *em) {
    size_t total = 0;
    for (size_t i = 0; i < s->n_shards; i++) total += gguf_reader_tensor_count(s->shards[i].reader);
    for (size_t i = 0; i < s->n_shards; i++) {
        uint64_t said = total;
        strata_err rc = gguf_reader_get_u64(s->shards[i].reader, "split.tensors.count", false, &said, em);
        if (rc) return rc;
        if (s->n_shards > 1 && said != total)
            return err_set(em, STRATA_EFORMAT,
                           "%s: split.tensors.count is %" PRIu64 ", but the %zu parts hold %zu tensors",
                           s->shards[i].path, said, s->n_shards, total);
    }
    strata_err rc = gguf_index_init(&s->index, total, em);
    if (rc) return rc;
    s->places = calloc(total ? total : 1, sizeof *s->places);
    if (!s->places) return err_nomem(em, "the list of tensors");
    for (size_t i = 0; i < s->n_shards; i++) {
        const struct gguf_reader *r = s->shards[i].reader;
        for (size_t k = 0; k < gguf_reader_tensor_count(r); k++) {
            const struct gguf_tensor *t = gguf_reader_tensor(r, k);
            if (!gguf_index_put(&s->index, t->name, s->n_places))
                return err_set(em, STRATA_EFORMAT, "%s: tensor '%s' is in an earlier part as well", s->shards[i].path,
                               t->name);
            s->places[s->n_places++] = (struct place){.tensor = t, .shard = i};
        }
    }
    return STRATA_OK;
}

strata_err gguf_source_open(const char *path, struct gguf_source **out, struct strata_errmsg *em) {
    strata_err rc;
    uint32_t no = 1, count = 1;
    bool named = parse_split_name(path, &no, &count);
    if (named && (count == 0 || count > MAX_SHARDS || no == 0 || no > count))
        return err_set(em, STRATA_EINVAL, "%s: part %" PRIu32 " of %" PRIu32 " makes no sense (at most %d parts)", path,
                       no, count, MAX_SHARDS);
    struct gguf_source *s = calloc(1, sizeof *s);
    if (!s) return err_nomem(em, "a model");
    s->shards = calloc(count, sizeof *s->shards);
    if (!s->shards) {
        rc = err_nomem(em, "a model");
        goto out;
    }
    s->n_shards = count;
    rc = named ? open_set(s, path, count, em) : open_shard(&s->shards[0], path, em);
    if (!rc) rc = check_split_keys(s, em);
    if (!rc) rc = list_tensors(s, em);
    if (rc) goto out;
    *out = s;
    s = NULL;
out:
    gguf_source_free(s);
    return rc;
}

void gguf_source_free(struct gguf_source *s) {
    if (!s) return;
    for (size_t i = 0; i < s->n_shards; i++) {
        gguf_reader_free(s->shards[i].reader);
        file_map_close(&s->shards[i].map);
        free(s->shards[i].path);
    }
    free(s->shards);
    free(s->places);
    gguf_index_deinit(&s->index);
    free(s);
}

size_t gguf_source_shard_count(const struct gguf_source *s) {
    return s->n_shards;
}

const struct gguf_reader *gguf_source_shard(const struct gguf_source *s, size_t i) {
    return s->shards[i].reader;
}

const void *gguf_source_shard_bytes(const struct gguf_source *s, size_t i, size_t *len) {
    *len = s->shards[i].map.size;
    return s->shards[i].map.data;
}

const char *gguf_source_shard_path(const struct gguf_source *s, size_t i) {
    return s->shards[i].path;
}

const struct gguf_reader *gguf_source_meta(const struct gguf_source *s) {
    return s->shards[0].reader;
}

size_t gguf_source_tensor_count(const struct gguf_source *s) {
    return s->n_places;
}

const struct gguf_tensor *gguf_source_tensor(const struct gguf_source *s, size_t i, size_t *shard) {
    if (shard) *shard = s->places[i].shard;
    return s->places[i].tensor;
}

const struct gguf_tensor *gguf_source_find_tensor(const struct gguf_source *s, const char *name) {
    size_t i = gguf_index_get(&s->index, name);
    return i == GGUF_INDEX_NONE ? NULL : s->places[i].tensor;
}

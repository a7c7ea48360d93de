/* A small model on disk for package tests: a few layers, distinct payloads, tied or not, in one file or two shards. */
#ifndef PKG_SAMPLE_H
#define PKG_SAMPLE_H

#include "gguf/gguf_writer.h"

#include "../base/tmp_folder.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { SAMPLE_WIDTH = 8, SAMPLE_TENSORS = 64 };

struct sample {
    const char *path; /* without ".gguf" */
    uint32_t layers;
    bool tied;
    bool replicated;     /* with rope_freqs.weight */
    uint32_t shards;     /* 1 or 2 */
    uint32_t skip_layer; /* this layer gets no tensors; UINT32_MAX: none */
};

struct sample_tensor {
    char name[64];
    uint64_t rows;
};

static inline size_t sample_list(const struct sample *s, struct sample_tensor *t) {
    size_t n = 0;
    static const char *const parts[] = {"attn_norm.weight", "attn_q.weight", "ffn_down.weight"};
    snprintf(t[n].name, 64, "token_embd.weight");
    t[n++].rows = 11;
    for (uint32_t i = 0; i < s->layers; i++)
        for (size_t k = 0; k < 3 && i != s->skip_layer; k++) {
            /* In the middle of the file, to see that source order is kept. */
            if (s->replicated && i == 1 && k == 1) {
                snprintf(t[n].name, 64, "rope_freqs.weight");
                t[n++].rows = 1;
            }
            snprintf(t[n].name, 64, "blk.%u.%s", i, parts[k]);
            t[n++].rows = k + 1 + i;
        }
    snprintf(t[n].name, 64, "output_norm.weight");
    t[n++].rows = 1;
    if (!s->tied) {
        snprintf(t[n].name, 64, "output.weight");
        t[n++].rows = 11;
    }
    return n;
}

static inline void sample_write_shard(const struct sample *s, const struct sample_tensor *t, size_t first, size_t end,
                                      size_t total, uint32_t no) {
    static float data[SAMPLE_TENSORS][SAMPLE_WIDTH * 32];
    struct gguf_writer *w;
    struct strata_errmsg em;
    uint8_t sum[DIGEST_BYTES];
    uint64_t size;
    char path[512];
    assert_int_equal(gguf_writer_new(32, &w, &em), STRATA_OK);
    if (no == 0) {
        assert_int_equal(gguf_writer_add_str(w, "general.architecture", "llama", &em), STRATA_OK);
        assert_int_equal(gguf_writer_add_str(w, "general.name", "Sample Model", &em), STRATA_OK);
        assert_int_equal(gguf_writer_add_u32(w, "llama.block_count", s->layers, &em), STRATA_OK);
        assert_int_equal(gguf_writer_add_u32(w, "llama.embedding_length", SAMPLE_WIDTH, &em), STRATA_OK);
    }
    if (s->shards > 1) {
        assert_int_equal(gguf_writer_add_u32(w, "split.count", s->shards, &em), STRATA_OK);
        assert_int_equal(gguf_writer_add_u32(w, "split.no", no, &em), STRATA_OK);
        assert_int_equal(gguf_writer_add_u32(w, "split.tensors.count", (uint32_t)total, &em), STRATA_OK);
    }
    for (size_t i = first; i < end; i++) {
        const uint64_t ne[2] = {SAMPLE_WIDTH, t[i].rows};
        assert_true(i < SAMPLE_TENSORS && t[i].rows <= 32);
        for (size_t k = 0; k < SAMPLE_WIDTH * t[i].rows; k++) data[i][k] = (float)(i * 1000 + k);
        assert_int_equal(gguf_writer_add_tensor(w, t[i].name, 2, ne, 0, data[i], &em), STRATA_OK);
    }
    if (s->shards > 1)
        snprintf(path, sizeof path, "%s-%05u-of-%05u.gguf", s->path, no + 1, s->shards);
    else
        snprintf(path, sizeof path, "%s.gguf", s->path);
    assert_int_equal(gguf_writer_to_file(w, path, NULL, sum, &size, &em), STRATA_OK);
    gguf_writer_free(w);
}

static inline void sample_write(const struct sample *s) {
    struct sample_tensor t[SAMPLE_TENSORS];
    size_t n = sample_list(s, t);
    assert_true(n <= SAMPLE_TENSORS);
    if (s->shards <= 1) {
        sample_write_shard(s, t, 0, n, n, 0);
        return;
    }
    sample_write_shard(s, t, 0, n / 2, n, 0);
    sample_write_shard(s, t, n / 2, n, n, 1);
}

#endif

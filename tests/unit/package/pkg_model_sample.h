/* A model on disk with chosen tensors, and packages of it in either schema. */
#ifndef PKG_MODEL_SAMPLE_H
#define PKG_MODEL_SAMPLE_H

#include "base/file.h"
#include "gguf/gguf_writer.h"
#include "package/pkg_write.h"

#include "../base/tmp_folder.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { MODEL_WIDTH = 8, MODEL_MAX_TENSORS = 64, MODEL_MAX_ROWS = 16 };

/* Writes <path> with these tensors, each of 8 columns and (its number modulo 7) + 1 rows, payloads all different.
 * alignment 0: the key is left out, and data is aligned to 32. */
static inline void model_write(const char *path, const char *const *names, uint32_t layers, uint32_t alignment) {
    static float data[MODEL_MAX_TENSORS][MODEL_WIDTH * MODEL_MAX_ROWS];
    struct gguf_writer *w;
    struct strata_errmsg em;
    uint8_t sum[DIGEST_BYTES];
    uint64_t size;
    assert_int_equal(gguf_writer_new_bare(alignment ? alignment : 32, &w, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_str(w, "general.architecture", "llama", &em), STRATA_OK);
    if (alignment) assert_int_equal(gguf_writer_add_u32(w, "general.alignment", alignment, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_str(w, "general.name", "Sample Model", &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_u32(w, "llama.block_count", layers, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_u32(w, "llama.embedding_length", MODEL_WIDTH, &em), STRATA_OK);
    for (size_t i = 0; names[i]; i++) {
        const uint64_t ne[2] = {MODEL_WIDTH, i % 7 + 1};
        assert_true(i < MODEL_MAX_TENSORS);
        for (size_t k = 0; k < MODEL_WIDTH * ne[1]; k++) data[i][k] = (float)(i * 1000 + k);
        assert_int_equal(gguf_writer_add_tensor(w, names[i], 2, ne, 0, data[i], &em), STRATA_OK);
    }
    assert_int_equal(gguf_writer_to_file(w, path, NULL, sum, &size, &em), STRATA_OK);
    gguf_writer_free(w);
}

/* Packages a model; max_bytes is for schema 2, 0 for its default. */
static inline void model_package(const char *source, const char *dir, unsigned schema, uint64_t max_bytes) {
    struct strata_errmsg em;
    struct pkg_write_result res;
    struct pkg_write_options opt = {
        .out_dir = dir, .identity.local = true, .schema = schema, .max_artifact_bytes = max_bytes};
    if (pkg_write(source, &opt, &res, &em)) fail_msg("%s", em.text);
    json_decref(res.manifest);
}

/* Whether two files have the same bytes. */
static inline bool same_bytes(const char *a, const char *b) {
    struct file_map x = {0}, y = {0};
    struct strata_errmsg em;
    if (file_map_open(a, &x, &em) || file_map_open(b, &y, &em)) fail_msg("%s", em.text);
    bool same = x.size == y.size && memcmp(x.data, y.data, x.size) == 0;
    file_map_close(&x);
    file_map_close(&y);
    return same;
}

#endif

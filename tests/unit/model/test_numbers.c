/* The factors of each tensor type's blocks: looked at where they are, and nowhere else. ggml's own conversion is the
 * judge: a block is sound when all that comes out of it is finite. */
#include "model/model_numbers.h"

#include "gguf/gguf_types.h"

#include <ggml.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 256, BLOCK_MOST = 512 };

/* Types of weights. */
static bool is_weight(uint32_t id) {
    return id < GGML_TYPE_COUNT && gguf_types_tensor(id) &&
           (id == GGML_TYPE_F32 || ggml_get_type_traits((enum ggml_type)id)->to_float) && id != GGML_TYPE_Q8_1 &&
           id != GGML_TYPE_Q8_K;
}

static bool comes_out_finite(uint32_t id, const void *block, int64_t n) {
    float out[MOST];
    if (id == GGML_TYPE_F32)
        memcpy(out, block, (size_t)n * sizeof *out);
    else
        ggml_get_type_traits((enum ggml_type)id)->to_float(block, out, n);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(out[i])) return false;
    return true;
}

/* Ordinary values, quantized. */
static void make_block(uint32_t id, uint8_t *block, int64_t n) {
    float x[MOST], importance[MOST];
    for (int64_t i = 0; i < n; i++) {
        x[i] = sinf((float)(i * i + id));
        importance[i] = 1;
    }
    ggml_quantize_chunk((enum ggml_type)id, x, block, 0, 1, n, importance);
}

/* Refused though all that comes out is finite: the format's NaN as a factor of NVFP4, which is computed with as 0, and
 * powers of 2 that only the largest codes of MXFP4 take beyond the floats. */
static bool is_strict(uint32_t id, const uint8_t *block) {
    if (id == GGML_TYPE_MXFP4) return block[0] >= 253;
    bool nan = false;
    for (int i = 0; i < 4; i++) nan |= (block[i] & 0x7f) == 0x7f;
    return id == GGML_TYPE_NVFP4 && nan;
}

/* Each byte in turn, and each pair of neighbours, with all bits set, and with those of a half's exponent. */
static void test_every_place(void **state) {
    (void)state;
    static const uint8_t put[][2] = {{0xff, 0xff}, {0x00, 0x7c}, {0x00, 0xfc}, {0x01, 0x7e}, {0x80, 0x7f},
                                     {0xff, 0x00}, {0x7f, 0x00}, {0xfd, 0x00}, {0xfc, 0x00}, {0x00, 0x00},
                                     {0xff, 0x7b}, {0x7f, 0x7f}, {0xf0, 0xf0}, {0xff, 0xf7}};
    int types = 0;
    for (uint32_t id = 0; id < GGML_TYPE_COUNT; id++) {
        if (!is_weight(id)) continue;
        int64_t n = gguf_types_tensor(id)->block_elems;
        size_t bytes = gguf_types_tensor(id)->block_bytes, bad = 0;
        uint8_t block[BLOCK_MOST], changed[BLOCK_MOST];
        assert_true(bytes <= sizeof block && n <= MOST);
        make_block(id, block, n);
        assert_true(model_numbers_finite(id, block, bytes));
        for (size_t at = 0; at < bytes; at++)
            for (size_t k = 0; k < sizeof put / sizeof put[0]; k++) {
                memcpy(changed, block, bytes);
                changed[at] = put[k][0];
                if (at + 1 < bytes) changed[at + 1] = put[k][1];
                bool sound = comes_out_finite(id, changed, n), ours = model_numbers_finite(id, changed, bytes);
                if (ours && !sound)
                    fail_msg("%s: a damaged block passes (byte %zu, %02x %02x)", gguf_types_tensor_name(id), at,
                             put[k][0], put[k][1]);
                if (!ours && sound && !is_strict(id, changed))
                    fail_msg("%s: a sound block is refused (byte %zu, %02x %02x)", gguf_types_tensor_name(id), at,
                             put[k][0], put[k][1]);
                bad += !ours;
            }
        if (bad == 0) fail_msg("%s: nothing was ever refused", gguf_types_tensor_name(id));
        types++;
    }
    assert_true(types >= 28);
}

/* IQ1_M's factor lies in four places: only all of them together can be bad. */
static void test_iq1_m(void **state) {
    (void)state;
    uint8_t block[BLOCK_MOST];
    make_block(GGML_TYPE_IQ1_M, block, 256);
    block[53] = (uint8_t)(block[53] | 0xc0); /* bits 10 and 11 of the half */
    block[55] = (uint8_t)((block[55] & 0x8f) | 0x70);
    assert_false(comes_out_finite(GGML_TYPE_IQ1_M, block, 256));
    assert_false(model_numbers_finite(GGML_TYPE_IQ1_M, block, 56));
}

/* The first bad tensor is named, wherever in it the bad block is, whatever the number of threads. */
static void test_many(void **state) {
    (void)state;
    enum { BLOCKS = 150000, TENSORS = 5 };
    struct strata_errmsg em;
    uint8_t *data = calloc(BLOCKS, 18);
    float *plain = calloc(BLOCKS, sizeof *plain);
    assert_non_null(data);
    assert_non_null(plain);
    struct model_numbers t[TENSORS] = {{"a", GGML_TYPE_F32, plain, BLOCKS * sizeof *plain, 1},
                                       {"b", GGML_TYPE_Q4_0, data, (size_t)BLOCKS * 18, 2},
                                       {"c", GGML_TYPE_F32, plain, 0, 1},
                                       {"d", GGML_TYPE_Q4_0, data, (size_t)BLOCKS * 18, 1},
                                       {"e", GGML_TYPE_F32, plain, 400, 1}};
    for (unsigned threads = 1; threads <= 4; threads++) {
        const struct model_numbers *bad = &t[0];
        struct progress progress;
        progress_begin(&progress, NULL, "", 0);
        assert_int_equal(model_numbers_check(t, TENSORS, threads, &progress, &bad, &em), STRATA_OK);
        assert_null(bad);
        assert_int_equal(progress.done, t[0].bytes + 2 * t[1].bytes + t[3].bytes + t[4].bytes);
        assert_int_equal(model_numbers_check(t, 0, threads, NULL, &bad, &em), STRATA_OK);
        assert_null(bad);
        for (size_t i = 0; i < BLOCKS; i += i + 1 < BLOCKS && i > 70000 ? BLOCKS - 1 - i : 33333) {
            data[i * 18 + 1] = 0x7e;
            assert_int_equal(model_numbers_check(t, TENSORS, threads, NULL, &bad, &em), STRATA_OK);
            assert_ptr_equal(bad, &t[1]);
            data[i * 18 + 1] = 0;
            if (i == BLOCKS - 1) break;
        }
        plain[BLOCKS - 1] = -INFINITY;
        assert_int_equal(model_numbers_check(t, TENSORS, threads, NULL, &bad, &em), STRATA_OK);
        assert_ptr_equal(bad, &t[0]);
        plain[BLOCKS - 1] = 0;
    }
    free(data);
    free(plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_place),
        cmocka_unit_test(test_iq1_m),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

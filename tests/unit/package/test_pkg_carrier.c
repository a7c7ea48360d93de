/* The carrier of a schema-2 package: what its arrays may say, every fault by its code; which parts a range needs. */
#include "gguf/gguf_writer.h"
#include "package/pkg_carrier.h"

#include "../gguf/gguf_bytes.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SHA "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
enum { PARTS = 3, TENSORS = 5, PART_BYTES = 4096 };

/* Parts in the order of their ids: common, embeddings (an id of no rule), layer-00000. */
static const char *const names[TENSORS] = {"token_embd.weight", "blk.0.attn_norm.weight", "rope_freqs.weight",
                                           "output_norm.weight", "blk.0.ffn_norm.weight"};

/* What the arrays say; each test changes one thing. */
struct facts {
    uint32_t part[TENSORS], alignment[TENSORS];
    uint64_t offset[TENSORS], size[TENSORS];
    uint32_t count, schema, n; /* n: length of the arrays */
    bool only, architecture, payload, far_layer, wrong_kind;
};

static struct facts sound(void) {
    return (struct facts){.part = {1, 2, 0, 0, 2},
                          .alignment = {32, 32, 32, 64, 1},
                          .offset = {128, 64, 64, 128, 97},
                          .size = {32, 32, 32, 32, 32},
                          .count = PARTS,
                          .schema = 1,
                          .n = TENSORS,
                          .only = true,
                          .architecture = true};
}

static struct bytes FILE_BYTES;

static strata_err keep(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    (void)user;
    (void)em;
    put(&FILE_BYTES, data, len);
    return STRATA_OK;
}

/* Appends to the file's bytes, which become the carrier that says f. */
static void write_carrier(const struct facts *f) {
    static const float data[8];
    const uint64_t ne[1] = {8};
    struct strata_errmsg em;
    struct gguf_writer *w;
    strata_err rc = gguf_writer_new(32, &w, &em);
    if (!rc && f->architecture) rc = gguf_writer_add_str(w, "general.architecture", "llama", &em);
    if (!rc) rc = gguf_writer_add_bool(w, PKG_CARRIER_ONLY, f->only, &em);
    if (!rc) rc = gguf_writer_add_u32(w, PKG_CARRIER_COUNT, f->count, &em);
    if (!rc) rc = gguf_writer_add_u32(w, PKG_CARRIER_SCHEMA, f->schema, &em);
    if (!rc) rc = gguf_writer_add_u32s(w, PKG_CARRIER_PART, f->part, f->n, &em);
    if (!rc) rc = gguf_writer_add_u64s(w, PKG_CARRIER_OFFSET, f->offset, f->n, &em);
    if (!rc) rc = gguf_writer_add_u64s(w, PKG_CARRIER_SIZE, f->size, f->n, &em);
    if (!rc && f->wrong_kind) rc = gguf_writer_add_u64s(w, PKG_CARRIER_ALIGNMENT, f->size, f->n, &em);
    if (!rc && !f->wrong_kind) rc = gguf_writer_add_u32s(w, PKG_CARRIER_ALIGNMENT, f->alignment, f->n, &em);
    for (size_t i = 0; i < TENSORS && !rc; i++)
        rc =
            gguf_writer_add_tensor(w, i == 4 && f->far_layer ? "blk.1.ffn_norm.weight" : names[i], 1, ne, 0, data, &em);
    FILE_BYTES.n = 0;
    if (!rc) rc = (f->payload ? gguf_writer_emit : gguf_writer_emit_header)(w, keep, NULL, &em);
    assert_int_equal(rc, STRATA_OK);
    gguf_writer_free(w);
}

static struct pkg_manifest *manifest(void) {
    char text[2048];
    struct pkg_manifest *m = NULL;
    struct strata_errmsg em;
    snprintf(text, sizeof text,
             "{\"schema_version\": 2, \"package_id\": \"sha256:" SHA "\", \"model_id\": \"m\", \"source_model\": {"
             "\"sha256\": \"" SHA "\", \"metadata_artifact_id\": \"metadata\", \"primary_file\": \"m\", \"files\": ["
             "{\"path\": \"m\", \"byte_size\": 5, \"sha256\": \"" SHA "\"}]}, \"format\": \"gguf\", \"layer_count\": 1,"
             "\"artifact_catalog\": {\"entries\": ["
             "{\"id\": \"layer-00000\", \"path\": \"l\", \"byte_size\": %d, \"sha256\": \"" SHA "\"},"
             "{\"id\": \"embeddings\", \"path\": \"e\", \"byte_size\": %d, \"sha256\": \"" SHA "\"},"
             "{\"id\": \"common\", \"path\": \"c\", \"byte_size\": %d, \"sha256\": \"" SHA "\"},"
             "{\"id\": \"a-projector\", \"path\": \"p\", \"byte_size\": 7, \"sha256\": \"" SHA "\"},"
             "{\"id\": \"metadata\", \"path\": \"m.gguf\", \"byte_size\": %zu, \"sha256\": \"" SHA "\"}]},"
             "\"sidecars\": [{\"kind\": \"mmproj\", \"artifact_id\": \"a-projector\"}],"
             "\"native_abi_version\": \"0.1.0\", \"generator_version\": \"t\", \"created_at_unix_secs\": 1}",
             PART_BYTES, PART_BYTES, PART_BYTES, FILE_BYTES.n);
    if (pkg_manifest_parse(text, strlen(text), "t", &m, &em)) fail_msg("%s", em.text);
    return m;
}

struct opened {
    struct gguf_reader *r;
    struct pkg_manifest *m;
    struct pkg_carrier c;
    struct pkg_faults faults;
};

static struct opened open_carrier(const struct facts *f) {
    struct opened o;
    struct strata_errmsg em;
    write_carrier(f);
    o.m = manifest();
    pkg_faults_init(&o.faults);
    assert_int_equal(gguf_reader_new_header(FILE_BYTES.d, FILE_BYTES.n, "carrier", &o.r, &em), STRATA_OK);
    assert_int_equal(pkg_carrier_init(&o.c, o.r, o.m, &o.faults, &em), STRATA_OK);
    return o;
}

static void close_carrier(struct opened *o) {
    pkg_carrier_deinit(&o->c);
    gguf_reader_free(o->r);
    pkg_manifest_free(o->m);
    pkg_faults_deinit(&o->faults);
}

static void test_sound(void **state) {
    (void)state;
    struct facts f = sound();
    struct opened o = open_carrier(&f);
    if (o.faults.n) fail_msg("%s", o.faults.list[0].message);
    /* Artifacts by role: metadata, common, embeddings, layer-00000, a-projector. */
    static const size_t artifact[TENSORS] = {2, 3, 1, 1, 3};
    for (size_t i = 0; i < TENSORS; i++) {
        assert_int_equal(o.c.places[i].artifact, artifact[i]);
        assert_int_equal(o.c.places[i].offset, f.offset[i]);
        assert_null(gguf_reader_tensor(o.c.reader, i)->data);
    }
    close_carrier(&o);
}

/* The same carrier with one thing wrong. */
static struct facts broken(size_t i, enum pkg_fault_code *code) {
    struct facts f = sound();
    *code = PKG_FAULT_INVALID_METADATA_ARTIFACT;
    switch (i) {
    case 0: f.only = false; break;
    case 1: f.schema = 2; break;
    case 2: f.count = PARTS - 1; break;
    case 3: f.n = TENSORS - 1; break;
    case 4: f.wrong_kind = true; break;
    case 5: f.payload = true; break;
    case 6: f.architecture = false, *code = PKG_FAULT_MISSING_VALUE; break;
    case 7: f.part[1] = PARTS, *code = PKG_FAULT_UNKNOWN_ARTIFACT; break;
    case 8: f.part[1] = UINT32_MAX, *code = PKG_FAULT_UNKNOWN_ARTIFACT; break;
    case 9: f.alignment[0] = 0, *code = PKG_FAULT_INVALID_ALIGNMENT; break;
    case 10: f.alignment[0] = 24, *code = PKG_FAULT_INVALID_ALIGNMENT; break;
    case 11: f.offset[0] = 129, *code = PKG_FAULT_MISALIGNED_OFFSET; break;
    case 12: f.offset[0] = PART_BYTES, *code = PKG_FAULT_STORAGE_OUT_OF_BOUNDS; break;
    case 13: f.offset[0] = UINT64_MAX - 31, *code = PKG_FAULT_STORAGE_OUT_OF_BOUNDS; break;
    case 14: f.size[0] = 31, *code = PKG_FAULT_INVALID_STORED_LENGTH; break;
    case 15: f.size[0] = 0, *code = PKG_FAULT_INVALID_STORED_LENGTH; break;
    case 16: f.offset[4] = 95, *code = PKG_FAULT_OVERLAPPING_STORAGE; break; /* of 64..96 of the same part */
    case 17: f.offset[3] = 64, *code = PKG_FAULT_OVERLAPPING_STORAGE; break;
    case 18: f.far_layer = true, *code = PKG_FAULT_LAYER_OUT_OF_BOUNDS; break;
    default: *code = PKG_FAULT_COUNT; break;
    }
    return f;
}

static void test_faults(void **state) {
    (void)state;
    enum pkg_fault_code code;
    for (size_t i = 0;; i++) {
        struct facts f = broken(i, &code);
        if (code == PKG_FAULT_COUNT) break;
        struct opened o = open_carrier(&f);
        bool found = false;
        for (size_t k = 0; k < o.faults.n; k++) found = found || o.faults.list[k].code == code;
        if (!found) fail_msg("case %zu: %s was not reported", i, pkg_fault_name(code));
        assert_true(o.faults.n_errors > 0);
        assert_null(o.c.reader);
        close_carrier(&o);
    }
}

/* Offsets in the list itself mean nothing: all zero, or not aligned, is fine. */
static void test_list_offsets(void **state) {
    (void)state;
    struct facts f = sound();
    struct strata_errmsg em;
    struct gguf_reader *r;
    write_carrier(&f);
    static const char last[] = "blk.0.ffn_norm.weight";
    uint8_t *at = NULL;
    for (size_t i = 0; i + sizeof last < FILE_BYTES.n; i++)
        if (memcmp(FILE_BYTES.d + i, last, sizeof last - 1) == 0) at = (uint8_t *)FILE_BYTES.d + i + sizeof last - 1;
    assert_non_null(at);
    memset(at + 4 + 8 + 4, 3, 8); /* dimensions, one of them, type, then the offset */
    assert_int_equal(gguf_reader_new_header(FILE_BYTES.d, FILE_BYTES.n, "carrier", &r, &em), STRATA_OK);
    gguf_reader_free(r);
    assert_int_equal(gguf_reader_new(FILE_BYTES.d, FILE_BYTES.n, "carrier", &r, &em), STRATA_EFORMAT);
}

/* The whole range of a model of one layer needs all parts, and the projector never. */
static void test_select(void **state) {
    (void)state;
    struct facts f = sound();
    struct opened o = open_carrier(&f);
    struct pkg_select s;
    bool needed[5];
    pkg_select_init(&s, 4);
    pkg_carrier_note(&o.c, &s);
    assert_true(s.tied);
    static const struct {
        struct pkg_range range;
        bool needed[5];
    } rows[] = {{{0, 4}, {true, true, true, true, false}},
                {{0, 1}, {true, true, true, true, false}},   /* common: rope_freqs */
                {{1, 2}, {true, true, false, false, false}}, /* the layer file has nothing of layer 1 */
                {{3, 4}, {true, true, true, false, false}}}; /* tied */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        s.range = rows[i].range;
        pkg_carrier_select(&o.c, o.m, &s, needed);
        for (size_t k = 0; k < 5; k++) assert_int_equal(needed[k], rows[i].needed[k]);
    }
    close_carrier(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_list_offsets),
        cmocka_unit_test(test_select),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

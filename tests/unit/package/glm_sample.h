/*
 * A tiny GLM-DSA model that fulfils the contract, and every way to break it: a key or tensor left out or altered, one
 * added. Seven blocks: a dense one, five mixtures of experts, one NextN layer; blocks 0, 1 and 4 are Full.
 */
#ifndef GLM_SAMPLE_H
#define GLM_SAMPLE_H

#include "base/file.h"
#include "base/jsonx.h"
#include "gguf/gguf_writer.h"
#include "package/pkg_class.h"

#include "../base/tmp_folder.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum {
    GLM_BLOCKS = 7,
    GLM_DECODER = 6,
    GLM_EMBD = 16,
    GLM_HEADS = 2,
    GLM_ROPE = 4,
    GLM_NOPE = 8,
    GLM_V = 6,
    GLM_Q = 8,
    GLM_KV = 10,
    GLM_FF = 24,
    GLM_EXPERTS = 4,
    GLM_EXPERT_FF = 12,
    GLM_INDEX_HEADS = 3,
    GLM_INDEX_KEY = 8,
    GLM_VOCAB = 32,
    GLM_MAX_TENSORS = 300
};

/* How the roles of the layers are written. */
enum glm_roles {
    GLM_ROLES_STRINGS,
    GLM_ROLES_BOOLS,
    GLM_ROLES_INTS,
    GLM_ROLES_FREQUENCY,
    GLM_ROLES_BOTH,     /* strings and frequency */
    GLM_ROLES_ONE_FULL, /* the scalar 1; every layer has an indexer */
    GLM_ROLES_ZERO,     /* the scalar 0 */
    GLM_ROLES_FLOATS,
    GLM_ROLES_BAD_INT,
    GLM_ROLES_BAD_STRING,
    GLM_ROLES_SHORT, /* one too few */
    GLM_ROLES_CLASH, /* strings and another frequency */
    GLM_ROLES_NONE
};

struct glm_extra {
    const char *name;
    uint64_t ne[3];
};

struct glm_sample {
    const char *architecture; /* NULL: glm-dsa */
    enum glm_roles roles;
    const char *without; /* this key or tensor is not written */
    const char *zero;    /* this number is 0 */
    const char *text;    /* this key is a string */
    const char *set;     /* this number is set_to */
    uint32_t set_to;
    const char *bent;       /* this tensor has one row more */
    const char *without_of; /* no tensor whose name starts so */
    struct glm_extra extra[5];
    bool no_nextn; /* neither key nor tensors */
    bool no_mla;   /* without key_length_mla and value_length_mla, so that some sizes are not stated */
};

struct glm_tensor {
    char name[64];
    uint64_t ne[3];
    uint32_t n_dims;
};

/* ---- tensors ---- */

static inline bool glm_is_full(uint32_t layer) {
    return layer == 0 || layer == 1 || layer == 4;
}

static inline void glm_put(const struct glm_sample *s, struct glm_tensor *t, size_t *n, uint32_t a, uint32_t b,
                           uint32_t c, const char *fmt, ...) __attribute__((format(printf, 7, 8)));

static inline void glm_put(const struct glm_sample *s, struct glm_tensor *t, size_t *n, uint32_t a, uint32_t b,
                           uint32_t c, const char *fmt, ...) {
    va_list ap;
    assert_true(*n < GLM_MAX_TENSORS);
    struct glm_tensor *x = &t[*n];
    va_start(ap, fmt);
    vsnprintf(x->name, sizeof x->name, fmt, ap);
    va_end(ap);
    if (s->without && strcmp(s->without, x->name) == 0) return;
    if (s->without_of && strncmp(s->without_of, x->name, strlen(s->without_of)) == 0) return;
    x->ne[0] = a;
    x->ne[1] = b ? b : 1;
    x->ne[2] = c ? c : 1;
    x->n_dims = c ? 3 : b ? 2 : 1;
    if (s->bent && strcmp(s->bent, x->name) == 0) {
        x->ne[x->n_dims < 3 ? x->n_dims - 1 : 1] += 1;
    }
    ++*n;
}

static inline void glm_put_block(const struct glm_sample *s, struct glm_tensor *t, size_t *n, uint32_t i) {
    bool nextn = i >= GLM_DECODER;
    bool indexer = nextn || glm_is_full(i) || s->roles == GLM_ROLES_ONE_FULL;
    glm_put(s, t, n, GLM_EMBD, 0, 0, "blk.%u.attn_norm.weight", i);
    glm_put(s, t, n, GLM_EMBD, GLM_Q, 0, "blk.%u.attn_q_a.weight", i);
    glm_put(s, t, n, GLM_Q, 0, 0, "blk.%u.attn_q_a_norm.weight", i);
    glm_put(s, t, n, GLM_Q, GLM_HEADS * (GLM_NOPE + GLM_ROPE), 0, "blk.%u.attn_q_b.weight", i);
    glm_put(s, t, n, GLM_EMBD, GLM_KV + GLM_ROPE, 0, "blk.%u.attn_kv_a_mqa.weight", i);
    glm_put(s, t, n, GLM_KV, 0, 0, "blk.%u.attn_kv_a_norm.weight", i);
    glm_put(s, t, n, GLM_NOPE, GLM_KV, GLM_HEADS, "blk.%u.attn_k_b.weight", i);
    glm_put(s, t, n, GLM_KV, GLM_V, GLM_HEADS, "blk.%u.attn_v_b.weight", i);
    glm_put(s, t, n, GLM_HEADS * GLM_V, GLM_EMBD, 0, "blk.%u.attn_output.weight", i);
    glm_put(s, t, n, GLM_EMBD, 0, 0, "blk.%u.ffn_norm.weight", i);
    if (i == 0) {
        glm_put(s, t, n, GLM_EMBD, GLM_FF, 0, "blk.%u.ffn_gate.weight", i);
        glm_put(s, t, n, GLM_FF, GLM_EMBD, 0, "blk.%u.ffn_down.weight", i);
        glm_put(s, t, n, GLM_EMBD, GLM_FF, 0, "blk.%u.ffn_up.weight", i);
    } else {
        glm_put(s, t, n, GLM_EMBD, GLM_EXPERTS, 0, "blk.%u.ffn_gate_inp.weight", i);
        glm_put(s, t, n, GLM_EXPERTS, 0, 0, "blk.%u.exp_probs_b.bias", i);
        glm_put(s, t, n, GLM_EMBD, GLM_EXPERT_FF, GLM_EXPERTS, "blk.%u.ffn_gate_exps.weight", i);
        glm_put(s, t, n, GLM_EXPERT_FF, GLM_EMBD, GLM_EXPERTS, "blk.%u.ffn_down_exps.weight", i);
        glm_put(s, t, n, GLM_EMBD, GLM_EXPERT_FF, GLM_EXPERTS, "blk.%u.ffn_up_exps.weight", i);
        glm_put(s, t, n, GLM_EMBD, GLM_EXPERT_FF, 0, "blk.%u.ffn_gate_shexp.weight", i);
        glm_put(s, t, n, GLM_EXPERT_FF, GLM_EMBD, 0, "blk.%u.ffn_down_shexp.weight", i);
        glm_put(s, t, n, GLM_EMBD, GLM_EXPERT_FF, 0, "blk.%u.ffn_up_shexp.weight", i);
    }
    if (indexer) {
        glm_put(s, t, n, GLM_INDEX_KEY, 0, 0, "blk.%u.indexer.k_norm.weight", i);
        glm_put(s, t, n, GLM_INDEX_KEY, 0, 0, "blk.%u.indexer.k_norm.bias", i);
        glm_put(s, t, n, GLM_EMBD, GLM_INDEX_HEADS, 0, "blk.%u.indexer.proj.weight", i);
        glm_put(s, t, n, GLM_EMBD, GLM_INDEX_KEY, 0, "blk.%u.indexer.attn_k.weight", i);
        glm_put(s, t, n, GLM_Q, GLM_INDEX_HEADS * GLM_INDEX_KEY, 0, "blk.%u.indexer.attn_q_b.weight", i);
    }
    if (nextn) {
        glm_put(s, t, n, 2 * GLM_EMBD, GLM_EMBD, 0, "blk.%u.nextn.eh_proj.weight", i);
        glm_put(s, t, n, GLM_EMBD, 0, 0, "blk.%u.nextn.enorm.weight", i);
        glm_put(s, t, n, GLM_EMBD, 0, 0, "blk.%u.nextn.hnorm.weight", i);
        glm_put(s, t, n, GLM_EMBD, 0, 0, "blk.%u.nextn.shared_head_norm.weight", i);
    }
}

static inline size_t glm_list(const struct glm_sample *s, struct glm_tensor *t) {
    size_t n = 0;
    glm_put(s, t, &n, GLM_EMBD, GLM_VOCAB, 0, "token_embd.weight");
    for (uint32_t i = 0; i < (s->no_nextn ? GLM_DECODER : GLM_BLOCKS); i++) glm_put_block(s, t, &n, i);
    glm_put(s, t, &n, GLM_EMBD, 0, 0, "output_norm.weight");
    glm_put(s, t, &n, GLM_EMBD, GLM_VOCAB, 0, "output.weight");
    for (size_t i = 0; i < 5 && s->extra[i].name; i++) {
        const struct glm_extra *e = &s->extra[i];
        glm_put(s, t, &n, (uint32_t)e->ne[0], (uint32_t)e->ne[1], (uint32_t)e->ne[2], "%s", e->name);
    }
    return n;
}

/* ---- metadata ---- */

static const struct {
    const char *key; /* behind "glm-dsa." */
    uint32_t value;
} glm_numbers[] = {
    {"context_length", 4096},
    {"embedding_length", GLM_EMBD},
    {"block_count", GLM_BLOCKS},
    {"feed_forward_length", GLM_FF},
    {"attention.head_count", GLM_HEADS},
    {"attention.head_count_kv", 1},
    {"attention.key_length", GLM_KV + GLM_ROPE},
    {"attention.value_length", GLM_KV},
    {"attention.q_lora_rank", GLM_Q},
    {"attention.kv_lora_rank", GLM_KV},
    {"rope.dimension_count", GLM_ROPE},
    {"expert_count", GLM_EXPERTS},
    {"expert_used_count", 2},
    {"expert_shared_count", 1},
    {"expert_feed_forward_length", GLM_EXPERT_FF},
    {"leading_dense_block_count", 1},
    {"attention.indexer.head_count", GLM_INDEX_HEADS},
    {"attention.indexer.key_length", GLM_INDEX_KEY},
    {"attention.indexer.top_k", 32},
};
enum { GLM_NUMBERS = sizeof glm_numbers / sizeof glm_numbers[0] };

static inline bool glm_is(const char *a, const char *key) {
    return a && strcmp(a, key) == 0;
}

static inline void glm_number(const struct glm_sample *s, struct gguf_writer *w, const char *key, uint32_t v) {
    struct strata_errmsg em;
    char full[96];
    if (glm_is(s->without, key)) return;
    snprintf(full, sizeof full, "%s.%s", s->architecture ? s->architecture : "glm-dsa", key);
    if (glm_is(s->text, key))
        assert_int_equal(gguf_writer_add_str(w, full, "many", &em), STRATA_OK);
    else
        assert_int_equal(gguf_writer_add_u32(w, full,
                                             glm_is(s->zero, key)  ? 0
                                             : glm_is(s->set, key) ? s->set_to
                                                                   : v,
                                             &em),
                         STRATA_OK);
}

/* The writer adds no arrays of bools: this one is put together here, as it stands in a file. */
static inline void glm_bools(struct gguf_writer *w) {
    static const char key[] = "glm-dsa.attention.indexer.types";
    static uint8_t raw[8 + sizeof key - 1 + 4 + 4 + 8 + GLM_DECODER];
    struct strata_errmsg em;
    uint8_t *p = raw;
    memset(raw, 0, sizeof raw);
    *p = sizeof key - 1;
    p += 8;
    memcpy(p, key, sizeof key - 1);
    p += sizeof key - 1;
    *p = GGUF_KIND_ARRAY;
    p += 4;
    *p = GGUF_KIND_BOOL;
    p += 4;
    *p = GLM_DECODER;
    p += 8;
    for (uint32_t i = 0; i < GLM_DECODER; i++) p[i] = glm_is_full(i);
    const struct gguf_kv kv = {.key = key, .raw = raw, .raw_bytes = sizeof raw};
    assert_int_equal(gguf_writer_copy_kv(w, &kv, &em), STRATA_OK);
}

static inline void glm_types(const struct glm_sample *s, struct gguf_writer *w) {
    static const char key[] = "glm-dsa.attention.indexer.types";
    struct strata_errmsg em;
    struct gguf_str names[GLM_DECODER];
    int32_t ints[GLM_DECODER];
    float floats[GLM_DECODER] = {0};
    size_t n = s->roles == GLM_ROLES_SHORT ? GLM_DECODER - 1 : GLM_DECODER;
    strata_err rc = STRATA_OK;
    for (uint32_t i = 0; i < GLM_DECODER; i++) {
        ints[i] = glm_is_full(i);
        names[i] = glm_is_full(i) ? (struct gguf_str){"full", 4} : (struct gguf_str){"shared", 6};
    }
    if (s->roles == GLM_ROLES_BAD_STRING) names[3] = (struct gguf_str){"fulls", 5};
    if (s->roles == GLM_ROLES_BAD_INT) ints[3] = 2;
    switch (s->roles) {
    case GLM_ROLES_BOOLS: glm_bools(w); break;
    case GLM_ROLES_BAD_INT:
    case GLM_ROLES_INTS: rc = gguf_writer_add_i32s(w, key, ints, n, &em); break;
    case GLM_ROLES_FLOATS: rc = gguf_writer_add_f32s(w, key, floats, n, &em); break;
    case GLM_ROLES_ONE_FULL: rc = gguf_writer_add_u32(w, key, 1, &em); break;
    case GLM_ROLES_ZERO: rc = gguf_writer_add_u32(w, key, 0, &em); break;
    case GLM_ROLES_FREQUENCY:
    case GLM_ROLES_NONE: break;
    default: rc = gguf_writer_add_strs(w, key, names, n, &em); break;
    }
    assert_int_equal(rc, STRATA_OK);
    if (s->roles == GLM_ROLES_FREQUENCY || s->roles == GLM_ROLES_BOTH || s->roles == GLM_ROLES_CLASH) {
        glm_number(s, w, "attention.indexer.top_k_frequency", 3);
        glm_number(s, w, "attention.indexer.skip_top_k_offset", s->roles == GLM_ROLES_CLASH ? 3 : 2);
    }
}

static inline void glm_metadata(const struct glm_sample *s, struct gguf_writer *w) {
    static const char *const floats[] = {"attention.layer_norm_rms_epsilon", "expert_weights_scale"};
    struct strata_errmsg em;
    char key[96];
    if (!glm_is(s->without, "general.architecture"))
        assert_int_equal(
            gguf_writer_add_str(w, "general.architecture", s->architecture ? s->architecture : "glm-dsa", &em),
            STRATA_OK);
    for (size_t i = 0; i < GLM_NUMBERS; i++)
        glm_number(s, w, glm_numbers[i].key,
                   s->no_nextn && glm_is("block_count", glm_numbers[i].key) ? GLM_DECODER : glm_numbers[i].value);
    if (!s->no_nextn) glm_number(s, w, "nextn_predict_layers", 1);
    if (!s->no_mla) {
        glm_number(s, w, "attention.key_length_mla", GLM_NOPE + GLM_ROPE);
        glm_number(s, w, "attention.value_length_mla", GLM_V);
    }
    for (size_t i = 0; i < 2; i++) {
        snprintf(key, sizeof key, "glm-dsa.%s", floats[i]);
        if (glm_is(s->text, floats[i]))
            assert_int_equal(gguf_writer_add_str(w, key, "small", &em), STRATA_OK);
        else if (!glm_is(s->without, floats[i]))
            assert_int_equal(gguf_writer_add_f32(w, key, 0.5f, &em), STRATA_OK);
    }
    if (glm_is(s->text, "expert_weights_norm"))
        assert_int_equal(gguf_writer_add_str(w, "glm-dsa.expert_weights_norm", "yes", &em), STRATA_OK);
    else if (!glm_is(s->without, "expert_weights_norm"))
        assert_int_equal(gguf_writer_add_bool(w, "glm-dsa.expert_weights_norm", true, &em), STRATA_OK);
    glm_types(s, w);
}

/* ---- files ---- */

/* What one file holds: everything, a shard, or a part of a package. */
struct glm_part {
    const char *path;
    int half; /* 0: whole; 1, 2: shard of two */
    bool classes;
    enum pkg_class class, other; /* with `classes`: tensors of these alone, */
    uint32_t layer;              /* and of this layer */
};

static inline bool glm_wants(const struct glm_part *p, const char *name, size_t i, size_t n) {
    uint32_t layer = 0;
    if (p->half) return (i < n / 2) == (p->half == 1);
    if (!p->classes) return true;
    enum pkg_class c = pkg_class_of(name, &layer);
    return (c == p->class || c == p->other) && (c != PKG_CLASS_LAYER || layer == p->layer);
}

struct glm_written {
    uint64_t tensors, tensor_bytes, bytes;
    char sha256[DIGEST_HEX];
};

static inline void glm_write_part(const struct glm_sample *s, const struct glm_part *p, struct glm_written *out) {
    static const float zeros[4096];
    static struct glm_tensor t[GLM_MAX_TENSORS];
    struct gguf_writer *w;
    struct strata_errmsg em;
    uint8_t sum[DIGEST_BYTES];
    size_t n = glm_list(s, t);
    assert_int_equal(gguf_writer_new(32, &w, &em), STRATA_OK);
    if (p->half < 2) glm_metadata(s, w);
    if (p->half) {
        assert_int_equal(gguf_writer_add_u32(w, "split.count", 2, &em), STRATA_OK);
        assert_int_equal(gguf_writer_add_u32(w, "split.no", (uint32_t)p->half - 1, &em), STRATA_OK);
        assert_int_equal(gguf_writer_add_u32(w, "split.tensors.count", (uint32_t)n, &em), STRATA_OK);
    }
    for (size_t i = 0; i < n; i++) {
        assert_true(t[i].ne[0] * t[i].ne[1] * t[i].ne[2] <= 4096);
        if (glm_wants(p, t[i].name, i, n))
            assert_int_equal(gguf_writer_add_tensor(w, t[i].name, t[i].n_dims, t[i].ne, GGUF_TENSOR_F32, zeros, &em),
                             STRATA_OK);
    }
    out->tensors = gguf_writer_tensor_count(w);
    out->tensor_bytes = gguf_writer_tensor_bytes(w);
    assert_int_equal(gguf_writer_to_file(w, p->path, NULL, sum, &out->bytes, &em), STRATA_OK);
    digest_to_hex(sum, sizeof sum, out->sha256);
    gguf_writer_free(w);
}

static inline void glm_write(const struct glm_sample *s, const char *path) {
    struct glm_written ignored;
    const struct glm_part whole = {.path = path};
    glm_write_part(s, &whole, &ignored);
}

/* stem-00001-of-00002.gguf and its sibling. */
static inline void glm_write_split(const struct glm_sample *s, const char *stem) {
    char path[512];
    struct glm_written ignored;
    for (int half = 1; half <= 2; half++) {
        snprintf(path, sizeof path, "%s-%05d-of-00002.gguf", stem, half);
        const struct glm_part shard = {.path = path, .half = half};
        glm_write_part(s, &shard, &ignored);
    }
}

static inline json_t *glm_artifact(const struct glm_sample *s, const char *dir, const char *name, enum pkg_class class,
                                   enum pkg_class other, uint32_t layer) {
    char path[1100];
    struct glm_written f;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    const struct glm_part part = {.path = path, .classes = true, .class = class, .other = other, .layer = layer};
    glm_write_part(s, &part, &f);
    json_t *o =
        json_pack("{s:s, s:I, s:I, s:I, s:s}", "path", name, "tensor_count", (json_int_t)f.tensors, "tensor_bytes",
                  (json_int_t)f.tensor_bytes, "artifact_bytes", (json_int_t)f.bytes, "sha256", f.sha256);
    assert_non_null(o);
    return o;
}

/* A package of schema 1. generation is taken; NULL leaves the block out. */
static inline void glm_write_package(const struct glm_sample *s, const char *dir, json_t *generation) {
    char path[512];
    struct strata_errmsg em;
    struct buf text;
    json_t *layers = json_array();
    snprintf(path, sizeof path, "%s/shared", dir);
    assert_int_equal(file_mkdirs(path, 0755, &em), STRATA_OK);
    snprintf(path, sizeof path, "%s/layers", dir);
    assert_int_equal(file_mkdirs(path, 0755, &em), STRATA_OK);
    json_t *metadata = glm_artifact(s, dir, "shared/metadata.gguf", PKG_CLASS_METADATA, PKG_CLASS_METADATA, 0);
    json_t *embeddings = glm_artifact(s, dir, "shared/embeddings.gguf", PKG_CLASS_EMBEDDING, PKG_CLASS_METADATA, 0);
    json_t *output = glm_artifact(s, dir, "shared/output.gguf", PKG_CLASS_FINAL_NORM, PKG_CLASS_OUTPUT, 0);
    for (uint32_t i = 0; i < (s->no_nextn ? GLM_DECODER : GLM_BLOCKS); i++) {
        snprintf(path, sizeof path, "layers/layer-%05u.gguf", i);
        json_t *o = glm_artifact(s, dir, path, PKG_CLASS_LAYER, PKG_CLASS_METADATA, i);
        json_object_set_new(o, "layer_index", json_integer(i));
        json_array_append_new(layers, o);
    }
    static const char sha[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    json_t *root = json_pack(
        "{s:i, s:s, s:{s:s, s:s}, s:s, s:i, s:i, s:{s:o, s:o, s:o}, s:o*, s:o, s:s, s:s, s:i}", "schema_version", 1,
        "model_id", "org/glm:F32", "source_model", "path", "glm.gguf", "sha256", sha, "format", "layer-package",
        "layer_count", s->no_nextn ? GLM_DECODER : GLM_BLOCKS, "activation_width", GLM_EMBD, "shared", "metadata",
        metadata, "embeddings", embeddings, "output", output, "generation", generation, "layers", layers,
        "a_key_of_tomorrow", "\xc3\xa9\n", "skippy_abi_version", "0.1.25", "created_at_unix_secs", 5);
    assert_non_null(root);
    buf_init(&text, 1 << 20);
    assert_int_equal(jsonx_dump(root, true, &text, &em), STRATA_OK);
    assert_int_equal(buf_append_str(&text, "\n", &em), STRATA_OK);
    snprintf(path, sizeof path, "%s/model-package.json", dir);
    assert_int_equal(file_write_all(path, buf_cstr(&text), text.len, 0640, &em), STRATA_OK);
    buf_deinit(&text);
    json_decref(root);
}

#endif

/* Changes to a small package on disk: to its manifest, and to its parts with the manifest following suit, so that only
 * what a test is about is wrong. The package lies in <folder>/p, its model in <folder>/m.gguf. */
#ifndef PKG_EDIT_H
#define PKG_EDIT_H

#include "base/file.h"
#include "base/jsonx.h"
#include "gguf/gguf_reader.h"
#include "package/pkg_manifest.h"
#include "package/pkg_write.h"

#include "pkg_sample.h"

static inline void edit_write_package(const struct tmp_folder *t, const struct sample *s) {
    struct strata_errmsg em;
    struct pkg_write_result res;
    struct pkg_write_options opt = {.out_dir = tmp_path(t, "p"), .identity.local = true};
    sample_write(s);
    char source[600];
    snprintf(source, sizeof source, s->shards > 1 ? "%s-00001-of-00002.gguf" : "%s.gguf", s->path);
    if (pkg_write(source, &opt, &res, &em)) fail_msg("%s", em.text);
    json_decref(res.manifest);
}

/* ---- the manifest ---- */

static inline json_t *edit_load(const struct tmp_folder *t) {
    json_t *root = json_load_file(tmp_path(t, "p/model-package.json"), 0, NULL);
    assert_non_null(root);
    return root;
}

static inline void edit_store(const struct tmp_folder *t, json_t *root) {
    assert_int_equal(json_dump_file(root, tmp_path(t, "p/model-package.json"), JSON_INDENT(2)), 0);
    json_decref(root);
}

/* The entry of a part, by its path. */
static inline json_t *edit_entry(json_t *root, const char *path) {
    static const char *const shared[] = {"metadata", "embeddings", "output"};
    size_t i;
    json_t *v;
    for (i = 0; i < 3; i++) {
        v = json_object_get(json_object_get(root, "shared"), shared[i]);
        if (v && strcmp(json_string_value(json_object_get(v, "path")), path) == 0) return v;
    }
    json_array_foreach(json_object_get(root, "layers"), i,
                       v) if (strcmp(json_string_value(json_object_get(v, "path")), path) == 0) return v;
    json_array_foreach(json_object_get(root, "projectors"), i,
                       v) if (strcmp(json_string_value(json_object_get(v, "path")), path) == 0) return v;
    fail_msg("no entry has the path %s", path);
    return NULL;
}

/* Sets a field of a part's entry. */
static inline void edit_field(const struct tmp_folder *t, const char *path, const char *key, json_t *value) {
    json_t *root = edit_load(t);
    json_object_set_new(edit_entry(root, path), key, value);
    edit_store(t, root);
}

/* Makes an entry say what its file is like: size, digest, and the tensors when it is a GGUF file. */
static inline void edit_follow(const struct tmp_folder *t, const char *path) {
    char file[600], hex[DIGEST_HEX];
    uint8_t sum[DIGEST_BYTES];
    struct file_map map = {0};
    struct gguf_reader *r = NULL;
    struct strata_errmsg em;
    json_t *root = edit_load(t), *entry = edit_entry(root, path);
    snprintf(file, sizeof file, "%s/p/%s", t->path, path);
    if (file_map_open(file, &map, &em)) fail_msg("%s", em.text);
    assert_int_equal(digest_of(map.data, map.size, sum, &em), STRATA_OK);
    digest_to_hex(sum, sizeof sum, hex);
    json_object_set_new(entry, "artifact_bytes", json_integer((json_int_t)map.size));
    json_object_set_new(entry, "sha256", json_string(hex));
    if (gguf_reader_new(map.data, map.size, path, &r, &em) == STRATA_OK) {
        json_int_t bytes = 0;
        for (size_t i = 0; i < gguf_reader_tensor_count(r); i++) bytes += (json_int_t)gguf_reader_tensor(r, i)->bytes;
        json_object_set_new(entry, "tensor_count", json_integer((json_int_t)gguf_reader_tensor_count(r)));
        json_object_set_new(entry, "tensor_bytes", json_integer(bytes));
    }
    gguf_reader_free(r);
    file_map_close(&map);
    edit_store(t, root);
}

/* ---- files ---- */

/* Reads a file, hands it to `change` and writes it back. */
static inline void edit_bytes(const char *path, void (*change)(struct buf *b)) {
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 1 << 24);
    assert_int_equal(file_read_all(path, 1 << 24, &b, &em), STRATA_OK);
    change(&b);
    assert_int_equal(file_write_all(path, b.data, b.len, 0644, &em), STRATA_OK);
    buf_deinit(&b);
}

/* What to change in a GGUF file. Zero fields change nothing. */
struct edit {
    const char *drop;             /* this tensor goes */
    bool drop_all;                /* every tensor goes */
    const char *rename, *to;      /* this tensor gets another name */
    const char *flip;             /* the last byte of this tensor's payload changes */
    const char *flatten;          /* this tensor, of two dimensions, gets one: as many bytes */
    const char *retype;           /* this tensor becomes one of type I32: as many bytes, the same shape */
    const char *reshape;          /* its two dimensions change places */
    const char *add;              /* a tensor of 8 zeros of this name comes last */
    const char *drop_keys;        /* pairs whose keys start so go */
    const char *set_key, *string; /* a pair gets a string as its value; it stands last then */
    const char *set_int;          /* the i32 of this name becomes ... */
    int32_t value;                /* ... this */
    const char *set_bool;         /* the bool of this name becomes true */
};

static inline void edit_pairs(struct gguf_writer *w, const struct gguf_reader *r, const struct edit *e) {
    for (size_t i = 0; i < gguf_reader_kv_count(r); i++) {
        const struct gguf_kv *kv = gguf_reader_kv(r, i);
        if (e->drop_keys && strncmp(kv->key, e->drop_keys, strlen(e->drop_keys)) == 0) continue;
        if ((e->set_key && strcmp(kv->key, e->set_key) == 0) || (e->set_int && strcmp(kv->key, e->set_int) == 0) ||
            (e->set_bool && strcmp(kv->key, e->set_bool) == 0))
            continue;
        assert_int_equal(gguf_writer_copy_kv(w, kv, NULL), STRATA_OK);
    }
    if (e->set_key) assert_int_equal(gguf_writer_add_str(w, e->set_key, e->string, NULL), STRATA_OK);
    if (e->set_int) assert_int_equal(gguf_writer_add_i32(w, e->set_int, e->value, NULL), STRATA_OK);
    if (e->set_bool) assert_int_equal(gguf_writer_add_bool(w, e->set_bool, true, NULL), STRATA_OK);
}

static inline bool edit_is(const char *wanted, const struct gguf_tensor *t) {
    return wanted && strcmp(wanted, t->name) == 0;
}

/* flipped: owned by the caller, for the payload of one tensor. */
static inline void edit_tensors(struct gguf_writer *w, const struct gguf_reader *r, const struct edit *e,
                                uint8_t **flipped) {
    static const float zeros[8];
    for (size_t i = 0; i < gguf_reader_tensor_count(r) && !e->drop_all; i++) {
        struct gguf_tensor t = *gguf_reader_tensor(r, i);
        if (edit_is(e->drop, &t)) continue;
        if (edit_is(e->retype, &t)) t.type = GGUF_TENSOR_I32;
        if (edit_is(e->flatten, &t)) {
            t.ne[0] *= t.ne[1];
            t.ne[1] = 1;
            t.n_dims = 1;
        }
        if (edit_is(e->reshape, &t)) {
            uint64_t ne = t.ne[0];
            t.ne[0] = t.ne[1];
            t.ne[1] = ne;
        }
        if (edit_is(e->flip, &t)) {
            *flipped = malloc((size_t)t.bytes);
            assert_non_null(*flipped);
            memcpy(*flipped, t.data, (size_t)t.bytes);
            (*flipped)[t.bytes - 1] ^= 1;
            t.data = *flipped;
        }
        const char *name = edit_is(e->rename, &t) ? e->to : t.name;
        assert_int_equal(gguf_writer_add_tensor(w, name, t.n_dims, t.ne, t.type, t.data, NULL), STRATA_OK);
    }
    const uint64_t ne[1] = {8};
    if (e->add) assert_int_equal(gguf_writer_add_tensor(w, e->add, 1, ne, 0, zeros, NULL), STRATA_OK);
}

static inline void edit_gguf(const char *path, const struct edit *e) {
    struct file_map map = {0};
    struct gguf_reader *r = NULL;
    struct gguf_writer *w = NULL;
    struct strata_errmsg em;
    uint8_t sum[DIGEST_BYTES], *flipped = NULL;
    uint64_t size;
    if (file_map_open(path, &map, &em) || gguf_reader_new(map.data, map.size, path, &r, &em)) fail_msg("%s", em.text);
    assert_int_equal(gguf_writer_new_bare(gguf_reader_alignment(r), &w, &em), STRATA_OK);
    edit_pairs(w, r, e);
    edit_tensors(w, r, e, &flipped);
    if (gguf_writer_to_file(w, path, NULL, sum, &size, &em)) fail_msg("%s", em.text);
    gguf_writer_free(w);
    gguf_reader_free(r);
    file_map_close(&map);
    free(flipped);
}

/* Changes a part, and its entry with it. */
static inline void edit_part(const struct tmp_folder *t, const char *path, const struct edit *e) {
    char file[600];
    snprintf(file, sizeof file, "%s/p/%s", t->path, path);
    edit_gguf(file, e);
    edit_follow(t, path);
}

/* ---- faults ---- */

/* Whether a fault of this code is listed, about this path (NULL: any). */
static inline bool edit_has(const struct pkg_faults *f, enum pkg_fault_code code, const char *path) {
    for (size_t i = 0; i < f->n; i++)
        if (f->list[i].code == code && (!path || (f->list[i].path && strcmp(path, f->list[i].path) == 0))) return true;
    return false;
}

/* The list as text, for messages of failure. */
static inline const char *edit_list(const struct pkg_faults *f) {
    static char out[8192];
    size_t len = 0;
    out[0] = '\0';
    for (size_t i = 0; i < f->n && len < sizeof out; i++)
        len += (size_t)snprintf(out + len, sizeof out - len, "\n  %s %s: %s", pkg_severity_name(f->list[i].severity),
                                pkg_fault_name(f->list[i].code), f->list[i].message);
    return out;
}

#endif

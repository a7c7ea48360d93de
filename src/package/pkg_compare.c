/* One file against the model it was cut from. See pkg_compare.h. Owns the lists of the result. */
#include "package/pkg_compare.h"

#include "package/pkg_json.h"
#include "package/pkg_scan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned pkg_compare_owned(void) {
    unsigned bits = 0;
    for (int class = 0; class < PKG_CLASS_COUNT; class ++)
        if (pkg_class_is_owned((enum pkg_class) class)) bits |= 1u << class;
    return bits;
}

/* ---- metadata ---- */

/* Keys that a cut adds, drops or sets: they are not the source's business. */
static bool is_own_key(const char *key) {
    return strncmp(key, "split.", 6) == 0 || strncmp(key, "skippy.", 7) == 0 || strcmp(key, "general.alignment") == 0;
}

struct key_faults {
    const struct pkg_compare *c;
    struct pkg_faults *faults;
    size_t n;
};

/* A file of another model differs in every key: a few are enough. */
static void key_fault(struct key_faults *k, const char *key, const char *what) {
    enum { MAX = 10 };
    if (++k->n <= MAX)
        pkg_faults_add(k->faults, PKG_FAULT_METADATA_MISMATCH, k->c->path, "%.200s: key '%.100s' %s", k->c->path, key,
                       what);
    else if (k->n == MAX + 1)
        pkg_faults_add(k->faults, PKG_FAULT_METADATA_MISMATCH, k->c->path, "%.200s: more keys differ from the source",
                       k->c->path);
}

/* Each pair as it stands in the file, byte for byte: what is equal then is equal in every sense. */
static void compare_metadata(const struct pkg_compare *c, struct pkg_faults *faults) {
    const struct gguf_reader *source = c->source->meta, *file = c->reader;
    struct key_faults k = {.c = c, .faults = faults};
    for (size_t i = 0; i < gguf_reader_kv_count(source); i++) {
        const struct gguf_kv *want = gguf_reader_kv(source, i), *have = gguf_reader_find_kv(file, want->key);
        if (is_own_key(want->key)) continue;
        if (!have && c->whole_metadata) key_fault(&k, want->key, "is missing");
        if (have && (have->raw_bytes != want->raw_bytes || memcmp(have->raw, want->raw, want->raw_bytes) != 0))
            key_fault(&k, want->key, "has another value than in the source");
    }
    for (size_t i = 0; i < gguf_reader_kv_count(file); i++) {
        const char *key = gguf_reader_kv(file, i)->key;
        if (!is_own_key(key) && !gguf_reader_find_kv(source, key)) key_fault(&k, key, "is not in the source");
    }
}

/* ---- tensors ---- */

/* expected and actual may be NULL: the bytes differ then, first at first_byte. */
static strata_err note_mismatch(struct pkg_compared *out, const char *tensor, const char *what, const char *expected,
                                const char *actual, uint64_t first_byte, struct strata_errmsg *em) {
    json_t *o = json_object();
    int bad = json_object_set_new(o, "tensor", pkg_json_text(tensor));
    if (!bad) bad = json_object_set_new(o, "what", json_string(what));
    if (!bad && expected) bad = json_object_set_new(o, "expected", pkg_json_text(expected));
    if (!bad && actual) bad = json_object_set_new(o, "actual", pkg_json_text(actual));
    if (!bad && !actual) bad = json_object_set_new(o, "first_byte", json_integer((json_int_t)first_byte));
    if (bad) {
        json_decref(o);
        return err_nomem(em, "a report");
    }
    return json_array_append_new(out->mismatches, o) ? err_nomem(em, "a report") : STRATA_OK;
}

/* "4096 x 32000" */
static const char *shape_text(char out[96], const struct gguf_tensor *t) {
    size_t len = 0;
    for (uint32_t d = 0; d < t->n_dims; d++)
        len += (size_t)snprintf(out + len, 96 - len, "%s%" PRIu64, d ? " x " : "", t->ne[d]);
    return out;
}

static strata_err compare_facts(const struct pkg_compare *c, const struct gguf_tensor *have,
                                const struct gguf_tensor *want, struct pkg_faults *faults, struct pkg_compared *out,
                                struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    char is[96], should[96];
    if (have->type != want->type) {
        /* The reader refuses types that have no name. */
        const char *x = gguf_types_tensor_name(have->type), *y = gguf_types_tensor_name(want->type);
        pkg_faults_add(faults, PKG_FAULT_TENSOR_TYPE_MISMATCH, c->path,
                       "tensor '%s' of %.200s is of type %s; the source has %s", have->name, c->path, x, y);
        rc = note_mismatch(out, have->name, "type", y, x, 0, em);
    }
    if (!rc && (have->n_dims != want->n_dims || memcmp(have->ne, want->ne, sizeof have->ne) != 0)) {
        shape_text(is, have);
        shape_text(should, want);
        pkg_faults_add(faults, PKG_FAULT_TENSOR_SHAPE_MISMATCH, c->path,
                       "tensor '%s' of %.200s has the shape %s; the source has %s", have->name, c->path, is, should);
        rc = note_mismatch(out, have->name, "shape", should, is, 0, em);
    }
    return rc;
}

/* Everything but the bytes; lists what is to be compared byte for byte. */
static strata_err compare_tensor(const struct pkg_compare *c, const struct gguf_tensor *t, struct pkg_faults *faults,
                                 struct pkg_compared *out, struct pkg_scan *scan, struct strata_errmsg *em) {
    size_t at = gguf_index_get(&c->source->index, t->name);
    out->tensor_bytes += t->bytes; /* inside one file: no wrap */
    if (c->owned & 1u << pkg_class_of(t->name, NULL)) out->owned_count++;
    if (at == GGUF_INDEX_NONE) {
        pkg_faults_add(faults, PKG_FAULT_UNKNOWN_TENSOR, c->path, "tensor '%s' of %.200s is not in the source", t->name,
                       c->path);
        return json_array_append_new(out->unknown, pkg_json_text(t->name)) ? err_nomem(em, "a report") : STRATA_OK;
    }
    const struct pkg_tensor *want = &c->source->tensors[at];
    if (c->owned & 1u << want->class) out->owned[out->n_owned++] = at;
    if (!c->header_only && t->bytes == want->t->bytes)
        scan->pairs[scan->n_pairs++] = (struct pkg_scan_pair){.have = t, .want = want->t};
    return compare_facts(c, t, want->t, faults, out, em);
}

static strata_err compare_tensors(const struct pkg_compare *c, struct pkg_faults *faults, struct pkg_compared *out,
                                  struct pkg_scan *scan, struct strata_errmsg *em) {
    size_t n = c->reader ? gguf_reader_tensor_count(c->reader) : 0;
    strata_err rc = STRATA_OK;
    out->tensor_count = n;
    out->owned = calloc(n + 1, sizeof *out->owned);
    out->unknown = json_array();
    out->mismatches = json_array();
    scan->pairs = calloc(n + 1, sizeof *scan->pairs);
    if (!out->owned || !out->unknown || !out->mismatches || !scan->pairs) return err_nomem(em, "a report");
    for (size_t i = 0; i < n && !rc; i++)
        rc = compare_tensor(c, gguf_reader_tensor(c->reader, i), faults, out, scan, em);
    if (c->header_only) out->tensor_bytes = 0;
    return rc;
}

static strata_err judge_bytes(const struct pkg_compare *c, const struct pkg_scan *scan, struct pkg_faults *faults,
                              struct pkg_compared *out, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < scan->n_pairs && !rc; i++) {
        const struct pkg_scan_pair *p = &scan->pairs[i];
        out->compared_count++;
        out->compared_bytes += p->have->bytes;
        if (!p->differs) continue;
        pkg_faults_add(faults, PKG_FAULT_TENSOR_PAYLOAD_MISMATCH, c->path,
                       "tensor '%s' of %.200s differs from the source at byte %" PRIu64 " of %" PRIu64, p->have->name,
                       c->path, p->first, p->have->bytes);
        rc = note_mismatch(out, p->have->name, "payload", NULL, NULL, p->first, em);
    }
    return rc;
}

strata_err pkg_compare_run(const struct pkg_compare *c, struct pkg_faults *faults, struct pkg_compared *out,
                           struct strata_errmsg *em) {
    struct strata_errmsg why;
    struct pkg_scan scan = {.map = c->map,
                            .name = c->path,
                            .other = c->source_name,
                            .hash = true,
                            .progress = c->progress,
                            .cancelled = c->cancelled};
    strata_err rc = compare_tensors(c, faults, out, &scan, em);
    if (rc) goto out;
    if (c->reader) compare_metadata(c, faults);
    rc = pkg_scan_run(&scan, &why);
    if (rc == STRATA_EIO) {
        snprintf(out->unreadable, sizeof out->unreadable, "%s", why.text);
        rc = STRATA_OK;
    } else if (rc) {
        if (em) *em = why;
    } else {
        out->hashed = true;
        memcpy(out->sha256, scan.sha256, sizeof out->sha256);
        rc = judge_bytes(c, &scan, faults, out, em);
    }
out:
    free(scan.pairs);
    return rc;
}

void pkg_compared_deinit(struct pkg_compared *c) {
    if (!c) return;
    free(c->owned);
    json_decref(c->unknown);
    json_decref(c->mismatches);
    *c = (struct pkg_compared){0};
}

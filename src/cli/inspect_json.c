/* `inspect` for programs. See inspect.h. The older tool's document, and with it, unless that alone is wanted, ours. */
#include "base/jsonx.h"
#include "cli/cli.h"
#include "cli/inspect.h"

#include <math.h>
#include <string.h>

/* Takes `item`; on failure the array is freed and *list becomes NULL. */
static void push(json_t **list, json_t *item) {
    if (!*list || json_array_append_new(*list, item)) {
        json_decref(*list);
        *list = NULL;
    }
}

/* o with one more key; on failure (value is NULL then, or o) both are freed and the result is NULL. */
static json_t *with(json_t *o, const char *key, json_t *value) {
    if (o && json_object_set_new(o, key, value) == 0) return o;
    if (!o) json_decref(value);
    json_decref(o);
    return NULL;
}

static json_t *text(const char *s) {
    return jsonx_text(s, strlen(s));
}

static json_t *text_or_null(struct gguf_str s) {
    return s.data ? jsonx_text(s.data, s.len) : json_null();
}

/* ---- metadata ---- */

static json_t *number_to_json(const struct gguf_kv *kv, uint64_t i) {
    if (kv->elem_kind == GGUF_KIND_F32 || kv->elem_kind == GGUF_KIND_F64) {
        double d = gguf_reader_float_at(kv, i);
        return isfinite(d) ? json_real(d) : json_null(); /* JSON has no infinities */
    }
    if (kv->elem_kind == GGUF_KIND_BOOL) return json_boolean(kv->value[i] != 0);
    return json_integer((json_int_t)gguf_reader_int_at(kv, i));
}

static json_t *array_to_json(const struct gguf_kv *kv) {
    struct gguf_str s;
    size_t cursor = 0;
    json_t *list = json_array();
    for (uint64_t i = 0; list && i < kv->count; i++) {
        if (kv->elem_kind != GGUF_KIND_STRING)
            push(&list, number_to_json(kv, i));
        else
            push(&list, gguf_reader_next_str(kv, &cursor, &s) ? jsonx_text(s.data, s.len) : NULL);
    }
    return list;
}

/* With summary, of an array only its length. */
static json_t *pair_to_json(const struct gguf_kv *kv, bool summary) {
    struct gguf_str s = {"", 0};
    size_t cursor = 0;
    const char *kind = gguf_types_kind_name(kv->kind);
    if (kv->kind == GGUF_KIND_ARRAY) {
        json_t *o = json_pack("{s:s, s:s, s:I}", "kind", kind, "element_kind", gguf_types_kind_name(kv->elem_kind),
                              "count", (json_int_t)kv->count);
        return summary ? o : with(o, "value", array_to_json(kv));
    }
    if (kv->kind == GGUF_KIND_STRING) gguf_reader_next_str(kv, &cursor, &s);
    return json_pack("{s:s, s:o}", "kind", kind, "value",
                     kv->kind == GGUF_KIND_STRING ? jsonx_text(s.data, s.len) : number_to_json(kv, 0));
}

static json_t *metadata_to_json(const struct gguf_reader *r, bool summary) {
    json_t *o = json_object();
    for (size_t i = 0; o && i < gguf_reader_kv_count(r); i++) {
        const struct gguf_kv *kv = gguf_reader_kv(r, i);
        json_t *key = text(kv->key);
        json_t *value = pair_to_json(kv, summary);
        if (!key || !value || json_object_set(o, json_string_value(key), value)) {
            json_decref(o);
            o = NULL;
        }
        json_decref(value);
        json_decref(key);
    }
    return o;
}

/* A number, an array of one for each layer, or null. */
static json_t *fact(const struct gguf_kv *kv) {
    if (!kv) return json_null();
    return kv->kind == GGUF_KIND_ARRAY ? array_to_json(kv) : number_to_json(kv, 0);
}

static json_t *facts_to_json(const struct inspect *v) {
    struct inspect_facts f;
    inspect_facts_read(v->meta, &f);
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I}", "architecture",
                     text_or_null(f.architecture), "name", text_or_null(f.name), "context_length", fact(f.context),
                     "embedding_length", fact(f.width), "feed_forward_length", fact(f.feed_forward), "block_count",
                     fact(f.blocks), "nextn_predict_layers", fact(f.nextn), "head_count", fact(f.heads),
                     "head_count_kv", fact(f.kv_heads), "expert_count", fact(f.experts), "expert_used_count",
                     fact(f.experts_used), "expert_shared_count", fact(f.experts_shared), "tokenizer",
                     text_or_null(f.tokenizer), "tokenizer_pre", text_or_null(f.pre), "vocabulary_size",
                     f.has_vocabulary ? json_integer((json_int_t)f.vocabulary) : json_null(), "parameter_count",
                     (json_int_t)v->parameters);
}

/* ---- sums ---- */

static json_t *sum_to_json(const char *key, json_t *what, const struct inspect_sum *s) {
    return json_pack("{s:o, s:I, s:I}", key, what, "tensor_count", (json_int_t)s->tensors, "bytes",
                     (json_int_t)s->bytes);
}

static json_t *types_to_json(const struct inspect *v) {
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof v->by_type / sizeof v->by_type[0]; i++)
        if (v->by_type[i].tensors)
            push(&list, sum_to_json("type", json_string(gguf_types_tensor_name((uint32_t)i)), &v->by_type[i]));
    return list;
}

static json_t *classes_to_json(const struct inspect *v) {
    json_t *o = json_object();
    for (size_t c = 0; o && c < PKG_CLASS_COUNT; c++) {
        json_t *x = json_pack("{s:I, s:I}", "tensor_count", (json_int_t)v->by_class[c].tensors, "bytes",
                              (json_int_t)v->by_class[c].bytes);
        if (json_object_set_new(o, pkg_class_name((enum pkg_class)c), x)) {
            json_decref(o);
            o = NULL;
        }
    }
    return o;
}

static json_t *layers_to_json(const struct inspect *v) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < v->layer_count; i++) {
        json_t *x = sum_to_json("layer_index", json_integer(i), &v->by_layer[i]);
        if (x && v->mtp[i] && json_object_set_new(x, "mtp", json_true())) {
            json_decref(x);
            x = NULL;
        }
        push(&list, x);
    }
    return list;
}

static json_t *mtp_to_json(const struct inspect *v) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < v->layer_count; i++)
        if (v->mtp[i]) push(&list, json_integer(i));
    return list;
}

static json_t *copies_to_json(const struct inspect *v) {
    const struct inspect_copies *c = &v->copies;
    return json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I}", "measured", v->manifest != NULL, "fragment_count",
                     (json_int_t)c->fragments, "metadata_bytes", (json_int_t)c->kv_bytes, "tensor_count",
                     (json_int_t)c->tensors, "tensor_bytes", (json_int_t)c->tensor_bytes, "total_bytes",
                     (json_int_t)c->total_bytes, "extra_bytes", (json_int_t)c->extra_bytes);
}

static json_t *files_to_json(const struct inspect *v) {
    json_t *list = json_array();
    for (size_t i = 0; i < v->n_files; i++) {
        const struct inspect_file *f = &v->files[i];
        json_t *o = json_pack("{s:o, s:I, s:I}", "path", text(f->label), "bytes", (json_int_t)f->bytes,
                              "metadata_bytes", (json_int_t)f->kv_bytes);
        push(&list, f->kind ? with(o, "projector", text(f->kind)) : o);
    }
    return list;
}

static json_t *package_to_json(const struct inspect *v) {
    const struct pkg_manifest *m = v->manifest;
    struct strata_errmsg em;
    json_t *signature = NULL;
    if (pkg_sign_to_json(&v->signature, &signature, &em)) return NULL;
    json_t *o = json_pack("{s:i, s:s, s:s, s:o}", "schema_version", (int)m->schema, "model_id", m->model_id,
                          "manifest_sha256", m->sha256, "signature", signature);
    return m->package_id ? with(o, "package_id", json_string(m->package_id)) : o;
}

/* ---- tensors ---- */

static json_t *tensor_to_json(const struct inspect *v, const struct inspect_tensor *t, bool legacy) {
    json_t *o =
        json_pack("{s:o, s:o, s:s, s:I, s:I}", "name", text(t->name), "layer_index",
                  t->class == PKG_CLASS_LAYER ? json_integer(t->layer) : json_null(), "role", pkg_class_name(t->class),
                  "ggml_type", (json_int_t)t->type, "byte_size", (json_int_t)t->bytes);
    if (!o || legacy) return o;
    json_t *dims = json_array();
    for (uint32_t d = 0; d < t->n_dims; d++) push(&dims, json_integer((json_int_t)t->ne[d]));
    json_t *more =
        json_pack("{s:s, s:o, s:I, s:I, s:o, s:b, s:b, s:b}", "type", gguf_types_tensor_name(t->type), "dimensions",
                  dims, "offset", (json_int_t)t->offset, "shard", (json_int_t)t->file, "file",
                  text(v->files[t->file].label), "tied", t->tied, "mtp", t->mtp, "replicated", t->replicated);
    if (!more || json_object_update(o, more)) {
        json_decref(o);
        o = NULL;
    }
    json_decref(more);
    return o;
}

static json_t *tensors_to_json(const struct inspect *v, bool legacy) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < v->n_tensors; i++) push(&list, tensor_to_json(v, &v->tensors[i], legacy));
    return list;
}

static json_t *ours_to_json(const struct inspect *v, bool summary) {
    json_t *o =
        json_pack("{s:o, s:s, s:i, s:i, s:I, s:o, s:I, s:I, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "path",
                  text(v->path), "kind", v->manifest ? "package" : "gguf", "gguf_version",
                  (int)gguf_reader_version(v->meta), "alignment", (int)gguf_reader_alignment(v->meta), "file_bytes",
                  (json_int_t)v->file_bytes, "files", files_to_json(v), "layer_count", (json_int_t)v->layer_count,
                  "tensor_bytes", (json_int_t)v->all.bytes, "tied_output", v->tied, "mtp_layers", mtp_to_json(v),
                  "model", facts_to_json(v), "types", types_to_json(v), "classes", classes_to_json(v), "layers",
                  layers_to_json(v), "replicated", copies_to_json(v), "metadata", metadata_to_json(v->meta, summary));
    return v->manifest ? with(o, "package", package_to_json(v)) : o;
}

strata_err inspect_print_json(const struct inspect *v, bool summary, bool legacy, struct strata_errmsg *em) {
    strata_err rc;
    json_t *ours = legacy ? NULL : ours_to_json(v, summary);
    json_t *root = json_pack("{s:I}", "tensor_count", (json_int_t)v->n_tensors);
    if (!summary) root = with(root, "tensors", tensors_to_json(v, legacy));
    if (!root || (!legacy && (!ours || json_object_update(root, ours))))
        rc = err_nomem(em, "the output");
    else
        rc = cli_print_json(root, em);
    json_decref(ours);
    json_decref(root);
    return rc;
}

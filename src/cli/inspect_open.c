/* Reads what `inspect` shows. See inspect.h. Owns the tables; fragments of a package are open one at a time. */
#include "base/path.h"
#include "cli/inspect.h"
#include "package/pkg_carrier.h"

#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

static strata_err make_files(struct inspect *v, size_t n, struct strata_errmsg *em) {
    v->files = calloc(n ? n : 1, sizeof *v->files);
    return v->files ? STRATA_OK : err_nomem(em, "the list of files");
}

static strata_err add_file(struct inspect *v, const char *label, uint64_t bytes, struct strata_errmsg *em) {
    struct inspect_file *f = &v->files[v->n_files];
    f->label = strdup(label);
    if (!f->label) return err_nomem(em, "the list of files");
    f->bytes = bytes;
    v->n_files++;
    v->file_bytes += bytes; /* sizes of files that exist: no wrap */
    return STRATA_OK;
}

static strata_err add_tensor(struct inspect *v, const struct gguf_tensor *t, size_t file, uint64_t offset,
                             struct strata_errmsg *em) {
    if (v->n_tensors == v->room) {
        size_t room = v->room ? v->room * 2 : 512;
        struct inspect_tensor *more = realloc(v->tensors, room * sizeof *more);
        if (!more) return err_nomem(em, "the list of tensors");
        v->tensors = more;
        v->room = room;
    }
    struct inspect_tensor *x = &v->tensors[v->n_tensors++];
    *x = (struct inspect_tensor){
        .n_dims = t->n_dims, .type = t->type, .bytes = t->bytes, .offset = offset, .file = file};
    strncpy(x->name, t->name, sizeof x->name - 1); /* the reader refuses longer names */
    memcpy(x->ne, t->ne, sizeof x->ne);
    x->class = pkg_class_of(x->name, &x->layer);
    if (!v->manifest) x->replicated = !pkg_class_is_owned(x->class); /* as a package of schema 1 would have it */
    return STRATA_OK;
}

static uint64_t kv_bytes(const struct gguf_reader *r) {
    uint64_t sum = 0;
    for (size_t i = 0; i < gguf_reader_kv_count(r); i++) sum += gguf_reader_kv(r, i)->raw_bytes;
    return sum;
}

/* ---- a plain model ---- */

static strata_err open_plain(struct inspect *v, struct strata_errmsg *em) {
    strata_err rc = gguf_source_open(v->path, &v->source, em);
    if (rc) return rc;
    v->meta = gguf_source_meta(v->source);
    rc = make_files(v, gguf_source_shard_count(v->source), em);
    for (size_t i = 0; i < gguf_source_shard_count(v->source) && !rc; i++) {
        size_t len;
        gguf_source_shard_bytes(v->source, i, &len);
        rc = add_file(v, path_basename(gguf_source_shard_path(v->source, i)), len, em);
        if (!rc) v->files[i].kv_bytes = kv_bytes(gguf_source_shard(v->source, i));
    }
    for (size_t i = 0; i < gguf_source_tensor_count(v->source) && !rc; i++) {
        size_t shard;
        const struct gguf_tensor *t = gguf_source_tensor(v->source, i, &shard);
        rc = add_tensor(v, t, shard, gguf_reader_data_offset(gguf_source_shard(v->source, shard)) + t->offset, em);
    }
    return rc;
}

/* ---- a package ---- */

/* Schema 2: the carrier lists all tensors, with their places. */
static strata_err list_carrier(struct inspect *v, const struct pkg_carrier *c, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < gguf_reader_tensor_count(c->reader) && !rc; i++)
        rc = add_tensor(v, gguf_reader_tensor(c->reader, i), c->places[i].artifact, c->places[i].offset, em);
    return rc;
}

/*
 * The place, in the metadata part's list, of a tensor of which a fragment holds a copy; SIZE_MAX for its own tensors.
 * That list is the head of ours: the metadata part is read first.
 */
static size_t copy_of(const struct inspect *v, const struct pkg_carrier *c, size_t file, const struct gguf_tensor *t) {
    const struct gguf_tensor *listed = gguf_reader_find_tensor(v->meta, t->name);
    if (!listed) return SIZE_MAX;
    size_t i = (size_t)(listed - gguf_reader_tensor(v->meta, 0));
    bool copy = c ? c->places[i].artifact != file : file > 0 && !pkg_class_is_owned(pkg_class_of(t->name, NULL));
    return copy ? i : SIZE_MAX;
}

/* Counts a fragment's tensors; those of schema 1 that belong to it are listed. */
static strata_err read_fragment(struct inspect *v, const struct pkg_carrier *c, const struct pkg_part *p, size_t file,
                                struct strata_errmsg *em) {
    struct inspect_file *f = &v->files[file];
    bool projector = p->artifact->role == PKG_ROLE_PROJECTOR, carrier = c && file == 0;
    strata_err rc = STRATA_OK;
    if (!p->reader || carrier) return STRATA_OK;
    if (projector) f->kind = p->artifact->kind;
    for (size_t i = 0; i < gguf_reader_tensor_count(p->reader) && !rc; i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(p->reader, i);
        size_t original = projector ? SIZE_MAX : copy_of(v, c, file, t);
        if (projector) {
            f->tensors++;
            f->tensor_bytes += t->bytes;
        } else if (original != SIZE_MAX) {
            f->copied_bytes += t->bytes;
            v->tensors[original].replicated = true;
        } else if (!c) {
            rc = add_tensor(v, t, file, gguf_reader_data_offset(p->reader) + t->offset, em);
        }
    }
    return rc;
}

struct opener {
    const char *dir;
    struct pkg_faults faults;
    struct pkg_carrier carrier;
};

static strata_err open_part(struct inspect *v, struct opener *o, size_t i, struct pkg_part *out,
                            struct strata_errmsg *em) {
    const struct pkg_artifact *a = &v->manifest->artifacts[i];
    strata_err rc = pkg_part_open(o->dir, a, false, NULL, &o->faults, out, em);
    if (!rc) rc = pkg_faults_first(&o->faults, o->dir, em);
    if (!rc) rc = add_file(v, a->path, out->actual_bytes, em);
    if (!rc && out->reader) v->files[i].kv_bytes = kv_bytes(out->reader);
    return rc;
}

static strata_err open_meta(struct inspect *v, struct opener *o, struct strata_errmsg *em) {
    strata_err rc = open_part(v, o, 0, &v->meta_part, em);
    if (rc) return rc;
    v->meta = v->meta_part.reader;
    if (v->manifest->schema == 2) {
        rc = pkg_carrier_init(&o->carrier, v->meta, v->manifest, &o->faults, em);
        if (!rc) rc = pkg_faults_first(&o->faults, o->dir, em);
        if (!rc) rc = list_carrier(v, &o->carrier, em);
    }
    if (!rc) rc = read_fragment(v, o->carrier.reader ? &o->carrier : NULL, &v->meta_part, 0, em);
    return rc;
}

static strata_err open_package(struct inspect *v, const char *dir, struct strata_errmsg *em) {
    struct opener o = {.dir = dir};
    pkg_faults_init(&o.faults);
    strata_err rc = pkg_manifest_load(dir, &v->manifest, em);
    if (!rc) rc = pkg_sign_verify(dir, v->manifest->sha256, &v->signature, em);
    if (!rc) rc = make_files(v, v->manifest->n_artifacts, em);
    if (!rc) rc = open_meta(v, &o, em);
    for (size_t i = 1; !rc && i < v->manifest->n_artifacts; i++) {
        struct pkg_part part;
        rc = open_part(v, &o, i, &part, em);
        if (!rc) rc = read_fragment(v, o.carrier.reader ? &o.carrier : NULL, &part, i, em);
        pkg_part_close(&part);
    }
    pkg_carrier_deinit(&o.carrier);
    pkg_faults_deinit(&o.faults);
    return rc;
}

/* ---- sums ---- */

/* Marks and sums that need the whole list. Payloads lie in files that exist and do not overlap: sums cannot wrap. */
static strata_err survey(struct inspect *v, struct strata_errmsg *em) {
    struct pkg_select sel;
    for (size_t i = 0; i < v->n_tensors; i++)
        if (v->tensors[i].class == PKG_CLASS_LAYER && v->tensors[i].layer >= v->layer_count)
            v->layer_count = v->tensors[i].layer + 1;
    if (v->manifest) v->layer_count = v->manifest->layer_count;
    pkg_select_init(&sel, v->layer_count);
    for (size_t i = 0; i < v->n_tensors; i++) pkg_select_note(&sel, v->tensors[i].name);
    v->tied = sel.tied;
    v->by_layer = calloc((size_t)v->layer_count + 1, sizeof *v->by_layer);
    v->mtp = calloc((size_t)v->layer_count + 1, sizeof *v->mtp);
    if (!v->by_layer || !v->mtp) return err_nomem(em, "the sums");
    for (uint32_t i = 0; i < v->layer_count; i++) v->mtp_layers += v->mtp[i] = pkg_select_is_mtp(&sel, i);
    for (size_t i = 0; i < v->n_tensors; i++) {
        struct inspect_tensor *x = &v->tensors[i];
        struct inspect_sum *sums[] = {&v->all, &v->by_class[x->class], x->type < 256 ? &v->by_type[x->type] : NULL,
                                      x->class == PKG_CLASS_LAYER && x->layer < v->layer_count ? &v->by_layer[x->layer]
                                                                                               : NULL};
        for (size_t k = 0; k < sizeof sums / sizeof sums[0]; k++)
            if (sums[k]) {
                sums[k]->tensors++;
                sums[k]->bytes += x->bytes;
            }
        x->mtp = x->class == PKG_CLASS_LAYER && x->layer < v->layer_count && v->mtp[x->layer];
        x->tied = v->tied && strcmp(x->name, "token_embd.weight") == 0;
        v->parameters += x->ne[0] * x->ne[1] * x->ne[2] * x->ne[3]; /* the reader computed their bytes: it fits */
    }
    return STRATA_OK;
}

static bool is_fragment(const struct inspect *v, size_t file) {
    return !v->manifest || v->manifest->artifacts[file].role < PKG_ROLE_PROJECTOR;
}

static void count_copies(struct inspect *v) {
    struct inspect_copies *c = &v->copies;
    for (size_t i = 0; i < v->n_tensors; i++)
        if (v->tensors[i].replicated) {
            c->tensors++;
            c->tensor_bytes += v->tensors[i].bytes;
        }
    c->kv_bytes = v->n_files ? v->files[0].kv_bytes : 0;
    if (!v->manifest) { /* what a package would be */
        c->fragments = v->layer_count ? v->layer_count + (size_t)PKG_SHARED_COUNT : 0;
        c->total_bytes = c->fragments * (c->kv_bytes + c->tensor_bytes);
        c->extra_bytes = c->fragments ? c->total_bytes - c->kv_bytes - c->tensor_bytes : 0;
        return;
    }
    for (size_t i = 0; i < v->n_files; i++)
        if (is_fragment(v, i)) {
            c->fragments++;
            c->extra_bytes += v->files[i].copied_bytes + (i > 0 ? v->files[i].kv_bytes : 0);
        }
    c->total_bytes = c->extra_bytes + c->kv_bytes + c->tensor_bytes;
}

strata_err inspect_open(const char *path, struct inspect *out, struct strata_errmsg *em) {
    char dir[PATH_MAX_LEN];
    struct inspect v = {.path = path};
    strata_err rc = pkg_part_folder(path, dir, sizeof dir) ? open_package(&v, dir, em) : open_plain(&v, em);
    if (!rc) rc = survey(&v, em);
    if (rc) {
        inspect_close(&v);
        return rc;
    }
    count_copies(&v);
    *out = v;
    return STRATA_OK;
}

void inspect_close(struct inspect *v) {
    if (!v) return;
    for (size_t i = 0; v->files && i < v->n_files; i++) free(v->files[i].label);
    free(v->files);
    free(v->tensors);
    free(v->by_layer);
    free(v->mtp);
    pkg_part_close(&v->meta_part);
    pkg_manifest_free(v->manifest);
    gguf_source_free(v->source);
    *v = (struct inspect){0};
}

/* ---- facts ---- */

static void get_text(const struct gguf_reader *r, const char *key, struct gguf_str *out) {
    struct gguf_str s = {NULL, 0};
    if (gguf_reader_get_str(r, key, false, &s, NULL) == STRATA_OK) *out = s;
}

static bool is_number(uint32_t kind) {
    return kind != GGUF_KIND_STRING && kind != GGUF_KIND_ARRAY && kind != GGUF_KIND_BOOL && kind != GGUF_KIND_F32 &&
           kind != GGUF_KIND_F64;
}

static const struct gguf_kv *get_number(const struct gguf_reader *r, struct gguf_str arch, const char *key) {
    char full[128];
    if (!arch.data || arch.len > 64) return NULL;
    snprintf(full, sizeof full, "%.*s.%s", (int)arch.len, arch.data, key);
    const struct gguf_kv *kv = gguf_reader_find_kv(r, full);
    return kv && is_number(kv->elem_kind) && kv->count > 0 ? kv : NULL;
}

void inspect_facts_read(const struct gguf_reader *meta, struct inspect_facts *out) {
    struct inspect_facts f = {.kv_count = gguf_reader_kv_count(meta)};
    get_text(meta, "general.architecture", &f.architecture);
    get_text(meta, "general.name", &f.name);
    get_text(meta, "tokenizer.ggml.model", &f.tokenizer);
    get_text(meta, "tokenizer.ggml.pre", &f.pre);
    f.context = get_number(meta, f.architecture, "context_length");
    f.width = get_number(meta, f.architecture, "embedding_length");
    f.feed_forward = get_number(meta, f.architecture, "feed_forward_length");
    f.blocks = get_number(meta, f.architecture, "block_count");
    f.heads = get_number(meta, f.architecture, "attention.head_count");
    f.kv_heads = get_number(meta, f.architecture, "attention.head_count_kv");
    f.experts = get_number(meta, f.architecture, "expert_count");
    f.experts_used = get_number(meta, f.architecture, "expert_used_count");
    f.experts_shared = get_number(meta, f.architecture, "expert_shared_count");
    f.nextn = get_number(meta, f.architecture, "nextn_predict_layers");
    const struct gguf_kv *tokens = gguf_reader_find_kv(meta, "tokenizer.ggml.tokens");
    if (tokens && tokens->kind == GGUF_KIND_ARRAY) {
        f.has_vocabulary = true;
        f.vocabulary = tokens->count;
    }
    *out = f;
}

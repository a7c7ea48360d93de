/*
 * The package writer. See pkg_write.h.
 *
 * Owns the work list (struct job) and, until the end, everything it created in the output folder. Refuses a folder that
 * is not empty, a model without layers, and one whose layers have gaps.
 */
#include "package/pkg_write.h"

#include "base/file.h"
#include "base/path.h"
#include "gguf/gguf_writer.h"
#include "package/pkg_class.h"
#include "package/pkg_manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HASH_PIECE = 4 << 20, MANIFEST_MAX = PKG_MANIFEST_MAX_BYTES };

/* One file to write. */
struct item {
    struct pkg_artifact facts;
    char path[40];       /* relative; facts.path points here */
    size_t first, count; /* its own tensors: a run of job.owned */
};

struct job {
    const struct pkg_write_options *opt;
    struct gguf_source *src;
    struct pkg_identity identity;
    uint32_t layer_count, width;
    size_t *owned;      /* indices of owned tensors, by item, in source order within an item */
    size_t *replicated; /* indices of METADATA tensors, in source order */
    size_t n_replicated;
    struct item *items;
    size_t n_items;
    size_t n_written; /* items under their final names */
    bool made_folder;
    uint64_t created_at;
    struct progress progress;
};

/* ---- source digests, in a thread of their own ---- */

struct hasher {
    const struct gguf_source *src;
    uint8_t (*sums)[DIGEST_BYTES];
    atomic_bool stop;
    strata_err rc;
    struct strata_errmsg em;
    pthread_t thread;
    bool running;
};

static strata_err hash_shard(struct hasher *h, struct digest *d, size_t i) {
    size_t len;
    const uint8_t *data = gguf_source_shard_bytes(h->src, i, &len);
    for (size_t at = 0; at < len; at += HASH_PIECE) {
        if (atomic_load(&h->stop)) return err_set(&h->em, STRATA_ECANCELLED, "cancelled");
        size_t n = len - at < HASH_PIECE ? len - at : HASH_PIECE;
        strata_err rc = digest_update(d, data + at, n, &h->em);
        if (rc) return rc;
    }
    return digest_final(d, h->sums[i], &h->em);
}

static void *hash_shards(void *arg) {
    struct hasher *h = arg;
    struct digest *d = NULL;
    h->rc = digest_new(&d, &h->em);
    for (size_t i = 0; i < gguf_source_shard_count(h->src) && !h->rc; i++) h->rc = hash_shard(h, d, i);
    digest_free(d);
    return NULL;
}

static strata_err hasher_start(struct hasher *h, const struct gguf_source *src, struct strata_errmsg *em) {
    h->src = src;
    h->sums = calloc(gguf_source_shard_count(src), sizeof *h->sums);
    if (!h->sums) return err_nomem(em, "digests");
    int e = pthread_create(&h->thread, NULL, hash_shards, h);
    if (e) return err_sys(em, STRATA_ENOMEM, e, "cannot start a thread");
    h->running = true;
    return STRATA_OK;
}

/* Waits for the digests; with stop set, only for the thread to end. */
static strata_err hasher_join(struct hasher *h, bool stop, struct strata_errmsg *em) {
    if (!h->running) return STRATA_OK;
    if (stop) atomic_store(&h->stop, true);
    pthread_join(h->thread, NULL);
    h->running = false;
    if (h->rc && !stop && em) *em = h->em;
    return stop ? STRATA_OK : h->rc;
}

/* ---- planning: which tensor goes where ---- */

static size_t item_of(enum pkg_class class, uint32_t layer) {
    switch (class) {
    case PKG_CLASS_EMBEDDING: return PKG_ROLE_EMBEDDINGS;
    case PKG_CLASS_FINAL_NORM:
    case PKG_CLASS_OUTPUT: return PKG_ROLE_OUTPUT;
    case PKG_CLASS_LAYER: return PKG_SHARED_COUNT + layer;
    default: return PKG_ROLE_METADATA;
    }
}

static strata_err count_layers(struct job *j, const char *source, struct strata_errmsg *em) {
    for (size_t i = 0; i < gguf_source_tensor_count(j->src); i++) {
        uint32_t layer;
        if (pkg_class_of(gguf_source_tensor(j->src, i, NULL)->name, &layer) == PKG_CLASS_LAYER &&
            layer >= j->layer_count)
            j->layer_count = layer + 1;
    }
    if (j->layer_count == 0)
        return err_set(em, STRATA_EUNSUPPORTED, "%s has no transformer layers (no tensor is named blk.N...)", source);
    return STRATA_OK;
}

static void name_item(struct item *it, size_t i) {
    static const char *const shared[] = {"shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf"};
    if (i < PKG_SHARED_COUNT) {
        it->facts.role = (enum pkg_role)i;
        snprintf(it->path, sizeof it->path, "%s", shared[i]);
    } else {
        it->facts.role = PKG_ROLE_LAYER;
        it->facts.layer = (uint32_t)(i - PKG_SHARED_COUNT);
        snprintf(it->path, sizeof it->path, "layers/layer-%05" PRIu32 ".gguf", it->facts.layer);
    }
    it->facts.path = it->path;
}

/* Sorts the tensors into items by counting, so that source order is kept within each. */
static strata_err plan_items(struct job *j, const char *source, struct strata_errmsg *em) {
    size_t n = gguf_source_tensor_count(j->src);
    j->n_items = PKG_SHARED_COUNT + (size_t)j->layer_count;
    j->items = calloc(j->n_items, sizeof *j->items);
    j->owned = calloc(n, sizeof *j->owned);
    j->replicated = calloc(n, sizeof *j->replicated);
    if (!j->items || !j->owned || !j->replicated) return err_nomem(em, "the list of tensors");
    for (size_t i = 0; i < j->n_items; i++) name_item(&j->items[i], i);
    for (size_t pass = 0; pass < 2; pass++) {
        size_t start = 0;
        for (size_t i = 0; i < j->n_items && pass == 1; i++) {
            j->items[i].first = start;
            start += j->items[i].count;
            j->items[i].count = 0;
        }
        for (size_t i = 0; i < n; i++) {
            uint32_t layer = 0;
            enum pkg_class class = pkg_class_of(gguf_source_tensor(j->src, i, NULL)->name, &layer);
            struct item *it = &j->items[item_of(class, layer)];
            if (!pkg_class_is_owned(class)) {
                if (pass == 1) j->replicated[j->n_replicated++] = i;
                continue;
            }
            if (pass == 1) j->owned[it->first + it->count] = i;
            it->count++;
        }
    }
    for (uint32_t i = 0; i < j->layer_count; i++)
        if (j->items[PKG_SHARED_COUNT + i].count == 0)
            return err_set(em, STRATA_EFORMAT,
                           "%s has no tensor of layer %" PRIu32 ", though it has %" PRIu32 " layers", source, i,
                           j->layer_count);
    if (j->items[PKG_ROLE_EMBEDDINGS].count == 0 || !gguf_source_find_tensor(j->src, "token_embd.weight"))
        return err_set(em, STRATA_EFORMAT, "%s has no tensor token_embd.weight, so no stage could read tokens", source);
    return STRATA_OK;
}

static strata_err find_width(struct job *j, struct strata_errmsg *em) {
    struct gguf_str arch;
    char key[128];
    const struct gguf_reader *meta = gguf_source_meta(j->src);
    strata_err rc = gguf_reader_get_str(meta, "general.architecture", true, &arch, em);
    if (rc) return rc;
    int n = snprintf(key, sizeof key, "%.*s.embedding_length", (int)(arch.len < 64 ? arch.len : 64), arch.data);
    if (n < 0 || arch.len > 64)
        return err_set(em, STRATA_EFORMAT, "%s: general.architecture is too long", gguf_reader_name(meta));
    rc = gguf_reader_get_u32(meta, key, true, &j->width, em);
    if (!rc && j->width == 0) rc = err_set(em, STRATA_EFORMAT, "%s: %s is 0", gguf_reader_name(meta), key);
    return rc;
}

/* ---- the output folder ---- */

static strata_err check_folder(struct job *j, struct strata_errmsg *em) {
    const char *dir = j->opt->out_dir;
    struct stat out, shard;
    bool exists = stat(dir, &out) == 0, empty = false;
    for (size_t i = 0; exists && i < gguf_source_shard_count(j->src); i++)
        if (stat(gguf_source_shard_path(j->src, i), &shard) == 0 && shard.st_dev == out.st_dev &&
            shard.st_ino == out.st_ino)
            return err_set(em, STRATA_EINVAL, "%s is the source model itself: name a new folder", dir);
    if (exists && !S_ISDIR(out.st_mode))
        return err_set(em, STRATA_EINVAL, "%s exists and is not a folder: name a new folder", dir);
    strata_err rc = file_dir_is_empty(dir, &empty, em);
    if (!rc && !empty)
        rc = err_set(em, STRATA_EINVAL, "folder %s is not empty: name a new folder, or empty this one", dir);
    j->made_folder = !exists;
    return rc;
}

static strata_err make_folders(struct job *j, struct strata_errmsg *em) {
    static const char *const names[] = {"shared", "layers"};
    strata_err rc = file_mkdirs(j->opt->out_dir, 0777, em);
    for (size_t i = 0; i < 2 && !rc; i++) {
        char path[PATH_MAX_LEN];
        rc = path_join(path, sizeof path, j->opt->out_dir, names[i], em);
        if (!rc) rc = file_mkdirs(path, 0777, em);
    }
    return rc;
}

/* The folder was empty when we came, so every known name in it is ours. */
static void remove_output(const struct job *j) {
    char path[PATH_MAX_LEN];
    if (path_join(path, sizeof path, j->opt->out_dir, PKG_MANIFEST_FILE, NULL) == STRATA_OK) unlink(path);
    for (size_t i = 0; i < j->n_written; i++)
        if (path_join(path, sizeof path, j->opt->out_dir, j->items[i].path, NULL) == STRATA_OK) unlink(path);
    if (path_join(path, sizeof path, j->opt->out_dir, "shared", NULL) == STRATA_OK) rmdir(path);
    if (path_join(path, sizeof path, j->opt->out_dir, "layers", NULL) == STRATA_OK) rmdir(path);
    if (j->made_folder) rmdir(j->opt->out_dir);
}

/* ---- fragments ---- */

/* What a reader of schema 1 expects to find in each fragment about its place. */
static strata_err add_slice_keys(const struct job *j, const struct item *it, struct gguf_writer *w,
                                 struct strata_errmsg *em) {
    int32_t n = (int32_t)j->layer_count, layer = (int32_t)it->facts.layer;
    const struct { int32_t index, start, end; } shared[PKG_SHARED_COUNT] = {{0, 0, 0}, {1, 0, 0}, {2, n, n}};
    bool is_layer = it->facts.role == PKG_ROLE_LAYER;
    int32_t index = is_layer ? 1000 + layer : shared[it->facts.role].index;
    int32_t start = is_layer ? layer : shared[it->facts.role].start;
    int32_t end = is_layer ? layer + 1 : shared[it->facts.role].end;
    strata_err rc = gguf_writer_add_i32(w, "skippy.slice.stage_index", index, em);
    if (!rc) rc = gguf_writer_add_i32(w, "skippy.slice.layer_start", start, em);
    if (!rc) rc = gguf_writer_add_i32(w, "skippy.slice.layer_end", end, em);
    if (!rc) rc = gguf_writer_add_bool(w, "skippy.slice.include_embeddings", it->facts.role == PKG_ROLE_EMBEDDINGS, em);
    if (!rc) rc = gguf_writer_add_bool(w, "skippy.slice.include_output", it->facts.role == PKG_ROLE_OUTPUT, em);
    return rc;
}

/* A source that was itself a fragment brings slice keys along; the new ones replace them. */
static strata_err copy_metadata(const struct job *j, struct gguf_writer *w, struct strata_errmsg *em) {
    const struct gguf_reader *meta = gguf_source_meta(j->src);
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < gguf_reader_kv_count(meta) && !rc; i++) {
        const struct gguf_kv *kv = gguf_reader_kv(meta, i);
        bool drop = strcmp(kv->key, "general.alignment") == 0 || strncmp(kv->key, "split.", 6) == 0 ||
                    strncmp(kv->key, "skippy.slice.", 13) == 0;
        if (!drop) rc = gguf_writer_copy_kv(w, kv, em);
    }
    return rc;
}

/* Merges the item's own tensors with the replicated ones, in source order. */
static strata_err add_tensors(const struct job *j, const struct item *it, struct gguf_writer *w,
                              struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    size_t a = 0, b = 0;
    while (!rc && (a < it->count || b < j->n_replicated)) {
        size_t own = a < it->count ? j->owned[it->first + a] : SIZE_MAX;
        size_t rep = b < j->n_replicated ? j->replicated[b] : SIZE_MAX;
        const struct gguf_tensor *t = gguf_source_tensor(j->src, own < rep ? own : rep, NULL);
        own < rep ? a++ : b++;
        rc = gguf_writer_add_tensor(w, t->name, t->n_dims, t->ne, t->type, t->data, em);
    }
    return rc;
}

static strata_err write_item(struct job *j, struct item *it, struct strata_errmsg *em) {
    struct gguf_writer *w = NULL;
    char path[PATH_MAX_LEN];
    strata_err rc = path_join(path, sizeof path, j->opt->out_dir, it->path, em);
    if (!rc) rc = gguf_writer_new(gguf_reader_alignment(gguf_source_meta(j->src)), &w, em);
    if (!rc) rc = copy_metadata(j, w, em);
    if (!rc) rc = add_slice_keys(j, it, w, em);
    if (!rc) rc = add_tensors(j, it, w, em);
    if (!rc) rc = gguf_writer_to_file(w, path, &j->progress, it->facts.sha256, &it->facts.artifact_bytes, em);
    if (!rc) {
        it->facts.tensor_count = gguf_writer_tensor_count(w);
        it->facts.tensor_bytes = gguf_writer_tensor_bytes(w);
        j->n_written++;
    }
    gguf_writer_free(w);
    return rc;
}

static strata_err write_items(struct job *j, struct strata_errmsg *em) {
    const struct gguf_reader *meta = gguf_source_meta(j->src);
    uint64_t total = gguf_reader_data_offset(meta) * j->n_items;
    for (size_t i = 0; i < gguf_source_tensor_count(j->src); i++) total += gguf_source_tensor(j->src, i, NULL)->bytes;
    progress_begin(&j->progress, j->opt->progress, "writing", total);
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < j->n_items && !rc; i++) {
        if (j->opt->cancelled && j->opt->cancelled())
            rc = err_set(em, STRATA_ECANCELLED, "interrupted; nothing was kept in %s", j->opt->out_dir);
        else
            rc = write_item(j, &j->items[i], em);
    }
    progress_end(&j->progress);
    return rc;
}

/* ---- the manifest ---- */

/* Sets key to a string; absent (empty) texts are left out. */
static strata_err set_str(json_t *obj, const char *key, const char *text, struct strata_errmsg *em) {
    if (!text[0]) return STRATA_OK;
    json_t *v = json_string(text);
    if (!v) return err_set(em, STRATA_EINVAL, "%s '%.100s' is not valid UTF-8, which a manifest must be", key, text);
    return json_object_set_new(obj, key, v) ? err_nomem(em, "a manifest") : STRATA_OK;
}

static strata_err set_num(json_t *obj, const char *key, uint64_t v, struct strata_errmsg *em) {
    return json_object_set_new(obj, key, json_integer((json_int_t)v)) ? err_nomem(em, "a manifest") : STRATA_OK;
}

static strata_err set_hex(json_t *obj, const char *key, const uint8_t sum[DIGEST_BYTES], struct strata_errmsg *em) {
    char hex[DIGEST_HEX];
    digest_to_hex(sum, DIGEST_BYTES, hex);
    return set_str(obj, key, hex, em);
}

/* A new object or array under key, or appended when parent is an array; a view. */
static json_t *nest(json_t *parent, const char *key, json_t *child) {
    int bad = key ? json_object_set_new(parent, key, child) : json_array_append_new(parent, child);
    return bad ? NULL : child;
}

static strata_err set_artifact(json_t *obj, const struct pkg_artifact *a, struct strata_errmsg *em) {
    if (!obj) return err_nomem(em, "a manifest");
    strata_err rc = STRATA_OK;
    if (a->role == PKG_ROLE_LAYER) rc = set_num(obj, "layer_index", a->layer, em);
    if (!rc) rc = set_str(obj, "path", a->path, em);
    if (!rc) rc = set_num(obj, "tensor_count", a->tensor_count, em);
    if (!rc) rc = set_num(obj, "tensor_bytes", a->tensor_bytes, em);
    if (!rc) rc = set_num(obj, "artifact_bytes", a->artifact_bytes, em);
    if (!rc) rc = set_hex(obj, "sha256", a->sha256, em);
    return rc;
}

static strata_err set_source(const struct job *j, const struct hasher *h, json_t *root, struct strata_errmsg *em) {
    const struct pkg_identity *id = &j->identity;
    json_t *obj = nest(root, "source_model", json_object());
    if (!obj) return err_nomem(em, "a manifest");
    /* The name alone: a folder of the packager's machine would help nobody and tell too much. */
    strata_err rc = set_str(obj, "path", path_basename(gguf_source_shard_path(j->src, 0)), em);
    if (!rc) rc = set_hex(obj, "sha256", h->sums[0], em);
    if (!rc) rc = set_str(obj, "repo", id->repo, em);
    if (!rc) rc = set_str(obj, "revision", id->revision, em);
    if (!rc) rc = set_str(obj, "primary_file", id->primary_file, em);
    if (!rc) rc = set_str(obj, "canonical_ref", id->canonical_ref, em);
    if (!rc) rc = set_str(obj, "distribution_id", id->distribution_id, em);
    json_t *files = rc ? NULL : nest(obj, "files", json_array());
    if (!rc && !files) rc = err_nomem(em, "a manifest");
    for (size_t i = 0; i < gguf_source_shard_count(j->src) && !rc; i++) {
        char name[PKG_IDENTITY_MAX];
        size_t len;
        json_t *f = nest(files, NULL, json_object());
        gguf_source_shard_bytes(j->src, i, &len);
        rc = f ? pkg_identity_shard(id, j->src, i, name, em) : err_nomem(em, "a manifest");
        if (!rc) rc = set_str(f, "path", name, em);
        if (!rc) rc = set_num(f, "size_bytes", len, em);
        if (!rc) rc = set_hex(f, "sha256", h->sums[i], em);
    }
    return rc;
}

static strata_err set_artifacts(const struct job *j, json_t *root, struct strata_errmsg *em) {
    json_t *shared = nest(root, "shared", json_object());
    strata_err rc = shared ? STRATA_OK : err_nomem(em, "a manifest");
    for (size_t i = 0; i < PKG_SHARED_COUNT && !rc; i++)
        rc = set_artifact(nest(shared, pkg_role_name((enum pkg_role)i), json_object()), &j->items[i].facts, em);
    json_t *layers = rc ? NULL : nest(root, "layers", json_array());
    if (!rc && !layers) rc = err_nomem(em, "a manifest");
    for (size_t i = PKG_SHARED_COUNT; i < j->n_items && !rc; i++)
        rc = set_artifact(nest(layers, NULL, json_object()), &j->items[i].facts, em);
    return rc;
}

static strata_err build_manifest(const struct job *j, const struct hasher *h, json_t **out, struct strata_errmsg *em) {
    json_t *root = json_object();
    if (!root) return err_nomem(em, "a manifest");
    strata_err rc = set_num(root, "schema_version", 1, em);
    if (!rc) rc = set_str(root, "model_id", j->identity.model_id, em);
    if (!rc) rc = set_source(j, h, root, em);
    if (!rc) rc = set_str(root, "format", PKG_MANIFEST_FORMAT, em);
    if (!rc) rc = set_num(root, "layer_count", j->layer_count, em);
    if (!rc) rc = set_num(root, "activation_width", j->width, em);
    if (!rc) rc = set_artifacts(j, root, em);
    if (!rc) rc = set_str(root, "skippy_abi_version", PKG_MANIFEST_ABI, em);
    if (!rc) rc = set_num(root, "created_at_unix_secs", j->created_at, em);
    if (rc) {
        json_decref(root);
        return rc;
    }
    *out = root;
    return STRATA_OK;
}

static strata_err write_manifest(const struct job *j, const struct hasher *h, struct pkg_write_result *res,
                                 struct strata_errmsg *em) {
    struct buf text;
    char path[PATH_MAX_LEN];
    uint8_t sum[DIGEST_BYTES];
    json_t *root = NULL;
    buf_init(&text, MANIFEST_MAX);
    strata_err rc = build_manifest(j, h, &root, em);
    if (!rc) rc = jsonx_dump(root, true, &text, em);
    if (!rc) rc = buf_append_str(&text, "\n", em);
    if (!rc) rc = digest_of(text.data, text.len, sum, em);
    if (!rc) rc = path_join(path, sizeof path, j->opt->out_dir, PKG_MANIFEST_FILE, em);
    if (!rc) rc = file_write_all(path, text.data, text.len, 0644, em);
    if (rc) goto out;
    digest_to_hex(sum, sizeof sum, res->manifest_sha256);
    res->total_bytes = text.len;
    res->manifest = root;
    root = NULL;
out:
    json_decref(root);
    buf_deinit(&text);
    return rc;
}

/* ---- all together ---- */

static strata_err creation_time(uint64_t *out, struct strata_errmsg *em) {
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    if (!epoch || !*epoch) {
        *out = (uint64_t)time(NULL);
        return STRATA_OK;
    }
    char *end;
    errno = 0;
    unsigned long long v = strtoull(epoch, &end, 10);
    if (*epoch < '0' || *epoch > '9' || *end || errno || v > INT64_MAX)
        return err_set(em, STRATA_EINVAL, "SOURCE_DATE_EPOCH is '%.40s'; it must be whole seconds since 1970", epoch);
    *out = v;
    return STRATA_OK;
}

static strata_err prepare(struct job *j, const char *source, struct strata_errmsg *em) {
    strata_err rc = creation_time(&j->created_at, em);
    if (!rc) rc = gguf_source_open(source, &j->src, em);
    if (!rc) rc = count_layers(j, source, em);
    if (!rc) rc = plan_items(j, source, em);
    if (!rc) rc = find_width(j, em);
    if (!rc) rc = pkg_identity_resolve(&j->opt->identity, j->src, &j->identity, em);
    if (!rc) rc = check_folder(j, em);
    return rc;
}

static void summarize(const struct job *j, struct pkg_write_result *res) {
    res->identity = j->identity;
    res->layer_count = j->layer_count;
    res->file_count = j->n_items + 1;
    for (size_t i = 0; i < j->n_items; i++) res->total_bytes += j->items[i].facts.artifact_bytes;
    res->replicated_bytes = j->items[PKG_ROLE_METADATA].facts.tensor_bytes * (j->n_items - 1);
}

strata_err pkg_write(const char *source, const struct pkg_write_options *opt, struct pkg_write_result *out,
                     struct strata_errmsg *em) {
    struct job j = {.opt = opt};
    struct hasher h = {0};
    struct pkg_write_result res = {0};
    bool touched = false;
    strata_err rc = prepare(&j, source, em);
    if (rc) goto out;
    touched = true;
    rc = make_folders(&j, em);
    if (!rc) rc = hasher_start(&h, j.src, em);
    if (!rc) rc = write_items(&j, em);
    if (!rc) rc = hasher_join(&h, false, em);
    if (!rc) rc = write_manifest(&j, &h, &res, em);
    if (rc) goto out;
    summarize(&j, &res);
    *out = res;
out:
    hasher_join(&h, true, em);
    if (rc && touched) remove_output(&j);
    free(h.sums);
    gguf_source_free(j.src);
    free(j.items);
    free(j.owned);
    free(j.replicated);
    return rc;
}

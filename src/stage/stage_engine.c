/* The real backend. See stage_engine.h. Owns the opened package of each unit. Refuses plain GGUF files: stages compare
 * packages by the digest of their manifest, and a plain file has none. */
#include "stage/stage_engine.h"

#include "model/model_device.h"

#include <stdlib.h>
#include <string.h>

struct stage_engine {
    char *package, *device;
    const char *device_name; /* ggml's */
    uint32_t n_threads;
    bool over_memory, keep_mapped;
    bool signature_required;
    struct ed25519_pub signer;      /* whose, when required */
    struct pkg_signature signature; /* this and the digest: of the package as it was probed */
    char manifest_sha256[DIGEST_HEX];
    FILE *progress;
};

struct unit {
    struct pkg_model *model;
    struct engine *engine;
};

static void unit_free(void *ptr) {
    struct unit *u = ptr;
    if (!u) return;
    engine_free(u->engine);
    pkg_model_free(u->model);
    free(u);
}

static strata_err open_package(const struct stage_engine *e, struct pkg_range range, unsigned flags,
                               struct pkg_model **out, struct strata_errmsg *em) {
    struct pkg_model_options opt = {.range = range,
                                    .flags = flags,
                                    .progress = e->progress,
                                    .require_signature = e->signature_required ? &e->signer : NULL};
    return pkg_model_open(e->package, &opt, out, em);
}

static strata_err probe(void *self, struct stage_probe *out, struct strata_errmsg *em) {
    struct stage_engine *e = self;
    struct pkg_model *m;
    strata_err rc = open_package(e, (struct pkg_range){0}, PKG_MODEL_METADATA_ONLY, &m, em);
    if (rc) return rc;
    const char *id = pkg_model_id(m);
    const char *sha = pkg_model_manifest_sha256(m);
    if (!pkg_model_is_package(m)) {
        rc = err_set(em, STRATA_EINVAL,
                     "%s is a plain GGUF file, not a layer package; make one with: strata "
                     "write-package %s --out-dir DIR",
                     e->package, e->package);
    } else if (strlen(sha) != sizeof out->manifest_sha256 - 1) {
        rc = err_set(em, STRATA_EINTERNAL, "the package %s has no manifest digest", e->package);
    } else {
        *out = (struct stage_probe){.layer_count = pkg_model_layer_count(m)};
        memcpy(out->model_id, id, strnlen(id, sizeof out->model_id - 1));
        memcpy(out->manifest_sha256, sha, sizeof out->manifest_sha256);
        memcpy(e->manifest_sha256, sha, sizeof e->manifest_sha256);
        e->signature = *pkg_model_signature(m);
    }
    pkg_model_free(m);
    return rc;
}

static strata_err load(void *self, const struct stage_load *req, void **out, struct stage_unit_info *info,
                       struct strata_errmsg *em) {
    struct stage_engine *e = self;
    struct engine_options eo = {.n_ctx = req->n_ctx,
                                .n_batch = req->n_batch,
                                .n_seq = req->n_seq,
                                .n_pool = req->n_pool,
                                .n_threads = e->n_threads,
                                .device = e->device,
                                .over_memory = e->over_memory,
                                .keep_mapped = e->keep_mapped,
                                .max_logits = req->n_seq, /* a stage samples after a request's last row only */
                                .kv_type = req->kv_type,
                                .progress = e->progress};
    struct unit *u = calloc(1, sizeof *u);
    if (!u) return err_nomem(em, "a stage");
    strata_err rc = open_package(e, (struct pkg_range){req->first, req->end}, PKG_MODEL_VERIFY, &u->model, em);
    /* The coordinator compared the digest that the probe told it. */
    if (!rc && strcmp(pkg_model_manifest_sha256(u->model), e->manifest_sha256) != 0)
        rc = err_set(em, STRATA_EDIGEST, "the package %s was replaced after this stage was started; start it again",
                     e->package);
    if (!rc) rc = engine_new(u->model, &eo, &u->engine, em);
    if (rc) {
        unit_free(u);
        return rc;
    }
    const struct engine_info *ei = engine_info(u->engine);
    *info = (struct stage_unit_info){.n_embd = ei->n_embd,
                                     .n_vocab = ei->n_vocab,
                                     .n_ctx = ei->n_ctx,
                                     .n_batch = ei->n_batch,
                                     .n_threads = ei->n_threads,
                                     .weight_bytes = ei->weight_bytes,
                                     .copied_bytes = ei->copied_bytes + ei->repacked_bytes,
                                     .kv_bytes = ei->kv_bytes,
                                     .scratch_bytes = ei->scratch_bytes};
    *out = u;
    return STRATA_OK;
}

static strata_err run_many(void *unit, const struct engine_batch *b, uint32_t n, const float **out,
                           struct strata_errmsg *em) {
    struct unit *u = unit;
    return engine_run_many(u->engine, b, n, out, em);
}

static strata_err truncate_to(void *unit, uint32_t seq, uint32_t pos, struct strata_errmsg *em) {
    struct unit *u = unit;
    return engine_truncate(u->engine, seq, pos, em);
}

static uint64_t rows_bytes(const void *unit, uint32_t first, uint32_t end) {
    const struct unit *u = unit;
    return engine_rows_bytes(u->engine, first, end);
}

static strata_err save_rows(const void *unit, uint32_t seq, uint32_t first, uint32_t end, void *out,
                            struct strata_errmsg *em) {
    const struct unit *u = unit;
    return engine_save_rows(u->engine, seq, first, end, out, em);
}

static strata_err load_rows(void *unit, uint32_t seq, uint32_t first, uint32_t end, const void *in,
                            struct strata_errmsg *em) {
    struct unit *u = unit;
    return engine_load_rows(u->engine, seq, first, end, in, em);
}

strata_err stage_engine_new(const struct stage_engine_options *opt, struct stage_engine **out,
                            struct strata_errmsg *em) {
    const char *device = opt->device ? opt->device : "cpu";
    ggml_backend_dev_t dev;
    strata_err rc = model_device_find(STRATA_BACKEND_DIR, device, &dev, em);
    if (rc) return rc;
    struct stage_engine *e = calloc(1, sizeof *e);
    if (e) e->package = strdup(opt->package);
    if (e) e->device = strdup(device);
    if (!e || !e->package || !e->device) {
        stage_engine_free(e);
        return err_nomem(em, "a stage");
    }
    e->device_name = ggml_backend_dev_name(dev);
    e->n_threads = opt->n_threads;
    e->over_memory = opt->over_memory;
    e->keep_mapped = opt->keep_mapped;
    e->progress = opt->progress;
    e->signature_required = opt->require_signature != NULL;
    if (opt->require_signature) e->signer = *opt->require_signature;
    *out = e;
    return STRATA_OK;
}

const char *stage_engine_device(const struct stage_engine *e) {
    return e->device_name;
}

void stage_engine_free(struct stage_engine *e) {
    if (!e) return;
    free(e->package);
    free(e->device);
    free(e);
}

const struct pkg_signature *stage_engine_signature(const struct stage_engine *e) {
    return &e->signature;
}

struct stage_backend stage_engine_backend(struct stage_engine *e) {
    return (struct stage_backend){.probe = probe,
                                  .load = load,
                                  .run_many = run_many,
                                  .truncate = truncate_to,
                                  .rows_bytes = rows_bytes,
                                  .save_rows = save_rows,
                                  .load_rows = load_rows,
                                  .free = unit_free,
                                  .self = e};
}

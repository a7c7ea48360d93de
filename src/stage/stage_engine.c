/* The real backend. See stage_engine.h. Owns the opened package of each unit. Refuses plain GGUF files: stages compare
 * packages by the digest of their manifest, and a plain file has none. */
#include "stage/stage_engine.h"

#include <stdlib.h>
#include <string.h>

struct stage_engine {
    char *package;
    uint32_t n_threads;
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

static strata_err probe(void *self, struct stage_probe *out, struct strata_errmsg *em) {
    struct stage_engine *e = self;
    struct pkg_model_options opt = {.flags = PKG_MODEL_METADATA_ONLY};
    struct pkg_model *m;
    strata_err rc = pkg_model_open(e->package, &opt, &m, em);
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
    }
    pkg_model_free(m);
    return rc;
}

static strata_err load(void *self, const struct stage_load *req, void **out, struct stage_unit_info *info,
                       struct strata_errmsg *em) {
    struct stage_engine *e = self;
    struct pkg_model_options mo = {.range = {req->first, req->end}, .flags = PKG_MODEL_VERIFY};
    struct engine_options eo = {.n_ctx = req->n_ctx,
                                .n_batch = req->n_batch,
                                .n_threads = e->n_threads,
                                .max_logits = 1, /* a stage samples after the last row only */
                                .kv_type = req->kv_f32 ? ENGINE_KV_F32 : ENGINE_KV_F16};
    struct unit *u = calloc(1, sizeof *u);
    if (!u) return err_nomem(em, "a stage");
    strata_err rc = pkg_model_open(e->package, &mo, &u->model, em);
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
                                     .copied_bytes = ei->copied_bytes,
                                     .kv_bytes = ei->kv_bytes,
                                     .scratch_bytes = ei->scratch_bytes};
    *out = u;
    return STRATA_OK;
}

static strata_err run(void *unit, const struct engine_batch *b, const float **out, struct strata_errmsg *em) {
    struct unit *u = unit;
    return engine_run(u->engine, b, out, em);
}

static strata_err truncate_to(void *unit, uint32_t pos, struct strata_errmsg *em) {
    struct unit *u = unit;
    return engine_truncate(u->engine, pos, em);
}

strata_err stage_engine_new(const char *package, uint32_t n_threads, struct stage_engine **out,
                            struct strata_errmsg *em) {
    struct stage_engine *e = calloc(1, sizeof *e);
    if (e) e->package = strdup(package);
    if (!e || !e->package) {
        free(e);
        return err_nomem(em, "a stage");
    }
    e->n_threads = n_threads;
    *out = e;
    return STRATA_OK;
}

void stage_engine_free(struct stage_engine *e) {
    if (!e) return;
    free(e->package);
    free(e);
}

struct stage_backend stage_engine_backend(struct stage_engine *e) {
    return (struct stage_backend){
        .probe = probe, .load = load, .run = run, .truncate = truncate_to, .free = unit_free, .self = e};
}

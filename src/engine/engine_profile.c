/* Times a graph's operations one by one. See engine_profile.h. Owns the tables and a graph for one operation. */
#include "engine/engine_profile.h"

#include "base/clock.h"
#include "engine/engine_offload.h"
#include "model/model_own.h"

#include <ggml-alloc.h>
#include <stdlib.h>
#include <string.h>

enum { ONE_NODE = 8, LAUNCH_TRIES = 200 };

/* ---- life cycle ---- */

static int by_time(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static strata_err compute_one(struct engine_profile *p, struct ggml_tensor *t, uint64_t *ns, struct strata_errmsg *em) {
    ggml_graph_clear(p->one);
    ggml_graph_add_node(p->one, t);
    uint64_t start = clock_now_ns();
    enum ggml_status status = ggml_backend_graph_compute(p->backend->handle, p->one);
    *ns = clock_now_ns() - start;
    if (status == GGML_STATUS_SUCCESS) return STRATA_OK;
    return err_set(em, status == GGML_STATUS_ALLOC_FAILED ? STRATA_ENOMEM : STRATA_EINTERNAL, "%s failed: %s",
                   ggml_op_desc(t), ggml_status_to_string(status));
}

/* The time of an operation that does nothing: of many tries the middle one, as a few are disturbed. */
static strata_err measure_launch(struct engine_profile *p, struct strata_errmsg *em) {
    uint64_t ns[LAUNCH_TRIES];
    struct ggml_init_params params = {.mem_size = 4 * ggml_tensor_overhead(), .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    if (!ctx) return err_nomem(em, "the profile");
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    struct ggml_tensor *t = ggml_add(ctx, x, x); /* wakes all threads, as every operation with work to share does */
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, p->backend->handle);
    strata_err rc = buffer ? STRATA_OK : err_nomem(em, "the profile");
    for (size_t i = 0; i < LAUNCH_TRIES && !rc; i++) rc = compute_one(p, t, &ns[i], em);
    if (!rc) {
        qsort(ns, LAUNCH_TRIES, sizeof *ns, by_time);
        p->one_launch_ns = ns[LAUNCH_TRIES / 2];
    }
    if (buffer) ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    return rc;
}

strata_err engine_profile_new(const struct model_backend *backend, struct engine_profile **out,
                              struct strata_errmsg *em) {
    struct engine_profile *p = calloc(1, sizeof *p);
    if (!p) return err_nomem(em, "the profile");
    struct ggml_init_params params = {.mem_size = ggml_graph_overhead_custom(ONE_NODE, false) + ggml_tensor_overhead(),
                                      .no_alloc = true};
    strata_err rc = STRATA_OK;
    p->backend = backend;
    p->ctx = ggml_init(params);
    if (!p->ctx) rc = err_nomem(em, "the profile");
    if (!rc) p->one = ggml_new_graph_custom(p->ctx, ONE_NODE, false);
    if (!rc) rc = measure_launch(p, em);
    if (rc) {
        engine_profile_free(p);
        return rc;
    }
    if (backend->in_place) p->read_rate = engine_profile_read_rate(backend->n_threads, 0);
    *out = p;
    return STRATA_OK;
}

void engine_profile_reset(struct engine_profile *p) {
    p->by_op.n = p->by_matrix.n = p->by_layer.n = 0;
    p->all = (struct engine_profile_row){.count = 0};
    p->n_runs = p->n_tokens = p->launch_ns = 0;
}

void engine_profile_free(struct engine_profile *p) {
    if (!p) return;
    if (p->ctx) ggml_free(p->ctx);
    free(p->by_op.row);
    free(p->by_matrix.row);
    free(p->by_layer.row);
    free(p);
}

/* ---- what an operation has to do ---- */

static uint64_t rows_bytes(const struct ggml_tensor *t) {
    return (uint64_t)ggml_row_size(t->type, t->ne[0]) * (uint64_t)ggml_nrows(t);
}

/* Experts that any token of the batch goes to: only their matrices are read. */
static uint64_t experts_used(const struct ggml_tensor *ids, int64_t n_expert) {
    uint64_t used = 0;
    uint8_t *seen = calloc((size_t)n_expert, 1);
    int32_t *row = malloc((size_t)ids->ne[0] * sizeof *row);
    for (int64_t t = 0; t < ids->ne[1] && seen && row; t++) {
        ggml_backend_tensor_get(ids, row, (size_t)t * ids->nb[1], (size_t)ids->ne[0] * sizeof *row);
        for (int64_t k = 0; k < ids->ne[0]; k++)
            if (row[k] >= 0 && row[k] < n_expert && !seen[row[k]]) {
                seen[row[k]] = 1;
                used++;
            }
    }
    free(seen);
    free(row);
    return used;
}

static void work_of(const struct ggml_tensor *t, struct engine_profile_row *r) {
    const struct ggml_tensor *a = t->src[0];
    switch (model_own_op(t)) {
    case GGML_OP_MUL_MAT:
        r->bytes = rows_bytes(a);
        r->flops = 2.0 * (double)ggml_nelements(t) * (double)a->ne[0];
        break;
    case GGML_OP_MUL_MAT_ID:
        r->bytes = rows_bytes(a) / (uint64_t)a->ne[2] * experts_used(t->src[2], a->ne[2]);
        r->flops = 2.0 * (double)ggml_nelements(t) * (double)a->ne[0];
        break;
    case GGML_OP_FLASH_ATTN_EXT:
        r->bytes = rows_bytes(t->src[1]) + rows_bytes(t->src[2]);
        r->flops = 2.0 * (double)ggml_nrows(a) * (double)t->src[1]->ne[1] * (double)(a->ne[0] + t->src[2]->ne[0]);
        break;
    case GGML_OP_GET_ROWS: r->bytes = (uint64_t)ggml_row_size(a->type, a->ne[0]) * (uint64_t)ggml_nrows(t); break;
    default: break;
    }
}

/* ---- noting ---- */

static struct engine_profile_row *row_of(struct engine_profile_table *t, const char *name) {
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->row[i].name, name) == 0) return &t->row[i];
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 32;
        struct engine_profile_row *grown = realloc(t->row, cap * sizeof *grown);
        if (!grown) return NULL;
        t->row = grown;
        t->cap = cap;
    }
    struct engine_profile_row *r = &t->row[t->n++];
    *r = (struct engine_profile_row){.count = 0};
    snprintf(r->name, sizeof r->name, "%s", name);
    return r;
}

static void add(struct engine_profile_row *sum, const struct engine_profile_row *one) {
    sum->count++;
    sum->ns += one->ns;
    sum->bytes += one->bytes;
    sum->flops += one->flops;
}

static bool is_weight(const struct ggml_tensor *t) {
    return t && t->buffer && ggml_backend_buffer_get_usage(t->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

/* "blk.12.attn_q.weight" without its layer. */
static const char *part_name(const char *name) {
    if (strncmp(name, "blk.", 4) != 0) return name;
    const char *dot = strchr(name + 4, '.');
    return dot ? dot + 1 : name;
}

static strata_err note(struct engine_profile *p, const struct ggml_tensor *t, uint64_t ns, struct strata_errmsg *em) {
    char op[ENGINE_PROFILE_NAME], matrix[ENGINE_PROFILE_NAME];
    uint64_t launch = ns < p->one_launch_ns ? ns : p->one_launch_ns;
    struct engine_profile_row one = {.ns = ns - launch};
    enum ggml_op kind = model_own_op(t);
    bool product = (kind == GGML_OP_MUL_MAT || kind == GGML_OP_MUL_MAT_ID) && is_weight(t->src[0]);
    work_of(t, &one);
    if (product) {
        const char *type = ggml_type_name(t->src[0]->type);
        snprintf(op, sizeof op, "%s %s", ggml_op_name(kind), type);
        snprintf(matrix, sizeof matrix, "%.48s %s", part_name(t->src[0]->name), type);
    } else {
        snprintf(op, sizeof op, "%s", kind == t->op ? ggml_op_desc(t) : ggml_op_name(kind));
    }
    struct engine_profile_row *by_op = row_of(&p->by_op, op), *by_layer = row_of(&p->by_layer, t->name);
    struct engine_profile_row *by_matrix = product ? row_of(&p->by_matrix, matrix) : NULL;
    if (!by_op || !by_layer || (product && !by_matrix)) return err_nomem(em, "the profile");
    add(by_op, &one);
    add(by_layer, &one);
    if (by_matrix) add(by_matrix, &one);
    add(&p->all, &one);
    p->launch_ns += launch;
    return STRATA_OK;
}

/* What the scheduler calls before (ask) and after each operation. */
struct watch {
    struct engine_profile *p;
    uint64_t start;
    strata_err rc;
    struct strata_errmsg *em;
};

static bool on_operation(struct ggml_tensor *t, bool ask, void *user) {
    struct watch *w = user;
    if (ask) {
        w->start = clock_now_ns();
        return engine_offload_computes(t);
    }
    w->rc = note(w->p, t, clock_now_ns() - w->start, w->em);
    return w->rc == STRATA_OK;
}

static strata_err compute_watched(struct engine_profile *p, struct ggml_cgraph *graph, ggml_backend_sched_t sched,
                                  struct strata_errmsg *em) {
    struct watch w = {.p = p, .em = em};
    ggml_backend_sched_set_eval_callback(sched, on_operation, &w);
    enum ggml_status status = ggml_backend_sched_graph_compute(sched, graph);
    ggml_backend_sched_set_eval_callback(sched, NULL, NULL);
    if (w.rc || status == GGML_STATUS_SUCCESS) return w.rc;
    return err_set(em, status == GGML_STATUS_ALLOC_FAILED ? STRATA_ENOMEM : STRATA_EINTERNAL,
                   "computing a graph failed: %s", ggml_status_to_string(status));
}

strata_err engine_profile_compute(struct engine_profile *p, struct ggml_cgraph *graph, ggml_backend_sched_t sched,
                                  uint32_t n_tokens, struct strata_errmsg *em) {
    strata_err rc = sched ? compute_watched(p, graph, sched, em) : STRATA_OK;
    for (int i = 0; i < ggml_graph_n_nodes(graph) && !rc && !sched; i++) {
        struct ggml_tensor *t = ggml_graph_node(graph, i);
        uint64_t ns;
        if (!engine_offload_computes(t)) continue;
        rc = compute_one(p, t, &ns, em);
        if (!rc) rc = note(p, t, ns, em);
    }
    p->n_runs++;
    p->n_tokens += n_tokens;
    return rc;
}

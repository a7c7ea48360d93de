/*
 * One device, opened for one engine, with the CPU beside it where the device is another. See model_backend.h.
 *
 * Owns ggml's handles. Refuses what the devices cannot do before ggml is asked to do it.
 */
#include "model/model_backend.h"

#include "base/cpus.h"
#include "base/file.h"
#include "base/memory.h"
#include "model/model_device.h"

#include <ggml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Spins before a waiting thread sleeps: longer than what lies between two tokens, where one thread looks at the logits
 * and sends, and too short to be felt by others. docs/engine.md has the figures. */
#define SPIN_COUNT "40000"

void model_backend_tune_process(char **argv) {
    char self[PATH_MAX_LEN];
    static const char *const told[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_PROC_BIND", "OMP_PLACES",
                                       "GOMP_CPU_AFFINITY"};
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++)
        if (getenv(told[i])) return;
    /* The real path, so that the process keeps its name in `ps`. */
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0 || (size_t)n >= sizeof self - 1) return;
    self[n] = '\0';
    if (setenv("GOMP_SPINCOUNT", SPIN_COUNT, 1) == 0) execv(self, argv);
}

static uint32_t cores(void) {
    unsigned n = cpus_count();
    return n > MODEL_BACKEND_MAX_THREADS ? MODEL_BACKEND_MAX_THREADS : n;
}

static void *proc_of(ggml_backend_dev_t dev, const char *name) {
    return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), name);
}

static strata_err set_threads(ggml_backend_t handle, uint32_t n, struct strata_errmsg *em) {
    ggml_backend_set_n_threads_t set = NULL;
    void *address = proc_of(ggml_backend_get_device(handle), "ggml_backend_set_n_threads");
    memcpy(&set, &address, sizeof set); /* ISO C has no cast from data to function pointers */
    if (!set) return err_set(em, STRATA_EUNSUPPORTED, "this build of ggml cannot set the number of threads");
    set(handle, (int)n);
    return STRATA_OK;
}

/* The CPU, for what another device cannot compute, and where inputs are. */
static strata_err open_host(struct model_backend *b, const char *dir, struct strata_errmsg *em) {
    strata_err rc = model_device_find(dir, "cpu", &b->host_dev, em);
    if (rc) return rc;
    b->host = ggml_backend_dev_init(b->host_dev, NULL);
    return b->host ? set_threads(b->host, b->n_threads, em) : err_nomem(em, "ggml's CPU backend");
}

strata_err model_backend_init(struct model_backend *out, const char *dir, const char *device, uint32_t n_threads,
                              struct strata_errmsg *em) {
    struct model_backend b = {.n_threads = n_threads ? n_threads : cores()};
    if (!dir) dir = STRATA_BACKEND_DIR;
    if (!device) device = "cpu";
    if (b.n_threads > MODEL_BACKEND_MAX_THREADS)
        return err_set(em, STRATA_EINVAL, "%u threads are over the limit of %d", (unsigned)n_threads,
                       (int)MODEL_BACKEND_MAX_THREADS);
    strata_err rc = model_device_find(dir, device, &b.dev, em);
    if (rc) return rc;
    bool is_cpu = ggml_backend_dev_type(b.dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
    b.in_place = is_cpu && strcasecmp(device, MODEL_DEVICE_CPU_COPY) != 0;
    b.handle = ggml_backend_dev_init(b.dev, NULL);
    if (!b.handle) {
        rc = is_cpu ? err_nomem(em, "ggml's CPU backend")
                    : err_set(em, STRATA_EUNSUPPORTED, "the device %s cannot be opened; ggml tells why above",
                              ggml_backend_dev_name(b.dev));
        goto out;
    }
    b.host_dev = b.dev;
    if (is_cpu) rc = set_threads(b.handle, b.n_threads, em);
    if (!rc && !b.in_place) rc = open_host(&b, dir, em);
    if (rc) goto out;
    b.buft = ggml_backend_get_default_buffer_type(b.handle);
    b.alignment = ggml_backend_get_alignment(b.in_place ? b.handle : b.host);
    if (b.in_place) {
        model_rows_find(&b.rows, &b);
        model_attn_find(&b.attn, &b);
    }
    *out = b;
out:
    if (rc) model_backend_deinit(&b);
    return rc;
}

void model_backend_deinit(struct model_backend *b) {
    if (b->handle) ggml_backend_free(b->handle);
    if (b->host) ggml_backend_free(b->host);
    b->handle = b->host = NULL;
}

const char *model_backend_describe(const struct model_backend *b, char *out, size_t cap) {
    ggml_backend_get_features_t get_features = NULL;
    void *address = proc_of(b->dev, "ggml_backend_get_features");
    memcpy(&get_features, &address, sizeof get_features);
    bool is_cpu = ggml_backend_dev_type(b->dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
    int n = snprintf(out, cap, "%s", ggml_backend_dev_name(b->dev));
    /* Of a processor the instruction sets tell how it rounds, of a card its make. */
    if (!is_cpu && n > 0 && (size_t)n < cap)
        n += snprintf(out + n, cap - (size_t)n, " %s", ggml_backend_dev_description(b->dev));
    const struct ggml_backend_feature *f = get_features ? get_features(ggml_backend_dev_backend_reg(b->dev)) : NULL;
    for (; f && f->name && n > 0 && (size_t)n < cap; f++)
        n += snprintf(out + n, cap - (size_t)n, " %s=%s", f->name, f->value);
    return out;
}

static bool device_can_use(ggml_backend_dev_t dev, enum ggml_type type, enum model_backend_use use) {
    int64_t block = ggml_blck_size(type);
    struct ggml_init_params params = {.mem_size = 8 * ggml_tensor_overhead(), .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    if (!ctx || block < 1) return false;
    struct ggml_tensor *w = ggml_new_tensor_2d(ctx, type, block, 1), *op = NULL;
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, block, 1);
    switch (use) {
    case MODEL_BACKEND_MULTIPLY: op = ggml_mul_mat(ctx, w, x); break;
    case MODEL_BACKEND_EXPERTS: op = ggml_mul_mat_id(ctx, w, x, ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, 1)); break;
    case MODEL_BACKEND_LOOK_UP: op = ggml_get_rows(ctx, w, ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1)); break;
    case MODEL_BACKEND_STORE: op = ggml_set_rows(ctx, w, x, ggml_new_tensor_1d(ctx, GGML_TYPE_I64, 1)); break;
    }
    bool ok = ggml_backend_dev_supports_op(dev, op);
    ggml_free(ctx);
    return ok;
}

bool model_backend_can_use(const struct model_backend *b, uint32_t type, enum model_backend_use use, bool on_host) {
    if (type >= GGML_TYPE_COUNT) return false;
    const struct ggml_type_traits *traits = ggml_get_type_traits((enum ggml_type)type);
    /* Types without a conversion to floats are whole numbers or ggml's own intermediates: nothing multiplies them. */
    if (type != GGML_TYPE_F32 && !traits->to_float) return false;
    return device_can_use(on_host ? b->host_dev : b->dev, (enum ggml_type)type, use);
}

uint64_t model_backend_memory_free(const struct model_backend *b) {
    size_t free_bytes = 0, total = 0;
    if (ggml_backend_dev_type(b->dev) == GGML_BACKEND_DEVICE_TYPE_CPU) return model_backend_memory_available();
    ggml_backend_dev_memory(b->dev, &free_bytes, &total);
    return total ? free_bytes : UINT64_MAX;
}

uint64_t model_backend_memory_available(void) {
    return memory_available();
}

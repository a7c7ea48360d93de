/*
 * Loads ggml's backends and wraps the CPU device. See model_backend.h.
 *
 * The only state of the process that this file adds is a lock around ggml's own registry. It refuses a folder that
 * holds no CPU backend, before anything else is tried.
 */
#include "model/model_backend.h"

#include "base/file.h"
#include "base/memory.h"

#include <ggml.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ggml's registry belongs to the process and does not lock itself. */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;

/* ggml reports each library it tries; only its errors are worth a user's eyes. */
static void on_ggml_log(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static strata_err load_cpu_device(const char *dir, ggml_backend_dev_t *out, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    pthread_mutex_lock(&registry_lock);
    ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!dev) {
        if (!file_is_dir(dir)) {
            rc =
                err_set(em, STRATA_ENOENT, "the folder of ggml's backends is missing: %s; run scripts/deps again", dir);
            goto out;
        }
        ggml_log_set(on_ggml_log, NULL);
        ggml_backend_load_all_from_path(dir);
        dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    if (!dev) {
        rc = err_set(em, STRATA_ENOENT, "no CPU backend of ggml that this processor can run was found in %s", dir);
        goto out;
    }
    *out = dev;
out:
    pthread_mutex_unlock(&registry_lock);
    return rc;
}

/* Spins before a waiting thread sleeps: the fewest that cost nothing on an idle machine. docs/engine.md has the
 * figures. */
#define SPIN_COUNT "5000"

void model_backend_tune_process(char **argv) {
    char self[PATH_MAX_LEN];
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    /* The real path, so that the process keeps its name in `ps`. */
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0 || (size_t)n >= sizeof self - 1) return;
    self[n] = '\0';
    if (setenv("GOMP_SPINCOUNT", SPIN_COUNT, 1) == 0) execv(self, argv);
}

static uint32_t cores(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1) n = 1;
    return n > MODEL_BACKEND_MAX_THREADS ? MODEL_BACKEND_MAX_THREADS : (uint32_t)n;
}

strata_err model_backend_init(struct model_backend *b, const char *dir, uint32_t n_threads, struct strata_errmsg *em) {
    struct model_backend m = {.n_threads = n_threads ? n_threads : cores()};
    if (m.n_threads > MODEL_BACKEND_MAX_THREADS)
        return err_set(em, STRATA_EINVAL, "%u threads are over the limit of %d", (unsigned)n_threads,
                       (int)MODEL_BACKEND_MAX_THREADS);
    strata_err rc = load_cpu_device(dir ? dir : STRATA_BACKEND_DIR, &m.dev, em);
    if (rc) return rc;
    m.handle = ggml_backend_dev_init(m.dev, NULL);
    if (!m.handle) return err_nomem(em, "ggml's CPU backend");
    m.buft = ggml_backend_get_default_buffer_type(m.handle);
    m.alignment = ggml_backend_get_alignment(m.handle);
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(m.dev);
    ggml_backend_set_n_threads_t set_threads = NULL;
    void *address = ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    memcpy(&set_threads, &address, sizeof set_threads); /* ISO C has no cast from data to function pointers */
    if (!set_threads) {
        ggml_backend_free(m.handle);
        return err_set(em, STRATA_EUNSUPPORTED, "this build of ggml cannot set the number of threads");
    }
    set_threads(m.handle, (int)m.n_threads);
    *b = m;
    return STRATA_OK;
}

void model_backend_deinit(struct model_backend *b) {
    if (b->handle) ggml_backend_free(b->handle);
    b->handle = NULL;
}

const char *model_backend_describe(const struct model_backend *b, char *out, size_t cap) {
    ggml_backend_get_features_t get_features = NULL;
    void *address =
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(b->dev), "ggml_backend_get_features");
    memcpy(&get_features, &address, sizeof get_features);
    int n = snprintf(out, cap, "%s", ggml_backend_dev_name(b->dev));
    const struct ggml_backend_feature *f = get_features ? get_features(ggml_backend_dev_backend_reg(b->dev)) : NULL;
    for (; f && f->name && n > 0 && (size_t)n < cap; f++)
        n += snprintf(out + n, cap - (size_t)n, " %s=%s", f->name, f->value);
    return out;
}

bool model_backend_can_use(const struct model_backend *b, uint32_t type, bool rows) {
    if (type >= GGML_TYPE_COUNT) return false;
    const struct ggml_type_traits *traits = ggml_get_type_traits((enum ggml_type)type);
    /* Types without a conversion to floats are whole numbers or ggml's own intermediates: nothing multiplies them. */
    if (type != GGML_TYPE_F32 && !traits->to_float) return false;
    int64_t block = ggml_blck_size((enum ggml_type)type);
    struct ggml_init_params params = {.mem_size = 8 * ggml_tensor_overhead(), .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    if (!ctx || block < 1) return false;
    struct ggml_tensor *w = ggml_new_tensor_2d(ctx, (enum ggml_type)type, block, 1);
    struct ggml_tensor *op;
    if (rows) {
        op = ggml_get_rows(ctx, w, ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1));
    } else {
        op = ggml_mul_mat(ctx, w, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, block, 1));
    }
    bool ok = ggml_backend_dev_supports_op(b->dev, op);
    ggml_free(ctx);
    return ok;
}

uint64_t model_backend_memory_available(void) {
    return memory_available();
}

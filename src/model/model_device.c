/*
 * Loads ggml's backend libraries and finds devices. See model_device.h.
 *
 * The only state of the process that this file adds is a lock around ggml's own registry, and whether all libraries
 * were loaded into it. Refuses a folder that holds no CPU backend, before anything else is tried.
 */
#include "model/model_device.h"

#include "base/file.h"
#include "base/path.h"
#include "model/model_backend.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <ggml.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ggml's registry belongs to the process and does not lock itself. */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static bool all_loaded; /* under the lock */

static const char lib_prefix[] = "libggml-", cpu_prefix[] = "libggml-cpu";

/* ggml reports each library it tries; only its errors are worth a user's eyes. */
static void on_ggml_log(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

/* ---- libraries ---- */

static bool is_backend(const char *name, bool cpu) {
    size_t n = strlen(name);
    if (strncmp(name, lib_prefix, sizeof lib_prefix - 1) != 0 || n < 3 || strcmp(name + n - 3, ".so") != 0)
        return false;
    return (strncmp(name, cpu_prefix, sizeof cpu_prefix - 1) == 0) == cpu && strncmp(name, "libggml-base", 12) != 0;
}

/* How well a library's instruction sets fit this processor; 0: not at all. A library that does not say so has no
 * variants and fits. */
static int score(const char *path) {
    int (*fn)(void) = NULL;
    int result = 1;
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) return 0;
    void *address = dlsym(lib, "ggml_backend_score");
    memcpy(&fn, &address, sizeof fn); /* ISO C has no cast from data to function pointers */
    if (fn) result = fn();
    dlclose(lib);
    return result;
}

static strata_err open_dir(const char *dir, DIR **out, struct strata_errmsg *em) {
    if (!file_is_dir(dir))
        return err_set(em, STRATA_ENOENT, "the folder of ggml's backends is missing: %s; run scripts/deps again", dir);
    *out = opendir(dir);
    return *out ? STRATA_OK : err_sys(em, STRATA_EIO, errno, "cannot read the folder of ggml's backends %s", dir);
}

static strata_err load_cpu(const char *dir, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN], best[PATH_MAX_LEN] = "";
    int best_score = 0;
    DIR *d;
    if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) return STRATA_OK;
    strata_err rc = open_dir(dir, &d, em);
    if (rc) return rc;
    ggml_log_set(on_ggml_log, NULL);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (!is_backend(e->d_name, true)) continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path) continue;
        int s = score(path);
        if (s <= best_score) continue;
        best_score = s;
        memcpy(best, path, sizeof best);
    }
    closedir(d);
    if (best_score > 0) ggml_backend_load(best);
    if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) return STRATA_OK;
    return err_set(em, STRATA_ENOENT, "no CPU backend of ggml that this processor can run was found in %s", dir);
}

/* Every other library, and the one that ggml's own variable names. One that cannot be loaded says why on stderr. */
static strata_err load_all(const char *dir, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    DIR *d;
    strata_err rc = load_cpu(dir, em);
    if (rc || all_loaded) return rc;
    rc = open_dir(dir, &d, em);
    if (rc) return rc;
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        if (is_backend(e->d_name, false) && snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < (int)sizeof path)
            ggml_backend_load(path);
    closedir(d);
    const char *extra = getenv("GGML_BACKEND_PATH");
    if (extra && *extra) ggml_backend_load(extra);
    all_loaded = true;
    return STRATA_OK;
}

/* ---- devices ---- */

/* NULL: not one that runs models by itself. */
static const char *kind_of(ggml_backend_dev_t dev) {
    switch (ggml_backend_dev_type(dev)) {
    case GGML_BACKEND_DEVICE_TYPE_CPU: return "CPU";
    case GGML_BACKEND_DEVICE_TYPE_GPU: return "GPU";
    case GGML_BACKEND_DEVICE_TYPE_IGPU: return "integrated GPU";
    case GGML_BACKEND_DEVICE_TYPE_ACCEL: /* helps the CPU with some operations, in the CPU's memory */
    case GGML_BACKEND_DEVICE_TYPE_META:
    default: return NULL;
    }
}

static ggml_backend_dev_t by_name(const char *name) {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (kind_of(dev) && strcasecmp(ggml_backend_dev_name(dev), name) == 0) return dev;
    }
    return NULL;
}

static ggml_backend_dev_t best(void) {
    ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    if (!dev) dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
    return dev ? dev : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

static strata_err unknown(const char *name, struct strata_errmsg *em) {
    char names[256] = "";
    size_t len = 0;
    for (size_t i = 0; i < ggml_backend_dev_count() && len < sizeof names; i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (!kind_of(dev)) continue;
        int n = snprintf(names + len, sizeof names - len, "%s%s", len ? ", " : "", ggml_backend_dev_name(dev));
        len += n > 0 ? (size_t)n : 0;
    }
    return err_set(em, STRATA_ENOENT, "there is no device '%.64s'; ggml offers here: %s", name, names);
}

static bool is_cpu(const char *name) {
    return strcasecmp(name, "cpu") == 0 || strcasecmp(name, MODEL_DEVICE_CPU_COPY) == 0;
}

strata_err model_device_find(const char *dir, const char *name, ggml_backend_dev_t *out, struct strata_errmsg *em) {
    pthread_mutex_lock(&registry_lock);
    strata_err rc = is_cpu(name) ? load_cpu(dir, em) : load_all(dir, em);
    if (rc) goto out;
    ggml_backend_dev_t dev = is_cpu(name)                    ? ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)
                             : strcasecmp(name, "auto") == 0 ? best()
                                                             : by_name(name);
    if (dev)
        *out = dev;
    else
        rc = unknown(name, em);
out:
    pthread_mutex_unlock(&registry_lock);
    return rc;
}

static int cpu_first(const void *a, const void *b) {
    const struct model_device_info *x = a, *y = b;
    int by_kind = (strcmp(x->kind, "CPU") != 0) - (strcmp(y->kind, "CPU") != 0);
    return by_kind ? by_kind : strcmp(x->name, y->name);
}

strata_err model_device_list(const char *dir, struct model_device_info **out, size_t *n, struct strata_errmsg *em) {
    pthread_mutex_lock(&registry_lock);
    struct model_device_info *all = NULL;
    size_t len = 0;
    strata_err rc = load_all(dir, em);
    if (!rc && !(all = calloc(ggml_backend_dev_count(), sizeof *all))) rc = err_nomem(em, "the list of devices");
    for (size_t i = 0; !rc && i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        size_t free_bytes = 0, total = 0;
        if (!kind_of(dev)) continue;
        ggml_backend_dev_memory(dev, &free_bytes, &total);
        struct model_device_info *d = &all[len++];
        *d = (struct model_device_info){.kind = kind_of(dev), .free = free_bytes, .total = total};
        /* ggml counts all of the main memory as free. */
        if (d->free && strcmp(d->kind, "CPU") == 0) d->free = model_backend_memory_available();
        snprintf(d->name, sizeof d->name, "%s", ggml_backend_dev_name(dev));
        snprintf(d->description, sizeof d->description, "%s", ggml_backend_dev_description(dev));
    }
    pthread_mutex_unlock(&registry_lock);
    if (rc) return rc;
    qsort(all, len, sizeof *all, cpu_first);
    *out = all;
    *n = len;
    return STRATA_OK;
}

/*
 * A model on disk for the GLM-DSA contract: a package, a GGUF file or split set, or a folder of GGUF files.
 *
 * A package is opened even when its generation block is faulty, because that is what the contract reports and the
 * repair mends; everything else must be sound. Owns what it opened.
 */
#include "package/pkg_glm_dsa_priv.h"

#include "base/path.h"
#include "package/pkg_part.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_DEPTH = 8, MAX_FILES = 100000 };

/* A file of a folder. */
struct loose {
    char *path;
    struct file_map map;
    struct gguf_reader *reader;
};

struct pkg_glm_dsa_files {
    char *path; /* as the user gave it */
    const char *kind;
    struct gguf_source *source; /* of a GGUF file */
    struct pkg_manifest *manifest;
    char *dir; /* the package's folder */
    struct pkg_part *parts;
    size_t n_parts;
    struct loose *loose;
    size_t n_loose, cap_loose;
    struct pkg_inventory inv;
};

/* ---- several files as one model ---- */

static strata_err add_tensors(struct pkg_inventory *inv, const struct gguf_reader *r, struct strata_errmsg *em) {
    for (size_t i = 0; i < gguf_reader_tensor_count(r); i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(r, i);
        const struct pkg_tensor *have = pkg_inventory_find(inv, t->name);
        if (have && (have->t->type != t->type || memcmp(have->t->ne, t->ne, sizeof t->ne) != 0))
            return err_set(em, STRATA_EFORMAT, "%s: tensor '%s' differs from its copy in another file",
                           gguf_reader_name(r), t->name);
        if (have) continue;
        struct pkg_tensor *x = &inv->tensors[inv->n_tensors];
        x->t = t;
        x->class = pkg_class_of(t->name, &x->layer);
        if (x->class == PKG_CLASS_LAYER && x->layer >= inv->layer_count) inv->layer_count = x->layer + 1;
        gguf_index_put(&inv->index, t->name, inv->n_tensors++);
    }
    return STRATA_OK;
}

/* The metadata is the first file's that names an architecture; the others must agree. */
static strata_err add_metadata(struct pkg_inventory *inv, const struct gguf_reader *r, struct strata_errmsg *em) {
    struct gguf_str mine = {0}, first = {0};
    strata_err rc = gguf_reader_get_str(r, "general.architecture", false, &mine, em);
    if (rc || !mine.data) return rc;
    if (!inv->meta) {
        inv->meta = r;
        return STRATA_OK;
    }
    rc = gguf_reader_get_str(inv->meta, "general.architecture", true, &first, em);
    if (!rc && (mine.len != first.len || memcmp(mine.data, first.data, first.len) != 0))
        rc = err_set(em, STRATA_EFORMAT, "%s and %s are of different architectures: name one model",
                     gguf_reader_name(inv->meta), gguf_reader_name(r));
    return rc;
}

/* readers: n of them, at least one. What schema and contract say of layers is the check's; this is a list. */
static strata_err merge(struct pkg_inventory *inv, const struct gguf_reader *const *readers, size_t n,
                        struct strata_errmsg *em) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += gguf_reader_tensor_count(readers[i]);
    inv->tensors = calloc(total + 1, sizeof *inv->tensors);
    if (!inv->tensors) return err_nomem(em, "the list of tensors");
    strata_err rc = gguf_index_init(&inv->index, total, em);
    for (size_t i = 0; i < n && !rc; i++) {
        rc = add_metadata(inv, readers[i], em);
        if (!rc) rc = add_tensors(inv, readers[i], em);
    }
    if (!inv->meta) inv->meta = readers[0];
    inv->tied = !pkg_inventory_find(inv, "output.weight");
    return rc;
}

/* ---- packages ---- */

static bool is_about_generation(enum pkg_fault_code code) {
    return code >= PKG_FAULT_INVALID_GENERATION_FIELD && code <= PKG_FAULT_GLM_DSA_CONTRACT;
}

static strata_err refuse_faults(const struct pkg_faults *faults, const char *dir, struct strata_errmsg *em) {
    if (faults->out_of_memory) return err_nomem(em, "the list of faults");
    for (size_t i = 0; i < faults->n; i++) {
        const struct pkg_fault *f = &faults->list[i];
        if (pkg_fault_severity(f->code) == PKG_ERROR && !is_about_generation(f->code))
            return err_set(em, STRATA_EFORMAT, "%s: %s: %s", dir, f->message, pkg_fault_remedy(f->code));
    }
    if (faults->n_dropped) return err_set(em, STRATA_EFORMAT, "%s: the manifest has too many faults", dir);
    return STRATA_OK;
}

static strata_err read_manifest(struct pkg_glm_dsa_files *f, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct buf text;
    struct pkg_faults faults;
    buf_init(&text, PKG_MANIFEST_MAX_BYTES);
    pkg_faults_init(&faults);
    strata_err rc = path_join(path, sizeof path, f->dir, PKG_MANIFEST_FILE, em);
    if (!rc) rc = file_read_all(path, PKG_MANIFEST_MAX_BYTES, &text, em);
    if (!rc) rc = pkg_manifest_check(buf_cstr(&text), text.len, &faults, &f->manifest, em);
    if (!rc) rc = refuse_faults(&faults, f->dir, em);
    if (!rc && !f->manifest) rc = err_set(em, STRATA_EFORMAT, "%s: the manifest cannot be read", f->dir);
    pkg_faults_deinit(&faults);
    buf_deinit(&text);
    return rc;
}

static strata_err open_parts(struct pkg_glm_dsa_files *f, struct strata_errmsg *em) {
    struct pkg_faults faults;
    strata_err rc = STRATA_OK;
    f->parts = calloc(f->manifest->n_artifacts + 1, sizeof *f->parts);
    if (!f->parts) return err_nomem(em, "a package");
    pkg_faults_init(&faults);
    for (size_t i = 0; i < f->manifest->n_artifacts && !rc; i++) {
        const struct pkg_artifact *a = &f->manifest->artifacts[i];
        if (a->role > PKG_ROLE_LAYER) continue; /* companions of the model, not parts of it */
        rc = pkg_part_open(f->dir, a, false, NULL, &faults, &f->parts[f->n_parts++], em);
        if (!rc) rc = pkg_faults_first(&faults, f->dir, em);
        if (!rc && a->role != PKG_ROLE_METADATA) pkg_part_release_pages(&f->parts[f->n_parts - 1]);
    }
    pkg_faults_deinit(&faults);
    return rc;
}

static strata_err open_package(struct pkg_glm_dsa_files *f, const char *dir, struct strata_errmsg *em) {
    const struct gguf_reader **readers = NULL;
    size_t n = 0;
    f->kind = "model_package";
    f->dir = strdup(dir);
    if (!f->dir) return err_nomem(em, "a package");
    strata_err rc = read_manifest(f, em);
    if (!rc) rc = open_parts(f, em);
    if (rc) return rc;
    readers = calloc(f->n_parts + 1, sizeof *readers);
    if (!readers) return err_nomem(em, "a package");
    for (size_t i = 0; i < f->n_parts; i++)
        if (f->parts[i].reader) readers[n++] = f->parts[i].reader;
    rc = n ? merge(&f->inv, readers, n, em) : err_set(em, STRATA_EFORMAT, "%s holds no part that can be read", dir);
    free(readers);
    return rc;
}

/* ---- folders ---- */

static strata_err add_loose(struct pkg_glm_dsa_files *f, const char *path, struct strata_errmsg *em) {
    if (f->n_loose == MAX_FILES)
        return err_set(em, STRATA_ELIMIT, "%s holds more than %d GGUF files", f->path, MAX_FILES);
    if (f->n_loose == f->cap_loose) {
        size_t cap = f->cap_loose ? f->cap_loose * 2 : 16;
        struct loose *list = reallocarray(f->loose, cap, sizeof *list);
        if (!list) return err_nomem(em, "a list of files");
        f->loose = list;
        f->cap_loose = cap;
    }
    char *copy = strdup(path);
    if (!copy) return err_nomem(em, "a list of files");
    f->loose[f->n_loose++] = (struct loose){.path = copy};
    return STRATA_OK;
}

static bool is_model_name(const char *name) {
    size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, ".gguf") == 0 && strncmp(name, "mmproj", 6) != 0;
}

/* Links are followed to files, never to folders. */
static strata_err list_folder(struct pkg_glm_dsa_files *f, const char *dir, int depth, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    const struct dirent *e = NULL;
    struct stat st;
    DIR *d = opendir(dir);
    if (!d) return err_sys(em, STRATA_EIO, errno, "cannot list %s", dir);
    strata_err rc = STRATA_OK;
    while (!rc && !(rc = file_dir_next(d, dir, &e, em)) && e) {
        if (e->d_name[0] == '.') continue;
        rc = path_join(path, sizeof path, dir, e->d_name, em);
        if (rc || lstat(path, &st) != 0) continue;
        if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH)
            rc = list_folder(f, path, depth + 1, em);
        else if (is_model_name(e->d_name) && file_is_regular(path))
            rc = add_loose(f, path, em);
    }
    closedir(d);
    return rc;
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const struct loose *)a)->path, ((const struct loose *)b)->path);
}

static strata_err open_folder(struct pkg_glm_dsa_files *f, struct strata_errmsg *em) {
    const struct gguf_reader **readers = NULL;
    f->kind = "gguf_directory";
    strata_err rc = list_folder(f, f->path, 0, em);
    if (!rc && f->n_loose == 0) rc = err_set(em, STRATA_ENOENT, "no GGUF files found under %s", f->path);
    if (rc) return rc;
    qsort(f->loose, f->n_loose, sizeof *f->loose, by_path);
    readers = calloc(f->n_loose, sizeof *readers);
    if (!readers) return err_nomem(em, "a model");
    for (size_t i = 0; i < f->n_loose && !rc; i++) {
        struct loose *x = &f->loose[i];
        rc = file_map_open(x->path, &x->map, em);
        if (!rc) rc = gguf_reader_new(x->map.data, x->map.size, x->path, &x->reader, em);
        readers[i] = x->reader;
    }
    if (!rc) rc = merge(&f->inv, readers, f->n_loose, em);
    free(readers);
    return rc;
}

/* ---- all ---- */

/* Whether a path names a package: into dir goes its folder. A folder without a manifest is none. */
static bool is_package(const char *path, char *dir, size_t cap) {
    char manifest[PATH_MAX_LEN];
    struct strata_errmsg em;
    if (!pkg_part_folder(path, dir, cap)) return false;
    return !file_is_dir(path) || (path_join(manifest, sizeof manifest, dir, PKG_MANIFEST_FILE, &em) == STRATA_OK &&
                                  file_is_regular(manifest));
}

strata_err pkg_glm_dsa_open(const char *path, struct pkg_glm_dsa_files **out, struct strata_errmsg *em) {
    char dir[PATH_MAX_LEN];
    strata_err rc;
    struct pkg_glm_dsa_files *f = calloc(1, sizeof *f);
    if (!f) return err_nomem(em, "a model");
    f->path = strdup(path);
    if (!f->path) {
        rc = err_nomem(em, "a model");
    } else if (is_package(path, dir, sizeof dir)) {
        rc = open_package(f, dir, em);
    } else if (file_is_dir(path)) {
        rc = open_folder(f, em);
    } else {
        f->kind = "gguf_file";
        rc = gguf_source_open(path, &f->source, em);
        if (!rc) rc = pkg_inventory_init(&f->inv, f->source, em);
    }
    if (rc) {
        pkg_glm_dsa_close(f);
        return rc;
    }
    *out = f;
    return STRATA_OK;
}

void pkg_glm_dsa_close(struct pkg_glm_dsa_files *f) {
    if (!f) return;
    pkg_inventory_deinit(&f->inv);
    gguf_source_free(f->source);
    for (size_t i = 0; i < f->n_parts; i++) pkg_part_close(&f->parts[i]);
    free(f->parts);
    pkg_manifest_free(f->manifest);
    for (size_t i = 0; i < f->n_loose; i++) {
        gguf_reader_free(f->loose[i].reader);
        file_map_close(&f->loose[i].map);
        free(f->loose[i].path);
    }
    free(f->loose);
    free(f->dir);
    free(f->path);
    free(f);
}

const struct pkg_inventory *pkg_glm_dsa_inventory(const struct pkg_glm_dsa_files *f) {
    return &f->inv;
}

const struct pkg_manifest *pkg_glm_dsa_manifest(const struct pkg_glm_dsa_files *f) {
    return f->manifest;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The package's parts as paths, sorted: 0, or -1 without memory. */
static int list_parts(const struct pkg_glm_dsa_files *f, json_t *list) {
    char path[PATH_MAX_LEN];
    struct strata_errmsg em;
    const char **names = calloc(f->n_parts + 1, sizeof *names);
    int bad = names ? 0 : -1;
    for (size_t i = 0; i < f->n_parts && !bad; i++) names[i] = f->parts[i].artifact->path;
    if (!bad) qsort(names, f->n_parts, sizeof *names, by_text);
    for (size_t i = 0; i < f->n_parts && !bad; i++) {
        if (!names[i] || path_join(path, sizeof path, f->dir, names[i], &em)) continue;
        bad = json_array_append_new(list, jsonx_text(path, strlen(path)));
    }
    free(names);
    return bad;
}

strata_err pkg_glm_dsa_describe(const struct pkg_glm_dsa_files *f, struct pkg_glm_dsa_report *r,
                                struct strata_errmsg *em) {
    json_t *list = json_array();
    char *path = strdup(f->path);
    int bad = list && path ? 0 : -1;
    if (!bad) bad = list_parts(f, list);
    for (size_t i = 0; i < f->n_loose && !bad; i++)
        bad = json_array_append_new(list, jsonx_text(f->loose[i].path, strlen(f->loose[i].path)));
    for (size_t i = 0; f->source && i < gguf_source_shard_count(f->source) && !bad; i++) {
        const char *shard = gguf_source_shard_path(f->source, i);
        bad = json_array_append_new(list, jsonx_text(shard, strlen(shard)));
    }
    if (bad) {
        json_decref(list);
        free(path);
        return err_nomem(em, "a report");
    }
    r->path = path;
    r->artifact_kind = f->kind;
    r->gguf_files = list;
    return STRATA_OK;
}

strata_err pkg_glm_dsa_check_path(const char *path, const struct pkg_glm_dsa_options *opt,
                                  struct pkg_glm_dsa_report *out, struct strata_errmsg *em) {
    struct pkg_glm_dsa_files *f = NULL;
    struct pkg_glm_dsa_report r = {0};
    strata_err rc = pkg_glm_dsa_open(path, &f, em);
    if (!rc) rc = pkg_glm_dsa_check(&f->inv, f->manifest ? f->manifest->generation : NULL, opt, &r, em);
    if (!rc) rc = pkg_glm_dsa_describe(f, &r, em);
    pkg_glm_dsa_close(f);
    if (rc) {
        pkg_glm_dsa_deinit(&r);
        return rc;
    }
    *out = r;
    return STRATA_OK;
}

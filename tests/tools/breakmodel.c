/*
 * Breaks a model in every way, one at a time, and tells how opening and running it ends.
 *
 * For each tensor: left out, of another type, of another shape, holding a NaN. For each number of the metadata: other
 * values. The list of tokens: shorter and longer. Each broken model is opened and, when that succeeds, run over a few
 * tokens, in a process of its own, so that a crash is one more way to end. One JSON object a line: what was done
 * ("remove", "type", "shape", "nan", "key", "vocab"), the name, what was put there, and the end: "ok", "error" with its
 * text, "run: " before it when opening went well, or "signal" with its number.
 */
#include "engine/engine.h"
#include "gguf/gguf_source.h"
#include "gguf/gguf_writer.h"
#include "model/model_backend.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_S = 60, TEXT_MAX_LEN = 1024, ALIGNMENT = 32 };

/* One change; a NULL name changes nothing. */
struct change {
    const char *tensor, *key;
    bool remove, nan;
    uint32_t type, ne[4]; /* ne[0] 0: as it was */
    uint32_t u32;         /* of an array of strings: how many */
    float f32;
};

struct tool {
    struct gguf_source *source;
    char path[256];
    void *zeros; /* payload of changed tensors */
    size_t zeros_cap;
};

static const char help[] = "usage: breakmodel MODEL SCRATCH-FILE\n"
                           "Breaks the model in every way, one at a time, and tells how opening and running it ends.\n";

/* ---- the broken file ---- */

static strata_err to_file(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    return fwrite(data, 1, len, user) == len ? STRATA_OK : err_set(em, STRATA_EIO, "cannot write the broken model");
}

/* Zeros as the payload of a changed tensor. */
static strata_err make_zeros(struct tool *t, uint64_t bytes, struct strata_errmsg *em) {
    if (bytes > t->zeros_cap) {
        void *grown = realloc(t->zeros, bytes);
        if (!grown) return err_nomem(em, "a payload");
        t->zeros = grown;
        t->zeros_cap = bytes;
    }
    memset(t->zeros, 0, bytes);
    return STRATA_OK;
}

static strata_err add_tensor(struct tool *t, struct gguf_writer *w, const struct gguf_tensor *x, const struct change *c,
                             struct strata_errmsg *em) {
    bool hit = c->tensor && strcmp(x->name, c->tensor) == 0;
    if (!hit) return gguf_writer_add_tensor(w, x->name, x->n_dims, x->ne, x->type, x->data, em);
    if (c->remove) return STRATA_OK;
    uint64_t ne[4], bytes;
    for (int i = 0; i < 4; i++) ne[i] = c->ne[0] ? c->ne[i] : x->ne[i];
    if (!gguf_types_tensor_bytes(c->type, ne, &bytes)) return err_set(em, STRATA_EINVAL, "no such shape");
    strata_err rc = make_zeros(t, bytes, em);
    if (rc) return rc;
    if (c->nan) {
        memcpy(t->zeros, x->data, bytes);
        const struct gguf_tensor_type *type = gguf_types_tensor(c->type);
        char *middle = (char *)t->zeros + bytes / 2 / type->block_bytes * type->block_bytes;
        /* Ones are a NaN wherever a block has its factors. */
        if (c->type == GGUF_TENSOR_F32)
            memcpy(middle, &(float){NAN}, sizeof(float));
        else
            memset(middle, 0xff, type->block_bytes);
    }
    uint32_t n_dims = ne[3] > 1 ? 4 : ne[2] > 1 ? 3 : ne[1] > 1 ? 2 : x->n_dims < 3 ? x->n_dims : 1;
    return gguf_writer_add_tensor(w, x->name, n_dims, ne, c->type, t->zeros, em);
}

/* The first n strings of an array, the last one again and again when it has not so many. */
static strata_err add_strings(struct gguf_writer *w, const struct gguf_kv *kv, uint32_t n, struct strata_errmsg *em) {
    struct gguf_str *list = calloc(n, sizeof *list), s = {"", 0};
    size_t cursor = 0;
    if (!list) return err_nomem(em, "a list of strings");
    for (uint32_t i = 0; i < n; i++) {
        gguf_reader_next_str(kv, &cursor, &s);
        list[i] = s;
    }
    strata_err rc = gguf_writer_add_strs(w, kv->key, list, n, em);
    free(list);
    return rc;
}

static strata_err write_broken(struct tool *t, const struct change *c, struct strata_errmsg *em) {
    const struct gguf_reader *meta = gguf_source_meta(t->source);
    struct gguf_writer *w = NULL;
    FILE *f = fopen(t->path, "wb");
    strata_err rc = f ? gguf_writer_new(ALIGNMENT, &w, em) : err_set(em, STRATA_EIO, "cannot write %s", t->path);
    for (size_t i = 0; i < gguf_reader_kv_count(meta) && !rc; i++) {
        const struct gguf_kv *kv = gguf_reader_kv(meta, i);
        if (strcmp(kv->key, "general.alignment") == 0) continue;
        if (!c->key || strcmp(kv->key, c->key) != 0)
            rc = gguf_writer_copy_kv(w, kv, em);
        else if (kv->kind == GGUF_KIND_ARRAY)
            rc = add_strings(w, kv, c->u32, em);
        else if (kv->kind == GGUF_KIND_F32)
            rc = gguf_writer_add_f32(w, kv->key, c->f32, em);
        else
            rc = gguf_writer_add_u32(w, kv->key, c->u32, em);
    }
    for (size_t i = 0; i < gguf_source_tensor_count(t->source) && !rc; i++)
        rc = add_tensor(t, w, gguf_source_tensor(t->source, i, NULL), c, em);
    /* Payloads are written at once: t->zeros must not be used twice in a file. */
    if (!rc) rc = gguf_writer_emit(w, to_file, f, em);
    gguf_writer_free(w);
    if (f && fclose(f) != 0 && !rc) rc = err_set(em, STRATA_EIO, "cannot write %s", t->path);
    return rc;
}

/* ---- trying it ---- */

/* *ran: opening went well. */
static strata_err try(const char *path, bool *ran, struct strata_errmsg *em) {
    static const int32_t tokens[] = {1, 2, 3};
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    struct engine_options eo = {.n_ctx = 64, .n_batch = 8, .n_threads = 1, .kv_type = ENGINE_KV_F32};
    struct engine_batch b = {.n_tokens = 3, .tokens = tokens, .want = ENGINE_OUT_ALL};
    struct pkg_model *pkg = NULL;
    struct engine *e = NULL;
    const float *out;
    strata_err rc = pkg_model_open(path, &po, &pkg, em);
    if (!rc) rc = engine_new(pkg, &eo, &e, em);
    *ran = !rc;
    if (!rc) rc = engine_run(e, &b, &out, em);
    engine_free(e);
    pkg_model_free(pkg);
    return rc;
}

/* In a child: an empty text means that all went well. */
static void child(const char *path, int out) {
    struct strata_errmsg em = {.code = STRATA_OK};
    char text[TEXT_MAX_LEN] = "";
    bool ran;
    alarm(LIMIT_S);
    if (try(path, &ran, &em)) snprintf(text, sizeof text, "%s%s", ran ? "run: " : "", em.text);
    size_t len = strlen(text);
    _exit(write(out, text, len) == (ssize_t)len ? 0 : 1);
}

static int trial(struct tool *t, const char *what, const char *name, const char *put, const struct change *c) {
    struct strata_errmsg em;
    char text[TEXT_MAX_LEN] = "";
    int pipes[2], status = 0;
    if (write_broken(t, c, &em)) {
        fprintf(stderr, "breakmodel: %s %s %s: %s\n", what, name, put, em.text);
        return 1;
    }
    fflush(stdout);
    if (pipe(pipes) != 0) return 1;
    pid_t pid = fork();
    if (pid < 0) return 1;
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        child(t->path, pipes[1]);
    }
    close(pipes[1]);
    size_t len = 0;
    ssize_t n;
    while (len < sizeof text - 1 && (n = read(pipes[0], text + len, sizeof text - 1 - len)) > 0) len += (size_t)n;
    close(pipes[0]);
    waitpid(pid, &status, 0);
    int end_signal = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) ? -WEXITSTATUS(status) : 0;
    const char *end = end_signal ? "signal" : len ? "error" : "ok";
    json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:s, s:i}", "what", what, "name", name, "put", put, "end", end,
                             "text", text, "signal", end_signal);
    char *dumped = line ? json_dumps(line, JSON_COMPACT) : NULL;
    if (dumped) puts(dumped);
    free(dumped);
    json_decref(line);
    return dumped ? 0 : 1;
}

/* ---- what to break ---- */

static int break_tensor(struct tool *t, const struct gguf_tensor *x) {
    static const uint32_t types[] = {GGUF_TENSOR_I32, GGUF_TENSOR_F16, 28 /* F64 */, 9 /* Q8_1 */, 15 /* Q8_K */};
    uint32_t ne[4];
    char put[64];
    for (int i = 0; i < 4; i++) ne[i] = (uint32_t)x->ne[i];
    int bad = trial(t, "remove", x->name, "", &(struct change){.tensor = x->name, .remove = true});
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        uint64_t bytes;
        if (types[i] == x->type || !gguf_types_tensor_bytes(types[i], x->ne, &bytes)) continue;
        bad |= trial(t, "type", x->name, gguf_types_tensor_name(types[i]),
                     &(struct change){.tensor = x->name, .type = types[i]});
    }
    uint32_t block = gguf_types_tensor(x->type)->block_elems;
    const uint32_t shapes[][4] = {{ne[0] + block, ne[1], ne[2], 1},
                                  {ne[0], ne[1] + 1, ne[2], 1},
                                  {ne[0], ne[1], ne[2] + 1, 1},
                                  {ne[0], ne[1], ne[2], 2},
                                  {block, 1, 1, 1},
                                  {ne[1], ne[0], ne[2], 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct change c = {.tensor = x->name, .type = x->type};
        uint64_t bytes, wide[4];
        memcpy(c.ne, shapes[i], sizeof c.ne);
        for (int k = 0; k < 4; k++) wide[k] = c.ne[k];
        if (memcmp(c.ne, ne, sizeof ne) == 0 || !gguf_types_tensor_bytes(x->type, wide, &bytes)) continue;
        snprintf(put, sizeof put, "[%u, %u, %u, %u]", (unsigned)c.ne[0], (unsigned)c.ne[1], (unsigned)c.ne[2],
                 (unsigned)c.ne[3]);
        bad |= trial(t, "shape", x->name, put, &c);
    }
    return bad | trial(t, "nan", x->name, "", &(struct change){.tensor = x->name, .type = x->type, .nan = true});
}

static int break_key(struct tool *t, const struct gguf_kv *kv) {
    char put[32];
    int bad = 0;
    if (kv->kind == GGUF_KIND_U32) {
        uint32_t v;
        memcpy(&v, kv->value, sizeof v);
        const uint32_t values[] = {0, 1, v - 1, v + 1, 2 * v, v / 2, 7, 1000, 1u << 20, 1u << 31, UINT32_MAX};
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            if (values[i] == v) continue;
            snprintf(put, sizeof put, "%u", (unsigned)values[i]);
            bad |= trial(t, "key", kv->key, put, &(struct change){.key = kv->key, .u32 = values[i]});
        }
    } else if (kv->kind == GGUF_KIND_F32) {
        const float values[] = {0, -1, 1, 1e-38f, 1e30f, INFINITY, NAN};
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            snprintf(put, sizeof put, "%g", (double)values[i]);
            bad |= trial(t, "key", kv->key, put, &(struct change){.key = kv->key, .f32 = values[i]});
        }
    }
    return bad;
}

static int break_vocab(struct tool *t, const struct gguf_kv *kv) {
    char put[32];
    int bad = 0;
    const uint32_t counts[] = {1, (uint32_t)kv->count - 1, (uint32_t)kv->count + 1};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        snprintf(put, sizeof put, "%u", (unsigned)counts[i]);
        bad |= trial(t, "vocab", kv->key, put, &(struct change){.key = kv->key, .u32 = counts[i]});
    }
    return bad;
}

int main(int argc, char **argv) {
    struct tool t = {.zeros = NULL};
    struct model_backend backend;
    struct strata_errmsg em;
    if (argc != 3) {
        fputs(help, stderr);
        return 2;
    }
    snprintf(t.path, sizeof t.path, "%s", argv[2]);
    /* The registry of backends is filled here, once, and not by every child. */
    if (gguf_source_open(argv[1], &t.source, &em) || model_backend_init(&backend, NULL, NULL, 1, &em)) {
        fprintf(stderr, "breakmodel: %s\n", em.text);
        gguf_source_free(t.source);
        return 1;
    }
    model_backend_deinit(&backend);
    const struct gguf_reader *meta = gguf_source_meta(t.source);
    int bad = trial(&t, "nothing", "", "", &(struct change){.key = NULL});
    for (size_t i = 0; i < gguf_source_tensor_count(t.source); i++)
        bad |= break_tensor(&t, gguf_source_tensor(t.source, i, NULL));
    for (size_t i = 0; i < gguf_reader_kv_count(meta); i++) {
        const struct gguf_kv *kv = gguf_reader_kv(meta, i);
        if (strcmp(kv->key, "tokenizer.ggml.tokens") == 0) bad |= break_vocab(&t, kv);
        if (strncmp(kv->key, "general.", 8) != 0 && strncmp(kv->key, "tokenizer.", 10) != 0) bad |= break_key(&t, kv);
    }
    free(t.zeros);
    gguf_source_free(t.source);
    return bad;
}

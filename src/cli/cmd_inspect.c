/*
 * `strata inspect`: what a GGUF file, a split set or a layer package holds, as a table or as JSON.
 * Reads headers only; payloads are never touched.
 */
#include "base/path.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "gguf/gguf_source.h"
#include "package/pkg_class.h"
#include "package/pkg_part.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: strata inspect [OPTIONS] FILE|PACKAGE\n"
    "\n"
    "Shows what a GGUF file (or a split set: name any of its parts) or a layer package holds: metadata, bytes per\n"
    "class of tensors, and every tensor with its type, shape, bytes, class and layer. Headers alone are read.\n"
    "\n"
    "Classes say which part of a package owns a tensor: 'layer' one file per transformer layer, 'embedding' the first\n"
    "stage's input, 'final_norm' and 'output' the last stage's, 'metadata' a tensor that every part carries.\n"
    "\n"
    "  --summary   leave out the list of tensors\n"
    "  --json      one JSON document with everything, arrays of metadata included\n"
    "  --help      this text\n"
    "\n"
    "Exit status: 0 shown, 1 the file cannot be read or is damaged, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata inspect model.gguf\n"
    "  strata inspect model-package --json | jq '.tensors[] | select(.layer_index == 3)'\n";

/* One GGUF file of whatever was named. */
struct file {
    const char *label; /* file name, or path inside the package */
    const struct gguf_reader *reader;
    uint64_t bytes;
};

struct view {
    const char *path;
    struct gguf_source *source;    /* of a plain file */
    struct pkg_manifest *manifest; /* of a package */
    struct pkg_part *parts;
    struct file *files;
    size_t n_files;
};

/* ---- opening ---- */

static strata_err open_package(struct view *v, const char *dir, struct strata_errmsg *em) {
    struct pkg_faults faults;
    strata_err rc = pkg_manifest_load(dir, &v->manifest, em);
    if (rc) return rc;
    size_t n = v->manifest->n_artifacts;
    v->parts = calloc(n, sizeof *v->parts);
    v->files = calloc(n, sizeof *v->files);
    if (!v->parts || !v->files) return err_nomem(em, "a package");
    pkg_faults_init(&faults);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct pkg_artifact *a = &v->manifest->artifacts[i];
        rc = pkg_part_open(dir, a, false, NULL, &faults, &v->parts[i], em);
        v->n_files = i + 1;
        if (!rc) rc = pkg_faults_first(&faults, dir, em);
        v->files[i] = (struct file){a->path, v->parts[i].reader, v->parts[i].actual_bytes};
    }
    pkg_faults_deinit(&faults);
    return rc;
}

static strata_err open_plain(struct view *v, struct strata_errmsg *em) {
    strata_err rc = gguf_source_open(v->path, &v->source, em);
    if (rc) return rc;
    size_t n = gguf_source_shard_count(v->source);
    v->files = calloc(n, sizeof *v->files);
    if (!v->files) return err_nomem(em, "a model");
    v->n_files = n;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        gguf_source_shard_bytes(v->source, i, &len);
        v->files[i] =
            (struct file){path_basename(gguf_source_shard_path(v->source, i)), gguf_source_shard(v->source, i), len};
    }
    return STRATA_OK;
}

static strata_err open_view(struct view *v, struct strata_errmsg *em) {
    char dir[PATH_MAX_LEN];
    return pkg_part_folder(v->path, dir, sizeof dir) ? open_package(v, dir, em) : open_plain(v, em);
}

static void close_view(struct view *v) {
    for (size_t i = 0; v->parts && i < v->n_files; i++) pkg_part_close(&v->parts[i]);
    free(v->parts);
    free(v->files);
    pkg_manifest_free(v->manifest);
    gguf_source_free(v->source);
}

/* Whether the tensor is a copy of one that an earlier file of the package showed already. */
static bool is_replica(const struct view *v, size_t file, const char *name) {
    return v->manifest && file > 0 && v->manifest->artifacts[PKG_ROLE_METADATA].tensor_count > 0 &&
           gguf_reader_find_tensor(v->files[0].reader, name) != NULL;
}

struct totals {
    size_t tensors;
    uint64_t bytes, replicated_bytes, file_bytes;
    size_t class_tensors[PKG_CLASS_COUNT];
    uint64_t class_bytes[PKG_CLASS_COUNT];
    uint32_t layers;
    bool tied; /* no output.weight: the token embeddings are the output head too */
};

static void count(const struct view *v, struct totals *t) {
    *t = (struct totals){.tied = true};
    for (size_t f = 0; f < v->n_files; f++) {
        const struct gguf_reader *r = v->files[f].reader;
        bool projector = v->parts && v->parts[f].artifact->role == PKG_ROLE_PROJECTOR;
        t->file_bytes += v->files[f].bytes;
        for (size_t i = 0; i < gguf_reader_tensor_count(r) && !projector; i++) {
            const struct gguf_tensor *x = gguf_reader_tensor(r, i);
            uint32_t layer = 0;
            enum pkg_class class = pkg_class_of(x->name, &layer);
            if (is_replica(v, f, x->name)) {
                t->replicated_bytes += x->bytes;
                continue;
            }
            if (strcmp(x->name, "output.weight") == 0) t->tied = false;
            t->tensors++;
            t->bytes += x->bytes;
            t->class_tensors[class]++;
            t->class_bytes[class] += x->bytes;
            if (class == PKG_CLASS_LAYER && layer >= t->layers) t->layers = layer + 1;
        }
    }
}

/* ---- for people ---- */

/* Prints foreign text on one line: at most `max` bytes, control characters as spaces. */
static void print_clean(const char *data, size_t len, size_t max) {
    bool cut = len > max;
    if (cut) {
        len = max;
        while (len > 0 && ((unsigned char)data[len] & 0xc0) == 0x80) len--; /* not inside a character */
    }
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)data[i];
        bool c1 = i > 0 && (unsigned char)data[i - 1] == 0xc2 && c < 0xa0 && c >= 0x80;
        putchar(c < 0x20 || c == 0x7f || c1 ? ' ' : c);
    }
    if (cut) fputs("...", stdout);
}

static void print_element(const struct gguf_kv *kv, uint64_t i) {
    switch (kv->elem_kind) {
    case GGUF_KIND_F32:
    case GGUF_KIND_F64: printf("%g", gguf_reader_float_at(kv, i)); break;
    case GGUF_KIND_BOOL: fputs(kv->value[i] ? "true" : "false", stdout); break;
    default: printf("%" PRId64, gguf_reader_int_at(kv, i)); break;
    }
}

static void print_value(const struct gguf_kv *kv) {
    enum { SHOWN = 6 };
    struct gguf_str s;
    size_t cursor = 0;
    if (kv->kind == GGUF_KIND_STRING) {
        if (gguf_reader_next_str(kv, &cursor, &s)) print_clean(s.data, s.len, 90);
        return;
    }
    if (kv->kind != GGUF_KIND_ARRAY) {
        print_element(kv, 0);
        return;
    }
    printf("%" PRIu64 " x %s [", kv->count, gguf_types_kind_name(kv->elem_kind));
    for (uint64_t i = 0; i < kv->count && i < SHOWN; i++) {
        if (i > 0) fputs(", ", stdout);
        if (kv->elem_kind != GGUF_KIND_STRING)
            print_element(kv, i);
        else if (gguf_reader_next_str(kv, &cursor, &s))
            print_clean(s.data, s.len, 16);
    }
    puts(kv->count > SHOWN ? ", ...]" : "]");
}

static void print_metadata(const struct gguf_reader *r) {
    printf("\nmetadata (%zu keys)\n", gguf_reader_kv_count(r));
    for (size_t i = 0; i < gguf_reader_kv_count(r); i++) {
        const struct gguf_kv *kv = gguf_reader_kv(r, i);
        fputs("  ", stdout);
        print_clean(kv->key, strlen(kv->key), 80);
        fputs(" = ", stdout);
        print_value(kv);
        if (kv->kind != GGUF_KIND_ARRAY) putchar('\n');
    }
}

static void print_classes(const struct totals *t) {
    char text[32];
    printf("\n%-12s %8s %16s %12s %7s\n", "class", "tensors", "bytes", "", "share");
    for (size_t c = 0; c < PKG_CLASS_COUNT; c++)
        if (t->class_tensors[c])
            printf("%-12s %8zu %16" PRIu64 " %12s %6.1f%%\n", pkg_class_name((enum pkg_class)c), t->class_tensors[c],
                   t->class_bytes[c], progress_bytes(text, sizeof text, t->class_bytes[c]),
                   100 * (double)t->class_bytes[c] / (double)t->bytes);
    if (t->replicated_bytes)
        printf("%-12s %8s %16" PRIu64 " %12s\n", "(copies)", "", t->replicated_bytes,
               progress_bytes(text, sizeof text, t->replicated_bytes));
}

static void print_tensors(const struct view *v) {
    bool many = v->n_files > 1;
    printf("\n%-40s %-8s %-22s %14s  %-10s %5s%s\n", "tensor", "type", "shape", "bytes", "class", "layer",
           many ? "  file" : "");
    for (size_t f = 0; f < v->n_files; f++) {
        const struct gguf_reader *r = v->files[f].reader;
        for (size_t i = 0; i < gguf_reader_tensor_count(r); i++) {
            const struct gguf_tensor *t = gguf_reader_tensor(r, i);
            char shape[96], layer_text[12] = "";
            size_t n = 0;
            uint32_t layer;
            enum pkg_class class = pkg_class_of(t->name, &layer);
            for (uint32_t d = 0; d < t->n_dims; d++)
                n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%" PRIu64, d ? " x " : "", t->ne[d]);
            if (class == PKG_CLASS_LAYER) snprintf(layer_text, sizeof layer_text, "%" PRIu32, layer);
            print_clean(t->name, strlen(t->name), 63);
            printf("%*s %-8s %-22s %14" PRIu64 "  %-10s %5s%s%s\n",
                   strlen(t->name) < 40 ? (int)(40 - strlen(t->name)) : 0, "", gguf_types_tensor_name(t->type), shape,
                   t->bytes, is_replica(v, f, t->name) ? "(copy)" : pkg_class_name(class), layer_text, many ? "  " : "",
                   many ? v->files[f].label : "");
        }
    }
}

static void print_text(const struct view *v, bool summary) {
    struct totals t;
    char text[32];
    const struct gguf_reader *meta = v->files[0].reader;
    count(v, &t);
    print_clean(v->path, strlen(v->path), 1000);
    printf(": %s, %zu file%s, %s\n", v->manifest ? "layer package" : "GGUF model", v->n_files,
           v->n_files == 1 ? "" : "s", progress_bytes(text, sizeof text, t.file_bytes));
    if (v->manifest) {
        fputs("  model id        ", stdout);
        print_clean(v->manifest->model_id, strlen(v->manifest->model_id), 200);
        printf("\n  manifest sha256 %s\n", v->manifest->sha256);
    }
    printf("  GGUF version    %" PRIu32 ", alignment %" PRIu32 "\n", gguf_reader_version(meta),
           gguf_reader_alignment(meta));
    printf("  tensors         %zu in %" PRIu32 " layers, %s\n", t.tensors, t.layers,
           progress_bytes(text, sizeof text, t.bytes));
    printf("  output head     %s\n", t.tied ? "tied: the last stage needs token_embd.weight as well" : "output.weight");
    print_metadata(meta);
    print_classes(&t);
    if (!summary) print_tensors(v);
}

/* ---- for programs ---- */

static json_t *number_to_json(const struct gguf_kv *kv, uint64_t i) {
    if (kv->elem_kind == GGUF_KIND_F32 || kv->elem_kind == GGUF_KIND_F64) {
        double d = gguf_reader_float_at(kv, i);
        return isfinite(d) ? json_real(d) : json_null(); /* JSON has no infinities */
    }
    if (kv->elem_kind == GGUF_KIND_BOOL) return json_boolean(kv->value[i] != 0);
    return json_integer((json_int_t)gguf_reader_int_at(kv, i));
}

static json_t *value_to_json(const struct gguf_kv *kv) {
    struct gguf_str s = {0};
    size_t cursor = 0;
    if (kv->kind == GGUF_KIND_STRING) return gguf_reader_next_str(kv, &cursor, &s) ? jsonx_text(s.data, s.len) : NULL;
    if (kv->kind != GGUF_KIND_ARRAY) return number_to_json(kv, 0);
    json_t *list = json_array();
    for (uint64_t i = 0; list && i < kv->count; i++) {
        bool text = kv->elem_kind == GGUF_KIND_STRING;
        json_t *x = !text                                   ? number_to_json(kv, i)
                    : gguf_reader_next_str(kv, &cursor, &s) ? jsonx_text(s.data, s.len)
                                                            : NULL;
        if (json_array_append_new(list, x)) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static json_t *metadata_to_json(const struct gguf_reader *r) {
    json_t *o = json_object();
    for (size_t i = 0; o && i < gguf_reader_kv_count(r); i++) {
        const struct gguf_kv *kv = gguf_reader_kv(r, i);
        json_t *key = jsonx_text(kv->key, strlen(kv->key));
        bool array = kv->kind == GGUF_KIND_ARRAY;
        json_t *v = json_pack("{s:s, s:s*, s:o}", "kind", gguf_types_kind_name(kv->kind), "element_kind",
                              array ? gguf_types_kind_name(kv->elem_kind) : NULL, "value", value_to_json(kv));
        if (!key || !v || json_object_set(o, json_string_value(key), v)) {
            json_decref(o);
            o = NULL;
        }
        json_decref(v);
        json_decref(key);
    }
    return o;
}

static json_t *tensor_to_json(const struct view *v, size_t f, const struct gguf_tensor *t) {
    uint32_t layer = 0;
    enum pkg_class class = pkg_class_of(t->name, &layer);
    json_t *shape = json_array();
    for (uint32_t d = 0; d < t->n_dims; d++)
        if (json_array_append_new(shape, json_integer((json_int_t)t->ne[d]))) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:o, s:o, s:s, s:i, s:s, s:o, s:I, s:I, s:o, s:b}", "name", jsonx_text(t->name, strlen(t->name)),
                     "layer_index", class == PKG_CLASS_LAYER ? json_integer(layer) : json_null(), "role",
                     pkg_class_name(class), "ggml_type", (int)t->type, "type", gguf_types_tensor_name(t->type), "shape",
                     shape, "offset", (json_int_t)t->offset, "byte_size", (json_int_t)t->bytes, "file",
                     jsonx_text(v->files[f].label, strlen(v->files[f].label)), "copy", is_replica(v, f, t->name));
}

static json_t *tensors_to_json(const struct view *v) {
    json_t *list = json_array();
    for (size_t f = 0; f < v->n_files; f++)
        for (size_t i = 0; list && i < gguf_reader_tensor_count(v->files[f].reader); i++)
            if (json_array_append_new(list, tensor_to_json(v, f, gguf_reader_tensor(v->files[f].reader, i)))) {
                json_decref(list);
                list = NULL;
            }
    return list;
}

static json_t *classes_to_json(const struct totals *t) {
    json_t *o = json_object();
    for (size_t c = 0; c < PKG_CLASS_COUNT; c++) {
        json_t *x = json_pack("{s:I, s:I}", "tensor_count", (json_int_t)t->class_tensors[c], "bytes",
                              (json_int_t)t->class_bytes[c]);
        if (json_object_set_new(o, pkg_class_name((enum pkg_class)c), x)) {
            json_decref(o);
            return NULL;
        }
    }
    return o;
}

static strata_err print_json(const struct view *v, bool summary, struct strata_errmsg *em) {
    struct totals t;
    const struct gguf_reader *meta = v->files[0].reader;
    count(v, &t);
    json_t *root =
        json_pack("{s:o, s:s, s:s*, s:s*, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o, s:o}", "path",
                  jsonx_text(v->path, strlen(v->path)), "kind", v->manifest ? "package" : "gguf", "model_id",
                  v->manifest ? v->manifest->model_id : NULL, "manifest_sha256",
                  v->manifest ? v->manifest->sha256 : NULL, "gguf_version", (int)gguf_reader_version(meta), "alignment",
                  (int)gguf_reader_alignment(meta), "file_count", (json_int_t)v->n_files, "file_bytes",
                  (json_int_t)t.file_bytes, "layer_count", (json_int_t)t.layers, "tensor_count", (json_int_t)t.tensors,
                  "tensor_bytes", (json_int_t)t.bytes, "replicated_bytes", (json_int_t)t.replicated_bytes,
                  "tied_output", t.tied, "classes", classes_to_json(&t), "metadata", metadata_to_json(meta));
    bool bad = !root || (!summary && json_object_set_new(root, "tensors", tensors_to_json(v)));
    if (!bad) bad = json_dumpf(root, stdout, JSON_INDENT(2)) != 0;
    json_decref(root);
    if (bad && !ferror(stdout)) return err_nomem(em, "the output");
    putchar('\n');
    return STRATA_OK; /* a failed write is cli_finish's to report */
}

int cmd_inspect(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {
        {"summary", no_argument, NULL, 's'}, {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    struct view v = {0};
    struct strata_errmsg em;
    bool json = false, summary = false;
    int c, status = CLI_OK;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 's': summary = true; break;
        case 'j': json = true; break;
        case 'h': fputs(help, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) return cli_usage(cli, "name one GGUF file or package");
    v.path = argv[optind];
    strata_err rc = open_view(&v, &em);
    if (!rc && json) rc = print_json(&v, summary, &em);
    if (!rc && !json) print_text(&v, summary);
    if (rc) status = cli_fail(cli, json, &em);
    close_view(&v);
    return status;
}

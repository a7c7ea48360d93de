/* `inspect` for people. See inspect.h. Foreign text is printed on one line, without control characters. */
#include "base/progress.h"
#include "cli/inspect.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN = 3, TEXT_MAX = 100 };

/* Prints at most `max` bytes of foreign text, control characters as spaces. */
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

static const char *size_text(char out[32], uint64_t bytes) {
    return progress_bytes(out, 32, bytes);
}

static double percent(uint64_t part, uint64_t whole) {
    return whole ? 100 * (double)part / (double)whole : 0;
}

/* ---- facts ---- */

static void print_label(const char *label) {
    printf("  %-14s ", label);
}

/* A number, or the span of the numbers of all layers. */
static void print_number(const struct gguf_kv *kv) {
    int64_t lo = gguf_reader_int_at(kv, 0), hi = lo;
    for (uint64_t i = 1; i < kv->count; i++) {
        int64_t v = gguf_reader_int_at(kv, i);
        if (v < lo) lo = v;
        if (v > hi) hi = v;
    }
    if (lo == hi)
        printf("%" PRId64, lo);
    else
        printf("%" PRId64 " to %" PRId64, lo, hi);
}

static void print_fact(const char *label, const struct gguf_kv *kv, const char *unit) {
    if (!kv) return;
    print_label(label);
    print_number(kv);
    printf("%s\n", unit);
}

static void print_text_fact(const char *label, struct gguf_str s) {
    if (!s.data) return;
    print_label(label);
    print_clean(s.data, s.len, TEXT_MAX);
    putchar('\n');
}

static void print_experts(const struct inspect_facts *f) {
    if (!f->experts || gguf_reader_int_at(f->experts, 0) == 0) return;
    print_label("experts");
    print_number(f->experts);
    if (f->experts_used) {
        fputs(", ", stdout);
        print_number(f->experts_used);
        fputs(" used for a token", stdout);
    }
    if (f->experts_shared) {
        fputs(", ", stdout);
        print_number(f->experts_shared);
        fputs(" shared", stdout);
    }
    putchar('\n');
}

static void print_layers(const struct inspect *v, const struct inspect_facts *f) {
    print_label("layers");
    printf("%" PRIu32, v->layer_count);
    if (f->blocks && gguf_reader_int_at(f->blocks, 0) != (int64_t)v->layer_count) {
        fputs(" by their tensors; the metadata says ", stdout);
        print_number(f->blocks);
    }
    putchar('\n');
    bool said = f->nextn && gguf_reader_int_at(f->nextn, 0) > 0;
    if (!said && v->mtp_layers == 0) return;
    print_label("MTP layers");
    for (uint32_t i = 0, n = 0; i < v->layer_count; i++)
        if (v->mtp[i]) printf("%s%" PRIu32, n++ ? ", " : "", i);
    if (v->mtp_layers == 0) fputs("no layer has nextn tensors", stdout);
    if (!said || gguf_reader_int_at(f->nextn, 0) != (int64_t)v->mtp_layers) {
        fputs(", but the metadata says ", stdout);
        f->nextn ? print_number(f->nextn) : (void)fputs("nothing of them", stdout);
    }
    putchar('\n');
}

static void print_facts(const struct inspect *v) {
    struct inspect_facts f;
    char size[32];
    inspect_facts_read(v->meta, &f);
    putchar('\n');
    print_text_fact("architecture", f.architecture);
    print_text_fact("name", f.name);
    print_fact("context", f.context, " tokens");
    print_fact("width", f.width, "");
    print_fact("feed-forward", f.feed_forward, "");
    print_fact("heads", f.heads, "");
    print_fact("key/value", f.kv_heads, " heads");
    print_experts(&f);
    print_layers(v, &f);
    if (f.has_vocabulary) {
        print_label("vocabulary");
        printf("%" PRIu64 " tokens", f.vocabulary);
        if (f.tokenizer.data) fputs(", ", stdout), print_clean(f.tokenizer.data, f.tokenizer.len, 32);
        if (f.pre.data) fputs(" ", stdout), print_clean(f.pre.data, f.pre.len, 32);
        putchar('\n');
    }
    print_label("output head");
    puts(v->tied ? "tied: there is no output.weight, so the last stage needs token_embd.weight as well"
                 : "output.weight");
    print_label("parameters");
    printf("%.1f million in %zu tensors, %s\n", (double)v->parameters / 1e6, v->all.tensors,
           size_text(size, v->all.bytes));
    print_label("GGUF");
    printf("version %" PRIu32 ", alignment %" PRIu32 ", %zu metadata keys of %s\n", gguf_reader_version(v->meta),
           gguf_reader_alignment(v->meta), f.kv_count, size_text(size, v->copies.kv_bytes));
}

static void print_head(const struct inspect *v) {
    char size[32], text[PKG_SIGN_TEXT];
    print_clean(v->path, strlen(v->path), 1000);
    printf(": %s, %zu file%s, %s\n", v->manifest ? "layer package" : "GGUF model", v->n_files,
           v->n_files == 1 ? "" : "s", size_text(size, v->file_bytes));
    if (!v->manifest) return;
    const struct pkg_manifest *m = v->manifest;
    putchar('\n');
    print_text_fact("model id", (struct gguf_str){m->model_id, strlen(m->model_id)});
    print_label("schema");
    printf("%u\n", m->schema);
    print_label("manifest");
    printf("SHA-256 %s\n", m->sha256);
    pkg_sign_text(&v->signature, text);
    print_text_fact("signature", (struct gguf_str){text, strlen(text)});
}

/* ---- sums ---- */

static void print_sum(const char *what, const struct inspect_sum *s, uint64_t whole) {
    char size[32];
    printf("  %-14s %8zu %16" PRIu64 " %11s %6.1f%%\n", what, s->tensors, s->bytes, size_text(size, s->bytes),
           percent(s->bytes, whole));
}

static void print_sum_head(const char *what) {
    printf("\n  %-14s %8s %16s %11s %7s\n", what, "tensors", "bytes", "", "share");
}

static void print_types(const struct inspect *v) {
    print_sum_head("type");
    for (size_t i = 0; i < sizeof v->by_type / sizeof v->by_type[0]; i++)
        if (v->by_type[i].tensors) print_sum(gguf_types_tensor_name((uint32_t)i), &v->by_type[i], v->all.bytes);
}

static void print_classes(const struct inspect *v) {
    print_sum_head("class");
    for (size_t c = 0; c < PKG_CLASS_COUNT; c++)
        if (v->by_class[c].tensors) print_sum(pkg_class_name((enum pkg_class)c), &v->by_class[c], v->all.bytes);
}

static bool same_layer(const struct inspect *v, uint32_t a, uint32_t b) {
    return v->by_layer[a].tensors == v->by_layer[b].tensors && v->by_layer[a].bytes == v->by_layer[b].bytes &&
           v->mtp[a] == v->mtp[b];
}

/* Runs of equal layers are one line. */
static void print_layer_sums(const struct inspect *v) {
    if (v->layer_count == 0) return;
    print_sum_head("layer");
    for (uint32_t i = 0, end; i < v->layer_count; i = end) {
        char what[32], size[32];
        const struct inspect_sum *s = &v->by_layer[i];
        for (end = i + 1; end < v->layer_count && same_layer(v, i, end); end++) {
        }
        if (end == i + 1)
            snprintf(what, sizeof what, "%" PRIu32, i);
        else
            snprintf(what, sizeof what, "%" PRIu32 " to %" PRIu32, i, end - 1);
        printf("  %-14s %8zu %16" PRIu64 " %11s %6.1f%%%s%s\n", what, s->tensors, s->bytes, size_text(size, s->bytes),
               percent(s->bytes, v->all.bytes), end == i + 1 ? "" : " each", v->mtp[i] ? "  MTP" : "");
    }
}

static void print_copies(const struct inspect *v) {
    const struct inspect_copies *c = &v->copies;
    char kv[32], tensors[32], total[32], extra[32], also[96] = "";
    if (c->fragments == 0) return;
    size_text(kv, c->kv_bytes);
    size_text(total, c->total_bytes);
    size_text(extra, c->extra_bytes);
    if (c->tensors)
        snprintf(also, sizeof also, " and %zu tensor%s (%s)", c->tensors, c->tensors == 1 ? "" : "s",
                 size_text(tensors, c->tensor_bytes));
    if (v->manifest)
        printf("\n  Replicated: metadata (%s)%s in %zu fragments: %s in all,\n  %s more than one copy.\n", kv, also,
               c->fragments, total, extra);
    else
        printf("\n  Replicated, were this a package: metadata (%s)%s in each of %zu fragments:\n"
               "  %s in all, %s more than one copy.\n",
               kv, also, c->fragments, total, extra);
}

static void print_projectors(const struct inspect *v) {
    bool head = false;
    char size[32];
    for (size_t i = 0; i < v->n_files; i++) {
        const struct inspect_file *f = &v->files[i];
        if (!f->kind) continue;
        if (!head) printf("\n  %-14s %8s %16s\n", "projector", "tensors", "bytes");
        head = true;
        printf("  %-14s %8zu %16" PRIu64 " %11s  ", f->kind, f->tensors, f->tensor_bytes,
               size_text(size, f->tensor_bytes));
        print_clean(f->label, strlen(f->label), TEXT_MAX);
        putchar('\n');
    }
}

/* ---- metadata ---- */

static void print_element(const struct gguf_kv *kv, uint64_t i) {
    if (kv->elem_kind == GGUF_KIND_F32 || kv->elem_kind == GGUF_KIND_F64)
        printf("%g", gguf_reader_float_at(kv, i));
    else if (kv->elem_kind == GGUF_KIND_BOOL)
        fputs(kv->value[i] ? "true" : "false", stdout);
    else
        printf("%" PRId64, gguf_reader_int_at(kv, i));
}

static void print_value(const struct gguf_kv *kv) {
    struct gguf_str s;
    size_t cursor = 0;
    if (kv->kind == GGUF_KIND_STRING) {
        if (gguf_reader_next_str(kv, &cursor, &s)) print_clean(s.data, s.len, TEXT_MAX);
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
    fputs(kv->count > SHOWN ? ", ...]" : "]", stdout);
}

static void print_metadata(const struct gguf_reader *r) {
    printf("\n  metadata\n");
    for (size_t i = 0; i < gguf_reader_kv_count(r); i++) {
        const struct gguf_kv *kv = gguf_reader_kv(r, i);
        fputs("  ", stdout);
        print_clean(kv->key, strlen(kv->key), 80);
        fputs(" = ", stdout);
        print_value(kv);
        putchar('\n');
    }
}

/* ---- tensors ---- */

static void print_tensor(const struct inspect *v, const struct inspect_tensor *t) {
    char shape[96], layer[12] = "-";
    size_t n = 0;
    for (uint32_t d = 0; d < t->n_dims; d++)
        n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%" PRIu64, d ? " x " : "", t->ne[d]);
    if (t->class == PKG_CLASS_LAYER) snprintf(layer, sizeof layer, "%" PRIu32, t->layer);
    fputs("  ", stdout);
    print_clean(t->name, strlen(t->name), sizeof t->name);
    printf("%*s %-8s %-20s %13" PRIu64 " %14" PRIu64 "  %-10s %5s",
           strlen(t->name) < 40 ? (int)(40 - strlen(t->name)) : 0, "", gguf_types_tensor_name(t->type), shape, t->bytes,
           t->offset, pkg_class_name(t->class), layer);
    if (v->n_files > 1) {
        fputs("  ", stdout);
        print_clean(v->files[t->file].label, strlen(v->files[t->file].label), TEXT_MAX);
    }
    if (t->tied) fputs("  tied", stdout);
    if (t->mtp) fputs("  MTP", stdout);
    if (t->replicated) fputs("  replicated", stdout);
    putchar('\n');
}

static void print_tensors(const struct inspect *v) {
    printf("\n  %-40s %-8s %-20s %13s %14s  %-10s %5s%s\n", "tensor", "type", "shape", "bytes", "offset", "class",
           "layer", v->n_files > 1 ? "  file" : "");
    for (size_t i = 0; i < v->n_tensors; i++) print_tensor(v, &v->tensors[i]);
}

void inspect_print_text(const struct inspect *v, bool summary) {
    print_head(v);
    print_facts(v);
    print_types(v);
    print_classes(v);
    print_layer_sums(v);
    print_projectors(v);
    print_copies(v);
    if (summary) return;
    print_metadata(v->meta);
    print_tensors(v);
}

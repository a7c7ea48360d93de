/* `plan`: how a model is divided over stages, and what each stage loads. The work is plan_stages'; this shows it. */
#include "base/jsonx.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "plan/plan_stages.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: strata plan MODEL|PACKAGE --stages N [OPTIONS]\n"
    "\n"
    "Divides the layers of a GGUF model (a file, or any part of a split set) or of a layer package over N stages, and\n"
    "shows what each stage loads: its layers, the token embeddings on the first stage, the output head on the last "
    "one,\n"
    "and the tensors that every stage carries. The last stage of a model with tied embeddings loads those too, and so\n"
    "does a stage with an MTP (multi-token prediction) layer that has no embeddings of its own.\n"
    "\n"
    "  --stages N   how many stages; from 1 to the number of layers\n"
    "  --by bytes   the largest stage is as small as it can be, and the others as even as they then can be (default);\n"
    "               MTP layers, a model's last, stay with the layer before them\n"
    "  --by count   the same number of layers for each stage, one more for the first few if that does not come out "
    "even\n"
    "  --json       one JSON document\n"
    "  --help       this text\n"
    "\n"
    "Layer ranges are half-open: 0..12 are the layers 0 to 11. Memory for the KV cache is not counted.\n"
    "\n"
    "Exit status: 0 planned, 1 there is no such plan or the model cannot be read, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata plan model.gguf --stages 3\n"
    "  strata plan model-package --stages 3 --json | jq '.stages[] | [.layer_start, .layer_end, .loaded_bytes]'\n";

static const char skippy_help[] =
    "usage: skippy-model-package plan MODEL --stages N [--by count|bytes]\n"
    "\n"
    "Prints, as JSON, how the layers of a model (a GGUF file, any part of a split set, or a layer package) are "
    "divided\n"
    "over N stages: by count (default) with the same number of layers for each, the first few getting one more; by\n"
    "bytes so that the largest stage is as small as it can be. tensor_count and tensor_bytes are those of a file that\n"
    "holds the stage alone; tensors that belong to no layer, embedding or output are counted in each.\n";

struct options {
    const char *path;
    uint32_t n_stages;
    enum plan_by by;
    bool json;
};

/* ---- reasons ---- */

enum { MAX_NOTES = 6, NOTE_LEN = 240 };

struct notes {
    char text[MAX_NOTES][NOTE_LEN];
    size_t n;
};

static void note(struct notes *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct notes *n, const char *fmt, ...) {
    va_list ap;
    if (n->n == MAX_NOTES) return;
    va_start(ap, fmt);
    vsnprintf(n->text[n->n++], NOTE_LEN, fmt, ap);
    va_end(ap);
}

static uint64_t bytes_of(const struct pkg_inventory *inv, const char *name) {
    const struct pkg_tensor *x = pkg_inventory_find(inv, name);
    return x ? x->t->bytes : 0;
}

static void note_embeddings(const struct plan_stages *p, const struct pkg_inventory *inv, struct notes *n) {
    char size[32];
    progress_bytes(size, sizeof size, bytes_of(inv, "token_embd.weight"));
    if (p->n > 1 && p->tied)
        note(n, "tied: there is no output.weight, so the last stage loads token_embd.weight (%s) too", size);
    else if (p->n > 1 && p->mtp_borrows)
        note(n, "an MTP layer has no token embeddings of its own, so its stage loads token_embd.weight (%s) too", size);
    if (p->list[0].replicated_bytes == 0) return;
    progress_bytes(size, sizeof size, p->list[0].replicated_bytes);
    note(n, "tensors of no layer, embedding or output (%s) are loaded by every stage", size);
}

static void note_mtp(const struct plan_stages *p, struct notes *n) {
    if (p->mtp_layers == 0) return;
    char which[48];
    uint32_t first = p->layer_count - p->mtp_layers;
    if (p->mtp_layers == 1)
        snprintf(which, sizeof which, "layer %" PRIu32 " is an MTP layer", first);
    else
        snprintf(which, sizeof which, "layers %" PRIu32 " to %" PRIu32 " are MTP layers", first, p->layer_count - 1);
    if (first > 0 && p->list[p->n - 1].range.first >= first)
        note(n, "%s, cut off from the trunk: --by bytes keeps them on the stage of the last trunk layer", which);
    else
        note(n, "%s, on the stage of the last trunk layer", which);
}

static void note_other(const struct plan_stages *p, struct notes *n) {
    char size[32];
    const char *other = p->by == PLAN_BY_BYTES ? "count" : "bytes";
    if (!p->has_other || p->n == 1 || p->largest == 0) return;
    progress_bytes(size, sizeof size, p->other_largest);
    double more = 100.0 * ((double)p->other_largest / (double)p->largest - 1);
    if (p->other_largest == p->largest)
        note(n, "cut by %s, the largest stage would be as large", other);
    else
        note(n, "cut by %s, the largest stage would load %s (%.1f%% %s)", other, size, more < 0 ? -more : more,
             more < 0 ? "less" : "more");
}

static void find_notes(const struct plan_stages *p, const struct pkg_inventory *inv, struct notes *n) {
    n->n = 0;
    note_embeddings(p, inv, n);
    note_mtp(p, n);
    note_other(p, n);
}

/* ---- for people ---- */

static const char *size_text(char out[32], uint64_t bytes) {
    if (bytes == 0) return "-";
    return progress_bytes(out, 32, bytes);
}

static void print_row(const char *stage, const char *layers, uint32_t n_layers, const struct plan_stage *s,
                      uint64_t total) {
    char a[32], b[32], c[32], d[32], e[32];
    printf("%5s  %-14s %6" PRIu32 " %8" PRIu64 " %10s %6.1f%%  %10s %10s %10s %10s\n", stage, layers, n_layers,
           s->loaded_count, size_text(a, s->loaded_bytes), total ? 100 * (double)s->loaded_bytes / (double)total : 0.0,
           size_text(b, s->layer_bytes), size_text(c, s->embedding_bytes), size_text(d, s->output_bytes),
           size_text(e, s->replicated_bytes));
}

static void print_text(const struct options *o, const struct plan_stages *p, const struct notes *n) {
    char stage[16], layers[32], size[32], mean[32];
    uint32_t largest = 0;
    printf("%s: %" PRIu32 " layers over %" PRIu32 " stage%s, cut by %s\n\n", o->path, p->layer_count, p->n,
           p->n == 1 ? "" : "s", p->by == PLAN_BY_BYTES ? "bytes" : "count");
    printf("%5s  %-14s %6s %8s %10s %7s  %10s %10s %10s %10s\n", "stage", "layers", "count", "tensors", "loads",
           "share", "layer data", "embedding", "output", "replicated");
    for (uint32_t i = 0; i < p->n; i++) {
        const struct plan_stage *s = &p->list[i];
        if (s->loaded_bytes > p->list[largest].loaded_bytes) largest = i;
        snprintf(stage, sizeof stage, "%" PRIu32, i);
        snprintf(layers, sizeof layers, "%" PRIu32 "..%" PRIu32, s->range.first, s->range.end);
        print_row(stage, layers, s->range.end - s->range.first, s, p->total_bytes);
    }
    progress_bytes(size, sizeof size, p->largest);
    progress_bytes(mean, sizeof mean, p->total_bytes / p->n);
    printf("\nbalance %.3f: stage %" PRIu32 ", the largest, loads %s; the mean is %s\n", plan_stages_balance(p),
           largest, size, mean);
    for (size_t i = 0; i < n->n; i++) printf("- %s\n", n->text[i]);
}

/* ---- for programs ---- */

/* The older tool's keys, in its order; ours after them. */
static json_t *stage_to_json(const struct plan_stage *s, uint32_t i, bool ours) {
    json_t *o = json_pack("{s:I, s:I, s:I, s:b, s:b, s:I, s:I}", "stage_index", (json_int_t)i, "layer_start",
                          (json_int_t)s->range.first, "layer_end", (json_int_t)s->range.end, "includes_embeddings",
                          s->embeddings, "includes_output", s->output, "tensor_count", (json_int_t)s->tensor_count,
                          "tensor_bytes", (json_int_t)s->tensor_bytes);
    if (!o || !ours) return o;
    json_t *more = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "loaded_tensor_count", (json_int_t)s->loaded_count,
                             "loaded_bytes", (json_int_t)s->loaded_bytes, "layer_bytes", (json_int_t)s->layer_bytes,
                             "embedding_bytes", (json_int_t)s->embedding_bytes, "output_bytes",
                             (json_int_t)s->output_bytes, "replicated_bytes", (json_int_t)s->replicated_bytes);
    if (!more || json_object_update(o, more)) {
        json_decref(o);
        o = NULL;
    }
    json_decref(more);
    return o;
}

static json_t *notes_to_json(const struct notes *n) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < n->n; i++)
        if (json_array_append_new(list, json_string(n->text[i]))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static json_t *to_json(const struct plan_stages *p, const struct notes *n, bool ours) {
    json_t *stages = json_array();
    for (uint32_t i = 0; stages && i < p->n; i++)
        if (json_array_append_new(stages, stage_to_json(&p->list[i], i, ours))) {
            json_decref(stages);
            stages = NULL;
        }
    json_t *o = json_pack("{s:i, s:I, s:I, s:o}", "schema_version", 1, "stage_count", (json_int_t)p->n, "layer_count",
                          (json_int_t)p->layer_count, "stages", stages);
    if (!o || !ours) return o;
    json_t *other = p->has_other ? json_integer((json_int_t)p->other_largest) : json_null();
    json_t *more =
        json_pack("{s:s, s:b, s:I, s:I, s:I, s:f, s:o, s:o}", "by", p->by == PLAN_BY_BYTES ? "bytes" : "count",
                  "tied_output", p->tied, "mtp_layer_count", (json_int_t)p->mtp_layers, "total_loaded_bytes",
                  (json_int_t)p->total_bytes, "largest_stage_bytes", (json_int_t)p->largest, "balance",
                  plan_stages_balance(p), "other_largest_stage_bytes", other, "notes", notes_to_json(n));
    if (!more || json_object_update(o, more)) {
        json_decref(o);
        o = NULL;
    }
    json_decref(more);
    return o;
}

static strata_err print_json(const struct plan_stages *p, const struct notes *n, bool ours, struct strata_errmsg *em) {
    json_t *root = to_json(p, n, ours);
    strata_err rc = root ? cli_print_json(root, em) : err_nomem(em, "the output");
    json_decref(root);
    return rc;
}

static int run(const struct cli *cli, const struct options *o) {
    struct strata_errmsg em;
    struct pkg_model *m = NULL;
    struct pkg_inventory inv = {0};
    struct plan_stages p = {0};
    struct notes n;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    strata_err rc = pkg_model_open(o->path, &po, &m, &em);
    if (!rc) rc = pkg_inventory_from_model(&inv, m, &em);
    if (!rc) rc = plan_stages_make(&inv, o->path, o->n_stages, o->by, &p, &em);
    if (rc) goto out;
    find_notes(&p, &inv, &n);
    if (o->json)
        rc = print_json(&p, &n, !cli->skippy, &em);
    else
        print_text(o, &p, &n);
out:
    plan_stages_deinit(&p);
    pkg_inventory_deinit(&inv);
    pkg_model_free(m);
    return rc ? cli_fail(cli, o->json && !cli->skippy, &em) : CLI_OK;
}

static bool parse_by(const char *text, enum plan_by *out) {
    bool bytes = strcmp(text, "bytes") == 0;
    if (!bytes && strcmp(text, "count") != 0) return false;
    *out = bytes ? PLAN_BY_BYTES : PLAN_BY_COUNT;
    return true;
}

int cmd_plan(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {{"stages", required_argument, NULL, 'n'},
                                             {"by", required_argument, NULL, 'b'},
                                             {"json", no_argument, NULL, 'j'},
                                             {"help", no_argument, NULL, 'h'},
                                             {0}};
    struct options o = {.by = cli->skippy ? PLAN_BY_COUNT : PLAN_BY_BYTES, .json = cli->skippy};
    bool has_stages = false;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 'n':
            has_stages = cli_parse_u32(optarg, 0, UINT32_MAX, &o.n_stages);
            if (!has_stages) return cli_usage(cli, "--stages %s is not a number of stages", optarg);
            break;
        case 'b':
            if (!parse_by(optarg, &o.by)) return cli_usage(cli, "--by must be 'bytes' or 'count', not '%s'", optarg);
            break;
        case 'j': o.json = true; break;
        case 'h': fputs(cli->skippy ? skippy_help : help, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) return cli_usage(cli, "name one model or package");
    if (!has_stages) return cli_usage(cli, "say how many stages: --stages N");
    o.path = argv[optind];
    return run(cli, &o);
}

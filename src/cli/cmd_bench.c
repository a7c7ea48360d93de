/*
 * `strata bench`: how fast a model runs in this process, without sampling, and what it costs in memory.
 *
 * One engine is loaded and timed to its first token; then the rounds go over prefill, decoding of one sequence and
 * decoding of several at once, so that a slow minute of the machine hits all of them. Medians count. Token ids are
 * pseudo-random, the same in each run: what is computed does not matter, except that experts are spread as in use.
 */
#include "base/clock.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "cli/cli_engine.h"
#include "engine/engine.h"
#include "engine/engine_profile.h"
#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: strata bench MODEL-OR-PACKAGE [OPTIONS]\n"
    "\n"
    "Measures how fast a model runs on this machine: prefill of a prompt, decoding of one sequence, decoding of "
    "several\n"
    "at once, and the time from nothing to the first token; shows the memory it takes. Nothing is sampled, no text is\n"
    "made. Each figure is the median of the rounds; the spread is (highest - lowest) / median, and a spread above a "
    "few\n"
    "per cent says that something else was using the machine.\n"
    "\n"
    "Decoding reads every weight for each token, so the rate at which memory can be read limits it. That rate is\n"
    "measured with the same threads, on a block as large as what one token reads, and decoding is shown as its share.\n"
    "\n"
    "  -p, --prompt N        tokens of the prompt (default: 512; 0: no prefill)\n"
    "  -n, --decode N        tokens decoded one by one (default: 128; 0: none)\n"
    "      --batch N         sequences decoded at once, 2 to 64 (default: 8; 0: none)\n"
    "      --steps N         tokens that each of those gets (default: 64)\n"
    "  -r, --rounds N        rounds, 1 to 100 (default: 5)\n"
    "  -t, --threads N       threads (default: every core)\n"
    "  -c, --ctx N           context length of a sequence (default: what the figures need)\n"
    "      --kv-type TYPE    type of the KV cache: f16 (default), f32, bf16, q8_0 or q4_0\n"
    "      --no-repack       leave the weights in the pages of the file: less private memory, slower\n"
    "      --json            print one JSON object instead of text\n"
    "  -h, --help            this text\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata bench model.gguf -t 4 --rounds 9\n";

enum { MAX_ROUNDS = 100, BATCH_PROMPT = 16, RUN_TOKENS = 512 };

struct options {
    const char *path;
    uint32_t n_prompt, n_decode, n_seq, n_steps, n_rounds, n_threads, n_ctx;
    enum engine_kv_type kv_type;
    bool json, no_repack;
};

/* One figure: tokens a second, a value for each round. */
struct figure {
    double rate[MAX_ROUNDS];
    uint32_t n;
    double median, spread;
};

struct bench {
    struct options o;
    struct pkg_model *pkg;
    struct engine *engine;
    uint64_t rng;
    int32_t tokens[RUN_TOKENS];
    struct figure prefill, decode, batch;
    double load_s, first_s; /* from nothing to a loaded engine, and to the first token's logits */
    double read_rate;       /* bytes a second */
    uint64_t token_bytes;   /* that decoding one token reads: weights, and the cache half-way */
};

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sum_up(struct figure *f) {
    double sorted[MAX_ROUNDS];
    if (f->n == 0) return;
    memcpy(sorted, f->rate, f->n * sizeof *sorted);
    qsort(sorted, f->n, sizeof *sorted, by_size);
    f->median = f->n % 2 ? sorted[f->n / 2] : (sorted[f->n / 2 - 1] + sorted[f->n / 2]) / 2;
    f->spread = f->median > 0 ? (sorted[f->n - 1] - sorted[0]) / f->median : 0;
}

static void note(struct figure *f, uint32_t n_tokens, uint64_t start) {
    double s = clock_since_s(start);
    f->rate[f->n++] = s > 0 ? n_tokens / s : 0;
}

/* ---- running ---- */

static void draw_tokens(struct bench *b, uint32_t n) {
    uint64_t n_vocab = engine_info(b->engine)->n_vocab;
    for (uint32_t i = 0; i < n; i++) {
        b->rng = b->rng * 6364136223846793005u + 1442695040888963407u;
        b->tokens[i] = (int32_t)((b->rng >> 33) % n_vocab);
    }
}

static strata_err forget(struct bench *b, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    for (uint32_t s = 0; s < engine_info(b->engine)->n_seq && !rc; s++) rc = engine_truncate(b->engine, s, 0, em);
    return rc;
}

static strata_err run_prompt(struct bench *b, uint32_t n, struct strata_errmsg *em) {
    uint32_t most = engine_info(b->engine)->n_batch;
    const float *out;
    if (most > RUN_TOKENS) most = RUN_TOKENS;
    for (uint32_t pos = 0, step; pos < n; pos += step) {
        step = n - pos < most ? n - pos : most;
        draw_tokens(b, step);
        struct engine_batch one = {.pos = pos,
                                   .n_tokens = step,
                                   .tokens = b->tokens,
                                   .want = pos + step == n ? ENGINE_OUT_LAST : ENGINE_OUT_NONE};
        strata_err rc = engine_run(b->engine, &one, &out, em);
        if (rc) return rc;
    }
    return STRATA_OK;
}

/* n tokens for each of the first n_seq sequences, in one run. */
static strata_err run_step(struct bench *b, uint32_t n_seq, uint32_t n, struct strata_errmsg *em) {
    struct engine_batch all[ENGINE_MAX_BATCHES];
    const float *out[ENGINE_MAX_BATCHES];
    draw_tokens(b, n_seq * n);
    for (uint32_t s = 0; s < n_seq; s++)
        all[s] = (struct engine_batch){.seq = s,
                                       .pos = engine_pos(b->engine, s),
                                       .n_tokens = n,
                                       .tokens = b->tokens + (size_t)s * n,
                                       .want = ENGINE_OUT_LAST};
    return engine_run_many(b->engine, all, n_seq, out, em);
}

static strata_err bench_prefill(struct bench *b, struct strata_errmsg *em) {
    strata_err rc = forget(b, em);
    uint64_t start = clock_now_ns();
    if (!rc) rc = run_prompt(b, b->o.n_prompt, em);
    if (!rc) note(&b->prefill, b->o.n_prompt, start);
    return rc;
}

static strata_err bench_decode(struct bench *b, struct strata_errmsg *em) {
    strata_err rc = forget(b, em);
    uint64_t start = clock_now_ns();
    for (uint32_t i = 0; i < b->o.n_decode && !rc; i++) rc = run_step(b, 1, 1, em);
    if (!rc) note(&b->decode, b->o.n_decode, start);
    return rc;
}

/* Sequences of a few tokens' prompt that go on together. */
static strata_err bench_batch(struct bench *b, struct strata_errmsg *em) {
    uint32_t most = engine_info(b->engine)->n_batch / b->o.n_seq, prompt = most < BATCH_PROMPT ? most : BATCH_PROMPT;
    if (prompt > RUN_TOKENS / b->o.n_seq) prompt = RUN_TOKENS / b->o.n_seq;
    strata_err rc = forget(b, em);
    if (!rc) rc = run_step(b, b->o.n_seq, prompt, em);
    uint64_t start = clock_now_ns();
    for (uint32_t i = 0; i < b->o.n_steps && !rc; i++) rc = run_step(b, b->o.n_seq, 1, em);
    if (!rc) note(&b->batch, b->o.n_steps * b->o.n_seq, start);
    return rc;
}

static strata_err run_rounds(struct bench *b, struct strata_errmsg *em) {
    const struct options *o = &b->o;
    /* A round before the first one, shortened: graphs are built, pages touched, threads awake. */
    strata_err rc = forget(b, em);
    if (!rc && o->n_prompt) rc = run_prompt(b, o->n_prompt, em);
    if (!rc) rc = forget(b, em);
    for (int i = 0; i < 2 && !rc && o->n_seq; i++) rc = run_step(b, o->n_seq, 1, em);
    for (uint32_t r = 0; r < o->n_rounds && !rc; r++) {
        if (o->n_prompt) rc = bench_prefill(b, em);
        if (!rc && o->n_decode) rc = bench_decode(b, em);
        if (!rc && o->n_seq) rc = bench_batch(b, em);
    }
    sum_up(&b->prefill);
    sum_up(&b->decode);
    sum_up(&b->batch);
    return rc;
}

/* ---- loading ---- */

static uint32_t context_needed(const struct options *o) {
    uint32_t n = o->n_prompt > o->n_decode ? o->n_prompt : o->n_decode;
    uint32_t batch = o->n_seq ? o->n_steps + BATCH_PROMPT : 1;
    return n > batch ? n : batch;
}

/* As a program would start: model, tokenizer (where there is one), engine, one token. */
static strata_err load(struct bench *b, struct strata_errmsg *em) {
    const struct options *o = &b->o;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    struct engine_options eo = {.n_ctx = o->n_ctx ? o->n_ctx : context_needed(o),
                                .n_seq = o->n_seq,
                                .max_logits = o->n_seq ? o->n_seq : 1,
                                .n_threads = o->n_threads,
                                .kv_type = o->kv_type,
                                .keep_mapped = o->no_repack,
                                .progress = stderr};
    struct vocab *vocab = NULL;
    struct strata_errmsg ignored;
    uint64_t start = clock_now_ns();
    strata_err rc = pkg_model_open(o->path, &po, &b->pkg, em);
    if (rc) return rc;
    if (vocab_new(pkg_model_meta(b->pkg), &vocab, &ignored) == STRATA_OK) vocab_free(vocab);
    rc = engine_new(b->pkg, &eo, &b->engine, em);
    b->load_s = clock_since_s(start);
    if (!rc) rc = run_prompt(b, 1, em);
    b->first_s = clock_since_s(start);
    if (rc) return rc;
    if (engine_info(b->engine)->n_ctx < context_needed(o))
        return err_set(em, STRATA_EINVAL, "a context of %u is too short for what is to be measured: %u positions",
                       (unsigned)engine_info(b->engine)->n_ctx, (unsigned)context_needed(o));
    return STRATA_OK;
}

static void measure_memory_bound(struct bench *b) {
    const struct engine_info *i = engine_info(b->engine);
    if (!b->o.n_decode) return;
    b->token_bytes = i->token_bytes + engine_rows_bytes(b->engine, 0, b->o.n_decode / 2 + 1);
    b->read_rate = engine_profile_read_rate(i->n_threads, b->token_bytes);
}

/* Decoding's bytes a second as a share of what memory gives. */
static double share(const struct bench *b) {
    return b->read_rate > 0 ? b->decode.median * (double)b->token_bytes / b->read_rate : 0;
}

/* ---- reports ---- */

static void print_figure(const char *what, uint32_t n, const struct figure *f) {
    char label[64];
    if (f->n == 0) return;
    snprintf(label, sizeof label, what, (unsigned)n);
    printf("%-34s %10.2f tokens/s   (spread %.1f %%)\n", label, f->median, 100 * f->spread);
}

static void print_bytes(const char *what, uint64_t n) {
    char text[32];
    printf("%-34s %10s\n", what, progress_bytes(text, sizeof text, n));
}

static void report(const struct bench *b) {
    const struct engine_info *i = engine_info(b->engine);
    printf("%s, %u layers, %u threads, KV %s, medians of %u rounds\n", i->arch, (unsigned)i->layer_count,
           (unsigned)i->n_threads, engine_kv_name(b->o.kv_type), (unsigned)b->o.n_rounds);
    print_figure("prefill of %u tokens", b->o.n_prompt, &b->prefill);
    print_figure("decode of %u tokens", b->o.n_decode, &b->decode);
    print_figure("decode of %u sequences at once", b->o.n_seq, &b->batch);
    printf("%-34s %10.3f s          (loaded after %.3f s)\n", "load to the first token", b->first_s, b->load_s);
    print_bytes("weights", i->weight_bytes);
    if (i->copied_bytes) print_bytes("  of these, copied", i->copied_bytes);
    if (i->repacked_bytes) print_bytes("  of these, repacked", i->repacked_bytes);
    print_bytes("state of all sequences", i->kv_bytes);
    print_bytes("scratch", i->scratch_bytes);
    if (!b->decode.n) return;
    print_bytes("read for one token", b->token_bytes);
    printf("%-34s %10.2f GB/s\n", "memory gives these threads", b->read_rate / 1e9);
    printf("%-34s %10.2f GB/s       (%.0f %% of that)\n", "decode reads",
           b->decode.median * (double)b->token_bytes / 1e9, 100 * share(b));
}

static json_t *figure_json(const struct figure *f, uint32_t n) {
    json_t *rounds = json_array();
    for (uint32_t i = 0; rounds && i < f->n; i++) json_array_append_new(rounds, json_real(f->rate[i]));
    return json_pack("{s:I, s:f, s:f, s:o}", "n", (json_int_t)n, "tokens_per_second", f->median, "spread", f->spread,
                     "rounds", rounds);
}

static strata_err report_json(const struct bench *b, struct strata_errmsg *em) {
    const struct engine_info *i = engine_info(b->engine);
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:s, s:o, s:o, s:o, s:{s:f, s:f}, s:{s:I, s:I, s:I, s:I, s:I}, s:{s:I, s:f, s:f}}",
        "architecture", i->arch, "backend", i->backend, "threads", (json_int_t)i->n_threads, "kv_type",
        engine_kv_name(b->o.kv_type), "prefill", figure_json(&b->prefill, b->o.n_prompt), "decode",
        figure_json(&b->decode, b->o.n_decode), "batch", figure_json(&b->batch, b->o.n_seq), "load", "seconds",
        b->load_s, "seconds_to_first_token", b->first_s, "memory", "weight_bytes", (json_int_t)i->weight_bytes,
        "copied_bytes", (json_int_t)i->copied_bytes, "repacked_bytes", (json_int_t)i->repacked_bytes, "kv_bytes",
        (json_int_t)i->kv_bytes, "scratch_bytes", (json_int_t)i->scratch_bytes, "bandwidth", "bytes_per_token",
        (json_int_t)b->token_bytes, "bytes_per_second", b->read_rate, "share", share(b));
    strata_err rc = root ? cli_print_json(root, em) : err_nomem(em, "the report");
    json_decref(root);
    return rc;
}

/* ---- options ---- */

enum { OPT_BATCH = 256, OPT_STEPS, OPT_KV_TYPE, OPT_NO_REPACK, OPT_JSON };

static const struct option long_options[] = {
    {"prompt", required_argument, NULL, 'p'},
    {"decode", required_argument, NULL, 'n'},
    {"batch", required_argument, NULL, OPT_BATCH},
    {"steps", required_argument, NULL, OPT_STEPS},
    {"rounds", required_argument, NULL, 'r'},
    {"threads", required_argument, NULL, 't'},
    {"ctx", required_argument, NULL, 'c'},
    {"kv-type", required_argument, NULL, OPT_KV_TYPE},
    {"no-repack", no_argument, NULL, OPT_NO_REPACK},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* One option with a number. */
static bool number_option(int opt, const char *text, struct options *o) {
    switch (opt) {
    case 'p': return cli_parse_u32(text, 0, 1 << 20, &o->n_prompt);
    case 'n': return cli_parse_u32(text, 0, 1 << 20, &o->n_decode);
    case 'r': return cli_parse_u32(text, 1, MAX_ROUNDS, &o->n_rounds);
    case 't': return cli_parse_u32(text, 1, 512, &o->n_threads);
    case 'c': return cli_parse_u32(text, 1, 1 << 24, &o->n_ctx);
    case OPT_STEPS: return cli_parse_u32(text, 1, 1 << 16, &o->n_steps);
    default: return cli_parse_u32(text, 0, ENGINE_MAX_BATCHES, &o->n_seq) && o->n_seq != 1;
    }
}

static const char *option_name(int opt) {
    for (const struct option *l = long_options; l->name; l++)
        if (l->val == opt) return l->name;
    return "?";
}

static int parse(const struct cli *cli, int argc, char **argv, struct options *o) {
    int opt, status;
    opterr = 0;
    optind = 1;
    while ((opt = getopt_long(argc, argv, ":p:n:r:t:c:h", long_options, NULL)) != -1) {
        switch (opt) {
        case OPT_JSON: o->json = true; break;
        case OPT_NO_REPACK: o->no_repack = true; break;
        case 'h': fputs(usage, stdout); return CLI_OK;
        case OPT_KV_TYPE:
            status = cli_engine_take_kv(cli, optarg, &o->kv_type);
            if (status) return status;
            break;
        case '?':
        case ':': return cli_bad_option(cli, opt, argv);
        default:
            if (!number_option(opt, optarg, o))
                return cli_usage(cli, "'%s' is not a value that --%s can have", optarg, option_name(opt));
        }
    }
    if (argc - optind != 1) return cli_usage(cli, "one model or package is needed");
    o->path = argv[optind];
    return -1;
}

int cmd_bench(const struct cli *cli, int argc, char **argv) {
    struct bench b = {.o = {.n_prompt = 512, .n_decode = 128, .n_seq = 8, .n_steps = 64, .n_rounds = 5}, .rng = 1};
    struct strata_errmsg em;
    int status = parse(cli, argc, argv, &b.o);
    if (status >= 0) return status;
    strata_err rc = load(&b, &em);
    if (!rc) rc = run_rounds(&b, &em);
    if (!rc) measure_memory_bound(&b);
    if (!rc && b.o.json) rc = report_json(&b, &em);
    if (!rc && !b.o.json) report(&b);
    status = rc ? cli_fail(cli, b.o.json, &em) : CLI_OK;
    engine_free(b.engine);
    pkg_model_free(b.pkg);
    return status;
}

/*
 * `strata perplexity`: how well a model predicts a text, as one number.
 *
 * The text's tokens are cut into chunks. Of each chunk, which starts with the beginning-of-text token where the model
 * wants one, the second half is predicted, every token from all before it in the chunk, so that each prediction has
 * some context. That is how llama.cpp measures, so that numbers can be compared.
 */
#include "base/clock.h"
#include "base/file.h"
#include "base/pool.h"
#include "cli/cli_device.h"
#include "cli/cli_engine.h"
#include "engine/engine.h"
#include "text/vocab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: strata perplexity MODEL-OR-PACKAGE -f FILE [OPTIONS]\n"
    "\n"
    "Measures how well a model predicts the text in FILE: e to the mean of -ln(probability of the token that came).\n"
    "Lower is better. Use it to see what a quantization costs, or whether a package computes what its model does: the\n"
    "same text and chunk length give comparable numbers, here and in llama.cpp's llama-perplexity.\n"
    "\n"
    "The text is cut into chunks of --chunk tokens; what is left over at the end is not used. The first half of a\n"
    "chunk is context alone, the second half is predicted.\n"
    "\n"
    "  -f, --file FILE       the text, UTF-8; at least two chunks long\n"
    "  -c, --chunk N         tokens of a chunk, 4 to 65536 (default: 512)\n"
    "      --chunks N        use the first N chunks alone (default: all)\n"
    "      --kv-type TYPE    type of the KV cache: f16 (default), f32, bf16, q8_0 or q4_0\n"
    "  -t, --threads N       threads (default: every core)\n" CLI_DEVICE_HELP
    "  -b, --batch N         most tokens computed at once, 1 to 16384 (default: 512)\n"
    "      --json            print one JSON object: the result, and the running result after each chunk\n"
    "  -h, --help            this text\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata perplexity model.gguf -f book.txt\n";

enum { MAX_TEXT_BYTES = 64 << 20, LOGITS_BYTES = 512 << 20 };

struct options {
    const char *path, *file, *device;
    uint32_t chunk, n_chunks, n_threads, n_batch;
    enum engine_kv_type kv_type;
    bool json;
};

struct measure {
    struct options o;
    struct pkg_model *pkg;
    struct vocab *vocab;
    struct engine *engine;
    struct vocab_ids ids;
    bool adds_bos;
    uint32_t step; /* rows of logits that one run gives */
    double *nll;   /* of the predictions of one run */
    double sum, squares;
    uint64_t count;
    double *running; /* the result after each chunk */
    double seconds;
};

/* ---- the text ---- */

static strata_err encode(struct measure *m, struct strata_errmsg *em) {
    struct buf text;
    struct vocab_ids none = {.id = NULL};
    buf_init(&text, MAX_TEXT_BYTES);
    strata_err rc = file_read_all(m->o.file, MAX_TEXT_BYTES, &text, em);
    if (!rc) rc = vocab_encode(m->vocab, buf_cstr(&text), text.len, VOCAB_ADD_SPECIAL, &m->ids, em);
    /* What an empty text becomes is what the tokenizer adds to every text. */
    if (!rc) rc = vocab_encode(m->vocab, "", 0, VOCAB_ADD_SPECIAL, &none, em);
    if (rc) goto out;
    m->adds_bos = none.len > 0 && none.id[0] == vocab_bos(m->vocab);
    size_t n_chunks = m->ids.len / m->o.chunk;
    if (n_chunks < 2) {
        rc = err_set(em, STRATA_EINVAL,
                     "%s has %zu tokens; two chunks of %u are the least: take a longer text or a smaller --chunk",
                     m->o.file, m->ids.len, (unsigned)m->o.chunk);
        goto out;
    }
    if (m->o.n_chunks == 0 || m->o.n_chunks > n_chunks) m->o.n_chunks = (uint32_t)n_chunks;
out:
    vocab_ids_deinit(&none);
    buf_deinit(&text);
    return rc;
}

static strata_err load(struct measure *m, struct strata_errmsg *em) {
    const struct options *o = &m->o;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    strata_err rc = pkg_model_open(o->path, &po, &m->pkg, em);
    if (!rc) rc = vocab_new(pkg_model_meta(m->pkg), &m->vocab, em);
    if (!rc) rc = encode(m, em);
    if (rc) return rc;
    uint32_t batch = o->n_batch < o->chunk ? o->n_batch : o->chunk;
    size_t rows = LOGITS_BYTES / (sizeof(float) * ((size_t)vocab_size(m->vocab) + 1)) + 1;
    m->step = rows < batch ? (uint32_t)rows : batch;
    struct engine_options eo = {.n_ctx = o->chunk,
                                .n_batch = batch,
                                .max_logits = m->step,
                                .n_threads = o->n_threads,
                                .kv_type = o->kv_type,
                                .device = o->device,
                                .progress = stderr};
    rc = engine_new(m->pkg, &eo, &m->engine, em);
    m->nll = malloc(m->step * sizeof *m->nll);
    m->running = malloc(m->o.n_chunks * sizeof *m->running);
    if (!rc && (!m->nll || !m->running)) rc = err_nomem(em, "the results");
    return rc;
}

/* ---- measuring ---- */

struct rows {
    const float *logits;
    const int32_t *next;
    size_t n_vocab;
    double *nll;
};

static strata_err nll_of_row(void *user, size_t i, struct strata_errmsg *em) {
    struct rows *r = user;
    const float *x = r->logits + i * r->n_vocab;
    float best = x[0];
    (void)em;
    for (size_t k = 1; k < r->n_vocab; k++) best = x[k] > best ? x[k] : best;
    double sum = (double)expf(x[0] - best);
    for (size_t k = 1; k < r->n_vocab; k++) sum += (double)expf(x[k] - best);
    r->nll[i] = log(sum) - (double)(x[r->next[i]] - best);
    return STRATA_OK;
}

static strata_err add_predictions(struct measure *m, const float *logits, const int32_t *next, uint32_t n,
                                  struct strata_errmsg *em) {
    const struct engine_info *info = engine_info(m->engine);
    struct rows r = {.logits = logits, .next = next, .n_vocab = info->n_vocab, .nll = m->nll};
    for (uint32_t i = 0; i < n; i++)
        if ((uint32_t)next[i] >= info->n_vocab)
            return err_set(em, STRATA_EFORMAT, "token %d is outside the model's vocabulary of %u", next[i],
                           (unsigned)info->n_vocab);
    strata_err rc = pool_run(info->n_threads, n, nll_of_row, &r, em);
    for (uint32_t i = 0; i < n && !rc; i++) {
        m->sum += m->nll[i];
        m->squares += m->nll[i] * m->nll[i];
    }
    m->count += n;
    return rc;
}

/* One chunk: its first half as context, then every token but the last predicts the next one. The last is computed all
 * the same: whole batches take the same paths through the kernels as llama.cpp's do. */
static strata_err run_chunk(struct measure *m, int32_t *tokens, struct strata_errmsg *em) {
    uint32_t half = m->o.chunk / 2, end = m->o.chunk, batch = engine_info(m->engine)->n_batch;
    int32_t first = tokens[0];
    strata_err rc = engine_truncate(m->engine, 0, 0, em);
    if (m->adds_bos) tokens[0] = vocab_bos(m->vocab);
    for (uint32_t pos = 0, n; pos < end && !rc; pos += n) {
        bool predicts = pos >= half;
        uint32_t stop = predicts ? end : half, most = predicts ? m->step : batch;
        const float *logits;
        n = stop - pos < most ? stop - pos : most;
        struct engine_batch b = {
            .pos = pos, .n_tokens = n, .tokens = tokens + pos, .want = predicts ? ENGINE_OUT_ALL : ENGINE_OUT_NONE};
        rc = engine_run(m->engine, &b, &logits, em);
        if (!rc && predicts) rc = add_predictions(m, logits, tokens + pos + 1, pos + n == end ? n - 1 : n, em);
    }
    tokens[0] = first;
    return rc;
}

static strata_err measure(struct measure *m, struct strata_errmsg *em) {
    bool show = isatty(STDERR_FILENO);
    uint64_t start = clock_now_ns();
    for (uint32_t i = 0; i < m->o.n_chunks; i++) {
        strata_err rc = run_chunk(m, m->ids.id + (size_t)i * m->o.chunk, em);
        if (rc) return err_prefix(em, "chunk %u", (unsigned)i + 1);
        m->running[i] = exp(m->sum / (double)m->count);
        if (show) fprintf(stderr, "\rchunk %u of %u: %.4f ", (unsigned)i + 1, (unsigned)m->o.n_chunks, m->running[i]);
    }
    if (show) fputs("\r\033[K", stderr);
    m->seconds = clock_since_s(start);
    return STRATA_OK;
}

/* ---- reporting ---- */

/* The standard error of the mean, carried over to e^mean. */
static double uncertainty(const struct measure *m) {
    double n = (double)m->count, mean = m->sum / n, variance = m->squares / n - mean * mean;
    return n > 1 && variance > 0 ? sqrt(variance / (n - 1)) * exp(mean) : 0;
}

static strata_err report(const struct measure *m, struct strata_errmsg *em) {
    double result = m->running[m->o.n_chunks - 1], error = uncertainty(m);
    if (!m->o.json) {
        printf("perplexity %.4f +- %.4f (%u chunks of %u tokens, %llu predictions, %.1f s)\n", result, error,
               (unsigned)m->o.n_chunks, (unsigned)m->o.chunk, (unsigned long long)m->count, m->seconds);
        return STRATA_OK;
    }
    json_t *running = json_array();
    bool bad = !running;
    for (uint32_t i = 0; i < m->o.n_chunks && !bad; i++)
        bad = json_array_append_new(running, json_real(m->running[i])) != 0;
    json_t *root = bad ? NULL
                       : json_pack("{s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:O}", "perplexity", result, "error", error,
                                   "tokens", (json_int_t)m->ids.len, "chunks", (json_int_t)m->o.n_chunks,
                                   "chunk_tokens", (json_int_t)m->o.chunk, "predictions", (json_int_t)m->count,
                                   "seconds", m->seconds, "running", running);
    strata_err rc = root ? cli_print_json(root, em) : err_nomem(em, "the result");
    json_decref(running);
    json_decref(root);
    return rc;
}

enum { OPT_CHUNKS = 256, OPT_KV_TYPE, OPT_DEVICE, OPT_JSON };

static const struct option long_options[] = {
    {"file", required_argument, NULL, 'f'},
    {"chunk", required_argument, NULL, 'c'},
    {"chunks", required_argument, NULL, OPT_CHUNKS},
    {"kv-type", required_argument, NULL, OPT_KV_TYPE},
    {"threads", required_argument, NULL, 't'},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"batch", required_argument, NULL, 'b'},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Returns -1 to go on, or the exit status. */
static int parse(const struct cli *cli, int argc, char **argv, struct options *o) {
    int opt, status;
    opterr = 0;
    optind = 1;
    while ((opt = getopt_long(argc, argv, ":f:c:t:b:h", long_options, NULL)) != -1) {
        switch (opt) {
        case 'f': o->file = optarg; break;
        case 'c':
            if (!cli_parse_u32(optarg, 4, 65536, &o->chunk))
                return cli_usage(cli, "--chunk is a number from 4 to 65536, not '%s'", optarg);
            break;
        case OPT_CHUNKS:
            if (!cli_parse_u32(optarg, 1, UINT32_MAX, &o->n_chunks))
                return cli_usage(cli, "--chunks is a number above 0, not '%s'", optarg);
            break;
        case OPT_KV_TYPE:
            status = cli_engine_take_kv(cli, optarg, &o->kv_type);
            if (status) return status;
            break;
        case 't':
            if (!cli_parse_u32(optarg, 1, 512, &o->n_threads))
                return cli_usage(cli, "--threads is a number from 1 to 512, not '%s'", optarg);
            break;
        case 'b':
            if (!cli_parse_u32(optarg, 1, 16384, &o->n_batch))
                return cli_usage(cli, "--batch is a number from 1 to 16384, not '%s'", optarg);
            break;
        case OPT_DEVICE: o->device = optarg; break;
        case OPT_JSON: o->json = true; break;
        case 'h': fputs(usage, stdout); return CLI_OK;
        default: return cli_bad_option(cli, opt, argv);
        }
    }
    if (cli_device_is_list(o->device)) return cli_device_list(cli, o->json);
    if (argc - optind != 1) return cli_usage(cli, "one model or package is needed");
    if (!o->file) return cli_usage(cli, "-f FILE, the text to predict, is needed");
    o->path = argv[optind];
    return -1;
}

int cmd_perplexity(const struct cli *cli, int argc, char **argv) {
    struct measure m = {.o = {.chunk = 512, .n_batch = 512, .kv_type = ENGINE_KV_F16}};
    struct strata_errmsg em;
    int status = parse(cli, argc, argv, &m.o);
    if (status >= 0) return status;
    status = CLI_OK;
    if (load(&m, &em) || measure(&m, &em) || report(&m, &em)) status = cli_fail(cli, m.o.json, &em);
    engine_free(m.engine);
    vocab_free(m.vocab);
    pkg_model_free(m.pkg);
    vocab_ids_deinit(&m.ids);
    free(m.nll);
    free(m.running);
    return status;
}

/* `strata serve`: the coordinator: plans, sets up the chain of stages, and opens the HTTP API over it. */
#include "base/clock.h"
#include "base/file.h"
#include "base/jsonx.h"
#include "base/log.h"
#include "base/path.h"
#include "base/progress.h"
#include "cli/cli_device.h"
#include "cli/cli_engine.h"
#include "cli/cli_signer.h"
#include "package/pkg_inventory.h"
#include "package/pkg_model.h"
#include "plan/plan_cut.h"
#include "serve/api.h"
#include "serve/chain.h"
#include "serve/local.h"
#include "serve/prefix.h"
#include "text/chat.h"
#include "text/vocab.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: strata serve PACKAGE (--stage HOST:PORT ... | --local-stages N) [OPTIONS]\n"
    "\n"
    "Cuts a model over stages and serves it as one OpenAI-compatible endpoint. Each stage loads its own layers only.\n"
    "\n"
    "Stages\n"
    "      --stage HOST:PORT    a machine that runs 'strata stage', in the order of the layers; give it once for each\n"
    "      --local-stages N     start N stages on this machine; needs no keys (default: 1, when no --stage is given)\n"
    "      --key-dir DIR        this machine's key (default: $XDG_CONFIG_HOME/strata or ~/.config/strata)\n"
    "\n"
    "Model\n" CLI_SIGNER_HELP
    "  -c, --ctx N              context length in tokens (default: the model's own, at most 4096)\n"
    "  -b, --batch N            tokens computed at once, of all requests together (default: 512)\n"
    "      --kv-type TYPE       type of the KV cache: f16 (default), f32, bf16, q8_0 or q4_0\n"
    "  -p, --parallel N         requests answered at the same time, 1 to 64 (default: 4); more wait for their turn\n"
    "      --pool N             tokens of context for all of them together (default: --ctx for each). A request needs\n"
    "                           its prompt and max_tokens of it, and waits until it gets them\n"
    "      --prefix-cache N     tokens of context that are kept after a request, so that a prompt that starts the "
    "same\n"
    "                           way is computed only from where it differs; 0: none (default: twice --ctx)\n"
    "  -t, --threads N          threads of each local stage (default: every core)\n" CLI_DEVICE_HELP
    "      --over-memory        local stages may load layers that do not fit the memory: the disk is read again and "
    "again\n"
    "      --no-repack          local stages leave the weights as they are in the files: less private memory, slower\n"
    "\n"
    "API\n"
    "      --listen HOST:PORT   where the API listens (default: 127.0.0.1:8080; port 0 takes any free port)\n"
    "      --api-key-file FILE  the key that clients must send; needed to listen beyond this machine\n"
    "      --model-name NAME    name of the model in the API (default: the package's model id)\n"
    "      --json               print one line of JSON when the API is open: its URL, and what each stage holds\n"
    "  -h, --help               this text\n"
    "\n"
    "When a stage is lost, running requests end with an error, and the chain is set up again as soon as it is back.\n"
    "Ctrl-C stops everything; a second Ctrl-C does so at once.\n"
    "STRATA_LOG=debug, info (default), warn or error sets what is logged on standard error.\n"
    "Exit status: 0 stopped by Ctrl-C or SIGTERM, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata serve ./model-package --local-stages 2\n"
    "  strata serve ./model-package --stage box1:9400 --stage box2:9400\n";

enum {
    DEFAULT_CTX = 4096,
    DEFAULT_BATCH = 512,
    DEFAULT_PARALLEL = 4,
    CACHE_DEFAULT = UINT32_MAX,
    API_KEY_MAX = 4096,
    WAIT_SLICE_MS = 200
};

struct options {
    const char *package, *key_dir, *api_key_file, *model_name, *device;
    struct wire_addr stages[WIRE_MSG_STAGES];
    uint32_t n_stages, n_local;
    struct wire_addr listen;
    uint32_t n_ctx, n_batch, n_threads, n_parallel, n_pool, cache_tokens;
    enum engine_kv_type kv_type;
    bool json, over_memory, no_repack;
    struct cli_signer signer;
};

struct server {
    struct options o;
    struct log log;
    char key_dir[PATH_MAX_LEN];
    struct pkg_model *meta;
    struct vocab *vocab;
    struct chat_template *chat;
    struct buf bos, eos, api_key;
    struct wire_key *key;
    struct local *local;
    struct chain *chain;
    struct api *api;
    uint32_t layer_count, n_ctx, n_stages, n_seq;
    struct plan_range ranges[WIRE_MSG_STAGES];
};

/* ---- the model ---- */

static strata_err load_template(struct server *s, struct strata_errmsg *em) {
    struct gguf_str source = {NULL, 0};
    strata_err rc = gguf_reader_get_str(pkg_model_meta(s->meta), "tokenizer.chat_template", false, &source, em);
    if (rc) return rc;
    int32_t bos = vocab_bos(s->vocab), eos = vocab_eos(s->vocab);
    if (bos >= 0) rc = vocab_piece(s->vocab, bos, true, &s->bos, em);
    if (!rc && eos >= 0) rc = vocab_piece(s->vocab, eos, true, &s->eos, em);
    if (rc || !source.data) return rc;
    /* A template beyond our means leaves plain completions usable. */
    if (chat_template_new(source.data, source.len, &s->chat, em)) {
        fprintf(stderr, "note: no chat completions: %s\n", em->text);
        s->chat = NULL;
    }
    return STRATA_OK;
}

static strata_err choose_ctx(struct server *s, struct strata_errmsg *em) {
    struct gguf_str arch = {NULL, 0};
    char key[128];
    uint32_t trained = DEFAULT_CTX;
    s->n_ctx = s->o.n_ctx;
    if (s->n_ctx) return STRATA_OK;
    strata_err rc = gguf_reader_get_str(pkg_model_meta(s->meta), "general.architecture", true, &arch, em);
    if (rc) return rc;
    snprintf(key, sizeof key, "%.*s.context_length", (int)(arch.len < 64 ? arch.len : 64), arch.data);
    rc = gguf_reader_get_u32(pkg_model_meta(s->meta), key, false, &trained, em);
    s->n_ctx = trained > 1 && trained < DEFAULT_CTX ? trained : DEFAULT_CTX;
    return rc;
}

static strata_err open_model(struct server *s, struct strata_errmsg *em) {
    struct pkg_model_options po = {.flags = PKG_MODEL_METADATA_ONLY, .require_signature = cli_signer_key(&s->o.signer)};
    strata_err rc = pkg_model_open(s->o.package, &po, &s->meta, em);
    if (rc) return rc;
    if (!pkg_model_is_package(s->meta))
        return err_set(em, STRATA_EINVAL,
                       "%s is a plain GGUF file; stages load layer packages. Make one with: strata "
                       "write-package %s --out-dir DIR",
                       s->o.package, s->o.package);
    cli_signer_log(&s->log, pkg_model_manifest_sha256(s->meta), pkg_model_signature(s->meta));
    rc = vocab_new(pkg_model_meta(s->meta), &s->vocab, em);
    if (!rc) rc = load_template(s, em);
    if (!rc) rc = choose_ctx(s, em);
    return rc;
}

/* How many of the last layers are MTP layers, as the metadata says: the layers themselves need not be here. */
static strata_err count_mtp(const struct server *s, uint32_t *out, struct strata_errmsg *em) {
    struct pkg_inventory meta = {.meta = pkg_model_meta(s->meta)};
    char key[128];
    *out = 0;
    strata_err rc = pkg_inventory_key(&meta, "nextn_predict_layers", key, sizeof key, em);
    if (!rc) rc = gguf_reader_get_u32(meta.meta, key, false, out, em);
    if (!rc && *out >= s->layer_count)
        rc = err_set(em, STRATA_EFORMAT, "%s is %u, but there are only %u layers", key, *out, s->layer_count);
    return rc;
}

static strata_err make_plan(struct server *s, struct strata_errmsg *em) {
    uint64_t *sizes = NULL;
    uint32_t mtp;
    struct plan_load load = {0};
    strata_err rc =
        pkg_model_layer_sizes(s->o.package, &sizes, &s->layer_count, &load.first_extra, &load.last_extra, em);
    if (!rc) rc = count_mtp(s, &mtp, em);
    if (rc) goto out;
    load.layer_bytes = sizes;
    load.n_layers = s->layer_count;
    load.n_trunk = s->layer_count - mtp;
    rc = plan_bytes(&load, s->n_stages, s->ranges, em);
out:
    free(sizes);
    return rc;
}

/* ---- what protects it ---- */

static strata_err load_api_key(struct server *s, struct strata_errmsg *em) {
    if (!s->o.api_key_file) return STRATA_OK;
    strata_err rc = file_read_all(s->o.api_key_file, API_KEY_MAX, &s->api_key, em);
    if (rc) return rc;
    struct buf *k = &s->api_key;
    while (k->len && (k->data[k->len - 1] == '\n' || k->data[k->len - 1] == '\r' || k->data[k->len - 1] == ' '))
        k->data[--k->len] = '\0';
    bool good = k->len >= 8;
    for (size_t i = 0; i < k->len; i++) good = good && k->data[i] > 0x20 && k->data[i] < 0x7f;
    if (!good)
        return err_set(em, STRATA_EINVAL, "%s must hold one key of at least 8 printable characters without spaces",
                       s->o.api_key_file);
    return STRATA_OK;
}

static strata_err load_identity(struct server *s, struct strata_errmsg *em) {
    struct wire_trust trust;
    strata_err rc = STRATA_OK;
    if (s->local) return STRATA_OK;
    if (s->o.key_dir)
        snprintf(s->key_dir, sizeof s->key_dir, "%s", s->o.key_dir);
    else
        rc = ed25519_key_dir(s->key_dir, sizeof s->key_dir, em);
    if (!rc) rc = wire_key_load(s->key_dir, &s->key, em);
    /* The chain reads the list at every dial; a broken one should be told now. */
    if (!rc) rc = wire_trust_load(s->key_dir, &trust, em);
    if (!rc) wire_trust_deinit(&trust);
    return rc;
}

/* ---- the chain ---- */

static strata_err start_local(struct server *s, struct strata_errmsg *em) {
    struct local_options lo = {.package = s->o.package,
                               .n_stages = s->n_stages,
                               .n_threads = s->o.n_threads,
                               .device = s->o.device,
                               .over_memory = s->o.over_memory,
                               .keep_mapped = s->o.no_repack,
                               .log = &s->log};
    if (s->o.n_stages) return STRATA_OK;
    if (!s->o.n_local) fprintf(stderr, "note: no --stage given: starting one stage on this machine\n");
    return local_new(&lo, &s->local, em);
}

/* How many requests at once, and what they share. Local stages share the cores as well: there is nothing to be won by
 * having several batches on their way. */
static strata_err share_out(struct server *s, struct chain_options *co, struct strata_errmsg *em) {
    const struct options *o = &s->o;
    uint64_t pool = o->n_pool, cache = o->cache_tokens == CACHE_DEFAULT ? 2ull * s->n_ctx : o->cache_tokens;
    co->n_batch = o->n_batch < s->n_ctx ? o->n_batch : s->n_ctx;
    co->n_seq = o->n_parallel ? o->n_parallel : DEFAULT_PARALLEL;
    if (!o->n_parallel && co->n_seq > co->n_batch) co->n_seq = co->n_batch;
    if (co->n_seq > co->n_batch)
        return err_set(em, STRATA_EINVAL, "--parallel %u needs batches of as many tokens; --batch and --ctx allow %u",
                       co->n_seq, co->n_batch);
    if (!pool) pool = (uint64_t)s->n_ctx * co->n_seq;
    if (pool < s->n_ctx || pool > INT32_MAX)
        return err_set(em, STRATA_EINVAL, "--pool must be from the context length of %u to %d, not %llu", s->n_ctx,
                       INT32_MAX, (unsigned long long)pool);
    co->n_pool = (uint32_t)pool;
    co->cache_blocks = (uint32_t)((cache + PREFIX_BLOCK - 1) / PREFIX_BLOCK);
    co->n_in_flight = s->local ? 1 : s->n_stages;
    co->kv_type = o->kv_type;
    return STRATA_OK;
}

static strata_err start_chain(struct server *s, struct strata_errmsg *em) {
    struct chain_stage stages[WIRE_MSG_STAGES];
    for (uint32_t i = 0; i < s->n_stages; i++)
        stages[i] = (struct chain_stage){.addr = s->o.stages[i], .first = s->ranges[i].first, .end = s->ranges[i].end};
    struct chain_options co = {.stages = stages,
                               .n_stages = s->n_stages,
                               .key = s->key,
                               .key_dir = s->key_dir,
                               .manifest_sha256 = pkg_model_manifest_sha256(s->meta),
                               .layer_count = s->layer_count,
                               .n_ctx = s->n_ctx,
                               .log = &s->log};
    if (s->local) {
        co.prepare = local_prepare;
        co.abort = local_abort;
        co.prepare_ctx = s->local;
        co.key = local_key(s->local);
        co.key_dir = NULL;
        co.trust = local_trust(s->local);
    }
    strata_err rc = share_out(s, &co, em);
    s->n_seq = co.n_seq;
    if (!rc) rc = chain_start(&co, &s->chain, em);
    while (!rc) {
        rc = chain_wait(s->chain, clock_now_ns() + WAIT_SLICE_MS * CLOCK_NS_PER_MS, em);
        if (rc != STRATA_ETIMEOUT) break;
        rc = cli_interrupted() ? err_set(em, STRATA_ECANCELLED, "interrupted") : STRATA_OK;
    }
    return rc;
}

static void print_table(const struct server *s) {
    fprintf(stderr, "%-6s %-22s %-9s %11s %11s %11s %11s %11s\n", "stage", "address", "layers", "weights", "kv cache",
            "prefixes", "scratch", "resident");
    for (uint32_t i = 0; i < s->n_stages; i++) {
        struct chain_stage_info info;
        char addr[WIRE_ADDR_TEXT], layers[32], w[24], kv[24], cache[24], scratch[24], rss[24];
        chain_stage_info(s->chain, i, &info);
        snprintf(layers, sizeof layers, "%u..%u", info.first, info.end);
        fprintf(stderr, "%-6u %-22s %-9s %11s %11s %11s %11s %11s\n", i + 1, wire_addr_text(&info.addr, addr), layers,
                progress_bytes(w, sizeof w, info.loaded.weight_bytes),
                progress_bytes(kv, sizeof kv, info.loaded.kv_bytes),
                progress_bytes(cache, sizeof cache, info.loaded.cache_bytes),
                progress_bytes(scratch, sizeof scratch, info.loaded.scratch_bytes),
                progress_bytes(rss, sizeof rss, info.loaded.rss_bytes));
    }
}

/* The same for programs, with the URL. */
static strata_err print_json(const struct server *s, const char *url, const char *model, struct strata_errmsg *em) {
    json_t *signature;
    strata_err rc = pkg_sign_to_json(pkg_model_signature(s->meta), &signature, em);
    if (rc) return rc;
    json_t *stages = json_array();
    for (uint32_t i = 0; i < s->n_stages; i++) {
        struct chain_stage_info info;
        char addr[WIRE_ADDR_TEXT];
        chain_stage_info(s->chain, i, &info);
        json_array_append_new(stages, json_pack("{s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "address",
                                                wire_addr_text(&info.addr, addr), "first", (int)info.first, "end",
                                                (int)info.end, "weight_bytes", (json_int_t)info.loaded.weight_bytes,
                                                "copied_bytes", (json_int_t)info.loaded.copied_bytes, "kv_bytes",
                                                (json_int_t)info.loaded.kv_bytes, "cache_bytes",
                                                (json_int_t)info.loaded.cache_bytes, "scratch_bytes",
                                                (json_int_t)info.loaded.scratch_bytes, "resident_bytes",
                                                (json_int_t)info.loaded.rss_bytes));
    }
    json_t *root =
        json_pack("{s:s, s:o, s:i, s:i, s:o, s:o}", "url", url, "model", jsonx_text(model, strlen(model)), "n_ctx",
                  (int)s->n_ctx, "parallel", (int)s->n_seq, "stages", stages, "signature", signature);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    if (!text) {
        rc = err_nomem(em, "the description of the server");
    } else if (puts(text) < 0 || fflush(stdout) != 0) {
        rc = err_sys(em, STRATA_EIO, errno, "cannot write the output");
    }
    free(text);
    json_decref(root);
    return rc;
}

static strata_err start_api(struct server *s, struct strata_errmsg *em) {
    struct wire_addr addr = s->o.listen;
    char text[WIRE_ADDR_TEXT], url[WIRE_ADDR_TEXT + 8];
    struct api_options ao = {.host = s->o.listen.host,
                             .port = s->o.listen.port,
                             .model_id = s->o.model_name ? s->o.model_name : pkg_model_id(s->meta),
                             .vocab = s->vocab,
                             .chat = s->chat,
                             .bos_text = buf_cstr(&s->bos),
                             .eos_text = buf_cstr(&s->eos),
                             .gen = chain_gen(s->chain),
                             .api_key = s->o.api_key_file ? buf_cstr(&s->api_key) : NULL,
                             .log = &s->log};
    strata_err rc = api_start(&ao, &s->api, em);
    if (rc) return rc;
    addr.port = api_port(s->api);
    snprintf(url, sizeof url, "http://%s", wire_addr_text(&addr, text));
    fprintf(stderr, "context of %u tokens; %u requests at once; model %s\nlistening on %s\n", s->n_ctx, s->n_seq,
            ao.model_id, url);
    return s->o.json ? print_json(s, url, ao.model_id, em) : STRATA_OK;
}

/* Loading may take minutes; that the port is taken should not be learnt after it. */
static strata_err check_port(const struct options *o, struct strata_errmsg *em) {
    struct wire_addr actual;
    int fd;
    if (o->listen.port == 0) return STRATA_OK;
    strata_err rc = wire_listen_open(&o->listen, &fd, &actual, em);
    if (!rc) close(fd);
    return rc;
}

static void stop_all(struct server *s) {
    api_stop(s->api);
    chain_stop(s->chain);
    local_free(s->local);
    wire_key_free(s->key);
    chat_template_free(s->chat);
    vocab_free(s->vocab);
    pkg_model_free(s->meta);
    buf_deinit(&s->bos);
    buf_deinit(&s->eos);
    buf_deinit(&s->api_key);
}

/* Threads started while the signals are blocked leave them to this one, which lets them in while it waits. */
static int serve(const struct cli *cli, struct server *s) {
    struct strata_errmsg em;
    sigset_t ours, before;
    buf_init(&s->bos, 4096);
    buf_init(&s->eos, 4096);
    buf_init(&s->api_key, API_KEY_MAX);
    cli_catch_interrupt();
    strata_err rc = check_port(&s->o, &em);
    if (!rc) rc = load_api_key(s, &em);
    if (!rc) rc = open_model(s, &em);
    if (!rc) rc = make_plan(s, &em);
    if (!rc) rc = start_local(s, &em);
    if (!rc) rc = load_identity(s, &em);
    if (!rc) rc = start_chain(s, &em);
    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ours, &before);
    if (!rc) print_table(s);
    if (!rc) rc = start_api(s, &em);
    while (!rc && !cli_interrupted()) ppoll(NULL, 0, NULL, &before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!rc) fprintf(stderr, "stopping\n");
    stop_all(s);
    if (rc && cli_interrupted()) return CLI_OK;
    return rc ? cli_fail(cli, s->o.json, &em) : CLI_OK;
}

/* ---- options ---- */

static const struct option longs[] = {
    {"stage", required_argument, NULL, 's'},
    {"local-stages", required_argument, NULL, 'L'},
    {"key-dir", required_argument, NULL, 'k'},
    {"ctx", required_argument, NULL, 'c'},
    {"batch", required_argument, NULL, 'b'},
    {"kv-type", required_argument, NULL, 'K'},
    {"threads", required_argument, NULL, 't'},
    {"parallel", required_argument, NULL, 'p'},
    {"pool", required_argument, NULL, 'P'},
    {"prefix-cache", required_argument, NULL, 'x'},
    {"device", required_argument, NULL, 'd'},
    {"over-memory", no_argument, NULL, 'o'},
    {"no-repack", no_argument, NULL, 'r'},
    {"listen", required_argument, NULL, 'l'},
    {"api-key-file", required_argument, NULL, 'a'},
    {"require-signature", required_argument, NULL, 'S'},
    {"model-name", required_argument, NULL, 'm'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int number(const struct cli *cli, const char *name, const char *text, uint32_t lo, uint32_t hi, uint32_t *out) {
    if (cli_parse_u32(text, lo, hi, out)) return CLI_OK;
    return cli_usage(cli, "%s must be from %u to %u, not '%s'", name, lo, hi, text);
}

static int address(const struct cli *cli, const char *text, bool allow_zero, struct wire_addr *out) {
    struct strata_errmsg em;
    return wire_addr_parse(text, allow_zero, out, &em) ? cli_usage(cli, "%s", em.text) : CLI_OK;
}

static int take_option(const struct cli *cli, struct options *o, int opt) {
    switch (opt) {
    case 's':
        if (o->n_stages == WIRE_MSG_STAGES) return cli_usage(cli, "more than %d stages", WIRE_MSG_STAGES);
        return address(cli, optarg, false, &o->stages[o->n_stages++]);
    case 'L': return number(cli, "--local-stages", optarg, 1, WIRE_MSG_STAGES, &o->n_local);
    case 'k': o->key_dir = optarg; return CLI_OK;
    case 'c': return number(cli, "--ctx", optarg, 2, 1u << 24, &o->n_ctx);
    case 'b': return number(cli, "--batch", optarg, 1, 16384, &o->n_batch);
    case 't': return number(cli, "--threads", optarg, 1, 512, &o->n_threads);
    case 'p': return number(cli, "--parallel", optarg, 1, WIRE_MAX_SPANS, &o->n_parallel);
    case 'P': return number(cli, "--pool", optarg, 2, INT32_MAX, &o->n_pool);
    case 'x': return number(cli, "--prefix-cache", optarg, 0, 1u << 25, &o->cache_tokens);
    case 'd': o->device = optarg; return CLI_OK;
    case 'o': o->over_memory = true; return CLI_OK;
    case 'r': o->no_repack = true; return CLI_OK;
    case 'l': return address(cli, optarg, true, &o->listen);
    case 'a': o->api_key_file = optarg; return CLI_OK;
    case 'm': o->model_name = optarg; return CLI_OK;
    case 'j': o->json = true; return CLI_OK;
    case 'S': return cli_signer_take(cli, optarg, &o->signer);
    default: break;
    }
    return cli_engine_take_kv(cli, optarg, &o->kv_type);
}

static int check_options(const struct cli *cli, const struct options *o) {
    if (!o->package) return cli_usage(cli, "the package is missing");
    if (o->n_stages && o->n_local) return cli_usage(cli, "give either --stage or --local-stages, not both");
    if (o->n_stages && o->n_threads) return cli_usage(cli, "--threads is for local stages; give it to 'strata stage'");
    if (o->n_stages && o->device) return cli_usage(cli, "--device is for local stages; give it to 'strata stage'");
    if (o->n_stages && (o->over_memory || o->no_repack))
        return cli_usage(cli, "--over-memory and --no-repack are for local stages; give them to 'strata stage'");
    for (uint32_t i = 0; i < o->n_stages; i++)
        for (uint32_t j = 0; j < i; j++)
            if (o->stages[i].port == o->stages[j].port && strcmp(o->stages[i].host, o->stages[j].host) == 0)
                return cli_usage(cli, "stage %s:%u is given twice", o->stages[i].host, o->stages[i].port);
    if (!wire_addr_is_loopback(&o->listen) && !o->api_key_file)
        return cli_usage(cli,
                         "--listen %s:%u can be reached from other machines: give --api-key-file, so that not "
                         "everyone may ask",
                         o->listen.host, o->listen.port);
    return CLI_OK;
}

int cmd_serve(const struct cli *cli, int argc, char **argv) {
    struct server s = {
        .o = {.n_batch = DEFAULT_BATCH, .cache_tokens = CACHE_DEFAULT, .listen = {.host = "127.0.0.1", .port = 8080}},
        .log = {.out = stderr, .level = log_level_from_env(LOG_LEVEL_INFO), .component = "serve"}};
    int opt;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":hc:b:t:p:", longs, NULL)) != -1) {
        if (opt == 'h') {
            fputs(usage, stdout);
            return CLI_OK;
        }
        if (opt == '?' || opt == ':') return cli_bad_option(cli, opt, argv);
        int status = take_option(cli, &s.o, opt);
        if (status) return status;
    }
    if (optind < argc) s.o.package = argv[optind++];
    if (optind < argc) return cli_usage(cli, "unexpected argument '%s'", argv[optind]);
    if (cli_device_is_list(s.o.device)) return cli_device_list(cli, s.o.json);
    int status = check_options(cli, &s.o);
    if (status) return status;
    s.n_stages = s.o.n_stages ? s.o.n_stages : s.o.n_local ? s.o.n_local : 1;
    return serve(cli, &s);
}

/*
 * `strata logits`: raw logits of every position, uncut or over in-process stages that exchange frames.
 *
 * The tool behind the proofs: a cut model must give the same bytes as the uncut one, and the numbers must be the
 * peer's. Each stage opens its own range of the model and is handed frames as they would travel on the wire.
 */
#include "base/clock.h"
#include "base/file.h"
#include "cli/cli_device.h"
#include "cli/cli_engine.h"
#include "cli/cli_signer.h"
#include "engine/engine.h"
#include "engine/engine_profile.h"
#include "wire/wire_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: strata logits MODEL-OR-PACKAGE --out FILE [OPTIONS] TOKEN...\n"
    "\n"
    "Runs the model over the given token ids and writes the logits of every position to FILE: float32, little-endian,\n"
    "one row of the vocabulary's size per token. Prints \"n_tokens=N n_vocab=V\".\n"
    "\n"
    "  -o, --out FILE        file to write; it appears only when complete\n"
    "      --cut N[,N...]    cut the model before these layers: each part is loaded on its own, and the parts hand "
    "each\n"
    "                        other frames with hidden states, as stages on several machines do\n"
    "      --kv-type TYPE    type of the KV cache: f32 (default), f16, bf16, q8_0 or q4_0\n"
    "  -t, --threads N       threads (default: every core)\n" CLI_DEVICE_HELP
    "  -b, --batch N         most tokens computed at once, 1 to 16384 (default: 512)\n"
    "      --prompt N        only the first N tokens are a prompt: the others are computed one by one, as decoding "
    "does\n"
    "      --no-repack       leave the weights in the pages of the file; some products then round another way\n"
    "      --verify          check the digests of a package's parts while opening them\n" CLI_SIGNER_HELP
    "      --profile         time every operation, by kind, matrix and layer (on standard error, or in --json)\n"
    "      --json            print figures and errors as JSON\n"
    "  -h, --help            this text\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example, a proof that a cut changes nothing:\n"
    "  strata logits model.gguf --out whole.f32 1 2 3\n"
    "  strata logits model.gguf --out cut.f32 --cut 10,20 1 2 3 && cmp whole.f32 cut.f32\n";

enum { MAX_STAGES = 256 };

struct options {
    const char *path;
    const char *out;
    const char *device;
    uint32_t cut[MAX_STAGES - 1];
    uint32_t n_cuts;
    enum engine_kv_type kv_type;
    uint32_t n_threads, n_batch;
    uint32_t n_prompt; /* 0: all tokens */
    bool json, verify, profile, no_repack;
    struct cli_signer signer;
    int32_t *tokens;
    uint32_t n_tokens;
};

struct stage {
    struct pkg_model *pkg;
    struct engine *engine;
};

struct chain {
    struct stage stage[MAX_STAGES];
    uint32_t n;
    uint8_t *frame; /* the frame on its way between two stages */
    float *hidden;  /* its payload, as the receiver unpacks it */
    size_t hidden_bytes;
};

static strata_err open_stage(const struct options *o, uint32_t first, uint32_t end, struct stage *s,
                             struct strata_errmsg *em) {
    struct pkg_model_options po = {.range = {first, end},
                                   .flags = o->verify ? PKG_MODEL_VERIFY : 0,
                                   .progress = o->verify ? stderr : NULL,
                                   .require_signature = cli_signer_key(&o->signer)};
    struct engine_options eo = {.n_ctx = o->n_tokens,
                                .n_batch = o->n_batch,
                                .n_threads = o->n_threads,
                                .kv_type = o->kv_type,
                                .profile = o->profile,
                                .keep_mapped = o->no_repack,
                                .device = o->device,
                                .progress = stderr};
    strata_err rc = pkg_model_open(o->path, &po, &s->pkg, em);
    return rc ? rc : engine_new(s->pkg, &eo, &s->engine, em);
}

static strata_err chain_open(const struct options *o, struct chain *c, struct strata_errmsg *em) {
    for (uint32_t i = 0, first = 0; i <= o->n_cuts; i++) {
        uint32_t end = i < o->n_cuts ? o->cut[i] : PKG_RANGE_ALL;
        c->n = i + 1;
        strata_err rc = open_stage(o, first, end, &c->stage[i], em);
        if (rc) return rc;
        if (i == 0) cli_signer_show(o->path, pkg_model_signature(c->stage[0].pkg));
        first = end;
    }
    const struct engine_info *info = engine_info(c->stage[0].engine);
    c->hidden_bytes = (size_t)info->n_batch * info->n_embd * sizeof(float);
    if (c->hidden_bytes > WIRE_FRAME_MAX_PAYLOAD - WIRE_ROW_ENTRY)
        return err_set(em, STRATA_ELIMIT, "%u hidden states do not fit a frame; lower --batch",
                       (unsigned)info->n_batch);
    c->frame = malloc(WIRE_FRAME_HEADER + WIRE_ROW_ENTRY + c->hidden_bytes);
    c->hidden = malloc(c->hidden_bytes);
    return c->frame && c->hidden ? STRATA_OK : err_nomem(em, "the frames between stages");
}

static void chain_close(struct chain *c) {
    for (uint32_t i = 0; i < c->n; i++) {
        engine_free(c->stage[i].engine);
        pkg_model_free(c->stage[i].pkg);
    }
    free(c->frame);
    free(c->hidden);
}

/* Packs hidden states as the sender would, and unpacks them as the receiver would. */
static strata_err hand_over(struct chain *c, uint32_t pos, uint32_t n_rows, uint32_t width, const float *rows,
                            const float **out, struct strata_errmsg *em) {
    uint32_t bytes = n_rows * width * 4;
    struct wire_span sent = {.seq = 1, .pos = pos, .n_rows = n_rows}, got[WIRE_MAX_SPANS];
    struct wire_frame f = {.type = WIRE_HIDDEN, .pos = 1, .n_rows = n_rows, .payload = WIRE_ROW_ENTRY + bytes};
    uint8_t *payload = c->frame + WIRE_FRAME_HEADER;
    wire_frame_encode(&f, c->frame);
    wire_spans_encode(&sent, 1, payload);
    memcpy(payload + WIRE_ROW_ENTRY, rows, bytes);
    strata_err rc = wire_frame_decode(c->frame, width, &f, em);
    if (!rc) rc = wire_spans_decode(&f, payload, got, em);
    if (rc) return rc;
    if (bytes > c->hidden_bytes || f.payload != WIRE_ROW_ENTRY + bytes || got[0].pos != pos || got[0].n_rows != n_rows)
        return err_set(em, STRATA_EINTERNAL, "a frame came out other than it went in");
    memcpy(c->hidden, payload + WIRE_ROW_ENTRY, bytes);
    *out = c->hidden;
    return STRATA_OK;
}

/* One batch through all stages; *out is the last stage's logits. */
static strata_err chain_run(struct chain *c, uint32_t pos, const int32_t *tokens, uint32_t n, const float **out,
                            struct strata_errmsg *em) {
    const float *rows = NULL;
    for (uint32_t i = 0; i < c->n; i++) {
        struct engine *e = c->stage[i].engine;
        struct engine_batch b = {.pos = pos, .n_tokens = n, .want = ENGINE_OUT_ALL};
        strata_err rc = STRATA_OK;
        if (i == 0) {
            b.tokens = tokens;
        } else {
            rc = hand_over(c, pos, n, engine_info(e)->n_embd, rows, &b.hidden, em);
        }
        if (!rc) rc = engine_run(e, &b, &rows, em);
        if (rc)
            return err_prefix(em, "layers [%u, %u)", (unsigned)engine_info(e)->range.first,
                              (unsigned)engine_info(e)->range.end);
    }
    *out = rows;
    return STRATA_OK;
}

static strata_err write_logits(const struct options *o, struct chain *c, double *seconds, struct strata_errmsg *em) {
    struct file_atomic f;
    const struct engine_info *last = engine_info(c->stage[c->n - 1].engine);
    uint32_t step = engine_info(c->stage[0].engine)->n_batch;
    strata_err rc = file_atomic_begin(&f, o->out, 0644, em);
    if (rc) return rc;
    uint32_t n_prompt = o->n_prompt && o->n_prompt < o->n_tokens ? o->n_prompt : o->n_tokens;
    for (uint32_t pos = 0, n; pos < o->n_tokens; pos += n) {
        uint32_t left = pos < n_prompt ? n_prompt - pos : 1;
        n = left < step ? left : step;
        const float *logits = NULL;
        uint64_t start = clock_now_ns();
        rc = chain_run(c, pos, o->tokens + pos, n, &logits, em);
        *seconds += clock_since_s(start);
        if (!rc) rc = file_atomic_write(&f, logits, (size_t)n * last->n_vocab * sizeof(float), em);
        if (rc) goto out;
    }
    rc = file_atomic_commit(&f, em);
out:
    file_atomic_abort(&f);
    return rc;
}

/* "10,20": rising layer numbers, none of them 0. */
static bool parse_cuts(char *text, struct options *o) {
    for (char *part = text, *comma; part; part = comma ? comma + 1 : NULL) {
        comma = strchr(part, ',');
        if (comma) *comma = '\0';
        if (o->n_cuts == MAX_STAGES - 1) return false;
        uint32_t low = o->n_cuts ? o->cut[o->n_cuts - 1] + 1 : 1;
        if (!cli_parse_u32(part, low, UINT32_MAX - 1, &o->cut[o->n_cuts])) return false;
        o->n_cuts++;
    }
    return true;
}

enum {
    OPT_CUT = 256,
    OPT_KV_TYPE,
    OPT_JSON,
    OPT_VERIFY,
    OPT_SIGNATURE,
    OPT_PROFILE,
    OPT_PROMPT,
    OPT_NO_REPACK,
    OPT_DEVICE
};

static const struct option long_options[] = {
    {"out", required_argument, NULL, 'o'},
    {"cut", required_argument, NULL, OPT_CUT},
    {"kv-type", required_argument, NULL, OPT_KV_TYPE},
    {"prompt", required_argument, NULL, OPT_PROMPT},
    {"threads", required_argument, NULL, 't'},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"batch", required_argument, NULL, 'b'},
    {"json", no_argument, NULL, OPT_JSON},
    {"verify", no_argument, NULL, OPT_VERIFY},
    {"require-signature", required_argument, NULL, OPT_SIGNATURE},
    {"profile", no_argument, NULL, OPT_PROFILE},
    {"no-repack", no_argument, NULL, OPT_NO_REPACK},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Returns -1 to go on, or the exit status. */
static int parse_options(const struct cli *cli, int argc, char **argv, struct options *o) {
    int opt, status;
    opterr = 0;
    optind = 1;
    while ((opt = getopt_long(argc, argv, ":o:t:b:h", long_options, NULL)) != -1) {
        switch (opt) {
        case 'o': o->out = optarg; break;
        case OPT_CUT:
            if (o->n_cuts || !parse_cuts(optarg, o))
                return cli_usage(cli, "--cut takes rising layer numbers from 1 on, such as 10,20");
            break;
        case OPT_KV_TYPE:
            status = cli_engine_take_kv(cli, optarg, &o->kv_type);
            if (status) return status;
            break;
        case OPT_PROMPT:
            if (!cli_parse_u32(optarg, 1, UINT32_MAX, &o->n_prompt))
                return cli_usage(cli, "--prompt is a number from 1 on, not '%s'", optarg);
            break;
        case 't':
            if (!cli_parse_u32(optarg, 1, 512, &o->n_threads))
                return cli_usage(cli, "--threads is a number from 1 to 512, not '%s'", optarg);
            break;
        case 'b':
            if (!cli_parse_u32(optarg, 1, 16384, &o->n_batch))
                return cli_usage(cli, "--batch is a number from 1 to 16384, not '%s'", optarg);
            break;
        case OPT_JSON: o->json = true; break;
        case OPT_VERIFY: o->verify = true; break;
        case OPT_SIGNATURE:
            if ((status = cli_signer_take(cli, optarg, &o->signer))) return status;
            o->verify = true;
            break;
        case OPT_PROFILE: o->profile = true; break;
        case OPT_NO_REPACK: o->no_repack = true; break;
        case OPT_DEVICE: o->device = optarg; break;
        case 'h': fputs(usage, stdout); return CLI_OK;
        default: return cli_bad_option(cli, opt, argv);
        }
    }
    return -1;
}

static int parse(const struct cli *cli, int argc, char **argv, struct options *o) {
    int status = parse_options(cli, argc, argv, o);
    if (status >= 0) return status;
    if (cli_device_is_list(o->device)) return cli_device_list(cli, o->json);
    if (argc - optind < 2) return cli_usage(cli, "a model and at least one token id are needed");
    if (!o->out) return cli_usage(cli, "--out FILE is needed");
    o->path = argv[optind++];
    o->n_tokens = (uint32_t)(argc - optind);
    o->tokens = malloc(o->n_tokens * sizeof *o->tokens);
    if (!o->tokens) {
        struct strata_errmsg em;
        err_nomem(&em, "the token ids");
        return cli_fail(cli, o->json, &em);
    }
    for (uint32_t i = 0; i < o->n_tokens; i++) {
        uint32_t id;
        if (!cli_parse_u32(argv[optind + (int)i], 0, INT32_MAX, &id))
            return cli_usage(cli, "'%s' is not a token id", argv[optind + (int)i]);
        o->tokens[i] = (int32_t)id;
    }
    return -1;
}

static json_t *stage_json(struct engine *engine) {
    const struct engine_info *e = engine_info(engine);
    struct engine_profile *p = engine_profile(engine);
    json_t *stage =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I}", "first", (json_int_t)e->range.first, "end",
                  (json_int_t)e->range.end, "weight_bytes", (json_int_t)e->weight_bytes, "copied_bytes",
                  (json_int_t)e->copied_bytes, "kv_bytes", (json_int_t)e->kv_bytes, "scratch_bytes",
                  (json_int_t)e->scratch_bytes, "device_bytes", (json_int_t)e->device_bytes, "device", e->device,
                  "operations", (json_int_t)e->ops, "host_operations", (json_int_t)e->host_ops);
    if (stage && p && json_object_set_new(stage, "profile", engine_profile_json(p))) {
        json_decref(stage);
        return NULL;
    }
    return stage;
}

static strata_err report(const struct options *o, const struct chain *c, double seconds, struct strata_errmsg *em) {
    const struct engine_info *last = engine_info(c->stage[c->n - 1].engine);
    char title[64];
    if (!o->json) {
        printf("n_tokens=%u n_vocab=%u\n", (unsigned)o->n_tokens, (unsigned)last->n_vocab);
        for (uint32_t i = 0; i < c->n && o->profile; i++) {
            const struct engine_info *e = engine_info(c->stage[i].engine);
            snprintf(title, sizeof title, "layers [%u, %u)", (unsigned)e->range.first, (unsigned)e->range.end);
            engine_profile_print(engine_profile(c->stage[i].engine), title, stderr);
        }
        return STRATA_OK;
    }
    json_t *stages = json_array();
    bool ok = stages != NULL;
    for (uint32_t i = 0; i < c->n && ok; i++) ok = json_array_append_new(stages, stage_json(c->stage[i].engine)) == 0;
    json_t *root = json_pack("{s:I, s:I, s:f, s:o}", "n_tokens", (json_int_t)o->n_tokens, "n_vocab",
                             (json_int_t)last->n_vocab, "seconds", seconds, "stages", stages);
    strata_err rc = ok && root ? cli_print_json(root, em) : err_nomem(em, "the report");
    json_decref(root);
    return rc;
}

int cmd_logits(const struct cli *cli, int argc, char **argv) {
    struct options o = {.kv_type = ENGINE_KV_F32};
    struct chain c = {.n = 0};
    struct strata_errmsg em;
    double seconds = 0;
    int status = parse(cli, argc, argv, &o);
    if (status >= 0) goto out;
    status = CLI_OK;
    if (chain_open(&o, &c, &em) || write_logits(&o, &c, &seconds, &em) || report(&o, &c, seconds, &em))
        status = cli_fail(cli, o.json, &em);
out:
    chain_close(&c);
    free(o.tokens);
    return status;
}

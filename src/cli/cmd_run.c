/*
 * `strata run`: generates text in this process, from a GGUF file or a package.
 *
 * Text goes to stdout as it is made, figures to stderr; with --json one object goes to stdout at the end.
 */
#include "base/clock.h"
#include "base/file.h"
#include "base/jsonx.h"
#include "cli/cli_device.h"
#include "cli/cli_engine.h"
#include "cli/cli_signer.h"
#include "cli/run_session.h"
#include "decode/sampler.h"
#include "engine/engine.h"
#include "engine/engine_profile.h"
#include "model/model_backend.h"
#include "text/chat.h"
#include "text/detok.h"
#include "text/vocab.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: strata run MODEL-OR-PACKAGE [-p TEXT | -f FILE] [OPTIONS]\n"
    "\n"
    "Generates text after a prompt, in this process. MODEL-OR-PACKAGE is a GGUF file (of a split set: any member) or "
    "a\n"
    "layer package. Without -p and -f the prompt is read from standard input. The text is printed as it is made; "
    "speed\n"
    "is reported on standard error. Generation stops at the model's end-of-generation token, after -n tokens, when\n"
    "the context is full, or at Ctrl-C.\n"
    "\n"
    "Prompt\n"
    "  -p, --prompt TEXT        the prompt\n"
    "  -f, --file FILE          read the prompt from FILE ('-': standard input)\n"
    "      --chat               wrap the prompt as a user's message in the model's chat template\n"
    "      --special            text such as <|im_start|> in the prompt means the control token of that name\n"
    "      --ids                the prompt is token ids, and token ids are printed; needs no tokenizer\n"
    "      --session FILE       begin with what FILE holds of an earlier run's state, as far as the prompt begins "
    "like\n"
    "                           that run's text, and keep this run's state there at the end\n"
    "\n"
    "Generation\n"
    "  -n, --predict N          most tokens to generate (default: 128; 0: only run the prompt)\n"
    "      --ignore-eos         go on after the end-of-generation token (for measurements)\n"
    "      --temp T             temperature (default: 0, which always takes the likeliest token)\n"
    "      --top-k K            draw among the K likeliest (default: 0, off)\n"
    "      --top-p P            draw among the likeliest that together have probability P (default: 1, off)\n"
    "      --min-p P            drop tokens less than P times as likely as the likeliest (default: 0, off)\n"
    "      --repeat-penalty X   make recent tokens less likely (default: 1, off)\n"
    "      --repeat-last-n N    how many tokens the penalty looks back on (default: 64)\n"
    "      --seed N             seed of the draw (default: 0); the same seed gives the same text\n"
    "\n"
    "Machine\n"
    "  -t, --threads N          threads (default: every core)\n" CLI_DEVICE_HELP
    "  -c, --ctx N              context length (default: what the prompt and -n need)\n"
    "  -b, --batch N            prompt tokens computed at once, 1 to 16384 (default: 512)\n"
    "      --kv-type TYPE       type of the KV cache: f16 (default), f32, bf16, q8_0 or q4_0\n"
    "      --verify             check the digests of a package's parts before running\n" CLI_SIGNER_HELP
    "      --profile            time every operation, by kind, matrix and layer: slower, and the same text\n"
    "      --no-repack          leave the weights in the pages of the file: less private memory, slower\n"
    "      --over-memory        run a model that does not fit the memory: its weights are read from the disk again "
    "and\n"
    "                           again\n"
    "      --dry-run            only tell what memory the run would take, and whether that is there: no weight is "
    "read.\n"
    "                           Without -p and -f, and without -c, it is reckoned with the model's own context "
    "length,\n"
    "                           4096 at most\n"
    "      --layers FIRST..END  with --dry-run: these layers alone, as a stage would hold them\n"
    "      --json               print one JSON object with text, ids and figures instead of text\n"
    "  -h, --help               this text\n"
    "\n"
    "Exit status: 0 done (a dry run: it would fit), 1 failed, 2 wrong usage.\n"
    "\n"
    "Examples:\n"
    "  strata run model.gguf --chat -p 'Why is the sky blue?' --temp 0.7 --top-p 0.9\n"
    "  strata run model.gguf --session book.state -f book-and-question.txt\n"
    "  strata run model-package --dry-run --layers 0..20 -c 32768\n";

/* How much of the weights settles before each token but the first: small models are done with in two or three, and of
 * large ones it is less than a token reads. */
enum { SETTLE_BYTES = 64 << 20 };

enum { MAX_PROMPT_BYTES = 16 << 20, MAX_TEXT_BYTES = 64 << 20 };

struct options {
    const char *path, *prompt, *file, *session, *device;
    struct sampler_params sampling;
    uint32_t n_predict, n_threads, n_ctx, n_batch;
    enum engine_kv_type kv_type;
    bool chat, special, ids, ignore_eos, json, verify, profile, over_memory, no_repack, dry_run;
    struct pkg_range layers; /* with dry_run; else everything */
    struct cli_signer signer;
};

struct figures {
    double load_s, prefill_s, decode_s;
    uint32_t n_prompt;
    uint32_t n_restored;          /* of the prompt, from a session */
    uint32_t n_prefill, n_decode; /* tokens run in each phase */
    const char *finish;           /* "stop", "length", "context", "interrupted" */
};

struct run {
    struct options o;
    struct pkg_model *pkg;
    struct vocab *vocab; /* NULL with --ids */
    struct engine *engine;
    struct sampler *sampler;
    struct detok detok;
    struct buf prompt, text;
    struct text_spans own; /* with --chat: what of the prompt is the user's text, not the template's */
    struct vocab_ids ids;  /* the prompt, then what was generated */
    struct figures fig;
    json_t *profile; /* with --profile and --json: an object of one profile for each phase */
};

/* ---- prompt ---- */

static strata_err read_stream(FILE *f, const char *name, struct buf *out, struct strata_errmsg *em) {
    for (;;) {
        void *at = buf_reserve(out, 1 << 16, em);
        if (!at) return err_prefix(em, "reading the prompt");
        size_t n = fread(at, 1, 1 << 16, f);
        out->len += n;
        if (n == 0) break;
    }
    if (ferror(f)) return err_sys(em, STRATA_EIO, errno, "cannot read the prompt from %s", name);
    return STRATA_OK;
}

static strata_err read_prompt(struct run *r, struct strata_errmsg *em) {
    const struct options *o = &r->o;
    if (o->prompt) return buf_append_str(&r->prompt, o->prompt, em);
    if (o->file && strcmp(o->file, "-") != 0) return file_read_all(o->file, MAX_PROMPT_BYTES, &r->prompt, em);
    if (isatty(STDIN_FILENO)) fputs("strata run: reading the prompt from standard input, Ctrl-D ends it\n", stderr);
    return read_stream(stdin, "standard input", &r->prompt, em);
}

/* Replaces the prompt by the rendered conversation. */
static strata_err apply_template(struct run *r, struct strata_errmsg *em) {
    struct gguf_str source = {NULL, 0};
    struct chat_template *t = NULL;
    struct buf bos, eos, out;
    json_t *messages = NULL;
    buf_init(&bos, 1 << 12);
    buf_init(&eos, 1 << 12);
    buf_init(&out, MAX_PROMPT_BYTES);
    strata_err rc = gguf_reader_get_str(pkg_model_meta(r->pkg), "tokenizer.chat_template", false, &source, em);
    if (rc) goto out;
    if (!source.data) {
        rc = err_set(em, STRATA_ENOENT, "this model has no chat template; run it without --chat");
        goto out;
    }
    messages = json_pack("[{s:s, s:s%}]", "role", "user", "content", buf_cstr(&r->prompt), r->prompt.len);
    if (!messages) {
        rc = err_set(em, STRATA_EINVAL, "the prompt is not valid UTF-8, which a chat template needs");
        goto out;
    }
    rc = chat_template_new(source.data, source.len, &t, em);
    if (!rc && vocab_bos(r->vocab) >= 0) rc = vocab_piece(r->vocab, vocab_bos(r->vocab), true, &bos, em);
    if (!rc && vocab_eos(r->vocab) >= 0) rc = vocab_piece(r->vocab, vocab_eos(r->vocab), true, &eos, em);
    if (rc) goto out;
    struct chat_inputs in = {
        .messages = messages, .add_generation_prompt = true, .bos_token = buf_cstr(&bos), .eos_token = buf_cstr(&eos)};
    rc = chat_template_render_marked(t, &in, &out, &r->own, em);
    if (rc) goto out;
    buf_clear(&r->prompt);
    rc = buf_append(&r->prompt, out.data, out.len, em);
out:
    json_decref(messages);
    chat_template_free(t);
    buf_deinit(&bos);
    buf_deinit(&eos);
    buf_deinit(&out);
    return rc;
}

static strata_err push_id(struct vocab_ids *ids, int32_t id, struct strata_errmsg *em) {
    if (ids->len == ids->cap) {
        size_t cap = ids->cap ? 2 * ids->cap : 1024;
        int32_t *grown = realloc(ids->id, cap * sizeof *grown);
        if (!grown) return err_nomem(em, "token ids");
        ids->id = grown;
        ids->cap = cap;
    }
    ids->id[ids->len++] = id;
    return STRATA_OK;
}

static strata_err parse_ids(struct run *r, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    if (r->prompt.len == 0) return STRATA_OK;
    for (char *save = NULL, *part = strtok_r(r->prompt.data, ", \t\r\n", &save); part && !rc;
         part = strtok_r(NULL, ", \t\r\n", &save)) {
        uint32_t id;
        if (!cli_parse_u32(part, 0, INT32_MAX, &id))
            return err_set(em, STRATA_EINVAL, "'%.40s' in the prompt is not a token id", part);
        rc = push_id(&r->ids, (int32_t)id, em);
    }
    return rc;
}

static strata_err encode_prompt(struct run *r, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    if (r->o.ids) {
        rc = parse_ids(r, em);
    } else {
        unsigned flags = VOCAB_ADD_SPECIAL;
        if (r->o.chat || r->o.special) flags |= VOCAB_PARSE_SPECIAL;
        if (r->o.chat) rc = apply_template(r, em);
        if (!rc) rc = vocab_encode_marked(r->vocab, buf_cstr(&r->prompt), r->prompt.len, &r->own, flags, &r->ids, em);
        /* A template may write the first token that the tokenizer adds as well; one is meant. */
        int32_t bos = r->vocab ? vocab_bos(r->vocab) : -1;
        if (!rc && r->o.chat && r->ids.len > 1 && bos >= 0 && r->ids.id[0] == bos && r->ids.id[1] == bos)
            memmove(r->ids.id, r->ids.id + 1, --r->ids.len * sizeof *r->ids.id);
    }
    if (!rc && r->ids.len == 0) rc = err_set(em, STRATA_EINVAL, "the prompt is empty");
    if (!rc && r->ids.len > INT32_MAX / 2) rc = err_set(em, STRATA_ELIMIT, "the prompt is too long");
    r->fig.n_prompt = (uint32_t)r->ids.len;
    return rc;
}

/* ---- loading ---- */

/* Opens the model and encodes the prompt, if there is one. */
static strata_err open_model(struct run *r, bool prompt, struct strata_errmsg *em) {
    const struct options *o = &r->o;
    struct pkg_model_options po = {.range = o->layers,
                                   .flags = o->verify ? PKG_MODEL_VERIFY : 0,
                                   .progress = o->verify ? stderr : NULL,
                                   .require_signature = cli_signer_key(&o->signer)};
    strata_err rc = pkg_model_open(o->path, &po, &r->pkg, em);
    if (!rc) cli_signer_show(o->path, pkg_model_signature(r->pkg));
    if (!rc && prompt && !o->ids) rc = vocab_new(pkg_model_meta(r->pkg), &r->vocab, em);
    if (!rc && prompt) rc = encode_prompt(r, em);
    return rc;
}

static struct engine_options engine_options_of(const struct run *r) {
    const struct options *o = &r->o;
    return (struct engine_options){.n_ctx = o->n_ctx || !r->fig.n_prompt ? o->n_ctx : r->fig.n_prompt + o->n_predict,
                                   .n_batch = o->n_batch,
                                   .max_logits = 1,
                                   .n_threads = o->n_threads,
                                   .kv_type = o->kv_type,
                                   .profile = o->profile,
                                   .over_memory = o->over_memory,
                                   .keep_mapped = o->no_repack,
                                   .settle_later = !o->profile, /* which tells of the engine as it is in the end */
                                   .device = o->device,
                                   .progress = stderr};
}

static strata_err load(struct run *r, struct strata_errmsg *em) {
    const struct options *o = &r->o;
    uint64_t start = clock_now_ns();
    strata_err rc = o->session ? run_session_probe(o->session, em) : STRATA_OK;
    if (!rc) rc = open_model(r, true, em);
    if (rc) return rc;
    const struct engine_options eo = engine_options_of(r);
    rc = engine_new(r->pkg, &eo, &r->engine, em);
    if (!rc) rc = sampler_new(&o->sampling, engine_info(r->engine)->n_vocab, &r->sampler, em);
    if (rc) return rc;
    r->fig.load_s = clock_since_s(start);
    const struct engine_info *info = engine_info(r->engine);
    if (r->fig.n_prompt > info->n_ctx)
        return err_set(em, STRATA_ELIMIT,
                       "the prompt has %u tokens, but the context holds %u; shorten it or raise --ctx",
                       (unsigned)r->fig.n_prompt, (unsigned)info->n_ctx);
    if (info->n_ctx > info->n_ctx_train)
        fprintf(stderr, "strata run: a context of %u is beyond the %u that the model was trained for\n",
                (unsigned)info->n_ctx, (unsigned)info->n_ctx_train);
    return STRATA_OK;
}

/* Tells what a run would take. *fits says whether it is there; if not, em says what is wanting. */
static strata_err dry_run(struct run *r, bool *fits, struct strata_errmsg *em) {
    const struct options *o = &r->o;
    bool prompt = o->prompt || o->file;
    struct engine_info info;
    strata_err rc = prompt ? read_prompt(r, em) : STRATA_OK;
    if (!rc) rc = open_model(r, prompt, em);
    if (rc) return rc;
    const struct engine_options eo = engine_options_of(r);
    rc = engine_measure(r->pkg, &eo, &info, em);
    if (rc) return rc;
    uint64_t available = model_backend_memory_available();
    *fits = engine_info_fits(&info, o->over_memory, available, em) == STRATA_OK;
    if (!o->json) {
        cli_engine_print_memory(&info, o->kv_type, available);
        return STRATA_OK;
    }
    json_t *root = cli_engine_memory_json(&info, o->kv_type, available, *fits ? NULL : em->text);
    rc = root ? cli_print_json(root, em) : err_nomem(em, "the report");
    json_decref(root);
    return rc;
}

/* ---- generation ---- */

/* Runs the prompt; *logits belong to its last token, or are NULL after an interruption. */
static strata_err prefill(struct run *r, const float **logits, struct strata_errmsg *em) {
    uint32_t n = r->fig.n_prompt, step = engine_info(r->engine)->n_batch;
    *logits = NULL;
    for (uint32_t pos = r->fig.n_restored; pos < n && !cli_interrupted(); pos += step) {
        bool last = n - pos <= step;
        struct engine_batch b = {.pos = pos,
                                 .n_tokens = last ? n - pos : step,
                                 .tokens = r->ids.id + pos,
                                 .want = last ? ENGINE_OUT_LAST : ENGINE_OUT_NONE};
        strata_err rc = engine_run(r->engine, &b, logits, em);
        if (rc) return rc;
        r->fig.n_prefill += b.n_tokens;
    }
    for (uint32_t i = 0; i < n; i++) sampler_accept(r->sampler, r->ids.id[i]);
    return STRATA_OK;
}

/* Prints what became complete with a token; with --json it is kept for the end. */
static strata_err emit(struct run *r, int32_t token, struct strata_errmsg *em) {
    if (r->o.ids) {
        if (!r->o.json) printf(r->ids.len - r->fig.n_prompt > 1 ? " %d" : "%d", token);
    } else {
        strata_err rc = detok_push(&r->detok, token, &r->text, em);
        if (rc || r->o.json) return rc;
        fwrite(r->text.data, 1, r->text.len, stdout);
        buf_clear(&r->text);
    }
    if (fflush(stdout) != 0) return err_sys(em, STRATA_EIO, errno, "cannot write the text");
    return STRATA_OK;
}

static strata_err generate(struct run *r, const float *logits, struct strata_errmsg *em) {
    uint32_t n_ctx = engine_info(r->engine)->n_ctx;
    r->fig.finish = "length";
    for (uint32_t made = 0; made < r->o.n_predict; made++) {
        int32_t token;
        if (cli_interrupted()) {
            r->fig.finish = "interrupted";
            break;
        }
        strata_err rc = sampler_pick(r->sampler, logits, &token, em);
        if (rc) return rc;
        if (r->vocab && !r->o.ignore_eos && vocab_is_eog(r->vocab, token)) {
            r->fig.finish = "stop";
            break;
        }
        sampler_accept(r->sampler, token);
        rc = push_id(&r->ids, token, em);
        if (!rc) rc = emit(r, token, em);
        if (rc) return rc;
        if (made + 1 == r->o.n_predict) break;
        if (engine_pos(r->engine, 0) == n_ctx) {
            r->fig.finish = "context";
            fprintf(stderr,
                    "strata run: stopped: all %u positions of the context are taken, and old ones are not shifted out; "
                    "start with a larger -c (the model was trained for %u)\n",
                    (unsigned)n_ctx, (unsigned)engine_info(r->engine)->n_ctx_train);
            break;
        }
        struct engine_batch b = {
            .pos = engine_pos(r->engine, 0), .n_tokens = 1, .tokens = &token, .want = ENGINE_OUT_LAST};
        engine_settle(r->engine, SETTLE_BYTES);
        rc = engine_run(r->engine, &b, &logits, em);
        if (rc) return rc;
        r->fig.n_decode++;
    }
    return STRATA_OK;
}

/* Reports where the time of a phase went, and starts counting for the next one. */
static strata_err take_profile(struct run *r, const char *phase, struct strata_errmsg *em) {
    struct engine_profile *p = engine_profile(r->engine);
    if (!p) return STRATA_OK;
    if (!r->o.json) {
        engine_profile_print(p, phase, stderr);
    } else {
        if (!r->profile) r->profile = json_object();
        if (json_object_set_new(r->profile, phase, engine_profile_json(p))) return err_nomem(em, "the profile");
    }
    engine_profile_reset(p);
    return STRATA_OK;
}

static strata_err run(struct run *r, struct strata_errmsg *em) {
    const float *logits;
    strata_err rc = STRATA_OK;
    if (r->o.session)
        rc = run_session_restore(r->o.session, r->engine, r->ids.id, r->fig.n_prompt, &r->fig.n_restored, em);
    if (rc) return rc;
    uint64_t start = clock_now_ns();
    rc = prefill(r, &logits, em);
    r->fig.prefill_s = clock_since_s(start);
    if (!rc) rc = take_profile(r, "prefill", em);
    if (rc) return rc;
    start = clock_now_ns();
    r->fig.finish = "interrupted";
    if (logits) rc = generate(r, logits, em);
    r->fig.decode_s = clock_since_s(start);
    if (!rc && !r->o.ids) {
        rc = detok_flush(&r->detok, &r->text, em);
        if (!rc && !r->o.json) fwrite(r->text.data, 1, r->text.len, stdout);
    }
    if (!r->o.json && r->o.n_predict > 0) putchar('\n');
    if (!r->o.json) fflush(stdout);
    if (!rc && r->o.session) rc = run_session_save(r->o.session, r->engine, r->ids.id, em);
    return rc ? rc : take_profile(r, "decode", em);
}

/* ---- reports ---- */

static double rate(uint32_t n, double seconds) {
    return seconds > 0 ? n / seconds : 0;
}

static void report(const struct run *r) {
    const struct figures *f = &r->fig;
    const struct engine_info *i = engine_info(r->engine);
    if (i->host_ops)
        fprintf(stderr, "device: %s computes %u of %u operations, the CPU the others\n", i->device,
                (unsigned)(i->ops - i->host_ops), (unsigned)i->ops);
    fprintf(stderr, "prefill: %u tokens, %.3f s, %.1f tokens/s\n", (unsigned)f->n_prefill, f->prefill_s,
            rate(f->n_prefill, f->prefill_s));
    fprintf(stderr, "decode: %u tokens, %.3f s, %.1f tokens/s (%s)\n", (unsigned)f->n_decode, f->decode_s,
            rate(f->n_decode, f->decode_s), f->finish);
}

static strata_err report_json(const struct run *r, struct strata_errmsg *em) {
    const struct figures *f = &r->fig;
    struct buf out;
    json_t *tokens = json_array();
    buf_init(&out, MAX_TEXT_BYTES);
    for (size_t k = f->n_prompt; tokens && k < r->ids.len; k++)
        json_array_append_new(tokens, json_integer(r->ids.id[k]));
    json_t *root =
        json_pack("{s:s%, s:o, s:s, s:{s:I, s:f, s:f}, s:{s:I, s:f, s:f}, s:f, s:o}", "text", buf_cstr(&r->text),
                  r->text.len, "tokens", tokens, "finish", f->finish, "prefill", "tokens", (json_int_t)f->n_prefill,
                  "seconds", f->prefill_s, "tokens_per_second", rate(f->n_prefill, f->prefill_s), "decode", "tokens",
                  (json_int_t)f->n_decode, "seconds", f->decode_s, "tokens_per_second", rate(f->n_decode, f->decode_s),
                  "load_seconds", f->load_s, "engine", cli_engine_json(engine_info(r->engine)));
    bool added = root && (!r->profile || json_object_set(root, "profile", r->profile) == 0);
    if (added && r->o.session)
        added = json_object_set_new(root, "session",
                                    json_pack("{s:I, s:I}", "restored", (json_int_t)f->n_restored, "saved",
                                              (json_int_t)engine_pos(r->engine, 0))) == 0;
    strata_err rc = added ? jsonx_dump(root, true, &out, em) : err_nomem(em, "the report");
    if (!rc) puts(buf_cstr(&out));
    json_decref(root);
    buf_deinit(&out);
    return rc;
}

/* ---- options ---- */

enum {
    OPT_CHAT = 256,
    OPT_SPECIAL,
    OPT_IDS,
    OPT_IGNORE_EOS,
    OPT_TEMP,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_PENALTY,
    OPT_LAST_N,
    OPT_SEED,
    OPT_KV_TYPE,
    OPT_VERIFY,
    OPT_SIGNATURE,
    OPT_PROFILE,
    OPT_OVER_MEMORY,
    OPT_NO_REPACK,
    OPT_DRY_RUN,
    OPT_LAYERS,
    OPT_SESSION,
    OPT_DEVICE,
    OPT_JSON
};

static const struct option long_options[] = {
    {"prompt", required_argument, NULL, 'p'},
    {"file", required_argument, NULL, 'f'},
    {"chat", no_argument, NULL, OPT_CHAT},
    {"special", no_argument, NULL, OPT_SPECIAL},
    {"ids", no_argument, NULL, OPT_IDS},
    {"predict", required_argument, NULL, 'n'},
    {"ignore-eos", no_argument, NULL, OPT_IGNORE_EOS},
    {"temp", required_argument, NULL, OPT_TEMP},
    {"top-k", required_argument, NULL, OPT_TOP_K},
    {"top-p", required_argument, NULL, OPT_TOP_P},
    {"min-p", required_argument, NULL, OPT_MIN_P},
    {"repeat-penalty", required_argument, NULL, OPT_PENALTY},
    {"repeat-last-n", required_argument, NULL, OPT_LAST_N},
    {"seed", required_argument, NULL, OPT_SEED},
    {"threads", required_argument, NULL, 't'},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"ctx", required_argument, NULL, 'c'},
    {"batch", required_argument, NULL, 'b'},
    {"kv-type", required_argument, NULL, OPT_KV_TYPE},
    {"verify", no_argument, NULL, OPT_VERIFY},
    {"require-signature", required_argument, NULL, OPT_SIGNATURE},
    {"profile", no_argument, NULL, OPT_PROFILE},
    {"over-memory", no_argument, NULL, OPT_OVER_MEMORY},
    {"no-repack", no_argument, NULL, OPT_NO_REPACK},
    {"dry-run", no_argument, NULL, OPT_DRY_RUN},
    {"layers", required_argument, NULL, OPT_LAYERS},
    {"session", required_argument, NULL, OPT_SESSION},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* One option with a number: where it goes and its bounds. */
static bool number_option(int opt, const char *text, struct options *o) {
    switch (opt) {
    case 'n': return cli_parse_u32(text, 0, 1 << 24, &o->n_predict);
    case 't': return cli_parse_u32(text, 1, 512, &o->n_threads);
    case 'c': return cli_parse_u32(text, 1, 1 << 24, &o->n_ctx);
    case 'b': return cli_parse_u32(text, 1, 16384, &o->n_batch);
    case OPT_TEMP: return cli_parse_float(text, 0, 100, &o->sampling.temperature);
    case OPT_TOP_K: return cli_parse_u32(text, 0, UINT32_MAX, &o->sampling.top_k);
    case OPT_TOP_P: return cli_parse_float(text, 0, 1, &o->sampling.top_p);
    case OPT_MIN_P: return cli_parse_float(text, 0, 1, &o->sampling.min_p);
    case OPT_PENALTY: return cli_parse_float(text, 0.01f, 100, &o->sampling.repeat_penalty);
    case OPT_LAST_N: return cli_parse_u32(text, 0, 1 << 16, &o->sampling.repeat_last_n);
    default: return cli_parse_u64(text, 0, UINT64_MAX, &o->sampling.seed);
    }
}

static const char *option_name(int opt) {
    for (const struct option *l = long_options; l->name; l++)
        if (l->val == opt) return l->name;
    return "?";
}

static int parse(const struct cli *cli, int argc, char **argv, struct options *o) {
    int opt, status, index = 0;
    opterr = 0;
    optind = 1;
    while ((opt = getopt_long(argc, argv, ":p:f:n:t:c:b:h", long_options, &index)) != -1) {
        switch (opt) {
        case 'p': o->prompt = optarg; break;
        case 'f': o->file = optarg; break;
        case OPT_CHAT: o->chat = true; break;
        case OPT_SPECIAL: o->special = true; break;
        case OPT_IDS: o->ids = true; break;
        case OPT_IGNORE_EOS: o->ignore_eos = true; break;
        case OPT_VERIFY: o->verify = true; break;
        case OPT_SIGNATURE:
            if ((status = cli_signer_take(cli, optarg, &o->signer))) return status;
            o->verify = true;
            break;
        case OPT_PROFILE: o->profile = true; break;
        case OPT_OVER_MEMORY: o->over_memory = true; break;
        case OPT_NO_REPACK: o->no_repack = true; break;
        case OPT_DRY_RUN: o->dry_run = true; break;
        case OPT_SESSION: o->session = optarg; break;
        case OPT_LAYERS:
            if (!cli_parse_range(optarg, &o->layers.first, &o->layers.end))
                return cli_usage(cli, "--layers is FIRST..END, such as 0..20, not '%s'", optarg);
            break;
        case OPT_DEVICE: o->device = optarg; break;
        case OPT_JSON: o->json = true; break;
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
    if (cli_device_is_list(o->device)) return cli_device_list(cli, o->json);
    if (argc - optind != 1) return cli_usage(cli, "one model or package is needed");
    if (o->prompt && o->file) return cli_usage(cli, "-p and -f exclude each other");
    if (o->ids && (o->chat || o->special)) return cli_usage(cli, "--ids excludes --chat and --special");
    if (o->layers.end != PKG_RANGE_ALL && !o->dry_run)
        return cli_usage(cli, "--layers goes with --dry-run: a part of a model makes no text");
    o->path = argv[optind];
    return -1;
}

int cmd_run(const struct cli *cli, int argc, char **argv) {
    struct run r = {.o = {.sampling = sampler_defaults(), .n_predict = 128, .layers = {0, PKG_RANGE_ALL}},
                    .fig = {.finish = ""}};
    struct strata_errmsg em;
    bool fits = true;
    r.o.sampling.repeat_last_n = 64;
    int status = parse(cli, argc, argv, &r.o);
    if (status >= 0) return status;
    status = CLI_OK;
    buf_init(&r.prompt, MAX_PROMPT_BYTES);
    buf_init(&r.text, MAX_TEXT_BYTES);
    strata_err rc = r.o.dry_run ? dry_run(&r, &fits, &em) : read_prompt(&r, &em);
    if (!rc && !r.o.dry_run) rc = load(&r, &em);
    if (!rc && !r.o.dry_run) {
        cli_catch_interrupt();
        detok_init(&r.detok, r.vocab, false);
        rc = run(&r, &em);
        if (!rc && r.o.json) rc = report_json(&r, &em);
        if (!rc && !r.o.json) report(&r);
        detok_deinit(&r.detok);
    }
    if (rc || !fits) status = cli_fail(cli, r.o.json && rc, &em);
    json_decref(r.profile);
    sampler_free(r.sampler);
    engine_free(r.engine);
    vocab_free(r.vocab);
    pkg_model_free(r.pkg);
    text_spans_deinit(&r.own);
    vocab_ids_deinit(&r.ids);
    buf_deinit(&r.prompt);
    buf_deinit(&r.text);
    return status;
}

/*
 * The real HTTP API over a scripted generator, so that tests of the API need neither a model nor stages.
 *
 * The vocabulary is real but tiny: one token per byte, one merge, and the control tokens of a ChatML template. The
 * generator answers "Hello from the scripted model." byte by byte, unless the prompt holds directives:
 *
 *   [[say TEXT]]    answer with TEXT           [[loop]]       say it again and again, until cancelled or full
 *   [[delay MS]]    wait before each token     [[first MS]]   wait before the first token
 *   [[fail N]]      lose a stage after N tokens (0: before the first)
 *   [[refuse WHY]]  submit fails: peer, queue or bug
 *   [[params]]      answer with the sampling parameters, as JSON
 *
 * Standard output tells what happened, a line each: `listening PORT`, `submit id=ID prompt=N max=N`,
 * `end id=ID how=finish|cancel|lost tokens=N`. SIGTERM or SIGINT ends it; `stopped` is its last line.
 */
#include "base/clock.h"
#include "gguf/gguf_writer.h"
#include "serve/api.h"

#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ID_MERGE = 256, ID_BOS, ID_EOS, ID_START, ID_END, N_TOKENS, MAX_SAY = 16384 };

static const char chat_source[] = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
                                  "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* ---- The vocabulary ---- */

/* The letter that stands for a byte in byte-level vocabularies: itself when printable, else one from 256 on. */
static void token_of_byte(unsigned byte, char *out) {
    unsigned cp = byte, next = 256;
    for (unsigned b = 0; b <= byte; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte && !printable) cp = next;
        if (!printable) next++;
    }
    if (cp < 128) {
        snprintf(out, 8, "%c", (int)cp);
    } else {
        snprintf(out, 8, "%c%c", (int)(0xc0 | cp >> 6), (int)(0x80 | (cp & 63)));
    }
}

static strata_err keep(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    return buf_append(user, data, len, em);
}

/* Metadata of a model file without tensors, as bytes. */
static strata_err make_file(struct buf *file, struct strata_errmsg *em) {
    static char text[N_TOKENS][16];
    static struct gguf_str token[N_TOKENS];
    static int32_t type[N_TOKENS];
    static const struct gguf_str merge = {.data = "t h", .len = 3};
    struct gguf_writer *w = NULL;
    for (unsigned i = 0; i < 256; i++) token_of_byte(i, text[i]);
    snprintf(text[ID_MERGE], sizeof text[0], "th");
    snprintf(text[ID_BOS], sizeof text[0], "<s>");
    snprintf(text[ID_EOS], sizeof text[0], "</s>");
    snprintf(text[ID_START], sizeof text[0], "<|im_start|>");
    snprintf(text[ID_END], sizeof text[0], "<|im_end|>");
    for (unsigned i = 0; i < N_TOKENS; i++) {
        token[i] = (struct gguf_str){.data = text[i], .len = strlen(text[i])};
        type[i] = i > ID_MERGE ? 3 : 1; /* control, normal */
    }
    strata_err rc = gguf_writer_new(32, &w, em);
    if (!rc) rc = gguf_writer_add_str(w, "general.architecture", "llama", em);
    if (!rc) rc = gguf_writer_add_str(w, "tokenizer.ggml.model", "gpt2", em);
    if (!rc) rc = gguf_writer_add_str(w, "tokenizer.ggml.pre", "gpt-2", em);
    if (!rc) rc = gguf_writer_add_strs(w, "tokenizer.ggml.tokens", token, N_TOKENS, em);
    if (!rc) rc = gguf_writer_add_i32s(w, "tokenizer.ggml.token_type", type, N_TOKENS, em);
    if (!rc) rc = gguf_writer_add_strs(w, "tokenizer.ggml.merges", &merge, 1, em);
    if (!rc) rc = gguf_writer_add_u32(w, "tokenizer.ggml.bos_token_id", ID_BOS, em);
    if (!rc) rc = gguf_writer_add_u32(w, "tokenizer.ggml.eos_token_id", ID_EOS, em);
    if (!rc) rc = gguf_writer_add_bool(w, "tokenizer.ggml.add_bos_token", true, em);
    if (!rc) rc = gguf_writer_emit(w, keep, file, em);
    gguf_writer_free(w);
    return rc;
}

/* ---- The generator ---- */

struct fake {
    struct gen base;
    uint32_t n_ctx;
    bool down;
};

struct gen_job {
    char id[64];
    char say[MAX_SAY];
    size_t n_say;
    uint32_t max_tokens, sent;
    uint64_t due_ns; /* when the next event may come */
    uint64_t delay_ns;
    long fail_after; /* -1: never */
    bool loop, stops_at_eos, ended, eos_sent;
};

/* The text behind [[name, up to ]], into out. False when the prompt has no such directive. */
static bool directive(const char *prompt, const char *name, char *out, size_t cap) {
    char open[32];
    snprintf(open, sizeof open, "[[%s", name);
    const char *p = NULL;
    for (const char *q = prompt; (q = strstr(q, open)); q++) p = q;
    const char *end = p ? strstr(p, "]]") : NULL;
    if (!end) return false;
    p += strlen(open);
    p += *p == ' ';
    size_t n = p < end ? (size_t)(end - p) : 0;
    if (n >= cap) n = cap - 1;
    memcpy(out, p, n);
    out[n] = '\0';
    return true;
}

static uint64_t directive_ms(const char *prompt, const char *name) {
    char text[32];
    return directive(prompt, name, text, sizeof text) ? strtoull(text, NULL, 10) * CLOCK_NS_PER_MS : 0;
}

static char *prompt_text(const struct gen_request *req) {
    char *s = malloc(2 * req->n_prompt + 1);
    size_t n = 0;
    for (size_t i = 0; s && i < req->n_prompt; i++) {
        int32_t id = req->prompt[i];
        if (id >= 0 && id < 256) s[n++] = (char)id;
        if (id == ID_MERGE) {
            s[n++] = 't';
            s[n++] = 'h';
        }
    }
    if (s) s[n] = '\0';
    return s;
}

static strata_err refuse(const char *why, struct strata_errmsg *em) {
    if (strcmp(why, "peer") == 0) return err_set(em, STRATA_EPEER, "stage 2 (127.0.0.1:7001) is not connected");
    if (strcmp(why, "queue") == 0) return err_set(em, STRATA_ELIMIT, "the queue is full");
    return err_set(em, STRATA_EINTERNAL, "a scripted defect");
}

static strata_err fake_submit(struct gen *g, const struct gen_request *req, struct gen_job **out,
                              struct strata_errmsg *em) {
    const struct fake *f = (const struct fake *)g;
    struct gen_job *job = calloc(1, sizeof *job);
    char *prompt = prompt_text(req);
    char text[32];
    strata_err rc = STRATA_OK;
    if (!job || !prompt)
        rc = err_nomem(em, "a scripted job");
    else if (f->down)
        rc = refuse("peer", em);
    else if (directive(prompt, "refuse", text, sizeof text))
        rc = refuse(text, em);
    if (rc) {
        free(job);
        goto out;
    }
    snprintf(job->id, sizeof job->id, "%s", req->id);
    job->max_tokens = req->max_tokens;
    job->delay_ns = directive_ms(prompt, "delay");
    job->due_ns = clock_now_ns() + directive_ms(prompt, "first") + job->delay_ns;
    job->fail_after = directive(prompt, "fail", text, sizeof text) ? strtol(text, NULL, 10) : -1;
    job->loop = directive(prompt, "loop", text, sizeof text);
    const struct sampler_params *s = &req->sampling;
    if (directive(prompt, "params", text, sizeof text))
        snprintf(job->say, sizeof job->say,
                 "{\"temperature\":%g,\"top_k\":%u,\"top_p\":%g,\"min_p\":%g,\"repeat_penalty\":%g,"
                 "\"repeat_last_n\":%u,\"seed\":\"%llu\",\"stop_ids\":%zu}",
                 (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p, (double)s->repeat_penalty,
                 s->repeat_last_n, (unsigned long long)s->seed, req->n_stop_ids);
    else if (!directive(prompt, "say", job->say, sizeof job->say))
        snprintf(job->say, sizeof job->say, "Hello from the scripted model.");
    job->n_say = strlen(job->say);
    for (size_t i = 0; i < req->n_stop_ids; i++) job->stops_at_eos |= req->stop_ids[i] == ID_EOS;
    printf("submit id=%s prompt=%zu max=%u\n", job->id, req->n_prompt, req->max_tokens);
    *out = job;
out:
    free(prompt);
    return rc;
}

static void job_ended(struct gen_job *job, const char *how) {
    if (!job->ended) printf("end id=%s how=%s tokens=%u\n", job->id, how, job->sent);
    job->ended = true;
}

static void sleep_until(uint64_t ns) {
    struct timespec ts = {.tv_sec = (time_t)(ns / CLOCK_NS_PER_S), .tv_nsec = (long)(ns % CLOCK_NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR) continue;
}

static strata_err fake_next(struct gen *g, struct gen_job *job, uint64_t deadline_ns, struct gen_event *out,
                            struct strata_errmsg *em) {
    (void)g;
    if (job->due_ns > deadline_ns) {
        sleep_until(deadline_ns);
        return err_set(em, STRATA_ETIMEOUT, "nothing yet");
    }
    sleep_until(job->due_ns);
    job->due_ns = clock_now_ns() + job->delay_ns;
    if (job->fail_after >= 0 && job->sent >= (uint32_t)job->fail_after) {
        job_ended(job, "lost");
        return err_set(em, STRATA_EPEER, "stage 2 (127.0.0.1:7001) was lost");
    }
    size_t at = job->sent % (job->n_say + 1);
    if (job->eos_sent || job->sent == job->max_tokens) {
        *out = (struct gen_event){.kind = GEN_DONE, .finish = job->eos_sent ? GEN_FINISH_STOP : GEN_FINISH_LENGTH};
        job_ended(job, "finish");
        return STRATA_OK;
    }
    if (job->loop) at = job->n_say ? job->sent % job->n_say : 0;
    job->sent++;
    *out = (struct gen_event){.kind = GEN_TOKEN, .token = at < job->n_say ? (uint8_t)job->say[at] : ID_EOS};
    job->eos_sent = out->token == ID_EOS && job->stops_at_eos;
    return STRATA_OK;
}

static void fake_job_free(struct gen *g, struct gen_job *job) {
    (void)g;
    if (!job) return;
    job_ended(job, "cancel");
    free(job);
}

static uint32_t fake_n_ctx(struct gen *g) {
    return ((struct fake *)g)->n_ctx;
}

static bool fake_health(struct gen *g, json_t **status) {
    bool ok = !((struct fake *)g)->down;
    *status = json_pack("{s:s, s:[]}", "status", ok ? "ok" : "degraded", "stages");
    return ok;
}

static const struct gen_ops fake_ops = {fake_submit, fake_next, fake_job_free, fake_n_ctx, fake_health};

/* ---- The program ---- */

static int usage(void) {
    fputs("usage: fakeserve [--port N] [--host NAME] [--api-key KEY] [--model-id ID] [--n-ctx N] [--timeout-s N]\n"
          "                 [--max-connections N] [--no-chat] [--down]\n",
          stderr);
    return 2;
}

static bool parse_args(int argc, char **argv, struct api_options *o, struct fake *f, bool *chat) {
    static const struct option options[] = {
        {"port", 1, NULL, 'p'},
        {"host", 1, NULL, 'h'},
        {"api-key", 1, NULL, 'k'},
        {"model-id", 1, NULL, 'm'},
        {"n-ctx", 1, NULL, 'c'},
        {"timeout-s", 1, NULL, 't'},
        {"max-connections", 1, NULL, 'n'},
        {"no-chat", 0, NULL, 'x'},
        {"down", 0, NULL, 'd'},
        {NULL, 0, NULL, 0},
    };
    for (int opt; (opt = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        unsigned long n = optarg ? strtoul(optarg, NULL, 10) : 0;
        switch (opt) {
        case 'p': o->port = (uint16_t)n; break;
        case 'h': o->host = optarg; break;
        case 'k': o->api_key = optarg; break;
        case 'm': o->model_id = optarg; break;
        case 'c': f->n_ctx = (uint32_t)n; break;
        case 't': o->header_timeout_s = o->body_timeout_s = o->idle_timeout_s = o->send_timeout_s = (uint32_t)n; break;
        case 'n': o->max_connections = (uint32_t)n; break;
        case 'x': *chat = false; break;
        case 'd': f->down = true; break;
        default: return false;
        }
    }
    return optind == argc;
}

int main(int argc, char **argv) {
    struct log log = {.out = stderr, .level = LOG_LEVEL_DEBUG, .component = "api"};
    struct fake f = {.base = {.ops = &fake_ops}, .n_ctx = 4096};
    struct api_options o = {.model_id = "test/scripted", .gen = &f.base, .log = &log, .bos_text = "<s>"};
    struct strata_errmsg em;
    struct buf file;
    struct gguf_reader *meta = NULL;
    struct vocab *vocab = NULL;
    struct chat_template *chat = NULL;
    struct api *api = NULL;
    bool want_chat = true;
    sigset_t signals;
    int sig;
    if (!parse_args(argc, argv, &o, &f, &want_chat)) return usage();
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    buf_init(&file, 1 << 20);
    strata_err rc = make_file(&file, &em);
    if (!rc) rc = gguf_reader_new(file.data, file.len, "scripted", &meta, &em);
    if (!rc) rc = vocab_new(meta, &vocab, &em);
    if (!rc && want_chat) rc = chat_template_new(chat_source, strlen(chat_source), &chat, &em);
    o.vocab = vocab;
    o.chat = chat;
    if (!rc) rc = api_start(&o, &api, &em);
    if (rc) {
        fprintf(stderr, "fakeserve: %s\n", em.text);
    } else {
        printf("listening %u\n", api_port(api));
        sigwait(&signals, &sig);
        api_stop(api);
        puts("stopped");
    }
    chat_template_free(chat);
    vocab_free(vocab);
    gguf_reader_free(meta);
    buf_deinit(&file);
    return rc ? 1 : 0;
}

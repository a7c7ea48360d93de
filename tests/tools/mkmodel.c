/*
 * Makes a small llama-architecture GGUF file with random weights: the same options give the same bytes on every
 * machine.
 *
 * For tests, benches, and demos without a network. Its text is nonsense, its shapes, metadata and tokenizer are
 * those of a real model. Only exact arithmetic (+, *, /, sqrt) is used, so no mathematics library can change a bit.
 */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a fused multiply-add would round differently; gcc leaves them out with -std=c17 */
#endif

#include "gguf/gguf_source.h"
#include "gguf/gguf_writer.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 2048, MAX_PIECE = 48, MAX_TENSORS = 4096, N_MERGES = 200, N_BYTES = 256 };

struct options {
    const char *out, *vocab_file, *name;
    uint64_t seed;
    uint32_t layers, embd, heads, kv_heads, ff, ctx, alignment, type;
    bool spm, tied, bias, rope_freqs;
};

struct vocab {
    char text[MAX_TOKENS][MAX_PIECE];
    int32_t type[MAX_TOKENS];
    float score[MAX_TOKENS];
    size_t n;
    char merges[N_MERGES][2 * MAX_PIECE];
    size_t n_merges;
};

struct model {
    struct options opt;
    struct gguf_writer *w;
    struct gguf_source *vocab; /* borrowed from by w */
    uint64_t rng;
    uint32_t n_vocab;
    void *payload[MAX_TENSORS];
    char name[MAX_TENSORS][64];
    size_t n;
};

static const char help[] =
    "mkmodel: writes a small llama-architecture GGUF file with random weights\n"
    "\n"
    "usage: mkmodel --out FILE [OPTIONS]\n"
    "\n"
    "  --out FILE          the file to write\n"
    "  --seed N            seed of the weights (1)\n"
    "  --layers N          transformer blocks (4)\n"
    "  --embd N            embedding length (64)\n"
    "  --heads N           attention heads; must divide the embedding length (4)\n"
    "  --kv-heads N        key/value heads; must divide the heads (2)\n"
    "  --ff N              feed-forward length (192)\n"
    "  --ctx N             context length to declare (2048)\n"
    "  --type T            type of the matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q4_K, q6_K (f32)\n"
    "  --vocab-mode M      bpe or spm: the built-in vocabulary (bpe)\n"
    "  --vocab FILE        take the vocabulary (all tokenizer.* keys) of this GGUF file instead\n"
    "  --tied              no output.weight: the token embeddings are the output head\n"
    "  --bias              biases on q, k, v, attention output and feed-forward\n"
    "  --rope-freqs        write rope_freqs.weight\n"
    "  --alignment N       alignment of tensor data, a power of two (32)\n"
    "  --name TEXT         general.name (\"Strata Tiny\")\n"
    "\n"
    "example: mkmodel --out tiny.gguf --layers 6 --type q8_0 --tied\n";

/* ---- random numbers ---- */

/* splitmix64: a counter and a mixer; enough for weights. */
static uint64_t next_u64(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Nearly normal with mean 0 and variance 1: the sum of eight uniform 16-bit numbers, centred and scaled. */
static double next_normal(uint64_t *state) {
    uint64_t sum = 0;
    for (int k = 0; k < 2; k++)
        for (uint64_t i = 0, v = next_u64(state); i < 4; i++, v >>= 16) sum += v & 0xffff;
    return ((double)sum - 8 * 32767.5) / 53509.621;
}

/* ---- number formats ---- */

static uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Round to nearest even; all values here are finite and far below the largest half. */
static uint16_t to_f16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 16 & 0x8000;
    int32_t exp = (int32_t)(u >> 23 & 0xff) - 127 + 15;
    uint32_t man = (u & 0x7fffff) | 0x800000;
    uint32_t shift = 13;
    if (exp <= 0) {
        if (exp < -10) return (uint16_t)sign;
        /* A subnormal has no hidden bit: the leading bit moves into the mantissa. */
        shift += (uint32_t)(1 - exp);
        exp = 1;
    }
    uint32_t half = man >> shift, rest = man & ((1u << shift) - 1), mid = 1u << (shift - 1);
    if (rest > mid || (rest == mid && (half & 1))) half++;
    return (uint16_t)(sign | (((uint32_t)(exp - 1) << 10) + half));
}

static float from_f16(uint16_t h) {
    int exp = h >> 10 & 31, man = h & 1023;
    double v = exp ? (1024 + man) / 1024.0 : man / 1024.0;
    for (int e = exp ? exp : 1; e < 15; e++) v /= 2;
    for (int e = 15; e < exp; e++) v *= 2;
    return (float)(h & 0x8000 ? -v : v);
}

static void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static int clamp(double v, int lo, int hi) {
    int r = (int)(v < 0 ? v - 0.5 : v + 0.5);
    return r < lo ? lo : r > hi ? hi : r;
}

/* 32 values: scale, then signed bytes. */
static void pack_q8_0(const float *x, uint8_t *dst) {
    double max = 0;
    for (int i = 0; i < 32; i++) max = fabs((double)x[i]) > max ? fabs((double)x[i]) : max;
    uint16_t d = to_f16((float)(max / 127));
    double step = (double)from_f16(d);
    put_u16(dst, d);
    for (int i = 0; i < 32; i++) dst[2 + i] = (uint8_t)(int8_t)(step > 0 ? clamp((double)x[i] / step, -127, 127) : 0);
}

/* 32 values: scale, [minimum,] then nibbles: value i in the low half of byte i, value i + 16 in the high half. */
static void pack_q4(const float *x, bool with_min, uint8_t *dst) {
    double lo = (double)x[0], hi = (double)x[0];
    for (int i = 1; i < 32; i++) {
        lo = (double)x[i] < lo ? (double)x[i] : lo;
        hi = (double)x[i] > hi ? (double)x[i] : hi;
    }
    double far = -lo > hi ? -lo : hi;
    uint16_t d = to_f16((float)(with_min ? (hi - lo) / 15 : far / 7)), m = to_f16((float)lo);
    double step = (double)from_f16(d), base = with_min ? (double)from_f16(m) : -8 * step;
    size_t head = 2;
    put_u16(dst, d);
    if (with_min) {
        put_u16(dst + 2, m);
        head = 4;
    }
    for (int i = 0; i < 16; i++) {
        int a = step > 0 ? clamp(((double)x[i] - base) / step, 0, 15) : 0;
        int b = step > 0 ? clamp(((double)x[i + 16] - base) / step, 0, 15) : 0;
        dst[head + (size_t)i] = (uint8_t)(a | b << 4);
    }
}

/*
 * 256 values as random codes below small scales: no quantizer is needed, the distribution is what matters. The factors
 * bring the values near the wanted deviation (4-bit: sub-scales and codes are uniform in 0..63 and 0..15).
 */
static void random_k_block(uint32_t type, double dev, uint64_t *rng, uint8_t *dst, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++) dst[i] = (uint8_t)next_u64(rng);
    if (type == 12) { /* Q4_K: d, dmin, 12 bytes of 6-bit sub-scales, 128 bytes of codes */
        put_u16(dst, to_f16((float)(dev / 200)));
        put_u16(dst + 2, to_f16((float)(dev / 200 * 7.5)));
    } else { /* Q6_K: codes, 16 signed sub-scales, d at the end */
        put_u16(dst + 208, to_f16((float)(dev / 1370)));
    }
}

static const char *pack(uint32_t type, const float *x, uint64_t n, double dev, uint64_t *rng, uint8_t *dst) {
    const struct gguf_tensor_type *t = gguf_types_tensor(type);
    for (uint64_t i = 0; i < n; i += t->block_elems, dst += t->block_bytes) {
        switch (type) {
        case GGUF_TENSOR_F32: memcpy(dst, x + i, 4); break;
        case GGUF_TENSOR_F16: put_u16(dst, to_f16(x[i])); break;
        case GGUF_TENSOR_BF16: put_u16(dst, to_bf16(x[i])); break;
        case GGUF_TENSOR_Q8_0: pack_q8_0(x + i, dst); break;
        case 2: pack_q4(x + i, false, dst); break;
        case 3: pack_q4(x + i, true, dst); break;
        case 12:
        case 14: random_k_block(type, dev, rng, dst, t->block_bytes); break;
        default: return "this tensor type cannot be made; see --help";
        }
    }
    return NULL;
}

/* ---- vocabulary ---- */

/* Pieces are learnt from this text, so that ordinary English gets short encodings. */
static const char corpus[] =
    "the model is cut into layers and each machine holds only its own layers so that a model which is too big for one "
    "machine can run on several of them the first machine turns the words into numbers and the last machine turns the "
    "numbers into the next word between them the hidden state travels from one machine to the next in order when the "
    "answer is complete the stream ends and the machines wait for another question in the morning the river runs "
    "through the town and the people walk along the water with their children there is a house on the other side of "
    "the bridge where an old man keeps his books he has read all of them more than once and he can tell you what each "
    "of them says about the world and about the time in which it was written some of these stories are true and "
    "some are not but every one of them has something to say to those who want to listen and think for themselves "
    "we have seen that the work of a single day may change what happens in the years that follow what we do now "
    "will be the ground on which other people stand and they should be able to trust that it was made with care";

static size_t add_token(struct vocab *v, const char *text, int32_t type, float score) {
    if (v->n == MAX_TOKENS) return v->n - 1;
    size_t len = strnlen(text, MAX_PIECE - 1);
    memcpy(v->text[v->n], text, len); /* the rest is zero already */
    v->type[v->n] = type;
    v->score[v->n] = score;
    return v->n++;
}

static void put_utf8(char *dst, unsigned cp) {
    if (cp < 0x80) {
        dst[0] = (char)cp;
        dst[1] = '\0';
    } else if (cp < 0x800) {
        dst[0] = (char)(0xc0 | cp >> 6);
        dst[1] = (char)(0x80 | (cp & 63));
        dst[2] = '\0';
    } else {
        dst[0] = (char)(0xe0 | cp >> 12);
        dst[1] = (char)(0x80 | (cp >> 6 & 63));
        dst[2] = (char)(0x80 | (cp & 63));
        dst[3] = '\0';
    }
}

static size_t find_token(const struct vocab *v, const char *text) {
    for (size_t i = 0; i < v->n; i++)
        if (strcmp(v->text[i], text) == 0) return i;
    return SIZE_MAX;
}

struct trainer {
    uint16_t sym[2 * sizeof corpus]; /* token of every symbol; words are separated by UINT16_MAX */
    size_t n;
};

/* Turns the corpus into words of one symbol per character, each word led by the space symbol. */
static void load_corpus(struct trainer *t, const struct vocab *v, const char *space) {
    t->n = 0;
    t->sym[t->n++] = (uint16_t)find_token(v, space);
    for (const char *p = corpus; *p; p++) {
        char one[2] = {*p, '\0'};
        if (*p == ' ') t->sym[t->n++] = UINT16_MAX;
        t->sym[t->n++] = (uint16_t)find_token(v, *p == ' ' ? space : one);
    }
}

/* The most frequent neighbours, the earliest pair on a tie. False when every word is one symbol. */
static bool best_pair(const struct trainer *t, uint16_t *a, uint16_t *b) {
    static uint16_t count[MAX_TOKENS][MAX_TOKENS];
    memset(count, 0, sizeof count);
    for (size_t i = 0; i + 1 < t->n; i++)
        if (t->sym[i] != UINT16_MAX && t->sym[i + 1] != UINT16_MAX) count[t->sym[i]][t->sym[i + 1]]++;
    uint16_t best = 0;
    for (size_t i = 0; i + 1 < t->n; i++) {
        if (t->sym[i] == UINT16_MAX || t->sym[i + 1] == UINT16_MAX) continue;
        uint16_t c = count[t->sym[i]][t->sym[i + 1]];
        if (c <= best) continue;
        best = c;
        *a = t->sym[i];
        *b = t->sym[i + 1];
    }
    return best > 0;
}

static void merge_pair(struct trainer *t, uint16_t a, uint16_t b, uint16_t into) {
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        bool hit = i + 1 < t->n && t->sym[i] == a && t->sym[i + 1] == b;
        t->sym[n++] = hit ? into : t->sym[i];
        if (hit) i++;
    }
    t->n = n;
}

static void learn_merges(struct vocab *v, const char *space) {
    struct trainer t;
    uint16_t a, b;
    load_corpus(&t, v, space);
    for (int i = 0; i < N_MERGES && best_pair(&t, &a, &b); i++) {
        char left[MAX_PIECE], right[MAX_PIECE], text[2 * MAX_PIECE];
        memcpy(left, v->text[a], MAX_PIECE);
        memcpy(right, v->text[b], MAX_PIECE);
        snprintf(text, sizeof text, "%s%s", left, right);
        snprintf(v->merges[v->n_merges++], sizeof v->merges[0], "%s %s", left, right);
        merge_pair(&t, a, b, (uint16_t)add_token(v, text, 1, (float)-i));
    }
}

/* GPT-2's alphabet: printable bytes stand for themselves, the others for code points from 256 on. */
static void build_bpe(struct vocab *v) {
    static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    for (size_t i = 0; i < 3; i++) add_token(v, specials[i], 3, 0);
    unsigned other = 256;
    for (unsigned byte = 0; byte < N_BYTES; byte++) {
        bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        char text[4];
        put_utf8(text, printable ? byte : other++);
        add_token(v, text, 1, 0);
    }
    learn_merges(v, "\xc4\xa0"); /* U+0120 stands for the space */
}

static void build_spm(struct vocab *v) {
    add_token(v, "<unk>", 2, 0);
    add_token(v, "<s>", 3, 0);
    add_token(v, "</s>", 3, 0);
    for (unsigned byte = 0; byte < N_BYTES; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        add_token(v, text, 6, 0);
    }
    /* Single characters come after every merge: a lower score. U+2581 stands for the space. */
    add_token(v, "\xe2\x96\x81", 1, -1000);
    for (unsigned c = 33; c < 127; c++) {
        char one[2] = {(char)c, '\0'};
        add_token(v, one, 1, (float)-(1001 + (int)c));
    }
    for (unsigned cp = 0xe0; cp < 0x100; cp++) {
        char text[4];
        put_utf8(text, cp);
        add_token(v, text, 1, (float)-(1200 + (int)cp));
    }
    learn_merges(v, "\xe2\x96\x81");
}

static const char chatml[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a small test model<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static strata_err write_strings(struct gguf_writer *w, const char *key, const char *first, size_t stride, size_t n,
                                struct strata_errmsg *em) {
    struct gguf_str *list = calloc(n ? n : 1, sizeof *list);
    if (!list) return err_nomem(em, "the vocabulary");
    for (size_t i = 0; i < n; i++)
        list[i] = (struct gguf_str){.data = first + i * stride, .len = strlen(first + i * stride)};
    strata_err rc = gguf_writer_add_strs(w, key, list, n, em);
    free(list);
    return rc;
}

static strata_err write_builtin_vocab(struct model *m, struct strata_errmsg *em) {
    struct vocab *v = calloc(1, sizeof *v);
    if (!v) return err_nomem(em, "the vocabulary");
    bool spm = m->opt.spm;
    struct gguf_writer *w = m->w;
    spm ? build_spm(v) : build_bpe(v);
    m->n_vocab = (uint32_t)v->n;
    strata_err rc = gguf_writer_add_str(w, "tokenizer.ggml.model", spm ? "llama" : "gpt2", em);
    if (!rc) rc = gguf_writer_add_str(w, "tokenizer.ggml.pre", spm ? "default" : "smollm", em);
    if (!rc) rc = write_strings(w, "tokenizer.ggml.tokens", v->text[0], MAX_PIECE, v->n, em);
    if (!rc) rc = gguf_writer_add_i32s(w, "tokenizer.ggml.token_type", v->type, v->n, em);
    if (!rc && spm) rc = gguf_writer_add_f32s(w, "tokenizer.ggml.scores", v->score, v->n, em);
    if (!rc && !spm) rc = write_strings(w, "tokenizer.ggml.merges", v->merges[0], 2 * MAX_PIECE, v->n_merges, em);
    if (!rc) rc = gguf_writer_add_u32(w, "tokenizer.ggml.bos_token_id", 1, em);
    if (!rc) rc = gguf_writer_add_u32(w, "tokenizer.ggml.eos_token_id", 2, em);
    if (!rc) rc = gguf_writer_add_u32(w, "tokenizer.ggml.unknown_token_id", 0, em);
    if (!rc) rc = gguf_writer_add_bool(w, "tokenizer.ggml.add_bos_token", spm, em);
    if (!rc && !spm) rc = gguf_writer_add_bool(w, "tokenizer.ggml.add_space_prefix", false, em);
    if (!rc && !spm) rc = gguf_writer_add_str(w, "tokenizer.chat_template", chatml, em);
    free(v);
    return rc;
}

static strata_err copy_vocab(struct model *m, struct strata_errmsg *em) {
    const struct gguf_kv *tokens;
    strata_err rc = gguf_source_open(m->opt.vocab_file, &m->vocab, em);
    if (rc) return rc;
    const struct gguf_reader *r = gguf_source_meta(m->vocab);
    rc = gguf_reader_get_array(r, "tokenizer.ggml.tokens", true, GGUF_KIND_STRING, &tokens, em);
    if (!rc && (tokens->count == 0 || tokens->count > UINT32_MAX))
        rc = err_set(em, STRATA_EINVAL, "%s has no tokens", m->opt.vocab_file);
    if (!rc) m->n_vocab = (uint32_t)tokens->count;
    for (size_t i = 0; i < gguf_reader_kv_count(r) && !rc; i++) {
        const struct gguf_kv *kv = gguf_reader_kv(r, i);
        if (strncmp(kv->key, "tokenizer.", 10) == 0) rc = gguf_writer_copy_kv(m->w, kv, em);
    }
    return rc;
}

/* ---- tensors ---- */

/* Values are base + deviation * normal. A matrix has the type asked for, everything else is F32. */
static strata_err add_tensor(struct model *m, const char *name, uint64_t ne0, uint64_t ne1, double base, double dev,
                             struct strata_errmsg *em) {
    bool matrix = ne1 > 0;
    uint32_t type = matrix ? m->opt.type : GGUF_TENSOR_F32;
    uint64_t ne[4] = {ne0, matrix ? ne1 : 1, 1, 1}, bytes;
    if (!gguf_types_tensor_bytes(type, ne, &bytes))
        return err_set(em, STRATA_EINVAL, "%s: rows of %llu do not fit type %s", name, (unsigned long long)ne0,
                       gguf_types_tensor_name(type));
    if (m->n == MAX_TENSORS) return err_set(em, STRATA_ELIMIT, "more than %d tensors", MAX_TENSORS);
    uint8_t *data = malloc(bytes);
    float *row = malloc(ne0 * sizeof *row);
    m->payload[m->n] = data;
    snprintf(m->name[m->n], sizeof m->name[0], "%s", name);
    const char *own_name = m->name[m->n++];
    strata_err rc = data && row ? STRATA_OK : err_nomem(em, "weights");
    for (uint64_t j = 0; j < ne[1] && !rc; j++) {
        for (uint64_t i = 0; i < ne0; i++) row[i] = (float)(base + dev * next_normal(&m->rng));
        const char *why = pack(type, row, ne0, dev, &m->rng, data + j * (bytes / ne[1]));
        if (why) rc = err_set(em, STRATA_EINVAL, "%s: %s", gguf_types_tensor_name(type), why);
    }
    free(row);
    return rc ? rc : gguf_writer_add_tensor(m->w, own_name, matrix ? 2 : 1, ne, type, data, em);
}

struct shape {
    const char *name;
    uint64_t in, out; /* out 0: a vector of length `in` */
    bool is_bias;
};

static strata_err add_block(struct model *m, uint32_t layer, struct strata_errmsg *em) {
    const struct options *o = &m->opt;
    uint64_t head = o->embd / o->heads, kv = head * o->kv_heads;
    const struct shape shapes[] = {
        {"attn_norm.weight", o->embd, 0, false},
        {"attn_q.weight", o->embd, o->embd, false},
        {"attn_q.bias", o->embd, 0, true},
        {"attn_k.weight", o->embd, kv, false},
        {"attn_k.bias", kv, 0, true},
        {"attn_v.weight", o->embd, kv, false},
        {"attn_v.bias", kv, 0, true},
        {"attn_output.weight", o->embd, o->embd, false},
        {"attn_output.bias", o->embd, 0, true},
        {"ffn_norm.weight", o->embd, 0, false},
        {"ffn_gate.weight", o->embd, o->ff, false},
        {"ffn_gate.bias", o->ff, 0, true},
        {"ffn_up.weight", o->embd, o->ff, false},
        {"ffn_up.bias", o->ff, 0, true},
        {"ffn_down.weight", o->ff, o->embd, false},
        {"ffn_down.bias", o->embd, 0, true},
    };
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && !rc; i++) {
        const struct shape *s = &shapes[i];
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s", layer, s->name);
        if (s->is_bias && !o->bias) continue;
        if (s->is_bias)
            rc = add_tensor(m, name, s->in, 0, 0, 0.1, em);
        else if (s->out == 0)
            rc = add_tensor(m, name, s->in, 0, 1, 0.1, em);
        else /* keeps the variance of what passes through */
            rc = add_tensor(m, name, s->in, s->out, 0, 1 / sqrt((double)s->in), em);
    }
    return rc;
}

/* Factors from 1 (short waves) to 8 (long ones), as Llama 3 has them. */
static strata_err add_rope_freqs(struct model *m, struct strata_errmsg *em) {
    uint64_t n = m->opt.embd / m->opt.heads / 2;
    strata_err rc = add_tensor(m, "rope_freqs.weight", n, 0, 1, 0, em);
    float *f = m->payload[m->n - 1];
    for (uint64_t i = 0; i < n && !rc; i++) f[i] = (float)(n > 1 ? 1 + 7 * (double)i / (double)(n - 1) : 1);
    return rc;
}

static strata_err add_tensors(struct model *m, struct strata_errmsg *em) {
    const struct options *o = &m->opt;
    double dev = 1 / sqrt((double)o->embd);
    strata_err rc = add_tensor(m, "token_embd.weight", o->embd, m->n_vocab, 0, dev, em);
    if (!rc && o->rope_freqs) rc = add_rope_freqs(m, em);
    for (uint32_t i = 0; i < o->layers && !rc; i++) rc = add_block(m, i, em);
    if (!rc) rc = add_tensor(m, "output_norm.weight", o->embd, 0, 1, 0.1, em);
    if (!rc && !o->tied) rc = add_tensor(m, "output.weight", o->embd, m->n_vocab, 0, dev, em);
    return rc;
}

static strata_err add_metadata(struct model *m, struct strata_errmsg *em) {
    const struct options *o = &m->opt;
    struct gguf_writer *w = m->w;
    strata_err rc = gguf_writer_add_str(w, "general.architecture", "llama", em);
    if (!rc) rc = gguf_writer_add_str(w, "general.type", "model", em);
    if (!rc) rc = gguf_writer_add_str(w, "general.name", o->name, em);
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {
        {"llama.block_count", o->layers},
        {"llama.context_length", o->ctx},
        {"llama.embedding_length", o->embd},
        {"llama.feed_forward_length", o->ff},
        {"llama.attention.head_count", o->heads},
        {"llama.attention.head_count_kv", o->kv_heads},
        {"llama.rope.dimension_count", o->embd / o->heads},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && !rc; i++)
        rc = gguf_writer_add_u32(w, numbers[i].key, numbers[i].value, em);
    if (!rc) rc = gguf_writer_add_f32(w, "llama.rope.freq_base", 10000.0f, em);
    if (!rc) rc = gguf_writer_add_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f, em);
    if (!rc) rc = o->vocab_file ? copy_vocab(m, em) : write_builtin_vocab(m, em);
    if (!rc) rc = gguf_writer_add_u32(w, "llama.vocab_size", m->n_vocab, em);
    if (!rc) rc = gguf_writer_add_u32(w, "general.quantization_version", 2, em);
    return rc;
}

/* ---- command line ---- */

static bool parse_number(const char *text, uint64_t max, uint64_t *out) {
    char *end;
    if (*text < '0' || *text > '9') return false;
    unsigned long long v = strtoull(text, &end, 10);
    if (*end || v > max) return false;
    *out = v;
    return true;
}

static const struct option long_options[] = {
    {"out", 1, NULL, 'o'},   {"seed", 1, NULL, 's'},       {"layers", 1, NULL, 'l'},    {"embd", 1, NULL, 'e'},
    {"heads", 1, NULL, 'h'}, {"kv-heads", 1, NULL, 'k'},   {"ff", 1, NULL, 'f'},        {"ctx", 1, NULL, 'c'},
    {"type", 1, NULL, 't'},  {"vocab-mode", 1, NULL, 'm'}, {"vocab", 1, NULL, 'v'},     {"tied", 0, NULL, 'T'},
    {"bias", 0, NULL, 'b'},  {"rope-freqs", 0, NULL, 'r'}, {"alignment", 1, NULL, 'a'}, {"name", 1, NULL, 'n'},
    {"help", 0, NULL, 'H'},  {NULL, 0, NULL, 0},
};

static bool set_text_option(struct options *o, int opt) {
    int type;
    switch (opt) {
    case 'o': o->out = optarg; return true;
    case 'v': o->vocab_file = optarg; return true;
    case 'n': o->name = optarg; return true;
    case 'T': o->tied = true; return true;
    case 'b': o->bias = true; return true;
    case 'r': o->rope_freqs = true; return true;
    case 'm': o->spm = strcmp(optarg, "spm") == 0; return o->spm || strcmp(optarg, "bpe") == 0;
    case 't':
        type = gguf_types_tensor_id(optarg);
        if (type >= 0) o->type = (uint32_t)type;
        return type >= 0;
    default: return false;
    }
}

static bool set_option(struct options *o, int opt) {
    uint32_t *number = NULL;
    uint64_t v;
    switch (opt) {
    case 's': return parse_number(optarg, UINT64_MAX, &o->seed);
    case 'l': number = &o->layers; break;
    case 'e': number = &o->embd; break;
    case 'h': number = &o->heads; break;
    case 'k': number = &o->kv_heads; break;
    case 'f': number = &o->ff; break;
    case 'c': number = &o->ctx; break;
    case 'a': number = &o->alignment; break;
    default: return set_text_option(o, opt);
    }
    if (!parse_number(optarg, 1 << 24, &v) || v == 0) return false;
    *number = (uint32_t)v;
    return true;
}

static strata_err write_model(struct model *m, struct strata_errmsg *em) {
    uint8_t sha256[DIGEST_BYTES];
    uint64_t size;
    m->rng = m->opt.seed;
    strata_err rc = gguf_writer_new(m->opt.alignment, &m->w, em);
    if (!rc) rc = add_metadata(m, em);
    if (!rc) rc = add_tensors(m, em);
    if (!rc) rc = gguf_writer_to_file(m->w, m->opt.out, NULL, sha256, &size, em);
    gguf_writer_free(m->w);
    gguf_source_free(m->vocab);
    for (size_t i = 0; i < m->n; i++) free(m->payload[i]);
    return rc;
}

int main(int argc, char **argv) {
    static struct model m = {.opt = {.name = "Strata Tiny",
                                     .seed = 1,
                                     .layers = 4,
                                     .embd = 64,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .ff = 192,
                                     .ctx = 2048,
                                     .alignment = 32}};
    struct options *o = &m.opt;
    struct strata_errmsg em;
    int opt;
    while ((opt = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        if (opt == 'H') {
            fputs(help, stdout);
            return 0;
        }
        if (opt == '?' || !set_option(o, opt)) {
            fprintf(stderr, "mkmodel: bad option or value; see --help\n");
            return 2;
        }
    }
    if (!o->out || optind != argc || o->embd % o->heads || o->heads % o->kv_heads || (o->embd / o->heads) % 2) {
        fprintf(stderr, "mkmodel: --out is needed, heads must divide embd into even heads, kv-heads must divide heads; "
                        "see --help\n");
        return 2;
    }
    if (write_model(&m, &em)) {
        fprintf(stderr, "mkmodel: %s\n", em.text);
        return 1;
    }
    return 0;
}

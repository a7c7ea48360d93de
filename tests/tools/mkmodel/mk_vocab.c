/* Vocabularies: a small one learnt from a text, or that of another file. See mk.h. */
#include "mk.h"

#include "gguf/gguf_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LEARNT = 2048, MAX_PIECE = 48, N_MERGES = 200, N_BYTES = 256 };

struct vocab {
    char (*text)[MAX_PIECE];
    int32_t *type;
    float *score;
    size_t n, cap;
    char merges[N_MERGES][2 * MAX_PIECE];
    size_t n_merges;
};

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
    if (v->n == v->cap) return v->n - 1;
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
    static uint16_t count[MAX_LEARNT][MAX_LEARNT];
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

/* Tokens that no text is made of. */
static void fill_up(struct vocab *v, size_t n) {
    char text[MAX_PIECE];
    while (v->n < n) {
        snprintf(text, sizeof text, "<|unused_%zu|>", v->n);
        add_token(v, text, 5, -1e6f);
    }
}

static struct vocab *new_vocab(size_t cap) {
    struct vocab *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    v->cap = cap;
    v->text = calloc(cap, sizeof *v->text);
    v->type = calloc(cap, sizeof *v->type);
    v->score = calloc(cap, sizeof *v->score);
    return v;
}

static void free_vocab(struct vocab *v) {
    if (!v) return;
    free(v->text);
    free(v->type);
    free(v->score);
    free(v);
}

strata_err mk_vocab_builtin(struct mk_model *m, struct strata_errmsg *em) {
    uint32_t wanted = m->opt.vocab_size;
    struct vocab *v = new_vocab(wanted > MAX_LEARNT ? wanted : MAX_LEARNT);
    if (!v || !v->text || !v->type || !v->score) {
        free_vocab(v);
        return err_nomem(em, "the vocabulary");
    }
    bool spm = m->opt.spm;
    struct gguf_writer *w = m->w;
    spm ? build_spm(v) : build_bpe(v);
    fill_up(v, wanted);
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
    free_vocab(v);
    return rc;
}

strata_err mk_vocab_copy(struct mk_model *m, struct strata_errmsg *em) {
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

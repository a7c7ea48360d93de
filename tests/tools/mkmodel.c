/*
 * Makes a small GGUF model file with random weights, of any architecture in its table: the same options give the same
 * bytes on every machine.
 *
 * For tests, benches, and demos without a network. Its text is nonsense, its shapes, metadata and tokenizer are
 * those of a real model. Only exact arithmetic (+, *, /, sqrt) is used, so no mathematics library can change a bit.
 * The parts are in mkmodel/.
 */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a fused multiply-add would round differently; gcc leaves them out with -std=c17 */
#endif

#include "mkmodel/mk.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "mkmodel: writes a small GGUF model file with random weights\n"
    "\n"
    "usage: mkmodel --out FILE [OPTIONS]\n"
    "\n"
    "  --out FILE          the file to write\n"
    "  --arch NAME         architecture: see the table in tests/tools/mkmodel/mk_archs.c (llama)\n"
    "  --seed N            seed of the weights (1)\n"
    "  --layers N          transformer blocks, without those that predict further tokens (4)\n"
    "  --embd N            embedding length (64)\n"
    "  --heads N           attention heads (4)\n"
    "  --kv-heads N        key/value heads; must divide the heads (2)\n"
    "  --head-dim N        size of a head (embedding length / heads)\n"
    "  --n-rot N           dimensions of a head that are rotated (the architecture's, mostly the head's size)\n"
    "  --ff N              feed-forward length (192)\n"
    "  --experts N         experts in a block (0, or what the architecture is usual with)\n"
    "  --experts-used N    of these, used for one token\n"
    "  --expert-ff N       feed-forward length of an expert\n"
    "  --shared N          experts that every token uses\n"
    "  --dense-layers N    first blocks without experts\n"
    "  --nextn N           blocks that predict further tokens\n"
    "  --groups N          groups of experts\n"
    "  --groups-used N     of these, used for one token\n"
    "  --q-rank N          size that queries are compressed to (deepseek2)\n"
    "  --kv-rank N         size that keys and values are compressed to (deepseek2)\n"
    "  --variant WORDS     what else the architecture can vary, comma-separated: see mk_archs.c\n"
    "  --window N          sliding window\n"
    "  --ctx N             context length to declare (2048)\n"
    "  --rope T[:F[:N]]    scaling of the rotation: linear, yarn or longrope, its factor, the original context length\n"
    "  --type T            type of the matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q4_K, q6_K, mxfp4 (f32)\n"
    "  --quantize T[,P=T]  quantize the F32 model's matrices by ggml's functions to any type T; those whose name holds "
    "P\n"
    "                      to another; rows that are no whole blocks stay\n"
    "  --vocab-mode M      bpe or spm: the built-in vocabulary (bpe)\n"
    "  --vocab FILE        take the vocabulary (all tokenizer.* keys) of this GGUF file instead\n"
    "  --tied              no output.weight: the token embeddings are the output head\n"
    "  --bias              biases on q, k, v, attention output and feed-forward\n"
    "  --scales            a per-tensor factor beside every product\n"
    "  --rope-freqs        write rope_freqs.weight\n"
    "  --embd-type T       type of the embeddings and the output, as --type\n"
    "  --vocab-size N      fill the built-in vocabulary up to N tokens\n"
    "  --repeat            matrices repeat their first rows: gigabytes in seconds, for speed tests\n"
    "  --alignment N       alignment of tensor data, a power of two (32)\n"
    "  --name TEXT         general.name (\"Strata Tiny\")\n"
    "\n"
    "example: mkmodel --out tiny.gguf --layers 6 --type q8_0 --tied\n"
    "         mkmodel --out moe.gguf --arch qwen3moe --experts 16 --experts-used 4\n";

/* ---- the file ---- */

static uint32_t n_rot(const struct mk_options *o) {
    return o->n_rot ? o->n_rot : o->head_dim ? o->head_dim : o->embd / o->heads;
}

/* Factors from 1 (short waves) to `top` (long ones), as Llama 3 has them. */
static strata_err add_factors(struct mk_model *m, const char *name, double top, struct strata_errmsg *em) {
    uint64_t n = n_rot(&m->opt) / 2;
    strata_err rc = mk_vector(m, MK_NO_LAYER, name, n, 1, 0, em);
    float *f = m->payload[m->n - 1];
    for (uint64_t i = 0; i < n && !rc; i++) f[i] = (float)(n > 1 ? 1 + (top - 1) * (double)i / (double)(n - 1) : 1);
    return rc;
}

static strata_err add_tensors(struct mk_model *m, const struct mk_arch *arch, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    double dev = 1 / sqrt((double)o->embd);
    uint32_t ends = o->embd_type < 0 ? o->type : (uint32_t)o->embd_type;
    strata_err rc = mk_matrix(m, MK_NO_LAYER, "token_embd.weight", ends, o->embd, m->n_vocab, 1, dev, em);
    if (!rc && o->rope_freqs) rc = add_factors(m, "rope_freqs.weight", 8, em);
    if (!rc && o->rope && strncmp(o->rope, "longrope", 8) == 0) {
        rc = add_factors(m, "rope_factors_long.weight", 16, em);
        if (!rc) rc = add_factors(m, "rope_factors_short.weight", 2, em);
    }
    for (uint32_t i = 0; i < o->layers + o->nextn && !rc; i++) rc = arch->block(m, (int)i, em);
    const char *output_norm = arch->output_norm ? arch->output_norm : "output_norm.weight";
    if (!rc) rc = mk_norm(m, MK_NO_LAYER, output_norm, o->embd, em);
    if (!rc && !o->tied) rc = mk_matrix(m, MK_NO_LAYER, "output.weight", ends, o->embd, m->n_vocab, 1, dev, em);
    return rc;
}

/* "yarn:4:64" */
static strata_err add_scaling(struct mk_model *m, struct strata_errmsg *em) {
    char type[16];
    float factor = 0;
    unsigned n = 0;
    if (!m->opt.rope) return STRATA_OK;
    if (sscanf(m->opt.rope, "%15[a-z]:%f:%u", type, &factor, &n) < 1)
        return err_set(em, STRATA_EINVAL, "--rope %s: see --help", m->opt.rope);
    strata_err rc = mk_str(m, "rope.scaling.type", type, em);
    if (!rc && factor > 0) rc = mk_f32(m, "rope.scaling.factor", factor, em);
    if (!rc && n > 0) rc = mk_u32(m, "rope.scaling.original_context_length", n, em);
    return rc;
}

static strata_err add_metadata(struct mk_model *m, const struct mk_arch *arch, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    struct gguf_writer *w = m->w;
    strata_err rc = gguf_writer_add_str(w, "general.architecture", o->arch, em);
    if (!rc) rc = gguf_writer_add_str(w, "general.type", "model", em);
    if (!rc) rc = gguf_writer_add_str(w, "general.name", o->name, em);
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {
        {"block_count", o->layers + o->nextn},   {"context_length", o->ctx},
        {"embedding_length", o->embd},           {"feed_forward_length", o->ff},
        {"attention.head_count", o->heads},      {"attention.head_count_kv", arch->hybrid ? 0 : o->kv_heads},
        {"rope.dimension_count", n_rot(o)},      {"attention.key_length", o->head_dim},
        {"attention.value_length", o->head_dim}, {"attention.sliding_window", o->window},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && !rc; i++)
        if (numbers[i].value) rc = mk_u32(m, numbers[i].name, numbers[i].value, em);
    if (!rc) rc = mk_f32(m, "rope.freq_base", 10000.0f, em);
    if (!rc) rc = mk_f32(m, "attention.layer_norm_rms_epsilon", 1e-5f, em);
    if (!rc) rc = add_scaling(m, em);
    if (!rc && arch->keys) rc = arch->keys(m, em);
    if (!rc) rc = o->vocab_file ? mk_vocab_copy(m, em) : mk_vocab_builtin(m, em);
    if (!rc) rc = mk_u32(m, "vocab_size", m->n_vocab, em);
    if (!rc) rc = gguf_writer_add_u32(w, "general.quantization_version", 2, em);
    return rc;
}

static strata_err write_model(struct mk_model *m, const struct mk_arch *arch, struct strata_errmsg *em) {
    uint8_t sha256[DIGEST_BYTES];
    uint64_t size;
    m->rng = m->opt.seed;
    strata_err rc = gguf_writer_new(m->opt.alignment, &m->w, em);
    if (!rc) rc = add_metadata(m, arch, em);
    if (!rc) rc = add_tensors(m, arch, em);
    if (!rc) rc = gguf_writer_to_file(m->w, m->opt.out, NULL, sha256, &size, em);
    gguf_writer_free(m->w);
    gguf_source_free(m->vocab);
    for (size_t i = 0; i < m->n; i++) free(m->payload[i]);
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

/* Options with a number: the option's code is 256 plus its place here. */
static const struct {
    const char *name;
    size_t field;
} numbers[] = {
#define FIELD(text, member)                                                                                            \
    { text, offsetof(struct mk_options, member) }
    FIELD("layers", layers),
    FIELD("embd", embd),
    FIELD("heads", heads),
    FIELD("kv-heads", kv_heads),
    FIELD("head-dim", head_dim),
    FIELD("n-rot", n_rot),
    FIELD("ff", ff),
    FIELD("experts", experts),
    FIELD("experts-used", experts_used),
    FIELD("expert-ff", expert_ff),
    FIELD("shared", shared),
    FIELD("dense-layers", dense_layers),
    FIELD("nextn", nextn),
    FIELD("groups", groups),
    FIELD("groups-used", groups_used),
    FIELD("q-rank", q_rank),
    FIELD("kv-rank", kv_rank),
    FIELD("window", window),
    FIELD("ctx", ctx),
    FIELD("alignment", alignment),
    FIELD("vocab-size", vocab_size),
#undef FIELD
};

enum { N_NUMBERS = sizeof numbers / sizeof numbers[0], FIRST_NUMBER = 256 };

static const struct option other_options[] = {
    {"out", 1, NULL, 'o'},        {"arch", 1, NULL, 'A'},      {"seed", 1, NULL, 's'},    {"type", 1, NULL, 't'},
    {"rope", 1, NULL, 'R'},       {"vocab", 1, NULL, 'v'},     {"tied", 0, NULL, 'T'},    {"vocab-mode", 1, NULL, 'm'},
    {"bias", 0, NULL, 'b'},       {"name", 1, NULL, 'n'},      {"variant", 1, NULL, 'V'}, {"scales", 0, NULL, 'S'},
    {"rope-freqs", 0, NULL, 'r'}, {"embd-type", 1, NULL, 'e'}, {"repeat", 0, NULL, 'p'},  {"help", 0, NULL, 'H'},
    {"quantize", 1, NULL, 'q'},
};

enum { N_OTHER = sizeof other_options / sizeof other_options[0] };

static bool set_option(struct mk_options *o, int opt) {
    uint64_t v;
    int type;
    switch (opt) {
    case 'o': o->out = optarg; return true;
    case 'A': o->arch = optarg; return true;
    case 's': return parse_number(optarg, UINT64_MAX, &o->seed);
    case 'R': o->rope = optarg; return true;
    case 'V': o->variant = optarg; return true;
    case 'v': o->vocab_file = optarg; return true;
    case 'n': o->name = optarg; return true;
    case 'q': o->quantize = optarg; return true;
    case 'T': o->tied = true; return true;
    case 'b': o->bias = true; return true;
    case 'S': o->scales = true; return true;
    case 'r': o->rope_freqs = true; return true;
    case 'p': o->repeat = true; return true;
    case 'e': o->embd_type = gguf_types_tensor_id(optarg); return o->embd_type >= 0;
    case 'm': o->spm = strcmp(optarg, "spm") == 0; return o->spm || strcmp(optarg, "bpe") == 0;
    case 't':
        type = gguf_types_tensor_id(optarg);
        if (type >= 0) o->type = (uint32_t)type;
        return type >= 0;
    default: break;
    }
    if (opt < FIRST_NUMBER || opt >= FIRST_NUMBER + N_NUMBERS || !parse_number(optarg, 1 << 24, &v) || v == 0)
        return false;
    *(uint32_t *)((char *)o + numbers[opt - FIRST_NUMBER].field) = (uint32_t)v;
    return true;
}

/* Returns -1 to go on, or the exit status. */
static int parse(int argc, char **argv, struct mk_options *o, const struct mk_arch **arch) {
    struct option all[N_OTHER + N_NUMBERS + 1] = {{NULL, 0, NULL, 0}};
    int opt;
    memcpy(all, other_options, sizeof other_options);
    for (int i = 0; i < N_NUMBERS; i++) all[N_OTHER + i] = (struct option){numbers[i].name, 1, NULL, FIRST_NUMBER + i};
    while ((opt = getopt_long(argc, argv, "", all, NULL)) != -1) {
        if (opt == 'H') {
            fputs(help, stdout);
            return 0;
        }
        if (opt == '?' || !set_option(o, opt)) {
            fprintf(stderr, "mkmodel: bad option or value; see --help\n");
            return 2;
        }
    }
    *arch = mk_arch_find(o->arch);
    if (!*arch) {
        fprintf(stderr, "mkmodel: --arch %s is not in the table; see --help\n", o->arch);
        return 2;
    }
    if ((*arch)->preset) (*arch)->preset(o);
    if (!o->out || optind != argc || (!o->head_dim && o->embd % o->heads) || o->heads % o->kv_heads || n_rot(o) % 2) {
        fprintf(stderr, "mkmodel: --out is needed, heads must divide embd unless --head-dim is given, kv-heads must "
                        "divide heads, rotated dimensions must be even; see --help\n");
        return 2;
    }
    return -1;
}

int main(int argc, char **argv) {
    static struct mk_model m = {.opt = {.name = "Strata Tiny",
                                        .arch = "llama",
                                        .variant = "",
                                        .seed = 1,
                                        .layers = 4,
                                        .embd = 64,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .ff = 192,
                                        .ctx = 2048,
                                        .alignment = 32,
                                        .embd_type = -1}};
    const struct mk_arch *arch;
    struct strata_errmsg em;
    int status = parse(argc, argv, &m.opt, &arch);
    if (status >= 0) return status;
    if (write_model(&m, arch, &em)) {
        fprintf(stderr, "mkmodel: %s\n", em.text);
        return 1;
    }
    return 0;
}

/* Pre-tokenizers over PCRE2. See vocab_split.h. Owns the table of patterns and the compiled code. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/vocab_split.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { PASSES_MAX = 4 };

/*
 * Character classes. White space is written out because PCRE2 counts U+180E as such and the tokenizers do not. The
 * others are PCRE2's general categories with what Unicode 15.0 and 15.1 added, so that the cut is the same with a PCRE2
 * that knows Unicode 14 only.
 */
#define SPACE "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define LETTER                                                                                                         \
    "\\p{L}\\x{1123F}\\x{11240}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}"    \
    "\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{2B739}"                    \
    "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"
#define MARK                                                                                                           \
    "\\p{M}\\x{CF3}\\x{ECE}\\x{10EFD}-\\x{10EFF}\\x{11241}\\x{11F00}\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}"         \
    "\\x{11F3E}-\\x{11F42}\\x{13440}\\x{13447}-\\x{13455}\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}"
#define NUMBER "\\p{N}\\x{11F50}-\\x{11F59}\\x{1D2C0}-\\x{1D2D3}\\x{1E4F0}-\\x{1E4F9}"
#define PUNCT "\\p{P}\\x{11B00}-\\x{11B09}\\x{11F43}-\\x{11F4F}"
#define SYMBOL                                                                                                         \
    "\\p{S}\\x{2FFC}-\\x{2FFF}\\x{31EF}\\x{1F6DC}\\x{1F774}-\\x{1F776}\\x{1F77B}-\\x{1F77F}\\x{1F7D9}"                 \
    "\\x{1FA75}-\\x{1FA77}\\x{1FA87}\\x{1FA88}\\x{1FAAD}-\\x{1FAAF}\\x{1FABB}-\\x{1FABD}\\x{1FABF}\\x{1FACE}\\x{"      \
    "1FACF}"                                                                                                           \
    "\\x{1FADA}\\x{1FADB}\\x{1FAE8}\\x{1FAF7}\\x{1FAF8}"

#define CONTRACTION "'s|'t|'re|'ve|'m|'ll|'d"
#define CONTRACTION_ANY_CASE "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
/* A run of white space that ends before a line break, then one that leaves its last character to the next word. */
#define SPACE_RUNS "[" SPACE "]*[\\r\\n]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

#define GPT2 CONTRACTION "| ?[" LETTER "]+| ?[" NUMBER "]+| ?[^" SPACE LETTER NUMBER "]+|[" SPACE "]+(?![^" SPACE "])"
/* `word` and `other` are what words and the rest are made of. */
#define CL100K(word, digits, other)                                                                                    \
    CONTRACTION_ANY_CASE                                                                                               \
    "|[^\\r\\n" LETTER NUMBER "]?[" word "]+|[" NUMBER "]" digits "| ?[^" SPACE other "]+[\\r\\n]*|" SPACE_RUNS
#define LLAMA3 CL100K(LETTER, "{1,3}", LETTER NUMBER)
#define QWEN2 CL100K(LETTER, "", LETTER NUMBER)
#define QWEN35 CL100K(LETTER MARK, "", LETTER MARK NUMBER)
#define DEEPSEEK_CJK "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define DEEPSEEK_WORDS                                                                                                 \
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n" LETTER PUNCT SYMBOL "]?[" LETTER MARK "]+"                                    \
    "| ?[" PUNCT SYMBOL "]+[\\r\\n]*|" SPACE_RUNS

static const struct family {
    const char *names; /* space-separated, with one before and after */
    const char *pattern[PASSES_MAX];
    struct vocab_split_traits traits;
} families[] = {
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     {LLAMA3},
     {.ignore_merges = true, .add_bos = true}},
    {" glm4 chatglm-bpe dbrx smaug-bpe ", {LLAMA3}, {0}},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2 ", {QWEN2}, {0}},
    {" qwen35 ", {QWEN35}, {0}},
    {" gpt-2 phi-2 gigachat a.x-4.0 mellum mpt olmo jais trillion granite-docling exaone4 ", {GPT2}, {0}},
    {" smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ", {"[" NUMBER "]", GPT2}, {0}},
    {" deepseek-v3 hunyuan-dense joyai-llm hy_v4 ", {"[" NUMBER "]{1,3}", DEEPSEEK_CJK, DEEPSEEK_WORDS}, {0}},
    {" default ", {"[" PUNCT "$+<=>^~|]+", GPT2, "[" NUMBER "]+", "[0-9][0-9][0-9]"}, {0}},
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

struct vocab_split {
    pcre2_code *code[PASSES_MAX];
    int passes;
};

void vocab_split_work_deinit(struct vocab_split_work *w) {
    free(w->ends.end);
    free(w->spare.end);
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    *w = (struct vocab_split_work){0};
}

static const struct family *find_family(const char *name, size_t len) {
    if (len == 0) return NULL;
    for (int i = 0; i < N_FAMILIES; i++) {
        const char *at = families[i].names;
        const char *end;
        for (at++; (end = strchr(at, ' ')) != NULL; at = end + 1) {
            if ((size_t)(end - at) == len && memcmp(at, name, len) == 0) return &families[i];
        }
    }
    return NULL;
}

static strata_err unknown_name(const char *name, size_t len, struct strata_errmsg *em) {
    char list[512] = "";
    size_t used = 0;
    for (int i = 0; i < N_FAMILIES; i++) {
        size_t n = strlen(families[i].names) - 1;
        if (used + n >= sizeof list) break;
        memcpy(list + used, families[i].names, n);
        used += n;
        list[used] = '\0';
    }
    return err_set(em, STRATA_EUNSUPPORTED, "the pre-tokenizer '%.*s' is not supported; known are:%s",
                   len > 64 ? 64 : (int)len, name, list);
}

static strata_err pcre_error(struct strata_errmsg *em, const char *doing, int code) {
    PCRE2_UCHAR text[160];
    if (pcre2_get_error_message(code, text, sizeof text) < 0) text[0] = '\0';
    strata_err rc = code == PCRE2_ERROR_NOMEMORY                                      ? STRATA_ENOMEM
                    : code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_HEAPLIMIT ? STRATA_ELIMIT
                                                                                      : STRATA_EINTERNAL;
    return err_set(em, rc, "%s with PCRE2 failed: %s (%d)", doing, (const char *)text, code);
}

strata_err vocab_split_new(const char *name, size_t len, struct vocab_split **out, struct vocab_split_traits *traits,
                           struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    struct vocab_split *s = NULL;
    const struct family *f = find_family(name, len);
    if (!f) {
        rc = unknown_name(name, len, em);
        goto out;
    }
    s = calloc(1, sizeof *s);
    if (!s) {
        rc = err_nomem(em, "a pre-tokenizer");
        goto out;
    }
    for (int i = 0; i < PASSES_MAX && f->pattern[i]; i++) {
        int code;
        PCRE2_SIZE at;
        s->code[i] =
            pcre2_compile((PCRE2_SPTR)f->pattern[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        if (!s->code[i]) {
            rc = pcre_error(em, "compiling a pre-tokenizer's pattern", code);
            goto out;
        }
        s->passes = i + 1;
        /* Without a JIT (unsupported processor, no executable memory) the interpreter gives the same matches. */
        (void)pcre2_jit_compile(s->code[i], PCRE2_JIT_COMPLETE);
    }
    *traits = f->traits;
    *out = s;
    s = NULL;
out:
    vocab_split_free(s);
    return rc;
}

void vocab_split_free(struct vocab_split *s) {
    if (!s) return;
    for (int i = 0; i < s->passes; i++) pcre2_code_free(s->code[i]);
    free(s);
}

static strata_err add_end(struct vocab_split_ends *e, size_t end, struct strata_errmsg *em) {
    if (e->len == e->cap) {
        size_t cap = e->cap ? e->cap * 2 : 256;
        uint32_t *p = realloc(e->end, cap * sizeof *p);
        if (!p) return err_nomem(em, "the pieces of a text");
        e->end = p;
        e->cap = cap;
    }
    e->end[e->len++] = (uint32_t)end;
    return STRATA_OK;
}

/* Cuts one piece, [start, end) of text, with one pattern. */
static strata_err split_piece(const pcre2_code *code, const char *text, size_t start, size_t end,
                              struct vocab_split_work *w, struct strata_errmsg *em) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text + start;
    size_t len = end - start, at = 0;
    while (at < len) {
        int n = pcre2_match(code, subject, len, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, w->match, w->context);
        if (n == PCRE2_ERROR_NOMATCH) break;
        if (n < 0) return pcre_error(em, "cutting text into words", n);
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(w->match);
        if (range[0] < at || range[1] <= range[0] || range[1] > len) {
            return err_set(em, STRATA_EINTERNAL, "PCRE2 gave a match outside the text");
        }
        strata_err rc = range[0] > at ? add_end(&w->ends, start + range[0], em) : STRATA_OK;
        if (rc == STRATA_OK) rc = add_end(&w->ends, start + range[1], em);
        if (rc != STRATA_OK) return rc;
        at = range[1];
    }
    return at < len ? add_end(&w->ends, end, em) : STRATA_OK;
}

static strata_err prepare(const struct vocab_split *s, size_t len, struct vocab_split_work *w,
                          struct strata_errmsg *em) {
    if (len > VOCAB_SPLIT_MAX) {
        return err_set(em, STRATA_ELIMIT, "a text of %zu bytes is too long to tokenize; the limit is %zu", len,
                       VOCAB_SPLIT_MAX);
    }
    if (!w->match) w->match = pcre2_match_data_create_from_pattern(s->code[0], NULL);
    if (!w->context) w->context = pcre2_match_context_create(NULL);
    if (!w->match || !w->context) return err_nomem(em, "matching");
    /* The engine counts a few steps per character of the longest run; far more means that a pattern went wrong. */
    uint64_t limit = 1000000 + 16 * (uint64_t)len;
    pcre2_set_match_limit(w->context, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
    return STRATA_OK;
}

strata_err vocab_split_run(const struct vocab_split *s, const char *text, size_t len, struct vocab_split_work *w,
                           struct strata_errmsg *em) {
    w->ends.len = 0;
    strata_err rc = prepare(s, len, w, em);
    if (rc == STRATA_OK && len > 0) rc = add_end(&w->ends, len, em);
    for (int pass = 0; pass < s->passes && rc == STRATA_OK; pass++) {
        struct vocab_split_ends before = w->ends;
        w->ends = w->spare;
        w->spare = before;
        w->ends.len = 0;
        size_t start = 0;
        for (size_t i = 0; i < before.len && rc == STRATA_OK; i++) {
            rc = split_piece(s->code[pass], text, start, before.end[i], w, em);
            start = before.end[i];
        }
    }
    return rc;
}

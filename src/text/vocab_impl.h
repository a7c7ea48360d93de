/* The inside of a vocabulary, shared by the files vocab*.c alone. */
#ifndef TEXT_VOCAB_IMPL_H
#define TEXT_VOCAB_IMPL_H

#include "text/vocab.h"
#include "text/vocab_queue.h"
#include "text/vocab_split.h"
#include "text/vocab_table.h"

#define VOCAB_SPACE "\xE2\x96\x81" /* U+2581, which stands for a space in SentencePiece vocabularies */

enum {
    VOCAB_SPACE_LEN = 3,
    VOCAB_TOKENS_MAX = 1 << 24,
    VOCAB_MERGES_MAX = 1 << 25,
    VOCAB_TOKEN_BYTES_MAX = 65535,
    VOCAB_SPECIAL_BYTES_MAX = 1024
};
#define VOCAB_TEXT_MAX ((size_t)1 << 28) /* bytes of one text; three times that still fits the 32-bit offsets */

enum vocab_kind { VOCAB_KIND_BPE, VOCAB_KIND_SPM };

/* As numbered in tokenizer.ggml.token_type. */
enum vocab_type {
    VOCAB_TYPE_NORMAL = 1,
    VOCAB_TYPE_UNKNOWN = 2,
    VOCAB_TYPE_CONTROL = 3,
    VOCAB_TYPE_USER = 4,
    VOCAB_TYPE_UNUSED = 5,
    VOCAB_TYPE_BYTE = 6
};

struct vocab_token {
    const char *text; /* borrowed from the reader, not NUL-terminated */
    uint32_t len;
    uint8_t type;
    bool guarded;        /* a conversation's text never becomes it */
    bool lstrip, rstrip; /* white space before, after the token belongs to it */
    float score;
};

/* A trie over the texts that are cut out before anything else. Node 0 is unused, so that 0 means "none". */
struct vocab_trie_node {
    uint32_t child, sibling;
    int32_t id; /* the token that ends here, or -1 */
    uint8_t byte;
};

struct vocab_trie {
    struct vocab_trie_node *node;
    uint32_t len, cap;
    uint32_t root[256]; /* first nodes by first byte */
};

struct vocab {
    enum vocab_kind kind;
    struct vocab_token *token;
    uint32_t n;
    uint32_t max_len; /* bytes of the longest token */
    struct vocab_text_table by_text;
    int32_t byte_id[256]; /* BPE: the token of one byte; SPM: the byte token. -1 when there is none */
    int32_t bos, eos, unk;
    bool add_bos, add_eos, add_space_prefix, ignore_merges;
    bool patterns;      /* VOCAB_PATTERNS */
    const char *lstrip; /* the token that swallows the white space before it, or NULL */
    int32_t *eog;
    size_t n_eog;
    struct vocab_trie all;  /* control, unknown and user-defined tokens */
    struct vocab_trie user; /* user-defined tokens alone: what may match in a user's own text */
    struct vocab_merge_table merges;
    struct vocab_split *split;
    uint8_t *joins; /* SPM: whether some token has these two characters side by side; see vocab_spm.c */
};

/* Buffers of one vocab_encode call. */
struct vocab_work {
    struct vocab_split_work split;
    struct vocab_queue queue;
    int32_t *id;   /* of the symbol that begins at a byte */
    uint16_t *len; /* of the symbol that begins or ends at a byte */
    size_t symbols;
    struct buf text;  /* a rewritten copy of a fragment */
    struct buf piece; /* a piece, spelled as tokens are in the file */
};

strata_err vocab_ids_add(struct vocab_ids *ids, int32_t id, struct strata_errmsg *em);
/* Makes w->id and w->len hold n entries. */
strata_err vocab_work_symbols(struct vocab_work *w, size_t n, struct strata_errmsg *em);

/* Whether a token may come out of a user's text without having been asked for: not control, unknown or byte tokens. */
static inline bool vocab_mergeable(const struct vocab_token *t) {
    return !t->guarded && t->type != VOCAB_TYPE_BYTE;
}

/* vocab_load.c: fills the kind-independent part, then the tables of the kind. */
strata_err vocab_load(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em);
/* vocab_special.c: ids, token types by text, end-of-generation set. Before the tables of the kind, which need the
 * types. */
strata_err vocab_special_load(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em);
/* What is added to texts, and the tries: after the kind has set its defaults. */
strata_err vocab_special_finish(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em);

/* vocab_partition.c */
strata_err vocab_trie_add(struct vocab_trie *t, const char *text, size_t len, int32_t id, struct strata_errmsg *em);
void vocab_trie_deinit(struct vocab_trie *t);
/* A part of a text: one special token (id >= 0), or bytes to encode. */
struct vocab_part {
    size_t start, len;
    int32_t id;
};
struct vocab_parts {
    struct vocab_part *part;
    size_t len, cap;
};
void vocab_parts_deinit(struct vocab_parts *p);
/* Cuts text at the tokens of the trie: longer tokens first, then from the left; guarded ones only where they touch none
 * of the parts of `own`, which may be NULL. Parts come in order. */
strata_err vocab_partition(const struct vocab *v, const struct vocab_trie *t, const char *text, size_t len,
                           const struct text_spans *own, struct vocab_parts *out, struct strata_errmsg *em);

/* Bytes of the symbol at s: what its first byte announces, valid or not, as far as there are bytes. */
static inline uint32_t vocab_symbol_len(const char *s, size_t left) {
    static const uint8_t by_high_bits[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
    size_t n = by_high_bits[(unsigned char)s[0] >> 4];
    return (uint32_t)(n < left ? n : left);
}

/* vocab_merge.c: the ids of a piece of at most VOCAB_TEXT_MAX * 3 bytes. */
strata_err vocab_merge(const struct vocab *v, const char *text, size_t len, struct vocab_work *w, struct vocab_ids *out,
                       struct strata_errmsg *em);

/* vocab_bpe.c */
strata_err vocab_bpe_load(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em);
strata_err vocab_bpe_encode(const struct vocab *v, const char *text, size_t len, struct vocab_work *w,
                            struct vocab_ids *out, struct strata_errmsg *em);
strata_err vocab_bpe_piece(const struct vocab *v, const struct vocab_token *t, struct buf *out,
                           struct strata_errmsg *em);

/* vocab_spm.c */
strata_err vocab_spm_load(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em);
/* `prefix`: put the space before the fragment that the vocabulary asks for. */
strata_err vocab_spm_encode(const struct vocab *v, const char *text, size_t len, bool prefix, struct vocab_work *w,
                            struct vocab_ids *out, struct strata_errmsg *em);
/* Bytes that are no token, as byte tokens. */
strata_err vocab_spm_bytes(const struct vocab *v, const char *s, size_t n, struct vocab_ids *out,
                           struct strata_errmsg *em);
strata_err vocab_spm_piece(const struct vocab *v, const struct vocab_token *t, struct buf *out,
                           struct strata_errmsg *em);

#endif

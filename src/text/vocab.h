/*
 * A model's vocabulary: text to token ids and back, exactly as the model was trained with.
 *
 * Built from GGUF metadata (tokenizer.ggml.*), borrowed: the reader must outlive the vocabulary. Kinds: byte-level BPE
 * (`gpt2`) with the pre-tokenizers that vocab_new lists in its error, and SentencePiece BPE (`llama`). An unknown
 * kind or pre-tokenizer is an error that names it, never a silent default. Read-only after vocab_new, so one
 * vocabulary may serve several threads.
 */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "base/buf.h"
#include "gguf/gguf_reader.h"
#include "text/spans.h"

#include <stdbool.h>
#include <stdint.h>

struct vocab;

strata_err vocab_new(const struct gguf_reader *meta, struct vocab **out, struct strata_errmsg *em);
enum {
    VOCAB_PATTERNS = 1, /* cut text with the patterns themselves even where there is a faster way: for tests */
};
strata_err vocab_new_with(const struct gguf_reader *meta, unsigned how, struct vocab **out, struct strata_errmsg *em);
void vocab_free(struct vocab *v);

uint32_t vocab_size(const struct vocab *v);
/* Special ids, or -1 when the model has none. */
int32_t vocab_bos(const struct vocab *v);
int32_t vocab_eos(const struct vocab *v);
/* Whether a token ends generation (eos, eot, eom and their relatives). */
bool vocab_is_eog(const struct vocab *v, int32_t id);
/* All ids for which vocab_is_eog holds, as a view. */
const int32_t *vocab_eog(const struct vocab *v, size_t *count);

/* Whether a token is a control or unknown token: it has no text of its own. False for an id out of range. */
bool vocab_is_control(const struct vocab *v, int32_t id);
/* Whether encoding puts a space before the first word, which decoding then takes away. */
bool vocab_add_space_prefix(const struct vocab *v);

struct vocab_ids {
    int32_t *id; /* owned; free with vocab_ids_deinit */
    size_t len;
    size_t cap;
};
void vocab_ids_deinit(struct vocab_ids *ids);

enum {
    VOCAB_ADD_SPECIAL = 1,   /* BOS / EOS as the model's metadata says */
    VOCAB_PARSE_SPECIAL = 2, /* text of control tokens becomes these tokens (templates); never for a user's own text */
};

/*
 * Appends the ids of text (any bytes; what is not UTF-8 is encoded byte by byte, and so survives decoding). Time grows
 * with len, up to a logarithm. On failure out is as it was. An error when text is longer than 256 MiB.
 */
strata_err vocab_encode(const struct vocab *v, const char *text, size_t len, unsigned flags, struct vocab_ids *out,
                        struct strata_errmsg *em);

/*
 * The same for a prompt of which the parts in `own` came from a conversation (chat_template_render_marked): with
 * VOCAB_PARSE_SPECIAL, text becomes a control token only where no byte of it stands in such a part. User-defined tokens
 * match everywhere. own may be NULL: no such parts.
 */
strata_err vocab_encode_marked(const struct vocab *v, const char *text, size_t len, const struct text_spans *own,
                               unsigned flags, struct vocab_ids *out, struct strata_errmsg *em);
/* Whether a token is one that text of a conversation must never become: control and unknown tokens by the file or by
 * their text, those included that are shown and matched as text. False for an id out of range. */
bool vocab_is_guarded(const struct vocab *v, int32_t id);

/* Appends the bytes of one token: maybe part of a character. Control tokens give nothing unless `special`. */
strata_err vocab_piece(const struct vocab *v, int32_t id, bool special, struct buf *out, struct strata_errmsg *em);

#endif

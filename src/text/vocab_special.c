/*
 * Special tokens: which ids the metadata names, which tokens are control tokens in truth whatever their type says,
 * which end a generation, and the tries of texts that are cut out of a prompt first.
 *
 * Model files are often wrong here, so tokens are also known by their text; the lists below are those texts.
 */
#include "text/vocab_impl.h"

#include <stdlib.h>
#include <string.h>

#define DEEPSEEK(word) "<\xEF\xBD\x9C" word "\xEF\xBD\x9C>"

static int32_t find(const struct vocab *v, const char *text) {
    return vocab_text_find(&v->by_text, text, strlen(text));
}

/* A token id from the metadata into *id, which is left alone when the key is absent. */
static strata_err get_id(const struct vocab *v, const struct gguf_reader *meta, const char *key, int32_t *id,
                         struct strata_errmsg *em) {
    if (!gguf_reader_find_kv(meta, key)) return STRATA_OK;
    uint32_t value = 0;
    strata_err rc = gguf_reader_get_u32(meta, key, true, &value, em);
    if (rc != STRATA_OK) return rc;
    if (value == UINT32_MAX) { /* -1 as some converters write it: none */
        *id = -1;
        return STRATA_OK;
    }
    if (value >= v->n) {
        return err_set(em, STRATA_EFORMAT, "%s is %u, but the vocabulary has %u tokens", key, value, v->n);
    }
    *id = (int32_t)value;
    return STRATA_OK;
}

static strata_err add_eog(struct vocab *v, int32_t id, struct strata_errmsg *em) {
    if (id < 0 || vocab_is_eog(v, id)) return STRATA_OK;
    int32_t *p = realloc(v->eog, (v->n_eog + 1) * sizeof *p);
    if (!p) return err_nomem(em, "the end-of-generation tokens");
    v->eog = p;
    v->eog[v->n_eog++] = id;
    return STRATA_OK;
}

static void drop_eog(struct vocab *v, int32_t id) {
    for (size_t i = 0; i < v->n_eog; i++) {
        if (v->eog[i] != id) continue;
        v->eog[i] = v->eog[--v->n_eog];
        return;
    }
}

/*
 * Fill-in-the-middle tokens: for each role a key that names it, then texts that are known for it. The one found is a
 * control token. Some of the roles end a generation.
 */
static const struct fim_role {
    const char *key, *old_key;
    bool ends;
    const char *text[9];
} fim_roles[] = {
    {"tokenizer.ggml.fim_pre_token_id",
     "tokenizer.ggml.prefix_token_id",
     false,
     {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>",
      DEEPSEEK("fim\xE2\x96\x81"
               "begin"),
      "<PRE>", "\xE2\x96\x81<PRE>", "<|code_prefix|>", "<|prefix|>"}},
    {"tokenizer.ggml.fim_suf_token_id",
     "tokenizer.ggml.suffix_token_id",
     false,
     {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", DEEPSEEK("fim\xE2\x96\x81hole"), "<SUF>", "\xE2\x96\x81<SUF>",
      "<|code_suffix|>", "<|suffix|>"}},
    {"tokenizer.ggml.fim_mid_token_id",
     "tokenizer.ggml.middle_token_id",
     false,
     {"<|fim_middle|>", "<fim-middle>", "<fim_middle>",
      DEEPSEEK("fim\xE2\x96\x81"
               "end"),
      "<MID>", "\xE2\x96\x81<MID>", "<|code_middle|>", "<|middle|>"}},
    {"tokenizer.ggml.fim_pad_token_id", NULL, true, {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
    {"tokenizer.ggml.fim_rep_token_id",
     NULL,
     true,
     {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
    {"tokenizer.ggml.fim_sep_token_id", NULL, true, {"<|file_sep|>"}},
};

static const char *const ending_texts[] = {"<|eot_id|>",
                                           "<|im_end|>",
                                           "<|end|>",
                                           "<|return|>",
                                           "<|call|>",
                                           "<|flush|>",
                                           "<|calls|>",
                                           "<end_of_turn>",
                                           "<|endoftext|>",
                                           "</s>",
                                           "<|eom_id|>",
                                           "<EOT>",
                                           "_<EOT>",
                                           "[EOT]",
                                           "[EOS]",
                                           "<|end_of_text|>",
                                           "<end_of_utterance>",
                                           "<eos>",
                                           "<turn|>",
                                           "<|tool_response>",
                                           DEEPSEEK("end\xE2\x96\x81of\xE2\x96\x81sentence"),
                                           "[e~["};

/* Tokens of the harmony format that are shown and matched as text. */
static const char *const shown_texts[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};

static strata_err load_fim(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em) {
    for (size_t i = 0; i < sizeof fim_roles / sizeof fim_roles[0]; i++) {
        const struct fim_role *r = &fim_roles[i];
        int32_t id = -1;
        strata_err rc = get_id(v, meta, r->key, &id, em);
        if (rc == STRATA_OK && r->old_key) rc = get_id(v, meta, r->old_key, &id, em);
        if (rc != STRATA_OK) return rc;
        for (int k = 0; id < 0 && k < 9 && r->text[k]; k++) {
            id = find(v, r->text[k]);
            if (id >= 0) v->token[id].type = VOCAB_TYPE_CONTROL;
        }
        if (r->ends) rc = add_eog(v, id, em);
        if (rc != STRATA_OK) return rc;
    }
    return STRATA_OK;
}

static bool ends(const struct vocab *v, const char *text) {
    int32_t id = find(v, text);
    return id >= 0 && vocab_is_eog(v, id);
}

static strata_err load_eog(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em) {
    int32_t eot = -1, eom = -1;
    strata_err rc = get_id(v, meta, "tokenizer.ggml.eot_token_id", &eot, em);
    if (rc == STRATA_OK) rc = get_id(v, meta, "tokenizer.ggml.eom_token_id", &eom, em);
    if (rc == STRATA_OK) rc = load_fim(v, meta, em);
    for (size_t i = 0; i < sizeof ending_texts / sizeof ending_texts[0] && rc == STRATA_OK; i++) {
        int32_t id = find(v, ending_texts[i]);
        if (id < 0) continue;
        v->token[id].type = VOCAB_TYPE_CONTROL;
        rc = add_eog(v, id, em);
    }
    if (rc != STRATA_OK) return rc;
    for (size_t i = 0; i < sizeof shown_texts / sizeof shown_texts[0]; i++) {
        int32_t id = find(v, shown_texts[i]);
        if (id >= 0) v->token[id].type = VOCAB_TYPE_USER;
    }
    rc = add_eog(v, v->eos, em);
    if (rc == STRATA_OK) rc = add_eog(v, eot, em);
    if (rc == STRATA_OK) rc = add_eog(v, eom, em);
    if (rc != STRATA_OK) return rc;
    /* Formats in which a token of the list ends only a part of the answer. */
    bool call = ends(v, "<|call|>") || ends(v, "<|calls|>");
    if (call && (ends(v, "<|return|>") || ends(v, "<|flush|>")) && ends(v, "<|end|>")) {
        int32_t id = find(v, "<|end|>");
        drop_eog(v, id);
        v->token[id].type = VOCAB_TYPE_USER;
    }
    if (ends(v, "<|tool_response>") && ends(v, "</s>")) {
        int32_t id = find(v, "</s>");
        drop_eog(v, id);
        v->token[id].type = VOCAB_TYPE_NORMAL;
    }
    return STRATA_OK;
}

static bool name_contains(const struct gguf_str *name, const char *what) {
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= name->len; i++) {
        size_t k = 0;
        while (k < n && (name->data[i + k] | 0x20) == what[k]) k++;
        if (k == n) return true;
    }
    return false;
}

/* Embedding models whose mask token swallows the white space before it: their pre-tokenizers tell. */
static void load_lstrip(struct vocab *v) {
    int32_t id = v->lstrip ? find(v, v->lstrip) : -1;
    if (id >= 0) v->token[id].lstrip = true;
}

/* Phi-3's special tokens swallow the white space after them; the file does not say so, only the model's name does. */
static strata_err load_rstrip(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em) {
    struct gguf_str name = {0};
    strata_err rc = gguf_reader_get_str(meta, "general.name", false, &name, em);
    if (rc != STRATA_OK) return rc;
    if (!name_contains(&name, "phi-3") && !name_contains(&name, "phi3")) return STRATA_OK;
    for (uint32_t i = 0; i < v->n; i++) {
        uint8_t t = v->token[i].type;
        v->token[i].rstrip = t == VOCAB_TYPE_CONTROL || t == VOCAB_TYPE_USER || t == VOCAB_TYPE_UNKNOWN;
    }
    static const char *const plain[] = {"<unk>", "<s>", "<|endoftext|>"};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        int32_t id = find(v, plain[i]);
        if (id >= 0) v->token[id].rstrip = false;
    }
    return STRATA_OK;
}

/* What is a control token by the file stays guarded when it is shown as text; so is what becomes one by its text. */
static void guard(struct vocab *v) {
    for (uint32_t i = 0; i < v->n; i++) {
        uint8_t t = v->token[i].type;
        if (t == VOCAB_TYPE_CONTROL || t == VOCAB_TYPE_UNKNOWN) v->token[i].guarded = true;
    }
}

static strata_err load_tries(struct vocab *v, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    for (uint32_t i = 0; i < v->n && rc == STRATA_OK; i++) {
        const struct vocab_token *t = &v->token[i];
        bool user = t->type == VOCAB_TYPE_USER;
        if (!user && t->type != VOCAB_TYPE_CONTROL && t->type != VOCAB_TYPE_UNKNOWN) continue;
        if (t->len > VOCAB_SPECIAL_BYTES_MAX) {
            return err_set(em, STRATA_ELIMIT, "special token %u has a text of %u bytes; the limit is %d", i, t->len,
                           VOCAB_SPECIAL_BYTES_MAX);
        }
        rc = vocab_trie_add(&v->all, t->text, t->len, (int32_t)i, em);
        if (rc == STRATA_OK && user) rc = vocab_trie_add(&v->user, t->text, t->len, (int32_t)i, em);
    }
    return rc;
}

strata_err vocab_special_load(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em) {
    if (v->kind == VOCAB_KIND_SPM) { /* SentencePiece's own numbering, unless the keys say otherwise */
        v->unk = 0;
        v->bos = v->n > 1 ? 1 : -1;
        v->eos = v->n > 2 ? 2 : -1;
    }
    strata_err rc = get_id(v, meta, "tokenizer.ggml.bos_token_id", &v->bos, em);
    if (rc == STRATA_OK) rc = get_id(v, meta, "tokenizer.ggml.eos_token_id", &v->eos, em);
    if (rc == STRATA_OK) rc = get_id(v, meta, "tokenizer.ggml.unknown_token_id", &v->unk, em);
    guard(v);
    if (rc == STRATA_OK) rc = load_eog(v, meta, em);
    guard(v);
    return rc == STRATA_OK ? load_rstrip(v, meta, em) : rc;
}

strata_err vocab_special_finish(struct vocab *v, const struct gguf_reader *meta, struct strata_errmsg *em) {
    strata_err rc = gguf_reader_get_bool(meta, "tokenizer.ggml.add_bos_token", false, &v->add_bos, em);
    if (rc == STRATA_OK) rc = gguf_reader_get_bool(meta, "tokenizer.ggml.add_eos_token", false, &v->add_eos, em);
    if (rc == STRATA_OK) load_lstrip(v);
    if (rc == STRATA_OK) rc = load_tries(v, em);
    if (rc != STRATA_OK) return rc;
    if (v->add_bos && v->bos < 0) {
        return err_set(em, STRATA_EFORMAT,
                       "the vocabulary asks for a BOS token (tokenizer.ggml.add_bos_token, or its "
                       "kind's default) but tokenizer.ggml.bos_token_id is missing");
    }
    if (v->add_eos && v->eos < 0) {
        return err_set(em, STRATA_EFORMAT,
                       "tokenizer.ggml.add_eos_token is set but tokenizer.ggml.eos_token_id is missing");
    }
    return STRATA_OK;
}

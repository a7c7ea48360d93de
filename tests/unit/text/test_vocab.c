/* Vocabularies: bad metadata, special tokens, bytes that are not text, special ids, long inputs. */
#include "vocab_data.h"

#include "base/clock.h"
#include "text/chat.h"

static const char BPE[] = "tests/data/bpe-vocab.txt";
static const char SPM[] = "tests/data/spm-vocab.txt";

static void encode(const struct vocab *v, const char *text, size_t len, unsigned flags, struct vocab_ids *ids) {
    struct strata_errmsg em;
    ids->len = 0;
    test_ok(vocab_encode(v, text, len, flags, ids, &em), &em);
}

static bool has(const struct vocab_ids *ids, int32_t id) {
    for (size_t i = 0; i < ids->len; i++) {
        if (ids->id[i] == id) return true;
    }
    return false;
}

/* ---- metadata that must be refused ---- */

static void spoil_scores(struct test_vocab *t) {
    t->n_scores--;
}
static void spoil_types(struct test_vocab *t) {
    t->n_types = 5;
}
static void spoil_type_value(struct test_vocab *t) {
    t->type[9] = 77;
}
static void spoil_merge_part(struct test_vocab *t) {
    static const char bad[] = "nosuchtoken b";
    free((void *)(uintptr_t)t->merge[3].data);
    t->merge[3] = (struct gguf_str){strdup(bad), sizeof bad - 1};
}
static void spoil_merge_result(struct test_vocab *t) {
    static const char bad[] = "Q Q";
    free((void *)(uintptr_t)t->merge[3].data);
    t->merge[3] = (struct gguf_str){strdup(bad), sizeof bad - 1};
}
static void spoil_merge_form(struct test_vocab *t) {
    static const char bad[] = " ab";
    free((void *)(uintptr_t)t->merge[0].data);
    t->merge[0] = (struct gguf_str){strdup(bad), sizeof bad - 1};
}
static void spoil_duplicate(struct test_vocab *t) {
    t->token[40] = t->token[41];
}
static void spoil_byte(struct test_vocab *t) {
    t->token[13] = (struct gguf_str){"<0x-1>", 6};
}
static void spoil_score_nan(struct test_vocab *t) {
    t->score[300] = __builtin_nanf("");
}
static void spoil_id(struct test_vocab *t) {
    test_vocab_pair(t, "tokenizer.ggml.eot_token_id", "u32", "999999");
}
static void spoil_pre(struct test_vocab *t) {
    test_vocab_pair(t, "tokenizer.ggml.pre", "str", "no-such-splitter");
}
static void spoil_bos_missing(struct test_vocab *t) {
    test_vocab_pair(t, "tokenizer.ggml.pre", "str", "gpt-2");
    test_vocab_pair(t, "tokenizer.ggml.add_eos_token", "str", "yes");
}
static void spoil_empty(struct test_vocab *t) {
    t->n_tokens = t->n_types = t->n_scores = 0;
}
static void spoil_special_len(struct test_vocab *t) {
    static char text[2000];
    memset(text, 'x', sizeof text);
    t->token[0] = (struct gguf_str){text, sizeof text};
}
static void spoil_token_len(struct test_vocab *t) {
    static char text[70000];
    memset(text, 'x', sizeof text);
    t->token[200] = (struct gguf_str){text, sizeof text};
}
static void spoil_merges_missing(struct test_vocab *t) {
    for (size_t i = 0; i < t->n_merges; i++) free((void *)(uintptr_t)t->merge[i].data);
    t->n_merges = 0;
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *file;
        void (*spoil)(struct test_vocab *t);
        strata_err code;
        const char *says;
    } rows[] = {
        {SPM, spoil_scores, STRATA_EFORMAT, "tokenizer.ggml.scores has "},
        {SPM, spoil_types, STRATA_EFORMAT, "tokenizer.ggml.token_type has 5 entries"},
        {SPM, spoil_type_value, STRATA_EFORMAT, "token 9 has type 77"},
        {SPM, spoil_byte, STRATA_EFORMAT, "'<0x-1>' is not of the form"},
        {SPM, spoil_score_nan, STRATA_EFORMAT, "score of token 300"},
        {SPM, spoil_id, STRATA_EFORMAT, "tokenizer.ggml.eot_token_id is 999999"},
        {SPM, spoil_empty, STRATA_EFORMAT, "has 0 tokens"},
        {SPM, spoil_token_len, STRATA_ELIMIT, "token 200 has 70000 bytes"},
        {SPM, spoil_special_len, STRATA_ELIMIT, "special token 0"},
        {BPE, spoil_merge_part, STRATA_EFORMAT, "merge 3 of the vocabulary, 'nosuchtoken b', has a left part"},
        {BPE, spoil_merge_result, STRATA_EFORMAT, "merge 3 of the vocabulary, 'Q Q', makes what"},
        {BPE, spoil_merge_form, STRATA_EFORMAT, "merge 0 of the vocabulary, ' ab', is not a pair"},
        {BPE, spoil_merges_missing, STRATA_ENOENT, "tokenizer.ggml.merges"},
        {BPE, spoil_duplicate, STRATA_EFORMAT, "tokens 40 and 41 of the vocabulary have the same text"},
        {BPE, spoil_pre, STRATA_EUNSUPPORTED, "'no-such-splitter' is not supported; known are: llama-bpe"},
        {BPE, spoil_bos_missing, STRATA_EFORMAT, "tokenizer.ggml.add_eos_token"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct strata_errmsg em = {0};
        struct test_vocab *t = test_vocab_read(rows[i].file);
        rows[i].spoil(t);
        strata_err rc = test_vocab_finish(t, &em);
        if (rc == STRATA_OK) fail_msg("row %zu was accepted", i);
        if (!strstr(em.text, rows[i].says)) fail_msg("row %zu says: %s", i, em.text);
        if (rc != rows[i].code) fail_msg("row %zu has code %s: %s", i, strata_err_name(rc), em.text);
        assert_non_null(strstr(em.text, "test.gguf"));
        assert_null(t->v);
        test_vocab_free(t);
    }
}

static void test_unknown_kind(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct test_vocab *t = test_vocab_begin();
    test_vocab_pair(t, "tokenizer.ggml.model", "str", "bert");
    test_vocab_token(t, "a", 1, 1, 0);
    assert_int_equal(test_vocab_finish(t, &em), STRATA_EUNSUPPORTED);
    assert_non_null(strstr(em.text, "'bert'"));
    test_vocab_free(t);
}

static void test_no_vocabulary(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct test_vocab *t = test_vocab_begin();
    test_vocab_token(t, "a", 1, 1, 0);
    assert_int_not_equal(test_vocab_finish(t, &em), STRATA_OK);
    assert_non_null(strstr(em.text, "tokenizer.ggml.model"));
    test_vocab_free(t);
}

/* ---- special tokens ---- */

static void test_control_text_of_users(void **state) {
    (void)state;
    struct vocab_ids ids = {0};
    static const char text[] = "x<|im_start|>y<|im_end|></s>";
    for (int spm = 0; spm < 2; spm++) {
        struct test_vocab *t = test_vocab_load(spm ? SPM : BPE, spm ? NULL : "llama-bpe");
        for (unsigned flags = 0; flags < 4; flags++) {
            encode(t->v, text, strlen(text), flags, &ids);
            assert_int_equal(has(&ids, 2), (flags & VOCAB_PARSE_SPECIAL) != 0);
            assert_int_equal(ids.id[0] == vocab_bos(t->v), (flags & VOCAB_ADD_SPECIAL) != 0);
            for (size_t i = 0; i < ids.len && !(flags & VOCAB_PARSE_SPECIAL); i++) {
                assert_true(!vocab_is_control(t->v, ids.id[i]) || (i == 0 && (flags & VOCAB_ADD_SPECIAL)));
            }
        }
        test_vocab_free(t);
    }
    vocab_ids_deinit(&ids);
}

/* Tokens that merging could reach, but that are control tokens: a user must not be able to write them. */
static void test_merging_makes_no_control_token(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct vocab_ids ids = {0};
    struct test_vocab *t = test_vocab_begin();
    test_vocab_pair(t, "tokenizer.ggml.model", "str", "llama");
    test_vocab_pair(t, "tokenizer.ggml.add_space_prefix", "bool", "0");
    static const char *const plain[] = {"<", "s", ">", "<s", "s>", "x"};
    test_vocab_token(t, "<unk>", 5, 2, 0);
    test_vocab_token(t, "<s>", 3, 3, 0);
    test_vocab_token(t, "<e>", 3, 3, 0);
    for (size_t i = 0; i < 6; i++) test_vocab_token(t, plain[i], strlen(plain[i]), 1, -(float)i);
    test_ok(test_vocab_finish(t, &em), &em);
    encode(t->v, "x<s>x", 5, 0, &ids);
    assert_false(has(&ids, 1));
    encode(t->v, "x<s>x", 5, VOCAB_PARSE_SPECIAL, &ids);
    assert_true(has(&ids, 1));
    test_vocab_free(t);
    vocab_ids_deinit(&ids);
}

static void test_longest_special_first(void **state) {
    (void)state;
    struct vocab_ids ids = {0};
    struct test_vocab *t = test_vocab_load(BPE, "gpt-2");
    /* User-defined "<|im" (4 bytes) begins "<|im_start|>" (12); "\t\t" is user-defined too. */
    encode(t->v, "<|im_start|>", 12, VOCAB_PARSE_SPECIAL, &ids);
    assert_int_equal(ids.len, 1);
    assert_int_equal(ids.id[0], 1);
    encode(t->v, "<|im_start|>", 12, 0, &ids);
    assert_int_equal(ids.id[0], 4);
    assert_true(ids.len > 1);
    encode(t->v, "\t\t\t\t\t", 5, 0, &ids);
    assert_int_equal(ids.len, 3);
    assert_int_equal(ids.id[0], 5);
    assert_int_equal(ids.id[1], 5);
    test_vocab_free(t);
    vocab_ids_deinit(&ids);
}

static void test_rstrip_of_phi3(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct vocab_ids ids = {0}, want = {0};
    struct test_vocab *t = test_vocab_read(SPM);
    test_vocab_pair(t, "general.name", "str", "My PHI-3 mini");
    test_ok(test_vocab_finish(t, &em), &em);
    encode(t->v, "a</s> \n\t b", 10, VOCAB_PARSE_SPECIAL, &ids);
    encode(t->v, "a</s>b", 6, VOCAB_PARSE_SPECIAL, &want);
    assert_int_equal(ids.len, want.len);
    assert_memory_equal(ids.id, want.id, ids.len * sizeof *ids.id);
    encode(t->v, "a<s> b", 6, VOCAB_PARSE_SPECIAL, &ids); /* <s> keeps what follows */
    encode(t->v, "a<s>b", 5, VOCAB_PARSE_SPECIAL, &want);
    assert_int_not_equal(ids.len, want.len);
    test_vocab_free(t);
    vocab_ids_deinit(&ids);
    vocab_ids_deinit(&want);
}

static void test_ids_and_eog(void **state) {
    (void)state;
    struct test_vocab *t = test_vocab_load(SPM, NULL);
    size_t n;
    const int32_t *eog = vocab_eog(t->v, &n);
    assert_int_equal(vocab_size(t->v), t->n_tokens);
    assert_int_equal(vocab_bos(t->v), 1);
    assert_int_equal(vocab_eos(t->v), 2);
    assert_true(n >= 2); /* </s> and <end_of_turn> */
    for (size_t i = 0; i < n; i++) assert_true(vocab_is_eog(t->v, eog[i]));
    assert_true(vocab_is_eog(t->v, 2));
    assert_false(vocab_is_eog(t->v, 1));
    assert_false(vocab_is_eog(t->v, -1));
    test_vocab_free(t);
}

static void test_eog_by_format(void **state) {
    (void)state;
    /* The texts of the tokens from id 3 on, and whether each ends a generation. */
    static const struct {
        const char *text[5];
        bool ends[5];
    } rows[] = {
        {{"<|im_end|>", "<|fim_pad|>", "<|fim_prefix|>", "a", "<EOT>"}, {true, true, false, false, true}},
        {{"<|return|>", "<|call|>", "<|end|>", "<|start|>", "b"}, {true, true, false, false, false}},
        {{"<|end|>", "<|user|>", "c", "d", "e"}, {true, false, false, false, false}},
        {{"<|tool_response>", "</s>", "<turn|>", "f", "g"}, {true, false, true, false, false}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct strata_errmsg em;
        struct test_vocab *t = test_vocab_begin();
        test_vocab_pair(t, "tokenizer.ggml.model", "str", "llama");
        test_vocab_token(t, "<unk>", 5, 2, 0);
        test_vocab_token(t, "<x>", 3, 3, 0);
        test_vocab_token(t, "<y>", 3, 3, 0);
        for (int i = 0; i < 5; i++) test_vocab_token(t, rows[r].text[i], strlen(rows[r].text[i]), 1, 0);
        test_ok(test_vocab_finish(t, &em), &em);
        for (int i = 0; i < 5; i++) {
            if (vocab_is_eog(t->v, 3 + i) != rows[r].ends[i]) fail_msg("row %zu, %s", r, rows[r].text[i]);
            /* What ends a generation is a control token, whatever the file says. */
            if (rows[r].ends[i]) assert_true(vocab_is_control(t->v, 3 + i));
        }
        test_vocab_free(t);
    }
}

/* ---- what comes from a conversation ---- */

static void encode_own(const struct vocab *v, const char *text, size_t from, size_t to, struct vocab_ids *ids) {
    struct strata_errmsg em;
    struct text_spans own = {0};
    test_ok(text_spans_add(&own, from, to, &em), &em);
    ids->len = 0;
    test_ok(vocab_encode_marked(v, text, strlen(text), &own, VOCAB_PARSE_SPECIAL, ids, &em), &em);
    text_spans_deinit(&own);
}

static size_t count(const struct vocab_ids *ids, int32_t id) {
    size_t n = 0;
    for (size_t i = 0; i < ids->len; i++) n += ids->id[i] == id;
    return n;
}

static void test_control_tokens_of_a_conversation(void **state) {
    (void)state;
    /* Ids of the byte-level vocabulary: 1 <|im_start|>, 2 <|im_end|> are control, 3 <tool_call>, 4 <|im are
     * user-defined. */
    static const char text[] = "<|im_start|>x<|im_end|>y<tool_call><|im_end|>";
    struct vocab_ids ids = {0}, plain = {0};
    struct test_vocab *t = test_vocab_load(BPE, "llama-bpe");
    encode_own(t->v, text, 12, 34, &ids); /* from x to the end of <tool_call> */
    assert_int_equal(count(&ids, 1), 1);
    assert_int_equal(count(&ids, 2), 1);
    assert_int_equal(ids.id[0], 1);
    assert_int_equal(ids.id[ids.len - 1], 2);
    assert_int_equal(count(&ids, 3), 1); /* what is user-defined matches in any text */
    assert_int_equal(count(&ids, 4), 1); /* and so does the beginning of the control token */
    /* One byte is enough: whichever of a control token's bytes comes from the conversation. */
    for (size_t i = 0; i < 12; i++) {
        encode_own(t->v, "<|im_start|>", i, i + 1, &ids);
        assert_int_equal(count(&ids, 1), 0);
        assert_int_equal(count(&ids, 4), 1);
    }
    encode_own(t->v, "<|im_start|>", 12, 13, &ids); /* a part behind the text does no harm */
    assert_int_equal(count(&ids, 1), 1);
    encode_own(t->v, "<|im_start|><|im_end|>", 12, 13, &ids);
    assert_int_equal(count(&ids, 1), 1);
    assert_int_equal(count(&ids, 2), 0);
    /* All of it from the conversation: as with special tokens off. */
    encode_own(t->v, text, 0, strlen(text), &ids);
    encode(t->v, text, strlen(text), 0, &plain);
    assert_int_equal(ids.len, plain.len);
    assert_memory_equal(ids.id, plain.id, ids.len * sizeof *ids.id);
    test_vocab_free(t);
    vocab_ids_deinit(&ids);
    vocab_ids_deinit(&plain);
}

/* Random texts of pieces of control tokens, random parts from the conversation: what became a control token stands
 * outside of them. */
static void test_conversations_make_no_control_tokens(void **state) {
    (void)state;
    static const char *const bits[] = {"<|im_start|>",
                                       "<|im_end|>",
                                       "<|im",
                                       "_start|>",
                                       "_end|>",
                                       "<",
                                       "|",
                                       ">",
                                       "im",
                                       "</s>",
                                       "<s>",
                                       "<",
                                       "/s",
                                       "<end_of_turn>",
                                       "<|endoftext|>",
                                       " ",
                                       "\n",
                                       "\xE4\xB8\xAD",
                                       "\xFF",
                                       "<tool_call>"};
    struct strata_errmsg em;
    struct vocab_ids ids = {0};
    uint32_t seed = 99;
    for (int spm = 0; spm < 2; spm++) {
        struct test_vocab *t = test_vocab_load(spm ? SPM : BPE, spm ? NULL : "gpt-4o");
        size_t seen = 0;
        for (int round = 0; round < 3000; round++) {
            char text[512], outside[512];
            size_t len = 0, out_len = 0, want = 0;
            struct text_spans own = {0};
            for (int i = 0; i < 12; i++) {
                seed = seed * 1664525u + 1013904223u;
                const char *s = bits[(seed >> 16) % (sizeof bits / sizeof bits[0])];
                bool ours = seed >> 31;
                memcpy(text + len, s, strlen(s));
                if (ours) test_ok(text_spans_add(&own, len, len + strlen(s), &em), &em);
                len += strlen(s);
                if (!ours) memcpy(outside + out_len, s, strlen(s));
                if (ours) outside[out_len] = 1; /* no part of any control token */
                out_len += ours ? 1 : strlen(s);
            }
            ids.len = 0;
            test_ok(vocab_encode_marked(t->v, text, len, &own, VOCAB_PARSE_SPECIAL, &ids, &em), &em);
            size_t got = 0;
            for (size_t i = 0; i < ids.len; i++) got += vocab_is_guarded(t->v, ids.id[i]);
            encode(t->v, outside, out_len, VOCAB_PARSE_SPECIAL, &ids);
            for (size_t i = 0; i < ids.len; i++) want += vocab_is_guarded(t->v, ids.id[i]);
            if (got != want) fail_msg("round %d: '%.*s'", round, (int)len, text);
            seen += got;
            text_spans_deinit(&own);
        }
        assert_true(seen > 1000);
        test_vocab_free(t);
    }
    vocab_ids_deinit(&ids);
}

/* From a conversation to ids: what the messages say makes no difference to the control tokens of the prompt. */
static size_t guarded_of(const struct vocab *v, const char *source, const char *content, size_t len) {
    struct strata_errmsg em;
    struct chat_template *t = NULL;
    struct text_spans own = {0};
    struct vocab_ids ids = {0};
    struct buf text;
    size_t n = 0;
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s%}, {s:s, s:s%}, {s:s, s:s%}]", "role", "system", "content",
                                 "S", "role", "user", "content", content, len, "role", "assistant", "content", content,
                                 len, "role", "user", "content", content, len);
    assert_non_null(messages);
    struct chat_inputs in = {.messages = messages,
                             .tools = messages,
                             .add_generation_prompt = true,
                             .bos_token = "<s>",
                             .eos_token = "</s>"};
    buf_init(&text, 1 << 20);
    test_ok(chat_template_new(source, strlen(source), &t, &em), &em);
    test_ok(chat_template_render_marked(t, &in, &text, &own, &em), &em);
    test_ok(vocab_encode_marked(v, buf_cstr(&text), text.len, &own, VOCAB_PARSE_SPECIAL, &ids, &em), &em);
    for (size_t i = 0; i < ids.len; i++) n += vocab_is_guarded(v, ids.id[i]);
    chat_template_free(t);
    json_decref(messages);
    text_spans_deinit(&own);
    vocab_ids_deinit(&ids);
    buf_deinit(&text);
    return n;
}

static void test_conversations_to_ids(void **state) {
    (void)state;
    static const char *const templates[] = {
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor "
        "%}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]{% else %}"
        "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
        "{% for m in messages %}<|{{ 'im_start' if m.role == 'user' else 'im_end' }}|>{{ "
        "m.content.split('</think>')[-1].lstrip() }}"
        "{% endfor %}<|im_end|>",
        "{% macro line(r, c) %}<|im_start|>{{ r }}: {{ c[:40] ~ c[40:] }}<|im_end|>{% endmacro %}{% for m in messages "
        "%}"
        "{{ line(m.role, m.content) }}{% endfor %}{{ tools | tojson }}",
        "{% for m in messages %}<|im_{{ m.content }}|><{{ m.content|lower }}s>{{ m.content.replace('x', '|') }}{% "
        "endfor %}</s>",
        "{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}<|im_end|>{{ [m.content, "
        "m.content]|join('<') }}{% endfor %}",
    };
    static const char *const bits[] = {"<|im_start|>",
                                       "<|im_end|>",
                                       "<|im",
                                       "start",
                                       "end",
                                       "END|>",
                                       "<",
                                       "|",
                                       ">",
                                       "im_",
                                       "</s>",
                                       "<s>",
                                       "/",
                                       "s",
                                       "<end_of_turn>",
                                       "<|endoftext|>",
                                       " ",
                                       "\n",
                                       "</think>",
                                       "x",
                                       "\"",
                                       "\\",
                                       "\xC3\x9F"};
    enum { N_BITS = sizeof bits / sizeof bits[0] };
    uint32_t seed = 4711;
    for (int spm = 0; spm < 2; spm++) {
        struct test_vocab *t = test_vocab_load(spm ? SPM : BPE, spm ? NULL : "qwen2");
        for (size_t k = 0; k < sizeof templates / sizeof templates[0]; k++) {
            size_t want = guarded_of(t->v, templates[k], "harmless", 8);
            for (int round = 0; round < 150; round++) {
                char content[256];
                size_t len = 0;
                for (int i = 0; i < 10; i++) {
                    seed = seed * 1664525u + 1013904223u;
                    const char *s = bits[(seed >> 16) % N_BITS];
                    memcpy(content + len, s, strlen(s));
                    len += strlen(s);
                }
                size_t got = guarded_of(t->v, templates[k], content, len);
                if (got != want)
                    fail_msg("template %zu, '%.*s': %zu control tokens, not %zu", k, (int)len, content, got, want);
            }
        }
        test_vocab_free(t);
    }
}

/* Harmony's control tokens are shown and match in plain text, as in llama.cpp, but a conversation cannot write them. */
static void test_shown_tokens_are_guarded(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct vocab_ids ids = {0};
    struct test_vocab *t = test_vocab_begin();
    test_vocab_pair(t, "tokenizer.ggml.model", "str", "llama");
    test_vocab_pair(t, "tokenizer.ggml.add_space_prefix", "bool", "0");
    static const char *const special[] = {"<unk>", "<|start|>", "<|message|>", "<|return|>"};
    for (size_t i = 0; i < 4; i++) test_vocab_token(t, special[i], strlen(special[i]), i ? 3 : 2, 0);
    for (int c = 32; c < 127; c++) {
        static char text[128][2];
        text[c][0] = (char)c;
        test_vocab_token(t, text[c], 1, 1, -1);
    }
    test_ok(test_vocab_finish(t, &em), &em);
    encode(t->v, "<|start|>x", 10, 0, &ids);
    assert_true(has(&ids, 1));
    assert_true(vocab_is_guarded(t->v, 1) && !vocab_is_control(t->v, 1) && !vocab_is_guarded(t->v, 40));
    encode_own(t->v, "<|start|>user<|message|>a<|start|>b<|return|>", 25, 36, &ids);
    assert_int_equal(count(&ids, 1), 1);
    assert_int_equal(count(&ids, 2), 1);
    assert_int_equal(count(&ids, 3), 0); /* its first byte is part of what came from the conversation */
    test_vocab_free(t);
    vocab_ids_deinit(&ids);
}

/* White space before the mask token of some embedding models belongs to it: their pre-tokenizers tell. */
static void test_lstrip_of_masks(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct vocab_ids ids = {0}, want = {0};
    static const char *const pres[] = {"jina-v2-code", "gpt-2"};
    for (int i = 0; i < 2; i++) {
        struct test_vocab *t = test_vocab_read(BPE);
        test_vocab_token(t, "<mask>", 6, 3, 0);
        test_vocab_pair(t, "tokenizer.ggml.pre", "str", pres[i]);
        test_ok(test_vocab_finish(t, &em), &em);
        encode(t->v, "a \n <mask> b", 12, VOCAB_PARSE_SPECIAL, &ids);
        encode(t->v, "a<mask> b", 9, VOCAB_PARSE_SPECIAL, &want);
        bool same = ids.len == want.len && memcmp(ids.id, want.id, ids.len * sizeof *ids.id) == 0;
        assert_true(same == (i == 0));
        test_vocab_free(t);
    }
    vocab_ids_deinit(&ids);
    vocab_ids_deinit(&want);
}

/* add_bos_token and add_eos_token override what the kind and the pre-tokenizer do without them. */
static void test_bos_and_eos(void **state) {
    (void)state;
    static const struct {
        const char *file, *pre, *bos, *eos;
        bool has_bos, has_eos;
    } rows[] = {
        {BPE, "llama-bpe", NULL, NULL, true, false}, {BPE, "tekken", NULL, NULL, true, false},
        {BPE, "qwen2", NULL, NULL, false, false},    {BPE, "qwen2", "1", "1", true, true},
        {BPE, "llama-bpe", "0", NULL, false, false}, {BPE, "inkling", NULL, NULL, false, false},
        {BPE, NULL, NULL, NULL, false, false},       {SPM, NULL, NULL, "1", true, true},
    };
    struct strata_errmsg em;
    struct vocab_ids ids = {0}, plain = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct test_vocab *t = test_vocab_read(rows[i].file);
        if (rows[i].pre) test_vocab_pair(t, "tokenizer.ggml.pre", "str", rows[i].pre);
        if (rows[i].bos) test_vocab_pair(t, "tokenizer.ggml.add_bos_token", "bool", rows[i].bos);
        if (rows[i].eos) test_vocab_pair(t, "tokenizer.ggml.add_eos_token", "bool", rows[i].eos);
        test_ok(test_vocab_finish(t, &em), &em);
        encode(t->v, "a b", 3, VOCAB_ADD_SPECIAL, &ids);
        encode(t->v, "a b", 3, 0, &plain);
        assert_int_equal(ids.len, plain.len + rows[i].has_bos + rows[i].has_eos);
        if (rows[i].has_bos) assert_int_equal(ids.id[0], vocab_bos(t->v));
        if (rows[i].has_eos) assert_int_equal(ids.id[ids.len - 1], vocab_eos(t->v));
        test_vocab_free(t);
    }
    vocab_ids_deinit(&ids);
    vocab_ids_deinit(&plain);
}

/* ---- bytes and sizes ---- */

static void decode(const struct vocab *v, const struct vocab_ids *ids, struct buf *out) {
    struct strata_errmsg em;
    buf_clear(out);
    for (size_t i = 0; i < ids->len; i++) test_ok(vocab_piece(v, ids->id[i], true, out, &em), &em);
}

static void test_every_byte_survives(void **state) {
    (void)state;
    struct buf out;
    struct vocab_ids ids = {0};
    char text[700];
    buf_init(&out, 1 << 20);
    static const char *const pres[] = {"llama-bpe", "smollm", "deepseek-v3", "default"};
    for (size_t p = 0; p < 4; p++) {
        struct test_vocab *t = test_vocab_load(BPE, pres[p]);
        uint32_t seed = 12345;
        for (int round = 0; round < 300; round++) {
            size_t len = (size_t)(round % 7 == 0 ? 699 : round);
            for (size_t i = 0; i < len; i++) {
                seed = seed * 1664525u + 1013904223u;
                uint32_t r = seed >> 16;
                text[i] = (char)(round % 3 == 0   ? r
                                 : round % 3 == 1 ? 0x80 | (r & 0x7F)
                                 : (r & 0xF)      ? 'a' + (r & 7)
                                                  : 0xE2);
            }
            encode(t->v, text, len, 0, &ids);
            decode(t->v, &ids, &out);
            assert_int_equal(out.len, len);
            assert_memory_equal(buf_cstr(&out), text, len);
        }
        test_vocab_free(t);
    }
    /* SentencePiece too: what is no character becomes byte tokens. */
    struct test_vocab *t = test_vocab_load(SPM, NULL);
    static const char bad[] = "ok\xFF\xC3(\xE2\x82\xF0\x9F\x98-end\xED\xA0\x80\xC0";
    encode(t->v, bad, sizeof bad - 1, 0, &ids);
    decode(t->v, &ids, &out);
    assert_int_equal(out.len, sizeof bad); /* and the space before the first word */
    assert_memory_equal(out.data + 1, bad, sizeof bad - 1);
    test_vocab_free(t);
    vocab_ids_deinit(&ids);
    buf_deinit(&out);
}

static void test_empty_text(void **state) {
    (void)state;
    struct vocab_ids ids = {0};
    struct test_vocab *t = test_vocab_load(SPM, NULL);
    encode(t->v, "", 0, 0, &ids);
    assert_int_equal(ids.len, 0);
    encode(t->v, "", 0, VOCAB_ADD_SPECIAL, &ids);
    assert_int_equal(ids.len, 1);
    test_vocab_free(t);
    vocab_ids_deinit(&ids);
}

static void test_appends(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct vocab_ids ids = {0};
    struct test_vocab *t = test_vocab_load(SPM, NULL);
    encode(t->v, "ab", 2, 0, &ids);
    size_t n = ids.len;
    test_ok(vocab_encode(t->v, "ab", 2, 0, &ids, &em), &em);
    assert_int_equal(ids.len, 2 * n);
    assert_memory_equal(ids.id, ids.id + n, n * sizeof *ids.id);
    test_vocab_free(t);
    vocab_ids_deinit(&ids);
}

static void test_piece_out_of_range(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct buf out;
    buf_init(&out, 100);
    struct test_vocab *t = test_vocab_load(SPM, NULL);
    assert_int_equal(vocab_piece(t->v, -1, true, &out, &em), STRATA_EINVAL);
    assert_int_equal(vocab_piece(t->v, (int32_t)vocab_size(t->v), true, &out, &em), STRATA_EINVAL);
    assert_int_equal(vocab_piece(t->v, 1, false, &out, &em), STRATA_OK);
    assert_int_equal(out.len, 0);
    assert_int_equal(vocab_piece(t->v, 1, true, &out, &em), STRATA_OK);
    assert_string_equal(buf_cstr(&out), "<s>");
    test_vocab_free(t);
    buf_deinit(&out);
}

/* One megabyte of one unit must take about four times as long as a quarter of it, not sixteen times. */
static void test_long_runs_are_linear(void **state) {
    (void)state;
    static const char *const units[] = {" ",  "\n", "a",   "1", "!", " \n", "\xE4\xB8\xAD", "<|im_start|>",
                                        "\t", "'",  "\xFF"};
    enum { BIG = 1 << 20 };
    char *text = malloc(BIG);
    assert_non_null(text);
    struct vocab_ids ids = {0};
    for (int k = 0; k < 3; k++) {
        struct test_vocab *t = test_vocab_load(k == 2 ? SPM : BPE, k == 0 ? "llama-bpe" : k == 1 ? "default" : NULL);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t n = strlen(units[u]);
            for (size_t i = 0; i + n <= BIG; i += n) memcpy(text + i, units[u], n);
            double took[2];
            for (int big = 0; big < 2; big++) {
                uint64_t start = clock_now_ns();
                encode(t->v, text, (size_t)(big ? BIG : BIG / 4) / n * n, VOCAB_PARSE_SPECIAL, &ids);
                took[big] = clock_since_s(start);
            }
            if (took[1] > 12 * took[0] + 0.5) fail_msg("unit %zu: %.3f s, then %.3f s", u, took[0], took[1]);
        }
        test_vocab_free(t);
    }
    vocab_ids_deinit(&ids);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_unknown_kind),
        cmocka_unit_test(test_no_vocabulary),
        cmocka_unit_test(test_control_text_of_users),
        cmocka_unit_test(test_merging_makes_no_control_token),
        cmocka_unit_test(test_longest_special_first),
        cmocka_unit_test(test_rstrip_of_phi3),
        cmocka_unit_test(test_ids_and_eog),
        cmocka_unit_test(test_eog_by_format),
        cmocka_unit_test(test_control_tokens_of_a_conversation),
        cmocka_unit_test(test_conversations_make_no_control_tokens),
        cmocka_unit_test(test_conversations_to_ids),
        cmocka_unit_test(test_shown_tokens_are_guarded),
        cmocka_unit_test(test_lstrip_of_masks),
        cmocka_unit_test(test_bos_and_eos),
        cmocka_unit_test(test_every_byte_survives),
        cmocka_unit_test(test_empty_text),
        cmocka_unit_test(test_appends),
        cmocka_unit_test(test_piece_out_of_range),
        cmocka_unit_test(test_long_runs_are_linear),
    };
    return cmocka_run_group_tests_name("vocabulary", tests, NULL, NULL);
}

/*
 * Fuzz target: chat templates. The input is a template; it is parsed, and rendered over a fixed conversation. Any input
 * must give a text or an error, within the limits on steps, memory and depth; and whatever a template does with the
 * conversation's text, each character of it that comes out is marked as such, which keeps it from becoming part of a
 * control token.
 */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The conversation's text has characters U+E000 to U+E03F, which no template needs: EE 80 80 to EE 80 BF. */
static const char conversation[] =
    "[{\"role\":\"system\",\"content\":\" Be\\ue000 brief.\\ue001 "
    "\"},{\"role\":\"user\",\"content\":\"\\ue002Gr\\u00fc\\u00dfe \\ud83d\\ude00 <|im\\ue003_end|>\\n\\ue004\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":"
    "\"f\\ue005\",\"arguments\":{\"a\\ue006\":[1,2.5,true,\"\\ue007\"]}}}]},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\\ue008 </think> y\\ue009\"}]}]";
static const char own[] = "\xEE\x80";

static void check_marks(const struct buf *out, const struct text_spans *spans) {
    size_t k = 0, last = 0;
    for (size_t i = 0; i < spans->len; i++) {
        if (spans->span[i].start < last || spans->span[i].end <= spans->span[i].start || spans->span[i].end > out->len)
            abort();
        last = spans->span[i].end;
    }
    for (size_t i = 0; i + 3 <= out->len; i++) {
        if (memcmp(out->data + i, own, 2) != 0) continue;
        while (k < spans->len && spans->span[k].end <= i) k++;
        if (k == spans->len || spans->span[k].start > i || spans->span[k].end < i + 3) abort(); /* the property */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct strata_errmsg em;
    struct chat_template *t = NULL;
    struct buf out, plain;
    struct text_spans spans = {0};
    if (chat_template_new((const char *)data, size, &t, &em) != STRATA_OK) return 0;
    json_t *messages = json_loads(conversation, 0, NULL);
    struct chat_inputs in = {.messages = messages,
                             .tools = messages,
                             .add_generation_prompt = true,
                             .bos_token = "<s>",
                             .eos_token = "</s>",
                             .now = 1796000000};
    buf_init(&out, (size_t)1 << 20);
    buf_init(&plain, (size_t)1 << 20);
    strata_err rc = chat_template_render_marked(t, &in, &out, &spans, &em);
    if (chat_template_render(t, &in, &plain, &em) == STRATA_OK && rc == STRATA_OK) { /* marks change nothing */
        if (out.len != plain.len || (out.len > 0 && memcmp(out.data, plain.data, out.len) != 0)) abort();
    }
    /* A template that has such a character itself, or an escape that may make one, proves nothing. */
    bool writes_them = memchr(data, 0xEE, size) || memchr(data, '\\', size);
    if (rc == STRATA_OK && !writes_them) check_marks(&out, &spans);
    buf_deinit(&out);
    buf_deinit(&plain);
    text_spans_deinit(&spans);
    json_decref(messages);
    chat_template_free(t);
    return 0;
}

/*
 * Renders chat templates for tests/e2e/test_chat_jinja.py: one JSON object per line of stdin with "template",
 * "messages" and, if wanted, "tools", "add_generation_prompt", "bos_token", "eos_token", "extra", "now"; one JSON
 * object per line of stdout with "text" or "error".
 */
#include "base/jsonx.h"
#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static strata_err render(const json_t *in, struct buf *out, struct strata_errmsg *em) {
    const char *source = json_string_value(json_object_get(in, "template"));
    const char *bos = json_string_value(json_object_get(in, "bos_token"));
    const char *eos = json_string_value(json_object_get(in, "eos_token"));
    struct chat_template *t = NULL;
    if (!source) return err_set(em, STRATA_EINVAL, "there is no template");
    strata_err rc = chat_template_new(source, strlen(source), &t, em);
    if (rc != STRATA_OK) return rc;
    struct chat_inputs inputs = {
        .messages = json_object_get(in, "messages"),
        .tools = json_object_get(in, "tools"),
        .add_generation_prompt = json_is_true(json_object_get(in, "add_generation_prompt")),
        .bos_token = bos ? bos : "",
        .eos_token = eos ? eos : "",
        .extra = json_object_get(in, "extra"),
        .now = json_integer_value(json_object_get(in, "now")),
    };
    rc = chat_template_render(t, &inputs, out, em);
    chat_template_free(t);
    return rc;
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int status = 0;
    while (status == 0 && (n = getline(&line, &cap, stdin)) > 0) {
        struct strata_errmsg em = {0};
        struct buf out;
        json_t *in = NULL, *result = NULL;
        buf_init(&out, (size_t)64 << 20);
        strata_err rc = jsonx_parse(line, (size_t)n, &in, &em);
        if (rc == STRATA_OK) rc = render(in, &out, &em);
        result = rc == STRATA_OK ? json_pack("{s:s%}", "text", buf_cstr(&out), out.len)
                                 : json_pack("{s:s}", "error", em.text);
        char *text = result ? json_dumps(result, JSON_COMPACT) : NULL;
        if (text) {
            puts(text);
        } else {
            status = 1;
        }
        fflush(stdout);
        free(text);
        json_decref(result);
        json_decref(in);
        buf_deinit(&out);
    }
    free(line);
    return status;
}

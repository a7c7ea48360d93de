/* Chat templates without Python at hand: what each construct gives, errors with their line, and the limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

static const char conversation[] =
    "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\" Gr\\u00fc\\u00dfe \"}]";

static strata_err render(const char *source, bool prompt, struct buf *out, struct strata_errmsg *em) {
    struct chat_template *t = NULL;
    json_t *messages = json_loads(conversation, 0, NULL), *extra = json_loads("{\"depth\":3,\"flag\":false}", 0, NULL);
    assert_non_null(messages);
    strata_err rc = chat_template_new(source, strlen(source), &t, em);
    if (rc == STRATA_OK) {
        struct chat_inputs in = {.messages = messages,
                                 .add_generation_prompt = prompt,
                                 .bos_token = "<s>",
                                 .eos_token = "</s>",
                                 .extra = extra,
                                 .now = 86400};
        rc = chat_template_render(t, &in, out, em);
    }
    chat_template_free(t);
    json_decref(messages);
    json_decref(extra);
    return rc;
}

static void test_text(void **state) {
    (void)state;
    static const struct {
        const char *source, *text;
    } rows[] = {
        {"", ""},
        {"plain\n", "plain"},
        {"{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% "
         "endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
         "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n Gr\xC3\xBC\xC3\x9F"
         "e <|im_end|>\n<|im_start|>assistant\n"},
        {"{{ bos_token }}{{ eos_token }}{{ depth + 1 }}{{ flag }}{{ tools is defined }}{{ nothing }}",
         "<s></s>4FalseFalse"},
        {"{% if flag %}a{% elif depth == 3 %}b{% else %}c{% endif %}", "b"},
        {"{% for x in [3, 4] if x > 3 %}{{ loop.index }}{{ x }}{{ loop.last }}{% else %}none{% endfor %}", "14True"},
        {"{% for x in [] %}{% else %}none{% endfor %}", "none"},
        {"{% set ns = namespace(a=1) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}", "4"},
        {"{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}", "A1"},
        {"{% macro m(a, b='z') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m('x', b=2) }}", "[1z][x2]"},
        {"  {%- if true %}\n  x\n  {% endif %}\n  y", "  x\n  y"},
        {"{{ messages[1].content | trim | length }}", "5"},
        {"{{ messages | map(attribute='role') | join('+') }}", "system+user"},
        {"{{ {'a': [1, none, 'q\"']} | tojson }}", "{\"a\": [1, null, \"q\\\"\"]}"},
        {"{{ strftime_now('%Y-%m-%d') }}", "1970-01-02"},
        {"{{ 'x' if depth is even else 'y' }}{{ 7 // 2 }}{{ -7 % 3 }}{{ 7 / 2 }}", "y323.5"},
        {"{# note #}{% raw %}{{ x }}{% endraw %}", "{{ x }}"},
        {"{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}{% "
         "endfor %}",
         "023"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct strata_errmsg em;
        struct buf out;
        buf_init(&out, 1 << 20);
        if (render(rows[i].source, true, &out, &em) != STRATA_OK) fail_msg("row %zu: %s", i, em.text);
        if (strcmp(buf_cstr(&out), rows[i].text) != 0) fail_msg("row %zu gives '%s'", i, buf_cstr(&out));
        buf_deinit(&out);
    }
}

static void test_errors(void **state) {
    (void)state;
    static const struct {
        const char *source;
        strata_err code;
        const char *says;
    } rows[] = {
        {"\n\n{% include 'x' %}", STRATA_EUNSUPPORTED, "chat template: line 3: the tag 'include' is not supported"},
        {"{{ 1 | batch }}", STRATA_EUNSUPPORTED, "line 1: the filter 'batch' is not supported"},
        {"{{ 1 is odder }}", STRATA_EUNSUPPORTED, "line 1: the test 'odder' is not supported"},
        {"\n{{ messages[0].name.first }}", STRATA_EINVAL, "line 2: 'name' is undefined"},
        {"{% if 1 %}\nx", STRATA_EFORMAT, "line 2: the template ends where 'elif' is missing"},
        {"{{ 1 + }}", STRATA_EFORMAT, "line 1: expected a value, not '}}'"},
        {"{{ 'open }}", STRATA_EFORMAT, "line 1: the string is never closed"},
        {"{{ raise_exception('no\\nsystem') }}", STRATA_EINVAL, "refuses the conversation: no?system"},
        {"{{ 'a' * 100000000 }}", STRATA_ELIMIT, "limit"},
        {"{% set l = range(9000) %}{% for i in l %}{% for j in l %}{% endfor %}{% endfor %}", STRATA_ELIMIT, "steps"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", STRATA_ELIMIT, "levels deep"},
        {"{{ 9223372036854775807 * 2 }}", STRATA_EUNSUPPORTED, "beyond 64 bits"},
        {"\xFF", STRATA_EFORMAT, "not UTF-8"},
        {"{{ 'x'.replace('x', 'y', times=2) }}", STRATA_EUNSUPPORTED, "'replace' does not take the argument 'times'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct strata_errmsg em = {0};
        struct buf out;
        buf_init(&out, 1 << 20);
        assert_int_equal(buf_append_str(&out, "kept", NULL), STRATA_OK);
        strata_err rc = render(rows[i].source, false, &out, &em);
        if (rc != rows[i].code || !strstr(em.text, rows[i].says)) fail_msg("row %zu: %d, %s", i, rc, em.text);
        assert_string_equal(buf_cstr(&out), "kept"); /* a failure leaves nothing half done */
        assert_int_equal(out.len, 4);
        buf_deinit(&out);
    }
}

static void test_output_limit(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct buf out;
    buf_init(&out, 100);
    assert_int_equal(render("{{ 'x' * 101 }}", false, &out, &em), STRATA_ELIMIT);
    assert_int_equal(render("{{ 'x' * 100 }}", false, &out, &em), STRATA_OK);
    buf_deinit(&out);
}

static void test_source_limit(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct chat_template *t = NULL;
    size_t len = ((size_t)1 << 20) + 1;
    char *source = malloc(len);
    assert_non_null(source);
    memset(source, 'x', len);
    assert_int_equal(chat_template_new(source, len, &t, &em), STRATA_ELIMIT);
    assert_int_equal(chat_template_new(source, len - 1, &t, &em), STRATA_OK);
    chat_template_free(t);
    free(source);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_output_limit),
        cmocka_unit_test(test_source_limit),
    };
    return cmocka_run_group_tests_name("chat templates", tests, NULL, NULL);
}

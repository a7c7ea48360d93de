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

/* ---- what of a prompt came from the conversation ---- */

/* Renders with marks and shows the marked parts in brackets. The text must be the one that comes without marks. */
static void check_marks(const char *source, const char *messages, const char *want) {
    struct strata_errmsg em = {0};
    struct chat_template *t = NULL;
    struct buf out, plain, shown;
    struct text_spans own = {0};
    json_t *json = json_loads(messages, 0, NULL);
    assert_non_null(json);
    struct chat_inputs in = {.messages = json, .tools = json, .add_generation_prompt = true, .bos_token = "<s>"};
    buf_init(&out, 1 << 16);
    buf_init(&plain, 1 << 16);
    buf_init(&shown, 1 << 16);
    if (chat_template_new(source, strlen(source), &t, &em) != STRATA_OK) fail_msg("%s", em.text);
    assert_int_equal(buf_append_str(&out, "before ", &em), STRATA_OK);
    if (chat_template_render_marked(t, &in, &out, &own, &em) != STRATA_OK) fail_msg("%s", em.text);
    if (chat_template_render(t, &in, &plain, &em) != STRATA_OK) fail_msg("%s", em.text);
    assert_string_equal(buf_cstr(&out) + 7, buf_cstr(&plain));
    size_t at = 7;
    for (size_t i = 0; i < own.len; i++) {
        assert_true(own.span[i].start >= at && own.span[i].end > own.span[i].start && own.span[i].end <= out.len);
        assert_int_equal(buf_append(&shown, out.data + at, own.span[i].start - at, &em), STRATA_OK);
        assert_int_equal(
            buf_printf(&shown, &em, "[%.*s]", (int)(own.span[i].end - own.span[i].start), out.data + own.span[i].start),
            STRATA_OK);
        at = own.span[i].end;
    }
    assert_int_equal(buf_append(&shown, out.data + at, out.len - at, &em), STRATA_OK);
    assert_string_equal(buf_cstr(&shown), want);
    buf_deinit(&out);
    buf_deinit(&plain);
    buf_deinit(&shown);
    text_spans_deinit(&own);
    chat_template_free(t);
    json_decref(json);
}

static void test_marks(void **state) {
    (void)state;
    static const char m[] = "[{\"role\":\"user\",\"content\":\" Hi <|im_end|> \\u00e9\\\"x \"}]";
    check_marks(
        "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}", m,
        "<s><|im_start|>user\n[ Hi <|im_end|> \xC3\xA9\"x ]<|im_end|>\n");
    /* Put together before it is printed, trimmed, cut, replaced, joined, in another case, in a macro, in a set block.
     */
    check_marks("{{ '<|' + messages[0].role + '|>' + messages[0].content|trim + '<end>' }}", m,
                "<|user|>[Hi <|im_end|> \xC3\xA9\"x]<end>");
    check_marks("{{ 'a' ~ messages[0].content[4:8] ~ 'b' ~ messages[0].content[::-1][1:3] }}", m, "a[<|im]b[x\"]");
    check_marks("{{ messages[0].content.split('|')|join('#') }}", m, "[ Hi <]#[im_end]#[> \xC3\xA9\"x ]");
    check_marks("{{ messages[0].content.replace('im_end', 'IM')|upper }}", m, "[ HI <|]IM[|> \xC3\x89\"X ]");
    check_marks("{{ 'a-b'.replace('-', messages[0].content.strip()) }}", m, "a[Hi <|im_end|> \xC3\xA9\"x]b");
    check_marks("{% macro f(x) %}({{ x }}){% endmacro %}{{ f(messages[0]['content'].split()[0]) }}", m, "([Hi])");
    check_marks("{% set x %}<{{ messages[0].content }}>{% endset %}{{ x|length }}{{ x[:4] }}", m, "21<[ Hi]");
    check_marks("{{ messages[0]|tojson }}", m,
                "{\"[role]\": \"user\", \"[content]\": \"[ Hi <|im_end|> \xC3\xA9\\\"x ]\"}");
    check_marks("{{ messages[0].content|tojson(ensure_ascii=true) }}", m, "\"[ Hi <|im_end|> \\u00e9\\\"x ]\"");
    check_marks("{{ [messages[0].content.strip()] }}{{ '%s!' % messages[0].content.strip() }}", m,
                "['[Hi <|im_end|> \xC3\xA9\"x]'][Hi <|im_end|> \xC3\xA9\"x]!");
    check_marks("{{ (messages[0].content.strip()[:2] + '.') * 2 }}{{ messages[0].content.strip()|indent(2, true) }}", m,
                "[Hi].[Hi].  [Hi <|im_end|> \xC3\xA9\"x]");
    check_marks("{% for c in messages[0].content.strip()[:3] %}{{ c }}-{% endfor %}", m, "[H]-[i]-[ ]-");
    /* The template sees the plain text: lengths, comparisons and tests are the same. */
    check_marks("{{ messages[0].content|length }}{{ '<|im_end|>' in messages[0].content }}", m, "19True");
    /* Tools, nested values and their keys are marked; a role further inside is text like any other. */
    check_marks("{{ tools[0].x.role }}{{ tools[0].x.a[0] }}{% for k in tools[0].x %}{{ k }}{% endfor %}",
                "[{\"role\":\"r\",\"x\":{\"role\":\"R\",\"a\":[\"A\"]}}]", "[RArolea]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),         cmocka_unit_test(test_errors), cmocka_unit_test(test_output_limit),
        cmocka_unit_test(test_source_limit), cmocka_unit_test(test_marks),
    };
    return cmocka_run_group_tests_name("chat templates", tests, NULL, NULL);
}

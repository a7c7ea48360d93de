/* Request bodies: what is accepted, what is refused, and that a refusal names the field. */
#include "base/buf.h"
#include "serve/api_request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MSG "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define CHAT(more) "{" MSG "," more "}"
#define TEXT(more) "{\"prompt\":\"hi\"," more "}"

struct bad_case {
    enum api_endpoint endpoint;
    const char *body;
    const char *code;
    const char *param;
    const char *text; /* part of the message */
};

static const struct bad_case bad[] = {
    {API_CHAT, "", "invalid_json", "", "empty"},
    {API_CHAT, " \r\n\t", "invalid_json", "", "empty"},
    {API_CHAT, "not json", "invalid_json", "", "not valid JSON"},
    {API_CHAT, "[]", "invalid_json", "", "must be a JSON object"},
    {API_CHAT, "\"text\"", "invalid_json", "", "not valid JSON"},
    {API_CHAT, "{\"a\":1,\"a\":2}", "invalid_json", "", "not valid JSON"},
    {API_CHAT, "{" MSG "} trailing", "invalid_json", "", "not valid JSON"},
    {API_CHAT, "{\"model\":\"\xff\"}", "invalid_json", "", "not valid JSON"},
    {API_CHAT, "{\"model\":\"a\\u0000b\"}", "invalid_json", "", "not valid JSON"},
    {API_CHAT, CHAT("\"seed\":99999999999999999999"), "invalid_json", "", "not valid JSON"},
    {API_CHAT, CHAT("\"temperature\":1e999"), "invalid_json", "", "not valid JSON"},
    {API_CHAT, CHAT("\"temperature\":NaN"), "invalid_json", "", "not valid JSON"},
    {API_CHAT, "{}", "invalid_value", "messages", "messages is missing"},
    {API_CHAT, "{\"messages\":null}", "invalid_value", "messages", "missing"},
    {API_CHAT, "{\"messages\":\"hi\"}", "invalid_value", "messages", "must be an array, not a string"},
    {API_CHAT, "{\"messages\":[]}", "invalid_value", "messages", "empty"},
    {API_CHAT, "{\"messages\":[7]}", "invalid_value", "messages[0]", "must be an object"},
    {API_CHAT, "{\"messages\":[{\"content\":\"x\"}]}", "invalid_value", "messages[0]", "messages[0].role is missing"},
    {API_CHAT, "{\"messages\":[{\"role\":5,\"content\":\"x\"}]}", "invalid_value", "messages[0]", "a string, not"},
    {API_CHAT, "{\"messages\":[{\"role\":\"boss\",\"content\":\"x\"}]}", "invalid_value", "messages[0]", "\"boss\""},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "invalid_value", "messages[0]", "content is missing"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":{}}]}", "invalid_value", "messages[0]", "a string, not"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[\"x\"]}]}", "invalid_value", "messages[0].content[0]",
     "must be an object"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "unsupported_parameter",
     "messages[0].content[0]", "\"image_url\""},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":4}]}]}", "invalid_value",
     "messages[0].content[0]", "a string, not a whole number"},
    {API_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", "unsupported_parameter", "messages[0]",
     "tool_calls is not supported yet"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"name\":[]}]}", "invalid_value", "messages[0]",
     "name must be a string"},
    {API_COMPLETIONS, "{}", "invalid_value", "prompt", "prompt is missing"},
    {API_COMPLETIONS, "{\"prompt\":5}", "invalid_value", "prompt", "must be a string, not a whole number"},
    {API_COMPLETIONS, "{\"prompt\":{}}", "invalid_value", "prompt", "not an object"},
    {API_COMPLETIONS, "{\"prompt\":[]}", "invalid_value", "prompt", "empty"},
    {API_COMPLETIONS, "{\"prompt\":[\"a\",\"b\"]}", "unsupported_parameter", "prompt", "2 prompts"},
    {API_COMPLETIONS, "{\"prompt\":[[1],[2]]}", "unsupported_parameter", "prompt", "2 prompts"},
    {API_COMPLETIONS, "{\"prompt\":[1,\"b\"]}", "invalid_value", "prompt", "prompt[1]"},
    {API_COMPLETIONS, "{\"prompt\":[1,-2]}", "invalid_value", "prompt", "prompt[1]"},
    {API_COMPLETIONS, "{\"prompt\":[1,2147483648]}", "invalid_value", "prompt", "prompt[1]"},
    {API_COMPLETIONS, "{\"prompt\":[1.5]}", "invalid_value", "prompt", "array of one string"},
    {API_COMPLETIONS, "{\"prompt\":[[]]}", "invalid_value", "prompt", "array of one string"},
    {API_CHAT, CHAT("\"model\":1"), "invalid_value", "model", "must be a string, not a whole number"},
    {API_CHAT, CHAT("\"max_tokens\":0"), "invalid_value", "max_tokens", "at least 1"},
    {API_CHAT, CHAT("\"max_tokens\":-1"), "invalid_value", "max_tokens", "max_tokens is -1"},
    {API_CHAT, CHAT("\"max_tokens\":1.5"), "invalid_value", "max_tokens", "a whole number, not a number"},
    {API_CHAT, CHAT("\"max_tokens\":\"9\""), "invalid_value", "max_tokens", "not a string"},
    {API_CHAT, CHAT("\"max_completion_tokens\":true"), "invalid_value", "max_completion_tokens", "not a boolean"},
    {API_CHAT, CHAT("\"temperature\":\"1\""), "invalid_value", "temperature", "a number, not a string"},
    {API_CHAT, CHAT("\"temperature\":-0.1"), "invalid_value", "temperature", "from 0 to 2"},
    {API_CHAT, CHAT("\"temperature\":2.1"), "invalid_value", "temperature", "from 0 to 2"},
    {API_CHAT, CHAT("\"top_p\":1.1"), "invalid_value", "top_p", "from 0 to 1"},
    {API_CHAT, CHAT("\"top_p\":[]"), "invalid_value", "top_p", "not an array"},
    {API_CHAT, CHAT("\"top_k\":-2"), "invalid_value", "top_k", "-2"},
    {API_CHAT, CHAT("\"top_k\":1.0"), "invalid_value", "top_k", "whole number"},
    {API_CHAT, CHAT("\"min_p\":-1"), "invalid_value", "min_p", "from 0 to 1"},
    {API_CHAT, CHAT("\"repeat_penalty\":0"), "invalid_value", "repeat_penalty", "from 0.01"},
    {API_CHAT, CHAT("\"repeat_last_n\":-1"), "invalid_value", "repeat_last_n", "-1"},
    {API_CHAT, CHAT("\"repeat_last_n\":8193"), "invalid_value", "repeat_last_n", "from 0 to 8192"},
    {API_CHAT, CHAT("\"seed\":\"7\""), "invalid_value", "seed", "whole number, not a string"},
    {API_CHAT, CHAT("\"seed\":1.5"), "invalid_value", "seed", "whole number, not a number"},
    {API_CHAT, CHAT("\"stop\":5"), "invalid_value", "stop", "string or an array"},
    {API_CHAT, CHAT("\"stop\":[5]"), "invalid_value", "stop", "string or an array"},
    {API_CHAT, CHAT("\"stop\":\"\""), "invalid_value", "stop", "empty"},
    {API_CHAT, CHAT("\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]"), "invalid_value", "stop", "at most 4"},
    {API_CHAT, CHAT("\"stream\":1"), "invalid_value", "stream", "a boolean, not a whole number"},
    {API_CHAT, CHAT("\"stream\":true,\"stream_options\":true"), "invalid_value", "stream_options", "an object"},
    {API_CHAT, CHAT("\"stream\":true,\"stream_options\":{\"include_usage\":1}"), "invalid_value", "stream_options",
     "stream_options.include_usage must be a boolean"},
    {API_CHAT, CHAT("\"stream_options\":{}"), "invalid_value", "stream_options", "only when stream is true"},
    {API_CHAT, CHAT("\"ignore_eos\":\"yes\""), "invalid_value", "ignore_eos", "boolean"},
    {API_CHAT, CHAT("\"n\":2"), "unsupported_parameter", "n", "n is not supported yet, except as 1"},
    {API_CHAT, CHAT("\"n\":\"1\""), "invalid_value", "n", "a number, not a string"},
    {API_CHAT, CHAT("\"presence_penalty\":0.5"), "unsupported_parameter", "presence_penalty", "not supported yet"},
    {API_CHAT, CHAT("\"frequency_penalty\":-2"), "unsupported_parameter", "frequency_penalty", "not supported yet"},
    {API_CHAT, CHAT("\"logprobs\":true"), "unsupported_parameter", "logprobs", "not supported yet"},
    {API_COMPLETIONS, TEXT("\"logprobs\":3"), "unsupported_parameter", "logprobs", "not supported yet"},
    {API_CHAT, CHAT("\"top_logprobs\":3"), "unsupported_parameter", "top_logprobs", "not supported yet"},
    {API_CHAT, CHAT("\"logit_bias\":{\"5\":1}"), "unsupported_parameter", "logit_bias", "not supported yet"},
    {API_CHAT, CHAT("\"tools\":[{}]"), "unsupported_parameter", "tools", "not supported yet"},
    {API_CHAT, CHAT("\"tool_choice\":\"required\""), "unsupported_parameter", "tool_choice", "not supported yet"},
    {API_CHAT, CHAT("\"response_format\":{\"type\":\"json_object\"}"), "unsupported_parameter", "response_format",
     "not supported yet"},
    {API_COMPLETIONS, TEXT("\"echo\":true"), "unsupported_parameter", "echo", "not supported yet"},
    {API_COMPLETIONS, TEXT("\"best_of\":3"), "unsupported_parameter", "best_of", "not supported yet"},
    {API_COMPLETIONS, TEXT("\"suffix\":\"end\""), "unsupported_parameter", "suffix", "not supported yet"},
};

static void refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct api_request *r = NULL;
        struct api_problem p;
        strata_err rc = api_request_parse(bad[i].endpoint, bad[i].body, strlen(bad[i].body), &r, &p);
        if (!rc || p.status != 400 || !p.code || strcmp(p.code, bad[i].code) != 0 ||
            strcmp(p.param, bad[i].param) != 0 || !strstr(p.em.text, bad[i].text))
            fail_msg("case %zu %s: rc %d status %u code %s param '%s' text '%s'", i, bad[i].body, (int)rc, p.status,
                     rc && p.code ? p.code : "-", rc ? p.param : "", rc ? p.em.text : "");
        assert_null(r);
    }
}

static struct api_request *parse(enum api_endpoint endpoint, const char *body) {
    struct api_request *r = NULL;
    struct api_problem p;
    if (api_request_parse(endpoint, body, strlen(body), &r, &p)) fail_msg("%s: %s", body, p.em.text);
    return r;
}

static void neutral_values_pass(void **state) {
    (void)state;
    static const char *const fields[] = {
        "\"n\":1",
        "\"n\":null",
        "\"n\":1.0",
        "\"presence_penalty\":0",
        "\"frequency_penalty\":0.0",
        "\"logprobs\":false",
        "\"logprobs\":null",
        "\"top_logprobs\":0",
        "\"logit_bias\":{}",
        "\"logit_bias\":null",
        "\"tools\":[]",
        "\"tool_choice\":\"auto\"",
        "\"tool_choice\":\"none\"",
        "\"response_format\":{\"type\":\"text\"}",
        "\"echo\":false",
        "\"best_of\":1",
        "\"suffix\":\"\"",
        "\"stop\":null",
        "\"stop\":[]",
        "\"seed\":null",
        "\"max_tokens\":null",
        "\"temperature\":null",
        "\"stream\":null",
        "\"stream_options\":null",
        "\"user\":5",
        "\"metadata\":{\"a\":[1]}",
        "\"store\":true",
        "\"something_new\":{\"x\":1}",
        "\"top_k\":-1",
        "\"top_k\":null",
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        char body[256];
        snprintf(body, sizeof body, "{" MSG ",\"prompt\":\"hi\",%s}", fields[i]);
        api_request_free(parse(API_CHAT, body));
        struct api_request *r = parse(API_COMPLETIONS, body);
        assert_false(r->stream);
        assert_int_equal(r->n_stop, 0);
        assert_false(r->has_seed);
        assert_int_equal(r->max_tokens, 0);
        assert_int_equal(r->sampling.top_k, 0);
        assert_true(r->sampling.temperature > 0.999f && r->sampling.temperature < 1.001f);
        api_request_free(r);
    }
}

static void every_field_arrives(void **state) {
    (void)state;
    struct api_request *r =
        parse(API_CHAT,
              CHAT("\"model\":\"m\",\"max_tokens\":5,\"max_completion_tokens\":7,\"temperature\":0.5,\"top_p\":0.25,"
                   "\"top_k\":40,\"min_p\":0.125,\"repeat_penalty\":1.5,\"repeat_last_n\":9,\"seed\":-3,"
                   "\"stop\":[\"a\",\"bc\"],\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                   "\"ignore_eos\":true"));
    assert_string_equal(r->model, "m");
    assert_int_equal(r->max_tokens, 7);
    assert_memory_equal(&r->sampling.temperature, &(float){0.5f}, sizeof(float));
    assert_memory_equal(&r->sampling.top_p, &(float){0.25f}, sizeof(float));
    assert_memory_equal(&r->sampling.min_p, &(float){0.125f}, sizeof(float));
    assert_memory_equal(&r->sampling.repeat_penalty, &(float){1.5f}, sizeof(float));
    assert_int_equal(r->sampling.top_k, 40);
    assert_int_equal(r->sampling.repeat_last_n, 9);
    assert_true(r->has_seed);
    assert_true(r->sampling.seed == (uint64_t)-3);
    assert_int_equal(r->n_stop, 2);
    assert_string_equal(r->stop[1], "bc");
    assert_true(r->stream && r->include_usage && r->ignore_eos);
    api_request_free(r);
    r = parse(API_CHAT, CHAT("\"max_tokens\":9000000000000,\"top_p\":0"));
    assert_int_equal(r->max_tokens, UINT32_MAX);
    assert_true(r->sampling.top_p > 0);
    api_request_free(r);
}

static void messages_are_normalised(void **state) {
    (void)state;
    struct api_request *r = parse(
        API_CHAT, "{\"messages\":[{\"role\":\"developer\",\"content\":\"be\"},{\"role\":\"user\",\"content\":["
                  "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}],\"name\":\"Ann\"},"
                  "{\"role\":\"assistant\",\"content\":null},{\"role\":\"tool\",\"content\":\"\",\"tool_call_id\":"
                  "\"c1\"}]}");
    char *text = json_dumps(r->messages, JSON_COMPACT);
    assert_string_equal(text,
                        "[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":\"a\\nb\",\"name\":"
                        "\"Ann\"},{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"tool\",\"content\":\"\","
                        "\"tool_call_id\":\"c1\"}]");
    free(text);
    api_request_free(r);
}

static void prompts(void **state) {
    (void)state;
    static const char *const texts[] = {"{\"prompt\":\"hi\"}", "{\"prompt\":[\"hi\"]}"};
    for (size_t i = 0; i < 2; i++) {
        struct api_request *r = parse(API_COMPLETIONS, texts[i]);
        assert_string_equal(r->prompt, "hi");
        assert_int_equal(r->prompt_len, 2);
        api_request_free(r);
    }
    static const char *const ids[] = {"{\"prompt\":[4,0,2147483647]}", "{\"prompt\":[[4,0,2147483647]]}"};
    for (size_t i = 0; i < 2; i++) {
        struct api_request *r = parse(API_COMPLETIONS, ids[i]);
        assert_null(r->prompt);
        assert_int_equal(r->n_prompt_ids, 3);
        assert_int_equal(r->prompt_ids[0], 4);
        assert_int_equal(r->prompt_ids[2], INT32_MAX);
        api_request_free(r);
    }
}

/* Bodies that would take far more memory than their size are refused before they are parsed. */
static void bulk(void **state) {
    (void)state;
    static const struct {
        const char *head, *unit, *tail, *text;
        size_t n;
    } cases[] = {
        {"{\"x\":[", "[],", "1]," MSG "}", "arrays and objects", API_MAX_CONTAINERS},
        {"{\"x\":[", "{},", "1]," MSG "}", "arrays and objects", API_MAX_CONTAINERS},
        {"{\"x\":[", "1,", "1]," MSG "}", "values", API_MAX_VALUES},
        {"{\"x\":", "[", "", "deep", API_MAX_DEPTH},
        {"", "[", "", "deep", 1000000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b;
        struct strata_errmsg em;
        buf_init(&b, 16 << 20);
        buf_append_str(&b, cases[i].head, &em);
        for (size_t k = 0; k < cases[i].n; k++) assert_int_equal(buf_append_str(&b, cases[i].unit, &em), 0);
        buf_append_str(&b, cases[i].tail, &em);
        struct api_request *r = NULL;
        struct api_problem p;
        assert_int_not_equal(api_request_parse(API_CHAT, b.data, b.len, &r, &p), 0);
        if (p.status != 400 || !strstr(p.em.text, cases[i].text)) fail_msg("case %zu: %s", i, p.em.text);
        buf_deinit(&b);
    }
    /* Brackets and commas inside a string are text. */
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 16 << 20);
    buf_append_str(&b, "{\"prompt\":\"\\\"", &em);
    for (size_t k = 0; k < 2 * API_MAX_VALUES; k++) assert_int_equal(buf_append_str(&b, "[,", &em), 0);
    buf_append_str(&b, "\"}", &em);
    api_request_free(parse(API_COMPLETIONS, b.data));
    buf_deinit(&b);
}

/* Every prefix of a valid body is refused, none is read past its end (the sanitizers watch exact copies). */
static void every_prefix(void **state) {
    (void)state;
    static const char body[] = CHAT("\"stop\":[\"\\u00e9\\\\\"],\"seed\":12,\"temperature\":1.5e0,\"stream\":true");
    for (size_t n = 0; n < sizeof body; n++) {
        char *copy = malloc(n ? n : 1);
        assert_non_null(copy);
        memcpy(copy, body, n);
        struct api_request *r = NULL;
        struct api_problem p;
        strata_err rc = api_request_parse(API_CHAT, copy, n, &r, &p);
        free(copy);
        if (n + 1 == sizeof body)
            assert_int_equal(rc, 0);
        else
            assert_int_not_equal(rc, 0);
        api_request_free(r);
    }
}

static size_t allocations_left;

static void *scarce_malloc(size_t n) {
    if (allocations_left == 0) return NULL;
    allocations_left--;
    return malloc(n);
}

/* A failed allocation of any JSON value is an error and leaks nothing (the sanitizers watch). */
static void memory_runs_out(void **state) {
    (void)state;
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}],"
        "\"name\":\"n\",\"tool_call_id\":\"t\"},{\"role\":\"assistant\",\"content\":\"b\"}],\"stop\":[\"x\"]}";
    json_set_alloc_funcs(scarce_malloc, free);
    bool done = false;
    for (size_t n = 0; n < 1000 && !done; n++) {
        struct api_request *r = NULL;
        struct api_problem p;
        allocations_left = n;
        done = api_request_parse(API_CHAT, body, strlen(body), &r, &p) == STRATA_OK;
        if (!done) assert_true(!r && p.status >= 400 && p.em.text[0]);
        api_request_free(r);
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(done);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(neutral_values_pass),
        cmocka_unit_test(every_field_arrives),
        cmocka_unit_test(messages_are_normalised),
        cmocka_unit_test(prompts),
        cmocka_unit_test(bulk),
        cmocka_unit_test(every_prefix),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Response objects and SSE frames, byte for byte. */
#include "serve/api_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct api_answer chat = {API_CHAT, "chatcmpl-1", "m", 5, false};
static const struct api_answer chat_usage = {API_CHAT, "chatcmpl-1", "m", 5, true};
static const struct api_answer text = {API_COMPLETIONS, "cmpl-1", "m", 5, false};
static const struct api_usage usage = {3, 4, 2};

#define HEAD                                                                                                           \
    "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"m\",\"choices\":["
#define TEXT_HEAD "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\",\"choices\":["
#define USAGE                                                                                                          \
    "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4,\"total_tokens\":7,"                                       \
    "\"prompt_tokens_details\":{\"cached_tokens\":2}}"

static void expect(struct buf *out, strata_err rc, const char *want) {
    assert_int_equal(rc, 0);
    assert_string_equal(buf_cstr(out), want);
    buf_clear(out);
}

static void chunks(void **state) {
    (void)state;
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 4096);
    expect(&b, api_json_chunk_role(&chat, &b, &em),
           HEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                "\"finish_reason\":null}]}\n\n");
    expect(&b, api_json_chunk_role(&text, &b, &em), "");
    /* Line ends in the text must not end the event. */
    expect(&b, api_json_chunk_text(&chat, "a\n\n\r\"\\\0z\xc3\xa9", 10, &b, &em),
           HEAD "{\"index\":0,\"delta\":{\"content\":\"a\\n\\n\\r\\\"\\\\\\u0000z\xc3\xa9\"},\"logprobs\":null,"
                "\"finish_reason\":null}]}\n\n");
    expect(&b, api_json_chunk_text(&text, "ab", 2, &b, &em),
           TEXT_HEAD "{\"index\":0,\"text\":\"ab\",\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    expect(&b, api_json_chunk_finish(&chat, "length", &b, &em),
           HEAD "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n");
    expect(&b, api_json_chunk_finish(&chat_usage, "stop", &b, &em),
           HEAD "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null}\n\n");
    expect(&b, api_json_chunk_usage(&chat_usage, &usage, &b, &em), HEAD "]," USAGE "}\n\n");
    buf_deinit(&b);
}

static void answers(void **state) {
    (void)state;
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 4096);
    expect(
        &b, api_json_answer(&chat, "hi", 2, "stop", &usage, &b, &em),
        "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":0,"
        "\"message\":{\"role\":\"assistant\",\"content\":\"hi\",\"refusal\":null},\"logprobs\":null,"
        "\"finish_reason\":\"stop\"}]," USAGE "}");
    expect(&b, api_json_answer(&text, "", 0, "length", &usage, &b, &em),
           "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":0,"
           "\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}]," USAGE "}");
    expect(&b, api_json_model("a/b", 9, false, &b, &em),
           "{\"id\":\"a/b\",\"object\":\"model\",\"created\":9,\"owned_by\":\"strata\"}");
    expect(
        &b, api_json_model("a/b", 9, true, &b, &em),
        "{\"object\":\"list\",\"data\":[{\"id\":\"a/b\",\"object\":\"model\",\"created\":9,\"owned_by\":\"strata\"}]}");
    buf_deinit(&b);
}

static void errors(void **state) {
    (void)state;
    struct buf b;
    struct strata_errmsg em;
    struct api_problem p;
    buf_init(&b, 4096);
    assert_int_equal(api_problem_set(&p, STRATA_EFORMAT, 400, "invalid_value", "n", "bad \"%s\"", "x"), STRATA_EFORMAT);
    expect(&b, api_json_error(&p, &b, &em),
           "{\"error\":{\"message\":\"bad \\\"x\\\"\",\"type\":\"invalid_request_error\",\"param\":\"n\",\"code\":"
           "\"invalid_value\"}}");
    api_problem_set(&p, STRATA_EPEER, 503, "stage_lost", NULL, "gone");
    expect(&b, api_json_chunk_error(&p, &b, &em),
           "data: "
           "{\"error\":{\"message\":\"gone\",\"type\":\"server_error\",\"param\":null,\"code\":\"stage_lost\"}}\n\n");
    /* A message that was cut inside a character still gives an answer. */
    api_problem_set(&p, STRATA_EPEER, 500, NULL, NULL, "half \xc3");
    assert_int_equal(api_json_error(&p, &b, &em), 0);
    assert_non_null(strstr(b.data, "\"code\":null"));
    buf_deinit(&b);
}

static void ids(void **state) {
    (void)state;
    char a[64], b[64];
    struct strata_errmsg em;
    assert_int_equal(api_json_id("x-", a, sizeof a, &em), 0);
    assert_int_equal(api_json_id("x-", b, sizeof b, &em), 0);
    assert_int_equal(strlen(a), 26);
    assert_string_not_equal(a, b);
    assert_int_equal(api_json_id("x-", a, 26, &em), STRATA_EINTERNAL);
}

static size_t allocations_left;

static void *scarce_malloc(size_t n) {
    if (allocations_left == 0) return NULL;
    allocations_left--;
    return malloc(n);
}

static strata_err everything(struct buf *b, struct strata_errmsg *em) {
    struct api_problem p;
    api_problem_set(&p, STRATA_EPEER, 503, "stage_lost", NULL, "gone");
    strata_err rc = api_json_answer(&chat, "hi", 2, "stop", &usage, b, em);
    if (!rc) rc = api_json_answer(&text, "hi", 2, "stop", &usage, b, em);
    if (!rc) rc = api_json_chunk_role(&chat_usage, b, em);
    if (!rc) rc = api_json_chunk_text(&chat_usage, "hi", 2, b, em);
    if (!rc) rc = api_json_chunk_finish(&chat_usage, "stop", b, em);
    if (!rc) rc = api_json_chunk_usage(&chat_usage, &usage, b, em);
    if (!rc) rc = api_json_model("m", 1, true, b, em);
    if (!rc) rc = api_json_error(&p, b, em);
    return rc;
}

/* A failed allocation of any JSON value is an error and leaks nothing (the sanitizers watch). */
static void memory_runs_out(void **state) {
    (void)state;
    struct buf b;
    struct strata_errmsg em;
    bool done = false;
    buf_init(&b, 1 << 16);
    json_set_alloc_funcs(scarce_malloc, free);
    for (size_t n = 0; n < 10000 && !done; n++) {
        allocations_left = n;
        buf_clear(&b);
        done = everything(&b, &em) == STRATA_OK;
    }
    json_set_alloc_funcs(malloc, free);
    buf_deinit(&b);
    assert_true(done);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks), cmocka_unit_test(answers),         cmocka_unit_test(errors),
        cmocka_unit_test(ids),    cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

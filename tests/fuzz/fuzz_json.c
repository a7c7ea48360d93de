/*
 * Any bytes into the JSON reader, beside jansson's own: both must take the same documents and read the same values.
 * Known differences, which are wanted: ours refuses NUL bytes between tokens and deeper nesting.
 */
#include "base/jsonx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

static size_t brackets(const uint8_t *data, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < size; i++) n += data[i] == '{' || data[i] == '[';
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct strata_errmsg em = {0};
    json_error_t error;
    json_t *ours = NULL, *again = NULL;
    struct buf text;
    json_t *theirs = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, &error);
    strata_err rc = jsonx_parse((const char *)data, size, &ours, &em);
    require((rc == STRATA_OK) == (ours != NULL), "a result without success, or the reverse");
    require(rc == STRATA_OK || em.text[0], "an error without a text");
    bool differs = (size > 0 && memchr(data, 0, size)) || brackets(data, size) >= 512;
    if (!differs) {
        require((ours != NULL) == (theirs != NULL), "one reader takes it, the other does not");
        require(!ours || json_equal(ours, theirs), "the values differ");
    }
    buf_init(&text, 1 << 26);
    if (ours) {
        require(jsonx_dump(ours, true, &text, &em) == STRATA_OK, "cannot be written");
        require(jsonx_parse(buf_cstr(&text), text.len, &again, &em) == STRATA_OK, "cannot be read back");
        require(json_equal(ours, again), "changed by writing and reading");
    }
    buf_deinit(&text);
    json_decref(again);
    json_decref(ours);
    json_decref(theirs);
    return 0;
}

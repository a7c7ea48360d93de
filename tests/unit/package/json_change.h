/* Changes to JSON documents, for tests. */
#ifndef JSON_CHANGE_H
#define JSON_CHANGE_H

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Sets one place, such as "layers/1/path", to a value, which is taken over. A NULL value removes it; list places have
 * one digit. */
static inline void change(json_t *root, const char *place, json_t *value) {
    char key[64];
    json_t *at = root;
    const char *p = place;
    for (;;) {
        size_t n = strcspn(p, "/");
        snprintf(key, sizeof key, "%.*s", (int)n, p);
        p += n;
        bool last = *p == '\0';
        if (!last) p++;
        if (json_is_array(at)) {
            size_t i = (size_t)(key[0] - '0');
            if (last) {
                if (value)
                    assert_int_equal(json_array_set_new(at, i, value), 0);
                else
                    assert_int_equal(json_array_remove(at, i), 0);
                return;
            }
            at = json_array_get(at, i);
        } else {
            if (last) {
                if (value)
                    assert_int_equal(json_object_set_new(at, key, value), 0);
                else
                    assert_int_equal(json_object_del(at, key), 0);
                return;
            }
            at = json_object_get(at, key);
        }
        assert_non_null(at);
    }
}

#endif

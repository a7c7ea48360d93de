/* Stop strings, as one Knuth-Morris-Pratt automaton each. See api_stop.h. */
#include "serve/api_stop.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(API_MAX_STOP_BYTES <= UINT16_MAX, "fall-back states are 16 bits");

static strata_err add_word(struct api_stop *s, const char *text, struct strata_errmsg *em) {
    size_t len = strlen(text);
    if (len == 0 || len > API_MAX_STOP_BYTES)
        return err_set(em, STRATA_EINVAL, "a stop string must have 1 to %d bytes", API_MAX_STOP_BYTES);
    char *copy = malloc(len + 1);
    uint16_t *fall = calloc(len, sizeof *fall);
    if (!copy || !fall) {
        free(copy);
        free(fall);
        return err_nomem(em, "a stop string");
    }
    memcpy(copy, text, len + 1);
    for (size_t i = 1, k = 0; i < len; i++) {
        while (k && copy[i] != copy[k]) k = fall[k - 1];
        if (copy[i] == copy[k]) k++;
        fall[i] = (uint16_t)k;
    }
    s->word[s->n].text = copy;
    s->word[s->n].fall = fall;
    s->word[s->n].len = len;
    s->word[s->n].state = 0;
    s->n++;
    return STRATA_OK;
}

strata_err api_stop_init(struct api_stop *s, const char *const *words, size_t n, struct strata_errmsg *em) {
    *s = (struct api_stop){0};
    /* The text of one push is held too until it is sorted out. */
    buf_init(&s->held, API_MAX_STOP_BYTES + (1u << 20));
    strata_err rc =
        n > API_MAX_STOPS ? err_set(em, STRATA_EINVAL, "at most %d stop strings", API_MAX_STOPS) : STRATA_OK;
    for (size_t i = 0; i < n && !rc; i++) rc = add_word(s, words[i], em);
    if (rc) api_stop_deinit(s);
    return rc;
}

void api_stop_deinit(struct api_stop *s) {
    for (size_t i = 0; i < s->n; i++) {
        free(s->word[i].text);
        free(s->word[i].fall);
    }
    buf_deinit(&s->held);
    s->n = 0;
}

/* Feeds one byte to every automaton. Returns the length of the longest stop string that ends with it, or 0. */
static size_t feed(struct api_stop *s, char c) {
    size_t hit = 0;
    for (size_t i = 0; i < s->n; i++) {
        size_t k = s->word[i].state;
        while (k && s->word[i].text[k] != c) k = s->word[i].fall[k - 1];
        if (s->word[i].text[k] == c) k++;
        s->word[i].state = k;
        if (k == s->word[i].len && k > hit) hit = k;
    }
    return hit;
}

strata_err api_stop_push(struct api_stop *s, const char *text, size_t len, struct buf *out, struct strata_errmsg *em) {
    if (s->matched) return STRATA_OK;
    size_t old = s->held.len;
    strata_err rc = buf_append(&s->held, text, len, em);
    size_t certain = 0;
    for (size_t i = 0; i < len && !rc && !s->matched; i++) {
        size_t hit = feed(s, text[i]);
        if (!hit) continue;
        s->matched = true;
        certain = old + i + 1 - hit;
    }
    if (rc) return rc;
    if (!s->matched) {
        size_t hold = 0;
        for (size_t i = 0; i < s->n; i++) {
            if (s->word[i].state > hold) hold = s->word[i].state;
        }
        certain = s->held.len - hold;
    }
    rc = buf_append(out, buf_cstr(&s->held), certain, em);
    if (!rc) buf_consume(&s->held, s->matched ? s->held.len : certain);
    return rc;
}

strata_err api_stop_flush(struct api_stop *s, struct buf *out, struct strata_errmsg *em) {
    if (s->matched) return STRATA_OK;
    strata_err rc = buf_append(out, buf_cstr(&s->held), s->held.len, em);
    if (!rc) buf_clear(&s->held);
    return rc;
}

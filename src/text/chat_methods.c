/* Methods of strings, lists and dicts, and the global functions of chat templates. See chat_eval.h. */
#include "base/utf8.h"
#include "text/chat_eval.h"
#include "text/chat_lex.h"

#include <locale.h>
#include <string.h>
#include <time.h>
#include <wctype.h>

#define ARGS                                                                                                           \
    struct chat_run *r, const struct chat_value *self, const struct chat_value *const *arg, struct chat_value *out
#define RAW struct chat_run *r, const struct chat_value *self, const struct chat_args *args, struct chat_value *out

static strata_err want_string(struct chat_run *r, const struct chat_value *v, const char *what) {
    if (v->kind == CHAT_STRING) return STRATA_OK;
    if (v->kind == CHAT_UNDEFINED) return chat_undefined_error(r, v);
    return chat_error(r, STRATA_EINVAL, "'%s' needs a string, not a %s", what, chat_value_kind_name(v));
}

static strata_err want_int(struct chat_run *r, const struct chat_value *v, const char *what, int64_t *out) {
    if (v->kind == CHAT_INT || v->kind == CHAT_BOOL) {
        *out = v->kind == CHAT_INT ? v->i : v->b;
        return STRATA_OK;
    }
    return chat_error(r, STRATA_EINVAL, "'%s' needs a whole number, not a %s", what, chat_value_kind_name(v));
}

/* ---- strings ---- */

/* Whether the character at c (n bytes) is one of chars. */
static bool one_of(const char *c, size_t n, const struct chat_str *chars) {
    return memmem(chars->ptr, chars->len, c, n) != NULL;
}

struct chat_str chat_strip(struct chat_str s, const struct chat_str *chars, bool left, bool right) {
    while (left && s.len > 0) {
        size_t n = chars ? utf8_offset(s.ptr, s.len, 1) : chat_space_len(s.ptr, s.len);
        if (n == 0 || (chars && !one_of(s.ptr, n, chars))) break;
        s.ptr += n;
        s.len -= n;
    }
    while (right && s.len > 0) {
        size_t n = chars ? 1 : chat_space_len_before(s.ptr, s.len);
        while (chars && n < 4 && n < s.len && ((unsigned char)s.ptr[s.len - n] & 0xC0) == 0x80) n++;
        if (n == 0 || (chars && !one_of(s.ptr + s.len - n, n, chars))) break;
        s.len -= n;
    }
    return s;
}

static strata_err strip(struct chat_run *r, const struct chat_value *self, const struct chat_value *chars, bool left,
                        bool right, struct chat_value *out) {
    bool given = chars && chars->kind != CHAT_NONE;
    strata_err rc = given ? want_string(r, chars, "strip") : STRATA_OK;
    if (rc != STRATA_OK) return rc;
    struct chat_str s = chat_strip(self->s, given ? &chars->s : NULL, left, right);
    *out = chat_string(s.ptr, s.len);
    return chat_step(r, self->s.len / 64);
}

static strata_err str_strip(ARGS) {
    return strip(r, self, arg[0], true, true, out);
}
static strata_err str_lstrip(ARGS) {
    return strip(r, self, arg[0], true, false, out);
}
static strata_err str_rstrip(ARGS) {
    return strip(r, self, arg[0], false, true, out);
}

static bool begins(struct chat_str s, struct chat_str with) {
    return s.len >= with.len && memcmp(s.ptr, with.ptr, with.len) == 0;
}

static bool ends(struct chat_str s, struct chat_str with) {
    return s.len >= with.len && memcmp(s.ptr + s.len - with.len, with.ptr, with.len) == 0;
}

/* startswith and endswith: a string, or a tuple of which any may fit. */
static strata_err affix(struct chat_run *r, const struct chat_value *self, const struct chat_value *what, bool end,
                        struct chat_value *out) {
    bool tuple = what->kind == CHAT_LIST && what->list->tuple, found = false;
    for (size_t i = 0; i < (tuple ? what->list->len : 1) && !found; i++) {
        const struct chat_value *v = tuple ? &what->list->item[i] : what;
        strata_err rc = want_string(r, v, end ? "endswith" : "startswith");
        if (rc != STRATA_OK) return rc;
        found = end ? ends(self->s, v->s) : begins(self->s, v->s);
    }
    *out = chat_bool(found);
    return STRATA_OK;
}

static strata_err str_startswith(ARGS) {
    return affix(r, self, arg[0], false, out);
}
static strata_err str_endswith(ARGS) {
    return affix(r, self, arg[0], true, out);
}

static strata_err str_removeprefix(ARGS) {
    strata_err rc = want_string(r, arg[0], "removeprefix");
    if (rc != STRATA_OK) return rc;
    size_t n = begins(self->s, arg[0]->s) ? arg[0]->s.len : 0;
    *out = chat_string(self->s.ptr + n, self->s.len - n);
    return STRATA_OK;
}

static strata_err str_removesuffix(ARGS) {
    strata_err rc = want_string(r, arg[0], "removesuffix");
    if (rc != STRATA_OK) return rc;
    *out = chat_string(self->s.ptr, self->s.len - (ends(self->s, arg[0]->s) ? arg[0]->s.len : 0));
    return STRATA_OK;
}

static strata_err add_string(struct chat_run *r, struct chat_value *list, const char *s, size_t n) {
    strata_err rc = chat_list_add(r->arena, list->list, chat_string(s, n), r->em);
    return rc == STRATA_OK ? chat_step(r, 1 + n / 64) : rc;
}

static strata_err split_space(struct chat_run *r, struct chat_str s, int64_t max, struct chat_value *out) {
    strata_err rc = STRATA_OK;
    while (rc == STRATA_OK) {
        s = chat_strip(s, NULL, true, false);
        if (s.len == 0) break;
        size_t n = 0;
        while (n < s.len && chat_space_len(s.ptr + n, s.len - n) == 0) n += utf8_offset(s.ptr + n, s.len - n, 1);
        if (max == 0) n = s.len;
        rc = add_string(r, out, s.ptr, n);
        if (max == 0) break;
        max--;
        s.ptr += n;
        s.len -= n;
    }
    return rc;
}

static strata_err str_split(ARGS) {
    int64_t max = -1;
    strata_err rc = arg[1] ? want_int(r, arg[1], "split", &max) : STRATA_OK;
    if (rc == STRATA_OK) rc = chat_list_new(r->arena, out, r->em);
    if (rc != STRATA_OK) return rc;
    struct chat_str s = self->s;
    if (!arg[0] || arg[0]->kind == CHAT_NONE) return split_space(r, s, max, out);
    rc = want_string(r, arg[0], "split");
    if (rc == STRATA_OK && arg[0]->s.len == 0) rc = chat_error(r, STRATA_EINVAL, "'split' needs a separator");
    struct chat_str sep = rc == STRATA_OK ? arg[0]->s : s;
    const char *at;
    while (rc == STRATA_OK && max != 0 && (at = memmem(s.ptr, s.len, sep.ptr, sep.len)) != NULL) {
        size_t n = (size_t)(at - s.ptr);
        rc = add_string(r, out, s.ptr, n);
        s.ptr += n + sep.len;
        s.len -= n + sep.len;
        max--;
    }
    return rc == STRATA_OK ? add_string(r, out, s.ptr, s.len) : rc;
}

static strata_err str_rsplit(ARGS) {
    int64_t max = -1;
    strata_err rc = want_string(r, arg[0], "rsplit");
    if (rc == STRATA_OK && arg[0]->s.len == 0) rc = chat_error(r, STRATA_EINVAL, "'rsplit' needs a separator");
    if (rc == STRATA_OK && arg[1]) rc = want_int(r, arg[1], "rsplit", &max);
    if (rc == STRATA_OK) rc = chat_list_new(r->arena, out, r->em);
    if (rc != STRATA_OK) return rc;
    struct chat_str s = self->s, sep = arg[0]->s;
    size_t i = s.len;
    while (rc == STRATA_OK && max != 0 && i >= sep.len) {
        if (memcmp(s.ptr + i - sep.len, sep.ptr, sep.len) != 0) {
            i--;
            continue;
        }
        rc = add_string(r, out, s.ptr + i, s.len - i);
        i -= sep.len;
        s.len = i;
        max--;
    }
    if (rc == STRATA_OK) rc = add_string(r, out, s.ptr, s.len);
    struct chat_list *l = out->list;
    for (size_t a = 0, b = l->len; rc == STRATA_OK && a + 1 < b; a++) { /* they were found from the right */
        struct chat_value v = l->item[a];
        l->item[a] = l->item[--b];
        l->item[b] = v;
    }
    return rc == STRATA_OK ? chat_step(r, self->s.len / 16) : rc;
}

static strata_err str_splitlines(ARGS) {
    strata_err rc = chat_list_new(r->arena, out, r->em);
    bool keep = arg[0] && chat_value_truthy(arg[0]);
    const char *s = self->s.ptr;
    size_t left = self->s.len;
    while (rc == STRATA_OK && left > 0) {
        size_t n = 0;
        while (n < left && s[n] != '\n' && s[n] != '\r') n++;
        size_t brk = n == left ? 0 : s[n] == '\r' && n + 1 < left && s[n + 1] == '\n' ? 2 : 1;
        rc = add_string(r, out, s, keep ? n + brk : n);
        s += n + brk;
        left -= n + brk;
    }
    return rc;
}

strata_err chat_replace(struct chat_run *r, struct chat_str s, struct chat_str old, struct chat_str with, int64_t count,
                        struct chat_value *out) {
    struct chat_text text;
    strata_err rc = STRATA_OK;
    chat_text_init(&text, r->arena, CHAT_OUTPUT_MAX);
    while (rc == STRATA_OK && count != 0) {
        /* An empty `old` stands before every character, and at the end. */
        const char *at = old.len ? memmem(s.ptr, s.len, old.ptr, old.len) : s.ptr;
        if (!at) break;
        size_t n = (size_t)(at - s.ptr), step = old.len ? 0 : utf8_offset(s.ptr, s.len, 1);
        bool last = !old.len && s.len == 0;
        rc = chat_text_add(&text, s.ptr, n, r->em);
        if (rc == STRATA_OK) rc = chat_text_add(&text, with.ptr, with.len, r->em);
        if (rc == STRATA_OK) rc = chat_text_add(&text, s.ptr, step, r->em);
        if (rc == STRATA_OK) rc = chat_step(r, 1 + (n + with.len) / 64);
        s.ptr += n + old.len + step;
        s.len -= n + old.len + step;
        count--;
        if (last) break;
    }
    if (rc == STRATA_OK) rc = chat_text_add(&text, s.ptr, s.len, r->em);
    if (rc == STRATA_OK) rc = chat_take(r, &text, out);
    chat_text_deinit(&text);
    return rc;
}

static strata_err str_replace(ARGS) {
    int64_t count = -1;
    strata_err rc = want_string(r, arg[0], "replace");
    if (rc == STRATA_OK) rc = want_string(r, arg[1], "replace");
    if (rc == STRATA_OK && arg[2]) rc = want_int(r, arg[2], "replace", &count);
    return rc == STRATA_OK ? chat_replace(r, self->s, arg[0]->s, arg[1]->s, count, out) : rc;
}

/* The character, which stands at `from`, in the wanted case, appended to text; *in_word tells whether the character
 * before belongs to a word. */
static strata_err add_in_case(struct chat_run *r, uint32_t cp, const char *from, enum chat_case how, bool *in_word,
                              locale_t loc, struct chat_text *text) {
    bool letter = loc ? iswalpha_l((wint_t)cp, loc) != 0 : (cp | 0x20) >= 'a' && (cp | 0x20) <= 'z';
    bool up = how == CHAT_CASE_UPPER || (how != CHAT_CASE_LOWER && !*in_word);
    char utf8[4];
    size_t n = utf8_encode(cp, utf8);
    bool breaks = chat_space_len(utf8, n) > 0 || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
    *in_word = how == CHAT_CASE_TITLE ? letter : how == CHAT_CASE_WORDS ? !breaks : true;
    if (cp == 0xDF && up) return chat_text_add_like(text, how == CHAT_CASE_UPPER ? "SS" : "Ss", 2, from, r->em);
    if (loc) {
        cp = (uint32_t)(up ? towupper_l((wint_t)cp, loc) : towlower_l((wint_t)cp, loc));
    } else if (cp < 0x80 && letter) {
        cp = up ? cp & ~0x20u : cp | 0x20u;
    }
    return chat_text_add_like(text, utf8, utf8_encode(cp, utf8), from, r->em);
}

strata_err chat_change_case(struct chat_run *r, struct chat_str s, enum chat_case how, struct chat_value *out) {
    /* The C library's tables of the one locale that is always there; without it, ASCII alone changes. */
    locale_t loc = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    struct chat_text text;
    bool in_word = false;
    strata_err rc = chat_step(r, s.len / 16);
    chat_text_init(&text, r->arena, CHAT_OUTPUT_MAX);
    for (size_t i = 0; i < s.len && rc == STRATA_OK;) {
        uint32_t cp;
        size_t n = utf8_decode(s.ptr + i, s.len - i, &cp);
        rc = n ? add_in_case(r, cp, s.ptr + i, how, &in_word, loc, &text) : chat_text_add(&text, s.ptr + i, 1, r->em);
        i += n ? n : 1;
    }
    if (rc == STRATA_OK) rc = chat_take(r, &text, out);
    chat_text_deinit(&text);
    if (loc) freelocale(loc);
    return rc;
}

static strata_err str_upper(ARGS) {
    (void)arg;
    return chat_change_case(r, self->s, CHAT_CASE_UPPER, out);
}
static strata_err str_lower(ARGS) {
    (void)arg;
    return chat_change_case(r, self->s, CHAT_CASE_LOWER, out);
}
static strata_err str_title(ARGS) {
    (void)arg;
    return chat_change_case(r, self->s, CHAT_CASE_TITLE, out);
}
static strata_err str_capitalize(ARGS) {
    (void)arg;
    return chat_change_case(r, self->s, CHAT_CASE_CAPITALIZE, out);
}

static strata_err str_find(ARGS) {
    strata_err rc = want_string(r, arg[0], "find");
    if (rc != STRATA_OK) return rc;
    const char *at = arg[0]->s.len ? memmem(self->s.ptr, self->s.len, arg[0]->s.ptr, arg[0]->s.len) : self->s.ptr;
    *out = chat_int(at ? (int64_t)utf8_length(self->s.ptr, (size_t)(at - self->s.ptr)) : -1);
    return chat_step(r, self->s.len / 64);
}

static strata_err str_count(ARGS) {
    strata_err rc = want_string(r, arg[0], "count");
    if (rc == STRATA_OK && arg[0]->s.len == 0) rc = chat_error(r, STRATA_EUNSUPPORTED, "'count' needs some text");
    if (rc != STRATA_OK) return rc;
    int64_t n = 0;
    const char *s = self->s.ptr, *end = s + self->s.len;
    while ((s = memmem(s, (size_t)(end - s), arg[0]->s.ptr, arg[0]->s.len)) != NULL) {
        n++;
        s += arg[0]->s.len;
    }
    *out = chat_int(n);
    return chat_step(r, self->s.len / 64);
}

static strata_err str_join(ARGS) {
    struct chat_list *items;
    struct chat_text text;
    strata_err rc = chat_iterate(r, arg[0], &items);
    if (rc != STRATA_OK) return rc;
    chat_text_init(&text, r->arena, CHAT_OUTPUT_MAX);
    for (size_t i = 0; i < items->len && rc == STRATA_OK; i++) {
        if (i > 0) rc = chat_text_add(&text, self->s.ptr, self->s.len, r->em);
        if (rc == STRATA_OK) rc = want_string(r, &items->item[i], "join");
        if (rc == STRATA_OK) rc = chat_text_add(&text, items->item[i].s.ptr, items->item[i].s.len, r->em);
    }
    if (rc == STRATA_OK) rc = chat_take(r, &text, out);
    chat_text_deinit(&text);
    return rc;
}

static strata_err str_isdigit(ARGS) {
    (void)arg;
    bool all = self->s.len > 0;
    for (size_t i = 0; i < self->s.len && all; i++) all = self->s.ptr[i] >= '0' && self->s.ptr[i] <= '9';
    *out = chat_bool(all);
    return chat_step(r, self->s.len / 64);
}

static strata_err str_isspace(ARGS) {
    (void)arg;
    *out = chat_bool(self->s.len > 0 && chat_strip(self->s, NULL, true, false).len == 0);
    return chat_step(r, self->s.len / 64);
}

/* ---- lists and dicts ---- */

static strata_err list_append(ARGS) {
    if (self->list->tuple) return chat_error(r, STRATA_EINVAL, "a tuple cannot be appended to");
    *out = chat_none();
    return chat_list_add(r->arena, self->list, *arg[0], r->em);
}

static strata_err list_count(ARGS) {
    int64_t n = 0;
    for (size_t i = 0; i < self->list->len; i++) n += chat_value_equal(&self->list->item[i], arg[0]);
    *out = chat_int(n);
    return chat_step(r, self->list->len);
}

static strata_err list_index(ARGS) {
    for (size_t i = 0; i < self->list->len; i++) {
        if (!chat_value_equal(&self->list->item[i], arg[0])) continue;
        *out = chat_int((int64_t)i);
        return chat_step(r, i);
    }
    return chat_error(r, STRATA_EINVAL, "the value is not in the list");
}

/* Keys, values or pairs, by what. */
static strata_err dict_list(struct chat_run *r, const struct chat_dict *d, char what, struct chat_value *out) {
    strata_err rc = chat_list_new(r->arena, out, r->em);
    for (size_t i = 0; i < d->len && rc == STRATA_OK; i++) {
        struct chat_value v = what == 'k' ? d->entry[i].key : d->entry[i].value;
        if (what == 'i') {
            rc = chat_list_new(r->arena, &v, r->em);
            if (rc == STRATA_OK) v.list->tuple = true;
            if (rc == STRATA_OK) rc = chat_list_add(r->arena, v.list, d->entry[i].key, r->em);
            if (rc == STRATA_OK) rc = chat_list_add(r->arena, v.list, d->entry[i].value, r->em);
        }
        if (rc == STRATA_OK) rc = chat_list_add(r->arena, out->list, v, r->em);
    }
    return rc == STRATA_OK ? chat_step(r, d->len) : rc;
}

static strata_err dict_items(ARGS) {
    (void)arg;
    return dict_list(r, self->dict, 'i', out);
}
static strata_err dict_keys(ARGS) {
    (void)arg;
    return dict_list(r, self->dict, 'k', out);
}
static strata_err dict_values(ARGS) {
    (void)arg;
    return dict_list(r, self->dict, 'v', out);
}

static strata_err dict_get(ARGS) {
    const struct chat_value *v = chat_dict_get(self->dict, *arg[0]);
    *out = v ? *v : arg[1] ? *arg[1] : chat_none();
    return chat_step(r, self->dict->len / 8);
}

/* ---- global functions ---- */

static strata_err global_range(RAW) {
    (void)self;
    int64_t v[3] = {0, 0, 1};
    if (args->n_pos < 1 || args->n_pos > 3 || args->n_kw > 0) {
        return chat_error(r, STRATA_EINVAL, "'range' takes one to three numbers");
    }
    for (size_t i = 0; i < args->n_pos; i++) {
        strata_err rc = want_int(r, &args->pos[i], "range", &v[args->n_pos == 1 ? 1 : i]);
        if (rc != STRATA_OK) return rc;
        if (v[args->n_pos == 1 ? 1 : i] > INT32_MAX || v[args->n_pos == 1 ? 1 : i] < INT32_MIN) {
            return chat_error(r, STRATA_ELIMIT, "'range' goes too far");
        }
    }
    if (v[2] == 0) return chat_error(r, STRATA_EINVAL, "'range' cannot have step 0");
    strata_err rc = chat_list_new(r->arena, out, r->em);
    for (int64_t i = v[0]; rc == STRATA_OK && (v[2] > 0 ? i < v[1] : i > v[1]); i += v[2]) {
        rc = chat_step(r, 1);
        if (rc == STRATA_OK) rc = chat_list_add(r->arena, out->list, chat_int(i), r->em);
    }
    return rc;
}

static strata_err make_dict(struct chat_run *r, enum chat_kind kind, const struct chat_args *args,
                            struct chat_value *out) {
    strata_err rc = chat_dict_new(r->arena, kind, out, r->em);
    const struct chat_value *from = args->n_pos ? &args->pos[0] : NULL;
    if (rc == STRATA_OK && (args->n_pos > 1 || (from && from->kind != CHAT_DICT))) {
        rc = chat_error(r, STRATA_EUNSUPPORTED, "'dict' and 'namespace' take one dict and keywords only");
    }
    for (size_t i = 0; rc == STRATA_OK && from && i < from->dict->len; i++) {
        rc = chat_step(r, 1 + i / 8);
        if (rc == STRATA_OK) {
            rc = chat_dict_set(r->arena, out->dict, from->dict->entry[i].key, from->dict->entry[i].value, r->em);
        }
    }
    for (size_t i = 0; i < args->n_kw && rc == STRATA_OK; i++) {
        const struct chat_named *kw = &args->kw[i];
        rc = chat_step(r, 1 + i / 8);
        if (rc == STRATA_OK) {
            rc = chat_dict_set(r->arena, out->dict, chat_string(kw->name.ptr, kw->name.len), kw->value, r->em);
        }
    }
    return rc;
}

static strata_err global_namespace(RAW) {
    (void)self;
    return make_dict(r, CHAT_NAMESPACE, args, out);
}

static strata_err global_dict(RAW) {
    (void)self;
    return make_dict(r, CHAT_DICT, args, out);
}

static strata_err global_raise_exception(ARGS) {
    (void)self;
    struct chat_value text;
    strata_err rc = chat_to_string(r, arg[0], &text);
    *out = chat_none();
    if (rc != STRATA_OK) return rc;
    return chat_error(r, STRATA_EINVAL, "the template refuses the conversation: %.*s",
                      text.s.len > 300 ? 300 : (int)text.s.len, text.s.ptr);
}

static strata_err global_strftime_now(ARGS) {
    (void)self;
    strata_err rc = want_string(r, arg[0], "strftime_now");
    if (rc != STRATA_OK) return rc;
    char format[128], text[512];
    struct tm tm;
    time_t now = r->now ? (time_t)r->now : time(NULL);
    if (arg[0]->s.len >= sizeof format || !(r->now ? gmtime_r(&now, &tm) : localtime_r(&now, &tm))) {
        return chat_error(r, STRATA_ELIMIT, "'strftime_now' cannot write this time");
    }
    memcpy(format, arg[0]->s.ptr, arg[0]->s.len);
    format[arg[0]->s.len] = '\0';
    /* The C locale's names of days and months are wanted, which is what a program without setlocale has. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, sizeof text, format, &tm);
#pragma GCC diagnostic pop
    return chat_string_copy(r->arena, text, n, out, r->em);
}

/* ---- tables ---- */

static const struct chat_function string_methods[] = {
    {"strip", "chars", 0, str_strip, NULL},
    {"lstrip", "chars", 0, str_lstrip, NULL},
    {"rstrip", "chars", 0, str_rstrip, NULL},
    {"split", "sep maxsplit", 0, str_split, NULL},
    {"rsplit", "sep maxsplit", 1, str_rsplit, NULL},
    {"splitlines", "keepends", 0, str_splitlines, NULL},
    {"startswith", "prefix", 1, str_startswith, NULL},
    {"endswith", "suffix", 1, str_endswith, NULL},
    {"removeprefix", "prefix", 1, str_removeprefix, NULL},
    {"removesuffix", "suffix", 1, str_removesuffix, NULL},
    {"replace", "old new count", 2, str_replace, NULL},
    {"upper", "", 0, str_upper, NULL},
    {"lower", "", 0, str_lower, NULL},
    {"title", "", 0, str_title, NULL},
    {"capitalize", "", 0, str_capitalize, NULL},
    {"find", "sub", 1, str_find, NULL},
    {"count", "sub", 1, str_count, NULL},
    {"join", "items", 1, str_join, NULL},
    {"isdigit", "", 0, str_isdigit, NULL},
    {"isspace", "", 0, str_isspace, NULL},
    {0},
};
static const struct chat_function list_methods[] = {
    {"append", "item", 1, list_append, NULL},
    {"count", "item", 1, list_count, NULL},
    {"index", "item", 1, list_index, NULL},
    {0},
};
static const struct chat_function dict_methods[] = {
    {"items", "", 0, dict_items, NULL},
    {"keys", "", 0, dict_keys, NULL},
    {"values", "", 0, dict_values, NULL},
    {"get", "key default", 1, dict_get, NULL},
    {0},
};
static const struct chat_function globals[] = {
    {"range", "*", 0, NULL, global_range},
    {"namespace", "*", 0, NULL, global_namespace},
    {"dict", "*", 0, NULL, global_dict},
    {"raise_exception", "message", 1, global_raise_exception, NULL},
    {"strftime_now", "format", 1, global_strftime_now, NULL},
    {0},
};

static const struct chat_function *find(const struct chat_function *table, struct chat_str name) {
    for (; table->name; table++) {
        if (chat_str_eq(name, table->name)) return table;
    }
    return NULL;
}

const struct chat_function *chat_find_method(const struct chat_value *self, struct chat_str name) {
    switch (self->kind) {
    case CHAT_STRING: return find(string_methods, name);
    case CHAT_LIST: return find(list_methods, name);
    case CHAT_DICT: return find(dict_methods, name);
    default: return NULL;
    }
}

const struct chat_function *chat_find_global(struct chat_str name) {
    return find(globals, name);
}

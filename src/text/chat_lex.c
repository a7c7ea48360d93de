/* Tokens of chat templates. See chat_lex.h. Owns nothing; refuses bytes and literals that are not Jinja2. */
#include "text/chat_lex.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct lexer {
    const char *s; /* the source with every line break as one LF, without the last one */
    size_t len, at;
    uint32_t line;
    bool line_start; /* whether nothing has been consumed since the last LF */
    int open;        /* unclosed brackets in the current tag */
    struct chat_arena *arena;
    struct chat_tokens *out;
    struct strata_errmsg *em;
};

static bool is_space_cp(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t chat_space_len(const char *s, size_t len) {
    uint32_t cp;
    size_t n = len ? utf8_decode(s, len, &cp) : 0;
    return n && is_space_cp(cp) ? n : 0;
}

size_t chat_space_len_before(const char *s, size_t len) {
    for (size_t n = 1; n <= 3 && n <= len; n++) {
        if (chat_space_len(s + len - n, n) == n) return n;
    }
    return 0;
}

static strata_err add(struct lexer *x, struct chat_token t) {
    struct chat_tokens *l = x->out;
    if (l->len == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct chat_token *p = chat_arena_alloc(x->arena, cap * sizeof *p, x->em);
        if (!p) return x->em->code;
        if (l->len) memcpy(p, l->item, l->len * sizeof *p);
        l->item = p;
        l->cap = cap;
    }
    t.line = x->line;
    l->item[l->len++] = t;
    return STRATA_OK;
}

/* Moves on by n bytes and keeps count of the lines. */
static void skip(struct lexer *x, size_t n) {
    for (size_t i = 0; i < n; i++) x->line += x->s[x->at + i] == '\n';
    if (n > 0) x->line_start = x->s[x->at + n - 1] == '\n';
    x->at += n;
}

static void skip_space(struct lexer *x) {
    size_t n;
    while ((n = chat_space_len(x->s + x->at, x->len - x->at)) > 0) skip(x, n);
}

static bool looking_at(const struct lexer *x, const char *text) {
    size_t n = strlen(text);
    return x->len - x->at >= n && memcmp(x->s + x->at, text, n) == 0;
}

/* How much of the text [start, at) remains before a tag with the given sign ('-', '+' or none). */
static size_t text_end(const struct lexer *x, size_t start, char sign, bool print, bool line_start) {
    size_t end = x->at, n;
    if (sign == '-') {
        while (end > start && (n = chat_space_len_before(x->s + start, end - start)) > 0) end -= n;
    } else if (sign != '+' && !print) {
        size_t from = end;
        while (from > start && x->s[from - 1] != '\n') from--;
        if (from > start || line_start) {
            size_t i = from;
            while (i < end && (n = chat_space_len(x->s + i, end - i)) > 0) i += n;
            if (i == end) end = from;
        }
    }
    return end;
}

static strata_err add_text(struct lexer *x, size_t start, size_t end) {
    if (start == end) return STRATA_OK;
    return add(x, (struct chat_token){.kind = CHAT_TOKEN_DATA, .text = {x->s + start, end - start}});
}

/* After `-%}` all white space goes, after `%}` (trim) one line break, after `+%}` nothing. */
static void after_tag(struct lexer *x, char sign, bool trim) {
    if (sign == '-') {
        skip_space(x);
    } else if (trim && sign != '+' && x->at < x->len && x->s[x->at] == '\n') {
        skip(x, 1);
    }
}

/* If a tag ends here: its length without white space, and the sign before it. */
static size_t tag_end(const struct lexer *x, const char *end, char *sign) {
    *sign = 0;
    if (looking_at(x, end)) return 2;
    if (x->at < x->len && (x->s[x->at] == '-' || x->s[x->at] == '+')) {
        struct lexer next = *x;
        next.at++;
        if (looking_at(&next, end)) {
            *sign = x->s[x->at];
            return 3;
        }
    }
    return 0;
}

static strata_err lex_comment(struct lexer *x) {
    uint32_t line = x->line;
    skip(x, 2);
    for (; x->at < x->len; skip(x, 1)) {
        char sign;
        size_t n = tag_end(x, "#}", &sign);
        if (n == 0) continue;
        skip(x, n);
        after_tag(x, sign, true);
        return STRATA_OK;
    }
    return err_set(x->em, STRATA_EFORMAT, "line %u: the comment is never closed by '#}'", line);
}

static bool name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

static bool digit(char c) {
    return c >= '0' && c <= '9';
}

static strata_err lex_name(struct lexer *x) {
    size_t n = 1;
    while (x->at + n < x->len && (name_start(x->s[x->at + n]) || digit(x->s[x->at + n]))) n++;
    strata_err rc = add(x, (struct chat_token){.kind = CHAT_TOKEN_NAME, .text = {x->s + x->at, n}});
    skip(x, n);
    return rc;
}

static strata_err lex_number(struct lexer *x) {
    char text[64];
    size_t n = 0, used = 0;
    const char *s = x->s + x->at;
    size_t left = x->len - x->at;
    bool real = false;
    for (; n < left && used + 1 < sizeof text; n++) {
        char c = s[n];
        bool after_e = n > 0 && (s[n - 1] == 'e' || s[n - 1] == 'E');
        if (digit(c)) {
            text[used++] = c;
        } else if (c == '_' && n + 1 < left && digit(s[n + 1])) {
            continue;
        } else if (c == '.' && !real && n + 1 < left && digit(s[n + 1])) {
            real = true;
            text[used++] = c;
        } else if ((c == 'e' || c == 'E') && n + 1 < left &&
                   (digit(s[n + 1]) || (n + 2 < left && (s[n + 1] == '-' || s[n + 1] == '+') && digit(s[n + 2])))) {
            real = true;
            text[used++] = c;
        } else if ((c == '+' || c == '-') && after_e) {
            text[used++] = c;
        } else {
            break;
        }
    }
    text[used] = '\0';
    struct chat_token t = {.kind = real ? CHAT_TOKEN_FLOAT : CHAT_TOKEN_INT, .text = {s, n}};
    errno = 0;
    if (real) {
        t.f = strtod(text, NULL);
    } else {
        t.i = strtoll(text, NULL, 10);
    }
    if (errno || used + 1 >= sizeof text || (n < left && name_start(s[n]))) {
        return err_set(x->em, STRATA_EUNSUPPORTED, "line %u: the number '%s' is not supported", x->line, text);
    }
    strata_err rc = add(x, t);
    skip(x, n);
    return rc;
}

/* Reads exactly n hexadecimal digits. */
static bool hex(const char *s, size_t left, size_t n, uint32_t *out) {
    uint32_t v = 0;
    if (left < n) return false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        int d = digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) return false;
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return true;
}

/* Resolves the escape after a backslash at s (left bytes). Returns the bytes read, 0 when it is no escape we know. */
static size_t escape(const char *s, size_t left, char *out, size_t *n) {
    static const char names[] = "\\'\"abfnrtv", values[] = "\\'\"\a\b\f\n\r\t\v";
    const char *at = s[0] ? strchr(names, s[0]) : NULL;
    *n = 1;
    if (at) {
        out[0] = values[at - names];
        return 1;
    }
    if (s[0] == '\n') { /* a continued line */
        *n = 0;
        return 1;
    }
    size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    uint32_t cp = 0;
    if (digits) {
        if (!hex(s + 1, left - 1, digits, &cp) || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) return 0;
        *n = utf8_encode(cp, out);
        return 1 + digits;
    }
    if (s[0] >= '0' && s[0] <= '7') {
        size_t k = 0;
        for (; k < 3 && k < left && s[k] >= '0' && s[k] <= '7'; k++) cp = cp * 8 + (uint32_t)(s[k] - '0');
        *n = utf8_encode(cp, out);
        return k;
    }
    if (s[0] == 'N') return 0;
    out[0] = '\\'; /* an unknown escape stays as it is */
    out[1] = s[0];
    *n = (unsigned char)s[0] < 0x80 ? 2 : 1;
    return (unsigned char)s[0] < 0x80 ? 1 : 0;
}

static strata_err lex_string(struct lexer *x) {
    const char *s = x->s + x->at;
    size_t left = x->len - x->at, end = 1;
    char quote = s[0];
    while (end < left && s[end] != quote) end += s[end] == '\\' ? 2 : 1;
    if (end >= left) {
        return err_set(x->em, STRATA_EFORMAT, "line %u: the string is never closed by %c", x->line, quote);
    }
    char *text = chat_arena_alloc(x->arena, end + 4, x->em);
    if (!text) return x->em->code;
    size_t used = 0;
    for (size_t i = 1; i < end;) {
        if (s[i] != '\\') {
            text[used++] = s[i++];
            continue;
        }
        size_t n, k = escape(s + i + 1, end - i - 1, text + used, &n);
        if (k == 0) {
            return err_set(x->em, STRATA_EUNSUPPORTED, "line %u: the escape '\\%c' in a string is not supported",
                           x->line, s[i + 1]);
        }
        used += n;
        i += 1 + k;
    }
    strata_err rc = add(x, (struct chat_token){.kind = CHAT_TOKEN_STRING, .text = {text, used}});
    skip(x, end + 1);
    return rc;
}

static strata_err lex_operator(struct lexer *x) {
    static const char *const ops[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
                                      ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ",", ".", ":", "|"};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (!looking_at(x, ops[i])) continue;
        char c = ops[i][0];
        if (c == '(' || c == '[' || c == '{') x->open++;
        if (c == ')' || c == ']' || c == '}') x->open--;
        strata_err rc = add(x, (struct chat_token){.kind = CHAT_TOKEN_OP, .text = {ops[i], strlen(ops[i])}});
        skip(x, strlen(ops[i]));
        return rc;
    }
    return err_set(x->em, STRATA_EFORMAT, "line %u: '%c' has no meaning in a tag", x->line, x->s[x->at]);
}

/* The inside of `{{ }}` or `{% %}` up to and with its end. */
static strata_err lex_tag(struct lexer *x, bool print) {
    uint32_t line = x->line;
    x->open = 0;
    for (;;) {
        skip_space(x);
        if (x->at >= x->len) {
            return err_set(x->em, STRATA_EFORMAT, "line %u: the tag is never closed by '%s'", line,
                           print ? "}}" : "%}");
        }
        char sign, c = x->s[x->at];
        size_t n = x->open <= 0 ? tag_end(x, print ? "}}" : "%}", &sign) : 0;
        if (n > 0 && !(print && sign == '+')) {
            strata_err rc = add(x, (struct chat_token){.kind = print ? CHAT_TOKEN_PRINT_END : CHAT_TOKEN_BLOCK_END});
            skip(x, n);
            after_tag(x, sign, !print);
            return rc;
        }
        strata_err rc = name_start(c)           ? lex_name(x)
                        : digit(c)              ? lex_number(x)
                        : c == '\'' || c == '"' ? lex_string(x)
                                                : lex_operator(x);
        if (rc != STRATA_OK) return rc;
    }
}

/* Whether the block tag at `at` (after its sign) holds just the given word; *after gets the place behind the tag. */
static bool lone_word(const struct lexer *x, size_t at, const char *word, size_t *after, char *sign) {
    struct lexer y = *x;
    y.at = at;
    skip_space(&y);
    if (!looking_at(&y, word)) return false;
    y.at += strlen(word);
    skip_space(&y);
    size_t n = tag_end(&y, "%}", sign);
    *after = y.at + n;
    return n > 0;
}

/* `{% raw %}`: everything up to `{% endraw %}` is text. */
static strata_err lex_raw(struct lexer *x, size_t body, char sign) {
    uint32_t line = x->line;
    skip(x, body - x->at);
    after_tag(x, sign, false);
    size_t start = x->at;
    bool line_start = x->line_start;
    for (; x->at < x->len; skip(x, 1)) {
        if (!looking_at(x, "{%")) continue;
        char open = x->at + 2 < x->len ? x->s[x->at + 2] : 0, close;
        bool signed_open = open == '-' || open == '+';
        size_t after;
        if (!lone_word(x, x->at + 2 + signed_open, "endraw", &after, &close)) continue;
        strata_err rc = add_text(x, start, text_end(x, start, signed_open ? open : 0, false, line_start));
        skip(x, after - x->at);
        after_tag(x, close, true);
        return rc;
    }
    return err_set(x->em, STRATA_EFORMAT, "line %u: 'raw' is never closed by 'endraw'", line);
}

static strata_err lex_root(struct lexer *x) {
    strata_err rc = STRATA_OK;
    while (x->at < x->len && rc == STRATA_OK) {
        size_t start = x->at;
        bool line_start = x->line_start;
        uint32_t line = x->line;
        char kind = 0;
        for (; x->at < x->len && !kind;) {
            char c = x->s[x->at], d = x->at + 1 < x->len ? x->s[x->at + 1] : 0;
            if (c == '{' && (d == '{' || d == '%' || d == '#')) {
                kind = d;
            } else {
                skip(x, 1);
            }
        }
        uint32_t tag_line = x->line;
        char sign = kind && x->at + 2 < x->len ? x->s[x->at + 2] : 0;
        bool has_sign = sign == '-' || sign == '+';
        size_t end = kind ? text_end(x, start, has_sign ? sign : 0, kind == '{', line_start) : x->at;
        x->line = line;
        rc = add_text(x, start, end);
        x->line = tag_line;
        if (rc != STRATA_OK || !kind) break;
        size_t after;
        char close;
        if (kind == '#') {
            if (has_sign) skip(x, 1); /* so that the sign does not look like the end of `{#-#}` */
            rc = lex_comment(x);
        } else if (kind == '%' && lone_word(x, x->at + 2 + has_sign, "raw", &after, &close)) {
            rc = lex_raw(x, after, close);
        } else {
            rc = add(x, (struct chat_token){.kind = kind == '{' ? CHAT_TOKEN_PRINT_BEGIN : CHAT_TOKEN_BLOCK_BEGIN});
            skip(x, 2 + (size_t)has_sign);
            if (rc == STRATA_OK) rc = lex_tag(x, kind == '{');
        }
    }
    return rc;
}

strata_err chat_lex(const char *source, size_t len, struct chat_arena *a, struct chat_tokens *out,
                    struct strata_errmsg *em) {
    if (!utf8_valid(source, len)) return err_set(em, STRATA_EFORMAT, "the text is not UTF-8");
    char *s = chat_arena_alloc(a, len + 1, em);
    if (!s) return em->code;
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r') {
            if (i + 1 < len && source[i + 1] == '\n') continue;
            s[n++] = '\n';
        } else {
            s[n++] = source[i];
        }
    }
    if (n > 0 && s[n - 1] == '\n') n--;
    *out = (struct chat_tokens){0};
    struct lexer x = {.s = s, .len = n, .line = 1, .line_start = true, .arena = a, .out = out, .em = em};
    strata_err rc = lex_root(&x);
    return rc == STRATA_OK ? add(&x, (struct chat_token){.kind = CHAT_TOKEN_EOF}) : rc;
}

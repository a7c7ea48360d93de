/* Foreign texts in Markdown. See pkg_card_md.h. Owns nothing. */
#include "package/pkg_card_md.h"

#include "base/progress.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MAX_SECONDS INT64_C(253402300799) /* the end of the year 9999 */

enum { SHOWN = 160 }; /* bytes of a foreign text; with the limits on lists, this keeps a card below its maximum */

void pkg_card_md_put(struct pkg_card_md *md, const char *fmt, ...) {
    char text[2048];
    va_list ap;
    if (md->rc) return;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof text)
        md->rc = err_set(md->em, STRATA_EINTERNAL, "a line of the model card is too long");
    else
        md->rc = buf_append(md->out, text, (size_t)n, md->em);
}

static bool is_alnum(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Inside a code span these mean nothing to any Markdown or HTML parser, in a table or out of one. */
static bool is_harmless(const char *text, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (!is_alnum((unsigned char)text[i]) && !strchr("-_./:@+=, ()#", text[i])) return false;
    return len > 0 && text[0] != ' ' && text[len - 1] != ' ';
}

/* Controls, line and paragraph separators, and marks without a width or that change the direction of text. */
static bool is_hidden(uint32_t cp) {
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x61c || (cp >= 0x200b && cp <= 0x200f) ||
           (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2060 && cp <= 0x206f) || cp == 0xfeff ||
           (cp >= 0xe0000 && cp <= 0xe0fff);
}

/* The first character of the text; returns its bytes. What is no character is shown as one that is hidden. */
static size_t put_char(struct pkg_card_md *md, const char *text, size_t len) {
    char out[16];
    uint32_t cp = 0;
    size_t n = utf8_decode(text, len, &cp);
    if (n == 0 || is_hidden(cp))
        snprintf(out, sizeof out, "%s", UTF8_REPLACEMENT);
    else if (n > 1 || is_alnum((unsigned char)cp) || cp == ' ')
        snprintf(out, sizeof out, "%.*s", (int)n, text);
    else
        snprintf(out, sizeof out, "&#%" PRIu32 ";", cp);
    if (!md->rc) md->rc = buf_append_str(md->out, out, md->em);
    return n ? n : 1;
}

void pkg_card_md_code(struct pkg_card_md *md, const char *text) {
    size_t len = strlen(text), shown = len > SHOWN ? SHOWN : len;
    while (shown < len && shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80) shown--;
    if (is_harmless(text, shown)) {
        pkg_card_md_put(md, "`%.*s%s`", (int)shown, text, shown < len ? "..." : "");
        return;
    }
    pkg_card_md_put(md, "<code>");
    for (size_t i = 0; i < shown;) i += put_char(md, text + i, shown - i);
    pkg_card_md_put(md, "%s</code>", shown < len ? "..." : "");
}

void pkg_card_md_number(struct pkg_card_md *md, uint64_t n) {
    char digits[24], out[32];
    size_t len = (size_t)snprintf(digits, sizeof digits, "%" PRIu64, n), k = 0;
    for (size_t i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0) out[k++] = ',';
        out[k++] = digits[i];
    }
    pkg_card_md_put(md, "%.*s", (int)k, out);
}

void pkg_card_md_size(struct pkg_card_md *md, uint64_t bytes) {
    char text[32];
    pkg_card_md_put(md, "%s", progress_bytes(text, sizeof text, bytes));
}

void pkg_card_md_date(struct pkg_card_md *md, uint64_t unix_seconds) {
    struct tm t;
    char text[64];
    time_t at = unix_seconds > MAX_SECONDS ? MAX_SECONDS : (time_t)unix_seconds;
    if (gmtime_r(&at, &t) && strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &t)) pkg_card_md_put(md, "%s", text);
}

bool pkg_card_md_is_name(const char *text, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (!is_alnum((unsigned char)text[i]) && !(i > 0 && strchr("-_.", text[i]))) return false;
    return len > 0 && len <= 200;
}

bool pkg_card_md_is_repo(const char *text) {
    const char *slash = strchr(text, '/');
    return slash && pkg_card_md_is_name(text, (size_t)(slash - text)) &&
           pkg_card_md_is_name(slash + 1, strlen(slash + 1));
}

/*
 * Writing Markdown with foreign texts in it. A sticky writer: after a failure nothing more is written, and md->rc says
 * what it was.
 */
#ifndef PKG_CARD_MD_H
#define PKG_CARD_MD_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct pkg_card_md {
    struct buf *out;
    struct strata_errmsg *em;
    strata_err rc;
};

/* Our own text: the format and its arguments must not be foreign. */
void pkg_card_md_put(struct pkg_card_md *md, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * Foreign text (NUL-terminated UTF-8), as code, on one line: as a code span when it has harmless characters alone, else
 * as a <code> element in which each other ASCII character is a numeric reference. Line breaks and control characters,
 * those that change the direction of text included, become U+FFFD. Long texts are cut.
 */
void pkg_card_md_code(struct pkg_card_md *md, const char *text);

/* "12,345,678" */
void pkg_card_md_number(struct pkg_card_md *md, uint64_t n);
/* "11.8 MiB" */
void pkg_card_md_size(struct pkg_card_md *md, uint64_t bytes);

/* "2026-11-30 03:04:45 UTC" */
void pkg_card_md_date(struct pkg_card_md *md, uint64_t unix_seconds);

/* Whether text is a name that can stand unquoted in a command line, a URL and YAML: letters, digits, '-', '_' and '.',
 * and a letter or a digit first. */
bool pkg_card_md_is_name(const char *text, size_t len);
/* Whether text is two such names with a '/' between: a repository. */
bool pkg_card_md_is_repo(const char *text);

#endif

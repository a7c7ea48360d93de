/* UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF. Pure functions over bytes. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* Reads the character at s (len > 0 bytes left). Returns its length, 1 to 4, or 0 when no valid character stands there.
 */
size_t utf8_decode(const char *s, size_t len, uint32_t *cp);

/* Writes a code point (at most U+10FFFF, no surrogate) into out, which holds 4 bytes. Returns the length. */
size_t utf8_encode(uint32_t cp, char *out);

/* Whether all of s is valid. */
bool utf8_valid(const char *s, size_t len);

/* Code points in s; a byte that begins no valid character counts as one. */
size_t utf8_length(const char *s, size_t len);

/* Bytes taken by the first n code points of s, counted as utf8_length counts (at most len). */
size_t utf8_offset(const char *s, size_t len, size_t n);

/*
 * How much of the bytes at s (len > 0) forms one unit of a stream: a valid character (*ok true), or the longest prefix
 * of one that went wrong (*ok false), which a reader shows as one U+FFFD. Returns 0 when the bytes are the beginning of
 * a character whose end has not arrived yet.
 */
size_t utf8_stream_unit(const char *s, size_t len, bool *ok);

#endif

/* UTF-8 decoding and encoding. See utf8.h. Owns nothing. */
#include "base/utf8.h"

#include <string.h>

/* Length that a first byte announces, and the range its second byte must be in; 0 for a byte that can begin nothing. */
static size_t lead(unsigned char c, unsigned char *lo, unsigned char *hi) {
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0x80) return 1;
    if (c < 0xC2) return 0;
    if (c < 0xE0) return 2;
    if (c < 0xF0) {
        if (c == 0xE0) *lo = 0xA0; /* shorter would be overlong */
        if (c == 0xED) *hi = 0x9F; /* beyond lie the surrogates */
        return 3;
    }
    if (c < 0xF5) {
        if (c == 0xF0) *lo = 0x90;
        if (c == 0xF4) *hi = 0x8F;
        return 4;
    }
    return 0;
}

size_t utf8_stream_unit(const char *s, size_t len, bool *ok) {
    const unsigned char *p = (const unsigned char *)s;
    unsigned char lo, hi;
    size_t n = lead(p[0], &lo, &hi);
    *ok = false;
    if (n == 0) return 1;
    for (size_t i = 1; i < n; i++) {
        if (i == len) return 0;
        if (p[i] < lo || p[i] > hi) return i;
        lo = 0x80;
        hi = 0xBF;
    }
    *ok = true;
    return n;
}

size_t utf8_decode(const char *s, size_t len, uint32_t *cp) {
    static const unsigned char mask[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    bool ok;
    size_t n = utf8_stream_unit(s, len, &ok);
    if (!ok) return 0;
    uint32_t v = (unsigned char)s[0] & mask[n];
    for (size_t i = 1; i < n; i++) v = v << 6 | ((unsigned char)s[i] & 0x3F);
    *cp = v;
    return n;
}

size_t utf8_encode(uint32_t cp, char *out) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char first[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    out[0] = (char)(first[n] | cp);
    return n;
}

bool utf8_valid(const char *s, size_t len) {
    size_t i = 0;
    while (i < len) {
        uint64_t word;
        if (len - i >= sizeof word) { /* eight ASCII bytes at a time: most text is ASCII */
            memcpy(&word, s + i, sizeof word);
            if (!(word & 0x8080808080808080ull)) {
                i += sizeof word;
                continue;
            }
        }
        uint32_t cp;
        size_t n = utf8_decode(s + i, len - i, &cp);
        if (n == 0) return false;
        i += n;
    }
    return true;
}

size_t utf8_length(const char *s, size_t len) {
    size_t count = 0;
    for (size_t i = 0; i < len; count++) {
        uint32_t cp;
        size_t n = utf8_decode(s + i, len - i, &cp);
        i += n ? n : 1;
    }
    return count;
}

size_t utf8_offset(const char *s, size_t len, size_t n) {
    size_t i = 0;
    for (; n > 0 && i < len; n--) {
        uint32_t cp;
        size_t k = utf8_decode(s + i, len - i, &cp);
        i += k ? k : 1;
    }
    return i;
}

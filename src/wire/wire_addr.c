/* HOST:PORT texts. See wire_addr.h. Owns nothing. */
#include "wire/wire_addr.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static bool is_host_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_' || c == ':' || c == '%';
}

static bool parse_port(const char *text, bool allow_zero, uint16_t *port) {
    unsigned v = 0;
    size_t n = strlen(text);
    if (n == 0 || n > 5) return false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        v = v * 10 + (unsigned)(text[i] - '0');
    }
    if (v > 65535 || (v == 0 && !allow_zero)) return false;
    *port = (uint16_t)v;
    return true;
}

strata_err wire_addr_parse(const char *text, bool allow_zero, struct wire_addr *out, struct strata_errmsg *em) {
    struct wire_addr a = {.port = 0};
    const char *host = text;
    const char *colon = strrchr(text, ':');
    size_t len = colon ? (size_t)(colon - text) : 0;
    if (text[0] == '[') {
        const char *close = strchr(text, ']');
        if (!close || close + 1 != colon) goto bad;
        host = text + 1;
        len = (size_t)(close - host);
    } else if (colon && memchr(text, ':', len)) {
        return err_set(em, STRATA_EINVAL, "'%.300s': write an IPv6 address in brackets, as in [::1]:9400", text);
    }
    if (len == 0 || len >= sizeof a.host) goto bad;
    for (size_t i = 0; i < len; i++)
        if (!is_host_char(host[i])) goto bad;
    memcpy(a.host, host, len);
    if (!parse_port(colon + 1, allow_zero, &a.port)) goto bad;
    *out = a;
    return STRATA_OK;
bad:
    return err_set(em, STRATA_EINVAL, "'%.300s' is not HOST:PORT with a port from %d to 65535", text,
                   allow_zero ? 0 : 1);
}

const char *wire_addr_text(const struct wire_addr *a, char out[WIRE_ADDR_TEXT]) {
    snprintf(out, WIRE_ADDR_TEXT, strchr(a->host, ':') ? "[%s]:%u" : "%s:%u", a->host, a->port);
    return out;
}

bool wire_addr_is_loopback(const struct wire_addr *a) {
    struct in_addr v4;
    struct in6_addr v6;
    if (strcmp(a->host, "localhost") == 0) return true;
    if (inet_pton(AF_INET, a->host, &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, a->host, &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
    return false;
}

void wire_addr_from_sockaddr(const struct sockaddr *sa, struct wire_addr *out) {
    *out = (struct wire_addr){.host = "unknown"};
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)sa;
        inet_ntop(AF_INET, &in->sin_addr, out->host, sizeof out->host);
        out->port = ntohs(in->sin_port);
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)sa;
        inet_ntop(AF_INET6, &in6->sin6_addr, out->host, sizeof out->host);
        out->port = ntohs(in6->sin6_port);
    }
}

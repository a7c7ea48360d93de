/* HOST:PORT as people write it: "box2:9400", "192.168.1.7:9400", "[fd00::7]:9400". Pure functions, no look-up. */
#ifndef WIRE_ADDR_H
#define WIRE_ADDR_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { WIRE_ADDR_HOST = 254, WIRE_ADDR_TEXT = 264 };

struct wire_addr {
    char host[WIRE_ADDR_HOST]; /* a name or a numeric address, without brackets */
    uint16_t port;
};

/* Port 0 is accepted only with allow_zero (a listener that takes any free port). */
strata_err wire_addr_parse(const char *text, bool allow_zero, struct wire_addr *out, struct strata_errmsg *em);
/* HOST:PORT, with brackets where the host has colons. Returns out. */
const char *wire_addr_text(const struct wire_addr *a, char out[WIRE_ADDR_TEXT]);
/* Whether the host certainly names this machine itself: localhost, 127.0.0.0/8 or ::1. */
bool wire_addr_is_loopback(const struct wire_addr *a);

struct sockaddr;
/* The numeric form of a socket address; "unknown" and port 0 when it is neither IPv4 nor IPv6. */
void wire_addr_from_sockaddr(const struct sockaddr *sa, struct wire_addr *out);

#endif

/* The list of trusted public keys. See wire_key.h. */
#include "wire/wire_key.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TRUST_FILE_MAX = 256 << 10, TRUST_LINE_MAX = 512 };

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static bool name_is_good(const char *name) {
    size_t n = strlen(name);
    if (n == 0 || n >= WIRE_NAME_MAX) return false;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
                  c == '-' || c == '@';
        if (!ok) return false;
    }
    return true;
}

void wire_trust_deinit(struct wire_trust *t) {
    if (!t) return;
    free(t->entries);
    *t = (struct wire_trust){0};
}

const struct wire_trust_entry *wire_trust_find(const struct wire_trust *t, const struct ed25519_pub *pub) {
    for (size_t i = 0; i < t->n; i++)
        if (ed25519_pub_equal(&t->entries[i].pub, pub)) return &t->entries[i];
    return NULL;
}

strata_err wire_trust_add(struct wire_trust *t, const struct ed25519_pub *pub, const char *name,
                          struct strata_errmsg *em) {
    struct wire_trust_entry entry = {.pub = *pub};
    if (name) {
        if (!name_is_good(name))
            return err_set(em, STRATA_EINVAL,
                           "'%.80s' is no name for a key: use 1 to 63 letters, digits and '.', '_', '-', '@'", name);
        memcpy(entry.name, name, strlen(name) + 1);
    }
    for (size_t i = 0; i < t->n; i++) {
        if (ed25519_pub_equal(&t->entries[i].pub, pub)) {
            t->entries[i] = entry;
            return STRATA_OK;
        }
    }
    if (t->n >= WIRE_TRUST_MAX) return err_set(em, STRATA_ELIMIT, "the trust list is full (%d keys)", WIRE_TRUST_MAX);
    struct wire_trust_entry *entries = realloc(t->entries, (t->n + 1) * sizeof *entries);
    if (!entries) return err_nomem(em, "the trust list");
    t->entries = entries;
    t->entries[t->n++] = entry;
    return STRATA_OK;
}

strata_err wire_trust_remove(struct wire_trust *t, const char *key_or_name, struct strata_errmsg *em) {
    struct ed25519_pub pub;
    bool by_key = ed25519_pub_parse(key_or_name, &pub, NULL) == STRATA_OK;
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++) {
        bool hit = by_key ? ed25519_pub_equal(&t->entries[i].pub, &pub) : strcmp(t->entries[i].name, key_or_name) == 0;
        if (!hit) t->entries[kept++] = t->entries[i];
    }
    if (kept == t->n)
        return err_set(em, STRATA_ENOENT, "'%.80s' is neither a trusted key nor the name of one", key_or_name);
    t->n = kept;
    return STRATA_OK;
}

/* One line, NUL-terminated and writable. */
static strata_err parse_line(char *line, unsigned number, struct wire_trust *t, struct strata_errmsg *em) {
    struct ed25519_pub pub;
    size_t len = strlen(line);
    while (len && is_blank(line[len - 1])) line[--len] = '\0';
    while (is_blank(*line)) line++;
    if (!*line || *line == '#') return STRATA_OK;
    char *name = line;
    while (*name && !is_blank(*name)) name++;
    if (*name) *name++ = '\0';
    while (is_blank(*name)) name++;
    strata_err rc = ed25519_pub_parse(line, &pub, em);
    if (!rc && wire_trust_find(t, &pub)) rc = err_set(em, STRATA_EFORMAT, "the key stands there twice");
    if (!rc) rc = wire_trust_add(t, &pub, *name ? name : NULL, em);
    if (!rc) return STRATA_OK;
    if (em && em->code == STRATA_EINVAL) em->code = STRATA_EFORMAT;
    err_prefix(em, "line %u", number);
    return rc == STRATA_EINVAL ? STRATA_EFORMAT : rc;
}

strata_err wire_trust_parse(const char *text, size_t len, struct wire_trust *out, struct strata_errmsg *em) {
    struct wire_trust t = {0};
    strata_err rc = STRATA_OK;
    unsigned number = 0;
    while (len > 0 && !rc) {
        char line[TRUST_LINE_MAX];
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) : len;
        number++;
        if (n >= sizeof line || memchr(text, '\0', n)) {
            rc = err_set(em, STRATA_EFORMAT, "line %u is too long or has a NUL byte", number);
            break;
        }
        memcpy(line, text, n);
        line[n] = '\0';
        rc = parse_line(line, number, &t, em);
        n += end != NULL;
        text += n;
        len -= n;
    }
    if (rc) {
        wire_trust_deinit(&t);
        return rc;
    }
    *out = t;
    return STRATA_OK;
}

strata_err wire_trust_load(const char *dir, struct wire_trust *out, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct buf text;
    struct stat st;
    struct wire_trust t = {0};
    buf_init(&text, TRUST_FILE_MAX);
    strata_err rc = path_join(path, sizeof path, dir, "trusted", em);
    if (rc) goto out;
    if (stat(path, &st) != 0) {
        if (errno != ENOENT) rc = err_sys(em, STRATA_EIO, errno, "cannot read %s", path);
        if (!rc) *out = t;
        goto out;
    }
    if (st.st_mode & 022) {
        rc = err_set(em, STRATA_EAUTH, "%s can be written by other users (mode %04o); run: chmod 600 %s", path,
                     st.st_mode & 07777u, path);
        goto out;
    }
    rc = file_read_all(path, TRUST_FILE_MAX, &text, em);
    if (rc) goto out;
    rc = wire_trust_parse(buf_cstr(&text), text.len, &t, em);
    if (rc) {
        rc = err_prefix(em, "%s", path);
        goto out;
    }
    *out = t;
out:
    buf_deinit(&text);
    return rc;
}

strata_err wire_trust_save(const char *dir, const struct wire_trust *t, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct buf text;
    buf_init(&text, TRUST_FILE_MAX);
    strata_err rc = path_join(path, sizeof path, dir, "trusted", em);
    if (!rc) rc = buf_append_str(&text, "# Public keys that this machine trusts: written by 'strata key'.\n", em);
    for (size_t i = 0; i < t->n && !rc; i++) {
        char key[ED25519_PUB_TEXT];
        const struct wire_trust_entry *e = &t->entries[i];
        rc = buf_printf(&text, em, "%s%s%s\n", ed25519_pub_text(&e->pub, key), e->name[0] ? " " : "", e->name);
    }
    if (!rc && !file_is_dir(dir)) rc = file_mkdirs(dir, 0700, em);
    if (!rc) rc = file_write_all(path, buf_cstr(&text), text.len, 0600, em);
    buf_deinit(&text);
    return rc;
}

/* Provenance of a package. See pkg_identity.h. Owns nothing. */
#include "package/pkg_identity.h"

#include "base/path.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static strata_err copy(char *out, size_t cap, const char *text, const char *what, struct strata_errmsg *em) {
    size_t len = strlen(text);
    if (len == 0 || len >= cap || text[strspn(text, " \t")] == '\0')
        return err_set(em, STRATA_EINVAL, "%s must have 1 to %zu characters that are not all blank", what, cap - 1);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return err_set(em, STRATA_EINVAL, "%s holds a control character", what);
    memcpy(out, text, len + 1);
    return STRATA_OK;
}

/* org/repo, each part not empty, nothing that could be read as a path or an address. */
static bool is_repo(const char *s, size_t len) {
    const char *slash = memchr(s, '/', len);
    if (!slash || slash == s || slash == s + len - 1) return false;
    for (size_t i = 0; i < len; i++) {
        char ch = s[i];
        bool word = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') || ch == '-' ||
                    ch == '_' || ch == '.';
        if (!word && s + i != slash) return false;
    }
    return s[0] != '.' && slash[1] != '.';
}

/* The org/repo part of a coordinate: what stands before ':' or '@'. */
static size_t repo_part(const char *model_id) {
    return strcspn(model_id, ":@");
}

static strata_err check_model_id(const char *id, struct strata_errmsg *em) {
    if (!is_repo(id, repo_part(id)))
        return err_set(em, STRATA_EINVAL, "model id '%.100s' is not of the form org/repo[:variant]", id);
    return STRATA_OK;
}

/* A file name without ".gguf" and shard numbers, reduced to letters, digits, '.', '-' and '_'. */
static void stem_of(const char *path, char *out, size_t cap) {
    const char *base = path_basename(path);
    size_t len = strlen(base), tail = strlen("-00001-of-00001"), n = 0;
    if (len > 5 && strcmp(base + len - 5, ".gguf") == 0) len -= 5;
    if (len > tail && base[len - tail] == '-' && memcmp(base + len - 9, "-of-", 4) == 0) len -= tail;
    for (size_t i = 0; i < len && n + 1 < cap; i++) {
        char ch = base[i];
        bool keep = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') || ch == '-' ||
                    ch == '_' || (ch == '.' && n > 0);
        out[n++] = keep ? ch : '-';
    }
    if (n == 0) out[n++] = '-';
    out[n] = '\0';
}

/* ---- a hub cache ---- */

/* What the folders of a hub cache say; empty texts when the path is none. */
struct cached {
    char repo[PKG_IDENTITY_MAX], revision[PKG_IDENTITY_MAX], file[PKG_IDENTITY_MAX];
};

/* "ns--name" to "ns/name". */
static bool repo_of_folder(const char *p, size_t len, char out[PKG_IDENTITY_MAX]) {
    const char *sep = memmem(p, len, "--", 2);
    if (!sep || len >= PKG_IDENTITY_MAX) return false;
    size_t ns = (size_t)(sep - p);
    snprintf(out, PKG_IDENTITY_MAX, "%.*s/%.*s", (int)ns, p, (int)(len - ns - 2), sep + 2);
    return is_repo(out, strlen(out));
}

/* The file itself may be a link into the cache's blobs: only its folder is resolved. */
static bool absolute(const char *path, char out[PATH_MAX_LEN]) {
    char dir[PATH_MAX_LEN], *real = NULL;
    if (path_dirname(dir, sizeof dir, path, NULL) == STRATA_OK) real = realpath(dir, NULL);
    bool ok = real && path_join(out, PATH_MAX_LEN, real, path_basename(path), NULL) == STRATA_OK;
    free(real);
    return ok;
}

static void look_at_cache(const char *path, struct cached *out) {
    char full[PATH_MAX_LEN];
    struct cached c = {0};
    *out = (struct cached){0};
    if (!absolute(path, full)) return;
    const char *models = strstr(full, "/models--");
    for (const char *next; models && (next = strstr(models + 1, "/models--"));) models = next; /* the last one */
    if (!models) return;
    const char *name = models + strlen("/models--"), *end = strchr(name, '/');
    if (!end || strncmp(end, "/snapshots/", 11) != 0) return;
    const char *revision = end + 11, *slash = strchr(revision, '/');
    if (!slash || slash == revision || (size_t)(slash - revision) >= sizeof c.revision) return;
    if (!repo_of_folder(name, (size_t)(end - name), c.repo) || strlen(slash + 1) >= sizeof c.file) return;
    memcpy(c.revision, revision, (size_t)(slash - revision));
    snprintf(c.file, sizeof c.file, "%s", slash + 1);
    *out = c;
}

/*
 * The variant at the end of a file's stem, such as "Q4_K_M" or "UD-Q4_K_XL": what stands after the last separator and
 * looks like a quantization. NULL when nothing does.
 */
static const char *variant_of(const char *stem) {
    static const char *const words[] = {"BF16", "F16", "F32", "MXFP4", "NVFP4"};
    const char *p = stem + strlen(stem);
    while (p > stem && p[-1] != '-' && p[-1] != '.') p--;
    if (p == stem) return NULL;
    const char *q = p + (p[0] == 'I' || p[0] == 'T');
    bool quant = q[0] == 'Q' && isdigit((unsigned char)q[1]);
    for (size_t i = 0; !quant && i < sizeof words / sizeof words[0]; i++)
        quant = strncmp(p, words[i], strlen(words[i])) == 0;
    if (!quant) return NULL;
    return p - stem > 4 && strncmp(p - 4, "-UD-", 4) == 0 ? p - 3 : p;
}

/* ---- the fields ---- */

static strata_err resolve_model(const struct pkg_identity_request *want, const struct cached *cached,
                                struct pkg_identity *id, struct strata_errmsg *em) {
    if (want->model_id) {
        strata_err rc = copy(id->model_id, sizeof id->model_id, want->model_id, "the model id", em);
        return rc ? rc : check_model_id(id->model_id, em);
    }
    size_t room = sizeof id->model_id;
    const char *variant = variant_of(id->distribution_id);
    id->derived = !cached->repo[0];
    if (id->derived)
        snprintf(id->model_id, room, "local/%.*s", (int)(room - sizeof "local/"), id->distribution_id);
    else if (strlen(cached->repo) + strlen(id->distribution_id) + 2 > room)
        return err_set(em, STRATA_ELIMIT, "the model id would be longer than %zu characters: give --model-id",
                       room - 1);
    else
        snprintf(id->model_id, room, "%.*s%s%s", (int)(room / 2), cached->repo, variant ? ":" : "",
                 variant ? variant : "");
    return STRATA_OK;
}

static strata_err resolve_repo(const struct pkg_identity_request *want, const struct cached *cached,
                               struct pkg_identity *id, struct strata_errmsg *em) {
    if (want->source_repo) {
        if (!is_repo(want->source_repo, strlen(want->source_repo)))
            return err_set(em, STRATA_EINVAL, "source repository '%.100s' is not of the form org/repo",
                           want->source_repo);
        return copy(id->repo, sizeof id->repo, want->source_repo, "the source repository", em);
    }
    if (cached->repo[0])
        snprintf(id->repo, sizeof id->repo, "%s", cached->repo);
    else if (!id->derived)
        snprintf(id->repo, sizeof id->repo, "%.*s", (int)repo_part(id->model_id), id->model_id);
    return STRATA_OK;
}

static strata_err resolve_file(const struct pkg_identity_request *want, const struct cached *cached,
                               const struct gguf_source *src, struct pkg_identity *id, struct strata_errmsg *em) {
    /* The name of the first shard, whichever the user named. */
    char name[PKG_IDENTITY_MAX];
    const char *base = path_basename(gguf_source_shard_path(src, 0)), *why = "";
    size_t folder = cached->file[0] ? (size_t)(path_basename(cached->file) - cached->file) : 0;
    int n = snprintf(name, sizeof name, "%.*s%s", (int)folder, cached->file, base);
    if (n < 0 || (size_t)n >= sizeof name) return err_set(em, STRATA_ELIMIT, "file name too long: %.200s", base);
    const char *file = want->source_file ? want->source_file : name;
    if (want->source_file && !path_is_safe_relative(file, strlen(file), &why))
        return err_set(em, STRATA_EINVAL, "source file '%.200s' is not a path inside a repository: %s", file, why);
    return copy(id->primary_file, sizeof id->primary_file, file, "the source file's name", em);
}

/* A published package must say where it comes from; a file alone cannot. */
static strata_err check_provenance(const struct pkg_identity_request *want, const struct cached *cached,
                                   const char *path, struct strata_errmsg *em) {
    char missing[80] = "";
    if (want->local || cached->repo[0]) return STRATA_OK;
    const struct {
        const char *option, *value;
    } needed[] = {{"--model-id", want->model_id},
                  {"--source-revision", want->source_revision},
                  {"--source-file", want->source_file}};
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(missing);
        if (!needed[i].value) snprintf(missing + n, sizeof missing - n, "%s%s", n ? ", " : "", needed[i].option);
    }
    if (!missing[0]) return STRATA_OK;
    return err_set(em, STRATA_EINVAL,
                   "where does %s come from? give %s, so that others can check the package; or --local for a package "
                   "that stays with you",
                   path, missing);
}

strata_err pkg_identity_resolve(const struct pkg_identity_request *want, const char *path,
                                const struct gguf_source *src, struct pkg_identity *out, struct strata_errmsg *em) {
    struct pkg_identity id = {0};
    struct cached cached;
    look_at_cache(path, &cached);
    stem_of(gguf_source_shard_path(src, 0), id.distribution_id, sizeof id.distribution_id);
    strata_err rc = check_provenance(want, &cached, path, em);
    if (!rc) rc = resolve_model(want, &cached, &id, em);
    if (!rc) rc = resolve_repo(want, &cached, &id, em);
    const char *revision = want->source_revision ? want->source_revision : cached.revision[0] ? cached.revision : NULL;
    if (!rc && revision) rc = copy(id.revision, sizeof id.revision, revision, "the source revision", em);
    if (!rc) rc = resolve_file(want, &cached, src, &id, em);
    if (rc) return rc;
    if (id.repo[0] && id.revision[0])
        snprintf(id.canonical_ref, sizeof id.canonical_ref, "%s@%s/%s", id.repo, id.revision, id.primary_file);
    *out = id;
    return STRATA_OK;
}

bool pkg_identity_is_coordinate(const char *text) {
    return is_repo(text, repo_part(text));
}

strata_err pkg_identity_shard(const struct pkg_identity *id, const struct gguf_source *src, size_t i,
                              char out[PKG_IDENTITY_MAX], struct strata_errmsg *em) {
    const char *name = i == 0 ? path_basename(id->primary_file) : path_basename(gguf_source_shard_path(src, i));
    size_t folder = (size_t)(path_basename(id->primary_file) - id->primary_file);
    int n = snprintf(out, PKG_IDENTITY_MAX, "%.*s%s", (int)folder, id->primary_file, name);
    if (n < 0 || n >= PKG_IDENTITY_MAX) return err_set(em, STRATA_ELIMIT, "file name too long: %.200s", name);
    return STRATA_OK;
}

/* Provenance of a package. See pkg_identity.h. Owns nothing. */
#include "package/pkg_identity.h"

#include "base/path.h"

#include <stdio.h>
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

static strata_err resolve_model(const struct pkg_identity_request *want, struct pkg_identity *id,
                                struct strata_errmsg *em) {
    id->derived = want->model_id == NULL;
    if (id->derived) {
        size_t room = sizeof id->model_id - sizeof "local/";
        snprintf(id->model_id, sizeof id->model_id, "local/%.*s", (int)room, id->distribution_id);
        return STRATA_OK;
    }
    strata_err rc = copy(id->model_id, sizeof id->model_id, want->model_id, "the model id", em);
    return rc ? rc : check_model_id(id->model_id, em);
}

static strata_err resolve_repo(const struct pkg_identity_request *want, struct pkg_identity *id,
                               struct strata_errmsg *em) {
    if (want->source_repo) {
        if (!is_repo(want->source_repo, strlen(want->source_repo)))
            return err_set(em, STRATA_EINVAL, "source repository '%.100s' is not of the form org/repo",
                           want->source_repo);
        return copy(id->repo, sizeof id->repo, want->source_repo, "the source repository", em);
    }
    if (!id->derived) snprintf(id->repo, sizeof id->repo, "%.*s", (int)repo_part(id->model_id), id->model_id);
    return STRATA_OK;
}

static strata_err resolve_file(const struct pkg_identity_request *want, const struct gguf_source *src,
                               struct pkg_identity *id, struct strata_errmsg *em) {
    const char *file = want->source_file ? want->source_file : path_basename(gguf_source_shard_path(src, 0)), *why = "";
    if (want->source_file && !path_is_safe_relative(file, strlen(file), &why))
        return err_set(em, STRATA_EINVAL, "source file '%.200s' is not a path inside a repository: %s", file, why);
    return copy(id->primary_file, sizeof id->primary_file, file, "the source file's name", em);
}

strata_err pkg_identity_resolve(const struct pkg_identity_request *want, const struct gguf_source *src,
                                struct pkg_identity *out, struct strata_errmsg *em) {
    struct pkg_identity id = {0};
    stem_of(gguf_source_shard_path(src, 0), id.distribution_id, sizeof id.distribution_id);
    strata_err rc = resolve_model(want, &id, em);
    if (!rc) rc = resolve_repo(want, &id, em);
    if (!rc && want->source_revision)
        rc = copy(id.revision, sizeof id.revision, want->source_revision, "the source revision", em);
    if (!rc) rc = resolve_file(want, src, &id, em);
    if (rc) return rc;
    if (id.repo[0] && id.revision[0])
        snprintf(id.canonical_ref, sizeof id.canonical_ref, "%s@%s/%s", id.repo, id.revision, id.primary_file);
    *out = id;
    return STRATA_OK;
}

strata_err pkg_identity_shard(const struct pkg_identity *id, const struct gguf_source *src, size_t i,
                              char out[PKG_IDENTITY_MAX], struct strata_errmsg *em) {
    const char *name = i == 0 ? path_basename(id->primary_file) : path_basename(gguf_source_shard_path(src, i));
    size_t folder = (size_t)(path_basename(id->primary_file) - id->primary_file);
    int n = snprintf(out, PKG_IDENTITY_MAX, "%.*s%s", (int)folder, id->primary_file, name);
    if (n < 0 || n >= PKG_IDENTITY_MAX) return err_set(em, STRATA_ELIMIT, "file name too long: %.200s", name);
    return STRATA_OK;
}

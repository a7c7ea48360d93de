/* The manifest as a document, schema 1, and what both schemas share. See pkg_build.h. Owns nothing between calls. */
#include "package/pkg_build.h"

#include "base/file.h"
#include "base/path.h"
#include "base/utf8.h"
#include "package/pkg_card.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

strata_err pkg_build_str(json_t *obj, const char *key, const char *text, struct strata_errmsg *em) {
    if (!text || !text[0]) return STRATA_OK;
    if (!utf8_valid(text, strlen(text)))
        return err_set(em, STRATA_EINVAL, "%s '%.100s' is not valid UTF-8, which a manifest must be", key, text);
    return json_object_set_new(obj, key, json_string(text)) ? err_nomem(em, "a manifest") : STRATA_OK;
}

strata_err pkg_build_num(json_t *obj, const char *key, uint64_t v, struct strata_errmsg *em) {
    return json_object_set_new(obj, key, json_integer((json_int_t)v)) ? err_nomem(em, "a manifest") : STRATA_OK;
}

strata_err pkg_build_hex(json_t *obj, const char *key, const uint8_t sum[DIGEST_BYTES], struct strata_errmsg *em) {
    char hex[DIGEST_HEX];
    digest_to_hex(sum, DIGEST_BYTES, hex);
    return pkg_build_str(obj, key, hex, em);
}

json_t *pkg_build_nest(json_t *parent, const char *key, json_t *child) {
    int bad = key ? json_object_set_new(parent, key, child) : json_array_append_new(parent, child);
    return bad ? NULL : child;
}

/* Takes over obj's place in the document; NULL stands for one that could not be made. */
static strata_err set_artifact(json_t *obj, const char *path, const struct pkg_emitted *x, struct strata_errmsg *em) {
    strata_err rc = pkg_build_str(obj, "path", path, em);
    if (!rc) rc = pkg_build_num(obj, "tensor_count", x->tensor_count, em);
    if (!rc) rc = pkg_build_num(obj, "tensor_bytes", x->tensor_bytes, em);
    if (!rc) rc = pkg_build_num(obj, "artifact_bytes", x->artifact_bytes, em);
    if (!rc) rc = pkg_build_hex(obj, "sha256", x->sha256, em);
    return rc;
}

static strata_err set_source_file(json_t *files, const struct pkg_source_file *f, struct strata_errmsg *em) {
    json_t *o = pkg_build_nest(files, NULL, json_object());
    if (!o) return err_nomem(em, "a manifest");
    strata_err rc = pkg_build_str(o, "path", f->path, em);
    if (!rc && f->has_size) rc = pkg_build_num(o, "size_bytes", f->size_bytes, em);
    if (!rc && f->has_sha256) rc = pkg_build_hex(o, "sha256", f->sha256, em);
    return rc;
}

static strata_err set_source(const struct pkg_build *b, json_t *root, struct strata_errmsg *em) {
    const struct pkg_source_model *s = &b->source;
    json_t *obj = pkg_build_nest(root, "source_model", json_object());
    if (!obj) return err_nomem(em, "a manifest");
    strata_err rc = pkg_build_str(obj, "path", s->path, em);
    if (!rc) rc = pkg_build_hex(obj, "sha256", s->sha256, em);
    if (!rc) rc = pkg_build_str(obj, "repo", s->repo, em);
    if (!rc) rc = pkg_build_str(obj, "revision", s->revision, em);
    if (!rc) rc = pkg_build_str(obj, "primary_file", s->primary_file, em);
    if (!rc) rc = pkg_build_str(obj, "canonical_ref", s->canonical_ref, em);
    if (!rc) rc = pkg_build_str(obj, "distribution_id", s->distribution_id, em);
    if (rc || s->n_files == 0) return rc;
    json_t *files = pkg_build_nest(obj, "files", json_array());
    if (!files) return err_nomem(em, "a manifest");
    for (size_t i = 0; i < s->n_files && !rc; i++) rc = set_source_file(files, &s->files[i], em);
    return rc;
}

static strata_err set_shared(const struct pkg_build *b, json_t *root, struct strata_errmsg *em) {
    json_t *shared = pkg_build_nest(root, "shared", json_object());
    strata_err rc = shared ? STRATA_OK : err_nomem(em, "a manifest");
    for (size_t i = 0; i < b->cut->n_pieces && !rc; i++) {
        const struct pkg_piece *p = &b->cut->pieces[i];
        if (p->role == PKG_ROLE_LAYER) continue;
        json_t *o = pkg_build_nest(shared, pkg_role_name(p->role), json_object());
        rc = o ? set_artifact(o, p->path, &b->pieces[i], em) : err_nomem(em, "a manifest");
    }
    return rc;
}

static strata_err set_layers(const struct pkg_build *b, json_t *root, struct strata_errmsg *em) {
    json_t *layers = pkg_build_nest(root, "layers", json_array());
    strata_err rc = layers ? STRATA_OK : err_nomem(em, "a manifest");
    for (size_t i = 0; i < b->cut->n_pieces && !rc; i++) {
        const struct pkg_piece *p = &b->cut->pieces[i];
        if (p->role != PKG_ROLE_LAYER) continue;
        json_t *o = pkg_build_nest(layers, NULL, json_object());
        rc = o ? pkg_build_num(o, "layer_index", p->layer, em) : err_nomem(em, "a manifest");
        if (!rc) rc = set_artifact(o, p->path, &b->pieces[i], em);
    }
    return rc;
}

static strata_err set_projectors(const struct pkg_build *b, json_t *root, struct strata_errmsg *em) {
    if (b->n_copies == 0) return STRATA_OK;
    json_t *list = pkg_build_nest(root, "projectors", json_array());
    strata_err rc = list ? STRATA_OK : err_nomem(em, "a manifest");
    for (size_t i = 0; i < b->n_copies && !rc; i++) {
        json_t *o = pkg_build_nest(list, NULL, json_object());
        rc = o ? pkg_build_str(o, "kind", "mmproj", em) : err_nomem(em, "a manifest");
        if (!rc) rc = set_artifact(o, b->copies[i].path, &b->copied[i], em);
    }
    return rc;
}

strata_err pkg_build_manifest(const struct pkg_build *b, json_t **out, struct strata_errmsg *em) {
    json_t *root = json_object();
    if (!root) return err_nomem(em, "a manifest");
    strata_err rc = pkg_build_num(root, "schema_version", 1, em);
    if (!rc) rc = pkg_build_str(root, "model_id", b->model_id, em);
    if (!rc) rc = set_source(b, root, em);
    if (!rc) rc = pkg_build_str(root, "format", PKG_MANIFEST_FORMAT, em);
    if (!rc) rc = pkg_build_num(root, "layer_count", b->cut->inv->layer_count, em);
    if (!rc) rc = pkg_build_num(root, "activation_width", b->activation_width, em);
    if (!rc) rc = set_shared(b, root, em);
    if (!rc && b->generation && json_object_set(root, "generation", (json_t *)(uintptr_t)b->generation))
        rc = err_nomem(em, "a manifest");
    if (!rc) rc = set_layers(b, root, em);
    if (!rc) rc = set_projectors(b, root, em);
    if (!rc) rc = pkg_build_str(root, "skippy_abi_version", b->abi_version, em);
    if (!rc) rc = pkg_build_num(root, "created_at_unix_secs", b->created_at, em);
    if (rc) {
        json_decref(root);
        return rc;
    }
    *out = root;
    return STRATA_OK;
}

strata_err pkg_build_text(const json_t *manifest, struct buf *text, struct strata_errmsg *em) {
    strata_err rc = jsonx_dump(manifest, true, text, em);
    if (!rc) rc = buf_append_str(text, "\n", em);
    if (rc == STRATA_ELIMIT)
        rc =
            err_set(em, rc, "the manifest would be larger than %d bytes, which readers refuse", PKG_MANIFEST_MAX_BYTES);
    return rc;
}

strata_err pkg_build_finish(const json_t *manifest, const char *dir, bool with_card, char sha256[DIGEST_HEX],
                            uint64_t *bytes, struct strata_errmsg *em) {
    struct buf text;
    char path[PATH_MAX_LEN];
    struct pkg_manifest *m = NULL;
    buf_init(&text, PKG_MANIFEST_MAX_BYTES);
    strata_err rc = path_join(path, sizeof path, dir, PKG_MANIFEST_FILE, em);
    if (!rc) rc = pkg_build_text(manifest, &text, em);
    if (!rc) rc = pkg_manifest_parse(text.data, text.len, path, &m, em);
    if (!rc && with_card) rc = pkg_card_update(dir, m, NULL, em);
    if (!rc) rc = file_write_all(path, text.data, text.len, 0644, em);
    if (!rc) {
        memcpy(sha256, m->sha256, DIGEST_HEX);
        *bytes = text.len;
    }
    pkg_manifest_free(m);
    buf_deinit(&text);
    return rc;
}

strata_err pkg_build_time(uint64_t *out, struct strata_errmsg *em) {
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    if (!epoch || !*epoch) {
        *out = (uint64_t)time(NULL);
        return STRATA_OK;
    }
    char *end;
    errno = 0;
    unsigned long long v = strtoull(epoch, &end, 10);
    if (*epoch < '0' || *epoch > '9' || *end || errno || v > INT64_MAX)
        return err_set(em, STRATA_EINVAL, "SOURCE_DATE_EPOCH is '%.40s'; it must be whole seconds since 1970", epoch);
    *out = v;
    return STRATA_OK;
}

/* Weight bytes of each layer, without opening the layers. See pkg_model_layer_sizes in pkg_model.h. Owns nothing. */
#include "base/path.h"
#include "gguf/gguf_source.h"
#include "package/pkg_carrier.h"
#include "package/pkg_model.h"
#include "package/pkg_part.h"

#include <stdlib.h>
#include <string.h>

struct sizes {
    uint64_t *layers;
    struct pkg_select sel; /* the model's last layers and its head */
    uint64_t embedding, output;
    uint64_t token_embd; /* of embedding: what a last stage may need too */
};

/* After sel has been told the names. */
static strata_err alloc_sizes(struct sizes *s, const char *name, struct strata_errmsg *em) {
    struct pkg_range all = {0, PKG_RANGE_ALL}, resolved;
    strata_err rc = pkg_select_resolve(all, s->sel.layer_count, name, &resolved, em);
    if (rc) return rc;
    s->layers = calloc(s->sel.layer_count, sizeof *s->layers);
    return s->layers ? STRATA_OK : err_nomem(em, "layer sizes");
}

static void add_size(struct sizes *s, const struct gguf_tensor *t) {
    uint32_t layer;
    switch (pkg_class_of(t->name, &layer)) {
    case PKG_CLASS_LAYER: s->layers[layer] += t->bytes; break;
    case PKG_CLASS_EMBEDDING:
        s->embedding += t->bytes;
        if (strcmp(t->name, "token_embd.weight") == 0) s->token_embd = t->bytes;
        break;
    case PKG_CLASS_FINAL_NORM:
    case PKG_CLASS_OUTPUT: s->output += t->bytes; break;
    default: break; /* in every stage, so it does not matter for a cut */
    }
}

/* Logits and MTP layers: what the last stage needs of the first one's. */
static bool last_needs_embeddings(const struct sizes *s) {
    return s->sel.tied || pkg_select_borrows(&s->sel, s->sel.layer_count - 1);
}

/* ---- plain files ---- */

static strata_err sizes_plain(const char *path, struct sizes *s, struct strata_errmsg *em) {
    struct gguf_source *src = NULL;
    uint32_t count = 0, layer;
    strata_err rc = gguf_source_open(path, &src, em);
    if (rc) return rc;
    size_t n = gguf_source_tensor_count(src);
    for (size_t i = 0; i < n; i++)
        if (pkg_class_of(gguf_source_tensor(src, i, NULL)->name, &layer) == PKG_CLASS_LAYER && layer >= count)
            count = layer + 1;
    pkg_select_init(&s->sel, count);
    rc = alloc_sizes(s, path, em);
    for (size_t i = 0; !rc && i < n; i++) {
        pkg_select_note(&s->sel, gguf_source_tensor(src, i, NULL)->name);
        add_size(s, gguf_source_tensor(src, i, NULL));
    }
    gguf_source_free(src);
    return rc;
}

/* ---- packages ---- */

/* Opens one part's header; *part must be closed in any case. */
static strata_err open_header(const char *dir, const struct pkg_artifact *a, struct pkg_part *part,
                              struct strata_errmsg *em) {
    struct pkg_faults faults;
    pkg_faults_init(&faults);
    strata_err rc = pkg_part_open(dir, a, false, NULL, &faults, part, em);
    if (!rc) rc = pkg_faults_first(&faults, dir, em);
    pkg_faults_deinit(&faults);
    return rc;
}

static strata_err note_header(const char *dir, const struct pkg_artifact *a, struct sizes *s,
                              struct strata_errmsg *em) {
    struct pkg_part part;
    strata_err rc = open_header(dir, a, &part, em);
    for (size_t i = 0; !rc && i < gguf_reader_tensor_count(part.reader); i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(part.reader, i);
        pkg_select_note(&s->sel, t->name);
        if (strcmp(t->name, "token_embd.weight") == 0) s->token_embd = t->bytes;
    }
    pkg_part_close(&part);
    return rc;
}

/* What an artifact adds to a stage: the copies of replicated tensors, which every part holds, do not count. */
static uint64_t own_bytes(const struct pkg_manifest *mf, const struct pkg_artifact *a) {
    uint64_t replicated = mf->artifacts[PKG_ROLE_METADATA].tensor_bytes;
    return a->tensor_bytes >= replicated ? a->tensor_bytes - replicated : a->tensor_bytes;
}

/* Schema 1: the manifest states the bytes. A few headers are looked into for what it does not state: whether the output
 * is tied, whether the last layer is an MTP layer, and whether that one has embeddings of its own. */
static strata_err sizes1(const char *dir, const struct pkg_manifest *mf, struct sizes *s, struct strata_errmsg *em) {
    size_t n;
    strata_err rc = note_header(dir, &mf->artifacts[PKG_ROLE_OUTPUT], s, em);
    if (!rc) rc = note_header(dir, pkg_manifest_layer(mf, mf->layer_count - 1, &n), s, em);
    if (!rc && last_needs_embeddings(s)) rc = note_header(dir, &mf->artifacts[PKG_ROLE_EMBEDDINGS], s, em);
    for (uint32_t i = 0; i < mf->layer_count && !rc; i++) s->layers[i] = own_bytes(mf, pkg_manifest_layer(mf, i, &n));
    s->embedding = own_bytes(mf, &mf->artifacts[PKG_ROLE_EMBEDDINGS]);
    s->output = own_bytes(mf, &mf->artifacts[PKG_ROLE_OUTPUT]);
    return rc;
}

/* Schema 2: the carrier lists every tensor. */
static strata_err sizes2(const char *dir, const struct pkg_manifest *mf, struct sizes *s, struct strata_errmsg *em) {
    struct pkg_part part;
    struct pkg_carrier carrier = {0};
    struct pkg_faults faults;
    pkg_faults_init(&faults);
    strata_err rc = open_header(dir, &mf->artifacts[PKG_ROLE_METADATA], &part, em);
    if (!rc) rc = pkg_carrier_init(&carrier, part.reader, mf, &faults, em);
    if (!rc) rc = pkg_faults_first(&faults, dir, em);
    if (!rc) pkg_carrier_note(&carrier, &s->sel);
    for (size_t i = 0; !rc && i < gguf_reader_tensor_count(part.reader); i++)
        add_size(s, gguf_reader_tensor(part.reader, i));
    pkg_carrier_deinit(&carrier);
    pkg_part_close(&part);
    pkg_faults_deinit(&faults);
    return rc;
}

static strata_err sizes_package(const char *dir, struct sizes *s, struct strata_errmsg *em) {
    struct pkg_manifest *mf = NULL;
    strata_err rc = pkg_manifest_load(dir, &mf, em);
    if (rc) return rc;
    pkg_select_init(&s->sel, mf->layer_count);
    rc = alloc_sizes(s, dir, em);
    if (!rc) rc = mf->schema == 2 ? sizes2(dir, mf, s, em) : sizes1(dir, mf, s, em);
    pkg_manifest_free(mf);
    return rc;
}

/* ---- both ---- */

strata_err pkg_model_layer_sizes(const char *path, uint64_t **sizes, uint32_t *layer_count, uint64_t *embedding_bytes,
                                 uint64_t *output_bytes, struct strata_errmsg *em) {
    char dir[PATH_MAX_LEN];
    struct sizes s = {0};
    strata_err rc = pkg_part_folder(path, dir, sizeof dir) ? sizes_package(dir, &s, em) : sizes_plain(path, &s, em);
    if (rc) goto out;
    *sizes = s.layers;
    *layer_count = s.sel.layer_count;
    *embedding_bytes = s.embedding;
    *output_bytes = s.output + (last_needs_embeddings(&s) ? s.token_embd : 0);
    s.layers = NULL;
out:
    free(s.layers);
    return rc;
}

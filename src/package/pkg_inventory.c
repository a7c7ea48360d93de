/* The list of a model's tensors. See pkg_inventory.h. Owns the list and its index. */
#include "package/pkg_inventory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "blk.<digits>.nextn.<anything>" */
static bool is_nextn(const struct pkg_tensor *x) {
    if (x->class != PKG_CLASS_LAYER || strncmp(x->t->name, "blk.", 4) != 0) return false;
    const char *dot = strchr(x->t->name + 4, '.');
    return dot && strncmp(dot, ".nextn.", 7) == 0;
}

static strata_err reserve(struct pkg_inventory *inv, size_t n, struct strata_errmsg *em) {
    inv->tensors = calloc(n ? n : 1, sizeof *inv->tensors);
    return inv->tensors ? gguf_index_init(&inv->index, n, em) : err_nomem(em, "the list of tensors");
}

static void add(struct pkg_inventory *inv, const struct gguf_tensor *t) {
    struct pkg_tensor *x = &inv->tensors[inv->n_tensors];
    x->t = t;
    x->class = pkg_class_of(t->name, &x->layer);
    if (x->class == PKG_CLASS_LAYER && x->layer >= inv->layer_count) inv->layer_count = x->layer + 1;
    gguf_index_put(&inv->index, t->name, inv->n_tensors);
    inv->n_tensors++;
}

/* Facts that need the whole list. */
static strata_err survey(struct pkg_inventory *inv, struct strata_errmsg *em) {
    inv->tied = !pkg_inventory_find(inv, "output.weight");
    bool *mtp = calloc(inv->layer_count ? inv->layer_count : 1, sizeof *mtp);
    if (!mtp) return err_nomem(em, "the list of tensors");
    for (size_t i = 0; i < inv->n_tensors; i++)
        if (is_nextn(&inv->tensors[i])) mtp[inv->tensors[i].layer] = true;
    while (inv->mtp_layers < inv->layer_count && mtp[inv->layer_count - 1 - inv->mtp_layers]) inv->mtp_layers++;
    free(mtp);
    return STRATA_OK;
}

strata_err pkg_inventory_init(struct pkg_inventory *inv, const struct gguf_source *src, struct strata_errmsg *em) {
    *inv = (struct pkg_inventory){.meta = gguf_source_meta(src)};
    size_t n = gguf_source_tensor_count(src);
    strata_err rc = reserve(inv, n, em);
    for (size_t i = 0; i < n && !rc; i++) add(inv, gguf_source_tensor(src, i, NULL));
    if (!rc) rc = survey(inv, em);
    if (rc) pkg_inventory_deinit(inv);
    return rc;
}

strata_err pkg_inventory_from_model(struct pkg_inventory *inv, const struct pkg_model *m, struct strata_errmsg *em) {
    *inv = (struct pkg_inventory){.meta = pkg_model_meta(m)};
    size_t n = pkg_model_tensor_count(m);
    strata_err rc = reserve(inv, n, em);
    for (size_t i = 0; i < n && !rc; i++) add(inv, pkg_model_tensor(m, i));
    if (!rc) rc = survey(inv, em);
    if (!rc) inv->layer_count = pkg_model_layer_count(m);
    if (rc) pkg_inventory_deinit(inv);
    return rc;
}

void pkg_inventory_deinit(struct pkg_inventory *inv) {
    if (!inv) return;
    free(inv->tensors);
    gguf_index_deinit(&inv->index);
    *inv = (struct pkg_inventory){0};
}

const struct pkg_tensor *pkg_inventory_find(const struct pkg_inventory *inv, const char *name) {
    size_t i = gguf_index_get(&inv->index, name);
    return i == GGUF_INDEX_NONE ? NULL : &inv->tensors[i];
}

bool pkg_inventory_is_mtp_layer(const struct pkg_inventory *inv, uint32_t layer) {
    for (size_t i = 0; i < inv->n_tensors; i++)
        if (inv->tensors[i].layer == layer && is_nextn(&inv->tensors[i])) return true;
    return false;
}

strata_err pkg_inventory_key(const struct pkg_inventory *inv, const char *key, char *out, size_t cap,
                             struct strata_errmsg *em) {
    struct gguf_str arch;
    strata_err rc = gguf_reader_get_str(inv->meta, "general.architecture", true, &arch, em);
    if (rc) return rc;
    int n = arch.len > 64 ? -1 : snprintf(out, cap, "%.*s.%s", (int)arch.len, arch.data, key);
    if (n < 0 || (size_t)n >= cap)
        return err_set(em, STRATA_EFORMAT, "%s: general.architecture is too long", gguf_reader_name(inv->meta));
    return STRATA_OK;
}

strata_err pkg_inventory_width(const struct pkg_inventory *inv, uint32_t *width, struct strata_errmsg *em) {
    char key[128];
    uint32_t v = 0;
    strata_err rc = pkg_inventory_key(inv, "embedding_length", key, sizeof key, em);
    if (!rc) rc = gguf_reader_get_u32(inv->meta, key, true, &v, em);
    if (!rc && v == 0) rc = err_set(em, STRATA_EFORMAT, "%s: %s is 0", gguf_reader_name(inv->meta), key);
    if (!rc) *width = v;
    return rc;
}

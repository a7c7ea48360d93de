/* Generation defaults from evidence, or from a publisher's file. See pkg_infer.h. Owns what it builds until success. */
#include "package/pkg_infer.h"

#include "base/file.h"
#include "package/pkg_generation.h"
#include "package/pkg_generation2.h"
#include "package/pkg_glm_dsa.h"
#include "package/pkg_inventory.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 20 };

struct noting {
    struct pkg_infer_notes notes;
    bool out_of_memory;
};

static void note(struct noting *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void note(struct noting *to, const char *fmt, ...) {
    char text[STRATA_ERRMSG_MAX];
    struct strata_errmsg clean; /* no control characters from foreign data */
    va_list ap;
    if (to->notes.n == PKG_INFER_MAX_NOTES) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&clean, STRATA_EFORMAT, "%s", text);
    char *copy = strdup(clean.text);
    if (copy)
        to->notes.text[to->notes.n++] = copy;
    else
        to->out_of_memory = true;
}

void pkg_infer_notes_deinit(struct pkg_infer_notes *notes) {
    if (!notes) return;
    for (size_t i = 0; i < notes->n; i++) free(notes->text[i]);
    *notes = (struct pkg_infer_notes){0};
}

/* ---- native MTP ---- */

/* What the tensors say of NextN layers. */
struct nextn {
    uint32_t n, first, last; /* how many layers hold a nextn tensor, and which */
    uint32_t incomplete;     /* one that lacks a needed tensor */
    const char *lacks;       /* which one; NULL when all are complete */
};

static void look(const struct pkg_inventory *inv, uint32_t layer, struct nextn *found) {
    char name[64];
    if (found->n++ == 0) found->first = layer;
    found->last = layer;
    for (size_t i = 0; pkg_generation_nextn_tensors[i] && !found->lacks; i++) {
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", layer, pkg_generation_nextn_tensors[i]);
        if (pkg_inventory_find(inv, name)) continue;
        found->lacks = pkg_generation_nextn_tensors[i];
        found->incomplete = layer;
    }
}

static bool is_nextn_name(const char *name) {
    const char *dot = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    return dot && strncmp(dot, ".nextn.", 7) == 0;
}

static strata_err survey(const struct pkg_inventory *inv, struct nextn *found, struct strata_errmsg *em) {
    *found = (struct nextn){0};
    bool *nextn = calloc((size_t)inv->layer_count + 1, sizeof *nextn);
    if (!nextn) return err_nomem(em, "a list of layers");
    for (size_t i = 0; i < inv->n_tensors; i++)
        if (inv->tensors[i].class == PKG_CLASS_LAYER && is_nextn_name(inv->tensors[i].t->name))
            nextn[inv->tensors[i].layer] = true;
    for (uint32_t i = 0; i < inv->layer_count; i++)
        if (nextn[i]) look(inv, i, found);
    free(nextn);
    return STRATA_OK;
}

/* Whether both sides agree on at least one NextN layer; what they say otherwise becomes a note. */
static bool agree(const struct pkg_inventory *inv, const struct nextn *t, struct noting *to) {
    static const char no_claim[] = "native MTP is not declared";
    char key[128];
    uint32_t declared = 0;
    struct strata_errmsg em;
    if (pkg_inventory_key(inv, "nextn_predict_layers", key, sizeof key, &em)) {
        if (t->n) note(to, "%s: layer %" PRIu32 " holds NextN tensors, but %s", no_claim, t->first, em.text);
        return false;
    }
    bool there = gguf_reader_find_kv(inv->meta, key) != NULL;
    if (gguf_reader_get_u32(inv->meta, key, false, &declared, &em)) {
        note(to, "%s: %s", no_claim, em.text);
        return false;
    }
    if (declared == 0 && t->n == 0) return false;
    if (t->n == 0)
        note(to, "%s: %s is %" PRIu32 ", but no layer holds NextN tensors (blk.N.nextn.*)", no_claim, key, declared);
    else if (declared == 0)
        note(to, "%s: layers %" PRIu32 " to %" PRIu32 " hold NextN tensors, but %s is %s", no_claim, t->first, t->last,
             key, there ? "0" : "missing");
    else if (declared != t->n || t->last != inv->layer_count - 1 || t->first != inv->layer_count - t->n)
        note(to,
             "%s: %s is %" PRIu32 " of %" PRIu32 " layers, but NextN tensors are in %" PRIu32 " layers, %" PRIu32
             " to %" PRIu32 "; they must be in exactly the last ones",
             no_claim, key, declared, inv->layer_count, t->n, t->first, t->last);
    else if (t->lacks)
        note(to, "%s: %s is %" PRIu32 ", but blk.%" PRIu32 ".%s is missing", no_claim, key, declared, t->incomplete,
             t->lacks);
    else
        return true;
    return false;
}

/*
 * The standard's newest wording asks for the source under `proposers` and a strategy that refers to it. The first
 * readers of schema 1 know no proposers and want depth and layers in the strategy itself; later ones pass over these
 * when `proposer` is there. So both are written, and every reader finds what it looks for. The id is `mtp`; the older
 * spelling `native-mtp-n1` is read as that.
 */
static json_t *mtp_block(const struct nextn *t) {
    json_t *layers = json_array();
    int bad = layers ? 0 : -1;
    for (uint32_t i = t->first; i <= t->last && !bad; i++) bad = json_array_append_new(layers, json_integer(i));
    json_t *o = bad ? NULL
                    : json_pack("{s:s, s:{s:{s:s, s:i, s:O}}, s:{s:{s:s, s:s, s:i, s:O, s:{s:s, s:i, s:i, s:i, s:i}}}}",
                                "default", "mtp", "proposers", "mtp", "type", PKG_GENERATION_MTP, "prediction_depth",
                                PKG_GENERATION_MTP_DEPTH, "layer_indices", layers, "strategies", "mtp", "type",
                                PKG_GENERATION_MTP, "proposer", "mtp", "prediction_depth", PKG_GENERATION_MTP_DEPTH,
                                "layer_indices", layers, "window_policy", "default", "fixed", "initial_window", 1,
                                "min_window", 1, "max_window", 1, "pipeline_depth", 1);
    json_decref(layers);
    return o;
}

/* ---- GLM-DSA ---- */

static bool is_glm_dsa(const struct pkg_inventory *inv) {
    static const char name[] = "glm-dsa";
    struct gguf_str s = {0};
    struct strata_errmsg em;
    return gguf_reader_get_str(inv->meta, "general.architecture", true, &s, &em) == STRATA_OK &&
           s.len == strlen(name) && memcmp(s.data, name, s.len) == 0;
}

static strata_err infer_policy(const struct pkg_inventory *inv, json_t *block, struct noting *to,
                               struct strata_errmsg *em) {
    const struct pkg_glm_dsa_options opt = {0};
    struct pkg_glm_dsa_report report;
    char errors[STRATA_ERRMSG_MAX - 250]; /* what is left beside the sentence */
    bool changed;
    if (!is_glm_dsa(inv)) return STRATA_OK;
    strata_err rc = pkg_glm_dsa_check(inv, NULL, &opt, &report, em);
    if (rc) return rc;
    if (pkg_glm_dsa_errors_text(&report, errors, sizeof errors))
        note(to,
             "the policy " PKG_GENERATION_GLM_DSA_V1
             " is not declared, because the model does not fulfil its contract: "
             "%s; 'strata validate-glm-dsa-contract' lists all of it",
             errors);
    else
        rc = pkg_glm_dsa_set_policy(block, &changed, em);
    pkg_glm_dsa_deinit(&report);
    return rc;
}

strata_err pkg_infer_generation(const struct pkg_inventory *inv, json_t **out, struct pkg_infer_notes *notes,
                                struct strata_errmsg *em) {
    struct nextn found;
    struct noting to = {0};
    json_t *block = json_object();
    strata_err rc = block ? infer_policy(inv, block, &to, em) : err_nomem(em, "a generation block");
    if (!rc) rc = survey(inv, &found, em);
    if (!rc && agree(inv, &found, &to) && json_object_set_new(block, "speculative_decoding", mtp_block(&found)))
        rc = err_nomem(em, "a generation block");
    if (!rc && to.out_of_memory) rc = err_nomem(em, "a note");
    if (rc || json_object_size(block) == 0) {
        json_decref(block);
        block = NULL;
    }
    if (rc) {
        pkg_infer_notes_deinit(&to.notes);
        return rc;
    }
    *out = block;
    *notes = to.notes;
    return STRATA_OK;
}

/* ---- a publisher's file ---- */

/* The codes of all errors but the first one's, each once, as far as there is room. */
static void list_others(const struct pkg_faults *faults, enum pkg_fault_code first, char *text, size_t cap) {
    bool told[PKG_FAULT_COUNT] = {0};
    size_t at = 0;
    told[first] = true;
    text[0] = '\0';
    for (size_t i = 0; i < faults->n; i++) {
        enum pkg_fault_code code = faults->list[i].code;
        if (told[code] || pkg_fault_severity(code) != PKG_ERROR) continue;
        told[code] = true;
        int n = snprintf(text + at, cap - at, "%s %s", at ? "," : "; also", pkg_fault_name(code));
        if (n < 0 || (size_t)n >= cap - at) {
            text[at] = '\0';
            break;
        }
        at += (size_t)n;
    }
}

/* All errors in one message: each with its text if that fits, else the first with its text and the others by name. */
static strata_err refuse(const char *path, const struct pkg_faults *faults, struct strata_errmsg *em) {
    enum { ROOM = STRATA_ERRMSG_MAX - 200 }; /* what is left beside the path and the rest of the sentence */
    char others[ROOM - 250];
    struct buf all;
    const struct pkg_fault *first = NULL;
    bool fits = faults->n_dropped == 0;
    buf_init(&all, ROOM);
    for (size_t i = 0; i < faults->n; i++) {
        const struct pkg_fault *f = &faults->list[i];
        if (pkg_fault_severity(f->code) != PKG_ERROR) continue;
        if (fits && buf_printf(&all, NULL, "%s%s: %s", first ? "; " : "", pkg_fault_name(f->code), f->message))
            fits = false;
        if (!first) first = f;
    }
    strata_err rc;
    if (fits || !first) {
        rc = err_set(em, STRATA_EFORMAT, "%.120s: not a sound generation block: %s", path, buf_cstr(&all));
    } else {
        list_others(faults, first->code, others, sizeof others);
        rc = err_set(em, STRATA_EFORMAT, "%.120s: not a sound generation block, %zu errors: %s: %.200s%s", path,
                     faults->n_errors, pkg_fault_name(first->code), first->message, others);
    }
    buf_deinit(&all);
    return rc;
}

static strata_err check(const char *path, const json_t *block, unsigned schema, uint32_t layer_count,
                        struct strata_errmsg *em) {
    struct pkg_faults faults;
    pkg_faults_init(&faults);
    strata_err rc = schema == 2 ? pkg_generation2_check(block, layer_count, &faults, em)
                                : pkg_generation_check(block, layer_count, &faults, NULL, em);
    if (!rc && faults.n_errors) rc = refuse(path, &faults, em);
    pkg_faults_deinit(&faults);
    return rc;
}

strata_err pkg_infer_load_file(const char *path, unsigned schema, uint32_t layer_count, json_t **out,
                               struct strata_errmsg *em) {
    struct buf text;
    json_t *root = NULL;
    buf_init(&text, FILE_MAX);
    strata_err rc = file_read_all(path, FILE_MAX, &text, em);
    if (!rc && jsonx_parse(buf_cstr(&text), text.len, &root, em)) rc = err_prefix(em, "%s", path);
    if (rc) goto out;
    json_t *inner = json_object_get(root, "generation"), *block = inner ? inner : root;
    rc = check(path, block, schema, layer_count, em);
    if (!rc) *out = json_incref(block);
out:
    json_decref(root);
    buf_deinit(&text);
    return rc;
}

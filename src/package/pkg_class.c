/* The table of tensor classes. See pkg_class.h. Owns nothing. */
#include "package/pkg_class.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    enum pkg_class class;
} whole_names[] = {
    {"token_embd.weight", PKG_CLASS_EMBEDDING},   {"per_layer_token_embd.weight", PKG_CLASS_EMBEDDING},
    {"output.weight", PKG_CLASS_OUTPUT},          {"output.bias", PKG_CLASS_OUTPUT},
    {"output_norm.weight", PKG_CLASS_FINAL_NORM}, {"output_norm.bias", PKG_CLASS_FINAL_NORM},
};

/* Reads decimal digits up to `end` (one byte after the last); false when there are none, or too many. */
static bool parse_index(const char *p, const char *end, uint32_t *out) {
    uint32_t v = 0;
    if (p == end) return false;
    for (; p < end; p++) {
        if (*p < '0' || *p > '9') return false;
        v = v * 10 + (uint32_t)(*p - '0');
        if (v > PKG_CLASS_MAX_LAYER) return false;
    }
    *out = v;
    return true;
}

/* "blk.<digits>.<anything>" */
static bool is_block(const char *name, uint32_t *layer) {
    if (strncmp(name, "blk.", 4) != 0) return false;
    const char *dot = strchr(name + 4, '.');
    return dot && parse_index(name + 4, dot, layer);
}

/* "cache_<anything>_l<digits>", the recurrent and quantised cache tensors that some converters emit. */
static bool is_cache(const char *name, uint32_t *layer) {
    if (strncmp(name, "cache_", 6) != 0) return false;
    const char *us = strrchr(name, '_');
    return us > name + 6 && us[1] == 'l' && parse_index(us + 2, name + strlen(name), layer);
}

enum pkg_class pkg_class_of(const char *name, uint32_t *layer) {
    uint32_t index;
    if (is_block(name, &index) || is_cache(name, &index)) {
        if (layer) *layer = index;
        return PKG_CLASS_LAYER;
    }
    for (size_t i = 0; i < sizeof whole_names / sizeof whole_names[0]; i++)
        if (strcmp(whole_names[i].name, name) == 0) return whole_names[i].class;
    return PKG_CLASS_METADATA;
}

const char *pkg_class_name(enum pkg_class c) {
    static const char *const names[PKG_CLASS_COUNT] = {"metadata", "embedding", "layer", "final_norm", "output"};
    return (unsigned)c < PKG_CLASS_COUNT ? names[c] : "unknown";
}

bool pkg_class_is_owned(enum pkg_class c) {
    return c != PKG_CLASS_METADATA;
}

/*
 * What `inspect` knows about a model: its files, its tensors with their place in a package, and sums of them.
 *
 * Of a package every fragment's header is read; only that of the metadata stays open. Tensors are listed once, where
 * they belong: the copies that fragments carry are counted, not listed.
 * Life cycle: inspect_open, the printers, inspect_close.
 */
#ifndef INSPECT_H
#define INSPECT_H

#include "gguf/gguf_source.h"
#include "package/pkg_inventory.h"
#include "package/pkg_manifest.h"
#include "package/pkg_part.h"
#include "package/pkg_sign.h"

struct inspect_file {
    char *label;           /* owned: file name, or path inside the package */
    const char *kind;      /* of a projector, else NULL */
    uint64_t bytes;        /* of the file */
    uint64_t kv_bytes;     /* of its metadata pairs */
    uint64_t copied_bytes; /* payload of tensors that it repeats from another file */
    size_t tensors;        /* of a projector */
    uint64_t tensor_bytes; /* of a projector */
};

struct inspect_tensor {
    char name[64];
    uint32_t n_dims;
    uint64_t ne[4];
    uint32_t type;
    uint64_t bytes;
    uint64_t offset; /* from the start of its file */
    size_t file;     /* index into files */
    enum pkg_class class;
    uint32_t layer;  /* of PKG_CLASS_LAYER */
    bool mtp;        /* its layer is an MTP layer */
    bool tied;       /* token embeddings that are the output head as well */
    bool replicated; /* other fragments of the package carry copies; of a plain file: would carry them */
};

struct inspect_sum {
    size_t tensors;
    uint64_t bytes;
};

/* What is in every fragment, and what that costs. Of a plain file: what it would be in a package of schema 1. */
struct inspect_copies {
    size_t tensors;
    uint64_t tensor_bytes; /* of one copy */
    uint64_t kv_bytes;     /* metadata pairs of one copy */
    size_t fragments;
    uint64_t total_bytes; /* of all copies, the first one included */
    uint64_t extra_bytes; /* without the first one */
};

struct inspect {
    const char *path; /* view */
    struct gguf_source *source;
    struct pkg_manifest *manifest; /* of a package, else NULL */
    struct pkg_signature signature;
    struct pkg_part meta_part;
    const struct gguf_reader *meta; /* view: the reader whose metadata describes the model */
    struct inspect_file *files;
    size_t n_files;
    struct inspect_tensor *tensors;
    size_t n_tensors, room;
    uint32_t layer_count, mtp_layers;
    bool tied;
    uint64_t file_bytes, parameters;
    struct inspect_sum all, by_class[PKG_CLASS_COUNT];
    struct inspect_sum by_type[256]; /* by type id: those of the format are far below */
    struct inspect_sum *by_layer;    /* owned; layer_count entries */
    bool *mtp;                       /* owned; layer_count entries */
    struct inspect_copies copies;
};

/* path: a GGUF file, a member of a split set, a package's folder or its manifest. */
strata_err inspect_open(const char *path, struct inspect *out, struct strata_errmsg *em);
void inspect_close(struct inspect *v);

/* ---- facts of the metadata ---- */

enum { INSPECT_TEXT = 256 };

/* A fact that is absent, or of an unexpected kind, is no failure: it is left out. */
struct inspect_facts {
    struct gguf_str architecture, name, tokenizer, pre; /* data NULL: absent */
    const struct gguf_kv *context, *width, *feed_forward, *blocks, *heads,
        *kv_heads; /* numbers, or one for each layer */
    const struct gguf_kv *experts, *experts_used, *experts_shared, *nextn;
    bool has_vocabulary;
    uint64_t vocabulary; /* tokens */
    size_t kv_count;
};

void inspect_facts_read(const struct gguf_reader *meta, struct inspect_facts *out);

/* ---- printers ---- */

/* summary: leave out the lists of metadata and of tensors. */
void inspect_print_text(const struct inspect *v, bool summary);
/* legacy: exactly the older tool's document. */
strata_err inspect_print_json(const struct inspect *v, bool summary, bool legacy, struct strata_errmsg *em);

#endif

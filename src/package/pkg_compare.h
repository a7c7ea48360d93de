/*
 * One file that was cut from a model, against that model: the name, type, shape and every byte of each tensor, and
 * every pair of metadata. What differs is listed; the file is read once, and hashed in the same pass.
 *
 * Life cycle: pkg_compare_run fills a zeroed struct pkg_compared, which is freed by pkg_compared_deinit in any case.
 */
#ifndef PKG_COMPARE_H
#define PKG_COMPARE_H

#include "base/file.h"
#include "base/jsonx.h"
#include "base/progress.h"
#include "package/pkg_fault.h"
#include "package/pkg_inventory.h"

/* What is compared with what. */
struct pkg_compare {
    const struct pkg_inventory *source;
    const char *source_name;          /* of the model, for messages */
    const char *path;                 /* of the file, for messages and faults */
    struct file_map map;              /* view */
    const struct gguf_reader *reader; /* view; NULL: the file is only hashed */
    unsigned owned;                   /* bits 1 << class: tensors of these classes must be in one file only */
    bool header_only;                 /* the file lists tensors that it does not hold */
    bool whole_metadata;       /* all of the source's pairs must be there; else those that are must be the source's */
    struct progress *progress; /* advanced by the file's bytes, or NULL */
    bool (*cancelled)(void);   /* or NULL */
};

struct pkg_compared {
    size_t tensor_count, owned_count;
    uint64_t tensor_bytes;
    size_t *owned; /* the owned ones, as indices into the source's inventory */
    size_t n_owned;
    json_t *unknown;       /* names of tensors that the source does not have */
    json_t *mismatches;    /* {tensor, what: "type" | "shape" | "payload", expected?, actual?, first_byte?} */
    size_t compared_count; /* tensors whose every byte was compared */
    uint64_t compared_bytes;
    bool hashed;
    uint8_t sha256[DIGEST_BYTES];
    char unreadable[STRATA_ERRMSG_MAX]; /* why it could not be hashed, else "" */
};

/* Differences go into faults. Fails without memory or when cancelled. */
strata_err pkg_compare_run(const struct pkg_compare *c, struct pkg_faults *faults, struct pkg_compared *out,
                           struct strata_errmsg *em);
void pkg_compared_deinit(struct pkg_compared *c);

/* The classes that exactly one file of schema 1, or one slice, may hold. */
unsigned pkg_compare_owned(void);

#endif

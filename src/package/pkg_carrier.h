/*
 * The metadata carrier of a schema-2 package: shared/metadata.gguf, a GGUF file without payload.
 *
 * It holds the model's whole metadata and lists every tensor; four arrays, one entry for each tensor in the order of
 * the list, say where the payload lies:
 *   skippy.package.metadata_only     true
 *   skippy.package.part_count        u32, number of parts: the artifacts that are neither the carrier, nor a sidecar,
 *                                    nor a publisher's file, numbered by rising id
 *   skippy.package.locator_schema    u32, 1
 *   skippy.package.tensor_part       u32[], number of the part
 *   skippy.package.tensor_offset     u64[], from the start of that file
 *   skippy.package.tensor_size       u64[], bytes
 *   skippy.package.tensor_alignment  u32[], a power of two that divides the offset
 * The offsets in the list itself mean nothing.
 */
#ifndef PKG_CARRIER_H
#define PKG_CARRIER_H

#include "gguf/gguf_reader.h"
#include "package/pkg_manifest.h"
#include "package/pkg_select.h"

#define PKG_CARRIER_PREFIX "skippy.package."
#define PKG_CARRIER_ONLY PKG_CARRIER_PREFIX "metadata_only"
#define PKG_CARRIER_COUNT PKG_CARRIER_PREFIX "part_count"
#define PKG_CARRIER_SCHEMA PKG_CARRIER_PREFIX "locator_schema"
#define PKG_CARRIER_PART PKG_CARRIER_PREFIX "tensor_part"
#define PKG_CARRIER_OFFSET PKG_CARRIER_PREFIX "tensor_offset"
#define PKG_CARRIER_SIZE PKG_CARRIER_PREFIX "tensor_size"
#define PKG_CARRIER_ALIGNMENT PKG_CARRIER_PREFIX "tensor_alignment"

enum { PKG_CARRIER_LOCATORS = 1 /* the only locator_schema there is */ };

/* Where a tensor's payload lies. */
struct pkg_place {
    size_t artifact; /* index into the manifest's artifacts */
    uint64_t offset; /* from the start of the file */
};

struct pkg_carrier {
    const struct gguf_reader *reader; /* view */
    struct pkg_place *places;         /* owned; one for each tensor of reader, in its order */
};

/*
 * Reads and checks the arrays: lengths, part numbers, alignments, offsets, sizes, overlaps, layer numbers. reader was
 * made by gguf_reader_new_header. What is wrong goes into faults; *out is set (and must be deinitialized) only when
 * nothing is: its reader is NULL otherwise. Fails only without memory.
 */
strata_err pkg_carrier_init(struct pkg_carrier *out, const struct gguf_reader *reader, const struct pkg_manifest *m,
                            struct pkg_faults *faults, struct strata_errmsg *em);
void pkg_carrier_deinit(struct pkg_carrier *c);

/* Compares what a part's own header says of tensor `at` of the carrier with what the carrier says: type, shape and
 * place. offset is counted from the start of the file. */
void pkg_carrier_check_tensor(const struct pkg_carrier *c, const struct pkg_manifest *m, size_t at,
                              const struct gguf_tensor *have, uint64_t offset, struct pkg_faults *faults);
/*
 * Compares the header of a part (artifact is its index in the manifest) with what the carrier says of the tensors that
 * it places there: each must be listed, with the same type and shape, at the same offset. What else the part holds does
 * not matter.
 */
void pkg_carrier_check_part(const struct pkg_carrier *c, const struct pkg_manifest *m, size_t artifact,
                            const struct gguf_reader *part, struct pkg_faults *faults);

/* Takes notice of every tensor that the carrier lists. */
void pkg_carrier_note(const struct pkg_carrier *c, struct pkg_select *s);

/*
 * Which artifacts the range of s needs: sets needed[i] for each artifact i of m. c is the carrier of a schema-2
 * package, and NULL for schema 1, whose roles tell it; s must have been told of the model's tensors (see pkg_select.h).
 * The metadata is always needed, projectors and publisher's files never.
 */
void pkg_carrier_select(const struct pkg_carrier *c, const struct pkg_manifest *m, const struct pkg_select *s,
                        bool *needed);

#endif

/*
 * Shapes of JSON documents, as tables: which keys an object may have, of what type, in what order they stand in the
 * canonical form. One table serves both the strict check of a document and its canonical bytes, so that a field cannot
 * be known to one and not to the other.
 *
 * A field that is absent and one that is null are the same. The canonical form is compact JSON: fields in the order of
 * the table, absent ones left out, maps sorted by name, lists sorted where the shape says so, numbers as the shortest
 * decimal text that reads back as the same value (a fraction always has a decimal point or an exponent), and of the
 * characters of a text only '"', '\' and those below U+0020 escaped.
 */
#ifndef PKG_SHAPE_H
#define PKG_SHAPE_H

#include "base/buf.h"
#include "package/pkg_checker.h"

enum pkg_shape_kind {
    PKG_SHAPE_TEXT,
    PKG_SHAPE_U32,
    PKG_SHAPE_U64, /* up to 2^63 - 1, what the JSON library holds */
    PKG_SHAPE_I32,
    PKG_SHAPE_F64, /* whole numbers too */
    PKG_SHAPE_BOOL,
    PKG_SHAPE_U32_OR_WORD, /* a u32, or one of `words` */
    PKG_SHAPE_TEXTS,       /* a list of texts */
    PKG_SHAPE_U32S,        /* a list of u32 */
    PKG_SHAPE_OBJECT,      /* fields: `sub` */
    PKG_SHAPE_LIST,        /* of objects with the fields `sub` */
    PKG_SHAPE_MAP,         /* names to objects with the fields `sub` */
    PKG_SHAPE_VARIANTS,    /* names to objects; the text "type" names the row of `sub` that has the other fields */
    PKG_SHAPE_F64_MAP      /* names to F64 */
};

enum {
    PKG_SHAPE_REQUIRED = 1,
    PKG_SHAPE_NOT_BLANK = 2,  /* texts, also those of a list */
    PKG_SHAPE_SKIP_EMPTY = 4, /* an empty list or map is left out of the canonical form */
    PKG_SHAPE_LOW = 8,        /* numbers: at least `low` */
    PKG_SHAPE_ABOVE = 16,     /* numbers: above `low` */
    PKG_SHAPE_HIGH = 32,      /* numbers: at most `high` */
    PKG_SHAPE_APART = 64      /* an object that is checked apart: here it need only be one */
};

struct pkg_shape {
    const char *key; /* NULL ends a table */
    enum pkg_shape_kind kind;
    unsigned flags;
    const struct pkg_shape *sub;
    const char *const *words; /* NULL-terminated: a text must be one of these */
    double low, high;
    int (*order)(const json_t *a, const json_t *b); /* of a list */
    enum pkg_fault_code value_code; /* of values out of bounds, here and below; 0: what the shape around says */
};

/* Adds a fault for each field of obj (an object) that the shape does not allow, or misses: unknown_field,
 * missing_value, invalid_field for a wrong type, value_code for a value out of bounds. */
void pkg_shape_check(const struct pkg_shape *fields, const json_t *obj, const char *where,
                     enum pkg_fault_code value_code, struct pkg_faults *faults);

/* Appends the canonical form of obj, in which the check above found no fault; fields that the shape does not know are
 * left out. */
strata_err pkg_shape_canonical(const struct pkg_shape *fields, const json_t *obj, struct buf *out,
                               struct strata_errmsg *em);

#endif

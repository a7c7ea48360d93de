/*
 * The operations that the sweep disturbs. Each looks at, or makes, packages of a small model; what it finds is a text,
 * so that two runs can be compared.
 *
 * Life cycle: ops_setup once, any number of operations, ops_teardown.
 */
#ifndef OPS_H
#define OPS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RESULT_MAX = 1 << 16 };

struct result {
    char text[RESULT_MAX];
    size_t len;
};

void note(struct result *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
uint64_t fnv(const void *data, size_t len);

/* What stands in ops_out_dir before an operation. NOTHING: it does not write. */
enum before { NOTHING, NO_FOLDER, FOLDER, PACKAGE };

struct op {
    const char *name;
    /* again: it has failed before, and is to finish what was left. */
    strata_err (*run)(struct result *r, bool again, struct strata_errmsg *em);
    enum before before;
};

extern const struct op ops[];
extern const size_t n_ops;

void ops_setup(void);
void ops_teardown(void);

/* Where the operations that write do so. */
const char *ops_out_dir(void);
/* Brings that folder into the state that an operation starts from. */
void ops_prepare(const struct op *op);

#endif

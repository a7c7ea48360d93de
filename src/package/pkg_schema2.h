/* The fields of model-package.json, schema version 2, as tables (see pkg_shape.h). */
#ifndef PKG_SCHEMA2_H
#define PKG_SCHEMA2_H

#include "package/pkg_shape.h"

#define PKG_SCHEMA2_FORMAT "gguf"

/* The whole document, and its field `generation`, which is also a document of its own for writers. */
extern const struct pkg_shape pkg_schema2_root[];
extern const struct pkg_shape pkg_schema2_generation[];

/* The value of `kind` of sidecars; and of `role` of publisher files, in their order: NULL-terminated. */
extern const char *const pkg_schema2_sidecar_kinds[];
extern const char *const pkg_schema2_publisher_roles[];

#endif

/* What a layer range is and costs, for people and for programs; options that commands which run one share. */
#ifndef CLI_ENGINE_H
#define CLI_ENGINE_H

#include "cli/cli.h"
#include "engine/engine.h"

#include <jansson.h>

/* The value of --kv-type; a usage error that names all types when it is none of them. */
int cli_engine_take_kv(const struct cli *cli, const char *text, enum engine_kv_type *out);

/* An object with the architecture, the device, sizes and bytes; NULL when memory runs out. */
json_t *cli_engine_json(const struct engine_info *i);

/* A table of the memory that the range takes, and what there is of it, on stdout. */
void cli_engine_print_memory(const struct engine_info *i, enum engine_kv_type kv_type, uint64_t available);

/* The same as one object; `why` is the reason for which it does not fit, or NULL when it does. */
json_t *cli_engine_memory_json(const struct engine_info *i, enum engine_kv_type kv_type, uint64_t available,
                               const char *why);

#endif

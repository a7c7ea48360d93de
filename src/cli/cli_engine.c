/* Reports about a layer range. See cli_engine.h. Owns nothing. */
#include "cli/cli_engine.h"

#include "base/progress.h"

#include <inttypes.h>
#include <stdio.h>

int cli_engine_take_kv(const struct cli *cli, const char *text, enum engine_kv_type *out) {
    if (engine_kv_parse(text, out)) return CLI_OK;
    return cli_usage(cli, "--kv-type is f16, f32, bf16, q8_0 or q4_0, not '%s'", text);
}

json_t *cli_engine_json(const struct engine_info *i) {
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "architecture",
                     i->arch, "backend", i->backend, "device", i->device, "threads", (json_int_t)i->n_threads,
                     "context", (json_int_t)i->n_ctx, "batch", (json_int_t)i->n_batch, "weight_bytes",
                     (json_int_t)i->weight_bytes, "copied_bytes", (json_int_t)i->copied_bytes, "repacked_bytes",
                     (json_int_t)i->repacked_bytes, "kv_bytes", (json_int_t)i->kv_bytes, "scratch_bytes",
                     (json_int_t)i->scratch_bytes, "device_bytes", (json_int_t)i->device_bytes, "device_scratch_bytes",
                     (json_int_t)i->device_scratch_bytes, "operations", (json_int_t)i->ops, "host_operations",
                     (json_int_t)i->host_ops);
}

static void print_row(const char *what, uint64_t bytes) {
    char size[32];
    printf("%-16s %12s %16" PRIu64 "\n", what, progress_bytes(size, sizeof size, bytes), bytes);
}

static void print_free(const char *what, uint64_t bytes) {
    if (bytes == UINT64_MAX)
        printf("%-16s %12s\n", what, "not known");
    else
        print_row(what, bytes);
}

void cli_engine_print_memory(const struct engine_info *i, enum engine_kv_type kv_type, uint64_t available) {
    printf("layers %u..%u of %u (%s), a context of %u positions, batches of %u tokens, KV cache of %s\n\n",
           (unsigned)i->range.first, (unsigned)i->range.end, (unsigned)i->layer_count, i->arch, (unsigned)i->n_ctx,
           (unsigned)i->n_batch, engine_kv_name(kv_type));
    printf("%-16s %12s %16s\n", "", "", "bytes");
    print_row("weights, mapped",
              i->weight_bytes + i->both_bytes - i->copied_bytes - i->repacked_bytes - i->device_bytes);
    print_row("weights, copied", i->copied_bytes);
    print_row("weights, packed", i->repacked_bytes);
    if (i->device_bytes) print_row("weights, device", i->device_bytes);
    print_row("KV cache", i->kv_bytes);
    print_row("scratch", i->scratch_bytes);
    print_row("total", engine_info_bytes(i));
    if (i->is_apart) {
        printf("of these on %s:\n", i->device);
        print_row("  total", i->device_bytes + i->kv_bytes + i->device_scratch_bytes);
        print_free("  free there", i->device_free);
    }
    print_free("available", available);
}

json_t *cli_engine_memory_json(const struct engine_info *i, enum engine_kv_type kv_type, uint64_t available,
                               const char *why) {
    json_t *root = json_pack("{s:b, s:I, s:I, s:I, s:s, s:o, s:I}", "fits", !why, "first", (json_int_t)i->range.first,
                             "end", (json_int_t)i->range.end, "layer_count", (json_int_t)i->layer_count, "kv_type",
                             engine_kv_name(kv_type), "engine", cli_engine_json(i), "total_bytes",
                             (json_int_t)engine_info_bytes(i));
    bool ok = root != NULL;
    if (ok && available <= INT64_MAX)
        ok = json_object_set_new(root, "available_bytes", json_integer((json_int_t)available)) == 0;
    if (ok && i->is_apart && i->device_free <= INT64_MAX)
        ok = json_object_set_new(root, "device_free_bytes", json_integer((json_int_t)i->device_free)) == 0;
    if (ok && why) ok = json_object_set_new(root, "why", json_string(why)) == 0;
    if (ok) return root;
    json_decref(root);
    return NULL;
}

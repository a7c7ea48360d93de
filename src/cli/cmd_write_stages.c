/* `strata write-stages`: a model as one GGUF file for each stage. The work is pkg_write_stages'. */
#include "base/progress.h"
#include "cli/cli.h"
#include "package/pkg_write.h"
#include "plan/plan_stages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: strata write-stages [OPTIONS] MODEL.gguf --stages N --out-dir DIR\n"
    "\n"
    "Writes a GGUF model (name any part of a split one) as N files stage-000.gguf, stage-001.gguf, ..., each of which\n"
    "one stage can load, and slice-manifest.json with their ranges, sizes and digests, last. A layer package\n"
    "(strata write-package) is the better choice when the number of stages may change.\n"
    "\n"
    "  --stages N       how many stages\n"
    "  --out-dir DIR    the folder to write; it must be absent or empty\n"
    "  --by bytes|count divide by size (so that the largest stage is as small as it can be), or by number of layers\n"
    "  --resume         DIR may hold a part of the work: what is right is kept, the rest is done again\n"
    "  --jobs N         threads (one for each processor)\n"
    "  --json           print the slice manifest instead of a table\n"
    "  --help           this text\n"
    "\n"
    "Exit status: 0 written, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata write-stages model.gguf --stages 3 --out-dir stages\n"
    "  strata validate model.gguf stages/stage-*.gguf\n";

struct options {
    const char *source, *out_dir;
    uint32_t stages;
    enum plan_by by;
    bool json;
    struct pkg_write_how how;
};

static void print_table(const char *dir, const json_t *manifest) {
    size_t i;
    json_t *s;
    printf("%s: %zu stages\n", dir, json_array_size(json_object_get(manifest, "stages")));
    json_array_foreach(json_object_get(manifest, "stages"), i, s) {
        char size[32];
        progress_bytes(size, sizeof size, (uint64_t)json_integer_value(json_object_get(s, "artifact_bytes")));
        printf("  %s  layers %lld..%lld  %lld tensors  %s  sha256 %.16s...\n",
               json_string_value(json_object_get(s, "path")),
               (long long)json_integer_value(json_object_get(s, "layer_start")),
               (long long)json_integer_value(json_object_get(s, "layer_end")),
               (long long)json_integer_value(json_object_get(s, "tensor_count")), size,
               json_string_value(json_object_get(s, "sha256")));
    }
}

/* The planner's ranges; freed by the caller. */
static strata_err plan(const struct options *o, struct pkg_range **out, struct strata_errmsg *em) {
    struct gguf_source *src = NULL;
    struct pkg_inventory inv = {0};
    struct plan_stages stages = {0};
    struct pkg_range *ranges = calloc(o->stages, sizeof *ranges);
    strata_err rc = ranges ? gguf_source_open(o->source, &src, em) : err_nomem(em, "a plan");
    if (!rc) rc = pkg_inventory_init(&inv, src, em);
    if (!rc) rc = plan_stages_make(&inv, o->source, o->stages, o->by, &stages, em);
    for (uint32_t i = 0; i < stages.n && !rc; i++) ranges[i] = stages.list[i].range;
    plan_stages_deinit(&stages);
    pkg_inventory_deinit(&inv);
    gguf_source_free(src);
    if (rc) {
        free(ranges);
        return rc;
    }
    *out = ranges;
    return STRATA_OK;
}

static int run(const struct cli *cli, const struct options *o) {
    struct strata_errmsg em;
    struct pkg_range *ranges = NULL;
    json_t *manifest = NULL;
    strata_err rc = plan(o, &ranges, &em);
    if (!rc) rc = pkg_write_stages(o->source, ranges, o->stages, o->out_dir, &o->how, &manifest, &em);
    free(ranges);
    if (rc) return cli_fail(cli, o->json && !cli->skippy, &em);
    if (o->json)
        rc = cli_print_json(manifest, &em);
    else
        print_table(o->out_dir, manifest);
    json_decref(manifest);
    return rc ? cli_fail(cli, false, &em) : CLI_OK;
}

int cmd_write_stages(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {
        {"stages", required_argument, NULL, 's'}, {"out-dir", required_argument, NULL, 'o'},
        {"by", required_argument, NULL, 'b'},     {"resume", no_argument, NULL, 'R'},
        {"jobs", required_argument, NULL, 'n'},   {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},         {0}};
    struct options o = {.by = cli->skippy ? PLAN_BY_COUNT : PLAN_BY_BYTES,
                        .json = cli->skippy,
                        .how = {.progress = stderr, .cancelled = cli_interrupted}};
    uint32_t jobs = 0;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 's':
            if (!cli_parse_u32(optarg, 1, 100000, &o.stages))
                return cli_usage(cli, "--stages is a number from 1 on, not '%s'", optarg);
            break;
        case 'o': o.out_dir = optarg; break;
        case 'b':
            if (strcmp(optarg, "bytes") != 0 && strcmp(optarg, "count") != 0)
                return cli_usage(cli, "--by is bytes or count, not '%s'", optarg);
            o.by = strcmp(optarg, "count") == 0 ? PLAN_BY_COUNT : PLAN_BY_BYTES;
            break;
        case 'R': o.how.resume = true; break;
        case 'n':
            if (!cli_parse_u32(optarg, 1, 256, &jobs))
                return cli_usage(cli, "--jobs is from 1 to 256, not '%s'", optarg);
            o.how.jobs = jobs;
            break;
        case 'j': o.json = true; break;
        case 'h': fputs(help, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) return cli_usage(cli, "name one GGUF file");
    if (o.stages == 0) return cli_usage(cli, "--stages N is needed: how many");
    if (!o.out_dir || !*o.out_dir) return cli_usage(cli, "--out-dir DIR is needed: the folder to write");
    o.source = argv[optind];
    cli_catch_interrupt();
    return run(cli, &o);
}

/* `strata materialize`: merges a range of a package into one GGUF file. The work is pkg_materialize's; this is its
 * command line. */
#include "base/clock.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "package/pkg_materialize.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: strata materialize [OPTIONS] PACKAGE RANGE --out FILE.gguf\n"
    "\n"
    "Merges what a layer range of a package (its folder, or its model-package.json) needs into one GGUF file, for\n"
    "programs that load single files: with RANGE 'all' it is the whole model again, every tensor byte for byte and\n"
    "every metadata key in its order. The files are verified first. The result is a cache: it is marked as one\n"
    "(skippy.package.materialized), cannot be written into a package, and is not for publishing.\n"
    "\n"
    "  RANGE       FIRST..END, layers from FIRST up to but not including END, or 'all'\n"
    "  --out FILE  the file to write; it appears when it is whole\n"
    "  --json      one JSON document instead of a line\n"
    "  --help      this text\n"
    "\n"
    "Exit status: 0 written, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata materialize model-package all --out /tmp/model.gguf\n"
    "  strata materialize model-package 0..16 --out /tmp/stage-0.gguf\n";

static strata_err print_json(const char *package, const char *out, const struct pkg_materialize_result *r,
                             struct strata_errmsg *em) {
    json_t *root = json_pack(
        "{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "package", jsonx_text(package, strlen(package)), "path",
        jsonx_text(out, strlen(out)), "layer_start", (json_int_t)r->range.first, "layer_end", (json_int_t)r->range.end,
        "part_count", (json_int_t)r->part_count, "tensor_count", (json_int_t)r->tensor_count, "tensor_bytes",
        (json_int_t)r->tensor_bytes, "artifact_bytes", (json_int_t)r->file_bytes, "sha256", r->sha256);
    if (!root) return err_nomem(em, "a report");
    strata_err rc = cli_print_json(root, em);
    json_decref(root);
    return rc;
}

static int run(const struct cli *cli, const char *package, const struct pkg_materialize_options *opt, bool json) {
    struct pkg_materialize_result res;
    struct strata_errmsg em;
    char size[32];
    uint64_t start = clock_now_ns();
    strata_err rc = pkg_materialize(package, opt, &res, &em);
    if (rc) return cli_fail(cli, json, &em);
    if (json)
        rc = print_json(package, opt->out, &res, &em);
    else
        printf("%s: layers %" PRIu32 "..%" PRIu32 ", %zu tensors of %zu parts, %s, written in %.1f s\nsha256 %s\n",
               opt->out, res.range.first, res.range.end, res.tensor_count, res.part_count,
               progress_bytes(size, sizeof size, res.file_bytes), clock_since_s(start), res.sha256);
    return rc ? cli_fail(cli, false, &em) : CLI_OK;
}

int cmd_materialize(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {
        {"out", required_argument, NULL, 'o'}, {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    struct pkg_materialize_options opt = {
        .range = {0, PKG_RANGE_ALL}, .progress = stderr, .cancelled = cli_interrupted};
    bool json = false;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":ho:", longopts, NULL)) != -1) {
        switch (c) {
        case 'o': opt.out = optarg; break;
        case 'j': json = true; break;
        case 'h': fputs(help, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 2) return cli_usage(cli, "name a package and a layer range (FIRST..END, or all)");
    const char *range = argv[optind + 1];
    if (strcmp(range, "all") != 0 && !cli_parse_range(range, &opt.range.first, &opt.range.end))
        return cli_usage(cli, "the range is FIRST..END with FIRST below END, or all; not '%s'", range);
    if (!opt.out || !*opt.out) return cli_usage(cli, "--out FILE is needed: the file to write");
    cli_catch_interrupt();
    return run(cli, argv[optind], &opt, json);
}

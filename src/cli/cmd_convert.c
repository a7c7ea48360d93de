/* `strata convert`: turns a package of one schema into one of the other. The work is pkg_convert's; this is its command
 * line. */
#include "base/clock.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "package/pkg_convert.h"

#include <inttypes.h>
#include <stdio.h>

static const char help[] =
    "usage: strata convert [OPTIONS] PACKAGE --to 1|2 --out-dir DIR\n"
    "\n"
    "Writes a layer package (its folder, or its model-package.json) again in the other schema version. Every file is\n"
    "verified first; tensors are copied byte for byte, and identity, source digests, projectors and the generation\n"
    "block go along as far as the other schema has a place for them (what has none is told). The time of creation\n"
    "stays, so that converting twice gives identical files; converting back gives the same fragments again.\n"
    "\n"
    "  --to 1|2               the schema version to write\n"
    "  --out-dir DIR          the folder to write; it must be absent or empty\n"
    "  --max-artifact-bytes N to schema 2: divide groups of tensors above N bytes (8589934592)\n"
    "  --slim                 to schema 1: keep the whole metadata in shared/metadata.gguf alone\n"
    "  --no-card              write no README.md\n"
    "  --resume               DIR may hold a part of this package: what is right is kept, the rest is done again\n"
    "  --jobs N               threads (one for each processor)\n"
    "  --json                 print the new manifest instead of a summary\n"
    "  --help                 this text\n"
    "\n"
    "Exit status: 0 written, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata convert model-package --to 2 --out-dir model-package-v2\n"
    "  strata preflight model-package-v2\n";

static void print_note(void *user, const char *text) {
    const struct cli *cli = user;
    fprintf(stderr, "%s %s: warning: %s\n", cli->program, cli->command, text);
}

static int run(const struct cli *cli, const char *package, struct pkg_convert_options *opt, bool json) {
    struct pkg_convert_result res;
    struct strata_errmsg em;
    char size[32];
    uint64_t start = clock_now_ns();
    opt->note = print_note;
    opt->note_user = (void *)(uintptr_t)cli;
    strata_err rc = pkg_convert(package, opt, &res, &em);
    if (rc) return cli_fail(cli, json, &em);
    if (json)
        rc = cli_print_json(res.manifest, &em);
    else
        printf("%s: schema %u to schema %u: %zu files, %s, written in %.1f s\nmanifest sha256 %s\n", opt->out_dir,
               res.from_schema, opt->to_schema, res.file_count, progress_bytes(size, sizeof size, res.total_bytes),
               clock_since_s(start), res.manifest_sha256);
    json_decref(res.manifest);
    return rc ? cli_fail(cli, false, &em) : CLI_OK;
}

static int take_option(const struct cli *cli, int c, struct pkg_convert_options *opt) {
    uint32_t n = 0;
    switch (c) {
    case 't':
        if (!cli_parse_u32(optarg, 1, 2, &n)) return cli_usage(cli, "--to is 1 or 2, not '%s'", optarg);
        opt->to_schema = n;
        break;
    case 'n':
        if (!cli_parse_u32(optarg, 1, 256, &n)) return cli_usage(cli, "--jobs is from 1 to 256, not '%s'", optarg);
        opt->how.jobs = n;
        break;
    case 'b':
        if (!cli_parse_u64(optarg, 1, INT64_MAX, &opt->max_artifact_bytes))
            return cli_usage(cli, "--max-artifact-bytes is a number of bytes, not '%s'", optarg);
        break;
    case 'o': opt->out_dir = optarg; break;
    case 'S': opt->slim = true; break;
    case 'c': opt->no_card = true; break;
    case 'R': opt->how.resume = true; break;
    default: break;
    }
    return CLI_OK;
}

static int check_options(const struct cli *cli, const struct pkg_convert_options *opt) {
    if (!opt->to_schema) return cli_usage(cli, "--to 1 or --to 2 is needed: the schema version to write");
    if (!opt->out_dir || !*opt->out_dir) return cli_usage(cli, "--out-dir DIR is needed: the folder to write");
    if (opt->slim && opt->to_schema != 1) return cli_usage(cli, "--slim is for --to 1");
    if (opt->max_artifact_bytes && opt->to_schema != 2) return cli_usage(cli, "--max-artifact-bytes is for --to 2");
    return CLI_OK;
}

int cmd_convert(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {{"to", required_argument, NULL, 't'},
                                             {"out-dir", required_argument, NULL, 'o'},
                                             {"max-artifact-bytes", required_argument, NULL, 'b'},
                                             {"slim", no_argument, NULL, 'S'},
                                             {"no-card", no_argument, NULL, 'c'},
                                             {"resume", no_argument, NULL, 'R'},
                                             {"jobs", required_argument, NULL, 'n'},
                                             {"json", no_argument, NULL, 'j'},
                                             {"help", no_argument, NULL, 'h'},
                                             {0}};
    struct pkg_convert_options opt = {.how = {.progress = stderr, .cancelled = cli_interrupted}};
    bool json = false;
    int c, status = CLI_OK;
    opterr = 0;
    while (status == CLI_OK && (c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 'j': json = true; break;
        case 'h': fputs(help, stdout); return CLI_OK;
        case '?':
        case ':': return cli_bad_option(cli, c, argv);
        default: status = take_option(cli, c, &opt); break;
        }
    }
    if (status == CLI_OK && argc - optind != 1) status = cli_usage(cli, "name one package");
    if (status == CLI_OK) status = check_options(cli, &opt);
    if (status != CLI_OK) return status;
    cli_catch_interrupt();
    return run(cli, argv[optind], &opt, json);
}

/* `strata write-package`: cuts a GGUF model into a layer package. The work is pkg_write's; this is its command line. */
#include "base/clock.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "package/pkg_write.h"

#include <inttypes.h>
#include <stdio.h>

static const char help[] =
    "usage: strata write-package FILE --out-dir DIR [OPTIONS]\n"
    "\n"
    "Cuts a GGUF model into a layer package: one small GGUF file per transformer layer, three for what comes before "
    "and\n"
    "after the layers, and model-package.json with the size and SHA-256 of each. A machine that runs layers 10 to 20\n"
    "then needs only those files. FILE may be any part of a split set; all parts must stand side by side.\n"
    "\n"
    "Files appear under their final names only when they are complete, the manifest last. DIR must be absent or\n"
    "empty; if anything fails, or on Ctrl-C, what was written is removed again.\n"
    "\n"
    "  --out-dir DIR          the folder to write\n"
    "  --model-id ID          the model's coordinate, org/repo[:variant]; default: local/<file name>\n"
    "  --source-repo REPO     org/repo that the file comes from; default: the first part of the model id\n"
    "  --source-revision REV  commit or tag of that repository\n"
    "  --source-file PATH     the file's path inside that repository; default: its name\n"
    "  --json                 print the manifest instead of a summary\n"
    "  --help                 this text\n"
    "\n"
    "A package that is to be published needs the first and the third: readers tell packages apart by them.\n"
    "SOURCE_DATE_EPOCH, when set, becomes the time of creation, so that writing twice gives identical files.\n"
    "\n"
    "Exit status: 0 written, 1 failed and nothing was left behind, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata write-package model-Q4_K_M.gguf --out-dir model-package \\\n"
    "      --model-id org/model-GGUF:Q4_K_M --source-revision 8f4c2d1\n"
    "  strata preflight model-package\n";

static void print_summary(const struct pkg_write_result *res, const char *dir, double seconds) {
    char size[32];
    progress_bytes(size, sizeof size, res->total_bytes);
    printf("%s: %zu files, %s, %" PRIu32 " layers, written in %.1f s\n", dir, res->file_count, size, res->layer_count,
           seconds);
    printf("model id        %s\n", res->identity.model_id);
    printf("manifest sha256 %s\n", res->manifest_sha256);
}

static int run(const struct cli *cli, const char *source, const struct pkg_write_options *opt, bool json) {
    struct pkg_write_result res;
    struct strata_errmsg em;
    uint64_t start = clock_now_ns();
    strata_err rc = pkg_write(source, opt, &res, &em);
    if (rc) return cli_fail(cli, json, &em);
    if (res.identity.derived)
        fprintf(stderr,
                "strata write-package: note: no --model-id was given, so the package calls itself '%s'%s; give "
                "--model-id and --source-revision before you publish it\n",
                res.identity.model_id, res.identity.revision[0] ? "" : " and names no source revision");
    if (json)
        rc = cli_print_json(res.manifest, &em);
    else
        print_summary(&res, opt->out_dir, clock_since_s(start));
    json_decref(res.manifest);
    return rc ? cli_fail(cli, false, &em) : CLI_OK;
}

int cmd_write_package(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {{"out-dir", required_argument, NULL, 'o'},
                                             {"model-id", required_argument, NULL, 'm'},
                                             {"source-repo", required_argument, NULL, 'r'},
                                             {"source-revision", required_argument, NULL, 'v'},
                                             {"source-file", required_argument, NULL, 'f'},
                                             {"json", no_argument, NULL, 'j'},
                                             {"help", no_argument, NULL, 'h'},
                                             {0}};
    struct pkg_write_options opt = {.progress = stderr, .cancelled = cli_interrupted};
    bool json = false;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 'o': opt.out_dir = optarg; break;
        case 'm': opt.identity.model_id = optarg; break;
        case 'r': opt.identity.source_repo = optarg; break;
        case 'v': opt.identity.source_revision = optarg; break;
        case 'f': opt.identity.source_file = optarg; break;
        case 'j': json = true; break;
        case 'h': fputs(help, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) return cli_usage(cli, "name one GGUF file");
    if (!opt.out_dir || !*opt.out_dir) return cli_usage(cli, "--out-dir DIR is needed: the folder to write");
    cli_catch_interrupt();
    return run(cli, argv[optind], &opt, json);
}

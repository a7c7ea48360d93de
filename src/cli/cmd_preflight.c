/* `strata preflight`: checks a layer package and lists every fault. The work is pkg_check's; this is its command line.
 */
#include "base/progress.h"
#include "cli/cli.h"
#include "package/pkg_check.h"

#include <inttypes.h>
#include <stdio.h>

static const char help[] =
    "usage: strata preflight [OPTIONS] PACKAGE\n"
    "\n"
    "Checks a layer package (its folder, or its model-package.json) without running it: the manifest's fields, the\n"
    "presence, size and SHA-256 of every file, and each file's GGUF header against what the manifest says. All faults\n"
    "are listed, each with a code, the file, and what to do about it. Nothing is changed.\n"
    "\n"
    "  --no-digests  compare sizes and headers only; takes no time, and misses altered weights\n"
    "  --json        one JSON report\n"
    "  --help        this text\n"
    "\n"
    "Exit status: 0 sound (there may be warnings), 1 not sound or not readable, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata preflight model-package\n"
    "  strata preflight model-package --json | jq '.issues[] | .code'\n";

static void print_text(const struct pkg_check_report *r, bool digests) {
    char size[32];
    for (size_t i = 0; i < r->faults.n; i++) {
        const struct pkg_fault *f = &r->faults.list[i];
        printf("%s: %s: %s\n    %s\n", pkg_severity_name(pkg_fault_severity(f->code)), pkg_fault_name(f->code),
               f->message, pkg_fault_remedy(f->code));
    }
    if (r->faults.n_dropped) printf("... and %zu more\n", r->faults.n_dropped);
    progress_bytes(size, sizeof size, r->checked_bytes);
    if (pkg_check_is_valid(r))
        printf("%s: sound: %" PRIu32 " layers, %zu files, %s%s\nmanifest sha256 %s\n", r->dir, r->manifest->layer_count,
               r->n_items + 1, size, digests ? ", every digest matches" : ", digests not checked", r->manifest->sha256);
    else
        printf("%s: NOT sound: %zu error%s\n", r->dir, r->faults.n_errors, r->faults.n_errors == 1 ? "" : "s");
}

static strata_err print_json(const struct pkg_check_report *r, struct strata_errmsg *em) {
    json_t *root;
    strata_err rc = pkg_check_to_json(r, &root, em);
    if (rc) return rc;
    rc = cli_print_json(root, em);
    json_decref(root);
    return rc;
}

static int run(const struct cli *cli, const char *path, const struct pkg_check_options *opt, bool json) {
    struct pkg_check_report report;
    struct strata_errmsg em;
    strata_err rc = pkg_check_run(path, opt, &report, &em);
    if (rc) return cli_fail(cli, json, &em);
    if (json)
        rc = print_json(&report, &em);
    else
        print_text(&report, !opt->skip_digests);
    int status = pkg_check_is_valid(&report) ? CLI_OK : CLI_FAILED;
    if (!rc && status == CLI_FAILED) {
        pkg_faults_first(&report.faults, report.dir, &em);
        fprintf(stderr, "strata preflight: %s\n", em.text);
    }
    pkg_check_deinit(&report);
    return rc ? cli_fail(cli, false, &em) : status;
}

int cmd_preflight(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {{"no-digests", no_argument, NULL, 'n'},
                                             {"json", no_argument, NULL, 'j'},
                                             {"help", no_argument, NULL, 'h'},
                                             {0}};
    struct pkg_check_options opt = {.progress = stderr, .cancelled = cli_interrupted};
    bool json = false;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 'n': opt.skip_digests = true; break;
        case 'j': json = true; break;
        case 'h': fputs(help, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) return cli_usage(cli, "name one package");
    cli_catch_interrupt();
    return run(cli, argv[optind], &opt, json);
}

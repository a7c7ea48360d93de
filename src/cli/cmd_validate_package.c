/* `validate-package`: a package against its model. The work is pkg_validate_package's; this is its command line. */
#include "base/progress.h"
#include "cli/cli.h"
#include "cli/cli_faults.h"
#include "package/pkg_card.h"
#include "package/pkg_validate_package.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char help[] =
    "usage: strata validate-package [OPTIONS] MODEL PACKAGE\n"
    "\n"
    "Compares a layer package with the model it was cut from (a GGUF file, or any part of a split set): the digests "
    "of\n"
    "the model's files, the type, shape and every byte of each tensor, and the metadata; and makes all checks that\n"
    "'strata preflight' makes. Every difference is listed, also when a file cannot be read. Only --record writes\n"
    "anything.\n"
    "\n"
    "  --projector FILE  the package's projectors must be copies of this file (and of others that are named so)\n"
    "  --record          write the result into the package, as validation.json, for its readers; a README.md that\n"
    "                    Strata wrote is brought up to date\n"
    "  --jobs N          files that are read at once; default: the number of processors\n"
    "  --verbose         every fault of a kind, and notes\n"
    "  --json            one JSON report\n"
    "  --help            this text\n"
    "\n"
    "Exit status: 0 valid, 1 not valid or not readable, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata validate-package model.gguf model-package --record\n"
    "  strata validate-package model.gguf model-package --json | jq '.artifacts[].mismatches[]'\n";

static const char skippy_help[] = "usage: skippy-model-package validate-package MODEL PACKAGE_DIR [--jobs N]\n"
                                  "\n"
                                  "Compares a layer package with the model it was cut from and prints a JSON report. "
                                  "The exit status is 1 when it is\n"
                                  "not valid.\n";

struct options {
    struct pkg_validate_package_options validate;
    const char *full, *package;
    const char **projectors; /* owned */
    bool json, verbose, record;
};

static void print_text(const struct pkg_validate_package_report *r, const struct options *o) {
    const struct pkg_check_report *check = &r->check;
    char size[32], count[64];
    cli_faults_print(&check->faults, o->verbose);
    if (pkg_validate_package_is_valid(r))
        printf("%s: valid: %zu files hold all %zu tensors of %" PRIu32 " layers; %zu tensors, %s, are the model's\n",
               o->package, check->n_items + 1, r->full_tensor_count, r->source_layer_count, r->compared_count,
               progress_bytes(size, sizeof size, r->compared_bytes));
    else
        printf("%s: NOT valid: %s\n", o->package, cli_faults_count(&check->faults, count));
    for (size_t i = 0; check->manifest && i < r->n_source; i++) {
        char hex[DIGEST_HEX];
        digest_to_hex(r->source[i].sha256, DIGEST_BYTES, hex);
        printf("source   sha256 %s %s\n", hex, r->source[i].name);
    }
    if (check->manifest) printf("manifest sha256 %s\n", check->manifest->sha256);
    if (o->record) printf("recorded in %s/%s\n", check->dir, PKG_CHECK_VALIDATION_FILE);
}

static strata_err print_json(const struct pkg_validate_package_report *r, bool older, struct strata_errmsg *em) {
    json_t *root;
    strata_err rc = pkg_validate_package_to_json(r, older, &root, em);
    if (rc) return rc;
    rc = cli_print_json(root, em);
    json_decref(root);
    return rc;
}

static int run(const struct cli *cli, const struct options *o) {
    struct pkg_validate_package_report r = {0};
    struct strata_errmsg em;
    char count[64];
    strata_err rc = pkg_validate_package_run(o->full, o->package, &o->validate, &r, &em);
    if (!rc && o->record) rc = pkg_validate_package_record(&r, &em);
    if (!rc && o->record) rc = pkg_card_refresh(r.check.dir, &em);
    if (!rc && o->json)
        rc = print_json(&r, cli->skippy, &em);
    else if (!rc)
        print_text(&r, o);
    bool valid = !rc && pkg_validate_package_is_valid(&r);
    int status = rc ? cli_fail(cli, o->json && !cli->skippy, &em) : valid ? CLI_OK : CLI_FAILED;
    if (!rc && !valid && cli->skippy)
        fputs("Error: package validation failed\n", stderr);
    else if (!rc && !valid)
        fprintf(stderr, "strata validate-package: %s is not valid: %s\n", o->package,
                cli_faults_count(&r.check.faults, count));
    pkg_validate_package_deinit(&r);
    return status;
}

enum { PROJECTOR = 256, RECORD, JOBS, VERBOSE, JSON };

static const struct option our_options[] = {{"projector", required_argument, NULL, PROJECTOR},
                                            {"record", no_argument, NULL, RECORD},
                                            {"jobs", required_argument, NULL, JOBS},
                                            {"verbose", no_argument, NULL, VERBOSE},
                                            {"json", no_argument, NULL, JSON},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
static const struct option older_options[] = {
    {"jobs", required_argument, NULL, JOBS}, {"help", no_argument, NULL, 'h'}, {0}};

/* CLI_OK, or the status of wrong usage. */
static int take_option(const struct cli *cli, int c, struct options *o, char **argv) {
    uint32_t jobs;
    switch (c) {
    case PROJECTOR: o->projectors[o->validate.n_projectors++] = optarg; return CLI_OK;
    case RECORD: o->record = true; return CLI_OK;
    case JOBS:
        if (!cli_parse_u32(optarg, 1, 256, &jobs)) return cli_usage(cli, "--jobs wants a number from 1 to 256");
        o->validate.jobs = jobs;
        return CLI_OK;
    case VERBOSE: o->verbose = true; return CLI_OK;
    case JSON: o->json = true; return CLI_OK;
    default: return cli_bad_option(cli, c, argv);
    }
}

/* The exit status; *shown tells that help was asked for. */
static int parse(const struct cli *cli, int argc, char **argv, struct options *o, bool *shown) {
    int c, status = CLI_OK;
    opterr = 0;
    while (status == CLI_OK &&
           (c = getopt_long(argc, argv, ":h", cli->skippy ? older_options : our_options, NULL)) != -1) {
        if (c == 'h') {
            fputs(cli->skippy ? skippy_help : help, stdout);
            *shown = true;
            return CLI_OK;
        }
        status = take_option(cli, c, o, argv);
    }
    if (status == CLI_OK && argc - optind != 2) status = cli_usage(cli, "name a model and a package");
    if (status != CLI_OK) return status;
    o->full = argv[optind];
    o->package = argv[optind + 1];
    o->validate.projectors = o->projectors;
    return CLI_OK;
}

int cmd_validate_package(const struct cli *cli, int argc, char **argv) {
    struct options o = {.validate = {.progress = stderr, .cancelled = cli_interrupted}, .json = cli->skippy};
    bool shown = false;
    struct strata_errmsg em;
    o.projectors = calloc((size_t)argc + 1, sizeof *o.projectors);
    if (!o.projectors) {
        err_nomem(&em, "the command line");
        return cli_fail(cli, false, &em);
    }
    int status = parse(cli, argc, argv, &o, &shown);
    if (status == CLI_OK && !shown) {
        cli_catch_interrupt();
        status = run(cli, &o);
    }
    free(o.projectors);
    return status;
}

/* `validate`: slices against the model they were cut from. The work is pkg_validate's; this is its command line. */
#include "base/progress.h"
#include "cli/cli.h"
#include "cli/cli_faults.h"
#include "package/pkg_validate.h"

#include <inttypes.h>
#include <stdio.h>

static const char help[] =
    "usage: strata validate [OPTIONS] MODEL SLICE...\n"
    "\n"
    "Compares slices, as 'strata write' and 'strata write-stages' make them, with the model they were cut from (a "
    "GGUF\n"
    "file, or any part of a split set): together they must hold every tensor, each once, and what a slice holds must "
    "be\n"
    "the model's: type, shape, every byte, and the metadata. Every difference is listed, also when a slice cannot be\n"
    "read. Nothing is changed.\n"
    "\n"
    "The token embeddings of a model with tied output may be in the first and in the last slice: both need them.\n"
    "\n"
    "  --jobs N    files that are read at once; default: the number of processors\n"
    "  --verbose   every fault of a kind, not only the first few\n"
    "  --json      one JSON report, with the SHA-256 of every slice\n"
    "  --help      this text\n"
    "\n"
    "Exit status: 0 valid, 1 not valid or not readable, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata write-stages model.gguf --stages 3 --out-dir stages\n"
    "  strata validate model.gguf stages/stage-*.gguf\n";

static const char skippy_help[] = "usage: skippy-model-package validate MODEL SLICE... [--jobs N]\n"
                                  "\n"
                                  "Compares slices with the model they were cut from and prints a JSON report. The "
                                  "exit status is 1 when they are not\n"
                                  "valid.\n";

static void print_text(const struct pkg_validate_report *r, const char *full, bool verbose) {
    char size[32], count[64];
    cli_faults_print(&r->faults, verbose);
    if (pkg_validate_is_valid(r))
        printf("%s: valid: %zu slice%s hold all %zu tensors of %" PRIu32 " layers; %zu tensors, %s, are the model's\n",
               full, r->n_slices, r->n_slices == 1 ? "" : "s", r->full_tensor_count, r->layer_count, r->compared_count,
               progress_bytes(size, sizeof size, r->compared_bytes));
    else
        printf("%s: NOT valid: %s\n", full, cli_faults_count(&r->faults, count));
}

static strata_err print_json(const struct pkg_validate_report *r, bool older, struct strata_errmsg *em) {
    json_t *root;
    strata_err rc = pkg_validate_to_json(r, older, &root, em);
    if (rc) return rc;
    rc = cli_print_json(root, em);
    json_decref(root);
    return rc;
}

int cmd_validate(const struct cli *cli, int argc, char **argv) {
    static const struct option our_options[] = {{"jobs", required_argument, NULL, 'J'},
                                                {"verbose", no_argument, NULL, 'v'},
                                                {"json", no_argument, NULL, 'j'},
                                                {"help", no_argument, NULL, 'h'},
                                                {0}};
    static const struct option older_options[] = {
        {"jobs", required_argument, NULL, 'J'}, {"help", no_argument, NULL, 'h'}, {0}};
    struct pkg_validate_options opt = {.progress = stderr, .cancelled = cli_interrupted};
    struct pkg_validate_report r = {0};
    struct strata_errmsg em;
    bool json = cli->skippy, verbose = false;
    char count[64];
    uint32_t jobs;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", cli->skippy ? older_options : our_options, NULL)) != -1) {
        switch (c) {
        case 'J':
            if (!cli_parse_u32(optarg, 1, 256, &jobs)) return cli_usage(cli, "--jobs wants a number from 1 to 256");
            opt.jobs = jobs;
            break;
        case 'v': verbose = true; break;
        case 'j': json = true; break;
        case 'h': fputs(cli->skippy ? skippy_help : help, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind < 2) return cli_usage(cli, "name a model and at least one slice");
    const char *full = argv[optind++];
    cli_catch_interrupt();
    strata_err rc = pkg_validate_run(full, (const char *const *)argv + optind, (size_t)(argc - optind), &opt, &r, &em);
    if (!rc && json)
        rc = print_json(&r, cli->skippy, &em);
    else if (!rc)
        print_text(&r, full, verbose);
    int status = rc ? cli_fail(cli, json && !cli->skippy, &em) : pkg_validate_is_valid(&r) ? CLI_OK : CLI_FAILED;
    if (!rc && status == CLI_FAILED && cli->skippy)
        fputs("Error: slice validation failed\n", stderr);
    else if (!rc && status == CLI_FAILED)
        fprintf(stderr, "strata validate: the slices are not valid: %s\n", cli_faults_count(&r.faults, count));
    pkg_validate_deinit(&r);
    return status;
}

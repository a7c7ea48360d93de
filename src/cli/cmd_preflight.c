/* `preflight`: checks a layer package and lists every fault. The work is pkg_check's; this is its command line. */
#include "base/progress.h"
#include "cli/cli.h"
#include "cli/cli_faults.h"
#include "cli/cli_signer.h"
#include "package/pkg_check.h"
#include "plan/plan_stages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: strata preflight [OPTIONS] PACKAGE\n"
    "\n"
    "Checks a layer package (its folder, or its model-package.json) without running it: the manifest's fields; that\n"
    "every file lies in the package and has the size and SHA-256 that the manifest states; each file's header,\n"
    "tensors and slice keys; what must agree between files; the generation defaults against the tensors; the\n"
    "signature; and files that nothing uses. All faults are listed, each with a code, the file, and what to do about\n"
    "it. Nothing is changed.\n"
    "\n"
    "  --no-digests   compare sizes and headers only; takes no time, and misses altered weights\n"
    "  --stages N     also list which files each of N stages needs, and which of those are missing\n"
    "  --by bytes     stages even in bytes, as 'strata plan' cuts (default)\n"
    "  --by count     stages even in layers\n"
    "  --jobs N       files that are read at once; default: the number of processors\n"
    "  --verbose      every fault of a kind, and notes: what readers tolerate but a publisher may want to know\n"
    "  --json         one JSON report\n"
    "  --help         this text\n" CLI_SIGNER_HELP "\n"
    "Exit status: 0 sound (there may be warnings), 1 not sound or not readable, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata preflight model-package --stages 3\n"
    "  strata preflight model-package --json | jq '.issues[] | .code'\n";

static const char skippy_help[] =
    "usage: skippy-model-package preflight PACKAGE_DIR [--stages N] [--by count|bytes] [--verify-sha256] [--jobs N]\n"
    "\n"
    "Checks a layer package and prints a JSON report: manifest, presence and size of every file, and each file's\n"
    "header and tensors; with --verify-sha256 also the digests; with --stages which parts each of N stages needs.\n"
    "The exit status is 1 when the package is not valid.\n";

struct options {
    struct pkg_check_options check;
    const char *path;
    bool has_stages, json, verbose;
    uint64_t n_stages;
    enum plan_by by;
};

/* ---- stages ---- */

/* Without every part there are no sizes to be even in. */
static strata_err cut_by_bytes(const struct pkg_check_report *r, uint32_t n, struct pkg_range *ranges,
                               struct strata_errmsg *em) {
    struct plan_stages plan = {0};
    strata_err rc = plan_stages_make(&r->inv, r->dir, n, PLAN_BY_BYTES, &plan, em);
    for (uint32_t i = 0; i < n && !rc; i++) ranges[i] = plan.list[i].range;
    plan_stages_deinit(&plan);
    return rc;
}

static strata_err add_stages(struct pkg_check_report *r, const struct options *o, struct strata_errmsg *em) {
    if (!pkg_check_can_divide(r, o->n_stages)) return STRATA_OK;
    uint32_t n = (uint32_t)o->n_stages;
    struct pkg_range *ranges = calloc(n, sizeof *ranges);
    if (!ranges) return err_nomem(em, "a report");
    /* By bytes, MTP layers stay with the trunk: of more stages than trunk layers there is only the other cut. */
    strata_err rc = o->by == PLAN_BY_BYTES && r->complete ? cut_by_bytes(r, n, ranges, em) : STRATA_EINVAL;
    if (rc == STRATA_EINVAL) rc = plan_count(r->manifest->layer_count, n, ranges, em);
    if (!rc) rc = pkg_check_stages(r, ranges, n, em);
    free(ranges);
    return rc;
}

static void print_stage(const struct pkg_check_report *r, size_t i) {
    const struct pkg_check_stage *s = &r->stages[i];
    char size[32], layers[32], name[PKG_CHECK_NAME];
    size_t missing = 0;
    snprintf(layers, sizeof layers, "%" PRIu32 "..%" PRIu32, s->range.first, s->range.end);
    printf("%5zu  %-12s %6zu %11s  %s%s%s\n", i, layers, s->n_parts, progress_bytes(size, sizeof size, s->bytes),
           s->embeddings ? "embeddings" : "", s->embeddings && s->output ? ", " : "", s->output ? "output" : "");
    for (size_t k = 0; k < s->n_parts; k++) {
        if (r->items[s->parts[k]].present) continue;
        printf("%s%s", missing ? ", " : "       missing: ", pkg_check_part_name(r, s->parts[k], name));
        missing++;
    }
    if (missing) putchar('\n');
}

static void print_stages(const struct pkg_check_report *r) {
    if (r->n_stages == 0) return;
    printf("\n%5s  %-12s %6s %11s  %s\n", "stage", "layers", "files", "bytes", "with");
    for (size_t i = 0; i < r->n_stages; i++) print_stage(r, i);
}

/* ---- the report ---- */

static void print_text(const struct pkg_check_report *r, const struct options *o) {
    char size[32], count[64], signature[PKG_SIGN_TEXT];
    cli_faults_print(&r->faults, o->verbose);
    progress_bytes(size, sizeof size, r->checked_bytes);
    if (!pkg_check_is_valid(r))
        printf("%s: NOT sound: %s\n", r->dir, cli_faults_count(&r->faults, count));
    else
        printf("%s: sound: %" PRIu32 " layers, %zu files, %s, %s\n", r->dir, r->manifest->layer_count, r->n_items + 1,
               size, o->check.skip_digests ? "digests not checked" : "every digest matches");
    if (r->manifest) printf("manifest sha256 %s (%s)\n", r->manifest->sha256, pkg_sign_text(&r->signature, signature));
    print_stages(r);
}

static strata_err print_json(const struct pkg_check_report *r, bool older, struct strata_errmsg *em) {
    json_t *root;
    strata_err rc = pkg_check_to_json(r, older, &root, em);
    if (rc) return rc;
    rc = cli_print_json(root, em);
    json_decref(root);
    return rc;
}

static int run(const struct cli *cli, const struct options *o) {
    struct pkg_check_report r = {0};
    struct strata_errmsg em;
    char count[64];
    strata_err rc = pkg_check_run(o->path, &o->check, &r, &em);
    /* The older tool wants the width to be stated. */
    if (!rc && cli->skippy) pkg_faults_raise(&r.faults, PKG_FAULT_MISSING_ACTIVATION_WIDTH);
    if (!rc && o->has_stages) rc = add_stages(&r, o, &em);
    if (!rc && o->json)
        rc = print_json(&r, cli->skippy, &em);
    else if (!rc)
        print_text(&r, o);
    int status = rc ? cli_fail(cli, o->json && !cli->skippy, &em) : pkg_check_is_valid(&r) ? CLI_OK : CLI_FAILED;
    if (!rc && status == CLI_FAILED && cli->skippy)
        fputs("Error: package preflight failed\n", stderr);
    else if (!rc && status == CLI_FAILED)
        fprintf(stderr, "strata preflight: %s is not sound: %s\n", o->path, cli_faults_count(&r.faults, count));
    pkg_check_deinit(&r);
    return status;
}

/* ---- the command line ---- */

enum { NO_DIGESTS = 256, VERIFY, STAGES, BY, JOBS, VERBOSE, JSON, REQUIRE };

static const struct option our_options[] = {{"no-digests", no_argument, NULL, NO_DIGESTS},
                                            {"verify-sha256", no_argument, NULL, VERIFY},
                                            {"stages", required_argument, NULL, STAGES},
                                            {"by", required_argument, NULL, BY},
                                            {"jobs", required_argument, NULL, JOBS},
                                            {"verbose", no_argument, NULL, VERBOSE},
                                            {"require-signature", required_argument, NULL, REQUIRE},
                                            {"json", no_argument, NULL, JSON},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
static const struct option older_options[] = {{"verify-sha256", no_argument, NULL, VERIFY},
                                              {"stages", required_argument, NULL, STAGES},
                                              {"by", required_argument, NULL, BY},
                                              {"jobs", required_argument, NULL, JOBS},
                                              {"help", no_argument, NULL, 'h'},
                                              {0}};

/* CLI_OK, or the status of wrong usage. */
static int take_option(const struct cli *cli, int c, struct options *o, struct cli_signer *signer, char **argv) {
    uint32_t jobs;
    switch (c) {
    case NO_DIGESTS: o->check.skip_digests = true; return CLI_OK;
    case VERIFY: o->check.skip_digests = false; return CLI_OK;
    case STAGES:
        o->has_stages = true;
        return cli_parse_u64(optarg, 0, UINT64_MAX, &o->n_stages) ? CLI_OK : cli_usage(cli, "--stages wants a number");
    case BY:
        o->by = strcmp(optarg, "bytes") == 0 ? PLAN_BY_BYTES : PLAN_BY_COUNT;
        if (o->by == PLAN_BY_COUNT && strcmp(optarg, "count") != 0)
            return cli_usage(cli, "--by wants 'bytes' or 'count'");
        return CLI_OK;
    case JOBS:
        if (!cli_parse_u32(optarg, 1, 256, &jobs)) return cli_usage(cli, "--jobs wants a number from 1 to 256");
        o->check.jobs = jobs;
        return CLI_OK;
    case VERBOSE: o->verbose = true; return CLI_OK;
    case JSON: o->json = true; return CLI_OK;
    case REQUIRE: return cli_signer_take(cli, optarg, signer);
    default: return cli_bad_option(cli, c, argv);
    }
}

int cmd_preflight(const struct cli *cli, int argc, char **argv) {
    struct options o = {.check = {.skip_digests = cli->skippy, .progress = stderr, .cancelled = cli_interrupted},
                        .json = cli->skippy,
                        .by = cli->skippy ? PLAN_BY_COUNT : PLAN_BY_BYTES};
    struct cli_signer signer = {0};
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", cli->skippy ? older_options : our_options, NULL)) != -1) {
        if (c == 'h') {
            fputs(cli->skippy ? skippy_help : help, stdout);
            return CLI_OK;
        }
        int status = take_option(cli, c, &o, &signer, argv);
        if (status != CLI_OK) return status;
    }
    if (argc - optind != 1) return cli_usage(cli, "name one package");
    if (signer.required && o.check.skip_digests && !cli->skippy)
        return cli_usage(cli, "--require-signature needs the digests, which --no-digests leaves out");
    o.path = argv[optind];
    o.check.require_signature = cli_signer_key(&signer);
    cli_catch_interrupt();
    return run(cli, &o);
}

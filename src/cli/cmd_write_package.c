/* `strata write-package`: cuts a GGUF model into a layer package. The work is pkg_write's; this is its command line. */
#include "base/clock.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "package/pkg_manifest.h"
#include "package/pkg_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: strata write-package [OPTIONS] MODEL.gguf --out-dir DIR\n"
    "\n"
    "Cuts a GGUF model (name any part of a split one) into a layer package: one small file per layer, shared files,\n"
    "model-package.json with the size and SHA-256 of each, and a README.md for publishing. Files appear when they are\n"
    "whole, the manifest last. Broken off by Ctrl-C or a full disk, the same command with --resume finishes the work.\n"
    "\n"
    "Where the model comes from (taken from the path when the file lies in a hub cache):\n"
    "  --model-id ID          the model's coordinate, org/repo[:variant]\n"
    "  --source-revision REV  commit or tag of the repository that the file comes from\n"
    "  --source-file PATH     the file's path inside that repository\n"
    "  --source-repo REPO     org/repo of that repository; default: the first part of the model id\n"
    "  --local                the package stays with you: the three above may be left out\n"
    "\n"
    "What goes in:\n"
    "  --projector FILE       copy a multimodal projector into the package; may be repeated\n"
    "  --generation FILE      your own generation defaults (JSON). Without it, only what metadata and tensors prove "
    "is\n"
    "                         declared: native MTP, and the policy glm-dsa-v1 when its whole contract holds\n"
    "  --abi-version M.m.p    skippy_abi_version; default: the oldest that readers of this layout accept\n"
    "  --slim                 keep the tokenizer and other metadata in shared/metadata.gguf alone: smaller, but only "
    "for\n"
    "                         readers that do not expect it in every file\n"
    "  --schema 1|2           version of the package format (1)\n"
    "  --max-artifact-bytes N schema 2: divide groups of tensors above N bytes (8589934592)\n"
    "  --no-card              write no README.md\n"
    "\n"
    "How:\n"
    "  --out-dir DIR          the folder to write; it must be absent or empty\n"
    "  --resume               DIR may hold a part of this package: what is right is kept, the rest is done again\n"
    "  --jobs N               threads (one for each processor)\n"
    "  --after-artifact-command PROGRAM\n"
    "                         run it after each file, one at a time, with the environment variables\n"
    "                         SKIPPY_PACKAGE_ARTIFACT_PATH and SKIPPY_PACKAGE_ARTIFACT_RELATIVE_PATH\n"
    "  --json                 print the manifest instead of a summary\n"
    "  --help                 this text\n"
    "\n"
    "SOURCE_DATE_EPOCH, when set, becomes the time of creation, so that writing twice gives identical files.\n"
    "\n"
    "Exit status: 0 written, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata write-package model-Q4_K_M.gguf --out-dir model-package \\\n"
    "      --model-id org/model-GGUF:Q4_K_M --source-revision 8f4c2d1 --source-file model-Q4_K_M.gguf\n"
    "  strata validate-package model-Q4_K_M.gguf model-package\n"
    "  strata preflight model-package --stages 3\n";

static void print_summary(const struct pkg_write_result *res, const char *dir, double seconds) {
    char size[32], repeated[32];
    progress_bytes(size, sizeof size, res->total_bytes);
    progress_bytes(repeated, sizeof repeated, res->replicated_bytes);
    printf("%s: %zu files, %s, %" PRIu32 " layers, written in %.1f s\n", dir, res->file_count, size, res->layer_count,
           seconds);
    if (res->kept_count) printf("kept            %zu files that were right already\n", res->kept_count);
    if (res->replicated_bytes) printf("repeated        %s of tensors that every part holds\n", repeated);
    printf("model id        %s\n", res->identity.model_id);
    printf("manifest sha256 %s\n", res->manifest_sha256);
}

static void print_note(void *user, const char *text) {
    const struct cli *cli = user;
    fprintf(stderr, "%s %s: note: %s\n", cli->program, cli->command, text);
}

static int run(const struct cli *cli, const char *source, struct pkg_write_options *opt, bool json) {
    struct pkg_write_result res;
    struct strata_errmsg em;
    uint64_t start = clock_now_ns();
    opt->note = print_note;
    opt->note_user = (void *)(uintptr_t)cli;
    strata_err rc = pkg_write(source, opt, &res, &em);
    if (rc) return cli_fail(cli, json && !cli->skippy, &em);
    if (res.identity.derived)
        print_note(opt->note_user, "the package calls itself 'local/...' and names no source: not for publishing");
    if (json)
        rc = cli_print_json(res.manifest, &em);
    else
        print_summary(&res, opt->out_dir, clock_since_s(start));
    json_decref(res.manifest);
    return rc ? cli_fail(cli, false, &em) : CLI_OK;
}

/* The reference to a model on a hub is understood, so that the message can say what to do. */
static int check_source(const struct cli *cli, const char *source) {
    if (access(source, F_OK) == 0 || !pkg_identity_is_coordinate(source)) return CLI_OK;
    struct strata_errmsg em = {.code = STRATA_ENOENT};
    snprintf(em.text, sizeof em.text,
             "there is no file %.200s. If you mean the model of that name on a hub: fetch it with the hub's own client "
             "first, then name the file in the cache (.../snapshots/...); its path supplies repository and revision",
             source);
    return cli_fail(cli, false, &em);
}

enum { ABI = 256, GENERATION, MAX_BYTES, AFTER };

static int take_option(const struct cli *cli, int c, struct pkg_write_options *opt) {
    uint32_t n = 0;
    switch (c) {
    case 'o': opt->out_dir = optarg; break;
    case 'm': opt->identity.model_id = optarg; break;
    case 'r': opt->identity.source_repo = optarg; break;
    case 'v': opt->identity.source_revision = optarg; break;
    case 'f': opt->identity.source_file = optarg; break;
    case 'l': opt->identity.local = true; break;
    case 'p':
        if (opt->n_projectors == PKG_WRITE_PROJECTORS)
            return cli_usage(cli, "more than %d projectors", PKG_WRITE_PROJECTORS);
        opt->projectors[opt->n_projectors++] = optarg;
        break;
    case 's':
        if (!cli_parse_u32(optarg, 1, 2, &n)) return cli_usage(cli, "--schema is 1 or 2, not '%s'", optarg);
        opt->schema = n;
        break;
    case 'n':
        if (!cli_parse_u32(optarg, 1, 256, &n)) return cli_usage(cli, "--jobs is from 1 to 256, not '%s'", optarg);
        opt->how.jobs = n;
        break;
    case MAX_BYTES:
        if (!cli_parse_u64(optarg, 1, INT64_MAX, &opt->max_artifact_bytes))
            return cli_usage(cli, "--max-artifact-bytes is a number of bytes, not '%s'", optarg);
        break;
    case 'R': opt->how.resume = true; break;
    case 'S': opt->slim = true; break;
    case 'c': opt->no_card = true; break;
    case ABI: opt->abi_version = optarg; break;
    case GENERATION: opt->generation_file = optarg; break;
    case AFTER: opt->after_command = optarg; break;
    default: break;
    }
    return CLI_OK;
}

static int check_options(const struct cli *cli, const struct pkg_write_options *opt) {
    if (!opt->out_dir || !*opt->out_dir) return cli_usage(cli, "--out-dir DIR is needed: the folder to write");
    if (opt->slim && opt->schema == 2) return cli_usage(cli, "--slim is for schema 1");
    if (opt->max_artifact_bytes && opt->schema != 2) return cli_usage(cli, "--max-artifact-bytes is for --schema 2");
    return CLI_OK;
}

int cmd_write_package(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {{"out-dir", required_argument, NULL, 'o'},
                                             {"model-id", required_argument, NULL, 'm'},
                                             {"source-repo", required_argument, NULL, 'r'},
                                             {"source-revision", required_argument, NULL, 'v'},
                                             {"source-file", required_argument, NULL, 'f'},
                                             {"local", no_argument, NULL, 'l'},
                                             {"projector", required_argument, NULL, 'p'},
                                             {"generation", required_argument, NULL, GENERATION},
                                             {"abi-version", required_argument, NULL, ABI},
                                             {"slim", no_argument, NULL, 'S'},
                                             {"schema", required_argument, NULL, 's'},
                                             {"max-artifact-bytes", required_argument, NULL, MAX_BYTES},
                                             {"no-card", no_argument, NULL, 'c'},
                                             {"resume", no_argument, NULL, 'R'},
                                             {"resume-existing-artifacts", no_argument, NULL, 'R'}, /* the older name */
                                             {"jobs", required_argument, NULL, 'n'},
                                             {"after-artifact-command", required_argument, NULL, AFTER},
                                             {"json", no_argument, NULL, 'j'},
                                             {"help", no_argument, NULL, 'h'},
                                             {0}};
    struct pkg_write_options opt = {.schema = 1, .how = {.progress = stderr, .cancelled = cli_interrupted}};
    bool json = cli->skippy;
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
    if (status == CLI_OK && argc - optind != 1) status = cli_usage(cli, "name one GGUF file");
    if (status == CLI_OK) status = check_options(cli, &opt);
    if (status == CLI_OK) status = check_source(cli, argv[optind]);
    if (status != CLI_OK) return status;
    cli_catch_interrupt();
    return run(cli, argv[optind], &opt, json);
}

/* `strata validate-glm-dsa-contract`: whether a model may be published as glm-dsa-v1. The work is pkg_glm_dsa's. */
#include "cli/cli.h"
#include "package/pkg_glm_dsa.h"

#include <inttypes.h>
#include <stdio.h>

static const char help[] =
    "usage: %s validate-glm-dsa-contract [OPTIONS] MODEL\n"
    "\n"
    "Checks whether a GLM-DSA model (architecture glm-dsa: GLM-5 and later) holds what the generation profile\n"
    "glm-dsa-v1 promises: the metadata, the role of every layer (Full: it picks positions with an indexer of its own;\n"
    "Shared: it reuses the choice of a Full layer before it), every tensor and its shape, the NextN layers, and, in a\n"
    "package that declares them, policy and thresholds. Every breach is listed. Only headers are read.\n"
    "\n"
    "MODEL is a layer package (its folder or its model-package.json), a GGUF file or any part of a split one, or a\n"
    "folder of GGUF files, which are taken as one model.\n"
    "\n"
    "  --require-generation-policy  a package must declare policy and thresholds of glm-dsa-v1\n"
    "%s"
    "  --help                       this text\n"
    "\n"
    "Exit status: 0 the contract holds (there may be warnings), 1 it does not, or the model cannot be read, 2 wrong\n"
    "usage.\n"
    "\n"
    "Example:\n"
    "  %s validate-glm-dsa-contract model-package --require-generation-policy\n";

static void print_lists(const struct pkg_glm_dsa_report *r) {
    for (int i = 0; i < PKG_GLM_DSA_LISTS; i++) {
        const json_t *list = r->list[i];
        if (json_array_size(list) == 0) continue;
        printf("%s\n", pkg_glm_dsa_list_name((enum pkg_glm_dsa_list)i));
        for (size_t k = 0; k < json_array_size(list); k++) printf("  %s\n", json_string_value(json_array_get(list, k)));
    }
}

static void print_text(const struct pkg_glm_dsa_report *r, const char *path) {
    const char *roles = pkg_glm_dsa_roles_name(r->role_source);
    print_lists(r);
    if (r->layer_count)
        printf("%" PRIu32 " layers: %" PRIu32 " decoder (%zu full, %zu shared, by %s), %" PRIu32
               " NextN; %zu tensors in %zu file%s\n",
               r->layer_count, r->decoder_layers, json_array_size(r->full_layers), json_array_size(r->shared_layers),
               roles ? roles : "nothing", r->nextn_layers, r->tensor_count, json_array_size(r->gguf_files),
               json_array_size(r->gguf_files) == 1 ? "" : "s");
    printf("%s: the GLM-DSA contract %s\n", path, r->valid ? "holds" : "does NOT hold");
}

static strata_err print_json(const struct pkg_glm_dsa_report *r, struct strata_errmsg *em) {
    json_t *root;
    strata_err rc = pkg_glm_dsa_to_json(r, &root, em);
    if (rc) return rc;
    rc = cli_print_json(root, em);
    json_decref(root);
    return rc;
}

static int run(const struct cli *cli, const char *path, const struct pkg_glm_dsa_options *opt, bool json) {
    struct pkg_glm_dsa_report report;
    struct strata_errmsg em;
    strata_err rc = pkg_glm_dsa_check_path(path, opt, &report, &em);
    if (rc) return cli_fail(cli, json && !cli->skippy, &em);
    if (json)
        rc = print_json(&report, &em);
    else
        print_text(&report, path);
    bool valid = report.valid;
    pkg_glm_dsa_deinit(&report);
    if (!rc && valid) return CLI_OK;
    if (!rc) err_set(&em, STRATA_EFORMAT, "GLM-DSA contract validation failed for %s", path);
    return cli_fail(cli, false, &em); /* the report is the document on stdout */
}

int cmd_validate_glm_dsa_contract(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {{"require-generation-policy", no_argument, NULL, 'r'},
                                             {"help", no_argument, NULL, 'h'},
                                             {"json", no_argument, NULL, 'j'},
                                             {0}};
    struct pkg_glm_dsa_options opt = {0};
    bool json = cli->skippy; /* the older tool prints nothing else */
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 'r': opt.require_generation_policy = true; break;
        case 'j': json = true; break;
        case 'h':
            printf(help, cli->program, cli->skippy ? "" : "  --json                       one JSON report\n",
                   cli->program);
            return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) return cli_usage(cli, "name one model");
    return run(cli, argv[optind], &opt, json);
}

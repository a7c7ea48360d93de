/* `strata repair-glm-dsa-generation-policy`: declares glm-dsa-v1 in a package's manifest. The work is pkg_glm_dsa's. */
#include "cli/cli.h"
#include "package/pkg_glm_dsa.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: %s repair-glm-dsa-generation-policy --in-place|--dry-run PACKAGE\n"
    "\n"
    "Puts policy and thresholds of the generation profile glm-dsa-v1 into the manifest of a layer package whose model\n"
    "fulfils the GLM-DSA contract (see validate-glm-dsa-contract); refuses any other. Speculative decoding, every "
    "other\n"
    "key and the order of keys stay as they are. The manifest is replaced whole or not at all; no other file is\n"
    "touched. Its SHA-256 changes: a signature must be made again, and a model card that states it be corrected.\n"
    "\n"
    "  --in-place  change the manifest; required, so that nobody changes one by mistake\n"
    "  --dry-run   show the lines that would change, and change nothing\n"
    "%s"
    "  --help      this text\n"
    "\n"
    "Exit status: 0 done, or nothing to do; 1 refused or failed; 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  %s repair-glm-dsa-generation-policy --dry-run model-package\n"
    "  %s repair-glm-dsa-generation-policy --in-place model-package\n";

/* The manifest is foreign text: what a terminal would take for commands becomes '?'. */
static void print_diff(const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        bool c1 = p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0;
        putchar(c1 || *p == 0x7f || (*p < 0x20 && *p != '\n') ? '?' : *p);
        p += c1;
    }
}

static void print_text(const struct pkg_glm_dsa_repair *r, bool dry_run) {
    const char *speculation = r->kept_speculation ? "; speculative decoding is left as it is" : "";
    print_diff(r->diff);
    if (!r->changed)
        printf("%s: declares glm-dsa-v1 already; nothing to do\n", r->manifest_path);
    else
        printf("%s: %s glm-dsa-v1%s%s\n", r->manifest_path, dry_run ? "would declare" : "now declares", speculation,
               r->reformatted ? "; lines and indents are those that Strata writes" : "");
}

static strata_err print_json(const struct pkg_glm_dsa_repair *r, const char *package, bool dry_run, bool ours,
                             struct strata_errmsg *em) {
    json_t *validation;
    strata_err rc = pkg_glm_dsa_to_json(&r->validation, &validation, em);
    if (rc) return rc;
    json_t *root =
        json_pack("{s:b, s:o, s:o, s:b, s:o}", "repaired", r->written, "package", jsonx_text(package, strlen(package)),
                  "manifest_path", jsonx_text(r->manifest_path, strlen(r->manifest_path)),
                  "preserved_speculative_decoding", r->kept_speculation, "validation", validation);
    int bad = root ? 0 : -1;
    if (!bad && (ours || dry_run)) {
        bad = json_object_set_new(root, "dry_run", json_boolean(dry_run));
        if (!bad) bad = json_object_set_new(root, "change_needed", json_boolean(r->changed));
        if (!bad) bad = json_object_set_new(root, "diff", jsonx_text(r->diff, strlen(r->diff)));
    }
    rc = bad ? err_nomem(em, "a report") : cli_print_json(root, em);
    json_decref(root);
    return rc;
}

static int run(const struct cli *cli, const char *package, bool dry_run, bool json) {
    struct pkg_glm_dsa_repair r;
    struct strata_errmsg em;
    strata_err rc = pkg_glm_dsa_repair(package, dry_run, &r, &em);
    if (rc) return cli_fail(cli, json && !cli->skippy, &em);
    if (json)
        rc = print_json(&r, package, dry_run, !cli->skippy, &em);
    else
        print_text(&r, dry_run);
    pkg_glm_dsa_repair_deinit(&r);
    return rc ? cli_fail(cli, false, &em) : CLI_OK;
}

int cmd_repair_glm_dsa_generation_policy(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {{"in-place", no_argument, NULL, 'i'},
                                             {"dry-run", no_argument, NULL, 'd'},
                                             {"help", no_argument, NULL, 'h'},
                                             {"json", no_argument, NULL, 'j'},
                                             {0}};
    bool in_place = false, dry_run = false, json = cli->skippy; /* the older tool prints nothing else */
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 'i': in_place = true; break;
        case 'd': dry_run = true; break;
        case 'j': json = true; break;
        case 'h':
            printf(help, cli->program, cli->skippy ? "" : "  --json      one JSON document\n", cli->program,
                   cli->program);
            return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) return cli_usage(cli, "name one package");
    if (!in_place && !dry_run)
        return cli_usage(cli, "repair-glm-dsa-generation-policy requires --in-place (or --dry-run, which only shows)");
    if (in_place && dry_run) return cli_usage(cli, "--in-place and --dry-run exclude each other");
    return run(cli, argv[optind], dry_run, json);
}

/* `strata sign`: signs a package's manifest with a publisher's key. The work is pkg_sign's; this is its command line.
 */
#include "base/path.h"
#include "cli/cli_signer.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: strata sign [OPTIONS] PACKAGE\n"
    "\n"
    "Signs a layer package (its folder, or its model-package.json): writes model-package.sig.json beside the "
    "manifest,\n"
    "an Ed25519 signature over the manifest's SHA-256. As the manifest holds the size and SHA-256 of every file, the\n"
    "signature covers the whole package; check the package first ('preflight'). Publish the sidecar with the package,\n"
    "and state the public key, which is printed, where your users can compare it. They check with 'verify-signature',\n"
    "or with --require-signature at every command that opens a package.\n"
    "\n"
    "  --key PATH    the private key: a PEM file that only you can read, or a folder with key.pem in it\n"
    "                (default: this machine's key, $XDG_CONFIG_HOME/strata/key.pem or ~/.config/strata/key.pem, which\n"
    "                'strata key new' makes). 'openssl genpkey -algorithm ed25519 -out FILE' makes one too\n"
    "  --force       replace a signature that is bad, or by another key\n"
    "  --json        one JSON object\n"
    "  --help        this text\n"
    "\n"
    "Signing again with the same key gives the same bytes. A manifest that is changed afterwards has a bad signature\n"
    "until it is signed again.\n"
    "Exit status: 0 signed, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata preflight model-package && strata sign model-package\n";

struct options {
    const char *package, *key;
    bool force, json;
};

static strata_err load_key(const struct options *o, struct ed25519_key **out, struct strata_errmsg *em) {
    char dir[PATH_MAX_LEN], path[PATH_MAX_LEN];
    if (o->key) return ed25519_key_load(o->key, out, em);
    strata_err rc = ed25519_key_dir(dir, sizeof dir, em);
    if (!rc) rc = path_join(path, sizeof path, dir, ED25519_KEY_FILE, em);
    return rc ? rc : ed25519_key_load(path, out, em);
}

static strata_err report(const struct options *o, const char *dir, const struct pkg_sign_result *r,
                         struct strata_errmsg *em) {
    char key[ED25519_PUB_TEXT];
    ed25519_pub_text(&r->pub, key);
    if (!o->json) {
        printf("%s: %s\nmanifest sha256 %s\npublic key %s\n", dir, r->changed ? "signed" : "signed already",
               r->manifest_sha256, key);
        fprintf(stderr, "state this public key where your users can compare it, apart from the package\n");
        return STRATA_OK;
    }
    json_t *root =
        json_pack("{s:o, s:s, s:s, s:s, s:b}", "package", jsonx_text(dir, strlen(dir)), "signature_file", PKG_SIGN_FILE,
                  "manifest_sha256", r->manifest_sha256, "public_key", key, "changed", (int)r->changed);
    strata_err rc = root ? cli_print_json(root, em) : err_nomem(em, "the report");
    json_decref(root);
    return rc;
}

static int run(const struct cli *cli, const struct options *o) {
    char dir[PATH_MAX_LEN];
    struct strata_errmsg em;
    struct ed25519_key *key = NULL;
    struct pkg_sign_result r;
    strata_err rc = cli_signer_package(o->package, dir, sizeof dir, &em);
    if (!rc) rc = load_key(o, &key, &em);
    if (!rc) rc = pkg_sign_write(dir, key, o->force, &r, &em);
    if (!rc) rc = report(o, dir, &r, &em);
    ed25519_key_free(key);
    return rc ? cli_fail(cli, o->json, &em) : CLI_OK;
}

int cmd_sign(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {{"key", required_argument, NULL, 'k'},
                                             {"force", no_argument, NULL, 'f'},
                                             {"json", no_argument, NULL, 'j'},
                                             {"help", no_argument, NULL, 'h'},
                                             {0}};
    struct options o = {.json = cli->skippy};
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 'k': o.key = optarg; break;
        case 'f': o.force = true; break;
        case 'j': o.json = true; break;
        case 'h': fputs(help, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) return cli_usage(cli, "name one package");
    o.package = argv[optind];
    return run(cli, &o);
}

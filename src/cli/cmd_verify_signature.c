/* `strata verify-signature`: who signed a package, and whether that holds. */
#include "base/path.h"
#include "cli/cli_signer.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: strata verify-signature [OPTIONS] PACKAGE\n"
    "\n"
    "Tells who signed a layer package (its folder, or its model-package.json) and whether the signature holds for the\n"
    "manifest as it is now. The signature covers the files of the package through their digests in the manifest:\n"
    "'preflight' compares those.\n"
    "\n"
    "  --key KEY     the signature must be by this public key: 44 characters, or a file that holds them. Without it\n"
    "                anyone's signature will do, and it is up to you to compare the key with the publisher's\n"
    "  --json        one JSON object\n"
    "  --help        this text\n"
    "\n"
    "Exit status: 0 a good signature (by KEY), 1 unsigned, bad, or by another key, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata verify-signature model-package --key 8B3fK1...=\n";

struct options {
    const char *package;
    struct cli_signer signer;
    bool json;
};

/* No key is wanted, but some signature is. */
static strata_err any_signature(const struct pkg_signature *s, const char *dir, struct strata_errmsg *em) {
    switch (s->state) {
    case PKG_SIGN_GOOD: return STRATA_OK;
    case PKG_SIGN_NONE: return err_set(em, STRATA_EAUTH, "%.200s is not signed: it has no %s", dir, PKG_SIGN_FILE);
    default:
        return err_set(em, STRATA_EAUTH, "%.200s has a bad signature: %s; do not use this package, fetch it again", dir,
                       s->reason);
    }
}

static strata_err print_json(const struct options *o, const char *dir, const char *sha256,
                             const struct pkg_signature *s, bool accepted, struct strata_errmsg *em) {
    char key[ED25519_PUB_TEXT];
    json_t *signature;
    strata_err rc = pkg_sign_to_json(s, &signature, em);
    if (rc) return rc;
    json_t *root = json_pack("{s:o, s:s, s:o, s:b}", "package", jsonx_text(dir, strlen(dir)), "manifest_sha256", sha256,
                             "signature", signature, "accepted", (int)accepted);
    if (!root || (o->signer.required &&
                  json_object_set_new(root, "required_key", json_string(ed25519_pub_text(&o->signer.pub, key))) != 0))
        rc = err_nomem(em, "the report");
    if (!rc) rc = cli_print_json(root, em);
    json_decref(root);
    return rc;
}

static void print_text(const struct options *o, const char *dir, const char *sha256, const struct pkg_signature *s) {
    char text[PKG_SIGN_TEXT];
    printf("%s: %s\nmanifest sha256 %s\n", dir, pkg_sign_text(s, text), sha256);
    if (!o->signer.required && s->state == PKG_SIGN_GOOD)
        fprintf(stderr, "whose key that is cannot be known from the package: compare it with the one the publisher "
                        "states, or give --key\n");
}

static int run(const struct cli *cli, const struct options *o) {
    char dir[PATH_MAX_LEN], sha256[DIGEST_HEX];
    struct strata_errmsg em, why;
    struct pkg_signature s;
    strata_err rc = cli_signer_package(o->package, dir, sizeof dir, &em);
    if (!rc) rc = pkg_sign_digest(dir, sha256, &em);
    if (!rc) rc = pkg_sign_verify(dir, sha256, &s, &em);
    if (rc) return cli_fail(cli, o->json, &em);
    strata_err verdict =
        o->signer.required ? pkg_sign_accept(&s, dir, &o->signer.pub, &why) : any_signature(&s, dir, &why);
    if (o->json)
        rc = print_json(o, dir, sha256, &s, verdict == STRATA_OK, &em);
    else
        print_text(o, dir, sha256, &s);
    if (rc) return cli_fail(cli, false, &em);
    return verdict ? cli_fail(cli, false, &why) : CLI_OK;
}

int cmd_verify_signature(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {
        {"key", required_argument, NULL, 'k'}, {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    struct options o = {.json = cli->skippy};
    int c, status;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 'k':
            status = cli_signer_take(cli, optarg, &o.signer);
            if (status) return status;
            break;
        case 'j': o.json = true; break;
        case 'h': fputs(help, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) return cli_usage(cli, "name one package");
    o.package = argv[optind];
    return run(cli, &o);
}

/* Signatures, as the commands ask for them and show them. See cli_signer.h. */
#include "cli/cli_signer.h"

#include "package/pkg_part.h"

#include <stdio.h>

int cli_signer_take(const struct cli *cli, const char *key_or_file, struct cli_signer *out) {
    struct strata_errmsg em;
    strata_err rc = ed25519_pub_arg(key_or_file, &out->pub, &em);
    if (rc == STRATA_EINVAL) return cli_usage(cli, "%s", em.text);
    if (rc) return cli_fail(cli, false, &em);
    out->required = true;
    return CLI_OK;
}

const struct ed25519_pub *cli_signer_key(const struct cli_signer *s) {
    return s->required ? &s->pub : NULL;
}

strata_err cli_signer_package(const char *path, char *dir, size_t cap, struct strata_errmsg *em) {
    if (pkg_part_folder(path, dir, cap)) return STRATA_OK;
    return err_set(em, STRATA_ENOENT, "%s is neither the folder of a layer package nor its %s", path,
                   PKG_MANIFEST_FILE);
}

void cli_signer_show(const char *path, const struct pkg_signature *signature) {
    char text[PKG_SIGN_TEXT];
    if (signature) fprintf(stderr, "package %s: %s\n", path, pkg_sign_text(signature, text));
}

void cli_signer_log(const struct log *log, const char *manifest_sha256, const struct pkg_signature *signature) {
    char key[ED25519_PUB_TEXT], quoted[PKG_SIGN_REASON * 2 + 3];
    const char *state = pkg_sign_state_name(signature->state);
    switch (signature->state) {
    case PKG_SIGN_GOOD:
        log_event(log, LOG_LEVEL_INFO, "package", "manifest=%s signature=%s signer=%s", manifest_sha256, state,
                  ed25519_pub_text(&signature->signer, key));
        break;
    case PKG_SIGN_NONE:
        log_event(log, LOG_LEVEL_INFO, "package", "manifest=%s signature=%s", manifest_sha256, state);
        break;
    default:
        log_event(log, LOG_LEVEL_WARN, "package", "manifest=%s signature=%s reason=%s", manifest_sha256, state,
                  log_quote(quoted, sizeof quoted, signature->reason));
        break;
    }
}

/* --require-signature KEY, and telling what a package's signature is: the same for every command that opens one. */
#ifndef CLI_SIGNER_H
#define CLI_SIGNER_H

#include "base/log.h"
#include "cli/cli.h"
#include "package/pkg_sign.h"

/* The option, for --help. */
#define CLI_SIGNER_HELP                                                                                                \
    "      --require-signature KEY\n"                                                                                  \
    "                           refuse anything but a package with a good signature by this public key (44 "           \
    "characters,\n"                                                                                                    \
    "                           or a file that holds them; see 'strata sign'), and compare its parts with their "      \
    "digests\n"

struct cli_signer {
    bool required;
    struct ed25519_pub pub;
};

/* Takes the option's value. CLI_OK, or the exit status after telling what is wrong. */
int cli_signer_take(const struct cli *cli, const char *key_or_file, struct cli_signer *out);
/* The key that must have signed, or NULL: what the package functions want. */
const struct ed25519_pub *cli_signer_key(const struct cli_signer *s);

/* The folder of a package named by it or by its manifest; ENOENT when it is neither. */
strata_err cli_signer_package(const char *path, char *dir, size_t cap, struct strata_errmsg *em);

/* One line on stderr: "package PATH: signed by KEY". Nothing for a plain file, which has no signature (NULL). */
void cli_signer_show(const char *path, const struct pkg_signature *signature);
/* The event `package` with manifest=, signature= and signer= or reason=; a warning when the signature is bad. */
void cli_signer_log(const struct log *log, const char *manifest_sha256, const struct pkg_signature *signature);

#endif

/* `strata key`: this machine's key, and the keys of other machines that it trusts. */
#include "base/jsonx.h"
#include "base/path.h"
#include "cli/cli.h"
#include "wire/wire_key.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: strata key new [OPTIONS]\n"
    "       strata key show [OPTIONS]\n"
    "       strata key trust PUBLICKEY [NAME] [OPTIONS]\n"
    "       strata key untrust PUBLICKEY|NAME [OPTIONS]\n"
    "       strata key list [OPTIONS]\n"
    "\n"
    "Every machine has one key. Two machines work together when each trusts the other's public key (44 characters, as\n"
    "'strata key show' prints it). A coordinator ('strata serve') and each of its stages ('strata stage') must trust "
    "one\n"
    "another; stages need not trust each other. A running stage or coordinator notices a change at once.\n"
    "\n"
    "  new       make this machine's key and print its public half; an existing key is never overwritten\n"
    "  show      print this machine's public key\n"
    "  trust     trust a public key; NAME (letters, digits, '.', '_', '-', '@') helps to tell keys apart\n"
    "  untrust   trust a key no longer\n"
    "  list      print the trusted keys\n"
    "\n"
    "      --key-dir DIR  where keys are kept (default: $XDG_CONFIG_HOME/strata or ~/.config/strata)\n"
    "      --json         print JSON\n"
    "  -h, --help         this text\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example, on two machines:\n"
    "  box1$ strata key new                      box2$ strata key new\n"
    "  box1$ strata key trust KEY-OF-BOX2 box2   box2$ strata key trust KEY-OF-BOX1 box1\n";

enum { MAX_ARGS = 3 };

struct options {
    char dir[PATH_MAX_LEN];
    bool json;
    const char *args[MAX_ARGS]; /* the action and its operands */
    int n_args;
};

/* Takes over o. */
static int print_json(json_t *o) {
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    if (text) puts(text);
    free(text);
    json_decref(o);
    return text ? CLI_OK : CLI_FAILED;
}

static int print_own(const struct options *o, const struct ed25519_pub *pub) {
    char text[ED25519_PUB_TEXT];
    ed25519_pub_text(pub, text);
    if (o->json) return print_json(json_pack("{s:s, s:s}", "public_key", text, "key_dir", o->dir));
    puts(text);
    return CLI_OK;
}

static strata_err run_new(const struct options *o, int *status, struct strata_errmsg *em) {
    struct ed25519_pub pub;
    strata_err rc = wire_key_create(o->dir, &pub, em);
    if (rc) return rc;
    fprintf(stderr, "made a new key in %s; this is its public half, for 'strata key trust' on other machines:\n",
            o->dir);
    *status = print_own(o, &pub);
    return STRATA_OK;
}

static strata_err run_show(const struct options *o, int *status, struct strata_errmsg *em) {
    struct wire_key *key;
    strata_err rc = wire_key_load(o->dir, &key, em);
    if (rc) return rc;
    *status = print_own(o, &key->pub);
    wire_key_free(key);
    return STRATA_OK;
}

static strata_err run_list(const struct options *o, int *status, struct strata_errmsg *em) {
    struct wire_trust t;
    strata_err rc = wire_trust_load(o->dir, &t, em);
    if (rc) return rc;
    json_t *list = o->json ? json_array() : NULL;
    for (size_t i = 0; i < t.n; i++) {
        char text[ED25519_PUB_TEXT];
        ed25519_pub_text(&t.entries[i].pub, text);
        if (o->json)
            json_array_append_new(list, json_pack("{s:s, s:s}", "public_key", text, "name", t.entries[i].name));
        else
            printf("%s%s%s\n", text, t.entries[i].name[0] ? " " : "", t.entries[i].name);
    }
    if (!o->json && t.n == 0) fprintf(stderr, "no key is trusted yet; see 'strata key --help'\n");
    wire_trust_deinit(&t);
    if (o->json) *status = print_json(json_pack("{s:o}", "trusted", list));
    return STRATA_OK;
}

static strata_err run_change(const struct options *o, bool trust, int *status, struct strata_errmsg *em) {
    struct wire_trust t = {0};
    struct ed25519_pub pub;
    strata_err rc = trust ? ed25519_pub_parse(o->args[1], &pub, em) : STRATA_OK;
    if (!rc) rc = wire_trust_load(o->dir, &t, em);
    if (rc) return rc;
    if (trust)
        rc = wire_trust_add(&t, &pub, o->args[2], em);
    else
        rc = wire_trust_remove(&t, o->args[1], em);
    if (!rc) rc = wire_trust_save(o->dir, &t, em);
    if (!rc && o->json) *status = print_json(json_pack("{s:i}", "trusted_keys", (int)t.n));
    if (!rc && !o->json) fprintf(stderr, "%s; %zu trusted in all\n", trust ? "trusted" : "no longer trusted", t.n);
    wire_trust_deinit(&t);
    return rc;
}

static int dispatch(const struct cli *cli, const struct options *o) {
    static const struct {
        const char *name;
        int lo, hi; /* operands */
    } actions[] = {{"new", 0, 0}, {"show", 0, 0}, {"list", 0, 0}, {"trust", 1, 2}, {"untrust", 1, 1}};
    enum { NEW, SHOW, LIST, TRUST, UNTRUST, N_ACTIONS };
    struct strata_errmsg em;
    strata_err rc = STRATA_OK;
    int status = CLI_OK, a = 0, operands = o->n_args - 1;
    if (o->n_args == 0) return cli_usage(cli, "say what to do: new, show, trust, untrust or list");
    while (a < N_ACTIONS && strcmp(o->args[0], actions[a].name) != 0) a++;
    if (a == N_ACTIONS) return cli_usage(cli, "unknown action '%s'", o->args[0]);
    if (operands < actions[a].lo) return cli_usage(cli, "'%s' needs a public key", o->args[0]);
    if (operands > actions[a].hi) return cli_usage(cli, "too many arguments for '%s'", o->args[0]);
    switch (a) {
    case NEW: rc = run_new(o, &status, &em); break;
    case SHOW: rc = run_show(o, &status, &em); break;
    case LIST: rc = run_list(o, &status, &em); break;
    default: rc = run_change(o, a == TRUST, &status, &em); break;
    }
    return rc ? cli_fail(cli, o->json, &em) : status;
}

int cmd_key(const struct cli *cli, int argc, char **argv) {
    static const struct option longs[] = {{"key-dir", required_argument, NULL, 'k'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct options o = {0};
    struct strata_errmsg em;
    int opt;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":h", longs, NULL)) != -1) {
        switch (opt) {
        case 'k':
            if (strlen(optarg) >= sizeof o.dir) return cli_usage(cli, "--key-dir is too long");
            memcpy(o.dir, optarg, strlen(optarg) + 1);
            break;
        case 'j': o.json = true; break;
        case 'h': fputs(usage, stdout); return CLI_OK;
        default: return cli_bad_option(cli, opt, argv);
        }
    }
    for (; optind < argc; optind++) {
        if (o.n_args == MAX_ARGS) return cli_usage(cli, "too many arguments");
        o.args[o.n_args++] = argv[optind];
    }
    if (!o.dir[0] && ed25519_key_dir(o.dir, sizeof o.dir, &em)) return cli_fail(cli, o.json, &em);
    return dispatch(cli, &o);
}

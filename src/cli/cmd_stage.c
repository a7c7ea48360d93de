/* `strata stage`: serves one layer range of a package to a coordinator. */
#include "base/jsonx.h"
#include "base/log.h"
#include "base/path.h"
#include "cli/cli_device.h"
#include "cli/cli_signer.h"
#include "stage/stage_engine.h"
#include "stage/stage_server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char usage[] =
    "usage: strata stage --package DIR --listen HOST:PORT [OPTIONS]\n"
    "\n"
    "Waits for a coordinator ('strata serve'), loads the layers that it assigns, and runs them. The package must be "
    "the\n"
    "same as the coordinator's (the digests of their manifests are compared). Links are TLS 1.3 with keys on both "
    "sides:\n"
    "make a key with 'strata key new', and let this machine and the coordinator trust each other with 'strata key "
    "trust'.\n"
    "\n"
    "      --package DIR        the layer package\n"
    "      --listen HOST:PORT   where to listen; port 0 takes any free port\n"
    "  -t, --threads N          threads (default: every core)\n" CLI_DEVICE_HELP
    "      --over-memory        load layers that do not fit the memory: they are read from the disk again and again\n"
    "      --no-repack          leave the weights in the pages of the files: less private memory, slower\n"
    "      --key-dir DIR        where keys are kept (default: $XDG_CONFIG_HOME/strata or "
    "~/.config/strata)\n" CLI_SIGNER_HELP
    "      --json               print one line of JSON with address and key on standard output when listening\n"
    "      --exit-with-stdin    end when standard input is closed (for programs that start stages)\n"
    "  -h, --help               this text\n"
    "\n"
    "STRATA_LOG=debug, info (default), warn or error sets what is logged on standard error.\n"
    "Exit status: 0 stopped by Ctrl-C or SIGTERM, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata stage --package ./model-package --listen 0.0.0.0:9400\n";

struct options {
    const char *package, *listen, *key_dir, *device;
    uint32_t n_threads;
    bool json, exit_with_stdin, over_memory, no_repack;
    struct cli_signer signer;
};

/* The child of a coordinator: it must not outlive it, and Ctrl-C in their terminal is the coordinator's to handle. */
static void tie_to_parent(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
}

/* Sleeps until a signal that ends us, or until standard input closes. `open_mask` lets the signals in. */
static void wait_for_end(bool watch_stdin, const sigset_t *open_mask) {
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!cli_interrupted()) {
        char scrap[256];
        int n = ppoll(&p, watch_stdin ? 1 : 0, NULL, open_mask);
        if (n < 0 && errno != EINTR) return;
        if (n > 0 && read(STDIN_FILENO, scrap, sizeof scrap) <= 0) return;
    }
}

static void announce(const struct options *o, const struct stage_server *s, const struct wire_key *key,
                     const struct stage_engine *engine) {
    char addr[WIRE_ADDR_TEXT], pub[ED25519_PUB_TEXT];
    const struct stage_probe *probe = stage_server_probe(s);
    wire_addr_text(stage_server_addr(s), addr);
    ed25519_pub_text(&key->pub, pub);
    if (o->json) {
        json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:i, s:s}", "address", addr, "key", pub, "model_id",
                                 probe->model_id, "manifest_sha256", probe->manifest_sha256, "pid", (int)getpid(),
                                 "device", stage_engine_device(engine));
        json_t *state = NULL;
        if (line && !pkg_sign_to_json(stage_engine_signature(engine), &state, NULL))
            json_object_set_new(line, "signature", state);
        char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
        if (text) puts(text);
        fflush(stdout);
        free(text);
        json_decref(line);
    }
    if (o->exit_with_stdin) return;
    fprintf(stderr, "strata stage: listening on %s, key %s\n", addr, pub);
    if (o->device) fprintf(stderr, "strata stage: computing on %s\n", stage_engine_device(engine));
}

static strata_err load_identity(const struct options *o, char *dir, size_t cap, struct wire_key **key,
                                struct wire_trust *trust, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    if (o->key_dir) {
        if (strlen(o->key_dir) >= cap) return err_set(em, STRATA_EINVAL, "--key-dir is too long");
        memcpy(dir, o->key_dir, strlen(o->key_dir) + 1);
    } else {
        rc = ed25519_key_dir(dir, cap, em);
    }
    if (!rc) rc = wire_key_load(dir, key, em);
    if (!rc) rc = wire_trust_load(dir, trust, em);
    return rc;
}

static int run(const struct cli *cli, const struct options *o) {
    char dir[PATH_MAX_LEN];
    struct strata_errmsg em;
    struct log log = {.out = stderr, .level = log_level_from_env(LOG_LEVEL_INFO), .component = "stage"};
    struct stage_server_options so = {.log = &log};
    struct wire_key *key = NULL;
    struct wire_trust trust = {0};
    struct stage_engine *engine = NULL;
    struct stage_server *server = NULL;
    sigset_t ours, before;
    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    cli_catch_interrupt();
    if (o->exit_with_stdin) tie_to_parent();
    pthread_sigmask(SIG_BLOCK, &ours, &before);
    strata_err rc = wire_addr_parse(o->listen, true, &so.listen, &em);
    if (!rc) rc = load_identity(o, dir, sizeof dir, &key, &trust, &em);
    const struct stage_engine_options eo = {.package = o->package,
                                            .device = o->device,
                                            .n_threads = o->n_threads,
                                            .over_memory = o->over_memory,
                                            .keep_mapped = o->no_repack,
                                            /* Children of one coordinator would draw over each other. */
                                            .progress = o->exit_with_stdin ? NULL : stderr,
                                            .require_signature = cli_signer_key(&o->signer)};
    if (!rc) rc = stage_engine_new(&eo, &engine, &em);
    if (rc) goto out;
    so.backend = stage_engine_backend(engine);
    so.key = key;
    /* A coordinator removes the folder that it made for its child; what was read at the start holds then. */
    so.key_dir = o->exit_with_stdin ? NULL : dir;
    so.trust = &trust;
    rc = stage_server_start(&so, &server, &em);
    if (rc) goto out;
    cli_signer_log(&log, stage_server_probe(server)->manifest_sha256, stage_engine_signature(engine));
    announce(o, server, key, engine);
    wait_for_end(o->exit_with_stdin, &before);
    /* While it loads, the engine cannot be told to stop; nothing of value is lost by just going. */
    if (!stage_server_stop(server)) _exit(CLI_OK);
out:
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    stage_engine_free(engine);
    wire_trust_deinit(&trust);
    wire_key_free(key);
    return rc ? cli_fail(cli, o->json, &em) : CLI_OK;
}

int cmd_stage(const struct cli *cli, int argc, char **argv) {
    static const struct option longs[] = {{"package", required_argument, NULL, 'p'},
                                          {"listen", required_argument, NULL, 'l'},
                                          {"threads", required_argument, NULL, 't'},
                                          {"device", required_argument, NULL, 'd'},
                                          {"key-dir", required_argument, NULL, 'k'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"exit-with-stdin", no_argument, NULL, 'x'},
                                          {"help", no_argument, NULL, 'h'},
                                          {"require-signature", required_argument, NULL, 's'},
                                          {"over-memory", no_argument, NULL, 'o'},
                                          {"no-repack", no_argument, NULL, 'r'},
                                          {NULL, 0, NULL, 0}};
    struct options o = {0};
    int opt, status;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":ht:", longs, NULL)) != -1) {
        switch (opt) {
        case 'p': o.package = optarg; break;
        case 'l': o.listen = optarg; break;
        case 't':
            if (!cli_parse_u32(optarg, 1, 512, &o.n_threads))
                return cli_usage(cli, "--threads must be from 1 to 512, not '%s'", optarg);
            break;
        case 'd': o.device = optarg; break;
        case 'k': o.key_dir = optarg; break;
        case 's':
            if ((status = cli_signer_take(cli, optarg, &o.signer))) return status;
            break;
        case 'j': o.json = true; break;
        case 'x': o.exit_with_stdin = true; break;
        case 'o': o.over_memory = true; break;
        case 'r': o.no_repack = true; break;
        case 'h': fputs(usage, stdout); return CLI_OK;
        default: return cli_bad_option(cli, opt, argv);
        }
    }
    if (cli_device_is_list(o.device)) return cli_device_list(cli, o.json);
    if (optind < argc) return cli_usage(cli, "unexpected argument '%s'", argv[optind]);
    if (!o.package) return cli_usage(cli, "--package is missing");
    if (!o.listen) return cli_usage(cli, "--listen is missing");
    return run(cli, &o);
}

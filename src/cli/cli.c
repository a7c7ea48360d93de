/* Shared by the sub-commands. See cli.h. */
#include "cli/cli.h"

#include "base/jsonx.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

strata_err cli_print_json(const json_t *root, struct strata_errmsg *em) {
    if (json_dumpf(root, stdout, JSON_INDENT(2)) != 0 && !ferror(stdout)) return err_nomem(em, "the output");
    putchar('\n');
    return STRATA_OK;
}

int cli_fail(const struct cli *cli, bool json, const struct strata_errmsg *em) {
    if (cli->skippy)
        fprintf(stderr, "Error: %s\n", em->text);
    else
        fprintf(stderr, "%s %s: %s\n", cli->program, cli->command, em->text);
    if (json) {
        json_t *root = json_pack("{s:{s:s, s:o}}", "error", "code", strata_err_name(em->code), "message",
                                 jsonx_text(em->text, strlen(em->text)));
        if (root) cli_print_json(root, NULL);
        json_decref(root);
    }
    return CLI_FAILED;
}

int cli_usage(const struct cli *cli, const char *fmt, ...) {
    va_list ap;
    fprintf(stderr, "%s %s: ", cli->program, cli->command);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nTry '%s %s --help'.\n", cli->program, cli->command);
    return CLI_USAGE;
}

int cli_bad_option(const struct cli *cli, int opt, char **argv) {
    const char *arg = argv[optind - 1];
    if (opt == ':') return cli_usage(cli, "option '%s' needs a value", arg);
    if (optopt) return cli_usage(cli, "unknown option '-%c'", optopt);
    return cli_usage(cli, "unknown option '%s'", arg);
}

bool cli_parse_u64(const char *text, uint64_t lo, uint64_t hi, uint64_t *out) {
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || *end || v < lo || v > hi) return false;
    *out = v;
    return true;
}

bool cli_parse_u32(const char *text, uint32_t lo, uint32_t hi, uint32_t *out) {
    uint64_t v;
    if (!cli_parse_u64(text, lo, hi, &v)) return false;
    *out = (uint32_t)v;
    return true;
}

bool cli_parse_range(const char *text, uint32_t *first, uint32_t *end) {
    char head[16];
    uint32_t a, b;
    const char *dots = strstr(text, "..");
    if (!dots || (size_t)(dots - text) >= sizeof head) return false;
    memcpy(head, text, (size_t)(dots - text));
    head[dots - text] = '\0';
    if (!cli_parse_u32(head, 0, UINT32_MAX - 1, &a) || !cli_parse_u32(dots + 2, 1, UINT32_MAX - 1, &b) || a >= b)
        return false;
    *first = a;
    *end = b;
    return true;
}

bool cli_parse_float(const char *text, float lo, float hi, float *out) {
    char *end;
    errno = 0;
    float v = strtof(text, &end);
    if (errno || end == text || *end || !isfinite(v) || v < lo || v > hi) return false;
    *out = v;
    return true;
}

/* The one piece of process-wide state: signals have nowhere else to go. */
static volatile sig_atomic_t interrupted;

static void on_signal(int sig) {
    if (interrupted) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    interrupted = 1;
}

void cli_catch_interrupt(void) {
    struct sigaction sa = {.sa_handler = on_signal};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

bool cli_interrupted(void) {
    return interrupted != 0;
}

int cli_finish(const struct cli *cli, int status) {
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "%s %s: cannot write the output: %s\n", cli->program, cli->command, strerror(errno));
        return CLI_FAILED;
    }
    return status;
}

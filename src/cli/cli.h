/*
 * What the sub-commands share: error output, argument parsing, interruption.
 *
 * A command is `int cmd_<name>(const struct cli *cli, int argc, char **argv)`: argv[0] is its name, the result is the
 * exit status: 0 done, 1 failed, 2 wrong usage. Results go to stdout, everything else to stderr.
 * The package commands serve two programs: `strata`, and the small `skippy-model-package`, which speaks the older
 * tool's dialect: its flags, JSON alone on stdout with exactly its keys, and "Error: ..." on stderr.
 */
#ifndef CLI_H
#define CLI_H

#include "base/err.h"

#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* Who runs the command. */
struct cli {
    const char *program; /* "strata" or "skippy-model-package" */
    const char *command; /* "preflight" and the like */
    bool skippy;         /* the older tool's dialect is wanted */
};

/* Prints "strata <command>: <text>" ("Error: <text>" in the older dialect) on stderr; with json also
 * {"error":{"code","message"}} on stdout. Returns CLI_FAILED. */
int cli_fail(const struct cli *cli, bool json, const struct strata_errmsg *em);
/* Prints a usage error and where help is. Returns CLI_USAGE. */
int cli_usage(const struct cli *cli, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* What getopt_long returned '?' or ':' for: call with opterr = 0 and an option string that starts with ":". */
int cli_bad_option(const struct cli *cli, int opt, char **argv);
/* Prints one document, indented by two, and a line feed on stdout. A failed write is cli_finish's to report. */
strata_err cli_print_json(const json_t *root, struct strata_errmsg *em);

/* Strict number parsing: the whole text, decimal, within [lo, hi]. False leaves *out alone. */
bool cli_parse_u64(const char *text, uint64_t lo, uint64_t hi, uint64_t *out);
bool cli_parse_u32(const char *text, uint32_t lo, uint32_t hi, uint32_t *out);
/* "FIRST..END" with FIRST below END. */
bool cli_parse_range(const char *text, uint32_t *first, uint32_t *end);
bool cli_parse_float(const char *text, float lo, float hi, float *out);

/* From now on SIGINT and SIGTERM set a flag instead of ending the process (a second one ends it). */
void cli_catch_interrupt(void);
bool cli_interrupted(void);

/* Flushes stdout and tells whether everything was written: a full disk or a closed pipe must not look like success. */
int cli_finish(const struct cli *cli, int status);

int cmd_inspect(const struct cli *cli, int argc, char **argv);
int cmd_architectures(const struct cli *cli, int argc, char **argv);
int cmd_plan(const struct cli *cli, int argc, char **argv);
int cmd_write(const struct cli *cli, int argc, char **argv);
int cmd_write_stages(const struct cli *cli, int argc, char **argv);
int cmd_write_package(const struct cli *cli, int argc, char **argv);
int cmd_convert(const struct cli *cli, int argc, char **argv);
int cmd_materialize(const struct cli *cli, int argc, char **argv);
int cmd_preflight(const struct cli *cli, int argc, char **argv);
int cmd_validate_package(const struct cli *cli, int argc, char **argv);
int cmd_validate(const struct cli *cli, int argc, char **argv);
int cmd_sign(const struct cli *cli, int argc, char **argv);
int cmd_verify_signature(const struct cli *cli, int argc, char **argv);
int cmd_validate_glm_dsa_contract(const struct cli *cli, int argc, char **argv);
int cmd_repair_glm_dsa_generation_policy(const struct cli *cli, int argc, char **argv);
int cmd_run(const struct cli *cli, int argc, char **argv);
int cmd_bench(const struct cli *cli, int argc, char **argv);
int cmd_perplexity(const struct cli *cli, int argc, char **argv);
int cmd_serve(const struct cli *cli, int argc, char **argv);
int cmd_stage(const struct cli *cli, int argc, char **argv);
int cmd_key(const struct cli *cli, int argc, char **argv);
int cmd_tokenize(const struct cli *cli, int argc, char **argv);
int cmd_logits(const struct cli *cli, int argc, char **argv);

#endif

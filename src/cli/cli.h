/*
 * What the sub-commands share: error output, argument parsing, interruption.
 *
 * A command is `int cmd_<name>(int argc, char **argv)`: argv[0] is its name, the result is the exit status:
 * 0 done, 1 failed, 2 wrong usage. Results go to stdout, everything else to stderr.
 */
#ifndef CLI_H
#define CLI_H

#include "base/err.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* Prints "strata <command>: <text>" on stderr; with json also {"error":{"code","message"}} on stdout. Returns
 * CLI_FAILED. */
int cli_fail(const char *command, bool json, const struct strata_errmsg *em);
/* Prints a usage error and where help is. Returns CLI_USAGE. */
int cli_usage(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* What getopt_long returned '?' or ':' for: call with opterr = 0 and an option string that starts with ":". */
int cli_bad_option(const char *command, int opt, char **argv);

/* Strict number parsing: the whole text, decimal, within [lo, hi]. False leaves *out alone. */
bool cli_parse_u64(const char *text, uint64_t lo, uint64_t hi, uint64_t *out);
bool cli_parse_u32(const char *text, uint32_t lo, uint32_t hi, uint32_t *out);
bool cli_parse_float(const char *text, float lo, float hi, float *out);

/* From now on SIGINT and SIGTERM set a flag instead of ending the process (a second one ends it). */
void cli_catch_interrupt(void);
bool cli_interrupted(void);

/* Flushes stdout and tells whether everything was written: a full disk or a closed pipe must not look like success. */
int cli_finish(const char *command, int status);

int cmd_inspect(int argc, char **argv);
int cmd_write_package(int argc, char **argv);
int cmd_preflight(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_key(int argc, char **argv);
int cmd_stage(int argc, char **argv);
int cmd_serve(int argc, char **argv);

#endif

/* What both programs' main functions share: a table of commands, help, and the way into a command. */
#ifndef CLI_MAIN_H
#define CLI_MAIN_H

#include "cli/cli.h"

#include <stddef.h>

struct cli_command {
    const char *name; /* NULL: a heading in the list of commands, whose text is `help` */
    int (*run)(const struct cli *cli, int argc, char **argv);
    const char *help;
    bool computes; /* runs ggml in this process */
};

struct cli_program {
    const char *name;
    bool skippy; /* see struct cli */
    const char *about, *example;
    const struct cli_command *commands;
    size_t n_commands;
    void (*before_computing)(char **argv); /* called first for a command that computes; may be NULL */
};

/* Runs the command that argv names. The result is the exit status. */
int cli_main(const struct cli_program *p, int argc, char **argv);

#endif

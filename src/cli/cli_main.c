/* The way from argv into a command. See cli_main.h. Owns nothing. */
#include "cli/cli_main.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static void print_help(const struct cli_program *p, FILE *out) {
    fprintf(out, "%s\n\nusage: %s COMMAND [OPTIONS]\n", p->about, p->name);
    for (size_t i = 0; i < p->n_commands; i++)
        if (p->commands[i].name)
            fprintf(out, "  %-30s %s\n", p->commands[i].name, p->commands[i].help);
        else
            fprintf(out, "\n%s\n", p->commands[i].help);
    fprintf(out, "\n'%s COMMAND --help' explains a command. %s", p->name, p->example);
}

static const struct cli_command *find(const struct cli_program *p, const char *name) {
    for (size_t i = 0; i < p->n_commands; i++)
        if (p->commands[i].name && strcmp(p->commands[i].name, name) == 0) return &p->commands[i];
    return NULL;
}

int cli_main(const struct cli_program *p, int argc, char **argv) {
    /* A peer or a pipe that goes away is an error of that write, not the end of the process. */
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        print_help(p, stderr);
        return CLI_USAGE;
    }
    const struct cli cli = {.program = p->name, .command = argv[1], .skippy = p->skippy};
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(p, stdout);
        return cli_finish(&cli, CLI_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("%s %s\n", p->name, STRATA_VERSION);
        return cli_finish(&cli, CLI_OK);
    }
    const struct cli_command *c = find(p, argv[1]);
    if (!c) {
        fprintf(stderr, "%s: unknown command '%s'. '%s --help' lists the commands.\n", p->name, argv[1], p->name);
        return CLI_USAGE;
    }
    if (c->computes && p->before_computing) p->before_computing(argv);
    return cli_finish(&cli, c->run(&cli, argc - 1, argv + 1));
}

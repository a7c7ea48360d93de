/* The command line: a table of sub-commands. */
#include "cli/cli.h"
#include "model/model_backend.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(const struct cli *cli, int argc, char **argv);
    const char *help;
    bool computes; /* runs ggml in this process */
};

static const struct command commands[] = {
    {"inspect", cmd_inspect, "show what a GGUF file or a package holds", false},
    {"write-package", cmd_write_package, "cut a GGUF model into a layer package", false},
    {"preflight", cmd_preflight, "check a package: manifest, sizes, digests, fragments", false},
    {"run", cmd_run, "generate text in this process", true},
    {"serve", cmd_serve, "serve a package over stages as one OpenAI-compatible endpoint", false},
    {"stage", cmd_stage, "serve one layer range to a coordinator", true},
    {"key", cmd_key, "make this machine's key, show it, trust another machine's", false},
    {"tokenize", cmd_tokenize, "print the token ids of lines of text", false},
    {"logits", cmd_logits, "write raw logits of every position, uncut or over in-process stages", true},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void help(FILE *out) {
    fputs("Strata runs a model that is too big for one machine: each machine loads only its own layers.\n\n"
          "usage: strata COMMAND [OPTIONS]\n\n",
          out);
    for (size_t i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-14s %s\n", commands[i].name, commands[i].help);
    fputs("\n'strata COMMAND --help' explains a command. A first try on one machine:\n\n"
          "  strata write-package model.gguf --out-dir model-package\n"
          "  strata serve model-package --local-stages 2\n",
          out);
}

int main(int argc, char **argv) {
    /* A peer or a pipe that goes away is an error of that write, not the end of the process. */
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        help(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    const struct cli cli = {.program = "strata", .command = name};
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help(stdout);
        return cli_finish(&cli, CLI_OK);
    }
    if (strcmp(name, "--version") == 0) {
        puts("strata " STRATA_VERSION);
        return cli_finish(&cli, CLI_OK);
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) {
            if (commands[i].computes) model_backend_tune_process(argv);
            int status = commands[i].run(&cli, argc - 1, argv + 1);
            return cli_finish(&cli, status);
        }
    fprintf(stderr, "strata: unknown command '%s'. 'strata --help' lists the commands.\n", name);
    return CLI_USAGE;
}

/* --device NAME: the same for every command that computes. */
#ifndef CLI_DEVICE_H
#define CLI_DEVICE_H

#include "cli/cli.h"

/* The option, for --help. */
#define CLI_DEVICE_HELP                                                                                                \
    "      --device NAME        what computes: cpu (default), auto (the first GPU, else the CPU), or a device's "      \
    "name;\n"                                                                                                          \
    "                           'list' shows those there are and ends\n"

/* Prints the devices that ggml's backends offer here, as a table or, with json, as one object. Returns the exit
 * status. */
int cli_device_list(const struct cli *cli, bool json);

/* Whether the option's value asks for the list. */
bool cli_device_is_list(const char *name);

#endif

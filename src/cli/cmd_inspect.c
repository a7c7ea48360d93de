/* `inspect`: what a GGUF file, a split set or a layer package holds. Headers alone are read. The work is in
 * inspect_*.c.
 */
#include "cli/cli.h"
#include "cli/inspect.h"

#include <stdio.h>

static const char help[] =
    "usage: strata inspect [OPTIONS] FILE|PACKAGE\n"
    "\n"
    "Shows what a GGUF file (or a split set: name any of its parts) or a layer package holds: what model it is, bytes "
    "for\n"
    "each tensor type, class and layer, what a package repeats in every file, all metadata, and every tensor with its\n"
    "type, shape, bytes, offset in its file, class and layer. Headers alone are read.\n"
    "\n"
    "Classes say which part of a package owns a tensor: 'layer' one file per transformer layer, 'embedding' the first\n"
    "stage's input, 'final_norm' and 'output' the last stage's, 'metadata' a tensor that every part carries.\n"
    "Marks: 'tied' token embeddings that are the output head, too; 'MTP' a layer for multi-token prediction (it has\n"
    "nextn tensors); 'replicated' a tensor that every file of a package repeats.\n"
    "\n"
    "  --summary   leave out the lists of metadata and tensors (with --json: arrays as their length)\n"
    "  --json      one JSON document with everything, arrays of metadata included\n"
    "  --help      this text\n"
    "\n"
    "Exit status: 0 shown, 1 the file cannot be read or is damaged, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata inspect model.gguf --summary\n"
    "  strata inspect model-package --json | jq '.tensors[] | select(.layer_index == 3)'\n";

static const char skippy_help[] =
    "usage: skippy-model-package inspect MODEL\n"
    "\n"
    "Lists, as JSON, the tensors of a model (a GGUF file, any part of a split set, or a layer package): name, layer,\n"
    "role, number of the type, bytes. For a split set they stand in the order of its parts.\n";

int cmd_inspect(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {
        {"summary", no_argument, NULL, 's'}, {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    struct inspect v = {0};
    struct strata_errmsg em;
    bool json = cli->skippy, summary = false;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", cli->skippy ? longopts + 2 : longopts, NULL)) != -1) {
        switch (c) {
        case 's': summary = true; break;
        case 'j': json = true; break;
        case 'h': fputs(cli->skippy ? skippy_help : help, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) return cli_usage(cli, cli->skippy ? "name one model" : "name one GGUF file or package");
    strata_err rc = inspect_open(argv[optind], &v, &em);
    if (!rc && json) rc = inspect_print_json(&v, summary, cli->skippy, &em);
    if (!rc && !json) inspect_print_text(&v, summary);
    inspect_close(&v);
    return rc ? cli_fail(cli, json && !cli->skippy, &em) : CLI_OK;
}

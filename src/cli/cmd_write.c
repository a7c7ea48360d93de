/* `strata write`: one slice of a model as one GGUF file. The work is pkg_write_slice's. */
#include "base/progress.h"
#include "cli/cli.h"
#include "package/pkg_write.h"

#include <inttypes.h>
#include <stdio.h>

static const char help[] =
    "usage: strata write [OPTIONS] MODEL.gguf --layers A..B --out FILE\n"
    "\n"
    "Writes layers A to B (B not included) of a GGUF model (name any part of a split one) as one GGUF file that a\n"
    "single stage can load. A range that starts at 0 brings the embeddings along, one that ends with the last layer "
    "the\n"
    "output; the last slice of a model with tied embeddings holds them too.\n"
    "\n"
    "  --layers A..B          the range\n"
    "  --out FILE             the file to write; it is replaced when it is there\n"
    "  --stage-index N        number of the stage, recorded in the file (0)\n"
    "  --include-embeddings   also for a range that does not start at 0\n"
    "  --include-output       also for a range that does not end with the last layer\n"
    "  --manifest FILE        also write what the slice holds, with digests, as JSON\n"
    "  --json                 print that instead of a line\n"
    "  --help                 this text\n"
    "\n"
    "Exit status: 0 written, 1 failed and FILE is as it was, 2 wrong usage.\n"
    "\n"
    "Example:\n"
    "  strata write model.gguf --layers 0..12 --out stage-0.gguf\n"
    "  strata write model.gguf --layers 12..24 --stage-index 1 --out stage-1.gguf\n"
    "  strata validate model.gguf stage-0.gguf stage-1.gguf\n";

static void print_line(const char *path, const json_t *report) {
    const json_t *s = json_array_get(json_object_get(report, "stages"), 0);
    char size[32];
    progress_bytes(size, sizeof size, (uint64_t)json_integer_value(json_object_get(s, "artifact_bytes")));
    printf("%s: layers %lld..%lld, %lld tensors, %s, sha256 %s\n", path,
           (long long)json_integer_value(json_object_get(s, "layer_start")),
           (long long)json_integer_value(json_object_get(s, "layer_end")),
           (long long)json_integer_value(json_object_get(s, "tensor_count")), size,
           json_string_value(json_object_get(s, "sha256")));
}

static int run(const struct cli *cli, const char *source, const struct pkg_write_slice *slice, bool json) {
    const struct pkg_write_how how = {.jobs = 1, .progress = stderr, .cancelled = cli_interrupted};
    struct strata_errmsg em;
    json_t *report = NULL;
    strata_err rc = pkg_write_slice(source, slice, &how, &report, &em);
    if (rc) return cli_fail(cli, json, &em);
    if (json)
        rc = cli_print_json(report, &em);
    else if (!cli->skippy) /* the older tool says nothing here */
        print_line(slice->out, report);
    json_decref(report);
    return rc ? cli_fail(cli, false, &em) : CLI_OK;
}

int cmd_write(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {{"layers", required_argument, NULL, 'l'},
                                             {"out", required_argument, NULL, 'o'},
                                             {"stage-index", required_argument, NULL, 'i'},
                                             {"include-embeddings", no_argument, NULL, 'e'},
                                             {"include-output", no_argument, NULL, 'u'},
                                             {"manifest", required_argument, NULL, 'm'},
                                             {"json", no_argument, NULL, 'j'},
                                             {"help", no_argument, NULL, 'h'},
                                             {0}};
    struct pkg_write_slice slice = {0};
    bool json = false;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 'l':
            if (!cli_parse_range(optarg, &slice.range.first, &slice.range.end))
                return cli_usage(cli, "--layers is FIRST..END with FIRST below END, such as 0..12, not '%s'", optarg);
            break;
        case 'o': slice.out = optarg; break;
        case 'i':
            if (!cli_parse_u32(optarg, 0, INT32_MAX, &slice.stage_index))
                return cli_usage(cli, "--stage-index is a number from 0 on, not '%s'", optarg);
            break;
        case 'e': slice.embeddings = true; break;
        case 'u': slice.output = true; break;
        case 'm': slice.manifest = optarg; break;
        case 'j': json = !cli->skippy; break;
        case 'h': fputs(help, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) return cli_usage(cli, "name one GGUF file");
    if (slice.range.end == 0) return cli_usage(cli, "--layers A..B is needed: which layers");
    if (!slice.out || !*slice.out) return cli_usage(cli, "--out FILE is needed: the file to write");
    cli_catch_interrupt();
    return run(cli, argv[optind], &slice, json);
}

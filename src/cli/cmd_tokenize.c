/*
 * `strata tokenize`: text on stdin, token ids on stdout, one line of ids per line of text.
 * Only a model's metadata is used; of a package only the smallest range is opened.
 */
#include "base/buf.h"
#include "cli/cli.h"
#include "package/pkg_model.h"
#include "text/vocab.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const char usage[] =
    "usage: strata tokenize [--no-specials] [--json] MODEL < TEXT\n"
    "Prints the token ids of each line of TEXT, separated by spaces, one line of ids per line of text.\n"
    "MODEL is a GGUF file or a layer package. A line's LF is no part of it; the last line needs none.\n"
    "\n"
    "  --no-specials  no BOS or EOS, and text that spells a control token stays text\n"
    "  --json         one array with an array of ids per line\n"
    "  --help         this text\n";

#define OUTPUT_MAX ((size_t)1 << 31) /* bytes of one document, or of one line of ids */

struct options {
    const char *model;
    unsigned flags;
    bool json;
};

/* The output of a line is collected first, so that with --json a failure leaves no half document on stdout. */
static strata_err add_line(const struct vocab *v, const struct options *opt, const char *text, size_t len, bool first,
                           struct vocab_ids *ids, struct buf *out, struct strata_errmsg *em) {
    ids->len = 0;
    strata_err rc = vocab_encode(v, text, len, opt->flags, ids, em);
    if (rc == STRATA_OK && opt->json) rc = buf_append_str(out, first ? "[[" : ",\n [", em);
    for (size_t i = 0; i < ids->len && rc == STRATA_OK; i++) {
        char id[16];
        int n = snprintf(id, sizeof id, "%s%d", i == 0 ? "" : opt->json ? "," : " ", ids->id[i]);
        rc = buf_append(out, id, (size_t)n, em);
    }
    return rc == STRATA_OK ? buf_append_str(out, opt->json ? "]" : "\n", em) : rc;
}

static void flush(struct buf *out) {
    fwrite(buf_cstr(out), 1, out->len, stdout);
    buf_clear(out);
}

static strata_err tokenize_stdin(const struct vocab *v, const struct options *opt, struct strata_errmsg *em) {
    struct vocab_ids ids = {0};
    struct buf out;
    char *line = NULL;
    size_t cap = 0;
    bool first = true;
    strata_err rc = STRATA_OK;
    buf_init(&out, OUTPUT_MAX);
    while (!ferror(stdout)) {
        errno = 0;
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0) {
            if (!feof(stdin)) rc = err_sys(em, STRATA_EIO, errno, "reading text from stdin failed");
            break;
        }
        size_t len = (size_t)n;
        if (len > 0 && line[len - 1] == '\n') len--;
        rc = add_line(v, opt, line, len, first, &ids, &out, em);
        if (rc != STRATA_OK) break;
        if (!opt->json) flush(&out);
        first = false;
    }
    if (rc == STRATA_OK && opt->json) rc = buf_append_str(&out, first ? "[]\n" : "]\n", em);
    if (rc == STRATA_OK) flush(&out);
    buf_deinit(&out);
    free(line);
    vocab_ids_deinit(&ids);
    return rc;
}

static strata_err run(const struct options *opt, struct strata_errmsg *em) {
    struct pkg_model *model = NULL;
    struct vocab *v = NULL;
    struct pkg_model_options open = {.flags = PKG_MODEL_METADATA_ONLY};
    strata_err rc = pkg_model_open(opt->model, &open, &model, em);
    if (rc == STRATA_OK) rc = vocab_new(pkg_model_meta(model), &v, em);
    if (rc == STRATA_OK) rc = tokenize_stdin(v, opt, em);
    vocab_free(v);
    pkg_model_free(model);
    return rc;
}

int cmd_tokenize(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {{"no-specials", no_argument, NULL, 'n'},
                                             {"json", no_argument, NULL, 'j'},
                                             {"help", no_argument, NULL, 'h'},
                                             {0}};
    struct options opt = {.flags = VOCAB_ADD_SPECIAL | VOCAB_PARSE_SPECIAL};
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 'n': opt.flags = 0; break;
        case 'j': opt.json = true; break;
        case 'h': fputs(usage, stdout); return cli_finish(cli, CLI_OK);
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc - optind != 1) {
        return cli_usage(cli, argc == optind ? "which model? name a GGUF file or a package"
                                             : "one model is enough; the text comes on stdin");
    }
    opt.model = argv[optind];
    struct strata_errmsg em;
    if (run(&opt, &em) != STRATA_OK) return cli_fail(cli, opt.json, &em);
    return cli_finish(cli, CLI_OK);
}

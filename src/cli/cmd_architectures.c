/*
 * `strata architectures`: which models can be run, from the registry of architectures, and with which types of tensors,
 * by asking ggml. README.md's tables are this command's output (`make docs`).
 */
#include "cli/cli.h"
#include "engine/engine.h"
#include "gguf/gguf_types.h"
#include "model/arch.h"

#include <stdio.h>

static const char usage[] =
    "usage: strata architectures [--json | --markdown]\n"
    "\n"
    "Lists the architectures that can be run (the value of general.architecture in a model's metadata), the models "
    "that\n"
    "each covers, and what they have: experts, layers that look back over a window only, recurrent state, latent\n"
    "attention; then the types that matrices and the KV cache can have.\n"
    "\n"
    "      --json      one JSON document\n"
    "      --markdown  the tables of README.md\n"
    "  -h, --help      this text\n";

enum { MAX_TYPES = 64 };

/* Names of types: of those of a GGUF file that matrices can have, and of the cache's. */
struct types {
    const char *name[MAX_TYPES];
    size_t n;
    const char *kv[ENGINE_KV_COUNT];
};

static strata_err find_types(struct types *t, struct strata_errmsg *em) {
    struct model_backend backend;
    strata_err rc = model_backend_init(&backend, NULL, NULL, 1, em);
    if (rc) return rc;
    for (uint32_t id = 0; id < MAX_TYPES; id++)
        if (gguf_types_tensor_name(id) && model_backend_can_use(&backend, id, MODEL_BACKEND_MULTIPLY, false) &&
            model_backend_can_use(&backend, id, MODEL_BACKEND_LOOK_UP, false))
            t->name[t->n++] = gguf_types_tensor_name(id);
    model_backend_deinit(&backend);
    for (int i = 0; i < ENGINE_KV_COUNT; i++) t->kv[i] = engine_kv_name((enum engine_kv_type)i);
    return STRATA_OK;
}

static const char *has_text(enum arch_has has) {
    return has == ARCH_ALL ? "yes" : has == ARCH_SOME ? "some" : "-";
}

/* ---- for people ---- */

static void print_list(const char *title, const char *const *names, size_t n) {
    printf("%s", title);
    for (size_t i = 0; i < n; i++) printf("%s%s", i ? ", " : " ", names[i]);
    putchar('\n');
}

static void print_text(const struct types *t) {
    printf("%-10s %-7s %-6s %-9s %-6s  %s\n", "name", "experts", "window", "recurrent", "latent", "models");
    for (size_t i = 0; arch_at(i); i++) {
        const struct arch_about *a = &arch_at(i)->about;
        printf("%-10s %-7s %-6s %-9s %-6s  %s%s%s\n", arch_at(i)->name, has_text(a->experts), has_text(a->window),
               has_text(a->recurrent), has_text(a->latent), a->models, a->notes ? "; " : "", a->notes ? a->notes : "");
    }
    putchar('\n');
    print_list("types of matrices:", t->name, t->n);
    print_list("types of the KV cache:", t->kv, ENGINE_KV_COUNT);
}

static void print_markdown_row(const char *title, const char *const *names, size_t n) {
    printf("| %s | %zu |", title, n);
    for (size_t i = 0; i < n; i++) printf("%s%s", i ? ", " : " ", names[i]);
    puts(" |");
}

static void print_markdown(const struct types *t) {
    puts("| architecture | models | experts | window | recurrent | latent attention | notes |\n"
         "|---|---|---|---|---|---|---|");
    for (size_t i = 0; arch_at(i); i++) {
        const struct arch_about *a = &arch_at(i)->about;
        printf("| `%s` | %s | %s | %s | %s | %s | %s |\n", arch_at(i)->name, a->models, has_text(a->experts),
               has_text(a->window), has_text(a->recurrent), has_text(a->latent), a->notes ? a->notes : "");
    }
    puts("\n| types of | | |\n|---|---|---|");
    print_markdown_row("matrices", t->name, t->n);
    print_markdown_row("the KV cache", t->kv, ENGINE_KV_COUNT);
}

/* ---- for programs ---- */

static json_t *list_json(const char *const *names, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_string(names[i]));
    return list;
}

static strata_err print_json(const struct types *t, struct strata_errmsg *em) {
    static const char *const has[] = {[ARCH_NONE] = "none", [ARCH_SOME] = "some", [ARCH_ALL] = "all"};
    json_t *archs = json_array();
    for (size_t i = 0; arch_at(i); i++) {
        const struct arch_about *a = &arch_at(i)->about;
        json_array_append_new(archs,
                              json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s*}", "name", arch_at(i)->name, "models",
                                        a->models, "experts", has[a->experts], "window", has[a->window], "recurrent",
                                        has[a->recurrent], "latent", has[a->latent], "notes", a->notes));
    }
    json_t *root = json_pack("{s:o, s:o, s:o}", "architectures", archs, "matrix_types", list_json(t->name, t->n),
                             "kv_types", list_json(t->kv, ENGINE_KV_COUNT));
    strata_err rc = root ? cli_print_json(root, em) : err_nomem(em, "the list");
    json_decref(root);
    return rc;
}

int cmd_architectures(const struct cli *cli, int argc, char **argv) {
    static const struct option longopts[] = {
        {"json", no_argument, NULL, 'j'}, {"markdown", no_argument, NULL, 'm'}, {"help", no_argument, NULL, 'h'}, {0}};
    struct types t = {.n = 0};
    struct strata_errmsg em;
    bool json = false, markdown = false;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longopts, NULL)) != -1) {
        switch (c) {
        case 'j': json = true; break;
        case 'm': markdown = true; break;
        case 'h': fputs(usage, stdout); return CLI_OK;
        default: return cli_bad_option(cli, c, argv);
        }
    }
    if (argc != optind) return cli_usage(cli, "it takes no argument");
    if (json && markdown) return cli_usage(cli, "--json and --markdown exclude each other");
    strata_err rc = find_types(&t, &em);
    if (!rc && json) rc = print_json(&t, &em);
    if (rc) return cli_fail(cli, json, &em);
    if (markdown) print_markdown(&t);
    if (!json && !markdown) print_text(&t);
    return CLI_OK;
}

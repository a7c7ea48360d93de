/* The option --device. See cli_device.h. Owns nothing. */
#include "cli/cli_device.h"

#include "base/progress.h"
#include "model/model_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cli_device_is_list(const char *name) {
    return name && strcmp(name, "list") == 0;
}

static void print_table(const struct model_device_info *d, size_t n) {
    char free_text[32], total[32];
    int width = 6;
    for (size_t i = 0; i < n; i++)
        if ((int)strlen(d[i].name) > width) width = (int)strlen(d[i].name);
    printf("%-*s  %-14s  %12s  %12s  %s\n", width, "DEVICE", "KIND", "FREE", "MEMORY", "DESCRIPTION");
    for (size_t i = 0; i < n; i++)
        printf("%-*s  %-14s  %12s  %12s  %s\n", width, d[i].name, d[i].kind,
               d[i].total ? progress_bytes(free_text, sizeof free_text, d[i].free) : "?",
               d[i].total ? progress_bytes(total, sizeof total, d[i].total) : "?", d[i].description);
}

static strata_err print_json(const struct model_device_info *d, size_t n, struct strata_errmsg *em) {
    json_t *list = json_array(), *root = json_pack("{s:o}", "devices", list);
    for (size_t i = 0; root && i < n; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:I, s:I}", "name", d[i].name, "kind", d[i].kind,
                                              "description", d[i].description, "free_bytes", (json_int_t)d[i].free,
                                              "total_bytes", (json_int_t)d[i].total));
    bool complete = root && json_array_size(list) == n;
    strata_err rc = complete ? cli_print_json(root, em) : err_nomem(em, "the list of devices");
    json_decref(root);
    return rc;
}

int cli_device_list(const struct cli *cli, bool json) {
    struct model_device_info *devices = NULL;
    struct strata_errmsg em;
    size_t n = 0;
    strata_err rc = model_device_list(STRATA_BACKEND_DIR, &devices, &n, &em);
    if (!rc && json) rc = print_json(devices, n, &em);
    if (!rc && !json) print_table(devices, n);
    free(devices);
    return rc ? cli_fail(cli, json, &em) : CLI_OK;
}

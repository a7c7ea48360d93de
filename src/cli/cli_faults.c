/* Faults for people. See cli_faults.h. */
#include "cli/cli_faults.h"

#include <stdio.h>

enum { SHOWN = 5 };

static bool is_first(const struct pkg_faults *f, size_t i) {
    for (size_t k = 0; k < i; k++)
        if (f->list[k].code == f->list[i].code && f->list[k].severity == f->list[i].severity) return false;
    return true;
}

/* All faults of the code and severity of fault i, which is the first of them. */
static void print_group(const struct pkg_faults *f, size_t i, bool verbose) {
    const struct pkg_fault *first = &f->list[i];
    size_t n = 0;
    printf("%s: %s: %s\n", pkg_severity_name(first->severity), pkg_fault_name(first->code), first->message);
    for (size_t k = i + 1; k < f->n; k++) {
        const struct pkg_fault *x = &f->list[k];
        if (x->code != first->code || x->severity != first->severity) continue;
        n++;
        if (verbose || n < SHOWN) printf("    %s\n", x->message);
    }
    if (!verbose && n >= SHOWN) printf("    ... and %zu more (--verbose lists them)\n", n - SHOWN + 1);
    printf("  what to do: %s\n", pkg_fault_remedy(first->code));
}

static size_t count(const struct pkg_faults *f, enum pkg_severity severity) {
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++) n += f->list[i].severity == severity;
    return n;
}

void cli_faults_print(const struct pkg_faults *f, bool verbose) {
    for (int s = PKG_ERROR; s >= (verbose ? PKG_NOTE : PKG_WARNING); s--)
        for (size_t i = 0; i < f->n; i++)
            if (f->list[i].severity == (enum pkg_severity)s && is_first(f, i)) print_group(f, i, verbose);
    if (f->n_dropped) printf("... and %zu more that were not kept\n", f->n_dropped);
    size_t notes = count(f, PKG_NOTE);
    if (notes && !verbose)
        printf("%zu note%s (--verbose shows %s)\n", notes, notes == 1 ? "" : "s", notes == 1 ? "it" : "them");
}

const char *cli_faults_count(const struct pkg_faults *f, char out[64]) {
    size_t warnings = count(f, PKG_WARNING);
    char errors[32] = "no errors", more[32] = "";
    if (f->n_errors) snprintf(errors, sizeof errors, "%zu error%s", f->n_errors, f->n_errors == 1 ? "" : "s");
    if (warnings) snprintf(more, sizeof more, ", %zu warning%s", warnings, warnings == 1 ? "" : "s");
    snprintf(out, 64, "%s%s", errors, more);
    return out;
}

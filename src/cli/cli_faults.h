/* Lists of faults, as the checking commands show them to people. */
#ifndef CLI_FAULTS_H
#define CLI_FAULTS_H

#include "package/pkg_fault.h"

#include <stdbool.h>

/*
 * Prints a list on stdout, errors first: those of one code together, with what to do about them once. Of each code the
 * first few are shown, and notes are only counted; verbose shows all.
 */
void cli_faults_print(const struct pkg_faults *f, bool verbose);

/* "2 errors, 1 warning" (notes are not mentioned; "no errors" without either). Returns out. */
const char *cli_faults_count(const struct pkg_faults *f, char out[64]);

#endif

/* A folder for all tests of a program, and cmocka's group fixtures that make and remove it. */
#ifndef TEST_FOLDER_H
#define TEST_FOLDER_H

#include "tmp_folder.h"

static struct tmp_folder folder;

static inline int make_folder(void **state) {
    (void)state;
    tmp_folder_make(&folder);
    return 0;
}

static inline int remove_folder(void **state) {
    (void)state;
    tmp_folder_remove(folder.path);
    return 0;
}

#endif

/*
 * Makes the n-th allocation, write, flush, rename, ... of the code under test fail.
 *
 * The program is linked with the flags in wrap.flags, so that every such call of Strata's own code goes through
 * inject.c; jansson's and OpenSSL's allocations come here through their hooks. Nothing fails unless it is armed, calls
 * of all threads count as one sequence, and only one plan is armed at a time.
 */
#ifndef INJECT_H
#define INJECT_H

#include <stdbool.h>
#include <stddef.h>

enum fault {
    FAULT_NONE,
    FAULT_ALLOC,  /* malloc and its kin: ENOMEM */
    FAULT_WRITE,  /* write, pwrite: ENOSPC */
    FAULT_SYNC,   /* fsync, fdatasync: EIO */
    FAULT_RENAME, /* rename: EIO */
    FAULT_OPEN,   /* open, openat, mkstemp, mkdir, opendir, fdopendir: EMFILE */
    FAULT_MAP,    /* mmap: ENOMEM; fstat: EIO */
    FAULT_READ,   /* read, pread, readdir: EIO */
    FAULT_CLOSE,  /* close: EIO, the descriptor is gone all the same */
    FAULT_THREAD, /* pthread_create: EAGAIN */
    FAULT_KINDS
};

struct inject_plan {
    enum fault kind;
    unsigned long at; /* the call that fails, counted from 1 */
    bool sticky;      /* all later ones too; of a write that begins this, half still gets through */
    bool crash;       /* the process ends there instead, as if killed */
    /* Of every call, whatever its kind: */
    size_t short_bytes; /* reads and writes move at most that many bytes; 0: no limit */
    bool interrupt;     /* every second read or write is interrupted first */
};

enum { INJECT_CRASH_STATUS = 77 };

/* Before anything else in main. */
void inject_init(void);
void inject_arm(const struct inject_plan *plan);
/* Returns how often a call failed since inject_arm. */
unsigned long inject_disarm(void);
const char *inject_name(enum fault kind);

/* Maps made and not undone by the code under test, since the program began. */
long inject_live_maps(void);

/*
 * Between these two, notes whether files are flushed before they are renamed, and folders before the rename to `last`
 * (a file name). The result names the first offence, or is NULL.
 */
void inject_watch(const char *last);
const char *inject_watched(void);

#endif

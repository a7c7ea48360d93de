/* The wrappers behind inject.h. Owns the armed plan, the count of calls, and the notes of inject_watch. */
#include "inject.h"

#include "base/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct inject_plan plan;
static atomic_bool armed;
static atomic_ulong calls, failures, moves;
static atomic_long live_maps;

/* Whether this call is to fail. */
static bool hit(enum fault kind) {
    if (!atomic_load(&armed) || plan.kind != kind) return false;
    unsigned long n = atomic_fetch_add(&calls, 1) + 1;
    if (n != plan.at && !(plan.sticky && n > plan.at)) return false;
    if (plan.crash) _exit(INJECT_CRASH_STATUS);
    atomic_fetch_add(&failures, 1);
    return true;
}

static bool failed(enum fault kind, int errnum) {
    if (!hit(kind)) return false;
    errno = errnum;
    return true;
}

/* How many bytes a read or write may move; 0 when it is interrupted instead. */
static size_t allowed(size_t n) {
    if (!atomic_load(&armed)) return n;
    if (plan.interrupt && atomic_fetch_add(&moves, 1) % 2 == 0) {
        errno = EINTR;
        return 0;
    }
    return plan.short_bytes && plan.short_bytes < n ? plan.short_bytes : n;
}

/* ---- the order of flushes and renames ---- */

enum { MAX_DIRTY = 4096 };

struct place {
    dev_t dev;
    ino_t ino;
};

static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static const char *watch_last; /* NULL: not watching */
static char watch_offence[512];
static struct place dirty[MAX_DIRTY];
static size_t n_dirty;

static size_t find_dirty(const struct stat *st) {
    size_t i = 0;
    while (i < n_dirty && (dirty[i].dev != st->st_dev || dirty[i].ino != st->st_ino)) i++;
    return i;
}

static void mark(const struct stat *st, bool is_dirty) {
    size_t i = find_dirty(st);
    if (is_dirty && i == n_dirty && n_dirty < MAX_DIRTY)
        dirty[n_dirty++] = (struct place){st->st_dev, st->st_ino};
    else if (!is_dirty && i < n_dirty)
        dirty[i] = dirty[--n_dirty];
}

int __real_fstat(int fd, struct stat *st);

static void watch_fd(int fd, bool is_dirty) {
    struct stat st;
    if (!watch_last || __real_fstat(fd, &st) != 0) return;
    pthread_mutex_lock(&watch_lock);
    mark(&st, is_dirty);
    pthread_mutex_unlock(&watch_lock);
}

static void offend(const char *what, const char *path) {
    if (!watch_offence[0]) snprintf(watch_offence, sizeof watch_offence, "%s: %.400s", what, path);
}

static void watch_rename(const char *from, const char *to) {
    struct stat file, folder;
    char dir[PATH_MAX_LEN];
    if (!watch_last || stat(from, &file) != 0) return;
    pthread_mutex_lock(&watch_lock);
    if (find_dirty(&file) < n_dirty) offend("renamed before it was flushed", to);
    bool last = strcmp(path_basename(to), watch_last) == 0;
    if (last && n_dirty > 0) offend("something is not on the disk yet at the rename to", to);
    if (path_dirname(dir, sizeof dir, to, NULL) == 0 && stat(dir, &folder) == 0) mark(&folder, true);
    pthread_mutex_unlock(&watch_lock);
}

void inject_watch(const char *last) {
    n_dirty = 0;
    watch_offence[0] = '\0';
    watch_last = last;
}

const char *inject_watched(void) {
    if (n_dirty > 0) offend("something was never flushed", "the end");
    watch_last = NULL;
    return watch_offence[0] ? watch_offence : NULL;
}

/* ---- arming ---- */

void inject_arm(const struct inject_plan *p) {
    plan = *p;
    atomic_store(&calls, 0);
    atomic_store(&failures, 0);
    atomic_store(&moves, 0);
    atomic_store(&armed, true);
}

unsigned long inject_disarm(void) {
    atomic_store(&armed, false);
    return atomic_load(&failures);
}

long inject_live_maps(void) {
    return atomic_load(&live_maps);
}

const char *inject_name(enum fault kind) {
    static const char *const names[FAULT_KINDS] = {"none", "alloc", "write", "sync",  "rename",
                                                   "open", "map",   "read",  "close", "thread"};
    return names[kind];
}

/* ---- memory ---- */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_reallocarray(void *p, size_t n, size_t size);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
int __real_posix_memalign(void **out, size_t align, size_t n);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);

void *__wrap_malloc(size_t n) {
    return failed(FAULT_ALLOC, ENOMEM) ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size) {
    return failed(FAULT_ALLOC, ENOMEM) ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n) {
    return failed(FAULT_ALLOC, ENOMEM) ? NULL : __real_realloc(p, n);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size) {
    return failed(FAULT_ALLOC, ENOMEM) ? NULL : __real_reallocarray(p, n, size);
}

char *__wrap_strdup(const char *s) {
    return failed(FAULT_ALLOC, ENOMEM) ? NULL : __real_strdup(s);
}

char *__wrap_strndup(const char *s, size_t n) {
    return failed(FAULT_ALLOC, ENOMEM) ? NULL : __real_strndup(s, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n) {
    return failed(FAULT_ALLOC, ENOMEM) ? NULL : __real_aligned_alloc(align, n);
}

int __wrap_posix_memalign(void **out, size_t align, size_t n) {
    return hit(FAULT_ALLOC) ? ENOMEM : __real_posix_memalign(out, align, n);
}

static void *openssl_malloc(size_t n, const char *file, int line) {
    (void)file;
    (void)line;
    return __wrap_malloc(n);
}

static void *openssl_realloc(void *p, size_t n, const char *file, int line) {
    (void)file;
    (void)line;
    return __wrap_realloc(p, n);
}

static void openssl_free(void *p, const char *file, int line) {
    (void)file;
    (void)line;
    free(p);
}

void inject_init(void) {
    json_set_alloc_funcs(__wrap_malloc, free);
    if (!CRYPTO_set_mem_functions(openssl_malloc, openssl_realloc, openssl_free)) {
        fprintf(stderr, "OpenSSL does not take our allocator\n");
        exit(1);
    }
}

/* ---- files ---- */

ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __real_read(int fd, void *p, size_t n);
ssize_t __real_pread(int fd, void *p, size_t n, off_t at);
int __real_fsync(int fd);
int __real_fdatasync(int fd);
int __real_rename(const char *from, const char *to);
int __real_close(int fd);
int __real_open(const char *path, int flags, ...);
int __real_openat(int dir, const char *path, int flags, ...);
int __real_mkstemp(char *name);
int __real_mkdir(const char *path, mode_t mode);
DIR *__real_opendir(const char *path);
DIR *__real_fdopendir(int fd);
struct dirent *__real_readdir(DIR *d);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t n);
int __real_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);

ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_read(int fd, void *p, size_t n);
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at);
int __wrap_fsync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_close(int fd);
int __wrap_open(const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...);
int __wrap_mkstemp(char *name);
int __wrap_mkdir(const char *path, mode_t mode);
DIR *__wrap_opendir(const char *path);
DIR *__wrap_fdopendir(int fd);
struct dirent *__wrap_readdir(DIR *d);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __wrap_munmap(void *at, size_t n);
int __wrap_fstat(int fd, struct stat *st);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);

/* The write on which the disk gets full takes what still fits. *n becomes what may be written; 0: it failed. */
static bool write_limit(size_t *n) {
    bool first = plan.sticky && atomic_load(&failures) == 0;
    if (hit(FAULT_WRITE)) {
        *n = first ? *n / 2 : 0;
        errno = ENOSPC;
        return *n > 0;
    }
    size_t want = *n;
    *n = allowed(want);
    return want == 0 || *n > 0;
}

ssize_t __wrap_write(int fd, const void *p, size_t n) {
    if (!write_limit(&n)) return -1;
    watch_fd(fd, true);
    return __real_write(fd, p, n);
}

ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at) {
    if (!write_limit(&n)) return -1;
    watch_fd(fd, true);
    return __real_pwrite(fd, p, n, at);
}

ssize_t __wrap_read(int fd, void *p, size_t n) {
    size_t m;
    if (failed(FAULT_READ, EIO) || ((m = allowed(n)) == 0 && n > 0)) return -1;
    return __real_read(fd, p, m);
}

ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at) {
    size_t m;
    if (failed(FAULT_READ, EIO) || ((m = allowed(n)) == 0 && n > 0)) return -1;
    return __real_pread(fd, p, m, at);
}

int __wrap_fsync(int fd) {
    if (failed(FAULT_SYNC, EIO)) return -1;
    watch_fd(fd, false);
    return __real_fsync(fd);
}

int __wrap_fdatasync(int fd) {
    if (failed(FAULT_SYNC, EIO)) return -1;
    watch_fd(fd, false);
    return __real_fdatasync(fd);
}

int __wrap_rename(const char *from, const char *to) {
    if (failed(FAULT_RENAME, EIO)) return -1;
    watch_rename(from, to);
    return __real_rename(from, to);
}

int __wrap_close(int fd) {
    bool bad = hit(FAULT_CLOSE);
    int rc = __real_close(fd);
    if (!bad) return rc;
    errno = EIO;
    return -1;
}

/* The third argument of open is there only when a file may be made. */
static bool has_mode(int flags) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

int __wrap_open(const char *path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    mode_t mode = has_mode(flags) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return failed(FAULT_OPEN, EMFILE) ? -1 : __real_open(path, flags, mode);
}

int __wrap_openat(int dir, const char *path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    mode_t mode = has_mode(flags) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return failed(FAULT_OPEN, EMFILE) ? -1 : __real_openat(dir, path, flags, mode);
}

int __wrap_mkstemp(char *name) {
    return failed(FAULT_OPEN, EMFILE) ? -1 : __real_mkstemp(name);
}

int __wrap_mkdir(const char *path, mode_t mode) {
    return failed(FAULT_OPEN, EMFILE) ? -1 : __real_mkdir(path, mode);
}

DIR *__wrap_opendir(const char *path) {
    return failed(FAULT_OPEN, EMFILE) ? NULL : __real_opendir(path);
}

DIR *__wrap_fdopendir(int fd) {
    return failed(FAULT_OPEN, EMFILE) ? NULL : __real_fdopendir(fd);
}

struct dirent *__wrap_readdir(DIR *d) {
    return failed(FAULT_READ, EIO) ? NULL : __real_readdir(d);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    if (failed(FAULT_MAP, ENOMEM)) return MAP_FAILED;
    void *p = __real_mmap(at, n, prot, flags, fd, offset);
    if (p != MAP_FAILED) atomic_fetch_add(&live_maps, 1);
    return p;
}

int __wrap_munmap(void *at, size_t n) {
    int rc = __real_munmap(at, n);
    if (rc == 0) atomic_fetch_sub(&live_maps, 1);
    return rc;
}

int __wrap_fstat(int fd, struct stat *st) {
    return failed(FAULT_MAP, EIO) ? -1 : __real_fstat(fd, st);
}

int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*fn)(void *), void *arg) {
    return hit(FAULT_THREAD) ? EAGAIN : __real_pthread_create(id, attr, fn, arg);
}

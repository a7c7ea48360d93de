/* Files. See file.h. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

static strata_err regular_size(int fd, const char *name, size_t *size, struct strata_errmsg *em) {
    struct stat st;
    if (fstat(fd, &st) != 0) return err_sys(em, STRATA_EIO, errno, "cannot stat %s", name);
    if (!S_ISREG(st.st_mode)) return err_set(em, STRATA_EINVAL, "%s is not a regular file", name);
    *size = (size_t)st.st_size;
    return STRATA_OK;
}

static strata_err open_regular(const char *path, int *fd_out, size_t *size, struct strata_errmsg *em) {
    /* O_NONBLOCK: opening a FIFO by mistake must not hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return err_sys(em, errno == ENOENT ? STRATA_ENOENT : STRATA_EIO, errno, "cannot open %s", path);
    strata_err rc = regular_size(fd, path, size, em);
    if (rc)
        close(fd);
    else
        *fd_out = fd;
    return rc;
}

strata_err file_map_fd(int fd, const char *name, struct file_map *out, struct strata_errmsg *em) {
    size_t size;
    void *data = NULL;
    strata_err rc = regular_size(fd, name, &size, em);
    if (rc) return rc;
    if (size > 0) data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return err_sys(em, STRATA_EIO, errno, "cannot map %s", name);
    *out = (struct file_map){.data = data, .size = size};
    return STRATA_OK;
}

strata_err file_map_open(const char *path, struct file_map *out, struct strata_errmsg *em) {
    int fd;
    size_t size;
    strata_err rc = open_regular(path, &fd, &size, em);
    if (rc) return rc;
    rc = file_map_fd(fd, path, out, em);
    close(fd);
    return rc;
}

/* madvise wants whole pages: those that hold any byte of the range. */
static int advise(const void *at, size_t len, int advice) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at & ~(page - 1);
    return madvise((void *)from, (uintptr_t)at + len - from, advice);
}

strata_err file_map_fetch(const void *at, size_t len, const char *name, struct strata_errmsg *em) {
    while (len > 0 && advise(at, len, MADV_POPULATE_READ) != 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        if (errno == EFAULT || errno == EHWPOISON)
            return err_set(em, STRATA_EIO, "%s cannot be read: the disk failed, or the file was cut short", name);
        break; /* EINVAL on older kernels */
    }
    return STRATA_OK;
}

void file_map_ahead(const void *at, size_t len) {
    /* Asking for what is there already costs more than finding that out. */
    unsigned char resident = 0;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at & ~(page - 1);
    if (len == 0 || (mincore((void *)from, 1, &resident) == 0 && (resident & 1))) return;
    (void)advise(at, len, MADV_WILLNEED);
}

void file_map_drop(const void *at, size_t len) {
    /* Advice only: if the system declines, the pages simply stay. */
    if (len > 0) (void)advise(at, len, MADV_DONTNEED);
}

void file_map_close(struct file_map *map) {
    if (map && map->data) munmap((void *)(uintptr_t)map->data, map->size);
    if (map) *map = (struct file_map){0};
}

strata_err file_read_all(const char *path, size_t max, struct buf *out, struct strata_errmsg *em) {
    int fd;
    size_t size;
    strata_err rc = open_regular(path, &fd, &size, em);
    if (rc) return rc;
    if (size > max) {
        rc = err_set(em, STRATA_ELIMIT, "%s has %zu bytes; at most %zu are accepted", path, size, max);
        goto out;
    }
    char *dst = buf_reserve(out, size, em);
    if (!dst) {
        rc = em ? em->code : STRATA_ENOMEM;
        goto out;
    }
    size_t got = 0;
    while (got < size) {
        ssize_t n = read(fd, dst + got, size - got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            rc = err_sys(em, STRATA_EIO, errno, "cannot read %s", path);
            goto out;
        }
        if (n == 0) {
            rc = err_set(em, STRATA_EIO, "%s became shorter while it was read", path);
            goto out;
        }
        got += (size_t)n;
    }
    out->len += size;
out:
    close(fd);
    return rc;
}

strata_err file_atomic_begin(struct file_atomic *f, const char *path, unsigned mode, struct strata_errmsg *em) {
    f->fd = -1;
    f->mode = mode;
    int n = snprintf(f->path, sizeof f->path, "%s", path);
    int m = snprintf(f->tmp, sizeof f->tmp, "%s.tmp-XXXXXX", path);
    if (n < 0 || m < 0 || (size_t)m >= sizeof f->tmp) {
        f->tmp[0] = '\0';
        return err_set(em, STRATA_ELIMIT, "path too long: %.200s", path);
    }
    f->fd = mkstemp(f->tmp);
    if (f->fd < 0) {
        f->tmp[0] = '\0';
        return err_sys(em, STRATA_EIO, errno, "cannot create a file beside %s", path);
    }
    fcntl(f->fd, F_SETFD, FD_CLOEXEC);
    return STRATA_OK;
}

strata_err file_atomic_write(struct file_atomic *f, const void *data, size_t len, struct strata_errmsg *em) {
    const char *p = data;
    while (len > 0) {
        ssize_t n = write(f->fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_sys(em, STRATA_EIO, errno, "cannot write %s", f->path);
        p += n;
        len -= (size_t)n;
    }
    return STRATA_OK;
}

/* A rename is durable only once the folder that holds the name is flushed. */
static strata_err flush_folder(const char *path, struct strata_errmsg *em) {
    char dir[PATH_MAX_LEN];
    strata_err rc = path_dirname(dir, sizeof dir, path, em);
    if (rc) return rc;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return err_sys(em, STRATA_EIO, errno, "cannot open folder %s", dir);
    /* Some file systems cannot flush a folder and say EINVAL; the rename itself has happened. */
    if (fsync(fd) != 0 && errno != EINVAL) rc = err_sys(em, STRATA_EIO, errno, "cannot flush folder %s", dir);
    close(fd);
    return rc;
}

strata_err file_atomic_commit(struct file_atomic *f, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    if (fchmod(f->fd, f->mode) != 0 || fsync(f->fd) != 0) {
        rc = err_sys(em, STRATA_EIO, errno, "cannot flush %s", f->path);
        goto out;
    }
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) != 0) {
        rc = err_sys(em, STRATA_EIO, errno, "cannot finish %s", f->path);
        goto out;
    }
    if (rename(f->tmp, f->path) != 0) {
        rc = err_sys(em, STRATA_EIO, errno, "cannot rename %s", f->path);
        goto out;
    }
    f->tmp[0] = '\0';
    rc = flush_folder(f->path, em);
out:
    file_atomic_abort(f);
    return rc;
}

void file_atomic_abort(struct file_atomic *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    if (f->tmp[0]) unlink(f->tmp);
    f->tmp[0] = '\0';
}

strata_err file_write_all(const char *path, const void *data, size_t len, unsigned mode, struct strata_errmsg *em) {
    struct file_atomic f;
    strata_err rc = file_atomic_begin(&f, path, mode, em);
    if (rc) return rc;
    rc = file_atomic_write(&f, data, len, em);
    if (!rc) rc = file_atomic_commit(&f, em);
    file_atomic_abort(&f);
    return rc;
}

strata_err file_mkdirs(const char *path, unsigned mode, struct strata_errmsg *em) {
    char part[PATH_MAX_LEN];
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof part) return err_set(em, STRATA_EINVAL, "bad folder name: '%.200s'", path);
    memcpy(part, path, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (part[i] != '/' && part[i] != '\0') continue;
        char keep = part[i];
        part[i] = '\0';
        if (mkdir(part, mode) != 0 && errno != EEXIST)
            return err_sys(em, STRATA_EIO, errno, "cannot create folder %s", part);
        part[i] = keep;
    }
    if (!file_is_dir(path)) return err_set(em, STRATA_EIO, "%s exists and is not a folder", path);
    return STRATA_OK;
}

bool file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool file_is_regular(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

strata_err file_dir_next(DIR *d, const char *path, const struct dirent **out, struct strata_errmsg *em) {
    errno = 0;
    const struct dirent *e = readdir(d);
    if (!e && errno) return err_sys(em, STRATA_EIO, errno, "cannot read folder %s", path);
    *out = e;
    return STRATA_OK;
}

strata_err file_dir_is_empty(const char *path, bool *empty, struct strata_errmsg *em) {
    DIR *d = opendir(path);
    if (!d && errno == ENOENT) {
        *empty = true;
        return STRATA_OK;
    }
    if (!d) return err_sys(em, STRATA_EIO, errno, "cannot read folder %s", path);
    const struct dirent *e = NULL;
    bool found = false;
    strata_err rc = file_dir_next(d, path, &e, em);
    while (!rc && e && !found) {
        found = strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
        rc = file_dir_next(d, path, &e, em);
    }
    closedir(d);
    if (!rc) *empty = !found;
    return rc;
}

/* Runs the publisher's program. See pkg_hook.h. Owns the child until it has ended. */
#include "package/pkg_hook.h"

#include "base/path.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char path_var[] = "SKIPPY_PACKAGE_ARTIFACT_PATH=";
static const char relative_var[] = "SKIPPY_PACKAGE_ARTIFACT_RELATIVE_PATH=";

extern char **environ;

static bool is_ours(const char *var) {
    return strncmp(var, path_var, sizeof path_var - 1) == 0 || strncmp(var, relative_var, sizeof relative_var - 1) == 0;
}

/* The environment with our two variables; the caller frees the array alone. */
static char **make_environment(char *path, char *relative) {
    size_t n = 0, k = 0;
    while (environ[n]) n++;
    char **env = calloc(n + 3, sizeof *env);
    if (!env) return NULL;
    for (size_t i = 0; i < n; i++)
        if (!is_ours(environ[i])) env[k++] = environ[i];
    env[k++] = path;
    env[k++] = relative;
    return env;
}

static strata_err start(const char *program, char **env, pid_t *pid, struct strata_errmsg *em) {
    posix_spawn_file_actions_t files;
    char *argv[] = {(char *)(uintptr_t)program, NULL};
    int e = posix_spawn_file_actions_init(&files);
    if (e) return err_sys(em, STRATA_ENOMEM, e, "cannot run %s", program);
    /* Our stdout carries the result alone. */
    e = posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    if (!e) e = posix_spawn(pid, program, &files, NULL, argv, env);
    posix_spawn_file_actions_destroy(&files);
    return e ? err_sys(em, e == ENOENT ? STRATA_ENOENT : STRATA_EIO, e, "cannot run %s", program) : STRATA_OK;
}

/* An upload may take hours, so there is no deadline but the user's patience, asked for every quarter of a second. */
static strata_err await(pid_t pid, bool (*cancelled)(void), int *status, struct strata_errmsg *em) {
    bool told = false;
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    while (fd >= 0 && !told) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int n = poll(&p, 1, 250);
        if (n > 0 || (n < 0 && errno != EINTR)) break;
        told = cancelled && cancelled();
        if (told) kill(pid, SIGTERM);
    }
    if (fd >= 0) close(fd);
    while (waitpid(pid, status, 0) < 0)
        if (errno != EINTR) return err_sys(em, STRATA_EIO, errno, "cannot wait for the after-artifact command");
    return told ? err_set(em, STRATA_ECANCELLED, "interrupted") : STRATA_OK;
}

strata_err pkg_hook_run(const char *program, const char *dir, const char *relative, bool (*cancelled)(void),
                        struct strata_errmsg *em) {
    char real[PATH_MAX_LEN], path[2 * PATH_MAX_LEN + sizeof path_var], rel[PATH_MAX_LEN + sizeof relative_var];
    pid_t pid;
    int status;
    if (!realpath(dir, real)) return err_sys(em, STRATA_EIO, errno, "cannot resolve %s", dir);
    snprintf(path, sizeof path, "%s%s/%s", path_var, real, relative);
    snprintf(rel, sizeof rel, "%s%s", relative_var, relative);
    char **env = make_environment(path, rel);
    if (!env) return err_nomem(em, "an environment");
    strata_err rc = start(program, env, &pid, em);
    free(env);
    if (!rc) rc = await(pid, cancelled, &status, em);
    if (rc) return rc;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return STRATA_OK;
    return err_set(em, STRATA_EIO, "%s failed for %s with %s %d: see what it printed, then go on with --resume",
                   program, relative, WIFEXITED(status) ? "status" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

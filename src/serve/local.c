/* Local stages. See local.h. Owns the child processes, the pipes to them and the keys. */
#include "serve/local.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/jsonx.h"
#include "wire/wire_msg.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { START_MS = 20000, STOP_MS = 4000, LINE_MAX_BYTES = 4096, MAX_ENV = 4096 };

struct child {
    pid_t pid;    /* 0: none */
    int stdin_fd; /* our end of its standard input: closing it ends the child */
    struct wire_key *key;
    struct wire_addr addr;
};

struct local {
    char *program, *package, *device;
    bool over_memory, keep_mapped;
    uint32_t n, n_threads;
    const struct log *log;
    struct wire_key *key;
    struct wire_trust trust;
    struct child *children;
    int abort_fd;
    bool prepared; /* all children ran once */
};

const struct wire_key *local_key(const struct local *l) {
    return l->key;
}

const struct wire_trust *local_trust(const struct local *l) {
    return &l->trust;
}

/* ---- ending ---- */

/* Waits for a child to end; false at the deadline. */
static bool wait_exit(pid_t pid, uint64_t deadline_ns) {
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    bool ended = false;
    while (fd >= 0 && !ended) {
        uint64_t now = clock_now_ns();
        if (now >= deadline_ns) break;
        ended = poll(&p, 1, (int)((deadline_ns - now) / CLOCK_NS_PER_MS) + 1) == 1;
    }
    if (fd >= 0) close(fd);
    return ended;
}

/* Closes a child's input, and reaps it by the deadline or by force. */
static void end_child(struct child *c, uint64_t deadline_ns) {
    if (c->stdin_fd >= 0) close(c->stdin_fd);
    c->stdin_fd = -1;
    if (c->pid <= 0) return;
    if (!wait_exit(c->pid, deadline_ns)) kill(c->pid, SIGKILL);
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    c->pid = 0;
}

static void end_all(struct local *l, uint32_t max_ms) {
    uint64_t deadline = clock_now_ns() + max_ms * CLOCK_NS_PER_MS;
    /* All hear it first, so that they end side by side. */
    for (uint32_t i = 0; l->children && i < l->n; i++) {
        if (l->children[i].stdin_fd >= 0) close(l->children[i].stdin_fd);
        l->children[i].stdin_fd = -1;
    }
    for (uint32_t i = 0; l->children && i < l->n; i++) end_child(&l->children[i], deadline);
}

/* ---- the private folder of one start ---- */

static void folder_remove(const char *dir) {
    static const char *const names[] = {"key.pem", "cert.pem", "trusted"};
    char path[PATH_MAX_LEN];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (path_join(path, sizeof path, dir, names[i], NULL) == STRATA_OK) unlink(path);
    rmdir(dir);
}

static strata_err folder_make(const struct local *l, const struct child *c, char *dir, size_t cap,
                              struct strata_errmsg *em) {
    const char *tmp = getenv("TMPDIR");
    struct wire_trust trust = {0};
    strata_err rc = path_join(dir, cap, tmp && tmp[0] == '/' ? tmp : "/tmp", "strata-XXXXXX", em);
    if (rc) return rc;
    if (!mkdtemp(dir)) return err_sys(em, STRATA_EIO, errno, "cannot make a private folder %s", dir);
    rc = wire_trust_add(&trust, &l->key->pub, "coordinator", em);
    if (!rc) rc = wire_trust_save(dir, &trust, em);
    if (!rc) rc = wire_key_save(c->key, dir, em);
    wire_trust_deinit(&trust);
    if (rc) folder_remove(dir);
    return rc;
}

/* ---- starting ---- */

/* Our environment, with a default for children: their routine messages are ours to tell. */
static char **child_env(void) {
    static const char quiet[] = "STRATA_LOG=warn";
    extern char **environ;
    size_t n = 0, out = 0;
    while (n < MAX_ENV && environ[n]) n++;
    char **env = calloc(n + 2, sizeof *env);
    if (!env) return NULL;
    for (size_t i = 0; i < n; i++) env[out++] = environ[i];
    if (!getenv("STRATA_LOG")) env[out++] = (char *)(uintptr_t)quiet;
    return env;
}

static int spawn_with(const char *program, char *const argv[], char *const env[], int in, int out, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    /* This thread blocks every signal; the child must not inherit that. */
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    int rc = posix_spawn(pid, program, &actions, &attr, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    return rc;
}

static strata_err spawn_child(struct local *l, struct child *c, const char *dir, int *out_fd,
                              struct strata_errmsg *em) {
    char threads[16];
    int in[2], out[2];
    snprintf(threads, sizeof threads, "%u", l->n_threads);
    const char *argv[20] = {"strata",    "stage", "--package", l->package,          "--listen", "127.0.0.1:0",
                            "--key-dir", dir,     "--json",    "--exit-with-stdin", "--device", l->device};
    size_t n = 12;
    if (l->n_threads) {
        argv[n++] = "--threads";
        argv[n++] = threads;
    }
    if (l->over_memory) argv[n++] = "--over-memory";
    if (l->keep_mapped) argv[n++] = "--no-repack";
    char **env = child_env();
    if (!env) return err_nomem(em, "an environment");
    int rc = pipe2(in, O_CLOEXEC) == 0 ? 0 : errno;
    if (!rc && pipe2(out, O_CLOEXEC) != 0) {
        rc = errno;
        close(in[0]);
        close(in[1]);
    }
    if (!rc) {
        rc = spawn_with(l->program, (char *const *)(uintptr_t)argv, env, in[0], out[1], &c->pid);
        close(in[0]);
        close(out[1]);
        c->stdin_fd = in[1];
        *out_fd = out[0];
        if (rc) {
            c->pid = 0;
            close(in[1]);
            close(out[0]);
            c->stdin_fd = -1;
        }
    }
    free(env);
    return rc ? err_sys(em, STRATA_EIO, rc, "cannot start a local stage (%s)", l->program) : STRATA_OK;
}

/* Reads one line from the child's output into b, under a deadline; local_abort ends the wait. */
static strata_err read_line(const struct local *l, int fd, struct buf *b, struct strata_errmsg *em) {
    uint64_t deadline = clock_now_ns() + START_MS * CLOCK_NS_PER_MS;
    struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = l->abort_fd, .events = POLLIN}};
    while (!b->len || !memchr(b->data, '\n', b->len)) {
        char chunk[512];
        uint64_t now = clock_now_ns();
        if (now >= deadline) return err_set(em, STRATA_ETIMEOUT, "it did not start within %d s", START_MS / 1000);
        int n = poll(p, 2, (int)((deadline - now) / CLOCK_NS_PER_MS) + 1);
        if (n < 0 && errno != EINTR) return err_sys(em, STRATA_EIO, errno, "waiting for it failed");
        if (n <= 0) continue;
        if (p[1].revents) return err_set(em, STRATA_ECANCELLED, "starting was cancelled");
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return err_set(em, STRATA_EPEER, "it ended at once; its own message is above");
        strata_err rc = buf_append(b, chunk, (size_t)got, em);
        if (rc) return rc;
    }
    return STRATA_OK;
}

static strata_err parse_line(const struct buf *b, struct child *c, struct strata_errmsg *em) {
    json_t *o = NULL;
    const char *addr, *key, *line_end = memchr(b->data, '\n', b->len);
    struct ed25519_pub pub;
    strata_err rc = jsonx_parse(b->data, (size_t)(line_end - b->data), &o, em);
    if (!rc) rc = jsonx_get_str(o, "", "address", true, &addr, em);
    if (!rc) rc = jsonx_get_str(o, "", "key", true, &key, em);
    if (!rc) rc = wire_addr_parse(addr, false, &c->addr, em);
    if (!rc) rc = ed25519_pub_parse(key, &pub, em);
    if (!rc && !ed25519_pub_equal(&pub, &c->key->pub))
        rc = err_set(em, STRATA_EINTERNAL, "it has another key than it was given");
    json_decref(o);
    return rc;
}

static strata_err start_child(struct local *l, uint32_t index, struct strata_errmsg *em) {
    struct child *c = &l->children[index];
    char dir[PATH_MAX_LEN];
    struct buf line;
    int out_fd = -1;
    strata_err rc = folder_make(l, c, dir, sizeof dir, em);
    if (rc) return rc;
    buf_init(&line, LINE_MAX_BYTES);
    rc = spawn_child(l, c, dir, &out_fd, em);
    if (!rc) rc = read_line(l, out_fd, &line, em);
    if (!rc) rc = parse_line(&line, c, em);
    /* From here on the key lives in the two processes alone. */
    folder_remove(dir);
    if (out_fd >= 0) close(out_fd);
    buf_deinit(&line);
    if (rc) {
        end_child(c, clock_now_ns());
        return err_prefix(em, "local stage %u", index + 1);
    }
    log_event(l->log, LOG_LEVEL_DEBUG, "local-stage", "stage=%u pid=%d port=%u", index + 1, (int)c->pid, c->addr.port);
    return STRATA_OK;
}

strata_err local_prepare(void *ctx, struct wire_addr *addrs, struct strata_errmsg *em) {
    struct local *l = ctx;
    strata_err rc = STRATA_OK;
    bool all_ran = l->prepared;
    for (uint32_t i = 0; i < l->n; i++) {
        struct child *c = &l->children[i];
        if (c->pid > 0 && waitpid(c->pid, NULL, WNOHANG) != 0) {
            log_event(l->log, LOG_LEVEL_WARN, "local-stage-ended", "stage=%u pid=%d", i + 1, (int)c->pid);
            c->pid = 0;
        }
        all_ran = all_ran && c->pid > 0;
    }
    if (all_ran) end_all(l, 0);
    for (uint32_t i = 0; i < l->n && !rc; i++) {
        struct child *c = &l->children[i];
        if (c->pid > 0) continue;
        end_child(c, 0);
        rc = start_child(l, i, em);
    }
    for (uint32_t i = 0; i < l->n && !rc; i++) addrs[i] = l->children[i].addr;
    if (!rc) l->prepared = true;
    return rc;
}

void local_abort(void *ctx) {
    struct local *l = ctx;
    uint64_t one = 1;
    ssize_t n = write(l->abort_fd, &one, sizeof one);
    (void)n; /* the counter cannot overflow, and nothing could be done if it did */
}

static strata_err find_program(const struct local_options *opt, char **out, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    if (opt->program) {
        *out = strdup(opt->program);
        return *out ? STRATA_OK : err_nomem(em, "a path");
    }
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return err_sys(em, STRATA_EIO, errno, "cannot find this program's own file");
    path[n] = '\0';
    /* An upgrade may have replaced the file under us; the link itself still opens the running one. */
    bool gone = access(path, X_OK) != 0;
    *out = strdup(gone ? "/proc/self/exe" : path);
    return *out ? STRATA_OK : err_nomem(em, "a path");
}

strata_err local_new(const struct local_options *opt, struct local **out, struct strata_errmsg *em) {
    if (opt->n_stages == 0 || opt->n_stages > WIRE_MSG_STAGES)
        return err_set(em, STRATA_EINVAL, "there can be 1 to %d local stages, not %u", WIRE_MSG_STAGES, opt->n_stages);
    struct local *l = calloc(1, sizeof *l);
    if (!l) return err_nomem(em, "local stages");
    l->n = opt->n_stages;
    l->n_threads = opt->n_threads;
    l->log = opt->log;
    l->abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->package = strdup(opt->package);
    l->device = strdup(opt->device ? opt->device : "cpu");
    l->over_memory = opt->over_memory;
    l->keep_mapped = opt->keep_mapped;
    l->children = calloc(l->n, sizeof *l->children);
    strata_err rc =
        l->abort_fd < 0 || !l->package || !l->device || !l->children ? err_nomem(em, "local stages") : STRATA_OK;
    for (uint32_t i = 0; l->children && i < l->n; i++) l->children[i].stdin_fd = -1;
    if (!rc) rc = find_program(opt, &l->program, em);
    if (!rc) rc = wire_key_generate(&l->key, em);
    for (uint32_t i = 0; i < l->n && !rc; i++) {
        rc = wire_key_generate(&l->children[i].key, em);
        if (!rc) rc = wire_trust_add(&l->trust, &l->children[i].key->pub, NULL, em);
    }
    if (rc)
        local_free(l);
    else
        *out = l;
    return rc;
}

void local_free(struct local *l) {
    if (!l) return;
    end_all(l, STOP_MS);
    for (uint32_t i = 0; l->children && i < l->n; i++) wire_key_free(l->children[i].key);
    free(l->children);
    wire_key_free(l->key);
    wire_trust_deinit(&l->trust);
    if (l->abort_fd >= 0) close(l->abort_fd);
    free(l->program);
    free(l->package);
    free(l->device);
    free(l);
}

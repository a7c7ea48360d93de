/* Sessions in files. See run_session.h. Owns the file's map while it restores. */
#include "cli/run_session.h"

#include "base/file.h"
#include "engine/engine_snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

strata_err run_session_probe(const char *path, struct strata_errmsg *em) {
    struct file_atomic f;
    strata_err rc = file_atomic_begin(&f, path, 0600, em);
    if (!rc) file_atomic_abort(&f);
    return rc ? err_prefix(em, "the session") : STRATA_OK;
}

static strata_err restore(const struct engine_snapshot *s, struct engine *e, const int32_t *ids, uint32_t n,
                          uint32_t *restored, struct strata_errmsg *em) {
    const struct engine_snapshot *from[1] = {s};
    uint32_t least, common = engine_snapshot_common(s, ids, n);
    strata_err rc = engine_snapshot_least(e, from, 1, &least, em);
    if (rc) return rc;
    if (common == n) common--;
    if (common < least) {
        if (common > 0)
            fprintf(
                stderr,
                "session: the first %u of %u positions are in %s, but the model has layers whose state cannot go back "
                "there from %u: computing afresh\n",
                (unsigned)common, (unsigned)n, s->name, (unsigned)s->n_positions);
        else
            fprintf(stderr, "session: the prompt has nothing in common with %s: computing afresh\n", s->name);
        return STRATA_OK;
    }
    rc = engine_snapshot_restore(e, 0, from, 1, common, em);
    if (rc) return rc;
    fprintf(stderr, "session: %u of %u positions restored from %s\n", (unsigned)common, (unsigned)n, s->name);
    *restored = common;
    return STRATA_OK;
}

strata_err run_session_restore(const char *path, struct engine *e, const int32_t *ids, uint32_t n, uint32_t *restored,
                               struct strata_errmsg *em) {
    struct file_map map = {.data = NULL};
    struct engine_snapshot s;
    *restored = 0;
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        fprintf(stderr, "session: %s is new\n", path);
        return STRATA_OK;
    }
    strata_err rc = file_map_open(path, &map, em);
    if (!rc) rc = file_map_fetch(map.data, map.size, path, em);
    if (!rc) rc = engine_snapshot_open(&s, map.data, map.size, path, em);
    if (!rc) rc = restore(&s, e, ids, n, restored, em);
    file_map_close(&map);
    return rc ? err_prefix(em, "the session") : STRATA_OK;
}

strata_err run_session_save(const char *path, const struct engine *e, const int32_t *ids, struct strata_errmsg *em) {
    if (engine_pos(e, 0) == 0) return STRATA_OK; /* interrupted before the first batch */
    strata_err rc = engine_snapshot_save(e, 0, ids, path, em);
    return rc ? err_prefix(em, "the session") : STRATA_OK;
}

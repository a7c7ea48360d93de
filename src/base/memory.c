/* Memory that could be had. See memory.h. Reads the system's small text files; owns nothing. */
#include "base/memory.h"

#include "base/path.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The number of "<key><spaces or colon><number>" in a file of such lines. */
static bool keyed_number(const char *path, const char *key, uint64_t *out) {
    char line[256];
    bool found = false;
    size_t len = strlen(key);
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof line, f))
        found = strncmp(line, key, len) == 0 && (line[len] == ' ' || line[len] == ':') &&
                sscanf(line + len + 1, "%" SCNu64, out) == 1;
    if (f) fclose(f);
    return found;
}

/* A file of one number; false where it says "max". */
static bool lone_number(const char *path, uint64_t *out) {
    FILE *f = fopen(path, "re");
    bool found = f && fscanf(f, "%" SCNu64, out) == 1;
    if (f) fclose(f);
    return found;
}

/* The names that the two versions of control groups have for the same things. */
struct names {
    const char *mount, *limit, *usage, *inactive, *active;
};
static const struct names v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file", "total_active_file"};
static const struct names v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "active_file"};

/* What a group lets its members have beyond what they hold already; UINT64_MAX without a limit. */
static uint64_t left_in_group(const char *dir, const struct names *n) {
    char path[PATH_MAX_LEN + 32];
    uint64_t limit = 0, used = 0, inactive = 0, active = 0;
    snprintf(path, sizeof path, "%s/%s", dir, n->limit);
    if (!lone_number(path, &limit)) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", dir, n->usage);
    if (!lone_number(path, &used)) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    (void)keyed_number(path, n->inactive, &inactive);
    (void)keyed_number(path, n->active, &active);
    uint64_t held = used > inactive ? used - inactive : 0;
    held = held > active ? held - active : 0;
    return limit > held ? limit - held : 0;
}

/* The least of a group and those above it. Groups that are out of sight, as in a container, are passed over. */
static uint64_t left_in_groups(const char *root, const char *group, const struct names *n) {
    char dir[PATH_MAX_LEN];
    uint64_t least = UINT64_MAX;
    int mount = snprintf(dir, sizeof dir, "%s%s", root, n->mount);
    int len = snprintf(dir, sizeof dir, "%s%s%s", root, n->mount, group);
    if (len < 0 || (size_t)len >= sizeof dir) return least;
    for (;;) {
        uint64_t left = left_in_group(dir, n);
        char *slash = strrchr(dir, '/');
        if (left < least) least = left;
        if (!slash || slash < dir + mount) return least;
        *slash = '\0';
    }
}

/* One line of /proc/self/cgroup, "<number>:<controllers>:<group>". */
static uint64_t left_by_line(const char *root, char *line) {
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) return UINT64_MAX;
    *controllers++ = '\0';
    *group++ = '\0';
    group[strcspn(group, "\n")] = '\0';
    if (*controllers == '\0') return left_in_groups(root, group, &v2);
    for (char *save = NULL, *name = strtok_r(controllers, ",", &save); name; name = strtok_r(NULL, ",", &save))
        if (strcmp(name, "memory") == 0) return left_in_groups(root, group, &v1);
    return UINT64_MAX;
}

uint64_t memory_available_below(const char *root) {
    char path[PATH_MAX_LEN], line[PATH_MAX_LEN];
    uint64_t least = UINT64_MAX, kib;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (keyed_number(path, "MemAvailable", &kib) && kib < UINT64_MAX / 1024) least = kib * 1024;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        uint64_t left = left_by_line(root, line);
        if (left < least) least = left;
    }
    if (f) fclose(f);
    return least;
}

uint64_t memory_available(void) {
    return memory_available_below("");
}

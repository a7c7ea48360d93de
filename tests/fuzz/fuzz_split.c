/*
 * Any bytes as the files of a split set. The first byte says how many files there are (1 to 4, bits 0-1), which of them
 * is named to the opener (bits 2-3) and whether the last one is missing (bit 4); then each file as a 16-bit length and
 * that many bytes, the last one taking the rest. Whatever opens is used to the full: every view lies in its shard,
 * every tensor is found under its name, and the inventory counts the same.
 */
#include "gguf/gguf_source.h"
#include "package/pkg_inventory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_FILES = 4 };

static volatile unsigned sink;
static char folder[64];

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

static void name_file(char *out, size_t cap, size_t i, size_t count) {
    snprintf(out, cap, "%s/m-%05zu-of-%05zu.gguf", folder, i + 1, count);
}

static void remove_folder(void) {
    char path[128];
    for (size_t count = 1; count <= MAX_FILES; count++)
        for (size_t i = 0; i < count; i++) {
            name_file(path, sizeof path, i, count);
            unlink(path);
        }
    rmdir(folder);
}

/* One folder a process, in memory where that can be. */
static void make_folder(void) {
    if (folder[0]) return;
    snprintf(folder, sizeof folder, "%s/strata-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    require(mkdtemp(folder) != NULL, "no folder to work in");
    atexit(remove_folder);
}

static void write_file(const char *path, const uint8_t *data, size_t len) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(fd >= 0 && write(fd, data, len) == (ssize_t)len, "a file cannot be written");
    close(fd);
}

static void check_source(const struct gguf_source *s) {
    size_t total = 0;
    for (size_t i = 0; i < gguf_source_shard_count(s); i++) total += gguf_reader_tensor_count(gguf_source_shard(s, i));
    require(total == gguf_source_tensor_count(s), "tensors of the shards do not add up");
    for (size_t i = 0; i < total; i++) {
        size_t shard, len;
        const struct gguf_tensor *t = gguf_source_tensor(s, i, &shard);
        require(shard < gguf_source_shard_count(s), "a tensor lies in no shard");
        const uint8_t *bytes = gguf_source_shard_bytes(s, shard, &len);
        require(t->data >= bytes && t->bytes <= len && (size_t)(t->data - bytes) <= len - t->bytes,
                "a tensor lies outside its shard");
        require(gguf_source_find_tensor(s, t->name) == t, "a tensor is not found under its own name");
        sink += t->data[0] + t->data[t->bytes - 1];
    }
    require(gguf_source_meta(s) == gguf_source_shard(s, 0), "the metadata is not that of the first shard");
}

static void check_inventory(const struct gguf_source *s) {
    struct pkg_inventory inv;
    struct strata_errmsg em;
    uint32_t width = 0;
    require(pkg_inventory_init(&inv, s, &em) == STRATA_OK, "no inventory");
    require(inv.n_tensors == gguf_source_tensor_count(s), "the inventory counts differently");
    require(inv.mtp_layers <= inv.layer_count, "more MTP layers than layers");
    for (size_t i = 0; i < inv.n_tensors; i++) {
        const struct pkg_tensor *x = &inv.tensors[i];
        require(pkg_inventory_find(&inv, x->t->name) == x, "a tensor is not found in the inventory");
        require(x->class != PKG_CLASS_LAYER || x->layer < inv.layer_count, "a layer beyond the last one");
    }
    require(pkg_inventory_width(&inv, &width, &em) != STRATA_OK || width > 0, "a width of 0");
    pkg_inventory_deinit(&inv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct gguf_source *s = NULL;
    struct strata_errmsg em = {0};
    char path[128];
    if (size < 1) return 0;
    make_folder();
    size_t count = (data[0] & 3) + 1u, named = (data[0] >> 2 & 3) % count;
    bool missing = data[0] & 16;
    const uint8_t *p = data + 1, *end = data + size;
    for (size_t i = 0; i < count; i++) {
        size_t len = (size_t)(end - p);
        if (i + 1 < count) {
            size_t want = len >= 2 ? (size_t)(p[0] | p[1] << 8) : 0;
            p += len >= 2 ? 2 : len;
            len = want < (size_t)(end - p) ? want : (size_t)(end - p);
        }
        name_file(path, sizeof path, i, count);
        if (missing && i + 1 == count && count > 1)
            unlink(path);
        else
            write_file(path, p, len);
        p += len;
    }
    name_file(path, sizeof path, named, count);
    strata_err rc = gguf_source_open(path, &s, &em);
    require((rc == STRATA_OK) == (s != NULL), "a result without success, or the reverse");
    require(rc == STRATA_OK || (em.text[0] != '\0' && em.code == rc), "a failure without a message");
    require(rc != STRATA_OK || !missing || count == 1, "a set with a part missing was opened");
    if (s) {
        check_source(s);
        check_inventory(s);
    }
    gguf_source_free(s);
    return 0;
}

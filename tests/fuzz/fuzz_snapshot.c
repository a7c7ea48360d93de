/*
 * Any bytes as a snapshot of a sequence. The first byte says whether digests are put right beforehand, so that what is
 * behind them is reached. Whatever is accepted keeps its promises: layers rise, the rows of every section lie inside
 * the bytes, apart from each other and from the header, and looking at all of them is safe.
 */
#include "engine/engine_snapshot.h"
#include "engine/engine_snapshot_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

static void hash_section(uint8_t *at, const uint8_t *header_sum, uint32_t i, size_t bytes) {
    struct digest *d = NULL;
    struct strata_errmsg em;
    uint8_t number[4];
    snapshot_put32(number, i);
    require(!digest_new(&d, &em) && !digest_update(d, header_sum, DIGEST_BYTES, &em) &&
                !digest_update(d, number, sizeof number, &em) && !digest_update(d, at, bytes, &em) &&
                !digest_final(d, at + bytes, &em),
            "hashing failed");
    digest_free(d);
}

/* Writes the digests where the header says that they are, as far as that is inside the bytes. */
static void put_digests(uint8_t *data, size_t size) {
    struct strata_errmsg em;
    if (size < SNAPSHOT_FIXED) return;
    uint32_t n_tokens = snapshot_get32(data + SNAPSHOT_AT_TOKENS), n = snapshot_get32(data + SNAPSHOT_AT_SECTIONS);
    if (n_tokens > size || n > size) return;
    uint64_t header = snapshot_header_bytes(n_tokens, n);
    if (header + DIGEST_BYTES > size) return;
    require(!digest_of(data, (size_t)header, data + header, &em), "hashing failed");
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *entry = data + SNAPSHOT_FIXED + 4 * (size_t)n_tokens + SNAPSHOT_ENTRY * (size_t)i;
        uint64_t offset = snapshot_get64(entry + SNAPSHOT_ENTRY_OFFSET);
        uint64_t bytes = snapshot_get64(entry + SNAPSHOT_ENTRY_BYTES);
        if (offset < header + DIGEST_BYTES || offset > size || bytes > size) return;
        if (snapshot_pad(bytes) + DIGEST_BYTES > size - offset) return;
        hash_section(data + offset, data + header, i, (size_t)snapshot_pad(bytes));
    }
}

static void look(const struct engine_snapshot *s) {
    struct strata_errmsg em;
    uint64_t end = s->header_bytes + DIGEST_BYTES;
    int32_t few[4] = {0, 1, 2, 3};
    require(engine_snapshot_common(s, few, 4) <= 4, "more tokens in common than there are");
    require(s->n_positions > 0 && s->n_positions <= MODEL_MAX_CTX, "an impossible number of positions");
    for (uint32_t i = 0; i < s->n_sections; i++) {
        struct engine_snapshot_section x = engine_snapshot_section(s, i);
        uint32_t k = s->n_sections;
        uint64_t rows = 0;
        require(x.layer < s->n_layer, "a layer that the model has not");
        require(engine_snapshot_find(s, x.layer, &k) && k == i, "a layer is not found where it is");
        for (int p = 0; p < MODEL_STATE_PLANES; p++) {
            require(x.plane[p].first <= s->n_positions, "rows begin behind their end");
            rows += x.plane[p].row_bytes * (s->n_positions - x.plane[p].first);
        }
        require(x.bytes == rows && x.offset == end, "a section has a gap");
        end += snapshot_pad(x.bytes) + DIGEST_BYTES;
        require(end <= s->len, "a section lies outside the bytes");
        (void)engine_snapshot_check(s, i, &em);
    }
    require(end == s->len, "bytes that belong to nothing");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct engine_snapshot s;
    struct strata_errmsg em;
    if (size == 0) return 0;
    uint8_t *copy = malloc(size); /* its own: reading beyond it is noticed */
    if (!copy) return 0;
    memcpy(copy, data + 1, size - 1);
    if (data[0] & 1) put_digests(copy, size - 1);
    if (!engine_snapshot_open(&s, copy, size - 1, "input", &em)) look(&s);
    free(copy);
    return 0;
}

/*
 * Any bytes as the carrier of a schema-2 package. Byte 0 says how many parts there are (1 to 4, bits 0-1) and how many
 * layers (1 to 4, bits 2-3); four 16-bit numbers are the sizes of the parts in units of 32 bytes; the rest is the
 * carrier. Whatever is accepted keeps its promises: every tensor lies in a part, aligned, within its bounds and alone;
 * and every range selects the parts that hold its tensors, and no others.
 */
#include "package/pkg_carrier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 9, PARTS = 4, ARTIFACTS = PARTS + 2, UNIT = 32, FEW = 64 };

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

/* metadata, up to four parts, a projector: as the manifest's parser would order them. */
static void fill(struct pkg_manifest *m, struct pkg_artifact *a, const uint8_t *data, size_t carrier_bytes) {
    static const char *const ids[PARTS] = {"common", "other", "layer-00000", "layer-00001"};
    size_t parts = (data[0] & 3u) + 1u;
    a[0] = (struct pkg_artifact){
        .role = PKG_ROLE_METADATA, .id = "metadata", .path = "shared/metadata.gguf", .artifact_bytes = carrier_bytes};
    for (size_t i = 0; i < parts; i++)
        a[i + 1] = (struct pkg_artifact){.role = i < 2 ? PKG_ROLE_COMMON : PKG_ROLE_LAYER,
                                         .layer = i < 2 ? 0 : (uint32_t)(i - 2),
                                         .id = ids[i],
                                         .path = ids[i],
                                         .artifact_bytes = UNIT * (data[1 + 2 * i] | (uint64_t)data[2 + 2 * i] << 8)};
    a[parts + 1] =
        (struct pkg_artifact){.role = PKG_ROLE_PROJECTOR, .id = "a-projector", .path = "p", .artifact_bytes = 1 << 20};
    *m = (struct pkg_manifest){
        .schema = 2, .layer_count = (data[0] >> 2 & 3u) + 1u, .artifacts = a, .n_artifacts = parts + 2};
}

static void check_places(const struct pkg_carrier *c, const struct pkg_manifest *m) {
    size_t n = gguf_reader_tensor_count(c->reader);
    for (size_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(c->reader, i);
        const struct pkg_place *p = &c->places[i];
        require(!t->data, "a tensor of the carrier has a payload");
        require(p->artifact > 0 && p->artifact < m->n_artifacts - 1, "a tensor lies in no part");
        require(t->bytes <= m->artifacts[p->artifact].artifact_bytes &&
                    p->offset <= m->artifacts[p->artifact].artifact_bytes - t->bytes,
                "a tensor lies outside its part");
        for (size_t k = 0; k < i && n <= FEW; k++) {
            const struct pkg_place *q = &c->places[k];
            bool apart = q->artifact != p->artifact || q->offset >= p->offset + t->bytes ||
                         p->offset >= q->offset + gguf_reader_tensor(c->reader, k)->bytes;
            require(apart, "two tensors share bytes");
        }
    }
}

static void check_selection(const struct pkg_carrier *c, const struct pkg_manifest *m) {
    struct pkg_select s;
    pkg_select_init(&s, m->layer_count);
    pkg_carrier_note(c, &s);
    for (uint32_t first = 0; first < m->layer_count; first++)
        for (uint32_t end = first + 1; end <= m->layer_count; end++) {
            bool needed[ARTIFACTS] = {false}, holds[ARTIFACTS] = {true};
            s.range = (struct pkg_range){first, end};
            pkg_carrier_select(c, m, &s, needed);
            for (size_t i = 0; i < gguf_reader_tensor_count(c->reader); i++)
                if (pkg_select_tensor(&s, gguf_reader_tensor(c->reader, i)->name)) holds[c->places[i].artifact] = true;
            for (size_t i = 0; i < m->n_artifacts; i++) require(needed[i] == holds[i], "the wrong parts were selected");
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pkg_manifest m;
    struct pkg_artifact artifacts[ARTIFACTS];
    struct gguf_reader *r = NULL;
    struct pkg_carrier c;
    struct pkg_faults faults;
    struct strata_errmsg em;
    if (size < HEAD) return 0;
    fill(&m, artifacts, data, size - HEAD);
    if (gguf_reader_new_header(data + HEAD, size - HEAD, "fuzz", &r, &em) != STRATA_OK) return 0;
    pkg_faults_init(&faults);
    require(pkg_carrier_init(&c, r, &m, &faults, &em) == STRATA_OK, "the check itself failed");
    require((c.reader != NULL) == (faults.n_errors == 0), "a carrier with faults, or none without");
    if (c.reader) {
        check_places(&c, &m);
        check_selection(&c, &m);
        /* The carrier's own header in the place of a part's: whatever comes out, it must be safe. */
        for (size_t i = 1; i + 1 < m.n_artifacts; i++) pkg_carrier_check_part(&c, &m, i, r, &faults);
    }
    pkg_carrier_deinit(&c);
    pkg_faults_deinit(&faults);
    gguf_reader_free(r);
    return 0;
}

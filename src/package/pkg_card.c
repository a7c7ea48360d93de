/* The text of the model card. See pkg_card.h. Pure: a manifest in, Markdown out. */
#include "package/pkg_card.h"

#include "base/path.h"
#include "base/progress.h"
#include "package/pkg_card_md.h"
#include "package/pkg_card_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FILES = 256, MAX_ROWS = 32 };

static void put_sha(struct pkg_card_md *md, const uint8_t sum[DIGEST_BYTES]) {
    char hex[DIGEST_HEX];
    digest_to_hex(sum, DIGEST_BYTES, hex);
    pkg_card_md_put(md, "`%s`", hex);
}

static uint64_t add_up(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b; /* foreign numbers, for a total that is shown */
}

/* Names made up from a file are "local/<stem>": nobody published that. */
static bool is_local(const struct pkg_manifest *m) {
    return strncmp(m->model_id, "local/", 6) == 0;
}

/* ---- head ---- */

static void put_front_matter(struct pkg_card_md *md, const struct pkg_manifest *m) {
    bool projectors = pkg_manifest_shared(m, PKG_ROLE_PROJECTOR) != NULL;
    pkg_card_md_put(md, "---\nlibrary_name: strata\n");
    if (m->source.repo && pkg_card_md_is_repo(m->source.repo))
        pkg_card_md_put(md, "base_model: \"%s\"\nbase_model_relation: quantized\n", m->source.repo);
    /* What a projector adds (images, sound) is not known here. */
    if (!projectors) pkg_card_md_put(md, "pipeline_tag: text-generation\n");
    pkg_card_md_put(md, "tags:\n- gguf\n- layer-package\n- strata\n- skippy\n- mesh-llm\n- distributed-inference\n"
                        "- local-inference\n- openai-compatible\n---\n");
}

static void put_row_text(struct pkg_card_md *md, const char *what, const char *text) {
    if (!text) return;
    pkg_card_md_put(md, "| %s | ", what);
    pkg_card_md_code(md, text);
    pkg_card_md_put(md, " |\n");
}

static void put_row_number(struct pkg_card_md *md, const char *what, uint64_t n) {
    pkg_card_md_put(md, "| %s | ", what);
    pkg_card_md_number(md, n);
    pkg_card_md_put(md, " |\n");
}

static void put_overview(struct pkg_card_md *md, const struct pkg_manifest *m) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->n_artifacts; i++) bytes = add_up(bytes, m->artifacts[i].artifact_bytes);
    pkg_card_md_put(md, "\n# Layer package of ");
    pkg_card_md_code(md, m->model_id);
    pkg_card_md_put(md,
                    "\n\nOne GGUF model, cut so that a machine needs only the files of the layers it runs: %" PRIu32
                    " layers, %zu files, ",
                    m->layer_count, m->n_artifacts + 1);
    pkg_card_md_size(md, bytes);
    pkg_card_md_put(md, ".\n\n| | |\n|---|---|\n");
    put_row_text(md, "Model", m->model_id);
    if (m->source.repo)
        put_row_text(md, "Source repository", m->source.repo);
    else
        pkg_card_md_put(md, "| Source repository | not stated |\n");
    if (m->source.revision)
        put_row_text(md, "Source revision", m->source.revision);
    else
        pkg_card_md_put(md, "| Source revision | not stated |\n");
    put_row_text(md, "Source reference", m->source.canonical_ref);
    put_row_text(md, "Distribution", m->source.distribution_id);
    put_row_number(md, "Layers", m->layer_count);
    if (m->activation_width)
        put_row_number(md, "Activation width", m->activation_width);
    else
        pkg_card_md_put(md, "| Activation width | not stated |\n");
    put_row_text(md, m->schema == 2 ? "Native ABI version" : "Skippy ABI version", m->abi_version);
    put_row_number(md, "Schema version", m->schema);
    if (m->created_at) {
        pkg_card_md_put(md, "| Written | ");
        pkg_card_md_date(md, m->created_at);
        pkg_card_md_put(md, " |\n");
    }
    put_row_text(md, "Package id", m->package_id);
    pkg_card_md_put(md, "| SHA-256 of `%s` | `%s` |\n", PKG_MANIFEST_FILE, m->sha256);
}

/* ---- files ---- */

static void put_source_file(struct pkg_card_md *md, const char *path, bool has_size, uint64_t size,
                            const uint8_t *sha) {
    pkg_card_md_put(md, "| ");
    pkg_card_md_code(md, path);
    pkg_card_md_put(md, " | ");
    if (has_size)
        pkg_card_md_number(md, size);
    else
        pkg_card_md_put(md, "not stated");
    pkg_card_md_put(md, " | ");
    if (sha)
        put_sha(md, sha);
    else
        pkg_card_md_put(md, "not stated");
    pkg_card_md_put(md, " |\n");
}

/* Of a packager's path only the name: its folders are nobody's business. */
static const char *source_name(const struct pkg_source_model *s) {
    if (s->primary_file) return s->primary_file;
    const char *name = s->path ? path_basename(s->path) : "";
    return name[0] ? name : "not stated";
}

static void put_source(struct pkg_card_md *md, const struct pkg_manifest *m) {
    const struct pkg_source_model *s = &m->source;
    pkg_card_md_put(md, "\n## Source files\n\n| File | Bytes | SHA-256 |\n|---|---:|---|\n");
    if (s->n_files == 0) put_source_file(md, source_name(s), false, 0, s->sha256);
    for (size_t i = 0; i < s->n_files && i < MAX_FILES; i++) {
        const struct pkg_source_file *f = &s->files[i];
        /* The field source_model.sha256 is that of the first file. */
        const uint8_t *sha = f->has_sha256 ? f->sha256 : i == 0 ? s->sha256 : NULL;
        put_source_file(md, f->path ? f->path : source_name(s), f->has_size, f->size_bytes, sha);
    }
    if (s->n_files > MAX_FILES)
        pkg_card_md_put(md, "\nand %zu more, listed in the manifest.\n", s->n_files - MAX_FILES);
}

static void put_projectors(struct pkg_card_md *md, const struct pkg_manifest *m) {
    size_t n = 0;
    for (size_t i = 0; i < m->n_artifacts; i++) {
        const struct pkg_artifact *a = &m->artifacts[i];
        if (a->role != PKG_ROLE_PROJECTOR || !a->path || n++ >= MAX_FILES) continue;
        if (n == 1)
            pkg_card_md_put(md, "\n## Projectors\n\nFor multimodal input; the first stage loads the first one.\n\n"
                                "| File | Kind | Bytes | SHA-256 |\n|---|---|---:|---|\n");
        pkg_card_md_put(md, "| ");
        pkg_card_md_code(md, a->path);
        pkg_card_md_put(md, " | ");
        pkg_card_md_code(md, a->kind ? a->kind : "mmproj");
        pkg_card_md_put(md, " | ");
        pkg_card_md_number(md, a->artifact_bytes);
        pkg_card_md_put(md, " | ");
        if (a->has_sha256) put_sha(md, a->sha256);
        pkg_card_md_put(md, " |\n");
    }
    if (n > MAX_FILES) pkg_card_md_put(md, "\nand %zu more, listed in the manifest.\n", n - MAX_FILES);
}

/* ---- parts: a row for each run of files that are alike ---- */

struct run {
    size_t first, end; /* artifacts */
    uint64_t bytes, least, most, tensors;
    bool counted; /* the manifest states numbers of tensors */
};

static struct run run_from(const struct pkg_manifest *m, size_t first, size_t end) {
    struct run r = {.first = first, .end = end, .least = UINT64_MAX, .counted = true};
    for (size_t i = first; i < end; i++) {
        const struct pkg_artifact *a = &m->artifacts[i];
        r.bytes = add_up(r.bytes, a->artifact_bytes);
        r.tensors = add_up(r.tensors, a->tensor_count);
        r.counted = r.counted && a->has_counts;
        if (a->artifact_bytes < r.least) r.least = a->artifact_bytes;
        if (a->artifact_bytes > r.most) r.most = a->artifact_bytes;
    }
    return r;
}

/* Files that differ in a digit of their names do so by bytes: payloads count, where they are stated. */
static bool is_alike(const struct pkg_artifact *a, const struct pkg_artifact *b) {
    if (a->has_counts != b->has_counts) return false;
    if (a->has_counts) return a->tensor_count == b->tensor_count && a->tensor_bytes == b->tensor_bytes;
    return a->artifact_bytes == b->artifact_bytes;
}

/* The end of the run that starts with artifact i: layers alike (or, with `all`, of any kind) count as one. */
static size_t run_end(const struct pkg_manifest *m, size_t i, bool all) {
    const struct pkg_artifact *a = &m->artifacts[i];
    size_t end = i + 1;
    if (a->role != PKG_ROLE_LAYER) return end;
    while (end < m->n_artifacts && m->artifacts[end].role == PKG_ROLE_LAYER && (all || is_alike(&m->artifacts[end], a)))
        end++;
    return end;
}

static void put_run(struct pkg_card_md *md, const struct pkg_manifest *m, const struct run *r) {
    const struct pkg_artifact *a = &m->artifacts[r->first], *last = &m->artifacts[r->end - 1];
    char least[32], most[32];
    pkg_card_md_put(md, "| %s", pkg_role_name(a->role));
    if (a->role == PKG_ROLE_LAYER && a->layer == last->layer) pkg_card_md_put(md, " %" PRIu32, a->layer);
    if (a->role == PKG_ROLE_LAYER && a->layer != last->layer)
        pkg_card_md_put(md, "s %" PRIu32 " to %" PRIu32, a->layer, last->layer);
    pkg_card_md_put(md, " | ");
    if (r->end == r->first + 1 && a->path)
        pkg_card_md_code(md, a->path);
    else
        pkg_card_md_put(md, "%zu files", r->end - r->first);
    pkg_card_md_put(md, " | ");
    if (r->counted) pkg_card_md_number(md, r->tensors);
    pkg_card_md_put(md, " | ");
    pkg_card_md_number(md, r->bytes);
    pkg_card_md_put(md, " | ");
    progress_bytes(least, sizeof least, r->least);
    progress_bytes(most, sizeof most, r->most);
    pkg_card_md_put(md, "%s", least);
    if (strcmp(least, most) != 0) pkg_card_md_put(md, " to %s", most);
    pkg_card_md_put(md, r->end == r->first + 1 ? " |\n" : " each |\n");
}

static void put_parts(struct pkg_card_md *md, const struct pkg_manifest *m) {
    size_t rows = 0;
    for (size_t i = 0; i < m->n_artifacts; i = run_end(m, i, false)) rows++;
    pkg_card_md_put(md,
                    "\n## Files\n\nEach file's size and SHA-256 stand in `%s`.\n\n"
                    "| Part | File | Tensors | Bytes | |\n|---|---|---:|---:|---|\n",
                    PKG_MANIFEST_FILE);
    size_t shown = 0, i = 0;
    for (size_t end; i < m->n_artifacts && shown < MAX_ROWS; i = end, shown++) {
        end = run_end(m, i, rows > MAX_ROWS);
        struct run r = run_from(m, i, end);
        put_run(md, m, &r);
    }
    if (i < m->n_artifacts) pkg_card_md_put(md, "\nand %zu more, listed in the manifest.\n", m->n_artifacts - i);
    if (m->schema == 2)
        pkg_card_md_put(md,
                        "\nA stage that runs the layers A to B needs the metadata and these layers' files, and of the "
                        "common files those\nthat hold a tensor it uses: `%s` lists every tensor's place.\n",
                        "shared/metadata.gguf");
    else
        pkg_card_md_put(md,
                        "\nA stage that runs the layers A to B needs the metadata and these layers' files; the first "
                        "stage the embeddings, too, and\nthe last one the output and, when the model has no output "
                        "tensor of its own, the embeddings.\n");
}

/* ---- what to do with it ---- */

static void put_checks(struct pkg_card_md *md, const struct pkg_manifest *m) {
    const char *name = path_basename(source_name(&m->source));
    if (!pkg_card_md_is_name(name, strlen(name))) name = "SOURCE.gguf";
    pkg_card_md_put(md,
                    "\n## Checking it\n\nIn the folder of the package: by itself, and against the source model.\n\n"
                    "```\nstrata preflight .\nstrata validate-package %s .\n```\n\nor\n\n"
                    "```\nskippy-model-package preflight . --verify-sha256\nskippy-model-package validate-package %s "
                    ".\n```\n",
                    name, name);
}

static void put_running(struct pkg_card_md *md, const struct pkg_manifest *m) {
    pkg_card_md_put(
        md, "\n## Running it\n\nOn one machine, over two processes:\n\n```\nstrata serve . --local-stages %d\n```\n",
        m->layer_count > 1 ? 2 : 1);
    pkg_card_md_put(md,
                    "\nOn several machines, each of which needs `%s`, `shared/` and the files of its own layers:\n\n"
                    "```\nstrata stage --package . --listen 0.0.0.0:9400          # on each machine that holds layers\n"
                    "strata serve . --stage BOX1:9400 --stage BOX2:9400       # on your own\n```\n\n"
                    "`strata plan . --stages N` shows which layers and how many bytes each would load.\n",
                    PKG_MANIFEST_FILE);
}

/* Only what this package gives reason for. */
static void put_notes(struct pkg_card_md *md, const struct pkg_manifest *m) {
    const json_t *policy = m->generation ? json_object_get(m->generation, "policy") : NULL;
    const char *share = json_string_value(json_object_get(policy, "indexshare"));
    bool sideband = share && strcmp(share, "required") == 0;
    if (!sideband && !is_local(m) && m->source.revision) return;
    pkg_card_md_put(md, "\n## Notes\n\n");
    if (sideband)
        pkg_card_md_put(md,
                        "- IndexShare is required: stages hand on, beside the hidden states, which positions the "
                        "attention of the layers before chose\n  (a top-k sideband). A runtime without it cannot run "
                        "this model over several stages.\n");
    if (is_local(m))
        pkg_card_md_put(md,
                        "- The model id was made up from a file name: this package does not say where its model was "
                        "published.\n");
    else if (!m->source.revision)
        pkg_card_md_put(md, "- The package does not say which revision of its source it was made from.\n");
}

strata_err pkg_card_body(const struct pkg_manifest *m, const json_t *validation, struct buf *out,
                         struct strata_errmsg *em) {
    struct pkg_card_md md = {.out = out, .em = em};
    put_overview(&md, m);
    put_source(&md, m);
    put_projectors(&md, m);
    pkg_card_generation(&md, m->generation);
    put_parts(&md, m);
    put_checks(&md, m);
    pkg_card_validation(&md, m, validation);
    put_running(&md, m);
    put_notes(&md, m);
    return md.rc;
}

strata_err pkg_card_front(const struct pkg_manifest *m, struct buf *out, struct strata_errmsg *em) {
    struct pkg_card_md md = {.out = out, .em = em};
    put_front_matter(&md, m);
    return md.rc;
}

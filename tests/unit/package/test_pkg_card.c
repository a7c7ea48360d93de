/* The model card: what it holds, that foreign texts cannot break out of it, and whose README.md is written over. */
#include "base/file.h"
#include "package/pkg_card.h"
#include "package/pkg_check.h"

#include "../base/tmp_folder.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

#define D64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct tmp_folder T;
static struct strata_errmsg em;

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

/* ---- manifests ---- */

struct sample {
    const char *text; /* stands in every free text; NULL: harmless ones */
    uint32_t layers;
    bool uneven;          /* no two layers alike */
    bool projector, bare; /* bare: without all that is optional */
    size_t files, strategies;
};

static json_t *artifact(const char *path, uint64_t tensors, uint64_t bytes) {
    return json_pack("{s:s, s:I, s:I, s:I, s:s}", "path", path, "tensor_count", (json_int_t)tensors, "tensor_bytes",
                     (json_int_t)(tensors ? bytes - 100 : 0), "artifact_bytes", (json_int_t)bytes, "sha256", D64);
}

static json_t *generation_of(const struct sample *s) {
    const char *t = s->text;
    json_t *strategies = json_object();
    for (size_t i = 0; i < s->strategies; i++) {
        char name[800];
        snprintf(name, sizeof name, "%s%zu", t ? t : "mtp", i);
        json_object_set_new(strategies, name,
                            json_pack("{s:s, s:i, s:[i], s:s, s:s, s:s, s:s}", "type", t ? t : "native-mtp",
                                      "prediction_depth", 1, "layer_indices", 47, "proposer", t ? t : "p", "primary",
                                      t ? t : "p", "extender", t ? t : "p", "draft_model", t ? t : "p"));
    }
    return json_pack("{s:{s:s, s:s, s:s, s:{s:s}}, s:{s:i, s:s}, s:{s:s, s:o, s:o}}", "policy", "profile",
                     t ? t : "glm-dsa-v1", "decode", t ? t : "compact-flash", "indexshare", "required", "experimental",
                     t ? t : "selected_row_flash", t ? t : "evidence-gated", "thresholds", "short_prefill_max_tokens",
                     2048, t ? t : "other", t ? t : "x", "speculative_decoding", "default", t ? t : "mtp0",
                     "strategies", strategies, "proposers", json_incref(strategies));
}

static json_t *source_of(const struct sample *s) {
    const char *t = s->text;
    json_t *files = json_array();
    for (size_t i = 0; i < s->files; i++)
        json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "path", t ? t : "Model-Q4_K_M.gguf", "size_bytes",
                                               (json_int_t)1234567, "sha256", D64));
    json_t *source = json_pack("{s:s, s:s}", "path", t ? t : "/home/someone/Model-Q4_K_M.gguf", "sha256", D64);
    if (!s->bare)
        json_object_update_new(source,
                               json_pack("{s:s, s:s, s:s, s:s, s:s}", "repo", t ? t : "org/Model-GGUF", "revision",
                                         t ? t : "8f4c2d1", "primary_file", t ? t : "Model-Q4_K_M.gguf",
                                         "canonical_ref", t ? t : "org/Model-GGUF@8f4c2d1/Model-Q4_K_M.gguf",
                                         "distribution_id", t ? t : "Model-Q4_K_M"));
    json_object_set_new(source, "files", files);
    return source;
}

static json_t *document_of(const struct sample *s) {
    const char *t = s->text;
    json_t *layers = json_array(), *projectors = json_array();
    for (uint32_t i = 0; i < s->layers; i++) {
        char path[64];
        snprintf(path, sizeof path, "layers/layer-%05" PRIu32 ".gguf", i);
        json_t *a = artifact(path, 9, 5000000 + (s->uneven ? i * 1000 : 0));
        json_object_set_new(a, "layer_index", json_integer(i));
        json_array_append_new(layers, a);
    }
    if (s->projector) {
        json_t *a = artifact("projectors/`x`|<b>&.gguf", 12, 777000);
        json_object_set_new(a, "kind", json_string("mmproj"));
        json_array_append_new(projectors, a);
    }
    json_t *root = json_pack("{s:i, s:s, s:s, s:I, s:o, s:o, s:o, s:{s:o, s:o, s:o}, s:s}", "schema_version", 1,
                             "format", "layer-package", "model_id", t ? t : "org/Model-GGUF:Q4_K_M", "layer_count",
                             (json_int_t)s->layers, "layers", layers, "projectors", projectors, "source_model",
                             source_of(s), "shared", "metadata", artifact("shared/metadata.gguf", 0, 2000000),
                             "embeddings", artifact("shared/embeddings.gguf", 1, 30000000), "output",
                             artifact("shared/output.gguf", 2, 2000500), "skippy_abi_version", "0.1.25");
    if (!s->bare) {
        json_object_set_new(root, "generation", generation_of(s));
        json_object_set_new(root, "activation_width", json_integer(4096));
        json_object_set_new(root, "created_at_unix_secs", json_integer(1790000000));
    }
    assert_non_null(root);
    return root;
}

static struct pkg_manifest *parse(const struct sample *s) {
    struct pkg_manifest *m;
    json_t *root = document_of(s);
    char *text = json_dumps(root, JSON_INDENT(2));
    if (pkg_manifest_parse(text, strlen(text), "m", &m, &em)) fail_msg("%s", em.text);
    free(text);
    json_decref(root);
    return m;
}

static char *card_of(const struct sample *s, const json_t *validation) {
    struct buf out;
    struct pkg_manifest *m = parse(s);
    buf_init(&out, PKG_CARD_MAX_BYTES);
    if (pkg_card_text(m, validation, &out, &em)) fail_msg("%s", em.text);
    pkg_manifest_free(m);
    return out.data;
}

static void has(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("no '%s' in:\n%s", part, text);
}

static void lacks(const char *text, const char *part) {
    if (strstr(text, part)) fail_msg("'%s' in:\n%s", part, text);
}

/* ---- what it holds ---- */

static void test_content(void **state) {
    (void)state;
    struct sample s = {.layers = 48, .files = 1, .strategies = 1};
    char *a = card_of(&s, NULL), *b = card_of(&s, NULL);
    struct pkg_manifest *m = parse(&s);
    assert_string_equal(a, b);
    assert_int_equal(strncmp(a, "---\nlibrary_name: strata\nbase_model: \"org/Model-GGUF\"\n", 54), 0);
    has(a, "\n- gguf\n- layer-package\n");
    has(a, "# Layer package of `org/Model-GGUF:Q4_K_M`\n");
    has(a, "48 layers, 52 files, 261.3 MiB");
    has(a, "| Source repository | `org/Model-GGUF` |\n");
    has(a, "| Source revision | `8f4c2d1` |\n");
    has(a, "| Layers | 48 |\n");
    has(a, "| Activation width | 4,096 |\n");
    has(a, "| Skippy ABI version | `0.1.25` |\n");
    has(a, "| Written | 2026-09-21 14:13:20 UTC |\n");
    has(a, m->sha256);
    has(a, "| `Model-Q4_K_M.gguf` | 1,234,567 | `" D64 "` |\n");
    has(a, "- Policy profile: `glm-dsa-v1`\n");
    has(a, "- Policy: `decode` `compact-flash`, `indexshare` `required`\n");
    has(a, "- Thresholds: `short_prefill_max_tokens` 2048, `other` `x`\n");
    has(a, "- Speculative decoding, default strategy: `mtp0`\n");
    has(a, "- Strategy `mtp0`: `native-mtp`, prediction depth 1, layer 47");
    has(a, "| layers 0 to 47 | 48 files | 432 | 240,000,000 | 4.8 MiB each |\n");
    has(a, "strata validate-package Model-Q4_K_M.gguf .\n");
    has(a, "skippy-model-package preflight . --verify-sha256\n");
    has(a, "No result was recorded");
    has(a, "strata serve . --local-stages 2\n");
    has(a, "- IndexShare is required");
    lacks(a, "## Projectors");
    lacks(a, "/home/someone");
    pkg_manifest_free(m);
    free(a);
    free(b);
}

static void test_bare(void **state) {
    (void)state;
    struct sample s = {.layers = 1, .bare = true, .projector = true};
    char *a = card_of(&s, NULL);
    lacks(a, "base_model");
    lacks(a, "pipeline_tag");
    has(a, "| Source repository | not stated |\n");
    has(a, "| Activation width | not stated |\n");
    has(a, "| `Model-Q4_K_M.gguf` | not stated | `" D64 "` |\n"); /* the name of the path, not its folder */
    lacks(a, "/home/someone");
    has(a, "The package declares none.");
    has(a, "\n## Projectors\n");
    has(a,
        "<code>projectors&#47;&#96;x&#96;&#124;&#60;b&#62;&#38;&#46;gguf</code> | `mmproj` | 777,000 | `" D64 "` |\n");
    has(a, "does not say which revision");
    has(a, "--local-stages 1\n");
    lacks(a, "| Written |");
    free(a);
}

/* With 300 source files, 300 strategies or 2,000 layers the card stays a card. */
static void test_many(void **state) {
    (void)state;
    struct sample alike = {.layers = 2000, .files = 300}, uneven = {.layers = 2000, .uneven = true, .strategies = 300};
    struct sample few = {.layers = 20, .uneven = true};
    char *a = card_of(&alike, NULL), *b = card_of(&uneven, NULL), *c = card_of(&few, NULL);
    has(a, "| layers 0 to 1999 | 2000 files | 18,000 | 10,000,000,000 | 4.8 MiB each |\n");
    has(a, "and 44 more, listed in the manifest.");
    has(b, "| layers 0 to 1999 | 2000 files | 18,000 | 11,999,000,000 | 4.8 MiB to 6.7 MiB each |\n");
    has(b, "- ... and more, listed in the manifest\n");
    has(c, "| layer 19 | `layers/layer-00019.gguf` | 9 | 5,019,000 | 4.8 MiB |\n");
    free(a);
    free(b);
    free(c);
}

static void test_schema2(void **state) {
    (void)state;
    struct pkg_artifact list[] = {
        {.role = PKG_ROLE_METADATA, .path = "shared/metadata.gguf", .artifact_bytes = 10},
        {.role = PKG_ROLE_COMMON, .path = "shared/common.gguf", .artifact_bytes = 20},
        {.role = PKG_ROLE_LAYER, .layer = 0, .path = "layers/layer-00000-part00.gguf", .artifact_bytes = 7},
        {.role = PKG_ROLE_LAYER, .layer = 0, .path = "layers/layer-00000-part01.gguf", .artifact_bytes = 7},
        {.role = PKG_ROLE_LAYER, .layer = 1, .path = "layers/layer-00001.gguf", .artifact_bytes = 8}};
    size_t layer_at[] = {2, 4, 5};
    struct pkg_manifest m = {.sha256 = D64,
                             .schema = 2,
                             .package_id = "sha256:" D64,
                             .model_id = "org/x",
                             .source = {.path = "x.gguf"},
                             .layer_count = 2,
                             .artifacts = list,
                             .n_artifacts = 5,
                             .layer_at = layer_at,
                             .abi_version = "0.1.54"};
    struct buf out;
    buf_init(&out, PKG_CARD_MAX_BYTES);
    assert_int_equal(pkg_card_text(&m, NULL, &out, &em), STRATA_OK);
    has(out.data, "| Native ABI version | `0.1.54` |\n");
    has(out.data, "| Schema version | 2 |\n");
    has(out.data, "| Package id | `sha256:" D64 "` |\n");
    has(out.data, "| common | `shared/common.gguf` |  | 20 | 20 B |\n");
    has(out.data, "| layer 0 | 2 files |  | 14 | 7 B each |\n");
    has(out.data, "| layer 1 | `layers/layer-00001.gguf` |  | 8 | 8 B |\n");
    has(out.data, "`shared/metadata.gguf` lists every tensor's place.");
    lacks(out.data, "the last one the output");
    buf_deinit(&out);
}

/* ---- foreign texts ---- */

/* One letter for each line: what kind of line it is. Cells of a table are counted. */
static void outline(const char *card, char *out, size_t cap) {
    size_t n = 0;
    for (const char *p = card; *p && n + 4 < cap;) {
        const char *end = strchr(p, '\n');
        size_t len = end ? (size_t)(end - p) : strlen(p), pipes = 0;
        for (size_t i = 0; i < len; i++) pipes += p[i] == '|';
        char kind = len == 0                                 ? '.'
                    : *p == '|'                              ? (char)('0' + pipes)
                    : *p == '#'                              ? '#'
                    : *p == '-' && len > 1 && p[1] == ' '    ? '*'
                    : len == 3 && strncmp(p, "---", 3) == 0  ? '-'
                    : len == 3 && strncmp(p, "```", 3) == 0  ? '`'
                    : len > 3 && strncmp(p, "<!-- ", 5) == 0 ? '!'
                                                             : 'a';
        out[n++] = kind;
        p += len + (end ? 1 : 0);
    }
    out[n] = '\0';
}

/* base_model and pipeline_tag come and go with what is known: only the lines from the marker on are compared. */
static const char *below(const char *outlined) {
    return strchr(outlined, '!');
}

static void check_foreign(const char *text) {
    static char tame[4096], got[4096];
    struct sample s = {.layers = 3, .files = 2, .strategies = 2};
    char *card = card_of(&s, NULL);
    outline(card, tame, sizeof tame);
    free(card);
    s.text = text;
    card = card_of(&s, NULL);
    outline(card, got, sizeof got);
    if (strcmp(below(tame), below(got)) != 0) fail_msg("%s\n%s\n%s", below(tame), below(got), card);
    lacks(card, "<script");
    lacks(card, "<img");
    lacks(card, "](");
    lacks(card, "\r");
    lacks(card, "\x1b");
    lacks(card, "\xe2\x80\xae"); /* right-to-left override */
    lacks(card, "\xc2\x85");
    free(card);
}

static void test_foreign(void **state) {
    (void)state;
    static const char *const texts[] = {"a|b|c",
                                        "a\\|b",
                                        "\\",
                                        "\\|",
                                        "`",
                                        "``x``",
                                        "a`b",
                                        "```\n# x",
                                        "x\n---\nx",
                                        "---",
                                        "\n\n# Title\n\n",
                                        "<script>alert(1)</script>",
                                        "<img src=x onerror=y>",
                                        "[x](http://e.example)",
                                        "![x](y)",
                                        "# x",
                                        "- x",
                                        "> x",
                                        "1. x",
                                        "x\r\ny",
                                        "x\ty",
                                        "&lt;b&gt;",
                                        "&#10;",
                                        "*x* _y_ ~~z~~",
                                        "http://e.example/",
                                        "www.e.example",
                                        "$x$",
                                        "\x1b[31mred",
                                        "a\xe2\x80\xae"
                                        "b",
                                        "a\xc2\x85"
                                        "b",
                                        "a\xe2\x80\xa8"
                                        "b",
                                        "\xef\xbb\xbfx",
                                        "---\nfoo: bar\n---",
                                        "-->",
                                        "<!--",
                                        " lead",
                                        "trail ",
                                        "{{x}}",
                                        "{% x %}",
                                        "\"quoted\": 'y'",
                                        "\xd0\xbc\xd0\xbe\xd0\xb4\xd0\xb5\xd0\xbb\xd1\x8c"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) check_foreign(texts[i]);
}

/* Whatever the characters: every ASCII one, alone and in a row, and texts that are long. */
static void test_foreign_bytes(void **state) {
    (void)state;
    char text[700];
    for (int c = 1; c < 128; c++) {
        text[0] = (char)c;
        text[1] = '\0';
        if (c > ' ') check_foreign(text); /* a blank text is refused by the manifest */
        snprintf(text, sizeof text, "a%c%c|%cb", c, c, c);
        check_foreign(text);
    }
    memset(text, '|', sizeof text);
    text[600] = '\0';
    check_foreign(text);
    for (size_t i = 0; i < 600; i += 3) memcpy(text + i, "\xe2\x82\xac", 3);
    struct sample s = {.text = text, .layers = 1};
    char *card = card_of(&s, NULL);
    json_t *valid = json_string(card); /* NULL unless the card is UTF-8: no character was cut in two */
    assert_non_null(valid);
    has(card, "\xe2\x82\xac...</code>");
    json_decref(valid);
    free(card);
}

/* The largest card that a manifest can bring about fits. */
static void test_foreign_largest(void **state) {
    (void)state;
    char text[400];
    memset(text, '|', sizeof text);
    text[399] = '\0';
    struct sample s = {.text = text, .layers = 40, .uneven = true, .files = 400, .strategies = 40};
    char *card = card_of(&s, NULL);
    assert_true(strlen(card) > 300000 && strlen(card) < PKG_CARD_MAX_BYTES);
    free(card);
}

static void test_yaml(void **state) {
    (void)state;
    static const char *const bad[] = {"org",    "org/",   "/x",    "org/a/b",     "org/a b", "org/\"x",
                                      "-org/x", "org/.x", "o:g/x", "org/x\ny: z", "org/#x"};
    struct sample s = {.layers = 1};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        s.text = bad[i];
        char *card = card_of(&s, NULL);
        char *end = strstr(card, "\n---\n");
        assert_non_null(end);
        *end = '\0';
        lacks(card, "base_model");
        free(card);
    }
    s.text = "org/A.b_c-1";
    char *card = card_of(&s, NULL);
    has(card, "base_model: \"org/A.b_c-1\"\n");
    free(card);
}

/* ---- validation ---- */

static void test_validation(void **state) {
    (void)state;
    struct sample s = {.layers = 2};
    struct pkg_manifest *m = parse(&s);
    json_t *v = json_pack("{s:b, s:s, s:s, s:s, s:I, s:[{s:s}], s:i, s:i, s:i, s:i}", "valid", true, "manifest_sha256",
                          m->sha256, "tool", "strata 0.1.0", "command", "validate-package", "created_at_unix_secs",
                          (json_int_t)1790000000, "source_files", "path", "Model-Q4_K_M.gguf", "compared_tensor_count",
                          1234, "checked_artifact_count", 5, "error_count", 0, "issue_count", 2);
    char *card = card_of(&s, v);
    has(card, "Command: `validate-package Model-Q4_K_M.gguf .`, by `strata 0.1.0`, 2026-09-21 14:13:20 UTC\n\n"
              "Result: valid. Tensors compared with the source byte for byte: 1,234. Files: 5. Errors: 0. Errors, "
              "warnings and notes: 2. All of it");
    free(card);
    json_object_set_new(v, "valid", json_false());
    card = card_of(&s, v);
    has(card, "Result: NOT valid. Tensors compared");
    free(card);
    json_object_set_new(v, "manifest_sha256", json_string(D64));
    card = card_of(&s, v);
    has(card, "about another manifest");
    lacks(card, "NOT valid");
    free(card);
    json_object_set_new(v, "manifest_sha256", json_string(m->sha256));
    json_object_set_new(v, "command", json_string("x\n# `y` <b>"));
    json_object_set_new(v, "tool", json_string("|"));
    json_object_set_new(v, "created_at_unix_secs", json_integer(INT64_MAX));
    card = card_of(&s, v);
    has(card, "Command: <code>x\xef\xbf\xbd&#35; &#96;y&#96; &#60;b&#62;</code>, by <code>&#124;</code>, 9999-12-31");
    free(card);
    json_object_set_new(v, "command", json_string("validate-package"));
    json_object_set_new(v, "source_files", json_pack("[{s:s}]", "path", "a b;c"));
    card = card_of(&s, v);
    has(card, "Command: `validate-package SOURCE.gguf .`");
    free(card);
    json_decref(v);
    /* Not what was expected: as if there were none. */
    json_t *odd[] = {json_array(), json_string("x"), json_integer(3), json_pack("{s:s}", "valid", "yes"),
                     json_object()};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        card = card_of(&s, odd[i]);
        has(card, "No result was recorded");
        free(card);
        json_decref(odd[i]);
    }
    v = json_pack("{s:b, s:s, s:[], s:{}, s:i, s:i, s:[i]}", "valid", true, "manifest_sha256", m->sha256,
                  "compared_tensor_count", "command", "issue_count", -3, "checked_artifact_count", -1, "source_files",
                  7);
    card = card_of(&s, v);
    has(card, "\nResult: valid. All");
    free(card);
    json_decref(v);
    pkg_manifest_free(m);
}

/* ---- the file ---- */

static void read_text(const char *path, struct buf *out) {
    buf_init(out, 1 << 22);
    if (file_read_all(path, 1 << 22, out, &em)) fail_msg("%s", em.text);
}

static void write_text(const char *path, const char *text) {
    assert_int_equal(file_write_all(path, text, strlen(text), 0644, &em), STRATA_OK);
}

static void is_text(const char *path, const char *want) {
    struct buf b;
    read_text(path, &b);
    assert_string_equal(buf_cstr(&b), want);
    buf_deinit(&b);
}

static enum pkg_card_state look(void) {
    enum pkg_card_state s;
    assert_int_equal(pkg_card_look(T.path, &s, &em), STRATA_OK);
    return s;
}

static void test_update(void **state) {
    (void)state;
    struct sample one = {.layers = 1}, two = {.layers = 2};
    struct pkg_manifest *a = parse(&one), *b = parse(&two);
    char *card_a = card_of(&one, NULL), *card_b = card_of(&two, NULL);
    const char *path = tmp_path(&T, "README.md");
    struct stat before, after;
    assert_int_equal(look(), PKG_CARD_ABSENT);
    assert_int_equal(pkg_card_update(T.path, a, NULL, &em), STRATA_OK);
    is_text(path, card_a);
    assert_int_equal(look(), PKG_CARD_OURS);
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(pkg_card_update(T.path, a, NULL, &em), STRATA_OK);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino); /* not even touched */
    assert_int_equal(pkg_card_update(T.path, b, NULL, &em), STRATA_OK);
    is_text(path, card_b);
    /* Changed by hand: in the front matter, in the text, in the marker, at the end. */
    for (int k = 0; k < 4; k++) {
        char *mine = strdup(card_b), *at = k == 0 ? strstr(mine, "library_name") : strstr(mine, "sha256 ");
        assert_non_null(at);
        if (k == 2) at = strstr(mine, "## Files");
        if (k == 3) at = mine + strlen(mine) - 1;
        at[k == 1 ? 7 : 0] = at[k == 1 ? 7 : 0] == 'x' ? 'y' : 'x';
        write_text(path, mine);
        assert_int_equal(look(), PKG_CARD_FOREIGN);
        assert_int_equal(pkg_card_update(T.path, a, NULL, &em), STRATA_OK);
        is_text(path, mine);
        free(mine);
    }
    /* The publisher's own, an empty one included. */
    const char *own[] = {"# My model\n", "",
                         "<!-- Strata keeps this card up to date as long as nobody changes it: sha256 "};
    for (size_t k = 0; k < 3; k++) {
        write_text(path, own[k]);
        assert_int_equal(pkg_card_update(T.path, a, NULL, &em), STRATA_OK);
        is_text(path, own[k]);
    }
    pkg_manifest_free(a);
    pkg_manifest_free(b);
    free(card_a);
    free(card_b);
}

/* What is no regular file is not ours: no link is followed, no folder replaced. */
static void test_update_odd(void **state) {
    (void)state;
    struct sample one = {.layers = 1};
    struct pkg_manifest *m = parse(&one);
    char *card = card_of(&one, NULL);
    const char *path = tmp_path(&T, "README.md"), *other = tmp_path(&T, "other.md");
    struct stat st;
    write_text(other, card); /* a card of ours, but elsewhere */
    assert_int_equal(symlink(other, path), 0);
    assert_int_equal(look(), PKG_CARD_FOREIGN);
    assert_int_equal(pkg_card_update(T.path, m, NULL, &em), STRATA_OK);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(pkg_card_update(T.path, m, NULL, &em), STRATA_OK);
    assert_int_equal(rmdir(path), 0);
    char *large = calloc(1, PKG_CARD_MAX_BYTES + 2);
    assert_non_null(large);
    memset(large, 'x', PKG_CARD_MAX_BYTES + 1);
    write_text(path, large);
    assert_int_equal(look(), PKG_CARD_FOREIGN);
    assert_int_equal(pkg_card_update(T.path, m, NULL, &em), STRATA_OK);
    assert_int_equal(pkg_card_update(tmp_path(&T, "nowhere"), m, NULL, &em), STRATA_EIO);
    free(large);
    free(card);
    pkg_manifest_free(m);
}

static void test_refresh(void **state) {
    (void)state;
    struct sample s = {.layers = 2};
    json_t *root = document_of(&s);
    struct pkg_manifest *m = parse(&s);
    char *text = json_dumps(root, JSON_INDENT(2)), result[300];
    const char *path = tmp_path(&T, "README.md"), *validation = tmp_path(&T, PKG_CHECK_VALIDATION_FILE);
    assert_int_equal(pkg_card_refresh(T.path, &em), STRATA_ENOENT);
    write_text(tmp_path(&T, "model-package.json"), text);
    assert_int_equal(pkg_card_refresh(T.path, &em), STRATA_OK);
    assert_int_equal(look(), PKG_CARD_ABSENT); /* whoever wanted no card gets none */
    assert_int_equal(pkg_card_update(T.path, m, NULL, &em), STRATA_OK);
    snprintf(result, sizeof result, "{\"valid\": true, \"manifest_sha256\": \"%s\"}", m->sha256);
    write_text(validation, result);
    assert_int_equal(pkg_card_refresh(T.path, &em), STRATA_OK);
    struct buf b;
    read_text(path, &b);
    has(b.data, "Result: valid. All");
    buf_deinit(&b);
    assert_int_equal(look(), PKG_CARD_OURS);
    static const char *const broken[] = {"", "{", "[]", "{\"valid\": tru", "\xff\xfe"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        write_text(validation, broken[i]);
        assert_int_equal(pkg_card_refresh(T.path, &em), STRATA_OK);
        read_text(path, &b);
        has(b.data, "No result was recorded");
        buf_deinit(&b);
        write_text(validation, result);
        assert_int_equal(pkg_card_refresh(T.path, &em), STRATA_OK);
    }
    free(text);
    json_decref(root);
    pkg_manifest_free(m);
}

int main(void) {
#define F(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_bare),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_schema2),
        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_foreign_bytes),
        cmocka_unit_test(test_foreign_largest),
        cmocka_unit_test(test_yaml),
        cmocka_unit_test(test_validation),
        F(test_update),
        F(test_update_odd),
        F(test_refresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Signatures of packages: what is signed, every way in which a sidecar can be wrong, and what replaces what. */
#include "base/file.h"
#include "package/pkg_inside.h"
#include "package/pkg_manifest.h"
#include "package/pkg_sign.h"

#include "../base/ed25519_sample.h"
#include "../base/tmp_folder.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SHA "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define PART(path)                                                                                                     \
    "{\"path\":\"" path "\",\"tensor_count\":1,\"tensor_bytes\":4,\"artifact_bytes\":9,\"sha256\":\"" SHA "\"}"
/* Sound as a document; the files it names are not needed to sign it. */
static const char manifest[] =
    "{\"schema_version\":1,\"model_id\":\"a/b\",\"format\":\"layer-package\",\"layer_count\":1,\"activation_width\":8,"
    "\"source_model\":{\"path\":\"m.gguf\",\"sha256\":\"" SHA "\",\"files\":[]},\"skippy_abi_version\":\"0.1.25\","
    "\"shared\":{\"metadata\":" PART("shared/metadata.gguf") ",\"embeddings\":" PART(
        "shared/embeddings.gguf") ",\"output\":" PART("shared/output.gguf") "},\"layers\":[{\"layer_index\":0,"
                                                                            "\"path\":\"layers/"
                                                                            "layer-00000.gguf\",\"tensor_count\":1,"
                                                                            "\"tensor_bytes\":4,\"artifact_bytes\":9,"
                                                                            "\"sha256\":\"" SHA "\"}]}\n";

static struct tmp_folder T;
static struct ed25519_key *K[2];
static char pkg[300];
static char sidecar[400];

static void load_key(size_t i) {
    struct strata_errmsg em;
    const char *path = tmp_path(&T, "key.pem");
    ed25519_sample_save(&ed25519_samples[i], path, 0600);
    if (ed25519_key_load(path, &K[i], &em)) fail_msg("%s", em.text);
}

static void put(const char *path, const void *data, size_t len) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    load_key(0);
    load_key(1);
    snprintf(pkg, sizeof pkg, "%s/pkg", T.path);
    snprintf(sidecar, sizeof sidecar, "%s/%s", pkg, PKG_SIGN_FILE);
    assert_int_equal(mkdir(pkg, 0755), 0);
    put(tmp_path(&T, "pkg/" PKG_MANIFEST_FILE), manifest, strlen(manifest));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) ed25519_key_free(K[i]);
    tmp_folder_remove(T.path);
    return 0;
}

/* Through the digest of the manifest as it stands. */
static struct pkg_signature look(void) {
    struct strata_errmsg em;
    struct pkg_signature s;
    char sha[DIGEST_HEX];
    if (pkg_sign_digest(pkg, sha, &em) || pkg_sign_verify(pkg, sha, &s, &em)) fail_msg("%s", em.text);
    if (s.state == PKG_SIGN_BAD) assert_true(s.reason[0] && !strchr(s.reason, '\n'));
    return s;
}

static struct pkg_sign_result sign(size_t key) {
    struct strata_errmsg em;
    struct pkg_sign_result r;
    if (pkg_sign_write(pkg, K[key], false, &r, &em)) fail_msg("%s", em.text);
    return r;
}

static struct buf slurp(const char *path) {
    struct strata_errmsg em;
    struct buf b;
    buf_init(&b, 1 << 20);
    if (file_read_all(path, 1 << 20, &b, &em)) fail_msg("%s", em.text);
    return b;
}

/* ---- what is signed ---- */

static void test_round_trip(void **state) {
    (void)state;
    struct strata_errmsg em;
    static const char domain[33] = "strata layer package manifest v1"; /* with its NUL */
    uint8_t sha[DIGEST_BYTES], message[sizeof domain + DIGEST_BYTES];
    char hex[DIGEST_HEX], text[PKG_SIGN_TEXT];
    struct pkg_sign_doc doc;
    bool good = false;
    assert_int_equal(look().state, PKG_SIGN_NONE);
    struct pkg_sign_result r = sign(0);
    assert_true(r.changed);
    assert_true(ed25519_pub_equal(&r.pub, ed25519_key_pub(K[0])));
    assert_int_equal(digest_of(manifest, strlen(manifest), sha, &em), STRATA_OK);
    digest_to_hex(sha, sizeof sha, hex);
    assert_string_equal(r.manifest_sha256, hex);
    struct pkg_signature s = look();
    assert_int_equal(s.state, PKG_SIGN_GOOD);
    assert_true(ed25519_pub_equal(&s.signer, ed25519_key_pub(K[0])));
    assert_non_null(strstr(pkg_sign_text(&s, text), "signed by 11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="));
    /* The message, from the description in the header. */
    struct buf first = slurp(sidecar);
    assert_int_equal(pkg_sign_parse(first.data, first.len, &doc, &em), STRATA_OK);
    assert_memory_equal(doc.manifest_sha256, sha, sizeof sha);
    memcpy(message, domain, sizeof domain);
    memcpy(message + sizeof domain, sha, sizeof sha);
    assert_int_equal(ed25519_verify(&doc.pub, message, sizeof message, &doc.sig, &good, &em), STRATA_OK);
    assert_true(good);
    /* Again: the same bytes, nothing written. */
    assert_false(sign(0).changed);
    unlink(sidecar);
    assert_true(sign(0).changed);
    struct buf second = slurp(sidecar);
    assert_int_equal(first.len, second.len);
    assert_memory_equal(first.data, second.data, first.len);
    buf_deinit(&first);
    buf_deinit(&second);
}

/* A signature by the same key over the bare digest, or over the manifest, is one made for another purpose. */
static void test_domain(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct ed25519_sig sigs[2];
    uint8_t sha[DIGEST_BYTES];
    sign(0);
    struct buf good = slurp(sidecar);
    assert_int_equal(digest_of(manifest, strlen(manifest), sha, &em), STRATA_OK);
    assert_int_equal(ed25519_sign(K[0], sha, sizeof sha, &sigs[0], &em), STRATA_OK);
    assert_int_equal(ed25519_sign(K[0], manifest, strlen(manifest), &sigs[1], &em), STRATA_OK);
    for (size_t i = 0; i < 2; i++) {
        char text[ED25519_SIG_TEXT];
        ed25519_sig_text(&sigs[i], text);
        char *at = strstr(good.data, "\"signature\": \"");
        assert_non_null(at);
        memcpy(at + 14, text, 88);
        put(sidecar, good.data, good.len);
        struct pkg_signature s = look();
        assert_int_equal(s.state, PKG_SIGN_BAD);
        assert_non_null(strstr(s.reason, "was not made with the key"));
    }
    buf_deinit(&good);
}

/* ---- sidecars that are wrong ---- */

static void test_every_bit(void **state) {
    (void)state;
    sign(0);
    struct buf doc = slurp(sidecar);
    for (size_t bit = 0; bit < 8 * doc.len; bit++) {
        doc.data[bit / 8] = (char)(doc.data[bit / 8] ^ 1 << bit % 8);
        put(sidecar, doc.data, doc.len);
        if (look().state != PKG_SIGN_BAD) fail_msg("bit %zu of byte %zu does not matter", bit % 8, bit / 8);
        doc.data[bit / 8] = (char)(doc.data[bit / 8] ^ 1 << bit % 8);
    }
    for (size_t len = 0; len + 1 < doc.len; len++) {
        put(sidecar, doc.data, len);
        if (look().state != PKG_SIGN_BAD) fail_msg("%zu of %zu bytes are enough", len, doc.len);
    }
    /* The last byte is a line feed, without which the document is whole. */
    put(sidecar, doc.data, doc.len - 1);
    assert_int_equal(look().state, PKG_SIGN_GOOD);
    put(sidecar, doc.data, doc.len);
    assert_int_equal(look().state, PKG_SIGN_GOOD);
    buf_deinit(&doc);
}

static void test_manifest_changed(void **state) {
    (void)state;
    char changed[sizeof manifest];
    const char *path = tmp_path(&T, "pkg/" PKG_MANIFEST_FILE);
    char keep[512];
    snprintf(keep, sizeof keep, "%s", path);
    sign(0);
    for (size_t i = 0; i < strlen(manifest); i += 7) {
        memcpy(changed, manifest, sizeof manifest);
        changed[i] ^= 1;
        put(keep, changed, strlen(manifest));
        struct pkg_signature s = look();
        assert_int_equal(s.state, PKG_SIGN_BAD);
        assert_non_null(strstr(s.reason, "another manifest"));
    }
    put(keep, manifest, strlen(manifest));
    assert_int_equal(look().state, PKG_SIGN_GOOD);
    /* The digest in the sidecar made to fit: then the signature does not. */
    struct strata_errmsg em;
    char sha[DIGEST_HEX];
    struct buf doc = slurp(sidecar);
    put(keep, changed, strlen(manifest));
    assert_int_equal(pkg_sign_digest(pkg, sha, &em), STRATA_OK);
    char *at = strstr(doc.data, "\"manifest_sha256\": \"");
    assert_non_null(at);
    memcpy(at + 20, sha, 64);
    put(sidecar, doc.data, doc.len);
    assert_non_null(strstr(look().reason, "was not made with the key"));
    buf_deinit(&doc);
}

/* The key replaced by another's, or another's signature under this key. */
static void test_mixed(void **state) {
    (void)state;
    json_t *docs[2];
    struct strata_errmsg em;
    for (size_t i = 0; i < 2; i++) {
        unlink(sidecar);
        sign(i);
        struct buf b = slurp(sidecar);
        assert_int_equal(jsonx_parse(b.data, b.len, &docs[i], &em), STRATA_OK);
        buf_deinit(&b);
    }
    static const char *const keys[] = {"public_key", "signature"};
    for (size_t k = 0; k < 2; k++) {
        json_t *mixed = json_deep_copy(docs[0]);
        json_object_set(mixed, keys[k], json_object_get(docs[1], keys[k]));
        assert_int_equal(json_dump_file(mixed, sidecar, 0), 0);
        assert_int_equal(look().state, PKG_SIGN_BAD);
        json_decref(mixed);
    }
    json_decref(docs[0]);
    json_decref(docs[1]);
}

static void test_fields(void **state) {
    static const struct {
        const char *key, *value; /* as JSON; NULL: the key is removed */
        const char *says;
    } rows[] = {
        {"schema_version", NULL, "schema_version is missing"},
        {"algorithm", NULL, "algorithm is missing"},
        {"public_key", NULL, "public_key is missing"},
        {"signed_file", NULL, "signed_file is missing"},
        {"manifest_sha256", NULL, "manifest_sha256 is missing"},
        {"signature", NULL, "signature is missing"},
        {"schema_version", "2", "schema_version is 2"},
        {"schema_version", "0", "schema_version is 0"},
        {"schema_version", "-1", "schema_version"},
        {"schema_version", "1.0", "whole number"},
        {"schema_version", "\"1\"", "whole number"},
        {"algorithm", "\"ED25519\"", "not 'ed25519'"},
        {"algorithm", "\"none\"", "not 'ed25519'"},
        {"algorithm", "null", "algorithm is missing"},
        {"signed_file", "\"../model-package.json\"", "not 'model-package.json'"},
        {"signed_file", "[\"model-package.json\"]", "must be a string"},
        {"public_key", "\"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURp=\"", "44 characters"},
        {"public_key", "\"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo\"", "44 characters"},
        {"public_key", "\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"", "44 characters"},
        {"public_key", "\"\"", "44 characters"},
        {"public_key", "7", "must be a string"},
        {"signature", "\"AAAA\"", "88 characters"},
        {"signature", "\"\"", "88 characters"},
        {"manifest_sha256", "\"" SHA "0\"", "64 lower-case"},
        {"manifest_sha256", "\"0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef\"", "64 lower-case"},
        {"manifest_sha256", "\"" SHA "\"", "another manifest"},
        {"signer_name", "\"The Publisher\"", "unknown key 'signer_name'"},
        {"", "1", "unknown key ''"},
    };
    (void)state;
    struct strata_errmsg em;
    json_t *doc;
    sign(0);
    struct buf b = slurp(sidecar);
    assert_int_equal(jsonx_parse(b.data, b.len, &doc, &em), STRATA_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *copy = json_deep_copy(doc);
        if (rows[i].value)
            json_object_set_new(copy, rows[i].key, json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(copy, rows[i].key);
        assert_int_equal(json_dump_file(copy, sidecar, JSON_COMPACT), 0);
        struct pkg_signature s = look();
        if (s.state != PKG_SIGN_BAD || !strstr(s.reason, rows[i].says))
            fail_msg("row %zu: state %d, '%s', without '%s'", i, s.state, s.reason, rows[i].says);
        json_decref(copy);
    }
    /* Order and white space are free. */
    assert_int_equal(json_dump_file(doc, sidecar, JSON_COMPACT | JSON_SORT_KEYS), 0);
    assert_int_equal(look().state, PKG_SIGN_GOOD);
    json_decref(doc);
    buf_deinit(&b);
}

static void test_documents(void **state) {
    (void)state;
    sign(0);
    struct buf b = slurp(sidecar);
    struct buf twice;
    buf_init(&twice, 1 << 20);
    static const char *const other[] = {"", "null", "[]", "{}", "7", "\"x\"", "\xff\xfe", "{\"schema_version\":1"};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        put(sidecar, other[i], strlen(other[i]));
        assert_int_equal(look().state, PKG_SIGN_BAD);
    }
    /* One key twice; something after the end; more than the limit, of which the document itself is a part. */
    assert_int_equal(buf_append_str(&twice, "{\"algorithm\": \"ed25519\",", NULL), STRATA_OK);
    assert_int_equal(buf_append(&twice, b.data + 1, b.len - 1, NULL), STRATA_OK);
    put(sidecar, twice.data, twice.len);
    assert_non_null(strstr(look().reason, "twice"));
    assert_int_equal(buf_append(&b, "{}", 2, NULL), STRATA_OK);
    put(sidecar, b.data, b.len);
    assert_int_equal(look().state, PKG_SIGN_BAD);
    b.len -= 2;
    while (b.len < PKG_SIGN_MAX_BYTES) assert_int_equal(buf_append(&b, " ", 1, NULL), STRATA_OK);
    put(sidecar, b.data, b.len);
    assert_int_equal(look().state, PKG_SIGN_GOOD);
    assert_int_equal(buf_append(&b, " ", 1, NULL), STRATA_OK);
    put(sidecar, b.data, b.len);
    assert_non_null(strstr(look().reason, "at most 4096"));
    struct pkg_sign_doc doc;
    assert_int_equal(pkg_sign_parse(b.data, b.len, &doc, NULL), STRATA_ELIMIT);
    buf_deinit(&b);
    buf_deinit(&twice);
}

/* ---- what stands under its name ---- */

static void test_links(void **state) {
    (void)state;
    char other[400], outside[400];
    sign(0);
    snprintf(other, sizeof other, "%s/other.json", pkg);
    snprintf(outside, sizeof outside, "%s/pkg-outside.json", T.path); /* begins with the folder's name */
    struct buf b = slurp(sidecar);
    put(outside, b.data, b.len);
    /* Inside is fine; outside, nowhere, and in a circle are not. */
    assert_int_equal(rename(sidecar, other), 0);
    assert_int_equal(symlink("other.json", sidecar), 0);
    assert_int_equal(look().state, PKG_SIGN_GOOD);
    const char *const targets[] = {outside, "../pkg-outside.json", "absent.json", PKG_SIGN_FILE, ".", "/dev/null"};
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        unlink(sidecar);
        assert_int_equal(symlink(targets[i], sidecar), 0);
        struct pkg_signature s = look();
        assert_int_equal(s.state, PKG_SIGN_BAD);
        if (i < 2) assert_non_null(strstr(s.reason, "leads out of the package"));
    }
    unlink(sidecar);
    assert_int_equal(mkfifo(sidecar, 0600), 0); /* must not hang */
    assert_int_equal(look().state, PKG_SIGN_BAD);
    unlink(sidecar);
    assert_int_equal(mkdir(sidecar, 0700), 0);
    assert_int_equal(look().state, PKG_SIGN_BAD);
    buf_deinit(&b);
}

/* A hub's cache is a folder of links into the blobs of the same repository. */
static void test_hub_cache(void **state) {
    (void)state;
    struct strata_errmsg em;
    char snapshot[400], link[500];
    bool inside = false;
    snprintf(snapshot, sizeof snapshot, "%s/repo/snapshots/0123", T.path);
    assert_int_equal(file_mkdirs(snapshot, 0700, &em), STRATA_OK);
    assert_int_equal(mkdir(tmp_path(&T, "repo/blobs"), 0700), 0);
    assert_int_equal(mkdir(tmp_path(&T, "repo/blobs-2"), 0700), 0);
    put(tmp_path(&T, "repo/blobs/f"), "x", 1);
    put(tmp_path(&T, "repo/blobs-2/f"), "x", 1);
    put(tmp_path(&T, "repo/f"), "x", 1);
    static const struct {
        const char *target;
        bool inside;
    } rows[] = {{"../../blobs/f", true}, {"../../blobs-2/f", false}, {"../../f", false}, {"../../../pkg/x", false}};
    put(tmp_path(&T, "pkg/x"), "x", 1);
    snprintf(link, sizeof link, "%s/file", snapshot);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unlink(link);
        assert_int_equal(symlink(rows[i].target, link), 0);
        assert_int_equal(pkg_inside(snapshot, "file", &inside, &em), STRATA_OK);
        assert_int_equal(inside, rows[i].inside);
    }
    assert_int_equal(pkg_inside(snapshot, "absent", &inside, &em), STRATA_ENOENT);
    /* Elsewhere a folder named blobs is nothing special. */
    unlink(link);
    assert_int_equal(symlink("../repo/blobs/f", tmp_path(&T, "pkg/file")), 0);
    assert_int_equal(pkg_inside(pkg, "file", &inside, &em), STRATA_OK);
    assert_false(inside);
    assert_int_equal(pkg_inside("/", "dev/null", &inside, &em), STRATA_OK);
    assert_true(inside);
}

/* ---- what is required ---- */

static void test_require(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct pkg_signature s = {.state = PKG_SIGN_BAD};
    char sha[DIGEST_HEX], k0[ED25519_PUB_TEXT], k1[ED25519_PUB_TEXT];
    const struct ed25519_pub *a = ed25519_key_pub(K[0]), *b = ed25519_key_pub(K[1]);
    ed25519_pub_text(a, k0);
    ed25519_pub_text(b, k1);
    assert_int_equal(pkg_sign_digest(pkg, sha, &em), STRATA_OK);
    assert_int_equal(pkg_sign_require(pkg, sha, a, &s, &em), STRATA_EAUTH);
    assert_non_null(strstr(em.text, "is not signed"));
    assert_non_null(strstr(em.text, k0));
    assert_int_equal(s.state, PKG_SIGN_BAD); /* untouched */
    assert_int_equal(pkg_sign_require(pkg, sha, NULL, &s, &em), STRATA_OK);
    assert_int_equal(s.state, PKG_SIGN_NONE);
    sign(0);
    assert_int_equal(pkg_sign_require(pkg, sha, a, &s, &em), STRATA_OK);
    assert_int_equal(s.state, PKG_SIGN_GOOD);
    assert_int_equal(pkg_sign_require(pkg, sha, b, &s, &em), STRATA_EAUTH);
    assert_non_null(strstr(em.text, k0));
    assert_non_null(strstr(em.text, k1));
    put(sidecar, "{}", 2);
    assert_int_equal(pkg_sign_require(pkg, sha, a, &s, &em), STRATA_EAUTH);
    assert_non_null(strstr(em.text, "bad signature"));
    assert_int_equal(pkg_sign_require(pkg, sha, NULL, &s, &em), STRATA_OK);
    assert_int_equal(s.state, PKG_SIGN_BAD);
    assert_int_equal(pkg_sign_verify(pkg, "no digest", &s, &em), STRATA_EINTERNAL);
}

static void test_telling(void **state) {
    static const struct {
        enum pkg_sign_state state;
        int want; /* which key is required, -1: none */
        const char *json;
        enum pkg_fault_code codes[2];
        size_t n;
    } rows[] = {
        {PKG_SIGN_NONE, -1, "{\"state\":\"unsigned\"}", {PKG_FAULT_UNSIGNED}, 1},
        {PKG_SIGN_NONE, 0, "{\"state\":\"unsigned\"}", {PKG_FAULT_UNSIGNED, PKG_FAULT_UNTRUSTED_SIGNATURE}, 2},
        {PKG_SIGN_GOOD,
         -1,
         "{\"state\":\"signed\",\"public_key\":\"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"}",
         {0},
         0},
        {PKG_SIGN_GOOD,
         0,
         "{\"state\":\"signed\",\"public_key\":\"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"}",
         {0},
         0},
        {PKG_SIGN_GOOD,
         1,
         "{\"state\":\"signed\",\"public_key\":\"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"}",
         {PKG_FAULT_UNTRUSTED_SIGNATURE},
         1},
        {PKG_SIGN_BAD, -1, "{\"state\":\"bad\",\"reason\":\"why\"}", {PKG_FAULT_BAD_SIGNATURE}, 1},
        {PKG_SIGN_BAD, 0, "{\"state\":\"bad\",\"reason\":\"why\"}", {PKG_FAULT_BAD_SIGNATURE}, 1},
    };
    (void)state;
    struct strata_errmsg em;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_signature s = {.state = rows[i].state, .signer = *ed25519_key_pub(K[0]), .reason = "why"};
        struct pkg_faults f;
        json_t *o;
        assert_int_equal(pkg_sign_to_json(&s, &o, &em), STRATA_OK);
        char *text = json_dumps(o, JSON_COMPACT);
        assert_string_equal(text, rows[i].json);
        free(text);
        json_decref(o);
        pkg_faults_init(&f);
        pkg_sign_add_faults(&s, rows[i].want < 0 ? NULL : ed25519_key_pub(K[rows[i].want]), &f);
        assert_int_equal(f.n, rows[i].n);
        for (size_t k = 0; k < f.n; k++) assert_int_equal(f.list[k].code, rows[i].codes[k]);
        pkg_faults_deinit(&f);
    }
}

/* ---- signing ---- */

static void test_replace(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct pkg_sign_result r;
    sign(0);
    struct buf mine = slurp(sidecar);
    assert_int_equal(pkg_sign_write(pkg, K[1], false, &r, &em), STRATA_EBUSY);
    assert_non_null(strstr(em.text, "--force"));
    struct buf still = slurp(sidecar);
    assert_int_equal(still.len, mine.len);
    assert_memory_equal(still.data, mine.data, mine.len);
    assert_int_equal(pkg_sign_write(pkg, K[1], true, &r, &em), STRATA_OK);
    struct pkg_signature s = look();
    assert_true(ed25519_pub_equal(&s.signer, ed25519_key_pub(K[1])));
    put(sidecar, "junk", 4);
    assert_int_equal(pkg_sign_write(pkg, K[1], false, &r, &em), STRATA_EBUSY);
    assert_int_equal(pkg_sign_write(pkg, K[1], true, &r, &em), STRATA_OK);
    assert_int_equal(look().state, PKG_SIGN_GOOD);
    /* A link is replaced, not followed. */
    unlink(sidecar);
    put(tmp_path(&T, "victim"), "keep", 4);
    assert_int_equal(symlink("../victim", sidecar), 0);
    assert_int_equal(pkg_sign_write(pkg, K[0], false, &r, &em), STRATA_EBUSY);
    assert_int_equal(pkg_sign_write(pkg, K[0], true, &r, &em), STRATA_OK);
    assert_int_equal(look().state, PKG_SIGN_GOOD);
    struct buf victim = slurp(tmp_path(&T, "victim"));
    assert_string_equal(buf_cstr(&victim), "keep");
    /* A folder cannot be replaced, and nothing is left beside it. */
    unlink(sidecar);
    assert_int_equal(mkdir(sidecar, 0700), 0);
    assert_int_equal(pkg_sign_write(pkg, K[0], true, &r, &em), STRATA_EIO);
    DIR *d = opendir(pkg);
    size_t n = 0;
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    assert_int_equal(n, 4); /* ".", "..", manifest, the folder */
    buf_deinit(&mine);
    buf_deinit(&still);
    buf_deinit(&victim);
}

/* What no reader accepts is not signed. */
static void test_unreadable_manifest(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct pkg_sign_result r;
    char path[400], sha[DIGEST_HEX];
    snprintf(path, sizeof path, "%s/%s", pkg, PKG_MANIFEST_FILE);
    put(path, "{}", 2);
    assert_int_not_equal(pkg_sign_write(pkg, K[0], false, &r, &em), STRATA_OK);
    unlink(path);
    assert_int_equal(pkg_sign_write(pkg, K[0], false, &r, &em), STRATA_ENOENT);
    assert_int_equal(pkg_sign_digest(pkg, sha, &em), STRATA_ENOENT);
    assert_false(file_is_regular(sidecar));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_domain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_bit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_manifest_changed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mixed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fields, setup, teardown),
        cmocka_unit_test_setup_teardown(test_documents, setup, teardown),
        cmocka_unit_test_setup_teardown(test_links, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hub_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(test_require, setup, teardown),
        cmocka_unit_test_setup_teardown(test_telling, setup, teardown),
        cmocka_unit_test_setup_teardown(test_replace, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unreadable_manifest, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

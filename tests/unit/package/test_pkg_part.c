/*
 * One part of a package: what is never opened (paths and links that lead out, what is no file), what is opened once and
 * stays the same, and what its header must agree with.
 */
#include "package/pkg_check.h"
#include "package/pkg_inside.h"
#include "package/pkg_part.h"
#include "package/pkg_slice.h"

#include "pkg_edit.h"

#include <sys/stat.h>

static struct tmp_folder T;

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    struct sample s = {tmp_path(&T, "m"), 3, false, true, 1, UINT32_MAX};
    edit_write_package(&T, &s);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

/* ---- paths of the manifest ---- */

static void test_unsafe_paths(void **state) {
    (void)state;
    static const struct {
        const char *path; /* as JSON */
        enum pkg_fault_code code;
    } rows[] = {
        {"/etc/passwd", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"../m.gguf", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"layers/../../m.gguf", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"layers/./layer-00000.gguf", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"layers//layer-00000.gguf", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"layers/", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"layers\\\\layer-00000.gguf", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"..\\\\m.gguf", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"C:/layer-00000.gguf", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"layers/layer-00000.gguf:stream", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"layers/nul.gguf", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"COM1", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"layers/layer-00000.gguf.", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"layers/layer-00000.gguf ", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"layers/layer-00000\\n.gguf", PKG_FAULT_UNSAFE_ARTIFACT_PATH},
        {"layers/layer-00000.gguf\\u0000.txt", PKG_FAULT_INVALID_MANIFEST_JSON},
        {"layers/LAYER-00001.gguf", PKG_FAULT_ARTIFACT_PATH_CASE_CLASH},
        {"Shared/Metadata.gguf", PKG_FAULT_ARTIFACT_PATH_CASE_CLASH},
        {"layers/layer-00001.gguf", PKG_FAULT_DUPLICATE_ARTIFACT_PATH},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_check_options opt = {0};
        struct pkg_check_report r;
        struct strata_errmsg em;
        struct buf b;
        json_t *root = edit_load(&T);
        json_object_set_new(edit_entry(root, "layers/layer-00000.gguf"), "path", json_string("@"));
        char *text = json_dumps(root, JSON_INDENT(2)), *at = strstr(text, "\"@\"");
        json_decref(root);
        assert_non_null(at);
        buf_init(&b, 1 << 20);
        *at = '\0';
        assert_int_equal(buf_printf(&b, &em, "%s\"%s\"%s", text, rows[i].path, at + 3), STRATA_OK);
        assert_int_equal(rename(tmp_path(&T, "p/model-package.json"), tmp_path(&T, "keep")), 0);
        assert_int_equal(file_write_all(tmp_path(&T, "p/model-package.json"), b.data, b.len, 0644, &em), STRATA_OK);
        assert_int_equal(pkg_check_run(tmp_path(&T, "p"), &opt, &r, &em), STRATA_OK);
        if (!edit_has(&r.faults, rows[i].code, NULL)) fail_msg("%s:%s", rows[i].path, edit_list(&r.faults));
        assert_false(pkg_check_is_valid(&r));
        if (rows[i].code == PKG_FAULT_UNSAFE_ARTIFACT_PATH) assert_false(r.items[3].present);
        pkg_check_deinit(&r);
        assert_int_equal(rename(tmp_path(&T, "keep"), tmp_path(&T, "p/model-package.json")), 0);
        buf_deinit(&b);
        free(text);
    }
}

/* ---- links, and what is no file ---- */

static const char LAYER[] = "layers/layer-00001.gguf";

/* Opens the package's second layer; returns whether it could, and the fault's code otherwise. */
static bool opens(enum pkg_fault_code *code) {
    struct pkg_manifest *m = NULL;
    struct pkg_faults faults;
    struct pkg_part part;
    struct strata_errmsg em;
    size_t n;
    pkg_faults_init(&faults);
    assert_int_equal(pkg_manifest_load(tmp_path(&T, "p"), &m, &em), STRATA_OK);
    assert_int_equal(pkg_part_open(tmp_path(&T, "p"), pkg_manifest_layer(m, 1, &n), true, NULL, &faults, &part, &em),
                     STRATA_OK);
    bool ok = part.reader && faults.n == 0;
    if (!ok) {
        assert_int_equal(faults.n, 1);
        *code = faults.list[0].code;
        assert_string_equal(faults.list[0].path, LAYER);
        /* What it is called on this machine is nobody's business. */
        assert_null(strstr(faults.list[0].message, T.path));
    }
    assert_int_equal(part.present, ok || *code == PKG_FAULT_ARTIFACT_SIZE_MISMATCH);
    pkg_part_close(&part);
    pkg_faults_deinit(&faults);
    pkg_manifest_free(m);
    return ok;
}

static void link_to(const char *target) {
    remove(tmp_path(&T, "p/layers/layer-00001.gguf"));
    assert_int_equal(symlink(target, tmp_path(&T, "p/layers/layer-00001.gguf")), 0);
}

static void test_links(void **state) {
    (void)state;
    enum pkg_fault_code code;
    char absolute[600];
    assert_true(opens(&code));
    /* Inside: beside it, by way of another folder, by an absolute path, over two links. */
    assert_int_equal(mkdir(tmp_path(&T, "p/more"), 0755), 0);
    assert_int_equal(rename(tmp_path(&T, "p/layers/layer-00001.gguf"), tmp_path(&T, "p/more/x")), 0);
    link_to("../more/x");
    assert_true(opens(&code));
    char *real = realpath(tmp_path(&T, "p/more/x"), NULL);
    assert_non_null(real);
    snprintf(absolute, sizeof absolute, "%s", real);
    free(real);
    link_to(absolute);
    assert_true(opens(&code));
    assert_int_equal(symlink("x", tmp_path(&T, "p/more/y")), 0);
    link_to("../more/y");
    assert_true(opens(&code));
    /* Outside: the same bytes, relative, absolute, over a link that is inside, by a folder that is a link. */
    assert_int_equal(rename(tmp_path(&T, "p/more/x"), tmp_path(&T, "x")), 0);
    link_to("../../x");
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_ARTIFACT_OUTSIDE_PACKAGE);
    snprintf(absolute, sizeof absolute, "%s/x", T.path);
    link_to(absolute);
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_ARTIFACT_OUTSIDE_PACKAGE);
    assert_int_equal(remove(tmp_path(&T, "p/more/y")), 0);
    assert_int_equal(symlink("../../x", tmp_path(&T, "p/more/y")), 0);
    link_to("../more/y");
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_ARTIFACT_OUTSIDE_PACKAGE);
    /* To nothing, and in a circle. */
    link_to("nothing");
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_MISSING_ARTIFACT);
    link_to("layer-00001.gguf");
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_ARTIFACT_UNREADABLE);
}

static void test_linked_folder(void **state) {
    (void)state;
    enum pkg_fault_code code;
    assert_int_equal(rename(tmp_path(&T, "p/layers"), tmp_path(&T, "elsewhere")), 0);
    assert_int_equal(symlink("../elsewhere", tmp_path(&T, "p/layers")), 0);
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_ARTIFACT_OUTSIDE_PACKAGE);
    assert_int_equal(rename(tmp_path(&T, "elsewhere"), tmp_path(&T, "p/real")), 0);
    assert_int_equal(remove(tmp_path(&T, "p/layers")), 0);
    assert_int_equal(symlink("real", tmp_path(&T, "p/layers")), 0);
    assert_true(opens(&code));
    /* A folder beside the package whose name starts like the package's. */
    assert_int_equal(rename(tmp_path(&T, "p/real"), tmp_path(&T, "p-more")), 0);
    assert_int_equal(remove(tmp_path(&T, "p/layers")), 0);
    assert_int_equal(symlink("../p-more", tmp_path(&T, "p/layers")), 0);
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_ARTIFACT_OUTSIDE_PACKAGE);
    /* A file in the folder's place. */
    assert_int_equal(remove(tmp_path(&T, "p/layers")), 0);
    assert_int_equal(file_write_all(tmp_path(&T, "p/layers"), "x", 1, 0644, NULL), STRATA_OK);
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_MISSING_ARTIFACT);
}

static void test_no_file(void **state) {
    (void)state;
    enum pkg_fault_code code;
    const char *path = tmp_path(&T, "p/layers/layer-00001.gguf");
    assert_int_equal(remove(path), 0);
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_MISSING_ARTIFACT);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_ARTIFACT_NOT_FILE);
    assert_int_equal(remove(path), 0);
    /* Opening a FIFO must neither wait nor happen. */
    assert_int_equal(mkfifo(path, 0644), 0);
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_ARTIFACT_NOT_FILE);
    assert_int_equal(remove(path), 0);
    link_to("/dev/null");
    assert_false(opens(&code));
    assert_int_equal(code, PKG_FAULT_ARTIFACT_OUTSIDE_PACKAGE);
}

/* A hub's cache: snapshots/<revision> is a folder of links to blobs. Only that repository's blobs count as inside. */
static void test_hub_cache(void **state) {
    (void)state;
    static const char *const parts[] = {"model-package.json",     "shared/metadata.gguf",    "shared/embeddings.gguf",
                                        "shared/output.gguf",     "layers/layer-00000.gguf", "layers/layer-00001.gguf",
                                        "layers/layer-00002.gguf"};
    struct pkg_check_options opt = {0};
    struct pkg_check_report r;
    struct strata_errmsg em;
    char dir[600], from[900], to[900];
    snprintf(dir, sizeof dir, "%s/hub/models--ns--name/snapshots/abc", T.path);
    const char *const folders[] = {"hub/models--ns--name/snapshots/abc/shared", "hub/models--ns--name/blobs/sub",
                                   "hub/models--ns--name/snapshots/abc/layers", "hub/models--ns--other/blobs",
                                   "hub/models--ns--name/snapshots/def",        "hub/models--ns--name/blobs-more"};
    for (size_t i = 0; i < 6; i++) assert_int_equal(file_mkdirs(tmp_path(&T, folders[i]), 0755, &em), STRATA_OK);
    for (size_t i = 0; i < 7; i++) {
        snprintf(from, sizeof from, "%s/p/%s", T.path, parts[i]);
        snprintf(to, sizeof to, "%s/hub/models--ns--name/blobs/%zu", T.path, i);
        assert_int_equal(rename(from, to), 0);
        snprintf(to, sizeof to, i == 0 ? "../../blobs/%zu" : "../../../blobs/%zu", i);
        snprintf(from, sizeof from, "%s/%s", dir, parts[i]);
        assert_int_equal(symlink(to, from), 0);
    }
    assert_int_equal(pkg_check_run(dir, &opt, &r, &em), STRATA_OK);
    if (!pkg_check_is_valid(&r)) fail_msg("%s", edit_list(&r.faults));
    assert_int_equal(r.n_items, 6);
    for (size_t i = 0; i < 6; i++) assert_true(r.items[i].digest_ok);
    pkg_check_deinit(&r);
    static const struct {
        const char *target;
        bool inside;
    } rows[] = {{"../../../blobs/5", true},     {"../../../../models--ns--name/blobs/5", true},
                {"../../../blobs/sub/5", true}, {"../../../../models--ns--other/blobs/5", false},
                {"../../def/5", false},         {"../../../blobs-more/5", false},
                {"../../../5", false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char link[900], blob[900], target[1800];
        snprintf(link, sizeof link, "%s/%s", dir, parts[5]);
        snprintf(blob, sizeof blob, "%s/hub/models--ns--name/blobs/5", T.path);
        snprintf(target, sizeof target, "%s/layers/%s", dir, rows[i].target);
        assert_int_equal(remove(link), 0);
        if (i > 1) assert_int_equal(rename(blob, target), 0);
        assert_int_equal(symlink(rows[i].target, link), 0);
        bool inside;
        int fd = -1;
        assert_int_equal(pkg_inside(dir, parts[5], &inside, &em), STRATA_OK);
        assert_int_equal(inside, rows[i].inside);
        assert_int_equal(pkg_inside_open(dir, parts[5], &fd, &em), rows[i].inside ? STRATA_OK : STRATA_EAUTH);
        if (fd >= 0) close(fd);
        if (i > 1) assert_int_equal(rename(target, blob), 0);
    }
    /* Such a link in a folder that is no snapshot leads out. */
    assert_int_equal(symlink("../hub/models--ns--name/blobs/5", tmp_path(&T, "p/layers-5")), 0);
    int fd;
    assert_int_equal(pkg_inside_open(tmp_path(&T, "p"), "layers-5", &fd, &em), STRATA_EAUTH);
    assert_int_equal(pkg_inside_open(tmp_path(&T, "gone"), "x", &fd, &em), STRATA_ENOENT);
}

/* ---- opened once ---- */

static void test_one_file(void **state) {
    (void)state;
    struct pkg_manifest *m = NULL;
    struct pkg_faults faults;
    struct pkg_part part;
    struct strata_errmsg em;
    uint8_t before[DIGEST_BYTES], after[DIGEST_BYTES];
    size_t n;
    pkg_faults_init(&faults);
    assert_int_equal(pkg_manifest_load(tmp_path(&T, "p"), &m, &em), STRATA_OK);
    assert_int_equal(pkg_part_open(tmp_path(&T, "p"), pkg_manifest_layer(m, 1, &n), false, NULL, &faults, &part, &em),
                     STRATA_OK);
    assert_non_null(part.reader);
    assert_true(part.has_slice_keys);
    assert_int_equal(digest_of(part.map.data, part.map.size, before, &em), STRATA_OK);
    /* Another file takes its name; a link does. What was looked at stays. */
    assert_int_equal(rename(tmp_path(&T, "p/layers/layer-00000.gguf"), tmp_path(&T, "p/layers/layer-00001.gguf")), 0);
    link_to("/etc/hostname");
    assert_int_equal(digest_of(part.map.data, part.map.size, after, &em), STRATA_OK);
    assert_memory_equal(before, after, sizeof before);
    pkg_part_release_pages(&part);
    assert_int_equal(digest_of(part.map.data, part.map.size, after, &em), STRATA_OK);
    assert_memory_equal(before, after, sizeof before);
    pkg_part_close(&part);
    pkg_part_close(&part);
    pkg_part_close(NULL);
    pkg_faults_deinit(&faults);
    pkg_manifest_free(m);
}

/* A publisher's file is no GGUF file, and a digest that cannot be had is not the right one. */
static void test_digest(void **state) {
    (void)state;
    enum { PAGE = 4096 };
    struct pkg_artifact a = {.role = PKG_ROLE_PUBLISHER, .path = "big", .artifact_bytes = 4 * PAGE, .has_sha256 = true};
    struct pkg_faults faults;
    struct pkg_part part;
    struct strata_errmsg em;
    assert_int_equal(file_write_all(tmp_path(&T, "p/big"), "", 0, 0644, &em), STRATA_OK);
    assert_int_equal(truncate(tmp_path(&T, "p/big"), 4 * PAGE), 0);
    pkg_faults_init(&faults);
    assert_int_equal(pkg_part_open(tmp_path(&T, "p"), &a, false, NULL, &faults, &part, &em), STRATA_OK);
    assert_true(part.present && part.map.data && !part.reader && !part.digest_checked);
    pkg_part_judge(&part, NULL, "big cannot be read", &faults);
    assert_true(part.digest_checked && !part.digest_ok);
    assert_true(edit_has(&faults, PKG_FAULT_ARTIFACT_SHA256_UNREADABLE, "big"));
    pkg_part_close(&part);
    pkg_faults_deinit(&faults);
    /* And when it can be had, it is compared. */
    for (int right = 0; right < 2; right++) {
        pkg_faults_init(&faults);
        static const uint8_t zeros[4 * PAGE];
        assert_int_equal(digest_of(zeros, sizeof zeros, a.sha256, &em), STRATA_OK);
        if (!right) a.sha256[0] ^= 1;
        assert_int_equal(pkg_part_open(tmp_path(&T, "p"), &a, true, NULL, &faults, &part, &em), STRATA_OK);
        assert_int_equal(part.digest_ok, right);
        assert_int_equal(edit_has(&faults, PKG_FAULT_ARTIFACT_SHA256_MISMATCH, "big"), !right);
        pkg_part_close(&part);
        pkg_faults_deinit(&faults);
    }
}

/* ---- slice keys ---- */

static void test_slices(void **state) {
    (void)state;
    static const struct {
        struct pkg_slice slice;
        enum pkg_role role;
        uint32_t layer;
        bool fits;
    } rows[] = {
        {{1004, {4, 5}, false, false, false}, PKG_ROLE_LAYER, 4, true},
        {{7, {4, 5}, false, false, false}, PKG_ROLE_LAYER, 4, true}, /* the number does not matter */
        {{1004, {4, 6}, false, false, false}, PKG_ROLE_LAYER, 4, false},
        {{1004, {3, 5}, false, false, false}, PKG_ROLE_LAYER, 4, false},
        {{1004, {4, 4}, false, false, false}, PKG_ROLE_LAYER, 4, false},
        {{1004, {4, 5}, true, false, false}, PKG_ROLE_LAYER, 4, false},
        {{1004, {4, 5}, false, true, false}, PKG_ROLE_LAYER, 4, false},
        {{0, {0, 0}, false, false, false}, PKG_ROLE_METADATA, 0, true},
        {{0, {0, 1}, false, false, false}, PKG_ROLE_METADATA, 0, false},
        {{0, {0, 0}, true, false, false}, PKG_ROLE_METADATA, 0, false},
        {{1, {0, 0}, true, false, false}, PKG_ROLE_EMBEDDINGS, 0, true},
        {{1, {0, 0}, false, false, false}, PKG_ROLE_EMBEDDINGS, 0, false},
        {{2, {9, 9}, false, true, false}, PKG_ROLE_OUTPUT, 0, true},
        {{2, {9, 9}, true, true, false}, PKG_ROLE_OUTPUT, 0, false},
        {{2, {8, 9}, false, true, false}, PKG_ROLE_OUTPUT, 0, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_artifact a = {.role = rows[i].role, .layer = rows[i].layer};
        assert_int_equal(pkg_slice_fits(&rows[i].slice, &a), rows[i].fits);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_unsafe_paths, setup, teardown),
        cmocka_unit_test_setup_teardown(test_links, setup, teardown),
        cmocka_unit_test_setup_teardown(test_linked_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hub_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_digest, setup, teardown),
        cmocka_unit_test(test_slices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

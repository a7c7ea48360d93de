/* The package writer: recomposition, determinism, provenance, refusals, and that failures leave nothing half done. */
#include "base/file.h"
#include "gguf/gguf_source.h"
#include "package/pkg_class.h"
#include "package/pkg_manifest.h"
#include "package/pkg_part.h"
#include "package/pkg_write.h"

#include "pkg_sample.h"

#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>

static struct tmp_folder T;

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unsetenv("SOURCE_DATE_EPOCH");
    tmp_folder_remove(T.path);
    return 0;
}

static strata_err write_to(const char *source, const char *dir, struct strata_errmsg *em) {
    struct pkg_write_result res;
    struct pkg_write_options opt = {.out_dir = dir, .identity.local = true, .how.jobs = 2};
    strata_err rc = pkg_write(source, &opt, &res, em);
    if (!rc) json_decref(res.manifest);
    return rc;
}

/* Every tensor of the source is in exactly one part (replicated ones in all), byte for byte and nothing else is there.
 */
static void check_recomposes(const char *source, const char *dir) {
    struct gguf_source *src;
    struct pkg_manifest *m;
    struct strata_errmsg em;
    size_t owned_seen = 0, owned = 0, n_parts = 0;
    assert_int_equal(gguf_source_open(source, &src, &em), STRATA_OK);
    assert_int_equal(pkg_manifest_load(dir, &m, &em), STRATA_OK);
    for (size_t i = 0; i < gguf_source_tensor_count(src); i++)
        owned += pkg_class_is_owned(pkg_class_of(gguf_source_tensor(src, i, NULL)->name, NULL));
    for (; n_parts < m->n_artifacts; n_parts++) {
        const struct pkg_artifact *a = &m->artifacts[n_parts];
        struct pkg_part part;
        struct pkg_faults faults;
        size_t last = 0;
        pkg_faults_init(&faults);
        assert_int_equal(pkg_part_open(dir, a, true, NULL, &faults, &part, &em), STRATA_OK);
        assert_int_equal(faults.n, 0);
        assert_true(part.digest_checked && part.digest_ok);
        for (size_t i = 0; i < gguf_reader_tensor_count(part.reader); i++) {
            const struct gguf_tensor *t = gguf_reader_tensor(part.reader, i);
            const struct gguf_tensor *want = gguf_source_find_tensor(src, t->name);
            assert_non_null(want);
            assert_int_equal(t->type, want->type);
            assert_int_equal(t->n_dims, want->n_dims);
            assert_memory_equal(t->ne, want->ne, sizeof t->ne);
            assert_int_equal(t->bytes, want->bytes);
            assert_memory_equal(t->data, want->data, t->bytes);
            owned_seen += pkg_class_is_owned(pkg_class_of(t->name, NULL));
            size_t at = 0; /* source order is kept */
            while (gguf_source_tensor(src, at, NULL) != want) at++;
            assert_true(i == 0 || at > last);
            last = at;
        }
        pkg_part_close(&part);
        pkg_faults_deinit(&faults);
    }
    assert_int_equal(owned_seen, owned);
    assert_int_equal(n_parts, 3 + m->layer_count);
    pkg_manifest_free(m);
    gguf_source_free(src);
}

static void test_recomposes(void **state) {
    (void)state;
    static const struct sample samples[] = {{"", 3, false, false, 1, UINT32_MAX},
                                            {"", 4, true, true, 1, UINT32_MAX},
                                            {"", 5, false, true, 2, UINT32_MAX},
                                            {"", 1, true, false, 2, UINT32_MAX}};
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        char base[300], source[400], dir[400];
        struct strata_errmsg em;
        struct sample s = samples[i];
        snprintf(base, sizeof base, "%s/m%zu", T.path, i);
        snprintf(source, sizeof source, "%s%s.gguf", base, s.shards > 1 ? "-00002-of-00002" : "");
        snprintf(dir, sizeof dir, "%s-package", base);
        s.path = base;
        sample_write(&s);
        assert_int_equal(write_to(source, dir, &em), STRATA_OK);
        check_recomposes(source, dir);
    }
}

static void check_same_file(const char *a, const char *b) {
    struct buf x, y;
    struct strata_errmsg em;
    buf_init(&x, 1 << 24);
    buf_init(&y, 1 << 24);
    assert_int_equal(file_read_all(a, 1 << 24, &x, &em), STRATA_OK);
    assert_int_equal(file_read_all(b, 1 << 24, &y, &em), STRATA_OK);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    buf_deinit(&x);
    buf_deinit(&y);
}

/* Twice the same, manifest included; and a split source gives the same fragments as a whole one. */
static void test_deterministic(void **state) {
    (void)state;
    static const char *const files[] = {"shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf",
                                        "layers/layer-00000.gguf", "layers/layer-00002.gguf"};
    struct strata_errmsg em;
    char a[400], b[400];
    struct sample whole = {tmp_path(&T, "same"), 3, false, true, 1, UINT32_MAX};
    sample_write(&whole);
    assert_int_equal(write_to(tmp_path(&T, "same.gguf"), tmp_path(&T, "p1"), &em), STRATA_OK);
    assert_int_equal(write_to(tmp_path(&T, "same.gguf"), tmp_path(&T, "p2"), &em), STRATA_OK);
    struct sample split = {tmp_path(&T, "same"), 3, false, true, 2, UINT32_MAX};
    sample_write(&split);
    assert_int_equal(write_to(tmp_path(&T, "same-00001-of-00002.gguf"), tmp_path(&T, "p3"), &em), STRATA_OK);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(a, sizeof a, "%s/p1/%s", T.path, files[i]);
        snprintf(b, sizeof b, "%s/p2/%s", T.path, files[i]);
        check_same_file(a, b);
        snprintf(b, sizeof b, "%s/p3/%s", T.path, files[i]);
        check_same_file(a, b);
    }
    check_same_file(tmp_path(&T, "p1/model-package.json"), tmp_path(&T, "p2/model-package.json"));
}

static void test_slice_keys(void **state) {
    (void)state;
    static const struct {
        int role;
        uint32_t layer;
        int64_t index, start, end;
        bool embeddings, output;
    } rows[] = {{PKG_ROLE_METADATA, 0, 0, 0, 0, false, false},
                {PKG_ROLE_EMBEDDINGS, 0, 1, 0, 0, true, false},
                {PKG_ROLE_OUTPUT, 0, 2, 3, 3, false, true},
                {PKG_ROLE_LAYER, 2, 1002, 2, 3, false, false}};
    struct strata_errmsg em;
    struct pkg_manifest *m;
    struct sample s = {tmp_path(&T, "k"), 3, false, false, 2, UINT32_MAX};
    sample_write(&s);
    const char *dir = tmp_path(&T, "kp");
    assert_int_equal(write_to(tmp_path(&T, "k-00001-of-00002.gguf"), dir, &em), STRATA_OK);
    assert_int_equal(pkg_manifest_load(dir, &m, &em), STRATA_OK);
    for (size_t i = 0; i < 4; i++) {
        const struct pkg_artifact *a =
            &m->artifacts[rows[i].role == PKG_ROLE_LAYER ? 3 + rows[i].layer : (size_t)rows[i].role];
        struct pkg_part p;
        struct pkg_faults faults;
        bool b = false;
        pkg_faults_init(&faults);
        assert_int_equal(pkg_part_open(dir, a, true, NULL, &faults, &p, &em), STRATA_OK);
        const char *const keys[] = {"skippy.slice.stage_index", "skippy.slice.layer_start", "skippy.slice.layer_end"};
        const int64_t want[] = {rows[i].index, rows[i].start, rows[i].end};
        for (size_t k = 0; k < 3; k++) {
            const struct gguf_kv *kv = gguf_reader_find_kv(p.reader, keys[k]);
            assert_non_null(kv);
            assert_int_equal(kv->kind, GGUF_KIND_I32);
            assert_int_equal(gguf_reader_int_at(kv, 0), want[k]);
        }
        assert_int_equal(gguf_reader_get_bool(p.reader, "skippy.slice.include_embeddings", true, &b, &em), STRATA_OK);
        assert_int_equal(b, rows[i].embeddings);
        assert_int_equal(gguf_reader_get_bool(p.reader, "skippy.slice.include_output", true, &b, &em), STRATA_OK);
        assert_int_equal(b, rows[i].output);
        assert_null(gguf_reader_find_kv(p.reader, "split.count"));
        assert_non_null(gguf_reader_find_kv(p.reader, "general.name"));
        pkg_part_close(&p);
        pkg_faults_deinit(&faults);
    }
    pkg_manifest_free(m);
}

static void test_identity(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "My Model.Q4"), 1, true, false, 1, UINT32_MAX};
    struct strata_errmsg em;
    struct pkg_manifest *m;
    struct pkg_write_result res;
    sample_write(&s);
    char source[512];
    snprintf(source, sizeof source, "%s/My Model.Q4.gguf", T.path);
    assert_int_equal(write_to(source, tmp_path(&T, "i1"), &em), STRATA_OK);
    assert_int_equal(pkg_manifest_load(tmp_path(&T, "i1"), &m, &em), STRATA_OK);
    assert_string_equal(m->model_id, "local/My-Model.Q4");
    assert_string_equal(m->source.path, "My Model.Q4.gguf"); /* never a folder of this machine */
    assert_null(m->source.repo);
    assert_null(m->source.canonical_ref);
    assert_int_equal(m->created_at, 1700000000);
    assert_int_equal(m->activation_width, SAMPLE_WIDTH);
    assert_string_equal(m->abi_version, PKG_MANIFEST_ABI);
    pkg_manifest_free(m);
    struct pkg_write_options opt = {.out_dir = tmp_path(&T, "i2"),
                                    .identity = {"org/model-GGUF:Q4", NULL, "abc123", "sub/m.gguf", false}};
    assert_int_equal(pkg_write(source, &opt, &res, &em), STRATA_OK);
    assert_false(res.identity.derived);
    json_decref(res.manifest);
    assert_int_equal(pkg_manifest_load(tmp_path(&T, "i2"), &m, &em), STRATA_OK);
    assert_string_equal(m->model_id, "org/model-GGUF:Q4");
    assert_string_equal(m->source.repo, "org/model-GGUF");
    assert_string_equal(m->source.canonical_ref, "org/model-GGUF@abc123/sub/m.gguf");
    assert_string_equal(m->source.files[0].path, "sub/m.gguf");
    assert_memory_equal(m->source.files[0].sha256, m->source.sha256, DIGEST_BYTES);
    pkg_manifest_free(m);
    static const struct pkg_identity_request bad[] = {
        {"/etc", NULL, NULL, NULL, true},   {"model", NULL, NULL, NULL, true}, {"a/b/c", NULL, NULL, NULL, true},
        {"../b", NULL, NULL, NULL, true},   {"a/..", NULL, NULL, NULL, true},  {"", NULL, NULL, NULL, true},
        {"o/m", "nope", NULL, NULL, true},  {"o/m", NULL, "", NULL, true},     {"o/m", NULL, " ", NULL, true},
        {"o/m", NULL, NULL, "../x", true},  {"o/m", NULL, NULL, "/x", true},   {"o/m\n", NULL, NULL, NULL, true},
        {"o/m", NULL, "a\x1b", NULL, true}, {NULL, NULL, NULL, NULL, false},   {"o/m", NULL, NULL, "f", false},
        {"o/m", NULL, "r", NULL, false},    {NULL, NULL, "r", "f", false},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pkg_write_options o = {.out_dir = tmp_path(&T, "i3"), .identity = bad[i]};
        assert_int_equal(pkg_write(source, &o, &res, &em), STRATA_EINVAL);
        assert_false(file_is_dir(tmp_path(&T, "i3")));
    }
}

static void test_shard_digests(void **state) {
    (void)state;
    static const char *const names[] = {"d-00001-of-00002.gguf", "d-00002-of-00002.gguf"};
    struct sample s = {tmp_path(&T, "d"), 3, true, false, 2, UINT32_MAX};
    struct strata_errmsg em;
    struct pkg_manifest *m;
    sample_write(&s);
    assert_int_equal(write_to(tmp_path(&T, names[0]), tmp_path(&T, "dp"), &em), STRATA_OK);
    assert_int_equal(pkg_manifest_load(tmp_path(&T, "dp"), &m, &em), STRATA_OK);
    assert_int_equal(m->source.n_files, 2);
    for (size_t i = 0; i < 2; i++) {
        struct buf x;
        uint8_t sum[DIGEST_BYTES];
        buf_init(&x, 1 << 24);
        assert_int_equal(file_read_all(tmp_path(&T, names[i]), 1 << 24, &x, &em), STRATA_OK);
        assert_int_equal(digest_of(x.data, x.len, sum, &em), STRATA_OK);
        assert_memory_equal(sum, m->source.files[i].sha256, sizeof sum);
        assert_string_equal(m->source.files[i].path, names[i]);
        assert_int_equal(m->source.files[i].size_bytes, x.len);
        buf_deinit(&x);
    }
    pkg_manifest_free(m);
}

static void test_refusals(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct sample s = {tmp_path(&T, "r"), 3, true, false, 1, UINT32_MAX};
    sample_write(&s);
    char source[512];
    snprintf(source, sizeof source, "%s/r.gguf", T.path);
    /* A folder with something in it is left alone. */
    assert_int_equal(mkdir(tmp_path(&T, "full"), 0755), 0);
    assert_int_equal(file_write_all(tmp_path(&T, "full/keep"), "x", 1, 0644, &em), STRATA_OK);
    assert_int_equal(write_to(source, tmp_path(&T, "full"), &em), STRATA_EINVAL);
    assert_true(file_is_regular(tmp_path(&T, "full/keep")));
    assert_false(file_is_dir(tmp_path(&T, "full/shared")));
    /* The source as the output, under its own name and through a link. */
    assert_int_equal(write_to(source, source, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "source model itself"));
    assert_int_equal(symlink("r.gguf", tmp_path(&T, "link")), 0);
    assert_int_equal(write_to(source, tmp_path(&T, "link"), &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "source model itself"));
    assert_int_equal(write_to(tmp_path(&T, "full/keep"), tmp_path(&T, "o"), &em), STRATA_EFORMAT);
    assert_int_equal(write_to(source, tmp_path(&T, "full/keep"), &em), STRATA_EINVAL);
    assert_int_equal(write_to(tmp_path(&T, "gone.gguf"), tmp_path(&T, "o"), &em), STRATA_ENOENT);
    /* Gaps in the layers, and no layers at all. */
    struct sample gap = {tmp_path(&T, "gap"), 3, true, false, 1, 1},
                  none = {tmp_path(&T, "none"), 1, true, false, 1, 0};
    sample_write(&gap);
    sample_write(&none);
    assert_int_equal(write_to(tmp_path(&T, "gap.gguf"), tmp_path(&T, "o"), &em), STRATA_EFORMAT);
    assert_non_null(strstr(em.text, "layer 1"));
    assert_int_equal(write_to(tmp_path(&T, "none.gguf"), tmp_path(&T, "o"), &em), STRATA_EUNSUPPORTED);
    setenv("SOURCE_DATE_EPOCH", "yesterday", 1);
    assert_int_equal(write_to(source, tmp_path(&T, "o"), &em), STRATA_EINVAL);
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    assert_false(file_is_dir(tmp_path(&T, "o")));
    /* An empty folder that exists is fine. */
    assert_int_equal(mkdir(tmp_path(&T, "empty"), 0755), 0);
    assert_int_equal(write_to(source, tmp_path(&T, "empty"), &em), STRATA_OK);
}

/* What a broken-off run may leave: whole files under their names, no manifest, no temporary file. */
static void check_broken_off(const char *dir, bool existed) {
    static const char *const folders[] = {"shared", "layers", "projectors", "."};
    char path[600];
    struct strata_errmsg em;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/model-package.json", dir);
    assert_false(file_is_regular(path));
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, folders[i]);
        DIR *d = opendir(path);
        for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
            size_t len = strlen(e->d_name);
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
            n++;
            if (i == 3) continue; /* the folders themselves */
            struct file_map map;
            struct gguf_reader *r;
            assert_true(len > 5 && strcmp(e->d_name + len - 5, ".gguf") == 0);
            snprintf(path, sizeof path, "%s/%s/%s", dir, folders[i], e->d_name);
            assert_int_equal(file_map_open(path, &map, &em), STRATA_OK);
            assert_int_equal(gguf_reader_new(map.data, map.size, path, &r, &em), STRATA_OK);
            gguf_reader_free(r);
            file_map_close(&map);
        }
        if (d) closedir(d);
    }
    if (n == 0) assert_int_equal(file_is_dir(dir), existed);
}

static atomic_int countdown;

static bool cancel_later(void) {
    return atomic_fetch_sub(&countdown, 1) <= 0;
}

/* Cancelled at any moment, what is left can be finished, and is then what an undisturbed run writes. */
static void test_cancel_and_resume(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "c"), 3, false, false, 1, UINT32_MAX};
    struct pkg_write_result res;
    struct strata_errmsg em;
    char source[400], whole[400], dir[400], a[500], b[500];
    sample_write(&s);
    snprintf(source, sizeof source, "%s/c.gguf", T.path);
    snprintf(whole, sizeof whole, "%s/whole", T.path);
    snprintf(dir, sizeof dir, "%s/co", T.path);
    assert_int_equal(write_to(source, whole, &em), STRATA_OK);
    size_t kept = 0;
    for (int n = 0;; n++) {
        struct pkg_write_options opt = {
            .out_dir = dir, .identity.local = true, .how = {.jobs = 2, .cancelled = cancel_later}};
        if (n % 2) assert_int_equal(mkdir(dir, 0755), 0);
        atomic_store(&countdown, n);
        strata_err rc = pkg_write(source, &opt, &res, &em);
        if (rc == STRATA_OK) {
            json_decref(res.manifest);
            assert_true(n > 6);
            break;
        }
        assert_int_equal(rc, STRATA_ECANCELLED);
        check_broken_off(dir, n % 2);
        opt.how.cancelled = NULL;
        opt.how.resume = true;
        assert_int_equal(pkg_write(source, &opt, &res, &em), STRATA_OK);
        json_decref(res.manifest);
        kept += res.kept_count;
        snprintf(a, sizeof a, "%s/model-package.json", whole);
        snprintf(b, sizeof b, "%s/model-package.json", dir);
        check_same_file(a, b); /* digests of all files are in it */
        tmp_folder_remove(dir);
    }
    assert_true(kept > 0);
}

/* What is right is kept; what is damaged, missing, too long or left over is made right. */
static void test_resume_repairs(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "m"), 3, false, true, 1, UINT32_MAX};
    struct pkg_write_result res;
    struct strata_errmsg em;
    struct stat before, after;
    char a[500], b[500];
    sample_write(&s);
    struct pkg_write_options opt = {.out_dir = tmp_path(&T, "p"), .identity.local = true, .how.resume = true};
    char source[400];
    snprintf(source, sizeof source, "%s/m.gguf", T.path);
    assert_int_equal(write_to(source, tmp_path(&T, "q"), &em), STRATA_OK);
    assert_int_equal(write_to(source, opt.out_dir, &em), STRATA_OK);
    assert_int_equal(stat(tmp_path(&T, "p/layers/layer-00000.gguf"), &before), 0);
    FILE *f = fopen(tmp_path(&T, "p/layers/layer-00001.gguf"), "r+b");
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    fputc(0x55, f);
    fclose(f);
    f = fopen(tmp_path(&T, "p/shared/output.gguf"), "ab");
    fputc(0, f);
    fclose(f);
    assert_int_equal(unlink(tmp_path(&T, "p/layers/layer-00002.gguf")), 0);
    assert_int_equal(file_write_all(tmp_path(&T, "p/layers/layer-00002.gguf.tmp-Ab12xy"), "x", 1, 0644, &em),
                     STRATA_OK);
    setenv("SOURCE_DATE_EPOCH", "1800000000", 1); /* the time of the first run is kept */
    assert_int_equal(pkg_write(source, &opt, &res, &em), STRATA_OK);
    json_decref(res.manifest);
    assert_int_equal(res.kept_count, res.file_count - 1 - 3);
    assert_int_equal(stat(tmp_path(&T, "p/layers/layer-00000.gguf"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_not_equal(access(tmp_path(&T, "p/layers/layer-00002.gguf.tmp-Ab12xy"), F_OK), 0);
    snprintf(a, sizeof a, "%s/p/model-package.json", T.path);
    snprintf(b, sizeof b, "%s/q/model-package.json", T.path);
    check_same_file(a, b);
    /* A complete package of another model is not written over. */
    struct sample other = {tmp_path(&T, "other"), 3, false, true, 1, UINT32_MAX};
    sample_write(&other);
    assert_int_equal(pkg_write(tmp_path(&T, "other.gguf"), &opt, &res, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "another model"));
    check_same_file(a, b);
}

static void write_script(const char *path, const char *text) {
    struct strata_errmsg em;
    assert_int_equal(file_write_all(path, text, strlen(text), 0755, &em), STRATA_OK);
}

/* The publisher's program sees each file whole, once, by both names; it may remove them; its failure stops the run. */
static void test_after_command(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "h"), 3, false, false, 1, UINT32_MAX};
    struct pkg_write_result res;
    struct strata_errmsg em;
    struct buf log;
    char script[1400];
    sample_write(&s);
    snprintf(script, sizeof script,
             "#!/bin/sh\nset -e\nhead -c 4 \"$SKIPPY_PACKAGE_ARTIFACT_PATH\" | grep -q GGUF\n"
             "echo \"$SKIPPY_PACKAGE_ARTIFACT_RELATIVE_PATH\" >>%s/log\nrm \"$SKIPPY_PACKAGE_ARTIFACT_PATH\"\n"
             "case $SKIPPY_PACKAGE_ARTIFACT_PATH in /*/$SKIPPY_PACKAGE_ARTIFACT_RELATIVE_PATH) ;; *) exit 9;; esac\n",
             T.path);
    write_script(tmp_path(&T, "hook"), script);
    struct pkg_write_options opt = {
        .out_dir = tmp_path(&T, "ho"), .identity.local = true, .after_command = tmp_path(&T, "hook"), .how.jobs = 2};
    char source[400];
    snprintf(source, sizeof source, "%s/h.gguf", T.path);
    assert_int_equal(pkg_write(source, &opt, &res, &em), STRATA_OK);
    json_decref(res.manifest);
    buf_init(&log, 1 << 16);
    assert_int_equal(file_read_all(tmp_path(&T, "log"), 1 << 16, &log, &em), STRATA_OK);
    size_t lines = 0;
    for (size_t i = 0; i < log.len; i++) lines += log.data[i] == '\n';
    assert_int_equal(lines, 3 + 3);
    assert_non_null(strstr(log.data, "shared/metadata.gguf\n"));
    assert_non_null(strstr(log.data, "layers/layer-00002.gguf\n"));
    assert_false(file_is_regular(tmp_path(&T, "ho/layers/layer-00002.gguf")));
    buf_deinit(&log);
    write_script(tmp_path(&T, "hook"), "#!/bin/sh\nexit 7\n");
    opt.out_dir = tmp_path(&T, "ho2");
    assert_int_equal(pkg_write(source, &opt, &res, &em), STRATA_EIO);
    assert_non_null(strstr(em.text, "status 7"));
    assert_false(file_is_regular(tmp_path(&T, "ho2/model-package.json")));
    opt.after_command = tmp_path(&T, "no-such-program");
    opt.out_dir = tmp_path(&T, "ho3");
    assert_int_equal(pkg_write(source, &opt, &res, &em), STRATA_ENOENT);
}

static void test_projectors(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "j"), 2, false, false, 1, UINT32_MAX};
    struct pkg_write_result res;
    struct strata_errmsg em;
    struct pkg_manifest *m;
    char source[400], one[400], two[400], dir[400];
    sample_write(&s);
    snprintf(source, sizeof source, "%s/j.gguf", T.path);
    assert_int_equal(mkdir(tmp_path(&T, "a"), 0755), 0);
    snprintf(one, sizeof one, "%s/a/mmproj-x.gguf", T.path);
    snprintf(two, sizeof two, "%s/MMPROJ-X.gguf", T.path);
    assert_int_equal(link(source, one), 0);
    assert_int_equal(link(source, two), 0);
    snprintf(dir, sizeof dir, "%s/jp", T.path);
    struct pkg_write_options opt = {.out_dir = dir, .identity.local = true, .projectors = {one}, .n_projectors = 1};
    assert_int_equal(pkg_write(source, &opt, &res, &em), STRATA_OK);
    assert_int_equal(res.file_count, 3 + 2 + 1 + 1);
    json_decref(res.manifest);
    assert_int_equal(pkg_manifest_load(dir, &m, &em), STRATA_OK);
    const struct pkg_artifact *p = &m->artifacts[m->n_artifacts - 1];
    assert_int_equal(p->role, PKG_ROLE_PROJECTOR);
    assert_string_equal(p->path, "projectors/mmproj-x.gguf");
    assert_memory_equal(p->sha256, m->source.sha256, DIGEST_BYTES); /* a copy of the same file */
    assert_int_equal(p->tensor_count, 2 * 3 + 3);
    pkg_manifest_free(m);
    /* Names that clash where case does not count, that look like a split set's, that no package can hold. */
    char split[400], bad[400], text[400];
    snprintf(split, sizeof split, "%s/p-00001-of-00002.gguf", T.path);
    snprintf(bad, sizeof bad, "%s/a\\b.gguf", T.path);
    snprintf(text, sizeof text, "%s/text.gguf", T.path);
    assert_int_equal(link(source, split), 0);
    assert_int_equal(link(source, bad), 0);
    assert_int_equal(file_write_all(text, "hello", 5, 0644, &em), STRATA_OK);
    const struct {
        const char *files[2];
        strata_err rc;
        const char *says;
    } rows[] = {{{one, two}, STRATA_EINVAL, "two projectors"},
                {{split, NULL}, STRATA_EINVAL, "split model"},
                {{bad, NULL}, STRATA_EINVAL, "backslash"},
                {{text, NULL}, STRATA_EFORMAT, "GGUF"},
                {{tmp_path(&T, "gone.gguf"), NULL}, STRATA_ENOENT, "gone.gguf"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_write_options o = {.out_dir = tmp_path(&T, "jx"),
                                      .identity.local = true,
                                      .projectors = {rows[i].files[0], rows[i].files[1]},
                                      .n_projectors = rows[i].files[1] ? 2 : 1};
        assert_int_equal(pkg_write(source, &o, &res, &em), rows[i].rc);
        assert_non_null(strstr(em.text, rows[i].says));
        assert_false(file_is_dir(o.out_dir));
    }
}

/* A path inside a hub cache says where the model comes from; what the user says goes before it. */
static void test_hub_cache(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct pkg_write_result res;
    char cache[400], blob[500], file[600];
    struct pkg_manifest *m;
    snprintf(cache, sizeof cache, "%s/hub/models--some-org--Some-Model-GGUF/snapshots/0123abc/UD-Q4_K_XL", T.path);
    assert_int_equal(file_mkdirs(cache, 0755, &em), STRATA_OK);
    snprintf(blob, sizeof blob, "%s/hub/models--some-org--Some-Model-GGUF/blobs", T.path);
    assert_int_equal(file_mkdirs(blob, 0755, &em), STRATA_OK);
    snprintf(blob, sizeof blob, "%s/hub/models--some-org--Some-Model-GGUF/blobs/x", T.path);
    struct sample s = {blob, 1, true, false, 1, UINT32_MAX};
    sample_write(&s);
    snprintf(file, sizeof file, "%s/Some-Model-UD-Q4_K_XL.gguf", cache);
    assert_int_equal(symlink("../../../blobs/x.gguf", file), 0);
    struct pkg_write_options opt = {.out_dir = tmp_path(&T, "hp")};
    assert_int_equal(pkg_write(file, &opt, &res, &em), STRATA_OK);
    json_decref(res.manifest);
    assert_int_equal(pkg_manifest_load(opt.out_dir, &m, &em), STRATA_OK);
    assert_string_equal(m->model_id, "some-org/Some-Model-GGUF:UD-Q4_K_XL");
    assert_string_equal(m->source.repo, "some-org/Some-Model-GGUF");
    assert_string_equal(m->source.revision, "0123abc");
    assert_string_equal(m->source.primary_file, "UD-Q4_K_XL/Some-Model-UD-Q4_K_XL.gguf");
    assert_string_equal(m->source.canonical_ref,
                        "some-org/Some-Model-GGUF@0123abc/UD-Q4_K_XL/Some-Model-UD-Q4_K_XL.gguf");
    assert_string_equal(m->source.distribution_id, "Some-Model-UD-Q4_K_XL");
    pkg_manifest_free(m);
    opt.identity.model_id = "me/Mine:Q4";
    opt.out_dir = tmp_path(&T, "hp2");
    assert_int_equal(pkg_write(file, &opt, &res, &em), STRATA_OK);
    assert_string_equal(res.identity.model_id, "me/Mine:Q4");
    assert_string_equal(res.identity.repo, "some-org/Some-Model-GGUF");
    json_decref(res.manifest);
}

/* Only the metadata part is whole; the others know what they are, and the package still runs and checks. */
static void test_slim(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "sl"), 3, true, true, 1, UINT32_MAX};
    struct pkg_write_result res;
    struct strata_errmsg em;
    struct pkg_manifest *m;
    sample_write(&s);
    char source[400], dir[400];
    snprintf(source, sizeof source, "%s/sl.gguf", T.path);
    snprintf(dir, sizeof dir, "%s/slp", T.path);
    struct pkg_write_options opt = {.out_dir = dir, .identity.local = true, .slim = true};
    assert_int_equal(pkg_write(source, &opt, &res, &em), STRATA_OK);
    json_decref(res.manifest);
    assert_int_equal(pkg_manifest_load(dir, &m, &em), STRATA_OK);
    for (size_t i = 0; i < m->n_artifacts; i++) {
        struct pkg_part p;
        struct pkg_faults faults;
        pkg_faults_init(&faults);
        assert_int_equal(pkg_part_open(dir, &m->artifacts[i], true, NULL, &faults, &p, &em), STRATA_OK);
        assert_int_equal(faults.n, 0);
        assert_non_null(gguf_reader_find_kv(p.reader, "general.architecture"));
        assert_int_equal(gguf_reader_find_kv(p.reader, "general.name") != NULL, i == 0);
        pkg_part_close(&p);
        pkg_faults_deinit(&faults);
    }
    pkg_manifest_free(m);
    check_recomposes(source, dir);
}

/* A disk that fills up: writes fail with EFBIG once a file reaches the limit. */
static void test_disk_full(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "f"), 3, false, false, 1, UINT32_MAX};
    struct strata_errmsg em;
    struct rlimit old, small;
    sample_write(&s);
    const char *source = tmp_path(&T, "f.gguf"), *dir = tmp_path(&T, "fo");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limits[] = {0, 100, 700, 900, 1200};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        small = old;
        small.rlim_cur = limits[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        strata_err rc = write_to(source, dir, &em);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(rc, STRATA_EIO);
        check_broken_off(dir, false);
        tmp_folder_remove(dir);
    }
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(write_to(source, dir, &em), STRATA_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_recomposes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deterministic, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slice_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(test_identity, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shard_digests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel_and_resume, setup, teardown),
        cmocka_unit_test_setup_teardown(test_resume_repairs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_after_command, setup, teardown),
        cmocka_unit_test_setup_teardown(test_projectors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hub_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slim, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_full, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

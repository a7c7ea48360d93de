/* The operations and the models they work on. See ops.h. */
#include "ops.h"

#include "base/digest.h"
#include "base/ed25519.h"
#include "base/file.h"
#include "gguf/gguf_source.h"
#include "package/pkg_check.h"
#include "package/pkg_convert.h"
#include "package/pkg_glm_dsa.h"
#include "package/pkg_materialize.h"
#include "package/pkg_model.h"
#include "package/pkg_sign.h"
#include "package/pkg_validate.h"
#include "package/pkg_validate_package.h"
#include "package/pkg_write.h"

#include "../unit/package/pkg_sample.h"

enum { MANIFEST_MAX = 1 << 20 };

/* A split set's second file, packages and slices of it, another file; and where operations write. */
static struct tmp_folder T;
static char source[512], package[512], package2[512], stage[2][512], projector[512], out_dir[512];
static struct buf manifest; /* of package */
static struct ed25519_key *signer;

void note(struct result *r, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(r->text + r->len, sizeof r->text - r->len, fmt, ap);
    va_end(ap);
    assert_true(n >= 0 && (size_t)n < sizeof r->text - r->len);
    r->len += (size_t)n;
}

uint64_t fnv(const void *data, size_t len) {
    const uint8_t *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* A name in out_dir; the next call overwrites it. */
static const char *in_out_dir(const char *name) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", out_dir, name);
    return path;
}

/* ---- the operations ---- */

static strata_err note_json(struct result *r, strata_err rc, json_t *json, struct strata_errmsg *em) {
    struct buf text;
    buf_init(&text, MANIFEST_MAX);
    if (!rc) rc = jsonx_dump(json, true, &text, em);
    if (!rc) note(r, "%s\n", buf_cstr(&text));
    json_decref(json);
    buf_deinit(&text);
    return rc;
}

static strata_err run_source(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    struct gguf_source *s;
    strata_err rc = gguf_source_open(source, &s, em);
    if (rc) return rc;
    for (size_t i = 0; i < gguf_source_tensor_count(s); i++) {
        const struct gguf_tensor *t = gguf_source_tensor(s, i, NULL);
        note(r, "%s %llx\n", t->name, (unsigned long long)fnv(t->data, t->bytes));
    }
    gguf_source_free(s);
    return STRATA_OK;
}

static strata_err run_manifest(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    struct pkg_manifest *m;
    strata_err rc = pkg_manifest_parse(manifest.data, manifest.len, "m", &m, em);
    if (rc) return rc;
    for (size_t i = 0; i < m->n_artifacts; i++) note(r, "%s\n", m->artifacts[i].path);
    note(r, "%s %s\n", m->model_id, m->sha256);
    pkg_manifest_free(m);
    return STRATA_OK;
}

/* A file that could not be read is a fault in the report, and no success. */
static strata_err check_package(struct result *r, const char *dir, struct strata_errmsg *em) {
    const struct pkg_check_options opt = {.jobs = 2};
    const struct pkg_range ranges[] = {{0, 1}, {1, 3}};
    struct pkg_check_report report;
    json_t *json = NULL;
    strata_err rc = pkg_check_run(dir, &opt, &report, em);
    if (rc) return rc;
    if (!pkg_check_is_valid(&report)) rc = pkg_faults_first(&report.faults, "package", em);
    if (!rc) rc = pkg_check_stages(&report, ranges, 2, em);
    if (!rc) rc = pkg_check_to_json(&report, false, &json, em);
    rc = note_json(r, rc, json, em);
    pkg_check_deinit(&report);
    return rc;
}

static strata_err run_check(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    return check_package(r, package, em);
}

static strata_err run_check2(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    return check_package(r, package2, em);
}

static strata_err open_range(struct result *r, const char *path, struct pkg_range range, unsigned flags,
                             struct strata_errmsg *em) {
    struct pkg_model *m;
    struct pkg_model_options opt = {.range = range, .flags = flags};
    strata_err rc = pkg_model_open(path, &opt, &m, em);
    if (rc) return rc;
    note(r, "%s %zu %llu\n", pkg_model_id(m), pkg_model_tensor_count(m), (unsigned long long)pkg_model_tensor_bytes(m));
    pkg_model_free(m);
    return STRATA_OK;
}

static strata_err run_model(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    return open_range(r, package, (struct pkg_range){0, PKG_RANGE_ALL}, PKG_MODEL_VERIFY, em);
}

static strata_err run_model2(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    return open_range(r, package2, (struct pkg_range){0, PKG_RANGE_ALL}, PKG_MODEL_VERIFY, em);
}

static strata_err run_model_range(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    return open_range(r, package, (struct pkg_range){1, 2}, 0, em);
}

static strata_err run_model_plain(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    return open_range(r, source, (struct pkg_range){1, PKG_RANGE_ALL}, 0, em);
}

static strata_err run_sizes(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    uint64_t *sizes, embedding, output;
    uint32_t n;
    strata_err rc = pkg_model_layer_sizes(package, &sizes, &n, &embedding, &output, em);
    if (rc) return rc;
    for (uint32_t i = 0; i < n; i++) note(r, "%llu ", (unsigned long long)sizes[i]);
    note(r, "%llu %llu\n", (unsigned long long)embedding, (unsigned long long)output);
    free(sizes);
    return STRATA_OK;
}

static strata_err run_file(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    strata_err rc = file_write_all(in_out_dir("file.json"), manifest.data, manifest.len, 0644, em);
    if (!rc) note(r, "written\n");
    return rc;
}

static strata_err write_package(struct result *r, unsigned schema, unsigned jobs, bool again,
                                struct strata_errmsg *em) {
    const struct pkg_write_options opt = {.how = {.jobs = jobs, .resume = again},
                                          .out_dir = out_dir,
                                          .identity.local = true,
                                          .schema = schema,
                                          .projectors = {projector},
                                          .n_projectors = 1};
    struct pkg_write_result res;
    strata_err rc = pkg_write(source, &opt, &res, em);
    if (rc) return rc;
    note(r, "%s %zu %llu\n", res.manifest_sha256, res.file_count, (unsigned long long)res.total_bytes);
    json_decref(res.manifest);
    return STRATA_OK;
}

static strata_err run_write(struct result *r, bool again, struct strata_errmsg *em) {
    return write_package(r, 1, 2, again, em);
}

static strata_err run_write2(struct result *r, bool again, struct strata_errmsg *em) {
    return write_package(r, 2, 1, again, em);
}

static strata_err run_stages(struct result *r, bool again, struct strata_errmsg *em) {
    const struct pkg_range ranges[] = {{0, 1}, {1, 3}};
    const struct pkg_write_how how = {.jobs = 2, .resume = again};
    json_t *json = NULL;
    strata_err rc = pkg_write_stages(source, ranges, 2, out_dir, &how, &json, em);
    return note_json(r, rc, json, em);
}

static strata_err run_slice(struct result *r, bool again, struct strata_errmsg *em) {
    char doc[600];
    (void)again;
    snprintf(doc, sizeof doc, "%s", in_out_dir("slice.json"));
    const struct pkg_write_slice slice = {
        .range = {1, 3}, .stage_index = 1, .out = in_out_dir("slice.gguf"), .manifest = doc};
    const struct pkg_write_how how = {.jobs = 2};
    json_t *json = NULL;
    strata_err rc = pkg_write_slice(source, &slice, &how, &json, em);
    return note_json(r, rc, json, em);
}

static strata_err run_convert(struct result *r, bool again, struct strata_errmsg *em) {
    const struct pkg_convert_options opt = {.how = {.jobs = 2, .resume = again}, .out_dir = out_dir, .to_schema = 2};
    struct pkg_convert_result res;
    strata_err rc = pkg_convert(package, &opt, &res, em);
    if (rc) return rc;
    note(r, "%s %zu\n", res.manifest_sha256, res.file_count);
    json_decref(res.manifest);
    return STRATA_OK;
}

static strata_err run_materialize(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    const struct pkg_materialize_options opt = {.range = {0, PKG_RANGE_ALL}, .out = in_out_dir("whole.gguf")};
    struct pkg_materialize_result res;
    strata_err rc = pkg_materialize(package, &opt, &res, em);
    if (!rc) note(r, "%s %zu\n", res.sha256, res.tensor_count);
    return rc;
}

static strata_err run_sign(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    struct pkg_sign_result res;
    strata_err rc = pkg_sign_write(out_dir, signer, false, &res, em);
    if (!rc) note(r, "%s\n", res.manifest_sha256);
    return rc;
}

static strata_err run_verify(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    struct pkg_signature s;
    char sum[DIGEST_HEX], text[PKG_SIGN_TEXT];
    strata_err rc = pkg_sign_digest(package2, sum, em);
    if (!rc) rc = pkg_sign_require(package2, sum, ed25519_key_pub(signer), &s, em);
    if (!rc) note(r, "%s\n", pkg_sign_text(&s, text));
    return rc;
}

static strata_err run_validate(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    const char *slices[] = {stage[0], stage[1]};
    const struct pkg_validate_options opt = {.jobs = 2};
    struct pkg_validate_report report;
    json_t *json = NULL;
    strata_err rc = pkg_validate_run(source, slices, 2, &opt, &report, em);
    if (rc) return rc;
    if (!pkg_validate_is_valid(&report)) rc = pkg_faults_first(&report.faults, "slices", em);
    if (!rc) rc = pkg_validate_to_json(&report, false, &json, em);
    rc = note_json(r, rc, json, em);
    pkg_validate_deinit(&report);
    return rc;
}

static strata_err validate_package(struct result *r, const char *dir, bool record, struct strata_errmsg *em) {
    const struct pkg_validate_package_options opt = {.jobs = 2};
    struct pkg_validate_package_report report;
    json_t *json = NULL;
    strata_err rc = pkg_validate_package_run(source, dir, &opt, &report, em);
    if (rc) return rc;
    if (!pkg_validate_package_is_valid(&report)) rc = pkg_faults_first(&report.check.faults, "package", em);
    if (!rc && record) rc = pkg_validate_package_record(&report, em);
    if (!rc && !record) rc = pkg_validate_package_to_json(&report, false, &json, em);
    if (json) rc = note_json(r, rc, json, em);
    pkg_validate_package_deinit(&report);
    return rc;
}

static strata_err run_validate_package(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    return validate_package(r, package, false, em);
}

static strata_err run_record(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    return validate_package(r, out_dir, true, em);
}

static strata_err run_glm_dsa(struct result *r, bool again, struct strata_errmsg *em) {
    (void)again;
    const struct pkg_glm_dsa_options opt = {0};
    struct pkg_glm_dsa_report report;
    json_t *json = NULL;
    strata_err rc = pkg_glm_dsa_check_path(package, &opt, &report, em);
    if (rc) return rc;
    rc = pkg_glm_dsa_to_json(&report, &json, em);
    rc = note_json(r, rc, json, em);
    pkg_glm_dsa_deinit(&report);
    return rc;
}

const struct op ops[] = {
    {"gguf_source_open", run_source, NOTHING},
    {"pkg_manifest_parse", run_manifest, NOTHING},
    {"pkg_check_run", run_check, NOTHING},
    {"pkg_check_run, schema 2", run_check2, NOTHING},
    {"pkg_model_open, verified", run_model, NOTHING},
    {"pkg_model_open, schema 2", run_model2, NOTHING},
    {"pkg_model_open, one layer", run_model_range, NOTHING},
    {"pkg_model_open, plain file", run_model_plain, NOTHING},
    {"pkg_model_layer_sizes", run_sizes, NOTHING},
    {"pkg_validate_run", run_validate, NOTHING},
    {"pkg_validate_package_run", run_validate_package, NOTHING},
    {"pkg_glm_dsa_check_path", run_glm_dsa, NOTHING},
    {"pkg_sign_require", run_verify, NOTHING},
    {"file_write_all", run_file, FOLDER},
    {"pkg_write", run_write, NO_FOLDER},
    {"pkg_write, schema 2", run_write2, NO_FOLDER},
    {"pkg_write_stages", run_stages, NO_FOLDER},
    {"pkg_write_slice", run_slice, FOLDER},
    {"pkg_convert", run_convert, NO_FOLDER},
    {"pkg_materialize", run_materialize, FOLDER},
    {"pkg_sign_write", run_sign, PACKAGE},
    {"pkg_validate_package_record", run_record, PACKAGE},
};
const size_t n_ops = sizeof ops / sizeof ops[0];

/* ---- life cycle ---- */

/* Without a flush: there are thousands of these. */
static void copy_file(const char *from, const char *to) {
    struct file_map map;
    struct strata_errmsg em;
    if (file_map_open(from, &map, &em)) fail_msg("%s", em.text);
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(map.data, 1, map.size, f), map.size);
    assert_int_equal(fclose(f), 0);
    file_map_close(&map);
}

/* One entry of `package`, copied to the same place in out_dir. */
static int copy_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    char to[1100];
    (void)st;
    (void)ftw;
    snprintf(to, sizeof to, "%s%s", out_dir, path + strlen(package));
    if (kind == FTW_D && mkdir(to, 0755) != 0) fail_msg("cannot make %s", to);
    if (kind == FTW_F) copy_file(path, to);
    return 0;
}

void ops_prepare(const struct op *op) {
    if (op->before == NOTHING) return;
    tmp_folder_remove(out_dir);
    if (op->before == FOLDER && mkdir(out_dir, 0755) != 0) fail_msg("cannot make %s", out_dir);
    if (op->before == PACKAGE) nftw(package, copy_entry, 16, FTW_PHYS);
}

const char *ops_out_dir(void) {
    return out_dir;
}

static void must(strata_err rc, const struct strata_errmsg *em) {
    if (rc) fail_msg("%s", em->text);
}

/* Makes the packages and slices that are looked at, each as the operation that writes it would. */
static void make_inputs(void) {
    static struct result unused;
    struct strata_errmsg em;
    struct pkg_sign_result signature;
    must(run_write(&unused, false, &em), &em);
    assert_int_equal(rename(out_dir, package), 0);
    must(run_write2(&unused, false, &em), &em);
    assert_int_equal(rename(out_dir, package2), 0);
    must(run_stages(&unused, false, &em), &em);
    for (int i = 0; i < 2; i++) {
        snprintf(stage[i], sizeof stage[i], "%s/stage-%d.gguf", T.path, i);
        char made[32];
        snprintf(made, sizeof made, "stage-%03d.gguf", i);
        assert_int_equal(rename(in_out_dir(made), stage[i]), 0);
    }
    tmp_folder_remove(out_dir);
    must(ed25519_key_generate(&signer, &em), &em);
    must(pkg_sign_write(package2, signer, false, &signature, &em), &em);
}

void ops_setup(void) {
    char base[300];
    struct strata_errmsg em;
    /* In memory where that can be: everything is flushed, thousands of times. */
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
    tmp_folder_make(&T);
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    snprintf(base, sizeof base, "%s/mmproj", T.path);
    sample_write(&(struct sample){base, 1, true, false, 1, UINT32_MAX});
    snprintf(projector, sizeof projector, "%s.gguf", base);
    snprintf(base, sizeof base, "%s/model", T.path);
    sample_write(&(struct sample){base, 3, true, true, 2, UINT32_MAX});
    snprintf(source, sizeof source, "%s-00002-of-00002.gguf", base);
    snprintf(package, sizeof package, "%s/package", T.path);
    snprintf(package2, sizeof package2, "%s/package2", T.path);
    snprintf(out_dir, sizeof out_dir, "%s/out", T.path);
    make_inputs();
    buf_init(&manifest, MANIFEST_MAX);
    must(file_read_all(tmp_path(&T, "package/model-package.json"), MANIFEST_MAX, &manifest, &em), &em);
}

void ops_teardown(void) {
    buf_deinit(&manifest);
    ed25519_key_free(signer);
    tmp_folder_remove(T.path);
}

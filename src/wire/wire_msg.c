/* Control messages. See wire_msg.h. Owns nothing beyond the JSON tree of one call. */
#include "wire/wire_msg.h"

#include "base/jsonx.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const role_names[] = {"control", "forward", "return"};

/* ---- what all messages share ---- */

static strata_err parse(const void *data, size_t len, json_t **out, struct strata_errmsg *em) {
    json_t *root;
    strata_err rc = jsonx_parse(data, len, &root, em);
    if (rc) return rc;
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(em, STRATA_EFORMAT, "the message is not a JSON object");
    }
    *out = root;
    return STRATA_OK;
}

/* Takes over root; NULL means that it could not be built. */
static strata_err emit(json_t *root, struct buf *out, struct strata_errmsg *em) {
    if (!root) return err_nomem(em, "a message");
    strata_err rc = jsonx_dump(root, false, out, em);
    json_decref(root);
    return rc;
}

static strata_err get_text(const json_t *o, const char *key, size_t cap, char *out, struct strata_errmsg *em) {
    const char *s;
    strata_err rc = jsonx_get_str(o, "", key, true, &s, em);
    if (rc) return rc;
    size_t n = strlen(s);
    if (n >= cap) return err_set(em, STRATA_EFORMAT, "%s has %zu bytes; at most %zu are accepted", key, n, cap - 1);
    memcpy(out, s, n + 1);
    return STRATA_OK;
}

/* Exactly n lower-case hexadecimal digits. */
static strata_err get_hex(const json_t *o, const char *key, size_t n, char *out, struct strata_errmsg *em) {
    strata_err rc = get_text(o, key, n + 1, out, em);
    if (rc) return rc;
    if (strlen(out) != n || strspn(out, "0123456789abcdef") != n)
        return err_set(em, STRATA_EFORMAT, "%s is not %zu hexadecimal digits", key, n);
    return STRATA_OK;
}

static strata_err get_u32(const json_t *o, const char *key, uint32_t lo, uint32_t hi, uint32_t *out,
                          struct strata_errmsg *em) {
    uint64_t v;
    strata_err rc = jsonx_get_u64(o, "", key, true, hi, &v, em);
    if (rc) return rc;
    if (v < lo) return err_set(em, STRATA_EFORMAT, "%s is %u; it must be from %u to %u", key, (unsigned)v, lo, hi);
    *out = (uint32_t)v;
    return STRATA_OK;
}

static strata_err get_f32(const json_t *o, const char *key, double lo, double hi, float *out,
                          struct strata_errmsg *em) {
    double v;
    strata_err rc = jsonx_get_f64(o, "", key, true, lo, hi, &v, em);
    if (!rc) *out = (float)v;
    return rc;
}

static strata_err get_key(const json_t *o, const char *key, struct ed25519_pub *out, struct strata_errmsg *em) {
    const char *s;
    strata_err rc = jsonx_get_str(o, "", key, true, &s, em);
    if (!rc) rc = ed25519_pub_parse(s, out, em);
    return rc == STRATA_EINVAL ? STRATA_EFORMAT : rc;
}

/* ---- HELLO, WELCOME ---- */

strata_err wire_msg_hello_encode(const struct wire_msg_hello *m, struct buf *out, struct strata_errmsg *em) {
    json_t *o = json_pack("{s:I, s:s, s:s}", "protocol", (json_int_t)m->protocol, "version", m->version, "role",
                          role_names[m->role]);
    if (o && m->role != WIRE_ROLE_CONTROL &&
        (json_object_set_new(o, "session", json_string(m->session)) ||
         json_object_set_new(o, "index", json_integer((json_int_t)m->index)))) {
        json_decref(o);
        o = NULL;
    }
    return emit(o, out, em);
}

strata_err wire_msg_hello_decode(const void *data, size_t len, struct wire_msg_hello *out, struct strata_errmsg *em) {
    struct wire_msg_hello m = {0};
    const char *role;
    json_t *o;
    strata_err rc = parse(data, len, &o, em);
    if (rc) return rc;
    rc = get_u32(o, "protocol", 0, UINT32_MAX, &m.protocol, em);
    if (!rc) rc = get_text(o, "version", sizeof m.version, m.version, em);
    if (!rc) rc = jsonx_get_str(o, "", "role", true, &role, em);
    if (rc) goto out;
    size_t r = 0;
    while (r < 3 && strcmp(role, role_names[r]) != 0) r++;
    if (r == 3) {
        rc = err_set(em, STRATA_EFORMAT, "role '%.40s' is not known", role);
        goto out;
    }
    m.role = (enum wire_role)r;
    if (m.role != WIRE_ROLE_CONTROL) {
        rc = get_hex(o, "session", WIRE_MSG_SESSION - 1, m.session, em);
        if (!rc) rc = get_u32(o, "index", 0, WIRE_MSG_STAGES - 1, &m.index, em);
    }
    if (!rc) *out = m;
out:
    json_decref(o);
    return rc;
}

strata_err wire_msg_welcome_encode(const struct wire_msg_welcome *m, struct buf *out, struct strata_errmsg *em) {
    return emit(json_pack("{s:I, s:s, s:s, s:s, s:I}", "protocol", (json_int_t)m->protocol, "version", m->version,
                          "model_id", m->model_id, "manifest_sha256", m->manifest_sha256, "layer_count",
                          (json_int_t)m->layer_count),
                out, em);
}

strata_err wire_msg_welcome_decode(const void *data, size_t len, struct wire_msg_welcome *out,
                                   struct strata_errmsg *em) {
    struct wire_msg_welcome m = {0};
    json_t *o;
    strata_err rc = parse(data, len, &o, em);
    if (rc) return rc;
    rc = get_u32(o, "protocol", 0, UINT32_MAX, &m.protocol, em);
    if (!rc) rc = get_text(o, "version", sizeof m.version, m.version, em);
    if (!rc) rc = get_text(o, "model_id", sizeof m.model_id, m.model_id, em);
    if (!rc) rc = get_hex(o, "manifest_sha256", WIRE_MSG_DIGEST - 1, m.manifest_sha256, em);
    if (!rc) rc = get_u32(o, "layer_count", 1, WIRE_MSG_LAYERS, &m.layer_count, em);
    if (!rc) *out = m;
    json_decref(o);
    return rc;
}

/* ---- ASSIGN ---- */

strata_err wire_msg_assign_encode(const struct wire_msg_assign *m, struct buf *out, struct strata_errmsg *em) {
    char addr[WIRE_ADDR_TEXT], next[ED25519_PUB_TEXT], prev[ED25519_PUB_TEXT];
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s}", "session", m->session,
                          "index", (json_int_t)m->index, "count", (json_int_t)m->count, "first", (json_int_t)m->first,
                          "end", (json_int_t)m->end, "n_ctx", (json_int_t)m->n_ctx, "n_batch", (json_int_t)m->n_batch,
                          "n_seq", (json_int_t)m->n_seq, "n_pool", (json_int_t)m->n_pool, "cache_blocks",
                          (json_int_t)m->cache_blocks, "n_in_flight", (json_int_t)m->n_in_flight, "kv_type",
                          engine_kv_name(m->kv_type), "manifest_sha256", m->manifest_sha256);
    if (o && m->count > 1) {
        json_t *n = json_pack("{s:s, s:s, s:s}", "next_addr", wire_addr_text(&m->next_addr, addr), "next_key",
                              ed25519_pub_text(&m->next_key, next), "prev_key", ed25519_pub_text(&m->prev_key, prev));
        if (!n || json_object_update(o, n)) {
            json_decref(o);
            o = NULL;
        }
        json_decref(n);
    }
    return emit(o, out, em);
}

static strata_err assign_neighbours(const json_t *o, struct wire_msg_assign *m, struct strata_errmsg *em) {
    const char *addr;
    strata_err rc = jsonx_get_str(o, "", "next_addr", true, &addr, em);
    if (!rc) rc = wire_addr_parse(addr, false, &m->next_addr, em);
    if (!rc) rc = get_key(o, "next_key", &m->next_key, em);
    if (!rc) rc = get_key(o, "prev_key", &m->prev_key, em);
    return rc == STRATA_EINVAL ? STRATA_EFORMAT : rc;
}

strata_err wire_msg_assign_decode(const void *data, size_t len, struct wire_msg_assign *out, struct strata_errmsg *em) {
    struct wire_msg_assign m = {0};
    const char *kv = NULL;
    json_t *o;
    strata_err rc = parse(data, len, &o, em);
    if (rc) return rc;
    rc = get_hex(o, "session", WIRE_MSG_SESSION - 1, m.session, em);
    if (!rc) rc = get_u32(o, "count", 1, WIRE_MSG_STAGES, &m.count, em);
    if (!rc) rc = get_u32(o, "index", 0, m.count - 1, &m.index, em);
    if (!rc) rc = get_u32(o, "end", 1, WIRE_MSG_LAYERS, &m.end, em);
    if (!rc) rc = get_u32(o, "first", 0, m.end - 1, &m.first, em);
    if (!rc) rc = get_u32(o, "n_ctx", 1, INT32_MAX, &m.n_ctx, em);
    if (!rc) rc = get_u32(o, "n_batch", 1, INT32_MAX, &m.n_batch, em);
    /* Each request needs a row of a batch. */
    if (!rc) rc = get_u32(o, "n_seq", 1, m.n_batch < WIRE_MAX_SPANS ? m.n_batch : WIRE_MAX_SPANS, &m.n_seq, em);
    if (!rc) rc = get_u32(o, "n_pool", 1, INT32_MAX, &m.n_pool, em);
    if (!rc) rc = get_u32(o, "cache_blocks", 0, WIRE_MSG_CACHE_BLOCKS, &m.cache_blocks, em);
    if (!rc) rc = get_u32(o, "n_in_flight", 1, WIRE_MSG_STAGES, &m.n_in_flight, em);
    if (!rc) rc = jsonx_get_str(o, "", "kv_type", true, &kv, em);
    if (!rc) rc = get_hex(o, "manifest_sha256", WIRE_MSG_DIGEST - 1, m.manifest_sha256, em);
    if (!rc && m.count > 1) rc = assign_neighbours(o, &m, em);
    if (!rc && !engine_kv_parse(kv, &m.kv_type)) rc = err_set(em, STRATA_EFORMAT, "kv_type '%.20s' is not known", kv);
    if (!rc) *out = m;
    json_decref(o);
    return rc;
}

/* ---- LOADING, LOADED ---- */

strata_err wire_msg_loading_encode(const struct wire_msg_loading *m, struct buf *out, struct strata_errmsg *em) {
    return emit(json_pack("{s:I}", "elapsed_ms", (json_int_t)m->elapsed_ms), out, em);
}

strata_err wire_msg_loading_decode(const void *data, size_t len, struct wire_msg_loading *out,
                                   struct strata_errmsg *em) {
    json_t *o;
    strata_err rc = parse(data, len, &o, em);
    if (rc) return rc;
    rc = jsonx_get_u64(o, "", "elapsed_ms", true, INT64_MAX, &out->elapsed_ms, em);
    json_decref(o);
    return rc;
}

strata_err wire_msg_loaded_encode(const struct wire_msg_loaded *m, struct buf *out, struct strata_errmsg *em) {
    return emit(json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "weight_bytes",
                          (json_int_t)m->weight_bytes, "copied_bytes", (json_int_t)m->copied_bytes, "kv_bytes",
                          (json_int_t)m->kv_bytes, "scratch_bytes", (json_int_t)m->scratch_bytes, "rss_bytes",
                          (json_int_t)m->rss_bytes, "cache_bytes", (json_int_t)m->cache_bytes, "n_embd",
                          (json_int_t)m->n_embd, "n_vocab", (json_int_t)m->n_vocab, "n_ctx", (json_int_t)m->n_ctx,
                          "n_batch", (json_int_t)m->n_batch, "n_threads", (json_int_t)m->n_threads),
                out, em);
}

strata_err wire_msg_loaded_decode(const void *data, size_t len, struct wire_msg_loaded *out, struct strata_errmsg *em) {
    struct wire_msg_loaded m = {0};
    json_t *o;
    strata_err rc = parse(data, len, &o, em);
    if (rc) return rc;
    rc = jsonx_get_u64(o, "", "weight_bytes", true, INT64_MAX, &m.weight_bytes, em);
    if (!rc) rc = jsonx_get_u64(o, "", "copied_bytes", true, INT64_MAX, &m.copied_bytes, em);
    if (!rc) rc = jsonx_get_u64(o, "", "kv_bytes", true, INT64_MAX, &m.kv_bytes, em);
    if (!rc) rc = jsonx_get_u64(o, "", "scratch_bytes", true, INT64_MAX, &m.scratch_bytes, em);
    if (!rc) rc = jsonx_get_u64(o, "", "rss_bytes", true, INT64_MAX, &m.rss_bytes, em);
    if (!rc) rc = jsonx_get_u64(o, "", "cache_bytes", true, INT64_MAX, &m.cache_bytes, em);
    if (!rc) rc = get_u32(o, "n_embd", 1, 1u << 20, &m.n_embd, em);
    if (!rc) rc = get_u32(o, "n_vocab", 1, INT32_MAX, &m.n_vocab, em);
    if (!rc) rc = get_u32(o, "n_ctx", 1, INT32_MAX, &m.n_ctx, em);
    if (!rc) rc = get_u32(o, "n_batch", 1, INT32_MAX, &m.n_batch, em);
    if (!rc) rc = get_u32(o, "n_threads", 0, 65536, &m.n_threads, em);
    if (!rc) *out = m;
    json_decref(o);
    return rc;
}

/* ---- REFUSED, ERROR ---- */

strata_err wire_msg_fault_encode(const struct wire_msg_fault *m, struct buf *out, struct strata_errmsg *em) {
    json_t *o = json_pack("{s:s, s:s}", "code", strata_err_name(m->code), "message", m->text);
    /* A cut-off multi-byte character is no UTF-8, and jansson refuses it; the code alone is better than nothing. */
    if (!o) o = json_pack("{s:s, s:s}", "code", strata_err_name(m->code), "message", strata_err_name(m->code));
    return emit(o, out, em);
}

strata_err wire_msg_fault_decode(const void *data, size_t len, struct wire_msg_fault *out, struct strata_errmsg *em) {
    struct wire_msg_fault m = {.code = STRATA_EPEER};
    const char *code, *text;
    json_t *o;
    strata_err rc = parse(data, len, &o, em);
    if (rc) return rc;
    rc = jsonx_get_str(o, "", "code", true, &code, em);
    if (!rc) rc = jsonx_get_str(o, "", "message", true, &text, em);
    if (rc) goto out;
    for (int c = STRATA_ENOMEM; c <= STRATA_EINTERNAL; c++)
        if (strcmp(code, strata_err_name((strata_err)c)) == 0) m.code = (strata_err)c;
    /* Foreign text is cut to our size here, and err_set cleans it before anybody prints it. */
    size_t n = strnlen(text, sizeof m.text - 1);
    while (n && ((unsigned char)text[n] & 0xc0) == 0x80) n--; /* never half a character */
    memcpy(m.text, text, n);
    m.text[n] = '\0';
    *out = m;
out:
    json_decref(o);
    return rc;
}

/* ---- BEGIN ---- */

/* Numbers of blocks: JSON integers are exact up to here in every program. */
#define BLOCK_MAX (UINT64_C(1) << 53)

static json_t *blocks_to_json(const uint64_t *blocks, uint32_t n) {
    json_t *a = json_array();
    for (uint32_t i = 0; a && i < n; i++) {
        if (json_array_append_new(a, json_integer((json_int_t)blocks[i]))) {
            json_decref(a);
            a = NULL;
        }
    }
    return a;
}

static strata_err get_blocks(const json_t *o, struct wire_msg_begin *m, struct strata_errmsg *em) {
    json_t *a;
    strata_err rc = jsonx_get_array(o, "", "restore", true, &a, em);
    if (rc) return rc;
    size_t n = json_array_size(a);
    if (n > WIRE_MSG_RESTORE)
        return err_set(em, STRATA_EFORMAT, "restore has %zu entries; at most %d are accepted", n, WIRE_MSG_RESTORE);
    m->restore = calloc(n ? n : 1, sizeof *m->restore);
    if (!m->restore) return err_nomem(em, "restore");
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(a, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : 0;
        if (id <= 0 || (uint64_t)id > BLOCK_MAX)
            return err_set(em, STRATA_EFORMAT, "restore[%zu] is not the number of a block", i);
        m->restore[i] = (uint64_t)id;
    }
    m->n_restore = (uint32_t)n;
    return STRATA_OK;
}

static json_t *ids_to_json(const int32_t *ids, uint32_t n) {
    json_t *a = json_array();
    for (uint32_t i = 0; a && i < n; i++) {
        if (json_array_append_new(a, json_integer(ids[i]))) {
            json_decref(a);
            a = NULL;
        }
    }
    return a;
}

strata_err wire_msg_begin_encode(const struct wire_msg_begin *m, struct buf *out, struct strata_errmsg *em) {
    const struct sampler_params *p = &m->sampling;
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)p->seed);
    /* The seed is text: JSON numbers of other programs stop being exact at 2^53, ours at 2^63. */
    return emit(json_pack("{s:I, s:I, s:o, s:f, s:I, s:f, s:f, s:f, s:I, s:s, s:I, s:I, s:o, s:o}", "slot",
                          (json_int_t)m->slot, "store_base", (json_int_t)m->store_base, "restore",
                          blocks_to_json(m->restore, m->n_restore), "temperature", (double)p->temperature, "top_k",
                          (json_int_t)p->top_k, "top_p", (double)p->top_p, "min_p", (double)p->min_p, "repeat_penalty",
                          (double)p->repeat_penalty, "repeat_last_n", (json_int_t)p->repeat_last_n, "seed", seed,
                          "max_tokens", (json_int_t)m->max_tokens, "n_prompt", (json_int_t)m->n_prompt, "stop_ids",
                          ids_to_json(m->stop_ids, m->n_stop_ids), "history", ids_to_json(m->history, m->n_history)),
                out, em);
}

static strata_err get_ids(const json_t *o, const char *key, size_t max, int32_t **ids, uint32_t *n,
                          struct strata_errmsg *em) {
    json_t *a;
    strata_err rc = jsonx_get_array(o, "", key, true, &a, em);
    if (rc) return rc;
    size_t count = json_array_size(a);
    if (count > max)
        return err_set(em, STRATA_EFORMAT, "%s has %zu entries; at most %zu are accepted", key, count, max);
    int32_t *out = calloc(count ? count : 1, sizeof *out);
    if (!out) return err_nomem(em, key);
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_array_get(a, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id > INT32_MAX) {
            free(out);
            return err_set(em, STRATA_EFORMAT, "%s[%zu] is not a token id", key, i);
        }
        out[i] = (int32_t)id;
    }
    *ids = out;
    *n = (uint32_t)count;
    return STRATA_OK;
}

static strata_err get_seed(const json_t *o, uint64_t *out, struct strata_errmsg *em) {
    const char *s;
    char *end;
    strata_err rc = jsonx_get_str(o, "", "seed", true, &s, em);
    if (rc) return rc;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (s[0] < '0' || s[0] > '9' || *end || errno) return err_set(em, STRATA_EFORMAT, "seed is not a whole number");
    *out = v;
    return STRATA_OK;
}

static strata_err get_sampling(const json_t *o, struct sampler_params *p, struct strata_errmsg *em) {
    const double big = 1e9;
    strata_err rc = get_f32(o, "temperature", 0, big, &p->temperature, em);
    if (!rc) rc = get_u32(o, "top_k", 0, UINT32_MAX, &p->top_k, em);
    if (!rc) rc = get_f32(o, "top_p", 0, big, &p->top_p, em);
    if (!rc) rc = get_f32(o, "min_p", 0, big, &p->min_p, em);
    if (!rc) rc = get_f32(o, "repeat_penalty", 0, big, &p->repeat_penalty, em);
    if (!rc) rc = get_u32(o, "repeat_last_n", 0, UINT32_MAX, &p->repeat_last_n, em);
    if (!rc) rc = get_seed(o, &p->seed, em);
    return rc;
}

strata_err wire_msg_begin_decode(const void *data, size_t len, struct wire_msg_begin *out, struct strata_errmsg *em) {
    struct wire_msg_begin m = {0};
    json_t *o;
    strata_err rc = parse(data, len, &o, em);
    if (rc) return rc;
    rc = get_sampling(o, &m.sampling, em);
    if (!rc) rc = get_u32(o, "max_tokens", 1, UINT32_MAX, &m.max_tokens, em);
    if (!rc) rc = get_u32(o, "n_prompt", 1, INT32_MAX, &m.n_prompt, em);
    if (!rc) rc = get_u32(o, "slot", 0, WIRE_MAX_SPANS - 1, &m.slot, em);
    if (!rc) rc = jsonx_get_u64(o, "", "store_base", true, BLOCK_MAX, &m.store_base, em);
    if (!rc) rc = get_blocks(o, &m, em);
    if (!rc && m.n_restore > (m.n_prompt - 1) / WIRE_MSG_BLOCK)
        rc = err_set(em, STRATA_EFORMAT, "a prompt of %u tokens cannot start from %u blocks of %d", m.n_prompt,
                     m.n_restore, WIRE_MSG_BLOCK);
    if (!rc) rc = get_ids(o, "stop_ids", WIRE_MSG_STOP_IDS, &m.stop_ids, &m.n_stop_ids, em);
    if (!rc) rc = get_ids(o, "history", WIRE_MSG_HISTORY, &m.history, &m.n_history, em);
    if (rc)
        wire_msg_begin_deinit(&m);
    else
        *out = m;
    json_decref(o);
    return rc;
}

void wire_msg_begin_deinit(struct wire_msg_begin *m) {
    if (!m) return;
    free(m->stop_ids);
    free(m->history);
    free(m->restore);
    m->stop_ids = m->history = NULL;
    m->restore = NULL;
    m->n_stop_ids = m->n_history = m->n_restore = 0;
}

/* ---- FORGET ---- */

strata_err wire_msg_forget_encode(const struct wire_msg_forget *m, struct buf *out, struct strata_errmsg *em) {
    return emit(json_pack("{s:I, s:I}", "first", (json_int_t)m->first, "count", (json_int_t)m->count), out, em);
}

strata_err wire_msg_forget_decode(const void *data, size_t len, struct wire_msg_forget *out, struct strata_errmsg *em) {
    struct wire_msg_forget m = {0};
    json_t *o;
    strata_err rc = parse(data, len, &o, em);
    if (rc) return rc;
    rc = jsonx_get_u64(o, "", "first", true, BLOCK_MAX, &m.first, em);
    if (!rc) rc = get_u32(o, "count", 1, WIRE_MSG_CACHE_BLOCKS, &m.count, em);
    if (!rc && m.first == 0) rc = err_set(em, STRATA_EFORMAT, "first is 0, which is no number of a block");
    if (!rc) *out = m;
    json_decref(o);
    return rc;
}

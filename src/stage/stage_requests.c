/* Requests in their slots. See stage_requests.h. Owns their samplers and prompts. */
#include "stage/stage_requests.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

strata_err stage_requests_begin(struct stage_requests *rs, uint32_t seq, struct wire_msg_begin *begin,
                                struct stage_request **out, struct strata_errmsg *em) {
    struct stage_request *r = &rs->slot[begin->slot];
    strata_err rc = STRATA_OK;
    *r = (struct stage_request){.seq = seq,
                                .slot = begin->slot,
                                .begin = *begin,
                                .pos = begin->n_restore * WIRE_MSG_BLOCK,
                                .n_kept = begin->n_restore,
                                .begun_ns = clock_now_ns()};
    *begin = (struct wire_msg_begin){0};
    r->n_came = r->pos;
    if (rs->first) {
        r->prompt = malloc(r->begin.n_prompt * sizeof *r->prompt);
        if (!r->prompt) rc = err_nomem(em, "a prompt");
    }
    if (!rc && rs->last) rc = sampler_new(&r->begin.sampling, rs->n_vocab, &r->sampler, em);
    if (rc) {
        stage_requests_end(r);
        return rc;
    }
    for (uint32_t i = 0; rs->last && i < r->begin.n_history; i++) sampler_accept(r->sampler, r->begin.history[i]);
    *out = r;
    return STRATA_OK;
}

void stage_requests_end(struct stage_request *r) {
    sampler_free(r->sampler);
    free(r->prompt);
    wire_msg_begin_deinit(&r->begin);
    *r = (struct stage_request){.seq = 0};
}

void stage_requests_end_all(struct stage_requests *rs) {
    for (uint32_t i = 0; i < rs->n_slots; i++) stage_requests_end(&rs->slot[i]);
}

struct stage_request *stage_requests_find(struct stage_requests *rs, uint32_t seq) {
    for (uint32_t i = 0; i < rs->n_slots; i++)
        if (rs->slot[i].seq == seq) return &rs->slot[i];
    return NULL;
}

void stage_requests_add_prompt(struct stage_request *r, uint32_t pos, const int32_t *ids, uint32_t n) {
    memcpy(r->prompt + pos, ids, n * sizeof *ids);
    r->n_came = pos + n;
}

bool stage_requests_ready(const struct stage_request *r) {
    return r->seq && (r->has_step || r->pos < r->n_came);
}

bool stage_requests_decoding(const struct stage_request *r) {
    return r->seq && !r->over && r->pos >= r->begin.n_prompt;
}

uint32_t stage_requests_in_flight(const struct stage_requests *rs) {
    uint64_t turn[WIRE_MAX_SPANS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < rs->n_slots; i++) {
        const struct stage_request *r = &rs->slot[i];
        uint32_t k = 0;
        if (!stage_requests_decoding(r) || r->has_step) continue;
        while (k < n && turn[k] != r->served) k++;
        if (k == n) turn[n++] = r->served;
    }
    return n;
}

static bool is_stop(const struct wire_msg_begin *b, int32_t token) {
    for (uint32_t i = 0; i < b->n_stop_ids; i++)
        if (b->stop_ids[i] == token) return true;
    return false;
}

strata_err stage_requests_pick(struct stage_requests *rs, struct stage_request *r, const float *logits,
                               struct wire_token *out, struct strata_errmsg *em) {
    struct wire_token t = {.seq = r->seq, .pos = r->pos};
    strata_err rc = sampler_pick(r->sampler, logits, &t.id, em);
    if (rc) return rc;
    sampler_accept(r->sampler, t.id);
    r->n_generated++;
    if (is_stop(&r->begin, t.id)) t.flags = WIRE_TOKEN_FINAL | WIRE_TOKEN_EOG;
    if (r->n_generated >= r->begin.max_tokens || r->pos + 1 >= rs->n_ctx) t.flags |= WIRE_TOKEN_FINAL;
    *out = t;
    return STRATA_OK;
}

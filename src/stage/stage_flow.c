/* Order of frames. See stage_flow.h. Owns nothing. */
#include "stage/stage_flow.h"

strata_err stage_flow_source(const struct stage_flow *s, enum stage_source from, uint8_t type,
                             struct strata_errmsg *em) {
    bool first = s->index == 0;
    bool ok;
    switch (type) {
    case WIRE_TOKENS: ok = first && from == STAGE_FROM_COORDINATOR; break;
    case WIRE_BEGIN: ok = first == (from == STAGE_FROM_COORDINATOR); break;
    case WIRE_HIDDEN: ok = !first && from == STAGE_FROM_NEIGHBOUR; break;
    case WIRE_TOKEN: ok = first && s->count > 1 && from == STAGE_FROM_NEIGHBOUR; break;
    default: ok = false; break;
    }
    if (ok) return STRATA_OK;
    return err_set(em, STRATA_EPEER, "frame type %u is not for this stage to take from %s", type,
                   from == STAGE_FROM_COORDINATOR ? "the coordinator" : "its neighbour");
}

/* Forgets that seq was cancelled before it began; false when it was not. */
static bool take_early(struct stage_flow *s, uint32_t seq) {
    uint32_t n = s->n_early < STAGE_FLOW_EARLY ? s->n_early : STAGE_FLOW_EARLY;
    for (uint32_t i = 0; i < n; i++) {
        if (s->early[i] != seq) continue;
        s->early[i] = 0;
        return true;
    }
    return false;
}

strata_err stage_flow_begin(struct stage_flow *s, uint32_t seq, const struct wire_msg_begin *m, enum stage_verdict *v,
                            struct strata_errmsg *em) {
    if (seq == 0 || seq <= s->last_seq)
        return err_set(em, STRATA_EPEER, "request %u begins after request %u", seq, s->last_seq);
    if (m->slot >= s->n_seq)
        return err_set(em, STRATA_EPEER, "request %u is to use slot %u of %u", seq, m->slot, s->n_seq);
    if (m->n_prompt == 0 || m->n_prompt >= s->n_ctx)
        return err_set(em, STRATA_EPEER, "a prompt of %u tokens does not fit a context of %u", m->n_prompt, s->n_ctx);
    s->last_seq = seq;
    *v = take_early(s, seq) ? STAGE_DROP : STAGE_TAKE;
    if (*v == STAGE_DROP) return STRATA_OK;
    s->slot[m->slot].seq = seq;
    s->slot[m->slot].n_prompt = m->n_prompt;
    s->slot[m->slot].next_pos = m->n_restore * WIRE_MSG_BLOCK;
    s->slot[m->slot].ended = false;
    return STRATA_OK;
}

/* The slot of a request; n_seq when it is over; an error when it never began. */
static strata_err find(const struct stage_flow *s, uint32_t seq, uint32_t *slot, struct strata_errmsg *em) {
    uint32_t i = 0;
    if (seq == 0 || seq > s->last_seq) return err_set(em, STRATA_EPEER, "rows of request %u, which has not begun", seq);
    while (i < s->n_seq && s->slot[i].seq != seq) i++;
    *slot = i;
    return STRATA_OK;
}

static strata_err check_ids(const struct stage_flow *s, const int32_t *ids, uint32_t n, struct strata_errmsg *em) {
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= s->n_vocab)
            return err_set(em, STRATA_EPEER, "token id %d is not in the vocabulary of %u", ids[i], s->n_vocab);
    return STRATA_OK;
}

/* What rows of every kind must be: the next ones, of a request that goes on. */
static strata_err check_rows(const struct stage_flow *s, uint32_t slot, uint32_t pos, uint32_t n,
                             struct strata_errmsg *em) {
    uint32_t next = s->slot[slot].next_pos;
    if (s->slot[slot].ended) return err_set(em, STRATA_EPEER, "rows of request %u, which has ended", s->slot[slot].seq);
    if (n == 0 || n > s->n_batch)
        return err_set(em, STRATA_EPEER, "%u rows at once; at most %u were agreed on", n, s->n_batch);
    if (pos != next) return err_set(em, STRATA_EPEER, "rows for position %u, where %u comes next", pos, next);
    if (n > s->n_ctx - next)
        return err_set(em, STRATA_EPEER, "position %u is beyond the context of %u", next + n, s->n_ctx);
    return STRATA_OK;
}

strata_err stage_flow_prompt(struct stage_flow *s, const struct wire_frame *f, const int32_t *ids,
                             enum stage_verdict *v, struct strata_errmsg *em) {
    uint32_t slot = s->n_seq;
    strata_err rc = find(s, f->seq, &slot, em);
    if (rc) return rc;
    *v = STAGE_DROP;
    if (slot == s->n_seq) return STRATA_OK;
    rc = check_rows(s, slot, f->pos, f->n_rows, em);
    uint32_t left =
        s->slot[slot].n_prompt > s->slot[slot].next_pos ? s->slot[slot].n_prompt - s->slot[slot].next_pos : 0;
    if (!rc && f->n_rows > left)
        rc = err_set(em, STRATA_EPEER, "%u tokens, where %u are left of the prompt", f->n_rows, left);
    if (!rc) rc = check_ids(s, ids, f->n_rows, em);
    if (rc) return rc;
    s->slot[slot].next_pos += f->n_rows;
    *v = STAGE_TAKE;
    return STRATA_OK;
}

strata_err stage_flow_span(struct stage_flow *s, const struct wire_span *span, enum stage_verdict *v,
                           struct strata_errmsg *em) {
    bool sample = span->flags & WIRE_SPAN_SAMPLE;
    uint32_t slot = s->n_seq;
    strata_err rc = find(s, span->seq, &slot, em);
    if (rc) return rc;
    *v = STAGE_DROP;
    if (slot == s->n_seq) return STRATA_OK;
    rc = check_rows(s, slot, span->pos, span->n_rows, em);
    if (rc) return rc;
    if (s->slot[slot].next_pos < s->slot[slot].n_prompt) {
        uint32_t left = s->slot[slot].n_prompt - s->slot[slot].next_pos;
        if (span->n_rows > left)
            return err_set(em, STRATA_EPEER, "%u rows, where %u are left of the prompt", span->n_rows, left);
        if (sample != (span->n_rows == left))
            return err_set(em, STRATA_EPEER, "only the last rows of a prompt are to be sampled after");
    } else if (span->n_rows != 1 || !sample) {
        return err_set(em, STRATA_EPEER, "%u rows, where one row to sample after was due", span->n_rows);
    }
    s->slot[slot].next_pos += span->n_rows;
    *v = STAGE_TAKE;
    return STRATA_OK;
}

strata_err stage_flow_token(struct stage_flow *s, const struct wire_token *t, enum stage_verdict *v,
                            struct strata_errmsg *em) {
    uint32_t slot = s->n_seq;
    strata_err rc = find(s, t->seq, &slot, em);
    if (rc) return rc;
    *v = STAGE_DROP;
    if (slot == s->n_seq) return STRATA_OK;
    if (s->slot[slot].ended) return err_set(em, STRATA_EPEER, "a token of request %u, which has ended", t->seq);
    if (s->slot[slot].next_pos < s->slot[slot].n_prompt || t->pos != s->slot[slot].next_pos)
        return err_set(em, STRATA_EPEER, "a token for position %u, where %u comes next", t->pos,
                       s->slot[slot].next_pos);
    rc = check_ids(s, &t->id, 1, em);
    if (rc) return rc;
    if (t->flags & WIRE_TOKEN_FINAL) {
        s->slot[slot].ended = true;
        *v = STAGE_DONE;
        return STRATA_OK;
    }
    rc = check_rows(s, slot, t->pos, 1, em);
    if (rc) return rc;
    s->slot[slot].next_pos++;
    *v = STAGE_TAKE;
    return STRATA_OK;
}

void stage_flow_cancel(struct stage_flow *s, uint32_t seq) {
    for (uint32_t i = 0; i < s->n_seq; i++)
        if (s->slot[i].seq == seq) s->slot[i].seq = 0;
    if (seq > s->last_seq) s->early[s->n_early++ % STAGE_FLOW_EARLY] = seq;
}

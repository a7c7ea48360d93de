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

strata_err stage_flow_begin(struct stage_flow *s, uint32_t seq, uint32_t n_prompt, enum stage_verdict *v,
                            struct strata_errmsg *em) {
    if (seq == 0 || (seq <= s->seq && seq > s->cancelled))
        return err_set(em, STRATA_EPEER, "request %u begins after request %u", seq, s->seq);
    if (seq <= s->cancelled) {
        *v = STAGE_DROP;
        return STRATA_OK;
    }
    if (n_prompt == 0 || n_prompt >= s->n_ctx)
        return err_set(em, STRATA_EPEER, "a prompt of %u tokens does not fit a context of %u", n_prompt, s->n_ctx);
    s->seq = seq;
    s->n_prompt = n_prompt;
    s->next_pos = 0;
    s->ended = false;
    *v = STAGE_TAKE;
    return STRATA_OK;
}

/* True when the frame is over already and to be dropped; an error when its request never began. */
static strata_err stale(const struct stage_flow *s, uint32_t seq, bool *drop, struct strata_errmsg *em) {
    *drop = seq != 0 && (seq <= s->cancelled || seq < s->seq);
    if (!*drop && (seq == 0 || seq > s->seq))
        return err_set(em, STRATA_EPEER, "rows of request %u, which has not begun", seq);
    return STRATA_OK;
}

static strata_err check_ids(const struct stage_flow *s, const int32_t *ids, uint32_t n, struct strata_errmsg *em) {
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= s->n_vocab)
            return err_set(em, STRATA_EPEER, "token id %d is not in the vocabulary of %u", ids[i], s->n_vocab);
    return STRATA_OK;
}

strata_err stage_flow_rows(struct stage_flow *s, const struct wire_frame *f, const int32_t *ids, enum stage_verdict *v,
                           struct strata_errmsg *em) {
    bool drop;
    bool sample = f->flags & WIRE_FLAG_SAMPLE;
    strata_err rc = stale(s, f->seq, &drop, em);
    if (rc) return rc;
    if (drop) {
        *v = STAGE_DROP;
        return STRATA_OK;
    }
    if (s->ended) return err_set(em, STRATA_EPEER, "rows of request %u, which has ended", f->seq);
    if (f->n_rows == 0 || f->n_rows > s->n_batch)
        return err_set(em, STRATA_EPEER, "%u rows in one frame; at most %u were agreed on", f->n_rows, s->n_batch);
    if (f->pos != s->next_pos)
        return err_set(em, STRATA_EPEER, "rows for position %u, where %u comes next", f->pos, s->next_pos);
    if (s->next_pos < s->n_prompt) {
        uint32_t left = s->n_prompt - s->next_pos;
        if (f->n_rows > left)
            return err_set(em, STRATA_EPEER, "%u rows, where %u are left of the prompt", f->n_rows, left);
        if (sample != (f->n_rows == left))
            return err_set(em, STRATA_EPEER, "only the last rows of a prompt are to be sampled after");
    } else if (s->index == 0) {
        return err_set(em, STRATA_EPEER, "more tokens than the prompt of %u", s->n_prompt);
    } else if (f->n_rows != 1 || !sample) {
        return err_set(em, STRATA_EPEER, "%u rows, where one row to sample after was due", f->n_rows);
    }
    if (f->n_rows > s->n_ctx - s->next_pos)
        return err_set(em, STRATA_EPEER, "position %u is beyond the context of %u", s->next_pos + f->n_rows, s->n_ctx);
    if (ids) rc = check_ids(s, ids, f->n_rows, em);
    if (rc) return rc;
    s->next_pos += f->n_rows;
    *v = STAGE_TAKE;
    return STRATA_OK;
}

strata_err stage_flow_token(struct stage_flow *s, const struct wire_frame *f, int32_t id, enum stage_verdict *v,
                            struct strata_errmsg *em) {
    bool drop;
    strata_err rc = stale(s, f->seq, &drop, em);
    if (rc) return rc;
    if (drop) {
        *v = STAGE_DROP;
        return STRATA_OK;
    }
    if (s->ended) return err_set(em, STRATA_EPEER, "a token of request %u, which has ended", f->seq);
    if (s->next_pos < s->n_prompt || f->pos != s->next_pos)
        return err_set(em, STRATA_EPEER, "a token for position %u, where %u comes next", f->pos, s->next_pos);
    rc = check_ids(s, &id, 1, em);
    if (rc) return rc;
    if (f->flags & WIRE_FLAG_FINAL) {
        s->ended = true;
        *v = STAGE_DONE;
        return STRATA_OK;
    }
    if (f->pos >= s->n_ctx)
        return err_set(em, STRATA_EPEER, "position %u is beyond the context of %u", f->pos, s->n_ctx);
    s->next_pos++;
    *v = STAGE_TAKE;
    return STRATA_OK;
}

void stage_flow_cancel(struct stage_flow *s, uint32_t seq) {
    if (seq > s->cancelled) s->cancelled = seq;
}

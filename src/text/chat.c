/* Chat templates: the public calls. See chat.h. Owns the parsed tree, in an arena of its own. */
#include "text/chat.h"
#include "text/chat_eval.h"

#include <stdlib.h>
#include <string.h>

enum { SOURCE_MAX = 1 << 20, PARSE_ARENA_MAX = 256 << 20 };

struct chat_template {
    struct chat_arena arena;
    struct chat_node *root;
};

strata_err chat_template_new(const char *source, size_t len, struct chat_template **out, struct strata_errmsg *em) {
    struct strata_errmsg local = {0}, *e = em ? em : &local;
    if (len > SOURCE_MAX) {
        return err_set(e, STRATA_ELIMIT, "chat template: it has %zu bytes; the limit is %d", len, SOURCE_MAX);
    }
    struct chat_template *t = calloc(1, sizeof *t);
    if (!t) return err_nomem(e, "a chat template");
    chat_arena_init(&t->arena, PARSE_ARENA_MAX);
    strata_err rc = chat_parse(source, len, &t->arena, &t->root, e);
    if (rc == STRATA_OK) {
        *out = t;
    } else {
        rc = err_prefix(e, "chat template");
        chat_template_free(t);
    }
    return rc;
}

void chat_template_free(struct chat_template *t) {
    if (!t) return;
    chat_arena_deinit(&t->arena);
    free(t);
}

static strata_err define_json(struct chat_run *r, const char *name, const json_t *json) {
    struct chat_value v;
    strata_err rc = chat_value_from_json(r->arena, json, &v, r->em);
    return rc == STRATA_OK ? chat_define(r, (struct chat_str){name, strlen(name)}, v) : rc;
}

static strata_err define_inputs(struct chat_run *r, const struct chat_inputs *in) {
    strata_err rc = STRATA_OK;
    const char *bos = in->bos_token ? in->bos_token : "", *eos = in->eos_token ? in->eos_token : "";
    for (void *it = json_object_iter((json_t *)(uintptr_t)in->extra); it && rc == STRATA_OK;
         it = json_object_iter_next((json_t *)(uintptr_t)in->extra, it)) {
        rc = define_json(r, json_object_iter_key(it), json_object_iter_value(it));
    }
    if (rc == STRATA_OK && in->messages) rc = define_json(r, "messages", in->messages);
    if (rc == STRATA_OK && in->tools) rc = define_json(r, "tools", in->tools);
    if (rc == STRATA_OK) rc = chat_define(r, CHAT_STR("bos_token"), chat_string(bos, strlen(bos)));
    if (rc == STRATA_OK) rc = chat_define(r, CHAT_STR("eos_token"), chat_string(eos, strlen(eos)));
    if (rc == STRATA_OK) {
        rc = chat_define(r, CHAT_STR("add_generation_prompt"), chat_bool(in->add_generation_prompt));
    }
    return rc;
}

strata_err chat_template_render(const struct chat_template *t, const struct chat_inputs *in, struct buf *out,
                                struct strata_errmsg *em) {
    struct strata_errmsg local = {0};
    struct chat_arena arena;
    struct chat_scope globals = {0};
    size_t before = out->len;
    chat_arena_init(&arena, CHAT_ARENA_MAX);
    struct chat_run r = {.arena = &arena, .out = out, .scope = &globals, .now = in->now, .em = em ? em : &local};
    strata_err rc = define_inputs(&r, in);
    if (rc == STRATA_OK) {
        rc = chat_exec(&r, t->root);
        if (rc != STRATA_OK) rc = err_prefix(r.em, "chat template: line %u", r.line);
    } else {
        rc = err_prefix(r.em, "chat template");
    }
    if (rc != STRATA_OK) {
        out->len = before;
        if (out->data) out->data[before] = '\0';
    }
    chat_arena_deinit(&arena);
    return rc;
}

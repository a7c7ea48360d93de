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

/*
 * A message's role is no text: templates make control tokens of it, as in `<|{{ role }}|>`. It stays the JSON's own
 * string, unmarked; who takes requests from others knows which roles there are.
 */
static void unmark_roles(const json_t *json, const struct chat_value *messages) {
    for (size_t i = 0; messages->kind == CHAT_LIST && i < messages->list->len; i++) {
        const struct chat_value *m = &messages->list->item[i];
        const json_t *role = json_object_get(json_array_get(json, i), "role");
        if (m->kind != CHAT_DICT || !json_is_string(role)) continue;
        for (size_t k = 0; k < m->dict->len; k++) {
            struct chat_entry *e = &m->dict->entry[k];
            if (e->key.kind != CHAT_STRING || !chat_str_eq(e->key.s, "role")) continue;
            e->value = chat_string(json_string_value(role), json_string_length(role));
        }
    }
}

static strata_err define_json(struct chat_run *r, const char *name, const json_t *json) {
    struct chat_value v;
    strata_err rc = chat_value_from_json(r->arena, json, r->arena->marking, &v, r->em);
    if (rc == STRATA_OK && strcmp(name, "messages") == 0) unmark_roles(json, &v);
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

/* Hands the text over, and what of it is marked. */
static strata_err deliver(const struct chat_text *t, struct buf *out, struct text_spans *own,
                          struct strata_errmsg *em) {
    size_t base = out->len;
    strata_err rc = buf_append(out, buf_cstr(&t->text), t->text.len, em);
    for (size_t i = 0; own && i < t->marks.len && rc == STRATA_OK;) {
        size_t end = i;
        while (end < t->marks.len && t->marks.data[end] == t->marks.data[i]) end++;
        if (t->marks.data[i]) rc = text_spans_add(own, base + i, base + end, em);
        i = end;
    }
    return rc;
}

strata_err chat_template_render_marked(const struct chat_template *t, const struct chat_inputs *in, struct buf *out,
                                       struct text_spans *own, struct strata_errmsg *em) {
    struct strata_errmsg local = {0};
    struct chat_arena arena;
    struct chat_scope globals = {0};
    struct chat_text text;
    size_t before = out->len, spans_before = own ? own->len : 0;
    chat_arena_init(&arena, CHAT_ARENA_MAX);
    arena.marking = own != NULL;
    chat_text_init(&text, &arena, out->max);
    struct chat_run r = {.arena = &arena, .out = &text, .scope = &globals, .now = in->now, .em = em ? em : &local};
    strata_err rc = define_inputs(&r, in);
    if (rc == STRATA_OK) {
        rc = chat_exec(&r, t->root);
        if (rc == STRATA_OK) rc = deliver(&text, out, own, r.em);
        if (rc != STRATA_OK) rc = err_prefix(r.em, "chat template: line %u", r.line);
    } else {
        rc = err_prefix(r.em, "chat template");
    }
    if (rc != STRATA_OK) {
        out->len = before;
        if (out->data) out->data[before] = '\0';
        if (own) own->len = spans_before;
    }
    chat_text_deinit(&text);
    chat_arena_deinit(&arena);
    return rc;
}

strata_err chat_template_render(const struct chat_template *t, const struct chat_inputs *in, struct buf *out,
                                struct strata_errmsg *em) {
    return chat_template_render_marked(t, in, out, NULL, em);
}

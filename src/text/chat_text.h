/*
 * Texts that a rendering puts together, and which of their bytes came from the conversation. Inside of chat*.c alone.
 *
 * Strings of messages and tools are copied into the arena and marked there, byte by byte (chat_arena_mark). A text asks
 * the arena about every byte that it is given, so that marks follow the bytes through any operation: a slice of a
 * marked string points at marked bytes, and what is put together of it is marked where it was. Templates see none of
 * it.
 */
#ifndef TEXT_CHAT_TEXT_H
#define TEXT_CHAT_TEXT_H

#include "text/chat_value.h"

struct chat_text {
    struct buf text;
    struct buf marks; /* as long as the text; empty as long as nothing is marked */
    struct chat_arena *arena;
};

void chat_text_init(struct chat_text *t, struct chat_arena *arena, size_t max);
void chat_text_deinit(struct chat_text *t);
/* Appends bytes and their marks. */
strata_err chat_text_add(struct chat_text *t, const char *ptr, size_t len, struct strata_errmsg *em);
strata_err chat_text_add_str(struct chat_text *t, const char *s, struct strata_errmsg *em);
/* Appends bytes that stand for the one at `like`, and are marked as that is. */
strata_err chat_text_add_like(struct chat_text *t, const char *ptr, size_t len, const char *like,
                              struct strata_errmsg *em);
/* Appends formatted text, unmarked. */
strata_err chat_text_printf(struct chat_text *t, struct strata_errmsg *em, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A copy in the arena, marked likewise. */
strata_err chat_text_take(const struct chat_text *t, struct chat_value *out, struct strata_errmsg *em);

#endif

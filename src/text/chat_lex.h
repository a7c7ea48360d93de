/*
 * Chat templates, first step: source to tokens, with Jinja2's white space rules for trim_blocks and lstrip_blocks both
 * on and keep_trailing_newline off. Pure; the tokens live in the caller's arena.
 */
#ifndef TEXT_CHAT_LEX_H
#define TEXT_CHAT_LEX_H

#include "text/chat_value.h"

enum chat_token_kind {
    CHAT_TOKEN_DATA, /* text to be copied */
    CHAT_TOKEN_PRINT_BEGIN,
    CHAT_TOKEN_PRINT_END,
    CHAT_TOKEN_BLOCK_BEGIN,
    CHAT_TOKEN_BLOCK_END,
    CHAT_TOKEN_NAME,
    CHAT_TOKEN_STRING,
    CHAT_TOKEN_INT,
    CHAT_TOKEN_FLOAT,
    CHAT_TOKEN_OP, /* text holds it: "+", "==", ... */
    CHAT_TOKEN_EOF
};

struct chat_token {
    enum chat_token_kind kind;
    uint32_t line;
    struct chat_str text; /* of a string: its value, escapes resolved */
    int64_t i;
    double f;
};

struct chat_tokens {
    struct chat_token *item; /* the last one is CHAT_TOKEN_EOF */
    size_t len, cap;
};

/* Errors begin with the line. The source must outlive the tokens. */
strata_err chat_lex(const char *source, size_t len, struct chat_arena *a, struct chat_tokens *out,
                    struct strata_errmsg *em);

/* White space as Python's str.isspace has it. Returns the length of the character at s if it is one, else 0. */
size_t chat_space_len(const char *s, size_t len);
/* The same for the character that ends at s + len. */
size_t chat_space_len_before(const char *s, size_t len);

#endif

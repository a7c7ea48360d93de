/*
 * Chat templates: a bounded subset of Jinja2, enough for common models' templates; the rest is refused by name.
 *
 * A template is parsed once and rendered many times. It can reach nothing but the values given: no I/O, no attributes
 * of host objects, a limit on steps, recursion, output size and string sizes. Rendering is thread-safe.
 */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "base/buf.h"
#include "text/spans.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct chat_template;

/* Parses source (UTF-8, len bytes). Errors give line and construct. */
strata_err chat_template_new(const char *source, size_t len, struct chat_template **out, struct strata_errmsg *em);
void chat_template_free(struct chat_template *t);

struct chat_inputs {
    const json_t *messages; /* array of {"role", "content"}; borrowed */
    const json_t *tools;    /* or NULL: undefined in the template */
    bool add_generation_prompt;
    const char *bos_token; /* "" when the model has none */
    const char *eos_token;
    const json_t *extra; /* an object with further variables (enable_thinking and the like), or NULL; borrowed */
    int64_t now;         /* seconds since 1970 that strftime_now shows, in UTC; 0: the system's local time */
};

/* Appends the prompt to out. raise_exception in a template becomes an EINVAL error with its text. */
strata_err chat_template_render(const struct chat_template *t, const struct chat_inputs *in, struct buf *out,
                                struct strata_errmsg *em);

/*
 * The same, and adds to *own which bytes of out came from the conversation: from messages (their roles left out), tools
 * and extra variables, whatever the template did with them on the way. With it, vocab_encode_marked keeps text that
 * spells control tokens from becoming them. The template sees the same values either way.
 */
strata_err chat_template_render_marked(const struct chat_template *t, const struct chat_inputs *in, struct buf *out,
                                       struct text_spans *own, struct strata_errmsg *em);

#endif

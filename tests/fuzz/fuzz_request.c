/* Request bodies, as both kinds of completion; what is accepted must keep what the parser promises. */
#include "serve/api_request.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(enum api_endpoint endpoint, const char *data, size_t size) {
    struct api_request *r = NULL;
    struct api_problem p;
    if (api_request_parse(endpoint, data, size, &r, &p)) {
        if (r || p.status < 400 || p.status > 599 || !p.em.text[0]) abort();
        return;
    }
    const struct sampler_params *s = &r->sampling;
    bool fine = s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0 &&
                s->min_p <= 1 && s->repeat_penalty > 0 && r->n_stop <= API_MAX_STOPS && r->model;
    for (size_t i = 0; i < r->n_stop; i++) fine = fine && r->stop[i][0] && strlen(r->stop[i]) <= API_MAX_STOP_BYTES;
    for (size_t i = 0; i < r->n_prompt_ids; i++) fine = fine && r->prompt_ids[i] >= 0;
    if (endpoint == API_CHAT)
        fine = fine && json_array_size(r->messages) > 0;
    else
        fine = fine && (r->prompt ? strlen(r->prompt) == r->prompt_len : r->n_prompt_ids > 0);
    if (!fine) abort();
    api_request_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check(API_CHAT, (const char *)data, size);
    check(API_COMPLETIONS, (const char *)data, size);
    return 0;
}

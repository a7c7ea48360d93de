/*
 * Fuzz target: chat templates. The input is a template; it is parsed, and rendered over a fixed conversation. Any input
 * must give a text or an error, within the limits on steps, memory and depth.
 */
#include "text/chat.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char conversation[] = "[{\"role\":\"system\",\"content\":\" Be brief. "
                                   "\"},{\"role\":\"user\",\"content\":\"Gr\\u00fc\\u00dfe \\ud83d\\ude00\"},"
                                   "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":"
                                   "\"f\",\"arguments\":{\"a\":[1,2.5,true]}}}]},"
                                   "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct strata_errmsg em;
    struct chat_template *t = NULL;
    struct buf out;
    if (chat_template_new((const char *)data, size, &t, &em) != STRATA_OK) return 0;
    json_t *messages = json_loads(conversation, 0, NULL);
    struct chat_inputs in = {.messages = messages,
                             .tools = messages,
                             .add_generation_prompt = true,
                             .bos_token = "<s>",
                             .eos_token = "</s>",
                             .now = 1796000000};
    buf_init(&out, (size_t)1 << 20);
    (void)chat_template_render(t, &in, &out, &em);
    buf_deinit(&out);
    json_decref(messages);
    chat_template_free(t);
    return 0;
}

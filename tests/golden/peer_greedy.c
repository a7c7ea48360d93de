/*
 * Greedy continuation as the installed llama library computes it, with the two best logits of every step.
 *
 * For recording golden numbers; built by record_logits.py beside the peer, never by Strata's own Makefile.
 * usage: peer_greedy MODEL N_PREDICT N_THREADS f16|f32 < PROMPTS
 * PROMPTS: one prompt a line, as token ids. Output: one line per prompt, "id:best:second" for each generated token.
 * f16 uses flash attention, f32 does not: the two ways in which Strata runs as well.
 */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int decode(struct llama_context *ctx, const int *ids, int n, int pos) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = pos + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = i == n - 1;
    }
    int rc = llama_decode(ctx, batch);
    llama_batch_free(batch);
    return rc;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: peer_greedy MODEL N_PREDICT N_THREADS f16|f32 < PROMPTS\n");
        return 2;
    }
    int n_predict = atoi(argv[2]), f32 = strcmp(argv[4], "f32") == 0;
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 2048;
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = atoi(argv[3]);
    params.type_k = params.type_v = f32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    params.flash_attn_type = f32 ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_ENABLED;
    struct llama_context *ctx = llama_init_from_model(model, params);
    if (!ctx) return 1;
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    static char line[65536];
    while (fgets(line, sizeof line, stdin)) {
        static int ids[2048];
        int n = 0;
        for (char *p = strtok(line, " \n"); p && n < 512; p = strtok(NULL, " \n")) ids[n++] = atoi(p);
        if (n == 0) continue;
        llama_memory_clear(llama_get_memory(ctx), true);
        int pos = 0;
        for (int k = 0; k < n_predict; k++) {
            if (decode(ctx, ids, n, pos)) return 1;
            pos += n;
            const float *logits = llama_get_logits_ith(ctx, -1);
            int best = 0, second = -1;
            for (int i = 1; i < n_vocab; i++)
                if (logits[i] > logits[best]) best = i;
            for (int i = 0; i < n_vocab; i++)
                if (i != best && (second < 0 || logits[i] > logits[second])) second = i;
            printf("%s%d:%.6f:%.6f", k ? " " : "", best, (double)logits[best], (double)logits[second]);
            ids[0] = best;
            n = 1;
        }
        printf("\n");
        fflush(stdout);
    }
    return 0;
}

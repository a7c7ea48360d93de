/*
 * Prints the peer's token ids for each line of stdin, one line of ids per line of text; links llama.cpp's library.
 * usage: peer_tokenize MODEL [--no-specials] [--escaped] [--hash] [--time] < TEXT
 *   --no-specials  add_special and parse_special off
 *   --escaped      a backslash and n stands for a line feed, \xNN for a byte, two backslashes for one
 *   --hash         instead of the ids, the 32-bit FNV-1a hash of the line of ids
 *   --time         tokenize all of stdin as one text, several times, and print bytes, ids and the best processor time
 */
#include <llama.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static size_t unescape(char *s, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] != '\\' || i + 1 >= len) {
            s[n++] = s[i];
        } else if (s[++i] == 'n') {
            s[n++] = '\n';
        } else if (s[i] == 'x' && i + 2 < len) {
            char hex[3] = {s[i + 1], s[i + 2], 0};
            s[n++] = (char)strtol(hex, NULL, 16);
            i += 2;
        } else {
            s[n++] = s[i];
        }
    }
    return n;
}

static int tokenize(const struct llama_vocab *v, const char *text, size_t len, bool specials, int32_t **ids, int *cap) {
    for (;;) {
        int n = llama_tokenize(v, text, (int32_t)len, *ids, *cap, specials, specials);
        if (n >= 0) return n;
        *cap = -n;
        *ids = realloc(*ids, (size_t)*cap * sizeof **ids);
        if (!*ids) exit(1);
    }
}

static void print_ids(const int32_t *ids, int n, bool hash) {
    uint32_t h = 0x811C9DC5u;
    for (int i = 0; i < n; i++) {
        char text[16];
        int len = snprintf(text, sizeof text, i ? " %d" : "%d", ids[i]);
        if (!hash) fputs(text, stdout);
        for (int k = 0; k < len; k++) h = (h ^ (unsigned char)text[k]) * 0x01000193u;
    }
    if (hash) printf("%08x", h);
    putchar('\n');
}

static void time_all(const struct llama_vocab *v, bool specials) {
    size_t cap = 1 << 26;
    char *text = malloc(cap);
    if (!text) exit(1);
    size_t len = fread(text, 1, cap, stdin);
    int32_t *ids = NULL;
    /* Room for all ids at once, so that no run is repeated for want of it. */
    int ids_cap = (int)len + 16, n = 0;
    ids = malloc((size_t)ids_cap * sizeof *ids);
    if (!ids) exit(1);
    double best = 1e9, sum = 0;
    for (int i = 0; i < 4 && sum < 2; i++) {
        struct timespec a, b;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
        n = tokenize(v, text, len, specials, &ids, &ids_cap);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
        double t = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        if (t < best) best = t;
        sum += t;
    }
    fprintf(stderr, "bytes=%zu ids=%d seconds=%.4f ids_per_s=%.0f\n", len, n, best, n / best);
}

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char **argv) {
    bool specials = true, escaped = false, hash = false, timed = false;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--no-specials") == 0) specials = false;
        if (strcmp(argv[i], "--escaped") == 0) escaped = true;
        if (strcmp(argv[i], "--hash") == 0) hash = true;
        if (strcmp(argv[i], "--time") == 0) timed = true;
    }
    if (argc < 2) {
        fprintf(stderr, "usage: peer_tokenize MODEL [--no-specials] [--escaped] [--hash] [--time] < TEXT\n");
        return 2;
    }
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    struct llama_model *model = llama_model_load_from_file(argv[1], params);
    if (!model) return 1;
    const struct llama_vocab *v = llama_model_get_vocab(model);
    if (timed) {
        time_all(v, specials);
        return 0;
    }
    char *line = NULL;
    size_t line_cap = 0;
    int32_t *ids = NULL;
    int ids_cap = 0;
    ssize_t got;
    while ((got = getline(&line, &line_cap, stdin)) >= 0) {
        size_t len = (size_t)got;
        if (len > 0 && line[len - 1] == '\n') len--;
        if (escaped) len = unescape(line, len);
        int n = tokenize(v, line, len, specials, &ids, &ids_cap);
        print_ids(ids, n, hash);
    }
    return fflush(stdout) ? 1 : 0;
}

/*
 * Strata's side of tests/golden/peer_tokenize.c: prints the token ids of each line of stdin, one line of ids per line.
 * usage: vocab_ids MODEL [--no-specials] [--escaped] [--hash] [--time] [--patterns] < TEXT
 *   --no-specials  neither BOS nor parsing of special tokens
 *   --escaped      a backslash and n stands for a line feed, \xNN for a byte, two backslashes for one
 *   --hash         instead of the ids, the 32-bit FNV-1a hash of the line of ids
 *   --time         tokenize all of stdin as one text, several times, and print bytes, ids and the best processor time
 *   --patterns     cut with the regular expressions even where there is a hand-written splitter
 */
#include "base/file.h"
#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
    unsigned flags;
    bool escaped, hash, timed;
};

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

static void print_ids(const struct vocab_ids *ids, bool hash) {
    uint32_t h = 0x811C9DC5u;
    for (size_t i = 0; i < ids->len; i++) {
        char text[16];
        int len = snprintf(text, sizeof text, i ? " %d" : "%d", ids->id[i]);
        if (!hash) fputs(text, stdout);
        for (int k = 0; k < len; k++) h = (h ^ (unsigned char)text[k]) * 0x01000193u;
    }
    if (hash) printf("%08x", h);
    putchar('\n');
}

static double processor_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static strata_err time_all(const struct vocab *v, const struct options *opt, struct strata_errmsg *em) {
    size_t cap = 1 << 26, len;
    struct vocab_ids ids = {0};
    double best = 1e9, sum = 0;
    strata_err rc = STRATA_OK;
    char *text = malloc(cap);
    if (!text) return err_nomem(em, "the text");
    len = fread(text, 1, cap, stdin);
    for (int i = 0; i < 4 && sum < 2 && rc == STRATA_OK; i++) {
        double start = processor_time();
        ids.len = 0;
        rc = vocab_encode(v, text, len, opt->flags, &ids, em);
        double t = processor_time() - start;
        if (t < best) best = t;
        sum += t;
    }
    if (rc == STRATA_OK) {
        fprintf(stderr, "bytes=%zu ids=%zu seconds=%.6f ids_per_s=%.0f\n", len, ids.len, best, (double)ids.len / best);
    }
    vocab_ids_deinit(&ids);
    free(text);
    return rc;
}

static strata_err lines(const struct vocab *v, const struct options *opt, struct strata_errmsg *em) {
    struct vocab_ids ids = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t got;
    strata_err rc = STRATA_OK;
    while (rc == STRATA_OK && (got = getline(&line, &cap, stdin)) >= 0) {
        size_t len = (size_t)got;
        if (len > 0 && line[len - 1] == '\n') len--;
        if (opt->escaped) len = unescape(line, len);
        ids.len = 0;
        rc = vocab_encode(v, line, len, opt->flags, &ids, em);
        if (rc == STRATA_OK) print_ids(&ids, opt->hash);
    }
    vocab_ids_deinit(&ids);
    free(line);
    return rc;
}

int main(int argc, char **argv) {
    struct options opt = {.flags = VOCAB_ADD_SPECIAL | VOCAB_PARSE_SPECIAL};
    unsigned how = 0;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--no-specials") == 0) opt.flags = 0;
        if (strcmp(argv[i], "--escaped") == 0) opt.escaped = true;
        if (strcmp(argv[i], "--hash") == 0) opt.hash = true;
        if (strcmp(argv[i], "--time") == 0) opt.timed = true;
        if (strcmp(argv[i], "--patterns") == 0) how = VOCAB_PATTERNS;
    }
    if (argc < 2) {
        fprintf(stderr, "usage: vocab_ids MODEL [--no-specials] [--escaped] [--hash] [--time] [--patterns] < TEXT\n");
        return 2;
    }
    struct strata_errmsg em = {0};
    struct file_map map = {0};
    struct gguf_reader *meta = NULL;
    struct vocab *v = NULL;
    strata_err rc = file_map_open(argv[1], &map, &em);
    if (rc == STRATA_OK) rc = gguf_reader_new(map.data, map.size, argv[1], &meta, &em);
    if (rc == STRATA_OK) rc = vocab_new_with(meta, how, &v, &em);
    if (rc == STRATA_OK) rc = opt.timed ? time_all(v, &opt, &em) : lines(v, &opt, &em);
    if (rc != STRATA_OK) fprintf(stderr, "vocab_ids: %s\n", em.text);
    vocab_free(v);
    gguf_reader_free(meta);
    file_map_close(&map);
    return rc != STRATA_OK || fflush(stdout) ? 1 : 0;
}

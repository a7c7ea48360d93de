/* Which way of reading is the faster. See model_rows_pace.h. Owns the table of kinds, for as long as the process lives.
 */
#include "model/model_rows_pace.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum {
    MOST_KINDS = 256,
    VOICES = 40,       /* that decide */
    PLAIN_NEEDS = 24,  /* of these: asking is the way where nothing speaks against it */
    VOICE_NS = 100000, /* a pair of long runs is worth more than one voice, */
    MOST_VOICES = 20,  /* but not all: any may be held up by something else */
    UNDECIDED = -1
};

struct model_rows_kind {
    int type;
    bool packed;
    int64_t width, rows;
    int few;                      /* see how_few */
    unsigned n_products;          /* so far; every other one begins in the other way */
    atomic_int voices, for_plain; /* of pairs of runs, and of those of which the plain one was the shorter */
    atomic_int way;               /* enum model_rows_way or UNDECIDED */
};

static struct {
    pthread_mutex_t lock;
    struct model_rows_kind kind[MOST_KINDS];
    size_t n;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* One vector, some, many: the more there are the less it is about memory. */
static int how_few(int64_t columns) {
    return columns == 1 ? 0 : columns <= 4 ? 1 : 2;
}

static struct model_rows_kind *find(int type, bool packed, int64_t width, int64_t rows, int few) {
    for (size_t i = 0; i < table.n; i++) {
        struct model_rows_kind *k = &table.kind[i];
        bool same = k->type == type && k->packed == packed && k->width == width && k->rows == rows;
        if (same && k->few == few) return k;
    }
    if (table.n == MOST_KINDS) return NULL;
    struct model_rows_kind *k = &table.kind[table.n++];
    k->type = type;
    k->packed = packed;
    k->width = width;
    k->rows = rows;
    k->few = few;
    atomic_store(&k->way, UNDECIDED);
    return k;
}

struct model_rows_pace model_rows_pace_of(int type, bool packed, int64_t width, int64_t rows, int64_t columns) {
    struct model_rows_pace p = {.way = MODEL_ROWS_ASKING};
    pthread_mutex_lock(&table.lock);
    p.kind = find(type, packed, width, rows, how_few(columns));
    if (p.kind) {
        int way = atomic_load(&p.kind->way);
        bool other = way == UNDECIDED ? p.kind->n_products++ % 2 : way == MODEL_ROWS_PLAIN;
        p.way = other ? MODEL_ROWS_PLAIN : MODEL_ROWS_ASKING;
    }
    pthread_mutex_unlock(&table.lock);
    return p;
}

static bool is_open(const struct model_rows_pace *p) {
    return p->kind && atomic_load(&p->kind->way) == UNDECIDED;
}

void model_rows_pace_begin(struct model_rows_pace *p) {
    if (is_open(p)) p->began_ns = (int64_t)clock_now_ns();
}

void model_rows_pace_end(struct model_rows_pace *p) {
    if (is_open(p))
        model_rows_pace_note(p, (int64_t)clock_now_ns() - p->began_ns);
    else if (p->kind)
        p->way = (enum model_rows_way)atomic_load(&p->kind->way);
}

static void count_pair(struct model_rows_kind *k, const int64_t took_ns[2]) {
    bool for_plain = took_ns[MODEL_ROWS_PLAIN] < took_ns[MODEL_ROWS_ASKING];
    int64_t shorter = took_ns[for_plain ? MODEL_ROWS_PLAIN : MODEL_ROWS_ASKING], n = 1 + shorter / VOICE_NS;
    int voices = n < MOST_VOICES ? (int)n : MOST_VOICES, own = for_plain ? voices : 0;
    int plain = atomic_fetch_add(&k->for_plain, own) + own;
    int all = atomic_fetch_add(&k->voices, voices) + voices;
    if (all >= VOICES && all - voices < VOICES) /* other engines may count as well: one of them decides */
        atomic_store(&k->way, plain * VOICES >= PLAIN_NEEDS * all ? MODEL_ROWS_PLAIN : MODEL_ROWS_ASKING);
}

void model_rows_pace_note(struct model_rows_pace *p, int64_t ns) {
    enum model_rows_way other = p->way == MODEL_ROWS_PLAIN ? MODEL_ROWS_ASKING : MODEL_ROWS_PLAIN;
    p->took_ns[p->way] = ns > 0 ? ns : 1;
    if (p->took_ns[other] > 0) {
        count_pair(p->kind, p->took_ns);
        p->took_ns[0] = p->took_ns[1] = 0;
    } else {
        p->way = other;
    }
}

/*
 * The threads that ggml computes with.
 *
 * ggml computes with an OpenMP team: the thread that calls it, and workers that the library keeps for that thread. What
 * else they should do can only be told them inside a parallel region of the same library.
 *
 * Waiting: idle workers spin for a while, waiting for the next graph. That is right inside a computation and wrong
 * between two: a stage waits for its neighbours most of the time, and on shared cores its spinning workers slow down
 * the very stage that it waits for. So it waits for work inside a region.
 *
 * Places: threads that meet hundreds of times per token must not share a processor, and a scheduler that moves a woken
 * thread to the one that woke it brings them together. A team with a thread for every processor is bound, each to its
 * own.
 */
#ifndef MODEL_TEAM_H
#define MODEL_TEAM_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Runs fn(ctx) on the calling thread and on each of the n_threads - 1 workers that ggml uses from this thread, and
 * returns when all are done. Where ggml was built without GNU OpenMP there is no such team, and fn runs on this thread
 * alone.
 */
void model_team_run(uint32_t n_threads, void (*fn)(void *ctx), void *ctx);

/* Binds this thread's team when it has as many threads as there are processors, unless the user's environment tells
 * OpenMP where threads go. Returns whether it did; if so, model_team_release undoes it, from the same thread. */
bool model_team_bind(uint32_t n_threads);
void model_team_release(uint32_t n_threads);

#endif

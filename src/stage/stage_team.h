/*
 * Keeps a waiting stage's worker threads off the cores.
 *
 * ggml computes with an OpenMP team, whose idle workers spin for a while, waiting for the next graph. That is right
 * inside a computation and wrong between two: a stage waits for its neighbours most of the time, and on shared cores
 * its spinning workers slow down the very stage that it waits for. There is no way to tell the run-time library so; but
 * workers that are inside a parallel region do what the region says. So the stage waits for work inside one.
 */
#ifndef STAGE_TEAM_H
#define STAGE_TEAM_H

#include <stdint.h>

/*
 * Runs fn(ctx) on the calling thread and on each of the n_threads - 1 workers that ggml uses from this thread, and
 * returns when all are done. Where ggml was built without GNU OpenMP there is no such team, and fn runs on this thread
 * alone.
 */
void stage_team_run(uint32_t n_threads, void (*fn)(void *ctx), void *ctx);

#endif

/* What injections there are is in inject.c, how they work in inject_*.c. */
#ifndef GPULOAD_PLAN_H
#define GPULOAD_PLAN_H

#include <stdio.h>

#include "load.h"

/* --inject NAME[:MS][@N] */
void plan_inject(const char *text);
/* After the last one: turns of different injections do not meet if there is room. */
void plan_spread(void);
/* --case A,B: each comes so many times, in random order, with so many steps between. */
void plan_cases(const char *names, int gaps, uint64_t seed, long between);
/* Why it cannot be done here, or NULL. */
const char *plan_lacks(const struct injection *what);
/* Before cuInit, and after it. */
void plan_prepare(struct run *run);
void plan_ready(struct run *run);
/* What is to come after this step; its truth is written to `out` if there is one. Those of --case wait until it is `ready`. */
void plan_step(struct run *run, long step, int ready, FILE *out);
/* All of --case have come. */
int plan_over(long step);

#endif

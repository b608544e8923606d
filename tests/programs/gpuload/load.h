/* What the parts of gpuload share. */
#ifndef GPULOAD_LOAD_H
#define GPULOAD_LOAD_H

#include <stdint.h>

#include "gpu.h"

#define US 1000ull
#define MS 1000000ull

struct options {
	long steps; /* 0: until `seconds` are over */
	double seconds;
	int kernels; /* launches a step */
	uint64_t kernel_ns;
	uint64_t host_ns; /* host work between steps */
	int sync_every; /* steps between synchronisations, 0: none */
	int ahead; /* steps queued ahead of the device, 0: off */
	int device;
	int cpu; /* pin to it, -1: no */
	int hogs; /* for preempt */
	const char *scratch; /* directory on a disk */
	const char *truth;
};

/* The run as an injection sees it. The step before it is over. */
struct run {
	struct options opt;
	struct gpu gpu;
	int devices;
};

/* When an injection took effect, CLOCK_MONOTONIC, and as what: the injection's own cause unless set. */
struct span {
	uint64_t start, end;
	const char *cause;
};

struct injection {
	const char *name;
	const char *cause; /* what gdiag should say */
	double ms; /* usual length */
	const char *help;
	/* Both may be NULL. `prepare` comes before cuInit, when there is one thread; `ready` after it. */
	void (*prepare)(struct run *run);
	void (*ready)(struct run *run);
	/* Does it for about `ns`, on an idle device; `span` is the time around the call, and may be made narrower. */
	void (*go)(struct run *run, uint64_t ns, struct span *span);
};

extern const struct injection injections[];
extern const int injection_count;

/* CLOCK_MONOTONIC in ns. */
uint64_t now_ns(void);
/* Prints and ends with status 1. */
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* Keeps the CPU busy for that long; its name shows in stacks. */
void host_work(uint64_t ns);
/* Sleeps for that long. */
void sleep_ns(uint64_t ns);
/* Pins the calling thread. */
void pin_to(int cpu);
/* `gpuload hogs`, with its arguments. */
int hogs_main(int argc, char **argv);

#endif

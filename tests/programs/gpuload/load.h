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
	int sync_every;	  /* steps between synchronisations, 0: none */
	int ahead;	  /* steps queued ahead of the device, 0: off */
	int device;
	int cpu;	     /* pin to it, -1: no */
	int hogs;	     /* for preempt */
	const char *scratch; /* directory on a disk */
	const char *truth;
};

/* The run as an injection sees it. The step before it is over. */
struct run {
	struct options opt;
	struct gpu gpu;
	int devices;
};

#define MAX_SPANS 4096

/* When an injection took effect, CLOCK_MONOTONIC, and as what. */
struct truth {
	const char *cause; /* of the spans to come: the injection's own unless set */
	int whole;	   /* all of the call, unless cleared */
	int count;
	struct span {
		const char *cause;
		uint64_t start, end;
		uint64_t ns; /* for so much of it */
	} spans[MAX_SPANS];
};

struct injection {
	const char *name;
	const char *cause; /* what gdiag should say */
	double ms;	   /* usual length */
	int twin;	   /* with enough work queued it makes no gap: it neither waits for the device nor is in it */
	const char *help;
	/* Why it cannot be done here, or NULL. May be NULL. */
	const char *(*lacks)(void);
	/* Both may be NULL. `prepare` comes before cuInit, when there is one thread; `ready` after it. */
	void (*prepare)(struct run *run);
	void (*ready)(struct run *run);
	/* Does it for about `ns`, on an idle device. */
	void (*go)(struct run *run, uint64_t ns, struct truth *truth);
};

extern const struct injection injections[];
extern const int injection_count;

/* CLOCK_MONOTONIC in ns. */
uint64_t now_ns(void);
/* Prints and ends with status 1. */
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* Keeps the CPU busy for that long; its name shows in stacks. */
void host_work(uint64_t ns);
/* Only reads the clock for that long. Where it jumps, this thread was kept from running: that is the truth. */
void note_jumps(struct truth *truth, uint64_t ns);
void truth_add(struct truth *truth, uint64_t start, uint64_t end);

/* A call that sleeps, but also computes: where in it is not known from here, but how long is. */
struct call {
	uint64_t start, cpu;
	long sleeps;
};
void call_begins(struct call *call);
/* Notes the call if the thread slept in it, for as long as it did not compute; returns now. */
uint64_t call_ends(const struct call *call, struct truth *truth);
/* Sleeps for that long. */
void sleep_ns(uint64_t ns);
/* Pins the calling thread. */
void pin_to(int cpu);
/* Keeps it from a CPU, if there is another one. */
void keep_off(int cpu);

#endif

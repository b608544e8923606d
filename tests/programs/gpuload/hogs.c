/* Busy processes and threads that take the launching thread's CPU, only while an injection lasts. */
#define _GNU_SOURCE
#include "inject.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "outside.h"
#include "peer.h"

#define SLICES 3 /* hogs for each CPU, where they have no CPU of their own */

static void sleep_until(uint64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void serve_as_hog(struct gang *gang)
{
	uint32_t seen = 0;
	int cpu;

	for (;;) {
		while (atomic_load(&gang->turn) == seen)
			futex_wait(&gang->turn, seen);
		seen = atomic_load(&gang->turn);
		cpu = atomic_load(&gang->cpu);
		if (cpu >= 0)
			pin_to(cpu);
		sleep_until(atomic_load(&gang->from));
		while (now_ns() < atomic_load(&gang->until))
			;
	}
}

/* Sends the hogs to work on this CPU, or any, from `from` on. */
static void send_hogs(struct gang *gang, int cpu, uint64_t from, uint64_t ns)
{
	atomic_store(&gang->cpu, cpu);
	atomic_store(&gang->from, from);
	atomic_store(&gang->until, from + ns);
	atomic_fetch_add(&gang->turn, 1);
	futex_wake(&gang->turn);
}

static void set_mask(const cpu_set_t *mask)
{
	if (sched_setaffinity(0, sizeof(*mask), mask))
		die("sched_setaffinity: %s", strerror(errno));
}

/*
 * Sets the hogs on this thread's CPU for so long, and notes when it is kept from running. Without its
 * mask narrowed it would move away.
 */
static void take_turn(struct gang *gang, uint64_t ns, struct truth *truth)
{
	int cpu = sched_getcpu();
	cpu_set_t mask;

	if (sched_getaffinity(0, sizeof(mask), &mask))
		die("sched_getaffinity: %s", strerror(errno));
	pin_to(cpu);
	/* Not at once: they would have the CPU before this thread looks at the clock. */
	send_hogs(gang, cpu, now_ns() + MS, ns);
	note_jumps(truth, ns + MS);
	set_mask(&mask);
}

static void hog(int nothing, void *gang)
{
	(void)nothing;
	serve_as_hog(gang);
}

void fork_hogs(struct gang *gang, int count)
{
	for (int i = 0; i < count; i++)
		serve("hog", hog, -1, gang);
}

static struct gang *gang;

void preempt_prepare(struct run *run)
{
	if (gang)
		return;
	if (outside()) {
		gang = &outside()->gang;
		return;
	}
	fputs("gpuload: preempt without `gpuload outside`: its own children take the CPU\n", stderr);
	gang = share(sizeof(*gang));
	fork_hogs(gang, run->opt.hogs);
}

void preempt_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	if (!outside())
		truth->cause = "host.oversubscribed";
	take_turn(gang, ns, truth);
}

void sleep_preempt_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t start = now_ns();

	truth->cause = "host.sleep";
	sleep_ns(ns / 3);
	truth_add(truth, start, now_ns());
	truth->cause = "host.preempted";
	preempt_go(run, ns / 3 * 2, truth);
}

/* loader-preempt: what was waited for is there, but this thread has lost its CPU meanwhile. */

static int loader_fd = -1;

void loader_preempt_prepare(struct run *run)
{
	preempt_prepare(run);
	if (loader_fd >= 0)
		return;
	loader_fd = unix_child("loader", peer_loop);
	peer_make_ready(loader_fd, PEER_READS);
}

void loader_preempt_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t start = now_ns(), delivered, back;
	int cpu = sched_getcpu();
	cpu_set_t mask;

	(void)run;
	if (sched_getaffinity(0, sizeof(mask), &mask))
		die("sched_getaffinity: %s", strerror(errno));
	pin_to(cpu);
	send_hogs(gang, cpu, start + ns / 4, ns / 4 * 3);
	peer_ask(loader_fd, PEER_READS, ns / 2, truth);
	back = now_ns();
	delivered = truth->count ? truth->spans[truth->count - 1].end : back;
	truth->cause = "host.preempted";
	/* The answer takes a few microseconds. */
	if (back - delivered > 100 * US)
		truth_add(truth, delivered, back);
	if (back < start + ns)
		note_jumps(truth, start + ns - back);
	set_mask(&mask);
}

static struct gang packed, many;

static void *hog_thread(void *gang)
{
	prctl(PR_SET_NAME, "worker");
	serve_as_hog(gang);
	return NULL;
}

static void start_threads(struct gang *gang, int count)
{
	pthread_t thread;

	for (int i = 0; i < count; i++)
		if (pthread_create(&thread, NULL, hog_thread, gang))
			die("cannot start a thread");
}

void affinity_ready(struct run *run)
{
	start_threads(&packed, run->opt.hogs);
}

/* All threads of the job are packed on one CPU, while the others have nothing to do. */
void affinity_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	take_turn(&packed, ns, truth);
}

const char *affinity_lacks(void)
{
	return sysconf(_SC_NPROCESSORS_ONLN) < 2 ? "needs two CPUs" : NULL;
}

void oversubscribe_ready(struct run *run)
{
	(void)run;
	start_threads(&many, SLICES * sysconf(_SC_NPROCESSORS_ONLN));
}

/* More busy threads than CPUs. A thread that slept before may keep its CPU for that long. */
void oversubscribe_go(struct run *run, uint64_t ns, struct truth *truth)
{
	int before = truth->count;

	(void)run;
	for (int tries = 0; tries < 5 && truth->count == before; tries++) {
		send_hogs(&many, -1, now_ns() + MS, ns);
		note_jumps(truth, ns + MS);
	}
}

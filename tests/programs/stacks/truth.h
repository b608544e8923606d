/* What a program here knows about its own stacks, for tests/stacks to compare.
 *
 * A phase is a time during which one thread has one known chain of calls. The leaf spins or waits
 * there and takes the times; nothing is written before the program ends. Then a line of JSON for
 * each phase: process, thread, kind, start and end (CLOCK_MONOTONIC), CPU time of the thread in
 * between, and the chain from main, or the thread's first function, to the leaf. In a chain
 *
 *   "name"       is a frame of that function, inlined or not
 *   "name?"      is that frame, or none
 *   "+lib|lib"   is one frame or more in files whose names begin so
 *   "*lib|lib"   is any number of them
 *
 * where the file std is whatever the compiler made of a standard library, and plt the stubs by
 * which calls leave a file.
 */
#ifndef TRUTH_H
#define TRUTH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef __clang__
#define FRAME __attribute__((noinline))
#else
#define FRAME __attribute__((noipa))
#endif
#define INLINED static inline __attribute__((always_inline))
/* Behind a call that must not become a jump. */
#define AFTER() __asm__ volatile("" ::: "memory")

#define MAX_PHASES 4096
#define MAX_CHAIN 4000
#define CLOCKS "now_ns?", "*plt|libc.so|[vdso]"

struct truth {
	const char *phase;
	int pid;
	int tid;
	int off;
	uint64_t length;
	uint64_t start;
	uint64_t end;
	uint64_t cpu;
	uint64_t work;
	size_t used;
	char chain[MAX_CHAIN];
};

/* Shared with children. */
struct truths {
	unsigned count;
	struct truth of[MAX_PHASES];
};

static struct truths *truths;
static uint64_t truth_random;

INLINED uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

INLINED uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t truth_below(uint64_t limit)
{
	truth_random ^= truth_random << 13;
	truth_random ^= truth_random >> 7;
	truth_random ^= truth_random << 17;
	return truth_random % limit;
}

static void truth_init(uint64_t seed)
{
	void *p = mmap(0, sizeof(*truths), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		abort();
	truths = (struct truths *)p;
	truth_random = seed * 2 + 0x9e3779b97f4a7c15ull;
}

static struct truth *truth_new(const char *phase)
{
	struct truth *t = &truths->of[truths->count++];

	if (truths->count > MAX_PHASES)
		abort();
	t->phase = phase;
	t->length = 5000000 + truth_below(20000000);
	return t;
}

/* The next frames of the chain: the same one n times. */
static void calls(struct truth *t, const char *name, unsigned n)
{
	while (n--) {
		int room = sizeof(t->chain) - t->used;
		int len = snprintf(t->chain + t->used, room, "%s\"%s\"", t->used ? "," : "", name);

		if (len >= room)
			abort();
		t->used += len;
	}
}

#define CHAIN(t, ...)                                              \
	do {                                                       \
		const char *const names_[] = { __VA_ARGS__ };      \
		for (size_t i_ = 0; i_ < sizeof(names_) / 8; i_++) \
			calls(t, names_[i_], 1);                   \
	} while (0)

INLINED void truth_start(struct truth *t)
{
	t->pid = getpid();
	t->tid = syscall(SYS_gettid);
	t->start = now_ns();
	t->cpu = cpu_ns();
}

INLINED void truth_end(struct truth *t)
{
	t->cpu = cpu_ns() - t->cpu;
	t->end = now_ns();
}

INLINED void work(struct truth *t)
{
	for (int i = 0; i < 4000; i++)
		__asm__ volatile("" : "+r"(i));
	t->work++;
}

/* A leaf that runs. Its caller's chain ends with SPIN. */
INLINED void spin(struct truth *t)
{
	truth_start(t);
	uint64_t until = t->start + t->length;
	while (now_ns() < until)
		work(t);
	truth_end(t);
}
#define SPIN "spin", "truth_start?", "truth_end?", "work?", "cpu_ns?", CLOCKS
/* And of one that waits. */
#define WAIT "truth_start?", "truth_end?", "cpu_ns?", CLOCKS

/* The lines, and on standard output how much was done in how much time. */
static inline int truth_write(const char *path)
{
	FILE *f = fopen(path, "w");
	uint64_t done = 0, cpu = 0, ns = 0;
	struct timespec all;

	if (!f)
		return 1;
	for (unsigned i = 0; i < truths->count; i++) {
		struct truth *t = &truths->of[i];

		fprintf(f, "{\"phase\":\"%s\",\"pid\":%d,\"tid\":%d,\"kind\":\"%s\",\"start_ns\":%llu,\"end_ns\":%llu,\"cpu_ns\":%llu,\"chain\":[%s]}\n",
			t->phase, t->pid, t->tid, t->off ? "off" : "cpu", (unsigned long long)t->start,
			(unsigned long long)t->end, (unsigned long long)t->cpu, t->chain);
		if (t->work) {
			done += t->work;
			cpu += t->cpu;
			ns += t->end - t->start;
		}
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &all);
	printf("{\"work\":%llu,\"cpu_ns\":%llu,\"ns\":%llu,\"process_ns\":%llu}\n", (unsigned long long)done,
	       (unsigned long long)cpu, (unsigned long long)ns, all.tv_sec * 1000000000ull + all.tv_nsec);
	return fclose(f) != 0;
}

#endif

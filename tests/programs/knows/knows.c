// SPDX-License-Identifier: Apache-2.0
/*
 * A program that knows what it did: how often its threads left a CPU and why, how often they were moved,
 * which system calls they made, how many of those failed, and how long all of that took.
 *
 *   knows sleep N US     N sleeps of US microseconds
 *   knows futex N        N round trips of two threads that wake each other, on one CPU
 *   knows yield N        N calls of sched_yield by each of two threads, on one CPU
 *   knows migrate N      N moves from one CPU to another and back
 *   knows preempt MS     MS milliseconds of two threads that want the same CPU
 *   knows calls N        N getppid, N read that fail with EBADF, N / 100 sleeps of 100 us
 *
 * Each thread sleeps in a futex before and after, and while all do, their counts are read from the kernel
 * (/proc/self/task/TID): what is between is known to the unit. `window` is from the first reading to the second
 * (CLOCK_MONOTONIC); `life` is since the thread was made. Prints one line of JSON.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_CALLS 4

struct call {
	const char *name;
	uint64_t count, errors, ns, min_ns, max_ns;
};

struct counts {
	uint64_t voluntary, involuntary; /* of status */
	uint64_t run_ns, runq_ns, runs;	 /* of schedstat */
};

struct worker {
	const char *name;
	void (*work)(struct worker *);
	struct worker *peer;
	pthread_t thread;
	_Atomic int tid;
	_Atomic uint32_t go;   /* the next thing to do, see park() */
	_Atomic uint32_t done; /* how often it came to park() */
	_Atomic uint32_t turn;
	uint64_t n, arg, migrations;
	struct counts before, after;
	struct call calls[MAX_CALLS];
	int kinds;
};

static int cpus[2];	/* two that this process may use */
static _Atomic int end; /* of the threads that run until they are told */

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static long futex(_Atomic uint32_t *word, int op, uint32_t value)
{
	return syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
}

/* Accounts for one system call that began at `start` and gave `result`. */
static void made(struct call *call, uint64_t start, long result)
{
	uint64_t ns = now() - start;

	if (!call->count || ns < call->min_ns)
		call->min_ns = ns;
	if (ns > call->max_ns)
		call->max_ns = ns;
	call->count++;
	call->errors += result < 0;
	call->ns += ns;
}

static struct call *kind(struct worker *w, const char *name)
{
	struct call *call = &w->calls[w->kinds++];

	call->name = name;
	return call;
}

static void sleep_us(struct call *call, uint64_t us)
{
	struct timespec ts = { us / 1000000, us % 1000000 * 1000 };
	uint64_t start = now();

	made(call, start, syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &ts, NULL));
}

static void do_sleep(struct worker *w)
{
	struct call *call = kind(w, "clock_nanosleep");

	for (uint64_t i = 0; i < w->n; i++)
		sleep_us(call, w->arg);
}

/* Waits until it is its turn, then gives the turn to the other one. */
static void do_futex(struct worker *w)
{
	for (uint64_t i = 0; i < w->n; i++) {
		while (!atomic_load(&w->turn))
			futex(&w->turn, FUTEX_WAIT, 0);
		atomic_store(&w->turn, 0);
		atomic_store(&w->peer->turn, 1);
		futex(&w->peer->turn, FUTEX_WAKE, 1);
	}
}

static void do_yield(struct worker *w)
{
	struct call *call = kind(w, "sched_yield");

	for (uint64_t i = 0; i < w->n; i++) {
		uint64_t start = now();

		made(call, start, syscall(SYS_sched_yield));
	}
}

static void do_migrate(struct worker *w)
{
	for (uint64_t i = 0; i < w->n; i++) {
		int from = sched_getcpu();

		pin(cpus[(i + 1) % 2]);
		w->migrations += sched_getcpu() != from;
	}
}

static void do_spin(struct worker *w)
{
	(void)w;
	while (!atomic_load(&end))
		;
}

static void do_calls(struct worker *w)
{
	struct call *ppid = kind(w, "getppid"), *bad = kind(w, "read"), *nap = kind(w, "clock_nanosleep");
	char byte;

	for (uint64_t i = 0; i < w->n; i++) {
		uint64_t start = now();

		made(ppid, start, syscall(SYS_getppid));
		start = now();
		made(bad, start, syscall(SYS_read, -1, &byte, 1));
		if (i % 100 == 99)
			sleep_us(nap, 100);
	}
}

/* Sleeps until it is told to go on; the first time to begin, the second time never. */
static void park(struct worker *w)
{
	uint32_t turn = atomic_fetch_add(&w->done, 1);

	while (atomic_load(&w->go) <= turn)
		futex(&w->go, FUTEX_WAIT, turn);
}

static void *run(void *arg)
{
	struct worker *w = arg;

	prctl(PR_SET_NAME, w->name);
	pin(cpus[0]);
	atomic_store(&w->tid, syscall(SYS_gettid));
	park(w);
	w->work(w);
	park(w);
	return NULL;
}

static char *slurp(const struct worker *w, const char *what, char *text, size_t size)
{
	char path[64];
	size_t n;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/%s", w->tid, what);
	f = fopen(path, "r");
	if (!f)
		die(path);
	n = fread(text, 1, size - 1, f);
	text[n] = 0;
	fclose(f);
	return text;
}

static uint64_t field(const char *text, const char *name)
{
	const char *at = strstr(text, name);

	return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static void nap(void)
{
	struct timespec ts = { 0, 2000000 };

	nanosleep(&ts, NULL);
}

/* Waits until it sleeps in park() for the `times`-th time. */
static void await(struct worker *w, uint32_t times)
{
	char text[4096];

	while (atomic_load(&w->done) < times || !strstr(slurp(w, "stat", text, sizeof(text)), ") S "))
		nap();
	/* It says that it sleeps a moment before it leaves the CPU. */
	nap();
}

static void count(struct worker *w, struct counts *c)
{
	char text[8192];

	slurp(w, "status", text, sizeof(text));
	c->voluntary = field(text, "\nvoluntary_ctxt_switches:");
	c->involuntary = field(text, "\nnonvoluntary_ctxt_switches:");
	slurp(w, "schedstat", text, sizeof(text));
	if (sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64, &c->run_ns, &c->runq_ns, &c->runs) != 3)
		die("schedstat");
}

static void let_go(struct worker *w)
{
	atomic_fetch_add(&w->go, 1);
	futex(&w->go, FUTEX_WAKE, 1);
}

static void print_counts(const char *name, const struct counts *to, const struct counts *from)
{
	printf("\"%s\":{\"voluntary\":%" PRIu64 ",\"involuntary\":%" PRIu64 ",\"run_ns\":%" PRIu64
	       ",\"runq_ns\":%" PRIu64 ",\"runs\":%" PRIu64 "}",
	       name, to->voluntary - from->voluntary, to->involuntary - from->involuntary, to->run_ns - from->run_ns,
	       to->runq_ns - from->runq_ns, to->runs - from->runs);
}

static void print_worker(const struct worker *w)
{
	static const struct counts none;

	printf("{\"name\":\"%s\",\"tid\":%d,\"migrations\":%" PRIu64 ",", w->name, w->tid, w->migrations);
	print_counts("window", &w->after, &w->before);
	putchar(',');
	print_counts("life", &w->after, &none);
	printf(",\"calls\":[");
	for (int i = 0; i < w->kinds; i++) {
		const struct call *c = &w->calls[i];

		printf("%s{\"name\":\"%s\",\"count\":%" PRIu64 ",\"errors\":%" PRIu64 ",\"ns\":%" PRIu64
		       ",\"min_ns\":%" PRIu64 ",\"max_ns\":%" PRIu64 "}",
		       i ? "," : "", c->name, c->count, c->errors, c->ns, c->min_ns, c->max_ns);
	}
	printf("]}");
}

static int find_cpus(void)
{
	cpu_set_t set;
	int found = 0;

	if (sched_getaffinity(0, sizeof(set), &set))
		die("sched_getaffinity");
	for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
		if (CPU_ISSET(cpu, &set))
			cpus[found++] = cpu;
	return found;
}

static const struct mode {
	const char *name;
	const char *threads[2];
	void (*work)(struct worker *);
} modes[] = {
	{ "sleep", { "sleeper" }, do_sleep },	   { "futex", { "ping", "pong" }, do_futex },
	{ "yield", { "yield-a", "yield-b" }, do_yield }, { "migrate", { "mover" }, do_migrate },
	{ "preempt", { "victim", "hog" }, do_spin },	   { "calls", { "caller" }, do_calls },
};

static const struct mode *find_mode(const char *name)
{
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
		if (!strcmp(modes[i].name, name))
			return &modes[i];
	return NULL;
}

int main(int argc, char **argv)
{
	const struct mode *mode = argc > 2 ? find_mode(argv[1]) : NULL;
	struct worker workers[2] = { 0 };
	uint64_t start, stop;
	int n = 0;

	if (!mode) {
		fprintf(stderr, "usage: knows sleep|futex|yield|migrate|preempt|calls N [US]\n");
		return 2;
	}
	if (find_cpus() < 2 && mode->work == do_migrate) {
		fprintf(stderr, "knows: only one CPU\n");
		return 2;
	}
	for (; n < 2 && mode->threads[n]; n++) {
		struct worker *w = &workers[n];

		w->name = mode->threads[n];
		w->work = mode->work;
		w->peer = &workers[!n];
		w->n = strtoull(argv[2], NULL, 10);
		w->arg = argc > 3 ? strtoull(argv[3], NULL, 10) : 1000;
	}
	/* The controller stays out of the way where it can. */
	pin(cpus[1]);
	workers[0].turn = 1;
	for (int i = 0; i < n; i++)
		if (pthread_create(&workers[i].thread, NULL, run, &workers[i]))
			die("pthread_create");
	for (int i = 0; i < n; i++) {
		await(&workers[i], 1);
		count(&workers[i], &workers[i].before);
	}
	start = now();
	for (int i = 0; i < n; i++)
		let_go(&workers[i]);
	if (mode->work == do_spin) {
		struct timespec ts = { workers[0].n / 1000, workers[0].n % 1000 * 1000000 };

		nanosleep(&ts, NULL);
		atomic_store(&end, 1);
	}
	for (int i = 0; i < n; i++)
		await(&workers[i], 2);
	stop = now();
	for (int i = 0; i < n; i++)
		count(&workers[i], &workers[i].after);
	printf("{\"mode\":\"%s\",\"pid\":%d,\"cpus\":[%d,%d],\"start_ns\":%" PRIu64 ",\"end_ns\":%" PRIu64
	       ",\"threads\":[",
	       mode->name, getpid(), cpus[0], cpus[1], start, stop);
	for (int i = 0; i < n; i++) {
		if (i)
			putchar(',');
		print_worker(&workers[i]);
	}
	printf("]}\n");
	fflush(stdout);
	/* The workers sleep on, and end with the process. */
	_exit(0);
}

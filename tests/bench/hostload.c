/*
 * A load of known rate, to see how much a tracer slows it down.
 *
 *   hostload switch|syscall [-n N] [-s SECONDS] [-w WARM_UP]
 *
 * switch: N pairs of threads, pair i pinned to CPU i, hand a futex to and fro;
 * one operation is two context switches and two wakeups. syscall: N threads,
 * thread i pinned to CPU i, call getppid. One line of JSON.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_LANES 64

/* One pair, or one thread. On cache lines of its own. */
struct lane {
	_Atomic uint32_t turn;
	_Atomic uint64_t ops;
	int cpu;
} __attribute__((aligned(128)));

static struct lane lanes[MAX_LANES];
static atomic_bool stop;

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		perror("sched_setaffinity");
		exit(1);
	}
}

static void futex(_Atomic uint32_t *word, int op, uint32_t value)
{
	syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void hand_over(struct lane *lane, uint32_t me)
{
	pin(lane->cpu);
	while (!atomic_load(&stop)) {
		while (atomic_load(&lane->turn) != me) {
			futex(&lane->turn, FUTEX_WAIT, 1 - me);
			if (atomic_load(&stop))
				return;
		}
		if (!me)
			atomic_fetch_add_explicit(&lane->ops, 1, memory_order_relaxed);
		atomic_store(&lane->turn, 1 - me);
		futex(&lane->turn, FUTEX_WAKE, 1);
	}
}

static void *ping(void *lane)
{
	hand_over(lane, 0);
	return NULL;
}

static void *pong(void *lane)
{
	hand_over(lane, 1);
	return NULL;
}

static void *call(void *arg)
{
	struct lane *lane = arg;

	pin(lane->cpu);
	while (!atomic_load(&stop)) {
		for (int i = 0; i < 64; i++)
			syscall(SYS_getppid);
		atomic_fetch_add_explicit(&lane->ops, 64, memory_order_relaxed);
	}
	return NULL;
}

static uint64_t now(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void start(void *(*body)(void *), struct lane *lane)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, body, lane)) {
		perror("pthread_create");
		exit(1);
	}
}

static uint64_t total(int n)
{
	uint64_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += atomic_load(&lanes[i].ops);
	return sum;
}

int main(int argc, char **argv)
{
	double seconds = 2, warm_up = 0.5;
	int n = 1, opt, switches;
	uint64_t ops, wall, cpu;

	while ((opt = getopt(argc, argv, "n:s:w:")) != -1) {
		if (opt == 'n')
			n = atoi(optarg);
		else if (opt == 's')
			seconds = atof(optarg);
		else if (opt == 'w')
			warm_up = atof(optarg);
		else
			return 2;
	}
	switches = optind < argc && !strcmp(argv[optind], "switch");
	if (n < 1 || n > MAX_LANES || optind >= argc || (!switches && strcmp(argv[optind], "syscall"))) {
		fprintf(stderr, "usage: hostload switch|syscall [-n N] [-s SECONDS] [-w WARM_UP]\n");
		return 2;
	}
	for (int i = 0; i < n; i++) {
		lanes[i].cpu = i;
		if (switches) {
			start(ping, &lanes[i]);
			start(pong, &lanes[i]);
		} else {
			start(call, &lanes[i]);
		}
	}
	usleep(warm_up * 1e6);
	ops = total(n);
	wall = now(CLOCK_MONOTONIC);
	cpu = now(CLOCK_PROCESS_CPUTIME_ID);
	usleep(seconds * 1e6);
	ops = total(n) - ops;
	wall = now(CLOCK_MONOTONIC) - wall;
	cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	printf("{\"load\":\"%s\",\"n\":%d,\"ops\":%lu,\"ops_s\":%.0f,\"cpu_ns_op\":%.1f,\"cpu_s\":%.3f}\n",
	       argv[optind], n, total(n), ops * 1e9 / wall, (double)cpu / (ops ? ops : 1),
	       now(CLOCK_PROCESS_CPUTIME_ID) / 1e9);
	/* The threads may sleep on their futex for good. */
	fflush(stdout);
	_exit(0);
}

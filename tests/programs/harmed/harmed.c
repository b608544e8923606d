/* harmed: a GPU job whose result is known, in the hands of tests/harm.
 *
 * Whatever happens to gdiag, it must end with the same line and the same status
 * as without gdiag. Usage: harmed MODE LOG [NUMBER]...
 *
 * LOG gets 16 bytes after each step that the device has finished: CLOCK_MONOTONIC
 * in ns and the launches so far. */
#define _GNU_SOURCE
#include "../gpuload/gpu.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STATUS 42 /* of a run that was not disturbed */
#define LAUNCHES 10 /* a step */

static struct gpu gpu;
static uint64_t launches, sum;
static int log_fd = -1;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void step(void)
{
	struct timespec pause = { 0, 1000000 };
	uint64_t entry[2];

	for (int i = 0; i < LAUNCHES; i++) {
		gpu_spin(&gpu, gpu.stream, 20000);
		sum = sum * 6364136223846793005ull + ++launches;
	}
	GPU(cuStreamSynchronize(gpu.stream));
	entry[0] = now_ns();
	entry[1] = launches;
	if (log_fd >= 0 && write(log_fd, entry, sizeof(entry)) != sizeof(entry))
		exit(2);
	/* Cut short by a signal it would be another run. */
	while (nanosleep(&pause, &pause))
		;
}

static void steps(long n)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };

	for (long i = 0; i < n; i++)
		step();
	/* 0: until the input is closed */
	while (!n && poll(&input, 1, 0) == 0)
		step();
}

/* A status that a signal or a failed child would not give. */
static void reap(pid_t child, int expected)
{
	int status;

	if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != expected) {
		fprintf(stderr, "harmed: child ended with %#x\n", status);
		exit(3);
	}
}

/* Children that share the shim's code and must have no part in it. */
static void forks(void)
{
	pid_t child = fork();

	if (!child) {
		free(malloc(1 << 20));
		exit(0); /* runs the exit handlers */
	}
	reap(child, 0);
	/* As a sandbox does: no handler of pthread_atfork runs. */
	child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (!child)
		exit(0);
	reap(child, 0);
	child = vfork();
	if (!child)
		_exit(0);
	reap(child, 0);
	child = fork();
	if (!child)
		abort();
	waitpid(child, NULL, 0);
}

static void *thread(void *arg)
{
	CUstream stream;

	GPU(cuCtxSetCurrent(gpu.context));
	GPU(cuStreamCreate(&stream, 1));
	for (long i = 0; i < (long)arg; i++)
		gpu_spin(&gpu, stream, 2000);
	GPU(cuStreamSynchronize(stream));
	return NULL;
}

static void threads(long n, long each)
{
	pthread_t *ids = calloc(n, sizeof(*ids));

	for (long i = 0; i < n; i++)
		if (pthread_create(&ids[i], NULL, thread, (void *)each))
			exit(4);
	for (long i = 0; i < n; i++)
		pthread_join(ids[i], NULL);
	free(ids);
}

static void *no_work(void *arg)
{
	return arg;
}

/* Processes, threads and programs that come and go, 50 at a time at most. */
static void storm(long forks, long threads, long execs)
{
	pthread_t ids[50];

	for (long i = 0; i < forks + execs; i++) {
		pid_t child = fork();

		if (!child) {
			if (i >= forks)
				execl("/bin/true", "true", NULL);
			_exit(0);
		}
		if (i >= 50)
			wait(NULL);
	}
	while (wait(NULL) > 0)
		;
	for (long i = 0; i < threads; i += 50) {
		for (int k = 0; k < 50; k++)
			if (pthread_create(&ids[k], NULL, no_work, NULL))
				exit(4);
		for (int k = 0; k < 50; k++)
			pthread_join(ids[k], NULL);
	}
}

static void *named(void *name)
{
	struct timespec pause = { 0, 10000000 };

	prctl(PR_SET_NAME, name);
	while (nanosleep(&pause, &pause))
		;
	return NULL;
}

/* Threads that are called anything, one after another. */
static void names(void)
{
	static char *const names[] = {
		"\033[31m\nred\007", "\377\376\200", ";;;;;;;;;;;;;;;", "", "               ", "a/../b",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		pthread_t id;

		if (pthread_create(&id, NULL, named, names[i]))
			exit(2);
		pthread_join(id, NULL);
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[1] : "";
	long a = argc > 3 ? atol(argv[3]) : 0, b = argc > 4 ? atol(argv[4]) : 0;

	log_fd = open(argc > 2 ? argv[2] : "", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log_fd < 0)
		return 2;
	if (!strcmp(mode, "storm")) {
		storm(a, b, argc > 5 ? atol(argv[5]) : 0);
		return STATUS;
	}
	if (!strcmp(mode, "names")) {
		names();
		return STATUS;
	}
	gpu_init();
	gpu_open(&gpu, 0);
	if (!strcmp(mode, "run")) {
		steps(a);
	} else if (!strcmp(mode, "killed")) {
		steps(a);
		kill(getpid(), SIGKILL);
	} else if (!strcmp(mode, "aborts")) {
		steps(a);
		abort();
	} else if (!strcmp(mode, "leaves")) { /* no exit handler runs */
		steps(a);
		_exit(STATUS);
	} else if (!strcmp(mode, "execs")) {
		steps(a);
		execl("/proc/self/exe", "harmed", "run", argv[2], argv[4], NULL);
		return 5;
	} else if (!strcmp(mode, "forks")) {
		steps(a);
		forks();
		steps(a);
	} else if (!strcmp(mode, "starts")) {
		pid_t child;

		steps(a);
		child = fork();
		if (!child) {
			execl("/proc/self/exe", "harmed", "run", argv[2], argv[3], NULL);
			_exit(5);
		}
		steps(a);
		reap(child, STATUS);
	} else if (!strcmp(mode, "closes")) {
		steps(a);
		syscall(SYS_close_range, 3, ~0u, 0);
		log_fd = -1;
		steps(a);
	} else if (!strcmp(mode, "threads")) {
		threads(a, b);
	} else {
		return 2;
	}
	printf("%llu launches, sum %llx\n", (unsigned long long)launches, (unsigned long long)sum);
	fflush(stdout);
	return STATUS;
}

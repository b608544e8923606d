/* Busy processes and threads that take the launching thread's CPU, only while an injection lasts. */
#define _GNU_SOURCE
#include "inject.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Names the file that `gpuload hogs` shares with the gpuload below it. */
#define ENVIRONMENT "GPULOAD_HOGS"

/* What a gang of hogs and their master share. */
struct gang {
	_Atomic uint32_t turn; /* a futex */
	_Atomic int cpu;
	_Atomic uint64_t from, until; /* CLOCK_MONOTONIC */
};

static void sleep_until(uint64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void serve_as_hog(struct gang *gang)
{
	uint32_t seen = 0;

	for (;;) {
		while (atomic_load(&gang->turn) == seen)
			syscall(SYS_futex, &gang->turn, FUTEX_WAIT, seen, NULL, NULL, 0);
		seen = atomic_load(&gang->turn);
		pin_to(atomic_load(&gang->cpu));
		sleep_until(atomic_load(&gang->from));
		while (now_ns() < atomic_load(&gang->until))
			;
	}
}

/* Sets the hogs on this thread's CPU for so long, and notes when it is kept from running. */
static void take_turn(struct gang *gang, uint64_t ns, struct truth *truth)
{
	/* Not at once: they would have the CPU before this thread looks at the clock. */
	uint64_t from = now_ns() + MS;

	atomic_store(&gang->cpu, sched_getcpu());
	atomic_store(&gang->from, from);
	atomic_store(&gang->until, from + ns);
	atomic_fetch_add(&gang->turn, 1);
	syscall(SYS_futex, &gang->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	note_jumps(truth, ns + MS);
}

static void fork_hogs(struct gang *gang, int count)
{
	pid_t parent = getpid();

	for (int i = 0; i < count; i++) {
		switch (fork()) {
		case -1:
			die("fork: %s", strerror(errno));
		case 0:
			prctl(PR_SET_NAME, "hog");
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() == parent)
				serve_as_hog(gang);
			_exit(0);
		}
	}
}

static struct gang *map_gang(int fd)
{
	int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
	void *gang = mmap(NULL, sizeof(struct gang), PROT_READ | PROT_WRITE, flags, fd, 0);

	if (gang == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	return gang;
}

static struct gang *gang;
static int foreign; /* the hogs belong to nobody's job */

void preempt_prepare(struct run *run)
{
	const char *path = getenv(ENVIRONMENT);
	int fd = -1;

	if (gang)
		return;
	if (path) {
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			die("%s: %s", path, strerror(errno));
		foreign = 1;
	} else {
		fputs("gpuload: preempt without `gpuload hogs`: its own children take the CPU\n",
		      stderr);
	}
	gang = map_gang(fd);
	if (!foreign)
		fork_hogs(gang, run->opt.hogs);
}

/* A thread that is not pinned would move away. */
void preempt_ready(struct run *run)
{
	if (run->opt.cpu < 0)
		run->opt.cpu = sched_getcpu();
}

void preempt_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	if (!foreign)
		truth->cause = "host.oversubscribed";
	take_turn(gang, ns, truth);
}

static struct gang thread_gang;

static void *hog_thread(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "worker");
	serve_as_hog(&thread_gang);
	return NULL;
}

void oversubscribe_ready(struct run *run)
{
	pthread_t thread;

	preempt_ready(run);
	for (int i = 0; i < run->opt.hogs; i++)
		if (pthread_create(&thread, NULL, hog_thread, NULL))
			die("cannot start a thread");
}

void oversubscribe_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	take_turn(&thread_gang, ns, truth);
}

int hogs_main(int argc, char **argv)
{
	char path[] = "/tmp/gpuload-hogs.XXXXXX";
	int count = 3, status, fd, c;
	pid_t command;

	while ((c = getopt(argc, argv, "+n:")) != -1) {
		if (c != 'n')
			return 2;
		count = atoi(optarg);
	}
	if (optind >= argc || count < 1) {
		fputs("usage: gpuload hogs [-n N] -- COMMAND...\n", stderr);
		return 2;
	}
	fd = mkstemp(path);
	if (fd < 0 || ftruncate(fd, sizeof(struct gang)))
		die("%s: %s", path, strerror(errno));
	fork_hogs(map_gang(fd), count);
	setenv(ENVIRONMENT, path, 1);
	command = fork();
	if (command == 0) {
		execvp(argv[optind], argv + optind);
		die("%s: %s", argv[optind], strerror(errno));
	}
	/* The hogs go with us. */
	while (waitpid(command, &status, 0) < 0 && errno == EINTR)
		;
	unlink(path);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

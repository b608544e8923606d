/* The launching thread is stopped by a child. */
#define _GNU_SOURCE
#include "inject.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "group.h"

/* What a stopper and the one that it stops share. */
struct stopper {
	int fd;			/* takes how long */
	_Atomic uint64_t since; /* it began, 0: not yet */
};

static struct stopper *new_stopper(const char *name, void (*loop)(int fd, void *stopper))
{
	struct stopper *stopper = share(sizeof(*stopper));
	int fds[2];

	if (pipe2(fds, O_CLOEXEC))
		die("pipe: %s", strerror(errno));
	serve(name, loop, fds[0], stopper);
	close(fds[0]);
	stopper->fd = fds[1];
	return stopper;
}

/* The stop is where the clock jumps after it began. */
static void be_stopped(struct stopper *stopper, uint64_t ns, struct truth *truth)
{
	uint64_t start = now_ns(), last, t = start;

	truth->whole = 0;
	stopper->since = 0;
	if (write(stopper->fd, &ns, sizeof(ns)) != sizeof(ns))
		die("the stopper is gone");
	do {
		last = t;
		t = now_ns();
		if (t - last >= ns / 2 && stopper->since && stopper->since < t)
			return truth_add(truth, last, t);
	} while (t - start < 20 * ns);
}

static void signaller(int fd, void *arg)
{
	struct stopper *stopper = arg;
	uint64_t ns;

	while (read(fd, &ns, sizeof(ns)) == sizeof(ns)) {
		stopper->since = now_ns();
		kill(getppid(), SIGSTOP);
		sleep_ns(ns);
		kill(getppid(), SIGCONT);
	}
}

static struct stopper *by_signal;

void stop_prepare(struct run *run)
{
	(void)run;
	by_signal = new_stopper("stopper", signaller);
}

void stop_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	be_stopped(by_signal, ns, truth);
}

/* Stops the launching thread, as a debugger does. */
static void tracer(int fd, void *arg)
{
	struct stopper *stopper = arg;
	pid_t target = getppid();
	uint64_t ns;

	while (read(fd, &ns, sizeof(ns)) == sizeof(ns)) {
		if (ptrace(PTRACE_SEIZE, target, 0, 0)) {
			perror("gpuload: ptrace");
			return;
		}
		stopper->since = now_ns();
		ptrace(PTRACE_INTERRUPT, target, 0, 0);
		waitpid(target, NULL, __WALL);
		sleep_ns(ns);
		ptrace(PTRACE_DETACH, target, 0, 0);
	}
}

static struct stopper *by_tracer, *by_profiler;

void ptrace_prepare(struct run *run)
{
	(void)run;
	by_tracer = new_stopper("tracer", tracer);
}

void ptrace_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	be_stopped(by_tracer, ns, truth);
}

/* The same by a profiler that stops what it looks at. */
void pyspy_prepare(struct run *run)
{
	(void)run;
	by_profiler = new_stopper("py-spy", tracer);
}

void pyspy_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	be_stopped(by_profiler, ns, truth);
}

static struct group frozen, frozen2;
static struct stopper *by_freezer, *by_freezer2;

static void freeze(int fd, struct stopper *stopper, const struct group *group, const char *file,
		   const char *on, const char *off)
{
	uint64_t ns;

	while (read(fd, &ns, sizeof(ns)) == sizeof(ns)) {
		stopper->since = now_ns();
		group_set(group, file, on);
		sleep_ns(ns);
		group_set(group, file, off);
	}
}

static void freezer(int fd, void *stopper)
{
	freeze(fd, stopper, &frozen, "freezer.state", "FROZEN", "THAWED");
}

static void freezer2(int fd, void *stopper)
{
	freeze(fd, stopper, &frozen2, "cgroup.freeze", "1", "0");
}

const char *freezer_lacks(void)
{
	return group_root("freezer") ? root_lacks() : "no freezer of cgroup v1";
}

const char *freezer2_lacks(void)
{
	return group_root("") ? root_lacks() : "no cgroup v2";
}

void freezer_prepare(struct run *run)
{
	(void)run;
	group_make(&frozen, "freezer");
	by_freezer = new_stopper("freezer", freezer);
}

void freezer_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	group_enter(&frozen);
	be_stopped(by_freezer, ns, truth);
	group_leave(&frozen);
}

void freezer2_prepare(struct run *run)
{
	(void)run;
	group_make(&frozen2, "");
	by_freezer2 = new_stopper("freezer2", freezer2);
}

void freezer2_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	group_enter(&frozen2);
	be_stopped(by_freezer2, ns, truth);
	group_leave(&frozen2);
}

/* Faults of the launching thread by itself. */
#define _GNU_SOURCE
#include "inject.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void sleep_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	(void)truth;
	sleep_ns(ns);
}

void compute_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	(void)truth;
	host_work(ns);
}

/* subprocess */

/* On another CPU: its parent would be waiting for its own otherwise, when it has been started. */
static pid_t start_true(int cpu)
{
	char *argv[] = { "/bin/true", NULL };
	pid_t pid = vfork();

	if (pid == 0) {
		keep_off(cpu);
		execve(argv[0], argv, environ);
		_exit(127);
	}
	return pid;
}

void subprocess_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t end = now_ns() + ns;

	(void)run;
	(void)truth;
	do {
		pid_t pid = start_true(sched_getcpu());

		if (pid < 0)
			die("vfork: %s", strerror(errno));
		waitpid(pid, NULL, 0);
	} while (now_ns() < end);
}

/* fork: each page that is mapped costs. */

#define MAPPED (128l << 20)

void fork_ready(struct run *run)
{
	void *memory = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)run;
	if (memory == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	/* Huge pages would cost next to nothing. */
	madvise(memory, MAPPED, MADV_NOHUGEPAGE);
	memset(memory, 1, MAPPED);
}

void fork_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t end = now_ns() + ns;

	(void)run;
	(void)truth;
	do {
		int cpu = sched_getcpu();
		pid_t pid = fork();

		if (pid < 0)
			die("fork: %s", strerror(errno));
		if (pid == 0) {
			/* To end takes a child as long as to make it did. */
			keep_off(cpu);
			_exit(0);
		}
		waitpid(pid, NULL, 0);
	} while (now_ns() < end);
}

/* spin: until another thread says so, which sleeps. */

static sem_t setter_go;
static volatile uint64_t setter_ns;
static atomic_int flag;

static void *setter(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "setter");
	for (;;) {
		while (sem_wait(&setter_go))
			;
		sleep_ns(setter_ns);
		atomic_store(&flag, 1);
	}
	return NULL;
}

void spin_ready(struct run *run)
{
	static int started;
	pthread_t thread;

	(void)run;
	if (started++)
		return;
	sem_init(&setter_go, 0, 0);
	if (pthread_create(&thread, NULL, setter, NULL))
		die("cannot start a thread");
}

static void set_flag_in(uint64_t ns)
{
	atomic_store(&flag, 0);
	setter_ns = ns;
	sem_post(&setter_go);
}

void yield_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	(void)truth;
	set_flag_in(ns);
	while (!atomic_load(&flag))
		sched_yield();
}

__attribute__((noinline)) static void spin_wait(atomic_int *word)
{
	while (!atomic_load_explicit(word, memory_order_acquire))
		;
}

void spin_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	(void)truth;
	set_flag_in(ns);
	spin_wait(&flag);
}

/* Locks that another thread of the process holds. */
#define _GNU_SOURCE
#include "inject.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static sem_t holder_go, holder_holds, holder_wanted;
static volatile uint64_t holder_ns;
static go_fn *volatile holder_does;
static pthread_t holder_thread;

static void *holder(void *run)
{
	static struct truth nobodys;

	prctl(PR_SET_NAME, "lock-holder");
	for (;;) {
		while (sem_wait(&holder_go))
			;
		pthread_mutex_lock(&mutex);
		sem_post(&holder_holds);
		/* Until the other thread has a CPU again, or it would not have to wait so long. */
		while (sem_wait(&holder_wanted))
			;
		nobodys.count = 0;
		holder_does(run, holder_ns, &nobodys);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

void lock_ready(struct run *run)
{
	static int started;

	if (started++)
		return;
	sem_init(&holder_go, 0, 0);
	sem_init(&holder_holds, 0, 0);
	sem_init(&holder_wanted, 0, 0);
	if (pthread_create(&holder_thread, NULL, holder, run))
		die("cannot start a thread");
}

/*
 * Keeps a thread from this one's CPU, which it would take instead of the lock, and this one on it: a
 * waker likes its own CPU for whom it wakes. Returns where this one may run otherwise.
 */
static cpu_set_t part(pthread_t thread)
{
	cpu_set_t all, others;

	if (sched_getaffinity(0, sizeof(all), &all))
		die("sched_getaffinity: %s", strerror(errno));
	if (CPU_COUNT(&all) < 2)
		return all;
	others = all;
	pin_to(sched_getcpu());
	CPU_CLR(sched_getcpu(), &others);
	pthread_setaffinity_np(thread, sizeof(others), &others);
	return all;
}

static void wait_for_holder(go_fn *does, uint64_t ns, struct truth *truth)
{
	cpu_set_t all = part(holder_thread);
	uint64_t start;

	holder_ns = ns;
	holder_does = does;
	sem_post(&holder_go);
	while (sem_wait(&holder_holds))
		;
	start = now_ns();
	sem_post(&holder_wanted);
	pthread_mutex_lock(&mutex);
	truth_add(truth, start, now_ns());
	pthread_mutex_unlock(&mutex);
	sched_setaffinity(0, sizeof(all), &all);
}

void lock_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	wait_for_holder(compute_go, ns, truth);
}

void lock_sleep_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	wait_for_holder(sleep_go, ns, truth);
}

void lock_disk_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	wait_for_holder(disk_go, ns, truth);
}

/* mmap_lock */

/* Shared, so that it is of small pages. */
#define POPULATED (2l << 20)

static sem_t mapper_go;
static _Atomic uint64_t mapping_until;
static atomic_int mapped;
static pthread_t mapper_thread;

static void *mapper(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "mapper");
	for (;;) {
		while (sem_wait(&mapper_go))
			;
		do {
			void *memory = mmap(NULL, POPULATED, PROT_READ | PROT_WRITE,
					    MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

			if (memory == MAP_FAILED)
				die("mmap: %s", strerror(errno));
			atomic_fetch_add(&mapped, 1);
			munmap(memory, POPULATED);
		} while (now_ns() < atomic_load(&mapping_until));
	}
	return NULL;
}

void kernel_lock_ready(struct run *run)
{
	(void)run;
	sem_init(&mapper_go, 0, 0);
	if (pthread_create(&mapper_thread, NULL, mapper, NULL))
		die("cannot start a thread");
}

/* Wants to map a page while the other thread has the map of the address space locked. */
void kernel_lock_go(struct run *run, uint64_t ns, struct truth *truth)
{
	cpu_set_t all = part(mapper_thread);
	uint64_t end, now;
	struct call call;

	(void)run;
	atomic_store(&mapped, 0);
	atomic_store(&mapping_until, UINT64_MAX);
	sem_post(&mapper_go);
	while (!atomic_load(&mapped))
		;
	end = now_ns() + ns;
	/* One who never gets the lock would wait for ever. */
	atomic_store(&mapping_until, end + 2 * ns);
	do {
		void *page;

		call_begins(&call);
		page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED)
			die("mmap: %s", strerror(errno));
		munmap(page, 4096);
		now = call_ends(&call, truth);
	} while (now < end || (!truth->count && now < end + ns));
	atomic_store(&mapping_until, 0);
	sched_setaffinity(0, sizeof(all), &all);
}

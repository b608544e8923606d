/* What faults.py cannot do from Python: threads without the interpreter lock, locks, and truth to the microsecond.
 * A library, built and called by it. Times are CLOCK_MONOTONIC in ns. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000ull
/* A thread that only reads the clock and sees it go on by so much was kept from running. */
#define JUMP 100000ull

struct span {
	uint64_t start, end;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void wait_for_change(_Atomic uint32_t *word, uint32_t seen)
{
	while (atomic_load(word) == seen)
		syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void change(_Atomic uint32_t *word)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Reads the clock for that long; returns how many times it was kept from it, `max` at most. */
int note_jumps(uint64_t ns, struct span *spans, int max)
{
	uint64_t last = now_ns(), end = last + ns;
	int count = 0;

	while (last < end) {
		uint64_t t = now_ns();

		if (t - last > JUMP && count < max)
			spans[count++] = (struct span){ last, t };
		last = t;
	}
	return count;
}

/* What busy threads and their master share; they may be of different processes. */
struct gang {
	_Atomic uint32_t turn;
	_Atomic int cpu; /* -1: any */
	_Atomic uint64_t from, until;
};

/* Maps FILE, or memory of this process alone for NULL. */
struct gang *gang_map(const char *file)
{
	int fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
	int flags = MAP_SHARED | (file ? 0 : MAP_ANONYMOUS);
	void *gang;

	if (file && (fd < 0 || ftruncate(fd, sizeof(struct gang))))
		return NULL;
	gang = mmap(NULL, sizeof(struct gang), PROT_READ | PROT_WRITE, flags, fd, 0);
	return gang == MAP_FAILED ? NULL : gang;
}

/* The life of a hog: takes the CPU when it is told to. */
void *hog_serve(void *arg)
{
	struct gang *gang = arg;
	uint32_t seen = atomic_load(&gang->turn);

	prctl(PR_SET_NAME, "hog");
	for (;;) {
		int cpu;

		wait_for_change(&gang->turn, seen);
		seen = atomic_load(&gang->turn);
		cpu = atomic_load(&gang->cpu);
		if (cpu >= 0) {
			cpu_set_t set;

			CPU_ZERO(&set);
			CPU_SET(cpu, &set);
			sched_setaffinity(0, sizeof(set), &set);
		}
		sleep_until(atomic_load(&gang->from));
		while (now_ns() < atomic_load(&gang->until))
			;
	}
	return NULL;
}

/* Hogs that are threads of this process. */
int hog_threads(struct gang *gang, int count)
{
	for (int i = 0; i < count; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, hog_serve, gang))
			return -1;
		pthread_detach(thread);
	}
	return 0;
}

/* Lets the hogs run for so long, and notes when the caller was kept from running. */
int hog_turn(struct gang *gang, int cpu, uint64_t ns, struct span *spans, int max)
{
	/* Not at once: they would have the CPU before this thread looks at the clock. */
	uint64_t from = now_ns() + MS;

	atomic_store(&gang->cpu, cpu);
	atomic_store(&gang->from, from);
	atomic_store(&gang->until, from + ns);
	change(&gang->turn);
	return note_jumps(ns + MS, spans, max);
}

/* A thread that holds a mutex, or the kernel's lock of the address space, while the caller wants it. */
static struct {
	_Atomic uint32_t turn, holds;
	pthread_t thread;
	pthread_mutex_t mutex;
	uint64_t ns; /* 0: the kernel's lock */
	void *memory;
	size_t bytes;
} holder = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static void *hold(void *arg)
{
	uint32_t seen = 0;

	(void)arg;
	prctl(PR_SET_NAME, "holder");
	for (;;) {
		wait_for_change(&holder.turn, seen);
		seen = atomic_load(&holder.turn);
		if (holder.ns) {
			uint64_t end = now_ns() + holder.ns;

			pthread_mutex_lock(&holder.mutex);
			atomic_store(&holder.holds, seen);
			while (now_ns() < end)
				;
			pthread_mutex_unlock(&holder.mutex);
		} else {
			atomic_store(&holder.holds, seen);
			munmap(holder.memory, holder.bytes);
		}
	}
	return NULL;
}

static int let_it_hold(uint64_t ns)
{
	if (!holder.thread && pthread_create(&holder.thread, NULL, hold, NULL))
		return -1;
	holder.ns = ns;
	change(&holder.turn);
	while (atomic_load(&holder.holds) != atomic_load(&holder.turn))
		;
	return 0;
}

/* Takes a mutex that another thread holds for so long while it computes. */
int lock_wait(uint64_t ns, struct span *span)
{
	if (let_it_hold(ns))
		return -1;
	span->start = now_ns();
	pthread_mutex_lock(&holder.mutex);
	span->end = now_ns();
	pthread_mutex_unlock(&holder.mutex);
	return 0;
}

/* Memory for lock_kernel_wait. */
int lock_kernel_prepare(size_t bytes)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;

	holder.bytes = bytes;
	holder.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (holder.memory == MAP_FAILED)
		return -1;
	/* Small pages take the kernel longer. */
	madvise(holder.memory, bytes, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < bytes; at += 4096)
		((volatile char *)holder.memory)[at] = 1;
	return 0;
}

/* Maps a page while another thread unmaps a lot. */
int lock_kernel_wait(struct span *span)
{
	void *page;

	if (let_it_hold(0))
		return -1;
	/* Until it is in the kernel. */
	sleep_until(now_ns() + 50000);
	span->start = now_ns();
	page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	span->end = now_ns();
	munmap(page, 4096);
	return page == MAP_FAILED ? -1 : 0;
}

/* Waits as some runtimes do: it asks again and again, and yields between. */
/* Reads a byte of each page. */
int touch(const volatile char *memory, uint64_t size)
{
	int sum = 0;

	for (uint64_t at = 0; at < size; at += 4096)
		sum += memory[at];
	return sum;
}

void yield_until(uint64_t ns)
{
	while (now_ns() < ns)
		sched_yield();
}

struct callback {
	uint64_t ns, start, end;
};

/* For cuLaunchHostFunc. */
void host_function(void *arg)
{
	struct callback *callback = arg;

	callback->start = now_ns();
	sleep_until(callback->start + callback->ns);
	callback->end = now_ns();
}

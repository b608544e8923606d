/*
 * Turns CUPTI's activity kinds on and off, again and again, in a program that
 * launches meanwhile, and sees whether kernels come back. gdiag has no part in it:
 * what this finds is CUPTI's own, and why gdiag's shim turns kernels on first.
 *
 * late_start.py loads it into a PyTorch loop. It is not linked to libcupti, so that
 * it uses the one that PyTorch has loaded already.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "cupti_calls.h"
#include "cupti_pool.h"

/*
 * Kernels may take as long to come back as so many flushes, 80 ms, and as so many steps
 * of the program: on a busy machine either thread may not run for longer than that.
 * The first cycle also has CUPTI's own start.
 */
#define FLUSH_US 5000
#define FLUSHES 16
#define FIRST_FLUSHES 100
#define STEPS 10
/* Turned off: longer than what runs at that moment takes to end. */
#define OFF_US 10000

#define MAX_KINDS 8

struct order {
	const char *name;
	bool paused;			/* the program does nothing while kinds are turned on */
	CUpti_ActivityKind kinds[MAX_KINDS];	/* ends with CUPTI_ACTIVITY_KIND_INVALID, or full */
};

/* clang-format off */
#define CALLS CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER
#define OTHERS CUPTI_ACTIVITY_KIND_OVERHEAD, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, \
	CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET
#define KERNELS CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL

static const struct order orders[] = {
	{ "calls-first", false, { CALLS, OTHERS, KERNELS } },
	/* That of KINDS in cupti-shim/src/session.rs. */
	{ "kernels-first", false, { KERNELS, CALLS, OTHERS } },
	{ "kernels-only", false, { KERNELS } },
	{ "calls-first, paused", true, { CALLS, OTHERS, KERNELS } },
};
/* clang-format on */

/* What late_start.py reads; the same there. */
struct result {
	uint64_t worked;	/* cycles, all of them or those before the first bad one */
	/* Of the last cycle: */
	uint64_t kernels;
	uint64_t calls;
	uint64_t records;	/* of any kind */
	uint64_t buffers_out;	/* that CUPTI keeps */
	uint64_t when_idle;	/* kernels that came, after a bad cycle, once the program stood */
	uint64_t no_buffer;	/* requests that found none, in all cycles */
	uint64_t ns;		/* all cycles together */
};

/* The loop stops at the end of a step while the first is set, and says so in the second. */
_Atomic int pause_wanted;
_Atomic int paused;
/* That the loop has done. */
_Atomic uint64_t steps;

static _Atomic uint64_t kernels, calls, records;

static void on_record(const CUpti_Activity *record)
{
	switch (record->kind) {
	case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
		atomic_fetch_add(&kernels, 1);
		break;
	case CUPTI_ACTIVITY_KIND_RUNTIME:
	case CUPTI_ACTIVITY_KIND_DRIVER:
		atomic_fetch_add(&calls, 1);
		break;
	default:
		break;
	}
	atomic_fetch_add(&records, 1);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void pause_loop(void)
{
	atomic_store(&pause_wanted, 1);
	while (!atomic_load(&paused))
		usleep(20);
}

static void resume_loop(void)
{
	atomic_store(&pause_wanted, 0);
	while (atomic_load(&paused))
		usleep(20);
}

static void CUPTIAPI no_callback(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *info)
{
	(void)data, (void)domain, (void)id, (void)info;
}

static int kinds_of(const struct order *order)
{
	int n = 0;

	while (n < MAX_KINDS && order->kinds[n] != CUPTI_ACTIVITY_KIND_INVALID)
		n++;
	return n;
}

/* As the shim begins: it asks for room, registers anew, then enables one kind after the other. */
static int turn_on(const struct order *order)
{
	CUpti_SubscriberHandle subscriber;

	if (CUPTI_TRY(cuptiSubscribe(&subscriber, no_callback, NULL)) != CUPTI_SUCCESS)
		return -1;
	CUPTI_TRY(cuptiUnsubscribe(subscriber));
	CUPTI_TRY(cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM));
	if (pool_register())
		return -1;
	for (int i = 0, n = kinds_of(order); i < n; i++) {
		if (CUPTI_TRY(cuptiActivityEnable(order->kinds[i])) != CUPTI_SUCCESS)
			return -1;
		if (order->kinds[i] == CUPTI_ACTIVITY_KIND_RUNTIME)
			keep_runtime_calls();
		else if (order->kinds[i] == CUPTI_ACTIVITY_KIND_DRIVER)
			keep_driver_calls();
	}
	return 0;
}

/* As the shim ends: kernels, then the others from the last to the first. */
static void turn_off(const struct order *order)
{
	CUPTI_TRY(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
	for (int i = kinds_of(order) - 1; i >= 0; i--)
		if (order->kinds[i] != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
			CUPTI_TRY(cuptiActivityDisable(order->kinds[i]));
}

static bool kernels_within(int flushes)
{
	uint64_t last_step = atomic_load(&steps) + STEPS;

	for (int i = 0; !atomic_load(&kernels) && (i < flushes || atomic_load(&steps) < last_step); i++) {
		usleep(FLUSH_US);
		CUPTI_TRY(cuptiActivityFlushAll(0));
	}
	return atomic_load(&kernels);
}

/*
 * Cycles until one is bad: a failure lasts, so those after it say nothing new.
 * 0, or -1 when CUPTI refused something or there is no such order.
 */
int late_start(const char *name, const char *call_list, uint64_t cycles, struct result *result);
int late_start(const char *name, const char *call_list, uint64_t cycles, struct result *result)
{
	const struct order *order = NULL;
	uint64_t begin;

	for (size_t i = 0; i < sizeof(orders) / sizeof(*orders); i++)
		if (!strcmp(orders[i].name, name))
			order = &orders[i];
	if (!order) {
		fprintf(stderr, "%s: no such order\n", name);
		return -1;
	}
	memset(result, 0, sizeof(*result));
	parse_calls(call_list);
	if (pool_map())
		return -1;
	begin = now_ns();
	while (result->worked < cycles) {
		int status;
		bool came;

		atomic_store(&kernels, 0);
		atomic_store(&calls, 0);
		atomic_store(&records, 0);
		if (order->paused)
			pause_loop();
		status = turn_on(order);
		if (order->paused)
			resume_loop();
		if (status)
			return status;
		came = kernels_within(result->worked ? FLUSHES : FIRST_FLUSHES);
		result->kernels = atomic_load(&kernels);
		result->calls = atomic_load(&calls);
		result->records = atomic_load(&records);
		result->buffers_out = (uint64_t)__builtin_popcountll(~atomic_load(&pool_free));
		if (!came) {
			/* A buffer is kept while something in it still runs: that would be no fault. */
			pause_loop();
			CUPTI_TRY(cuptiActivityFlushAll(0));
			result->when_idle = atomic_load(&kernels);
			resume_loop();
		}
		turn_off(order);
		/* What still ran has ended before the flush, so that the next cycle gets none of its records. */
		usleep(OFF_US);
		CUPTI_TRY(cuptiActivityFlushAll(0));
		if (!came)
			break;
		result->worked++;
	}
	result->no_buffer = atomic_load(&pool_exhausted);
	result->ns = now_ns() - begin;
	return 0;
}

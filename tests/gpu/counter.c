/*
 * The least that a CUPTI tool can do with the records that gdiag's shim asks for:
 * it counts them. What it adds to a launch is what CUPTI itself costs.
 *
 * Loaded by CUDA_INJECTION64_PATH. COUNTER_CALLS lists the API calls that stay
 * enabled, as "driver ID ID … runtime ID ID …"; without it all calls are recorded.
 * Prints its counts on stderr when the process ends.
 */
#define _GNU_SOURCE
#include "cupti_calls.h"
#include "cupti_pool.h"

#define KINDS 64

static _Atomic uint64_t counts[KINDS];

static void on_record(const CUpti_Activity *record)
{
	if (record->kind < KINDS)
		atomic_fetch_add_explicit(&counts[record->kind], 1, memory_order_relaxed);
}

static void report(void)
{
	size_t lost = 0;

	CUPTI_TRY(cuptiActivityFlushAll(0));
	CUPTI_TRY(cuptiActivityGetNumDroppedRecords(NULL, 0, &lost));
	fprintf(stderr, "counter: kernels %lu driver %lu runtime %lu copies %lu sync %lu lost %zu no-buffer %lu\n",
		atomic_load(&counts[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL]),
		atomic_load(&counts[CUPTI_ACTIVITY_KIND_DRIVER]),
		atomic_load(&counts[CUPTI_ACTIVITY_KIND_RUNTIME]),
		atomic_load(&counts[CUPTI_ACTIVITY_KIND_MEMCPY]),
		atomic_load(&counts[CUPTI_ACTIVITY_KIND_SYNCHRONIZATION]), lost,
		atomic_load(&pool_exhausted));
}

int InitializeInjection(void);
int InitializeInjection(void)
{
	static const CUpti_ActivityKind kinds[] = {
		CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
		CUPTI_ACTIVITY_KIND_MEMCPY2,	       CUPTI_ACTIVITY_KIND_MEMSET,
		CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,   CUPTI_ACTIVITY_KIND_OVERHEAD,
		CUPTI_ACTIVITY_KIND_RUNTIME,	       CUPTI_ACTIVITY_KIND_DRIVER,
	};
	const char *calls = getenv("COUNTER_CALLS");

	CUPTI_TRY(cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM));
	if (pool_start())
		return 1;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		CUPTI_TRY(cuptiActivityEnable(kinds[i]));
	if (calls) {
		parse_calls(calls);
		keep_driver_calls();
		keep_runtime_calls();
	}
	atexit(report);
	return 1;
}

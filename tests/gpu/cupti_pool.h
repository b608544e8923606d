/*
 * Buffers for a small CUPTI tool: a pool that is faulted in beforehand, handed
 * out without a lock or an allocation, and zeroed again on the thread that read
 * the records. This is what the shim does too, so that the two can be compared.
 *
 * An exhausted pool hands out one discard buffer; its records are not counted.
 * CUPTI's own drop counter says the rest.
 */
#ifndef GDIAG_TESTS_CUPTI_POOL_H
#define GDIAG_TESTS_CUPTI_POOL_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cupti.h>

#define POOL_BUFFERS 64
#define POOL_BYTES (1u << 20)

static uint8_t *pool_base;
static _Atomic uint64_t pool_free;	/* bit i: buffer i is free */
static _Atomic uint64_t pool_exhausted;
static uint8_t pool_discard[POOL_BYTES] __attribute__((aligned(8)));

/* Called for every record, on the thread that hands the buffer back. */
static void on_record(const CUpti_Activity *record);

#define CUPTI_TRY(call)							\
	({								\
		CUptiResult r_ = (call);				\
		if (r_ != CUPTI_SUCCESS) {				\
			const char *why_ = "?";				\
			cuptiGetResultString(r_, &why_);		\
			fprintf(stderr, "%s: %s (%d)\n", #call, why_, r_); \
		}							\
		r_;							\
	})

static void CUPTIAPI pool_request(uint8_t **buffer, size_t *size, size_t *max)
{
	uint64_t bits = atomic_load(&pool_free);

	*size = POOL_BYTES;
	*max = 0;
	while (bits) {
		int i = __builtin_ctzll(bits);

		if (atomic_compare_exchange_weak(&pool_free, &bits, bits & ~(1ull << i))) {
			*buffer = pool_base + (size_t)i * POOL_BYTES;
			return;
		}
	}
	atomic_fetch_add(&pool_exhausted, 1);
	*buffer = pool_discard;
}

static void CUPTIAPI pool_complete(CUcontext ctx, uint32_t stream, uint8_t *buffer,
				   size_t size, size_t valid)
{
	CUpti_Activity *record = NULL;

	(void)ctx, (void)stream, (void)size;
	if (buffer == pool_discard)
		return;
	while (valid && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
		on_record(record);
	memset(buffer, 0, valid);
	atomic_fetch_or(&pool_free, 1ull << ((size_t)(buffer - pool_base) / POOL_BYTES));
}

/* 0, or -1 without the memory. Once in a process. */
static int pool_map(void)
{
	pool_base = mmap(NULL, (size_t)POOL_BUFFERS * POOL_BYTES, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (pool_base == MAP_FAILED) {
		perror("mmap");
		return -1;
	}
	atomic_store(&pool_free, ~0ull);
	return 0;
}

/* 0, or -1 when CUPTI will not give this process its records. */
static int pool_register(void)
{
	uint8_t zeroed = 1;
	size_t len = sizeof(zeroed);

	CUPTI_TRY(cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER,
					    &len, &zeroed));
	return CUPTI_TRY(cuptiActivityRegisterCallbacks(pool_request, pool_complete)) ==
		       CUPTI_SUCCESS ? 0 : -1;
}

static int pool_start(void)
{
	return pool_map() || pool_register() ? -1 : 0;
}

#endif

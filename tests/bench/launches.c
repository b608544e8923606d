// SPDX-License-Identifier: Apache-2.0
/*
 * Launches empty kernels as fast as they go, when it is told to.
 *
 *   launches
 *
 * For each line of its input, a number of ms, it launches for so long, and prints
 * the median over blocks of 1,000 launches of the CPU time in ns that a launch took:
 * the same whoever else wants the CPU. Needs no header of CUDA, so that it builds
 * where only the simulated GPU is.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BLOCK 1000
#define MAX_BLOCKS 100000

static uint64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void *driver;

static void *function(const char *name)
{
	void *at = dlsym(driver, name);

	if (!at) {
		fprintf(stderr, "launches: no %s in libcuda.so.1\n", name);
		exit(1);
	}
	return at;
}

static void check(int result, const char *what)
{
	if (result) {
		fprintf(stderr, "launches: %s: error %d\n", what, result);
		exit(1);
	}
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

typedef int launch_fn(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
		      void *, void **, void **);

static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
			  ".visible .entry nop(.param .u64 ns) { ret; }\n";

int main(void)
{
	static uint64_t blocks[MAX_BLOCKS];
	void *context, *module, *kernel;
	uint64_t ns = 1;
	void *params[] = { &ns };
	char line[32];

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) {
		fprintf(stderr, "launches: %s\n", dlerror());
		return 1;
	}
	int (*init)(unsigned) = function("cuInit");
	int (*create)(void **, unsigned, int) = function("cuCtxCreate_v2");
	int (*load)(void **, const void *) = function("cuModuleLoadData");
	int (*get)(void **, void *, const char *) = function("cuModuleGetFunction");
	int (*synchronize)(void) = function("cuCtxSynchronize");
	launch_fn *launch = function("cuLaunchKernel");

	check(init(0), "cuInit");
	check(create(&context, 0, 0), "cuCtxCreate");
	check(load(&module, ptx), "cuModuleLoadData");
	check(get(&kernel, module, "nop"), "cuModuleGetFunction");
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t end = now(CLOCK_MONOTONIC) + strtoull(line, NULL, 10) * 1000000;
		size_t count = 0;

		while (now(CLOCK_MONOTONIC) < end && count < MAX_BLOCKS) {
			uint64_t start = now(CLOCK_THREAD_CPUTIME_ID);

			for (int i = 0; i < BLOCK; i++)
				check(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
				      "cuLaunchKernel");
			blocks[count++] = now(CLOCK_THREAD_CPUTIME_ID) - start;
			check(synchronize(), "cuCtxSynchronize");
		}
		qsort(blocks, count, sizeof(*blocks), by_value);
		printf("%.1f\n", (double)blocks[count / 2] / BLOCK);
		fflush(stdout);
	}
	return 0;
}

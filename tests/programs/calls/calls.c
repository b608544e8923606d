/* Makes exactly the CUDA calls that it is told on stdin, and says when they are made.
 *
 *   launch N   N times cuLaunchKernel
 *   sync N     N times cuStreamSynchronize
 *   copy N     N times cuMemcpyHtoDAsync_v2
 *   alloc N    N times cuMemAlloc_v2 and cuMemFree_v2
 *   twin N     as launch, from another thread
 *   fork N     as launch, in a child that has no other memory than this process had
 *   hang MS    launches MS ms of work and waits for it
 *   cost N     prints the ns that one of N launches takes, least of 100 times
 */
#include "../gpuload/gpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct gpu gpu;
static char from[64];
static CUdeviceptr to;

static void launch(long count)
{
	while (count--)
		gpu_spin(&gpu, gpu.stream, 100);
}

static void *twin(void *count)
{
	GPU(cuCtxSetCurrent(gpu.context));
	launch((long)count);
	return NULL;
}

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}

static void cost(long count)
{
	double least = 1e18;

	for (int i = 0; i < 100; i++) {
		long start = now();

		launch(count);
		double each = (double)(now() - start) / count;

		if (each < least)
			least = each;
		GPU(cuStreamSynchronize(gpu.stream));
	}
	printf("%.1f\n", least);
}

static int run(const char *what, long count)
{
	if (!strcmp(what, "launch")) {
		launch(count);
	} else if (!strcmp(what, "sync")) {
		while (count--)
			GPU(cuStreamSynchronize(gpu.stream));
	} else if (!strcmp(what, "copy")) {
		while (count--)
			GPU(cuMemcpyHtoDAsync(to, from, sizeof(from), gpu.stream));
	} else if (!strcmp(what, "alloc")) {
		while (count--) {
			CUdeviceptr p;

			GPU(cuMemAlloc(&p, 4096));
			GPU(cuMemFree(p));
		}
	} else if (!strcmp(what, "twin")) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, twin, (void *)count))
			return 0;
		pthread_join(thread, NULL);
	} else if (!strcmp(what, "fork")) {
		pid_t child = fork();

		if (child == 0) {
			launch(count);
			_exit(0);
		}
		waitpid(child, NULL, 0);
	} else if (!strcmp(what, "hang")) {
		gpu_spin(&gpu, gpu.stream, count * 1000000ull);
		GPU(cuStreamSynchronize(gpu.stream));
	} else if (!strcmp(what, "cost")) {
		cost(count);
	} else {
		return 0;
	}
	return 1;
}

int main(void)
{
	char what[16];
	long count;

	setvbuf(stdout, NULL, _IOLBF, 0);
	gpu_init();
	gpu_open(&gpu, 0);
	GPU(cuMemAlloc(&to, sizeof(from)));
	puts("ready");
	while (scanf("%15s %ld", what, &count) == 2) {
		if (!run(what, count)) {
			fprintf(stderr, "calls: cannot %s\n", what);
			return 1;
		}
		puts("done");
	}
	return 0;
}

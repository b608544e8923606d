/*
 * Times every launch of an empty kernel.
 *
 *   launchloop [-c CPU] [-g REPLAYS] LAUNCHES
 *
 * -c pins the whole process to one CPU; -g then replays a graph of 100 empty
 * nodes. One line of JSON: ns per launch (mean, p50, p99, p99.9, p99.99, max),
 * how many launches took 100 µs more than the median, and ns per graph node.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cuda.h>

#define CK(call)							\
	do {								\
		CUresult r_ = (call);					\
		if (r_ != CUDA_SUCCESS) {				\
			const char *why_ = NULL;			\
			cuGetErrorString(r_, &why_);			\
			fprintf(stderr, "%s:%d: %s: %s (%d)\n", __FILE__, __LINE__, #call, \
				why_ ? why_ : "?", r_);			\
			exit(1);					\
		}							\
	} while (0)

#define NODES 100

static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
			  ".visible .entry nop() { ret; }\n";

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	int cpu = -1, replays = 0, opt;
	size_t n, slow = 0;
	uint64_t sum = 0;
	uint32_t *ns;
	double node_ns = 0;
	CUdevice dev;
	CUcontext ctx;
	CUmodule module;
	CUfunction nop;
	CUstream stream;

	while ((opt = getopt(argc, argv, "c:g:")) != -1) {
		if (opt == 'c')
			cpu = atoi(optarg);
		else if (opt == 'g')
			replays = atoi(optarg);
		else
			return 2;
	}
	n = optind < argc ? strtoul(argv[optind], NULL, 10) : 0;
	if (!n) {
		fprintf(stderr, "usage: launchloop [-c CPU] [-g REPLAYS] LAUNCHES\n");
		return 2;
	}
	if (cpu >= 0) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set)) {
			perror("sched_setaffinity");
			return 1;
		}
	}
	ns = malloc(n * sizeof(*ns));
	if (!ns) {
		perror("malloc");
		return 1;
	}
	memset(ns, 0, n * sizeof(*ns));

	CK(cuInit(0));
	CK(cuDeviceGet(&dev, 0));
	CK(cuDevicePrimaryCtxRetain(&ctx, dev));
	CK(cuCtxSetCurrent(ctx));
	CK(cuModuleLoadData(&module, ptx));
	CK(cuModuleGetFunction(&nop, module, "nop"));
	CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

	/* Warm up, then a sync now and then, so that no launch waits for room in the queue. */
	for (int i = 0; i < 20000; i++) {
		CK(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
		if (i % 256 == 255)
			CK(cuStreamSynchronize(stream));
	}
	for (size_t i = 0; i < n; i++) {
		uint64_t t0 = now(), took;

		CK(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
		took = now() - t0;
		ns[i] = took < UINT32_MAX ? (uint32_t)took : UINT32_MAX;
		sum += took;
		if (i % 256 == 255)
			CK(cuStreamSynchronize(stream));
	}
	CK(cuCtxSynchronize());

	if (replays) {
		CUgraph graph;
		CUgraphExec exec;
		uint64_t t0;

		CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
		for (int i = 0; i < NODES; i++)
			CK(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
		CK(cuStreamEndCapture(stream, &graph));
		CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
		for (int i = 0; i < 50; i++)
			CK(cuGraphLaunch(exec, stream));
		CK(cuStreamSynchronize(stream));
		t0 = now();
		for (int i = 0; i < replays; i++) {
			CK(cuGraphLaunch(exec, stream));
			CK(cuStreamSynchronize(stream));
		}
		node_ns = (double)(now() - t0) / replays / NODES;
	}

	qsort(ns, n, sizeof(*ns), by_value);
	for (size_t i = 0; i < n; i++)
		slow += ns[i] > ns[n / 2] + 100000;
	printf("{\"launches\":%zu,\"mean\":%.1f,\"p50\":%u,\"p99\":%u,\"p99.9\":%u,\"p99.99\":%u,"
	       "\"max\":%u,\"slow\":%zu,\"node\":%.1f}\n",
	       n, (double)sum / n, ns[n / 2], ns[n - 1 - n / 100], ns[n - 1 - n / 1000],
	       ns[n - 1 - n / 10000], ns[n - 1], slow, node_ns);
	return 0;
}

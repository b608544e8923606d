/*
 * A plain program of the CUDA runtime, linked statically, to attach to: a step
 * of ten kernels and a copy, until DIR/stop is there. DIR/ready and DIR/series
 * are as in attachload.c, but for the size.
 *
 *   attachrt DIR
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime.h>

#define LIMIT 300
#define CK(call)							\
	do {								\
		cudaError_t r_ = (call);				\
		if (r_ != cudaSuccess) {				\
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__,	\
				__LINE__, #call, cudaGetErrorString(r_));	\
			exit(1);					\
		}							\
	} while (0)

__global__ void add(float *x, int n)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		x[i] = x[i] * 0.5f + 1.0f;
}

int main(int argc, char **argv)
{
	const int n = 1 << 14;
	static float host[n];
	uint64_t count = 0;
	float *x;

	if (argc != 2)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(LIMIT);
	const std::string dir = argv[1], stop = dir + "/stop";
	FILE *series = fopen((dir + "/series").c_str(), "wb");
	if (!series)
		return 1;
	CK(cudaMalloc(&x, sizeof(host)));
	CK(cudaMemset(x, 0, sizeof(host)));
	fwrite(&count, sizeof(count), 1, series);
	while (access(stop.c_str(), F_OK)) {
		struct timespec t;

		for (int i = 0; i < 10; i++)
			add<<<1, 256>>>(x, n);
		CK(cudaGetLastError());
		CK(cudaMemcpy(host, x, sizeof(host), cudaMemcpyDeviceToHost));
		clock_gettime(CLOCK_MONOTONIC, &t);
		uint64_t now = t.tv_sec * 1000000000ull + t.tv_nsec;
		fwrite(&now, sizeof(now), 1, series);
		if (++count == 100)
			fclose(fopen((dir + "/ready").c_str(), "w"));
	}
	/* The iteration is at its fixed point, or somebody wrote into our memory. */
	for (int i = 0; i < n; i++)
		if (host[i] < 1.9f || host[i] > 2.0f)
			return 3;
	rewind(series);
	fwrite(&count, sizeof(count), 1, series);
	return fclose(series) != 0;
}

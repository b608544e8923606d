/* A driver that does nothing but take the time of a launch. Its functions begin with a push, as most of NVIDIA's do:
 * what a probe costs depends on the instruction that it replaces, and those of the simulated GPU begin with another.
 * Compile with -fno-omit-frame-pointer -fcf-protection=none. */
#include <time.h>

#define LAUNCH_NS 3500

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}

int cuLaunchKernel(void)
{
	long end = now() + LAUNCH_NS;

	while (now() < end)
		;
	return 0;
}

#define NOTHING(name)     \
	int name(void)    \
	{                 \
		return 0; \
	}

NOTHING(cuInit)
NOTHING(cuDeviceGetCount)
NOTHING(cuDeviceGetName)
NOTHING(cuDevicePrimaryCtxRetain)
NOTHING(cuCtxCreate_v2)
NOTHING(cuCtxDestroy_v2)
NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxSynchronize)
NOTHING(cuStreamCreate)
NOTHING(cuStreamSynchronize)
NOTHING(cuStreamWaitEvent)
NOTHING(cuEventCreate)
NOTHING(cuEventRecord)
NOTHING(cuEventQuery)
NOTHING(cuEventSynchronize)
NOTHING(cuModuleLoadData)
NOTHING(cuModuleUnload)
NOTHING(cuModuleGetFunction)
NOTHING(cuLaunchHostFunc)
NOTHING(cuMemAlloc_v2)
NOTHING(cuMemFree_v2)
NOTHING(cuMemHostAlloc)
NOTHING(cuMemcpyHtoDAsync_v2)
NOTHING(cuMemcpyDtoHAsync_v2)
NOTHING(cuMemcpyDtoH_v2)

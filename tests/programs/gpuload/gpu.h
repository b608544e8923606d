/* The part of the CUDA driver API that gpuload uses, loaded at run time: the
 * same program runs on the simulated GPU and on a real one. */
#ifndef GPULOAD_GPU_H
#define GPULOAD_GPU_H

#include <stddef.h>
#include <stdint.h>

typedef void *CUcontext, *CUstream, *CUevent, *CUmodule, *CUfunction;
typedef uint64_t CUdeviceptr;

/* Every function that is called, with the version suffix of its symbol. */
#define GPU_FUNCTIONS(X)                                                           \
	X(cuInit, , (unsigned flags))                                              \
	X(cuDeviceGetCount, , (int *count))                                        \
	X(cuDeviceGetName, , (char *name, int len, int device))                    \
	X(cuDevicePrimaryCtxRetain, , (CUcontext * context, int device))           \
	X(cuCtxCreate, _v2, (CUcontext * context, unsigned flags, int device))     \
	X(cuCtxDestroy, _v2, (CUcontext context))                                  \
	X(cuCtxSetCurrent, , (CUcontext context))                                  \
	X(cuCtxSynchronize, , (void))                                              \
	X(cuStreamCreate, , (CUstream * stream, unsigned flags))                   \
	X(cuStreamSynchronize, , (CUstream stream))                                \
	X(cuStreamWaitEvent, , (CUstream stream, CUevent event, unsigned flags))   \
	X(cuEventCreate, , (CUevent * event, unsigned flags))                      \
	X(cuEventRecord, , (CUevent event, CUstream stream))                       \
	X(cuEventQuery, , (CUevent event))                                         \
	X(cuEventSynchronize, , (CUevent event))                                   \
	X(cuModuleLoadData, , (CUmodule * module, const void *image))              \
	X(cuModuleUnload, , (CUmodule module))                                     \
	X(cuModuleGetFunction, , (CUfunction * f, CUmodule module, const char *n)) \
	X(cuLaunchKernel, ,                                                        \
	  (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,       \
	   unsigned by, unsigned bz, unsigned shared, CUstream stream,             \
	   void **params, void **extra))                                           \
	X(cuLaunchHostFunc, , (CUstream stream, void (*f)(void *), void *arg))     \
	X(cuMemAlloc, _v2, (CUdeviceptr * p, size_t bytes))                        \
	X(cuMemFree, _v2, (CUdeviceptr p))                                         \
	X(cuMemHostAlloc, , (void **p, size_t bytes, unsigned flags))              \
	X(cuMemcpyHtoDAsync, _v2,                                                  \
	  (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))       \
	X(cuMemcpyDtoHAsync, _v2,                                                  \
	  (void *to, CUdeviceptr from, size_t bytes, CUstream stream))             \
	X(cuMemcpyDtoH, _v2, (void *to, CUdeviceptr from, size_t bytes))

struct cuda {
#define X(name, suffix, args) int(*name) args;
	GPU_FUNCTIONS(X)
#undef X
};

extern struct cuda cu;

#define NOT_READY 600 /* CUDA_ERROR_NOT_READY */

/* A device with what the load needs on it. */
struct gpu {
	CUcontext context;
	CUstream stream;
	CUfunction spin;
};

/* Source of the module with the kernel that spins for so many ns. */
extern const char gpu_ptx[];

/* Ends the program when a driver call failed. */
void gpu_check(int result, const char *what);
#define GPU(call) gpu_check(cu.call, #call)

/* Loads libcuda and initialises it; returns the number of devices. */
int gpu_init(void);
/* Makes the device ready and its context current. */
void gpu_open(struct gpu *gpu, int device);
/* Launches a kernel of that length. */
void gpu_spin(const struct gpu *gpu, CUstream stream, uint64_t ns);

#endif

#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct cuda cu;

const char gpu_ptx[] = ".version 7.0\n"
		       ".target sm_70\n"
		       ".address_size 64\n"
		       ".visible .entry spin(.param .u64 ns)\n"
		       "{\n"
		       "  .reg .u64 %rd<5>;\n"
		       "  .reg .pred %p;\n"
		       "  ld.param.u64 %rd1, [ns];\n"
		       "  mov.u64 %rd2, %globaltimer;\n"
		       "AGAIN:\n"
		       "  mov.u64 %rd3, %globaltimer;\n"
		       "  sub.u64 %rd4, %rd3, %rd2;\n"
		       "  setp.lt.u64 %p, %rd4, %rd1;\n"
		       "  @%p bra AGAIN;\n"
		       "  ret;\n"
		       "}\n";

void gpu_check(int result, const char *what)
{
	if (result == 0)
		return;
	fprintf(stderr, "gpuload: CUDA error %d: %s\n", result, what);
	exit(1);
}

int gpu_init(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	int count;

	if (!lib) {
		fprintf(stderr,
			"gpuload: %s\n"
			"hint: for the simulated GPU, run `make simgpu` and set LD_LIBRARY_PATH=target/simgpu\n",
			dlerror());
		exit(1);
	}
#define X(name, suffix, args)                                                   \
	*(void **)&cu.name = dlsym(lib, #name #suffix);                         \
	if (!cu.name) {                                                         \
		fprintf(stderr, "gpuload: libcuda has no %s\n", #name #suffix); \
		exit(1);                                                        \
	}
	GPU_FUNCTIONS(X)
#undef X
	GPU(cuInit(0));
	GPU(cuDeviceGetCount(&count));
	return count;
}

void gpu_open(struct gpu *gpu, int device)
{
	CUmodule module;

	GPU(cuDevicePrimaryCtxRetain(&gpu->context, device));
	GPU(cuCtxSetCurrent(gpu->context));
	GPU(cuStreamCreate(&gpu->stream, 1)); /* CU_STREAM_NON_BLOCKING */
	GPU(cuModuleLoadData(&module, gpu_ptx));
	GPU(cuModuleGetFunction(&gpu->spin, module, "spin"));
}

void gpu_spin(const struct gpu *gpu, CUstream stream, uint64_t ns)
{
	void *params[] = { &ns };

	GPU(cuLaunchKernel(gpu->spin, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

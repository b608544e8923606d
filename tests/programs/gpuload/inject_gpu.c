/* Faults that are CUDA calls, and faults of the device.
 *
 * A device is idle while it waits for something only if that something is not
 * an operation of its own: a predecessor on the same device keeps it busy. So the
 * device faults have their predecessor elsewhere:
 * - eventwait: a kernel on another device, as in a pipeline over several devices.
 *   True on real hardware, too.
 * - copyengine: copies of another device that go through the same engine. Real
 *   devices have engines of their own; the simulator shares them when told so, and
 *   stands for whatever makes a queued copy wait for copies that are not the device's.
 * - hostfunc: a function on the host. True on real hardware, too. */
#include "inject.h"

#include <stdlib.h>
#include <string.h>

static CUdeviceptr memory;

static void need_memory(size_t bytes)
{
	if (!memory)
		GPU(cuMemAlloc(&memory, bytes));
}

/* What the driver of an H200 moves in one piece: the device is idle for most of such a
 * copy. A larger one keeps it busy until just before the call returns. */
#define PIECE (1l << 20)

void memory_ready(struct run *run)
{
	(void)run;
	need_memory(PIECE);
}

/* The gaps are the refills between two waits, not the waits: then the device is busy. */
void sync_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t start = now_ns(), end = start + ns;
	int value;

	for (int i = 0; now_ns() < end; i++) {
		gpu_spin(&run->gpu, run->gpu.stream, 50 * US);
		if (i % 2)
			GPU(cuStreamSynchronize(run->gpu.stream));
		else
			GPU(cuMemcpyDtoHAsync(&value, memory, sizeof(value), run->gpu.stream));
	}
	/* Ends with the device busy, so that no other gap counts as this one. */
	gpu_spin(&run->gpu, run->gpu.stream, 50 * US);
	truth_add(truth, start, now_ns());
}

/* The destination is new every time, so that the driver has pages to touch after the copy. */
void pageable_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t end = now_ns() + ns, start;

	do {
		void *host = malloc(PIECE);

		if (!host)
			die("out of memory");
		start = now_ns();
		GPU(cuMemcpyDtoHAsync(host, memory, PIECE, run->gpu.stream));
		truth_add(truth, start, now_ns());
		free(host);
	} while (now_ns() < end);
}

void alloc_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t end = now_ns() + ns;
	CUdeviceptr p;

	(void)run;
	(void)truth;
	do {
		GPU(cuMemAlloc(&p, 64 << 20));
		GPU(cuMemFree(p));
	} while (now_ns() < end);
}

void module_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t end = now_ns() + ns;
	CUmodule module;

	(void)run;
	(void)truth;
	do {
		GPU(cuModuleLoadData(&module, gpu_ptx));
		GPU(cuModuleUnload(module));
	} while (now_ns() < end);
}

/* Shorter than what it takes to launch the next one, with what a framework does for each. */
void launches_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t end = now_ns() + ns;

	(void)truth;
	do {
		gpu_spin(&run->gpu, run->gpu.stream, 1 * US);
		host_work(10 * US);
	} while (now_ns() < end);
}

void context_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t end = now_ns() + ns, start = now_ns();
	CUcontext context;

	do {
		GPU(cuCtxCreate(&context, 0, run->opt.device));
		GPU(cuCtxDestroy(context));
	} while (now_ns() < end);
	truth_add(truth, start, now_ns());
	GPU(cuCtxSetCurrent(run->gpu.context));
}

struct callback {
	uint64_t ns, start, end;
};

static void host_function(void *arg)
{
	struct callback *callback = arg;
	callback->start = now_ns();
	sleep_ns(callback->ns);
	callback->end = now_ns();
}

void hostfunc_go(struct run *run, uint64_t ns, struct truth *truth)
{
	struct callback callback = { .ns = ns };
	uint64_t queued;

	gpu_spin(&run->gpu, run->gpu.stream, 200 * US);
	GPU(cuLaunchHostFunc(run->gpu.stream, host_function, &callback));
	gpu_spin(&run->gpu, run->gpu.stream, 200 * US);
	/* Before, the device would have had nothing to do anyway. */
	queued = now_ns();
	GPU(cuStreamSynchronize(run->gpu.stream));
	truth->whole = 0;
	if (queued < callback.start)
		queued = callback.start;
	if (queued < callback.end)
		truth_add(truth, queued, callback.end);
}

static struct gpu other;
static CUevent other_done;

void other_ready(struct run *run)
{
	if (other.context)
		return;
	if (run->devices < 2)
		die("eventwait and copyengine need two devices (GDIAG_SIM_DEVICES=2)");
	gpu_open(&other, (run->opt.device + 1) % run->devices);
	GPU(cuEventCreate(&other_done, 2)); /* CU_EVENT_DISABLE_TIMING */
	GPU(cuCtxSetCurrent(run->gpu.context));
}

/*
 * The truth of waiting for another device ends when that device can first be done: this
 * thread hears of it later if it does not get a CPU, which is not what was injected.
 */
static void wait_for_other(uint64_t since, uint64_t done, struct truth *truth)
{
	uint64_t end;

	GPU(cuEventSynchronize(other_done));
	end = now_ns();
	if (end > done)
		end = done;
	truth->whole = 0;
	if (since < end)
		truth_add(truth, since, end);
}

/* Has the device wait for so long. */
static uint64_t wait_in_stream(struct run *run, uint64_t ns)
{
	uint64_t start;

	GPU(cuCtxSetCurrent(other.context));
	start = now_ns();
	gpu_spin(&other, other.stream, ns);
	GPU(cuEventRecord(other_done, other.stream));
	GPU(cuCtxSetCurrent(run->gpu.context));
	GPU(cuStreamWaitEvent(run->gpu.stream, other_done, 0));
	gpu_spin(&run->gpu, run->gpu.stream, 200 * US);
	return start + ns;
}

void eventwait_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t done = wait_in_stream(run, ns);

	wait_for_other(now_ns(), done, truth);
	GPU(cuStreamSynchronize(run->gpu.stream));
}

/* What the host does meanwhile is not to blame: its work is queued. */

void eventwait_sleep_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t done = wait_in_stream(run, ns), start = now_ns();

	sleep_ns(ns / 4 * 3);
	wait_for_other(start, done, truth);
	GPU(cuStreamSynchronize(run->gpu.stream));
}

void eventwait_preempt_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t done = wait_in_stream(run, ns), start = now_ns();

	preempt_go(run, ns / 2, truth);
	truth->count = 0;
	truth->cause = "gpu.dependency";
	wait_for_other(start, done, truth);
	GPU(cuStreamSynchronize(run->gpu.stream));
}

static void *pinned;
static CUdeviceptr other_memory;
static uint64_t copy_ns; /* a copy of PINNED takes at least so long */

#define PINNED (16l << 20)

void copyengine_ready(struct run *run)
{
	const char *shared = getenv("GDIAG_SIM_SHARED_COPY");

	if (!shared || strcmp(shared, "1"))
		die("copyengine needs GDIAG_SIM_SHARED_COPY=1 and two devices");
	other_ready(run);
	need_memory(PIECE);
	GPU(cuCtxSetCurrent(other.context));
	GPU(cuMemHostAlloc(&pinned, PINNED, 0));
	GPU(cuMemAlloc(&other_memory, PINNED));
	/* The shortest of some, as we may lose the CPU. */
	copy_ns = UINT64_MAX;
	for (int round = 0; round < 8; round++) {
		uint64_t start = now_ns(), took;

		for (int i = 0; i < 4; i++)
			GPU(cuMemcpyHtoDAsync(other_memory, pinned, PINNED, other.stream));
		GPU(cuStreamSynchronize(other.stream));
		took = (now_ns() - start) / 4 + 1;
		if (took < copy_ns)
			copy_ns = took;
	}
	GPU(cuCtxSetCurrent(run->gpu.context));
}

void copyengine_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t copies = ns / copy_ns + 1, start;

	GPU(cuCtxSetCurrent(other.context));
	start = now_ns();
	for (uint64_t i = 0; i < copies; i++)
		GPU(cuMemcpyHtoDAsync(other_memory, pinned, PINNED, other.stream));
	GPU(cuEventRecord(other_done, other.stream));
	GPU(cuCtxSetCurrent(run->gpu.context));
	/* Too long for the pauses between the other copies. */
	GPU(cuMemcpyHtoDAsync(memory, pinned, PIECE, run->gpu.stream));
	/* What was measured includes the start of the first copy and the news of the last one. */
	wait_for_other(now_ns(), start + copies * copy_ns / 20 * 19, truth);
	GPU(cuStreamSynchronize(run->gpu.stream));
}

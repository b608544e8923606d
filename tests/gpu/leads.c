/*
 * Measures how long a real driver and a real device take for the steps that the
 * simulated GPU imitates: launch calls, leads, gaps between queued operations,
 * copies, event waits, host functions and the return of synchronising calls.
 *
 *   leads [spin|block] [SCALE]    how a synchronising call waits; SCALE (1 to 10) divides the repetitions
 *
 * Times come from the CUPTI records of the calls and operations, joined by
 * correlation id: what gdiag itself would see. The "bare" rows are taken by
 * CLOCK_MONOTONIC before CUPTI is switched on. One line per distribution on
 * stdout: name, count, and 101 quantiles (minimum, 1 %, … , maximum) in ns.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <cuda.h>

#include "cupti_pool.h"

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

static const char ptx[] =
	".version 7.0\n.target sm_75\n.address_size 64\n"
	".visible .entry nop() { ret; }\n"
	".visible .entry spin(.param .u64 cycles) {\n"
	"  .reg .u64 %t<4>; .reg .pred %p;\n"
	"  ld.param.u64 %t0, [cycles];\n"
	"  mov.u64 %t1, %clock64;\n"
	"again: mov.u64 %t2, %clock64;\n"
	"  sub.u64 %t3, %t2, %t1;\n"
	"  setp.lt.u64 %p, %t3, %t0;\n"
	"  @%p bra again;\n"
	"  ret; }\n";

static CUcontext ctx;
static CUstream stream_a, stream_b;
static CUfunction nop_fn, spin_fn;
static CUevent event;
static int clock_khz;
static int scale = 1;

/* ---- what CUPTI said ---- */

struct op {
	uint32_t kind, corr, stream;
	uint64_t start, end;
};

struct call {
	uint32_t cbid, corr;
	uint64_t start, end;
};

#define MAX_RECORDS (1u << 20)
static struct op *ops;
static struct call *calls;
static size_t op_count, call_count;
static pthread_mutex_t records_lock = PTHREAD_MUTEX_INITIALIZER;

static void add_op(uint32_t kind, uint32_t corr, uint32_t stream, uint64_t start, uint64_t end)
{
	if (op_count < MAX_RECORDS)
		ops[op_count++] = (struct op){ kind, corr, stream, start, end };
}

static void on_record(const CUpti_Activity *record)
{
	pthread_mutex_lock(&records_lock);
	switch (record->kind) {
	case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
		const CUpti_ActivityKernel9 *k = (const void *)record;

		add_op(k->kind, k->correlationId, k->streamId, k->start, k->end);
		break;
	}
	case CUPTI_ACTIVITY_KIND_MEMCPY: {
		const CUpti_ActivityMemcpy5 *m = (const void *)record;

		add_op(m->kind, m->correlationId, m->streamId, m->start, m->end);
		break;
	}
	case CUPTI_ACTIVITY_KIND_MEMSET: {
		const CUpti_ActivityMemset4 *m = (const void *)record;

		add_op(m->kind, m->correlationId, m->streamId, m->start, m->end);
		break;
	}
	case CUPTI_ACTIVITY_KIND_DRIVER: {
		const CUpti_ActivityAPI *a = (const void *)record;

		if (call_count < MAX_RECORDS)
			calls[call_count++] =
				(struct call){ a->cbid, a->correlationId, a->start, a->end };
		break;
	}
	default:
		break;
	}
	pthread_mutex_unlock(&records_lock);
}

static int by_start(const void *a, const void *b)
{
	const struct op *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

static int by_corr(const void *a, const void *b)
{
	const struct call *x = a, *y = b;

	return x->corr < y->corr ? -1 : x->corr > y->corr;
}

static const struct call *call_of(uint32_t corr)
{
	struct call key = { .corr = corr };

	return bsearch(&key, calls, call_count, sizeof(*calls), by_corr);
}

/*
 * CUPTI's times of a device that is never left alone drift from those of the host, by
 * some us within seconds. After a pause they agree again, so each phase begins with one;
 * launch_empty_last shows what is left.
 */
static void forget_records(void)
{
	CK(cuCtxSynchronize());
	usleep(1500000);
	CUPTI_TRY(cuptiActivityFlushAll(0));
	pthread_mutex_lock(&records_lock);
	op_count = call_count = 0;
	pthread_mutex_unlock(&records_lock);
}

/* Waits for the records of `expect` operations, then puts operations in order of time. */
static void collect_records(const char *phase, size_t expect)
{
	CK(cuCtxSynchronize());
	for (int i = 0; i < 100; i++) {
		size_t have;

		CUPTI_TRY(cuptiActivityFlushAll(0));
		pthread_mutex_lock(&records_lock);
		have = op_count;
		pthread_mutex_unlock(&records_lock);
		if (have >= expect)
			break;
		usleep(10000);
	}
	pthread_mutex_lock(&records_lock);
	if (op_count != expect)
		fprintf(stderr, "%s: %zu operations came back, %zu were started\n", phase,
			op_count, expect);
	qsort(ops, op_count, sizeof(*ops), by_start);
	qsort(calls, call_count, sizeof(*calls), by_corr);
	pthread_mutex_unlock(&records_lock);
}

/* ---- distributions ---- */

struct dist {
	char name[64];
	int64_t *values;
	size_t count, room;
};

static struct dist dists[192];
static size_t dist_count;

static void sample(const char *name, int64_t value)
{
	struct dist *d = NULL;

	for (size_t i = 0; i < dist_count; i++)
		if (!strcmp(dists[i].name, name))
			d = &dists[i];
	if (!d) {
		if (dist_count == sizeof(dists) / sizeof(*dists)) {
			fprintf(stderr, "too many distributions\n");
			exit(1);
		}
		d = &dists[dist_count++];
		snprintf(d->name, sizeof(d->name), "%s", name);
	}
	if (d->count == d->room) {
		d->room = d->room ? d->room * 2 : 1024;
		d->values = realloc(d->values, d->room * sizeof(*d->values));
		if (!d->values) {
			perror("realloc");
			exit(1);
		}
	}
	d->values[d->count++] = value;
}

static int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

static void print_dists(void)
{
	for (size_t i = 0; i < dist_count; i++) {
		struct dist *d = &dists[i];

		qsort(d->values, d->count, sizeof(*d->values), by_value);
		printf("%s %zu", d->name, d->count);
		for (int q = 0; q <= 100; q++)
			printf(" %" PRId64, d->values[(d->count - 1) * q / 100]);
		printf("\n");
	}
}

/* ---- work ---- */

static uint64_t now(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void nop(CUstream s)
{
	CK(cuLaunchKernel(nop_fn, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
}

static void spin_gpu(CUstream s, uint64_t ns)
{
	uint64_t cycles = ns * (uint64_t)clock_khz / 1000000;
	void *args[] = { &cycles };

	CK(cuLaunchKernel(spin_fn, 1, 1, 1, 1, 1, 1, 0, s, args, NULL));
}

/* The host's side of an idle gap: a random time, on the CPU, so that the core stays warm. */
static void dawdle(unsigned max_us)
{
	static uint64_t seed = 88172645463325252ull;
	uint64_t until;

	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	until = now(CLOCK_MONOTONIC) + 2000 + seed % (max_us * 1000ull);
	while (now(CLOCK_MONOTONIC) < until)
		;
}

static void phase_bare(void)
{
	for (int i = 0; i < 500; i++)
		nop(stream_a);
	CK(cuCtxSynchronize());
	for (int i = 0; i < 5000 / scale; i++) {
		uint64_t t0, t1;

		dawdle(60);
		t0 = now(CLOCK_MONOTONIC);
		nop(stream_a);
		t1 = now(CLOCK_MONOTONIC);
		sample("bare_launch_call_empty", t1 - t0);
		CK(cuStreamSynchronize(stream_a));
		sample("bare_launch_to_sync_return", now(CLOCK_MONOTONIC) - t0);
	}
	for (int round = 0; round < 100 / scale; round++) {
		spin_gpu(stream_a, 2000000);
		for (int i = 0; i < 250; i++) {
			uint64_t t0 = now(CLOCK_MONOTONIC);

			nop(stream_a);
			sample("bare_launch_call_queued", now(CLOCK_MONOTONIC) - t0);
		}
		CK(cuStreamSynchronize(stream_a));
	}
}

/* Call time, lead and length of every operation launched so far. */
static void sample_launches(const char *what)
{
	char name[64];

	for (size_t i = 0; i < op_count; i++) {
		const struct call *c = call_of(ops[i].corr);

		if (!c)
			continue;
		snprintf(name, sizeof(name), "%s_call", what);
		sample(name, c->end - c->start);
		snprintf(name, sizeof(name), "%s_lead", what);
		sample(name, (int64_t)(ops[i].start - c->end));
		snprintf(name, sizeof(name), "%s_start_to_start", what);
		sample(name, (int64_t)(ops[i].start - c->start));
		snprintf(name, sizeof(name), "%s_length", what);
		sample(name, ops[i].end - ops[i].start);
		snprintf(name, sizeof(name), "%s_return_after_end", what);
		sample(name, (int64_t)(c->end - ops[i].end));
	}
}

static void phase_empty(const char *what, unsigned sleep_us)
{
	int n = (sleep_us ? 500 : 5000) / scale;

	forget_records();
	for (int i = 0; i < n; i++) {
		if (sleep_us)
			usleep(sleep_us);
		else
			dawdle(60);
		nop(stream_a);
		CK(cuStreamSynchronize(stream_a));
	}
	collect_records(what, n);
	sample_launches(what);
}

/* Kernels of `ns` behind one long kernel, on one stream. */
static void phase_queued(const char *what, uint64_t ns)
{
	int rounds = 40 / scale, each = 200;
	char name[64];

	forget_records();
	for (int r = 0; r < rounds; r++) {
		spin_gpu(stream_a, 3000000);
		for (int i = 0; i < each; i++) {
			if (ns)
				spin_gpu(stream_a, ns);
			else
				nop(stream_a);
		}
		CK(cuStreamSynchronize(stream_a));
	}
	collect_records(what, (size_t)rounds * (each + 1));
	for (size_t i = 1; i < op_count; i++) {
		const struct call *c = call_of(ops[i].corr);

		if (!c)
			continue;
		if (i % (each + 1)) {
			snprintf(name, sizeof(name), "%s_call", what);
			sample(name, c->end - c->start);
		}
		/* Launched well before its predecessor ended: it really was in the queue. */
		if (c->end + 100000 < ops[i - 1].end) {
			snprintf(name, sizeof(name), "%s_gap", what);
			sample(name, (int64_t)(ops[i].start - ops[i - 1].end));
		}
	}
}

enum copy { HTOD_PINNED, HTOD_PAGEABLE, DTOH_PINNED, DTOH_PAGEABLE, DTOD, MEMSET };

static CUdeviceptr device_mem, device_mem2;
static void *pinned_mem, *pageable_mem;
#define COPY_MAX (64u << 20)

static void copy_async(enum copy kind, size_t bytes, CUstream s)
{
	switch (kind) {
	case HTOD_PINNED:
		CK(cuMemcpyHtoDAsync(device_mem, pinned_mem, bytes, s));
		break;
	case HTOD_PAGEABLE:
		CK(cuMemcpyHtoDAsync(device_mem, pageable_mem, bytes, s));
		break;
	case DTOH_PINNED:
		CK(cuMemcpyDtoHAsync(pinned_mem, device_mem, bytes, s));
		break;
	case DTOH_PAGEABLE:
		CK(cuMemcpyDtoHAsync(pageable_mem, device_mem, bytes, s));
		break;
	case DTOD:
		CK(cuMemcpyDtoDAsync(device_mem2, device_mem, bytes, s));
		break;
	case MEMSET:
		CK(cuMemsetD8Async(device_mem, 1, bytes, s));
		break;
	}
}

static void phase_copy(const char *what, enum copy kind, size_t bytes, int n)
{
	n /= scale;
	copy_async(kind, bytes, stream_a);
	forget_records();
	for (int i = 0; i < n; i++) {
		dawdle(60);
		copy_async(kind, bytes, stream_a);
		CK(cuStreamSynchronize(stream_a));
	}
	/* A pageable copy can be cut into several: then one call has many records. */
	CK(cuCtxSynchronize());
	usleep(20000);
	CUPTI_TRY(cuptiActivityFlushAll(0));
	pthread_mutex_lock(&records_lock);
	if (op_count % n)
		fprintf(stderr, "%s: %zu operations for %d copies\n", what, op_count, n);
	else if (op_count != (size_t)n)
		fprintf(stderr, "%s: %zu operations a copy\n", what, op_count / n);
	qsort(ops, op_count, sizeof(*ops), by_start);
	qsort(calls, call_count, sizeof(*calls), by_corr);
	pthread_mutex_unlock(&records_lock);
	sample_launches(what);
}

/* Time from the end of the last operation to the return of the call that waited for it. */
static void phase_sync(const char *what, uint32_t cbid, int n)
{
	n /= scale;
	forget_records();
	for (int i = 0; i < n; i++) {
		spin_gpu(stream_a, 30000 + (uint64_t)(i % 50) * 4000);
		switch (cbid) {
		case CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize:
			CK(cuStreamSynchronize(stream_a));
			break;
		case CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize:
			CK(cuCtxSynchronize());
			break;
		default:
			CK(cuEventRecord(event, stream_a));
			CK(cuEventSynchronize(event));
			break;
		}
		dawdle(20);
	}
	collect_records(what, n);
	for (size_t i = 0, k = 0; i < call_count && k < op_count; i++) {
		/* Correlation ids rise with time: the wait is the first one after the launch. */
		if (calls[i].cbid != cbid || calls[i].corr < ops[k].corr)
			continue;
		sample(what, (int64_t)(calls[i].end - ops[k].end));
		k++;
	}
}

/* A waiter on stream B behind an event of stream A. */
static void phase_event_wait(void)
{
	int n = 1500 / scale;
	uint32_t id_a = 0;

	CUPTI_TRY(cuptiGetStreamIdEx(ctx, stream_a, 0, &id_a));
	forget_records();
	for (int i = 0; i < n; i++) {
		spin_gpu(stream_a, 100000);
		CK(cuEventRecord(event, stream_a));
		CK(cuStreamWaitEvent(stream_b, event, 0));
		nop(stream_b);
		CK(cuStreamSynchronize(stream_b));
	}
	collect_records("event_wait", 2 * (size_t)n);
	for (size_t i = 1; i < op_count; i++)
		if (ops[i].stream != id_a && ops[i - 1].stream == id_a)
			sample("event_wait_latency", (int64_t)(ops[i].start - ops[i - 1].end));
	for (size_t i = 0; i < call_count; i++) {
		if (calls[i].cbid == CUPTI_DRIVER_TRACE_CBID_cuEventRecord)
			sample("event_record_call", calls[i].end - calls[i].start);
		if (calls[i].cbid == CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent)
			sample("stream_wait_event_call", calls[i].end - calls[i].start);
	}
}

struct host_call {
	uint64_t entry, exit;
};

static void CUDA_CB host_function(void *arg)
{
	struct host_call *h = arg;

	h->entry = now(CLOCK_REALTIME);
	while (now(CLOCK_REALTIME) < h->entry + 20000)
		;
	h->exit = now(CLOCK_REALTIME);
}

static void phase_host_function(void)
{
	int n = 1000 / scale;
	struct host_call *h = calloc(n, sizeof(*h));

	if (!h) {
		perror("calloc");
		exit(1);
	}
	forget_records();
	for (int i = 0; i < n; i++) {
		spin_gpu(stream_a, 50000);
		CK(cuLaunchHostFunc(stream_a, host_function, &h[i]));
		nop(stream_a);
		CK(cuStreamSynchronize(stream_a));
	}
	collect_records("host_function", 2 * (size_t)n);
	for (int i = 0; i < n && 2 * (size_t)i + 1 < op_count; i++) {
		sample("host_function_entry_after_kernel", (int64_t)(h[i].entry - ops[2 * i].end));
		sample("host_function_kernel_after_exit",
		       (int64_t)(ops[2 * i + 1].start - h[i].exit));
	}
	for (size_t i = 0; i < call_count; i++)
		if (calls[i].cbid == CUPTI_DRIVER_TRACE_CBID_cuLaunchHostFunc)
			sample("host_function_call", calls[i].end - calls[i].start);
	free(h);
}

/* What follows what, all of it queued behind a long kernel on stream A. */
static void phase_chains(void)
{
	int n = 800 / scale;

	forget_records();
	for (int i = 0; i < n; i++) {
		spin_gpu(stream_a, 300000);
		copy_async(HTOD_PINNED, 1 << 20, stream_a);
		nop(stream_a);
		copy_async(DTOH_PINNED, 4096, stream_a);
		copy_async(MEMSET, 1 << 16, stream_a);
		nop(stream_a);
		CK(cuStreamSynchronize(stream_a));
	}
	collect_records("chains", 6 * (size_t)n);
	for (size_t i = 0; i + 5 < op_count; i += 6) {
		sample("chain_kernel_to_htod_gap", (int64_t)(ops[i + 1].start - ops[i].end));
		sample("chain_htod_to_kernel_gap", (int64_t)(ops[i + 2].start - ops[i + 1].end));
		sample("chain_kernel_to_dtoh_gap", (int64_t)(ops[i + 3].start - ops[i + 2].end));
		sample("chain_dtoh_to_memset_gap", (int64_t)(ops[i + 4].start - ops[i + 3].end));
		sample("chain_memset_to_kernel_gap", (int64_t)(ops[i + 5].start - ops[i + 4].end));
	}

	/* Two copies of one direction on two streams share a copy engine. */
	n = 400 / scale;
	forget_records();
	for (int i = 0; i < n; i++) {
		copy_async(HTOD_PINNED, 16 << 20, stream_a);
		copy_async(HTOD_PINNED, 1 << 16, stream_b);
		CK(cuCtxSynchronize());
	}
	collect_records("copy engine", 2 * (size_t)n);
	for (size_t i = 0; i + 1 < op_count; i += 2)
		sample("copy_engine_gap", (int64_t)(ops[i + 1].start - ops[i].end));
}

static void phase_graph(void)
{
	int n = 500 / scale, nodes = 100;
	CUgraph graph;
	CUgraphExec exec;

	CK(cuStreamBeginCapture(stream_a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	for (int i = 0; i < nodes; i++)
		nop(stream_a);
	CK(cuStreamEndCapture(stream_a, &graph));
	CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	CK(cuGraphLaunch(exec, stream_a));
	forget_records();
	for (int i = 0; i < n; i++) {
		dawdle(60);
		CK(cuGraphLaunch(exec, stream_a));
		CK(cuStreamSynchronize(stream_a));
	}
	collect_records("graph", (size_t)n * nodes);
	for (size_t i = 0; i < op_count; i++) {
		const struct call *c = call_of(ops[i].corr);

		if (i % nodes) {
			sample("graph_node_gap", (int64_t)(ops[i].start - ops[i - 1].end));
		} else if (c) {
			sample("graph_launch_call", c->end - c->start);
			sample("graph_launch_lead", (int64_t)(ops[i].start - c->end));
		}
	}
	CK(cuGraphExecDestroy(exec));
	CK(cuGraphDestroy(graph));
}

static void phase_memory(void)
{
	int n = 300 / scale;

	forget_records();
	for (int i = 0; i < n; i++) {
		CUdeviceptr p;

		CK(cuMemAlloc(&p, 4 << 20));
		CK(cuMemFree(p));
	}
	CUPTI_TRY(cuptiActivityFlushAll(0));
	for (size_t i = 0; i < call_count; i++) {
		if (calls[i].cbid == CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2)
			sample("mem_alloc_4m_call", calls[i].end - calls[i].start);
		if (calls[i].cbid == CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2)
			sample("mem_free_4m_call", calls[i].end - calls[i].start);
	}
}

int main(int argc, char **argv)
{
	static const CUpti_ActivityKind kinds[] = {
		CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
		CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_DRIVER,
	};
	int block = argc > 1 && !strcmp(argv[1], "block");
	char name[128] = "?";
	uint32_t cupti_version = 0;
	int driver_version = 0;
	CUmodule module;
	CUdevice dev;

	if (argc > 2)
		scale = atoi(argv[2]) > 0 && atoi(argv[2]) <= 10 ? atoi(argv[2]) : 1;
	ops = malloc(MAX_RECORDS * sizeof(*ops));
	calls = malloc(MAX_RECORDS * sizeof(*calls));
	pageable_mem = malloc(COPY_MAX);
	if (!ops || !calls || !pageable_mem) {
		perror("malloc");
		return 1;
	}
	memset(pageable_mem, 1, COPY_MAX);

	CK(cuInit(0));
	CK(cuDeviceGet(&dev, 0));
	CK(cuDeviceGetName(name, sizeof(name), dev));
	CK(cuDriverGetVersion(&driver_version));
	CK(cuDeviceGetAttribute(&clock_khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, dev));
	CK(cuDevicePrimaryCtxSetFlags(dev, block ? CU_CTX_SCHED_BLOCKING_SYNC : CU_CTX_SCHED_SPIN));
	CK(cuDevicePrimaryCtxRetain(&ctx, dev));
	CK(cuCtxSetCurrent(ctx));
	CK(cuModuleLoadData(&module, ptx));
	CK(cuModuleGetFunction(&nop_fn, module, "nop"));
	CK(cuModuleGetFunction(&spin_fn, module, "spin"));
	CK(cuStreamCreate(&stream_a, CU_STREAM_NON_BLOCKING));
	CK(cuStreamCreate(&stream_b, CU_STREAM_NON_BLOCKING));
	CK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | (block ? CU_EVENT_BLOCKING_SYNC : 0)));
	CK(cuMemAlloc(&device_mem, COPY_MAX));
	CK(cuMemAlloc(&device_mem2, COPY_MAX));
	CK(cuMemHostAlloc(&pinned_mem, COPY_MAX, 0));
	memset(pinned_mem, 1, COPY_MAX);
	nop(stream_a);
	nop(stream_b);
	spin_gpu(stream_a, 1000000);
	CK(cuCtxSynchronize());

	phase_bare();

	if (pool_start())
		return 1;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (CUPTI_TRY(cuptiActivityEnable(kinds[i])) != CUPTI_SUCCESS)
			return 1;
	CUPTI_TRY(cuptiGetVersion(&cupti_version));
	fprintf(stderr, "%s, driver API %d, CUPTI API %u, %s sync, clock %d kHz\n", name,
		driver_version, cupti_version, block ? "blocking" : "spinning", clock_khz);
	nop(stream_a);
	spin_gpu(stream_a, 1000000);
	forget_records();

	phase_empty("launch_empty", 0);
	phase_empty("launch_empty_after_sleep", 1000);
	phase_queued("launch_queued_nop", 0);
	phase_queued("launch_queued_20us", 20000);
	phase_copy("htod_pinned_4k", HTOD_PINNED, 4096, 2000);
	phase_copy("htod_pinned_1m", HTOD_PINNED, 1 << 20, 1000);
	phase_copy("htod_pinned_64m", HTOD_PINNED, COPY_MAX, 40);
	phase_copy("htod_pageable_4k", HTOD_PAGEABLE, 4096, 2000);
	phase_copy("htod_pageable_1m", HTOD_PAGEABLE, 1 << 20, 500);
	phase_copy("htod_pageable_64m", HTOD_PAGEABLE, COPY_MAX, 10);
	phase_copy("dtoh_pinned_4k", DTOH_PINNED, 4096, 2000);
	phase_copy("dtoh_pinned_1m", DTOH_PINNED, 1 << 20, 1000);
	phase_copy("dtoh_pinned_64m", DTOH_PINNED, COPY_MAX, 40);
	phase_copy("dtoh_pageable_4b", DTOH_PAGEABLE, 4, 2000);
	phase_copy("dtoh_pageable_1m", DTOH_PAGEABLE, 1 << 20, 500);
	phase_copy("dtoh_pageable_64m", DTOH_PAGEABLE, COPY_MAX, 10);
	phase_copy("dtod_1m", DTOD, 1 << 20, 1000);
	phase_copy("dtod_64m", DTOD, COPY_MAX, 100);
	phase_copy("memset_64k", MEMSET, 1 << 16, 1000);
	phase_copy("memset_64m", MEMSET, COPY_MAX, 100);
	phase_sync("stream_sync_return", CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize, 2000);
	phase_sync("ctx_sync_return", CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, 1000);
	phase_sync("event_sync_return", CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize, 1000);
	phase_event_wait();
	phase_host_function();
	phase_chains();
	phase_graph();
	phase_memory();
	phase_empty("launch_empty_last", 0);

	print_dists();
	if (atomic_load(&pool_exhausted))
		fprintf(stderr, "%" PRIu64 " buffers were missing\n",
			(uint64_t)atomic_load(&pool_exhausted));
	return 0;
}

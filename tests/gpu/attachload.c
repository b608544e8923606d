/*
 * A plain CUDA program to attach to: no CUPTI, no toolkit, only the driver.
 *
 *   attachload [-b] [-L] [-H] [-m] [-k KERNELS] [-u US] DIR
 *
 * Steps of KERNELS kernels of US each, with a synchronisation at the end, until
 * DIR/stop is there. DIR/ready tells that it is ready for its steps; with -H it
 * then waits for DIR/go. DIR/series has the number of steps, then the time of
 * CLOCK_MONOTONIC at which each ended, as 64-bit numbers.
 *
 * -L waits for DIR/go before the first call of CUDA, the library mapped, and is
 * ready then; -b sleeps in synchronisations, and does not spin.
 * -m has no steps: for each number on stdin it times so many launches of an
 * empty kernel, and prints a line of JSON. Ends after LIMIT seconds in any case.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LIMIT 300
#define ROOM (1 << 20)
#define SCHED_BLOCKING_SYNC 4
#define NON_BLOCKING 1

/* One kernel for both: it spins for so many ns, which may be none. */
static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
			  ".visible .entry spin(.param .u64 ns)\n"
			  "{\n"
			  "  .reg .u64 %rd<5>;\n"
			  "  .reg .pred %p;\n"
			  "  ld.param.u64 %rd1, [ns];\n"
			  "  setp.eq.u64 %p, %rd1, 0;\n"
			  "  @%p ret;\n"
			  "  mov.u64 %rd2, %globaltimer;\n"
			  "AGAIN:\n"
			  "  mov.u64 %rd3, %globaltimer;\n"
			  "  sub.u64 %rd4, %rd3, %rd2;\n"
			  "  setp.lt.u64 %p, %rd4, %rd1;\n"
			  "  @%p bra AGAIN;\n"
			  "  ret;\n"
			  "}\n";

static void *library, *stream, *spin;
static const char *dir;

static int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
		     unsigned bz, unsigned shared, void *stream, void **params, void **extra);
static int (*synchronize)(void *stream);

static void *function(const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "libcuda.so.1 has no %s\n", name);
		exit(1);
	}
	return found;
}

static void check(const char *what, int result)
{
	if (result) {
		fprintf(stderr, "%s: CUDA error %d\n", what, result);
		exit(1);
	}
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static char *path(const char *name)
{
	static char text[PATH_MAX];

	snprintf(text, sizeof(text), "%s/%s", dir, name);
	return text;
}

static int is_there(const char *name)
{
	return access(path(name), F_OK) == 0;
}

static void tell(const char *name)
{
	int fd = open(path(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	if (fd >= 0)
		close(fd);
}

static void wait_for(const char *name)
{
	while (!is_there(name) && !is_there("stop"))
		usleep(2000);
}

static volatile uint64_t *series(void)
{
	size_t size = (ROOM + 1) * sizeof(uint64_t);
	int fd = open(path("series"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	void *at;

	if (fd < 0 || ftruncate(fd, size)) {
		perror(path("series"));
		exit(1);
	}
	at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	close(fd);
	return at;
}

static void run(uint64_t ns)
{
	void *params[] = { &ns };

	check("cuLaunchKernel", launch(spin, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void start(int blocking)
{
	int (*init)(unsigned) = function("cuInit");
	int (*flags)(int, unsigned) = dlsym(library, "cuDevicePrimaryCtxSetFlags_v2");
	int (*retain)(void **, int) = function("cuDevicePrimaryCtxRetain");
	int (*current)(void *) = function("cuCtxSetCurrent");
	int (*load)(void **, const void *) = function("cuModuleLoadData");
	int (*get)(void **, void *, const char *) = function("cuModuleGetFunction");
	int (*create)(void **, unsigned) = function("cuStreamCreate");
	void *context, *module;

	launch = function("cuLaunchKernel");
	synchronize = function("cuStreamSynchronize");
	check("cuInit", init(0));
	if (blocking && flags)
		check("cuDevicePrimaryCtxSetFlags", flags(0, SCHED_BLOCKING_SYNC));
	check("cuDevicePrimaryCtxRetain", retain(&context, 0));
	check("cuCtxSetCurrent", current(context));
	check("cuModuleLoadData", load(&module, ptx));
	check("cuModuleGetFunction", get(&spin, module, "spin"));
	check("cuStreamCreate", create(&stream, NON_BLOCKING));
	run(1000);
	check("cuStreamSynchronize", synchronize(stream));
}

static void step(int kernels, uint64_t ns)
{
	for (int i = 0; i < kernels; i++)
		run(ns);
	check("cuStreamSynchronize", synchronize(stream));
}

static void steps(int kernels, uint64_t ns)
{
	volatile uint64_t *times = series();

	while (times[0] < ROOM && !is_there("stop")) {
		step(kernels, ns);
		times[times[0] + 1] = now();
		times[0]++;
	}
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Of all launches the mean, and the median of 256 together: no launch waits for room in the queue. */
static void measure(void)
{
	enum { CHUNK = 256, MOST = 1 << 14 };
	static double chunks[MOST];
	long launches;

	while (scanf("%ld", &launches) == 1) {
		double sum = 0;
		int n = 0;

		for (; n < MOST && n < launches / CHUNK; n++) {
			uint64_t begin = now();

			for (int i = 0; i < CHUNK; i++)
				run(0);
			chunks[n] = (double)(now() - begin) / CHUNK;
			sum += chunks[n];
			check("cuStreamSynchronize", synchronize(stream));
		}
		qsort(chunks, n, sizeof(*chunks), by_value);
		printf("{\"launches\":%d,\"mean\":%.1f,\"p50\":%.1f}\n", n * CHUNK,
		       n ? sum / n : 0, n ? chunks[n / 2] : 0);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	int blocking = 0, late = 0, hold = 0, timing = 0, kernels = 10, opt;
	uint64_t us = 90;

	while ((opt = getopt(argc, argv, "bLHmk:u:")) != -1) {
		if (opt == 'b')
			blocking = 1;
		else if (opt == 'L')
			late = 1;
		else if (opt == 'H')
			hold = 1;
		else if (opt == 'm')
			timing = 1;
		else if (opt == 'k')
			kernels = atoi(optarg);
		else if (opt == 'u')
			us = strtoul(optarg, NULL, 10);
		else
			return 2;
	}
	if (optind != argc - 1) {
		fprintf(stderr, "usage: attachload [-b] [-L] [-H] [-m] [-k KERNELS] [-u US] DIR\n");
		return 2;
	}
	dir = argv[optind];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(LIMIT);
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	if (late) {
		tell("ready");
		wait_for("go");
	}
	start(blocking);
	if (!late)
		tell("ready");
	if (hold)
		wait_for("go");
	if (timing)
		measure();
	else
		steps(kernels, us * 1000);
	check("cuStreamSynchronize", synchronize(stream));
	return 0;
}

/* victim: a GPU job that notices when anything is done to it, in the hands of
 * tests/inject.
 *
 * Usage: victim LOG [OPTION]...
 *
 * LOG gets CLOCK_MONOTONIC in ns, 8 bytes, after each step: about 10 ms, of
 * which the device computes most and the host the rest. Standard input says what
 * comes: its end, that all shall end; `e`, an exec of itself; `x`, exit();
 * `q`, _exit(). It prints `ready` when everything runs, and a verdict as JSON
 * at the end; the status is 0 if nothing was wrong. */
#define _GNU_SOURCE
#include "victim.h"

#include "../gpuload/gpu.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LAUNCHES 10
#define KERNEL_NS (850 * 1000)

struct options opt = { .threads = 1 };
atomic_int ending;
_Thread_local volatile unsigned long handled, paused;
static char **arguments;

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SEC + t.tv_nsec;
}

/* In a call that nobody takes for a wait: the threads that help are not to be chosen. */
void sleep_ns(uint64_t ns)
{
	uint64_t until = now_ns() + ns, now;
	sigset_t none;

	sigemptyset(&none);
	while ((now = now_ns()) < until) {
		struct timespec t = { (until - now) / SEC, (until - now) % SEC };

		sigtimedwait(&none, NULL, &t);
	}
}

void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "victim: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	_exit(2);
}

uint64_t below(uint64_t limit)
{
	static _Thread_local uint64_t state;

	if (!state)
		state = (now_ns() * 0x9e3779b97f4a7c15 ^ (uint64_t)gettid() << 32) | 1;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % limit;
}

uint64_t work(int times)
{
	uint64_t sum = 1, bits;
	double x = 0.5;

	for (int i = 0; i < times * 100000; i++) {
		sum = sum * 6364136223846793005ull + i;
		x = 3.9 * x * (1 - x); /* any other rounding gives another number */
	}
	memcpy(&bits, &x, sizeof(bits));
	return sum ^ bits;
}

#define MOST 2000
static struct {
	pthread_t id;
	const char *what;
	void *(*run)(void *);
	void *arg;
} threads[MOST];
static int started;

/* The company may take what CPU is left: a step is as long with it as without. */
static void *run_nicely(void *arg)
{
	int i = (long)arg;

	setpriority(PRIO_PROCESS, gettid(), 10);
	return threads[i].run(threads[i].arg);
}

pthread_t start(const char *what, void *(*run)(void *), void *arg)
{
	pthread_attr_t attr;
	int i = started++;

	if (i == MOST)
		die("too many threads");
	threads[i].what = what;
	threads[i].run = run;
	threads[i].arg = arg;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 128 << 10);
	if (pthread_create(&threads[i].id, &attr, run_nicely, (void *)(long)i))
		die("cannot create a thread for %s", what);
	return threads[i].id;
}

void join_all(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += HANGS / SEC;
	for (int i = 0; i < started; i++) {
		int late = pthread_timedjoin_np(threads[i].id, NULL, &until);

		CHECK("threads end", !late, "a thread of %s hangs", threads[i].what);
	}
}

/* What is asked for on standard input: EOF ends the steps. */
static int goes_on(void)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	char what;

	if (poll(&input, 1, 0) != 1) /* or a signal came */
		return 1;
	if (read(0, &what, 1) != 1)
		return 0;
	if (what == 'e')
		execv("/proc/self/exe", arguments);
	if (what == 'x')
		exit(0);
	_exit(what != 'q');
}

static unsigned long steps(int log)
{
	uint64_t expected = work(4), ns;
	unsigned long n = 0, before = 0;
	struct gpu gpu;

	if (opt.no_device) {
		if (!dlopen("libcuda.so.1", RTLD_NOW))
			die("%s", dlerror());
	} else {
		gpu_init();
		gpu_open(&gpu, 0);
	}
	if (opt.undumpable && (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534) ||
			       prctl(PR_SET_DUMPABLE, 0)))
		die("cannot become nobody");
	if (opt.threads > 1)
		waits_start(opt.threads - 1);
	company_start();
	signals_receive();
	if (opt.seccomp)
		forbid_calls();
	printf("ready\n");
	fflush(stdout);
	while (goes_on()) {
		for (int i = 0; i < LAUNCHES && !opt.no_device; i++)
			gpu_spin(&gpu, gpu.stream, KERNEL_NS);
		if (opt.no_device)
			sleep_ns(LAUNCHES * KERNEL_NS);
		else
			GPU(cuStreamSynchronize(gpu.stream));
		CHECK("the work has its result", work(4) == expected, "another result");
		CHECK("no signal handler of others runs", opt.signals || handled == before,
		      "%lu handlers ran", handled);
		ns = now_ns();
		if (write(log, &ns, sizeof(ns)) != sizeof(ns))
			die("cannot write the log");
		n++;
	}
	return n;
}

static const struct option options[] = {
	{ "threads", 1, NULL, 't' },	    { "waits", 1, NULL, 'w' },
	{ "malloc", 1, NULL, 'm' },	    { "dlopen", 1, NULL, 'd' },
	{ "fork", 1, NULL, 'f' },	    { "signals", 1, NULL, 's' },
	{ "churn", 1, NULL, 'c' },	    { "plugin", 1, NULL, 'p' },
	{ "may-be-stopped", 0, NULL, 'z' }, { "seccomp", 1, NULL, 'e' },
	{ "undumpable", 0, NULL, 'u' },	    { "list-waits", 0, NULL, 'l' },
	{ "no-device", 0, NULL, 'n' },	    { NULL, 0, NULL, 0 },
};

static void parse(int argc, char **argv)
{
	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		switch (c) {
		case 't':
			opt.threads = atoi(optarg);
			break;
		case 'w':
			opt.waits = optarg;
			break;
		case 'm':
			opt.malloc = atoi(optarg);
			break;
		case 'd':
			opt.dlopen = atoi(optarg);
			break;
		case 'f':
			opt.fork = atoi(optarg);
			break;
		case 's':
			opt.signals = atoi(optarg);
			break;
		case 'c':
			opt.churn = atoi(optarg);
			break;
		case 'p':
			opt.plugin = optarg;
			break;
		case 'z':
			opt.may_be_stopped = 1;
			break;
		case 'e':
			opt.seccomp = strcmp(optarg, "kill") ? 1 : -1;
			break;
		case 'u':
			opt.undumpable = 1;
			break;
		case 'n':
			opt.no_device = 1;
			break;
		case 'l':
			waits_list();
			exit(0);
		default:
			exit(2);
		}
	}
	if (optind != argc - 1)
		die("usage: victim LOG [OPTION]...");
}

int main(int argc, char **argv)
{
	unsigned long n;
	int log;

	arguments = argv;
	parse(argc, argv);
	log = open(argv[optind], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log < 0)
		die("cannot open %s", argv[optind]);
	/* System V objects go with the process, however it ends. */
	unshare(CLONE_NEWIPC);
	/* There are many of them on a machine: they wait for the device without a CPU. */
	setenv("GDIAG_SIM_SYNC", "block", 0);
	signals_prepare();
	n = steps(log);
	atomic_store(&ending, 1);
	signals_leave();
	join_all();
	return check_verdict(n) ? 1 : 0;
}

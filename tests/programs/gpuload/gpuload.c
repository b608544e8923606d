/* gpuload: a GPU job with known faults.
 *
 * A loop of steps: launch some kernels, wait for them, do a little host work.
 * Every so many steps a fault is injected that is real on the host, and one
 * line of truth is written: which cause gdiag should find, and when. */
#define _GNU_SOURCE
#include "outside.h"
#include "plan.h"

#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

void die(const char *format, ...)
{
	va_list args;

	fputs("gpuload: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

__attribute__((noinline)) void host_work(uint64_t ns)
{
	uint64_t end = now_ns() + ns;

	while (now_ns() < end)
		for (volatile int i = 0; i < 100; i++)
			;
}

void truth_add(struct truth *truth, uint64_t start, uint64_t end)
{
	if (truth->count == MAX_SPANS)
		die("an injection took effect more than %d times", MAX_SPANS);
	truth->whole = 0;
	truth->spans[truth->count++] = (struct span){ truth->cause, start, end, end - start };
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static long sleeps(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

void call_begins(struct call *call)
{
	call->sleeps = sleeps();
	call->cpu = cpu_ns();
	call->start = now_ns();
}

uint64_t call_ends(const struct call *call, struct truth *truth)
{
	uint64_t end = now_ns(), cpu = cpu_ns() - call->cpu, took = end - call->start;

	truth->whole = 0;
	if (sleeps() > call->sleeps && took > cpu) {
		truth_add(truth, call->start, end);
		truth->spans[truth->count - 1].ns = took - cpu;
	}
	return end;
}

/* Interrupts are shorter. */
#define JUMP (50 * US)

__attribute__((noinline)) void note_jumps(struct truth *truth, uint64_t ns)
{
	uint64_t last = now_ns(), end = last + ns;

	truth->whole = 0;
	while (last < end) {
		uint64_t t = now_ns();

		if (t - last > JUMP)
			truth_add(truth, last, t);
		last = t;
	}
}

void sleep_ns(uint64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	nanosleep(&t, NULL);
}

void pin_to(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("cannot pin to CPU %d: %s", cpu, strerror(errno));
}

void keep_off(int cpu)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t set;

	CPU_ZERO(&set);
	for (long i = 0; i < cpus; i++)
		if (i != cpu)
			CPU_SET(i, &set);
	/* Where it may not run, it may stay. */
	sched_setaffinity(0, sizeof(set), &set);
}

static void usage(FILE *out)
{
	fputs("usage: gpuload [OPTION]... [--inject NAME[:MS][@N]]...\n"
	      "       gpuload --case NAME[,NAME]... [--twin] [OPTION]...\n"
	      "       gpuload --list\n"
	      "       gpuload outside [-n HOGS] -- COMMAND...\n"
	      "\n"
	      "A GPU job with known faults, on the simulated GPU or a real one.\n"
	      "\n"
	      "  --steps N        steps to run (default 300)\n"
	      "  --seconds S      run for so long instead\n"
	      "  --kernels N      launches a step (default 20)\n"
	      "  --kernel-us US   length of a kernel (default 200)\n"
	      "  --host-us US     host work between steps (default 300)\n"
	      "  --sync-every N   steps between synchronisations, 0 for none (default 1)\n"
	      "  --ahead N        keep N steps queued ahead instead of synchronising: the device\n"
	      "                   never runs dry, so that no injection makes a gap\n"
	      "  --device N       the device that runs the steps (default 0)\n"
	      "  --cpu N          pin the launching thread\n"
	      "  --inject NAME[:MS][@N]  inject for MS ms every N steps (default 10), may be repeated\n"
	      "  --case NAMES     inject each of these in random order, over steps of 5 kernels\n"
	      "  --gaps N         for so many times (default 32)\n"
	      "  --twin           with work queued ahead: no gap is due\n"
	      "  --seed N         another order\n"
	      "  --list           injections as JSON, with what each lacks here\n"
	      "  --demo           preempt, a cold disk and a lock, for about 5 seconds\n"
	      "  --truth FILE     write a line of JSON for every injection\n"
	      "  --scratch DIR    where disk injections have their file (default /var/tmp)\n"
	      "  --hogs N         processes that preempt starts without `gpuload outside` (default 3)\n"
	      "  --help\n"
	      "\n"
	      "Injections, with the cause that gdiag should name and the usual length:\n",
	      out);
	for (int i = 0; i < injection_count; i++)
		fprintf(out, "  %-15s %-34s %5.1f ms  %s\n", injections[i].name,
			injections[i].cause, injections[i].ms, injections[i].help);
	fputs("\n`gpuload outside` runs COMMAND beside processes that belong to nobody's job. Without it\n"
	      "preempt has children of gpuload take the CPU, and the truth is host.oversubscribed.\n",
	      out);
}

static double number(const char *option, const char *text, double least)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || value < least)
		die("--%s: '%s' does not do", option, text);
	return value;
}

/* As pyload.py has it: one line of JSON for each. */
static void list(void)
{
	for (int i = 0; i < injection_count; i++) {
		const struct injection *what = &injections[i];
		const char *lacks = plan_lacks(what);

		printf("{\"case\":\"%s\",\"cause\":\"%s\",\"twin\":%s,\"device\":%s,\"lacks\":",
		       what->name, what->cause, what->twin ? "true" : "false",
		       strncmp(what->cause, "gpu.", 4) ? "false" : "true");
		printf(lacks ? "\"%s\"}\n" : "null}\n", lacks);
	}
}

/* The load of --case. The twin has 240 ms of work queued when an injection comes. */
static void set_cases(struct options *opt, const char *cases, int gaps, int twin, uint64_t seed)
{
	opt->kernels = 5;
	if (twin) {
		opt->kernel_ns = 800 * US;
		opt->host_ns = 50 * US;
		opt->ahead = 60;
	}
	opt->steps = __LONG_MAX__;
	plan_cases(cases, gaps, seed, 2);
}

static struct options parse(int argc, char **argv)
{
	struct options opt = { .kernels = 20,
			       .kernel_ns = 200 * US,
			       .host_ns = 300 * US,
			       .sync_every = 1,
			       .cpu = -1,
			       .hogs = 3,
			       .scratch = "/var/tmp" };
	static const struct option longs[] = {
		{ "steps", 1, 0, 's' },
		{ "seconds", 1, 0, 'S' },
		{ "kernels", 1, 0, 'k' },
		{ "kernel-us", 1, 0, 'u' },
		{ "host-us", 1, 0, 'h' },
		{ "sync-every", 1, 0, 'y' },
		{ "ahead", 1, 0, 'a' },
		{ "device", 1, 0, 'd' },
		{ "cpu", 1, 0, 'c' },
		{ "inject", 1, 0, 'i' },
		{ "case", 1, 0, 'C' },
		{ "gaps", 1, 0, 'g' },
		{ "twin", 0, 0, 'w' },
		{ "seed", 1, 0, 'e' },
		{ "list", 0, 0, 'l' },
		{ "demo", 0, 0, 'D' },
		{ "truth", 1, 0, 't' },
		{ "scratch", 1, 0, 'x' },
		{ "hogs", 1, 0, 'n' },
		{ "help", 0, 0, '?' + 128 },
		{ 0 },
	};
	const char *cases = NULL;
	int gaps = 32, twin = 0;
	uint64_t seed = 1;
	int c, index = 0;

	while ((c = getopt_long(argc, argv, "", longs, &index)) != -1) {
		const char *name = longs[index].name;

		switch (c) {
		case 's':
			opt.steps = number(name, optarg, 1);
			break;
		case 'S':
			opt.seconds = number(name, optarg, 0);
			break;
		case 'k':
			opt.kernels = number(name, optarg, 1);
			break;
		case 'u':
			opt.kernel_ns = number(name, optarg, 0) * 1e3;
			break;
		case 'h':
			opt.host_ns = number(name, optarg, 0) * 1e3;
			break;
		case 'y':
			opt.sync_every = number(name, optarg, 0);
			break;
		case 'a':
			opt.ahead = number(name, optarg, 0);
			break;
		case 'd':
			opt.device = number(name, optarg, 0);
			break;
		case 'c':
			opt.cpu = number(name, optarg, 0);
			break;
		case 'n':
			opt.hogs = number(name, optarg, 1);
			break;
		case 'i':
			plan_inject(optarg);
			break;
		case 'C':
			cases = optarg;
			break;
		case 'g':
			gaps = number(name, optarg, 1);
			break;
		case 'w':
			twin = 1;
			break;
		case 'e':
			seed = strtoull(optarg, NULL, 0);
			break;
		case 'l':
			list();
			exit(0);
		case 'D':
			opt.seconds = 5;
			plan_inject("preempt@12");
			plan_inject("disk@12");
			plan_inject("lock@12");
			break;
		case 't':
			opt.truth = optarg;
			break;
		case 'x':
			opt.scratch = optarg;
			break;
		case '?' + 128:
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			exit(2);
		}
	}
	if (optind != argc) {
		usage(stderr);
		exit(2);
	}
	if (cases)
		set_cases(&opt, cases, gaps, twin, seed);
	else
		plan_spread();
	if (!opt.steps && !opt.seconds)
		opt.steps = 300;
	return opt;
}

static long run_steps(struct run *run, FILE *truth)
{
	const struct options *opt = &run->opt;
	uint64_t end = opt->seconds ? now_ns() + opt->seconds * 1e9 : UINT64_MAX;
	long most = opt->steps ? opt->steps : __LONG_MAX__;
	CUevent *done = NULL;
	long step;

	if (opt->ahead) {
		done = calloc(opt->ahead, sizeof(*done));
		for (int i = 0; i < opt->ahead; i++)
			GPU(cuEventCreate(&done[i], 2)); /* CU_EVENT_DISABLE_TIMING */
	}
	for (step = 0; step < most && now_ns() < end && !plan_over(step); step++) {
		int ready = 1;

		for (int k = 0; k < opt->kernels; k++)
			gpu_spin(&run->gpu, run->gpu.stream, opt->kernel_ns);
		if (opt->ahead) {
			/* The event is of the step that was launched `ahead` steps before. */
			CUevent event = done[step % opt->ahead];

			ready = step >= opt->ahead && cu.cuEventQuery(event) == NOT_READY;
			if (step >= opt->ahead)
				GPU(cuEventSynchronize(event));
			GPU(cuEventRecord(event, run->gpu.stream));
		} else if (opt->sync_every && step % opt->sync_every == 0) {
			GPU(cuStreamSynchronize(run->gpu.stream));
		}
		host_work(opt->host_ns);
		plan_step(run, step, ready, truth);
	}
	GPU(cuStreamSynchronize(run->gpu.stream));
	free(done);
	return step;
}

int main(int argc, char **argv)
{
	struct run run = { 0 };
	FILE *truth = NULL;
	uint64_t start;
	char name[96];
	long steps;

	if (argc > 1 && !strcmp(argv[1], "outside"))
		return outside_main(argc - 1, argv + 1);
	run.opt = parse(argc, argv);
	if (run.opt.truth && !(truth = fopen(run.opt.truth, "w")))
		die("%s: %s", run.opt.truth, strerror(errno));
	plan_prepare(&run);
	run.devices = gpu_init();
	if (run.opt.device >= run.devices)
		die("no device %d", run.opt.device);
	gpu_open(&run.gpu, run.opt.device);
	GPU(cuDeviceGetName(name, sizeof(name), run.opt.device));
	plan_ready(&run);
	/* Last, so that no helper thread inherits it. */
	if (run.opt.cpu >= 0)
		pin_to(run.opt.cpu);
	start = now_ns();
	steps = run_steps(&run, truth);
	printf("%s: %ld steps in %.3f s\n", name, steps, (now_ns() - start) / 1e9);
	if (truth && fclose(truth))
		die("%s: %s", run.opt.truth, strerror(errno));
	return 0;
}

/* Faults by limits of a control group, which the thread enters for the time of the injection. */
#define _GNU_SOURCE
#include "inject.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "group.h"

const char *root_lacks(void)
{
	return geteuid() ? "needs root" : NULL;
}

/* quota */

#define QUOTA_US 2000
#define PERIOD_US 10000

static struct group quota;

void quota_prepare(struct run *run)
{
	char text[64];

	(void)run;
	if (*quota.path)
		return;
	if (group_root("cpu")) {
		group_make(&quota, "cpu");
		snprintf(text, sizeof(text), "%d", PERIOD_US);
		group_set(&quota, "cpu.cfs_period_us", text);
		snprintf(text, sizeof(text), "%d", QUOTA_US);
		group_set(&quota, "cpu.cfs_quota_us", text);
	} else {
		group_write(group_root("") ?: "", "cgroup.subtree_control", "+cpu");
		group_make(&quota, "");
		snprintf(text, sizeof(text), "%d %d", QUOTA_US, PERIOD_US);
		group_set(&quota, "cpu.max", text);
	}
}

void quota_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	group_enter(&quota);
	note_jumps(truth, ns);
	group_leave(&quota);
}

/* For how long this thread was kept from running. */
static uint64_t run_delay(void)
{
	unsigned long long ran, waited;
	FILE *f = fopen("/proc/thread-self/schedstat", "r");

	if (!f || fscanf(f, "%llu %llu", &ran, &waited) != 2)
		die("/proc/thread-self/schedstat: %s", strerror(errno));
	fclose(f);
	return waited;
}

/* Where in a copy the thread was throttled is not known from here: such a copy has no truth. */
void copy_quota_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t end = now_ns() + ns;
	static struct truth copy;

	group_enter(&quota);
	do {
		uint64_t delay = run_delay();
		int whole;

		copy.count = 0;
		pageable_go(run, 0, &copy);
		whole = run_delay() == delay;
		truth->cause = "host.pageable-copy";
		if (whole)
			truth_add(truth, copy.spans[0].start, copy.spans[0].end);
		truth->cause = "host.throttled";
		note_jumps(truth, 3 * MS);
	} while (now_ns() < end);
	group_leave(&quota);
}

/* reclaim: holes of a file are read into a page cache that is full. They cost no disk. */

#define LIMIT (48l << 20)
#define HOLES (64l << 30)
#define PAGE 4096l
/* A read takes a few microseconds, and so much more when pages have to be freed first. */
#define RECLAIMED (20 * US)

static struct group limit;
static int holes = -1;
static long hole;
static uint64_t usual = UINT64_MAX; /* what a read takes at best */

static void read_hole(void)
{
	char page[PAGE];

	hole = (hole + PAGE) % HOLES;
	if (pread(holes, page, PAGE, hole) != PAGE)
		die("pread: %s", strerror(errno));
}

void reclaim_prepare(struct run *run)
{
	char path[512], text[64];

	snprintf(path, sizeof(path), "%s/gpuload.XXXXXX", run->opt.scratch);
	holes = mkostemp(path, O_CLOEXEC);
	if (holes < 0 || ftruncate(holes, HOLES))
		die("%s: %s", path, strerror(errno));
	unlink(path);
	posix_fadvise(holes, 0, 0, POSIX_FADV_RANDOM);
	snprintf(text, sizeof(text), "%ld", LIMIT);
	if (group_root("memory")) {
		group_make(&limit, "memory");
		group_set(&limit, "memory.limit_in_bytes", text);
	} else {
		group_write(group_root("") ?: "", "cgroup.subtree_control", "+memory");
		group_make(&limit, "");
		group_set(&limit, "memory.max", text);
	}
}

void reclaim_ready(struct run *run)
{
	(void)run;
	group_enter(&limit);
	for (long i = 0; i < LIMIT / PAGE; i++)
		read_hole();
	group_leave(&limit);
}

void reclaim_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t start, t = now_ns(), end = t + ns;

	(void)run;
	truth->whole = 0;
	group_enter(&limit);
	do {
		start = now_ns();
		read_hole();
		t = now_ns();
		if (t - start < usual)
			usual = t - start;
		if (t - start <= RECLAIMED)
			continue;
		truth_add(truth, start, t);
		truth->spans[truth->count - 1].ns -= usual;
	} while (t < end);
	group_leave(&limit);
}

/* Faults of the host that need a file on a disk. */
#define _GNU_SOURCE
#include "inject.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#define FILE_BYTES (64l << 20)
#define CHUNK (256l << 10)
#define PAGE 4096l

static int fd = -1;
static char chunk[CHUNK];

void disk_prepare(struct run *run)
{
	const char *directory = run->opt.scratch;
	struct statfs fs;
	char path[512];

	if (fd >= 0)
		return;
	if (statfs(directory, &fs))
		die("%s: %s", directory, strerror(errno));
	if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC)
		die("%s is in memory, --scratch must be on a disk", directory);
	snprintf(path, sizeof(path), "%s/gpuload.%d", directory, getpid());
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		die("%s: %s", path, strerror(errno));
	unlink(path);
	memset(chunk, 'x', sizeof(chunk));
	for (long at = 0; at < FILE_BYTES; at += CHUNK)
		if (pwrite(fd, chunk, CHUNK, at) != CHUNK)
			die("%s: %s", path, strerror(errno));
	if (fsync(fd))
		die("%s: %s", path, strerror(errno));
}

/* Drops the file from the page cache, and sees to it that nothing is read ahead. */
static void make_cold(void)
{
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
}

/* A page of the file, far from the last one; each comes once until all have been. */
static long scattered(void)
{
	static unsigned long turn;

	return turn++ * 7919 % (FILE_BYTES / PAGE) * PAGE;
}

void disk_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t end;
	struct call call;

	(void)run;
	make_cold();
	end = now_ns() + ns;
	do {
		long at = scattered();

		call_begins(&call);
		if (pread(fd, chunk, PAGE, at) != PAGE)
			die("pread: %s", strerror(errno));
	} while (call_ends(&call, truth) < end);
}

void mmapfault_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t end;
	volatile char *map, sum = 0;
	struct call call;

	(void)run;
	/* Mapped pages stay in the cache, so it is mapped anew each time. */
	make_cold();
	map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	madvise((void *)map, FILE_BYTES, MADV_RANDOM);
	end = now_ns() + ns;
	do {
		long at = scattered();

		call_begins(&call);
		sum += map[at];
	} while (call_ends(&call, truth) < end);
	munmap((void *)map, FILE_BYTES);
}

void fsync_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t end = now_ns() + ns;
	struct call call;

	(void)run;
	do {
		if (pwrite(fd, chunk, PAGE, scattered()) != PAGE)
			die("pwrite: %s", strerror(errno));
		call_begins(&call);
		if (fsync(fd))
			die("fsync: %s", strerror(errno));
	} while (call_ends(&call, truth) < end);
}

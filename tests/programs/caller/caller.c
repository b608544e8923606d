// SPDX-License-Identifier: Apache-2.0
/*
 * Makes system calls that can be counted: see main() for how many of which.
 *
 *   caller DIR     all of them; DIR is empty
 *   caller pause   one that never ends
 *   caller storm N N times getppid, as fast as it goes
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Control bytes, half a character, and what ends a field or a line elsewhere. */
#define HOSTILE "a\x1b[2J;]\n\xe2\x82"

static void times(int n, long number)
{
	for (int i = 0; i < n; i++)
		syscall(number, -1L, -1L, -1L);
}

static void *thread(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, HOSTILE);
	times(11, SYS_getppid);
	return NULL;
}

/* Two files, one after the other, under the same number. */
static void files(const char *dir)
{
	char path[2][200], byte;

	snprintf(path[0], sizeof(path[0]), "%s/%s", dir, HOSTILE);
	snprintf(path[1], sizeof(path[1]), "%s/second", dir);
	for (int i = 0; i < 2; i++) {
		int fd = openat(AT_FDCWD, path[i], O_CREAT | O_RDWR | O_CLOEXEC, 0600);

		for (int n = 0; n < 3; n++)
			pread(fd, &byte, 1, 7);
		close(fd);
	}
}

/* Each has the number and, on most file systems, the inode of the one before; then the number alone. */
static void again(const char *dir)
{
	char path[300], byte;
	int fd, other;

	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/again%d", dir, i);
		fd = openat(AT_FDCWD, path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		pread(fd, &byte, 1, 8);
		close(fd);
		unlink(path);
	}
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%d", dir, i);
		mkdir(path, 0700);
	}
	snprintf(path, sizeof(path), "%s/0/same", dir);
	fd = openat(AT_FDCWD, path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	snprintf(path, sizeof(path), "%s/1/same", dir);
	other = openat(AT_FDCWD, path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	pread(fd, &byte, 1, 9);
	dup2(other, fd);
	pread(fd, &byte, 1, 9);
	close(fd);
	close(other);
}

int main(int argc, char **argv)
{
	struct timespec nap = { 0, 20000000 }, instant = { 0, 1000000 };
	struct pollfd ready;
	pthread_t other;
	int word = 5, pipes[2];

	if (argc == 2 && !strcmp(argv[1], "pause"))
		for (;;)
			pause();
	if (argc == 3 && !strcmp(argv[1], "storm")) {
		times(atoi(argv[2]), SYS_getppid);
		return 0;
	}
	if (argc != 2)
		return 2;

	times(1000, SYS_getppid);
	for (int i = 0; i < 50; i++)
		rmdir("/no/such/directory");
	for (int i = 0; i < 7; i++)
		rmdir("/proc/self/exe/x");
	for (int i = 0; i < 5; i++)
		syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &nap, NULL);
	for (int i = 0; i < 2; i++)
		syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 5, &instant, NULL, 0);
	times(3, -1);
	times(3, 0x7fff);
	files(argv[1]);
	again(argv[1]);
	if (pipe(pipes) || write(pipes[1], "x", 1) != 1)
		return 1;
	ready = (struct pollfd){ .fd = pipes[0], .events = POLLIN };
	poll(&ready, 1, 1000);

	if (pthread_create(&other, NULL, thread, NULL) || pthread_join(other, NULL))
		return 1;
	if (!fork()) {
		times(13, SYS_getppid);
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	wait(NULL);
	return 0;
}

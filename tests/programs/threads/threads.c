// SPDX-License-Identifier: Apache-2.0
/*
 * Threads whose life is short or odd, for what follows them.
 *
 *   threads exec PROGRAM [ARG...]   a second thread executes PROGRAM and so becomes the first one
 *   threads brief N                 N threads, one after another, each sleeps once and ends
 *   threads spin                    prints a line, then runs until it is killed
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static void nap(void)
{
	struct timespec ts = { 0, 1000000 };

	nanosleep(&ts, NULL);
}

static void *replace(void *argv)
{
	prctl(PR_SET_NAME, "replacer");
	for (int i = 0; i < 10; i++)
		nap();
	execvp(*(char **)argv, argv);
	_exit(127);
}

static void *brief(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, "brief");
	nap();
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc > 2 && !strcmp(argv[1], "exec")) {
		if (pthread_create(&thread, NULL, replace, argv + 2))
			return 1;
		pthread_join(thread, NULL);
		return 1;
	}
	if (argc > 2 && !strcmp(argv[1], "brief")) {
		for (int i = atoi(argv[2]); i > 0; i--) {
			if (pthread_create(&thread, NULL, brief, NULL) || pthread_join(thread, NULL))
				return 1;
		}
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "spin")) {
		puts("runs");
		fflush(stdout);
		for (;;)
			__asm__ volatile("");
	}
	fprintf(stderr, "usage: threads exec PROGRAM [ARG...] | brief N | spin\n");
	return 2;
}

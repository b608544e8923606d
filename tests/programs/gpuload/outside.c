#define _GNU_SOURCE
#include "outside.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "load.h"

/* Names the file that is shared. */
#define ENVIRONMENT "GPULOAD_OUTSIDE"

void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT, value, NULL, NULL, 0);
}

void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static struct outside *map(int fd)
{
	struct outside *shared =
		mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (shared == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	return shared;
}

struct outside *outside(void)
{
	static struct outside *shared;
	const char *path = getenv(ENVIRONMENT);
	int fd;

	if (shared || !path)
		return shared;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		die("%s: %s", path, strerror(errno));
	return shared = map(fd);
}

struct outside *need_outside(const char *injection)
{
	if (!outside())
		die("%s needs processes outside of the job\n"
		    "hint: gpuload outside -- gdiag record ... -- gpuload ...",
		    injection);
	return outside();
}

int outside_main(int argc, char **argv)
{
	char path[] = "/tmp/gpuload-outside.XXXXXX";
	int hogs = 3, status, fd, c;
	struct outside *shared;
	pid_t command;

	while ((c = getopt(argc, argv, "+n:")) != -1) {
		if (c != 'n')
			return 2;
		hogs = atoi(optarg);
	}
	if (optind >= argc || hogs < 1) {
		fputs("usage: gpuload outside [-n HOGS] -- COMMAND...\n", stderr);
		return 2;
	}
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0 || ftruncate(fd, sizeof(*shared)))
		die("%s: %s", path, strerror(errno));
	shared = map(fd);
	fork_hogs(&shared->gang, hogs);
	start_peers(shared);
	start_client(shared);
	start_network(shared);
	setenv(ENVIRONMENT, path, 1);
	command = fork();
	if (command == 0) {
		execvp(argv[optind], argv + optind);
		die("%s: %s", argv[optind], strerror(errno));
	}
	/* An interrupt is for the command to answer; those that we started go with us. */
	signal(SIGINT, SIG_IGN);
	while (waitpid(command, &status, 0) < 0 && errno == EINTR)
		;
	unlink(path);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

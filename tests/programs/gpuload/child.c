#define _GNU_SOURCE
#include "child.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load.h"

pid_t serve(const char *name, void (*loop)(int fd, void *arg), int fd, void *arg)
{
	pid_t parent = getpid(), child = fork();

	switch (child) {
	case -1:
		die("fork: %s", strerror(errno));
	case 0:
		prctl(PR_SET_NAME, name);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGPIPE, SIG_IGN);
		if (getppid() == parent)
			loop(fd, arg);
		_exit(0);
	}
	return child;
}

int unix_child(const char *name, void (*loop)(int fd, void *arg))
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		die("socketpair: %s", strerror(errno));
	serve(name, loop, fds[1], NULL);
	close(fds[1]);
	return fds[0];
}

void *share(size_t bytes)
{
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	return memory;
}

int read_all(int fd, void *to, size_t bytes)
{
	char *at = to;

	while (bytes) {
		ssize_t got = read(fd, at, bytes);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return 0;
		at += got;
		bytes -= got;
	}
	return 1;
}

int write_all(int fd, const void *from, size_t bytes)
{
	const char *at = from;

	while (bytes) {
		ssize_t put = write(fd, at, bytes);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return 0;
		at += put;
		bytes -= put;
	}
	return 1;
}

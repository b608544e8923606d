/* Preloaded into gdiag: kills it at a call of ptrace, waitpid or pwrite that its
 * injecting thread makes. GDIAG_KILL_AT: which, from 1 on; odd numbers kill
 * before the call, even ones after it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <unistd.h>

static long kill_at(void)
{
	const char *at = getenv("GDIAG_KILL_AT");

	return at ? atol(at) : 0;
}

/* Counts, before and after each call. */
static void step(void)
{
	static _Thread_local int state; /* 1: an injecting thread, -1: another one */
	static _Thread_local long count;
	char name[16];

	if (!state) {
		prctl(PR_GET_NAME, name);
		state = strcmp(name, "gdiag-inject") ? -1 : 1;
	}
	if (state == 1 && ++count == kill_at())
		kill(getpid(), SIGKILL);
}

static void *next(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

long ptrace(enum __ptrace_request request, ...)
{
	static long (*real)(long, ...);
	long a, b, c, result;
	va_list args;

	va_start(args, request);
	a = va_arg(args, long);
	b = va_arg(args, long);
	c = va_arg(args, long);
	va_end(args);
	real = real ? real : next("ptrace");
	step();
	result = real(request, a, b, c);
	step();
	return result;
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at)
{
	static ssize_t (*real)(int, const void *, size_t, off64_t);
	ssize_t result;

	real = real ? real : next("pwrite64");
	step();
	result = real(fd, bytes, count, at);
	step();
	return result;
}

ssize_t write(int fd, const void *bytes, size_t count)
{
	static ssize_t (*real)(int, const void *, size_t);
	ssize_t result;

	real = real ? real : next("write");
	step();
	result = real(fd, bytes, count);
	step();
	return result;
}

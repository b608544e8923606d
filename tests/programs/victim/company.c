/* What else goes on in a busy process: every lock of libc and of the loader is
 * held at some time, and processes, threads and signals come and go. */
#define _GNU_SOURCE
#include "victim.h"

#include <dlfcn.h>
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define BLOCKS 64

static void *allocate(void *arg)
{
	struct {
		uint8_t *bytes, value;
		size_t size;
	} blocks[BLOCKS] = { 0 };

	(void)arg;
	signals_receive();
	while (!atomic_load(&ending)) {
		int i = below(BLOCKS);
		size_t size = 1 + below(below(50) ? 2000 : 300000);

		for (size_t at = 0; at < blocks[i].size; at += 97)
			CHECK("memory keeps what is in it", blocks[i].bytes[at] == blocks[i].value,
			      "%d instead of %d", blocks[i].bytes[at], blocks[i].value);
		if (blocks[i].bytes && below(2)) {
			free(blocks[i].bytes);
			blocks[i].bytes = NULL;
		}
		blocks[i].bytes = realloc(blocks[i].bytes, size);
		if (!blocks[i].bytes)
			die("no memory");
		blocks[i].size = size;
		blocks[i].value = below(256);
		memset(blocks[i].bytes, blocks[i].value, size);
	}
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i].bytes);
	signals_leave();
	return NULL;
}

static void *load(void *arg)
{
	/* Some are not there on every machine. */
	static const char *const others[] = {
		"libz.so.1",	     "libelf.so.1",	     "libresolv.so.2",
		"libnss_files.so.2", "libBrokenLocale.so.1", "libno.so"
	};

	(void)arg;
	signals_receive();
	while (!atomic_load(&ending)) {
		void *plugin = dlopen(opt.plugin, RTLD_NOW);
		void *other = dlopen(others[below(6)], RTLD_LAZY);

		if (CHECK("libraries can be loaded", !!plugin, "%s", "not the plugin")) {
			int *value = dlsym(plugin, "plugin_value");

			CHECK("constructors run", value && *value == 42, "%s", "not once");
			dlclose(plugin);
		}
		if (other)
			dlclose(other);
	}
	signals_leave();
	return NULL;
}

/* Returns the status of an undisturbed child. Only calls that are safe after a fork of threads. */
static int child_looks(void)
{
	if (work(1) != work(1))
		return 3;
	return handled ? 4 : 7;
}

static void reap(pid_t child, int expected)
{
	int status = -1;
	pid_t reaped;

	do
		reaped = waitpid(child, &status, 0);
	while (reaped < 0 && errno == EINTR);
	CHECK("children end as they should",
	      reaped == child && WIFEXITED(status) && WEXITSTATUS(status) == expected,
	      "waitpid gave %d, status %#x", reaped, status);
}

static void *fork_on(void *arg)
{
	char *argv[] = { "true", NULL };
	pid_t child;

	(void)arg;
	while (!atomic_load(&ending)) {
		switch (below(4)) {
		case 0:
			child = vfork();
			if (!child)
				_exit(7);
			reap(child, 7);
			break;
		case 1:
			if (!posix_spawn(&child, "/bin/true", NULL, NULL, argv, environ))
				reap(child, 0);
			break;
		default:
			child = fork();
			if (!child)
				_exit(child_looks());
			reap(child, 7);
		}
	}
	return NULL;
}

static void *end_at_once(void *arg)
{
	free(malloc(100));
	return arg;
}

static void *create(void *arg)
{
	(void)arg;
	while (!atomic_load(&ending)) {
		pthread_t ids[8];
		int n = 1 + below(8);

		for (int i = 0; i < n; i++)
			if (pthread_create(&ids[i], NULL, end_at_once, &n))
				die("cannot create a thread");
		for (int i = 0; i < n; i++) {
			void *result = NULL;

			if (i == 7) {
				pthread_detach(ids[i]);
				continue;
			}
			pthread_join(ids[i], &result);
			CHECK("threads give their result", result == &n, "%p", result);
		}
		sleep_ns(below(4 * MS));
	}
	return NULL;
}

void company_start(void)
{
	for (int i = 0; i < opt.malloc; i++)
		start("malloc", allocate, NULL);
	for (int i = 0; i < opt.dlopen; i++)
		start("dlopen", load, NULL);
	for (int i = 0; i < opt.fork; i++)
		start("fork", fork_on, NULL);
	for (int i = 0; i < opt.churn; i++)
		start("churn", create, NULL);
	signals_start();
}

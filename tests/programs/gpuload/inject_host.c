/* Faults of the host that need neither a disk nor the device. */
#define _GNU_SOURCE
#include "inject.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void sleep_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	(void)truth;
	sleep_ns(ns);
}

void compute_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	(void)truth;
	host_work(ns);
}

/* lock */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static sem_t holder_go, holder_holds, holder_wanted;
static volatile uint64_t holder_ns;
static pthread_t holder_thread;

static void *holder(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "lock-holder");
	for (;;) {
		while (sem_wait(&holder_go))
			;
		pthread_mutex_lock(&mutex);
		sem_post(&holder_holds);
		/* Until the other thread has a CPU again, or it would not have to wait so long. */
		while (sem_wait(&holder_wanted))
			;
		host_work(holder_ns);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

void lock_ready(struct run *run)
{
	(void)run;
	sem_init(&holder_go, 0, 0);
	sem_init(&holder_holds, 0, 0);
	sem_init(&holder_wanted, 0, 0);
	if (pthread_create(&holder_thread, NULL, holder, NULL))
		die("cannot start a thread");
}

/* Keeps the holder from this thread's CPU, which it would take instead of the lock. */
static void send_holder_away(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		die("sched_getaffinity: %s", strerror(errno));
	if (CPU_COUNT(&set) < 2)
		return;
	CPU_CLR(sched_getcpu(), &set);
	pthread_setaffinity_np(holder_thread, sizeof(set), &set);
}

void lock_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t start;

	(void)run;
	holder_ns = ns;
	send_holder_away();
	sem_post(&holder_go);
	while (sem_wait(&holder_holds))
		;
	start = now_ns();
	sem_post(&holder_wanted);
	pthread_mutex_lock(&mutex);
	truth_add(truth, start, now_ns());
	pthread_mutex_unlock(&mutex);
}

/* A child that serves until we are gone. */
static void serve(const char *name, void (*loop)(int fd), int fd)
{
	pid_t parent = getpid();

	switch (fork()) {
	case -1:
		die("fork: %s", strerror(errno));
	case 0:
		prctl(PR_SET_NAME, name);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == parent)
			loop(fd);
		_exit(0);
	}
}

/* stop */

static int stopper_fd;

static void stopper(int fd)
{
	uint64_t ns;

	while (read(fd, &ns, sizeof(ns)) == sizeof(ns)) {
		kill(getppid(), SIGSTOP);
		sleep_ns(ns);
		kill(getppid(), SIGCONT);
	}
}

void stop_prepare(struct run *run)
{
	int fds[2];

	(void)run;
	if (pipe2(fds, O_CLOEXEC))
		die("pipe: %s", strerror(errno));
	serve("stopper", stopper, fds[0]);
	stopper_fd = fds[1];
}

void stop_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t start = now_ns(), last = start, t;

	(void)run;
	if (write(stopper_fd, &ns, sizeof(ns)) != sizeof(ns))
		die("the stopper is gone");
	/* The stop is where the clock jumps. */
	while ((t = now_ns()) - last < ns / 2 && t - start < 20 * ns)
		last = t;
	truth_add(truth, last, t);
}

/* network */

static int peer_fd;

static void peer(int fd)
{
	uint64_t ns;

	while (recv(fd, &ns, sizeof(ns), MSG_WAITALL) == sizeof(ns)) {
		sleep_ns(ns);
		if (send(fd, &ns, sizeof(ns), MSG_NOSIGNAL) != sizeof(ns))
			return;
	}
}

void network_prepare(struct run *run)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int accepted, one = 1;

	(void)run;
	peer_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(listener, (void *)&address, len) || listen(listener, 1) ||
	    getsockname(listener, (void *)&address, &len) ||
	    connect(peer_fd, (void *)&address, len) ||
	    (accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
		die("cannot connect to 127.0.0.1: %s", strerror(errno));
	setsockopt(peer_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	serve("slow-peer", peer, accepted);
	close(accepted);
	close(listener);
}

void network_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	(void)truth;
	if (send(peer_fd, &ns, sizeof(ns), MSG_NOSIGNAL) != sizeof(ns) ||
	    recv(peer_fd, &ns, sizeof(ns), MSG_WAITALL) != sizeof(ns))
		die("the peer is gone");
}

/* subprocess */

void subprocess_go(struct run *run, uint64_t ns, struct truth *truth)
{
	char *argv[] = { "/bin/true", NULL };
	uint64_t end = now_ns() + ns;
	pid_t pid;

	(void)run;
	(void)truth;
	do {
		if (posix_spawn(&pid, argv[0], NULL, NULL, argv, environ))
			die("cannot run %s", argv[0]);
		waitpid(pid, NULL, 0);
	} while (now_ns() < end);
}

/* quota: a group of its own, which the thread enters for the time of the injection. */

#define QUOTA_US 2000
#define PERIOD_US 10000

static char group[256], home[512];
static const char *members; /* the file that takes a thread or process in */

static int write_file(const char *directory, const char *file, const char *text)
{
	char path[1024];
	int fd, ok;

	snprintf(path, sizeof(path), "%s/%s", directory, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	close(fd);
	return ok;
}

static void quota_cleanup(void)
{
	write_file(home, members, "0");
	rmdir(group);
}

/* Our group in a hierarchy: that of the v1 controller `cpu`, or the v2 one for "". */
static int own_group(const char *controller, char *out, size_t size)
{
	char line[512];
	FILE *f = fopen("/proc/self/cgroup", "r");
	int found = 0;

	while (f && !found && fgets(line, sizeof(line), f)) {
		char *names = strchr(line, ':');
		char *path = names ? strchr(names + 1, ':') : NULL;

		if (!path)
			continue;
		*path++ = 0;
		path[strcspn(path, "\n")] = 0;
		for (char *name = strsep(&names, ":"); (name = strsep(&names, ","));)
			if (!strcmp(name, controller))
				found = 1;
		if (found)
			snprintf(out, size, "%s", path);
	}
	if (f)
		fclose(f);
	return found;
}

void quota_prepare(struct run *run)
{
	const char *v1 = "/sys/fs/cgroup/cpu", *v2 = "/sys/fs/cgroup";
	char path[256], text[64];
	int ok;

	(void)run;
	if (access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0) {
		snprintf(group, sizeof(group), "%s/gpuload.%d", v2, getpid());
		members = "cgroup.procs";
		ok = own_group("", path, sizeof(path));
		snprintf(home, sizeof(home), "%s%s", v2, path);
		write_file(v2, "cgroup.subtree_control", "+cpu");
		snprintf(text, sizeof(text), "%d %d", QUOTA_US, PERIOD_US);
		ok = ok && !mkdir(group, 0755) && write_file(group, "cpu.max", text);
	} else {
		snprintf(group, sizeof(group), "%s/gpuload.%d", v1, getpid());
		members = "tasks";
		ok = own_group("cpu", path, sizeof(path));
		snprintf(home, sizeof(home), "%s%s", v1, path);
		ok = ok && !mkdir(group, 0755);
		snprintf(text, sizeof(text), "%d", PERIOD_US);
		ok = ok && write_file(group, "cpu.cfs_period_us", text);
		snprintf(text, sizeof(text), "%d", QUOTA_US);
		ok = ok && write_file(group, "cpu.cfs_quota_us", text);
	}
	if (!ok)
		die("cannot make the control group %s with a CPU quota: %s", group,
		    strerror(errno));
	atexit(quota_cleanup);
}

void quota_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	/* 0 is the writer. */
	if (!write_file(group, members, "0"))
		die("cannot enter %s: %s", group, strerror(errno));
	note_jumps(truth, ns);
	if (!write_file(home, members, "0"))
		die("cannot return to %s: %s", home, strerror(errno));
}

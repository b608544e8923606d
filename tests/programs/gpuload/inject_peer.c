/* Waits for a peer on this machine: what it did meanwhile is the truth. */
#define _GNU_SOURCE
#include "inject.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "child.h"
#include "outside.h"
#include "peer.h"

/* Children, by a unix socket and by TCP. */

static int by_unix = -1, by_tcp = -1;

void peer_unix_prepare(struct run *run)
{
	(void)run;
	if (by_unix < 0)
		by_unix = unix_child("unix-helper", peer_loop);
}

void peer_disk_prepare(struct run *run)
{
	peer_unix_prepare(run);
	peer_make_ready(by_unix, PEER_READS);
}

void peer_tcp_prepare(struct run *run)
{
	int listener, accepted;
	uint16_t port;

	(void)run;
	listener = listen_tcp(htonl(INADDR_LOOPBACK), &port);
	by_tcp = connect_tcp(htonl(INADDR_LOOPBACK), port);
	accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (accepted < 0)
		die("accept: %s", strerror(errno));
	serve("tcp-helper", peer_loop, accepted, NULL);
	close(accepted);
	close(listener);
}

void peer_compute_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	peer_ask(by_unix, PEER_COMPUTES, ns, truth);
}

void peer_disk_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	peer_ask(by_unix, PEER_READS, ns, truth);
}

void peer_sleep_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	peer_ask(by_tcp, PEER_SLEEPS, ns, truth);
}

/* Not in recv, but in epoll, as servers wait. */
void peer_epoll_go(struct run *run, uint64_t ns, struct truth *truth)
{
	static int epoll_fd = -1;
	struct epoll_event event = { .events = EPOLLIN };
	uint64_t asked;

	(void)run;
	if (epoll_fd < 0) {
		epoll_fd = epoll_create1(EPOLL_CLOEXEC);
		if (epoll_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, by_unix, &event))
			die("epoll: %s", strerror(errno));
	}
	asked = peer_send(by_unix, PEER_COMPUTES, ns);
	while (epoll_wait(epoll_fd, &event, 1, -1) < 0 && errno == EINTR)
		;
	peer_answer(by_unix, asked, truth);
}

/* By semaphores in memory that two processes share. */

struct shared {
	sem_t asked, done;
	struct order {
		uint64_t ns;
		int cpu; /* of the one who waits, to keep off */
	} order;
	uint64_t start, end;
};

static struct shared *shared;

static void by_futex(int nothing, void *arg)
{
	struct shared *shared = arg;

	(void)nothing;
	for (;;) {
		while (sem_wait(&shared->asked))
			;
		keep_off(shared->order.cpu);
		shared->start = now_ns();
		host_work(shared->order.ns);
		shared->end = now_ns();
		sem_post(&shared->done);
	}
}

void peer_futex_prepare(struct run *run)
{
	(void)run;
	shared = share(sizeof(*shared));
	sem_init(&shared->asked, 1, 0);
	sem_init(&shared->done, 1, 0);
	serve("futex-helper", by_futex, -1, shared);
}

void peer_futex_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	shared->order = (struct order){ ns, sched_getcpu() };
	sem_post(&shared->asked);
	while (sem_wait(&shared->done))
		;
	truth_add(truth, shared->start, shared->end);
}

/* Processes outside of the job. */

static int outside_unix = -1, outside_tcp = -1;

void outside_unix_prepare(struct run *run)
{
	(void)run;
	if (outside_unix < 0)
		outside_unix = connect_unix(need_outside("outside-sleep")->unix_peer);
}

void outside_tcp_prepare(struct run *run)
{
	(void)run;
	if (outside_tcp < 0)
		outside_tcp = connect_tcp(htonl(INADDR_LOOPBACK),
					  need_outside("outside-disk")->tcp_peer);
}

void outside_disk_prepare(struct run *run)
{
	outside_tcp_prepare(run);
	peer_make_ready(outside_tcp, PEER_READS);
}

void outside_compute_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	peer_ask(outside_tcp, PEER_COMPUTES, ns, truth);
}

void outside_sleep_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	peer_ask(outside_unix, PEER_SLEEPS, ns, truth);
}

void outside_disk_go(struct run *run, uint64_t ns, struct truth *truth)
{
	(void)run;
	peer_ask(outside_tcp, PEER_READS, ns, truth);
}

/*
 * A chain: this thread waits for a queue that a thread fills from a pipe, into which a
 * process writes what a thread of its own has computed.
 */

struct baton {
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	struct order order; /* of 0 ns: none */
	int done;
	struct span span; /* when it was carried out */
};

static struct baton inner = { .mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };
static struct baton queue = { .mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };
static int to_worker, from_worker;

static void await(struct baton *baton)
{
	pthread_mutex_lock(&baton->mutex);
	while (!baton->done)
		pthread_cond_wait(&baton->cond, &baton->mutex);
	baton->done = 0;
	pthread_mutex_unlock(&baton->mutex);
}

static void hand_over(struct baton *baton)
{
	pthread_mutex_lock(&baton->mutex);
	baton->done = 1;
	pthread_cond_broadcast(&baton->cond);
	pthread_mutex_unlock(&baton->mutex);
}

static void *computing_thread(void *arg)
{
	struct order order;
	uint64_t start;

	(void)arg;
	prctl(PR_SET_NAME, "computer");
	for (;;) {
		pthread_mutex_lock(&inner.mutex);
		while (!inner.order.ns)
			pthread_cond_wait(&inner.cond, &inner.mutex);
		order = inner.order;
		inner.order.ns = 0;
		pthread_mutex_unlock(&inner.mutex);
		keep_off(order.cpu);
		start = now_ns();
		host_work(order.ns);
		inner.span = (struct span){ NULL, start, now_ns(), order.ns };
		hand_over(&inner);
	}
	return NULL;
}

/* The worker process's first thread. */
static void worker(int fd, void *arg)
{
	int out = *(int *)arg;
	struct order order;
	pthread_t thread;

	if (pthread_create(&thread, NULL, computing_thread, NULL))
		die("cannot start a thread");
	while (read_all(fd, &order, sizeof(order))) {
		keep_off(order.cpu);
		pthread_mutex_lock(&inner.mutex);
		inner.order = order;
		pthread_cond_broadcast(&inner.cond);
		pthread_mutex_unlock(&inner.mutex);
		await(&inner);
		if (!write_all(out, &inner.span, sizeof(inner.span)))
			return;
	}
}

static void *queue_thread(void *arg)
{
	struct span span;

	(void)arg;
	prctl(PR_SET_NAME, "queue");
	while (read_all(from_worker, &span, sizeof(span))) {
		queue.span = span;
		hand_over(&queue);
	}
	return NULL;
}

void chain_prepare(struct run *run)
{
	int in[2], out[2];

	(void)run;
	if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
		die("pipe: %s", strerror(errno));
	serve("worker", worker, in[0], &out[1]);
	close(in[0]);
	close(out[1]);
	to_worker = in[1];
	from_worker = out[0];
}

void chain_ready(struct run *run)
{
	pthread_t thread;

	(void)run;
	if (pthread_create(&thread, NULL, queue_thread, NULL))
		die("cannot start a thread");
}

void chain_go(struct run *run, uint64_t ns, struct truth *truth)
{
	struct order order = { ns, sched_getcpu() };

	(void)run;
	if (!write_all(to_worker, &order, sizeof(order)))
		die("the worker is gone");
	await(&queue);
	truth_add(truth, queue.span.start, queue.span.end);
}

/* Waits for the network, and interrupts from it. */
#define _GNU_SOURCE
#include "inject.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "child.h"
#include "network.h"
#include "outside.h"
#include "peer.h"

static int far_peer = -1;

void network_prepare(struct run *run)
{
	struct outside *outside = need_outside("network");

	(void)run;
	if (far_peer >= 0)
		return;
	outside->network_wanted = 1;
	futex_wake(&outside->network_wanted);
	for (int i = 0; i < 100 && !outside->network_ready; i++)
		sleep_ns(50 * MS);
	if (!outside->network_ready)
		die("the network outside does not come up");
	far_peer = connect_tcp(outside->network_address, outside->network_port);
}

void network_go(struct run *run, uint64_t ns, struct truth *truth)
{
	struct net_ask ask = { -1, ns };

	(void)run;
	(void)truth;
	if (!write_all(far_peer, &ask, sizeof(ask)) || !read_all(far_peer, &ask, sizeof(ask)))
		die("the peer is gone");
}

const char *irq_lacks(void)
{
	return sysconf(_SC_NPROCESSORS_ONLN) < 2 ? "needs two CPUs" : network_lacks();
}

/* This thread's CPU has to take packets, each for many sockets. */
void irq_go(struct run *run, uint64_t ns, struct truth *truth)
{
	struct net_ask ask = { sched_getcpu(), ns };
	cpu_set_t mask;

	(void)run;
	if (sched_getaffinity(0, sizeof(mask), &mask))
		die("sched_getaffinity: %s", strerror(errno));
	pin_to(ask.cpu);
	if (!write_all(far_peer, &ask, sizeof(ask)))
		die("the peer is gone");
	note_jumps(truth, ns);
	if (!read_all(far_peer, &ask, sizeof(ask)))
		die("the peer is gone");
	sched_setaffinity(0, sizeof(mask), &mask);
}

/* A server that nobody asks. */

static int epoll_fd = -1, asked;

void demand_prepare(struct run *run)
{
	struct outside *outside = need_outside("idle");
	struct epoll_event event = { .events = EPOLLIN };
	uint16_t port;
	int listener;

	(void)run;
	if (epoll_fd >= 0)
		return;
	listener = listen_tcp(htonl(INADDR_LOOPBACK), &port);
	outside->server_port = port;
	futex_wake(&outside->server_port);
	asked = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (asked < 0 || epoll_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, asked, &event))
		die("cannot serve: %s", strerror(errno));
	/* The listener stays open, as that of a server does. */
}

static uint64_t await_request(void)
{
	struct epoll_event event;

	while (epoll_wait(epoll_fd, &event, 1, -1) < 0 && errno == EINTR)
		;
	return now_ns();
}

static void forget_requests(void)
{
	char requests[4096];

	while (recv(asked, requests, sizeof(requests), MSG_DONTWAIT) > 0)
		;
}

/* Until the next request; those that came before are of no interest. */
void demand_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t start;

	(void)run;
	(void)ns;
	forget_requests();
	start = now_ns();
	truth_add(truth, start, await_request());
}

/* The same of a thread that takes requests in, while this one waits for its queue. */

static sem_t wanted, queued;

static void *receiver(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "receiver");
	for (;;) {
		while (sem_wait(&wanted))
			;
		forget_requests();
		await_request();
		sem_post(&queued);
	}
	return NULL;
}

void demand_queue_ready(struct run *run)
{
	pthread_t thread;

	(void)run;
	sem_init(&wanted, 0, 0);
	sem_init(&queued, 0, 0);
	if (pthread_create(&thread, NULL, receiver, NULL))
		die("cannot start a thread");
}

void demand_queue_go(struct run *run, uint64_t ns, struct truth *truth)
{
	uint64_t start;

	(void)run;
	(void)ns;
	sem_post(&wanted);
	start = now_ns();
	while (sem_wait(&queued))
		;
	truth_add(truth, start, now_ns());
}

#define _GNU_SOURCE
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "child.h"
#include "inject.h"
#include "outside.h"

struct ask {
	uint32_t what;
	int32_t cpu; /* of the one who asks: taken, it would not be waiting for its peer but for it */
	uint64_t ns; /* 0: only makes ready */
};

static const char *const causes[] = { "host.compute", "host.sleep", "host.disk-read" };

void peer_loop(int fd, void *arg)
{
	struct run run = { .opt.scratch = "/var/tmp" };
	static struct truth did;
	struct ask ask;

	(void)arg;
	while (read_all(fd, &ask, sizeof(ask)) && ask.what <= PEER_READS) {
		go_fn *go = (go_fn *[]){ compute_go, sleep_go, disk_go }[ask.what];
		uint64_t start;
		uint32_t count;

		did.cause = causes[ask.what];
		did.whole = 1;
		did.count = 0;
		if (ask.what == PEER_READS)
			disk_prepare(&run);
		keep_off(ask.cpu);
		if (ask.ns) {
			start = now_ns();
			go(&run, ask.ns, &did);
			if (did.whole)
				truth_add(&did, start, now_ns());
		}
		count = did.count;
		/* In one go: the other side is woken once. */
		static struct {
			uint32_t count, what;
			struct span spans[MAX_SPANS];
		} answer;
		answer.count = count;
		answer.what = ask.what;
		memcpy(answer.spans, did.spans, count * sizeof(*did.spans));
		if (!write_all(fd, &answer, 8 + count * sizeof(*did.spans)))
			return;
	}
}

static void forget_before(struct truth *truth, uint64_t t)
{
	int kept = 0;

	for (int i = 0; i < truth->count; i++) {
		struct span span = truth->spans[i];

		if (span.end <= t)
			continue;
		if (span.start < t) {
			span.ns -= span.ns < t - span.start ? span.ns : t - span.start;
			span.start = t;
		}
		truth->spans[kept++] = span;
	}
	truth->count = kept;
}

void peer_answer(int fd, uint64_t asked, struct truth *truth)
{
	uint32_t head[2];

	if (!read_all(fd, head, sizeof(head)) || head[0] > MAX_SPANS ||
	    !read_all(fd, truth->spans, head[0] * sizeof(*truth->spans)))
		die("the peer is gone");
	truth->whole = 0;
	truth->count = head[0];
	/* The pointers are the peer's. */
	for (int i = 0; i < truth->count; i++)
		truth->spans[i].cause = causes[head[1]];
	/* While this thread was kept from waiting, it did not wait for its peer. */
	forget_before(truth, asked);
}

uint64_t peer_send(int fd, enum peer_does what, uint64_t ns)
{
	struct ask ask = { what, sched_getcpu(), ns };

	if (!write_all(fd, &ask, sizeof(ask)))
		die("the peer is gone");
	return now_ns();
}

void peer_ask(int fd, enum peer_does what, uint64_t ns, struct truth *truth)
{
	peer_answer(fd, peer_send(fd, what, ns), truth);
}

void peer_make_ready(int fd, enum peer_does what)
{
	struct truth *truth = malloc(sizeof(*truth));

	peer_ask(fd, what, 0, truth);
	free(truth);
}

static int unix_socket(const char *abstract, struct sockaddr_un *address, socklen_t *len)
{
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	strcpy(address->sun_path + 1, abstract);
	*len = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(abstract);
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

int connect_unix(const char *abstract)
{
	struct sockaddr_un address;
	socklen_t len;
	int fd = unix_socket(abstract, &address, &len);

	if (connect(fd, (void *)&address, len))
		die("cannot connect to @%s: %s", abstract, strerror(errno));
	return fd;
}

static int no_delay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

int connect_tcp(uint32_t to, uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	address.sin_addr.s_addr = to;
	if (connect(fd, (void *)&address, sizeof(address)))
		die("cannot connect to %s:%d: %s", inet_ntoa(address.sin_addr), port,
		    strerror(errno));
	return no_delay(fd);
}

int listen_tcp(uint32_t at, uint16_t *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t len = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	address.sin_addr.s_addr = at;
	if (bind(fd, (void *)&address, len) || listen(fd, 8) ||
	    getsockname(fd, (void *)&address, &len))
		die("cannot listen on %s: %s", inet_ntoa(address.sin_addr), strerror(errno));
	*port = ntohs(address.sin_port);
	return fd;
}

/* One connection after the other. */
static void accept_loop(int listener, void *arg)
{
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			return;
		peer_loop(no_delay(fd), arg);
		close(fd);
	}
}

void start_peers(struct outside *outside)
{
	struct sockaddr_un address;
	socklen_t len;
	int fd;

	snprintf(outside->unix_peer, sizeof(outside->unix_peer), "gpuload.%d", getpid());
	fd = unix_socket(outside->unix_peer, &address, &len);
	if (bind(fd, (void *)&address, len) || listen(fd, 8))
		die("cannot listen on @%s: %s", outside->unix_peer, strerror(errno));
	serve("unix-peer", accept_loop, fd, NULL);
	close(fd);
	fd = listen_tcp(htonl(INADDR_LOOPBACK), &outside->tcp_peer);
	serve("tcp-peer", accept_loop, fd, NULL);
	close(fd);
}

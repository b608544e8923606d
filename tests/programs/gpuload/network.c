/* The outside of the network: a client that asks us, and a peer behind a pair of virtual devices. */
#define _GNU_SOURCE
#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "load.h"
#include "outside.h"
#include "peer.h"

#define REQUEST_EVERY (8 * MS)

/* Sends a request every so often, whether the server is ready for it or not. */
static void client(int nothing, void *arg)
{
	struct outside *outside = arg;
	char request[64] = "generate";
	uint32_t port;
	int fd;

	(void)nothing;
	for (;;) {
		while (!(port = outside->server_port))
			futex_wait(&outside->server_port, 0);
		fd = connect_tcp(htonl(INADDR_LOOPBACK), port);
		outside->server_port = 0;
		do
			sleep_ns(REQUEST_EVERY);
		while (send(fd, request, sizeof(request), MSG_DONTWAIT) > 0 || errno == EAGAIN);
		close(fd);
	}
}

void start_client(struct outside *outside)
{
	serve("client", client, -1, outside);
}

/* Benchmark addresses; a /30 for each run. */
static uint32_t own_address(int host)
{
	return htonl((198u << 24) + (18u << 16) + ((getpid() & 0x3fff) << 2) + host);
}

static int run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int run(const char *format, ...)
{
	char command[256];
	va_list args;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	return system(command);
}

static const char *text_of(uint32_t address)
{
	static char text[2][INET_ADDRSTRLEN];
	static int turn;

	turn = !turn;
	return inet_ntop(AF_INET, &address, text[turn], sizeof(text[turn]));
}

/* In a network of its own, to which its parent connects it. */
struct far {
	int to_parent, from_parent;
	uint32_t address, broadcast;
	uint16_t port;	  /* of the receivers */
	const char *near; /* the parent's device */
};

/* Has packets from the far end processed by this CPU, or by the one that sent them. */
static void steer(const char *device, int64_t cpu)
{
	char path[128], mask[256];
	int file, len;

	snprintf(path, sizeof(path), "/sys/class/net/%s/queues/rx-0/rps_cpus", device);
	len = snprintf(mask, sizeof(mask), "%x", cpu < 0 ? 0 : 1u << cpu % 32);
	for (; cpu >= 32; cpu -= 32)
		len += snprintf(mask + len, sizeof(mask) - len, ",00000000");
	file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0 || write(file, mask, len) < 0)
		die("%s: %s", path, strerror(errno));
	close(file);
}

static void flood(const struct net_ask *ask, const struct far *far)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(far->port) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), one = 1;
	struct sched_param first = { 1 }, usual = { 0 };
	uint64_t end, next;

	to.sin_addr.s_addr = far->broadcast;
	setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &one, sizeof(one));
	keep_off(ask->cpu);
	steer(far->near, ask->cpu);
	/* Packets do not come later because this machine has other things to do. */
	sched_setscheduler(0, SCHED_FIFO, &first);
	end = now_ns() + ask->ns;
	for (next = now_ns(); next < end; next += FLOOD_EVERY) {
		while (now_ns() < next)
			;
		sendto(fd, "", 1, 0, (void *)&to, sizeof(to));
	}
	sched_setscheduler(0, SCHED_OTHER, &usual);
	steer(far->near, -1);
	close(fd);
}

static void far_peer(int nothing, void *arg)
{
	struct far *far = arg;
	struct net_ask ask;
	uint16_t port = 0;
	int listener;
	char go;

	(void)nothing;
	if (unshare(CLONE_NEWNET) || !write_all(far->to_parent, "", 1) ||
	    !read_all(far->from_parent, &go, 1) ||
	    run("ip addr add %s/30 broadcast + dev far", text_of(far->address)) ||
	    run("ip link set far up"))
		die("cannot make a network: %s", strerror(errno));
	listener = listen_tcp(INADDR_ANY, &port);
	write_all(far->to_parent, &port, sizeof(port));
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		while (read_all(fd, &ask, sizeof(ask))) {
			if (ask.cpu < 0)
				sleep_ns(ask.ns);
			else
				flood(&ask, far);
			if (!write_all(fd, &ask, sizeof(ask)))
				break;
		}
		close(fd);
	}
}

/* Each takes a copy of what is broadcast to their port, and nobody reads it. */
static uint16_t open_receivers(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rlimit many = { FLOOD_RECEIVERS + 100, FLOOD_RECEIVERS + 100 };
	socklen_t len = sizeof(address);
	int one = 1;

	setrlimit(RLIMIT_NOFILE, &many);
	for (int i = 0; i < FLOOD_RECEIVERS; i++) {
		int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &one, sizeof(one));
		/* The first one gets a port, which the others share. */
		if (bind(fd, (void *)&address, len) || getsockname(fd, (void *)&address, &len))
			die("bind: %s", strerror(errno));
	}
	return ntohs(address.sin_port);
}

static void set_up(int nothing, void *arg)
{
	struct outside *outside = arg;
	int to_far[2], from_far[2];
	struct far far;
	uint16_t port;
	char ready;
	pid_t pid;

	(void)nothing;
	while (!outside->network_wanted)
		futex_wait(&outside->network_wanted, 0);
	snprintf(outside->network_device, sizeof(outside->network_device), "gpuload%d", getpid());
	if (pipe2(to_far, O_CLOEXEC) || pipe2(from_far, O_CLOEXEC))
		die("pipe: %s", strerror(errno));
	far = (struct far){ from_far[1], to_far[0], own_address(2), own_address(3),
			    open_receivers(), outside->network_device };
	pid = serve("far-peer", far_peer, -1, &far);
	if (!read_all(from_far[0], &ready, 1) ||
	    run("ip link add %s type veth peer name far netns %d", outside->network_device, pid) ||
	    run("ip addr add %s/30 broadcast + dev %s", text_of(own_address(1)),
		outside->network_device) ||
	    run("ip link set %s up", outside->network_device) || !write_all(to_far[1], "", 1) ||
	    !read_all(from_far[0], &port, sizeof(port)))
		die("cannot connect a network: %s", strerror(errno));
	outside->network_address = far.address;
	outside->network_port = port;
	outside->network_ready = 1;
	futex_wake(&outside->network_ready);
	/* The devices go with the peer, and the peer with us. */
	pause();
}

void start_network(struct outside *outside)
{
	serve("network", set_up, -1, outside);
}

const char *network_lacks(void)
{
	int status;
	pid_t pid;

	if (geteuid())
		return "needs root";
	if (system("command -v ip >/dev/null"))
		return "needs ip (iproute2)";
	pid = fork();
	if (pid == 0)
		_exit(unshare(CLONE_NEWNET) != 0);
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || status)
		return "no network namespaces";
	return NULL;
}

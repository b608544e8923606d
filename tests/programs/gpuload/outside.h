/* What `gpuload outside -- COMMAND` runs beside COMMAND: processes that belong to nobody's job. */
#ifndef GPULOAD_OUTSIDE_H
#define GPULOAD_OUTSIDE_H

#include <stdatomic.h>
#include <stdint.h>

/* Busy processes or threads, and when they are. */
struct gang {
	_Atomic uint32_t turn;	      /* a futex */
	_Atomic int cpu;	      /* -1: any */
	_Atomic uint64_t from, until; /* CLOCK_MONOTONIC */
};

/* Shared with the gpuload below. */
struct outside {
	struct gang gang;
	/* Peers that do what they are asked. */
	char unix_peer[64]; /* an abstract name */
	uint16_t tcp_peer;
	/* Sends requests to this port of ours from when it is set. A futex. */
	_Atomic uint32_t server_port;
	/* A peer in a network of its own. Both are futexes. */
	_Atomic uint32_t network_wanted, network_ready;
	uint32_t network_address; /* as in struct in_addr */
	uint16_t network_port;
	char network_device[16]; /* our end */
};

/* NULL when we are not below it. */
struct outside *outside(void);
/* Ends the program then. */
struct outside *need_outside(const char *injection);
int outside_main(int argc, char **argv);

void futex_wait(_Atomic uint32_t *word, uint32_t value);
void futex_wake(_Atomic uint32_t *word);

/* hogs.c */
void fork_hogs(struct gang *gang, int count);
/* peer.c */
void start_peers(struct outside *outside);
/* network.c */
void start_client(struct outside *outside);
void start_network(struct outside *outside);

#endif

/* A peer that does what it is asked, and says when it did. */
#ifndef GPULOAD_PEER_H
#define GPULOAD_PEER_H

#include "load.h"

enum peer_does {
	PEER_COMPUTES,
	PEER_SLEEPS,
	PEER_READS
};

/* Serves a connection until it is closed. */
void peer_loop(int fd, void *arg);
/* Asks it; the truth is what it did meanwhile. */
void peer_ask(int fd, enum peer_does what, uint64_t ns, struct truth *truth);
/* Has it make ready for that, which can take long. */
void peer_make_ready(int fd, enum peer_does what);
/* The two halves of that. The first returns since when this thread has nothing to do but wait. */
uint64_t peer_send(int fd, enum peer_does what, uint64_t ns);
void peer_answer(int fd, uint64_t asked, struct truth *truth);

int connect_unix(const char *abstract);
int connect_tcp(uint32_t address, uint16_t port);
/* A socket that listens on an address of this machine, and the port that it got. */
int listen_tcp(uint32_t address, uint16_t *port);

#endif

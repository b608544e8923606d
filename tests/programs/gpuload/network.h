/* What the far end of the network is asked. */
#ifndef GPULOAD_NETWORK_H
#define GPULOAD_NETWORK_H

#include <stdint.h>

#include "load.h"

struct net_ask {
	int64_t cpu; /* -1: to wait before it answers, or else to flood this CPU */
	uint64_t ns;
};

/* A broadcast costs the time of so many receivers, most of the time until the next one. */
#define FLOOD_RECEIVERS 1000
#define FLOOD_EVERY (400 * US)

#endif

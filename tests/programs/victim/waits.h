/* One way to wait. */
#ifndef WAITS_H
#define WAITS_H

#include "victim.h"

#include <semaphore.h>

struct waiter {
	struct wait_kind *kind;
	pthread_t thread;
	atomic_int due;		       /* what it waits for has happened, or is about to */
	atomic_int last;	       /* and then it need not wait any more */
	atomic_ulong rounds, served;   /* waits that ended, and for which the next may begin */
	uint64_t asked;		       /* ns, of waits that end by their timeout */
	unsigned long handled, paused; /* before the wait */
	/* What it waits with: */
	int fds[2], id, epoll;
	uint32_t futex;
	pid_t child;
	sem_t sem;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	struct {
		uint32_t *submit_tail, *done_head, *done_tail;
		struct io_uring_sqe *entry;
		int submitted;
	} ring;
};

enum { ENDED, INTERRUPTED };

struct wait_kind {
	struct check check;
	/* Makes what it takes; returns whether that was possible. */
	int (*make)(struct waiter *w);
	/* Waits once. ENDED with errno untouched, or INTERRUPTED by a signal of ours. */
	int (*wait)(struct waiter *w);
	/* Ends the wait; NULL: its timeout does. */
	void (*wake)(struct waiter *w);
	/* Called by the waker before each wait. */
	void (*prepare)(struct waiter *w);
	int again; /* waking may come too early, and may be repeated */
	int few;   /* costs too much for a thousand threads */
};

extern struct wait_kind wait_kinds[];
extern const int wait_kind_count;

/* What errno is before a wait, and after it. */
#define UNTOUCHED 4242

/* Counts an EINTR, which a handler of ours must have caused. */
void interrupted(struct waiter *w);

#endif

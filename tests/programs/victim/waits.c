/* Threads that wait, each in a way of its own, and check that their wait ends
 * as it must: not early, for no reason but its own, and with nothing changed.
 *
 * Some waits end by their timeout. The others end when the waker lets them: it
 * sets `due`, does what the wait is for, and looks whether it was noticed. */
#define _GNU_SOURCE
#include "waits.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static struct waiter *waiters;
static int waiter_count;

void interrupted(struct waiter *w)
{
	if (!opt.may_be_stopped)
		check(&w->kind->check, handled != w->handled, "EINTR without a signal");
}

static void ended_by_waker(struct waiter *w)
{
	check(&w->kind->check, atomic_load(&w->due), "ended before it was woken");
}

/* Of a wait that was not interrupted. */
static void ended_by_time(struct waiter *w, uint64_t began)
{
	uint64_t took = now_ns() - began;

	check(&w->kind->check, took >= w->asked, "ended %lu us early", (w->asked - took) / 1000);
	if (took > w->asked)
		check_late(&w->kind->check, took - w->asked);
}

/* What a thread may rely on, whatever it waited for. */
struct self {
	sigset_t mask;
	stack_t stack;
	char name[16];
};

static void look_at_self(struct self *self)
{
	memset(self, 0, sizeof(*self));
	pthread_sigmask(SIG_SETMASK, NULL, &self->mask);
	sigaltstack(NULL, &self->stack);
	prctl(PR_GET_NAME, self->name);
}

static void *wait_thread(void *arg)
{
	struct waiter *w = arg;
	struct check *c = &w->kind->check;
	struct self before, after;
	stack_t stack = { .ss_size = 16384 };
	size_t used = 0;
	int last = 0;

	stack.ss_sp = malloc(stack.ss_size);
	memset(stack.ss_sp, 0x5a, stack.ss_size);
	sigaltstack(&stack, NULL);
	signals_receive();
	if (opt.no_device && w == waiters)
		prctl(PR_SET_NAME, "cuda-EvtHandlr");
	while (!last) {
		uint64_t began;
		int result;

		w->asked = MS * (20 + below(waiter_count > 200 ? 980 : 480));
		look_at_self(&before);
		w->handled = handled;
		errno = UNTOUCHED;
		began = now_ns();
		result = w->kind->wait(w);
		if (result == ENDED) {
			if (w->kind->wake)
				ended_by_waker(w);
			else
				ended_by_time(w, began);
			check(c, errno == UNTOUCHED, "errno became %d", errno);
		}
		look_at_self(&after);
		check(c, !memcmp(&before, &after, sizeof(before)),
		      "mask, alternate stack or name changed");
		if (!w->kind->wake) {
			last = atomic_load(&ending);
		} else if (result == ENDED) {
			/* In this order: once it sees the round, the waker goes on. */
			last = atomic_load(&w->last);
			atomic_fetch_add(&w->rounds, 1);
			while (!last && atomic_load(&w->served) != atomic_load(&w->rounds))
				sleep_ns(100000);
		}
	}
	/* No handler of ours runs there. */
	while (used < stack.ss_size && ((uint8_t *)stack.ss_sp)[used] == 0x5a)
		used++;
	check(c, used == stack.ss_size, "the alternate stack was used");
	signals_leave();
	return NULL;
}

/* Returns whether it was noticed. */
static int wake(struct waiter *w, int last)
{
	unsigned long rounds = atomic_load(&w->rounds);
	uint64_t until = now_ns() + HANGS / 2;

	atomic_store(&w->last, last);
	atomic_store(&w->due, 1);
	w->kind->wake(w);
	while (atomic_load(&w->rounds) == rounds) {
		if (!check(&w->kind->check, now_ns() < until, "was not woken"))
			return 0;
		sleep_ns(50000);
		/* The signal may have come before it waited. */
		if (w->kind->again)
			w->kind->wake(w);
	}
	if (w->kind->prepare)
		w->kind->prepare(w);
	atomic_store(&w->due, 0);
	atomic_store(&w->served, rounds + 1);
	return 1;
}

static atomic_int waker_ready;

static void *waker(void *arg)
{
	int woken = 0, noticed = 1;

	(void)arg;
	for (int i = 0; i < waiter_count; i++) {
		if (waiters[i].kind->prepare)
			waiters[i].kind->prepare(&waiters[i]);
		woken += !!waiters[i].kind->wake;
	}
	atomic_store(&waker_ready, 1);
	for (int i = 0; noticed && woken && !atomic_load(&ending); i = (i + 1) % waiter_count) {
		if (!waiters[i].kind->wake)
			continue;
		/* Each is woken once a second or so. */
		sleep_ns(below(2 * SEC / woken));
		noticed = wake(&waiters[i], 0);
	}
	while (!atomic_load(&ending))
		sleep_ns(10 * MS);
	for (int i = 0; noticed && i < waiter_count; i++)
		if (waiters[i].kind->wake)
			noticed = wake(&waiters[i], 1);
	return NULL;
}

static int is_wanted(const struct wait_kind *kind)
{
	const char *at = opt.waits;
	size_t len = strlen(kind->check.name);

	while (at && (at = strstr(at, kind->check.name))) {
		if ((at == opt.waits || at[-1] == ',') && (!at[len] || at[len] == ','))
			return 1;
		at += len;
	}
	return !opt.waits;
}

void waits_start(int threads)
{
	int kind = -1, tried = 0;

	/* One is the waker. */
	waiter_count = threads > 1 ? threads - 1 : 1;
	waiters = calloc(waiter_count, sizeof(*waiters));
	for (int i = 0; i < waiter_count; i++) {
		struct waiter *w = &waiters[i];

		for (tried = 0; tried <= wait_kind_count; tried++) {
			kind = (kind + 1) % wait_kind_count;
			w->kind = &wait_kinds[kind];
			if (is_wanted(w->kind) && !(w->kind->few && i > 100 && !opt.waits) &&
			    w->kind->make(w))
				break;
		}
		if (tried > wait_kind_count)
			die("no such wait can be made here: %s", opt.waits);
	}
	start("waker", waker, NULL);
	while (!atomic_load(&waker_ready))
		sleep_ns(MS);
	for (int i = 0; i < waiter_count; i++)
		waiters[i].thread = start(waiters[i].kind->check.name, wait_thread, &waiters[i]);
}

void waits_list(void)
{
	for (int i = 0; i < wait_kind_count; i++)
		printf("%s\n", wait_kinds[i].check.name);
}

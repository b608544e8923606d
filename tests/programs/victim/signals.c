/* A storm of signals: each one must arrive once, at the thread that it was sent to. */
#define _GNU_SOURCE
#include "victim.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST 2000

static struct receiver {
	pthread_t thread;
	atomic_int present;
	atomic_ulong sent, arrived, wrong;
} receivers[MOST];
static atomic_int receiver_count, senders;
static _Thread_local struct receiver *self;

static void on_signal(int signal, siginfo_t *info, void *context)
{
	(void)context;
	handled++;
	if (signal == SIG_PAUSE) {
		paused++;
	} else if (signal != SIGALRM && self) {
		atomic_fetch_add(&self->arrived, 1);
		if (info->si_value.sival_ptr != self)
			atomic_fetch_add(&self->wrong, 1);
	}
}

void signals_prepare(void)
{
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	sigset_t set;

	sigaction(SIG_PAUSE, &action, NULL);
	sigaction(SIG_INTERRUPTS, &action, NULL);
	action.sa_flags |= SA_RESTART;
	sigaction(SIG_RESTARTS, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIG_PAUSE);
	sigaddset(&set, SIG_WAKE);
	sigaddset(&set, SIG_RESTARTS);
	sigaddset(&set, SIG_INTERRUPTS);
	sigaddset(&set, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

void signals_receive(void)
{
	sigset_t set;
	int n;

	if (!opt.signals)
		return;
	n = atomic_fetch_add(&receiver_count, 1);
	if (n >= MOST)
		die("too many threads");
	self = &receivers[n];
	self->thread = pthread_self();
	atomic_store(&self->present, 1);
	sigemptyset(&set);
	sigaddset(&set, SIG_RESTARTS);
	sigaddset(&set, SIG_INTERRUPTS);
	sigaddset(&set, SIGALRM);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

void signals_leave(void)
{
	uint64_t until = now_ns() + HANGS;

	if (!self)
		return;
	/* What is on its way comes first. */
	while ((atomic_load(&senders) || self->arrived != self->sent) && now_ns() < until)
		sleep_ns(MS);
	CHECK("signals arrive once", self->arrived == self->sent, "%lu of %lu", self->arrived,
	      self->sent);
	CHECK("signals arrive where they should", !self->wrong, "%lu did not", self->wrong);
}

static void *send(void *arg)
{
	(void)arg;
	while (!atomic_load(&ending)) {
		int n = atomic_load(&receiver_count);
		struct receiver *to;

		if (below(2) == 0)
			sleep_ns(below(MS));
		if (!n)
			continue;
		to = &receivers[below(n)];
		if (!atomic_load(&to->present))
			continue;
		/* Before it may arrive. */
		atomic_fetch_add(&to->sent, 1);
		if (pthread_sigqueue(to->thread, below(2) ? SIG_RESTARTS : SIG_INTERRUPTS,
				     (union sigval){ .sival_ptr = to }))
			atomic_fetch_sub(&to->sent, 1); /* the queue is full */
	}
	atomic_fetch_sub(&senders, 1);
	return NULL;
}

void signals_start(void)
{
	/* To this thread, not the process: a signal of the process interrupts waits of threads
	 * that then do not get it. */
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM };
	struct itimerspec each_ms = { { 0, MS }, { 0, MS } };
	timer_t timer;

	if (!opt.signals)
		return;
	event._sigev_un._tid = gettid();
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) ||
	    timer_settime(timer, 0, &each_ms, NULL))
		die("cannot set a timer");
	atomic_store(&senders, opt.signals);
	for (int i = 0; i < opt.signals; i++)
		start("signals", send, NULL);
}

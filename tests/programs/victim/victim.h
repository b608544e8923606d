/* What the parts of the victim share. */
#ifndef VICTIM_H
#define VICTIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#define MS 1000000ull
#define SEC 1000000000ull
/* Nothing here takes longer, however busy the machine: after that it hangs. */
#define HANGS (30 * SEC)

/* Something that must hold, each time it is looked at. */
struct check {
	const char *name;
	atomic_ulong count, failed;
	atomic_ulong late; /* of waits: ns beyond what was asked for, at most */
	atomic_int listed;
	struct check *next;
	char first[200]; /* the first failure in words */
};

/* Counts it, and the failure unless `holds`. Returns `holds`. */
int check(struct check *check, int holds, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void check_late(struct check *check, uint64_t ns);
/* A check that is made in one place. */
#define CHECK(what, holds, ...)                                                                    \
	({                                                                                         \
		static struct check once_ = { .name = what };                                      \
		check(&once_, holds, __VA_ARGS__);                                                 \
	})
/* Prints all of them; returns the number of failures. */
unsigned long check_verdict(unsigned long steps);

struct options {
	int threads;	    /* in all */
	const char *waits;  /* the only kinds, or NULL */
	int malloc, dlopen; /* threads that do it without end */
	int fork, signals;  /* likewise */
	int churn;
	int may_be_stopped; /* someone stops and continues it: some waits end then */
	int seccomp;	    /* 0, or what the filter does: EPERM, or -1 to kill */
	int undumpable;
	int no_device; /* a waiter has the name of a thread of the driver instead */
	const char *plugin;
};
extern struct options opt;

/* Set when all shall end. */
extern atomic_int ending;
/* Handlers of signals that ran in this thread, and those of SIG_PAUSE. */
extern _Thread_local volatile unsigned long handled, paused;

uint64_t now_ns(void);
void sleep_ns(uint64_t ns);
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* Pseudo-random, of this thread, below `limit`. */
uint64_t below(uint64_t limit);
/* A thread that is joined at the end. Its stack is small: there are many. */
pthread_t start(const char *what, void *(*run)(void *), void *arg);
/* Waits for those; who does not come hangs. */
void join_all(void);
/* Computes for about `times` ms, and gives the same number each time. */
uint64_t work(int times);

/* Blocked in all threads but those that want them. WAKE is only waited for. */
#define SIG_WAKE (SIGRTMIN + 3)
#define SIG_RESTARTS (SIGRTMIN + 4)
#define SIG_INTERRUPTS (SIGRTMIN + 5)
#define SIG_PAUSE SIGUSR1

/* They end when all does. */
void waits_start(int threads);
/* Names of all kinds, one a line. */
void waits_list(void);

/* Of all threads, before there are any. */
void signals_prepare(void);
/* This thread is one of those that get them from now on, and until it leaves. */
void signals_receive(void);
void signals_leave(void);
void signals_start(void);
void company_start(void);
void forbid_calls(void);

/* A system call with every register that it keeps set to a known value, and
 * what was there afterwards. */
struct raw {
	uint64_t nr, args[6];	 /* 0 */
	uint64_t result;	 /* 56 */
	uint64_t kept[12];	 /* 64: rbx rbp r12 r13 r14 r15 rdi rsi rdx r10 r8 r9 */
	uint64_t flags;		 /* 160 */
	uint64_t moved;		 /* 168: how far rsp moved */
	uint64_t red[16];	 /* 176: the red zone, downwards */
	uint64_t masks[8];	 /* 304: k0-k7 */
	uint64_t padding[6];	 /* 368 */
	uint8_t fx[512];	 /* 416: fxsave; aligned to 16 */
	uint8_t vectors[32][64]; /* 928 */
} __attribute__((aligned(32)));

/* Makes the call, and checks what must be kept. Returns the kernel's answer. */
long raw_call(struct check *check, long nr, long a, long b, long c, long d);
long raw_call_5(struct check *check, long nr, long a, long b, long c, long d, long e);

#endif

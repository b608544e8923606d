/* Known call chains in C: chains-c FILE [SECONDS [SEED]]; see truth.h. */
#include "truth.h"

#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "library.h"

/* ---- leaves ---- */

FRAME static void leaf(struct truth *t)
{
	spin(t);
}
#define LEAF "leaf", SPIN

static void leaf_back(void *t)
{
	leaf(t);
	AFTER();
}

FRAME static void with_frame_pointer_as_a_number(struct truth *t)
{
	/* A callee that keeps it must give it back; one that needs it must not believe it. */
	__asm__ volatile("movq $0x5a5a5a5a, %%rbp" ::: "rbp", "memory");
	leaf(t);
	AFTER();
}

/* ---- frames of all kinds ---- */

FRAME static void recurse(struct truth *t, int n)
{
	if (n > 1)
		recurse(t, n - 1);
	else
		leaf(t);
	AFTER();
}

FRAME static void recursion(struct truth *t)
{
	int n = 1 + truth_below(35);

	CHAIN(t, "recursion");
	calls(t, "recurse", n);
	CHAIN(t, LEAF);
	recurse(t, n);
	AFTER();
}

FRAME static void variable(struct truth *t, size_t n)
{
	volatile char on_stack[n];

	on_stack[n - 1] = 1;
	with_frame_pointer_as_a_number(t);
	AFTER();
	on_stack[0] = on_stack[n - 1];
}

FRAME static void allocated(struct truth *t, size_t n)
{
	volatile char *on_stack = alloca(n);

	on_stack[0] = 1;
	variable(t, n / 2 + 1);
	AFTER();
	on_stack[n - 1] = 1;
}

FRAME static void variable_frames(struct truth *t)
{
	CHAIN(t, "variable_frames", "allocated", "variable", "with_frame_pointer_as_a_number", LEAF);
	allocated(t, 100 + truth_below(10000));
	AFTER();
}

/* Aligned locals and arguments on the stack: the compiler keeps the old stack pointer beside. */
FRAME static void realigned(struct truth *t, int a, int b, int c, int d, int e, int f, int g, size_t n)
{
	_Alignas(64) volatile char wide[64] = { a, b, c, d, e, f, g };
	volatile char more[n];

	more[0] = wide[0];
	with_frame_pointer_as_a_number(t);
	AFTER();
	wide[0] = more[0] + g;
}

__attribute__((force_align_arg_pointer)) FRAME static void aligned_for_others(struct truth *t)
{
	_Alignas(32) volatile char wide[32] = { 1 };

	realigned(t, 1, 2, 3, 4, 5, 6, 7, 100 + wide[0]);
	AFTER();
	wide[1] = 2;
}

FRAME static void realigned_frames(struct truth *t)
{
	CHAIN(t, "realigned_frames", "aligned_for_others", "realigned", "with_frame_pointer_as_a_number", LEAF);
	aligned_for_others(t);
	AFTER();
}

FRAME static void big(struct truth *t)
{
	volatile char on_stack[1 << 20];

	on_stack[0] = on_stack[sizeof(on_stack) - 1] = 1;
	leaf(t);
	AFTER();
	on_stack[0] = 2;
}

FRAME static void big_frame(struct truth *t)
{
	CHAIN(t, "big_frame", "big", LEAF);
	big(t);
	AFTER();
}

/* ---- calls of all kinds ---- */

static void (*volatile const pointers[])(struct truth *) = { leaf, big, with_frame_pointer_as_a_number };
static const char *const pointer_names[] = { "leaf", "big", "with_frame_pointer_as_a_number" };

FRAME static void pointer(struct truth *t)
{
	size_t i = truth_below(3);

	CHAIN(t, "pointer", pointer_names[i]);
	if (i)
		calls(t, "leaf", 1);
	CHAIN(t, SPIN);
	pointers[i](t);
	AFTER();
}

FRAME static int tail_end(struct truth *t, int n)
{
	leaf(t);
	AFTER();
	return n;
}

FRAME static int tail_between(struct truth *t, int n)
{
	return tail_end(t, n + 1);
}

FRAME static int tail_begin(struct truth *t, int n)
{
	return tail_between(t, n + 1);
}

/* Two frames that are gone. */
FRAME static void tail_calls(struct truth *t)
{
	CHAIN(t, "tail_calls", "tail_end", LEAF);
	if (tail_begin(t, 1) != 3)
		abort();
	AFTER();
}

INLINED void inner(struct truth *t)
{
	leaf(t);
	AFTER();
}

INLINED void middle(struct truth *t)
{
	inner(t);
	AFTER();
}

FRAME static void outer(struct truth *t)
{
	middle(t);
	AFTER();
}

FRAME static void inlined(struct truth *t)
{
	CHAIN(t, "inlined", "outer", "middle", "inner", LEAF);
	outer(t);
	AFTER();
}

static jmp_buf back;

/* What follows the call is another function. */
__attribute__((noreturn)) FRAME static void jumps_back(struct truth *t)
{
	leaf(t);
	AFTER();
	longjmp(back, 1);
}

__attribute__((noreturn)) FRAME static void never_returns(struct truth *t)
{
	jumps_back(t);
}

FRAME static void no_return(struct truth *t)
{
	CHAIN(t, "no_return", "never_returns", "jumps_back", LEAF);
	if (!setjmp(back))
		never_returns(t);
	AFTER();
}

static struct truth *compared;

FRAME static int compare(const void *a, const void *b)
{
	struct truth *t = compared;

	compared = 0;
	if (t)
		leaf(t);
	AFTER();
	return *(const int *)a - *(const int *)b;
}

FRAME static void sort(struct truth *t)
{
	int numbers[100];

	for (int i = 0; i < 100; i++)
		numbers[i] = truth_below(1000);
	CHAIN(t, "sort", "+libc.so", "compare", LEAF);
	compared = t;
	qsort(numbers, 100, sizeof(int), compare);
	AFTER();
}

FRAME static void search(struct truth *t)
{
	int numbers[] = { 1, 2, 3, 4, 5 }, four = 4;

	/* The C library's header may have it inlined. */
	CHAIN(t, "search", "bsearch?", "*libc.so", "compare", LEAF);
	compared = t;
	if (!bsearch(&four, numbers, 5, sizeof(int), compare))
		abort();
	AFTER();
}

FRAME static void library(struct truth *t)
{
	int n = 1 + truth_below(10);

	CHAIN(t, "library", "near_enter");
	calls(t, "near_inside", n);
	CHAIN(t, "leaf_back", LEAF);
	near_enter(leaf_back, t, n);
	AFTER();
}

/* Not in memory before its first turn. */
FRAME static void late_library(struct truth *t)
{
	int n = 1 + truth_below(10);
	void *handle = dlopen("liblate.so", RTLD_NOW);
	void (*enter)(callback, void *, int) = handle ? dlsym(handle, "late_enter") : 0;

	if (!enter) {
		fprintf(stderr, "chains: %s\n", dlerror());
		exit(1);
	}
	CHAIN(t, "late_library", "late_enter");
	calls(t, "late_inside", n);
	CHAIN(t, "leaf_back", LEAF);
	enter(leaf_back, t, n);
	AFTER();
}

/* ---- every instruction of short functions ---- */

FRAME static long pushes(long a, long b, long c, long d)
{
	/* More live values than a callee may clobber, so it pushes; and a call, so it keeps them. */
	long x = a * b, y = b * c, z = c * d, w = d * a;

	near_nothing();
	return x + y * z - w + a + b + c + d;
}

FRAME static long edge_variable(size_t n)
{
	volatile char on_stack[n];

	on_stack[n - 1] = 1;
	near_nothing();
	return on_stack[n - 1];
}

FRAME static void edges_leaf(struct truth *t)
{
	truth_start(t);
	uint64_t until = t->start + t->length;
	do {
		for (int i = 0; i < 1000; i++) {
			pushes(i, 2, 3, 4);
			edge_variable(64 + i);
		}
		t->work++;
	} while (now_ns() < until);
	truth_end(t);
}

/* The stub in between has no name. */
FRAME static void edges(struct truth *t)
{
	CHAIN(t, "edges", "edges_leaf", "pushes?", "edge_variable?", "near_nothing?", "truth_start?", "truth_end?", "cpu_ns?", CLOCKS);
	edges_leaf(t);
	AFTER();
}

/* ---- system calls and the vdso ---- */

FRAME static void vdso_leaf(struct truth *t)
{
	truth_start(t);
	while (now_ns() < t->start + t->length)
		t->work++;
	truth_end(t);
}

FRAME static void vdso(struct truth *t)
{
	CHAIN(t, "vdso", "vdso_leaf", "truth_start?", "truth_end?", "cpu_ns?", CLOCKS);
	vdso_leaf(t);
	t->work = 0; /* of another size */
	AFTER();
}

static char buffer[1 << 18];

FRAME static void kernel_leaf(struct truth *t, int zero)
{
	truth_start(t);
	while (now_ns() < t->start + t->length) {
		if (read(zero, buffer, sizeof(buffer)) < 0 || getrandom(buffer, 4096, 0) < 0)
			abort();
	}
	truth_end(t);
}

FRAME static void in_kernel(struct truth *t)
{
	int zero = open("/dev/zero", O_RDONLY);

	/* read may be inlined by the C library's header. */
	CHAIN(t, "in_kernel", "kernel_leaf", "read?", "truth_start?", "truth_end?", "cpu_ns?", CLOCKS);
	kernel_leaf(t, zero);
	close(zero);
	AFTER();
}

FRAME static void sleep_leaf(struct truth *t)
{
	struct timespec left = { 0, t->length };

	truth_start(t);
	nanosleep(&left, 0);
	truth_end(t);
}

FRAME static void sleeping(struct truth *t)
{
	t->off = 1;
	CHAIN(t, "sleeping", "sleep_leaf", WAIT);
	sleep_leaf(t);
	AFTER();
}

FRAME static void read_leaf(struct truth *t, int timer)
{
	uint64_t expired;

	truth_start(t);
	if (syscall(SYS_read, timer, &expired, sizeof(expired)) != sizeof(expired))
		abort();
	truth_end(t);
}

FRAME static void reading(struct truth *t)
{
	struct itimerspec at = { .it_value = { 0, t->length } };
	int timer = timerfd_create(CLOCK_MONOTONIC, 0);

	t->off = 1;
	CHAIN(t, "reading", "read_leaf", WAIT);
	timerfd_settime(timer, 0, &at, 0);
	read_leaf(t, timer);
	close(timer);
	AFTER();
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

FRAME static void lock_leaf(struct truth *t)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += t->length;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	truth_start(t);
	if (pthread_mutex_timedlock(&mutex, &until) != ETIMEDOUT)
		abort();
	truth_end(t);
}

FRAME static void *locking_thread(void *t)
{
	lock_leaf(t);
	AFTER();
	return 0;
}

/* ---- other stacks ---- */

static struct truth *volatile signalled;

FRAME static void handler(int sig)
{
	struct truth *t = signalled;

	(void)sig;
	if (t)
		leaf(t);
	signalled = 0;
}

static void handle(int sig, int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	sigaction(sig, &action, 0);
}

FRAME static void interrupted(void)
{
	struct itimerval soon = { .it_value = { 0, 1000 } };

	setitimer(ITIMER_REAL, &soon, 0);
	while (signalled)
		__asm__ volatile("pause");
}

/* Comes at any instruction; the handler has a stack of its own or not. */
FRAME static void alarm_signal(struct truth *t)
{
	handle(SIGALRM, truth_below(2) ? SA_ONSTACK : 0);
	CHAIN(t, "alarm_signal", "interrupted", "+libc.so", "handler", LEAF);
	signalled = t;
	interrupted();
	AFTER();
}

FRAME static void sent_signal(struct truth *t)
{
	handle(SIGUSR1, truth_below(2) ? SA_ONSTACK : 0);
	CHAIN(t, "sent_signal", "+libc.so", "handler", LEAF);
	signalled = t;
	raise(SIGUSR1);
	AFTER();
}

FRAME static void *thread_main(void *t)
{
	recurse(t, 5);
	AFTER();
	return 0;
}

FRAME static void thread(struct truth *t)
{
	pthread_t id;

	CHAIN(t, "thread_main");
	calls(t, "recurse", 5);
	CHAIN(t, LEAF);
	if (pthread_create(&id, 0, thread_main, t))
		abort();
	pthread_join(id, 0);
	AFTER();
}

FRAME static void locking(struct truth *t)
{
	pthread_t id;

	t->off = 1;
	CHAIN(t, "locking_thread", "lock_leaf", WAIT);
	pthread_mutex_lock(&mutex);
	if (pthread_create(&id, 0, locking_thread, t))
		abort();
	pthread_join(id, 0);
	pthread_mutex_unlock(&mutex);
	AFTER();
}

FRAME static void child(struct truth *t)
{
	pid_t pid;

	CHAIN(t, "child", LEAF);
	pid = fork();
	if (!pid) {
		leaf(t);
		_exit(0);
	}
	waitpid(pid, 0, 0);
	AFTER();
}

static ucontext_t here, there;
static struct truth *switched;

FRAME static void coroutine(void)
{
	recurse(switched, 3);
	AFTER();
}

FRAME static void context(struct truth *t)
{
	static char stack[1 << 16];

	CHAIN(t, "coroutine", "recurse", "recurse", "recurse", LEAF);
	switched = t;
	getcontext(&there);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = sizeof(stack);
	there.uc_link = &here;
	makecontext(&there, coroutine, 0);
	swapcontext(&here, &there);
	AFTER();
}

/* ---- phases ---- */

static const struct phase {
	const char *name;
	void (*run)(struct truth *);
	int own_root; /* the chain does not begin with main */
} phases[] = {
	{ "recursion", recursion, 0 },
	{ "recursion", recursion, 0 },
	{ "variable frames", variable_frames, 0 },
	{ "realigned frames", realigned_frames, 0 },
	{ "big frame", big_frame, 0 },
	{ "pointer", pointer, 0 },
	{ "tail calls", tail_calls, 0 },
	{ "inlined", inlined, 0 },
	{ "no return", no_return, 0 },
	{ "qsort", sort, 0 },
	{ "bsearch", search, 0 },
	{ "library", library, 0 },
	{ "late library", late_library, 0 },
	{ "edges", edges, 0 },
	{ "vdso", vdso, 0 },
	{ "kernel", in_kernel, 0 },
	{ "alarm signal", alarm_signal, 0 },
	{ "sent signal", sent_signal, 0 },
	{ "thread", thread, 1 },
	{ "fork", child, 0 },
	{ "context", context, 1 },
	{ "nanosleep", sleeping, 0 },
	{ "timerfd", reading, 0 },
	{ "mutex", locking, 1 },
};
#define PHASES (sizeof(phases) / sizeof(phases[0]))

FRAME static void descend(struct truth *t, void (*run)(struct truth *), int n)
{
	if (n > 1)
		descend(t, run, n - 1);
	else
		run(t);
	AFTER();
}

FRAME static void round_of_all(int first)
{
	unsigned char order[PHASES];

	for (unsigned i = 0; i < PHASES; i++) {
		unsigned j = truth_below(i + 1);

		order[i] = order[j];
		order[j] = i;
	}
	for (unsigned i = 0; i < PHASES; i++) {
		const struct phase *p = &phases[order[i]];
		int n = 1 + truth_below(20);

		/* In the middle of the run. */
		if (first && p->run == late_library)
			continue;
		struct truth *t = truth_new(p->name);
		if (!p->own_root) {
			CHAIN(t, "main", "round_of_all");
			calls(t, "descend", n);
		}
		descend(t, p->run, n);
	}
}

int main(int argc, char **argv)
{
	double seconds = argc > 2 ? atof(argv[2]) : 2;
	static char alternative[1 << 16];
	stack_t stack = { .ss_sp = alternative, .ss_size = sizeof(alternative) };

	if (argc < 2) {
		fprintf(stderr, "usage: chains-c FILE [SECONDS [SEED]]\n");
		return 2;
	}
	truth_init(argc > 3 ? atoi(argv[3]) : 1);
	sigaltstack(&stack, 0);
	uint64_t until = now_ns() + (uint64_t)(seconds * 1e9);
	for (int first = 1; now_ns() < until; first = 0)
		round_of_all(first);
	return truth_write(argv[1]);
}

/* The ways to wait. After an interruption the kernel restarts some from where
 * they were, some anew, and some not at all. */
#define _GNU_SOURCE
#include "waits.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define C (&w->kind->check)
#define FULL (128 << 10) /* more than a pipe takes */

static struct timespec span(uint64_t ns)
{
	return (struct timespec){ ns / SEC, ns % SEC };
}

static struct timespec after(uint64_t ns)
{
	return span(now_ns() + ns);
}

static struct timeval whole_us(struct waiter *w)
{
	w->asked -= w->asked % 1000;
	return (struct timeval){ w->asked / SEC, w->asked % SEC / 1000 };
}

static int whole_ms(struct waiter *w)
{
	w->asked -= w->asked % MS;
	return w->asked / MS;
}

/* How a call ended that may be interrupted, or else must have this result. */
static int end(struct waiter *w, long result, int holds)
{
	if (result < 0 && errno == EINTR) {
		interrupted(w);
		return INTERRUPTED;
	}
	return check(C, holds, "gave %ld, errno %d", result, errno) ? ENDED : INTERRUPTED;
}

/* Whether it failed as it should. */
static int failed(long result, int expected)
{
	if (result != -1 || errno != expected)
		return 0;
	errno = UNTOUCHED;
	return 1;
}

/* The same of functions that return the error. */
static int end_error(struct waiter *w, int result, int expected)
{
	return check(C, result == expected, "gave %d", result) ? ENDED : INTERRUPTED;
}

/* And of plain system calls. */
static int end_raw(struct waiter *w, long result, long expected)
{
	if (result == -EINTR) {
		interrupted(w);
		return INTERRUPTED;
	}
	return check(C, result == expected, "gave %ld", result) ? ENDED : INTERRUPTED;
}

static int make_nothing(struct waiter *w)
{
	(void)w;
	return 1;
}

static int make_pipe(struct waiter *w)
{
	return !pipe(w->fds);
}

static void write_byte(struct waiter *w)
{
	if (write(w->fds[1], "x", 1) != 1)
		die("cannot write to a pipe");
}

static void read_byte(struct waiter *w)
{
	char byte;

	while (read(w->fds[0], &byte, 1) != 1)
		if (errno != EINTR)
			die("cannot read a pipe");
	errno = UNTOUCHED;
}

static int wait_poll(struct waiter *w)
{
	struct pollfd fd = { .fd = w->fds[0], .events = POLLIN };
	int n = poll(&fd, 1, -1), how = end(w, n, n == 1 && fd.revents == POLLIN);

	if (how == ENDED)
		read_byte(w);
	return how;
}

static int wait_poll_timeout(struct waiter *w)
{
	struct pollfd fd = { .fd = w->fds[0], .events = POLLIN };
	int n = poll(&fd, 1, whole_ms(w));

	return end(w, n, !n);
}

static int wait_ppoll(struct waiter *w)
{
	struct pollfd fd = { .fd = w->fds[0], .events = POLLIN };
	struct timespec timeout = span(w->asked);
	sigset_t mask;
	int n;

	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	n = ppoll(&fd, 1, &timeout, &mask);
	return end(w, n, !n);
}

static int wait_select(struct waiter *w)
{
	struct timeval timeout = whole_us(w);
	fd_set set;
	int n;

	FD_ZERO(&set);
	FD_SET(w->fds[0], &set);
	n = select(w->fds[0] + 1, &set, NULL, NULL, &timeout);
	return end(w, n, !n && !timeout.tv_sec && !timeout.tv_usec);
}

static int wait_pselect(struct waiter *w)
{
	struct timespec timeout = span(w->asked);
	sigset_t mask;
	fd_set set;
	int n;

	FD_ZERO(&set);
	FD_SET(w->fds[0], &set);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	n = pselect(w->fds[0] + 1, &set, NULL, NULL, &timeout, &mask);
	return end(w, n, !n);
}

static int make_epoll(struct waiter *w)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 99 };

	w->epoll = epoll_create1(0);
	return make_pipe(w) && !epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->fds[0], &event);
}

static int wait_epoll(struct waiter *w)
{
	struct epoll_event event = { 0 };
	int n = epoll_wait(w->epoll, &event, 1, -1),
	    how = end(w, n, n == 1 && event.data.u64 == 99);

	if (how == ENDED)
		read_byte(w);
	return how;
}

static int wait_epoll_timeout(struct waiter *w)
{
	struct epoll_event event;
	int n = epoll_wait(w->epoll, &event, 1, whole_ms(w));

	return end(w, n, !n);
}

static int wait_nanosleep(struct waiter *w)
{
	struct timespec t = span(w->asked);
	int n = nanosleep(&t, NULL);

	return end(w, n, !n);
}

static int wait_clock_nanosleep(struct waiter *w)
{
	struct timespec t = after(w->asked);
	int n = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);

	if (n != EINTR)
		return end_error(w, n, 0);
	errno = EINTR;
	return end(w, -1, 0);
}

static int make_sem(struct waiter *w)
{
	return !sem_init(&w->sem, 0, 0);
}

static int wait_sem(struct waiter *w)
{
	int n = sem_wait(&w->sem);

	return end(w, n, !n);
}

static void wake_sem(struct waiter *w)
{
	sem_post(&w->sem);
}

static int wait_sem_timeout(struct waiter *w)
{
	struct timespec t = after(w->asked);
	int n = sem_clockwait(&w->sem, CLOCK_MONOTONIC, &t);

	return end(w, n, failed(n, ETIMEDOUT));
}

static int make_cond(struct waiter *w)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	return !pthread_mutex_init(&w->mutex, NULL) && !pthread_cond_init(&w->cond, &attr);
}

static int wait_cond(struct waiter *w)
{
	int n = 0;

	pthread_mutex_lock(&w->mutex);
	while (!n && !w->id) {
		n = pthread_cond_wait(&w->cond, &w->mutex);
		/* POSIX allows it; glibc does not do it when there is one waiter. */
		check(C, w->id, "woken without a signal");
	}
	w->id = 0;
	pthread_mutex_unlock(&w->mutex);
	return end_error(w, n, 0);
}

static void wake_cond(struct waiter *w)
{
	pthread_mutex_lock(&w->mutex);
	w->id = 1;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->mutex);
}

static int wait_cond_timeout(struct waiter *w)
{
	struct timespec t = after(w->asked);
	int n;

	pthread_mutex_lock(&w->mutex);
	n = pthread_cond_timedwait(&w->cond, &w->mutex, &t);
	pthread_mutex_unlock(&w->mutex);
	return end_error(w, n, ETIMEDOUT);
}

static int wait_mutex(struct waiter *w)
{
	int n = pthread_mutex_lock(&w->mutex);

	pthread_mutex_unlock(&w->mutex);
	return end_error(w, n, 0);
}

static void wake_mutex(struct waiter *w)
{
	pthread_mutex_unlock(&w->mutex);
}

static void hold_mutex(struct waiter *w)
{
	pthread_mutex_lock(&w->mutex);
}

static int wait_read(struct waiter *w)
{
	char byte;
	int n = read(w->fds[0], &byte, 1);

	return end(w, n, n == 1);
}

/* Half of it is in the pipe when it waits. */
static int wait_write(struct waiter *w)
{
	static char bytes[FULL];
	int n = write(w->fds[1], bytes, FULL);

	/* A signal of ours leaves a part; the waker reads on, and the rest follows. */
	if (n > 0 && n < FULL && (handled != w->handled || opt.may_be_stopped)) {
		while (n < FULL) {
			int more = write(w->fds[1], bytes, FULL - n);

			n += more > 0 ? more : 0;
		}
		errno = UNTOUCHED;
	}
	return end(w, n, n == FULL);
}

static void read_full(struct waiter *w)
{
	static char bytes[FULL]; /* only the waker's */

	for (int n = 0; n < FULL;) {
		int more = read(w->fds[0], bytes, FULL - n);

		n += more > 0 ? more : 0;
	}
}

static int make_accept(struct waiter *w)
{
	struct sockaddr_un any = { .sun_family = AF_UNIX };

	w->fds[0] = socket(AF_UNIX, SOCK_STREAM, 0);
	/* An abstract name that the kernel chooses. */
	return w->fds[0] >= 0 && !bind(w->fds[0], (void *)&any, sizeof(any.sun_family)) &&
	       !listen(w->fds[0], 1);
}

static int wait_accept(struct waiter *w)
{
	int n = accept(w->fds[0], NULL, NULL), how = end(w, n, n >= 0);

	if (n >= 0)
		close(n);
	return how;
}

static void wake_accept(struct waiter *w)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_un name;
	socklen_t len = sizeof(name);

	if (fd < 0 || getsockname(w->fds[0], (void *)&name, &len) ||
	    connect(fd, (void *)&name, len))
		die("cannot connect to a socket");
	close(fd);
}

static int make_recv(struct waiter *w)
{
	return !socketpair(AF_UNIX, SOCK_DGRAM, 0, w->fds);
}

/* Not restarted after a signal, as it has a timeout. */
static int wait_recv_timeout(struct waiter *w)
{
	struct timeval timeout = whole_us(w);
	char byte;
	int n;

	if (setsockopt(w->fds[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)))
		die("cannot set a timeout");
	/* The kernel rounds it to ticks, at most of 10 ms. */
	w->asked -= w->asked > 10 * MS ? 10 * MS : w->asked;
	n = recv(w->fds[0], &byte, 1, 0);
	return end(w, n, failed(n, EAGAIN));
}

static int wait_futex(struct waiter *w)
{
	long n = syscall(SYS_futex, &w->futex, FUTEX_WAIT_PRIVATE, 0, NULL);

	/* It may have been woken before it waited. */
	if (failed(n, EAGAIN) && w->futex)
		n = 0;
	if (n == 0)
		w->futex = 0;
	return end(w, n, n == 0);
}

static void wake_futex(struct waiter *w)
{
	__atomic_store_n(&w->futex, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &w->futex, FUTEX_WAKE_PRIVATE, 1);
}

static int wait_futex_timeout(struct waiter *w)
{
	struct timespec t = span(w->asked);
	long n = syscall(SYS_futex, &w->futex, FUTEX_WAIT_PRIVATE, 0, &t);

	return end(w, n, failed(n, ETIMEDOUT));
}

static sigset_t only(int signal)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, signal);
	return set;
}

static int wait_sigwait(struct waiter *w)
{
	sigset_t set = only(SIG_WAKE);
	siginfo_t info = { 0 };
	int n = sigwaitinfo(&set, &info);

	return end(w, n, n == SIG_WAKE && info.si_pid == getpid() && info.si_value.sival_int == 77);
}

static void wake_sigwait(struct waiter *w)
{
	if (pthread_sigqueue(w->thread, SIG_WAKE, (union sigval){ .sival_int = 77 }))
		die("cannot send a signal");
}

static int wait_sigtimedwait(struct waiter *w)
{
	struct timespec t = span(w->asked);
	sigset_t set = only(SIG_WAKE);
	int n = sigtimedwait(&set, NULL, &t);

	return end(w, n, failed(n, EAGAIN));
}

/* A handler must have run: ours, and when the waker sent for it. */
static int end_by_handler(struct waiter *w, int n)
{
	int error = errno;

	check(C, n == -1 && error == EINTR, "gave %d, errno %d", n, error);
	if (!opt.may_be_stopped)
		check(C, handled != w->handled, "ended without a handler");
	errno = UNTOUCHED;
	/* Of those that were sent again, one may come late. */
	return paused != w->paused && atomic_load(&w->due) ? ENDED : INTERRUPTED;
}

static int wait_pause(struct waiter *w)
{
	sigset_t set = only(SIG_PAUSE), mask;
	int how;

	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	w->paused = paused;
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	how = end_by_handler(w, pause());
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	return how;
}

static int wait_sigsuspend(struct waiter *w)
{
	sigset_t mask;

	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	sigdelset(&mask, SIG_PAUSE);
	w->paused = paused;
	return end_by_handler(w, sigsuspend(&mask));
}

static void wake_pause(struct waiter *w)
{
	pthread_kill(w->thread, SIG_PAUSE);
}

struct message {
	long type;
	int value;
};

static int make_messages(struct waiter *w)
{
	w->id = msgget(IPC_PRIVATE, 0600);
	return w->id >= 0;
}

static int wait_msgrcv(struct waiter *w)
{
	struct message message = { 0, 0 };
	int n = msgrcv(w->id, &message, sizeof(message.value), 0, 0);

	return end(w, n, n == sizeof(message.value) && message.type == 5 && message.value == 77);
}

static void wake_msgrcv(struct waiter *w)
{
	struct message message = { 5, 77 };

	if (msgsnd(w->id, &message, sizeof(message.value), 0))
		die("cannot send a message");
}

static int make_semaphore(struct waiter *w)
{
	w->id = semget(IPC_PRIVATE, 1, 0600);
	return w->id >= 0;
}

static int wait_semop(struct waiter *w)
{
	struct sembuf down = { 0, -1, 0 };
	int n = semop(w->id, &down, 1);

	return end(w, n, !n);
}

static void wake_semop(struct waiter *w)
{
	struct sembuf up = { 0, 1, 0 };

	if (semop(w->id, &up, 1))
		die("cannot post a semaphore");
}

static int wait_semtimedop(struct waiter *w)
{
	struct sembuf down = { 0, -1, 0 };
	struct timespec t = span(w->asked);
	int n = semtimedop(w->id, &down, 1, &t);

	return end(w, n, failed(n, EAGAIN));
}

/* With one entry each, used for one poll of the pipe at a time. */
static int make_ring(struct waiter *w)
{
	struct io_uring_params params = { 0 };
	int prot = PROT_READ | PROT_WRITE;
	char *ring, *entries;

	w->id = syscall(SYS_io_uring_setup, 1, &params);
	if (w->id < 0 || !(params.features & IORING_FEAT_SINGLE_MMAP))
		return 0;
	ring = mmap(NULL, 16384, prot, MAP_SHARED, w->id, IORING_OFF_SQ_RING);
	entries = mmap(NULL, sizeof(struct io_uring_sqe), prot, MAP_SHARED, w->id, IORING_OFF_SQES);
	if (ring == MAP_FAILED || entries == MAP_FAILED || !make_pipe(w))
		return 0;
	w->ring.submit_tail = (void *)(ring + params.sq_off.tail);
	w->ring.done_head = (void *)(ring + params.cq_off.head);
	w->ring.done_tail = (void *)(ring + params.cq_off.tail);
	w->ring.entry = (void *)entries;
	*(uint32_t *)(ring + params.sq_off.array) = 0;
	return 1;
}

static int wait_ring(struct waiter *w)
{
	int n, how;

	if (!w->ring.submitted) {
		memset(w->ring.entry, 0, sizeof(*w->ring.entry));
		w->ring.entry->opcode = IORING_OP_POLL_ADD;
		w->ring.entry->fd = w->fds[0];
		w->ring.entry->poll32_events = POLLIN;
		__atomic_fetch_add(w->ring.submit_tail, 1, __ATOMIC_RELEASE);
		n = syscall(SYS_io_uring_enter, w->id, 1, 0, 0, NULL, 0);
		if (n != 1)
			return end(w, n, 0);
		w->ring.submitted = 1;
	}
	n = syscall(SYS_io_uring_enter, w->id, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	how = end(w, n, !n);
	if (how != ENDED)
		return how;
	check(C, __atomic_load_n(w->ring.done_tail, __ATOMIC_ACQUIRE) == *w->ring.done_head + 1,
	      "no completion");
	__atomic_fetch_add(w->ring.done_head, 1, __ATOMIC_RELEASE);
	w->ring.submitted = 0;
	read_byte(w);
	return ENDED;
}

static int wait_child(struct waiter *w)
{
	int status = -1, n, how;

	if (!w->child) {
		w->child = fork();
		if (!w->child) {
			char byte;

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(read(w->fds[0], &byte, 1) == 1 ? 7 : 8);
		}
		if (w->child < 0)
			die("cannot fork");
	}
	n = waitpid(w->child, &status, 0);
	how = end(w, n, n == w->child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	if (n > 0)
		w->child = 0;
	return how;
}

/* The same as plain system calls, with all registers looked at. */

static int raw_poll(struct waiter *w)
{
	struct pollfd fd = { .fd = w->fds[0], .events = POLLIN };
	int ms = whole_ms(w);

	return end_raw(w, raw_call(C, SYS_poll, (long)&fd, 1, ms, 0), 0);
}

static int raw_ppoll(struct waiter *w)
{
	struct pollfd fd = { .fd = w->fds[0], .events = POLLIN };
	struct timespec t = span(w->asked);

	return end_raw(w, raw_call(C, SYS_ppoll, (long)&fd, 1, (long)&t, 0), 0);
}

static int raw_select(struct waiter *w)
{
	struct timeval timeout = whole_us(w);

	return end_raw(w, raw_call_5(C, SYS_select, 0, 0, 0, 0, (long)&timeout), 0);
}

static int raw_nanosleep(struct waiter *w)
{
	struct timespec t = span(w->asked);

	return end_raw(w, raw_call(C, SYS_nanosleep, (long)&t, 0, 0, 0), 0);
}

static int raw_clock_nanosleep(struct waiter *w)
{
	struct timespec t = span(w->asked);

	return end_raw(w, raw_call(C, SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, (long)&t, 0), 0);
}

static int raw_futex_timeout(struct waiter *w)
{
	struct timespec t = span(w->asked);
	long n = raw_call(C, SYS_futex, (long)&w->futex, FUTEX_WAIT_PRIVATE, 0, (long)&t);

	return end_raw(w, n, -ETIMEDOUT);
}

static int raw_epoll_timeout(struct waiter *w)
{
	struct epoll_event event;
	int ms = whole_ms(w);

	return end_raw(w, raw_call(C, SYS_epoll_wait, w->epoll, (long)&event, 1, ms), 0);
}

static int raw_read(struct waiter *w)
{
	char byte = 0;
	int how = end_raw(w, raw_call(C, SYS_read, w->fds[0], (long)&byte, 1, 0), 1);

	if (how == ENDED)
		check(C, byte == 'x', "read %d", byte);
	return how;
}

#define KIND(what, ...)                                                                            \
	{                                                                                          \
		.check = { .name = #what }, __VA_ARGS__                                            \
	}

struct wait_kind wait_kinds[] = {
	KIND(poll, make_pipe, wait_poll, write_byte),
	KIND(raw_poll, make_pipe, raw_poll),
	KIND(nanosleep, make_nothing, wait_nanosleep),
	KIND(raw_futex_timeout, make_nothing, raw_futex_timeout),
	KIND(cond, make_cond, wait_cond, wake_cond),
	KIND(epoll, make_epoll, wait_epoll, write_byte),
	KIND(raw_epoll_timeout, make_epoll, raw_epoll_timeout),
	KIND(sem, make_sem, wait_sem, wake_sem),
	KIND(raw_nanosleep, make_nothing, raw_nanosleep),
	KIND(cond_timeout, make_cond, wait_cond_timeout),
	KIND(mutex, make_cond, wait_mutex, wake_mutex, hold_mutex),
	KIND(read, make_pipe, wait_read, write_byte),
	KIND(raw_clock_nanosleep, make_nothing, raw_clock_nanosleep),
	KIND(write, make_pipe, wait_write, read_full),
	KIND(accept, make_accept, wait_accept, wake_accept),
	KIND(recv_timeout, make_recv, wait_recv_timeout),
	KIND(futex, make_nothing, wait_futex, wake_futex),
	KIND(futex_timeout, make_nothing, wait_futex_timeout),
	KIND(sigwait, make_nothing, wait_sigwait, wake_sigwait),
	KIND(sigtimedwait, make_nothing, wait_sigtimedwait),
	KIND(pause, make_nothing, wait_pause, wake_pause, .again = 1),
	KIND(sigsuspend, make_nothing, wait_sigsuspend, wake_pause),
	KIND(select, make_pipe, wait_select),
	KIND(pselect, make_pipe, wait_pselect),
	KIND(ppoll, make_pipe, wait_ppoll),
	KIND(poll_timeout, make_pipe, wait_poll_timeout),
	KIND(epoll_timeout, make_epoll, wait_epoll_timeout),
	KIND(clock_nanosleep, make_nothing, wait_clock_nanosleep),
	KIND(sem_timeout, make_sem, wait_sem_timeout),
	KIND(msgrcv, make_messages, wait_msgrcv, wake_msgrcv),
	KIND(semop, make_semaphore, wait_semop, wake_semop),
	KIND(semtimedop, make_semaphore, wait_semtimedop),
	KIND(io_uring, make_ring, wait_ring, write_byte, .few = 1),
	KIND(waitpid, make_pipe, wait_child, write_byte, .few = 1),
	KIND(raw_ppoll, make_pipe, raw_ppoll),
	KIND(raw_select, make_nothing, raw_select),
	KIND(raw_read, make_pipe, raw_read, write_byte),
};
const int wait_kind_count = sizeof(wait_kinds) / sizeof(*wait_kinds);

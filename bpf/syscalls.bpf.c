// SPDX-License-Identifier: GPL-2.0
/*
 * The system calls of the target: each as it ends, or added up here.
 *
 * An object of its own, because a program at the entry and the exit of calls makes every call
 * of the machine slower, by 200 ns: it is there only when asked for. Who is a target it
 * learns from the maps of sched.bpf.c.
 *
 * Whoever is in a call is the only one who writes what is kept of it: so there are no locks and
 * no atomics on the way, but for the sums that several threads share when there are too many.
 */
#include "common.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* The sums that threads share come first: one for each number. Sum 0 is none. */
#define SHARED_SUMS GDIAG_SYSCALLS

const volatile struct calls_config {
	u64 least_ns;			 /* calls that took less are left out */
	u64 wanted[GDIAG_SYSCALLS / 64]; /* numbers that are not left out */
	s32 own_tgid;
	u32 sums;    /* that there is room for, the shared ones included */
	u8 stream;   /* a record for each call */
	u8 args;     /* with its arguments */
	u8 summary;  /* sums */
	u8 failures; /* sums by error */
	u8 only_failed;
	u8 only_marked; /* threads that mark_callers was told of, and no others */
	u8 from_exec;	/* nothing before the first execve: the command that gdiag launches is not itself before */
	u8 pad;
} calls = { .wanted = { ~0ULL, ~0ULL, ~0ULL, ~0ULL, ~0ULL, ~0ULL, ~0ULL, ~0ULL }, .sums = 2 * SHARED_SUMS };

/* A thread whose calls are watched. */
struct caller {
	u64 start_ns; /* of the call that it is in; 0: in none, or not in one that is wanted */
	s16 nr;
	u8 before; /* it is in one since before it was watched */
	u8 pad[5];
	u16 sums[GDIAG_SYSCALLS]; /* where the calls of each number are added up; 0: nowhere yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct caller);
} callers SEC(".maps");

/* The record that a call will send, begun at the entry. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gdiag_syscall);
} details SEC(".maps");

/* By number: what to read of the arguments. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GDIAG_SYSCALLS);
	__type(key, u32);
	__type(value, struct gdiag_captures);
} captures SEC(".maps");

/* gdiag has them in its memory, and looks only at those that changed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * SHARED_SUMS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct gdiag_sum);
} sums SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gdiag_failure);
	__type(value, u64);
} failures SEC(".maps");

/* tids, as gdiag sees them, that mark_callers is to look for */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, u8);
} wanted_tids SEC(".maps");

u32 used_sums = SHARED_SUMS + 1;
u32 executed; /* with from_exec: an execve began */

/* Read by gdiag. */
u64 shared_calls;  /* sums of a thread that had to be shared */
u64 unseen_calls;  /* entries of threads that there was no memory for */
u64 lost_failures; /* without room in failures */

const struct gdiag_syscall *unused_syscall;
const struct gdiag_block *unused_block;
const struct gdiag_file *unused_file;
const struct gdiag_failure *unused_failure;
const struct gdiag_enums *unused_enums;

static __always_inline s16 number(struct task_struct *t, s64 id)
{
	if (id < 0 || id >= GDIAG_SYSCALL_COMPAT)
		return GDIAG_NO_SYSCALL;
	return is_compat(t) ? id | GDIAG_SYSCALL_COMPAT : id;
}

static __always_inline u32 index_of(s16 nr)
{
	u32 n = (u16)nr;

	n = n < GDIAG_SYSCALLS - 1 ? n : GDIAG_SYSCALLS - 1;
	/* Before 6.3 or so the verifier knows the bounds of the copy that was compared, but not of another. */
	barrier_var(n);
	return n & (GDIAG_SYSCALLS - 1);
}

static __always_inline bool is_wanted(s16 nr)
{
	u32 n = index_of(nr);

	return calls.wanted[n / 64] >> (n % 64) & 1;
}

static __always_inline bool is_error(s64 ret)
{
	return ret < 0 && ret >= -4095;
}

static __always_inline bool is_execve(s16 nr)
{
#ifdef __TARGET_ARCH_arm64
	return nr == 221;
#else
	return nr == 59;
#endif
}

static __always_inline bool is_execveat(s16 nr)
{
#ifdef __TARGET_ARCH_arm64
	return nr == 281;
#else
	return nr == 322;
#endif
}

static __always_inline bool is_watched(struct task_struct *t)
{
	if (t->tgid == calls.own_tgid)
		return false;
	return cfg.all || is_target(bpf_task_storage_get(&tasks, t, 0, 0));
}

/* A thread that makes its first call. */
static __noinline struct caller *admit(struct task_struct *t)
{
	struct caller *c;

	if (calls.only_marked || !is_watched(t))
		return 0;
	c = bpf_task_storage_get(&callers, t, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!c)
		__sync_fetch_and_add(&unseen_calls, 1);
	return c;
}

static __always_inline void args_of(struct pt_regs *regs, u64 *args)
{
#ifdef __TARGET_ARCH_arm64
	/* The first one's register has the result in the end. */
	args[0] = BPF_CORE_READ(regs, orig_x0);
	args[1] = BPF_CORE_READ(regs, regs[1]);
	args[2] = BPF_CORE_READ(regs, regs[2]);
	args[3] = BPF_CORE_READ(regs, regs[3]);
	args[4] = BPF_CORE_READ(regs, regs[4]);
	args[5] = BPF_CORE_READ(regs, regs[5]);
#else
	args[0] = regs->di;
	args[1] = regs->si;
	args[2] = regs->dx;
	args[3] = regs->r10;
	args[4] = regs->r8;
	args[5] = regs->r9;
#endif
}

/* Room for one more block of so many bytes; its bytes begin there. */
static __always_inline struct gdiag_block *new_block(struct gdiag_syscall *r, u32 at, u8 kind, u8 arg, s32 fd)
{
	struct gdiag_block *b = (void *)&r->blocks[at];

	b->kind = kind;
	b->arg = arg;
	b->len = 0;
	b->fd = fd;
	return b;
}

#define BLOCK sizeof(struct gdiag_block)

/* Bytes of strings and memory in one block at most; gdiag knows it as well. */
#define MOST_BYTES 400

/*
 * The result is where the next block begins. This and the next two are not static, so that the
 * verifier looks at each once, and not again for all that may be before it.
 */
__noinline u32 note_file(struct gdiag_syscall *r, u32 at, u8 arg, s32 fd)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct fdtable *table = BPF_CORE_READ(t, files, fdt);
	struct gdiag_file *f;
	struct file **numbers, *file = 0;
	struct inode *inode;
	struct gdiag_block *b;

	if (!r || at > GDIAG_SYSCALL_BYTES - BLOCK - sizeof(*f))
		return at;
	if (!table || fd < 0 || (u32)fd >= BPF_CORE_READ(table, max_fds))
		return at;
	numbers = BPF_CORE_READ(table, fd);
	bpf_probe_read_kernel(&file, sizeof(file), numbers + fd);
	inode = file ? BPF_CORE_READ(file, f_inode) : 0;
	if (!inode)
		return at;
	b = new_block(r, at, GDIAG_BLOCK_FILE, arg, fd);
	b->len = sizeof(*f);
	f = (void *)&r->blocks[at + BLOCK];
	f->inode = BPF_CORE_READ(inode, i_ino);
	f->mode = BPF_CORE_READ(inode, i_mode);
	f->pad = 0;
	if (bpf_probe_read_kernel_str(f->name, sizeof(f->name), BPF_CORE_READ(file, f_path.dentry, d_name.name)) < 0)
		f->name[0] = 0;
	return at + BLOCK + sizeof(*f);
}

/* `what` is the number of the argument, with GDIAG_BLOCK_* above. */
__noinline u32 note_memory(struct gdiag_syscall *r, u32 at, u32 what, u32 size, u64 address)
{
	struct gdiag_block *b;
	long read;

	if (!r || !address || at > GDIAG_SYSCALL_BYTES - BLOCK - MOST_BYTES)
		return at;
	if (size > MOST_BYTES)
		size = MOST_BYTES;
	b = new_block(r, at, what >> 8, what, 0);
	if (what >> 8 == GDIAG_BLOCK_TEXT) {
		read = bpf_probe_read_user_str(&r->blocks[at + BLOCK], size, (void *)address);
		if (read < 0)
			return at;
		size = read;
		/* Without its NUL it was longer. */
		if (size > MOST_BYTES)
			size = MOST_BYTES;
	} else if (bpf_probe_read_user(&r->blocks[at + BLOCK], size, (void *)address)) {
		return at;
	}
	b->len = size;
	return at + BLOCK + ((size + 7) & ~7U);
}

struct pollfd {
	s32 fd;
	s16 events;
	s16 revents;
};

#define MOST_POLLED 8

/* What the numbers in the array are that was read last, to `from`. */
__noinline u32 note_polled(struct gdiag_syscall *r, u32 from, u32 at, u8 arg, u32 n)
{
	struct pollfd p;
	u32 i;

	if (!r)
		return at;
	for (i = 0; i < MOST_POLLED; i++) {
		u32 place = from + BLOCK + i * sizeof(p);

		if (i >= n || place > GDIAG_SYSCALL_BYTES - sizeof(p))
			break;
		p = *(struct pollfd *)&r->blocks[place];
		at = note_file(r, at, arg, p.fd);
	}
	return at;
}

static __always_inline u64 arg_of(struct gdiag_syscall *r, u32 i)
{
	if (i >= 6)
		return 0;
	barrier_var(i);
	return r->args[i & 7];
}

/* At the entry: what is in memory now may be other things at the exit. */
static __noinline int note_args(struct task_struct *t, struct pt_regs *regs, u32 nr)
{
	struct gdiag_syscall *r = bpf_task_storage_get(&details, t, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct gdiag_captures *all;
	u32 i, at = 0, from;
	u64 n, size;

	if (!r)
		return 0;
	r->len = 0;
	/* A 32-bit program has them elsewhere. */
	if (nr != (u16)GDIAG_NO_SYSCALL && nr & GDIAG_SYSCALL_COMPAT)
		return 0;
	all = nr < GDIAG_SYSCALLS ? bpf_map_lookup_elem(&captures, &nr) : 0;
	if (all && all->of[0].kind == GDIAG_CAPTURE_NO_ARGS)
		return 0;
	args_of(regs, r->args);
	r->len = sizeof(r->args);
	if (!all)
		return 0;
	for (i = 0; i < GDIAG_CAPTURES; i++) {
		struct gdiag_capture c = all->of[i];

		if (c.kind == GDIAG_CAPTURE_NONE || c.kind == GDIAG_CAPTURE_RESULT)
			break;
		if (c.kind == GDIAG_CAPTURE_FILE) {
			at = note_file(r, at, c.arg, arg_of(r, c.arg));
			continue;
		}
		if (c.kind == GDIAG_CAPTURE_TEXT) {
			at = note_memory(r, at, GDIAG_BLOCK_TEXT << 8 | c.arg, c.size, arg_of(r, c.arg));
			continue;
		}
		n = c.times ? arg_of(r, c.times - 1) : 1;
		if (n > MOST_BYTES)
			n = MOST_BYTES;
		size = n * c.size;
		if (size > c.most)
			size = c.most;
		from = at;
		at = note_memory(r, at, GDIAG_BLOCK_BYTES << 8 | c.arg, size, arg_of(r, c.arg));
		if (c.kind == GDIAG_CAPTURE_POLL && at != from)
			at = note_polled(r, from, at, c.arg, n);
	}
	if (at > GDIAG_SYSCALL_BYTES)
		at = GDIAG_SYSCALL_BYTES;
	r->len = sizeof(r->args) + at;
	return 0;
}

/*
 * A path that was in no page of the process yet at the entry, as those of a child are right after
 * fork: the call has brought the page in.
 */
static __noinline int note_late(struct gdiag_syscall *r, u32 nr)
{
	struct gdiag_captures *all;
	struct gdiag_capture c;
	u32 at;

	if (!r || r->len != sizeof(r->args) || nr >= GDIAG_SYSCALLS)
		return 0;
	all = bpf_map_lookup_elem(&captures, &nr);
	if (!all)
		return 0;
	c = all->of[0];
	if (c.kind != GDIAG_CAPTURE_TEXT)
		return 0;
	at = note_memory(r, 0, GDIAG_BLOCK_TEXT << 8 | c.arg, c.size, arg_of(r, c.arg));
	if (at <= GDIAG_SYSCALL_BYTES)
		r->len += at;
	return 0;
}

/* The file that an open gave a number to. */
static __noinline int note_result(struct gdiag_syscall *r, u32 nr, s64 ret)
{
	struct gdiag_captures *all;
	u32 at;

	if (!r || ret < 0 || r->len < sizeof(r->args) || nr >= GDIAG_SYSCALLS)
		return 0;
	all = bpf_map_lookup_elem(&captures, &nr);
	if (!all || all->of[GDIAG_CAPTURES - 1].kind != GDIAG_CAPTURE_RESULT)
		return 0;
	at = r->len - sizeof(r->args);
	if (at > GDIAG_SYSCALL_BYTES)
		return 0;
	at = note_file(r, at, GDIAG_ARG_RESULT, ret);
	if (at <= GDIAG_SYSCALL_BYTES)
		r->len = sizeof(r->args) + at;
	return 0;
}

/* And here the memory that the path was in is gone at the exit. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(caller_exec, struct task_struct *t, pid_t old_tid, struct linux_binprm *bprm)
{
	struct caller *c = bpf_task_storage_get(&callers, t, 0, 0);
	struct gdiag_syscall *r = bpf_task_storage_get(&details, t, 0, 0);
	struct gdiag_block *b;
	long read;

	if (!c || !c->start_ns || !r || r->len != sizeof(r->args))
		return 0;
	b = new_block(r, 0, GDIAG_BLOCK_TEXT, !is_execve(c->nr), 0);
	read = bpf_probe_read_kernel_str(&r->blocks[BLOCK], MOST_BYTES, BPF_CORE_READ(bprm, filename));
	if (read <= 0 || read > MOST_BYTES)
		return 0;
	b->len = read;
	r->len = sizeof(r->args) + BLOCK + ((read + 7) & ~7ULL);
	return 0;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(sys_enter, struct pt_regs *regs, long id)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct caller *c = bpf_task_storage_get(&callers, t, 0, 0);
	s16 nr;

	if (!c) {
		c = admit(t);
		if (!c)
			return 0;
	}
	nr = number(t, id);
	if (calls.from_exec && !executed) {
		if (!is_execve(nr) && !is_execveat(nr))
			return 0;
		executed = 1;
	}
	c->before = 0;
	c->nr = nr;
	if (!is_wanted(nr)) {
		c->start_ns = 0;
		return 0;
	}
	if (calls.args)
		note_args(t, regs, (u16)nr);
	c->start_ns = bpf_ktime_get_ns();
	return 0;
}

/* d * d, in 128 bits. */
static __always_inline void add_square(struct gdiag_sum *s, u64 d)
{
	u64 part;

	if (d < 1ULL << 32) {
		part = d * d;
		s->squares_low += part;
		s->squares_high += s->squares_low < part;
		return;
	}
	/* Exact to 1 in 2^12, and it does not matter. */
	d >>= 20;
	part = d * d << 40;
	s->squares_low += part;
	s->squares_high += (s->squares_low < part) + (d * d >> 24);
}

/* Sum for the calls of this thread with this number; a shared one when there is no room. */
static __noinline u32 new_sum(struct task_struct *t, struct caller *c, u32 index)
{
	struct gdiag_sum *s;
	u32 i = 0;

	if (!t || !c)
		return 0;
	index &= GDIAG_SYSCALLS - 1;
	if (used_sums < calls.sums)
		i = __sync_fetch_and_add(&used_sums, 1);
	if (!i || i >= calls.sums || i > 0xffff) {
		i = 1 + index;
		__sync_fetch_and_add(&shared_calls, 1);
	}
	s = bpf_map_lookup_elem(&sums, &i);
	if (!s)
		return 0;
	s->nr = index < GDIAG_SYSCALLS - 1 ? (s16)index : GDIAG_NO_SYSCALL;
	if (i > SHARED_SUMS) {
		s->tid = BPF_CORE_READ(t, pid);
		s->pid = BPF_CORE_READ(t, tgid);
		s->task_start_ns = BPF_CORE_READ(t, start_time);
		bpf_probe_read_kernel_str(s->comm, sizeof(s->comm), t->comm);
	}
	c->sums[index] = i;
	return i;
}

/* Several threads at once. The extremes may be missed when two find them in the same moment. */
static __noinline int add_shared(struct gdiag_sum *s, u64 d, bool failed)
{
	u32 bucket = gdiag_bucket(d);

	barrier_var(bucket);
	if (!s)
		return 0;
	__sync_fetch_and_add(&s->total_ns, d);
	if (failed)
		__sync_fetch_and_add(&s->errors, 1);
	if (!s->count || d < s->min_ns)
		s->min_ns = d;
	if (d > s->max_ns)
		s->max_ns = d;
	/* No squares: several threads cannot carry from 64 bits to the next. */
	if (bucket < GDIAG_HIST_BUCKETS)
		__sync_fetch_and_add(&s->buckets[bucket], 1);
	__sync_fetch_and_add(&s->count, 1);
	return 0;
}

static __noinline int add_failure(u32 sum, u32 error)
{
	struct gdiag_failure key = { .sum = sum, .error = error };
	u64 *n = bpf_map_lookup_elem(&failures, &key), one = 1;

	if (n)
		__sync_fetch_and_add(n, 1);
	else if (bpf_map_update_elem(&failures, &key, &one, BPF_NOEXIST))
		__sync_fetch_and_add(&lost_failures, 1);
	return 0;
}

static __always_inline void add(struct task_struct *t, struct caller *c, u64 d, s64 ret)
{
	u32 index = index_of(c->nr), i = c->sums[index], bucket;
	bool failed = is_error(ret);
	struct gdiag_sum *s;

	if (!i) {
		i = new_sum(t, c, index);
		if (!i)
			return;
	}
	s = bpf_map_lookup_elem(&sums, &i);
	if (!s)
		return;
	if (calls.failures && failed)
		add_failure(i, -ret);
	if (i <= SHARED_SUMS) {
		add_shared(s, d, failed);
		return;
	}
	if (!s->count || d < s->min_ns)
		s->min_ns = d;
	if (d > s->max_ns)
		s->max_ns = d;
	s->total_ns += d;
	s->errors += failed;
	add_square(s, d);
	bucket = gdiag_bucket(d);
	barrier_var(bucket);
	if (bucket < GDIAG_HIST_BUCKETS)
		s->buckets[bucket]++;
	s->count++;
}

#define HEAD __builtin_offsetof(struct gdiag_syscall, args)

/* Without arguments only as much as there is of it. */
struct bare_syscall {
	u64 words[HEAD / 8];
};

/* Of another thread: what it keeps of its call is its own, and may be on its way out. */
static __noinline int send_open(struct task_struct *t, struct caller *c)
{
	struct bare_syscall bare = {};
	struct gdiag_syscall *r = (void *)&bare;

	if (!t || !c)
		return 0;
	r->hdr.type = GDIAG_REC_SYS_OPEN;
	r->hdr.tid = BPF_CORE_READ(t, pid);
	r->hdr.ts_ns = bpf_ktime_get_ns();
	r->start_ns = c->start_ns;
	r->ret = GDIAG_OPEN_GOES_ON;
	r->pid = BPF_CORE_READ(t, tgid);
	r->nr = c->nr;
	send(r, HEAD, false);
	return 0;
}

static __noinline int send_call(struct task_struct *t, struct caller *c, u32 type, s64 ret, u64 now)
{
	struct gdiag_syscall *r = 0;
	struct bare_syscall bare = {};
	u32 len = 0;

	if (!t || !c)
		return 0;
	if (calls.args && c->start_ns)
		r = bpf_task_storage_get(&details, t, 0, 0);
	if (r) {
		if (type == GDIAG_REC_SYSCALL) {
			note_late(r, (u16)c->nr);
			note_result(r, (u16)c->nr, ret);
		}
		len = r->len;
	} else {
		r = (void *)&bare;
	}
	r->hdr.type = type;
	r->hdr.tid = BPF_CORE_READ(t, pid);
	r->hdr.ts_ns = now;
	r->start_ns = c->start_ns;
	r->ret = ret;
	r->pid = BPF_CORE_READ(t, tgid);
	r->nr = c->nr;
	if (!len) {
		send(r, HEAD, false);
		return 0;
	}
	if (len > sizeof(*r) - HEAD)
		len = sizeof(*r) - HEAD;
	send(r, HEAD + len, false);
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(sys_exit, struct pt_regs *regs, long ret)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct caller *c = bpf_task_storage_get(&callers, t, 0, 0);
	u64 now, took;

	if (!c || (!c->start_ns && !c->before))
		return 0;
	if (!calls.only_failed || is_error(ret)) {
		now = bpf_ktime_get_ns();
		took = now - c->start_ns;
		if (c->before) {
			send_call(t, c, GDIAG_REC_SYSCALL, ret, now);
		} else if (took >= calls.least_ns) {
			if (calls.summary)
				add(t, c, took, ret);
			if (calls.stream)
				send_call(t, c, GDIAG_REC_SYSCALL, ret, now);
		}
	}
	c->start_ns = 0;
	c->before = 0;
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(caller_exit, struct task_struct *t)
{
	struct caller *c = bpf_task_storage_get(&callers, t, 0, 0);

	if (!c)
		return 0;
	if (c->start_ns && calls.stream)
		send_call(t, c, GDIAG_REC_SYS_OPEN, GDIAG_OPEN_ENDED, bpf_ktime_get_ns());
	/* It is over, though the thread is still there. */
	c->start_ns = 0;
	c->before = 0;
	return 0;
}

/* As it is now: not to be remembered from before. Of its size on this kernel, which BPF_CORE_READ does not know. */
static __always_inline bool is_on_cpu(struct task_struct *t)
{
	u32 on_cpu = t->on_cpu;

	barrier_var(on_cpu);
	return on_cpu;
}

/* Run by gdiag when everything else is attached: who is in a call already. */
SEC("iter/task")
int mark_callers(struct bpf_iter__task *ctx)
{
	struct task_struct *t = ctx->task;
	struct caller *c;
	u32 id;
	s16 nr;

	if (!t || !t->pid || t->flags & PF_KTHREAD || !is_watched(t))
		return 0;
	if (calls.only_marked) {
		id = proc_id(BPF_CORE_READ(t, thread_pid));
		if (!id || !bpf_map_lookup_elem(&wanted_tids, &id))
			return 0;
	}
	c = bpf_task_storage_get(&callers, t, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	/* What the registers of a running thread say may be long over. */
	if (!c || c->start_ns || is_on_cpu(t) || calls.from_exec)
		return 0;
	nr = any_syscall_nr(t);
	if (nr == GDIAG_NO_SYSCALL)
		return 0;
	nr = number(t, nr);
	if (!is_wanted(nr))
		return 0;
	c->nr = nr;
	c->before = 1;
	/* It may have gone on meanwhile: then that number is not of the call that it is in. */
	if (is_on_cpu(t) || number(t, syscall_nr(t)) != nr || c->start_ns || c->nr != nr)
		c->before = 0;
	return 0;
}

/* Run by gdiag when it wants to know: the calls that go on. */
SEC("iter/task")
int open_calls(struct bpf_iter__task *ctx)
{
	struct task_struct *t = ctx->task;
	struct caller *c;

	if (!t)
		return 0;
	c = bpf_task_storage_get(&callers, t, 0, 0);
	if (c && (c->start_ns || c->before))
		send_open(t, c);
	return 0;
}

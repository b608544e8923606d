// SPDX-License-Identifier: GPL-2.0
/*
 * What the scheduler did to the target, to whoever ran instead of it, and who woke it.
 *
 * Only BTF tracepoints: they need no tracefs, no kprobe and no perf record, and an
 * empty one costs next to nothing. Linux 5.15 is the oldest: bpf_task_pt_regs.
 *
 * Who writes what:
 *  - A CPU's open chunk belongs to sched_switch, sched_waking and sched_wakeup_new. They
 *    run with interrupts off, so on one CPU they never interrupt each other. flush_cpu
 *    may be interrupted by them (see there), which is why there are two chunks.
 *  - What is kept about a thread is written by sched_switch on the CPU that it leaves or
 *    gets, and by whoever wakes or marks it, on any CPU, under no common lock. So each flag
 *    is a byte of its own that is only ever set, and the queue is changed by exchanges.
 *  - Everything else sends records of its own, which the ring buffers serialise.
 */
#include "common.bpf.h"
#include "target.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* Interrupts shorter than this are not worth a record: a switch costs more. */
#define MIN_IRQ_NS 2000

/* A thread that waits longer than this for a CPU is asked where it may run. */
#define MIN_CPU_WAIT_NS 1000000

/* Who is followed: not everybody who ever wakes anybody, and not without end. */
#define MAX_HOPS 4
#define MAX_FOLLOWED 256

#define SOFTIRQ_NET_RX 3

/*
 * Recorded threads on each CPU's queue that do not run: while there are any, whoever runs there
 * is of interest. Each is counted by at most one CPU, the one in its queue field.
 */
struct {
	s32 n;
	u32 idle; /* its idle task runs, as far as switches tell */
	u32 pad[14];
} waiting[MAX_CPUS];

u32 followed;	/* threads that are followed now */
u32 unfollowed; /* that should have been, but there were too many */
u32 joined;	/* processes that came into a target's cgroup: the iterator is to be run again */

/* libbpf-cargo generates a Rust type only for what the object's BTF keeps. */
const struct gdiag_chunk *unused_chunk;
const struct gdiag_task *unused_task;
const struct gdiag_exit *unused_exit;
const struct gdiag_wait *unused_wait;
const struct gdiag_resumed *unused_resumed;
const struct gdiag_cpu_wait *unused_cpu_wait;
const struct gdiag_stall *unused_stall;
const struct gdiag_signal *unused_signal;
const struct gdiag_irq *unused_irq;
const struct gdiag_enums *unused_enums;

static __always_inline void count_lost_slots(u32 n)
{
	u32 zero = 0;
	struct cpu_losses *l = bpf_map_lookup_elem(&losses, &zero);

	if (l)
		__sync_fetch_and_add(&l->slots, n);
}

/*
 * Sends the open chunk, while the other one is filled. Only flush_cpu can be interrupted in
 * here; what then finds the other chunk full as well has nowhere to go.
 */
static __noinline int send_chunk(struct cpu_data *c)
{
	struct gdiag_chunk *chunk;
	u32 open, count;
	void *ring;
	u64 size;

	if (!c)
		return 0;
	open = c->open & 1;
	chunk = &c->chunks[open];
	if (c->sending) {
		count_lost_slots(chunk->count);
		chunk->count = 0;
		return 0;
	}
	if (!chunk->count)
		return 0;
	c->sending = 1;
	barrier();
	c->open = open ^ 1;
	/* From here on an interrupt leaves this chunk alone. */
	barrier();
	count = chunk->count;
	if (count > GDIAG_CHUNK_SLOTS)
		count = GDIAG_CHUNK_SLOTS;
	if (count) {
		chunk->type = GDIAG_REC_CHUNK;
		chunk->cpu = bpf_get_smp_processor_id();
		size = sizeof(*chunk) - sizeof(chunk->slots) + count * sizeof(struct gdiag_slot);
		ring = my_ring();
		if (!ring || bpf_ringbuf_output(ring, chunk, size & 0xfff, wakeup_flags(ring)))
			count_lost_slots(count);
		chunk->count = 0;
	}
	barrier();
	c->sending = 0;
	return 0;
}

/* The next free slot of this CPU's open chunk. Interrupts must be off. */
static __always_inline struct gdiag_slot *next_slot(struct cpu_data *c)
{
	struct gdiag_chunk *chunk = &c->chunks[c->open & 1];
	u32 i = chunk->count;

	if (i >= GDIAG_CHUNK_SLOTS) {
		send_chunk(c);
		chunk = &c->chunks[c->open & 1];
		i = 0;
	}
	chunk->count = i + 1;
	return &chunk->slots[i];
}

static __always_inline bool is_shim(const char *comm)
{
#pragma unroll
	for (int i = 0; i < GDIAG_COMM_LEN; i++) {
		if (comm[i] != cfg.shim_comm[i])
			return false;
		if (!comm[i])
			break;
	}
	return true;
}

/*
 * Identity of a thread, from now on. One copy of the code: records are rare, and the
 * verifier's budget is not. comm is the name it is about to get, or null.
 */
static __noinline int send_task(struct task_struct *t, struct task_data *d, u32 reason, u32 parent_tid, const char *comm)
{
	struct gdiag_task r = {};

	if (!t || !d)
		return 0;
	d->seen = 1;
	r.hdr.type = GDIAG_REC_TASK;
	r.hdr.tid = BPF_CORE_READ(t, pid);
	r.hdr.ts_ns = bpf_ktime_get_ns();
	r.start_ns = BPF_CORE_READ(t, start_time);
	r.cgroup_id = BPF_CORE_READ(t, cgroups, dfl_cgrp, kn, id);
	r.pid = BPF_CORE_READ(t, tgid);
	r.ppid = BPF_CORE_READ(t, real_parent, tgid);
	r.parent_tid = parent_tid;
	ids(BPF_CORE_READ(t, thread_pid), &r.ns_tid, &r.proc_tid);
	ids(BPF_CORE_READ(t, group_leader, thread_pid), &r.ns_pid, &r.proc_pid);
	r.reason = reason;
	r.target = d->target;
	r.kthread = !!(BPF_CORE_READ(t, flags) & PF_KTHREAD);
	r.on_cpu = BPF_CORE_READ(t, on_cpu);
	r.state = task_state(t);
	r.nr = d->nr;
	r.prio = BPF_CORE_READ(t, prio);
	bpf_probe_read_kernel_str(r.comm, sizeof(r.comm), comm ? comm : t->comm);
	/*
	 * A shim announces itself by the name of its thread, and a program can be short-lived:
	 * gdiag looks at once, while /proc still knows them.
	 */
	send(&r, sizeof(r), r.target && (reason == GDIAG_TASK_EXEC || is_shim(r.comm)));
	return 0;
}

/* Storage of a thread that gets a role in an event: its identity is sent at first sight. */
static __always_inline struct task_data *introduce(struct task_struct *t, struct task_data *d)
{
	if (!d) {
		d = bpf_task_storage_get(&tasks, t, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!d)
			return 0;
		d->nr = GDIAG_NO_SYSCALL;
	}
	if (!d->seen)
		send_task(t, d, GDIAG_TASK_SEEN, 0, 0);
	return d;
}

/* Masked for the verifier; a machine with more CPUs than MAX_CPUS only watches too much. */
static __always_inline s32 *waiting_on(u32 cpu)
{
	return &waiting[cpu & (MAX_CPUS - 1)].n;
}

static __always_inline void dequeue(u32 queue)
{
	if (queue)
		__sync_fetch_and_add(waiting_on(queue - 1), -1);
}

/*
 * It waits for this CPU, and no longer for another. The count goes up before the thread is
 * known to be in it, so that whoever takes it out again finds it there.
 */
static __always_inline void wait_begins(struct task_data *d, u32 cpu)
{
	__sync_fetch_and_add(waiting_on(cpu), 1);
	dequeue(__sync_lock_test_and_set(&d->queue, cpu + 1));
}

static __always_inline void wait_ends(struct task_data *d)
{
	if (d->queue)
		dequeue(__sync_lock_test_and_set(&d->queue, 0));
}

/* CPUs that are idle and that the thread may not run on. */
static __noinline u32 idle_elsewhere(struct task_struct *t)
{
	u64 mask[MAX_CPUS / 64] = {};
	u32 cpu, idle = 0, bytes = (cfg.cpus + 63) / 64 * 8;

	if (!t)
		return 0;
	if (bytes > sizeof(mask))
		bytes = sizeof(mask);
	bpf_probe_read_kernel(mask, bytes, BPF_CORE_READ(t, cpus_ptr));
	for (cpu = 0; cpu < MAX_CPUS; cpu++) {
		if (cpu >= cfg.cpus)
			break;
		idle += waiting[cpu].idle & ~(mask[cpu / 64] >> (cpu % 64)) & 1;
	}
	return idle;
}

/* It gets a CPU after a long time without one. */
static __noinline int send_cpu_wait(struct task_struct *t, u64 since, u64 now)
{
	struct gdiag_cpu_wait r = {};

	if (!t)
		return 0;
	r.hdr.type = GDIAG_REC_CPU_WAIT;
	r.hdr.tid = BPF_CORE_READ(t, pid);
	r.hdr.ts_ns = now;
	r.start_ns = since;
	r.allowed = BPF_CORE_READ(t, nr_cpus_allowed);
	r.online = cfg.online;
	if (r.allowed < r.online)
		r.idle = idle_elsewhere(t);
	send(&r, sizeof(r), false);
	return 0;
}

static __always_inline u8 saturate(u32 n)
{
	return n > 255 ? 255 : n;
}

/*
 * What a number of a file stands for can only be told while the thread still sleeps: afterwards it
 * may close the file, and have the number again for another.
 */
static __always_inline void note_file(struct task_struct *t, u64 number, struct gdiag_wait *r)
{
	struct fdtable *table = BPF_CORE_READ(t, files, fdt);
	struct file **files, *file = 0;
	struct inode *inode;

	if (!table || number >= BPF_CORE_READ(table, max_fds))
		return;
	files = BPF_CORE_READ(table, fd);
	bpf_probe_read_kernel(&file, sizeof(file), files + number);
	inode = file ? BPF_CORE_READ(file, f_inode) : 0;
	if (!inode)
		return;
	r->inode = BPF_CORE_READ(inode, i_ino);
	r->mode = BPF_CORE_READ(inode, i_mode);
}

/*
 * The wait is over: only now is it known to be long enough to be worth its stack. The
 * sleeper has not run yet, so the stack is the one it slept on.
 */
static __noinline int send_wait(struct task_struct *t, struct task_data *d, u64 now)
{
	struct pt_regs *regs;
	struct gdiag_wait *r;
	u32 zero = 0;
	void *ring;
	long bytes;

	if (!t || !d)
		return 0;
	ring = my_ring();
	r = ring ? bpf_ringbuf_reserve(ring, sizeof(*r), 0) : 0;
	if (!r) {
		count_lost_record();
		return 0;
	}
	r->hdr.type = GDIAG_REC_WAIT;
	r->hdr.tid = t->pid;
	r->hdr.ts_ns = now;
	r->start_ns = d->off_ns;
	r->state = d->state;
	r->nr = d->nr;
	r->args[0] = r->args[1] = r->args[2] = 0;
	r->inode = r->mode = 0;
	regs = user_regs(t);
	if (regs && d->nr >= 0) {
#ifdef __TARGET_ARCH_arm64
		r->args[0] = BPF_CORE_READ(regs, regs[0]);
		r->args[1] = BPF_CORE_READ(regs, regs[1]);
		r->args[2] = BPF_CORE_READ(regs, regs[2]);
#else
		r->args[0] = regs->di;
		r->args[1] = regs->si;
		r->args[2] = regs->dx;
#endif
		note_file(t, r->args[0], r);
	}
	bytes = bpf_get_task_stack(t, r->ips, sizeof(r->ips), 0);
	r->frames = bytes > 0 ? (u64)bytes / 8 : 0;
	if (bytes <= 0) {
		struct cpu_losses *l = bpf_map_lookup_elem(&losses, &zero);

		if (l)
			l->stacks++;
	}
	bpf_ringbuf_submit(r, wakeup_flags(ring));
	return 0;
}

static __always_inline int on_switch(struct task_struct *prev, struct task_struct *next, bool preempt, u32 state)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct task_data *p = 0, *n = 0;
	bool pt, nt, watched;
	struct gdiag_slot *slot;
	struct cpu_data *c;
	u8 flags = 0;
	u64 now;

	c = this_cpu();
	if (!c)
		return 0;
	c->next_tid = next->pid;
	/* pid 0 is one idle task for each CPU, all with the same id */
	if (prev->pid)
		p = bpf_task_storage_get(&tasks, prev, 0, 0);
	if (next->pid)
		n = bpf_task_storage_get(&tasks, next, 0, 0);
	pt = is_recorded(p);
	nt = is_recorded(n);
	/* On its way to sleep, but preempted: it goes on, whatever its state says. */
	if (preempt)
		state = 0;
	waiting[cpu & (MAX_CPUS - 1)].idle = !next->pid;
	watched = *waiting_on(cpu) > 0;
	if (!pt && !nt && !watched && !cfg.all)
		return 0;

	/* Only a foreign task is new here: the others were introduced when they became recorded. */
	if (!pt && prev->pid)
		p = introduce(prev, p);
	if (!nt && next->pid)
		n = introduce(next, n);

	now = bpf_ktime_get_ns();
	slot = next_slot(c);
	slot->ts_ns = now;
	slot->a = prev->pid;
	slot->b = next->pid;
	slot->kind = GDIAG_SLOT_SWITCH;
	slot->state = state;
	slot->nr = GDIAG_NO_SYSCALL;
	slot->min_flt = 0;
	slot->maj_flt = 0;
	if (preempt)
		flags |= GDIAG_SW_PREEMPT;

	if (pt) {
		if (p->yield_ns)
			end_yields(p, prev->pid);
		p->off_ns = now;
		p->state = state;
		p->nr = syscall_nr(prev);
		slot->nr = p->nr;
		slot->min_flt = saturate((u32)prev->min_flt - p->min_flt);
		slot->maj_flt = saturate((u32)prev->maj_flt - p->maj_flt);
		if (prev->flags & PF_EXITING)
			flags |= GDIAG_SW_EXITING;
		if (BPF_CORE_READ_BITFIELD(prev, in_iowait))
			flags |= GDIAG_SW_IOWAIT;
		if (bpf_core_field_exists(prev->in_memstall) &&
		    BPF_CORE_READ_BITFIELD(prev, in_memstall))
			flags |= GDIAG_SW_MEMSTALL;
		if (state == 0) {
			if (is_throttled(prev))
				flags |= GDIAG_SW_THROTTLED;
			wait_begins(p, cpu);
			p->ready_ns = now;
		} else {
			/* Woken while it ran; and the last switch of a thread takes it out for good. */
			wait_ends(p);
		}
	}
	if (nt) {
		/* BPF does not run everywhere: a waking can be missed. */
		if (!n->queue && n->off_ns && n->state && now - n->off_ns >= cfg.wait_threshold_ns)
			send_wait(next, n, now);
		wait_ends(n);
		if (n->ready_ns && now - n->ready_ns >= MIN_CPU_WAIT_NS)
			send_cpu_wait(next, n->ready_ns, now);
		n->ready_ns = 0;
		if (cfg.stacks)
			c->resumed_off_ns = n->off_ns && now - n->off_ns >= cfg.wait_threshold_ns ? n->off_ns : 0;
		n->off_ns = 0;
		n->min_flt = next->min_flt;
		n->maj_flt = next->maj_flt;
	}
	slot->flags = flags;
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	return on_switch(prev, next, preempt, prev_state);
}

/* Before 5.18 the tracepoint does not say the state; reading it may race with a wakeup. */
SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch_pre518, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	return on_switch(prev, next, preempt, task_state(prev));
}

static __always_inline struct gdiag_slot *waking_slot(struct cpu_data *c, struct task_struct *wakee,
						      struct task_struct *waker, u64 now)
{
	struct gdiag_slot *slot = next_slot(c);

	slot->ts_ns = now;
	slot->a = wakee->pid;
	slot->b = waker->pid;
	slot->kind = GDIAG_SLOT_WAKING;
	slot->flags = GDIAG_CTX_TASK;
	slot->state = 0;
	slot->nr = GDIAG_NO_SYSCALL;
	slot->min_flt = 0;
	slot->maj_flt = 0;
	return slot;
}

static __always_inline bool sends(s16 nr)
{
#ifdef __TARGET_ARCH_arm64
	return nr == 64 || nr == 66 || nr == 206 || nr == 211 || nr == 269;
#else
	return nr == 1 || nr == 20 || nr == 44 || nr == 46 || nr == 307;
#endif
}

/*
 * The thread ended a long wait of `d`: what it did before is part of the story next time. A
 * message over the loopback device arrives in a softirq, which runs on top of who sent it.
 */
static __always_inline void follow(struct task_struct *waker, struct task_data *d, u8 context, u16 vector)
{
	struct task_data *w;

	if (!waker->pid || waker->tgid == own_tgid || waker->flags & PF_EXITING || d->followed >= MAX_HOPS)
		return;
	if (context == GDIAG_CTX_SOFTIRQ && (vector != SOFTIRQ_NET_RX || !sends(syscall_nr(waker))))
		return;
	if (context == GDIAG_CTX_HARDIRQ || context == GDIAG_CTX_TIMER)
		return;
	w = bpf_task_storage_get(&tasks, waker, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!w || is_recorded(w))
		return;
	if (followed >= MAX_FOLLOWED) {
		__sync_fetch_and_add(&unfollowed, 1);
		return;
	}
	__sync_fetch_and_add(&followed, 1);
	w->min_flt = waker->min_flt;
	w->maj_flt = waker->maj_flt;
	w->nr = syscall_nr(waker);
	w->off_ns = w->ready_ns = 0;
	w->followed = d->followed + 1;
	send_task(waker, w, GDIAG_TASK_FOLLOWED, 0, 0);
}

SEC("tp_btf/sched_waking")
int BPF_PROG(sched_waking, struct task_struct *p)
{
	struct task_data *d = bpf_task_storage_get(&tasks, p, 0, 0);
	struct task_struct *waker;
	struct gdiag_slot *slot;
	struct cpu_data *c;
	u8 context;
	u16 vector;
	u64 now;

	if (!is_recorded(d) && !cfg.all)
		return 0;
	c = this_cpu();
	if (!c)
		return 0;
	waker = bpf_get_current_task_btf();
	now = bpf_ktime_get_ns();
	slot = waking_slot(c, p, waker, now);
	slot->flags = context = waker_context(&c->on_top, waker->pid, &vector);
	slot->state = vector;
	/* A waker of the same process is a target itself and known. */
	if (context == GDIAG_CTX_TASK && waker->pid && waker->tgid != p->tgid)
		introduce(waker, bpf_task_storage_get(&tasks, waker, 0, 0));

	if (!is_recorded(d))
		return 0;
	wait_begins(d, p->wake_cpu);
	d->ready_ns = now;
	if (d->off_ns && d->state && now - d->off_ns >= cfg.wait_threshold_ns) {
		send_wait(p, d, now);
		follow(waker, d, context, vector);
		/* An interrupt has nothing to do with the thread that it found there. */
		if (cfg.stacks && context == GDIAG_CTX_TASK)
			c->woken_off_ns = d->off_ns;
	}
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(sched_migrate_task, struct task_struct *p, int dest_cpu)
{
	struct task_data *d = bpf_task_storage_get(&tasks, p, 0, 0);

	/* It is on a queue or being woken, so it cannot begin to run meanwhile. */
	if (d && d->queue)
		wait_begins(d, dest_cpu);
	return 0;
}

/* A running thread is a target from now on. */
static __always_inline void mark(struct task_struct *t)
{
	struct task_data *d = bpf_task_storage_get(&tasks, t, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!d || d->target)
		return;
	d->min_flt = t->min_flt;
	d->maj_flt = t->maj_flt;
	d->nr = syscall_nr(t);
	d->target = 1;
	/* Also when it was sent before: as a stranger, that ran beside a thread marked earlier. */
	send_task(t, d, GDIAG_TASK_SEEN, 0, 0);
}

/* The kernel tells of one thread of a process that is moved; the iterator finds the others. */
SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(cgroup_attach_task, struct cgroup *to, const char *path, struct task_struct *t)
{
	if (!joins(t, to))
		return 0;
	mark(t);
	__sync_fetch_and_add(&joined, 1);
	return 0;
}

SEC("tp_btf/task_newtask")
int BPF_PROG(task_newtask, struct task_struct *t)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	struct task_data *d;

	if (!cfg.all) {
		d = bpf_task_storage_get(&tasks, parent, 0, 0);
		if (!is_target(d) && !(cfg.cgroups && is_born_into_target(t, parent)))
			return 0;
	}
	d = bpf_task_storage_get(&tasks, t, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (d) {
		d->nr = GDIAG_NO_SYSCALL;
		d->target = 1;
		send_task(t, d, GDIAG_TASK_NEW, parent->pid, 0);
	}
	return 0;
}

/* A new task is put on a run queue without a waking. */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(sched_wakeup_new, struct task_struct *p)
{
	struct task_data *d = bpf_task_storage_get(&tasks, p, 0, 0);
	struct cpu_data *c;
	u64 now;

	if (!is_target(d) && !cfg.all)
		return 0;
	c = this_cpu();
	if (!c)
		return 0;
	now = bpf_ktime_get_ns();
	waking_slot(c, p, bpf_get_current_task_btf(), now);
	if (is_target(d)) {
		wait_begins(d, p->wake_cpu);
		d->ready_ns = now;
	}
	return 0;
}

static __always_inline void send_exit(u32 tid, u32 pid, s32 code)
{
	struct gdiag_exit r = {};

	r.hdr.type = GDIAG_REC_EXIT;
	r.hdr.tid = tid;
	r.hdr.ts_ns = bpf_ktime_get_ns();
	r.pid = pid;
	r.exit_code = code;
	send(&r, sizeof(r), false);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *t, pid_t old_tid)
{
	struct task_data *d = bpf_task_storage_get(&tasks, t, 0, 0);

	if (!d || !d->seen)
		return 0;
	/* A thread that is not the first of its process takes the first one's id. */
	if (old_tid != t->pid)
		send_exit(old_tid, t->tgid, 0);
	send_task(t, d, GDIAG_TASK_EXEC, 0, 0);
	return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(task_rename, struct task_struct *t, const char *comm)
{
	struct task_data *d = bpf_task_storage_get(&tasks, t, 0, 0);

	if (d && d->seen)
		send_task(t, d, GDIAG_TASK_RENAME, 0, comm);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *t)
{
	struct task_data *d = bpf_task_storage_get(&tasks, t, 0, 0);

	if (d && d->seen)
		send_exit(t->pid, t->tgid, t->exit_code);
	if (d && d->followed)
		__sync_fetch_and_add(&followed, -1);
	return 0;
}

/* From here to there: SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU. */
#define SIGCONT 18
#define SIGTTOU 22

SEC("tp_btf/signal_generate")
int BPF_PROG(signal_generate, int sig, struct kernel_siginfo *info, struct task_struct *t)
{
	struct gdiag_signal r = {};
	struct task_struct *sender;
	struct task_data *d;

	if (sig < SIGCONT || sig > SIGTTOU)
		return 0;
	d = bpf_task_storage_get(&tasks, t, 0, 0);
	if (!is_target(d))
		return 0;
	sender = bpf_get_current_task_btf();
	r.hdr.type = GDIAG_REC_SIGNAL;
	r.hdr.tid = t->pid;
	r.hdr.ts_ns = bpf_ktime_get_ns();
	r.sender_tid = sender->pid;
	r.sig = sig;
	if (sender->pid)
		introduce(sender, bpf_task_storage_get(&tasks, sender, 0, 0));
	send(&r, sizeof(r), false);
	return 0;
}

static __always_inline void send_irq(u64 start, u8 ctx, u32 vector)
{
	struct task_struct *victim = bpf_get_current_task_btf();
	u32 cpu = bpf_get_smp_processor_id();
	struct gdiag_irq r = {};
	struct task_data *d;
	u64 dur;

	/* Most interrupts find an idle CPU. */
	if (!start || !victim->pid)
		return;
	dur = bpf_ktime_get_ns() - start;
	if (dur < MIN_IRQ_NS)
		return;
	d = bpf_task_storage_get(&tasks, victim, 0, 0);
	if (!is_recorded(d) && !cfg.all)
		return;
	r.hdr.type = GDIAG_REC_IRQ;
	r.hdr.tid = victim->pid;
	r.hdr.ts_ns = start;
	r.dur_ns = dur > 0xffffffff ? 0xffffffff : dur;
	r.cpu = cpu;
	r.ctx = ctx;
	r.vector = vector;
	send(&r, sizeof(r), false);
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(irq_handler_entry, int irq)
{
	struct cpu_data *c = this_cpu();

	if (c) {
		c->on_top.in_irq = 1;
		c->on_top.irq_nr = irq;
		c->irq_start_ns = bpf_ktime_get_ns();
	}
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(irq_handler_exit, int irq)
{
	struct cpu_data *c = this_cpu();

	if (c) {
		send_irq(c->irq_start_ns, GDIAG_CTX_HARDIRQ, irq);
		c->on_top.in_irq = 0;
		c->irq_start_ns = 0;
	}
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_entry, unsigned int vector)
{
	struct cpu_data *c = this_cpu();

	if (c) {
		c->on_top.in_softirq = 1;
		c->on_top.softirq_nr = vector;
		c->on_top.softirq_tid = bpf_get_current_task_btf()->pid;
		c->softirq_start_ns = bpf_ktime_get_ns();
	}
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit, unsigned int vector)
{
	struct cpu_data *c = this_cpu();

	if (c) {
		send_irq(c->softirq_start_ns, GDIAG_CTX_SOFTIRQ, vector);
		c->on_top.in_softirq = 0;
		c->softirq_start_ns = 0;
	}
	return 0;
}

#ifdef __TARGET_ARCH_x86
/* x86 runs these without an irq number. They do not nest on a CPU: interrupts are off. */
#define VECTOR(name)                             \
	SEC("tp_btf/" #name "_entry")            \
	int BPF_PROG(name##_entry, int vector)   \
	{                                        \
		struct cpu_data *c = this_cpu(); \
                                                 \
		if (c)                           \
			c->on_top.in_vector = 1; \
		return 0;                        \
	}                                        \
	SEC("tp_btf/" #name "_exit")             \
	int BPF_PROG(name##_exit, int vector)    \
	{                                        \
		struct cpu_data *c = this_cpu(); \
                                                 \
		if (c)                           \
			c->on_top.in_vector = 0; \
		return 0;                        \
	}

VECTOR(local_timer)
VECTOR(call_function)
VECTOR(call_function_single)
VECTOR(irq_work)
#endif

static __always_inline int stall_begins(void)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct task_data *d = bpf_task_storage_get(&tasks, t, 0, 0);

	if (is_recorded(d))
		d->stall_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int stall_ends(u32 kind)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct task_data *d = bpf_task_storage_get(&tasks, t, 0, 0);
	struct gdiag_stall r = {};

	if (!d || !d->stall_ns)
		return 0;
	r.hdr.type = GDIAG_REC_STALL;
	r.hdr.tid = t->pid;
	r.hdr.ts_ns = d->stall_ns;
	r.dur_ns = bpf_ktime_get_ns() - d->stall_ns;
	r.kind = kind;
	d->stall_ns = 0;
	send(&r, sizeof(r), false);
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(reclaim_begin)
{
	return stall_begins();
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(reclaim_end)
{
	return stall_ends(GDIAG_STALL_RECLAIM);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(memcg_reclaim_begin)
{
	return stall_begins();
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(memcg_reclaim_end)
{
	return stall_ends(GDIAG_STALL_RECLAIM);
}

SEC("tp_btf/mm_compaction_begin")
int BPF_PROG(compaction_begin)
{
	return stall_begins();
}

SEC("tp_btf/mm_compaction_end")
int BPF_PROG(compaction_end)
{
	return stall_ends(GDIAG_STALL_COMPACTION);
}

/*
 * Run by gdiag when everything else is attached, and when processes came into the cgroup of a
 * target: marks the targets and says who they are.
 * The pids it is given are those that gdiag sees, which is not what the kernel uses when
 * gdiag itself runs in a container.
 */
SEC("iter/task")
int mark_targets(struct bpf_iter__task *ctx)
{
	struct task_struct *t = ctx->task, *self = bpf_get_current_task_btf();

	note_own(self);
	if (!t || !t->pid || t->tgid == self->tgid)
		return 0;
	if (cfg.all || is_named(t))
		mark(t);
	return 0;
}

/*
 * Run by gdiag on each CPU in turn, before it reads: hands out the CPU's open chunk. On other
 * CPUs it runs in an IPI, but on gdiag's own the kernel calls it with interrupts on.
 */
SEC("raw_tp")
int flush_cpu(void *ctx)
{
	struct cpu_data *c = this_cpu();

	if (c)
		send_chunk(c);
	return 0;
}

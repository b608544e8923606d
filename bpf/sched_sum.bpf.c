// SPDX-License-Identifier: GPL-2.0
/*
 * The scheduler summed up in the kernel, of every thread of the machine: no event leaves it.
 *
 * What is kept about a thread is in its task storage, so a switch looks up two of them and no
 * map; maps are touched where something rare happens. Only BTF tracepoints.
 *
 * Who writes what:
 *  - The sums of a thread belong to sched_switch, on the CPU that it leaves or gets. The
 *    scheduler orders those, whatever CPUs they are on.
 *  - A waking leaves its time, its waker, and nothing else: it may run on another CPU while the
 *    thread is still being switched out. The switch-in adds it up.
 *  - A CPU's sums are written with interrupts off by switches; those of interrupts by interrupts,
 *    which nest but do not overlap.
 *  - The reader is on any CPU and at any time: `seq` tells it that it was disturbed.
 */
#include "task.bpf.h"
#include "target.bpf.h"
#include "sched_sum.h"

char LICENSE[] SEC("license") = "GPL";

#define TASK_UNINTERRUPTIBLE 0x02
#define TASK_DEAD 0x80
/* stopped, traced, parked, frozen */
#define TASK_STOPS (0x04 | 0x08 | 0x40 | 0x8000)

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, val) (*(volatile typeof(x) *)&(x) = (val))

/* A wake may be stamped just before the switch-out that it ends, on another CPU. */
#define EARLY_WAKE_NS 50000

const volatile struct gdiag_sum_config {
	u32 mask_bytes;	      /* of possible CPUs */
	u8 all;		      /* every thread is a target */
	u8 some_cpus;	      /* only those in `counted` count */
	u8 cgroups;	      /* whoever comes into one of target_cgroups is a target */
	u8 counted[MAX_CPUS]; /* by CPU */
	/* enum gdiag_off */
	u8 sleeps[GDIAG_SLEEP_ROWS][GDIAG_SLEEP_COLUMNS];
} cfg = { .mask_bytes = 8, .all = 1 };

/* Written by gdiag. Time counts from start to stop; 0: not yet. */
u64 start_ns;
u64 stop_ns;

/*
 * Threads that end and have not been told of: soon nobody finds them any more, and the last switch,
 * at which they are, can be late.
 */
u32 dying;

u32 joined; /* processes that came into a target's cgroup: the iterator is to be run again */

/* libbpf-cargo generates a Rust type only for what the object's BTF keeps. */
const enum gdiag_off *unused_off;
const enum gdiag_sum_flags *unused_flags;
const enum gdiag_late *unused_late;
const enum gdiag_ctx *unused_ctx;
const struct gdiag_pair_sum *unused_pair_sum;

const struct gdiag_thread_sums no_sums;

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gdiag_thread_sums);
} threads SEC(".maps");

struct cpu_data {
	struct gdiag_cpu_sums sums;
	struct on_top on_top;
	u64 irq_since_ns; /* of the first of the interrupts that run now */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_data);
} cpus SEC(".maps");

/* Thread and who took its CPU: how often, and how long it waited then. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct gdiag_pair);
	__type(value, struct gdiag_pair_sum);
} more_takers SEC(".maps");

/* Thread and CPU: run time, for threads on many CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, struct gdiag_pair);
	__type(value, struct gdiag_pair_sum);
} more_places SEC(".maps");

/* Thread and waker, for threads with many. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct gdiag_pair);
	__type(value, struct gdiag_pair_sum);
} more_wakers SEC(".maps");

/* struct gdiag_thread_sum of those that ended */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} ended SEC(".maps");

/* gdiag is woken when so much of it is waiting. */
#define WAKEUP_BYTES (2 << 20)

/* Where a record is put together: one for each kind of program that may interrupt another. */
enum scratch_of {
	OF_SWITCH,
	OF_EXEC,
	OF_READER,
	SCRATCHES,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SCRATCHES);
	__type(key, u32);
	__type(value, struct gdiag_thread_sum);
} scratch SEC(".maps");

static __always_inline struct cpu_data *this_cpu(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

static __always_inline bool is_watching(void)
{
	return start_ns && !stop_ns;
}

/* Of two CPUs, whose clocks may differ by a little. */
static __always_inline u64 span(u64 from, u64 to)
{
	return to > from ? to - from : 0;
}

static __always_inline bool counts_on(u32 cpu)
{
	return !cfg.some_cpus || (cpu < MAX_CPUS && cfg.counted[cpu & (MAX_CPUS - 1)]);
}

static __always_inline struct gdiag_thread_sums *sums_of(struct task_struct *t)
{
	return bpf_task_storage_get(&threads, t, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

static __always_inline u32 cpu_of(struct task_struct *t)
{
	if (bpf_core_field_exists(t->thread_info.cpu))
		return BPF_CORE_READ(t, thread_info.cpu);
	return BPF_CORE_READ((struct task_struct___cpu *)t, cpu);
}

/*
 * It goes on as soon as it gets a CPU. The state does not say it: a thread can be preempted on its
 * way to sleep, or find a signal there.
 */
static __always_inline bool is_runnable(struct task_struct *t, bool preempt, u32 state)
{
	if (!state || preempt)
		return true;
	if (!t->on_rq)
		return false;
	/* Since 6.12 a sleeper may stay on the queue for a while. */
	return !bpf_core_field_exists(t->se.sched_delayed) || !t->se.sched_delayed;
}

/* Why a thread sleeps. (Here and below: the verifier does not see all that the compiler knows.) */
static __always_inline u8 sleep_reason(struct task_struct *t, u32 state)
{
	u32 row, column = 0;
	s16 nr;

	if (state & TASK_STOPS)
		return GDIAG_OFF_STOPPED;
	if (bpf_core_field_exists(t->in_memstall) && BPF_CORE_READ_BITFIELD(t, in_memstall))
		return GDIAG_OFF_MEMORY;
	if (BPF_CORE_READ_BITFIELD(t, in_iowait))
		column |= GDIAG_SLEEP_IOWAIT;
	if (state & TASK_UNINTERRUPTIBLE)
		column |= GDIAG_SLEEP_UNINTERRUPTIBLE;
	if (t->flags & PF_KTHREAD) {
		row = GDIAG_SLEEP_KTHREAD;
	} else {
		nr = syscall_nr(t);
		row = nr >= 0 && nr < GDIAG_SLEEP_NO_CALL ? nr : GDIAG_SLEEP_NO_CALL;
	}
	barrier_var(row);
	barrier_var(column);
	return cfg.sleeps[row & (GDIAG_SLEEP_ROWS - 1)][column & (GDIAG_SLEEP_COLUMNS - 1)];
}

/* Why a thread that could go on lost its CPU. */
static __always_inline u8 taken_reason(struct task_struct *t)
{
	if (is_throttled(t))
		return GDIAG_OFF_THROTTLED;
	return syscall_nr(t) == SYSCALL_SCHED_YIELD ? GDIAG_OFF_YIELDED : GDIAG_OFF_PREEMPTED;
}

static __always_inline void count(u32 *buckets, u64 ns)
{
	u32 i = gdiag_bucket(ns);

	barrier_var(i);
	if (i < GDIAG_HIST_BUCKETS && buckets[i] != (u32)-1)
		buckets[i]++;
}

/* `begun` is 0 when it began before the start: such a part of a time is none to be counted. */
static __always_inline void add(struct gdiag_thread_sums *d, u32 reason, u64 ns, u32 begun)
{
	struct gdiag_off_sum *sum;

	barrier_var(reason);
	if (reason >= GDIAG_OFF_REASONS)
		return;
	sum = &d->off[reason];
	sum->count += begun;
	sum->total_ns += ns;
	if (ns > sum->max_ns)
		sum->max_ns = ns;
}

/* False: there is no room. */
static __noinline bool add_pair(void *map, u32 tid, u32 other, u64 n, u64 ns)
{
	struct gdiag_pair key = { .tid = tid, .other = other };
	struct gdiag_pair_sum new = { .count = n, .ns = ns }, *sum;

	sum = bpf_map_lookup_elem(map, &key);
	if (!sum) {
		if (!bpf_map_update_elem(map, &key, &new, BPF_NOEXIST))
			return true;
		/* Or another CPU was faster. */
		sum = bpf_map_lookup_elem(map, &key);
	}
	if (!sum)
		return false;
	__sync_fetch_and_add(&sum->count, n);
	__sync_fetch_and_add(&sum->ns, ns);
	return true;
}

/* It runs on `cpu`: from now on its time is added up for that. */
static __always_inline void place(struct gdiag_cpu_sums *c, struct gdiag_thread_sums *d, u32 tid, u32 cpu)
{
	struct gdiag_place *p;
	u32 i;

	if (d->cpu == cpu + 1)
		return;
	d->cpu = cpu + 1;
	for (i = 0; i < GDIAG_PLACES; i++) {
		p = &d->places[i];
		if (p->cpu == cpu + 1 || !p->cpu) {
			p->cpu = cpu + 1;
			d->place = i;
			return;
		}
	}
	/* The one after that of the last time makes room. */
	i = (d->place + 1) & (GDIAG_PLACES - 1);
	p = &d->places[i];
	if (p->ns && !add_pair(&more_places, tid, p->cpu - 1, 1, p->ns))
		c->no_place += p->ns;
	p->cpu = cpu + 1;
	p->ns = 0;
	d->place = i;
}

static __always_inline void add_waker(struct gdiag_thread_sums *d, u32 tid)
{
	u32 i;

	for (i = 0; i < GDIAG_WAKERS; i++) {
		if (d->wakers[i] == d->waker || !d->wakers[i]) {
			d->wakers[i] = d->waker;
			d->waker_counts[i]++;
			return;
		}
	}
	if (!add_pair(&more_wakers, tid, d->waker, 1, 0))
		d->other_wakers++;
}

/* Two that take turns on a CPU should not cost a map each time. */
static __always_inline void add_taker(struct gdiag_thread_sums *d, u32 tid, u64 ns)
{
	if (d->taken_by != d->preemptor) {
		/* Of those that are not asked for nobody wants to know. */
		if (d->taken_by && (cfg.all || d->target) &&
		    !add_pair(&more_takers, tid, d->taken_by, d->taken_count, d->taken_ns))
			d->other_takers += d->taken_count;
		d->taken_by = d->preemptor;
		d->taken_count = 0;
		d->taken_ns = 0;
	}
	d->taken_count++;
	d->taken_ns += ns;
}

static __always_inline void add_run(struct gdiag_thread_sums *d, u64 ns)
{
	if (!d->run_count || ns < d->run_min_ns)
		d->run_min_ns = ns;
	if (ns > d->run_max_ns)
		d->run_max_ns = ns;
	d->run_count++;
	count(d->runs, ns);
}

/* It loses the CPU. */
static __always_inline void leave(struct gdiag_cpu_sums *c, struct gdiag_thread_sums *d, struct task_struct *t,
				  struct task_struct *next, bool preempt, u32 state, u64 now, u32 cpu)
{
	bool counts = counts_on(cpu);
	u64 ran;

	d->seq++;
	barrier();
	if (d->on || !d->seen) {
		ran = span(d->on ? d->on_ns : start_ns, now);
		place(c, d, t->pid, cpu);
		if (counts) {
			d->run_ns += ran;
			d->places[d->place & (GDIAG_PLACES - 1)].ns += ran;
			if (d->on)
				add_run(d, ran);
			else
				d->first_run_ns = ran;
		}
	} else {
		c->missed++;
	}
	d->on = 0;
	d->seen = 1;
	d->off_ns = now;
	if (is_runnable(t, preempt, state)) {
		d->reason = taken_reason(t);
		d->preemptor = next->pid;
		d->involuntary += counts;
	} else if (!(state & TASK_DEAD)) {
		d->reason = sleep_reason(t, state);
		d->voluntary += counts;
	}
	barrier();
	d->seq++;
}

/* It gets a CPU that it could have used since `since`. */
static __always_inline void add_wait(struct gdiag_thread_sums *d, u8 reason, u64 since, u64 now, u32 behind)
{
	u64 wait = span(since, now);

	add(d, reason, wait, 1);
	count(d->runqs, wait);
	if (wait < d->runq_min_ns || !d->runq_max_at_ns)
		d->runq_min_ns = wait;
	if (wait > d->runq_max_ns || !d->runq_max_at_ns) {
		d->runq_max_ns = wait;
		d->runq_max_at_ns = now;
		d->behind = behind;
	}
}

/* It was off the CPU, since it lost it or since the start. */
static __always_inline void add_off(struct gdiag_cpu_sums *c, struct gdiag_thread_sums *d, u32 tid, u64 now, u32 behind)
{
	u64 off = d->seen ? d->off_ns : start_ns, woken = d->woken_ns;
	u8 reason = d->reason;

	if (!d->seen && woken < off) {
		d->first_wait_ns = span(off, now);
		return;
	}
	if (reason == GDIAG_OFF_THROTTLED) {
		/* It ends without a waking. */
		add(d, reason, span(off, now), 1);
		return;
	}
	if (reason <= GDIAG_OFF_YIELDED) {
		/* Whom the idle task follows was moved, or held back by another rule than a quota. */
		if (reason == GDIAG_OFF_PREEMPTED && d->preemptor)
			add_taker(d, tid, span(off, now));
		add_wait(d, reason, off, now, behind);
		return;
	}
	if (woken >= off) {
		add(d, reason, woken - off, d->seen);
	} else if (woken + EARLY_WAKE_NS >= off) {
		woken = off;
	} else {
		/* BPF does not run everywhere: since when it could run is not known. */
		add(d, reason, span(off, now), 1);
		c->missed++;
		return;
	}
	add_wait(d, GDIAG_OFF_WOKEN, woken, now, behind);
	add_waker(d, tid);
}

/* It gets the CPU. */
static __always_inline void arrive(struct gdiag_cpu_sums *c, struct gdiag_thread_sums *d, struct task_struct *t,
				   struct task_struct *prev, u64 now, u32 cpu)
{
	d->seq++;
	barrier();
	if (d->on) {
		c->missed++;
	} else if (counts_on(cpu)) {
		add_off(c, d, t->pid, now, prev->pid);
		if (d->cpu && d->cpu != cpu + 1)
			d->migrations++;
	}
	place(c, d, t->pid, cpu);
	d->on = 1;
	d->seen = 1;
	d->on_ns = now;
	barrier();
	d->seq++;
}

/* Its numbers where gdiag runs. */
static __always_inline void proc_ids(struct task_struct *t, u32 *tid, u32 *pid)
{
	u32 inner;

	ids(BPF_CORE_READ(t, thread_pid), &inner, tid);
	ids(BPF_CORE_READ(t, group_leader, thread_pid), &inner, pid);
}

static __always_inline struct gdiag_thread_sum *my_scratch(u32 of)
{
	return bpf_map_lookup_elem(&scratch, &of);
}

/* Everything but the sums. */
static __always_inline void describe(struct gdiag_thread_sum *r, struct task_struct *t, u64 now)
{
	u32 state = task_state(t), bytes = cfg.mask_bytes;

	r->size = sizeof(*r);
	r->tid = t->pid;
	r->pid = t->tgid;
	proc_ids(t, &r->proc_tid, &r->proc_pid);
	r->prio = t->prio;
	r->now_ns = now;
	r->start_ns = t->start_time;
	r->task = (u64)t;
	r->flags = 0;
	if (t->flags & PF_KTHREAD)
		r->flags |= GDIAG_SUM_KTHREAD;
	if (t->tgid == own_tgid)
		r->flags |= GDIAG_SUM_OWN;
	if (t->on_cpu)
		r->flags |= GDIAG_SUM_ON_CPU;
	r->reason = is_runnable(t, false, state) ? GDIAG_OFF_WOKEN : sleep_reason(t, state);
	r->cpu = cpu_of(t);
	bpf_probe_read_kernel_str(r->comm, sizeof(r->comm), t->comm);
	/* All zero: it is not known. */
	if (bytes <= sizeof(r->allowed))
		bpf_probe_read_kernel(r->allowed, bytes, t->cpus_ptr);
}

/* It is no more, or will go on as somebody else. */
static __noinline int send_end(struct task_struct *t, struct gdiag_thread_sums *d, u32 tid, u32 of, u64 now)
{
	struct gdiag_thread_sum *r = my_scratch(of);
	struct cpu_data *c = this_cpu();
	u64 flags;

	if (!t || !d || !r || !c)
		return 0;
	describe(r, t, now);
	r->tid = tid;
	r->flags |= GDIAG_SUM_ENDED;
	if (cfg.all || d->target)
		r->flags |= GDIAG_SUM_TARGET;
	/* The kernel may have taken its number back already. */
	if (!r->proc_tid) {
		r->proc_tid = d->proc_tid;
		r->proc_pid = d->proc_pid;
	}
	if (of == OF_EXEC)
		r->proc_tid = own_level ? 0 : tid;
	bpf_probe_read_kernel(&r->sums, sizeof(r->sums), d);
	flags = bpf_ringbuf_query(&ended, BPF_RB_AVAIL_DATA) >= WAKEUP_BYTES ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
	if (bpf_ringbuf_output(&ended, r, sizeof(*r), flags))
		c->sums.unsent++;
	return 0;
}

/* Its last switch. */
static __always_inline void end(struct task_struct *t, struct gdiag_thread_sums *d, u64 now)
{
	d->ended = 1;
	send_end(t, d, t->pid, OF_SWITCH, now);
	if (d->dying)
		__sync_fetch_and_add(&dying, -1);
}

static __always_inline void note_late(struct gdiag_thread_sums *d, u8 late)
{
	if (d && !d->seen && !d->late && !d->woken_ns)
		d->late = late;
}

/*
 * Time is over, but not yet read: nothing is added up. Whoever ends is told of as of then, and of
 * those that did nothing until then it is noted what that was.
 */
static __noinline int after_stop(struct task_struct *prev, struct task_struct *next, u32 state)
{
	struct gdiag_thread_sums *d;

	if (!prev || !next || !stop_ns)
		return 0;
	if (prev->pid) {
		d = sums_of(prev);
		note_late(d, GDIAG_LATE_RAN);
		if (d && !d->ended && state & TASK_DEAD)
			end(prev, d, stop_ns);
	}
	if (next->pid)
		note_late(sums_of(next), GDIAG_LATE_WAITED);
	return 0;
}

static __always_inline void woken_after_stop(struct task_struct *t)
{
	struct gdiag_thread_sums *d = stop_ns ? sums_of(t) : 0;

	if (!d || d->seen || d->late || d->woken_ns)
		return;
	d->reason = sleep_reason(t, task_state(t));
	d->late = GDIAG_LATE_SLEPT;
}

static __always_inline int on_switch(bool preempt, struct task_struct *prev, struct task_struct *next, u32 state)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct gdiag_thread_sums *d;
	struct gdiag_cpu_sums *c;
	struct cpu_data *this;
	u64 now, time;

	if (!is_watching())
		return after_stop(prev, next, state);
	this = this_cpu();
	if (!this)
		return 0;
	c = &this->sums;
	now = bpf_ktime_get_ns();
	time = span(c->task ? c->since_ns : start_ns, now);
	if (c->task && c->task != (u64)prev)
		c->unknown_ns += time;
	else if (prev->pid)
		c->busy_ns += time;
	else
		c->idle_ns += time;
	c->task = (u64)next;
	c->since_ns = now;
	c->idle = !next->pid;
	c->switches++;

	/* pid 0 is one idle task for each CPU, all with the same id */
	if (prev->pid) {
		d = sums_of(prev);
		if (d) {
			leave(c, d, prev, next, preempt, state, now, cpu);
			if (state & TASK_DEAD)
				end(prev, d, now);
		} else {
			c->no_memory++;
		}
	}
	if (next->pid) {
		d = sums_of(next);
		if (d)
			arrive(c, d, next, prev, now, cpu);
		else
			c->no_memory++;
	}
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	return on_switch(preempt, prev, next, prev_state);
}

/* Before 5.18 the tracepoint does not say the state; reading it may race with a wakeup. */
SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch_pre518, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	return on_switch(preempt, prev, next, task_state(prev));
}

SEC("tp_btf/sched_waking")
int BPF_PROG(sched_waking, struct task_struct *p)
{
	struct gdiag_thread_sums *d;
	struct cpu_data *c;
	u16 vector;
	u8 context;
	u32 by;

	if (!is_watching()) {
		woken_after_stop(p);
		return 0;
	}
	c = this_cpu();
	if (!c)
		return 0;
	d = sums_of(p);
	if (!d) {
		c->sums.no_memory++;
		return 0;
	}
	/* It went to sleep before the start. */
	if (!d->seen)
		d->reason = sleep_reason(p, task_state(p));
	by = bpf_get_current_task_btf()->pid;
	context = waker_context(&c->on_top, by, &vector);
	if (context == GDIAG_CTX_TASK)
		by |= GDIAG_BY_THREAD;
	else
		by = GDIAG_BY_INTERRUPT | (u32)context << 16 | vector;
	d->waker = by;
	d->woken_ns = bpf_ktime_get_ns();
	return 0;
}

/* A new thread is put on a run queue without a waking. */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(sched_wakeup_new, struct task_struct *p)
{
	struct gdiag_thread_sums *d;
	struct cpu_data *c;

	if (!is_watching())
		return 0;
	d = sums_of(p);
	if (d) {
		d->off_ns = bpf_ktime_get_ns();
		d->reason = GDIAG_OFF_NEW;
		d->seen = 1;
	} else {
		c = this_cpu();
		if (c)
			c->sums.no_memory++;
	}
	return 0;
}

static __always_inline void mark(struct task_struct *t)
{
	struct gdiag_thread_sums *d = sums_of(t);

	if (d)
		d->target = 1;
}

/* The children of a target are targets. */
SEC("tp_btf/task_newtask")
int BPF_PROG(task_newtask, struct task_struct *t)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	struct gdiag_thread_sums *d = bpf_task_storage_get(&threads, parent, 0, 0);

	if ((d && d->target) || (cfg.cgroups && is_born_into_target(t, parent)))
		mark(t);
	return 0;
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

/*
 * A thread that is not the first of its process takes the first one's id: what it did until now
 * is told under the old one. It goes on with nothing but its state.
 */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *t, pid_t old_tid)
{
	struct gdiag_thread_sums *d;
	u32 cpu, target;
	u64 now;

	if (!is_watching() || old_tid == t->pid)
		return 0;
	d = bpf_task_storage_get(&threads, t, 0, 0);
	if (!d)
		return 0;
	now = bpf_ktime_get_ns();
	send_end(t, d, old_tid, OF_EXEC, now);
	cpu = d->cpu;
	target = d->target;
	bpf_probe_read_kernel(d, sizeof(*d), &no_sums);
	d->target = target;
	d->seen = d->on = 1;
	d->on_ns = now;
	d->cpu = d->places[0].cpu = cpu;
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *t)
{
	struct gdiag_thread_sums *d;

	if (!start_ns)
		return 0;
	d = sums_of(t);
	if (d && !d->dying) {
		d->dying = 1;
		proc_ids(t, &d->proc_tid, &d->proc_pid);
		__sync_fetch_and_add(&dying, 1);
	}
	return 0;
}

/*
 * The time of the outermost interrupt. Its mark is set before its time begins and after it has
 * ended, so that another one in between neither begins nor ends it. Where softirqs are threads
 * (PREEMPT_RT) they are none.
 */
static __always_inline bool counts_softirq(void)
{
	return !bpf_core_field_exists(((struct task_struct___rt *)0)->softirq_disable_cnt);
}

static __always_inline bool in_counted_softirq(struct cpu_data *c)
{
	return c->on_top.in_softirq && counts_softirq();
}

static __always_inline void time_begins(struct cpu_data *c)
{
	WRITE_ONCE(c->irq_since_ns, bpf_ktime_get_ns());
}

static __always_inline void time_ends(struct cpu_data *c)
{
	u64 since = READ_ONCE(c->irq_since_ns);

	if (since && is_watching())
		c->sums.irq_ns += span(since > start_ns ? since : start_ns, bpf_ktime_get_ns());
	WRITE_ONCE(c->irq_since_ns, 0);
}

static __always_inline void hard_begins(struct cpu_data *c)
{
	if (!in_counted_softirq(c))
		time_begins(c);
}

static __always_inline void hard_ends(struct cpu_data *c)
{
	if (!in_counted_softirq(c))
		time_ends(c);
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(irq_handler_entry, int irq)
{
	struct cpu_data *c = this_cpu();

	if (c) {
		c->on_top.in_irq = 1;
		hard_begins(c);
		c->on_top.irq_nr = irq;
	}
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(irq_handler_exit, int irq)
{
	struct cpu_data *c = this_cpu();

	if (c) {
		hard_ends(c);
		c->on_top.in_irq = 0;
	}
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_entry, unsigned int vector)
{
	struct cpu_data *c = this_cpu();

	if (c) {
		WRITE_ONCE(c->on_top.in_softirq, 1);
		barrier();
		if (counts_softirq())
			time_begins(c);
		c->on_top.softirq_nr = vector;
		c->on_top.softirq_tid = bpf_get_current_task_btf()->pid;
	}
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit, unsigned int vector)
{
	struct cpu_data *c = this_cpu();

	if (c) {
		if (counts_softirq())
			time_ends(c);
		barrier();
		WRITE_ONCE(c->on_top.in_softirq, 0);
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
		if (c) {                         \
			c->on_top.in_vector = 1; \
			hard_begins(c);          \
		}                                \
		return 0;                        \
	}                                        \
	SEC("tp_btf/" #name "_exit")             \
	int BPF_PROG(name##_exit, int vector)    \
	{                                        \
		struct cpu_data *c = this_cpu(); \
                                                 \
		if (c) {                         \
			hard_ends(c);            \
			c->on_top.in_vector = 0; \
		}                                \
		return 0;                        \
	}

VECTOR(local_timer)
VECTOR(call_function)
VECTOR(call_function_single)
VECTOR(irq_work)
#endif

/* Run by gdiag: marks the targets. The pids it is given are those that gdiag sees. */
SEC("iter/task")
int mark_targets(struct bpf_iter__task *ctx)
{
	struct task_struct *t = ctx->task, *self = bpf_get_current_task_btf();

	note_own(self);
	if (!t || !t->pid || t->tgid == self->tgid)
		return 0;
	if (is_named(t))
		mark(t);
	return 0;
}

/* Run by gdiag: writes a struct gdiag_thread_sum of each thread. One without sums did nothing since the start. */
SEC("iter/task")
int read_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *t = ctx->task;
	struct gdiag_thread_sums *d;
	struct gdiag_thread_sum *r;
	bool whole = true, slept;
	u32 size, seq, state;
	u8 reason;
	int i;

	if (!t || !t->pid)
		return 0;
	r = my_scratch(OF_READER);
	if (!r)
		return 0;
	state = task_state(t);
	slept = !is_runnable(t, false, state);
	reason = slept ? sleep_reason(t, state) : 0;
	d = bpf_task_storage_get(&threads, t, 0, 0);
	if (d ? d->ended : task_state(t) & TASK_DEAD)
		return 0;
	size = sizeof(*r) - sizeof(r->sums);
	if (d) {
		size = sizeof(*r);
		for (i = 0; i < 4; i++) {
			seq = READ_ONCE(d->seq);
			barrier();
			bpf_probe_read_kernel(&r->sums, sizeof(r->sums), d);
			barrier();
			whole = seq == READ_ONCE(d->seq) && !(seq & 1);
			if (whole)
				break;
		}
	}
	/* After the sums, so that no time in them is open. */
	describe(r, t, stop_ns ? stop_ns : bpf_ktime_get_ns());
	r->size = size;
	/* It is woken while it is read: that is not in its sums, which would make it one that waits since it slept. */
	if (slept)
		r->reason = reason;
	if (cfg.all || (d && d->target))
		r->flags |= GDIAG_SUM_TARGET;
	if (!whole)
		r->flags |= GDIAG_SUM_TORN;
	if (size > sizeof(*r))
		return 0;
	bpf_seq_write(ctx->meta->seq, r, size);
	return 0;
}

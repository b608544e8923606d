/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the BPF objects share: the configuration, the maps (the second object uses those of
 * the first), and how a record is sent.
 */
#ifndef GDIAG_COMMON_BPF_H
#define GDIAG_COMMON_BPF_H

#include "task.bpf.h"

#define MAX_RINGS 64

const volatile struct gdiag_config {
	u64 wait_threshold_ns; /* waits at least this long get a stack */
	u32 cpus_per_ring;
	u32 wakeup_bytes;		/* wake the reader when a ring holds this much */
	char shim_comm[GDIAG_COMM_LEN]; /* the name of a shim's thread, NUL-terminated */
	u32 cpus;			/* possible ones */
	u16 online;
	u8 all;	    /* every task is a target */
	u8 stacks;  /* the second object is there: note for it who was off the CPU for long */
	u8 cgroups; /* whoever comes into one of target_cgroups is a target */
} cfg = { .wait_threshold_ns = 100000, .cpus_per_ring = MAX_CPUS, .wakeup_bytes = 1 << 20 };

struct task_data {
	u64 off_ns;   /* when it was switched out; 0 while it runs or when unknown */
	u64 ready_ns; /* since when it could run and does not; 0 while it runs or sleeps */
	u64 stall_ns; /* start of direct reclaim or compaction; 0 outside */
	u64 yield_ns; /* the first and the last of a series of yields; 0: none */
	u64 yielded_ns;
	u32 min_flt; /* at switch-in */
	u32 maj_flt;
	u32 queue; /* 1 + the CPU that counts it in waiting[]; 0: none does */
	u16 state; /* at switch-out */
	s16 nr;
	u8 target;
	u8 followed; /* not a target, but it ended a long wait of one: 1, or of a thread followed at one hop less */
	u8 seen;     /* its identity was sent */
	u8 pad[5];
};

struct cpu_data {
	struct gdiag_chunk chunks[2];
	u64 irq_start_ns;
	u64 softirq_start_ns;
	struct on_top on_top;
	u32 open;	    /* the chunk that is being filled */
	u32 next_tid;	    /* the thread that was switched in last */
	u64 resumed_off_ns; /* when the target that was just switched in left the CPU, if that was long ago; else 0 */
	u64 woken_off_ns;   /* when the target that this CPU's thread is waking went to sleep, if that was long ago; else 0 */
	u8 sending;	    /* the other one is being sent */
	u8 pad[7];
};

/* Read by gdiag: what did not fit. */
struct cpu_losses {
	u64 slots;
	u64 records;
	u64 stacks; /* a wait whose stack could not be walked */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_data);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_data);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_losses);
} losses SEC(".maps");

/* Calls of the CUDA driver inside of calls: its functions seldom use each other by their exported names. */
#define MAX_CALL_DEPTH 4

/* A call of the driver that has not returned, while probes measure them. */
struct open_call {
	u64 start_ns; /* 0: it was sent already */
	u64 sp;	      /* as it will be after the return */
	u64 ra;	      /* where it returns to; on the stack is the kernel's address instead */
	u32 cbid;
	u32 pad;
};

struct driver_task {
	u32 watch;
	u32 depth;
	struct open_call calls[MAX_CALL_DEPTH]; /* the innermost is the last of `depth` */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct driver_task);
} driver_tasks SEC(".maps");

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_RINGS);
	__type(key, u32);
	__array(values, struct ring);
} rings SEC(".maps");

static __always_inline struct cpu_data *this_cpu(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

static __always_inline void *my_ring(void)
{
	u32 ring = bpf_get_smp_processor_id() / cfg.cpus_per_ring;

	return bpf_map_lookup_elem(&rings, &ring);
}

static __always_inline void count_lost_record(void)
{
	u32 zero = 0;
	struct cpu_losses *l = bpf_map_lookup_elem(&losses, &zero);

	if (l)
		__sync_fetch_and_add(&l->records, 1);
}

/*
 * A wakeup of the reader for each record costs up to 155 times the record (measured on 6.18),
 * so it is woken only when much is pending; otherwise it looks every 100 ms.
 */
static __always_inline u64 wakeup_flags(void *ring)
{
	return bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) >= cfg.wakeup_bytes ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

static __always_inline void send(void *rec, u64 size, bool urgent)
{
	void *ring = my_ring();

	if (!ring || bpf_ringbuf_output(ring, rec, size,
					urgent ? BPF_RB_FORCE_WAKEUP : wakeup_flags(ring)))
		count_lost_record();
}

/* Yields that are further apart are not one wait. */
#define YIELD_SPACING_NS 20000

/* A shorter series is not worth a record. */
#define MIN_YIELDS_NS 20000

static __always_inline void end_yields(struct task_data *d, u32 tid)
{
	struct gdiag_stall r = {};

	if (d->yielded_ns - d->yield_ns >= MIN_YIELDS_NS) {
		r.hdr.type = GDIAG_REC_STALL;
		r.hdr.tid = tid;
		r.hdr.ts_ns = d->yield_ns;
		r.dur_ns = d->yielded_ns - d->yield_ns;
		r.kind = GDIAG_STALL_YIELD;
		send(&r, sizeof(r), false);
	}
	d->yield_ns = 0;
}

static __always_inline bool is_target(struct task_data *d)
{
	return d && d->target;
}

/* Every switch and long wait of it is recorded. */
static __always_inline bool is_recorded(struct task_data *d)
{
	return d && (d->target || d->followed);
}

#endif /* GDIAG_COMMON_BPF_H */

/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Every struct and constant that crosses from the kernel to gdiag.
 *
 * This is the only definition. The BPF programs include it; the Rust side uses
 * the types that libbpf-cargo generates from the object's BTF. Times are ns of
 * CLOCK_MONOTONIC (bpf_ktime_get_ns). Ids are the host's: pid = thread group,
 * tid = thread, as user space says it.
 *
 * Two transports share each ring buffer:
 *  - switches and wakeups are packed as slots into a chunk for each
 *    CPU, because one ring-buffer reservation per switch costs more than all
 *    the rest of the program;
 *  - everything rare is a record of its own that starts with gdiag_rec_hdr.
 * Both start with a u32 type, so the reader can tell them apart.
 */
#ifndef GDIAG_EVENTS_H
#define GDIAG_EVENTS_H

#define GDIAG_COMM_LEN 16
#define GDIAG_STACK_DEPTH 32

/* Slots of a chunk. 8 B header + 170 * 24 B = 4088 B, one page with the ring's own header. */
#define GDIAG_CHUNK_SLOTS 170

enum gdiag_rec_type {
	GDIAG_REC_CHUNK = 1,  /* struct gdiag_chunk, cut after its last used slot */
	GDIAG_REC_TASK = 2,   /* struct gdiag_task: identity of a thread, and each change of it */
	GDIAG_REC_EXIT = 3,   /* struct gdiag_exit: a thread is no more, or has another id from now on */
	GDIAG_REC_WAIT = 4,   /* struct gdiag_wait: a wait beyond the threshold has ended */
	GDIAG_REC_STALL = 5,  /* struct gdiag_stall: direct reclaim or compaction */
	GDIAG_REC_SIGNAL = 6, /* struct gdiag_signal: a stop or continue signal was sent to a target */
	GDIAG_REC_IRQ = 7,    /* struct gdiag_irq: an interrupt took time from a target */
};

enum gdiag_slot_kind {
	GDIAG_SLOT_SWITCH = 1, /* a = prev tid, b = next tid, state = prev's raw __state, nr, min_flt, maj_flt */
	GDIAG_SLOT_WAKING = 2, /* a = wakee tid, b = waker tid, flags = enum gdiag_ctx, state = irq or vector */
};

/* Flags of a switch, about prev. */
enum gdiag_sw_flags {
	GDIAG_SW_PREEMPT = 0x01,   /* __schedule(SM_PREEMPT): prev was in the kernel; that does not mean it was preempted */
	GDIAG_SW_IOWAIT = 0x02,	   /* task->in_iowait */
	GDIAG_SW_MEMSTALL = 0x04,  /* task->in_memstall: reclaim, thrashing, compaction */
	GDIAG_SW_THROTTLED = 0x08, /* its cgroup's CPU quota is used up */
	GDIAG_SW_EXITING = 0x10,   /* PF_EXITING */
};

/* Where a waker or an interrupt ran. */
enum gdiag_ctx {
	GDIAG_CTX_TASK = 0,
	GDIAG_CTX_HARDIRQ = 1, /* state = irq number */
	GDIAG_CTX_SOFTIRQ = 2, /* state = softirq vector */
	GDIAG_CTX_TIMER = 3,   /* the local timer, or another vector without an irq number */
};

#define GDIAG_NO_SYSCALL (-1)

struct gdiag_slot {
	unsigned long long ts_ns;
	unsigned int a;
	unsigned int b;
	unsigned char kind; /* enum gdiag_slot_kind */
	unsigned char flags;
	unsigned short state;
	short nr;	       /* system call that prev was in, GDIAG_NO_SYSCALL outside of one */
	unsigned char min_flt; /* minor and major faults of prev since it was switched in, saturating */
	unsigned char maj_flt;
};

struct gdiag_chunk {
	unsigned int type; /* GDIAG_REC_CHUNK */
	unsigned short cpu;
	unsigned short count; /* used slots */
	struct gdiag_slot slots[GDIAG_CHUNK_SLOTS];
};

struct gdiag_rec_hdr {
	unsigned int type; /* enum gdiag_rec_type */
	unsigned int tid;
	unsigned long long ts_ns;
};

/* Why a task record was sent. */
enum gdiag_task_reason {
	GDIAG_TASK_SEEN = 0, /* first sight: it was there at the start, ran instead of a target or woke one */
	GDIAG_TASK_NEW = 1,  /* fork or clone; parent_tid is who did it */
	GDIAG_TASK_EXEC = 2,
	GDIAG_TASK_RENAME = 3,
};

struct gdiag_task {
	struct gdiag_rec_hdr hdr;
	unsigned long long start_ns;  /* task->start_time, CLOCK_MONOTONIC */
	unsigned long long cgroup_id; /* default hierarchy, 0 when unknown */
	unsigned int pid;
	unsigned int ppid;	 /* real parent's pid */
	unsigned int parent_tid; /* for GDIAG_TASK_NEW, else 0 */
	unsigned int ns_tid;	 /* ids in the innermost PID namespace of the thread */
	unsigned int ns_pid;
	unsigned char reason;  /* enum gdiag_task_reason */
	unsigned char target;  /* 1: part of the target */
	unsigned char kthread; /* 1: PF_KTHREAD */
	unsigned char on_cpu;  /* 1: was running when the record was made */
	char comm[GDIAG_COMM_LEN];
	unsigned short state;  /* raw __state when the record was made (GDIAG_TASK_SEEN) */
	short nr;	       /* system call it was in, as in the slot */
	unsigned int prio;     /* task->prio: below 100 is real time */
	unsigned int proc_tid; /* ids in gdiag's own PID namespace, for /proc; 0 when not visible there */
	unsigned int proc_pid;
};

struct gdiag_exit {
	struct gdiag_rec_hdr hdr;
	unsigned int pid;
	int exit_code; /* task->exit_code, wait(2) encoding */
};

struct gdiag_wait {
	struct gdiag_rec_hdr hdr;    /* ts_ns = end of the wait (the waking), tid = the wakee */
	unsigned long long start_ns; /* switched out */
	unsigned long long args[3];  /* of the system call; 0 without one */
	unsigned short state;	     /* raw __state it slept in */
	short nr;
	unsigned int frames;			   /* used entries of ips; 0 when the walk failed */
	unsigned long long ips[GDIAG_STACK_DEPTH]; /* kernel stack, leaf first */
};

enum gdiag_stall_kind {
	GDIAG_STALL_RECLAIM = 0,
	GDIAG_STALL_COMPACTION = 1,
};

struct gdiag_stall {
	struct gdiag_rec_hdr hdr; /* ts_ns = start */
	unsigned long long dur_ns;
	unsigned int kind; /* enum gdiag_stall_kind */
	unsigned int pad;
};

struct gdiag_signal {
	struct gdiag_rec_hdr hdr; /* tid = receiver */
	unsigned int sender_tid;
	unsigned int sig;
};

struct gdiag_irq {
	struct gdiag_rec_hdr hdr; /* ts_ns = start, tid = the thread that was interrupted */
	unsigned int dur_ns;
	unsigned short cpu;
	unsigned char ctx; /* enum gdiag_ctx */
	unsigned char pad;
	unsigned int vector; /* irq number or softirq vector */
	unsigned int pad2;
};

/* Never sent: it makes BTF, and so the generated Rust types, keep the enumerators. */
struct gdiag_enums {
	enum gdiag_rec_type rec_type;
	enum gdiag_slot_kind slot_kind;
	enum gdiag_sw_flags sw_flags;
	enum gdiag_ctx ctx;
	enum gdiag_task_reason task_reason;
	enum gdiag_stall_kind stall_kind;
};

#ifdef __bpf__
_Static_assert(sizeof(struct gdiag_slot) == 24, "slot");
_Static_assert(sizeof(struct gdiag_chunk) == 8 + 24 * GDIAG_CHUNK_SLOTS, "chunk");
_Static_assert(sizeof(struct gdiag_rec_hdr) == 16, "hdr");
_Static_assert(sizeof(struct gdiag_task) == 88, "task");
_Static_assert(sizeof(struct gdiag_exit) == 24, "exit");
_Static_assert(sizeof(struct gdiag_wait) == 56 + 8 * GDIAG_STACK_DEPTH, "wait");
_Static_assert(sizeof(struct gdiag_stall) == 32, "stall");
_Static_assert(sizeof(struct gdiag_signal) == 24, "signal");
_Static_assert(sizeof(struct gdiag_irq) == 32, "irq");
#endif

#endif /* GDIAG_EVENTS_H */

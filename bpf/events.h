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

#include "histogram.h"

#define GDIAG_COMM_LEN 16
#define GDIAG_STACK_DEPTH 32

/* Slots of a chunk. 8 B header + 170 * 24 B = 4088 B, one page with the ring's own header. */
#define GDIAG_CHUNK_SLOTS 170

enum gdiag_rec_type {
	GDIAG_REC_CHUNK = 1,	 /* struct gdiag_chunk, cut after its last used slot */
	GDIAG_REC_TASK = 2,	 /* struct gdiag_task: identity of a thread, and each change of it */
	GDIAG_REC_EXIT = 3,	 /* struct gdiag_exit: a thread is no more, or has another id from now on */
	GDIAG_REC_WAIT = 4,	 /* struct gdiag_wait: a wait beyond the threshold has ended */
	GDIAG_REC_STALL = 5,	 /* struct gdiag_stall: direct reclaim or compaction */
	GDIAG_REC_SIGNAL = 6,	 /* struct gdiag_signal: a stop or continue signal was sent to a target */
	GDIAG_REC_IRQ = 7,	 /* struct gdiag_irq: an interrupt took time from a target */
	GDIAG_REC_SAMPLE = 8,	 /* struct gdiag_sample, cut after its last frame: where a target was */
	GDIAG_REC_PYCODE = 9,	 /* struct gdiag_pycode, cut after its last byte: a Python function */
	GDIAG_REC_CPU_WAIT = 10, /* struct gdiag_cpu_wait: a target got a CPU after a long time without */
	GDIAG_REC_RESUMED = 11,	 /* struct gdiag_resumed: a switch that only its end was seen of */
	GDIAG_REC_CALL = 12,	 /* struct gdiag_call: a call of the CUDA driver is over */
	GDIAG_REC_SYSCALL = 13,	 /* struct gdiag_syscall, cut after its last byte: a system call has returned */
	GDIAG_REC_SYS_OPEN = 14, /* the same of one that has not: its thread ends in it, or gdiag asks */
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
	GDIAG_TASK_FOLLOWED = 4, /* it ended a long wait: from now on it is recorded like a target */
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
	unsigned long long inode;    /* of the open file with the number args[0], 0: there is none */
	unsigned short mode;	     /* of that, as in stat(2) */
	unsigned short state;	     /* raw __state it slept in */
	short nr;
	unsigned short frames;			   /* used entries of ips; 0 when the walk failed */
	unsigned long long ips[GDIAG_STACK_DEPTH]; /* kernel stack, leaf first */
};

struct gdiag_resumed {
	struct gdiag_rec_hdr hdr; /* tid = the thread that runs now */
	unsigned int prev_tid;	  /* that was the last to get the CPU, as far as was seen */
	unsigned int cpu;
};

struct gdiag_cpu_wait {
	struct gdiag_rec_hdr hdr;    /* ts_ns = switched in */
	unsigned long long start_ns; /* could run since */
	unsigned short allowed;	     /* CPUs that it may run on */
	unsigned short online;
	unsigned short idle; /* CPUs that it may not run on and that are idle */
	unsigned short pad;
};

/* A cgroup, by the number of its directory's inode. */
struct gdiag_cgroup {
	unsigned long long id;
	unsigned int hierarchy; /* as in /proc/PID/cgroup; 0 is that of version 2 */
	unsigned int pad;
};

enum gdiag_stall_kind {
	GDIAG_STALL_RECLAIM = 0,
	GDIAG_STALL_COMPACTION = 1,
	GDIAG_STALL_YIELD = 2, /* calls of sched_yield, one after another, which nobody else made use of */
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

/* Why a stack was taken. */
enum gdiag_sample_kind {
	GDIAG_SAMPLE_CPU = 1,	 /* by the timer, while it ran */
	GDIAG_SAMPLE_OFF = 2,	 /* it runs again after a long time off the CPU, since since_ns */
	GDIAG_SAMPLE_WAKER = 3,	 /* it wakes the thread `other` out of a long wait that began at since_ns */
	GDIAG_SAMPLE_LAUNCH = 4, /* it calls the driver's launch function */
};

/* Where a user stack ends. Everything but the root means that callers are missing. */
enum gdiag_cut {
	GDIAG_CUT_ROOT = 0,	   /* it does not: the last frame is the first function of the thread */
	GDIAG_CUT_NO_MAPS = 1,	   /* gdiag has not told of this process yet */
	GDIAG_CUT_UNMAPPED = 2,	   /* code outside of every mapped file */
	GDIAG_CUT_NO_TABLE = 3,	   /* no unwind table for this address, or not yet */
	GDIAG_CUT_UNSUPPORTED = 4, /* the table says how in a way that is not followed */
	GDIAG_CUT_UNREADABLE = 5,  /* the stack could not be read */
	GDIAG_CUT_DEPTH = 6,	   /* more frames than GDIAG_USER_DEPTH */
	GDIAG_CUT_NONE = 7,	   /* there is no user stack: a kernel thread, or an exiting one */
};

/* How far the Python frames go. */
enum gdiag_py_cut {
	GDIAG_PY_NONE = 0,	 /* not a Python process, or not known as one yet */
	GDIAG_PY_ROOT = 1,	 /* all frames of the thread */
	GDIAG_PY_NO_THREAD = 2,	 /* the interpreter does not know this thread */
	GDIAG_PY_UNREADABLE = 3, /* a structure could not be read */
	GDIAG_PY_DEPTH = 4,	 /* more frames than GDIAG_PY_DEPTH_MAX */
};

/* In a user frame: an instruction that was about to run when a signal came, no return address. */
#define GDIAG_FRAME_EXACT (1ULL << 63)

#define GDIAG_KERNEL_DEPTH 64
#define GDIAG_USER_DEPTH 256
#define GDIAG_PY_DEPTH_MAX 128

/* Bits of gdiag_sample.flags */
enum gdiag_sample_flags {
	GDIAG_SAMPLE_IN_CALL = 1,  /* the leaf user frame is a system call's or a fault's, not a running instruction */
	GDIAG_SAMPLE_COLLECTS = 2, /* its Python interpreter says that this thread collects garbage */
};

/* Bits of gdiag_py_frame.flags */
enum gdiag_py_flags {
	GDIAG_PY_ENTRY = 1, /* the outermost frame that one call of the C evaluation loop runs */
};

struct gdiag_py_frame {
	unsigned long long code; /* address of the code object; a GDIAG_REC_PYCODE told of it before */
	int instr;		 /* offset of the instruction in its bytecode, in bytes; -1 before the first */
	unsigned int flags;	 /* enum gdiag_py_flags */
};

struct gdiag_sample {
	struct gdiag_rec_hdr hdr;
	unsigned long long since_ns; /* GDIAG_SAMPLE_OFF, GDIAG_SAMPLE_WAKER */
	unsigned int pid;
	unsigned int other;	 /* tid; GDIAG_SAMPLE_WAKER */
	unsigned int generation; /* of the maps the stack was walked with */
	unsigned int py_holder;	 /* tid, as the interpreter knows it, of the thread with the GIL; 0: nobody or unknown */
	unsigned char kind;	 /* enum gdiag_sample_kind */
	unsigned char cut;	 /* enum gdiag_cut */
	unsigned char py_cut;	 /* enum gdiag_py_cut */
	unsigned char flags;	 /* enum gdiag_sample_flags */
	unsigned short kernel;	 /* frames: kernel and user addresses of 8 bytes, then struct gdiag_py_frame */
	unsigned short user;
	unsigned short python;
	unsigned short cpu;
	unsigned int one_in; /* GDIAG_SAMPLE_LAUNCH: it is one of so many */
	/* leaf first; user frames but the leaf are return addresses, or have GDIAG_FRAME_EXACT */
	unsigned long long frames[GDIAG_KERNEL_DEPTH + GDIAG_USER_DEPTH + 2 * GDIAG_PY_DEPTH_MAX];
};

/* gdiag_call.result of a call that did not return while it was watched. */
#define GDIAG_NOT_RETURNED 0xffffffffU

struct gdiag_call {
	struct gdiag_rec_hdr hdr; /* ts_ns = end */
	unsigned long long start_ns;
	unsigned int pid;
	unsigned int cbid;   /* which function, as CUPTI numbers them */
	unsigned int result; /* CUresult, or GDIAG_NOT_RETURNED */
	unsigned int pad;
};

/* In gdiag_syscall.nr: a call of a 32-bit program, whose numbers mean other calls. */
#define GDIAG_SYSCALL_COMPAT 0x4000

/* Of what a call's arguments point to. */
#define GDIAG_SYSCALL_BYTES 936

/* Why a call has not returned. */
#define GDIAG_OPEN_GOES_ON 0
#define GDIAG_OPEN_ENDED 1 /* its thread ends in it, as with exit_group */

struct gdiag_syscall {
	struct gdiag_rec_hdr hdr;    /* ts_ns = end */
	unsigned long long start_ns; /* 0: before the thread was watched */
	long long ret;		     /* -errno when it failed; with GDIAG_REC_SYS_OPEN one of those above */
	unsigned int pid;
	short nr;	    /* GDIAG_NO_SYSCALL: a number that no call has */
	unsigned short len; /* bytes that follow; 0: the arguments were not asked for, or are not known */
	unsigned long long args[6];
	unsigned char blocks[GDIAG_SYSCALL_BYTES]; /* struct gdiag_block, its bytes, filled up to 8, and so on */
};

enum gdiag_block_kind {
	GDIAG_BLOCK_FILE = 1,  /* struct gdiag_file: what the number of an open file stood for at the entry */
	GDIAG_BLOCK_TEXT = 2,  /* a string, without its NUL when it was longer */
	GDIAG_BLOCK_BYTES = 3, /* memory */
};

struct gdiag_block {
	unsigned char kind; /* enum gdiag_block_kind */
	unsigned char arg;  /* which argument says it */
	unsigned short len; /* bytes that follow */
	int fd;		    /* GDIAG_BLOCK_FILE: the number, of which an array may have several */
};

#define GDIAG_FILE_NAME 36

struct gdiag_file {
	unsigned long long inode;
	unsigned short mode; /* as in stat(2) */
	unsigned short pad;
	char name[GDIAG_FILE_NAME]; /* the last part of its path, NUL-terminated, cut */
};

enum gdiag_capture_kind {
	GDIAG_CAPTURE_NONE = 0,
	GDIAG_CAPTURE_FILE = 1,	   /* the number of an open file */
	GDIAG_CAPTURE_TEXT = 2,	   /* a string of `size` bytes at most */
	GDIAG_CAPTURE_BYTES = 3,   /* elements of `size` bytes: as many as args[times - 1] says; times 0: one */
	GDIAG_CAPTURE_POLL = 4,	   /* the same of pollfds, and what their numbers stand for */
	GDIAG_CAPTURE_NO_ARGS = 5, /* as the first one: the call has no arguments */
	GDIAG_CAPTURE_RESULT = 6,  /* as the last one: what the number that it returns stands for then */
};

/* What to read of one argument of a call. gdiag says so for each number. */
struct gdiag_capture {
	unsigned char kind; /* enum gdiag_capture_kind */
	unsigned char arg;
	unsigned char times;
	unsigned char pad;
	unsigned short size;
	unsigned short most; /* bytes */
};

#define GDIAG_CAPTURES 5

/* The result of a call, where others have the number of an argument. */
#define GDIAG_ARG_RESULT 6

struct gdiag_captures {
	struct gdiag_capture of[GDIAG_CAPTURES];
};

/* Numbers that are told apart; the last one stands for all others. */
#define GDIAG_SYSCALLS 512

/* The calls with one number of one thread, added up. */
struct gdiag_sum {
	unsigned long long count;
	unsigned long long errors;
	unsigned long long total_ns;
	unsigned long long min_ns;
	unsigned long long max_ns;
	unsigned long long squares_low; /* of the times, added up, in 128 bits */
	unsigned long long squares_high;
	unsigned long long task_start_ns; /* with tid: which thread */
	unsigned int tid;		  /* 0: threads that there was no room for, together, without squares */
	unsigned int pid;
	short nr;
	short pad[3];
	char comm[GDIAG_COMM_LEN]; /* at the first call */
	unsigned long long buckets[GDIAG_HIST_BUCKETS];
};

struct gdiag_failure {
	unsigned int sum; /* index of the gdiag_sum */
	unsigned int error;
};

#define GDIAG_PY_TEXT 512
#define GDIAG_PY_LINES 3072

/* A code object at its first sight, and when another has taken its place. */
struct gdiag_pycode {
	struct gdiag_rec_hdr hdr;
	unsigned long long code;
	unsigned int pid;
	int first_line;
	unsigned short file_len; /* bytes of UTF-8 or Latin-1 that follow, in this order; see kinds */
	unsigned short name_len;
	unsigned short lines_len; /* of the line table, as the interpreter has it */
	unsigned char lines_cut;  /* 1: the line table is longer than what is sent */
	unsigned char file_kind;  /* bytes per character (1, 2, 4), + 16: not ASCII; 0: unreadable */
	unsigned char name_kind;
	unsigned char pad[7];
	unsigned char bytes[2 * GDIAG_PY_TEXT + GDIAG_PY_LINES];
};

/* What the iterator over processes that use CUDA writes, for each thread that shows it. */
struct gdiag_cuda_process {
	unsigned long long start_ns; /* of its first thread: task->start_time */
	unsigned int pid;	     /* as gdiag sees it */
	unsigned int pad;
	char comm[GDIAG_COMM_LEN]; /* of its first thread */
};

/* Never sent: it makes BTF, and so the generated Rust types, keep the enumerators. */
struct gdiag_enums {
	enum gdiag_rec_type rec_type;
	enum gdiag_slot_kind slot_kind;
	enum gdiag_sw_flags sw_flags;
	enum gdiag_ctx ctx;
	enum gdiag_task_reason task_reason;
	enum gdiag_stall_kind stall_kind;
	enum gdiag_sample_kind sample_kind;
	enum gdiag_cut cut;
	enum gdiag_py_cut py_cut;
	enum gdiag_sample_flags sample_flags;
	enum gdiag_py_flags py_flags;
	enum gdiag_block_kind block_kind;
	enum gdiag_capture_kind capture_kind;
};

#ifdef __bpf__
_Static_assert(sizeof(struct gdiag_slot) == 24, "slot");
_Static_assert(sizeof(struct gdiag_chunk) == 8 + 24 * GDIAG_CHUNK_SLOTS, "chunk");
_Static_assert(sizeof(struct gdiag_rec_hdr) == 16, "hdr");
_Static_assert(sizeof(struct gdiag_task) == 88, "task");
_Static_assert(sizeof(struct gdiag_exit) == 24, "exit");
_Static_assert(sizeof(struct gdiag_cgroup) == 16, "cgroup");
_Static_assert(sizeof(struct gdiag_wait) == 64 + 8 * GDIAG_STACK_DEPTH, "wait");
_Static_assert(sizeof(struct gdiag_resumed) == 24, "resumed");
_Static_assert(sizeof(struct gdiag_cpu_wait) == 32, "cpu_wait");
_Static_assert(sizeof(struct gdiag_stall) == 32, "stall");
_Static_assert(sizeof(struct gdiag_signal) == 24, "signal");
_Static_assert(sizeof(struct gdiag_irq) == 32, "irq");
_Static_assert(sizeof(struct gdiag_sample) == 56 + 8 * (GDIAG_KERNEL_DEPTH + GDIAG_USER_DEPTH + 2 * GDIAG_PY_DEPTH_MAX),
	       "sample");
_Static_assert(sizeof(struct gdiag_call) == 40, "call");
_Static_assert(sizeof(struct gdiag_syscall) == 1024, "syscall");
_Static_assert(sizeof(struct gdiag_block) == 8, "block");
_Static_assert(sizeof(struct gdiag_file) == 48, "file");
_Static_assert(sizeof(struct gdiag_captures) == 8 * GDIAG_CAPTURES, "captures");
_Static_assert(sizeof(struct gdiag_sum) == 96 + 8 * GDIAG_HIST_BUCKETS, "sum");
_Static_assert(sizeof(struct gdiag_cuda_process) == 32, "cuda_process");
_Static_assert(sizeof(struct gdiag_pycode) == 48 + 2 * GDIAG_PY_TEXT + GDIAG_PY_LINES, "pycode");
#endif

#endif /* GDIAG_EVENTS_H */

/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * What sched_sum.bpf.c adds up and gdiag reads. This is the only definition: the Rust types are
 * generated from the object's BTF. Times are ns of CLOCK_MONOTONIC, ids are the host's.
 */
#ifndef GDIAG_SCHED_SUM_H
#define GDIAG_SCHED_SUM_H

#include "histogram.h"

#define GDIAG_SUM_COMM 16

/* Why a thread is off the CPU, in the order of OffReason in src/analyse/sched/. The first four could run. */
enum gdiag_off {
	GDIAG_OFF_WOKEN = 0,
	GDIAG_OFF_NEW = 1,
	GDIAG_OFF_PREEMPTED = 2,
	GDIAG_OFF_YIELDED = 3,
	GDIAG_OFF_THROTTLED = 4,
	GDIAG_OFF_FUTEX = 5,
	GDIAG_OFF_POLL = 6,
	GDIAG_OFF_SLEEP = 7,
	GDIAG_OFF_IO = 8,
	GDIAG_OFF_NETWORK = 9,
	GDIAG_OFF_FILE = 10,
	GDIAG_OFF_MEMORY = 11,
	GDIAG_OFF_FAULT = 12,
	GDIAG_OFF_IOCTL = 13,
	GDIAG_OFF_CHILD = 14,
	GDIAG_OFF_STOPPED = 15,
	GDIAG_OFF_OTHER = 16,
	GDIAG_OFF_REASONS = 17,
};

/*
 * Why a thread sleeps is looked up: a row for each system call, and two for none; a column for what
 * the kernel says of it besides.
 */
#define GDIAG_SLEEP_ROWS 512
#define GDIAG_SLEEP_NO_CALL 510
#define GDIAG_SLEEP_KTHREAD 511
#define GDIAG_SLEEP_IOWAIT 1
#define GDIAG_SLEEP_UNINTERRUPTIBLE 2
#define GDIAG_SLEEP_COLUMNS 4

/* CPUs that a thread's run time is told apart for in its own memory; for more there is a map. */
#define GDIAG_PLACES 4

#define GDIAG_WAKERS 8

/* What is added to the number of a waker: no waker is 0. */
#define GDIAG_BY_THREAD 0x40000000
#define GDIAG_BY_INTERRUPT 0x80000000 /* enum gdiag_ctx << 16 | irq or vector */

/* A mask of CPUs that reaches as far as gdiag does. */
#define GDIAG_MASK_WORDS 16

/* What a thread without any switch did until gdiag stopped, when its first one came after that. */
enum gdiag_late {
	GDIAG_LATE_NOT = 0,
	GDIAG_LATE_RAN = 1,
	GDIAG_LATE_WAITED = 2, /* for a CPU */
	GDIAG_LATE_SLEPT = 3,  /* for `reason` */
};

struct gdiag_off_sum {
	unsigned long long count;
	unsigned long long total_ns;
	unsigned long long max_ns;
};

/* Time on a CPU. */
struct gdiag_place {
	unsigned long long ns;
	unsigned int cpu; /* 1 + its number; 0: unused */
	unsigned int pad;
};

/*
 * Kept for each thread. All zero says: since the start it has neither got nor lost a CPU.
 */
struct gdiag_thread_sums {
	unsigned int seq;     /* odd while a switch of the thread changes it */
	unsigned char seen;   /* a switch of it was seen, or its birth; before, its state is that of the start */
	unsigned char on;     /* it runs, as far as switches tell */
	unsigned char reason; /* enum gdiag_off, while it does not */
	unsigned char target;
	unsigned char ended; /* its record was sent */
	unsigned char dying; /* it will be: it is counted */
	unsigned char place; /* where it runs or ran last: number in places[] */
	unsigned char late;  /* enum gdiag_late */
	unsigned char pad[4];
	unsigned int proc_tid; /* as in the record; only of one that ends */
	unsigned int proc_pid;
	unsigned long long on_ns;    /* when it got the CPU last */
	unsigned long long off_ns;   /* when it lost it, or was born */
	unsigned long long woken_ns; /* when it was woken last */
	unsigned int waker;	     /* by whom */
	unsigned int preemptor;	     /* tid of who took its CPU last */
	unsigned int cpu;	     /* 1 + where it ran last; 0: not known */
	unsigned int behind;	     /* tid of who had the CPU before the longest wait for it was over; 0: its idle task */
	unsigned long long run_ns;
	unsigned long long first_run_ns;  /* of that, until it lost the CPU that it had at the start */
	unsigned long long first_wait_ns; /* until it got the CPU that it waited for at the start; nowhere else */
	unsigned long long run_count;	  /* of whole times on a CPU, as the extremes and the histogram */
	unsigned long long run_min_ns;
	unsigned long long run_max_ns;
	unsigned long long runq_min_ns;
	unsigned long long runq_max_ns;
	unsigned long long runq_max_at_ns;
	unsigned long long voluntary;
	unsigned long long involuntary;
	unsigned long long migrations;
	/* Who took its CPU last and how often in a row, and how long it waited then; those before are in a map. */
	unsigned long long taken_count;
	unsigned long long taken_ns;
	unsigned int taken_by;
	unsigned int pad2;
	unsigned long long other_takers; /* preemptions by whom there was no room for */
	unsigned long long other_wakers; /* wakeups by whom there was no room for */
	unsigned long long waker_counts[GDIAG_WAKERS];
	unsigned int wakers[GDIAG_WAKERS]; /* 0: unused */
	struct gdiag_place places[GDIAG_PLACES];
	struct gdiag_off_sum off[GDIAG_OFF_REASONS];
	unsigned int runs[GDIAG_HIST_BUCKETS];
	unsigned int runqs[GDIAG_HIST_BUCKETS];
};

enum gdiag_sum_flags {
	GDIAG_SUM_KTHREAD = 0x01,
	GDIAG_SUM_OWN = 0x02,	/* a thread of gdiag */
	GDIAG_SUM_ENDED = 0x04, /* it ends, or will go on under another id */
	GDIAG_SUM_ON_CPU = 0x08,
	GDIAG_SUM_TARGET = 0x10,
	GDIAG_SUM_TORN = 0x20, /* it was changed each time it was read: parts of the sums do not fit */
};

/* A thread when it is read, or ends. Where `cut` says so, only as far as before `sums`: those are all zero. */
struct gdiag_thread_sum {
	unsigned int size; /* of this record */
	unsigned int tid;
	unsigned int pid;
	unsigned int prio;
	unsigned int proc_tid; /* as gdiag's /proc has it; 0: not there */
	unsigned int proc_pid;
	unsigned long long now_ns;   /* until when it is summed up; what is open then is to be added */
	unsigned long long start_ns; /* task->start_time */
	unsigned long long task;     /* as of a CPU */
	unsigned short flags;	     /* enum gdiag_sum_flags */
	unsigned char reason;	     /* why it is off the CPU, if it is and sums do not tell */
	unsigned char pad;
	unsigned int cpu; /* where it runs or ran last, says the kernel */
	char comm[GDIAG_SUM_COMM];
	unsigned long long allowed[GDIAG_MASK_WORDS]; /* CPUs */
	struct gdiag_thread_sums sums;
};

/* Kept for each CPU. */
struct gdiag_cpu_sums {
	unsigned long long since_ns; /* of the last switch */
	unsigned long long task;     /* address of who runs; 0: no switch was seen */
	unsigned long long busy_ns;
	unsigned long long idle_ns;
	unsigned long long unknown_ns; /* a switch was missed in it */
	unsigned long long irq_ns;
	unsigned long long switches;
	unsigned long long missed;    /* switches and wakeups that must have been and were not seen */
	unsigned long long no_memory; /* switches and wakeups that there was no memory to add up for */
	unsigned long long unsent;    /* threads that ended and whose record found no room */
	unsigned long long no_place;  /* run time, in ns, of which it is not known on which CPU it was */
	unsigned int idle;	      /* the idle task runs */
	unsigned int pad;
};

/* Two threads, or a thread and a CPU. */
struct gdiag_pair {
	unsigned int tid;
	unsigned int other; /* preemptor's tid, number of the CPU, or waker */
};

struct gdiag_pair_sum {
	unsigned long long count;
	unsigned long long ns;
};

#endif /* GDIAG_SCHED_SUM_H */

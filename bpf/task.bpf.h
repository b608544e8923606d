/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the kernel says about a thread at a switch or a wakeup. No maps: every object may include it.
 */
#ifndef GDIAG_TASK_BPF_H
#define GDIAG_TASK_BPF_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "events.h"

#define PF_EXITING 0x00000004
#define PF_KTHREAD 0x00200000
#define MAX_RT_PRIO 100
#define MAX_CPUS 1024

#define TS_COMPAT 2
#define TIF_32BIT_ARM64 22

#ifdef __TARGET_ARCH_arm64
#define SYSCALL_SCHED_YIELD 124
#else
#define SYSCALL_SCHED_YIELD 24
#endif

/* What runs on a CPU on top of a thread. */
struct on_top {
	u32 irq_nr;
	u32 softirq_nr;
	u32 softirq_tid; /* the thread that it runs on top of, or as with PREEMPT_RT */
	u8 in_irq;	 /* a handler with an irq number runs */
	u8 in_softirq;
	u8 in_vector; /* a vector without a number runs: timer, function call, irq work */
	u8 pad;
};

static __always_inline u32 task_state(struct task_struct *t)
{
	if (bpf_core_field_exists(t->__state))
		return BPF_CORE_READ(t, __state);
	return BPF_CORE_READ((struct task_struct___pre514 *)t, state);
}

static __always_inline bool is_throttled(struct task_struct *t)
{
	struct task_struct___throttled *tt = (void *)t;

	/* Of real-time threads it is the group that they would be in. */
	if (t->prio < MAX_RT_PRIO)
		return false;
	if (bpf_core_field_exists(tt->throttled))
		return BPF_CORE_READ(tt, throttled);
	if (bpf_core_field_exists(((struct cfs_rq *)0)->throttle_count))
		return BPF_CORE_READ(t, se.cfs_rq, throttle_count) > 0;
	return false;
}

static __always_inline struct pt_regs *user_regs(struct task_struct *t)
{
	return t->flags & PF_KTHREAD ? 0 : (struct pt_regs *)bpf_task_pt_regs(t);
}

static __always_inline bool is_compat(struct task_struct *t)
{
#ifdef __TARGET_ARCH_arm64
	return t->thread_info.flags >> TIF_32BIT_ARM64 & 1;
#else
	return t->thread_info.status & TS_COMPAT;
#endif
}

/*
 * The system call that a thread is in, from its saved user registers: no system call
 * tracepoint, which would cost every call of the machine 200 ns. -1 outside of one.
 */
static __always_inline s16 any_syscall_nr(struct task_struct *t)
{
	struct pt_regs *regs = user_regs(t);
	s64 nr;

	if (!regs)
		return GDIAG_NO_SYSCALL;
#ifdef __TARGET_ARCH_arm64
	nr = regs->syscallno;
#else
	nr = (s64)regs->orig_ax;
#endif
	/* The program may have put any number there. */
	return nr >= 0 && nr < 0x7fff ? nr : GDIAG_NO_SYSCALL;
}

/* The numbers of 32-bit programs are others: those are in no call that is known. */
static __always_inline s16 syscall_nr(struct task_struct *t)
{
	return is_compat(t) ? GDIAG_NO_SYSCALL : any_syscall_nr(t);
}

/*
 * Where the code that wakes someone runs. preempt_count would say it too, but a kernel
 * without CONFIG_KALLSYMS_ALL does not let BPF find it, so the interrupt hooks keep note.
 */
static __always_inline u8 waker_context(const struct on_top *c, u32 waker, u16 *vector)
{
	*vector = 0;
	if (c->in_irq) {
		*vector = c->irq_nr;
		return GDIAG_CTX_HARDIRQ;
	}
	if (c->in_vector)
		return GDIAG_CTX_TIMER;
	/* With PREEMPT_RT softirqs are preempted like any thread. */
	if (c->in_softirq && c->softirq_tid == waker) {
		*vector = c->softirq_nr;
		return GDIAG_CTX_SOFTIRQ;
	}
	return GDIAG_CTX_TASK;
}

/* How /proc, as gdiag sees it, knows a thread; 0: not at all. In an iterator, which gdiag itself runs. */
static __always_inline u32 proc_id(struct pid *pid)
{
	struct task_struct *self = bpf_get_current_task_btf();
	struct pid *own = BPF_CORE_READ(self, thread_pid);
	u32 level = BPF_CORE_READ(own, level);

	if (level > BPF_CORE_READ(pid, level) ||
	    BPF_CORE_READ(pid, numbers[level].ns) != BPF_CORE_READ(own, numbers[level].ns))
		return 0;
	return BPF_CORE_READ(pid, numbers[level].nr);
}

#endif /* GDIAG_TASK_BPF_H */

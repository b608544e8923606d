// SPDX-License-Identifier: GPL-2.0
/*
 * Which thread was in which call of the CUDA driver, and for how long: for processes of which no
 * CUPTI records can be had. Probes at the begin and at the return of the driver's functions, put
 * there for one process at a time; the cookie of a probe says which function it is at.
 *
 * One program for both where the kernel has sessions (6.13), else one for each.
 *
 * A thread's calls that have not returned are kept with the thread, so that nothing outlives it.
 * One that never returns (the process is killed, or the recording ends) is sent by then; one that
 * was left by longjmp is dropped at the next call.
 */
#include "common.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* A probe's cookie. The watch tells calls apart that were begun under an earlier one. */
#define COOKIE_CBID(cookie) ((u32)(cookie))
#define COOKIE_WATCH(cookie) ((u32)((cookie) >> 32))

#ifdef __TARGET_ARCH_arm64
typedef struct user_pt_regs regs_t;
#define RETURNED(ctx) ((u32)(ctx)->regs[0])
#define STACK_AFTER(sp) (sp)
#else
typedef struct user_regs regs_t;
#define RETURNED(ctx) ((u32)(ctx)->ax)
#define STACK_AFTER(sp) ((sp) + 8) /* the return address is gone */
#endif

/* By tgid: the watch that goes on. What was open under another one is not known to be. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u32);
} watches SEC(".maps");

const struct gdiag_call *unused_call;

/* The process whose calls are sent by send_open_calls; 0: of all. */
volatile u32 ending_pid;

extern bool bpf_session_is_return(void) __ksym __weak;

/* Whoever takes the start sends the call: its return, or what tells that there will be none. */
static __always_inline void send_call(struct open_call *call, u32 pid, u32 tid, u32 result)
{
	struct gdiag_call r = {};

	r.start_ns = __sync_lock_test_and_set(&call->start_ns, 0);
	if (!r.start_ns)
		return;
	r.hdr.type = GDIAG_REC_CALL;
	r.hdr.tid = tid;
	r.hdr.ts_ns = bpf_ktime_get_ns();
	r.pid = pid;
	r.cbid = call->cbid;
	r.result = result;
	send(&r, sizeof(r), false);
}

/* Where the call goes back to: the kernel puts its own address there afterwards. */
static __always_inline u64 return_address(regs_t *ctx)
{
#ifdef __TARGET_ARCH_arm64
	return ctx->regs[30];
#else
	u64 ra = 0;

	bpf_probe_read_user(&ra, sizeof(ra), (void *)ctx->sp);
	return ra;
#endif
}

/* Returns whether the call is to be seen to its end. */
static __always_inline bool call_begins(regs_t *ctx)
{
	struct task_struct *t = bpf_get_current_task_btf();
	u64 cookie = bpf_get_attach_cookie(ctx), sp = STACK_AFTER(ctx->sp), ra = return_address(ctx);
	struct driver_task *d;
	struct open_call *call;
	u32 depth;

	d = bpf_task_storage_get(&driver_tasks, t, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!d) {
		count_lost_record();
		return false;
	}
	depth = d->watch == COOKIE_WATCH(cookie) ? d->depth : 0;
	d->watch = COOKIE_WATCH(cookie);
	/*
	 * The stack grows down: what is below was left without a return. At the same place are a
	 * function and the one that it ends with a jump to, but never the same one twice.
	 */
#pragma unroll
	for (int i = 0; i < MAX_CALL_DEPTH; i++) {
		if (!depth || depth > MAX_CALL_DEPTH)
			break;
		call = &d->calls[(depth - 1) & (MAX_CALL_DEPTH - 1)];
		if (call->sp == sp && call->cbid != COOKIE_CBID(cookie)) {
			/* Both go back to where the first one was called from. */
			ra = call->ra;
			break;
		}
		if (call->sp > sp)
			break;
		depth--;
	}
	if (depth >= MAX_CALL_DEPTH) {
		d->depth = MAX_CALL_DEPTH;
		count_lost_record();
		return false;
	}
	call = &d->calls[depth & (MAX_CALL_DEPTH - 1)];
	call->sp = sp;
	call->ra = ra;
	call->cbid = COOKIE_CBID(cookie);
	d->depth = depth + 1;
	/* Last: from now on it can be sent. */
	call->start_ns = bpf_ktime_get_ns();
	return true;
}

static __always_inline void call_returns(regs_t *ctx)
{
	struct task_struct *t = bpf_get_current_task_btf();
	u64 cookie = bpf_get_attach_cookie(ctx);
	struct driver_task *d;
	struct open_call *call;
	u32 depth;

	d = bpf_task_storage_get(&driver_tasks, t, 0, 0);
	if (!d || d->watch != COOKIE_WATCH(cookie))
		return;
	depth = d->depth;
#pragma unroll
	for (int i = 0; i < MAX_CALL_DEPTH; i++) {
		if (!depth || depth > MAX_CALL_DEPTH)
			return;
		depth--;
		call = &d->calls[depth & (MAX_CALL_DEPTH - 1)];
		if (call->cbid == COOKIE_CBID(cookie)) {
			/* With those that it began and that were left. */
			d->depth = depth;
			send_call(call, t->tgid, t->pid, RETURNED(ctx));
			return;
		}
	}
}

SEC("uprobe.session")
int call_session(regs_t *ctx)
{
	if (bpf_session_is_return()) {
		call_returns(ctx);
		return 0;
	}
	return call_begins(ctx) ? 0 : 1;
}

SEC("uprobe.multi")
int call_entry(regs_t *ctx)
{
	call_begins(ctx);
	return 0;
}

SEC("uretprobe.multi")
int call_return(regs_t *ctx)
{
	call_returns(ctx);
	return 0;
}

static __always_inline void send_open(struct task_struct *t)
{
	struct driver_task *d = bpf_task_storage_get(&driver_tasks, t, 0, 0);
	u32 depth, tgid = t->tgid, *watch;

	if (!d)
		return;
	watch = bpf_map_lookup_elem(&watches, &tgid);
	if (!watch || *watch != d->watch)
		return;
	depth = d->depth;
#pragma unroll
	for (u32 i = 0; i < MAX_CALL_DEPTH; i++) {
		if (i < depth)
			send_call(&d->calls[i], tgid, t->pid, GDIAG_NOT_RETURNED);
	}
}

/* Killed in a call, or a call that ends the process. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(thread_exits, struct task_struct *t)
{
	send_open(t);
	return 0;
}

/* Run by gdiag before it takes the probes out. */
SEC("iter/task")
int send_open_calls(struct bpf_iter__task *ctx)
{
	struct task_struct *t = ctx->task;

	if (t && (!ending_pid || (u32)t->tgid == ending_pid))
		send_open(t);
	return 0;
}

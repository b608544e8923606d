// SPDX-License-Identifier: GPL-2.0
/*
 * The processes that use CUDA: those with a thread of the driver's, or of gdiag's shim, by the thread's name.
 *
 * One walk over the tasks in the kernel, when gdiag asks. To find the same in /proc takes several
 * system calls for each process of the machine, and may wait for the lock of its memory.
 */
#include "task.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* How the names of such threads begin, NUL-terminated. */
const volatile struct cuda_config {
	char driver[GDIAG_COMM_LEN];
	char shim[GDIAG_COMM_LEN];
} cfg;

const struct gdiag_cuda_process *unused_process;

static __always_inline bool begins_with(const char *comm, const volatile char *with)
{
#pragma unroll
	for (int i = 0; i < GDIAG_COMM_LEN; i++) {
		if (!with[i])
			return i > 0;
		if (comm[i] != with[i])
			return false;
	}
	return true;
}

SEC("iter/task")
int find_cuda(struct bpf_iter__task *ctx)
{
	struct task_struct *t = ctx->task, *self = bpf_get_current_task_btf();
	struct gdiag_cuda_process r = {};
	char comm[GDIAG_COMM_LEN] = {};

	if (!t || t->flags & PF_KTHREAD || t->tgid == self->tgid)
		return 0;
	bpf_probe_read_kernel_str(comm, sizeof(comm), t->comm);
	if (!begins_with(comm, cfg.driver) && !begins_with(comm, cfg.shim))
		return 0;
	r.pid = proc_id(BPF_CORE_READ(t, group_leader, thread_pid));
	if (!r.pid)
		return 0;
	r.start_ns = BPF_CORE_READ(t, group_leader, start_time);
	bpf_probe_read_kernel_str(r.comm, sizeof(r.comm), t->group_leader->comm);
	bpf_seq_write(ctx->meta->seq, &r, sizeof(r));
	return 0;
}

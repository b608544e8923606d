// SPDX-License-Identifier: GPL-2.0
/* Samples the threads of one process by bpf/python.bpf.h alone, for tests/python_stacks.rs. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "events.h"

char LICENSE[] SEC("license") = "GPL";

volatile u32 target_tgid;
u64 lost;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} ring SEC(".maps");

static __always_inline void *my_ring(void)
{
	return &ring;
}

static __always_inline u64 wakeup_flags(void *r)
{
	return BPF_RB_NO_WAKEUP;
}

static __always_inline void count_lost_record(void)
{
	__sync_fetch_and_add(&lost, 1);
}

#include "python.bpf.h"

/* A timer does not interrupt itself, so one is enough. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct gdiag_sample);
} samples SEC(".maps");

SEC("perf_event")
int probe(void *ctx)
{
	struct task_struct *t = bpf_get_current_task_btf();
	u32 zero = 0;
	struct gdiag_sample *s = bpf_map_lookup_elem(&samples, &zero);
	u64 size;

	if (!s || (u32)t->tgid != target_tgid)
		return 0;
	s->hdr.type = GDIAG_REC_SAMPLE;
	s->hdr.tid = t->pid;
	s->hdr.ts_ns = bpf_ktime_get_ns();
	s->pid = t->tgid;
	s->kernel = s->user = s->python = 0;
	python_stack(s);
	s->since_ns = bpf_ktime_get_ns() - s->hdr.ts_ns;
	size = __builtin_offsetof(struct gdiag_sample, frames) + 16 * (u32)s->python;
	if (size > sizeof(*s) || bpf_ringbuf_output(&ring, s, size, BPF_RB_NO_WAKEUP))
		count_lost_record();
	return 0;
}

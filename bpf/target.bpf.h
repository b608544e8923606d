/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Who the targets are: pids as gdiag sees them, and cgroups. Included by one file of an object.
 */
#ifndef GDIAG_TARGET_BPF_H
#define GDIAG_TARGET_BPF_H

#include "task.bpf.h"

/* Levels of a cgroup hierarchy that are looked through. */
#define CGROUP_DEPTH 32

/* pids, as gdiag sees them, that the iterator marks as targets */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, u8);
} target_pids SEC(".maps");

/* What is in one of these, or below, is a target. A number is of one hierarchy only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gdiag_cgroup);
	__type(value, u8);
} target_cgroups SEC(".maps");

/* gdiag's own PID namespace and its depth, noted by the iterator that gdiag runs. */
struct pid_namespace *own_ns;
u32 own_level;
pid_t own_tgid;

/* The innermost id of a thread, and the one by which gdiag's /proc knows it (0: not visible there). */
static __always_inline void ids(struct pid *pid, u32 *inner, u32 *proc)
{
	u32 level = BPF_CORE_READ(pid, level), own = own_level;

	*inner = BPF_CORE_READ(pid, numbers[level].nr);
	*proc = 0;
	if (own <= level && BPF_CORE_READ(pid, numbers[own].ns) == own_ns)
		*proc = BPF_CORE_READ(pid, numbers[own].nr);
}

/* Tells who gdiag is; by an iterator, which gdiag itself runs. */
static __always_inline void note_own(struct task_struct *self)
{
	struct pid *pid = BPF_CORE_READ(self, thread_pid);

	own_level = BPF_CORE_READ(pid, level);
	own_ns = BPF_CORE_READ(pid, numbers[own_level].ns);
	own_tgid = self->tgid;
}

/* gdiag named its process as a target. The root of a hierarchy has the kernel's threads, too. */
static __always_inline bool is_named(struct task_struct *t)
{
	u32 inner, proc_pid;

	ids(BPF_CORE_READ(t, group_leader, thread_pid), &inner, &proc_pid);
	return proc_pid && !(t->flags & PF_KTHREAD) && bpf_map_lookup_elem(&target_pids, &proc_pid);
}

static __always_inline bool in_target_cgroup(struct cgroup *cgroup)
{
	struct gdiag_cgroup key = {};
	struct cgroup_subsys_state *above;
	int i;

	key.hierarchy = BPF_CORE_READ(cgroup, root, hierarchy_id);
	for (i = 0; i < CGROUP_DEPTH && cgroup; i++) {
		key.id = BPF_CORE_READ(cgroup, kn, id);
		if (bpf_map_lookup_elem(&target_cgroups, &key))
			return true;
		above = BPF_CORE_READ(cgroup, self.parent);
		cgroup = above ? BPF_CORE_READ(above, cgroup) : 0;
	}
	return false;
}

/* It is moved into a target cgroup: its process is named from now on, until the iterator has run again. */
static __always_inline bool joins(struct task_struct *t, struct cgroup *to)
{
	u32 inner, proc_pid;
	u8 yes = 1;

	if (t->tgid == own_tgid || t->flags & PF_KTHREAD || !in_target_cgroup(to))
		return false;
	ids(BPF_CORE_READ(t, group_leader, thread_pid), &inner, &proc_pid);
	if (proc_pid)
		bpf_map_update_elem(&target_pids, &proc_pid, &yes, BPF_ANY);
	return true;
}

/* With version 2 a process may be born into another cgroup than its parent's, which is no attachment. */
static __always_inline bool is_born_into_target(struct task_struct *t, struct task_struct *parent)
{
	struct cgroup *cgroup = BPF_CORE_READ(t, cgroups, dfl_cgrp);

	return cgroup != BPF_CORE_READ(parent, cgroups, dfl_cgrp) && in_target_cgroup(cgroup);
}

#endif /* GDIAG_TARGET_BPF_H */

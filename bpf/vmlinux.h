/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The kernel types that gdiag touches, cut down by hand: CO-RE relocates every
 * field by name at load time, so only names and kinds matter here, not layout.
 * Fields that moved between kernels have a flavour named after the change.
 */
#ifndef GDIAG_VMLINUX_H
#define GDIAG_VMLINUX_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;
typedef int pid_t;
enum {
	false = 0,
	true = 1
};

/* uapi/linux/bpf.h, only what is used */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_HASH_OF_MAPS = 13,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum {
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1024
};
enum {
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1
};
enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1
};
enum {
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2
};
enum {
	BPF_RB_AVAIL_DATA = 0,
	BPF_RB_RING_SIZE = 1
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs {
	unsigned long di;
	unsigned long si;
	unsigned long dx;
	unsigned long orig_ax;
	unsigned long bp;
	unsigned long ip;
	unsigned long cs;
	unsigned long sp;
	unsigned long r8;
	unsigned long r9;
	unsigned long r10;
	/* arm64 */
	u64 orig_x0;
	unsigned long regs[31];
	int syscallno;
};

struct pid_namespace;

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct cfs_rq {
	int throttle_count;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
	unsigned char sched_delayed; /* since 6.12 */
};

struct cpumask {
	unsigned long bits[1];
};

struct inode {
	unsigned short i_mode;
	unsigned long i_ino;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct path f_path;
	struct inode *f_inode;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct kernfs_node {
	u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup_root {
	int hierarchy_id;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	struct cgroup_root *root;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct thread_info {
	unsigned long flags;
	u32 status; /* x86 */
	u32 cpu;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	unsigned int flags;
	unsigned int on_cpu; /* not an int: it is smaller since 7.3 or before, and only what has no sign may be */
	unsigned int on_rq;  /* likewise */
	int wake_cpu;
	int prio;
	int nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	struct sched_entity se;
	unsigned in_iowait : 1;
	unsigned in_memstall : 1;
	int exit_code;
	pid_t pid;
	pid_t tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	u64 start_time;
	unsigned long min_flt;
	unsigned long maj_flt;
	char comm[16];
	struct css_set *cgroups;
	struct files_struct *files;
};

/* before 5.14; RHEL 8 has the new name on 4.18, so the field decides and never the version */
struct task_struct___pre514 {
	volatile long state;
};

/* x86 before 5.18 or so */
struct task_struct___cpu {
	unsigned int cpu;
};

/* 6.18: a task is throttled by itself, on its way back to user space */
struct task_struct___throttled {
	bool throttled;
};

/* only with PREEMPT_RT */
struct task_struct___rt {
	int softirq_disable_cnt;
};

struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct linux_binprm {
	const char *filename;
};

struct irqaction;
struct kernel_siginfo;

#pragma clang attribute pop

/* uapi/linux/bpf_perf_event.h: not relocated, the kernel rewrites the accesses */
struct user_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};

/* arm64's registers of a probe */
struct user_pt_regs {
	unsigned long regs[31];
	unsigned long sp, pc, pstate;
};

struct bpf_perf_event_data {
	struct user_regs regs;
	__u64 sample_period;
	__u64 addr;
};

#endif /* GDIAG_VMLINUX_H */

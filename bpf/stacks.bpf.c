// SPDX-License-Identifier: GPL-2.0
/*
 * Where the targets are: user stacks of programs without frame pointers, walked here, at the
 * event, by tables that gdiag makes from .eh_frame (unwind.h), and the Python frames of the
 * same moment (python.bpf.h). Nothing stops the target and nothing is copied but addresses.
 *
 * An object of its own: it needs bpf_loop (Linux 5.17), and where it cannot be loaded
 * everything else goes on without user stacks. It shares the maps of sched.bpf.c.
 *
 * When a stack is taken:
 *  - by a timer on each CPU, while a target runs;
 *  - when a target runs again after a long time off the CPU: sched_exit_tp (6.16) is the first
 *    moment at which its memory can be read;
 *  - of the thread that ends a long wait of a target, when it does;
 *  - at one in so many calls of the driver's launch functions, when asked for (uprobe).
 */
#include "common.bpf.h"
#include "unwind.h"
#include "python.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define MAX_PROCESSES 16384

/* A program here may be interrupted by another, at most by so many. */
#define SCRATCHES 4

/* One launch of so many is taken; gdiag changes it while it looks at what they cost. */
volatile u32 launch_one_in = 1;

/* By rule number. Written by gdiag, through its mapping, before a row names it. */
struct gdiag_rule rules[GDIAG_MAX_RULES];

/* What a walk needs besides its result. */
struct walk {
	u64 pc;
	u64 sp;
	u64 fp;
	/* the mapping of the last frame: most calls stay in one file */
	u64 start;
	u64 end;
	u64 bias;
	u32 file;
	u8 exact;    /* pc is an instruction that was about to run, no return address */
	u8 fp_known; /* fp holds this frame's value */
	u8 cut;
	u8 in_python; /* a frame is in the interpreter */
	u32 python;   /* the file with the interpreter; 0: none */
	u8 urgent;    /* gdiag is to look at once */
	u8 pad[3];
};

struct scratch {
	u32 busy;
	u32 pad;
	struct walk walk;
	struct py_blocks python;
	struct gdiag_sample sample;
};

struct scratches {
	struct scratch of_level[SCRATCHES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratches);
} scratch SEC(".maps");

/* Read by gdiag: what the stacks cost, and which were lost. */
struct stack_costs {
	u64 samples;
	u64 ns; /* in the programs here, for these samples */
	u64 frames;
	u64 lost;      /* no scratch, or no room in the ring */
	u64 launch_ns; /* of ns, for launches */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct stack_costs);
} costs SEC(".maps");

/*
 * Inner maps are described by sizes, as gdiag makes them: before 6.2 or so the kernel takes none whose
 * types it knows for one whose types it does not.
 */
struct maps_inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct gdiag_maps));
};

/* By tgid: what is mapped where. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, u32);
	__array(values, struct maps_inner);
} maps_of SEC(".maps");

/* Which process a new one is a copy of, until gdiag has told where that has its code. */
struct origin {
	u32 tgid;
	u32 generation; /* of the maps at the fork */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct origin);
} origins SEC(".maps");

struct shard {
	u32 rows[GDIAG_SHARD_ROWS];
};

struct shard_inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct shard));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, GDIAG_MAX_SHARDS);
	__type(key, u32);
	__array(values, struct shard_inner);
} shards SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GDIAG_MAX_PAGES);
	__type(key, struct gdiag_page_key);
	__type(value, struct gdiag_page);
} pages SEC(".maps");

/* Processes whose stacks were wanted and whose maps were missing or out of date; gdiag empties it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u8);
} wanted SEC(".maps");

/* Kept for each thread. */
struct stack_task {
	u32 launches; /* since the last one that was taken */
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct stack_task);
} stack_tasks SEC(".maps");

const struct gdiag_sample *unused_sample;
const struct gdiag_pycode *unused_pycode;
const struct gdiag_py_frame *unused_py_frame;
const struct gdiag_maps *unused_maps;
const struct shard *unused_shard;
const struct gdiag_page_key *unused_page_key;
const struct gdiag_page *unused_page;
const struct gdiag_unwind_enums *unused_unwind_enums;

static __always_inline struct scratch *take_scratch(void)
{
	u32 zero = 0;
	struct scratches *all = bpf_map_lookup_elem(&scratch, &zero);

	if (!all)
		return 0;
#pragma unroll
	for (int i = 0; i < SCRATCHES; i++) {
		if (!__sync_lock_test_and_set(&all->of_level[i].busy, 1))
			return &all->of_level[i];
	}
	return 0;
}

static __always_inline void give_scratch(struct scratch *x)
{
	__sync_lock_test_and_set(&x->busy, 0);
}

/* A saved register or return address, from the user stack. */
static __always_inline bool read_word(u64 *to, u64 from)
{
	return !bpf_probe_read_user(to, sizeof(*to), (void *)from);
}

/*
 * The searches below have no branches, so that the verifier sees one way through them instead of
 * thousands: each step either adds to the position or adds nothing. All values are below 1 << 63.
 */
static __always_inline u64 all_ones_if_less(u64 a, u64 b)
{
	u64 mask = (u64)((s64)(a - b) >> 63);

	barrier_var(mask);
	return mask;
}

/*
 * A position that may be used as an index. The compiler would leave the mask away where it can tell that
 * the position is below `size`, which the verifier of older kernels cannot.
 */
static __always_inline u64 within(u64 at, u64 size)
{
	barrier_var(at);
	return at & (size - 1);
}

/* The last mapping that starts at or before pc. */
static __always_inline bool find_mapping(struct gdiag_maps *maps, struct walk *w, u64 pc)
{
	u64 count = maps->count, at = 0, next;
	struct gdiag_mapping *m;

	if (pc >= w->start && pc < w->end)
		return true;
#pragma unroll
	for (u64 step = GDIAG_MAX_MAPPINGS / 2; step; step /= 2) {
		next = at + step;
		m = &maps->mappings[within(next, GDIAG_MAX_MAPPINGS)];
		at += step & all_ones_if_less(next, count) & all_ones_if_less(m->start, pc + 1);
	}
	m = &maps->mappings[within(at, GDIAG_MAX_MAPPINGS)];
	if (!count || pc < m->start || pc >= m->end)
		return false;
	w->start = m->start;
	w->end = m->end;
	w->bias = m->bias;
	w->file = m->file;
	return true;
}

/*
 * Rules that were found, since most stacks repeat each other's frames and a search in the tables
 * misses the processor's caches at each step. A word is 48 bits of a hash of file and address, and
 * the rule: read and written at once, whoever interrupts whom. Files keep their numbers and
 * tables do not change, so nothing here gets old.
 */
#define CACHED_RULES 4096

struct rule_cache {
	u64 words[CACHED_RULES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rule_cache);
} rule_caches SEC(".maps");

static __always_inline u64 mix(u64 x)
{
	x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
	x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
	return x ^ (x >> 32);
}

static __noinline u32 search_rule(u32 file, u64 addr)
{
	struct gdiag_page_key key = { .file = file, .page = addr >> GDIAG_PAGE_BITS };
	struct gdiag_page *page = bpf_map_lookup_elem(&pages, &key);
	u64 low = addr & ((1 << GDIAG_PAGE_BITS) - 1), at, end, next, row;
	u32 zero = 0, number;
	struct shard *shard;
	void *inner;

	if (!page)
		return GDIAG_RULE_NONE;
	number = page->shard;
	inner = bpf_map_lookup_elem(&shards, &number);
	if (!inner)
		return GDIAG_RULE_NONE;
	shard = bpf_map_lookup_elem(inner, &zero);
	if (!shard)
		return GDIAG_RULE_NONE;
	/* The first row of a page begins at its first byte. */
	at = page->first;
	end = (u64)page->last + 1;
#pragma unroll
	for (u64 step = GDIAG_SHARD_ROWS / 2; step; step /= 2) {
		next = at + step;
		row = shard->rows[within(next, GDIAG_SHARD_ROWS)] >> 16;
		at += step & all_ones_if_less(next, end) & all_ones_if_less(row, low + 1);
	}
	return shard->rows[within(at, GDIAG_SHARD_ROWS)] & 0xffff;
}

struct walk_ctx {
	struct scratch *x;
	struct gdiag_maps *maps;
};

/* Offsets in the kernel's struct sigcontext of x86-64, which user space depends on. */
#define SIGCONTEXT_BP (10 * 8)
#define SIGCONTEXT_SP (15 * 8)
#define SIGCONTEXT_IP (16 * 8)

/* Where the caller of this frame is. Returns 0 when that is known. */
static __always_inline u8 to_caller(struct walk *w, struct gdiag_rule *rule, u64 pc)
{
	u64 cfa, ra, fp = w->fp;
	s64 off = rule->cfa_off;

	switch (rule->cfa) {
	case GDIAG_CFA_SP:
		cfa = w->sp + off;
		break;
	case GDIAG_CFA_FP:
		if (!w->fp_known)
			return GDIAG_CUT_UNSUPPORTED;
		cfa = fp + off;
		break;
	case GDIAG_CFA_FP_DEREF:
		if (!w->fp_known)
			return GDIAG_CUT_UNSUPPORTED;
		if (!read_word(&cfa, fp + off))
			return GDIAG_CUT_UNREADABLE;
		break;
	case GDIAG_CFA_SP_DEREF:
		if (!read_word(&cfa, w->sp + off))
			return GDIAG_CUT_UNREADABLE;
		break;
	case GDIAG_CFA_PLT:
		cfa = w->sp + 8 + ((pc & 15) >= (u64)off ? 8 : 0);
		break;
	case GDIAG_CFA_SIGNAL:
		if (!read_word(&ra, w->sp + off + SIGCONTEXT_IP) || !read_word(&w->fp, w->sp + off + SIGCONTEXT_BP) ||
		    !read_word(&cfa, w->sp + off + SIGCONTEXT_SP))
			return GDIAG_CUT_UNREADABLE;
		w->pc = ra;
		w->sp = cfa;
		w->fp_known = 1;
		w->exact = 1;
		return 0;
	default:
		return GDIAG_CUT_UNSUPPORTED;
	}
	/* A stack grows down, so its callers are above. */
	if (cfa <= w->sp)
		return GDIAG_CUT_UNREADABLE;
	if (!read_word(&ra, cfa - 8))
		return GDIAG_CUT_UNREADABLE;
	if (rule->fp == GDIAG_FP_AT_CFA) {
		if (!read_word(&w->fp, cfa + rule->fp_off))
			return GDIAG_CUT_UNREADABLE;
		w->fp_known = 1;
	} else if (rule->fp == GDIAG_FP_AT_FP) {
		if (!w->fp_known)
			return GDIAG_CUT_UNSUPPORTED;
		if (!read_word(&w->fp, fp + rule->fp_off))
			return GDIAG_CUT_UNREADABLE;
	} else if (rule->fp == GDIAG_FP_UNSUPPORTED) {
		w->fp_known = 0;
	}
	w->pc = ra;
	w->sp = cfa;
	w->exact = 0;
	return 0;
}

/* Number of the rule for this address of a file. */
static __always_inline u32 find_rule(u32 file, u64 addr)
{
	u64 hash = mix(((u64)file << 48) ^ mix(addr)), word;
	struct rule_cache *cache;
	u32 zero = 0, id;

	cache = bpf_map_lookup_elem(&rule_caches, &zero);
	if (!cache)
		return GDIAG_RULE_NONE;
	word = cache->words[hash & (CACHED_RULES - 1)];
	if (word >> 16 == hash >> 16 && word & 0xffff)
		return word & 0xffff;
	id = search_rule(file, addr);
	/* What is not there may come. */
	if (id)
		cache->words[hash & (CACHED_RULES - 1)] = (hash & ~0xffffull) | id;
	return id;
}

/*
 * A call of the driver that probes measure returns by way of the kernel, whose address is on the
 * stack instead of the caller's. Returns whether this is such a place.
 */
static __noinline int behind_probe(struct walk *w)
{
	struct driver_task *d;

	if (!w)
		return 0;
	d = bpf_task_storage_get(&driver_tasks, bpf_get_current_task_btf(), 0, 0);
	if (!d)
		return 0;
#pragma unroll
	for (u32 i = 0; i < MAX_CALL_DEPTH; i++) {
		if (i < d->depth && d->calls[i].sp == w->sp && d->calls[i].ra) {
			w->pc = d->calls[i].ra;
			return 1;
		}
	}
	return 0;
}

static __always_inline bool find_file(struct gdiag_maps *maps, struct walk *w, u64 pc)
{
	return find_mapping(maps, w, pc) && w->file;
}

/* One frame. */
static long walk_frame(u64 i, void *data)
{
	struct walk_ctx *ctx = data;
	struct scratch *x = ctx->x;
	struct walk *w = &x->walk;
	struct gdiag_sample *s = &x->sample;
	u32 at = (u32)s->kernel + s->user, id;
	u64 pc;

	/* Where threads begin without a table that says so. */
	if (!w->pc) {
		w->cut = GDIAG_CUT_ROOT;
		return 1;
	}
	if (s->user >= GDIAG_USER_DEPTH || at >= GDIAG_KERNEL_DEPTH + GDIAG_USER_DEPTH) {
		w->cut = GDIAG_CUT_DEPTH;
		return 1;
	}
	/* The leaf always is. */
	s->frames[at] = w->pc | (w->exact && s->user ? GDIAG_FRAME_EXACT : 0);
	s->user++;
	/* After a call that never returns comes another function. */
	pc = w->exact ? w->pc : w->pc - 1;
	if (!find_file(ctx->maps, w, pc) && behind_probe(w)) {
		s->frames[at] = w->pc | (w->exact && s->user > 1 ? GDIAG_FRAME_EXACT : 0);
		pc = w->exact ? w->pc : w->pc - 1;
	}
	if (!find_mapping(ctx->maps, w, pc)) {
		w->cut = GDIAG_CUT_UNMAPPED;
		return 1;
	}
	if (!w->file) {
		w->cut = GDIAG_CUT_NO_TABLE;
		return 1;
	}
	if (w->file == w->python)
		w->in_python = 1;
	id = find_rule(w->file, pc - w->bias);
	if (id < GDIAG_FIRST_RULE) {
		w->cut = id == GDIAG_RULE_ROOT ? GDIAG_CUT_ROOT : GDIAG_CUT_NO_TABLE;
		return 1;
	}
	w->cut = to_caller(w, &rules[id & (GDIAG_MAX_RULES - 1)], pc);
	return w->cut != 0;
}

static __always_inline void want(struct walk *w, u32 tgid)
{
	u8 one = 1;

	/* The first to want it does not let gdiag sleep on. */
	if (!bpf_map_update_elem(&wanted, &tgid, &one, BPF_NOEXIST))
		w->urgent = 1;
}

static __always_inline struct gdiag_maps *find_maps(u32 tgid)
{
	void *inner = bpf_map_lookup_elem(&maps_of, &tgid);
	u32 zero = 0;

	return inner ? bpf_map_lookup_elem(inner, &zero) : 0;
}

/* Where the process has its code: a new one, where the one has that it is a copy of. */
static __always_inline struct gdiag_maps *maps_of_process(u32 tgid)
{
	struct gdiag_maps *maps = find_maps(tgid);
	struct origin *origin;

	if (maps)
		return maps;
	origin = bpf_map_lookup_elem(&origins, &tgid);
	if (!origin)
		return 0;
	maps = find_maps(origin->tgid);
	/* After an exec, or when the number is another's, they are not the same any more. */
	return maps && maps->generation == origin->generation ? maps : 0;
}

/* The user frames, after the kernel's. pc, sp and fp of x->walk are set. */
static __always_inline void walk_user(struct scratch *x, u32 tgid)
{
	struct gdiag_sample *s = &x->sample;
	struct walk *w = &x->walk;
	struct walk_ctx ctx = { .x = x };
	struct gdiag_py_process *python;

	python = bpf_map_lookup_elem(&py_processes, &tgid);
	w->python = python ? python->file : 0;
	w->in_python = 0;
	ctx.maps = maps_of_process(tgid);
	if (!ctx.maps) {
		/* Where it was is known all the same. */
		s->frames[s->kernel & (GDIAG_KERNEL_DEPTH - 1)] = w->pc;
		s->user = 1;
		s->cut = GDIAG_CUT_NO_MAPS;
		want(w, tgid);
		return;
	}
	s->generation = ctx.maps->generation;
	w->start = w->end = 0;
	w->exact = 1;
	w->fp_known = 1;
	/* One more, which finds that there is no room. */
	bpf_loop(GDIAG_USER_DEPTH + 1, walk_frame, &ctx, 0);
	s->cut = w->cut;
	if (s->cut == GDIAG_CUT_UNMAPPED)
		want(w, tgid);
}

/* A sample of the current task, with nothing in it yet. */
static __always_inline struct scratch *begin_sample(struct task_struct *t, u8 kind, u64 now)
{
	struct scratch *x = take_scratch();
	struct gdiag_sample *s;

	if (!x)
		return 0;
	s = &x->sample;
	s->hdr.type = GDIAG_REC_SAMPLE;
	s->hdr.tid = t->pid;
	s->hdr.ts_ns = now;
	s->since_ns = 0;
	s->pid = t->tgid;
	s->other = 0;
	s->generation = 0;
	s->py_holder = 0;
	s->kind = kind;
	s->cut = GDIAG_CUT_NONE;
	s->py_cut = GDIAG_PY_NONE;
	s->flags = 0;
	s->kernel = s->user = s->python = 0;
	s->cpu = bpf_get_smp_processor_id();
	s->one_in = 0;
	x->walk.urgent = 0;
	return x;
}

static __always_inline void count_lost_stack(void)
{
	u32 zero = 0;
	struct stack_costs *c = bpf_map_lookup_elem(&costs, &zero);

	if (c)
		__sync_fetch_and_add(&c->lost, 1);
}

static __always_inline void end_sample(struct scratch *x)
{
	struct gdiag_sample *s = &x->sample;
	u32 n, zero = 0;
	struct stack_costs *c = bpf_map_lookup_elem(&costs, &zero);
	void *ring = my_ring();
	u64 size, ns;

	/* Most threads never were in the interpreter, and to find that out there takes long. */
	if (s->cut != GDIAG_CUT_NONE && (s->cut != GDIAG_CUT_ROOT || x->walk.in_python))
		python_stack(s, &x->python);
	n = (u32)s->kernel + s->user + 2 * (u32)s->python;
	if (n > GDIAG_KERNEL_DEPTH + GDIAG_USER_DEPTH + 2 * GDIAG_PY_DEPTH_MAX)
		n = 0;
	size = __builtin_offsetof(struct gdiag_sample, frames) + 8 * n;
	if (size > sizeof(*s))
		size = sizeof(*s);
	if (!ring || bpf_ringbuf_output(ring, s, size,
					x->walk.urgent ? BPF_RB_FORCE_WAKEUP : wakeup_flags(ring))) {
		count_lost_stack();
	} else if (c) {
		__sync_fetch_and_add(&c->samples, 1);
		__sync_fetch_and_add(&c->frames, n);
		ns = bpf_ktime_get_ns() - s->hdr.ts_ns;
		__sync_fetch_and_add(&c->ns, ns);
		if (s->kind == GDIAG_SAMPLE_LAUNCH)
			__sync_fetch_and_add(&c->launch_ns, ns);
	}
	give_scratch(x);
}

#define INT3 0xcc

/* From the registers with which the current task entered the kernel. Returns whether it has any. */
static __always_inline bool from_entry(struct scratch *x, struct task_struct *t)
{
	struct pt_regs *regs = user_regs(t);
	u8 op;

	/* Without memory of its own there is nothing to read. */
	if (!regs || t->flags & PF_EXITING)
		return false;
	x->walk.pc = regs->ip;
	x->walk.sp = regs->sp;
	x->walk.fp = regs->bp;
	x->sample.flags |= GDIAG_SAMPLE_IN_CALL;
#ifdef __TARGET_ARCH_x86
	/*
	 * Trapped by a probe: the instruction behind the breakpoint is not where it is, and has
	 * another frame if the breakpoint replaced a push.
	 */
	if ((s64)regs->orig_ax == -1 && !bpf_probe_read_user(&op, 1, (void *)(x->walk.pc - 1)) && op == INT3)
		x->walk.pc--;
#endif
	return true;
}

SEC("perf_event")
int sample_cpu(struct bpf_perf_event_data *ctx)
{
	struct task_struct *t = bpf_get_current_task_btf();
	u64 now = bpf_ktime_get_ns();
	struct task_data *d;
	struct scratch *x;
	bool user;
	long bytes;

	if (!t->pid)
		return 0;
	d = bpf_task_storage_get(&tasks, t, 0, 0);
	if (!is_recorded(d) && !cfg.all)
		return 0;
	x = begin_sample(t, GDIAG_SAMPLE_CPU, now);
	if (!x) {
		count_lost_stack();
		return 0;
	}
	user = (ctx->regs.cs & 3) == 3;
	if (user) {
		x->walk.pc = ctx->regs.ip;
		x->walk.sp = ctx->regs.sp;
		x->walk.fp = ctx->regs.bp;
	} else {
		bytes = bpf_get_stack(ctx, x->sample.frames, GDIAG_KERNEL_DEPTH * 8, 0);
		if (bytes > 0)
			x->sample.kernel = ((u32)bytes / 8) & (2 * GDIAG_KERNEL_DEPTH - 1);
		if (x->sample.kernel >= GDIAG_KERNEL_DEPTH)
			x->sample.kernel = GDIAG_KERNEL_DEPTH - 1;
		user = from_entry(x, t);
	}
	if (user)
		walk_user(x, t->tgid);
	end_sample(x);
	return 0;
}

/* It gave its CPU away and nobody took it: no switch tells of that. */
static __noinline int on_yield(struct task_struct *t)
{
	struct task_data *d;
	u64 now;

	if (!t || syscall_nr(t) != SYSCALL_SCHED_YIELD)
		return 0;
	d = bpf_task_storage_get(&tasks, t, 0, 0);
	if (!is_recorded(d))
		return 0;
	now = bpf_ktime_get_ns();
	if (d->yield_ns && now - d->yielded_ns > YIELD_SPACING_NS)
		end_yields(d, t->pid);
	if (!d->yield_ns)
		d->yield_ns = now;
	d->yielded_ns = now;
	return 0;
}

/*
 * Another thread was switched in last, as far as was seen: some virtual machines run no BPF while
 * threads of their own init are current, so that their switch-outs are hidden. This is the end of one.
 */
static __noinline int on_hidden_switch(struct cpu_data *c, struct task_struct *t)
{
	struct gdiag_resumed r = {};
	struct task_data *d;
	u64 now;

	if (!c || !t)
		return 0;
	r.prev_tid = c->next_tid;
	c->next_tid = t->pid;
	if (!t->pid)
		return 0;
	d = bpf_task_storage_get(&tasks, t, 0, 0);
	if (!is_recorded(d) || !d->off_ns)
		return 0;
	now = bpf_ktime_get_ns();
	r.hdr.type = GDIAG_REC_RESUMED;
	r.hdr.tid = t->pid;
	r.hdr.ts_ns = now;
	r.cpu = bpf_get_smp_processor_id();
	send(&r, sizeof(r), false);
	c->resumed_off_ns = now - d->off_ns >= cfg.wait_threshold_ns ? d->off_ns : 0;
	d->off_ns = d->ready_ns = 0;
	d->min_flt = t->min_flt;
	d->maj_flt = t->maj_flt;
	return 0;
}

/* The end of __schedule, in the thread that runs now. */
SEC("tp_btf/sched_exit_tp")
int BPF_PROG(resumed, bool is_switch)
{
	struct cpu_data *c = this_cpu();
	struct task_struct *t;
	struct scratch *x;
	u64 since;

	t = bpf_get_current_task_btf();
	if (!is_switch)
		return on_yield(t);
	if (!c)
		return 0;
	if (c->next_tid != (u32)t->pid)
		on_hidden_switch(c, t);
	if (!c->resumed_off_ns)
		return 0;
	since = c->resumed_off_ns;
	c->resumed_off_ns = 0;
	x = begin_sample(t, GDIAG_SAMPLE_OFF, bpf_ktime_get_ns());
	if (!x) {
		count_lost_stack();
		return 0;
	}
	x->sample.since_ns = since;
	if (from_entry(x, t))
		walk_user(x, t->tgid);
	end_sample(x);
	return 0;
}

/* Runs after the one in sched.bpf.c, which was attached before and says whether there is a stack to take. */
SEC("tp_btf/sched_waking")
int BPF_PROG(waker, struct task_struct *p)
{
	struct cpu_data *c = this_cpu();
	struct task_struct *t;
	struct scratch *x;
	u64 since;

	if (!c || !c->woken_off_ns)
		return 0;
	since = c->woken_off_ns;
	c->woken_off_ns = 0;
	t = bpf_get_current_task_btf();
	if (!t->pid || !user_regs(t))
		return 0;
	x = begin_sample(t, GDIAG_SAMPLE_WAKER, bpf_ktime_get_ns());
	if (!x) {
		count_lost_stack();
		return 0;
	}
	x->sample.since_ns = since;
	x->sample.other = p->pid;
	if (from_entry(x, t))
		walk_user(x, t->tgid);
	end_sample(x);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(forked, struct task_struct *parent, struct task_struct *child)
{
	struct origin origin = {}, *older;
	u32 tgid = parent->tgid, pid = child->tgid;
	struct gdiag_maps *maps;

	if (pid == tgid)
		return 0;
	maps = find_maps(tgid);
	older = bpf_map_lookup_elem(&origins, &tgid);
	if (maps) {
		origin.tgid = tgid;
		origin.generation = maps->generation;
	} else if (older) {
		origin = *older;
	} else {
		return 0;
	}
	bpf_map_update_elem(&origins, &pid, &origin, BPF_ANY);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(execed, struct task_struct *t)
{
	u32 tgid = t->tgid;

	bpf_map_delete_elem(&origins, &tgid);
	return 0;
}

/* Attached to the launch functions of the driver, in the targets that use it. */
SEC("uprobe")
int launch(struct user_regs *ctx)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct task_data *d = bpf_task_storage_get(&tasks, t, 0, 0);
	struct stack_task *own;
	struct scratch *x;
	u32 one_in = launch_one_in;

	if (!is_target(d) && !cfg.all)
		return 0;
	own = bpf_task_storage_get(&stack_tasks, t, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!own || ++own->launches < one_in)
		return 0;
	own->launches = 0;
	x = begin_sample(t, GDIAG_SAMPLE_LAUNCH, bpf_ktime_get_ns());
	if (!x) {
		count_lost_stack();
		return 0;
	}
	x->sample.one_in = one_in;
	x->walk.pc = ctx->ip;
	x->walk.sp = ctx->sp;
	x->walk.fp = ctx->bp;
	walk_user(x, t->tgid);
	end_sample(x);
	return 0;
}

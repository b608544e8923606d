/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The Python frames of the current thread, read from the interpreter's own structures while the
 * thread is held at the event: nothing changes them meanwhile.
 *
 *   fs base --thread list of each interpreter--> thread state --> frame --previous--> frame ...
 *   frame --> code object (its address is the name of it here), instruction
 *
 * User space learns what a code object is by a record of its own, at its first sight.
 *
 * Every read may fail, and every address may be anything: memory of a program that is broken, or
 * that is not what it seems. Then there are fewer frames; see enum gdiag_py_cut.
 *
 * Include it after the kernel's types, the BPF helpers and events.h, and after my_ring(),
 * wakeup_flags() and count_lost_record(), which say how a record is sent.
 */
#ifndef GDIAG_PYTHON_BPF_H
#define GDIAG_PYTHON_BPF_H

#include "python.h"

#define PY_MAX_PROCESSES 16384
/* Threads and interpreters that are looked at for the state of a thread. */
#define PY_SEARCH_STEPS 544
/* Between any two frames there may be one that does not count. */
#define PY_WALK_STEPS (2 * GDIAG_PY_DEPTH_MAX + 2)
/* Interpreters that call each other on one thread. */
#define PY_NESTED 4
#define PY_FRAME_WORDS (GDIAG_KERNEL_DEPTH + GDIAG_USER_DEPTH + 2 * GDIAG_PY_DEPTH_MAX)
/* Values of `owner` from here on are frames of C, see enum gdiag_py_frames. */
#define PY_OWNED_BY_C 3
/* Longer texts and tables are no code object's. */
#define PY_MAX_LENGTH (1 << 24)

/* By tgid. Written by gdiag. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PY_MAX_PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct gdiag_py_process);
} py_processes SEC(".maps");

/* Where the state of a thread was when it was last looked for; by tid. */
struct py_thread {
	u64 state;
	u64 interp;
	u32 process; /* gdiag_py_process.id */
	u32 pad;
};

/* Not task storage: that allocates memory. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct py_thread);
} py_threads SEC(".maps");

struct py_code_key {
	u64 code;
	u32 process; /* gdiag_py_process.id */
	u32 pad;
};

struct py_interp {
	u64 address;
	u32 process; /* gdiag_py_process.id */
	u32 pad;
};

/* The state of the thread whose collection each interpreter is in; 0: in none that was seen. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct py_interp);
	__type(value, u64);
} py_collectors SEC(".maps");

/* The code objects that user space knows, each with a fingerprint: another may take its address. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct py_code_key);
	__type(value, u64);
} py_codes SEC(".maps");

/*
 * The last fingerprint in py_codes of some of them, since to look there takes longer than to read
 * the code object. Shared by all CPUs: one of its own would miss what another CPU has told. A
 * code object stays while one of its frames is looked at, so nothing old is written here late.
 */
#define PY_KNOWN_BITS 14
u64 py_known_codes[1 << PY_KNOWN_BITS];

/* The fields of one structure. */
struct py_block {
	u32 first; /* offset in the structure */
	u32 size;  /* 0: it could not be read at once */
	u64 words[GDIAG_PY_SPAN / 8];
};

/* Those that are being looked at. The sample's program has them to itself, as it has the sample. */
struct py_blocks {
	struct py_block frame;
	struct py_block code;
};

struct py_scratch {
	u32 busy;
	u32 pad;
	struct gdiag_pycode rec;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct py_scratch);
} py_scratches SEC(".maps");

/* libbpf-cargo generates a Rust type only for what the object's BTF keeps. */
const struct gdiag_py_process *unused_py_process;
const struct gdiag_py_enums *unused_py_enums;

/* Fields of the kernel's task that vmlinux.h leaves out. */
struct thread_struct___py {
	unsigned long fsbase;
} __attribute__((preserve_access_index));

struct task_struct___py {
	struct thread_struct___py thread;
} __attribute__((preserve_access_index));

static __always_inline bool py_read(void *to, u32 size, u64 from)
{
	return !bpf_probe_read_user(to, size, (void *)from);
}

/* To call the helper costs more than the copying, so one call reads all fields of a structure. */
static __always_inline void py_read_block(struct py_block *b, const struct gdiag_py_span *span, u64 structure)
{
	u32 size = span->size;

	b->first = span->first;
	b->size = size <= GDIAG_PY_SPAN && py_read(b->words, size, structure + span->first) ? size : 0;
}

/* A field of 8, 4 or 1 bytes; where it is not in the block, from the structure. */
static __always_inline bool py_field(const struct py_block *b, void *to, u32 size, u64 structure, u32 at)
{
	u32 in = at - b->first;
	const void *from;

	if (in > GDIAG_PY_SPAN - size || in + size > b->size)
		return py_read(to, size, structure + at);
	from = (const void *)b->words + in;
	if (size == 8)
		*(u64 *)to = *(const u64 *)from;
	else if (size == 4)
		*(u32 *)to = *(const u32 *)from;
	else
		*(u8 *)to = *(const u8 *)from;
	return true;
}

/* What a search for the state of a thread needs, and what it found. */
struct py_search {
	const struct gdiag_py_process *process;
	u64 pthread;
	u64 interp; /* whose list is being walked; 0: none yet */
	u64 state;  /* the next one to look at; 0: on to the next interpreter */
	u64 found;
	u64 found_interp;
	u64 frame; /* of the found one */
	u32 cut;
	u32 pad;
};

/* The innermost frame of a thread; 0 when it runs no Python. */
static __always_inline bool py_innermost(const struct gdiag_py_process *p, u64 state, u64 *frame)
{
	if (!py_read(frame, sizeof(*frame), state + p->at.thread_frame))
		return false;
	if (p->features & GDIAG_PY_CFRAME)
		return py_read(frame, sizeof(*frame), *frame + p->at.cframe_frame);
	return true;
}

/* Looks at one thread state, or goes to the next interpreter. */
static long py_search_step(u64 i, void *data)
{
	struct py_search *f = data;
	const struct gdiag_py_process *p = f->process;
	u64 pthread, frame, state = f->state;

	if (!state) {
		u64 from = f->interp ? f->interp + p->at.interp_next : p->runtime + p->at.runtime_interpreters;

		if (!py_read(&f->interp, sizeof(f->interp), from))
			goto unreadable;
		if (!f->interp)
			return 1;
		if (!py_read(&f->state, sizeof(f->state), f->interp + p->at.interp_threads))
			goto unreadable;
		return 0;
	}
	if (!py_read(&pthread, sizeof(pthread), state + p->at.thread_id) ||
	    !py_read(&f->state, sizeof(f->state), state + p->at.thread_next))
		goto unreadable;
	if (pthread != f->pthread)
		return 0;
	if (!py_innermost(p, state, &frame))
		goto unreadable;
	/*
	 * A thread has a state in each interpreter that it was in. The newest interpreter is
	 * first in the list, so the first state with frames is where it is now, and the next
	 * one is where it came from.
	 */
	if (!f->found || frame) {
		f->found = state;
		f->found_interp = f->interp;
		f->frame = frame;
	}
	return frame != 0;
unreadable:
	f->cut = GDIAG_PY_UNREADABLE;
	return 1;
}

/*
 * Where the state was the last time, when it is still that of this thread and has frames. With
 * a second interpreter only a search tells which of its states the thread uses.
 */
static __always_inline bool py_known(struct py_search *f, u32 tid)
{
	const struct gdiag_py_process *p = f->process;
	struct py_thread *known = bpf_map_lookup_elem(&py_threads, &tid);
	u64 pthread, interp, first, next, state;

	if (!known || known->process != p->id)
		return false;
	state = known->state;
	if (!py_read(&pthread, sizeof(pthread), state + p->at.thread_id) || pthread != f->pthread ||
	    !py_read(&interp, sizeof(interp), state + p->at.thread_interp) || interp != known->interp ||
	    !py_read(&first, sizeof(first), p->runtime + p->at.runtime_interpreters) || first != interp ||
	    !py_read(&next, sizeof(next), interp + p->at.interp_next) || next ||
	    !py_innermost(p, state, &f->frame) || !f->frame)
		return false;
	f->found = state;
	f->found_interp = interp;
	return true;
}

/* The state of the thread that holds the lock of this interpreter; 0: nobody, or it is not known. */
static __always_inline u64 py_lock_holder(const struct gdiag_py_process *p, u64 interp)
{
	u64 gil = p->runtime, holder;
	u32 locked;

	if (p->features & GDIAG_PY_GIL_INTERP) {
		if (!py_read(&gil, sizeof(gil), interp + p->at.interp_gil) || !gil)
			return 0;
	}
	if (!py_read(&locked, sizeof(locked), gil + p->at.gil_locked) || locked != 1)
		return 0;
	if (!py_read(&holder, sizeof(holder), gil + p->at.gil_holder))
		return 0;
	return holder;
}

/* The tid of the thread with this state; 0: it is not known. */
static __always_inline u32 py_tid(const struct gdiag_py_process *p, u64 state)
{
	u64 tid;

	if (!state || !(p->features & GDIAG_PY_NATIVE_ID) ||
	    !py_read(&tid, sizeof(tid), state + p->at.thread_native_id))
		return 0;
	return tid;
}

/*
 * Whether the current thread, which has this state, collects garbage. The interpreter says that
 * somebody does, not who. It is whoever holds the lock, but when the collector has let go of it
 * in a finalizer: so the first that was seen with the lock in a collection is taken for its
 * collector, until the interpreter is seen in none. Not static, for a stack of its own.
 */
__noinline int py_collects(const struct gdiag_py_process *p, u64 interp, u64 state, u64 holder)
{
	struct py_interp key = { .address = interp };
	u64 *collector, from;
	u32 collecting;

	if (!p)
		return 0;
	key.process = p->id;
	from = (p->features & GDIAG_PY_GC_INTERP ? interp : p->runtime) + p->at.gc_collecting;
	if (!py_read(&collecting, sizeof(collecting), from))
		return 0;
	collector = bpf_map_lookup_elem(&py_collectors, &key);
	if (!collecting) {
		if (collector && *collector)
			*collector = 0;
		return 0;
	}
	if (state != holder)
		return 0;
	if (collector && *collector)
		return *collector == state;
	bpf_map_update_elem(&py_collectors, &key, &state, BPF_ANY);
	return 1;
}

/* What tells a code object from another one at the same address. */
struct py_code {
	u64 address;
	u64 filename;
	u64 name;
	u64 lines;
	u32 first_line;
	u32 pad;
};

static __always_inline bool py_read_code(const struct gdiag_py_process *p, struct py_block *b, struct py_code *c)
{
	py_read_block(b, &p->code, c->address);
	return py_field(b, &c->filename, sizeof(c->filename), c->address, p->at.code_filename) &&
	       py_field(b, &c->name, sizeof(c->name), c->address, p->at.code_name) &&
	       py_field(b, &c->lines, sizeof(c->lines), c->address, p->at.code_lines) &&
	       py_field(b, &c->first_line, sizeof(c->first_line), c->address, p->at.code_first_line);
}

static __always_inline u64 py_mix(u64 h)
{
	return (h ^ (h >> 29)) * 0x9e3779b97f4a7c15ull;
}

/* A hash of where a code object is. */
static __always_inline u64 py_place(const struct py_code_key *key)
{
	return py_mix(py_mix(key->code) + key->process);
}

/* Of the place, too: so it tells those apart that share an element of py_known_codes. */
static __always_inline u64 py_fingerprint(u64 place, const struct py_code *c)
{
	u64 h = py_mix(place + c->filename);

	h = py_mix(h + c->name);
	h = py_mix(h + c->lines);
	h = py_mix(h + c->first_line);
	return h ^ (h >> 29);
}

/*
 * Copies at most GDIAG_PY_TEXT bytes of a str object to `at` in the record's bytes. Returns how
 * many, and above bit 16 its kind as in gdiag_pycode, 0: unreadable.
 *
 * Not static, nor are the others below: so the verifier looks at them once, and not again on each
 * path that leads to them.
 */
__noinline u32 py_text(const struct gdiag_py_process *p, u64 text, struct gdiag_pycode *r, u32 at)
{
	u32 state, kind, ascii;
	u64 length;

	if (!p || !r || at > GDIAG_PY_TEXT)
		return 0;
	if (!py_read(&length, sizeof(length), text + p->at.text_length) || length > PY_MAX_LENGTH ||
	    !py_read(&state, sizeof(state), text + p->at.text_state))
		return 0;
	/*
	 * Bit fields: how it is interned, bytes per character (3 bits), compact, ASCII. The first
	 * has 2 bits, or 16 in some releases of 3.14, with no more than 2 of them in use.
	 */
	state >>= state & 0xfffc ? 2 : 16;
	kind = state & 7;
	ascii = state >> 4 & 1;
	/* The characters of one that is not compact are elsewhere; no compiler makes such names. */
	if ((kind != 1 && kind != 2 && kind != 4) || !(state >> 3 & 1))
		return 0;
	length *= kind;
	if (length > GDIAG_PY_TEXT)
		length = GDIAG_PY_TEXT;
	if (!py_read(r->bytes + at, length, text + (ascii ? p->at.text_ascii : p->at.text_compact)))
		return 0;
	return (ascii ? kind : kind + 16) << 16 | length;
}

/*
 * Tells user space what a code object is. Returns 0 when the record is on its way.
 */
__noinline int py_send_code(const struct gdiag_py_process *p, const struct py_code *c, const struct gdiag_sample *s)
{
	u32 zero = 0, at, text;
	struct py_scratch *x = bpf_map_lookup_elem(&py_scratches, &zero);
	struct gdiag_pycode *r;
	u64 size;
	void *ring;
	int err = -1;

	if (!x || !p || !c || !s)
		return -1;
	/* Another program was interrupted here. The next sight of this code object will do. */
	if (__sync_lock_test_and_set(&x->busy, 1))
		return -1;
	r = &x->rec;
	r->hdr.type = GDIAG_REC_PYCODE;
	r->hdr.tid = s->hdr.tid;
	/* The same time as the sample's: it comes before it, and is needed for it. */
	r->hdr.ts_ns = s->hdr.ts_ns;
	r->code = c->address;
	r->pid = s->pid;
	r->first_line = c->first_line;
	text = py_text(p, c->filename, r, 0);
	r->file_kind = text >> 16;
	r->file_len = at = text & 0xffff;
	text = py_text(p, c->name, r, at);
	r->name_kind = text >> 16;
	r->name_len = text & 0xffff;
	at += text & 0xffff;
	if (at > 2 * GDIAG_PY_TEXT)
		at = 2 * GDIAG_PY_TEXT;
	r->lines_len = 0;
	r->lines_cut = 0;
	if (py_read(&size, sizeof(size), c->lines + p->at.bytes_size) && size <= PY_MAX_LENGTH) {
		if (size > GDIAG_PY_LINES) {
			size = GDIAG_PY_LINES;
			r->lines_cut = 1;
		}
		if (py_read(r->bytes + at, size, c->lines + p->at.bytes_data))
			r->lines_len = size;
	}
	size = __builtin_offsetof(struct gdiag_pycode, bytes) + at + r->lines_len;
	if (size > sizeof(*r))
		size = sizeof(*r);
	ring = my_ring();
	if (ring)
		err = bpf_ringbuf_output(ring, r, size, wakeup_flags(ring));
	__sync_lock_test_and_set(&x->busy, 0);
	if (err)
		count_lost_record();
	return err;
}

struct py_walk {
	const struct gdiag_py_process *process;
	struct gdiag_sample *sample;
	struct py_blocks *blocks;
	u64 frame;
	u32 base; /* index of the first Python frame in frames[] */
	u32 pad;
};

/* The last frame that was found is the outermost of its call of the evaluation loop. */
static __always_inline void py_mark_entry(struct gdiag_sample *s, u32 base)
{
	u32 at = base + 2 * (u32)s->python - 1;

	if (s->python && at < PY_FRAME_WORDS)
		s->frames[at] |= (u64)GDIAG_PY_ENTRY << 32;
}

/* The offset of a frame's instruction in its bytecode, in bytes; -1 before the first. */
static __always_inline bool py_instr(const struct gdiag_py_process *p, const struct py_block *b, u64 frame, u64 code,
				     s32 *instr)
{
	u64 pointer;
	s64 offset;

	if (p->instr != GDIAG_PY_INSTR_POINTER) {
		if (!py_field(b, instr, sizeof(*instr), frame, p->at.frame_instr))
			return false;
		if (p->instr == GDIAG_PY_INSTR_UNITS && *instr > 0)
			*instr *= 2;
	} else {
		if (!py_field(b, &pointer, sizeof(pointer), frame, p->at.frame_instr))
			return false;
		offset = pointer - (code + p->at.code_bytecode);
		*instr = offset < 0 || offset > PY_MAX_LENGTH ? -1 : offset;
	}
	if (*instr < 0)
		*instr = -1;
	return true;
}

/* Tells user space of a code object when it does not know it. */
static __always_inline void py_tell_code(const struct gdiag_py_process *p, const struct py_code *c,
					 const struct gdiag_sample *s)
{
	struct py_code_key key = { .code = c->address, .process = p->id };
	u64 place = py_place(&key), fingerprint = py_fingerprint(place, c), *known;
	u64 *last = &py_known_codes[place >> (64 - PY_KNOWN_BITS)];

	if (*last == fingerprint)
		return;
	known = bpf_map_lookup_elem(&py_codes, &key);
	if (!known || *known != fingerprint) {
		if (py_send_code(p, c, s))
			return;
		bpf_map_update_elem(&py_codes, &key, &fingerprint, BPF_ANY);
	}
	*last = fingerprint;
}

/* One frame of the interpreter. */
static long py_walk_step(u64 i, void *data)
{
	struct py_walk *w = data;
	const struct gdiag_py_process *p = w->process;
	struct gdiag_sample *s = w->sample;
	struct py_block *block = &w->blocks->frame;
	struct py_code code = {};
	u64 frame = w->frame;
	u32 base = w->base, at;
	u8 owner = 0;
	s32 instr;

	if (!frame) {
		s->py_cut = GDIAG_PY_ROOT;
		return 1;
	}
	py_read_block(block, &p->frame, frame);
	if (!py_field(block, &w->frame, sizeof(w->frame), frame, p->at.frame_previous))
		goto unreadable;
	if (p->frames != GDIAG_PY_FRAMES_SINGLE &&
	    !py_field(block, &owner, sizeof(owner), frame, p->at.frame_owner))
		goto unreadable;
	if (p->frames == GDIAG_PY_FRAMES_SHIMS && owner >= PY_OWNED_BY_C) {
		py_mark_entry(s, base);
		return 0;
	}
	if (!py_field(block, &code.address, sizeof(code.address), frame, p->at.frame_code))
		goto unreadable;
	/* From 3.14 on the low bits tell how the reference is counted. */
	code.address &= ~7ull;
	if (!code.address || !py_read_code(p, &w->blocks->code, &code) ||
	    !py_instr(p, block, frame, code.address, &instr))
		goto unreadable;
	/* The code that runs between a class and its __init__ is no function of the program: its file is its name. */
	if (p->frames == GDIAG_PY_FRAMES_SHIMS && code.filename == code.name)
		return 0;
	at = base + 2 * (u32)s->python;
	if (s->python >= GDIAG_PY_DEPTH_MAX || at >= PY_FRAME_WORDS - 1) {
		s->py_cut = GDIAG_PY_DEPTH;
		return 1;
	}
	py_tell_code(p, &code, s);
	s->frames[at] = code.address;
	s->frames[at + 1] = (u32)instr;
	s->python++;
	if (p->frames == GDIAG_PY_FRAMES_SINGLE || (p->frames == GDIAG_PY_FRAMES_FLAGGED && owner))
		py_mark_entry(s, base);
	return 0;
unreadable:
	s->py_cut = GDIAG_PY_UNREADABLE;
	return 1;
}

/*
 * Adds the Python frames of the current task to a sample that has its kernel and user frames,
 * its time and its ids; also sets py_cut and py_holder, and of its flags the interpreter's.
 */
__noinline int python_stack(struct gdiag_sample *s, struct py_blocks *blocks)
{
	struct py_search search = {};
	struct py_walk walk = {};
	struct py_thread found = {};
	u32 tid, tgid;
	u64 holder;
	bool known;

	if (!s || !blocks)
		return 0;
	tid = s->hdr.tid;
	tgid = s->pid;
	s->python = 0;
	s->py_cut = GDIAG_PY_NONE;
	s->py_holder = 0;
#ifdef __TARGET_ARCH_x86
	search.process = bpf_map_lookup_elem(&py_processes, &tgid);
	if (!search.process)
		return 0;
	/* glibc and musl: the thread's descriptor, and so pthread_self(), is where fs points to. */
	search.pthread = BPF_CORE_READ((struct task_struct___py *)bpf_get_current_task_btf(), thread.fsbase);
	known = py_known(&search, tid);
	if (!known) {
		bpf_loop(PY_SEARCH_STEPS, py_search_step, &search, 0);
		if (!search.found) {
			s->py_cut = search.cut ?: GDIAG_PY_NO_THREAD;
			return 0;
		}
		found.state = search.found;
		found.interp = search.found_interp;
		found.process = search.process->id;
		bpf_map_update_elem(&py_threads, &tid, &found, BPF_ANY);
	}
	holder = py_lock_holder(search.process, search.found_interp);
	s->py_holder = py_tid(search.process, holder);
	if (py_collects(search.process, search.found_interp, search.found, holder))
		s->flags |= GDIAG_SAMPLE_COLLECTS;
	walk.process = search.process;
	walk.sample = s;
	walk.blocks = blocks;
	walk.frame = search.frame;
	walk.base = (u32)s->kernel + s->user;
	s->py_cut = GDIAG_PY_DEPTH;
	bpf_loop(PY_WALK_STEPS, py_walk_step, &walk, 0);
	if (known)
		return 0;
	/* The interpreter that called this one, if any, has the thread's outer frames. */
	for (int i = 1; i < PY_NESTED && search.frame && s->py_cut == GDIAG_PY_ROOT; i++) {
		search.found = search.frame = 0;
		bpf_loop(PY_SEARCH_STEPS, py_search_step, &search, 0);
		if (search.cut)
			s->py_cut = search.cut;
		if (!search.frame)
			break;
		walk.frame = search.frame;
		s->py_cut = GDIAG_PY_DEPTH;
		bpf_loop(PY_WALK_STEPS, py_walk_step, &walk, 0);
	}
#endif
	return 0;
}

#endif /* GDIAG_PYTHON_BPF_H */

/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * What gdiag tells the BPF programs about a process that runs CPython: where the interpreter's
 * state is, and how its structures are laid out in this version.
 *
 * The only definition of these layouts; the Rust side uses the types that libbpf-cargo
 * generates. src/collect/python.rs fills them in, for 3.8 to 3.14.
 */
#ifndef GDIAG_PYTHON_H
#define GDIAG_PYTHON_H

/* What tells where one call of the C evaluation loop ends. */
enum gdiag_py_frames {
	GDIAG_PY_FRAMES_SINGLE = 0,  /* 3.8 to 3.10: each frame is a call of its own */
	GDIAG_PY_FRAMES_FLAGGED = 1, /* 3.11: the outermost frame of a call says so, in the byte `owner` */
	GDIAG_PY_FRAMES_SHIMS = 2,   /* 3.12 on: a frame of C lies below it; its `owner` is at least 3 */
};

/* What a frame keeps about its instruction. */
enum gdiag_py_instr {
	GDIAG_PY_INSTR_BYTES = 0,   /* 3.8, 3.9: an int, the offset in bytes */
	GDIAG_PY_INSTR_UNITS = 1,   /* 3.10: an int, the offset in units of 2 bytes */
	GDIAG_PY_INSTR_POINTER = 2, /* 3.11 on: an address in the code object */
};

/* Which of the optional steps there are. */
enum gdiag_py_features {
	GDIAG_PY_CFRAME = 1,	 /* 3.11, 3.12: from the thread state to its frame by way of a cframe */
	GDIAG_PY_GIL_INTERP = 2, /* 3.12 on: each interpreter has a pointer to its lock; before, the runtime holds the one lock */
	GDIAG_PY_NATIVE_ID = 4,	 /* 3.11 on: the thread state knows the tid */
	GDIAG_PY_GC_INTERP = 8,	 /* 3.9 on: each interpreter has a garbage collector; before, the runtime */
};

/* Bytes of a structure that are read at once. */
#define GDIAG_PY_SPAN 128

/* Offsets in bytes, each in the structure that its name begins with. */
struct gdiag_py_offsets {
	unsigned int runtime_interpreters; /* the first interpreter */
	unsigned int interp_next;
	unsigned int interp_threads; /* the first thread state */
	unsigned int interp_gil;     /* with GDIAG_PY_GIL_INTERP */
	unsigned int thread_next;
	unsigned int thread_interp;
	unsigned int thread_id; /* pthread_self() */
	unsigned int thread_native_id;
	unsigned int thread_frame; /* or cframe */
	unsigned int cframe_frame;
	unsigned int frame_previous;
	unsigned int frame_code;
	unsigned int frame_instr;
	unsigned int frame_owner; /* a byte; see enum gdiag_py_frames */
	unsigned int code_filename;
	unsigned int code_name; /* the qualified one, where there is one */
	unsigned int code_first_line;
	unsigned int code_lines; /* bytes object */
	unsigned int code_bytecode;
	unsigned int gil_locked; /* in the lock, or in the runtime */
	unsigned int gil_holder;
	unsigned int gc_collecting; /* an int, in the interpreter or in the runtime */
	unsigned int text_length;
	unsigned int text_state;   /* a u32 of bit fields */
	unsigned int text_ascii;   /* where the characters of an ASCII text begin */
	unsigned int text_compact; /* and of any other */
	unsigned int bytes_size;
	unsigned int bytes_data;
};

/* The part of a structure that has the fields which a walk needs, to read it at once. */
struct gdiag_py_span {
	unsigned int first; /* offset in bytes */
	unsigned int size;  /* in bytes; above GDIAG_PY_SPAN each field is read by itself */
};

struct gdiag_py_process {
	unsigned long long runtime; /* address of _PyRuntime */
	unsigned int id;	    /* of this telling: each process, and each program it executes, has another; not 0 */
	unsigned char frames;	    /* enum gdiag_py_frames */
	unsigned char instr;	    /* enum gdiag_py_instr */
	unsigned char features;	    /* enum gdiag_py_features */
	unsigned char pad;
	struct gdiag_py_offsets at;
	unsigned int file; /* the interpreter's, as unwind.h counts files */
	struct gdiag_py_span frame;
	struct gdiag_py_span code;
	unsigned int pad2;
};

/* Never sent: it makes BTF, and so the generated Rust types, keep the enumerators. */
struct gdiag_py_enums {
	enum gdiag_py_frames frames;
	enum gdiag_py_instr instr;
	enum gdiag_py_features features;
};

#ifdef __bpf__
_Static_assert(sizeof(struct gdiag_py_offsets) == 28 * 4, "py_offsets");
_Static_assert(sizeof(struct gdiag_py_process) == 16 + 28 * 4 + 4 + 2 * 8 + 4, "py_process");
#endif

#endif /* GDIAG_PYTHON_H */

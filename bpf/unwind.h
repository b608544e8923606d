/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * What gdiag tells the BPF programs about the code of its targets, so that they can walk a
 * stack without frame pointers: which file is mapped where, and how to get from a frame to
 * its caller at each instruction of a file.
 *
 * The only definition of these layouts; the Rust side uses the types that libbpf-cargo
 * generates. src/unwind makes the tables from .eh_frame.
 *
 *   pc --maps of the process--> file, address in the file
 *      --pages of the file----> the rows of the 64 KiB of code around it
 *      --last row at or before--> a rule
 *      --rule-----------------> CFA, caller's frame pointer, return address
 */
#ifndef GDIAG_UNWIND_H
#define GDIAG_UNWIND_H

/* A row is a u32: the low 16 bits of the address in the upper half, the rule's number below. */
#define GDIAG_PAGE_BITS 16
#define GDIAG_ROW_SHARD_BITS 16
/* Rows in one inner map. The rows of a page are all in one shard. */
#define GDIAG_SHARD_ROWS (1 << GDIAG_ROW_SHARD_BITS)
#define GDIAG_MAX_SHARDS 512
#define GDIAG_MAX_RULES 65536
#define GDIAG_MAX_PAGES (1 << 17)
/* Executable mappings of one process. */
#define GDIAG_MAX_MAPPINGS 1024

/* Rules with a meaning of their own; tables number the others from GDIAG_FIRST_RULE on. */
enum gdiag_rule_id {
	GDIAG_RULE_NONE = 0, /* no table covers this address */
	GDIAG_RULE_ROOT = 1, /* the return address is undefined: nobody called this */
	GDIAG_FIRST_RULE = 2,
};

/* How the canonical frame address is found. */
enum gdiag_cfa {
	GDIAG_CFA_UNSUPPORTED = 0, /* an expression or a register that is not followed */
	GDIAG_CFA_SP = 1,	   /* sp + cfa_off */
	GDIAG_CFA_FP = 2,	   /* fp + cfa_off */
	GDIAG_CFA_FP_DEREF = 3,	   /* *(fp + cfa_off): the stack was realigned */
	GDIAG_CFA_SP_DEREF = 4,	   /* *(sp + cfa_off) */
	GDIAG_CFA_PLT = 5,	   /* sp + 8, or sp + 16 when the low 4 bits of the pc are at least cfa_off */
	GDIAG_CFA_SIGNAL = 6,	   /* the kernel's signal frame: all registers are in the sigcontext at sp + cfa_off */
};

/* Where the caller's frame pointer is. */
enum gdiag_fp {
	GDIAG_FP_SAME = 0,	  /* this frame did not change it */
	GDIAG_FP_AT_CFA = 1,	  /* *(CFA + fp_off) */
	GDIAG_FP_UNSUPPORTED = 2, /* unknown in the caller: fatal only where a CFA needs it */
	GDIAG_FP_AT_FP = 3,	  /* *(fp + fp_off), for a realigned stack */
};

struct gdiag_rule {
	int cfa_off;
	short fp_off;
	unsigned char cfa; /* enum gdiag_cfa */
	unsigned char fp;  /* enum gdiag_fp; the return address is at CFA - 8 */
};

struct gdiag_page_key {
	unsigned int file;
	unsigned int page; /* address in the file >> GDIAG_PAGE_BITS */
};

struct gdiag_page {
	unsigned int shard;
	unsigned short first; /* row in the shard */
	unsigned short last;  /* the last row, included: a page without rows has no entry */
};

struct gdiag_mapping {
	unsigned long long start;
	unsigned long long end;
	unsigned long long bias; /* address in the file (as its program headers count) = pc - bias */
	unsigned int file;	 /* 0: no file, or one that is not known yet */
	unsigned int pad;
};

/* Of one process; replaced as a whole. Sorted by start. */
struct gdiag_maps {
	unsigned int generation; /* of this process's maps; sent back with each stack */
	unsigned int count;
	struct gdiag_mapping mappings[GDIAG_MAX_MAPPINGS];
};

/* Never sent: it makes BTF, and so the generated Rust types, keep the enumerators. */
struct gdiag_unwind_enums {
	enum gdiag_rule_id rule;
	enum gdiag_cfa cfa;
	enum gdiag_fp fp;
};

#ifdef __bpf__
_Static_assert(sizeof(struct gdiag_rule) == 8, "rule");
_Static_assert(sizeof(struct gdiag_page) == 8, "page");
_Static_assert(sizeof(struct gdiag_mapping) == 32, "mapping");
#endif

#endif /* GDIAG_UNWIND_H */

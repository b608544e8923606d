/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The buckets of every histogram of times, in the kernel and in gdiag (src/histogram.rs): each
 * power of two is divided into equal parts, so that a bucket's width is at most an eighth of what is in it.
 */
#ifndef GDIAG_HISTOGRAM_H
#define GDIAG_HISTOGRAM_H

#define GDIAG_HIST_SUB_BITS 3
#define GDIAG_HIST_SUB (1 << GDIAG_HIST_SUB_BITS)

/* What is shorter is in the first bucket: 2^7 ns = 128 ns. What is longer than 2^37 ns (137 s) is in the last. */
#define GDIAG_HIST_MIN_BITS 7
#define GDIAG_HIST_MAX_BITS 37
#define GDIAG_HIST_BUCKETS (1 + (GDIAG_HIST_MAX_BITS - GDIAG_HIST_MIN_BITS) * GDIAG_HIST_SUB)

#ifdef __bpf__
/* Position of the highest bit that is set; 0 for 0. */
static __always_inline unsigned int gdiag_log2(unsigned long long v)
{
	unsigned int r, shift;

	r = (v > 0xffffffffULL) << 5;
	v >>= r;
	shift = (v > 0xffff) << 4;
	v >>= shift;
	r |= shift;
	shift = (v > 0xff) << 3;
	v >>= shift;
	r |= shift;
	shift = (v > 0xf) << 2;
	v >>= shift;
	r |= shift;
	shift = (v > 0x3) << 1;
	v >>= shift;
	r |= shift;
	return r | (unsigned int)(v >> 1);
}

static __always_inline unsigned int gdiag_bucket(unsigned long long ns)
{
	unsigned int bits;

	if (ns < 1ULL << GDIAG_HIST_MIN_BITS)
		return 0;
	bits = gdiag_log2(ns);
	if (bits >= GDIAG_HIST_MAX_BITS)
		return GDIAG_HIST_BUCKETS - 1;
	return 1 + ((bits - GDIAG_HIST_MIN_BITS) << GDIAG_HIST_SUB_BITS) +
	       ((ns >> (bits - GDIAG_HIST_SUB_BITS)) & (GDIAG_HIST_SUB - 1));
}
#endif

#endif /* GDIAG_HISTOGRAM_H */

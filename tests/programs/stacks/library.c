/* A library that calls back. Built twice: NAME(x) is x with the library's own prefix. */
#include "library.h"

#ifdef __clang__
#define FRAME __attribute__((noinline))
#else
#define FRAME __attribute__((noipa))
#endif
#define AFTER() __asm__ volatile("" ::: "memory")

FRAME static void NAME(inside)(callback f, void *t, int n)
{
	/* What is kept over the call fills the registers that a caller owns. */
	volatile long a[9] = { n };

	if (n > 1)
		NAME(inside)(f, t, n - 1);
	else
		f(t);
	AFTER();
	a[0]++;
}

void NAME(enter)(callback f, void *t, int n)
{
	NAME(inside)(f, t, n);
	AFTER();
}

void NAME(nothing)(void)
{
	AFTER();
}

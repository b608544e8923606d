/* A waiting thread is used for the injection: nothing in it may have changed
 * when its system call returns. */
#include "victim.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

/* As regs.S has it. */
_Static_assert(offsetof(struct raw, red) == 176 && offsetof(struct raw, fx) == 416 &&
		       offsetof(struct raw, vectors) == 928,
	       "");

void raw_syscall(struct raw *raw, const void *vectors, long level);

static long level_of_cpu(void)
{
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512bw"))
		return 2;
	return !!__builtin_cpu_supports("avx");
}

static uint64_t word(const void *bytes)
{
	uint64_t word;

	memcpy(&word, bytes, sizeof(word));
	return word;
}

long raw_call(struct check *c, long nr, long a, long b, long c3, long d)
{
	return raw_call_5(c, nr, a, b, c3, d, 0x5555);
}

long raw_call_5(struct check *c, long nr, long a, long b, long c3, long d, long e)
{
	static const char *const names[] = { "rbx", "rbp", "r12", "r13", "r14", "r15",
					     "rdi", "rsi", "rdx", "r10", "r8",	"r9" };
	static const size_t sizes[] = { 16, 32, 64 };
	static const uint64_t pi[] = { 0xc90fdaa22168c234, 0x4000 };
	uint8_t vectors[32][64];
	struct raw raw = { .nr = nr, .args = { a, b, c3, d, e, 0x6666 } };
	long level = level_of_cpu();
	uint64_t expected[12];

	for (size_t i = 0; i < sizeof(vectors); i++)
		vectors[i / 64][i % 64] = i * 7 + i / 64 + 1;
	for (int i = 0; i < 6; i++) {
		expected[i] = 0xb000000000000001 + i;
		expected[6 + i] = raw.args[i];
	}
	errno = 4242;
	raw_syscall(&raw, vectors, level);

	check(c, errno == 4242, "errno became %d", errno);
	for (int i = 0; i < 12; i++)
		check(c, raw.kept[i] == expected[i], "%s became %#lx", names[i], raw.kept[i]);
	check(c, !raw.moved, "rsp moved by %ld", (long)raw.moved);
	/* CF, DF; not TF, IF, AC or the rest */
	check(c, (raw.flags & 0x40d01) == 0x401, "flags became %#lx", raw.flags);
	for (int i = 0; i < 16; i++)
		check(c, raw.red[i] == 0x5ed0000000000001u + i, "red zone, word %d became %#lx", i,
		      raw.red[i]);
	for (int i = 0; i < (level == 2 ? 32 : 16); i++)
		check(c, !memcmp(raw.vectors[i], vectors[i], sizes[level]),
		      "vector register %d begins with %#lx", i, word(raw.vectors[i]));
	for (int i = 0; level == 2 && i < 8; i++)
		check(c, raw.masks[i] == word(vectors[i]), "k%d became %#lx", i, raw.masks[i]);
	check(c, (word(raw.fx) & 0xffff) == 0x0f7f, "the x87 control word became %#lx",
	      word(raw.fx) & 0xffff);
	check(c, (raw.fx[4] & 0xff) == 0xe0, "the x87 tags became %#x", raw.fx[4]);
	check(c, word(raw.fx + 48) == pi[0] && (word(raw.fx + 56) & 0xffff) == pi[1],
	      "st1 became %#lx", word(raw.fx + 48));
	check(c, (word(raw.fx + 24) & 0xffffffff) == 0x7fbf, "mxcsr became %#lx",
	      word(raw.fx + 24) & 0xffffffff);
	return raw.result;
}

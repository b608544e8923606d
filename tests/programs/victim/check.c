/* What must hold, how often it was looked at, and what was wrong first. */
#include "victim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static struct check *_Atomic checks;

int check(struct check *check, int holds, const char *format, ...)
{
	int listed = 0;

	if (!atomic_load(&check->listed) &&
	    atomic_compare_exchange_strong(&check->listed, &listed, 1)) {
		check->next = atomic_load(&checks);
		while (!atomic_compare_exchange_weak(&checks, &check->next, check))
			;
	}
	atomic_fetch_add(&check->count, 1);
	if (!holds && !atomic_fetch_add(&check->failed, 1)) {
		va_list args;

		va_start(args, format);
		vsnprintf(check->first, sizeof(check->first), format, args);
		va_end(args);
	}
	return holds;
}

void check_late(struct check *check, uint64_t ns)
{
	unsigned long most = atomic_load(&check->late);

	while (ns > most && !atomic_compare_exchange_weak(&check->late, &most, ns))
		;
}

unsigned long check_verdict(unsigned long steps)
{
	unsigned long failed = 0;
	const char *comma = "";

	printf("{\"steps\":%lu,\"checks\":{", steps);
	for (struct check *c = atomic_load(&checks); c; c = c->next) {
		failed += c->failed;
		/* Nothing in `first` needs escapes. */
		printf("%s\"%s\":{\"count\":%lu,\"failed\":%lu,\"late_ns\":%lu,\"first\":\"%s\"}",
		       comma, c->name, c->count, c->failed, c->late, c->first);
		comma = ",";
	}
	printf("},\"failed\":%lu}\n", failed);
	fflush(stdout);
	return failed;
}

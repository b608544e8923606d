#define _GNU_SOURCE
#include "load.h"
#include <time.h>
static void go_sleep(struct run *run, uint64_t ns, struct span *span)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };
	(void)run; (void)span;
	nanosleep(&t, NULL);
}
const struct injection injections[] = { { "sleep", "host.sleep", 5, "nanosleep", 0, 0, go_sleep } };
const int injection_count = 1;
int hogs_main(int argc, char **argv);
int hogs_main(int argc, char **argv) { (void)argc; (void)argv; return 0; }

/* A library whose constructor takes its time, with the loader's lock held. */
#include <time.h>

int plugin_value;

__attribute__((constructor)) static void begin(void)
{
	struct timespec t = { 0, 5000000 };

	while (nanosleep(&t, &t))
		;
	plugin_value = 42;
}

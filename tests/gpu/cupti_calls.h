/*
 * Which API calls stay recorded: what gdiag's shim does with its table of calls,
 * for the small CUPTI tools beside this file.
 */
#ifndef GDIAG_TESTS_CUPTI_CALLS_H
#define GDIAG_TESTS_CUPTI_CALLS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cupti.h>

#define MAX_CBID 1024

static unsigned char keep_driver[MAX_CBID], keep_runtime[MAX_CBID];

/* The list is "driver ID ID … runtime ID ID …". */
static void parse_calls(const char *list)
{
	unsigned char *keep = NULL;
	char *copy = strdup(list);

	for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
		if (!strcmp(word, "driver"))
			keep = keep_driver;
		else if (!strcmp(word, "runtime"))
			keep = keep_runtime;
		else if (keep && atoi(word) > 0 && atoi(word) < MAX_CBID)
			keep[atoi(word)] = 1;
	}
	free(copy);
}

/* Both switch off every call that the list did not name. An id that this CUPTI does not know is refused; that is no error. */
static void keep_driver_calls(void)
{
	for (uint32_t id = 1; id < MAX_CBID; id++)
		if (!keep_driver[id])
			cuptiActivityEnableDriverApi(id, 0);
}

static void keep_runtime_calls(void)
{
	for (uint32_t id = 1; id < MAX_CBID; id++)
		if (!keep_runtime[id])
			cuptiActivityEnableRuntimeApi(id, 0);
}

#endif

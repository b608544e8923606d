#define _GNU_SOURCE
#include "group.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "load.h"

#define MOUNT "/sys/fs/cgroup"

#define MOST 8

static const struct group *made[MOST];
static int made_count;
static pid_t maker;

const char *group_root(const char *controller)
{
	static char path[64];
	static const char *const unified[] = { MOUNT, MOUNT "/unified" };

	if (*controller) {
		snprintf(path, sizeof(path), MOUNT "/%s", controller);
		/* A directory of this name can also be a group of v2. */
		return access(MOUNT "/cgroup.controllers", F_OK) && !access(path, F_OK) ? path : NULL;
	}
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/cgroup.controllers", unified[i]);
		if (!access(path, F_OK))
			return unified[i];
	}
	return NULL;
}

int group_write(const char *directory, const char *file, const char *text)
{
	char path[1024];
	int fd, ok;

	snprintf(path, sizeof(path), "%s/%s", directory, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	close(fd);
	return ok;
}

void group_set(const struct group *group, const char *file, const char *text)
{
	if (!group_write(group->path, file, text))
		die("%s/%s: %s", group->path, file, strerror(errno));
}

/* Our path in the hierarchy. */
static int own_group(const char *controller, char *out, size_t size)
{
	char line[512];
	FILE *f = fopen("/proc/self/cgroup", "r");
	int found = 0;

	while (f && !found && fgets(line, sizeof(line), f)) {
		char *names = strchr(line, ':');
		char *path = names ? strchr(names + 1, ':') : NULL;

		if (!path)
			continue;
		*path++ = 0;
		path[strcspn(path, "\n")] = 0;
		for (char *name = strsep(&names, ":"); (name = strsep(&names, ","));)
			if (!strcmp(name, controller))
				found = 1;
		if (found)
			snprintf(out, size, "%s", path);
	}
	if (f)
		fclose(f);
	return found;
}

static void clean_up(void)
{
	/* Not the children that inherit this. */
	if (getpid() != maker)
		return;
	for (int i = 0; i < made_count; i++) {
		group_leave(made[i]);
		rmdir(made[i]->path);
	}
}

void group_make(struct group *group, const char *controller)
{
	const char *root = group_root(controller);
	char path[256];

	if (!root || made_count == MOST)
		die("no control groups here for '%s'", controller);
	if (!own_group(controller, path, sizeof(path)))
		die("in no control group for '%s'", controller);
	group->members = *controller ? "tasks" : "cgroup.procs";
	snprintf(group->home, sizeof(group->home), "%s%s", root, path);
	snprintf(group->path, sizeof(group->path), "%s/gpuload.%d.%d", root, getpid(), made_count);
	if (mkdir(group->path, 0755))
		die("cannot make the control group %s: %s", group->path, strerror(errno));
	if (!made_count) {
		maker = getpid();
		atexit(clean_up);
	}
	made[made_count++] = group;
}

/* 0 is the writer. */
void group_enter(const struct group *group)
{
	if (!group_write(group->path, group->members, "0"))
		die("cannot enter %s: %s", group->path, strerror(errno));
}

void group_leave(const struct group *group)
{
	if (!group_write(group->home, group->members, "0"))
		die("cannot return to %s: %s", group->home, strerror(errno));
}

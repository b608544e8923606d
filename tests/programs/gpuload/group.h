/* Control groups of ours, of both versions. */
#ifndef GPULOAD_GROUP_H
#define GPULOAD_GROUP_H

struct group {
	char path[256];
	char home[512];	     /* where we were */
	const char *members; /* the file that takes a thread or process in */
};

/* Where the hierarchy of this v1 controller is, or the v2 one for ""; NULL if it is not mounted. */
const char *group_root(const char *controller);
/* Makes an empty group there, which goes when we end. */
void group_make(struct group *group, const char *controller);
/* Returns 0 if it could not be written. */
int group_write(const char *directory, const char *file, const char *text);
/* The same, and ends the program. */
void group_set(const struct group *group, const char *file, const char *text);
/* This thread, or with v2 this process. */
void group_enter(const struct group *group);
void group_leave(const struct group *group);

#endif

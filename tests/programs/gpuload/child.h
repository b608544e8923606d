/* Processes that gpuload starts and talks to. */
#ifndef GPULOAD_CHILD_H
#define GPULOAD_CHILD_H

#include <stddef.h>
#include <sys/types.h>

/* A child of this name that runs `loop` until it returns or its parent is gone. */
pid_t serve(const char *name, void (*loop)(int fd, void *arg), int fd, void *arg);
/* The same, with a unix socket to it, which is returned. */
int unix_child(const char *name, void (*loop)(int fd, void *arg));
/* Zeroed memory that children share. */
void *share(size_t bytes);
/* All of it, or 0 at the end of the file. */
int read_all(int fd, void *to, size_t bytes);
int write_all(int fd, const void *from, size_t bytes);

#endif

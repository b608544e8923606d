// SPDX-License-Identifier: Apache-2.0
/*
 * Functions of newer releases of glibc by those that 2.17 has. Static libraries of this machine, and
 * Rust's standard library where it finds nothing better, call them. Each does what the headers of glibc
 * had as an inline function before, or what glibc's own does.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <sys/syscall.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* The headers here would turn these into what is missing. */
struct stat64;
long syscall(long number, ...);
int fcntl(int fd, int command, ...);

/* With the layout of the kernel's struct stat, which is the only one on x86-64. */
#define STAT_VER_LINUX 1

int __fxstat64(int version, int fd, struct stat64 *to);
int __fxstatat64(int version, int fd, const char *path, struct stat64 *to, int flags);
int __lxstat64(int version, const char *path, struct stat64 *to);
int __xstat64(int version, const char *path, struct stat64 *to);

/* 2.33 */
HIDDEN int fstat64(int fd, struct stat64 *to)
{
	return __fxstat64(STAT_VER_LINUX, fd, to);
}

HIDDEN int fstat(int fd, struct stat64 *to)
{
	return __fxstat64(STAT_VER_LINUX, fd, to);
}

HIDDEN int fstatat64(int fd, const char *path, struct stat64 *to, int flags)
{
	return __fxstatat64(STAT_VER_LINUX, fd, path, to, flags);
}

HIDDEN int lstat64(const char *path, struct stat64 *to)
{
	return __lxstat64(STAT_VER_LINUX, path, to);
}

HIDDEN int lstat(const char *path, struct stat64 *to)
{
	return __lxstat64(STAT_VER_LINUX, path, to);
}

HIDDEN int stat64(const char *path, struct stat64 *to)
{
	return __xstat64(STAT_VER_LINUX, path, to);
}

HIDDEN int stat(const char *path, struct stat64 *to)
{
	return __xstat64(STAT_VER_LINUX, path, to);
}

/* 2.28; with large files, as on x86-64 all are. */
HIDDEN int fcntl64(int fd, int command, ...)
{
	va_list arguments;
	void *argument;

	va_start(arguments, command);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	return fcntl(fd, command, argument);
}

/* 2.27 */
HIDDEN int memfd_create(const char *name, unsigned int flags)
{
	return (int)syscall(SYS_memfd_create, name, flags);
}

/* 2.38: what C23 calls strtol and its like. They know binary numbers, too, which nobody here writes. */
long strtol(const char *text, char **end, int base);
long long strtoll(const char *text, char **end, int base);
unsigned long strtoul(const char *text, char **end, int base);
unsigned long long strtoull(const char *text, char **end, int base);
int vsscanf(const char *text, const char *format, va_list to) __asm__("__isoc99_vsscanf");
int vfscanf(void *file, const char *format, va_list to) __asm__("__isoc99_vfscanf");

HIDDEN long __isoc23_strtol(const char *text, char **end, int base)
{
	return strtol(text, end, base);
}

HIDDEN long long __isoc23_strtoll(const char *text, char **end, int base)
{
	return strtoll(text, end, base);
}

HIDDEN unsigned long __isoc23_strtoul(const char *text, char **end, int base)
{
	return strtoul(text, end, base);
}

HIDDEN unsigned long long __isoc23_strtoull(const char *text, char **end, int base)
{
	return strtoull(text, end, base);
}

HIDDEN int __isoc23_sscanf(const char *text, const char *format, ...)
{
	va_list to;
	int result;

	va_start(to, format);
	result = vsscanf(text, format, to);
	va_end(to);
	return result;
}

HIDDEN int __isoc23_fscanf(void *file, const char *format, ...)
{
	va_list to;
	int result;

	va_start(to, format);
	result = vfscanf(file, format, to);
	va_end(to);
	return result;
}

/* 2.30 */
HIDDEN int gettid(void)
{
	return (int)syscall(SYS_gettid);
}

/* In no release of the shared library: each program has its own, from a part of glibc that is linked statically. */
extern void *__dso_handle HIDDEN;
int __cxa_atexit(void (*function)(void *), void *argument, void *object);

HIDDEN int atexit(void (*function)(void))
{
	return __cxa_atexit((void (*)(void *))(void *)function, NULL, __dso_handle);
}

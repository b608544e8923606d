// SPDX-License-Identifier: Apache-2.0
/*
 * Functions of glibc 2.33 and later by those that every glibc has. Before, they were inline
 * functions of its headers that did the same. Rust's standard library calls them where the
 * kernel or glibc has no statx.
 */
struct stat64;

/* With the layout of the kernel's struct stat, which is the only one on x86-64. */
#define STAT_VER_LINUX 1

int __fxstat64(int version, int fd, struct stat64 *to);
int __xstat64(int version, const char *path, struct stat64 *to);

__attribute__((visibility("hidden"))) int fstat64(int fd, struct stat64 *to)
{
	return __fxstat64(STAT_VER_LINUX, fd, to);
}

__attribute__((visibility("hidden"))) int stat64(const char *path, struct stat64 *to)
{
	return __xstat64(STAT_VER_LINUX, path, to);
}

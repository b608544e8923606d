// SPDX-License-Identifier: Apache-2.0
/*
 * What runs before main. Since 2.34 it is glibc that calls a program's constructors. Before, the program
 * brought a function along that did it, which the startup code of a newer glibc does not name. Every glibc
 * calls the one that it is given.
 */
typedef void constructor(int, char **, char **);

extern constructor *const __init_array_start[] __attribute__((visibility("hidden")));
extern constructor *const __init_array_end[] __attribute__((visibility("hidden")));
void _init(void);

/* By the names that the startup code of an older glibc has for them. */
__attribute__((visibility("hidden"))) void __libc_csu_init(int argc, char **argv, char **envp)
{
	_init();
	for (constructor *const *each = __init_array_start; each != __init_array_end; each++)
		(*each)(argc, argv, envp);
}

/* Destructors are the loader's business. */
__attribute__((visibility("hidden"))) void __libc_csu_fini(void)
{
}

int __real___libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, constructor *init,
			     void (*fini)(void), void (*rtld_fini)(void), void *stack_end);

int __wrap___libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, constructor *init,
			     void (*fini)(void), void (*rtld_fini)(void), void *stack_end);

__attribute__((visibility("hidden"))) int
__wrap___libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, constructor *init,
			 void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
	(void)init;
	return __real___libc_start_main(main, argc, argv, __libc_csu_init, fini, rtld_fini, stack_end);
}

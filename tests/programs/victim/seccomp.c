/* As a sandbox does: what a server has no use for is forbidden, or deadly. */
#define _GNU_SOURCE
#include "victim.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FORBID(nr)                                                                                 \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),                                             \
		BPF_STMT(BPF_RET | BPF_K,                                                          \
			 kill ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM)

void forbid_calls(void)
{
	int kill = opt.seccomp < 0;
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		FORBID(SYS_memfd_create),
		FORBID(SYS_ptrace),
		FORBID(SYS_process_vm_readv),
		FORBID(SYS_process_vm_writev),
		FORBID(SYS_perf_event_open),
		FORBID(SYS_bpf),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(*code), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
		die("cannot set a seccomp filter");
}

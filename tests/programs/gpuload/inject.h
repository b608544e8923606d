/* What inject.c lists. */
#ifndef GPULOAD_INJECT_H
#define GPULOAD_INJECT_H

#include "load.h"

typedef void prepare_fn(struct run *run);
typedef void go_fn(struct run *run, uint64_t ns, struct truth *truth);
typedef const char *lacks_fn(void);

/* inject_host.c */
extern go_fn sleep_go, compute_go, subprocess_go, fork_go, yield_go, spin_go;
extern prepare_fn fork_ready, spin_ready;
/* inject_lock.c */
extern go_fn lock_go, lock_sleep_go, lock_disk_go, kernel_lock_go;
extern prepare_fn lock_ready, kernel_lock_ready;
/* inject_stop.c */
extern go_fn stop_go, ptrace_go, pyspy_go, freezer_go, freezer2_go;
extern prepare_fn stop_prepare, ptrace_prepare, pyspy_prepare, freezer_prepare, freezer2_prepare;
extern lacks_fn freezer_lacks, freezer2_lacks;
/* inject_group.c */
extern go_fn quota_go, reclaim_go, copy_quota_go;
extern prepare_fn quota_prepare, reclaim_prepare, reclaim_ready;
extern lacks_fn root_lacks;
/* inject_disk.c */
extern go_fn disk_go, mmapfault_go, fsync_go;
extern prepare_fn disk_prepare;
/* inject_peer.c */
extern go_fn peer_epoll_go, peer_futex_go, peer_compute_go, peer_sleep_go, peer_disk_go;
extern go_fn outside_compute_go, outside_sleep_go, outside_disk_go, chain_go;
extern prepare_fn peer_futex_prepare, peer_unix_prepare, peer_tcp_prepare, peer_disk_prepare;
extern prepare_fn outside_unix_prepare, outside_tcp_prepare, outside_disk_prepare;
extern prepare_fn chain_prepare, chain_ready;
/* inject_net.c, network.c */
extern go_fn network_go, irq_go, demand_go, demand_queue_go;
extern prepare_fn network_prepare, demand_prepare, demand_queue_ready;
extern lacks_fn network_lacks, irq_lacks;
/* hogs.c */
extern go_fn preempt_go, affinity_go, oversubscribe_go, sleep_preempt_go;
extern go_fn loader_preempt_go;
extern prepare_fn preempt_prepare, loader_preempt_prepare, affinity_ready, oversubscribe_ready;
extern lacks_fn affinity_lacks;
/* inject_gpu.c */
extern go_fn sync_go, pageable_go, alloc_go, module_go, hostfunc_go, eventwait_go, copyengine_go;
extern go_fn launches_go, context_go, eventwait_sleep_go, eventwait_preempt_go;
extern prepare_fn memory_ready, other_ready, copyengine_ready;

#endif

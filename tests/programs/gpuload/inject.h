/* What inject.c lists. */
#ifndef GPULOAD_INJECT_H
#define GPULOAD_INJECT_H

#include "load.h"

typedef void prepare_fn(struct run *run);
typedef void go_fn(struct run *run, uint64_t ns, struct truth *truth);

/* inject_host.c */
extern go_fn sleep_go, compute_go, lock_go, stop_go, network_go, subprocess_go, quota_go;
extern prepare_fn lock_ready, stop_prepare, network_prepare, quota_prepare;
/* inject_disk.c */
extern go_fn disk_go, mmapfault_go, fsync_go;
extern prepare_fn disk_prepare;
/* hogs.c */
extern go_fn preempt_go, oversubscribe_go;
extern prepare_fn preempt_prepare, preempt_ready, oversubscribe_ready;
/* inject_gpu.c */
extern go_fn sync_go, pageable_go, alloc_go, module_go, hostfunc_go, eventwait_go, copyengine_go;
extern prepare_fn sync_ready, pageable_ready, other_ready, copyengine_ready;

#endif

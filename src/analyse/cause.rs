//! The causes of GPU idle time: the program's public vocabulary, defined once.
//!
//! Reports, JSON, flame graphs and exports spell the ids exactly as here. Add an
//! id when reality needs one; never rename one.
#![forbid(unsafe_code)]

macro_rules! causes {
    ($($variant:ident $id:literal $waited:literal $fix:literal)*) => {
        /// Why a device had nothing to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Cause {
            $(#[doc = $waited] $variant,)*
        }

        impl Cause {
            pub const ALL: &'static [Cause] = &[$(Cause::$variant,)*];

            /// The public name.
            pub const fn id(self) -> &'static str {
                match self { $(Cause::$variant => $id,)* }
            }

            /// What the GPU waited for, as the middle of a sentence.
            pub const fn waited_for(self) -> &'static str {
                match self { $(Cause::$variant => $waited,)* }
            }

            /// What a person can do about it; empty when there is nothing to do.
            pub const fn fix(self) -> &'static str {
                match self { $(Cause::$variant => $fix,)* }
            }
        }
    };
}

causes! {
    DataLoading "host.data-loading" "loader workers too few or too slow" "more loader workers, deeper prefetch, or decoding on the GPU"
    DiskRead "host.disk-read" "a block or file read" "local disk, bigger sequential reads, prefetch, or a warm page cache"
    PageFault "host.page-fault" "major faults on a mapped file" "read the whole file first, prefault it, or madvise(MADV_WILLNEED)"
    DiskWrite "host.disk-write" "a log, fsync or checkpoint on the dispatch path" "save asynchronously or from another process; no fsync in the step"
    Network "host.network" "a socket or RPC peer" "prefetch, batch requests, or move the peer closer"
    PageableCopy "host.pageable-copy" "a copy from or to pageable memory" "pin host buffers and reuse them (mlock alone does not pin for CUDA)"
    Sync "host.sync" "the refill after a synchronising call drained the queue" "drop or batch the synchronisation (.item(), nonzero, synchronize); copy asynchronously and wait on an event"
    CudaMemory "host.cuda-memory" "cudaMalloc, cudaFree or the like" "use a caching allocator, or allocate before the loop"
    CudaApi "host.cuda-api" "a slow CUDA call" "look at the call named here"
    ModuleLoad "host.module-load" "module load, JIT, autotune or graph instantiation" "warm up before the loop, CUDA_MODULE_LOADING=EAGER, keep shapes fixed"
    LaunchBound "host.launch-bound" "many kernels shorter than the time to launch them" "CUDA graphs, fused kernels, or a larger batch"
    Compute "host.compute" "host code between launches" "overlap this work with the GPU, or move it off the dispatch thread"
    Gc "host.gc" "a garbage collector" "gc.freeze() after warm-up, collect at a common step"
    Gil "host.gil" "the interpreter lock" "move the other work to a process, or release the lock in native code"
    Lock "host.lock" "a lock in user space" "shorten or split what the holder does under the lock"
    KernelLock "host.kernel-lock" "a lock inside the kernel or the driver" "smaller page-locking steps, fewer contexts created, fewer NVML polls"
    Preempted "host.preempted" "a CPU taken by a foreign program" "pin or isolate the dispatch thread's CPU, or lower the other program's weight"
    Oversubscribed "host.oversubscribed" "a CPU taken by threads of the same job" "cap OMP, BLAS and worker threads to the CPUs there are"
    Throttled "host.throttled" "the CPU quota of its cgroup" "raise cpu.max, or use a cpuset without a quota"
    Affinity "host.affinity" "threads packed on too few CPUs while others idle" "undo the CPU mask, or bind to the GPU's own NUMA node"
    Irq "host.irq" "interrupts on the dispatch CPU" "move interrupt or RPS affinity to other CPUs"
    CpuWakeup "host.cpu-wakeup" "an idle CPU that woke slowly" "limit C-states, or use the performance governor"
    Stopped "host.stopped" "a stop: signal, tracer or freezer" "find out why it was stopped by the one named here"
    Peer "host.peer" "a rank or process that was late" "look at the late rank's own report"
    Subprocess "host.subprocess" "fork, exec or the wait for a child" "posix_spawn or a helper process; NVML instead of nvidia-smi"
    Reclaim "host.reclaim" "memory reclaim, compaction or swap" "free memory or raise the limit; check THP settings"
    NumaBalancing "host.numa-balancing" "automatic NUMA balancing" "kernel.numa_balancing=0, or bind memory and threads"
    Sleep "host.sleep" "a sleep or a polling interval" "wait for the event instead of sleeping"
    Spin "host.spin" "a thread that spins or yields" "a blocking wait, or a bounded spin"
    Observer "host.observer" "a profiler or monitor, gdiag included" "stop it, or lower its rate (gdiag record: -F, --no-stacks)"
    NoDemand "host.no-demand" "requests: none had arrived" ""
    Other "host.other" "something on the host that fits no class" ""
    GpuDependency "gpu.dependency" "an operation of another stream" "check event waits and uses of the default stream"
    GpuCopyEngine "gpu.copy-engine" "a copy ahead of it on the same copy engine" "split large copies, or overlap them with computation earlier"
    GpuOtherProcess "gpu.other-process" "another process on the device" "MPS, or one process per device"
    GpuHostCallback "gpu.host-callback" "a host function enqueued on the stream" "shorten the callback, or signal an event instead"
    GpuUnifiedMemory "gpu.unified-memory" "page migration of managed memory" "prefetch (cudaMemPrefetchAsync) or explicit copies"
    GpuLaunchLatency "gpu.launch-latency" "the device's own start-up time between operations" "fewer, larger kernels, or CUDA graphs"
    UnknownMeasurement "unknown.measurement" "nothing that can be said: records are lost or invalid there" ""
    Unknown "unknown" "nothing that the records explain" ""
}

/// Which side a cause blames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    Host,
    Device,
    Unknown,
}

impl Cause {
    pub fn side(self) -> Side {
        match self.id().split('.').next() {
            Some("host") => Side::Host,
            Some("gpu") => Side::Device,
            _ => Side::Unknown,
        }
    }

    /// A named cause: neither `unknown*` nor `host.other`.
    pub fn is_explained(self) -> bool {
        self.side() != Side::Unknown && self != Cause::Other
    }

    pub fn from_id(id: &str) -> Option<Cause> {
        Cause::ALL.iter().copied().find(|c| c.id() == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_found_again() {
        for &cause in Cause::ALL {
            assert_eq!(Cause::from_id(cause.id()), Some(cause));
        }
        assert_eq!(Cause::ALL.len(), 40);
    }

    #[test]
    fn only_named_causes_explain() {
        assert!(Cause::Preempted.is_explained());
        assert!(Cause::GpuDependency.is_explained());
        for cause in [Cause::Other, Cause::Unknown, Cause::UnknownMeasurement] {
            assert!(!cause.is_explained());
        }
    }
}

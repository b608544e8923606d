//! The shim reads CUPTI's records through structs of its own. Check them against the ones
//! that cudarc generated from NVIDIA's headers.

use std::mem::{offset_of, size_of};

use cudarc::cupti::sys;
use gdiag_shim_layout::api::{lookup, Domain};
use gdiag_shim_layout::cupti::{
    activity, unified_memory, Api, GraphTrace, Kernel, Memcpy, MemcpyPeer, Memset, Overhead,
    Synchronization, UnifiedMemory, UnifiedMemoryConfig,
};

macro_rules! same_offsets {
    ($ours:ty, $theirs:ty: $($field:ident = $name:ident),* $(,)?) => {
        $(assert_eq!(
            offset_of!($ours, $field),
            offset_of!($theirs, $name),
            concat!(stringify!($ours), ".", stringify!($field)),
        );)*
        assert!(size_of::<$ours>() <= size_of::<$theirs>(), stringify!($ours));
    };
}

#[test]
fn prefixes_have_the_offsets_of_the_headers() {
    same_offsets!(Kernel, sys::CUpti_ActivityKernel9:
        kind = kind, start = start, end = end, completed = completed, device = deviceId,
        context = contextId, stream = streamId, grid = gridX, block = blockX,
        memory = staticSharedMemory, correlation = correlationId, grid_id = gridId, name = name,
        queued = queued, submitted = submitted, launch = launchType, graph_node = graphNodeId,
        shared_memory_limit = shmemLimitConfig, graph = graphId);
    same_offsets!(Memcpy, sys::CUpti_ActivityMemcpy6:
        kind = kind, copy_kind = copyKind, src_kind = srcKind, dst_kind = dstKind, flags = flags,
        bytes = bytes, start = start, end = end, device = deviceId, context = contextId,
        stream = streamId, correlation = correlationId, graph_node = graphNodeId, graph = graphId);
    same_offsets!(MemcpyPeer, sys::CUpti_ActivityMemcpyPtoP4:
        kind = kind, copy_kind = copyKind, src_kind = srcKind, dst_kind = dstKind, bytes = bytes,
        start = start, end = end, device = deviceId, context = contextId, stream = streamId,
        src_device = srcDeviceId, dst_device = dstDeviceId, correlation = correlationId,
        graph_node = graphNodeId, graph = graphId);
    same_offsets!(Memset, sys::CUpti_ActivityMemset4:
        kind = kind, value = value, bytes = bytes, start = start, end = end, device = deviceId,
        context = contextId, stream = streamId, correlation = correlationId, flags = flags,
        memory_kind = memoryKind, graph_node = graphNodeId, graph = graphId);
    same_offsets!(Synchronization, sys::CUpti_ActivitySynchronization:
        kind = kind, sync_type = type_, start = start, end = end, correlation = correlationId,
        context = contextId, stream = streamId, event = cudaEventId);
    same_offsets!(Synchronization, sys::CUpti_ActivitySynchronization2:
        start = start, end = end, correlation = correlationId, stream = streamId);
    same_offsets!(Api, sys::CUpti_ActivityAPI:
        kind = kind, cbid = cbid, start = start, end = end, process = processId,
        thread = threadId, correlation = correlationId, result = returnValue);
    same_offsets!(Overhead, sys::CUpti_ActivityOverhead3:
        kind = kind, overhead_kind = overheadKind, object_kind = objectKind, object = objectId,
        start = start, end = end);
    same_offsets!(GraphTrace, sys::CUpti_ActivityGraphTrace2:
        kind = kind, correlation = correlationId, start = start, end = end, device = deviceId,
        graph = graphId, context = contextId, stream = streamId);
    same_offsets!(UnifiedMemory, sys::CUpti_ActivityUnifiedMemoryCounter2:
        kind = kind, counter_kind = counterKind, value = value, start = start, end = end,
        src = srcId, dst = dstId);
    same_offsets!(UnifiedMemory, sys::CUpti_ActivityUnifiedMemoryCounter3:
        counter_kind = counterKind, value = value, start = start, end = end, src = srcId,
        dst = dstId);
    same_offsets!(UnifiedMemoryConfig, sys::CUpti_ActivityUnifiedMemoryCounterConfig:
        scope = scope, kind = kind, device = deviceId, enable = enable);
    assert_eq!(
        size_of::<UnifiedMemoryConfig>(),
        size_of::<sys::CUpti_ActivityUnifiedMemoryCounterConfig>()
    );
}

#[test]
fn counters_of_unified_memory_have_the_numbers_of_the_headers() {
    use sys::CUpti_ActivityUnifiedMemoryCounterKind as Kind;
    use sys::CUpti_ActivityUnifiedMemoryCounterScope as Scope;
    for (ours, theirs) in [
        (
            unified_memory::TO_DEVICE,
            Kind::CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD as u32,
        ),
        (
            unified_memory::TO_HOST,
            Kind::CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH as u32,
        ),
        (
            unified_memory::DEVICE_FAULTS,
            Kind::CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT as u32,
        ),
        (
            unified_memory::ONE_DEVICE,
            Scope::CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE as u32,
        ),
        (
            unified_memory::ALL_DEVICES,
            Scope::CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_ALL_DEVICES as u32,
        ),
    ] {
        assert_eq!(ours, theirs);
    }
}

#[test]
fn kinds_have_the_numbers_of_the_headers() {
    use sys::CUpti_ActivityKind as Kind;
    for (ours, theirs) in [
        (activity::MEMCPY, Kind::CUPTI_ACTIVITY_KIND_MEMCPY),
        (activity::MEMSET, Kind::CUPTI_ACTIVITY_KIND_MEMSET),
        (activity::DRIVER, Kind::CUPTI_ACTIVITY_KIND_DRIVER),
        (activity::RUNTIME, Kind::CUPTI_ACTIVITY_KIND_RUNTIME),
        (
            activity::CONCURRENT_KERNEL,
            Kind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
        ),
        (activity::OVERHEAD, Kind::CUPTI_ACTIVITY_KIND_OVERHEAD),
        (activity::MEMCPY2, Kind::CUPTI_ACTIVITY_KIND_MEMCPY2),
        (
            activity::UNIFIED_MEMORY_COUNTER,
            Kind::CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER,
        ),
        (
            activity::SYNCHRONIZATION,
            Kind::CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
        ),
        (activity::GRAPH_TRACE, Kind::CUPTI_ACTIVITY_KIND_GRAPH_TRACE),
    ] {
        assert_eq!(ours, theirs as u32);
    }
}

/// Check that a callback id of the table is the call that the table says, by the name in the headers.
#[test]
fn calls_have_the_callback_ids_of_the_headers() {
    use sys::CUpti_driver_api_trace_cbid as D;
    use sys::CUpti_runtime_api_trace_cbid as R;
    macro_rules! check {
        ($domain:ident $prefix:literal: $($cbid:expr),* $(,)?) => {
            $({
                let cbid = $cbid;
                let theirs = format!("{cbid:?}");
                let theirs = theirs.strip_prefix($prefix).unwrap();
                let ours = lookup(Domain::$domain, cbid as u32).map(|info| info.name);
                let ours = ours.unwrap_or_else(|| panic!("{theirs} is not in the table"));
                let rest = theirs.strip_prefix(ours).unwrap_or_else(|| panic!("{theirs} is called {ours}"));
                assert!(rest.is_empty() || rest.starts_with("_v") || rest.starts_with("_pt"), "{theirs} {ours}");
            })*
        };
    }
    check!(Driver "CUPTI_DRIVER_TRACE_CBID_":
        D::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
        D::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
        D::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
        D::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
        D::CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
        D::CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
        D::CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz,
        D::CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams,
        D::CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2,
        D::CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2,
        D::CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2_ptsz,
        D::CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async,
        D::CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize,
        D::CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize,
        D::CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize,
        D::CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent,
        D::CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2,
        D::CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2,
        D::CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc_v2,
        D::CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister_v2,
        D::CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync,
        D::CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData,
        D::CUPTI_DRIVER_TRACE_CBID_cuLibraryLoadData,
        D::CUPTI_DRIVER_TRACE_CBID_cuLaunchHostFunc,
        D::CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxRetain,
        D::CUPTI_DRIVER_TRACE_CBID_cuCtxCreate_v2,
    );
    check!(Runtime "CUPTI_RUNTIME_TRACE_CBID_":
        R::CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaGraphInstantiateWithFlags_v11040,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_ptsz_v7000,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaHostAlloc_v3020,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaHostRegister_v4000,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaMallocManaged_v6000,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaMallocAsync_v11020,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaLaunchHostFunc_v10000,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaStreamAddCallback_v5000,
        R::CUPTI_RUNTIME_TRACE_CBID_cudaDeviceReset_v3020,
    );
}

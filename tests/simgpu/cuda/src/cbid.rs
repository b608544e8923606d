//! The ids under which CUPTI reports driver calls. They were never renumbered between CUDA 11.7 and 13.5.

use std::ffi::CStr;

/// A driver call as CUPTI names it.
#[derive(Clone, Copy, Debug)]
pub struct Cbid {
    pub id: u32,
    pub name: &'static CStr,
}

macro_rules! cbids {
    ($($const:ident $id:literal $name:literal)*) => {
        $(pub const $const: Cbid = Cbid { id: $id, name: $name };)*
    };
}

cbids! {
    DEVICE_GET 3 c"cuDeviceGet"
    DEVICE_GET_COUNT 4 c"cuDeviceGetCount"
    DEVICE_GET_NAME 5 c"cuDeviceGetName"
    DEVICE_GET_ATTRIBUTE 9 c"cuDeviceGetAttribute"
    CTX_POP_CURRENT 324 c"cuCtxPopCurrent_v2"
    CTX_PUSH_CURRENT 323 c"cuCtxPushCurrent_v2"
    CTX_GET_DEVICE 16 c"cuCtxGetDevice"
    CTX_SYNCHRONIZE 17 c"cuCtxSynchronize"
    MODULE_LOAD_DATA 19 c"cuModuleLoadData"
    MODULE_LOAD_DATA_EX 20 c"cuModuleLoadDataEx"
    MODULE_UNLOAD 22 c"cuModuleUnload"
    MODULE_GET_FUNCTION 23 c"cuModuleGetFunction"
    MEM_FREE_HOST 38 c"cuMemFreeHost"
    MEM_HOST_ALLOC 39 c"cuMemHostAlloc"
    EVENT_CREATE 118 c"cuEventCreate"
    EVENT_RECORD 119 c"cuEventRecord"
    EVENT_QUERY 120 c"cuEventQuery"
    EVENT_SYNCHRONIZE 121 c"cuEventSynchronize"
    STREAM_CREATE 124 c"cuStreamCreate"
    STREAM_QUERY 125 c"cuStreamQuery"
    STREAM_SYNCHRONIZE 126 c"cuStreamSynchronize"
    MEMSET_D8_ASYNC 216 c"cuMemsetD8Async"
    CTX_CREATE 235 c"cuCtxCreate_v2"
    MEM_GET_INFO 242 c"cuMemGetInfo_v2"
    MEM_ALLOC 243 c"cuMemAlloc_v2"
    MEM_FREE 245 c"cuMemFree_v2"
    DEVICE_TOTAL_MEM 259 c"cuDeviceTotalMem_v2"
    MEMCPY_HTOD 276 c"cuMemcpyHtoD_v2"
    MEMCPY_HTOD_ASYNC 277 c"cuMemcpyHtoDAsync_v2"
    MEMCPY_DTOH 278 c"cuMemcpyDtoH_v2"
    MEMCPY_DTOH_ASYNC 279 c"cuMemcpyDtoHAsync_v2"
    MEMCPY_DTOD_ASYNC 281 c"cuMemcpyDtoDAsync_v2"
    MEM_ALLOC_HOST 294 c"cuMemAllocHost_v2"
    STREAM_WAIT_EVENT 295 c"cuStreamWaitEvent"
    CTX_SET_CURRENT 303 c"cuCtxSetCurrent"
    CTX_GET_CURRENT 304 c"cuCtxGetCurrent"
    LAUNCH_KERNEL 307 c"cuLaunchKernel"
    MEMCPY_PEER_ASYNC 319 c"cuMemcpyPeerAsync"
    CTX_DESTROY 322 c"cuCtxDestroy_v2"
    EVENT_DESTROY 325 c"cuEventDestroy_v2"
    STREAM_DESTROY 326 c"cuStreamDestroy_v2"
    STREAM_CREATE_WITH_PRIORITY 367 c"cuStreamCreateWithPriority"
    MEM_ALLOC_MANAGED 371 c"cuMemAllocManaged"
    PRIMARY_CTX_RETAIN 386 c"cuDevicePrimaryCtxRetain"
    MEM_PREFETCH_ASYNC 467 c"cuMemPrefetchAsync"
    DEVICE_GET_UUID 482 c"cuDeviceGetUuid"
    LAUNCH_HOST_FUNC 527 c"cuLaunchHostFunc"
    PRIMARY_CTX_RELEASE 544 c"cuDevicePrimaryCtxRelease_v2"
    DEVICE_GET_UUID_V2 647 c"cuDeviceGetUuid_v2"
    LAUNCH_KERNEL_EX 652 c"cuLaunchKernelEx"
    MEM_PREFETCH_ASYNC_V2 716 c"cuMemPrefetchAsync_v2"
    CTX_CREATE_V4 757 c"cuCtxCreate_v4"
}

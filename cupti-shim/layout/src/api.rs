//! The calls of the CUDA API that gdiag wants to see, in one table for both sides.
//!
//! The shim asks CUPTI for these and no others: a PyTorch process makes about eleven API
//! records for each kernel, and nearly all are queries that never block. The analysis
//! names and classes calls with the same table, so a call that is recorded always has a
//! name.
//!
//! Callback ids were never renumbered in all of CUPTI's releases. Event record and query
//! are left out on purpose: they are frequent and neither blocks nor starts work.

/// Which API a call belongs to, with CUPTI's activity kind as its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Domain {
    Driver = 4,
    Runtime = 5,
}

impl Domain {
    /// From the `domain` of an [`ApiRecord`](crate::ApiRecord).
    pub const fn from_kind(kind: u32) -> Option<Domain> {
        match kind {
            4 => Some(Domain::Driver),
            5 => Some(Domain::Runtime),
            _ => None,
        }
    }
}

/// What a call does, as far as idle time is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Starts one kernel.
    Launch,
    /// Starts all operations of a graph, under one correlation id.
    GraphLaunch,
    /// Returns when the copy is done, or at least staged.
    Memcpy,
    MemcpyAsync,
    Memset,
    /// The host waits for the device.
    Sync,
    /// A stream waits; the host does not.
    StreamWait,
    /// Allocates, frees, maps or page-locks memory; many of these synchronise.
    Memory,
    /// Loads or builds code: modules, libraries, linking; captures, instantiates, updates or destroys graphs.
    Module,
    /// Puts a host function into a stream.
    HostFunc,
    /// Creates or destroys a context, or opens one to its peers.
    Context,
    /// Recorded because it can be slow, but none of the above.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiInfo {
    pub domain: Domain,
    pub cbid: u32,
    /// As the program's source spells it. The variants for per-thread default streams and
    /// the version suffixes of the runtime are the same call.
    pub name: &'static str,
    pub class: Class,
}

/// Callback ids end below this; room for releases to come.
pub const MAX_CBID: u32 = 1024;

/// Name and class of a call; `None` for one that gdiag does not record.
pub const fn lookup(domain: Domain, cbid: u32) -> Option<ApiInfo> {
    if cbid >= MAX_CBID {
        return None;
    }
    let (index, rows) = match domain {
        Domain::Driver => (&DRIVER_INDEX, DRIVER),
        Domain::Runtime => (&RUNTIME_INDEX, RUNTIME),
    };
    match index[cbid as usize] {
        0 => None,
        n => {
            let row = &rows[n as usize - 1];
            Some(ApiInfo {
                domain,
                cbid,
                name: row.name,
                class: row.class,
            })
        }
    }
}

/// The calls of the driver: each with its name and its callback ids. The first id is that of the function
/// of that name, the second that of its variant for the default stream of a thread.
pub fn driver_calls() -> impl Iterator<Item = (&'static str, &'static [u32])> {
    DRIVER.iter().map(|row| (row.name, row.cbids))
}

struct Row {
    class: Class,
    name: &'static str,
    cbids: &'static [u32],
}

const fn row(class: Class, name: &'static str, cbids: &'static [u32]) -> Row {
    Row { class, name, cbids }
}

type Index = [u16; MAX_CBID as usize];

/// Row number plus one for each callback id, 0 where there is none.
#[allow(clippy::cast_possible_truncation)]
const fn index(rows: &[Row]) -> Index {
    let mut index = [0; MAX_CBID as usize];
    let mut r = 0;
    while r < rows.len() {
        let mut c = 0;
        while c < rows[r].cbids.len() {
            let slot = &mut index[rows[r].cbids[c] as usize];
            assert!(*slot == 0, "one callback id in two rows");
            *slot = r as u16 + 1;
            c += 1;
        }
        r += 1;
    }
    index
}

static DRIVER_INDEX: Index = index(DRIVER);
static RUNTIME_INDEX: Index = index(RUNTIME);

use Class::{
    Context, GraphLaunch, HostFunc, Launch, Memcpy, MemcpyAsync, Memory, Memset, Module, Other,
    StreamWait, Sync,
};

const DRIVER: &[Row] = &[
    row(Launch, "cuLaunchKernel", &[307, 442]),
    row(Launch, "cuLaunchCooperativeKernel", &[477, 478]),
    row(Launch, "cuLaunchCooperativeKernelMultiDevice", &[480]),
    row(Launch, "cuLaunchKernelEx", &[652, 653]),
    row(GraphLaunch, "cuGraphLaunch", &[514, 515]),
    row(GraphLaunch, "cuGraphLaunchWithArguments", &[819]),
    row(MemcpyAsync, "cuMemcpyHtoDAsync_v2", &[277, 421]),
    row(MemcpyAsync, "cuMemcpyDtoHAsync_v2", &[279, 422]),
    row(MemcpyAsync, "cuMemcpyDtoDAsync_v2", &[281, 423]),
    row(MemcpyAsync, "cuMemcpyAtoHAsync_v2", &[283, 420]),
    row(MemcpyAsync, "cuMemcpy2DAsync_v2", &[289, 424]),
    row(MemcpyAsync, "cuMemcpy3DAsync_v2", &[291, 425]),
    row(MemcpyAsync, "cuMemcpyHtoAAsync_v2", &[293, 419]),
    row(MemcpyAsync, "cuMemcpyAsync", &[306, 418]),
    row(MemcpyAsync, "cuMemcpyPeerAsync", &[319, 426]),
    row(MemcpyAsync, "cuMemcpy3DPeerAsync", &[321, 427]),
    row(MemcpyAsync, "cuMemcpyBatchAsync", &[776, 777]),
    row(MemcpyAsync, "cuMemcpy3DBatchAsync", &[778, 779]),
    row(MemcpyAsync, "cuMemcpyBatchAsync_v2", &[796, 797]),
    row(MemcpyAsync, "cuMemcpy3DBatchAsync_v2", &[798, 799]),
    row(MemcpyAsync, "cuMemcpyWithAttributesAsync", &[837, 838]),
    row(MemcpyAsync, "cuMemcpy3DWithAttributesAsync", &[839, 840]),
    row(Memcpy, "cuMemcpy_v2", &[248]),
    row(Memcpy, "cuMemcpyHtoD_v2", &[276, 397]),
    row(Memcpy, "cuMemcpyDtoH_v2", &[278, 398]),
    row(Memcpy, "cuMemcpyDtoD_v2", &[280, 399]),
    row(Memcpy, "cuMemcpyAtoH_v2", &[282, 403]),
    row(Memcpy, "cuMemcpyAtoD_v2", &[284, 401]),
    row(Memcpy, "cuMemcpyDtoA_v2", &[285, 400]),
    row(Memcpy, "cuMemcpyAtoA_v2", &[286, 404]),
    row(Memcpy, "cuMemcpy2D_v2", &[287, 405]),
    row(Memcpy, "cuMemcpy2DUnaligned_v2", &[288, 406]),
    row(Memcpy, "cuMemcpy3D_v2", &[290, 407]),
    row(Memcpy, "cuMemcpyHtoA_v2", &[292, 402]),
    row(Memcpy, "cuMemcpy", &[305, 408]),
    row(Memcpy, "cuMemcpyPeer", &[318, 409]),
    row(Memcpy, "cuMemcpy3DPeer", &[320, 410]),
    row(Memset, "cuMemsetD8Async", &[216, 428]),
    row(Memset, "cuMemsetD16Async", &[218, 429]),
    row(Memset, "cuMemsetD32Async", &[220, 430]),
    row(Memset, "cuMemsetD2D8Async", &[222, 431]),
    row(Memset, "cuMemsetD2D16Async", &[224, 432]),
    row(Memset, "cuMemsetD2D32Async", &[226, 433]),
    row(Memset, "cuMemsetD8_v2", &[249, 411]),
    row(Memset, "cuMemsetD16_v2", &[250, 412]),
    row(Memset, "cuMemsetD32_v2", &[251, 413]),
    row(Memset, "cuMemsetD2D8_v2", &[252, 414]),
    row(Memset, "cuMemsetD2D16_v2", &[253, 415]),
    row(Memset, "cuMemsetD2D32_v2", &[254, 416]),
    row(Sync, "cuCtxSynchronize", &[17]),
    row(Sync, "cuEventSynchronize", &[121]),
    row(Sync, "cuStreamSynchronize", &[126, 440]),
    row(Sync, "cuCtxSynchronize_v2", &[800]),
    row(StreamWait, "cuStreamWaitEvent", &[295, 436]),
    row(StreamWait, "cuStreamWaitValue32", &[458, 459]),
    row(StreamWait, "cuStreamWaitValue64", &[473, 474]),
    row(StreamWait, "cuStreamWaitValue32_v2", &[659, 660]),
    row(StreamWait, "cuStreamWaitValue64_v2", &[661, 662]),
    row(HostFunc, "cuStreamAddCallback", &[346, 437]),
    row(HostFunc, "cuLaunchHostFunc", &[527, 528]),
    row(HostFunc, "cuLaunchHostFunc_v2", &[831, 832]),
    row(Memory, "cuMemFreeHost", &[38]),
    row(Memory, "cuArrayDestroy", &[89]),
    row(Memory, "cuMemAlloc_v2", &[243]),
    row(Memory, "cuMemAllocPitch_v2", &[244]),
    row(Memory, "cuMemFree_v2", &[245]),
    row(Memory, "cuMemHostAlloc", &[39]),
    row(Memory, "cuMemHostAlloc_v2", &[271]),
    row(Memory, "cuArrayCreate_v2", &[272]),
    row(Memory, "cuArray3DCreate_v2", &[274]),
    row(Memory, "cuMemAllocHost_v2", &[294]),
    row(Memory, "cuMemHostRegister", &[301]),
    row(Memory, "cuMemHostUnregister", &[302]),
    row(Memory, "cuIpcOpenMemHandle", &[329]),
    row(Memory, "cuIpcCloseMemHandle", &[330]),
    row(Memory, "cuMipmappedArrayCreate", &[347]),
    row(Memory, "cuMipmappedArrayDestroy", &[349]),
    row(Memory, "cuMemAllocManaged", &[371]),
    row(Memory, "cuMemHostRegister_v2", &[379]),
    row(Memory, "cuMemAddressReserve", &[547]),
    row(Memory, "cuMemAddressFree", &[548]),
    row(Memory, "cuMemCreate", &[549]),
    row(Memory, "cuMemRelease", &[550]),
    row(Memory, "cuMemMap", &[551]),
    row(Memory, "cuMemUnmap", &[552]),
    row(Memory, "cuMemSetAccess", &[553]),
    row(Memory, "cuIpcOpenMemHandle_v2", &[567]),
    row(Memory, "cuMemAllocAsync", &[598, 599]),
    row(Memory, "cuMemFreeAsync", &[600, 601]),
    row(Memory, "cuMemPoolTrimTo", &[602]),
    row(Memory, "cuMemPoolCreate", &[607]),
    row(Memory, "cuMemPoolDestroy", &[608]),
    row(Memory, "cuMemAllocFromPoolAsync", &[611, 612]),
    row(Module, "cuModuleLoad", &[18]),
    row(Module, "cuModuleLoadData", &[19]),
    row(Module, "cuModuleLoadDataEx", &[20]),
    row(Module, "cuModuleLoadFatBinary", &[21]),
    row(Module, "cuModuleUnload", &[22]),
    row(Module, "cuModuleGetFunction", &[23]),
    row(Module, "cuLinkCreate", &[362]),
    row(Module, "cuLinkAddData", &[363]),
    row(Module, "cuLinkAddFile", &[364]),
    row(Module, "cuLinkComplete", &[365]),
    row(Module, "cuLinkCreate_v2", &[381]),
    row(Module, "cuLinkAddData_v2", &[382]),
    row(Module, "cuLinkAddFile_v2", &[383]),
    row(Module, "cuGraphInstantiate", &[513]),
    row(Module, "cuStreamBeginCapture", &[495, 496, 539, 540]),
    row(Module, "cuStreamEndCapture", &[497, 498]),
    row(Module, "cuGraphExecDestroy", &[516]),
    row(Module, "cuGraphDestroy", &[517]),
    row(Module, "cuGraphExecUpdate", &[561]),
    row(Module, "cuGraphInstantiate_v2", &[578]),
    row(Module, "cuGraphUpload", &[580, 581]),
    row(Module, "cuGraphInstantiateWithFlags", &[643]),
    row(Module, "cuGraphInstantiateWithParams", &[656, 657]),
    row(Module, "cuLibraryLoadData", &[678]),
    row(Module, "cuLibraryLoadFromFile", &[679]),
    row(Module, "cuLibraryUnload", &[680]),
    row(Module, "cuGraphExecUpdate_v2", &[696]),
    row(Module, "cuFuncLoad", &[742]),
    row(Context, "cuCtxCreate_v2", &[235]),
    row(Context, "cuCtxEnablePeerAccess", &[313]),
    row(Context, "cuCtxDestroy_v2", &[322]),
    row(Context, "cuDevicePrimaryCtxRetain", &[386]),
    row(Context, "cuDevicePrimaryCtxRelease", &[387]),
    row(Context, "cuDevicePrimaryCtxReset", &[389]),
    row(Context, "cuDevicePrimaryCtxRelease_v2", &[544]),
    row(Context, "cuDevicePrimaryCtxReset_v2", &[545]),
    row(Context, "cuCtxCreate_v3", &[645]),
    row(Context, "cuGreenCtxCreate", &[743]),
    row(Context, "cuGreenCtxDestroy", &[744]),
    row(Context, "cuCtxCreate_v4", &[757]),
    row(Other, "cuInit", &[1]),
    row(Other, "cuStreamCreate", &[124]),
    row(Other, "cuStreamDestroy_v2", &[326]),
    row(Other, "cuStreamCreateWithPriority", &[367]),
    row(Other, "cuMemPrefetchAsync", &[467, 468]),
    row(Other, "cuMemPrefetchAsync_v2", &[716, 717]),
    row(Other, "cuMemPrefetchBatchAsync", &[784, 785]),
    row(Other, "cuMemDiscardAndPrefetchBatchAsync", &[791, 792]),
];

const RUNTIME: &[Row] = &[
    row(Launch, "cudaLaunchKernel", &[211, 214, 505, 506]),
    row(Launch, "cudaLaunchCooperativeKernel", &[269, 270]),
    row(Launch, "cudaLaunchCooperativeKernelMultiDevice", &[272]),
    row(Launch, "cudaLaunchKernelExC", &[430, 431]),
    row(GraphLaunch, "cudaGraphLaunch", &[311, 312]),
    row(MemcpyAsync, "cudaMemcpyAsync", &[41, 225]),
    row(MemcpyAsync, "cudaMemcpyToArrayAsync", &[42, 226]),
    row(MemcpyAsync, "cudaMemcpyFromArrayAsync", &[43, 227]),
    row(MemcpyAsync, "cudaMemcpy2DAsync", &[44, 228]),
    row(MemcpyAsync, "cudaMemcpy2DToArrayAsync", &[45, 229]),
    row(MemcpyAsync, "cudaMemcpy2DFromArrayAsync", &[46, 230]),
    row(MemcpyAsync, "cudaMemcpyToSymbolAsync", &[47, 231]),
    row(MemcpyAsync, "cudaMemcpyFromSymbolAsync", &[48, 232]),
    row(MemcpyAsync, "cudaMemcpy3DAsync", &[145, 246]),
    row(MemcpyAsync, "cudaMemcpyPeerAsync", &[161]),
    row(MemcpyAsync, "cudaMemcpy3DPeerAsync", &[163, 250]),
    row(MemcpyAsync, "cudaMemcpyBatchAsync", &[482, 483, 509, 510]),
    row(MemcpyAsync, "cudaMemcpy3DBatchAsync", &[484, 485, 511, 512]),
    row(MemcpyAsync, "cudaMemcpyWithAttributesAsync", &[554, 555]),
    row(MemcpyAsync, "cudaMemcpy3DWithAttributesAsync", &[556, 557]),
    row(Memcpy, "cudaMemcpy", &[31, 215]),
    row(Memcpy, "cudaMemcpy2D", &[32, 216]),
    row(Memcpy, "cudaMemcpyToArray", &[33, 217]),
    row(Memcpy, "cudaMemcpy2DToArray", &[34, 218]),
    row(Memcpy, "cudaMemcpyFromArray", &[35, 219]),
    row(Memcpy, "cudaMemcpy2DFromArray", &[36, 220]),
    row(Memcpy, "cudaMemcpyArrayToArray", &[37, 221]),
    row(Memcpy, "cudaMemcpy2DArrayToArray", &[38, 222]),
    row(Memcpy, "cudaMemcpyToSymbol", &[39, 223]),
    row(Memcpy, "cudaMemcpyFromSymbol", &[40, 224]),
    row(Memcpy, "cudaMemcpy3D", &[144, 245]),
    row(Memcpy, "cudaMemcpyPeer", &[160]),
    row(Memcpy, "cudaMemcpy3DPeer", &[162, 249]),
    row(Memset, "cudaMemset", &[49, 233]),
    row(Memset, "cudaMemset2D", &[50, 234]),
    row(Memset, "cudaMemsetAsync", &[51, 235]),
    row(Memset, "cudaMemset2DAsync", &[52, 236]),
    row(Memset, "cudaMemset3D", &[142, 243]),
    row(Memset, "cudaMemset3DAsync", &[143, 244]),
    row(Sync, "cudaThreadSynchronize", &[126]),
    row(Sync, "cudaStreamSynchronize", &[131, 239]),
    row(Sync, "cudaEventSynchronize", &[137]),
    row(Sync, "cudaDeviceSynchronize", &[165]),
    row(Sync, "cudaExecutionCtxSynchronize", &[534]),
    row(StreamWait, "cudaStreamWaitEvent", &[147, 247]),
    row(HostFunc, "cudaStreamAddCallback", &[197, 248]),
    row(HostFunc, "cudaLaunchHostFunc", &[284, 285]),
    row(HostFunc, "cudaLaunchHostFunc_v2", &[550, 551]),
    row(Memory, "cudaMalloc", &[20]),
    row(Memory, "cudaMallocPitch", &[21]),
    row(Memory, "cudaFree", &[22]),
    row(Memory, "cudaMallocArray", &[23]),
    row(Memory, "cudaFreeArray", &[24]),
    row(Memory, "cudaMallocHost", &[25]),
    row(Memory, "cudaFreeHost", &[26]),
    row(Memory, "cudaHostAlloc", &[27]),
    row(Memory, "cudaMalloc3D", &[140]),
    row(Memory, "cudaMalloc3DArray", &[141]),
    row(Memory, "cudaHostRegister", &[152]),
    row(Memory, "cudaHostUnregister", &[153]),
    row(Memory, "cudaIpcOpenMemHandle", &[179]),
    row(Memory, "cudaIpcCloseMemHandle", &[180]),
    row(Memory, "cudaMallocMipmappedArray", &[192]),
    row(Memory, "cudaFreeMipmappedArray", &[194]),
    row(Memory, "cudaMallocManaged", &[206]),
    row(Memory, "cudaMallocAsync", &[373, 374]),
    row(Memory, "cudaFreeAsync", &[375, 376]),
    row(Memory, "cudaMemPoolTrimTo", &[377]),
    row(Memory, "cudaMemPoolCreate", &[383]),
    row(Memory, "cudaMemPoolDestroy", &[384]),
    row(Memory, "cudaMallocFromPoolAsync", &[391, 392]),
    row(Module, "cudaGraphInstantiate", &[310, 443]),
    row(Module, "cudaGraphExecDestroy", &[313]),
    row(Module, "cudaGraphDestroy", &[314]),
    row(Module, "cudaStreamBeginCapture", &[315, 316]),
    row(Module, "cudaStreamEndCapture", &[319, 320]),
    row(Module, "cudaGraphExecUpdate", &[335]),
    row(Module, "cudaGraphUpload", &[348, 349]),
    row(Module, "cudaGraphInstantiateWithFlags", &[418]),
    row(Module, "cudaGraphInstantiateWithParams", &[436, 437]),
    row(Module, "cudaLibraryLoadData", &[470]),
    row(Module, "cudaLibraryLoadFromFile", &[471]),
    row(Module, "cudaLibraryUnload", &[472]),
    row(Module, "__cudaInitModule", &[501]),
    row(Context, "cudaDeviceEnablePeerAccess", &[155]),
    row(Context, "cudaDeviceReset", &[164]),
    row(Context, "cudaInitDevice", &[444]),
    row(Context, "cudaGreenCtxCreate", &[526]),
    row(Context, "cudaExecutionCtxDestroy", &[527]),
    row(Other, "cudaStreamCreate", &[129]),
    row(Other, "cudaStreamDestroy", &[130, 201]),
    row(Other, "cudaStreamCreateWithFlags", &[198]),
    row(Other, "cudaStreamCreateWithPriority", &[202]),
    row(Other, "cudaMemPrefetchAsync", &[252, 253, 449, 450]),
    row(Other, "cudaMemPrefetchBatchAsync", &[487, 488]),
    row(Other, "cudaMemDiscardAndPrefetchBatchAsync", &[491, 492]),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn info(domain: Domain, cbid: u32) -> (&'static str, Class) {
        let info = lookup(domain, cbid).unwrap();
        assert_eq!((info.domain, info.cbid), (domain, cbid));
        (info.name, info.class)
    }

    #[test]
    fn launches_of_both_domains_are_known_in_every_variant() {
        for cbid in [307, 442] {
            assert_eq!(info(Domain::Driver, cbid), ("cuLaunchKernel", Launch));
        }
        for cbid in [652, 653] {
            assert_eq!(info(Domain::Driver, cbid), ("cuLaunchKernelEx", Launch));
        }
        for cbid in [211, 214, 505, 506] {
            assert_eq!(info(Domain::Runtime, cbid), ("cudaLaunchKernel", Launch));
        }
        for cbid in [430, 431] {
            assert_eq!(info(Domain::Runtime, cbid), ("cudaLaunchKernelExC", Launch));
        }
        for cbid in [514, 515] {
            assert_eq!(info(Domain::Driver, cbid), ("cuGraphLaunch", GraphLaunch));
        }
        for cbid in [311, 312] {
            assert_eq!(
                info(Domain::Runtime, cbid),
                ("cudaGraphLaunch", GraphLaunch)
            );
        }
    }

    #[test]
    fn calls_are_classed_by_what_they_make_the_device_wait_for() {
        for (cbid, name, class) in [
            (131, "cudaStreamSynchronize", Sync),
            (165, "cudaDeviceSynchronize", Sync),
            (137, "cudaEventSynchronize", Sync),
            (147, "cudaStreamWaitEvent", StreamWait),
            (31, "cudaMemcpy", Memcpy),
            (41, "cudaMemcpyAsync", MemcpyAsync),
            (225, "cudaMemcpyAsync", MemcpyAsync),
            (51, "cudaMemsetAsync", Memset),
            (20, "cudaMalloc", Memory),
            (22, "cudaFree", Memory),
            (27, "cudaHostAlloc", Memory),
            (373, "cudaMallocAsync", Memory),
            (284, "cudaLaunchHostFunc", HostFunc),
            (310, "cudaGraphInstantiate", Module),
            (164, "cudaDeviceReset", Context),
        ] {
            assert_eq!(info(Domain::Runtime, cbid), (name, class));
        }
        for (cbid, name, class) in [
            (17, "cuCtxSynchronize", Sync),
            (121, "cuEventSynchronize", Sync),
            (126, "cuStreamSynchronize", Sync),
            (295, "cuStreamWaitEvent", StreamWait),
            (276, "cuMemcpyHtoD_v2", Memcpy),
            (277, "cuMemcpyHtoDAsync_v2", MemcpyAsync),
            (243, "cuMemAlloc_v2", Memory),
            (245, "cuMemFree_v2", Memory),
            (19, "cuModuleLoadData", Module),
            (527, "cuLaunchHostFunc", HostFunc),
            (386, "cuDevicePrimaryCtxRetain", Context),
        ] {
            assert_eq!(info(Domain::Driver, cbid), (name, class));
        }
    }

    #[test]
    fn frequent_calls_that_never_block_are_not_wanted() {
        // cudaEventQuery, cudaEventRecord, cudaGetDevice, cudaPeekAtLastError, cudaStreamIsCapturing.
        for cbid in [138, 135, 17, 10, 317] {
            assert_eq!(lookup(Domain::Runtime, cbid), None);
        }
        // cuEventQuery, cuEventRecord.
        for cbid in [120, 119] {
            assert_eq!(lookup(Domain::Driver, cbid), None);
        }
        assert_eq!(lookup(Domain::Driver, MAX_CBID), None);
        assert_eq!(lookup(Domain::Runtime, u32::MAX), None);
    }
}

//! The driver API as a program sees it: symbols of the simulated libcuda.

use std::ffi::{c_char, c_int, c_void, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use crate::process;

pub type Handle = *mut c_void;

pub struct Library(*mut c_void);

impl Library {
    pub fn open(path: &Path) -> Library {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: loads a library of this test.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{path:?}");
        Library(handle)
    }

    pub fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the library is never closed.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}

macro_rules! functions {
    ($struct:ident { $($field:ident $symbol:literal ($($arg:ty),*);)* }) => {
        /// Entry points, checked by name.
        #[derive(Clone, Copy)]
        pub struct $struct { $(pub $field: unsafe extern "C" fn($($arg),*) -> u32,)* }

        impl $struct {
            pub fn load(library: &Library) -> $struct {
                $(let $field = library.symbol($symbol);
                assert!(!$field.is_null(), $symbol);)*
                // SAFETY: the signatures are those of the API with these names.
                unsafe { $struct { $($field: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> u32>($field),)* } }
            }
        }
    };
}
pub(crate) use functions;

functions! { Driver {
    init "cuInit" (u32);
    driver_version "cuDriverGetVersion" (*mut c_int);
    device_count "cuDeviceGetCount" (*mut c_int);
    device_name "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_uuid "cuDeviceGetUuid_v2" (*mut [u8; 16], c_int);
    context_create "cuCtxCreate_v2" (*mut Handle, u32, c_int);
    context_current "cuCtxSetCurrent" (Handle);
    context_synchronise "cuCtxSynchronize" ();
    stream_create "cuStreamCreate" (*mut Handle, u32);
    stream_query "cuStreamQuery" (Handle);
    stream_synchronise "cuStreamSynchronize" (Handle);
    stream_wait_event "cuStreamWaitEvent" (Handle, Handle, u32);
    event_create "cuEventCreate" (*mut Handle, u32);
    event_record "cuEventRecord" (Handle, Handle);
    event_query "cuEventQuery" (Handle);
    event_synchronise "cuEventSynchronize" (Handle);
    module_load "cuModuleLoadData" (*mut Handle, *const c_void);
    module_function "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    launch_kernel "cuLaunchKernel" (Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void);
    launch_host "cuLaunchHostFunc" (Handle, extern "C" fn(*mut c_void), *mut c_void);
    alloc "cuMemAlloc_v2" (*mut u64, usize);
    free "cuMemFree_v2" (u64);
    host_alloc "cuMemHostAlloc" (*mut *mut c_void, usize, u32);
    up "cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    down "cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
    up_async "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
    down_async "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
    peer_async "cuMemcpyPeerAsync" (u64, Handle, u64, Handle, usize, Handle);
    set_async "cuMemsetD8Async" (u64, u8, usize, Handle);
    proc_address "cuGetProcAddress_v2" (*const c_char, *mut *mut c_void, c_int, u64, *mut c_int);
    error_name "cuGetErrorName" (u32, *mut *const c_char);
} }

/// Kernel name used everywhere.
pub const KERNEL: &str = "step_kernel";

/// A program with a context on a device.
pub struct Program {
    pub cu: Driver,
    pub context: Handle,
    function: Handle,
}

pub fn library() -> Library {
    Library::open(&process::directory().join("libcuda.so.1"))
}

/// Checks a driver call. SAFETY of all calls here: arguments are live and of the right kind.
macro_rules! ok {
    ($call:expr) => {
        // SAFETY: the arguments are live and of the kind that the API asks for.
        assert_eq!(unsafe { $call }, 0, stringify!($call))
    };
}
pub(crate) use ok;

impl Program {
    pub fn start() -> Program {
        let cu = Driver::load(&library());
        ok!((cu.init)(0));
        Program::on(cu, 0)
    }

    /// A context on a device, made current.
    pub fn on(cu: Driver, device: c_int) -> Program {
        let (mut context, mut module, mut function) = (null_mut(), null_mut(), null_mut());
        ok!((cu.context_create)(&raw mut context, 0, device));
        ok!((cu.module_load)(&raw mut module, c"image".as_ptr().cast()));
        let name = CString::new(KERNEL).unwrap();
        ok!((cu.module_function)(
            &raw mut function,
            module,
            name.as_ptr()
        ));
        Program {
            cu,
            context,
            function,
        }
    }

    pub fn stream(&self) -> Handle {
        let mut stream = null_mut();
        ok!((self.cu.stream_create)(&raw mut stream, 1));
        stream
    }

    pub fn event(&self) -> Handle {
        let mut event = null_mut();
        ok!((self.cu.event_create)(&raw mut event, 2));
        event
    }

    pub fn try_launch(&self, stream: Handle, mut ns: u64) -> u32 {
        let mut params = [(&raw mut ns).cast::<c_void>()];
        // SAFETY: the parameters live during the call.
        unsafe {
            (self.cu.launch_kernel)(
                self.function,
                4,
                2,
                1,
                128,
                1,
                1,
                64,
                stream,
                params.as_mut_ptr(),
                null_mut(),
            )
        }
    }

    pub fn launch(&self, stream: Handle, ns: u64) {
        assert_eq!(self.try_launch(stream, ns), 0);
    }

    pub fn synchronise(&self, stream: Handle) {
        ok!((self.cu.stream_synchronise)(stream));
    }

    pub fn pinned(&self, bytes: usize) -> *mut c_void {
        let mut memory = null_mut();
        ok!((self.cu.host_alloc)(&raw mut memory, bytes, 0));
        memory
    }

    pub fn device_memory(&self, bytes: usize) -> u64 {
        let mut address = 0;
        ok!((self.cu.alloc)(&raw mut address, bytes));
        address
    }
}

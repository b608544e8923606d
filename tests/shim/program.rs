//! The program: a few CUDA calls for each line of its input.

use std::env;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::io::{self, BufRead, Write};
use std::ptr;
use std::thread;

use crate::conditions;

/// The program begins with CUDA when it is told to: "initialise", then "context".
pub const STEPS: &str = "GDIAG_TEST_STEPS";

type Handle = *mut c_void;

/// The functions of the driver that the program uses, from the library that it is told to load.
#[derive(Clone, Copy)]
struct Cuda(Handle);

// SAFETY: a library's handle can be used by any thread.
unsafe impl Send for Cuda {}

macro_rules! driver {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        // Names and arguments are the driver's.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl Cuda {
            $(fn $name(self, $($arg: $type),*) -> c_uint {
                let symbol = CString::new(stringify!($name)).unwrap();
                // SAFETY: the library is loaded for good, and exports the driver's functions with
                // the driver's types; the arguments below are valid for them.
                unsafe {
                    let function = libc::dlsym(self.0, symbol.as_ptr());
                    assert!(!function.is_null(), "{}", stringify!($name));
                    let function: extern "C" fn($($type),*) -> c_uint = std::mem::transmute(function);
                    function($($arg),*)
                }
            })*
        }
    };
}

driver! {
    cuInit(flags: c_uint);
    cuDeviceGetCount(count: *mut c_int);
    cuCtxCreate_v2(context: *mut Handle, flags: c_uint, device: c_int);
    cuCtxSetCurrent(context: Handle);
    cuCtxSynchronize();
    cuModuleLoadData(module: *mut Handle, image: *const c_void);
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    cuStreamCreate(stream: *mut Handle, flags: c_uint);
    cuStreamSynchronize(stream: Handle);
    cuLaunchKernel(
        function: Handle,
        gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void
    );
    cuMemAlloc_v2(memory: *mut u64, bytes: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle);
    cuMemAllocManaged(memory: *mut u64, bytes: usize, flags: c_uint);
    cuMemPrefetchAsync(memory: u64, bytes: usize, device: c_int, stream: Handle);
    cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: Handle);
    cuEventCreate(event: *mut Handle, flags: c_uint);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventQuery(event: Handle);
}

struct Gpu {
    cuda: Cuda,
    context: Handle,
    function: Handle,
}

// SAFETY: handles of the driver can be used by any thread.
unsafe impl Send for Gpu {}

fn ok(result: c_uint) {
    assert_eq!(result, 0);
}

/// Loads the driver, as any CUDA program does.
fn load_driver() -> Cuda {
    let path = CString::new(env::var("GDIAG_TEST_LIBCUDA").unwrap()).unwrap();
    // SAFETY: a C string; the library's constructors do nothing.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "{path:?}");
    Cuda(library)
}

impl Gpu {
    /// After `cuInit`.
    fn new(cuda: Cuda) -> Gpu {
        let (mut context, mut module, mut function) =
            (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        ok(cuda.cuCtxCreate_v2(&mut context, 0, 0));
        ok(cuda.cuModuleLoadData(&mut module, c"image".as_ptr().cast()));
        ok(cuda.cuModuleGetFunction(&mut function, module, c"step_kernel".as_ptr()));
        Gpu {
            cuda,
            context,
            function,
        }
    }

    fn launch(&self, count: u32, stream: Handle) {
        self.launch_of(2_000, count, stream);
    }

    fn launch_of(&self, mut duration_ns: u64, count: u32, stream: Handle) {
        let mut params = [(&raw mut duration_ns).cast::<c_void>()];
        for _ in 0..count {
            let params = params.as_mut_ptr();
            ok(self.cuda.cuLaunchKernel(
                self.function,
                1,
                1,
                1,
                32,
                1,
                1,
                0,
                stream,
                params,
                ptr::null_mut(),
            ));
        }
    }

    fn copy(&self) {
        let mut data = [0u8; 4096];
        let (mut memory, mut event) = (0, ptr::null_mut());
        let stream = ptr::null_mut();
        ok(self.cuda.cuMemAlloc_v2(&mut memory, data.len()));
        ok(self
            .cuda
            .cuMemcpyHtoDAsync_v2(memory, data.as_ptr().cast(), data.len(), stream));
        ok(self.cuda.cuMemsetD8Async(memory, 7, data.len(), stream));
        ok(self
            .cuda
            .cuMemcpyDtoHAsync_v2(data.as_mut_ptr().cast(), memory, data.len(), stream));
        ok(self.cuda.cuEventCreate(&mut event, 0));
        ok(self.cuda.cuEventRecord(event, stream));
        self.cuda.cuEventQuery(event);
        ok(self.cuda.cuStreamSynchronize(stream));
        let mut devices = 0;
        ok(self.cuda.cuDeviceGetCount(&mut devices));
    }

    /// Moves managed memory to the device and back.
    fn migrate(&self) {
        const SIZE: usize = 1 << 20;
        let mut memory = 0;
        ok(self.cuda.cuMemAllocManaged(&mut memory, SIZE, 1));
        for device in [0, -1] {
            let stream = ptr::null_mut();
            ok(self.cuda.cuMemPrefetchAsync(memory, SIZE, device, stream));
        }
        ok(self.cuda.cuCtxSynchronize());
    }

    fn threads(&self, threads: u32, launches: u32) {
        thread::scope(|scope| {
            for _ in 0..threads {
                let gpu = Gpu { ..*self };
                scope.spawn(move || {
                    let gpu = gpu;
                    ok(gpu.cuda.cuCtxSetCurrent(gpu.context));
                    let mut stream = ptr::null_mut();
                    ok(gpu.cuda.cuStreamCreate(&mut stream, 1));
                    gpu.launch(launches, stream);
                    ok(gpu.cuda.cuStreamSynchronize(stream));
                });
            }
        });
    }
}

/// Exits as a program does that forked without exec: through the exit handlers.
fn fork() -> i32 {
    // SAFETY: the child only exits.
    unsafe {
        let child = libc::fork();
        assert!(
            child >= 0,
            "{}",
            CStr::from_ptr(libc::strerror(*libc::__errno_location())).to_string_lossy()
        );
        if child == 0 {
            libc::exit(0);
        }
        let mut status = -1;
        libc::waitpid(child, &mut status, 0);
        status
    }
}

/// A function of the libcupti that the shim uses.
fn cupti(name: &CStr) -> Handle {
    let path = env::var("GDIAG_TEST_LIBCUDA")
        .unwrap()
        .replace("libcuda.so.1", "libcupti.so.13");
    let path = CString::new(path).unwrap();
    // SAFETY: the library is mapped, and both take C strings.
    let function = unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!function.is_null());
    function
}

/// What a profiler may do that shares the process with the shim.
fn finalize() {
    // SAFETY: the function takes nothing.
    let finalize: extern "C" fn() -> c_uint =
        unsafe { std::mem::transmute(cupti(c"cuptiFinalize")) };
    ok(finalize());
}

/// Likewise: it registers buffer callbacks of its own, and turns all kinds off when it is done.
fn take_over() {
    extern "C" fn give(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
        let words = Vec::leak(vec![0u64; 8192]);
        // SAFETY: CUPTI gives three valid addresses for the answer.
        unsafe {
            *buffer = words.as_mut_ptr().cast();
            *size = size_of_val(words);
            *most = 0;
        }
    }
    extern "C" fn ignore(_: Handle, _: u32, _: *mut u8, _: usize, _: usize) {}
    type Request = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
    type Complete = extern "C" fn(Handle, u32, *mut u8, usize, usize);
    // SAFETY: this is its type.
    let register: extern "C" fn(Request, Complete) -> c_uint =
        unsafe { std::mem::transmute(cupti(c"cuptiActivityRegisterCallbacks")) };
    // SAFETY: this is its type.
    let disable: extern "C" fn(u32) -> c_uint =
        unsafe { std::mem::transmute(cupti(c"cuptiActivityDisable")) };
    ok(register(give, ignore));
    for kind in 1..60 {
        // Some are of no use to anybody.
        disable(kind);
    }
}

/// Holds CUPTI as a tool with a subscription does, until it is given back.
fn subscribe() -> Handle {
    extern "C" fn ignore(_: Handle, _: u32, _: u32, _: *const c_void) {}
    type Callback = extern "C" fn(Handle, u32, u32, *const c_void);
    // SAFETY: this is its type.
    let subscribe: extern "C" fn(*mut Handle, Callback, Handle) -> c_uint =
        unsafe { std::mem::transmute(cupti(c"cuptiSubscribe")) };
    let mut subscriber = ptr::null_mut();
    // The shim may be asking the same way at this moment.
    while subscribe(&raw mut subscriber, ignore, ptr::null_mut()) != 0 {
        thread::yield_now();
    }
    subscriber
}

fn unsubscribe(subscriber: Handle) {
    // SAFETY: this is its type.
    let unsubscribe: extern "C" fn(Handle) -> c_uint =
        unsafe { std::mem::transmute(cupti(c"cuptiUnsubscribe")) };
    ok(unsubscribe(subscriber));
}

fn answer(text: &str) {
    // A line of its own: the harness may have begun one.
    println!("\n> {text}");
    io::stdout().flush().unwrap();
}

pub fn program() {
    let cuda = load_driver();
    let mut gpu = None;
    if env::var_os(STEPS).is_none() {
        ok(cuda.cuInit(0));
        gpu = Some(Gpu::new(cuda));
    }
    let mut subscriber = ptr::null_mut();
    answer("ready");
    for line in io::stdin().lock().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        let command = words.next().unwrap();
        let mut number = || words.next().unwrap().parse::<u32>().unwrap();
        if conditions::meet(command, &mut number) {
            answer("done");
            continue;
        }
        let Some(gpu) = &gpu else {
            match command {
                "initialise" => ok(cuda.cuInit(0)),
                "context" => gpu = Some(Gpu::new(cuda)),
                _ => panic!("{line}"),
            }
            answer("done");
            continue;
        };
        match command {
            // SAFETY: takes nothing, cannot fail.
            "tid" => answer(&unsafe { libc::gettid() }.to_string()),
            "launch" => {
                gpu.launch(number(), ptr::null_mut());
                ok(gpu.cuda.cuCtxSynchronize());
                answer("done");
            }
            "long" => {
                gpu.launch_of(u64::from(number()) * 1_000_000, 1, ptr::null_mut());
                answer("done");
            }
            "threads" => {
                gpu.threads(number(), number());
                answer("done");
            }
            "copy" => {
                gpu.copy();
                answer("done");
            }
            "migrate" => {
                gpu.migrate();
                answer("done");
            }
            "sync" => {
                ok(gpu.cuda.cuCtxSynchronize());
                answer("done");
            }
            "finalize" => {
                finalize();
                answer("done");
            }
            "subscribe" => {
                subscriber = subscribe();
                answer("done");
            }
            "take-over" => {
                take_over();
                answer("done");
            }
            "unsubscribe" => {
                unsubscribe(subscriber);
                answer("done");
            }
            "fork" => answer(&format!("child exited with {}", fork())),
            _ => panic!("{line}"),
        }
    }
}

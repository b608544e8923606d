//! `cuInit`, injection, and what the device says of itself.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::process::Command;
use std::ptr::{null, null_mut};

use crate::cupti::Tool;
use crate::driver::{library, ok, Driver, Library, Program};
use crate::process::{case, directory};

fn is_mapped(name: &str) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| line.contains(name))
}

#[test]
fn the_injected_library_is_called_once() {
    let directory = env!("CARGO_TARGET_TMPDIR");
    let source = concat!(env!("CARGO_TARGET_TMPDIR"), "/injected.c");
    let injected = format!("{directory}/injected.so");
    std::fs::write(
        source,
        "#include <dlfcn.h>\n\
         int calls, initialised = -1;\n\
         int InitializeInjection(void) {\n\
           int (*init)(unsigned) = (int (*)(unsigned))dlsym(RTLD_DEFAULT, \"cuInit\");\n\
           calls++;\n\
           initialised = init ? init(0) : -2;\n\
           return 1;\n\
         }\n",
    )
    .unwrap();
    let name = "initialisation::the_injected_library_is_called_once";
    if std::env::var_os("CUDA_INJECTION64_PATH").is_none() {
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o", &injected, source])
            .status()
            .unwrap();
        assert!(built.success());
    }
    case(name, &[("CUDA_INJECTION64_PATH", &injected)], || {
        let cu = Driver::load(&library());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| ok!((cu.init)(0)));
            }
        });
        ok!((cu.init)(0));
        assert!(is_mapped("injected.so"));
        let path: std::path::PathBuf = std::env::var_os("CUDA_INJECTION64_PATH").unwrap().into();
        let injected = Library::open(&path);
        // SAFETY: an int of the library; nobody writes it any more.
        let calls = unsafe { *injected.symbol("calls").cast::<c_int>() };
        assert_eq!(calls, 1);
    });
}

#[test]
fn calls_before_cuinit_fail() {
    case("initialisation::calls_before_cuinit_fail", &[], || {
        let cu = Driver::load(&library());
        let mut count = 0;
        // SAFETY: a valid out-pointer.
        assert_eq!(unsafe { (cu.device_count)(&raw mut count) }, 3);
        ok!((cu.driver_version)(&raw mut count));
        assert_eq!(count, 13_000);
        ok!((cu.init)(0));
        ok!((cu.device_count)(&raw mut count));
        assert_eq!(count, 1);
    });
}

#[test]
fn cuinit_maps_libcupti_from_its_own_directory() {
    case(
        "initialisation::cuinit_maps_libcupti_from_its_own_directory",
        &[],
        || {
            let cu = Driver::load(&library());
            assert!(!is_mapped("simcupti"));
            ok!((cu.init)(0));
            assert!(is_mapped("simcupti"));
            let cupti = Library::open(&directory().join("libcupti.so.13"));
            assert!(!cupti.symbol("gdiag_simulated").is_null());
        },
    );
}

#[test]
fn libcupti_stays_away_when_told_so() {
    case(
        "initialisation::libcupti_stays_away_when_told_so",
        &[("GDIAG_SIM_NO_CUPTI", "1")],
        || {
            let program = Program::start();
            assert!(!is_mapped("simcupti"));
            program.launch(null_mut(), 1_000);
            program.synchronise(null_mut());
        },
    );
}

#[test]
fn devices_say_that_they_are_simulated() {
    case(
        "initialisation::devices_say_that_they_are_simulated",
        &[("GDIAG_SIM_DEVICES", "2")],
        || {
            let cu = Driver::load(&library());
            ok!((cu.init)(0));
            let mut uuids = [[0; 16]; 2];
            for device in 0..2 {
                let mut name: [c_char; 64] = [1; 64];
                ok!((cu.device_name)(name.as_mut_ptr(), 64, device));
                // SAFETY: the call wrote a string.
                let name = unsafe { CStr::from_ptr(name.as_ptr()) };
                assert_eq!(name, c"Simulated H200 (gdiag)");
                ok!((cu.device_uuid)(&raw mut uuids[device as usize], device));
            }
            assert_ne!(uuids[0], uuids[1]);
            let mut short: [c_char; 4] = [1; 4];
            ok!((cu.device_name)(short.as_mut_ptr(), 4, 0));
            assert_eq!(short[3], 0);
            // SAFETY: a valid out-pointer.
            let result = unsafe { (cu.device_uuid)(&raw mut uuids[0], 2) };
            assert_eq!(result, 101);
        },
    );
}

#[test]
fn functions_are_found_by_their_plain_names() {
    case(
        "initialisation::functions_are_found_by_their_plain_names",
        &[],
        || {
            let library = library();
            let cu = Driver::load(&library);
            let find = |name: &CStr| {
                let (mut found, mut status) = (null_mut::<c_void>(), -1);
                // SAFETY: a string and valid out-pointers.
                let result = unsafe {
                    (cu.proc_address)(name.as_ptr(), &raw mut found, 12_080, 0, &raw mut status)
                };
                (result, found, status)
            };
            let alloc = library.symbol("cuMemAlloc_v2");
            assert_eq!(find(c"cuMemAlloc"), (0, alloc, 0));
            let launch = library.symbol("cuLaunchKernel");
            assert_eq!(find(c"cuLaunchKernel"), (0, launch, 0));
            assert_eq!(find(c"cuGraphLaunch"), (500, null_mut(), 1));
        },
    );
}

#[test]
fn errors_have_names() {
    case("initialisation::errors_have_names", &[], || {
        let program = Program::start();
        let mut name = null();
        ok!((program.cu.error_name)(400, &raw mut name));
        // SAFETY: the call gave a static string.
        let name = unsafe { CStr::from_ptr(name) };
        assert_eq!(name, c"CUDA_ERROR_INVALID_HANDLE");
        let nobody = 0x33 as *mut c_void;
        assert_eq!(program.try_launch(nobody, 1), 400);
        let tool = Tool::open();
        let mut name = null();
        ok!((tool.cupti.result_string)(39, &raw mut name));
        // SAFETY: the call gave a static string.
        let name = unsafe { CStr::from_ptr(name) };
        assert_eq!(name, c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED");
    });
}

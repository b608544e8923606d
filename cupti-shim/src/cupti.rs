//! The functions of CUPTI and of the driver that the shim calls, looked up at run time.
//!
//! Numbers of kinds, results and calls are plain integers in newtypes: a newer library may
//! use values that no enum of ours knows.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fmt;
use std::path::Path;
use std::ptr::{self, NonNull};

use gdiag_shim_layout::cupti::UnifiedMemoryConfig;

/// A `CUptiResult`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u32);

pub(crate) const SUCCESS: Status = Status(0);
pub(crate) const NOT_INITIALIZED: Status = Status(15);
pub(crate) const MULTIPLE_SUBSCRIBERS: Status = Status(39);

impl Status {
    pub(crate) fn ok(self) -> Result<(), Status> {
        if self == SUCCESS {
            Ok(())
        } else {
            Err(self)
        }
    }
}

/// A `CUpti_ActivityKind`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(pub(crate) u32);

/// A `CUpti_ActivityAttribute`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attribute(u32);

/// Buffers come zeroed, CUPTI need not do it. One byte.
pub(crate) const ZEROED_BUFFERS: Attribute = Attribute(5);
/// `CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM`: thread ids are those of gettid(2).
pub(crate) const THREAD_ID_SYSTEM: u32 = 1;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: also buffers with operations that still run.
pub(crate) const FLUSH_FORCED: u32 = 1;

pub(crate) type Requested = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
pub(crate) type Completed = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);
pub(crate) type GetNextRecord = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> Status;

/// A library that stays loaded for good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library(NonNull<c_void>);

// SAFETY: handles of dlopen(3) can be used by any thread.
unsafe impl Send for Library {}

impl Library {
    /// One that is mapped already, by the path it is known under.
    pub(crate) fn loaded(path: &Path) -> Option<Library> {
        Library::dlopen(path, libc::RTLD_NOW | libc::RTLD_NOLOAD)
    }

    pub(crate) fn load(path: &Path) -> Result<Library, String> {
        Library::dlopen(path, libc::RTLD_NOW | libc::RTLD_LOCAL).ok_or_else(|| {
            // SAFETY: dlerror gives null or a C string that lives until the thread's next call.
            let error = unsafe { libc::dlerror() };
            if error.is_null() {
                format!("cannot load {}", path.display())
            } else {
                // SAFETY: not null, see above.
                unsafe { CStr::from_ptr(error) }
                    .to_string_lossy()
                    .into_owned()
            }
        })
    }

    fn dlopen(path: &Path, flags: c_int) -> Option<Library> {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).ok()?;
        // SAFETY: a C string; loading runs the library's constructors, which is what is wanted.
        NonNull::new(unsafe { libc::dlopen(path.as_ptr(), flags) }).map(Library)
    }

    /// # Safety
    ///
    /// `F` must be the type of the function pointer that the library exports under this name.
    unsafe fn function<F: Copy>(self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.symbol(name)?;
        // SAFETY: not null, and of this type as the caller says.
        Some(unsafe { std::mem::transmute_copy(&address.as_ptr()) })
    }

    fn symbol(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the library is loaded for good, and the name is a C string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }

    pub(crate) fn has(self, name: &CStr) -> bool {
        self.symbol(name).is_some()
    }
}

macro_rules! functions {
    ($(#[$doc:meta])* $table:ident {
        $($field:ident: $symbol:literal fn($($arg:ty),*) -> $ret:ty;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $table {
            $(pub(crate) $field: Option<unsafe extern "C" fn($($arg),*) -> $ret>,)*
        }

        impl $table {
            pub(crate) fn of(library: Library) -> $table {
                $table {
                    // SAFETY: the types are those of the vendor's headers, which keep them.
                    $($field: unsafe { library.function($symbol) },)*
                }
            }
        }

        impl fmt::Debug for $table {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($table))$(.field(stringify!($field), &self.$field.is_some()))*.finish()
            }
        }
    };
}

functions! {
    /// libcupti. Each may be missing: releases differ.
    Functions {
        get_version: c"cuptiGetVersion" fn(*mut u32) -> Status;
        get_timestamp: c"cuptiGetTimestamp" fn(*mut u64) -> Status;
        get_result_string: c"cuptiGetResultString" fn(Status, *mut *const c_char) -> Status;
        set_thread_id_type: c"cuptiSetThreadIdType" fn(u32) -> Status;
        register_callbacks: c"cuptiActivityRegisterCallbacks" fn(Requested, Completed) -> Status;
        set_attribute: c"cuptiActivitySetAttribute" fn(Attribute, *mut usize, *mut c_void) -> Status;
        enable: c"cuptiActivityEnable" fn(Kind) -> Status;
        disable: c"cuptiActivityDisable" fn(Kind) -> Status;
        configure_unified_memory: c"cuptiActivityConfigureUnifiedMemoryCounter" fn(*mut UnifiedMemoryConfig, u32) -> Status;
        enable_runtime_api: c"cuptiActivityEnableRuntimeApi" fn(u32, u8) -> Status;
        enable_driver_api: c"cuptiActivityEnableDriverApi" fn(u32, u8) -> Status;
        flush_all: c"cuptiActivityFlushAll" fn(u32) -> Status;
        get_next_record: c"cuptiActivityGetNextRecord" fn(*mut u8, usize, *mut *mut u8) -> Status;
        get_dropped: c"cuptiActivityGetNumDroppedRecords" fn(*mut c_void, u32, *mut usize) -> Status;
        subscribe: c"cuptiSubscribe" fn(*mut *mut c_void, Callback, *mut c_void) -> Status;
        unsubscribe: c"cuptiUnsubscribe" fn(*mut c_void) -> Status;
    }
}

functions! {
    /// libcuda. A result of 0 is success.
    DriverFunctions {
        driver_get_version: c"cuDriverGetVersion" fn(*mut c_int) -> u32;
        device_get_count: c"cuDeviceGetCount" fn(*mut c_int) -> u32;
        device_get: c"cuDeviceGet" fn(*mut c_int, c_int) -> u32;
        device_get_name: c"cuDeviceGetName" fn(*mut c_char, c_int, c_int) -> u32;
        device_get_uuid: c"cuDeviceGetUuid" fn(*mut [u8; 16], c_int) -> u32;
        device_get_uuid_v2: c"cuDeviceGetUuid_v2" fn(*mut [u8; 16], c_int) -> u32;
    }
}

/// A device as this process numbers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) ordinal: u32,
    pub(crate) uuid: [u8; 16],
    /// Zero-padded.
    pub(crate) name: [u8; 96],
}

/// The driver that is mapped into this process. Only the shim's own thread calls it, apart
/// from the version, which any state of the driver can give.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Driver(DriverFunctions);

impl Driver {
    pub(crate) fn of(library: Library) -> Driver {
        Driver(DriverFunctions::of(library))
    }

    /// For example 13000; 0 when it cannot be known.
    pub(crate) fn version(&self) -> u32 {
        let mut version = 0;
        // SAFETY: writes one int.
        let asked = self
            .0
            .driver_get_version
            .map(|f| unsafe { f(&mut version) });
        if asked == Some(0) {
            u32::try_from(version).unwrap_or(0)
        } else {
            0
        }
    }

    /// `None` while the driver is not initialized.
    pub(crate) fn device_count(&self) -> Option<u32> {
        let mut count = 0;
        // SAFETY: writes one int.
        let asked = self.0.device_get_count.map(|f| unsafe { f(&mut count) });
        (asked == Some(0)).then(|| u32::try_from(count).unwrap_or(0))
    }

    pub(crate) fn device(&self, ordinal: u32) -> Option<Device> {
        let mut device = Device {
            ordinal,
            uuid: [0; 16],
            name: [0; 96],
        };
        let mut handle = 0;
        let index = c_int::try_from(ordinal).ok()?;
        // SAFETY: each call writes into memory of ours, of the size that it is told or has by its type.
        unsafe {
            if self.0.device_get?(&mut handle, index) != 0 {
                return None;
            }
            // The last byte stays 0.
            let room = device.name.len() as c_int - 1;
            self.0
                .device_get_name
                .map(|f| f(device.name.as_mut_ptr().cast(), room, handle));
            // Version 2 tells the instances of a divided card apart.
            self.0
                .device_get_uuid_v2
                .or(self.0.device_get_uuid)
                .map(|f| f(&mut device.uuid, handle));
        }
        Some(device)
    }
}

impl Functions {
    pub(crate) fn version(&self) -> u32 {
        let mut version = 0;
        // SAFETY: writes one u32.
        self.get_version.map(|f| unsafe { f(&mut version) });
        version
    }

    /// CUPTI's clock in ns, if it can be read.
    pub(crate) fn timestamp(&self) -> Option<u64> {
        let mut time = 0;
        // SAFETY: writes one u64.
        let status = unsafe { self.get_timestamp?(&mut time) };
        (status == SUCCESS && time != 0).then_some(time)
    }

    /// The result as number and name, for people.
    pub(crate) fn describe(&self, status: Status) -> String {
        let mut name = ptr::null();
        // SAFETY: writes one pointer, to a string that lives as long as the library.
        let named = self
            .get_result_string
            .map(|f| unsafe { f(status, &mut name) });
        if named == Some(SUCCESS) && !name.is_null() {
            // SAFETY: a C string, see above.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
            format!("error {} ({name})", status.0)
        } else {
            format!("error {}", status.0)
        }
    }
}

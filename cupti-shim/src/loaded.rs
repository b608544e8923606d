//! What this process has loaded.

use std::ffi::{c_int, c_void, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Paths of all libraries in this process, as the dynamic linker knows them.
pub(crate) fn libraries() -> Vec<PathBuf> {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, list: *mut c_void) -> c_int {
        // SAFETY: the linker passes a valid entry, and the list is the one below.
        let (name, list) = unsafe { ((*info).dlpi_name, &mut *list.cast::<Vec<PathBuf>>()) };
        if !name.is_null() {
            // SAFETY: a C string that lives while the linker holds its lock.
            let name = unsafe { CStr::from_ptr(name) };
            if !name.is_empty() {
                list.push(OsStr::from_bytes(name.to_bytes()).into());
            }
        }
        0
    }
    let mut list: Vec<PathBuf> = Vec::new();
    // SAFETY: the callback has the right type and gets the list it expects.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut list).cast()) };
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processs_own_libraries_are_listed() {
        let libraries = libraries();
        let is_libc = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("libc.so")
        };
        assert!(libraries.iter().any(is_libc), "{libraries:?}");
        assert_eq!(gdiag_cupti_locate::driver(&libraries), None);
    }
}

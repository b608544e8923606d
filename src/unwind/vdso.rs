//! The kernel's own library, which is in every process and in no file.

use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::LittleEndian;

/// More than any vdso has of code, tables and data.
const MAX_BYTES: u64 = 1 << 20;

/// The bytes of this process's vdso, as far as it is loaded. Other processes of 64 bits have the
/// same one, wherever the kernel put it. `None` where there is none.
pub fn image() -> Option<&'static [u8]> {
    // SAFETY: getauxval only reads what the kernel left above this process's stack.
    let start = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as *const u8;
    if start.is_null() {
        return None;
    }
    // SAFETY: the kernel mapped the image of an ELF file of at least one page there, for the life
    // of the process; nothing writes to it and nobody unmaps it.
    let headers = unsafe { std::slice::from_raw_parts(start, 4096) };
    let header = FileHeader64::<LittleEndian>::parse(headers).ok()?;
    let segments = header.program_headers(LittleEndian, headers).ok()?;
    let load = segments
        .iter()
        .find(|segment| segment.p_type(LittleEndian) == PT_LOAD)?;
    // The image is mapped as it is, so that its segment begins with the headers.
    if load.p_offset(LittleEndian) != 0 || load.p_filesz(LittleEndian) > MAX_BYTES {
        return None;
    }
    // The section headers come behind the segment: in its last page, or, as on Linux 6.1, in one more.
    let pages = load.p_filesz(LittleEndian).next_multiple_of(4096);
    let len = mapped(start as u64).map_or(pages, |len| len.clamp(pages, MAX_BYTES)) as usize;
    // SAFETY: as above; so much is mapped: what the kernel says, or the whole pages of the segment.
    Some(unsafe { std::slice::from_raw_parts(start, len) })
}

/// How much the kernel says is mapped from there on.
fn mapped(start: u64) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    let from = u64::from_str_radix(from, 16).ok()?;
    let to = u64::from_str_radix(to, 16).ok()?;
    (from == start).then(|| to.saturating_sub(from))
}

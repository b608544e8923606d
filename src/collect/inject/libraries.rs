//! What the target has mapped: its C library's functions, room for code, room for a page.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use crate::collect::elf::Elf;
use crate::collect::maps::{self, Mmap};

/// Size of a page on x86-64.
const PAGE: u64 = 4096;

/// User addresses end below this, whatever the number of page table levels.
const USER_END: u64 = 1 << 47;

/// The code of a C library has two or three megabytes.
const MOST_CODE: u64 = 16 << 20;

/// The mailbox stays so far from what is mapped: stacks and heaps grow.
const ROOM: u64 = 16 << 20;

/// A range of addresses that is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub range: Range<u64>,
    pub writable: bool,
    pub main_stack: bool,
}

/// All that is mapped, in the order of addresses.
pub(super) fn regions(proc_pid: u32) -> io::Result<Vec<Region>> {
    let text = fs::read(format!("/proc/{proc_pid}/maps"))?;
    Ok(text
        .split(|&b| b == b'\n')
        .filter_map(parse_region)
        .collect())
}

fn parse_region(line: &[u8]) -> Option<Region> {
    let mut fields = line.splitn(3, |&b| b == b' ');
    let range = std::str::from_utf8(fields.next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    let permissions = fields.next()?;
    Some(Region {
        range: address(start)?..address(end)?,
        writable: permissions.starts_with(b"rw"),
        main_stack: line.ends_with(b" [stack]"),
    })
}

/// The region that holds an address.
pub(super) fn region_of(regions: &[Region], address: u64) -> Option<&Region> {
    let after = regions.partition_point(|r| r.range.end <= address);
    regions.get(after).filter(|r| r.range.contains(&address))
}

/// An address where a page can be mapped; another one for another `random`.
pub(super) fn free_page(regions: &[Region], random: u64) -> Option<u64> {
    let mut end = PAGE * 16;
    let mut holes = Vec::new();
    let last = USER_END..USER_END;
    for range in regions.iter().map(|r| &r.range).chain([&last]) {
        let start = range.start.min(USER_END);
        if start.saturating_sub(end) > 3 * ROOM {
            holes.push(end + ROOM..start - ROOM);
        }
        end = range.end;
    }
    // The largest is between the program and its libraries: programs with small models and hints
    // for 32 bits map below it.
    let hole = holes.into_iter().max_by_key(|hole| hole.end - hole.start)?;
    let pages = (hole.end - hole.start) / PAGE;
    Some((hole.start / PAGE + random % pages) * PAGE)
}

/// Functions of the target's C library that the code calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Functions {
    pub pthread_create: u64,
    pub pthread_detach: u64,
    pub dlopen: u64,
    pub dlsym: u64,
    pub dlerror: u64,
}

/// Why a process has none that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoLibrary {
    /// Its C library is not the GNU one, or there is none.
    NotGlibc,
    /// It could not be read.
    Unreadable,
}

/// The libraries that no program unloads, so that code in them stays.
#[derive(Debug)]
pub(super) struct Libraries {
    /// With the bias of each.
    mapped: Vec<(Mmap, u64, Arc<Elf>)>,
}

/// The C library, its parts before 2.34, and the loader.
fn is_of_glibc(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    [
        &b"libc.so.6"[..],
        b"libc-2.",
        b"libpthread.so.0",
        b"libpthread-2.",
        b"libdl.so.2",
        b"libdl-2.",
        b"libm.so.6",
        b"libm-2.",
        b"ld-linux-x86-64.so.2",
        b"ld-2.",
    ]
    .iter()
    .any(|known| name.starts_with(known))
}

impl Libraries {
    pub fn of(proc_pid: u32) -> io::Result<Libraries> {
        let mut code = maps::executable(proc_pid)?;
        code.retain(|mmap| is_of_glibc(&mmap.path));
        let mapped = maps::open(proc_pid, &code)
            .into_iter()
            .zip(code)
            .filter_map(|(elf, mmap)| {
                let elf = elf?;
                let bias = elf.bias(mmap.start, mmap.end - mmap.start, mmap.offset)?;
                Some((mmap, bias, elf))
            })
            .collect();
        Ok(Libraries { mapped })
    }

    pub fn functions(&self) -> Result<Functions, NoLibrary> {
        if self.mapped.is_empty() {
            return Err(NoLibrary::NotGlibc);
        }
        let mut glibc = false;
        let mut functions = Functions::default();
        for (_, bias, elf) in &self.mapped {
            let found = elf.symbols(|name, address, _| {
                let function = match name {
                    b"gnu_get_libc_version" => {
                        glibc = true;
                        return;
                    }
                    b"pthread_create" => &mut functions.pthread_create,
                    b"pthread_detach" => &mut functions.pthread_detach,
                    b"dlopen" => &mut functions.dlopen,
                    b"dlsym" => &mut functions.dlsym,
                    b"dlerror" => &mut functions.dlerror,
                    _ => return,
                };
                if *function == 0 && address != 0 {
                    *function = bias.wrapping_add(address);
                }
            });
            found.map_err(|_| NoLibrary::Unreadable)?;
        }
        let all = [
            functions.pthread_create,
            functions.pthread_detach,
            functions.dlopen,
            functions.dlsym,
            functions.dlerror,
        ];
        if !glibc || all.contains(&0) {
            return Err(NoLibrary::NotGlibc);
        }
        Ok(functions)
    }

    /// Where a signal handler returns to: on a thread's stack it is the mark of one.
    pub fn signal_return(&self) -> Option<u64> {
        // mov $15, %rax; syscall
        const CODE: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
        self.mapped.iter().find_map(|(_, bias, elf)| {
            let segment = elf.segments.iter().find(|s| s.executable)?;
            let bytes = elf.bytes(segment.offset, segment.size, MOST_CODE).ok()?;
            let at = bytes.windows(CODE.len()).position(|w| w == CODE)? as u64;
            Some(bias.wrapping_add(segment.address).wrapping_add(at))
        })
    }

    /// Where `len` bytes of code fit behind the code of a library: in the rest of its last page,
    /// which belongs to nothing. `usable` looks at what is there now.
    pub fn room(&self, len: u64, mut usable: impl FnMut(u64) -> bool) -> Option<u64> {
        self.mapped.iter().find_map(|(mmap, bias, elf)| {
            let segment = elf.segments.iter().find(|s| {
                let start = bias.wrapping_add(s.address);
                s.executable && start < mmap.end && mmap.start < start.wrapping_add(s.size)
            })?;
            let end = bias
                .wrapping_add(segment.address)
                .wrapping_add(segment.size);
            let at = end.next_multiple_of(16);
            let fits = at > mmap.start && at + len <= mmap.end && mmap.end - end < PAGE;
            (fits && usable(at)).then_some(at)
        })
    }
}

/// Memory of another process.
#[derive(Debug)]
pub(super) struct Memory(fs::File);

impl Memory {
    pub fn open(proc_pid: u32) -> io::Result<Memory> {
        let mut options = fs::OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .open(format!("/proc/{proc_pid}/mem"))?;
        Ok(Memory(file))
    }

    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, address)
    }

    /// Also where the program itself may not write.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_found_by_address() {
        let lines: &[&[u8]] = &[
            b"1000-3000 r-xp 00000000 fe:01 9 /a b",
            b"4000-5000 rw-p 00000000 00:00 0 ",
            b"7ffd0000-7ffe0000 rw-p 00000000 00:00 0      [stack]",
            b"garbage",
        ];
        let regions: Vec<_> = lines.iter().filter_map(|l| parse_region(l)).collect();
        assert_eq!(regions.len(), 3);
        assert!(regions[1].writable && !regions[0].writable && regions[2].main_stack);
        assert_eq!(region_of(&regions, 0x2fff), Some(&regions[0]));
        assert_eq!(region_of(&regions, 0x3000), None);
        assert_eq!(region_of(&regions, 0x4000), Some(&regions[1]));
        assert_eq!(region_of(&regions, u64::MAX), None);
    }

    #[test]
    fn a_free_page_is_far_from_what_is_mapped() {
        let region = |range| Region {
            range,
            writable: true,
            main_stack: false,
        };
        let regions = [
            region(0x5555_0000_0000..0x5555_1000_0000),
            region(0x7fff_0000_0000..0x7fff_0001_0000),
        ];
        for random in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            let page = free_page(&regions, random).unwrap();
            assert_eq!(page % PAGE, 0);
            assert_eq!(region_of(&regions, page), None);
        }
        assert_eq!(free_page(&[region(0..u64::MAX)], 7), None);
    }

    #[test]
    fn the_own_process_has_all_that_is_needed() {
        let own = std::process::id();
        let libraries = Libraries::of(own).unwrap();
        let functions = libraries.functions().unwrap();
        let here = libc::pthread_detach as *const () as u64;
        assert_eq!(functions.pthread_detach, here);
        let room = libraries.room(64, |_| true);
        let regions = regions(own).unwrap();
        assert!(room.is_some_and(|at| region_of(&regions, at).is_some()));
    }

    #[test]
    fn only_the_c_library_counts() {
        for path in [
            "/lib/libc.so.6",
            "/lib64/libc-2.17.so (deleted)",
            "/x/ld-2.28.so",
        ] {
            assert!(is_of_glibc(path.as_bytes()), "{path}");
        }
        for path in [
            "/lib/ld-musl-x86_64.so.1",
            "/lib/libcuda.so.1",
            "",
            "[vdso]",
        ] {
            assert!(!is_of_glibc(path.as_bytes()), "{path}");
        }
    }
}

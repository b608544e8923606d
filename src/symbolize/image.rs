//! A copy of the parts of an ELF file that names come from.
//!
//! blazesym maps the files that it reads. A file of a target must not be mapped: `cp` onto a
//! shared library that is in use truncates it, and the next look at the mapping would kill gdiag
//! with SIGBUS. So blazesym gets a file of ours, in memory, as long as the original but filled
//! only where symbols and debug information are; the rest, code and data, stays a hole and costs
//! nothing. It also gets no links to other files, which anybody could have written into it.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use nix::sys::memfd::{memfd_create, MFdFlags};

use crate::collect::elf::{Elf, Identity, Section};

/// Copied of one file at most; a larger one has no names. Several times what the largest libraries
/// of CUDA and PyTorch have of symbols.
pub(super) const MOST_BYTES: u64 = 512 << 20;

/// Debug information of one file at most, uncompressed: it is held in memory and searched through.
/// That of a larger file is left out: its functions have names, but no lines, and none are inlined.
const MOST_DEBUG_BYTES: u64 = 128 << 20;

/// Sections that name other files.
const LINKS: [&str; 3] = [".gnu_debuglink", ".gnu_debugaltlink", ".debug_sup"];

const SHF_COMPRESSED: u64 = 0x800;
const SECTION_HEADER: u64 = 64;
const CHUNK: usize = 1 << 20;

/// The copy.
#[derive(Debug)]
pub(super) struct Image {
    pub file: File,
    /// Its memory.
    pub bytes: u64,
    /// It has debug information.
    pub debug: bool,
}

impl Image {
    /// An error also when the file is not any more what it was when it was opened.
    pub fn of(elf: &Elf) -> io::Result<Image> {
        let sections = elf.sections()?;
        let debug_bytes = debug_bytes(elf, &sections);
        let debug = debug_bytes > 0 && debug_bytes <= MOST_DEBUG_BYTES;
        let mut parts = elf.headers()?.to_vec();
        for section in sections.iter().filter(|s| s.is_stored()) {
            let wanted = section.is_symbol_table()
                || section.name == ".shstrtab"
                || (debug && is_debug(section));
            if wanted {
                parts.push((section.offset, section.size));
            }
            if section.is_symbol_table() {
                let names = sections.get(section.link as usize);
                parts.extend(names.map(|names| (names.offset, names.size)));
            }
        }
        parts.sort_unstable();
        parts.dedup();
        let bytes = parts
            .iter()
            .map(|&(_, size)| size)
            .fold(0, u64::saturating_add);
        if bytes > MOST_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let file = File::from(memfd_create("gdiag-symbols", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(elf.identity.size)?;
        for (offset, size) in parts {
            copy(elf.file(), &file, offset, size)?;
        }
        for (i, section) in (0..).zip(&sections) {
            if LINKS.contains(&section.name.as_str()) {
                // Neither a name nor a type: there is no such section.
                file.write_all_at(&[0; 8], elf.sections_at() + i * SECTION_HEADER)?;
            }
        }
        // Rewritten in place, before or meanwhile: its names are not those of what ran.
        if Identity::of(elf.file())? != elf.identity {
            return Err(io::ErrorKind::StaleNetworkFileHandle.into());
        }
        Ok(Image { file, bytes, debug })
    }
}

fn is_debug(section: &Section) -> bool {
    section.name.starts_with(".debug_") && !LINKS.contains(&section.name.as_str())
}

/// Bytes of debug information once it is uncompressed.
fn debug_bytes(elf: &Elf, sections: &[Section]) -> u64 {
    let size = |section: &Section| {
        if section.flags & SHF_COMPRESSED == 0 {
            return section.size;
        }
        let mut size = [0; 8];
        match elf
            .file()
            .read_exact_at(&mut size, section.offset.saturating_add(8))
        {
            Ok(()) => u64::from_le_bytes(size),
            Err(_) => u64::MAX,
        }
    };
    let debug = sections.iter().filter(|s| is_debug(s) && s.is_stored());
    debug.map(size).fold(0, u64::saturating_add)
}

fn copy(from: &File, to: &File, offset: u64, size: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK.min(usize::try_from(size).unwrap_or(CHUNK))];
    let mut done = 0;
    while done < size {
        let left = usize::try_from(size - done).unwrap_or(CHUNK);
        let part = &mut chunk[..left.min(CHUNK)];
        let at = offset.checked_add(done).ok_or(io::ErrorKind::InvalidData)?;
        from.read_exact_at(part, at)?;
        to.write_all_at(part, at)?;
        done += part.len() as u64;
    }
    Ok(())
}

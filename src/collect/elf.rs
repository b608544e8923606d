//! What an ELF file of a target says about itself: build id, segments, sections, symbols.
//!
//! Everything is read with pread, bounded, into memory of ours. Nothing is mapped: whoever may
//! write to a file can shrink it at any time (`cp` onto a shared library does), and touching a
//! mapping beyond the new end kills the reader with SIGBUS. A read that comes short is an error
//! that can be handled.
//!
//! Only 64-bit little-endian files are understood, as the stacks of no others are followed.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Section headers that are looked at, and the bytes of their names.
const MOST_SECTIONS: u64 = 1 << 16;
const MOST_NAME_BYTES: u64 = 4 << 20;
/// Of a section, or of a symbol that is looked for.
const LONGEST_NAME: usize = 256;
/// A build id is a note of 20 bytes, beside a few others.
const MOST_NOTE_BYTES: u64 = 64 << 10;
/// Of a symbol table, and of its names.
const MOST_SYMBOL_BYTES: u64 = 512 << 20;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const NT_GNU_BUILD_ID: u32 = 3;
const SHT_SYMTAB: u32 = 2;
const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;
const STT_NOTYPE: u8 = 0;
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;

/// What the linker wrote to tell this build from every other; empty when it wrote nothing.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// Longer ones are no build ids.
    const MOST: usize = 64;

    pub fn new(bytes: &[u8]) -> BuildId {
        let real = bytes.len() <= Self::MOST && bytes.iter().any(|&b| b != 0);
        BuildId(if real { bytes.to_vec() } else { Vec::new() })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is long enough for equal ids to mean equal files.
    pub fn tells_apart(&self) -> bool {
        self.0.len() >= 8
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

/// A file as the file system knows it, at one time: rewriting it in place changes this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    /// In nanoseconds, of the last change of the content.
    pub modified: i128,
}

impl Identity {
    pub fn of(file: &File) -> io::Result<Identity> {
        let meta = file.metadata()?;
        Ok(Identity {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.len(),
            modified: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
        })
    }
}

/// A part of the file that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub address: u64,
    /// In the file.
    pub size: u64,
    pub executable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    pub kind: u32,
    pub flags: u64,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
}

impl Section {
    /// Whether it has bytes in the file.
    pub fn is_stored(&self) -> bool {
        self.kind != SHT_NOBITS
    }

    pub fn is_symbol_table(&self) -> bool {
        matches!(self.kind, SHT_SYMTAB | SHT_DYNSYM)
    }
}

/// Descriptors held by all [`Elf`]s.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// An open ELF file. It stays readable when it is deleted or replaced by another.
#[derive(Debug)]
pub struct Elf {
    file: File,
    pub identity: Identity,
    pub build_id: BuildId,
    pub segments: Vec<Segment>,
    segments_at: u64,
    segment_headers: u64,
    sections_at: u64,
    sections: u64,
    names: u32,
}

impl Drop for Elf {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Elf {
    /// Files that are open now.
    pub fn open_files() -> usize {
        OPEN.load(Ordering::Relaxed)
    }

    /// `None` for a file that is not ELF, or not of a kind that is understood.
    pub fn read(file: File) -> io::Result<Option<Elf>> {
        let identity = Identity::of(&file)?;
        let mut header = [0; HEADER];
        match file.read_exact_at(&mut header, 0) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(e) => return Err(e),
        }
        // Magic number, 64 bits, little-endian.
        if header[..6] != *b"\x7fELF\x02\x01" {
            return Ok(None);
        }
        OPEN.fetch_add(1, Ordering::Relaxed);
        let mut elf = Elf {
            file,
            identity,
            build_id: BuildId::default(),
            segments: Vec::new(),
            segments_at: u64_at(&header, 32),
            segment_headers: u64::from(u16_at(&header, 56)),
            sections_at: u64_at(&header, 40),
            sections: u64::from(u16_at(&header, 60)),
            names: u32::from(u16_at(&header, 62)),
        };
        let size = u64::from(u16_at(&header, 54));
        if size == PROGRAM_HEADER as u64 {
            elf.read_segments()?;
        }
        Ok(Some(elf))
    }

    fn read_segments(&mut self) -> io::Result<()> {
        let headers = self.bytes(
            self.segments_at,
            self.segment_headers * PROGRAM_HEADER as u64,
            u64::MAX,
        )?;
        for header in headers.chunks_exact(PROGRAM_HEADER) {
            let segment = Segment {
                offset: u64_at(header, 8),
                address: u64_at(header, 16),
                size: u64_at(header, 32),
                executable: u32_at(header, 4) & PF_X != 0,
            };
            match u32_at(header, 0) {
                PT_LOAD => self.segments.push(segment),
                PT_NOTE if self.build_id.is_empty() => {
                    // A broken note means no build id, not no file.
                    let notes = self.bytes(segment.offset, segment.size, MOST_NOTE_BYTES);
                    let align = u64_at(header, 48);
                    self.build_id =
                        notes.map_or_else(|_| BuildId::default(), |n| find_id(&n, align));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Where in the file the code at an address is.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let within = address.checked_sub(segment.address)?;
            (within < segment.size).then_some(segment.offset + within)
        })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// [`bias`] of a mapping of this file.
    pub fn bias(&self, start: u64, len: u64, offset: u64) -> Option<u64> {
        bias(&self.segments, start, len, offset)
    }

    /// `size` bytes at `offset`; an error when that is more than `most`, or than the file has.
    pub fn bytes(&self, offset: u64, size: u64, most: u64) -> io::Result<Vec<u8>> {
        // A hole in a sparse file may have any size: never trust it with an allocation.
        let end = offset.checked_add(size);
        if size > most || end.is_none_or(|end| end > self.identity.size) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let size = usize::try_from(size).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    pub fn sections_at(&self) -> u64 {
        self.sections_at
    }

    /// Where the headers of the file, of its segments and of its sections are, with their sizes.
    pub fn headers(&self) -> io::Result<[(u64, u64); 3]> {
        Ok([
            (0, HEADER as u64),
            (
                self.segments_at,
                self.segment_headers * PROGRAM_HEADER as u64,
            ),
            (
                self.sections_at,
                self.section_count()?.0 * SECTION_HEADER as u64,
            ),
        ])
    }

    /// How many there are, and which one has their names.
    fn section_count(&self) -> io::Result<(u64, u32)> {
        let size = SECTION_HEADER as u64;
        if self.sections_at == 0 {
            return Ok((0, 0));
        }
        // Large numbers are kept in the first header instead.
        let first = self.bytes(self.sections_at, size, size)?;
        let count = match self.sections {
            0 => u64_at(&first, 32),
            count => count,
        };
        let names = match self.names {
            0xffff => u32_at(&first, 40),
            names => names,
        };
        if count > MOST_SECTIONS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((count, names))
    }

    /// None when the file has no section headers, as a stripped one may.
    pub fn sections(&self) -> io::Result<Vec<Section>> {
        let (count, names) = self.section_count()?;
        let headers = self.bytes(self.sections_at, count * SECTION_HEADER as u64, u64::MAX)?;
        let header = |i: u32| headers.chunks_exact(SECTION_HEADER).nth(i as usize);
        let names = match header(names) {
            Some(h) => self.bytes(u64_at(h, 24), u64_at(h, 32), MOST_NAME_BYTES)?,
            None => Vec::new(),
        };
        Ok(headers
            .chunks_exact(SECTION_HEADER)
            .map(|h| Section {
                name: String::from_utf8_lossy(text_at(&names, u32_at(h, 0))).into_owned(),
                kind: u32_at(h, 4),
                flags: u64_at(h, 8),
                address: u64_at(h, 16),
                offset: u64_at(h, 24),
                size: u64_at(h, 32),
                link: u32_at(h, 40),
            })
            .collect())
    }

    /// A section and its bytes, when the file has it and it has no more than `most`.
    pub fn section(&self, name: &str, most: u64) -> io::Result<Option<(Section, Vec<u8>)>> {
        let sections = self.sections()?;
        let Some(section) = sections
            .into_iter()
            .find(|s| s.name == name && s.is_stored())
        else {
            return Ok(None);
        };
        let bytes = self.bytes(section.offset, section.size, most)?;
        Ok(Some((section, bytes)))
    }

    /// Hands each defined function or variable to `each`: its name, address and size. In the
    /// order of the file; one may come twice, since the dynamic symbols repeat some of the others.
    /// Reads all symbols, which takes milliseconds for a Python and longer for what is larger.
    pub fn symbols(&self, mut each: impl FnMut(&[u8], u64, u64)) -> io::Result<()> {
        let sections = self.sections()?;
        for table in sections.iter().filter(|s| s.is_symbol_table()) {
            let Some(names) = sections.get(table.link as usize) else {
                continue;
            };
            let names = self.bytes(names.offset, names.size, MOST_SYMBOL_BYTES)?;
            let symbols = self.bytes(table.offset, table.size, MOST_SYMBOL_BYTES)?;
            for symbol in symbols.chunks_exact(SYMBOL) {
                let kind = symbol[4] & 0xf;
                let defined = u16_at(symbol, 6) != 0;
                if defined && matches!(kind, STT_NOTYPE | STT_OBJECT | STT_FUNC) {
                    let name = text_at(&names, u32_at(symbol, 0));
                    each(name, u64_at(symbol, 8), u64_at(symbol, 16));
                }
            }
        }
        Ok(())
    }

    /// The address of one symbol.
    pub fn symbol(&self, name: &str) -> io::Result<Option<u64>> {
        let mut found = None;
        self.symbols(|n, address, _| {
            if found.is_none() && n == name.as_bytes() {
                found = Some(address);
            }
        })?;
        Ok(found)
    }
}

/// What to subtract from an address in a mapping to get the address as the file itself counts.
/// `start` and `len` say where the file is mapped, `offset` which part of it.
/// `None` when that part is in no segment.
pub fn bias(segments: &[Segment], start: u64, len: u64, offset: u64) -> Option<u64> {
    let end = offset.saturating_add(len);
    let overlaps = |s: &&Segment| s.offset < end && offset < s.offset.saturating_add(s.size);
    let mut of_code = segments.iter().filter(|s| s.executable);
    let segment = of_code
        .find(overlaps)
        .or_else(|| segments.iter().find(overlaps))?;
    let address = segment
        .address
        .wrapping_sub(segment.offset)
        .wrapping_add(offset);
    Some(start.wrapping_sub(address))
}

/// The build id among notes.
fn find_id(mut notes: &[u8], align: u64) -> BuildId {
    // Padded to 4 bytes, or to 8 in a segment that is aligned so.
    let pad = if align == 8 { 8 } else { 4 };
    while let Some((head, rest)) = notes.split_at_checked(12) {
        let name_size = u32_at(head, 0) as usize;
        let size = u32_at(head, 4) as usize;
        // 12 bytes have been read, which the padding counts from too.
        let name_end = (12 + name_size).next_multiple_of(pad) - 12;
        let Some(name) = rest.get(..name_size) else {
            break;
        };
        let Some(desc) = rest.get(name_end..).and_then(|r| r.get(..size)) else {
            break;
        };
        if name == b"GNU\0" && u32_at(head, 8) == NT_GNU_BUILD_ID {
            return BuildId::new(desc);
        }
        let next = name_end + size.next_multiple_of(pad);
        notes = rest.get(next..).unwrap_or_default();
    }
    BuildId::default()
}

/// The bytes up to the next NUL. A longer name is cut: else a file could have as many names as
/// headers and each as long as all its text.
fn text_at(bytes: &[u8], at: u32) -> &[u8] {
    let rest = bytes.get(at as usize..).unwrap_or_default();
    let rest = &rest[..rest.len().min(LONGEST_NAME)];
    let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
    &rest[..end]
}

/// Callers know how long their bytes are; what is beyond the end reads as 0.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    array_at(bytes, at).map_or(0, u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    array_at(bytes, at).map_or(0, u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    array_at(bytes, at).map_or(0, u64::from_le_bytes)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.get(..N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Elf {
        let file = File::open("/proc/self/exe").unwrap();
        Elf::read(file).unwrap().unwrap()
    }

    #[test]
    fn this_program_has_segments_sections_and_symbols() {
        let elf = own();
        assert!(elf.segments.iter().any(|s| s.executable));
        let (text, bytes) = elf.section(".text", u64::MAX).unwrap().unwrap();
        assert_eq!(text.size, bytes.len() as u64);
        let main = elf.symbol("main").unwrap().unwrap();
        assert!((text.address..text.address + text.size).contains(&main));
        assert_eq!(elf.symbol("there is no such symbol").unwrap(), None);
        assert!(elf.section(".text", 1).is_err(), "more than asked for");
    }

    #[test]
    fn the_bias_turns_a_pc_into_an_address_of_the_file() {
        let elf = own();
        let code = elf.segments.iter().find(|s| s.executable).unwrap();
        let page = code.offset & !0xfff;
        let bias = elf.bias(0x7f00_0000_0000, code.size, page).unwrap();
        let pc = 0x7f00_0000_0000 + (code.offset - page) + 16;
        assert_eq!(pc - bias, code.address + 16);
        assert_eq!(elf.bias(0, 4096, 1 << 40), None);
    }

    #[test]
    fn what_is_no_elf_file_is_told_apart() {
        for path in ["/proc/self/cmdline", "/dev/null"] {
            assert!(Elf::read(File::open(path).unwrap()).unwrap().is_none());
        }
    }

    #[test]
    fn broken_files_are_errors_or_nothing() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broken");
        // Cut short, and every field of the header made absurd.
        let mut cases: Vec<Vec<u8>> = vec![own[..64].to_vec(), own[..4096].to_vec()];
        for at in 16..64 {
            let mut bytes = own[..4096].to_vec();
            bytes[at] = 0xff;
            cases.push(bytes);
        }
        for bytes in cases {
            std::fs::write(&path, &bytes).unwrap();
            if let Ok(Some(elf)) = Elf::read(File::open(&path).unwrap()) {
                let _ = elf.sections();
                let _ = elf.symbols(|_, _, _| {});
                let _ = elf.section(".eh_frame", u64::MAX);
            }
        }
    }

    #[test]
    fn a_sparse_file_of_a_terabyte_allocates_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let mut header = [0u8; HEADER];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[40..48].copy_from_slice(&4096u64.to_le_bytes());
        std::fs::write(&path, header).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        // The first section header claims 2^33 sections.
        file.write_all_at(&(1u64 << 33).to_le_bytes(), 4096 + 32)
            .unwrap();
        let elf = Elf::read(file).unwrap().unwrap();
        assert!(elf.sections().is_err());
    }

    #[test]
    fn a_name_without_an_end_is_cut() {
        let text = [b'a'; 2 * LONGEST_NAME];
        assert_eq!(text_at(&text, 1).len(), LONGEST_NAME);
        assert_eq!(text_at(b"\0ab\0c", 1), b"ab");
        assert_eq!(text_at(b"ab", 9), b"");
    }

    #[test]
    fn build_ids_are_found_among_other_notes() {
        let note = |name: &[u8], kind: u32, desc: &[u8]| {
            let mut n = Vec::new();
            n.extend((name.len() as u32).to_le_bytes());
            n.extend((desc.len() as u32).to_le_bytes());
            n.extend(kind.to_le_bytes());
            n.extend(name);
            n.resize(n.len().next_multiple_of(4), 0);
            n.extend(desc);
            n.resize(n.len().next_multiple_of(4), 0);
            n
        };
        let mut notes = note(b"stapsdt\0", 3, b"no build id");
        notes.extend(note(b"GNU\0", 1, b"nor this"));
        notes.extend(note(b"GNU\0", 3, &[0xab; 20]));
        let id = find_id(&notes, 4);
        assert_eq!(id.to_string(), "ab".repeat(20));
        for cut in 0..notes.len() {
            let _ = find_id(&notes[..cut], 4);
            let _ = find_id(&notes[..cut], 8);
        }
        let huge = [0xff; 40];
        assert!(find_id(&huge, 4).is_empty());
        assert!(BuildId::new(&[0; 20]).is_empty());
    }
}

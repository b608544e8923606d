//! Where the code and its unwind information are in an ELF file.
#![forbid(unsafe_code)]

use std::ops::Range;

use gimli::{BaseAddresses, EhFrameHdr, EndianSlice, LittleEndian};
use object::elf::{FileHeader64, ProgramHeader64, EM_X86_64, PF_X, PT_GNU_EH_FRAME, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::LittleEndian as Little;

use super::Unusable;

/// Processes have no addresses of more bits.
const ADDRESS_BITS: u32 = 48;

/// Bytes of code, which has to reach all of itself by offsets of 32 bits.
pub(super) const MAX_CODE: u64 = 1 << 32;

/// Bytes of `.eh_frame`. That of libtorch_cpu, one of the largest, has 18 MB.
pub const MAX_EH_FRAME: usize = 256 << 20;

/// What the tables are made from. Addresses are those of the file, as its program headers count.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub eh_frame: &'a [u8],
    pub bases: BaseAddresses,
    /// Sorted, apart from each other, and together no longer than the file.
    pub code: Vec<Range<u64>>,
    /// It is known that `eh_frame` ends where it does, and not only where it begins.
    pub whole: bool,
}

type Segments<'a> = &'a [ProgramHeader64<Little>];

impl<'a> Source<'a> {
    pub fn of(elf: &'a [u8]) -> Result<Self, Unusable> {
        let ident = elf.get(..20).ok_or(Unusable::NotElf)?;
        let (Some([class, order, ..]), [.., low, high]) = (ident.strip_prefix(b"\x7fELF"), ident)
        else {
            return Err(Unusable::NotElf);
        };
        let machine = match order {
            2 => u16::from_be_bytes([*low, *high]),
            _ => u16::from_le_bytes([*low, *high]),
        };
        if (*class, *order, machine) != (2, 1, EM_X86_64.0) {
            return Err(Unusable::Machine(machine));
        }
        let header =
            FileHeader64::<Little>::parse(elf).map_err(|_| Unusable::Malformed("header"))?;
        let segments = header
            .program_headers(Little, elf)
            .map_err(|_| Unusable::Malformed("program headers"))?;
        let code = code(segments, elf.len() as u64)?;

        // Without section headers (stripped to the bone, or the vdso) the program headers say
        // where a table to search in is, and that where .eh_frame begins.
        let source = Self::by_sections(header, elf, &code)
            .or_else(|| Self::by_segments(segments, elf, &code))
            .ok_or(Unusable::NoUnwindInfo)?;
        match source.eh_frame.len() {
            0..=MAX_EH_FRAME => Ok(source),
            _ => Err(Unusable::TooLarge),
        }
    }

    fn by_sections(
        header: &FileHeader64<Little>,
        elf: &'a [u8],
        code: &[Range<u64>],
    ) -> Option<Self> {
        let sections = header.sections(Little, elf).ok()?;
        let (_, section) = sections.section_by_name(Little, b".eh_frame")?;
        let eh_frame = section.data(Little, elf).ok()?;
        if eh_frame.is_empty() {
            return None;
        }
        let mut bases = BaseAddresses::default().set_eh_frame(section.sh_addr.get(Little));
        for (name, set) in [
            (
                ".text",
                BaseAddresses::set_text as fn(BaseAddresses, u64) -> _,
            ),
            (".got", BaseAddresses::set_got),
            (".eh_frame_hdr", BaseAddresses::set_eh_frame_hdr),
        ] {
            if let Some((_, section)) = sections.section_by_name(Little, name.as_bytes()) {
                bases = set(bases, section.sh_addr.get(Little));
            }
        }
        Some(Source {
            eh_frame,
            bases,
            code: code.to_vec(),
            whole: true,
        })
    }

    fn by_segments(segments: Segments<'a>, elf: &'a [u8], code: &[Range<u64>]) -> Option<Self> {
        let header = segments
            .iter()
            .find(|segment| segment.p_type(Little) == PT_GNU_EH_FRAME)?;
        let address = header.p_vaddr(Little);
        let bases = BaseAddresses::default().set_eh_frame_hdr(address);
        let data = loaded_from(segments, elf, address)?;
        let parsed = EhFrameHdr::from(EndianSlice::new(data, LittleEndian))
            .parse(&bases, 8)
            .ok()?;
        let start = parsed.eh_frame_ptr().direct().ok()?;
        // The table ends somewhere before its segment does.
        let data = loaded_from(segments, elf, start)?;
        Some(Source {
            eh_frame: &data[..data.len().min(MAX_EH_FRAME)],
            bases: bases.set_eh_frame(start),
            code: code.to_vec(),
            whole: false,
        })
    }
}

/// The bytes of the file from an address to the end of its segment.
fn loaded_from<'a>(segments: Segments<'a>, elf: &'a [u8], address: u64) -> Option<&'a [u8]> {
    segments
        .iter()
        .filter(|segment| segment.p_type(Little) == PT_LOAD)
        .find_map(|segment| {
            let skip = address.checked_sub(segment.p_vaddr(Little))?;
            let data = segment.data(Little, elf).ok()?;
            data.get(usize::try_from(skip).ok()?..)
        })
        .filter(|data| !data.is_empty())
}

/// What of the file is code.
fn code(segments: Segments<'_>, file_bytes: u64) -> Result<Vec<Range<u64>>, Unusable> {
    let mut code = Vec::new();
    for segment in segments {
        let executable = segment.p_flags(Little).contains(PF_X);
        if segment.p_type(Little) != PT_LOAD || !executable || segment.p_filesz(Little) == 0 {
            continue;
        }
        let start = segment.p_vaddr(Little);
        match start.checked_add(segment.p_filesz(Little)) {
            Some(end) if end <= 1 << ADDRESS_BITS => code.push(start..end),
            Some(_) | None => return Err(Unusable::AddressTooHigh),
        }
    }
    code.sort_unstable_by_key(|range: &Range<u64>| range.start);
    if code.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(Unusable::Malformed("segments overlap"));
    }
    let total: u64 = code.iter().map(|range| range.end - range.start).sum();
    if total > MAX_CODE {
        return Err(Unusable::TooLarge);
    }
    if total > file_bytes {
        return Err(Unusable::Malformed("more code than the file holds"));
    }
    if code.is_empty() {
        return Err(Unusable::NoCode);
    }
    Ok(code)
}

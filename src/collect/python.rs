//! Which interpreter a file is, and how its structures are laid out, so that the BPF programs can
//! read the Python frames of a process that runs it.
//!
//! Nothing is asked of the process: all of it is in the file. From 3.13 on CPython writes its own
//! offsets at the start of `_PyRuntime`; for older versions they are in a table here.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::io;

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection as _};

use crate::collect::elf::{u64_at, Elf, Segment};
use crate::collect::maps::FileId;
use crate::collect::stacks::types;
use types::{gdiag_py_features as Feature, gdiag_py_frames as Frames, gdiag_py_instr as Instr};

/// A function with all opcodes in it has more than 30 KiB.
const LOOP_BYTES: u64 = 8 << 10;
/// From one part of a split function into the others: what looks like a jump may be none.
const LEAST_JUMPS: u32 = 3;
/// Of unwind information, which tells where functions are.
const MOST_EH_FRAME: u64 = 64 << 20;
/// The section that `_PyRuntime` is in, from 3.12 on.
const RUNTIME_SECTION: &str = ".PyRuntime";
/// 64-bit words of `_Py_DebugOffsets` that are read.
const DEBUG_WORDS: u64 = 83;

/// CPython 3 of this minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minor(pub u8);

impl Minor {
    pub const OLDEST: Minor = Minor(8);
    pub const NEWEST: Minor = Minor(14);
    /// The oldest that writes its own offsets.
    const SELF_DESCRIBING: Minor = Minor(13);

    fn is_known(self) -> bool {
        (Minor::OLDEST..=Minor::NEWEST).contains(&self)
    }
}

/// How a code object tells which instruction is of which line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// 3.8 and 3.9: steps of address and line.
    Steps,
    /// 3.10: ranges of addresses, each with a step of the line (PEP 626).
    Ranges,
    /// From 3.11 on: ranges with columns (PEP 657).
    Locations,
}

impl LineFormat {
    pub fn of(version: Minor) -> LineFormat {
        match version.0 {
            ..=9 => LineFormat::Steps,
            10 => LineFormat::Ranges,
            11.. => LineFormat::Locations,
        }
    }
}

/// Where a native frame is, as far as the interpreter's loop is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Other,
    /// In the function that evaluates frames: one call of it is one native frame.
    Loop,
    /// In one that only begins such a call: what it called belongs to the same call.
    Entry,
}

/// A file with CPython in it: `libpython3.X.so`, or a program that it was linked into.
#[derive(Clone, Debug)]
pub struct Interpreter {
    pub version: Minor,
    /// How its code objects tell lines.
    pub lines: LineFormat,
    /// Address of `_PyRuntime`, as the file counts.
    runtime: u64,
    layout: types::gdiag_py_process,
    loops: Vec<(u64, u64)>,
    entries: Vec<(u64, u64)>,
}

impl Interpreter {
    /// `path` is where the process has the file. `None` when there is no CPython in it, or one
    /// whose layout is not known: another version, a build without the lock, or a pre-release.
    pub fn of(elf: &Elf, path: &str) -> io::Result<Option<Interpreter>> {
        let named = version_in(path);
        // To go through the symbols of every file would cost seconds with the large ones.
        if named.is_none()
            && !(elf.sections()?.iter()).any(|section| section.name == RUNTIME_SECTION)
        {
            return Ok(None);
        }
        let (mut runtime, mut version) = (None, None);
        let (mut eval, mut opcodes) = (Vec::new(), Vec::new());
        elf.symbols(|name, address, size| {
            let range = (address, address.saturating_add(size));
            match name {
                b"_PyRuntime" => runtime = Some(address),
                b"Py_Version" => version = Some(address),
                _ if size == 0 => {}
                _ if is_piece_of(name, b"_PyEval_EvalFrameDefault") => eval.push(range),
                _ if name.starts_with(b"_TAIL_CALL_") => opcodes.push(range),
                _ => {}
            }
        })?;
        let Some(runtime) = runtime else {
            return Ok(None);
        };
        // Since 3.11. As in PY_VERSION_HEX: two digits each, then the kind of release.
        let told = match version {
            Some(address) => data(elf, address, 8)?.map(|bytes| u64_at(&bytes, 0)),
            None => None,
        };
        let version = match told {
            Some(hex) if hex >> 24 == 3 && is_release(hex) => Minor((hex >> 16) as u8),
            Some(_) => return Ok(None),
            None => match named {
                Some(minor) if minor < Minor(11) => minor,
                _ => return Ok(None),
            },
        };
        let layout = if !version.is_known() {
            None
        } else if version >= Minor::SELF_DESCRIBING {
            data(elf, runtime, 8 * DEBUG_WORDS)?.and_then(|bytes| described(version, &bytes))
        } else {
            measured(version)
        };
        let Some(layout) = layout else {
            return Ok(None);
        };
        // In other builds each opcode is a function that the next one replaces, and what has this
        // name only calls the first; or the compiler has split it and most has no symbol.
        let whole = eval.iter().any(|(start, end)| end - start >= LOOP_BYTES);
        let (loops, entries) = if whole {
            (eval, Vec::new())
        } else if opcodes.is_empty() {
            let parts = parts_of(elf, &eval)?;
            if parts.is_empty() {
                (parts, eval)
            } else {
                ([eval, parts].concat(), Vec::new())
            }
        } else {
            (opcodes, eval)
        };
        Ok(Some(Interpreter {
            version,
            lines: LineFormat::of(version),
            runtime,
            layout,
            loops,
            entries,
        }))
    }

    /// What the BPF programs need for a process that has the file mapped with this bias. `id` is
    /// any number but 0 that no other process has had.
    pub(crate) fn in_process(&self, file: FileId, bias: u64, id: u32) -> types::gdiag_py_process {
        types::gdiag_py_process {
            runtime: self.runtime.wrapping_add(bias),
            id,
            file: file.0,
            ..self.layout
        }
    }

    /// `address` is inside the instruction, as the file counts.
    pub fn part(&self, address: u64) -> Part {
        let holds = |&(start, end): &(u64, u64)| (start..end).contains(&address);
        if self.loops.iter().any(holds) {
            Part::Loop
        } else if self.entries.iter().any(holds) {
            Part::Entry
        } else {
            Part::Other
        }
    }
}

/// A final release or a candidate: the structures of others change under the same number.
fn is_release(hex: u64) -> bool {
    hex >> 4 & 0xf >= 0xc
}

/// The version in `libpython3.9.so.1.0`, `python3.9` and the like; not that of a debug build,
/// which is called `python3.9d`, nor of one without the lock, `python3.13t`.
fn version_in(path: &str) -> Option<Minor> {
    let name = path.rsplit('/').next()?;
    let rest = name.strip_prefix("lib").unwrap_or(name);
    let rest = rest.strip_prefix("python3.")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = rest.split_at(digits);
    let ends = rest.is_empty() || rest.starts_with('.') || rest.starts_with(' ');
    digits.parse().ok().filter(|_| ends).map(Minor)
}

/// Whether this is the function, or a part the compiler made of it: `.cold`, `.lto_priv.0`.
fn is_piece_of(name: &[u8], function: &[u8]) -> bool {
    name.strip_prefix(function)
        .is_some_and(|rest| rest.first().is_none_or(|&b| b == b'.'))
}

/// Bytes at an address of the file, when they are stored there.
fn data(elf: &Elf, address: u64, size: u64) -> io::Result<Option<Vec<u8>>> {
    let holds = |s: &&Segment| {
        (address.checked_sub(s.address)).is_some_and(|at| at <= s.size && s.size - at >= size)
    };
    let Some(segment) = elf.segments.iter().find(holds) else {
        return Ok(None);
    };
    let offset = segment.offset.saturating_add(address - segment.address);
    elf.bytes(offset, size, size).map(Some)
}

/// The parts of a function that the compiler has split so that most of it lies elsewhere, without
/// a symbol. `known` is the part with one. By unwind information and jumps: a function jumps into
/// the middle of none but its own parts.
fn parts_of(elf: &Elf, known: &[(u64, u64)]) -> io::Result<Vec<(u64, u64)>> {
    let ranges = function_ranges(elf)?;
    let range_of = |address: u64| {
        let next = ranges.partition_point(|r| r.0 <= address);
        ranges[..next].last().filter(|r| address < r.1).copied()
    };
    let mut bodies = HashSet::new();
    for &(start, end) in known {
        each_jump(elf, start, end, |_, to| {
            bodies.extend(range_of(to).filter(|r| r.0 < to && r.1 - r.0 >= LOOP_BYTES));
        })?;
    }
    if bodies.is_empty() {
        return Ok(Vec::new());
    }
    let mut jumps: HashMap<(u64, u64), u32> = HashMap::new();
    for segment in elf.segments.iter().filter(|s| s.executable) {
        let end = segment.address.saturating_add(segment.size);
        each_jump(elf, segment.address, end, |from, to| {
            if bodies.iter().any(|body| body.0 < to && to < body.1) {
                if let Some(range) = range_of(from) {
                    *jumps.entry(range).or_default() += 1;
                }
            }
        })?;
    }
    let split = jumps.into_iter().filter(|&(_, n)| n >= LEAST_JUMPS);
    Ok(split.map(|(range, _)| range).chain(bodies).collect())
}

/// What may be jumps of x86-64 that are relative to their end: from where, and to where. Other
/// bytes may look like one.
fn each_jump(elf: &Elf, start: u64, end: u64, mut each: impl FnMut(u64, u64)) -> io::Result<()> {
    let Some(code) = data(elf, start, end.saturating_sub(start))? else {
        return Ok(());
    };
    for (at, bytes) in (start..).zip(code.windows(6)) {
        let (len, offset) = match *bytes {
            [0xe9, a, b, c, d, _] => (5, [a, b, c, d]),
            [0x0f, 0x80..=0x8f, a, b, c, d] => (6, [a, b, c, d]),
            _ => continue,
        };
        let offset = i64::from(i32::from_le_bytes(offset));
        each(at, at.wrapping_add(len).wrapping_add_signed(offset));
    }
    Ok(())
}

/// Where functions and their parts are, sorted. Of what cannot be parsed there is nothing.
fn function_ranges(elf: &Elf) -> io::Result<Vec<(u64, u64)>> {
    let Some((section, bytes)) = elf.section(".eh_frame", MOST_EH_FRAME)? else {
        return Ok(Vec::new());
    };
    let frames = EhFrame::new(&bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address);
    let mut entries = frames.entries(&bases);
    let mut ranges = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        if let Ok(function) = partial.parse(EhFrame::cie_from_offset) {
            ranges.push((function.initial_address(), function.end_address()));
        }
    }
    ranges.sort_unstable();
    Ok(ranges)
}

/// The layouts of the versions that do not tell it.
///
/// Each number is an `offsetof` (or, for the texts, a `sizeof`) of 64-bit builds of the release in
/// the comment, printed by a C program that includes that release's internal headers with
/// `Py_BUILD_CORE`; tests/stacks/offsets.c is that program, and a test compares. The structures of
/// a minor version do not change after its first release.
fn measured(version: Minor) -> Option<types::gdiag_py_process> {
    // What is the same in all of them.
    let at = types::gdiag_py_offsets {
        interp_next: 0,
        thread_next: 8,
        thread_interp: 16,
        text_length: 16,
        text_state: 32,
        text_ascii: 48,
        text_compact: 72,
        bytes_size: 16,
        bytes_data: 32,
        ..types::gdiag_py_offsets::default()
    };
    // Up to 3.10, but for the lock and the instruction.
    let object_frames = types::gdiag_py_offsets {
        runtime_interpreters: 32,
        interp_threads: 8,
        thread_id: 176,
        thread_frame: 24,
        frame_previous: 24,
        frame_code: 32,
        code_first_line: 40,
        code_filename: 104,
        code_name: 112,
        code_lines: 120,
        ..at
    };
    let (frames, instr, features, at) = match version {
        // 3.8.18
        Minor(8) => (
            Frames::GDIAG_PY_FRAMES_SINGLE,
            Instr::GDIAG_PY_INSTR_BYTES,
            0,
            types::gdiag_py_offsets {
                frame_instr: 104,
                gil_locked: 1168,
                gil_holder: 1160,
                gc_collecting: 544,
                ..object_frames
            },
        ),
        // 3.9.18
        Minor(9) => (
            Frames::GDIAG_PY_FRAMES_SINGLE,
            Instr::GDIAG_PY_INSTR_BYTES,
            Feature::GDIAG_PY_GC_INTERP.0,
            types::gdiag_py_offsets {
                frame_instr: 104,
                gil_locked: 368,
                gil_holder: 360,
                gc_collecting: 816,
                ..object_frames
            },
        ),
        // 3.10.13
        Minor(10) => (
            Frames::GDIAG_PY_FRAMES_SINGLE,
            Instr::GDIAG_PY_INSTR_UNITS,
            Feature::GDIAG_PY_GC_INTERP.0,
            types::gdiag_py_offsets {
                frame_instr: 96,
                gil_locked: 368,
                gil_holder: 360,
                gc_collecting: 816,
                ..object_frames
            },
        ),
        // 3.11.7. Its frames say `is_entry` where later ones have a frame of C.
        Minor(11) => (
            Frames::GDIAG_PY_FRAMES_FLAGGED,
            Instr::GDIAG_PY_INSTR_POINTER,
            Feature::GDIAG_PY_CFRAME.0
                | Feature::GDIAG_PY_NATIVE_ID.0
                | Feature::GDIAG_PY_GC_INTERP.0,
            types::gdiag_py_offsets {
                runtime_interpreters: 40,
                interp_threads: 16,
                gil_locked: 376,
                gil_holder: 368,
                gc_collecting: 848,
                thread_id: 152,
                thread_native_id: 160,
                thread_frame: 56,
                cframe_frame: 8,
                frame_previous: 48,
                frame_code: 32,
                frame_instr: 56,
                frame_owner: 68,
                code_first_line: 72,
                code_filename: 112,
                code_name: 128,
                code_lines: 136,
                code_bytecode: 184,
                ..at
            },
        ),
        // 3.12.1
        Minor(12) => (
            Frames::GDIAG_PY_FRAMES_SHIMS,
            Instr::GDIAG_PY_INSTR_POINTER,
            Feature::GDIAG_PY_CFRAME.0
                | Feature::GDIAG_PY_GIL_INTERP.0
                | Feature::GDIAG_PY_NATIVE_ID.0
                | Feature::GDIAG_PY_GC_INTERP.0,
            types::gdiag_py_offsets {
                runtime_interpreters: 40,
                interp_threads: 72,
                interp_gil: 384,
                gil_locked: 16,
                gil_holder: 8,
                gc_collecting: 312,
                thread_id: 136,
                thread_native_id: 144,
                thread_frame: 56,
                cframe_frame: 0,
                frame_previous: 8,
                frame_code: 0,
                frame_instr: 56,
                frame_owner: 70,
                code_first_line: 68,
                code_filename: 112,
                code_name: 128,
                code_lines: 136,
                code_bytecode: 192,
                text_ascii: 40,
                text_compact: 56,
                ..at
            },
        ),
        _ => return None,
    };
    Some(process(frames, instr, features, at))
}

/// Of the interpreter's own description, `_Py_DebugOffsets`, which is only numbers of 64 bits.
fn described(version: Minor, bytes: &[u8]) -> Option<types::gdiag_py_process> {
    let word = |i: usize| u64_at(bytes, 8 * i);
    let free_threaded = word(2);
    if !bytes.starts_with(b"xdebugpy")
        || (word(1) >> 16) != 0x300 + u64::from(version.0)
        || free_threaded != 0
    {
        return None;
    }
    // The first words of the parts: in 3.14 some of them have become longer, and one is new.
    let (interp, gil, thread, frame, code, gc) = match version {
        Minor(13) => (6, 14, 19, 28, 34, 71),
        Minor(14) => (6, 15, 22, 31, 39, 81),
        _ => return None,
    };
    // An offset, and the size of what it must lie in.
    let field = |part: usize, i: usize| -> Option<u32> {
        let (size, at) = (word(part), word(part + i));
        (at < size).then(|| u32::try_from(at).ok()).flatten()
    };
    let in_lock = |i: usize| word(gil + i).checked_sub(word(gil + 1));
    let at = types::gdiag_py_offsets {
        runtime_interpreters: field(3, 2)?,
        interp_next: field(interp, 2)?,
        interp_threads: field(interp, 3)?,
        interp_gil: field(interp, gil - interp)?,
        gil_locked: u32::try_from(in_lock(3)?).ok()?,
        gil_holder: u32::try_from(in_lock(4)?).ok()?,
        // The interpreter has the collector's state in itself, four words before the lock.
        gc_collecting: field(interp, gil - interp - 4)?.checked_add(field(gc, 1)?)?,
        thread_next: field(thread, 2)?,
        thread_interp: field(thread, 3)?,
        thread_frame: field(thread, 4)?,
        thread_id: field(thread, 5)?,
        thread_native_id: field(thread, 6)?,
        frame_previous: field(frame, 1)?,
        frame_code: field(frame, 2)?,
        frame_instr: field(frame, 3)?,
        frame_owner: field(frame, 5)?,
        code_filename: field(code, 1)?,
        code_name: field(code, 3)?,
        code_lines: field(code, 4)?,
        code_first_line: field(code, 5)?,
        code_bytecode: field(code, 9)?,
        // Not all of these are described; they are those of 3.12.
        text_length: 16,
        text_state: 32,
        text_ascii: 40,
        text_compact: 56,
        bytes_size: 16,
        bytes_data: 32,
        cframe_frame: 0,
    };
    Some(process(
        Frames::GDIAG_PY_FRAMES_SHIMS,
        Instr::GDIAG_PY_INSTR_POINTER,
        Feature::GDIAG_PY_GIL_INTERP.0
            | Feature::GDIAG_PY_NATIVE_ID.0
            | Feature::GDIAG_PY_GC_INTERP.0,
        at,
    ))
}

fn process(
    frames: Frames,
    instr: Instr,
    features: u32,
    at: types::gdiag_py_offsets,
) -> types::gdiag_py_process {
    let byte = |n: u32| u8::try_from(n).expect("enumerators of a byte");
    let mut frame = vec![
        (at.frame_previous, 8),
        (at.frame_code, 8),
        (
            at.frame_instr,
            if instr == Instr::GDIAG_PY_INSTR_POINTER {
                8
            } else {
                4
            },
        ),
    ];
    if frames != Frames::GDIAG_PY_FRAMES_SINGLE {
        frame.push((at.frame_owner, 1));
    }
    let code = [
        (at.code_filename, 8),
        (at.code_name, 8),
        (at.code_lines, 8),
        (at.code_first_line, 4),
    ];
    types::gdiag_py_process {
        frames: byte(frames.0),
        instr: byte(instr.0),
        features: byte(features),
        at,
        frame: span(&frame),
        code: span(&code),
        ..types::gdiag_py_process::default()
    }
}

/// The smallest part of a structure with all of these fields, each an offset and a size.
fn span(fields: &[(u32, u32)]) -> types::gdiag_py_span {
    let first = fields.iter().map(|&(at, _)| at).min().unwrap_or(0);
    let end = fields
        .iter()
        .map(|&(at, size)| at.saturating_add(size))
        .max();
    types::gdiag_py_span {
        first,
        size: end.unwrap_or(0) - first,
    }
}

#[cfg(test)]
mod tests;

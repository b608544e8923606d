//! What the BPF programs sent about Python: code objects, with names and line tables, and how
//! Python frames fit into the native stack of the same moment.
#![forbid(unsafe_code)]

use std::mem::offset_of;

use crate::collect::python::{LineFormat, Part};
use crate::collect::stacks::types;
use crate::collect::wire::read_cut;
use crate::event::Pid;

/// A function of Python, or the body of a module or class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The qualified name from 3.11 on, else the bare one. Empty when it could not be read.
    pub function: String,
    /// As given to the compiler. Empty when it could not be read.
    pub file: String,
    first_line: i32,
    lines: Vec<u8>,
    /// The line table goes on.
    cut: bool,
}

impl Code {
    /// Of a whole record: the process, the address of the code object there, and what it is.
    /// `None` when it is not what this program knows.
    pub fn read(bytes: &[u8]) -> Option<(Pid, u64, Code)> {
        let least = offset_of!(types::gdiag_pycode, bytes);
        let record = read_cut::<types::gdiag_pycode>(bytes, least)?;
        Some((Pid(record.pid), record.code, Code::of(&record)))
    }

    pub(crate) fn of(record: &types::gdiag_pycode) -> Code {
        let mut rest = &record.bytes[..];
        let mut take = |len: u16| {
            let (taken, left) = rest.split_at(usize::from(len).min(rest.len()));
            rest = left;
            taken
        };
        let file = text(take(record.file_len), record.file_kind);
        let function = text(take(record.name_len), record.name_kind);
        Code {
            function,
            file,
            first_line: record.first_line,
            lines: take(record.lines_len).to_vec(),
            cut: record.lines_cut != 0,
        }
    }

    /// The line of an instruction, whose offset in the bytecode is in bytes; negative before the
    /// first, which is where the function begins. 0 when the table does not say, or was too long
    /// to be sent whole.
    pub fn line(&self, format: LineFormat, instr: i32) -> u32 {
        let line = match u32::try_from(instr) {
            Err(_) => Some(i64::from(self.first_line)),
            Ok(instr) => {
                let (first, instr) = (i64::from(self.first_line), i64::from(instr));
                match format {
                    LineFormat::Steps => by_steps(&self.lines, self.cut, first, instr),
                    LineFormat::Ranges => by_ranges(&self.lines, first, instr),
                    LineFormat::Locations => by_locations(&self.lines, first, instr),
                }
            }
        };
        line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0)
    }
}

/// Pairs of bytes: how far the address goes, and then the line, which may go back.
fn by_steps(table: &[u8], cut: bool, first: i64, instr: i64) -> Option<i64> {
    let (mut address, mut line) = (0, first);
    for pair in table.chunks_exact(2) {
        address += i64::from(pair[0]);
        if address > instr {
            return Some(line);
        }
        line += i64::from(pair[1].cast_signed());
    }
    // The last line goes on to the end of the bytecode.
    (!cut).then_some(line)
}

/// Pairs of bytes: the length of a range, and how far its line is from the last one's.
fn by_ranges(table: &[u8], first: i64, instr: i64) -> Option<i64> {
    let (mut end, mut line) = (0, first);
    for pair in table.chunks_exact(2) {
        end += i64::from(pair[0]);
        let step = pair[1].cast_signed();
        let known = step != i8::MIN;
        if known {
            line += i64::from(step);
        }
        if instr < end {
            return known.then_some(line);
        }
    }
    None
}

/// Entries of a byte with a form and a length in units of 2 bytes, then what the form needs. Only
/// a first byte has its highest bit set.
fn by_locations(table: &[u8], first: i64, instr: i64) -> Option<i64> {
    let (mut end, mut line) = (0, first);
    let mut rest = table;
    while let Some((&head, after)) = rest.split_first() {
        let more = after.iter().take_while(|&&b| b & 0x80 == 0).count();
        let (mut entry, next) = after.split_at(more);
        let form = head >> 3 & 0xf;
        match form {
            // Only columns; the line is the same.
            0..=9 => {}
            10..=12 => line += i64::from(form - 10),
            13 | 14 => line = line.saturating_add(signed(&mut entry)),
            // No location.
            _ => {}
        }
        end += 2 * (i64::from(head & 7) + 1);
        if instr < end {
            return (form != 15).then_some(line);
        }
        rest = next;
    }
    None
}

/// A number of 6 bits to the byte, the lowest first, whose lowest bit is the sign.
fn signed(bytes: &mut &[u8]) -> i64 {
    let (mut value, mut shift) = (0u64, 0);
    while let Some((&b, rest)) = bytes.split_first() {
        *bytes = rest;
        // More bits than any line number has.
        if shift < 48 {
            value |= u64::from(b & 0x3f) << shift;
        }
        shift += 6;
        if b & 0x40 == 0 {
            break;
        }
    }
    let size = (value >> 1).cast_signed();
    if value & 1 == 0 {
        size
    } else {
        -size
    }
}

/// The characters of a str object. One that is half of a pair, or cut, becomes U+FFFD.
fn text(bytes: &[u8], kind: u8) -> String {
    let point = |c: u32| char::from_u32(c).unwrap_or(char::REPLACEMENT_CHARACTER);
    match kind & 0xf {
        1 => bytes.iter().map(|&b| char::from(b)).collect(),
        2 => (bytes.chunks_exact(2))
            .map(|c| point(u32::from(u16::from_le_bytes([c[0], c[1]]))))
            .collect(),
        4 => (bytes.chunks_exact(4))
            .map(|c| point(u32::from_le_bytes([c[0], c[1], c[2], c[3]])))
            .collect(),
        _ => String::new(),
    }
}

/// One frame of a merged stack, by its index among the native or the Python frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Native(usize),
    Python(usize),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Leaf first.
    pub frames: Vec<Place>,
    /// Each call of the interpreter's loop was found in both stacks. Otherwise one of them is cut
    /// and callers are missing, or Python frames are off by some native frames.
    pub exact: bool,
}

/// What is known of one of the two stacks.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a, T> {
    /// Leaf first.
    pub frames: &'a [T],
    /// They go to the root of the thread.
    pub whole: bool,
}

/// Puts Python frames in the place of the native frames of the calls of the interpreter's loop
/// that run them. `python` says of each frame whether it is the outermost one of its call.
///
/// Both stacks are matched from the leaf, except when both are whole and there are more native
/// calls: then the innermost calls have no Python frame yet, or no more, and stay native.
/// Without any call of the loop in the native stack, the Python frames are its callers.
pub fn merge(native: Side<'_, Part>, python: Side<'_, bool>) -> Merged {
    let calls = calls(native.frames);
    let mut runs = runs(python.frames);
    let count = (calls.len(), runs.len());
    let early = if native.whole && python.whole {
        count.0.saturating_sub(count.1)
    } else {
        0
    };
    let mut frames = Vec::with_capacity(native.frames.len() + python.frames.len());
    let mut at = 0;
    for (inner, outer) in calls.into_iter().skip(early) {
        let Some(run) = runs.next() else {
            break;
        };
        frames.extend((at..inner).map(Place::Native));
        frames.extend(run.map(Place::Python));
        at = outer + 1;
    }
    frames.extend((at..native.frames.len()).map(Place::Native));
    frames.extend(runs.flatten().map(Place::Python));
    Merged {
        frames,
        exact: count.0 == count.1 && python.whole,
    }
}

/// The calls of the interpreter's loop in a native stack, leaf first: the first and the last frame of each.
fn calls(native: &[Part]) -> Vec<(usize, usize)> {
    let mut calls: Vec<(usize, usize)> = Vec::new();
    for (i, &part) in native.iter().enumerate() {
        let taken = calls.last().map_or(0, |&(_, outer)| outer + 1);
        match part {
            Part::Other => {}
            Part::Loop => calls.push((i, i)),
            Part::Entry => match calls.last_mut() {
                // It was called from here.
                Some(last) if last.1 + 1 == i && native[last.1] == Part::Loop => last.1 = i,
                _ => calls.push((i.saturating_sub(1).max(taken), i)),
            },
        }
    }
    calls
}

/// The Python frames of each call, leaf first. The last may lack its outermost frames.
fn runs(python: &[bool]) -> std::vec::IntoIter<std::ops::Range<usize>> {
    let mut runs = Vec::new();
    let mut start = 0;
    for (i, &entry) in python.iter().enumerate() {
        if entry || i + 1 == python.len() {
            runs.push(start..i + 1);
            start = i + 1;
        }
    }
    runs.into_iter()
}

#[cfg(test)]
mod tests;

//! The records by which the kernel tells of mappings, programs and processes: their bytes.
#![forbid(unsafe_code)]

use crate::collect::elf::{u16_at, u32_at, u64_at, BuildId};
use crate::units::Nanos;

const HEADER: usize = 8;
/// Thread and time at the end of each record, since samples of TID and TIME were asked for.
const TRAILER: usize = 16;

const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const RECORD_MMAP2: u32 = 10;

const MISC_CPUMODE: u16 = 7;
const MISC_USER: u16 = 2;
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;

const PROT_EXEC: u32 = 4;

/// What happened to the memory of a process. Its pid is as gdiag sees it in /proc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEvent {
    /// CLOCK_MONOTONIC.
    pub ts: Nanos,
    pub proc_pid: u32,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Something executable was mapped, or what is mapped was made executable.
    Mmap(Mmap),
    /// The memory is another program's now.
    Exec,
    /// The process was born, with a copy of the memory of `parent`.
    Fork { parent: u32 },
    /// Its first thread ended. Others may go on.
    Exit,
}

/// A mapping, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mmap {
    pub start: u64,
    pub end: u64,
    /// Of `start`, in the file.
    pub offset: u64,
    pub file: FileHint,
    /// As the process sees it.
    pub path: Vec<u8>,
}

/// What is known about a mapped file before it is opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FileHint {
    BuildId(BuildId),
    /// As /proc/PID/maps counts, which is not as stat(2) counts on every file system.
    Inode {
        major: u32,
        minor: u32,
        inode: u64,
    },
}

/// What was in the rings besides events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that the kernel had no room for.
    pub lost: u64,
    /// Times that a ring was so full that the kernel may have had no room for the next record. It
    /// tells only when it writes again on that CPU, which may be much later.
    pub full: u64,
    /// Records that made no sense, and what came after them in the same reading.
    pub broken: u64,
}

/// Hands the events among `bytes` to `each`. `bytes` are whole records, as a ring had them.
pub fn parse(mut bytes: &[u8], counts: &mut Counts, mut each: impl FnMut(MapEvent)) {
    while !bytes.is_empty() {
        let size = usize::from(u16_at(bytes, 6));
        if size < HEADER || size > bytes.len() {
            counts.broken += 1;
            return;
        }
        let (record, rest) = bytes.split_at(size);
        bytes = rest;
        match event_of(record, counts) {
            Ok(Some(event)) => each(event),
            Ok(None) => {}
            Err(Broken) => counts.broken += 1,
        }
    }
}

/// The record is shorter than its kind is, or says what cannot be.
struct Broken;

/// `None` for what is no change of code.
fn event_of(record: &[u8], counts: &mut Counts) -> Result<Option<MapEvent>, Broken> {
    let misc = u16_at(record, 4);
    let kind = u32_at(record, 0);
    if kind == RECORD_LOST {
        let body = record.get(HEADER..HEADER + 16).ok_or(Broken)?;
        counts.lost += u64_at(body, 8);
        return Ok(None);
    }
    if !matches!(kind, RECORD_COMM | RECORD_EXIT | RECORD_FORK | RECORD_MMAP2) {
        return Ok(None);
    }
    let body_end = record.len().checked_sub(TRAILER).ok_or(Broken)?;
    let body = record.get(HEADER..body_end).ok_or(Broken)?;
    let ts = Nanos(u64_at(&record[body_end..], 8));
    if body.len() < 8 {
        return Err(Broken);
    }
    // Another PID namespace's processes have no pid here.
    let proc_pid = u32_at(body, 0);
    if proc_pid == 0 || i32::try_from(proc_pid).is_err() {
        return Ok(None);
    }
    let what = match kind {
        RECORD_COMM if misc & MISC_COMM_EXEC != 0 => What::Exec,
        RECORD_FORK | RECORD_EXIT => {
            let body = body.get(..16).ok_or(Broken)?;
            let (other, tid) = (u32_at(body, 4), u32_at(body, 8));
            // Of threads other than the first nothing is to be known.
            match kind {
                RECORD_FORK if other != proc_pid => What::Fork { parent: other },
                RECORD_EXIT if tid == proc_pid => What::Exit,
                _ => return Ok(None),
            }
        }
        RECORD_MMAP2 => match mmap(misc, body)? {
            Some(mmap) => What::Mmap(mmap),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Some(MapEvent { ts, proc_pid, what }))
}

fn mmap(misc: u16, body: &[u8]) -> Result<Option<Mmap>, Broken> {
    let path = body.get(64..).ok_or(Broken)?;
    let start = u64_at(body, 8);
    let end = start.checked_add(u64_at(body, 16)).ok_or(Broken)?;
    if misc & MISC_CPUMODE != MISC_USER || u32_at(body, 56) & PROT_EXEC == 0 || end == start {
        return Ok(None);
    }
    let file = if misc & MISC_MMAP_BUILD_ID != 0 {
        let id = body[36..56].get(..usize::from(body[32])).ok_or(Broken)?;
        FileHint::BuildId(BuildId::new(id))
    } else {
        FileHint::Inode {
            major: u32_at(body, 32),
            minor: u32_at(body, 36),
            inode: u64_at(body, 40),
        }
    };
    let length = path.iter().position(|&b| b == 0).ok_or(Broken)?;
    Ok(Some(Mmap {
        start,
        end,
        offset: u64_at(body, 24),
        file,
        path: path[..length].to_vec(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8], pid: u32, ts: u64) -> Vec<u8> {
        let size = HEADER + body.len() + TRAILER;
        let mut bytes = Vec::new();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(misc.to_le_bytes());
        bytes.extend(u16::try_from(size).unwrap().to_le_bytes());
        bytes.extend(body);
        bytes.extend(pid.to_le_bytes());
        bytes.extend(pid.to_le_bytes());
        bytes.extend(ts.to_le_bytes());
        bytes
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn mmap_body(pid: u32, union: &[u8; 24], prot: u32, path: &[u8]) -> Vec<u8> {
        let mut body = words(&[pid, pid]);
        for n in [0x1000u64, 0x2000, 0x3000] {
            body.extend(n.to_le_bytes());
        }
        body.extend(union);
        body.extend(words(&[prot, 2]));
        body.extend(path);
        body
    }

    fn all(bytes: &[u8]) -> (Vec<MapEvent>, Counts) {
        let mut counts = Counts::default();
        let mut events = Vec::new();
        parse(bytes, &mut counts, |e| events.push(e));
        (events, counts)
    }

    #[test]
    fn each_kind_of_record_is_read() {
        let mut by_inode = [0u8; 24];
        by_inode[0] = 8;
        by_inode[4] = 1;
        by_inode[8] = 99;
        let mut by_id = [0u8; 24];
        by_id[0] = 20;
        by_id[4..].fill(0xcd);
        let mut bytes = record(RECORD_FORK, 0, &words(&[7, 5, 7, 5, 0, 0]), 5, 100);
        bytes.extend(record(
            RECORD_COMM,
            MISC_COMM_EXEC,
            &words(&[7, 7, 0x6162, 0]),
            7,
            200,
        ));
        bytes.extend(record(
            RECORD_MMAP2,
            MISC_USER,
            &mmap_body(7, &by_inode, 5, b"/bin/a\0\0"),
            7,
            300,
        ));
        bytes.extend(record(
            RECORD_MMAP2,
            MISC_USER | MISC_MMAP_BUILD_ID,
            &mmap_body(7, &by_id, 5, b"/bin/b\0\0"),
            7,
            400,
        ));
        let mut lost = words(&[1, 0, 12, 0]);
        lost.resize(16, 0);
        bytes.extend(record(RECORD_LOST, 0, &lost, 0, 450));
        bytes.extend(record(RECORD_EXIT, 0, &words(&[7, 5, 7, 5, 0, 0]), 7, 500));
        let (events, counts) = all(&bytes);
        assert_eq!(
            counts,
            Counts {
                lost: 12,
                ..Counts::default()
            }
        );
        let map = |file, path: &[u8]| {
            What::Mmap(Mmap {
                start: 0x1000,
                end: 0x3000,
                offset: 0x3000,
                file,
                path: path.to_vec(),
            })
        };
        let inode = FileHint::Inode {
            major: 8,
            minor: 1,
            inode: 99,
        };
        let id = FileHint::BuildId(BuildId::new(&[0xcd; 20]));
        let expected = [
            (100, What::Fork { parent: 5 }),
            (200, What::Exec),
            (300, map(inode, b"/bin/a")),
            (400, map(id, b"/bin/b")),
            (500, What::Exit),
        ];
        let expected = expected.map(|(ts, what)| MapEvent {
            ts: Nanos(ts),
            proc_pid: 7,
            what,
        });
        assert_eq!(events, expected);
    }

    #[test]
    fn what_is_no_change_of_code_is_left_out() {
        let body = |prot| mmap_body(7, &[0; 24], prot, b"/x\0\0\0\0\0\0");
        let uninteresting = [
            record(RECORD_FORK, 0, &words(&[7, 7, 8, 7, 0, 0]), 7, 1), // a thread
            record(RECORD_EXIT, 0, &words(&[7, 7, 8, 7, 0, 0]), 8, 1), // a thread
            record(RECORD_COMM, 0, &words(&[7, 7, 0x6162, 0]), 7, 1),  // a new name
            record(RECORD_MMAP2, MISC_USER, &body(3), 7, 1),           // data
            record(RECORD_MMAP2, 1, &body(5), 7, 1),                   // the kernel's
            record(RECORD_EXIT, 0, &words(&[0, 0, 0, 0, 0, 0]), 0, 1), // of another namespace
            record(
                RECORD_EXIT,
                0,
                &words(&[u32::MAX, 0, u32::MAX, 0, 0, 0]),
                0,
                1,
            ),
            record(999, 0, &[], 7, 1),
        ];
        let (events, counts) = all(&uninteresting.concat());
        assert_eq!((events, counts), (vec![], Counts::default()));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut good = record(
            RECORD_MMAP2,
            MISC_USER | MISC_MMAP_BUILD_ID,
            &mmap_body(7, &[20; 24], 5, b"/bin/b\0\0"),
            7,
            400,
        );
        good.extend(record(RECORD_FORK, 0, &words(&[7, 5, 7, 5, 0, 0]), 5, 100));
        for cut in 0..good.len() {
            all(&good[..cut]);
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                all(&bad);
            }
        }
        let (events, counts) = all(&[0; 64]);
        assert_eq!(
            (events.len(), counts.broken),
            (0, 1),
            "a size of 0 ends the reading"
        );
    }
}

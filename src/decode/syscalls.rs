//! System calls as the BPF programs sent them.
#![forbid(unsafe_code)]

use std::mem::offset_of;

use crate::collect::syscalls::types;
use crate::collect::wire::{read, read_cut};
use crate::decode::sched::FileId;
use crate::event::{Pid, SysCall, Tid};
use crate::units::Nanos;

use types::gdiag_block_kind as block_kind;

/// Which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Number {
    Native(u16),
    /// Of a 32-bit program, whose numbers mean other calls.
    Compat(u16),
    /// One that no call has.
    None,
}

impl Number {
    /// As the BPF programs have it: `GDIAG_SYSCALL_COMPAT` is a bit of it.
    pub(crate) fn of_wire(nr: i16) -> Number {
        const COMPAT: u16 = 0x4000;
        match u16::try_from(nr) {
            Ok(nr) if nr & COMPAT != 0 => Number::Compat(nr & !COMPAT),
            Ok(nr) => Number::Native(nr),
            Err(_) => Number::None,
        }
    }
}

/// A system call that was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct RawCall {
    start_ns: u64,
    pub end: Nanos,
    ret: i64,
    pub tid: Tid,
    pub pid: Pid,
    nr: i16,
    open: bool,
    /// Of those that were asked for, what could be read.
    pub args: Option<Box<RawArgs>>,
}

impl RawCall {
    pub fn number(&self) -> Number {
        Number::of_wire(self.nr)
    }

    /// `None`: it began before its thread was watched.
    pub fn start(&self) -> Option<Nanos> {
        (self.start_ns != 0).then_some(Nanos(self.start_ns))
    }

    /// `None`: it has not returned; `end` is when that was looked at, or when its thread ended.
    pub fn result(&self) -> Option<i64> {
        (!self.open).then_some(self.ret)
    }

    /// It will not return: its thread ended in it.
    pub fn has_ended(&self) -> bool {
        const ENDED: i64 = 1;
        self.open && self.ret == ENDED
    }

    /// As an event, if it is a whole one of the machine's own.
    pub fn event(&self) -> Option<SysCall> {
        let Number::Native(number) = self.number() else {
            return None;
        };
        Some(SysCall {
            tid: self.tid,
            start: self.start()?,
            end: self.end,
            number,
            result: self.result()?,
        })
    }

    /// Of a record, with the time of its end. `None` when it is too short or too long.
    pub(super) fn of(bytes: &[u8], open: bool) -> Option<RawCall> {
        const HEAD: usize = offset_of!(types::gdiag_syscall, args);
        let head = bytes.get(..HEAD)?;
        let word = |at: usize| Some(u64::from_ne_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let quarter = |at: usize| Some(u16::from_ne_bytes(head.get(at..at + 2)?.try_into().ok()?));
        let args = match usize::from(quarter(offset_of!(types::gdiag_syscall, len))?) {
            0 => None,
            len if bytes.len() >= HEAD + len => Some(Box::new(RawArgs::of(bytes, HEAD + len)?)),
            _ => return None,
        };
        Some(RawCall {
            start_ns: word(offset_of!(types::gdiag_syscall, start_ns))?,
            end: Nanos(word(8)?),
            ret: word(offset_of!(types::gdiag_syscall, ret))?.cast_signed(),
            tid: Tid(half(4)?),
            pid: Pid(half(offset_of!(types::gdiag_syscall, pid))?),
            nr: quarter(offset_of!(types::gdiag_syscall, nr))?.cast_signed(),
            open,
            args,
        })
    }
}

/// The arguments of a call, and what they pointed to at its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawArgs {
    pub values: [u64; 6],
    blocks: Box<[u8]>,
}

/// Something that an argument stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block<'a> {
    /// What the number `fd` stood for.
    File {
        fd: i32,
        file: FileId,
        /// The last part of its path; it may be cut.
        name: &'a [u8],
    },
    Text {
        bytes: &'a [u8],
        /// It goes on.
        cut: bool,
    },
    Bytes(&'a [u8]),
}

impl RawArgs {
    pub fn new(values: [u64; 6], blocks: Vec<u8>) -> RawArgs {
        RawArgs {
            values,
            blocks: blocks.into(),
        }
    }

    fn of(bytes: &[u8], end: usize) -> Option<RawArgs> {
        let least = offset_of!(types::gdiag_syscall, blocks);
        let record = read_cut::<types::gdiag_syscall>(bytes.get(..end)?, least)?;
        Some(RawArgs {
            values: record.args,
            blocks: bytes.get(least..end)?.into(),
        })
    }

    /// Each with the number of its argument. What makes no sense ends them.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, Block<'_>)> {
        const HEAD: usize = size_of::<types::gdiag_block>();
        let mut rest: &[u8] = &self.blocks;
        std::iter::from_fn(move || {
            let head: types::gdiag_block = read(rest)?;
            let len = usize::from(head.len);
            let bytes = rest.get(HEAD..HEAD + len)?;
            rest = rest.get(HEAD + len.next_multiple_of(8)..).unwrap_or(&[]);
            let block = match block_kind(u32::from(head.kind)) {
                block_kind::GDIAG_BLOCK_FILE => {
                    let file: types::gdiag_file = read(bytes)?;
                    let name = bytes.get(offset_of!(types::gdiag_file, name)..)?;
                    Block::File {
                        fd: head.fd,
                        file: FileId {
                            inode: file.inode,
                            mode: file.mode,
                        },
                        name: until_nul(name).0,
                    }
                }
                block_kind::GDIAG_BLOCK_TEXT => {
                    let (bytes, ends) = until_nul(bytes);
                    Block::Text { bytes, cut: !ends }
                }
                block_kind::GDIAG_BLOCK_BYTES => Block::Bytes(bytes),
                _ => return None,
            };
            Some((usize::from(head.arg), block))
        })
    }

    /// What argument `arg` pointed to.
    pub fn text(&self, arg: usize) -> Option<(&[u8], bool)> {
        self.blocks().find_map(|(of, block)| match block {
            Block::Text { bytes, cut } if of == arg => Some((bytes, cut)),
            Block::Text { .. } | Block::Bytes(_) | Block::File { .. } => None,
        })
    }

    pub fn bytes(&self, arg: usize) -> Option<&[u8]> {
        self.blocks().find_map(|(of, block)| match block {
            Block::Bytes(bytes) if of == arg => Some(bytes),
            Block::Text { .. } | Block::Bytes(_) | Block::File { .. } => None,
        })
    }

    /// What the number `fd` in argument `arg` stood for, and the last part of its path.
    pub fn file(&self, arg: usize, fd: i32) -> Option<(FileId, &[u8])> {
        self.blocks().find_map(|(of, block)| match block {
            Block::File { fd: it, file, name } if of == arg && it == fd => Some((file, name)),
            Block::Text { .. } | Block::Bytes(_) | Block::File { .. } => None,
        })
    }
}

/// The bytes before a NUL, and whether there is one.
fn until_nul(bytes: &[u8]) -> (&[u8], bool) {
    match bytes.iter().position(|&b| b == 0) {
        Some(end) => (&bytes[..end], true),
        None => (bytes, false),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use types::gdiag_rec_type as rec;

    use super::*;

    /// As the BPF programs lay it out.
    pub(crate) fn block(kind: u8, arg: u8, fd: i32, bytes: &[u8]) -> Vec<u8> {
        let mut all = vec![kind, arg];
        all.extend(u16::try_from(bytes.len()).unwrap().to_ne_bytes());
        all.extend(fd.to_ne_bytes());
        all.extend(bytes);
        all.resize(all.len().next_multiple_of(8), 0);
        all
    }

    pub(crate) fn file_block(arg: u8, fd: i32, inode: u64, mode: u16, name: &str) -> Vec<u8> {
        let mut bytes = inode.to_ne_bytes().to_vec();
        bytes.extend(mode.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(name.as_bytes());
        bytes.resize(48, 0);
        block(1, arg, fd, &bytes)
    }

    fn record(nr: i16, start: u64, ret: i64, tail: &[u8]) -> Vec<u8> {
        let mut bytes = rec::GDIAG_REC_SYSCALL.0.to_ne_bytes().to_vec();
        bytes.extend(8u32.to_ne_bytes());
        bytes.extend([900, start].map(u64::to_ne_bytes).concat());
        bytes.extend(ret.to_ne_bytes());
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(nr.to_ne_bytes());
        bytes.extend(u16::try_from(tail.len()).unwrap().to_ne_bytes());
        bytes.extend(tail);
        bytes
    }

    /// A call of thread 8 of process 7.
    pub(crate) fn call(
        nr: i64,
        (start, end): (u64, u64),
        ret: i64,
        values: [u64; 6],
        blocks: &[Vec<u8>],
    ) -> RawCall {
        let tail = [values.map(u64::to_ne_bytes).concat(), blocks.concat()].concat();
        let bytes = record(i16::try_from(nr).unwrap(), start, ret, &tail);
        let mut call = RawCall::of(&bytes, false).unwrap();
        call.end = Nanos(end);
        call
    }

    #[test]
    fn a_bare_call_is_an_event() {
        let call = RawCall::of(&record(39, 100, -2, &[]), false).unwrap();
        assert_eq!(
            call.event(),
            Some(SysCall {
                tid: Tid(8),
                start: Nanos(100),
                end: Nanos(900),
                number: 39,
                result: -2,
            })
        );
        assert_eq!((call.pid, call.args.is_none()), (Pid(7), true));
    }

    #[test]
    fn what_has_no_begin_no_end_or_no_number_is_none() {
        let of = |nr, start, open| RawCall::of(&record(nr, start, 0, &[]), open).unwrap();
        for call in [of(1, 0, false), of(1, 5, true), of(-1, 5, false)] {
            assert_eq!(call.event(), None, "{call:?}");
        }
        assert_eq!(of(0x4005, 5, false).number(), Number::Compat(5));
        assert_eq!(of(0x4005, 5, false).event(), None);
        assert_eq!(of(1, 0, false).start(), None);
        assert_eq!(of(1, 5, true).result(), None);
        assert!(!of(1, 5, true).has_ended());
        let last = RawCall::of(&record(231, 5, 1, &[]), true).unwrap();
        assert_eq!((last.result(), last.has_ended()), (None, true));
    }

    #[test]
    fn blocks_say_what_the_arguments_were() {
        let values = [3u64, 0xffff, 5, 0, 0, 6].map(u64::to_ne_bytes).concat();
        let blocks = [
            file_block(0, 3, 77, 0o100_644, "data"),
            block(2, 1, 0, b"/tmp/a\0"),
            block(2, 2, 0, b"cut"),
            block(3, 3, 0, &[1, 2]),
        ];
        let tail = [values, blocks.concat()].concat();
        let call = RawCall::of(&record(1, 5, 0, &tail), false).unwrap();
        let args = call.args.unwrap();
        assert_eq!(args.values, [3, 0xffff, 5, 0, 0, 6]);
        let file = FileId {
            inode: 77,
            mode: 0o100_644,
        };
        assert_eq!(args.file(0, 3), Some((file, b"data".as_slice())));
        assert_eq!(args.file(0, 4), None);
        assert_eq!(args.text(1), Some((b"/tmp/a".as_slice(), false)));
        assert_eq!(args.text(2), Some((b"cut".as_slice(), true)));
        assert_eq!(args.bytes(3), Some([1, 2].as_slice()));
    }

    #[test]
    fn a_record_that_says_more_than_it_has_is_none() {
        let mut bytes = record(1, 5, 0, &[0; 48]);
        assert!(RawCall::of(&bytes, false).is_some());
        bytes.pop();
        assert!(RawCall::of(&bytes, false).is_none());
        assert!(RawCall::of(&bytes[..39], false).is_none());
        assert!(RawCall::of(&record(1, 5, 0, &[0; 47]), false).is_none());
    }

    proptest! {
        /// Check that no bytes are more than there is.
        #[test]
        fn any_blocks_end(bytes in proptest::collection::vec(any::<u8>(), 0..1000)) {
            let args = RawArgs::new([0; 6], bytes);
            prop_assert!(args.blocks().count() <= 125);
        }
    }
}

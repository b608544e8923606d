//! The ring: how records cross from the shim to gdiag without a lock or a system call.
//!
//! One producer, the shim's own thread, and one consumer, gdiag, share a power of two
//! of bytes. [`Control::head`] counts the bytes ever written and [`Control::tail`] the
//! bytes ever read; both are multiples of 8 and `head - tail` bytes are unread. A record
//! never crosses the end of the ring: a [`kind::PAD`] record fills what is left there.
//!
//! The two sides trust each other differently. The producer believes nothing that could
//! lead it out of the ring or make it overwrite unread data, and drops a record that does
//! not fit. The consumer treats all of the memory as hostile and changing while it looks:
//! it reads every word once, into memory of its own, and only judges that.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use zerocopy::IntoBytes;

use crate::{kind, Control, RecordHeader, MAGIC, RING_OFFSET, VERSION};

/// Longest record in bytes: the largest multiple of 8 that a header can name.
pub const MAX_RECORD: usize = 0xFFF8;

/// Smallest ring; [`MAX_RECORD`] does not fit into it, but every fixed-size record does.
pub const MIN_RING_BYTES: u64 = 4096;

/// Bytes that the consumer reads before it gives the space back in the middle of a drain.
const RELEASE_EVERY: u64 = 256 << 10;

/// The memory is not a shared memory that this version can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The mapping has only this many bytes, or is not aligned to a page's start.
    Mapping { len: usize },
    /// Not made by a shim, or by one that died before it was done.
    Magic { found: u64 },
    /// Made by a shim of another version of gdiag.
    Version { found: u32 },
    /// The control block cannot be this large or small.
    Size { found: u32 },
    /// The ring does not lie inside the mapping, or is no power of two.
    Ring { offset: u64, bytes: u64 },
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invalid::Mapping { len } => {
                write!(f, "shared memory of {len} bytes cannot hold a ring")
            }
            Invalid::Magic { found } => write!(
                f,
                "shared memory starts with {found:#x}, not with the shim's mark"
            ),
            Invalid::Version { found } => {
                write!(f, "shim writes version {found} of the shared memory, this gdiag reads version {VERSION}")
            }
            Invalid::Size { found } => {
                write!(f, "shared memory claims a control block of {found} bytes")
            }
            Invalid::Ring { offset, bytes } => {
                write!(f, "shared memory claims a ring of {bytes} bytes at offset {offset}, outside of itself")
            }
        }
    }
}

impl core::error::Error for Invalid {}

/// What was found in the ring cannot have been written by a working shim.
/// `at` is the position in bytes since the ring began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corrupt {
    /// `head` is not a multiple of 8, behind `tail`, or further ahead than the ring is long.
    Head {
        head: u64,
        tail: u64,
        ring_bytes: u64,
    },
    /// A record's size is not a multiple of 8 of at least 8 bytes.
    Size { at: u64, size: u16 },
    /// A record ends beyond what was written.
    Unwritten { at: u64, size: u16, available: u64 },
    /// A record crosses the end of the ring.
    Crosses { at: u64, size: u16 },
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Corrupt::Head {
                head,
                tail,
                ring_bytes,
            } => {
                write!(f, "ring of {ring_bytes} bytes claims to be written up to {head} and read up to {tail}")
            }
            Corrupt::Size { at, size } => write!(f, "record at {at} claims {size} bytes"),
            Corrupt::Unwritten {
                at,
                size,
                available,
            } => {
                write!(
                    f,
                    "record at {at} claims {size} bytes, but only {available} were written"
                )
            }
            Corrupt::Crosses { at, size } => write!(
                f,
                "record at {at} of {size} bytes crosses the end of the ring"
            ),
        }
    }
}

impl core::error::Error for Corrupt {}

/// Where the control block and the ring are, checked once.
#[derive(Clone, Copy, Debug)]
struct Memory {
    control: NonNull<Control>,
    data: NonNull<u8>,
    /// Power of two. Our own copy: the one in the memory may change.
    ring_bytes: u64,
}

impl Memory {
    /// # Safety
    ///
    /// `base` must point to `len` bytes that stay mapped, readable and writable as long as
    /// the result is used. Other processes may write there at any time.
    unsafe fn open(base: NonNull<u8>, len: usize) -> Result<Memory, Invalid> {
        if len < RING_OFFSET as usize || base.as_ptr().align_offset(align_of::<Control>()) != 0 {
            return Err(Invalid::Mapping { len });
        }
        let control = base.cast::<Control>();
        // SAFETY: the mapping holds a whole control block (checked above), aligned, for as
        // long as the caller promises. All its fields are atomics, so others may write.
        let c = unsafe { control.as_ref() };
        let magic = c.magic.load(Ordering::Acquire);
        if magic != MAGIC {
            return Err(Invalid::Magic { found: magic });
        }
        let version = c.version.load(Ordering::Relaxed);
        if version != VERSION {
            return Err(Invalid::Version { found: version });
        }
        let size = c.size.load(Ordering::Relaxed);
        if (size as usize) < size_of::<Control>() || u64::from(size) > RING_OFFSET {
            return Err(Invalid::Size { found: size });
        }
        let offset = c.ring_offset.load(Ordering::Relaxed);
        let bytes = c.ring_bytes.load(Ordering::Relaxed);
        let fits = offset == RING_OFFSET
            && bytes.is_power_of_two()
            && bytes >= MIN_RING_BYTES
            && bytes <= len as u64 - RING_OFFSET;
        if !fits {
            return Err(Invalid::Ring { offset, bytes });
        }
        // SAFETY: `offset + bytes` was just checked to lie inside the mapping.
        let data = unsafe { base.add(offset as usize) };
        Ok(Memory {
            control,
            data,
            ring_bytes: bytes,
        })
    }

    fn control(&self) -> &Control {
        // SAFETY: `open` checked size and alignment, and its caller promised the lifetime.
        unsafe { self.control.as_ref() }
    }

    /// Place of position `at` in the ring.
    fn place(&self, at: u64) -> usize {
        (at & (self.ring_bytes - 1)) as usize
    }

    /// The word at position `at`, which must be a multiple of 8. It may change right after.
    fn word(&self, at: u64) -> u64 {
        debug_assert!(at.is_multiple_of(8));
        // SAFETY: the place is below `ring_bytes`, a multiple of 8 away from data that is
        // aligned like the page it starts; so all 8 bytes are inside the mapping. Atomic,
        // because the other process may write at the same time.
        let word =
            unsafe { AtomicU64::from_ptr(self.data.add(self.place(at)).cast::<u64>().as_ptr()) };
        word.load(Ordering::Relaxed)
    }
}

/// Writes the fields that [`Producer`] and [`Consumer`] need into fresh memory and then the
/// magic number, which says that it is ready. `ring_bytes` must be a power of two; the rest of
/// the control block keeps what it has.
///
/// # Safety
///
/// As for [`Producer::new`].
pub unsafe fn format(base: NonNull<u8>, len: usize, ring_bytes: u64) -> Result<(), Invalid> {
    if len < RING_OFFSET as usize || base.as_ptr().align_offset(align_of::<Control>()) != 0 {
        return Err(Invalid::Mapping { len });
    }
    // SAFETY: large enough and aligned, checked above; mapped as the caller promises.
    let c = unsafe { base.cast::<Control>().as_ref() };
    c.version.store(VERSION, Ordering::Relaxed);
    c.size.store(size_of::<Control>() as u32, Ordering::Relaxed);
    c.ring_offset.store(RING_OFFSET, Ordering::Relaxed);
    c.ring_bytes.store(ring_bytes, Ordering::Relaxed);
    c.magic.store(MAGIC, Ordering::Release);
    // SAFETY: as promised to us.
    unsafe { Memory::open(base, len) }.map(drop)
}

/// The writing side. There must be one in all, used by one thread at a time.
#[derive(Debug)]
pub struct Producer {
    memory: Memory,
    head: u64,
    /// `tail` as last seen: it only grows, so this can only make us too careful.
    tail: u64,
}

// SAFETY: the memory is not tied to a thread, and `&mut self` keeps users apart.
unsafe impl Send for Producer {}

impl Producer {
    /// # Safety
    ///
    /// `base` must point to `len` bytes that stay mapped, readable and writable as long as the
    /// producer is used, and no other producer may exist for them.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Result<Producer, Invalid> {
        // SAFETY: as promised to us.
        let memory = unsafe { Memory::open(base, len) }?;
        let head = memory.control().head.load(Ordering::Relaxed);
        let tail = memory.control().tail.load(Ordering::Acquire);
        Ok(Producer { memory, head, tail })
    }

    pub fn control(&self) -> &Control {
        self.memory.control()
    }

    /// Writes one whole record, header included. `false`: it did not fit, or is no record;
    /// nothing was written then, and the caller counts it.
    pub fn push(&mut self, record: &[u8]) -> bool {
        let len = record.len();
        let size = record.first_chunk().map(|b| u16::from_ne_bytes(*b));
        if size != u16::try_from(len).ok()
            || len < size_of::<RecordHeader>()
            || !len.is_multiple_of(8)
        {
            return false;
        }
        let place = self.memory.place(self.head);
        let to_end = self.memory.ring_bytes as usize - place;
        let pad = if len > to_end { to_end } else { 0 };
        if !self.has_room((pad + len) as u64) {
            return false;
        }
        if pad > 0 {
            // `pad` is less than `len`, so it fits the header.
            let header = RecordHeader {
                size: pad as u16,
                kind: kind::PAD,
                aux: 0,
            };
            // SAFETY: from `place` on there are `pad` bytes up to the end of the ring, at
            // least 8 because all positions are multiples of 8, and none is unread.
            unsafe { self.copy(header.as_bytes(), place) };
        }
        let start = if pad > 0 { 0 } else { place };
        // SAFETY: `start + len` is within the ring (that is what the padding is for), and
        // `has_room` saw that the consumer is done with these bytes.
        unsafe { self.copy(record, start) };
        self.head = self.head.wrapping_add((pad + len) as u64);
        self.memory
            .control()
            .head
            .store(self.head, Ordering::Release);
        true
    }

    /// # Safety
    ///
    /// `bytes` must fit between `place` and the end of the ring, into space that holds no
    /// unread data.
    unsafe fn copy(&mut self, bytes: &[u8], place: usize) {
        // SAFETY: the target is inside the mapping as the caller says, and cannot overlap
        // with a slice of this process's own memory.
        unsafe {
            core::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.memory.data.as_ptr().add(place),
                bytes.len(),
            );
        };
    }

    fn has_room(&mut self, need: u64) -> bool {
        if need <= self.free(self.tail) {
            return true;
        }
        // Acquire: what the consumer read stays read before we write over it.
        self.tail = self.memory.control().tail.load(Ordering::Acquire);
        need <= self.free(self.tail)
    }

    /// A `tail` that cannot be counts as a full ring.
    fn free(&self, tail: u64) -> u64 {
        self.memory
            .ring_bytes
            .saturating_sub(self.head.wrapping_sub(tail))
    }

    /// Bytes that are not read yet.
    pub fn unread(&self) -> u64 {
        self.head
            .wrapping_sub(self.memory.control().tail.load(Ordering::Relaxed))
            .min(self.memory.ring_bytes)
    }

    /// Pages of the ring that hold nothing unread, as up to two ranges: their memory can be given
    /// back, because the consumer looks nowhere else, and the next to be written finds zeroes there.
    pub fn spare_pages(&self, page_bytes: u64) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        // Acquire: the consumer is done with what it says that it has read.
        let tail = self.memory.control().tail.load(Ordering::Acquire);
        spare_pages(self.head, tail, self.memory.ring_bytes, page_bytes)
            .into_iter()
            .filter(|(_, bytes)| *bytes > 0)
            // SAFETY: a range that is not empty lies inside the ring.
            .map(|(place, bytes)| (unsafe { self.memory.data.add(place) }, bytes))
    }
}

/// Place and length of the pages that hold nothing between `tail` and `head`, as one range up to the
/// end of the ring and one from its start. None where a page can also hold a part of the control block.
fn spare_pages(head: u64, tail: u64, ring_bytes: u64, page_bytes: u64) -> [(usize, usize); 2] {
    const NONE: (usize, usize) = (0, 0);
    let unread = head.wrapping_sub(tail);
    let whole_pages = page_bytes.is_power_of_two() && RING_OFFSET.is_multiple_of(page_bytes);
    if !whole_pages || unread > ring_bytes {
        return [NONE; 2];
    }
    if unread == 0 {
        return [(0, ring_bytes as usize), NONE];
    }
    // From the first page behind what is unread to the last before it, one turn of the ring later.
    let place = head & (ring_bytes - 1);
    let start = place.next_multiple_of(page_bytes);
    let end = (place + ring_bytes - unread) & !(page_bytes - 1);
    let to_end = end.min(ring_bytes).saturating_sub(start);
    let from_start = end.saturating_sub(ring_bytes);
    [(start as usize, to_end as usize), (0, from_start as usize)]
}

/// Private memory for one record. One serves any number of consumers.
#[derive(Clone, Debug)]
pub struct Scratch([u64; MAX_RECORD / 8]);

impl Default for Scratch {
    fn default() -> Self {
        Scratch([0; MAX_RECORD / 8])
    }
}

/// The reading side. There must be one in all, used by one thread at a time.
#[derive(Debug)]
pub struct Consumer {
    memory: Memory,
    tail: u64,
    broken: Option<Corrupt>,
}

// SAFETY: the memory is not tied to a thread, and `&mut self` keeps users apart.
unsafe impl Send for Consumer {}

impl Consumer {
    /// Goes on where the last consumer stopped.
    ///
    /// # Safety
    ///
    /// `base` must point to `len` bytes that stay mapped, readable and writable as long as the
    /// consumer is used; for a file, it must be sealed against shrinking. What is in there,
    /// and who else writes to it, does not matter.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Result<Consumer, Invalid> {
        // SAFETY: as promised to us.
        let memory = unsafe { Memory::open(base, len) }?;
        let tail = memory.control().tail.load(Ordering::Relaxed);
        Ok(Consumer {
            memory,
            tail,
            broken: None,
        })
    }

    /// Everything in there is what the target claims.
    pub fn control(&self) -> &Control {
        self.memory.control()
    }

    /// Bytes that wait to be read.
    pub fn unread(&self) -> u64 {
        self.memory
            .control()
            .head
            .load(Ordering::Relaxed)
            .wrapping_sub(self.tail)
    }

    /// Reads what was there when the call began and hands each record, header included, to `each` with its kind.
    /// The kind may be one that this version does not know, and the length need not fit the
    /// kind. Returns how many records that were.
    ///
    /// After an error the ring cannot be read any further: every later call gives the same error.
    pub fn drain(
        &mut self,
        scratch: &mut Scratch,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<u64, Corrupt> {
        if let Some(corrupt) = self.broken {
            return Err(corrupt);
        }
        // Acquire: the records were written before `head` was.
        let head = self.memory.control().head.load(Ordering::Acquire);
        let mut records = 0;
        let result = self.read_to(head, scratch, |kind, record| {
            records += 1;
            each(kind, record);
        });
        self.release();
        match result {
            Ok(()) => Ok(records),
            Err(corrupt) => {
                self.broken = Some(corrupt);
                Err(corrupt)
            }
        }
    }

    fn read_to(
        &mut self,
        head: u64,
        scratch: &mut Scratch,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<(), Corrupt> {
        let ring_bytes = self.memory.ring_bytes;
        if head.wrapping_sub(self.tail) > ring_bytes
            || !head.is_multiple_of(8)
            || !self.tail.is_multiple_of(8)
        {
            return Err(Corrupt::Head {
                head,
                tail: self.tail,
                ring_bytes,
            });
        }
        let mut released = self.tail;
        while self.tail != head {
            let at = self.tail;
            let header = self.memory.word(at);
            let RecordHeader { size, kind, aux: _ } = zerocopy::transmute!(header);
            let len = u64::from(size);
            if len < 8 || !len.is_multiple_of(8) {
                return Err(Corrupt::Size { at, size });
            }
            let available = head.wrapping_sub(at);
            if len > available {
                return Err(Corrupt::Unwritten {
                    at,
                    size,
                    available,
                });
            }
            if len > ring_bytes - self.memory.place(at) as u64 {
                return Err(Corrupt::Crosses { at, size });
            }
            if kind != kind::PAD {
                let words = &mut scratch.0[..size as usize / 8];
                // The header as it was judged, whatever stands there by now.
                words[0] = header;
                for (i, word) in words.iter_mut().enumerate().skip(1) {
                    *word = self.memory.word(at.wrapping_add(8 * i as u64));
                }
                each(kind, words.as_bytes());
            }
            self.tail = at.wrapping_add(len);
            if self.tail.wrapping_sub(released) >= RELEASE_EVERY {
                self.release();
                released = self.tail;
            }
        }
        Ok(())
    }

    fn release(&self) {
        // Release: the copies were made before the producer may write there again.
        self.memory
            .control()
            .tail
            .store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;

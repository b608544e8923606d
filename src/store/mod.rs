//! The recording on disk: one file that a recorder appends to and any machine can read.
//!
//! ```text
//! header    magic, major.minor, "unfinished" mark, checksum
//! chunk     Meta      JSON: host, command, options
//! chunk     Events ┐
//! chunk     Events │  up to 256 KiB of records each, zstd
//! …         Events ┘
//! chunk     Summary   JSON: end, losses, counts            ┐
//! chunk     Index     offset, kind and times of each chunk │ written by finishing,
//! trailer   where Summary and Index are                    ┘ which then clears the mark
//! ```
//!
//! **Chunks.** Each has a header (kind, codec, lengths, number of records, least and greatest
//! time) with a checksum of its own, and a checksum of its contents. It can be decoded by
//! itself, apart from the names and stacks that earlier chunks define. A file that was cut
//! loses the chunk it was cut in; a damaged chunk is skipped, and the next one is found by its
//! magic. A recorder that is killed loses what it had not flushed, no more.
//!
//! **Records.** One event each, of a few bytes: times are differences from the record before,
//! a thread is a byte while it is among the last few hundred, and what the records before
//! imply (a switch takes from the CPU the thread that the last switch put there) is left out.
//! [`Summary::switch_bytes`](meta::Summary::switch_bytes) says how many bytes switches took.
//!
//! **Order** is that of arrival, and the reader keeps it. Definitions come before their first
//! use, but for the functions at a frame, which may come any number of chunks later. Host events are almost in order of time; those of the device arrive in batches, later
//! than host events of the same moment. Whoever needs strict order must sort; the times in the
//! chunk headers tell which chunks can hold an event of some moment.
//!
//! **Versions.** A new minor version adds chunk kinds, record kinds, values, or fields at the
//! end of a record: older readers skip what they do not know and say so. A new major version
//! changes anything else, and older readers refuse. Numbers in `format.rs` are never reused.
//! 1.1 added samples, the frames and stacks they are made of, and the functions at a frame.
//! 1.2 added long waits for a CPU, endpoints, migrations of managed memory, threads that are followed, and
//! whether a sampled thread collects garbage.
//! 1.3 added calls that probes on the driver measured, and since when there are probes.
//! 1.4 added system calls.
//! 1.5 added what a damaged recording had lost, to copies of a part of it.
#![forbid(unsafe_code)]

mod carry;
mod chunks;
mod coverage;
mod decode;
mod encode;
mod error;
mod flight;
mod format;
pub mod meta;
mod pack;
mod reader;
mod state;
mod trim;
mod varint;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use carry::{Before, Used};
pub use coverage::{Coverage, Damage, End};
pub use error::StoreError;
pub use flight::{Fill, Held, Memory};
pub use reader::Reader;
pub use trim::trim;
pub use writer::{create_file, Stats, Writer};

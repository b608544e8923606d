//! How to get from a frame to its caller, for code that keeps no frame pointers.
//!
//! Compilers say it in `.eh_frame`: a small program for each function, made for debuggers with
//! all the time of the world. A BPF program has little of that, so this module runs those programs
//! ahead of time and keeps what matters to a walk: rows of (address, rule), by pages of code. The
//! layout of the result is that of `bpf/unwind.h`.
//!
//! ```text
//! bytes of an ELF file ──elf──► .eh_frame ──cfi──► ranges with a rule ──table──► pages of rows
//!                                                   │
//!                                                   └──rule──► numbers, the same in all files
//! ```
//!
//! [`walk`] is the walk itself as the BPF program does it: what the tests of the tables run on, and
//! the place where its meaning is written down.
//!
//! Nothing here reads or writes anything: callers bring the bytes. They are those of any program
//! that happens to run on the machine, so no file may make this module panic, run for long or
//! take memory out of proportion to its size:
//!
//! - time: each entry of `.eh_frame` is run once, and starts from a common entry of limited length;
//! - memory: 16 bytes for each function (which took at least 16 bytes of the file), 4 for each
//!   row (2 of the file), and some 30 for each 64 KiB of code, of which there cannot be more than
//!   the file is long; a file with more than 256 MiB of `.eh_frame` or 4 GiB of code is refused;
//!   new rules are limited to [`rule::MAX_NEW_RULES`] for each file.

pub mod abi;
mod cfi;
mod elf;
pub mod rule;
pub mod table;
pub mod vdso;
pub mod walk;

// They assemble, and walk their own stacks.
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;

pub use elf::MAX_EH_FRAME;
pub use rule::{Caller, Cfa, Fp, Rule, Rules};
pub use table::{Page, Table};

/// Why there is no table of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("not an ELF file")]
    NotElf,
    /// The number is `e_machine`'s, 183 for aarch64. Programs of 32 bits are among these too.
    #[error("not for x86-64 (machine {0})")]
    Machine(u16),
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// An object file, or debug information that was split off.
    #[error("no code to be loaded")]
    NoCode,
    /// Its code is above what a process can have.
    #[error("addresses beyond 48 bits")]
    AddressTooHigh,
    /// More code, or more unwind information, than a program can have: files can be large without
    /// taking room on a disk.
    #[error("too large")]
    TooLarge,
    #[error("no .eh_frame")]
    NoUnwindInfo,
}

//! gdiag: why is this GPU idle, and who is to blame?
//!
//! ```text
//!  bpf/ ──────┐
//!  cupti-shim ┼─► collect ─► decode ─► store ─► model ─► analyse ─► present
//!  /proc ─────┘      ▲           ▲
//!                 unwind    symbolize
//! ```
//!
//! Data moves left to right. A module may use the modules to its left, plus
//! [`event`], [`facts`], [`units`], [`fxhash`], [`histogram`], [`error`], [`intern`] and [`demangle`]. The one type that flows is [`event::Event`].
//!
//! A live view goes the same way, in slices: [`analyse::live`] makes a small timeline of the last moments again and again,
//! and adds the results up to a window, which is a report.
//!
//! [`checkup`] decides what `gdiag check` says, from facts that [`collect::machine`] reads: recordings have no part in it.
//!
//! [`pipeline`] runs the left half, up to the events: it reads the sources, has them decoded, and
//! gives numbers their names while the machine still knows them, those of functions by
//! [`symbolize`]. [`unwind`] stands apart: it makes the tables by which the BPF programs walk user
//! stacks, from the bytes of a program and its libraries. [`commands`] wires all the steps; [`cli`] only says what was asked.

pub mod analyse;
pub mod checkup;
pub mod cli;
pub mod collect;
pub mod commands;
pub mod decode;
pub mod demangle;
pub mod error;
pub mod event;
pub mod facts;
pub mod fxhash;
pub mod histogram;
pub mod intern;
pub mod model;
pub mod pipeline;
pub mod present;
pub mod store;
pub mod symbolize;
pub mod units;
pub mod unwind;

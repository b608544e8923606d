//! gdiag: why is this GPU idle, and who is to blame?
//!
//! ```text
//!  bpf/ ──────┐
//!  cupti-shim ┼─► collect ─► decode ─► store ─► model ─► analyse ─► present
//!  /proc ─────┘
//!  commands/ wires the steps; cli.rs only says what was asked
//! ```
//!
//! Data moves left to right. A module may use the modules to its left, plus
//! [`event`], [`units`] and [`error`]. The one type that flows is [`event::Event`].

pub mod analyse;
pub mod cli;
pub mod collect;
pub mod commands;
pub mod decode;
pub mod error;
pub mod event;
pub mod intern;
pub mod model;
pub mod pipeline;
pub mod present;
pub mod store;
pub mod symbolize;
pub mod units;

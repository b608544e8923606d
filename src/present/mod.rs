//! Results for people and for programs: layout only, no decisions.
//!
//! Names come from the traced programs and may hold anything. On the way to a terminal they
//! all pass [`page`], which makes them harmless; JSON is written by a serializer only.
#![forbid(unsafe_code)]

pub mod asserts;
pub mod check;
pub mod diff;
pub mod export;
mod facts;
pub mod flame;
pub mod json;
pub mod page;
pub mod report;
pub mod sched;
pub mod style;
pub mod syscalls;
pub mod table;
pub mod text;
pub mod top;

pub use crate::demangle as names;

#[cfg(test)]
mod sample;

//! Checks the simulated GPU from outside: every test loads both libraries as a program
//! and the shim would, and judges what the records say. A simulator that lies would make
//! every other test worthless.
//!
//! The libraries read the environment once, so every case runs in a process of its own.

// clippy.toml allows it in tests only inside #[test] functions; all of this is one.
#![allow(clippy::unwrap_used)]

mod cupti;
mod driver;
#[allow(dead_code)] // the tests need a part of it
#[path = "../../src/leads.rs"]
mod leads;
mod process;

mod buffers;
mod initialisation;
mod load;
mod timeline;

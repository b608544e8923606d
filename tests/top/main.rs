//! `gdiag top` on a terminal, as a person has it: in tmux, with keys, sizes and signals. Needs root and tmux.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

mod leaving;
mod screens;
mod support;
mod terminals;
mod windows;

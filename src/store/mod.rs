//! The recording on disk.
#![forbid(unsafe_code)]

pub mod meta;

//! The arguments of a call in words, as strace writes them.
#![forbid(unsafe_code)]

use crate::decode::syscalls::Number;
use crate::pipeline::syscalls::Args;

/// One text for each argument.
pub fn texts(_name: &str, number: Number, args: &Args) -> Vec<String> {
    let Some(raw) = &args.raw else {
        return Vec::new();
    };
    let _ = number;
    raw.values
        .iter()
        .map(|value| format!("{value:#x}"))
        .collect()
}

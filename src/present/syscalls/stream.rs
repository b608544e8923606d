//! A line for each call, as perf trace and strace have it.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use super::{args, errno, is_restart};
use crate::model::syscall::Table;
use crate::pipeline::syscalls::Call;
use crate::present::text;
use crate::units::Nanos;

/// What the time of a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Milliseconds since then.
    Since(Nanos),
    /// CLOCK_MONOTONIC, in seconds.
    Monotonic,
}

#[derive(Clone, Copy, Debug)]
pub struct Lines {
    pub times: Times,
    /// When watching began: what is older is at least as old as that.
    pub start: Nanos,
    pub table: Table,
}

impl Lines {
    /// `   12.345 ( 0.017 ms): cat/4711 openat(AT_FDCWD, "/etc/passwd", O_RDONLY) = 3`
    pub fn write(&self, out: &mut impl Write, call: &Call) -> io::Result<()> {
        let begun = call.start.unwrap_or(self.start);
        match self.times {
            Times::Since(start) => write!(out, "{:>10}", millis(begun.saturating_sub(start)))?,
            Times::Monotonic => write!(
                out,
                "{:>7}.{:09}",
                begun.0 / 1_000_000_000,
                begun.0 % 1_000_000_000
            )?,
        }
        let took = millis(call.end.saturating_sub(begun));
        match call.start {
            Some(_) => write!(out, " ({took:>9} ms): ")?,
            // It began before: it took longer than that.
            None => write!(out, " ({:>9} ms): ", format!(">{took}"))?,
        }
        let name = self.table.text(call.number);
        write!(out, "{}/{} {name}(", text::clean(&call.comm), call.tid)?;
        if let Some(args) = &call.args {
            for (i, arg) in args::texts(&name, call.number, args).iter().enumerate() {
                let comma = if i > 0 { ", " } else { "" };
                write!(out, "{comma}{arg}")?;
            }
        }
        writeln!(out, ") = {}", result(&name, call.result))
    }
}

/// As a program that made the call sees it, with the name of the error.
fn result(name: &str, result: Option<i64>) -> String {
    let Some(result) = result else {
        return "?".to_string();
    };
    match u16::try_from(result.wrapping_neg()) {
        Ok(number @ 1..=4095) => {
            let (name, meaning) = errno(number);
            let shown = if is_restart(number) { "?" } else { "-1" };
            format!("{shown} {name} ({meaning})")
        }
        _ if returns_address(name) => format!("{:#x}", result.cast_unsigned()),
        _ => result.to_string(),
    }
}

fn returns_address(name: &str) -> bool {
    matches!(name, "mmap" | "mremap" | "brk" | "shmat")
}

/// With the digits of a microsecond.
fn millis(time: Nanos) -> String {
    let us = (time.0 + 500) / 1_000;
    format!("{}.{:03}", us / 1_000, us % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::syscalls::Number;
    use crate::event::{Pid, Tid};

    fn line(call: &Call, times: Times) -> String {
        let lines = Lines {
            times,
            start: Nanos(1_000_000),
            table: Table::of_machine("x86_64"),
        };
        let mut out = Vec::new();
        lines.write(&mut out, call).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn call(number: Number, result: Option<i64>) -> Call {
        Call {
            pid: Pid(7),
            tid: Tid(8),
            comm: "cat".into(),
            number,
            start: Some(Nanos(3_500_000)),
            end: Nanos(3_517_400),
            result,
            goes_on: false,
            args: None,
        }
    }

    #[test]
    fn a_call_is_one_line() {
        let since = Times::Since(Nanos(1_000_000));
        assert_eq!(
            line(&call(Number::Native(39), Some(7)), since),
            "     2.500 (    0.017 ms): cat/8 getpid() = 7\n"
        );
        assert_eq!(
            line(&call(Number::Native(257), Some(-2)), Times::Monotonic),
            "      0.003500000 (    0.017 ms): cat/8 openat() = -1 ENOENT (No such file or directory)\n"
        );
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        let since = Times::Since(Nanos(1_000_000));
        let before = Call {
            start: None,
            ..call(Number::Native(35), Some(0))
        };
        assert!(line(&before, since).contains("(   >2.517 ms): cat/8 nanosleep() = 0"));
        assert!(line(&call(Number::Native(231), None), since).contains("exit_group() = ?"));
        assert!(line(&call(Number::None, Some(-38)), since).contains("syscall_?() = -1 ENOSYS"));
        assert!(
            line(&call(Number::Native(9), Some(0x7f00_0000_1000)), since)
                .ends_with("mmap() = 0x7f0000001000\n")
        );
        assert!(line(&call(Number::Native(35), Some(-516)), since)
            .ends_with("= ? ERESTART_RESTARTBLOCK (Interrupted by signal)\n"));
    }

    #[test]
    fn a_name_that_controls_a_terminal_is_data() {
        let hostile = Call {
            comm: "a\x1b[2J\n;]".into(),
            ..call(Number::Native(39), Some(7))
        };
        let text = line(&hostile, Times::Monotonic);
        assert_eq!(text.matches('\n').count(), 1, "{text:?}");
        assert!(!text.contains('\x1b'), "{text:?}");
    }
}

//! System calls for people and for programs: a line for each, or sums.
#![forbid(unsafe_code)]

mod args;
mod escape;
mod flags;
mod ioctl;
mod json;
mod stream;
mod summary;

pub use json::{write_call, write_summary};
pub use stream::{Lines, Times};
pub use summary::{write, Show};

use std::borrow::Cow;

use nix::errno::Errno;

/// What the kernel returns inside of calls that a signal interrupted; programs do not see them.
const RESTARTS: [(u16, &str, &str); 4] = [
    (512, "ERESTARTSYS", "To be restarted if SA_RESTART is set"),
    (513, "ERESTARTNOINTR", "To be restarted"),
    (514, "ERESTARTNOHAND", "To be restarted if no handler"),
    (516, "ERESTART_RESTARTBLOCK", "Interrupted by signal"),
];

/// `ENOENT`, and what it means.
pub fn errno(number: u16) -> (Cow<'static, str>, &'static str) {
    if let Some((_, name, meaning)) = RESTARTS.into_iter().find(|row| row.0 == number) {
        return (name.into(), meaning);
    }
    match Errno::from_raw(i32::from(number)) {
        Errno::UnknownErrno => (format!("errno {number}").into(), "Unknown error"),
        // Its Debug is its name.
        known => (format!("{known:?}").into(), known.desc()),
    }
}

/// The kernel's own: a program does not see them.
fn is_restart(number: u16) -> bool {
    RESTARTS.iter().any(|row| row.0 == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_names() {
        assert_eq!(errno(2), ("ENOENT".into(), "No such file or directory"));
        assert_eq!(errno(11).0, "EAGAIN");
        assert_eq!(errno(512).0, "ERESTARTSYS");
        assert_eq!(errno(4000).0, "errno 4000");
        assert_eq!(errno(0).0, "errno 0");
    }
}

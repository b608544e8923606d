//! How the thread that collects tells the one that draws that there is something new.
#![forbid(unsafe_code)]

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// The end of who has news.
#[derive(Debug)]
pub(super) struct Waker(UnixStream);

/// The end of who waits for them.
#[derive(Debug)]
pub(super) struct Wake(UnixStream);

pub(super) fn pair() -> io::Result<(Waker, Wake)> {
    let (waker, wake) = UnixStream::pair()?;
    waker.set_nonblocking(true)?;
    wake.set_nonblocking(true)?;
    Ok((Waker(waker), Wake(wake)))
}

impl Waker {
    /// Never waits itself. One that was told and has not looked yet need not be told again.
    pub(super) fn wake(&self) {
        let _ = (&self.0).write(&[1]);
    }
}

impl Wake {
    /// Once it can be read: forgets what came.
    pub(super) fn clear(&self) {
        let mut bytes = [0; 256];
        while (&self.0).read(&mut bytes).is_ok_and(|length| length > 0) {}
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

    use super::*;

    #[test]
    fn news_that_nobody_looks_at_do_not_hold_up_who_has_them() {
        let (waker, wake) = pair().unwrap();
        for _ in 0..1_000_000 {
            waker.wake();
        }
        let is_awake = || {
            let mut fds = [PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
        };
        assert!(is_awake());
        wake.clear();
        assert!(!is_awake());
        waker.wake();
        assert!(is_awake());
    }
}

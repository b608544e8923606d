//! Open files over a socket: what the receiver does with one happens with the rights of the sender.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::cmsg_space;
use nix::sys::socket::{recvmsg, sendmsg, ControlMessage, ControlMessageOwned, MsgFlags};

/// Sends `bytes`, and `file` with them.
pub fn send(socket: &UnixStream, bytes: &[u8], file: Option<&File>) -> io::Result<()> {
    let fds: Vec<RawFd> = file.iter().map(|file| file.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
    let parts = [IoSlice::new(bytes)];
    let sent = sendmsg::<()>(
        socket.as_raw_fd(),
        &parts,
        rights,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    if sent < bytes.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

/// Receives what is there, and the first file that came with it. Does not wait.
pub fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<File>)> {
    let mut space = cmsg_space!([RawFd; 4]);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut files: Vec<OwnedFd> = Vec::new();
    if let Ok(parts) = message.cmsgs() {
        for part in parts {
            if let ControlMessageOwned::ScmRights(fds) = part {
                // SAFETY: the kernel has just made these for this process, and nobody else knows them.
                let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
                files.extend(fds.into_iter().map(own));
            }
        }
    }
    // The others are closed here.
    Ok((message.bytes, files.into_iter().next().map(File::from)))
}

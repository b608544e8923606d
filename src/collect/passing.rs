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

/// As many as the kernel lets one send at once. With less room, those that fit could not be closed.
const MOST: usize = 253;

/// Receives what is there, and the first file that came with it. Does not wait.
pub fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<File>)> {
    let mut space = cmsg_space!([RawFd; MOST]);
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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn of_many_files_the_first_is_received_and_the_others_are_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut read, write) = io::pipe().unwrap();
        let fds = [write.as_raw_fd(); MOST];
        let rights = [ControlMessage::ScmRights(&fds)];
        let parts = [IoSlice::new(b"x")];
        let flags = MsgFlags::empty();
        sendmsg::<()>(theirs.as_raw_fd(), &parts, &rights, flags, None).unwrap();
        drop(write);
        let (len, file) = receive(&ours, &mut [0; 8]).unwrap();
        assert_eq!(len, 1);
        drop(file.unwrap());
        // The end comes when nobody can write any more.
        nix::fcntl::fcntl(
            &read,
            nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
        )
        .unwrap();
        assert_eq!(read.read(&mut [0; 8]).unwrap(), 0);
    }
}

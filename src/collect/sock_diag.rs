//! The sockets of a network namespace and who is connected to whom, as the kernel tells them (sock_diag(7)).
//!
//! /proc/net has no peers of unix sockets, and text to be parsed. The messages are four structs, for which
//! a crate would bring three more and a value on the heap for every attribute of every socket.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sched::{setns, CloneFlags};
use nix::sys::socket::{
    recv, send, socket, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType,
};
use zerocopy::byteorder::network_endian::U16 as BigU16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The number that /proc shows as `socket:[…]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inode(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    pub inode: Inode,
    pub listening: bool,
    pub ends: Ends,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ends {
    Ip {
        protocol: Protocol,
        local: SocketAddr,
        /// Port 0 when it is not connected.
        remote: SocketAddr,
    },
    Unix {
        /// A path, or `@` and an abstract name. Empty: it was not given one.
        name: String,
        /// The socket it is connected to.
        peer: Option<Inode>,
    },
}

/// What a netlink message begins with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C, packed)]
struct Header {
    len: u32,
    kind: u16,
    flags: u16,
    seq: u32,
    port: u32,
}

/// `struct inet_diag_sockid`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C, packed)]
struct SocketId {
    local_port: BigU16,
    remote_port: BigU16,
    local: [u8; 16],
    remote: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}

/// `struct inet_diag_req_v2`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable, Unaligned)]
#[repr(C, packed)]
struct InetRequest {
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    id: SocketId,
}

/// `struct inet_diag_msg`.
#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C, packed)]
struct InetMessage {
    family: u8,
    state: u8,
    timer: u8,
    retransmits: u8,
    id: SocketId,
    expires: u32,
    receive_queue: u32,
    send_queue: u32,
    uid: u32,
    inode: u32,
}

/// `struct unix_diag_req`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable, Unaligned)]
#[repr(C, packed)]
struct UnixRequest {
    family: u8,
    protocol: u8,
    pad: u16,
    states: u32,
    inode: u32,
    show: u32,
    cookie: [u32; 2],
}

/// `struct unix_diag_msg`. Attributes follow it.
#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C, packed)]
struct UnixMessage {
    family: u8,
    kind: u8,
    state: u8,
    pad: u8,
    inode: u32,
    cookie: [u32; 2],
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_PEER: u16 = 2;
const SHOW_NAME_AND_PEER: u32 = 1 << UNIX_DIAG_NAME | 1 << UNIX_DIAG_PEER;
const LISTEN: u8 = 10;
/// Sockets that wait for nothing but time belong to no process any more.
const ALL_BUT_TIME_WAIT: u32 = !(1 << 6);

/// The kernel fills 32 KiB at most.
const BUFFER: usize = 32 << 10;

/// Hands out the sockets of the network namespace that process `pid` of /proc is in, `most` at most.
/// One that this process may not enter is an error.
pub fn sockets(pid: u32, most: usize, each: &mut dyn FnMut(Socket)) -> io::Result<()> {
    let place = format!("/proc/{pid}/ns/net");
    let link = std::fs::read_link(&place)?;
    let ours = std::fs::read_link("/proc/self/ns/net")?;
    // It keeps the namespace, so it is not kept.
    let netlink = if link == ours {
        open()?
    } else {
        open_in(&File::open(place)?)?
    };
    let mut left = most;
    let (tcp, udp) = (libc::IPPROTO_TCP, libc::IPPROTO_UDP);
    for (family, protocol) in [
        (libc::AF_INET, tcp),
        (libc::AF_INET6, tcp),
        (libc::AF_INET, udp),
        (libc::AF_INET6, udp),
    ] {
        let request = InetRequest {
            family: small(family),
            protocol: small(protocol),
            extensions: 0,
            pad: 0,
            states: ALL_BUT_TIME_WAIT,
            id: SocketId::default(),
        };
        let protocol = if protocol == tcp {
            Protocol::Tcp
        } else {
            Protocol::Udp
        };
        dump(&netlink, request.as_bytes(), &mut left, &mut |message| {
            inet_socket(protocol, message).map(&mut *each)
        })?;
    }
    let request = UnixRequest {
        family: small(libc::AF_UNIX),
        protocol: 0,
        pad: 0,
        states: !0,
        inode: 0,
        show: SHOW_NAME_AND_PEER,
        cookie: [0; 2],
    };
    dump(&netlink, request.as_bytes(), &mut left, &mut |message| {
        unix_socket(message).map(&mut *each)
    })
}

fn small(constant: i32) -> u8 {
    u8::try_from(constant).expect("families and protocols are small numbers")
}

fn open() -> io::Result<OwnedFd> {
    Ok(socket(
        AddressFamily::Netlink,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        SockProtocol::NetlinkSockDiag,
    )?)
}

/// A socket stays in the namespace where it was made; the thread that makes it there is done with.
fn open_in(namespace: &File) -> io::Result<OwnedFd> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .spawn_scoped(scope, || {
                setns(namespace, CloneFlags::CLONE_NEWNET)?;
                open()
            })?
            .join()
            .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
}

/// Asks for all sockets of a kind. `left` counts those that `take` took down to 0, which is an error:
/// then the answer has not been read to its end, and the netlink socket is of no more use.
fn dump(
    netlink: &OwnedFd,
    request: &[u8],
    left: &mut usize,
    take: &mut dyn FnMut(&[u8]) -> Option<()>,
) -> io::Result<()> {
    let header = Header {
        len: u32::try_from(size_of::<Header>() + request.len()).unwrap_or(u32::MAX),
        kind: SOCK_DIAG_BY_FAMILY,
        flags: (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16,
        seq: 1,
        port: 0,
    };
    let asked = [header.as_bytes(), request].concat();
    send(netlink.as_raw_fd(), &asked, MsgFlags::empty())?;
    let mut buffer = [0; BUFFER];
    loop {
        // The kernel has the next part ready before it returns: this never waits.
        let read = recv(netlink.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = buffer.get(..read).unwrap_or_default();
        if rest.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while let Ok((header, _)) = Header::read_from_prefix(rest) {
            let len = header.len as usize;
            let Some(message) = rest.get(size_of::<Header>()..len) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            match i32::from(header.kind) {
                libc::NLMSG_DONE => return Ok(()),
                // This kernel does not tell of such sockets.
                libc::NLMSG_ERROR => return Ok(()),
                _ => {
                    if take(message).is_some() {
                        *left = left.saturating_sub(1);
                    }
                }
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        if *left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
    }
}

fn address(family: u8, bytes: [u8; 16], port: BigU16) -> SocketAddr {
    let ip = if i32::from(family) == libc::AF_INET {
        let [a, b, c, d, ..] = bytes;
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    } else {
        // One program may say ::ffff:127.0.0.1 where the other says 127.0.0.1.
        IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
    };
    SocketAddr::new(ip, port.get())
}

fn inet_socket(protocol: Protocol, message: &[u8]) -> Option<Socket> {
    let (m, _) = InetMessage::read_from_prefix(message).ok()?;
    (m.inode != 0).then(|| Socket {
        inode: Inode(m.inode),
        listening: protocol == Protocol::Tcp && m.state == LISTEN,
        ends: Ends::Ip {
            protocol,
            local: address(m.family, m.id.local, m.id.local_port),
            remote: address(m.family, m.id.remote, m.id.remote_port),
        },
    })
}

fn unix_socket(message: &[u8]) -> Option<Socket> {
    let (m, mut rest) = UnixMessage::read_from_prefix(message).ok()?;
    if m.inode == 0 {
        return None;
    }
    let (mut name, mut peer) = (String::new(), None);
    while let Some((kind, value, next)) = attribute(rest) {
        match kind {
            UNIX_DIAG_NAME => name = unix_name(value),
            UNIX_DIAG_PEER => {
                peer = value.try_into().ok().map(u32::from_ne_bytes);
            }
            _ => {}
        }
        rest = next;
    }
    Some(Socket {
        inode: Inode(m.inode),
        listening: m.state == LISTEN,
        ends: Ends::Unix {
            name,
            peer: peer.filter(|&inode| inode != 0).map(Inode),
        },
    })
}

/// The first of some attributes: its kind, its value and the others.
fn attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
    let value = bytes.get(4..len)?;
    let next = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, value, next))
}

fn unix_name(bytes: &[u8]) -> String {
    match bytes.split_first() {
        Some((0, name)) => format!("@{}", String::from_utf8_lossy(name).replace('\0', "@")),
        _ => {
            let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn inode(socket: impl AsFd) -> Inode {
        let stat = nix::sys::stat::fstat(socket).unwrap();
        Inode(u32::try_from(stat.st_ino).unwrap())
    }

    fn own() -> HashMap<Inode, Socket> {
        let mut all = HashMap::new();
        sockets(std::process::id(), usize::MAX, &mut |s| {
            all.insert(s.inode, s);
        })
        .unwrap();
        all
    }

    fn ip(socket: &Socket) -> (Protocol, SocketAddr, SocketAddr) {
        match socket.ends {
            Ends::Ip {
                protocol,
                local,
                remote,
            } => (protocol, local, remote),
            Ends::Unix { .. } => panic!("{socket:?}"),
        }
    }

    #[test]
    fn tcp_sockets_have_both_addresses_and_say_who_listens() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else {
                continue;
            };
            let here = listener.local_addr().unwrap();
            let client = TcpStream::connect(here).unwrap();
            let (server, there) = listener.accept().unwrap();
            let all = own();
            let listening = &all[&inode(&listener)];
            assert!(listening.listening);
            assert_eq!(ip(listening).1, here);
            assert!(!all[&inode(&server)].listening);
            assert_eq!(ip(&all[&inode(&server)]), (Protocol::Tcp, here, there));
            assert_eq!(ip(&all[&inode(&client)]), (Protocol::Tcp, there, here));
        }
    }

    #[test]
    fn one_connection_has_the_same_addresses_at_an_ipv4_and_at_an_ipv6_socket() {
        let Ok(listener) = TcpListener::bind("[::]:0") else {
            return;
        };
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (server, _) = listener.accept().unwrap();
        let all = own();
        let (_, client_here, client_there) = ip(&all[&inode(&client)]);
        let (_, server_here, server_there) = ip(&all[&inode(&server)]);
        assert_eq!((client_here, client_there), (server_there, server_here));
    }

    #[test]
    fn a_udp_socket_without_a_peer_has_no_remote_port() {
        let one = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        other.connect(one.local_addr().unwrap()).unwrap();
        let all = own();
        assert_eq!(ip(&all[&inode(&one)]).2.port(), 0);
        assert_eq!(ip(&all[&inode(&other)]).2, one.local_addr().unwrap());
    }

    #[test]
    fn unix_sockets_have_names_and_peers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (left, right) = UnixStream::pair().unwrap();
        let all = own();
        let of = |s: &UnixStream| match &all[&inode(s)].ends {
            Ends::Unix { name, peer } => (name.clone(), *peer),
            Ends::Ip { .. } => panic!(),
        };
        let path = path.to_string_lossy().into_owned();
        assert!(all[&inode(&listener)].listening);
        assert_eq!(of(&server), (path, Some(inode(&client))));
        assert_eq!(of(&client), (String::new(), Some(inode(&server))));
        assert_eq!(of(&left), (String::new(), Some(inode(&right))));
    }

    #[test]
    fn more_sockets_than_asked_for_are_an_error() {
        let _pair = UnixStream::pair().unwrap();
        assert!(sockets(std::process::id(), 1, &mut |_| {}).is_err());
    }

    #[test]
    fn messages_that_end_too_early_are_no_sockets() {
        for len in 0..size_of::<InetMessage>() {
            assert_eq!(inet_socket(Protocol::Tcp, &vec![1; len]), None);
        }
        for len in 0..size_of::<UnixMessage>() {
            assert_eq!(unix_socket(&vec![1; len]), None);
        }
        assert_eq!(attribute(&[200, 0, 0, 0, 1]), None);
        assert_eq!(attribute(&[0; 8]), None);
    }

    #[test]
    fn abstract_names_begin_with_an_at_sign() {
        assert_eq!(unix_name(b"\0bus"), "@bus");
        assert_eq!(unix_name(b"/run/x\0"), "/run/x");
        assert_eq!(unix_name(b"/run/x"), "/run/x");
    }
}

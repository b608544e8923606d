//! What a socket is, and who is at its other end, found out while the machine still knows.
//!
//! The kernel tells all sockets of a network namespace at once, so they are read when one is asked for
//! that is not known, and not more often than a small part of the time that takes.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::collect::process;
use crate::collect::sock_diag::{self, Ends, Inode, Protocol, Socket};
use crate::event::Role;
use crate::pipeline::owners::Owners;

/// So many times as long as it took is waited before the sockets of a namespace are read again.
const REST: u32 = 20;
const LEAST_REST: Duration = Duration::from_millis(100);

/// What was not among the sockets is not looked for again before this.
const ABSENT_AGE: Duration = Duration::from_secs(10);
const ABSENT: usize = 4096;

/// Who connects has an other end only when that was accepted: it is looked for again after this.
const ALONE_AGE: Duration = Duration::from_secs(1);

const NAME_AGE: Duration = Duration::from_secs(1);
const NAMES: usize = 4096;

const SOCKETS: usize = 1 << 16;
const NAMESPACES: usize = 64;

/// Sockets of one epoll or poll whose other ends are looked for at most.
const MANY: usize = 64;

/// From here on the kernel gives out ports by itself: who waits there did not say that others may come.
/// As this machine has it set; a network namespace may have its own.
fn first_ephemeral() -> u16 {
    const USUAL: u16 = 32_768;
    static FIRST: OnceLock<u16> = OnceLock::new();
    *FIRST.get_or_init(|| {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        range.map_or(USUAL, |text| parse_first(&text).unwrap_or(USUAL))
    })
}

/// Of a range as the kernel writes it.
fn parse_first(range: &str) -> Option<u16> {
    range.split_whitespace().next()?.parse().ok()
}

/// What is known of something that a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub text: String,
    /// What has the same text has the same peer.
    pub names_peer: bool,
    /// `None`: it says nothing about who is waited for.
    pub role: Option<Role>,
    /// As /proc numbers processes.
    pub peer: Option<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Endpoints {
    namespaces: HashMap<Rc<Path>, Namespace>,
    /// What names the namespace of a process, which seldom goes to another.
    names: HashMap<u32, (Instant, Rc<Path>)>,
    pub owners: Owners,
}

impl Endpoints {
    /// Of a socket that a thread of process `pid` works on. `None` when the kernel tells nothing about it.
    pub fn socket(&mut self, pid: u32, inode: u32) -> Option<Endpoint> {
        let inode = Inode(inode);
        let namespace = self.namespace(pid)?;
        namespace.read_for(pid, &[inode]);
        let socket = namespace.sockets.get(&inode)?;
        let role = namespace.role(socket);
        let text = namespace.text(socket, role);
        let other = namespace.other(socket);
        let peer = other.and_then(|other| self.owners.of(other, pid));
        Some(Endpoint {
            text,
            names_peer: true,
            role,
            peer,
        })
    }

    /// A socket was given an address or another end: what is known of it is no more.
    pub fn forget(&mut self, inode: u32) {
        for namespace in self.namespaces.values_mut() {
            namespace.sockets.remove(&Inode(inode));
            namespace.absent.remove(&Inode(inode));
        }
    }

    /// Of an epoll or poll, which is what `word` is, of such inodes: not all of them need to be sockets.
    pub fn set(&mut self, word: &str, pid: u32, inodes: &[u32]) -> Option<Endpoint> {
        let inodes: Vec<Inode> = inodes.iter().copied().map(Inode).collect();
        let name = self.name_of_namespace(pid)?;
        self.namespace(pid)?.read_for(pid, &inodes);
        let namespace = self.namespaces.get(&name)?;
        let mut members: Vec<_> = inodes
            .iter()
            .filter_map(|inode| namespace.sockets.get(inode))
            .map(|socket| Member {
                inode: socket.inode,
                role: namespace.role(socket),
                other: namespace.other(socket),
                peer: None,
            })
            .collect();
        if members.len() <= MANY {
            for member in &mut members {
                member.peer = member.other.and_then(|other| self.owners.of(other, pid));
            }
        }
        if let [one] = members[..] {
            let socket = &namespace.sockets[&one.inode];
            return Some(Endpoint {
                text: format!("{word} of {}", namespace.text(socket, one.role)),
                names_peer: true,
                role: one.role,
                peer: one.peer,
            });
        }
        Some(of_members(word, pid, &members))
    }

    fn name_of_namespace(&mut self, pid: u32) -> Option<Rc<Path>> {
        if let Some((read, name)) = self.names.get(&pid) {
            if read.elapsed() < NAME_AGE {
                return Some(Rc::clone(name));
            }
        }
        let name: Rc<Path> = process::network_namespace(pid)?.into();
        if self.names.len() >= NAMES {
            self.names.clear();
        }
        let known = (Instant::now(), Rc::clone(&name));
        self.names.insert(pid, known);
        Some(name)
    }

    fn namespace(&mut self, pid: u32) -> Option<&mut Namespace> {
        let name = self.name_of_namespace(pid)?;
        if self.namespaces.len() >= NAMESPACES && !self.namespaces.contains_key(&name) {
            self.namespaces.clear();
        }
        Some(self.namespaces.entry(name).or_default())
    }
}

/// A socket among several.
#[derive(Clone, Copy, Debug)]
struct Member {
    inode: Inode,
    role: Option<Role>,
    other: Option<Inode>,
    peer: Option<u32>,
}

/// A socket whose other end is in the same process, `own`, wakes its own threads: nobody is waited for
/// there. The peer is the one that all others have.
fn of_members(word: &str, own: u32, members: &[Member]) -> Endpoint {
    let others: Vec<&Member> = members.iter().filter(|m| m.peer != Some(own)).collect();
    let count = |role| others.iter().filter(|m| m.role == Some(role)).count();
    let telling = [
        (Role::Listening, "listening"),
        (Role::Accepted, "accepted"),
        (Role::Connected, "connected"),
    ]
    .into_iter()
    .map(|(role, name)| (role, name, count(role)))
    .find(|&(_, _, count)| count > 0);
    let Some((role, name, count)) = telling else {
        return Endpoint {
            text: match members.len() {
                0 => format!("{word} of no sockets"),
                n => format!("{word} of {n} sockets"),
            },
            names_peer: false,
            role: None,
            peer: None,
        };
    };
    let first = others.first().and_then(|m| m.peer);
    let peer = first.filter(|_| others.iter().all(|m| m.peer == first));
    Endpoint {
        text: format!("{word} of {} sockets, {count} {name}", members.len()),
        names_peer: false,
        role: Some(role),
        peer,
    }
}

/// The sockets of a network namespace, as they were when they were last read.
#[derive(Debug, Default)]
struct Namespace {
    sockets: HashMap<Inode, Socket>,
    by_ends: HashMap<(Protocol, SocketAddr, SocketAddr), Inode>,
    tcp_listeners: HashSet<SocketAddr>,
    unix_listeners: HashSet<String>,
    /// What was not there, or was without its other end, and since when that is known.
    absent: HashMap<Inode, Instant>,
    read: Option<Instant>,
    took: Duration,
}

impl Namespace {
    /// Reads the sockets that process `pid` sees, if that is needed for one of `wanted`, and it is time.
    fn read_for(&mut self, pid: u32, wanted: &[Inode]) {
        let start = Instant::now();
        let rest = (self.took * REST).max(LEAST_REST);
        if self.read.is_some_and(|last| start - last < rest) {
            return;
        }
        let is_due = |inode: &Inode| {
            let age = match self.sockets.get(inode) {
                None => ABSENT_AGE,
                Some(socket) if self.is_alone(socket) => ALONE_AGE,
                Some(_) => return false,
            };
            let absent = self.absent.get(inode);
            absent.is_none_or(|&since| start - since >= age)
        };
        if !wanted.iter().any(is_due) {
            return;
        }
        self.sockets.clear();
        self.by_ends.clear();
        self.tcp_listeners.clear();
        self.unix_listeners.clear();
        // Half of them are better than none.
        let _ = sock_diag::sockets(pid, SOCKETS, &mut |socket| self.add(socket));
        if self.absent.len() >= ABSENT {
            self.absent.clear();
        }
        let end = Instant::now();
        for &inode in wanted {
            let found = self.sockets.get(&inode);
            if found.is_none_or(|socket| self.is_alone(socket)) {
                self.absent.insert(inode, end);
            }
        }
        self.read = Some(end);
        self.took = end - start;
    }

    fn add(&mut self, socket: Socket) {
        match &socket.ends {
            Ends::Ip {
                protocol,
                local,
                remote,
            } => {
                if socket.listening {
                    self.tcp_listeners.insert(*local);
                }
                self.by_ends
                    .insert((*protocol, *local, *remote), socket.inode);
            }
            Ends::Unix { name, .. } if socket.listening => {
                self.unix_listeners.insert(name.clone());
            }
            Ends::Unix { .. } => {}
        }
        self.sockets.insert(socket.inode, socket);
    }

    /// The socket at the other end.
    fn other(&self, socket: &Socket) -> Option<Inode> {
        match &socket.ends {
            Ends::Ip { remote, .. } if remote.port() == 0 => None,
            Ends::Ip {
                protocol,
                local,
                remote,
            } => self.by_ends.get(&(*protocol, *remote, *local)).copied(),
            Ends::Unix { peer, .. } => *peer,
        }
    }

    /// It is connected, and nothing is at the other end yet, or nothing on this machine.
    fn is_alone(&self, socket: &Socket) -> bool {
        let connects = match &socket.ends {
            Ends::Ip { remote, .. } => remote.port() != 0,
            // The kernel has no number yet for the end that nobody accepted.
            Ends::Unix { name, peer } => peer.is_none() && name.is_empty(),
        };
        connects && !socket.listening && self.other(socket).is_none()
    }

    fn role(&self, socket: &Socket) -> Option<Role> {
        match &socket.ends {
            _ if socket.listening => Some(Role::Listening),
            Ends::Ip { local, remote, .. } if remote.port() == 0 => {
                (local.port() < first_ephemeral()).then_some(Role::Listening)
            }
            Ends::Ip {
                protocol: Protocol::Tcp,
                local,
                ..
            } if self.has_listener(*local) => Some(Role::Accepted),
            Ends::Ip { .. } => Some(Role::Connected),
            Ends::Unix { name, peer: None } => (!name.is_empty()).then_some(Role::Listening),
            Ends::Unix {
                name,
                peer: Some(_),
            } if self.unix_listeners.contains(name) => Some(Role::Accepted),
            Ends::Unix { peer: Some(_), .. } => Some(Role::Connected),
        }
    }

    fn has_listener(&self, local: SocketAddr) -> bool {
        let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let listens = |ip| {
            self.tcp_listeners
                .contains(&SocketAddr::new(ip, local.port()))
        };
        listens(local.ip()) || any.into_iter().any(listens)
    }

    /// The same text means the same peer; so there is a number in it where names do not do.
    fn text(&self, socket: &Socket, role: Option<Role>) -> String {
        let inode = socket.inode.0;
        match &socket.ends {
            Ends::Ip {
                protocol,
                local,
                remote,
            } => {
                let protocol = match protocol {
                    Protocol::Tcp => "tcp",
                    Protocol::Udp => "udp",
                };
                match role {
                    Some(Role::Listening) => format!("{protocol} listening on {local}"),
                    Some(Role::Accepted) => format!("{protocol} {local} <- {remote}"),
                    Some(Role::Connected) => format!("{protocol} {local} -> {remote}"),
                    None => format!("{protocol} {local}"),
                }
            }
            Ends::Unix { name, peer } => {
                let there = peer.and_then(|peer| self.sockets.get(&peer));
                let there = match there.map(|socket| &socket.ends) {
                    Some(Ends::Unix { name, .. }) => name.as_str(),
                    Some(Ends::Ip { .. }) | None => "",
                };
                match role {
                    Some(Role::Listening) => format!("unix listening on {name}"),
                    Some(Role::Accepted) => format!("unix {name} <- [{inode}]"),
                    Some(Role::Connected) if !there.is_empty() => {
                        format!("unix [{inode}] -> {there}")
                    }
                    Some(Role::Connected) if name.is_empty() => format!("unix pair [{inode}]"),
                    Some(Role::Connected) => format!("unix {name} [{inode}]"),
                    None => format!("unix [{inode}]"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(inode: u32, local: &str, remote: &str, listening: bool) -> Socket {
        Socket {
            inode: Inode(inode),
            listening,
            ends: Ends::Ip {
                protocol: Protocol::Tcp,
                local: local.parse().unwrap(),
                remote: remote.parse().unwrap(),
            },
        }
    }

    fn unix(inode: u32, name: &str, peer: Option<u32>, listening: bool) -> Socket {
        Socket {
            inode: Inode(inode),
            listening,
            ends: Ends::Unix {
                name: name.to_string(),
                peer: peer.map(Inode),
            },
        }
    }

    fn said(sockets: &[Socket], inode: u32) -> (String, Option<Role>, Option<u32>) {
        let mut namespace = Namespace::default();
        for socket in sockets {
            namespace.add(socket.clone());
        }
        let socket = &namespace.sockets[&Inode(inode)];
        let role = namespace.role(socket);
        let other = namespace.other(socket).map(|inode| inode.0);
        (namespace.text(socket, role), role, other)
    }

    #[test]
    fn the_end_of_a_connection_with_a_listener_beside_it_was_accepted() {
        let sockets = [
            tcp(1, "0.0.0.0:80", "0.0.0.0:0", true),
            tcp(2, "127.0.0.1:80", "127.0.0.1:4000", false),
            tcp(3, "127.0.0.1:4000", "127.0.0.1:80", false),
            tcp(4, "10.0.0.1:5000", "10.0.0.2:80", false),
        ];
        let role = |inode| said(&sockets, inode);
        let text = |text: &str| text.to_string();
        assert_eq!(
            role(1),
            (
                text("tcp listening on 0.0.0.0:80"),
                Some(Role::Listening),
                None
            )
        );
        assert_eq!(
            role(2),
            (
                text("tcp 127.0.0.1:80 <- 127.0.0.1:4000"),
                Some(Role::Accepted),
                Some(3)
            )
        );
        assert_eq!(
            role(3),
            (
                text("tcp 127.0.0.1:4000 -> 127.0.0.1:80"),
                Some(Role::Connected),
                Some(2)
            )
        );
        assert_eq!(
            role(4),
            (
                text("tcp 10.0.0.1:5000 -> 10.0.0.2:80"),
                Some(Role::Connected),
                None
            )
        );
    }

    #[test]
    fn a_port_of_another_address_is_another_listener() {
        let sockets = [
            tcp(1, "10.0.0.1:80", "0.0.0.0:0", true),
            tcp(2, "127.0.0.1:80", "127.0.0.1:4000", false),
        ];
        assert_eq!(said(&sockets, 2).1, Some(Role::Connected));
    }

    #[test]
    fn unix_sockets_are_told_by_their_names() {
        let sockets = [
            unix(1, "/run/x", None, true),
            unix(2, "/run/x", Some(3), false),
            unix(3, "", Some(2), false),
            unix(4, "", Some(5), false),
            unix(5, "", Some(4), false),
            unix(6, "/run/log", None, false),
            unix(7, "", None, false),
        ];
        for (inode, text, role, other) in [
            (1, "unix listening on /run/x", Some(Role::Listening), None),
            (2, "unix /run/x <- [2]", Some(Role::Accepted), Some(3)),
            (3, "unix [3] -> /run/x", Some(Role::Connected), Some(2)),
            (4, "unix pair [4]", Some(Role::Connected), Some(5)),
            (6, "unix listening on /run/log", Some(Role::Listening), None),
            (7, "unix [7]", None, None),
        ] {
            assert_eq!(said(&sockets, inode), (text.to_string(), role, other));
        }
    }

    #[test]
    fn a_connection_that_was_not_accepted_yet_is_looked_at_again() {
        use std::net::{TcpListener, TcpStream};
        use std::os::linux::fs::MetadataExt as _;
        use std::os::unix::net::{UnixListener, UnixStream};

        fn inode(socket: std::os::fd::OwnedFd) -> (Inode, std::fs::File) {
            let file = std::fs::File::from(socket);
            let inode = u32::try_from(file.metadata().unwrap().st_ino()).unwrap();
            (Inode(inode), file)
        }
        let own = std::process::id();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (tcp, _client) = inode(client.into());
        let dir = tempfile::tempdir().unwrap();
        let unix_listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let client = UnixStream::connect(dir.path().join("s")).unwrap();
        let (unix, _unix_client) = inode(client.into());

        let mut namespace = Namespace::default();
        let mut other = |socket: Inode| {
            namespace.read_for(own, &[socket]);
            let found = namespace.other(&namespace.sockets[&socket]);
            // As if so much time had gone by.
            namespace.read = None;
            namespace.absent.clear();
            found
        };
        assert_eq!((other(tcp), other(unix)), (None, None));
        let (server, _) = listener.accept().unwrap();
        let (unix_server, _) = unix_listener.accept().unwrap();
        let (server, _server) = inode(server.into());
        let (unix_server, _unix_server) = inode(unix_server.into());
        assert_eq!((other(tcp), other(unix)), (Some(server), Some(unix_server)));
    }

    #[test]
    fn ports_that_the_kernel_gives_out_begin_where_it_says() {
        assert_eq!(parse_first("1024\t65535\n"), Some(1024));
        assert_eq!(parse_first(""), None);
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), first_ephemeral());
        let socket = |port| {
            tcp(
                1,
                &SocketAddr::new(any.ip(), port).to_string(),
                "0.0.0.0:0",
                false,
            )
        };
        assert_eq!(said(&[socket(any.port())], 1).1, None);
        assert_eq!(said(&[socket(any.port() - 1)], 1).1, Some(Role::Listening));
    }

    fn member(inode: u32, role: Role, peer: Option<u32>) -> Member {
        Member {
            inode: Inode(inode),
            role: Some(role),
            other: peer.map(|_| Inode(inode + 1000)),
            peer,
        }
    }

    #[test]
    fn a_set_of_sockets_is_what_its_most_telling_one_is() {
        let listening = member(1, Role::Listening, None);
        let accepted = member(2, Role::Accepted, Some(9));
        let connected = member(3, Role::Connected, Some(9));
        let all = of_members("epoll", 7, &[connected, listening, accepted]);
        assert_eq!(all.text, "epoll of 3 sockets, 1 listening");
        assert_eq!((all.role, all.peer), (Some(Role::Listening), None));
        let two = of_members("poll", 7, &[connected, accepted]);
        assert_eq!(two.text, "poll of 2 sockets, 1 accepted");
        assert_eq!((two.role, two.peer), (Some(Role::Accepted), Some(9)));
    }

    #[test]
    fn a_set_of_sockets_with_several_peers_has_none() {
        let set = [
            member(1, Role::Connected, Some(8)),
            member(2, Role::Connected, Some(9)),
        ];
        assert_eq!(of_members("epoll", 7, &set).peer, None);
    }

    #[test]
    fn a_socket_by_which_a_process_wakes_itself_is_nobody_to_wait_for() {
        let own = member(1, Role::Connected, Some(7));
        let peer = member(2, Role::Connected, Some(9));
        let set = of_members("epoll", 7, &[own, peer]);
        assert_eq!(set.text, "epoll of 2 sockets, 1 connected");
        assert_eq!((set.role, set.peer), (Some(Role::Connected), Some(9)));
        let alone = of_members("epoll", 7, &[own, own]);
        assert_eq!((alone.role, alone.peer), (None, None));
        assert_eq!(of_members("epoll", 7, &[]).text, "epoll of no sockets");
    }
}

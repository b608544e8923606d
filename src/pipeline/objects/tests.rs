use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use nix::sched::{unshare, CloneFlags};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::*;

#[test]
fn an_array_for_poll_is_told_from_what_else_was_written_there() {
    let entry = |fd: i32, events: u16, revents: u16| {
        let mut bytes = fd.to_ne_bytes().to_vec();
        bytes.extend(events.to_ne_bytes());
        bytes.extend(revents.to_ne_bytes());
        bytes
    };
    let array = [entry(5, 1, 0), entry(-1, 1, 0), entry(9, 4, 0x2010)].concat();
    assert_eq!(polled(&array, 3), Some(vec![5, 9]));
    assert_eq!(polled(&array, 4), None);
    assert_eq!(polled(&0x7f12_3456_789a_bcde_u64.to_ne_bytes(), 1), None);
}

#[test]
fn sets_for_select_are_joined() {
    let sets = [vec![0b1000_0001, 0b10], Vec::new(), vec![1, 0b1000]];
    assert_eq!(selected(&sets, 10), Some(vec![0, 7, 9]));
    assert_eq!(selected(&sets, 16), Some(vec![0, 7, 9, 11]));
    assert_eq!(selected(&[vec![255; 8]], 64), None);
}

#[test]
fn looking_takes_a_part_of_the_time_only() {
    let start = Instant::now();
    let mut budget = Budget::default();
    assert!(budget.allows(start));
    budget.spend(DEAR);
    assert!(budget.allows(start));
    for _ in 0..100 {
        budget.spend(MOST / 100);
    }
    assert!(!budget.allows(start + WINDOW / 2));
    assert!(budget.allows(start + WINDOW));
}

fn told(events: &[Event]) -> Vec<(NameId, Role, Option<Pid>)> {
    let told = events.iter().filter_map(|event| match event {
        Event::Define(Define::Endpoint { object, role, peer }) => Some((*object, *role, *peer)),
        _ => None,
    });
    told.collect()
}

#[test]
fn the_other_end_is_told_once_and_again_when_it_is_known() {
    let mut objects = Objects::default();
    let mut names = Names::default();
    let mut events = Vec::new();
    let mut tell = |peer| {
        let endpoint = Endpoint {
            text: "tcp a -> b".to_string(),
            names_peer: true,
            role: Some(Role::Connected),
            peer,
        };
        objects.tell(&endpoint, &mut names, &mut |e| events.push(e))
    };
    let first = tell(None);
    assert_eq!(tell(None), first);
    assert_eq!(tell(Some(7)), first);
    // It is not forgotten.
    assert_eq!(tell(None), first);
    let another = tell(Some(8));
    assert_ne!(another, first);
    assert_eq!(tell(Some(8)), another);
    let role = Role::Connected;
    assert_eq!(
        told(&events),
        [
            (first, role, None),
            (first, role, Some(Pid(7))),
            (another, role, Some(Pid(8)))
        ]
    );
}

#[test]
fn processes_have_the_numbers_of_the_host() {
    let mut objects = Objects::default();
    assert_eq!(objects.pid(7), Some(Pid(7)));
    objects.process(Pid(4007), 7);
    assert_eq!(objects.pid(7), Some(Pid(4007)));
    assert_eq!(objects.pid(8), None);
    objects.forget(Pid(4007));
    assert_eq!(objects.pid(7), None);
}

/// What is found out about real descriptors of this process.
#[derive(Default)]
struct Real {
    objects: Objects,
    names: Names,
    events: Vec<Event>,
    /// The thread that is taken for the process, when it is in a namespace of its own.
    namespace_of: Option<u32>,
    /// What the descriptor was at the time of the wait, when that is not what it is.
    file: Option<FileId>,
}

impl Real {
    fn of(&mut self, syscall: i64, args: [u64; 3]) -> NameId {
        let tid = u32::try_from(nix::unistd::gettid().as_raw()).unwrap();
        let wait = RawWait {
            tid: Tid(tid),
            syscall: u16::try_from(syscall).ok(),
            args,
            file: self.file.or_else(|| file(args[0])),
        };
        let pid = self.namespace_of.unwrap_or_else(std::process::id);
        let thread = InProc { tid, pid };
        let events = &mut self.events;
        let sink = &mut |e| events.push(e);
        self.objects.of(&wait, thread, &mut self.names, sink)
    }

    fn text(&self, name: NameId) -> &str {
        let text = self.events.iter().find_map(|event| match event {
            Event::Define(Define::Name { id, text }) if *id == name => Some(text),
            _ => None,
        });
        text.map_or("", String::as_str)
    }

    fn role_and_peer(&self, name: NameId) -> Option<(Role, Option<u32>)> {
        let told = told(&self.events);
        let last = told.iter().rfind(|(object, _, _)| *object == name);
        last.map(|&(_, role, peer)| (role, peer.map(|pid| pid.0)))
    }

    fn socket(&mut self, socket: &impl AsRawFd) -> (String, Option<(Role, Option<u32>)>) {
        self.call(libc::SYS_recvfrom, [fd(socket), 0, 0])
    }

    fn call(&mut self, nr: i64, args: [u64; 3]) -> (String, Option<(Role, Option<u32>)>) {
        let name = self.of(nr, args);
        (self.text(name).to_string(), self.role_and_peer(name))
    }

    /// All processes are looked through a few at a time, as often as it is asked.
    fn peer(&mut self, nr: i64, args: [u64; 3]) -> (String, Role, u32) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let known = self.call(nr, args);
            if let (text, Some((role, Some(peer)))) = known {
                return (text, role, peer);
            }
            assert!(Instant::now() < deadline, "no peer: {known:?}");
            std::thread::yield_now();
        }
    }

    fn peer_of(&mut self, socket: &impl AsRawFd) -> (String, Role, u32) {
        self.peer(libc::SYS_read, [fd(socket), 0, 0])
    }
}

/// What BPF finds behind a number.
fn file(fd: u64) -> Option<FileId> {
    let meta = std::fs::metadata(format!("/proc/self/fd/{fd}")).ok()?;
    Some(FileId {
        inode: meta.ino(),
        mode: u16::try_from(meta.mode()).unwrap(),
    })
}

fn fd(of: &impl AsRawFd) -> u64 {
    u64::try_from(of.as_raw_fd()).unwrap()
}

/// A process that has nothing open but one end of a connection.
struct Other(Child);

impl Other {
    fn with(end: impl Into<OwnedFd>) -> Other {
        let mut cat = Command::new("cat");
        let cat = cat.stdin(end.into()).stdout(Stdio::null());
        Other(cat.spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn connection() -> (TcpListener, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (listener, client, server)
}

#[test]
fn the_process_that_accepted_a_connection_is_the_peer_of_the_one_that_connected() {
    let (_listener, client, server) = connection();
    let there = client.peer_addr().unwrap();
    let here = client.local_addr().unwrap();
    let other = Other::with(server);
    let (text, role, peer) = Real::default().peer_of(&client);
    assert_eq!(text, format!("tcp {here} -> {there}"));
    assert_eq!((role, peer), (Role::Connected, other.pid()));
}

#[test]
fn the_process_that_connected_is_the_peer_of_the_one_that_accepted() {
    let (listener, client, server) = connection();
    let there = client.local_addr().unwrap();
    let here = listener.local_addr().unwrap();
    let other = Other::with(client);
    let mut real = Real::default();
    let (text, role, peer) = real.peer_of(&server);
    assert_eq!(text, format!("tcp {here} <- {there}"));
    assert_eq!((role, peer), (Role::Accepted, other.pid()));
    let (text, known) = real.socket(&listener);
    assert_eq!(text, format!("tcp listening on {here}"));
    assert_eq!(known, Some((Role::Listening, None)));
}

#[test]
fn a_unix_socket_has_the_process_at_its_other_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    let (server, _) = listener.accept().unwrap();
    let mut real = Real::default();
    let (text, known) = real.socket(&listener);
    assert_eq!(text, format!("unix listening on {}", path.display()));
    assert_eq!(known, Some((Role::Listening, None)));
    let other = Other::with(client);
    let (text, role, peer) = real.peer_of(&server);
    assert!(
        text.starts_with(&format!("unix {} <- [", path.display())),
        "{text}"
    );
    assert_eq!((role, peer), (Role::Accepted, other.pid()));
}

#[test]
fn the_ends_of_a_socket_pair_are_peers() {
    let (left, right) = UnixStream::pair().unwrap();
    let other = Other::with(right);
    let (text, role, peer) = Real::default().peer_of(&left);
    assert!(text.starts_with("unix pair ["), "{text}");
    assert_eq!((role, peer), (Role::Connected, other.pid()));
}

fn epoll_of(sockets: &[&dyn std::os::fd::AsFd]) -> Epoll {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    for socket in sockets {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        epoll.add(socket, event).unwrap();
    }
    epoll
}

#[test]
fn a_number_is_what_it_was_in_the_wait_and_not_what_it_is_now() {
    let (_listener, client, server) = connection();
    let mut real = Real::default();
    // A number that no other test is given meanwhile.
    let far = nix::fcntl::fcntl(&server, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(900)).unwrap();
    let number = u64::try_from(far).unwrap();
    let socket = file(number).unwrap();
    let asked = [number, 0, 0];
    let before = real.call(libc::SYS_recvfrom, asked);
    assert!(before.0.starts_with("tcp "), "{before:?}");
    // The socket is known by its inode, whatever has its number.
    let other = std::fs::File::open("/proc/self/exe").unwrap();
    nix::unistd::close(far).unwrap();
    let again = nix::fcntl::fcntl(&other, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(far)).unwrap();
    assert_eq!(again, far);
    real.file = Some(socket);
    assert_eq!(real.call(libc::SYS_recvfrom, asked).0, before.0);
    // A file that is not there any more has no name.
    real.file = Some(FileId {
        inode: file(number).unwrap().inode + 1,
        mode: u16::try_from(libc::S_IFREG).unwrap(),
    });
    assert_eq!(real.call(libc::SYS_read, asked).0, "");
    real.file = None;
    let exe = std::fs::read_link("/proc/self/exe").unwrap();
    assert_eq!(real.call(libc::SYS_read, asked).0, exe.to_str().unwrap());
    // But it keeps the one that it had for a while.
    real.file = file(number);
    nix::unistd::close(far).unwrap();
    real.objects.age_for_tests(AGE);
    assert_eq!(real.call(libc::SYS_read, asked).0, exe.to_str().unwrap());
    real.objects.age_for_tests(OLDEST);
    assert_eq!(real.call(libc::SYS_read, asked).0, "");
    drop((client, server));
}

#[test]
fn an_epoll_is_what_its_sockets_are() {
    let (listener, client, server) = connection();
    let mut real = Real::default();
    let wait = |epoll: &Epoll| [fd(&epoll.0), 0, 0];
    let call = libc::SYS_epoll_pwait;
    let all = epoll_of(&[&listener, &client, &server]);
    let (text, known) = real.call(call, wait(&all));
    assert_eq!(text, "epoll of 3 sockets, 1 listening");
    assert_eq!(known, Some((Role::Listening, None)));
    // It is woken by this process, and waits for another.
    let mut real = Real::default();
    let (waker, woken) = UnixStream::pair().unwrap();
    let other = Other::with(client);
    let both = epoll_of(&[&woken, &server]);
    let (text, role, peer) = real.peer(call, wait(&both));
    assert_eq!(
        text,
        format!("epoll of 2 sockets, 1 accepted, to process {}", other.pid())
    );
    assert_eq!((role, peer), (Role::Accepted, other.pid()));
    drop(waker);
    let none = epoll_of(&[]);
    assert_eq!(
        real.call(call, wait(&none)),
        ("epoll of no sockets".to_string(), None)
    );
}

#[test]
fn a_poll_is_what_the_sockets_in_its_array_are() {
    let (listener, client, server) = connection();
    let mut real = Real::default();
    let call = libc::SYS_ppoll;
    let flags = PollFlags::POLLIN;
    let one = [PollFd::new(listener.as_fd(), flags)];
    let (text, known) = real.call(call, [one.as_ptr() as u64, 1, 0]);
    let here = listener.local_addr().unwrap();
    assert_eq!(text, format!("poll of tcp listening on {here}"));
    assert_eq!(known, Some((Role::Listening, None)));
    let two = [
        PollFd::new(listener.as_fd(), flags),
        PollFd::new(client.as_fd(), flags),
    ];
    let (text, _) = real.call(call, [two.as_ptr() as u64, 2, 0]);
    assert_eq!(text, "poll of 2 sockets, 1 listening");
    let (text, known) = real.call(call, [0, 0, 0]);
    assert_eq!((text.as_str(), known), (Wait::NO_DESCRIPTORS, None));
    assert_eq!(real.of(call, [8, 2, 0]), NameId(0));
    drop(server);
}

#[test]
fn a_select_is_what_the_sockets_in_its_sets_are() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut real = Real::default();
    let number = fd(&listener);
    let mut set = [0_u64; 16];
    set[usize::try_from(number / 64).unwrap()] |= 1 << (number % 64);
    let call = libc::SYS_pselect6;
    let (text, known) = real.call(call, [number + 1, set.as_ptr() as u64, 0]);
    let here = listener.local_addr().unwrap();
    assert_eq!(text, format!("poll of tcp listening on {here}"));
    assert_eq!(known, Some((Role::Listening, None)));
    let (text, _) = real.call(call, [0, 0, 0]);
    assert_eq!(text, Wait::NO_DESCRIPTORS);
}

#[test]
fn sockets_of_another_network_namespace_are_those_of_the_thread_that_is_in_it() {
    let here = TcpListener::bind("0.0.0.0:0").unwrap();
    let here = here.local_addr().unwrap();
    // Of this thread only.
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        eprintln!("skipped: may not make a network namespace");
        return;
    }
    // Free there, though taken here.
    let there = TcpListener::bind(here).unwrap();
    let (left, right) = UnixStream::pair().unwrap();
    let tid = u32::try_from(nix::unistd::gettid().as_raw()).unwrap();
    let mut real = Real {
        namespace_of: Some(tid),
        ..Real::default()
    };
    let (text, known) = real.socket(&there);
    assert_eq!(text, format!("tcp listening on {here}"));
    assert_eq!(known, Some((Role::Listening, None)));
    let other = Other::with(right);
    let (_, role, peer) = real.peer_of(&left);
    assert_eq!((role, peer), (Role::Connected, other.pid()));
}

#[test]
fn what_is_no_socket_is_a_path_and_what_is_gone_is_nothing() {
    let mut real = Real::default();
    let null = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(real.socket(&null), ("/dev/null".to_string(), None));
    for call in [libc::SYS_read, libc::SYS_epoll_pwait] {
        let name = real.of(call, [1 << 30, 0, 0]);
        assert!(["", "epoll of no sockets"].contains(&real.text(name)));
        assert_eq!(real.role_and_peer(name), None);
    }
    assert_eq!(real.of(libc::SYS_futex, [1, 0, 0]), NameId(0));
}

//! Targets that want to harm gdiag: it neither crashes nor hangs nor grows, and says it in a line.

use std::env;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use gdiag_shim_layout::ring::{self, Producer};
use gdiag_shim_layout::{
    kind, state, ApiRecord, Control, DeviceRecord, KernelRecord, LostRecord, MemcpyRecord,
    NameRecord, RecordHeader, StateRecord, MEMFD_NAME, RING_OFFSET, THREAD_NAME,
};
use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::sys::memfd::{memfd_create, MFdFlags};
use zerocopy::IntoBytes;

use super::support::{
    beside_others, can_run, gdiag, harmed, has_begun, memory_kb, recorder, wait_until, Process,
    Random, Recorded, UNHARMED,
};

const KIND: &str = "GDIAG_TEST_HOSTILE";
const RING: u64 = 1 << 20;

/// The hostile program; the tests below run it as a process of its own.
#[test]
#[ignore = "started by the other tests"]
fn hostile_program() {
    let kind = env::var(KIND).unwrap();
    // Waits until it is watched.
    println!("> ready");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let go_on = match kind.as_str() {
        "no memory" => Vec::new(),
        "garbage" => {
            let file = memfd(RING_OFFSET + RING, true);
            let mut random = Random(7);
            let bytes: Vec<u8> = (0..8192).map(|_| random.below(256) as u8).collect();
            file.write_all_at(&bytes, 0).unwrap();
            vec![map(&file, RING_OFFSET + RING)]
        }
        "huge" => {
            let file = memfd(1 << 40, true);
            let base = map(&file, RING_OFFSET + RING);
            format_as(base, 1 << 39);
            vec![base]
        }
        "tiny" => vec![map(&memfd(4096, true), 4096)],
        "shrinks" => {
            let file = memfd(RING_OFFSET + RING, false);
            let base = map(&file, RING_OFFSET + RING);
            format_as(base, RING);
            name_a_thread(THREAD_NAME);
            loop {
                // Our own mapping is not touched any more.
                file.set_len(0).unwrap();
                file.set_len(RING_OFFSET + RING).unwrap();
            }
        }
        "a file" => {
            let path = Path::new(&env::var("DIR").unwrap()).join(format!("memfd:{MEMFD_NAME}"));
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)
                .unwrap();
            file.set_len(RING_OFFSET + RING).unwrap();
            let base = map(&file, RING_OFFSET + RING);
            format_as(base, RING);
            std::fs::remove_file(path).unwrap();
            vec![base]
        }
        "lies" => lies(),
        "names" => names(),
        "claimed" => {
            let base = sealed_ring();
            // By init, which lives, but did not start then; gdiag does not fall for it.
            control(base)
                .collector
                .store((1 << 32) | 12345, Ordering::Relaxed);
            vec![base]
        }
        "renames" => loop {
            name_a_thread(THREAD_NAME);
        },
        other => panic!("{other}"),
    };
    name_a_thread(THREAD_NAME);
    // Until the test is done.
    let _ = std::io::stdin().read_exact(&mut [0]);
    drop(go_on);
}

fn memfd(len: u64, seal: bool) -> File {
    let file = File::from(memfd_create(MEMFD_NAME, MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(len).unwrap();
    if seal {
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    }
    file
}

fn map(file: &File, len: u64) -> usize {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping that is never given back.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len as usize,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    base as usize
}

fn control(base: usize) -> &'static Control {
    // SAFETY: a mapping with room for it, never given back.
    unsafe { &*(base as *const Control) }
}

/// A header that claims so many bytes.
fn format_as(base: usize, ring_bytes: u64) {
    let pointer = NonNull::new(base as *mut u8).unwrap();
    // SAFETY: the mapping has that much.
    unsafe { ring::format(pointer, (RING_OFFSET + RING) as usize, RING) }.unwrap();
    control(base)
        .ring_bytes
        .store(ring_bytes, Ordering::Relaxed);
}

fn sealed_ring() -> usize {
    let base = map(&memfd(RING_OFFSET + RING, true), RING_OFFSET + RING);
    format_as(base, RING);
    control(base).state.store(state::ACTIVE, Ordering::Relaxed);
    base
}

fn name_a_thread(name: &str) {
    let name = std::ffi::CString::new(name).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a C string.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) }
        });
    });
}

fn header<T>(kind: u16, aux: u32) -> RecordHeader {
    RecordHeader {
        size: size_of::<T>() as u16,
        kind,
        aux,
    }
}

/// True records, then records of any content, then a header and a ring that change all the time.
fn lies() -> ! {
    let base = sealed_ring();
    name_a_thread(THREAD_NAME);
    let shared = control(base);
    wait_until("gdiag comes", || shared.beat.load(Ordering::Relaxed) > 0);
    let pointer = NonNull::new(base as *mut u8).unwrap();
    // SAFETY: mapped for good; no other producer here.
    let mut producer = unsafe { Producer::new(pointer, (RING_OFFSET + RING) as usize) }.unwrap();
    shared.lost_ring.store(u64::MAX, Ordering::Relaxed);
    shared.lost_cupti.store(u64::MAX, Ordering::Relaxed);
    let mut random = Random(99);
    for _ in 0..20_000 {
        let words = 1 + random.below(20) as usize;
        let mut record: Vec<u64> = (0..words)
            .map(|_| match random.below(4) {
                0 => u64::MAX,
                1 => 0,
                _ => random.below(u64::MAX),
            })
            .collect();
        let hdr = RecordHeader {
            size: (8 * words) as u16,
            kind: random.below(14) as u16,
            aux: random.below(u64::from(u32::MAX)) as u32,
        };
        record[0] = u64::from_ne_bytes(hdr.as_bytes().try_into().unwrap());
        producer.push(record.as_bytes());
    }
    // Sums of these must not overflow. By the ring and by CUPTI:
    for (count, by) in [(u64::MAX, 0), (u64::MAX, 1), (1, 0)] {
        let lost = LostRecord {
            hdr: header::<LostRecord>(kind::LOST, by),
            count,
            from: 1,
            to: u64::MAX,
        };
        producer.push(lost.as_bytes());
    }
    wait_until("all is read", || producer.unread() == 0);
    let words = |at: usize| {
        // SAFETY: aligned, and inside the mapping.
        unsafe { &*((base + at) as *const AtomicU64) }
    };
    loop {
        let at = random.below((RING_OFFSET + RING) / 8) as usize * 8;
        words(at).store(random.below(u64::MAX), Ordering::Relaxed);
        shared
            .head
            .store(random.below(1 << 40) * 8, Ordering::Relaxed);
        shared
            .ring_bytes
            .store(random.below(u64::MAX), Ordering::Relaxed);
        shared
            .magic
            .store(random.below(u64::MAX), Ordering::Relaxed);
        std::thread::yield_now();
    }
}

fn realtime() -> u64 {
    gdiag::collect::clock::realtime().0
}

/// Kernels, a device and a reason with names that no terminal should see.
fn names() -> ! {
    let base = sealed_ring();
    let shared = control(base);
    shared.reason.set(b"\x1b]0;owned\x07\nreason\xff");
    name_a_thread(THREAD_NAME);
    wait_until("gdiag comes", || shared.beat.load(Ordering::Relaxed) > 0);
    let pointer = NonNull::new(base as *mut u8).unwrap();
    // SAFETY: mapped for good; no other producer here.
    let mut producer = unsafe { Producer::new(pointer, (RING_OFFSET + RING) as usize) }.unwrap();
    let mut device = DeviceRecord {
        hdr: header::<DeviceRecord>(kind::DEVICE, 0),
        uuid: [7; 16],
        name: [0; 96],
    };
    device.name[..12].copy_from_slice(b"\x1b[31mDEVICE\n");
    assert!(producer.push(device.as_bytes()));
    let evil = [
        b"\x1b[2J\x1b[1;1H\nkernel\r\t\x00x".to_vec(),
        b"\xff\xfe\x80".to_vec(),
        "\u{202e}\u{9b}31m".as_bytes().to_vec(),
        vec![b'k'; 20_000],
        [
            b"void f<".to_vec(),
            b"std::tuple<".repeat(1_700),
            b">".to_vec(),
        ]
        .concat(),
        [b"_Z".to_vec(), b"N1a".repeat(6_000)].concat(),
    ];
    let mut correlation = 0;
    while shared.wanted.load(Ordering::Relaxed) == 1 {
        for (id, text) in (1u32..).zip(&evil) {
            let size = (size_of::<NameRecord>() + text.len()).next_multiple_of(8);
            let mut hdr = header::<NameRecord>(kind::NAME, id);
            hdr.size = size as u16;
            let name = NameRecord {
                hdr,
                len: text.len() as u32,
                pad: 0,
            };
            let mut bytes = [name.as_bytes(), text].concat();
            bytes.resize(size, 0);
            producer.push(&bytes);
            correlation += 1;
            let now = realtime();
            let call = ApiRecord {
                hdr: header::<ApiRecord>(kind::API, 307),
                start: now - 5_000,
                end: now - 4_000,
                tid: std::process::id(),
                correlation,
                domain: 4,
                result: 0,
            };
            producer.push(call.as_bytes());
            let kernel = KernelRecord {
                hdr: header::<KernelRecord>(kind::KERNEL, id),
                start: now - 3_000,
                end: now - 1_000,
                device: 0,
                context: 1,
                stream: 1,
                correlation,
                node: 0,
                graph: 0,
                pad: 0,
            };
            producer.push(kernel.as_bytes());
            // More bytes than there are, twice: sums must not overflow.
            let copy = MemcpyRecord {
                hdr: header::<MemcpyRecord>(kind::MEMCPY, 1),
                start: now - 900,
                end: now - 100,
                bytes: u64::MAX,
                device: 0,
                context: 1,
                stream: 1,
                correlation: 0,
                node: 0,
                graph: 0,
                pad: 0,
            };
            producer.push(copy.as_bytes());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let failed = StateRecord {
        hdr: header::<StateRecord>(kind::STATE, state::FAILED),
        time: realtime(),
    };
    producer.push(failed.as_bytes());
    shared.state.store(state::FAILED, Ordering::Release);
    let _ = std::io::stdin().read_exact(&mut [0]);
    std::process::exit(0);
}

/// A hostile process that is recorded for a while: what gdiag said, and its memory at most, in kB.
fn attacked(kind: &str, dir: &Path, duration: &str) -> (Output, u64) {
    let mut program = Command::new(env::current_exe().unwrap());
    program
        .args([
            "hostile::hostile_program",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(KIND, kind)
        .env("DIR", dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = program.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let file = dir.join("data");
    let pid = child.id().to_string();
    let mut recording = Process::start(
        recorder(&file, &["-p", &pid, "-d", duration])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    wait_until("it records", || has_begun(&file));
    input.write_all(b"!").unwrap();
    let mut most = 0;
    wait_until("the recording ends", || {
        most = most.max(memory_kb(recording.pid(), "VmHWM"));
        !recording.is_running()
    });
    let output = recording.end();
    child.kill().unwrap();
    child.wait().unwrap();
    (output, most)
}

#[test]
fn memory_that_is_no_shims_is_refused_in_a_line() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    for (kind, said) in [
        ("no memory", "has a thread named gdiag-shim, but no shim"),
        ("garbage", "cannot be used: "),
        ("huge", "has 1099511627776 bytes"),
        ("tiny", "cannot be used: "),
        ("shrinks", "is not sealed against shrinking"),
        ("a file", "has a thread named gdiag-shim, but no shim"),
        ("renames", "has a thread named gdiag-shim, but no shim"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (output, most) = attacked(kind, dir.path(), "500ms");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{kind}: {output:?}");
        assert_eq!(stderr.matches(said).count(), 1, "{kind}: {stderr}");
        assert!(most < 400_000, "{kind}: {most} kB");
        assert!(Recorded::read(&dir.path().join("data")).unwrap().whole);
    }
}

#[test]
fn a_shim_that_lies_is_left_in_a_line() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    let dir = tempfile::tempdir().unwrap();
    let (output, most) = attacked("lies", dir.path(), "2s");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    // It may also have claimed that another gdiag took over.
    assert_eq!(
        stderr.matches("its GPU records end here").count(),
        1,
        "{stderr}"
    );
    assert!(most < 400_000, "{most} kB");
    let report = gdiag()
        .args(["report", "-i"])
        .arg(dir.path().join("data"))
        .output()
        .unwrap();
    assert!(report.status.success(), "{report:?}");
}

#[test]
fn a_false_owner_does_not_keep_gdiag_away() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    let dir = tempfile::tempdir().unwrap();
    let (output, _) = attacked("claimed", dir.path(), "300ms");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("another gdiag"), "{stderr}");
}

#[test]
fn names_do_no_harm_to_a_terminal_or_a_reader_of_json() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    let dir = tempfile::tempdir().unwrap();
    let (output, _) = attacked("names", dir.path(), "500ms");
    assert!(output.status.success(), "{output:?}");
    let file = dir.path().join("data");
    assert!(!Recorded::read(&file).unwrap().ops.is_empty());
    let text = gdiag().args(["report", "-i"]).arg(&file).output().unwrap();
    for bytes in [&output.stdout, &output.stderr, &text.stdout, &text.stderr] {
        let text = String::from_utf8(bytes.clone()).unwrap();
        let bad = text
            .chars()
            .find(|c| c.is_control() && *c != '\n' || *c == '\u{202e}');
        assert_eq!(bad, None, "{text}");
        assert!(
            text.lines().all(|line| line.len() < 1_000),
            "cut in the view"
        );
    }
    let json = super::support::report(&file);
    let kernels = json["kernels"].as_array().unwrap();
    assert!(
        kernels
            .iter()
            .any(|k| k["name"].as_str().unwrap().len() >= 20_000),
        "whole in the JSON"
    );
}

#[test]
fn threads_and_command_lines_of_any_content_are_recorded() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data");
    let log = dir.path().join("log");
    let job = [
        "--",
        harmed().to_str().unwrap(),
        "names",
        log.to_str().unwrap(),
    ];
    let long = "x".repeat(120_000);
    let mut command = recorder(&file, &job);
    let output = command.args(vec![long; 14]).output().unwrap();
    assert_eq!(output.status.code(), Some(UNHARMED), "{output:?}");
    let recorded = Recorded::read(&file).unwrap();
    let longest = recorded.names.values().map(String::len).max();
    assert!(longest < Some(100_000), "{longest:?}");
    assert!(recorded.names.values().any(|name| *name == ";".repeat(15)));
    let text = gdiag().args(["report", "-i"]).arg(&file).output().unwrap();
    assert!(text.status.success());
    let text = String::from_utf8(text.stdout).unwrap();
    let bad = text.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(bad, None, "{text}");
    assert!(text.len() < 100_000, "{} bytes", text.len());
}

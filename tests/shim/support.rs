//! A program for the shim to be in, and a collector as small as can be.

use std::collections::HashMap;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gdiag_shim_layout::ring::{Consumer, Scratch};
use gdiag_shim_layout::{
    kind, ApiRecord, Control, DeviceRecord, KernelRecord, LostRecord, MemcpyRecord, MemsetRecord,
    MigrationRecord, NameRecord, RecordHeader, SyncRecord, BEAT_MS, MEMFD_NAME,
};
use zerocopy::FromBytes;

/// Nothing here takes longer, however busy the machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Address space that the shim reserves for CUPTI's buffers.
const POOL_BYTES: u64 = 64 << 20;

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Directory of the simulated libcuda; says why when there is none.
fn simgpu() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let dir = env::var_os("GDIAG_SIMGPU").map_or_else(|| target.join("simgpu"), PathBuf::from);
    if dir.join("libcuda.so.1").exists() {
        return Some(dir);
    }
    let required =
        env::var("GDIAG_REQUIRE").is_ok_and(|list| list.split(',').any(|need| need == "simgpu"));
    assert!(!required, "{} has no libcuda.so.1", dir.display());
    println!("skipped: needs the simulated GPU (make simgpu)");
    None
}

/// The program in a process of its own, killed when dropped.
#[derive(Debug)]
pub struct Target {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Target {
    /// `None`, with a word why, when this machine has no simulated GPU or no root.
    pub fn start(env: &[(&str, &str)]) -> Option<Target> {
        let shim = ("CUDA_INJECTION64_PATH", env!("GDIAG_SHIM_SO"));
        Target::start_without_shim(&[&[shim], env].concat())
    }

    /// Likewise, but the driver loads nothing.
    pub fn start_without_shim(env: &[(&str, &str)]) -> Option<Target> {
        let simgpu = simgpu()?;
        if fs::read_dir("/proc/self/map_files").is_err() {
            println!("skipped: needs root");
            return None;
        }
        // As gdiag does, by which a launched program knows that it lives.
        static LOCK: OnceLock<File> = OnceLock::new();
        LOCK.get_or_init(|| {
            let file = File::open(env!("GDIAG_SHIM_SO")).unwrap();
            // SAFETY: a plain call on an open descriptor.
            assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
            file
        });
        let mut child = Command::new(env::current_exe().unwrap())
            .args([
                "program",
                "--exact",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("GDIAG_TEST_LIBCUDA", simgpu.join("libcuda.so.1"))
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut target = Target {
            child,
            stdin,
            stdout,
        };
        assert_eq!(target.answer(), "ready");
        Some(target)
    }

    fn answer(&mut self) -> String {
        // The test harness of the program writes to the same output.
        loop {
            let mut line = String::new();
            assert_ne!(
                self.stdout.read_line(&mut line).unwrap(),
                0,
                "the program ended early"
            );
            if let Some((_, answer)) = line.trim_end().split_once("> ") {
                return answer.to_string();
            }
        }
    }

    pub fn ask(&mut self, command: &str) -> String {
        writeln!(self.stdin.as_mut().unwrap(), "{command}").unwrap();
        self.answer()
    }

    /// Has the program return from main.
    pub fn exit(&mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.child.id()))
    }

    /// Range of the shared memory, as in the maps.
    pub fn shim_memory(&self) -> Option<String> {
        let maps = fs::read_to_string(self.proc("maps")).unwrap();
        let name = format!("/memfd:{MEMFD_NAME} (deleted)");
        maps.lines()
            .find(|line| line.ends_with(&name))
            .and_then(|line| line.split(' ').next())
            .map(str::to_string)
    }

    /// Bytes in memory of the ring with its control block, and of the buffers for CUPTI.
    pub fn shim_resident(&self) -> (u64, u64) {
        let smaps = fs::read_to_string(self.proc("smaps")).unwrap();
        let (mut ring, mut pool) = (0, 0);
        let (mut of_ring, mut of_pool) = (false, false);
        for line in smaps.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match *words.as_slice() {
                [range, "rw-s", ..] if range.contains('-') => {
                    (of_ring, of_pool) = (line.contains(&format!("/memfd:{MEMFD_NAME} ")), false);
                }
                [range, "rw-p", _, _, "0", ..] if range.contains('-') => {
                    let (from, to) = range.split_once('-').unwrap();
                    let at = |hex| u64::from_str_radix(hex, 16).unwrap();
                    // The kernel may have joined it with a neighbour.
                    (of_ring, of_pool) = (false, at(to) - at(from) >= POOL_BYTES);
                }
                [range, ..] if range.contains('-') => (of_ring, of_pool) = (false, false),
                ["Rss:", kib, "kB"] if of_ring => ring += kib.parse::<u64>().unwrap() << 10,
                ["Rss:", kib, "kB"] if of_pool => pool += kib.parse::<u64>().unwrap() << 10,
                _ => {}
            }
        }
        (ring, pool)
    }

    pub fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(self.proc("task")).unwrap().flatten();
        tasks
            .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
            .map(|c| c.trim().into())
            .collect()
    }

    /// Scheduling policies of the shim's threads, as in sched(7).
    pub fn shim_policies(&self) -> Vec<u32> {
        let stats = fs::read_dir(self.proc("task")).unwrap().flatten();
        let stats = stats.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        let policy = |stat: String| {
            let (name, rest) = stat.rsplit_once(") ")?;
            let fields: Vec<&str> = rest.split(' ').collect();
            // Field 41, and the first of these is the third.
            (name.ends_with("(gdiag-shim")).then(|| fields[41 - 3].parse().unwrap())
        };
        stats.filter_map(policy).collect()
    }

    pub fn wait_until(&self, what: &str, condition: impl Fn(&Target) -> bool) {
        wait_until(what, || condition(self));
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came out of the ring.
#[derive(Debug, Default)]
pub struct Records {
    /// Kinds in the order of their coming.
    pub order: Vec<u16>,
    pub states: Vec<u32>,
    pub devices: Vec<DeviceRecord>,
    pub names: HashMap<u32, String>,
    pub kernels: Vec<KernelRecord>,
    pub memcpys: Vec<MemcpyRecord>,
    pub memsets: Vec<MemsetRecord>,
    pub migrations: Vec<MigrationRecord>,
    pub calls: Vec<ApiRecord>,
    pub syncs: Vec<SyncRecord>,
    pub lost: Vec<LostRecord>,
}

impl Records {
    fn add(&mut self, kind: u16, bytes: &[u8]) {
        self.order.push(kind);
        match kind {
            kind::NAME => {
                let (name, text) = NameRecord::read_from_prefix(bytes).unwrap();
                let text = String::from_utf8(text[..name.len as usize].to_vec()).unwrap();
                self.names.insert(name.hdr.aux, text);
            }
            kind::KERNEL => {
                let kernel = KernelRecord::read_from_bytes(bytes).unwrap();
                assert!(self.names.contains_key(&kernel.hdr.aux), "name after use");
                self.kernels.push(kernel);
            }
            kind::MEMCPY => self
                .memcpys
                .push(MemcpyRecord::read_from_bytes(bytes).unwrap()),
            kind::MEMSET => self
                .memsets
                .push(MemsetRecord::read_from_bytes(bytes).unwrap()),
            kind::MIGRATION => self
                .migrations
                .push(MigrationRecord::read_from_bytes(bytes).unwrap()),
            kind::API => self.calls.push(ApiRecord::read_from_bytes(bytes).unwrap()),
            kind::SYNC => self.syncs.push(SyncRecord::read_from_bytes(bytes).unwrap()),
            kind::DEVICE => self
                .devices
                .push(DeviceRecord::read_from_bytes(bytes).unwrap()),
            kind::LOST => self.lost.push(LostRecord::read_from_bytes(bytes).unwrap()),
            kind::STATE => self
                .states
                .push(RecordHeader::read_from_prefix(bytes).unwrap().0.aux),
            _ => {}
        }
    }

    pub fn append(&mut self, mut later: Records) {
        self.order.append(&mut later.order);
        self.states.append(&mut later.states);
        self.devices.append(&mut later.devices);
        self.names.extend(later.names);
        self.kernels.append(&mut later.kernels);
        self.memcpys.append(&mut later.memcpys);
        self.memsets.append(&mut later.memsets);
        self.migrations.append(&mut later.migrations);
        self.calls.append(&mut later.calls);
        self.syncs.append(&mut later.syncs);
        self.lost.append(&mut later.lost);
    }
}

/// gdiag's side: maps the memory and beats as long as it is not told to stop.
#[derive(Debug)]
pub struct Collector {
    consumer: Consumer,
    scratch: Box<Scratch>,
    breathing: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    heart: Option<JoinHandle<()>>,
    /// Names of the session so far.
    names: HashMap<u32, String>,
    _file: File,
}

impl Collector {
    pub fn attach(target: &Target) -> Collector {
        let mut range = None;
        wait_until("the shared memory is there", || {
            range = target.shim_memory();
            range.is_some()
        });
        // The name of the thread says that the memory is complete.
        target.wait_until("the thread has its name", |target| {
            target.threads().iter().any(|name| name == "gdiag-shim")
        });
        let path = target.proc("map_files").join(range.unwrap());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let len = file.metadata().unwrap().len() as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that cannot shrink.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        let base = NonNull::new(base.cast()).unwrap();
        // SAFETY: `len` bytes that are never unmapped, and the file is sealed.
        let (consumer, heart) = unsafe {
            (
                Consumer::new(base, len).unwrap(),
                Consumer::new(base, len).unwrap(),
            )
        };
        let breathing = Arc::new(AtomicBool::new(true));
        let ended = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (breathing, ended) = (Arc::clone(&breathing), Arc::clone(&ended));
            move || {
                while !ended.load(Ordering::Relaxed) {
                    if breathing.load(Ordering::Relaxed) {
                        heart.control().beat.fetch_add(1, Ordering::Relaxed);
                    }
                    thread::sleep(Duration::from_millis(BEAT_MS / 2));
                }
            }
        });
        Collector {
            consumer,
            scratch: Box::default(),
            breathing,
            ended,
            heart: Some(thread),
            names: HashMap::new(),
            _file: file,
        }
    }

    pub fn control(&self) -> &Control {
        self.consumer.control()
    }

    pub fn state(&self) -> u32 {
        self.control().state.load(Ordering::Acquire)
    }

    pub fn reason(&self) -> String {
        String::from_utf8(self.control().reason.get(&mut [0; 256]).to_vec()).unwrap()
    }

    pub fn wait_for(&self, state: u32) {
        wait_until(
            &format!("state {state}, now {} {}", self.state(), self.reason()),
            || self.state() == state,
        );
    }

    /// Looks again and again for a while.
    pub fn watch(&self, time: Duration, look: impl Fn(&Collector)) {
        let start = Instant::now();
        while start.elapsed() < time {
            look(self);
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Takes over, as a collector does that just started.
    pub fn begin(&mut self) {
        self.names.clear();
        self.control().session.fetch_add(1, Ordering::AcqRel);
        self.set_wanted(1);
    }

    pub fn stop(&self) {
        self.set_wanted(0);
    }

    fn set_wanted(&self, wanted: u32) {
        let word = &self.control().wanted;
        word.store(wanted, Ordering::Release);
        // SAFETY: the word lives in the mapping.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    pub fn hold_breath(&self) {
        self.breathing.store(false, Ordering::Relaxed);
    }

    pub fn breathe(&self) {
        self.breathing.store(true, Ordering::Relaxed);
    }

    /// All that is there now.
    pub fn read(&mut self) -> Records {
        self.read_until(|_| true)
    }

    /// All up to the moment when there is enough.
    pub fn read_until(&mut self, enough: impl Fn(&Records) -> bool) -> Records {
        let mut records = Records {
            names: self.names.clone(),
            ..Records::default()
        };
        wait_until("enough records", || {
            self.consumer
                .drain(&mut self.scratch, |kind, bytes| records.add(kind, bytes))
                .unwrap();
            enough(&records)
        });
        self.names.clone_from(&records.names);
        records
    }

    /// Waits for a flush after this moment.
    pub fn wait_until_unread(&self) {
        let before = self.consumer.unread();
        wait_until("the shim flushes", || {
            self.consumer.unread() > before + 50 * 56
        });
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(heart) = self.heart.take() {
            let _ = heart.join();
        }
    }
}

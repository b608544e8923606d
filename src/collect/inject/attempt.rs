//! One injection, from the first look at the process to the loaded library.
#![forbid(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd as _;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::code::{state, Block, Mail, Resume};
use super::libraries::{Functions, Libraries, Memory, NoLibrary, Region};
use super::tracee::{Held, NotHeld};
use super::waits::{GoOn, Waiter};
use super::{code, libraries, seccomp, waits, Failure, Injected};
use crate::collect::shim_file::SHIM;
use crate::event::Tid;
use crate::units::Nanos;

/// Threads that are tried.
const THREADS: usize = 12;

/// A thread that waits stops at once, unless its CPU is taken.
const HOLD_WITHIN: Duration = Duration::from_millis(200);

/// It may have to wait for a CPU, or for the allocator's lock.
const THREAD_WITHIN: Duration = Duration::from_secs(2);

/// Another thread may have the loader's lock: the libraries of a large program take seconds.
const LOADED_WITHIN: Duration = Duration::from_secs(10);

/// What `pthread_create` and signal handlers may need of a stack, beside what is written to it.
const STACK: u64 = 24 << 10;

/// A handler deeper in the stack than this is not looked for.
const MOST_STACK: u64 = 256 << 10;

impl From<NotHeld> for Failure {
    fn from(why: NotHeld) -> Failure {
        match why {
            NotHeld::Gone => Failure::Gone,
            NotHeld::Refused(e) => Failure::Refused(e),
            NotHeld::Stopped => Failure::Stopped,
            NotHeld::Late => Failure::NoThread,
        }
    }
}

fn inaccessible(what: &str, e: &io::Error) -> Failure {
    match e.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) => Failure::Gone,
        Some(libc::EPERM | libc::EACCES) => Failure::Refused(Errno::EPERM),
        _ => Failure::Unreadable(format!("cannot {what}: {e}")),
    }
}

pub(super) fn inject(proc_pid: u32) -> Result<Injected, Failure> {
    let begun = Instant::now();
    let target = Target::look_at(proc_pid)?;
    let mut why = Failure::NoThread;
    for waiter in waits::find(proc_pid, THREADS) {
        match target.try_thread(waiter) {
            Ok(begun_here) => {
                let held = target.finish(&begun_here)?;
                return Ok(Injected {
                    through: waiter.tid,
                    held,
                    took: nanos(begun.elapsed()),
                });
            }
            Err(Try::Next) => {}
            // Only one tracer thread may be left with a thread that does not stop.
            Err(Try::Failed(failure)) => {
                why = failure;
                break;
            }
        }
    }
    Err(why)
}

/// What became of one thread.
enum Try {
    /// It is as it was: another one may do.
    Next,
    /// No other one will do.
    Failed(Failure),
}

/// A thread was sent off.
struct SentOff {
    interrupted: SystemTime,
}

/// Looks whether it could be done now, and touches nothing. What only a thread that is held tells, its system call
/// filters, is not known then.
pub(super) fn inspect(proc_pid: u32) -> Result<(), Failure> {
    let look = Look::at(proc_pid)?;
    let Look {
        libraries, memory, ..
    } = &look;
    code_place(libraries, memory)?;
    match waits::find(proc_pid, THREADS).is_empty() {
        true => Err(Failure::NoThread),
        false => Ok(()),
    }
}

/// What is known of the process before anything is written into it.
struct Look {
    memory: Memory,
    libraries: Libraries,
    regions: Vec<Region>,
    functions: Functions,
    mail_address: u64,
    token: u64,
    vector_bytes: usize,
}

/// What is known of the process before any of its threads is touched.
struct Target {
    proc_pid: u32,
    memory: Memory,
    regions: Vec<Region>,
    functions: Functions,
    signal_return: Option<u64>,
    /// Where the code is.
    code: u64,
    mail_address: u64,
    token: u64,
    vector_bytes: usize,
}

impl Look {
    fn at(proc_pid: u32) -> Result<Look, Failure> {
        let status = waits::status(proc_pid, Tid(proc_pid)).ok_or(Failure::Gone)?;
        match status {
            _ if status.tracer != 0 => return Err(Failure::Traced(status.tracer)),
            _ if status.shadow_stack => return Err(Failure::ShadowStack),
            _ => match status.state {
                b'T' | b't' => return Err(Failure::Stopped),
                b'Z' | b'X' => return Err(Failure::Gone),
                _ => {}
            },
        }
        let vector_bytes = code::vector_bytes().ok_or(Failure::NoRoom("its vector registers"))?;
        let memory = Memory::open(proc_pid).map_err(|e| inaccessible("read its memory", &e))?;
        let libraries =
            Libraries::of(proc_pid).map_err(|e| inaccessible("read its memory map", &e))?;
        let functions = libraries.functions().map_err(|why| match why {
            NoLibrary::NotGlibc => Failure::NotGlibc,
            NoLibrary::Unreadable => Failure::Unreadable("cannot read its C library".into()),
        })?;
        let regions =
            libraries::regions(proc_pid).map_err(|e| inaccessible("read its memory map", &e))?;
        let token = random();
        let mail_address = libraries::free_page(&regions, token)
            .ok_or(Failure::NoRoom("a page in its address space"))?;
        Ok(Look {
            memory,
            libraries,
            regions,
            functions,
            mail_address,
            token,
            vector_bytes,
        })
    }
}

impl Target {
    fn look_at(proc_pid: u32) -> Result<Target, Failure> {
        let look = Look::at(proc_pid)?;
        let code = put_code(&look.libraries, &look.memory)?;
        Ok(Target {
            proc_pid,
            memory: look.memory,
            regions: look.regions,
            functions: look.functions,
            signal_return: look.libraries.signal_return(),
            code,
            mail_address: look.mail_address,
            token: look.token,
            vector_bytes: look.vector_bytes,
        })
    }

    /// Interrupts a thread and sends it off with everything that it needs.
    fn try_thread(&self, waiter: Waiter) -> Result<SentOff, Try> {
        if self.in_handler(waiter.sp) || self.is_near_guard(waiter.sp) {
            return Err(Try::Next);
        }
        let interrupted = SystemTime::now();
        let held = match Held::hold(waiter.tid, HOLD_WITHIN) {
            Ok(held) => held,
            // A thread may end at any time, its process goes on.
            Err(NotHeld::Gone) => return Err(Try::Next),
            Err(why) => return Err(Try::Failed(why.into())),
        };
        let registers = held.registers().map_err(|_| Try::Next)?;
        if let Err(why) = self.may_call(waiter.tid) {
            return Err(Try::Failed(why));
        }
        let Some((block, at)) = self.prepare(waiter, &registers) else {
            return Err(Try::Next);
        };
        let top = code::top(registers.rsp);
        let resume = resume(&registers).rip;
        // Behind the block: where the vector registers go, whose header has to be zero.
        let mut bytes = block.as_bytes().to_vec();
        bytes.resize(size_of::<Block>() + 576, 0);
        let written = self
            .memory
            .write(at, &bytes)
            .and_then(|()| self.memory.write(top, &resume.to_ne_bytes()));
        if written.is_err() {
            return Err(Try::Next);
        }
        let off = libc::user_regs_struct {
            rip: self.code + code::ENTRY,
            rsp: at,
            // The kernel has no call to make again.
            orig_rax: u64::MAX,
            ..registers
        };
        held.go(off).map_err(|_| Try::Next)?;
        Ok(SentOff { interrupted })
    }

    /// Whether no filter of a stopped thread would kill it.
    fn may_call(&self, tid: Tid) -> Result<(), Failure> {
        let filtered = waits::status(self.proc_pid, tid).is_none_or(|status| status.seccomp);
        if !filtered {
            return Ok(());
        }
        match seccomp::forbids(tid) {
            Ok(None) => Ok(()),
            Ok(Some(call)) => Err(Failure::Filtered(call)),
            Err(_) => Err(Failure::Filtered("")),
        }
    }

    /// What goes onto the stack of a thread that has stopped, and where; `None` if it does not wait
    /// as it did when it was chosen.
    fn prepare(&self, waiter: Waiter, registers: &libc::user_regs_struct) -> Option<(Block, u64)> {
        let args = [
            registers.rdi,
            registers.rsi,
            registers.rdx,
            registers.r10,
            registers.r8,
            registers.r9,
        ];
        waits::suits(registers.orig_rax, &args)?;
        // 64-bit code, right behind a `syscall`.
        let mut instruction = [0; 2];
        self.memory
            .read(registers.rip.wrapping_sub(2), &mut instruction)
            .ok()?;
        if registers.cs != 0x33 || instruction != [0x0f, 0x05] || registers.rsp != waiter.sp {
            return None;
        }
        let status = waits::status(self.proc_pid, waiter.tid)?;
        if status.signalled {
            return None;
        }
        let at = self.block_at(registers.rsp)?;
        let stack = self.stack(registers.rsp, registers.fs_base)?;
        if at < stack {
            return None;
        }
        let block = code::block(
            registers,
            resume(registers),
            self.mail_address,
            self.functions.pthread_create,
            self.mail(),
        );
        Some((block, at))
    }

    /// Where the block goes, with the vector registers behind it.
    fn block_at(&self, rsp: u64) -> Option<u64> {
        let size = size_of::<Block>() as u64 + self.vector_bytes as u64;
        Some(code::top(rsp).checked_sub(size)? & !63)
    }

    /// Below what address nothing may be written. A thread's own stack, and no other memory that a
    /// program may run on (coroutines have little of it, side by side): glibc keeps what belongs to a
    /// thread at the end of its stack.
    fn stack(&self, rsp: u64, fs_base: u64) -> Option<u64> {
        let region = libraries::region_of(&self.regions, rsp).filter(|r| r.writable)?;
        if region.main_stack {
            // It grows.
            return Some(region.range.start);
        }
        let own = region.range.contains(&fs_base) && rsp < fs_base;
        own.then(|| region.range.start.saturating_add(STACK))
    }

    /// Whether what is needed of a stack reaches its guard. Since 2.42 the C library makes that by
    /// madvise, and the map does not show it: the stack seems to go on with what lies below.
    fn is_near_guard(&self, sp: u64) -> bool {
        match libraries::region_of(&self.regions, sp) {
            Some(region) if !region.main_stack => {
                let lowest = self.block_at(sp).and_then(|at| at.checked_sub(STACK));
                lowest.is_none_or(|lowest| {
                    let mut stack = vec![0; (sp - lowest) as usize];
                    self.memory.read(lowest, &mut stack).is_err()
                })
            }
            Some(_) | None => false,
        }
    }

    fn in_handler(&self, sp: u64) -> bool {
        let (Some(mark), Some(region)) =
            (self.signal_return, libraries::region_of(&self.regions, sp))
        else {
            return false;
        };
        let end = region.range.end.min(sp.saturating_add(MOST_STACK));
        let mut stack = vec![0; (end - sp) as usize & !7];
        // What cannot be read has gone, and so has the wait.
        self.memory.read(sp, &mut stack).is_err()
            || stack.chunks_exact(8).any(|word| word == mark.to_ne_bytes())
    }

    fn mail(&self) -> Mail {
        Mail {
            thread: 0,
            token: self.token,
            pthread_detach: self.functions.pthread_detach,
            dlopen: self.functions.dlopen,
            dlsym: self.functions.dlsym,
            dlerror: self.functions.dlerror,
            state: state::NONE,
            fd: -1,
            created: code::NOT_YET,
            left: 0,
            left_at: [0; 2],
            pause: [0, 1_000_000],
            now: [0; 2],
            memfd_name: code::text(MEMFD_NAME),
            thread_name: code::text("gdiag-inject"),
            entry: code::text("InitializeInjection"),
            path: [0; 256],
            error: [0; 256],
        }
    }

    /// Gives the new thread its library, and waits until it is loaded. The result is how long the
    /// chosen thread was held.
    fn finish(&self, off: &SentOff) -> Result<Nanos, Failure> {
        let mail = self.wait(THREAD_WITHIN, |mail| {
            mail.created != code::NOT_YET
                && mail.left == 1
                && (mail.created != 0 || mail.state != state::NONE)
        })?;
        if mail.created != 0 {
            // The mailbox stays: nobody is there to take it away.
            return Err(Failure::NoNewThread(Errno::from_raw(mail.created)));
        }
        let left = Duration::new(
            u64::try_from(mail.left_at[0]).unwrap_or(0),
            u32::try_from(mail.left_at[1]).unwrap_or(0),
        );
        let held = (SystemTime::UNIX_EPOCH + left)
            .duration_since(off.interrupted)
            .unwrap_or_default();
        if mail.state == state::READY {
            self.fill(mail.fd)?;
        }
        let mail = self.wait(LOADED_WITHIN, |mail| {
            !matches!(mail.state, state::READY | state::GO)
        })?;
        // Not answered when it has given up already.
        let _ = self.say(state::SEEN);
        match mail.state {
            state::DONE => Ok(nanos(held)),
            state::NO_MEMFD => Err(Failure::NotLoaded(format!(
                "it cannot make a memfd ({})",
                Errno::from_raw(-mail.fd).desc()
            ))),
            state::NOT_LOADED => {
                let text = mail.error.split(|&b| b == 0).next().unwrap_or_default();
                Err(Failure::NotLoaded(format!(
                    "its loader says: {}",
                    String::from_utf8_lossy(text)
                )))
            }
            state::NO_ENTRY => Err(Failure::NotLoaded("the library has no entry".into())),
            _ => Err(Failure::Late),
        }
    }

    /// The library into its memfd, and the word that it is there.
    fn fill(&self, fd: i32) -> Result<(), Failure> {
        let path = format!("/proc/{}/fd/{fd}", self.proc_pid);
        let not_written =
            |e: io::Error| Failure::NotLoaded(format!("cannot write the library: {e}"));
        // The target is another's program: that may be any file by now. Not to be opened then, as that
        // may do something; and it may become another one until it is open.
        let expect_memfd = |path: &str| {
            let link = fs::read_link(path).map_err(not_written)?;
            let memfd = format!("/memfd:{MEMFD_NAME}");
            link.to_string_lossy()
                .starts_with(&memfd)
                .then_some(())
                .ok_or_else(|| Failure::NotLoaded("its descriptors change meanwhile".into()))
        };
        expect_memfd(&path)?;
        let mut file = OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(not_written)?;
        expect_memfd(&format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        file.write_all(SHIM).map_err(not_written)?;
        let at = self.mail_address + offset_of!(Mail, path) as u64;
        self.memory
            .write(at, &code::path(fd, self.token))
            .and_then(|()| self.say(state::GO))
            .map_err(|_| Failure::Gone)
    }

    fn say(&self, word: u32) -> io::Result<()> {
        let at = self.mail_address + offset_of!(Mail, state) as u64;
        self.memory.write(at, &word.to_ne_bytes())
    }

    /// Reads the mailbox until it says what is waited for.
    fn wait(&self, patience: Duration, done: impl Fn(&Mail) -> bool) -> Result<Mail, Failure> {
        let deadline = Instant::now() + patience;
        let mut pause = Duration::from_micros(20);
        loop {
            let mut bytes = [0; size_of::<Mail>()];
            // Not there yet, or not any more.
            if self.memory.read(self.mail_address, &mut bytes).is_ok() {
                if let Ok(mail) = Mail::read_from_bytes(&bytes) {
                    if mail.token == self.token && done(&mail) {
                        return Ok(mail);
                    }
                }
            }
            if waits::status(self.proc_pid, Tid(self.proc_pid)).is_none_or(|s| s.state == b'Z') {
                return Err(Failure::Gone);
            }
            if Instant::now() >= deadline {
                return Err(Failure::Late);
            }
            sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }
}

/// Name of the memory that the library is loaded from; not that of the shim's shared memory.
const MEMFD_NAME: &str = "libgdiag_cupti.so";

/// How a stopped thread goes on.
fn resume(registers: &libc::user_regs_struct) -> Resume {
    match waits::go_on(registers.orig_rax, registers.rax.cast_signed()) {
        GoOn::Return(rax) => Resume {
            rip: registers.rip,
            rax,
        },
        // Back to the `syscall` instruction.
        GoOn::Call(rax) => Resume {
            rip: registers.rip.wrapping_sub(2),
            rax,
        },
    }
}

/// Where the code is, or can be.
fn code_place(libraries: &Libraries, memory: &Memory) -> Result<u64, Failure> {
    let code = code::code();
    let mut there = vec![0; code.len()];
    libraries
        .room(code.len() as u64, |at| {
            memory.read(at, &mut there).is_ok() && (there == code || !code::is_code(&there))
        })
        .ok_or(Failure::NoRoom("the code that loads the library"))
}

/// Writes the code where it disturbs nobody, unless it is there already. It is never taken away: a
/// thread may still be in it.
fn put_code(libraries: &Libraries, memory: &Memory) -> Result<u64, Failure> {
    let code = code::code();
    let at = code_place(libraries, memory)?;
    let mut there = vec![0; code.len()];
    memory
        .read(at, &mut there)
        .map_err(|e| inaccessible("read its memory", &e))?;
    if there != code {
        memory
            .write(at, code)
            .map_err(|e| inaccessible("write into its code", &e))?;
    }
    Ok(at)
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Differs from one time to the next.
fn random() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(SystemTime::now())
}

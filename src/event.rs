//! The one type that flows through gdiag: what happened, to whom, when.
//!
//! `decode` makes events from what the kernel and the shim wrote, `store` keeps
//! them, `model` consumes them. Every time is CLOCK_MONOTONIC of the recorded
//! machine; every pid and tid is the host's. Names, stacks and kernel names are
//! small numbers, defined by an [`Event::Define`] that comes before their first use.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id!(/// A process (thread group), in the host's PID namespace. 0 is the kernel's idle task.
    Pid(u32));
id!(/// A thread, in the host's PID namespace. 0 is the idle task of some CPU.
    Tid(u32));
impl Tid {
    /// A thread whose number in its own namespace could not be translated.
    pub const UNKNOWN: Tid = Tid(u32::MAX);
}

id!(/// A logical CPU.
    Cpu(u16));
id!(/// A device as CUDA numbers it inside a process; [`Device::uuid`] tells which card that is.
    DeviceId(u32));
id!(/// A CUDA context, unique in its process.
    ContextId(u32));
id!(/// A CUDA stream, unique in its context.
    StreamId(u32));
id!(/// Shared by an API call and the operations it started, unique in its process.
    CorrelationId(u32));
id!(/// A string defined by [`Define::Name`]. 0 is the empty name, never defined.
    NameId(u32));
id!(/// A kernel stack defined by [`Define::Stack`]. 0 is "no stack", never defined.
    StackId(u32));
id!(/// A place in a user stack, defined by [`Define::Frame`]. 0 is never defined.
    FrameId(u32));
id!(/// A user stack defined by [`Define::CallStack`]. 0 is "no stack", never defined.
    CallStackId(u32));

/// Something that happened, or a definition that later events use.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Define(Define),
    Task(Task),
    Exit(Exit),
    Switch(Switch),
    Waking(Waking),
    Interrupt(Interrupt),
    Wait(Wait),
    CpuWait(CpuWait),
    Stall(Stall),
    SysCall(SysCall),
    Signal(Signal),
    Sample(Sample),
    GpuOp(GpuOp),
    Migration(Migration),
    GpuInvalid(GpuInvalid),
    ApiCall(ApiCall),
    Sync(Sync),
    Overhead(Overhead),
    Device(Device),
    Shim(Shim),
    Probes(Probes),
    Process(Process),
    Clock(ClockPair),
    Loss(Loss),
}

impl Event {
    /// When it happened: the start, for things that last. Definitions have no time.
    pub fn ts(&self) -> Option<Nanos> {
        Some(match self {
            Event::Define(_) => return None,
            Event::Task(e) => e.ts,
            Event::Exit(e) => e.ts,
            Event::Switch(e) => e.ts,
            Event::Waking(e) => e.ts,
            Event::Interrupt(e) => e.start,
            Event::Wait(e) => e.start,
            Event::CpuWait(e) => e.start,
            Event::Stall(e) => e.start,
            Event::SysCall(e) => e.start,
            Event::Signal(e) => e.ts,
            Event::Sample(e) => e.ts,
            Event::GpuOp(e) => e.start,
            Event::Migration(e) => e.start,
            Event::GpuInvalid(e) => e.seen,
            Event::ApiCall(e) => e.start,
            Event::Sync(e) => e.start,
            Event::Overhead(e) => e.start,
            Event::Device(e) => e.ts,
            Event::Shim(e) => e.ts,
            Event::Probes(e) => e.ts,
            Event::Process(e) => e.ts,
            Event::Clock(e) => e.mono,
            Event::Loss(e) => e.from,
        })
    }

    /// When it was over: [`Event::ts`] of what does not last.
    pub fn end(&self) -> Option<Nanos> {
        match self {
            Event::Interrupt(e) => Some(e.start.saturating_add(e.dur)),
            Event::Wait(e) => Some(e.end),
            Event::CpuWait(e) => Some(e.end),
            Event::Stall(e) => Some(e.start.saturating_add(e.dur)),
            Event::SysCall(e) => Some(e.end),
            Event::GpuOp(e) => Some(e.end),
            Event::Migration(e) => Some(e.end),
            Event::ApiCall(e) => Some(e.end),
            Event::Sync(e) => Some(e.end),
            Event::Overhead(e) => Some(e.end),
            Event::Loss(e) => Some(e.to),
            Event::Define(_)
            | Event::Task(_)
            | Event::Exit(_)
            | Event::Switch(_)
            | Event::Waking(_)
            | Event::Signal(_)
            | Event::Sample(_)
            | Event::GpuInvalid(_)
            | Event::Device(_)
            | Event::Shim(_)
            | Event::Probes(_)
            | Event::Process(_)
            | Event::Clock(_) => self.ts(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Define {
    /// Bytes as they came, made valid UTF-8; never escaped, that is the presenter's work.
    Name {
        id: NameId,
        text: String,
    },
    /// A kernel stack, leaf first. A frame is a name such as `futex_do_wait`.
    Stack {
        id: StackId,
        frames: Vec<NameId>,
    },
    Frame {
        id: FrameId,
        frame: Frame,
    },
    /// A user stack, leaf first, native and Python frames in one.
    CallStack {
        id: CallStackId,
        frames: Vec<FrameId>,
        /// Why callers are missing at its root; `None` when none are.
        cut: Option<Cut>,
    },
    /// The functions at a native frame, innermost first: more than one when calls were inlined
    /// there. Unlike other definitions it comes after the first use, when the symbols have been
    /// read, or never: then the frame is shown as file and address.
    Functions {
        frame: FrameId,
        functions: Vec<Function>,
    },
    /// The handler names of an interrupt number, from /proc/interrupts.
    Irq {
        irq: u16,
        name: NameId,
    },
    /// What is known of the other side of a [`Wait::object`]: a socket, or an epoll that watches some.
    Endpoint {
        object: NameId,
        role: Role,
        /// The process of this machine at the other end. Of several sockets, the one at all their ends; of a
        /// listener never.
        peer: Option<Pid>,
    },
}

/// What a process waits for at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// For its peer, to which it connected, or to which it was born connected.
    Connected,
    /// For its peer, which connected to it: the next request.
    Accepted,
    /// For somebody to connect. An epoll has the role of its most telling socket: this one before
    /// [`Role::Accepted`] before [`Role::Connected`].
    Listening,
}

/// A place in the code of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// An instruction in a mapped file: the one that ran, or the call that had not returned.
    Native {
        /// Path as the process sees it, or `[vdso]`.
        module: NameId,
        /// Hexadecimal; empty when the file has none.
        build_id: NameId,
        /// As the file's own program headers and symbols count.
        address: u64,
    },
    /// An instruction outside of every file, made at run time.
    Anonymous { address: u64 },
    /// A line of Python. `line` is 0 when unknown.
    Python {
        function: NameId,
        file: NameId,
        line: u32,
    },
}

/// A function that a native frame is in, with the line when debug information tells it (0: it does not).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// As the compiler mangled it; demangled for display only.
    pub name: NameId,
    pub file: NameId,
    pub line: u32,
}

/// Why a user stack ends before its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// gdiag had not read the maps of this process, or the unwind table of this file, yet.
    NotYet,
    /// The code that comes next is in no file: made at run time, it says nothing about its caller.
    Unmapped,
    /// The file has no unwind table for this address.
    NoTable,
    /// The table describes the caller in a way that gdiag does not follow.
    Unsupported,
    /// The stack could not be read: its page was not in memory.
    Unreadable,
    /// It is deeper than gdiag looks.
    TooDeep,
}

/// Why a task event was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskReason {
    /// It was there at the start, ran instead of a target, or woke one.
    Seen,
    /// It ended a long wait of a target, or of another that is followed: from now on its switches,
    /// waits and samples are recorded like a target's.
    Followed,
    /// Fork or clone by `parent`.
    New {
        parent: Tid,
    },
    Exec,
    Rename,
}

/// Identity of a thread from `ts` on. A tid can be reused: the latest event before a time holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub ts: Nanos,
    pub tid: Tid,
    pub pid: Pid,
    pub ppid: Pid,
    /// Name of the thread (15 bytes at most, as the kernel keeps it).
    pub comm: NameId,
    /// When the thread was born.
    pub start: Nanos,
    /// The ids that the thread sees itself, in the innermost PID namespace.
    pub ns_tid: Tid,
    pub ns_pid: Pid,
    /// Id of its cgroup in the default hierarchy; 0 when unknown.
    pub cgroup: u64,
    /// Kernel priority: below 100 is real time.
    pub prio: u32,
    pub reason: TaskReason,
    /// It belongs to what is being recorded, rather than having run instead of it or woken it.
    pub target: bool,
    pub kthread: bool,
    /// What it was doing at `ts`, so that a timeline can start before its first switch.
    pub state: TaskState,
    /// System call it was in at `ts`.
    pub syscall: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    Running,
    Runnable,
    /// The raw `task->__state` it sleeps in.
    Off(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub ts: Nanos,
    pub tid: Tid,
    pub pid: Pid,
    /// In the encoding of wait(2).
    pub code: i32,
}

/// What the kernel said about a thread that left the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchFlags(pub u8);

impl SwitchFlags {
    /// It left from inside the kernel. That is not "preempted": a thread whose time is up leaves
    /// from the way back to user space, and a woken one can be preempted in any system call.
    pub const PREEMPT: u8 = 0x01;
    /// It waits for I/O.
    pub const IOWAIT: u8 = 0x02;
    /// It stalls on memory: reclaim, thrashing, compaction.
    pub const MEMSTALL: u8 = 0x04;
    /// The CPU quota of its cgroup is used up.
    pub const THROTTLED: u8 = 0x08;
    /// It is exiting.
    pub const EXITING: u8 = 0x10;

    pub fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}

/// `prev` left `cpu` and `next` began to run there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    pub ts: Nanos,
    pub cpu: Cpu,
    pub prev: Tid,
    pub next: Tid,
    /// Raw `task->__state` of `prev`; 0 means that it could have gone on running.
    pub state: u16,
    /// System call that `prev` was in; `None` in user space, a fault or an interrupt.
    pub syscall: Option<u16>,
    pub flags: SwitchFlags,
    /// Page faults of `prev` since it was switched in, at most 255.
    pub minor_faults: u8,
    pub major_faults: u8,
}

/// Where the waker ran, or what kind of interrupt it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// The waker is the thread itself.
    Task,
    HardIrq(u16),
    SoftIrq(u16),
    /// The local timer, or another vector without an interrupt number.
    Timer,
}

/// `wakee` was made runnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waking {
    pub ts: Nanos,
    pub cpu: Cpu,
    pub wakee: Tid,
    /// The thread that was current. Unless `context` is [`Context::Task`] it had nothing to do with it.
    pub waker: Tid,
    pub context: Context,
}

/// An interrupt that ran on `cpu` while `tid` was current there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    pub start: Nanos,
    pub dur: Nanos,
    pub cpu: Cpu,
    pub tid: Tid,
    pub context: Context,
}

/// A wait beyond the threshold, with what the kernel was doing. `end` is the waking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub tid: Tid,
    pub start: Nanos,
    pub end: Nanos,
    /// Raw `task->__state` it slept in.
    pub state: u16,
    pub syscall: Option<u16>,
    /// Kernel stack of the sleeper.
    pub stack: StackId,
    /// What the system call worked on, when that could be read: a path, `pipe:[…]`, a socket (`tcp 10.0.0.1:80 <- …`,
    /// `unix …`; `socket:[…]` when nothing more is known), `epoll of 3 sockets, …`, [`Wait::NO_DESCRIPTORS`].
    pub object: NameId,
}

impl Wait {
    /// Of a poll or select that was asked for none: the thread sleeps.
    pub const NO_DESCRIPTORS: &str = "no descriptors";
}

/// A thread got a CPU after it had waited long for one, with what the machine looked like when it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuWait {
    pub tid: Tid,
    /// Since when it could run.
    pub start: Nanos,
    pub end: Nanos,
    /// CPUs that it may run on, and those that are online.
    pub allowed: u16,
    pub online: u16,
    /// Of the others, those that were idle at `end`.
    pub idle: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StallKind {
    /// Direct reclaim, on the thread that needed memory.
    Reclaim,
    Compaction,
    /// Calls of sched_yield one after another, while nobody else wanted the CPU.
    Yields,
}

/// A thread ran without getting on with its own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    pub tid: Tid,
    pub start: Nanos,
    pub dur: Nanos,
    pub kind: StallKind,
}

/// A system call that returned. Only recorded when that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysCall {
    pub tid: Tid,
    pub start: Nanos,
    pub end: Nanos,
    pub number: u16,
    /// What the kernel returned: from -4095 to -1 an error.
    pub result: i64,
}

impl SysCall {
    /// Number of the error (`ENOENT` is 2); `None` when it did not fail.
    pub fn errno(&self) -> Option<u16> {
        match self.result {
            -4095..=-1 => u16::try_from(-self.result).ok(),
            _ => None,
        }
    }
}

/// SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU or SIGCONT was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    pub ts: Nanos,
    pub sender: Tid,
    pub receiver: Tid,
    /// Its number, which is the same on all machines that gdiag knows.
    pub signal: u8,
}

impl Signal {
    pub const CONT: u8 = 18;
}

/// Why a stack was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// By the timer, while the thread ran: it stands for `period` of running.
    Cpu { period: Nanos },
    /// The thread runs again at `ts`, after a long time off the CPU that began at `since`.
    OffCpu { since: Nanos },
    /// The thread ended a long wait of `wakee`, which had begun at `since`.
    Waker { wakee: Tid, since: Nanos },
    /// The thread called a launch function of the driver; one in `one_in` was taken.
    Launch { one_in: u32 },
}

/// Where a thread was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub ts: Nanos,
    pub tid: Tid,
    pub kind: SampleKind,
    /// 0 when it ran in user space.
    pub kernel: StackId,
    /// 0 for a thread of the kernel.
    pub user: CallStackId,
    /// The thread that held the interpreter lock of this one's Python; `None`: nobody, no Python, or unknown.
    pub gil: Option<Tid>,
    /// Its Python interpreter says that this thread was collecting garbage.
    pub collects: bool,
}

/// Kinds of memory as CUPTI names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    Unknown,
    Pageable,
    Pinned,
    Device,
    Array,
    Managed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyKind {
    Unknown,
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    HostToHost,
    PeerToPeer,
    /// Another of CUPTI's kinds (arrays), by its number.
    Other(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    Kernel {
        /// As the compiler mangled it; demangled for display only.
        name: NameId,
    },
    Memcpy {
        kind: CopyKind,
        src: MemoryKind,
        dst: MemoryKind,
        bytes: u64,
    },
    Memset {
        bytes: u64,
    },
    /// A whole CUDA graph, when its nodes are not recorded one by one.
    Graph,
}

/// An operation that the device carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuOp {
    pub pid: Pid,
    pub device: DeviceId,
    pub context: ContextId,
    pub stream: StreamId,
    pub kind: OpKind,
    pub start: Nanos,
    pub end: Nanos,
    pub correlation: CorrelationId,
    /// Graph and node, for an operation that a graph launch started; 0 otherwise.
    pub graph: u32,
    pub node: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MigrationKind {
    /// Pages moved to the device.
    ToDevice,
    /// Pages moved to the host.
    ToHost,
    /// The device waited for pages: a group of its faults, until all were served.
    DeviceFaults,
}

/// Managed memory moved, or was waited for by the device. Recorded only when asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    pub pid: Pid,
    pub device: DeviceId,
    pub kind: MigrationKind,
    pub start: Nanos,
    pub end: Nanos,
    /// 0 for faults.
    pub bytes: u64,
}

/// A record of an operation whose times cannot be true (zero, inverted, before its own launch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuInvalid {
    pub pid: Pid,
    pub device: DeviceId,
    pub correlation: CorrelationId,
    /// When gdiag read the record; the operation happened before.
    pub seen: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ApiDomain {
    Runtime,
    Driver,
}

/// Which function of the CUDA API: the domain and CUPTI's callback id, which was never renumbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Api {
    pub domain: ApiDomain,
    pub cbid: u32,
}

/// A call into the CUDA runtime or driver API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiCall {
    pub pid: Pid,
    pub tid: Tid,
    pub api: Api,
    pub start: Nanos,
    pub end: Nanos,
    /// [`ApiCall::PROBED`] when probes on the driver measured it.
    pub correlation: CorrelationId,
    /// The CUresult or cudaError_t; 0 is success.
    pub result: u32,
}

impl ApiCall {
    /// CUPTI numbers its calls from 1 on.
    pub const PROBED: CorrelationId = CorrelationId(0);
    /// As a result: it had not returned when its thread or the recording ended.
    pub const NOT_RETURNED: u32 = u32::MAX;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncKind {
    Event,
    StreamWaitEvent,
    Stream,
    Context,
    Other(u32),
}

/// A synchronisation as CUPTI saw it: host times, also for a wait that the device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    pub pid: Pid,
    pub kind: SyncKind,
    pub context: ContextId,
    /// `None` when it concerns no single stream.
    pub stream: Option<StreamId>,
    pub start: Nanos,
    pub end: Nanos,
    pub correlation: CorrelationId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OverheadKind {
    DriverCompiler,
    BufferFlush,
    Instrumentation,
    Resource,
    ModuleLoading,
    LazyFunctionLoading,
    CommandBufferFull,
    BufferRequest,
    UvmInit,
    Other(u32),
}

/// Time that CUPTI, the driver or its compiler took for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    pub pid: Pid,
    /// The thread it happened on, when the record says so.
    pub tid: Option<Tid>,
    pub kind: OverheadKind,
    pub start: Nanos,
    pub end: Nanos,
}

/// A device that a traced process can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub ts: Nanos,
    pub pid: Pid,
    pub id: DeviceId,
    pub name: NameId,
    /// `GPU-…` as nvidia-smi prints it; the same card has different ids in different processes.
    pub uuid: NameId,
}

/// What the shim of a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShimState {
    /// Loaded, collects nothing.
    Dormant,
    /// Collecting.
    Active,
    /// It was collecting and stopped by itself for a while: gdiag gave no sign of life.
    Paused,
    /// Another tool holds CUPTI; the reason names it when it is known.
    Busy,
    /// Cannot collect; the reason says why.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shim {
    pub ts: Nanos,
    pub pid: Pid,
    pub state: ShimState,
    /// A sentence for people, or the empty name.
    pub reason: NameId,
    /// Path of the libcupti in use and its version (`cuptiGetVersion`); empty and 0 when none.
    pub cupti_path: NameId,
    pub cupti_version: u32,
    /// The device is the simulator of gdiag's own tests.
    pub simulated: bool,
}

/// From now on the calls of the driver in this process are measured by probes, because CUPTI cannot
/// record it; or no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    pub ts: Nanos,
    pub pid: Pid,
    /// Functions that have a probe; 0 when they were taken out.
    pub functions: u32,
    /// Why, a sentence for people; or the empty name.
    pub reason: NameId,
}

/// What a process is, read from /proc at first sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub ts: Nanos,
    pub pid: Pid,
    /// Arguments joined by spaces.
    pub cmdline: NameId,
    pub exe: NameId,
    /// Path in the default hierarchy, or of the cpu controller on cgroup v1.
    pub cgroup: NameId,
}

/// The same instant on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPair {
    pub mono: Nanos,
    pub real: Nanos,
    /// Half the width of the bracket in which both were read.
    pub error: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossSource {
    /// The kernel's ring buffer was full.
    Bpf(Cpu),
    /// The shim's ring was full.
    ShimRing(Pid),
    /// CUPTI says that it dropped records, or had no buffer to put them in. Without a count: none
    /// came back, because another tool took CUPTI over or a kernel held them back to the end.
    Cupti(Pid),
    /// The wall clock, which CUPTI stamps with, was stepped: GPU times of that moment are unsure.
    ClockStep,
    /// A part of the recording cannot be read. Told by who reads the file; in a file that is a copy of a part
    /// of such a one.
    Damage,
}

/// Something happened in this interval that was not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub source: LossSource,
    /// Lost records; 0 when they cannot be counted.
    pub count: u64,
    pub from: Nanos,
    pub to: Nanos,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that an event stays small: millions are moved through the pipeline.
    #[test]
    fn an_event_is_at_most_two_cache_lines() {
        assert!(
            std::mem::size_of::<Event>() <= 112,
            "{}",
            std::mem::size_of::<Event>()
        );
    }
}

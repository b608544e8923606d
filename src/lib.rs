//! gdiag: why is this GPU idle, and who is to blame?
//!
//! # The one way through the house
//!
//! ```text
//!        kernel                    target process                       gdiag
//!  ┌────────────────────┐     ┌───────────────────────┐
//!  │ bpf/*.bpf.c        │     │ cupti-shim/           │
//!  │ tracepoints, timer │     │ CUPTI ► worker ► ring │
//!  └─────────┬──────────┘     └───────────┬───────────┘
//!            │ struct gdiag_*             │ gdiag_shim_layout::…
//!            │ (bpf/events.h)             │ (shared memory)
//!            ▼                            ▼
//!         collect ────────── bytes ───────────► decode
//!            ▲                                    │ Event
//!          unwind, /proc, NVML                    ▼
//!                                     ┌── store: the recording ──┐
//!                                     │ Writer            Reader │
//!                                     └────────────┬─────────────┘
//!                                                  │ Event
//!                                                  ▼
//!                                                model
//!                                                  │ Timeline
//!                                                  ▼
//!                                               analyse
//!                                                  │ Report
//!                                                  ▼
//!                                               present ──► text, JSON, SVG, a screen
//! ```
//!
//! Data moves one way, and each arrow has one type:
//!
//! | from | to | as | where |
//! |---|---|---|---|
//! | BPF programs | [`collect`] | `struct gdiag_*` of `bpf/events.h`, in ring buffers | [`collect::bpf::Bpf`] |
//! | the shim | [`collect`] | records of [`gdiag_shim_layout`], in shared memory | [`collect::shims::Shims`] |
//! | [`collect`] | [`decode`] | bytes | [`decode::sched::Batch`], [`decode::gpu::GpuDecoder`] |
//! | [`decode`] | [`store`], [`model`] | [`event::Event`], the one type that flows | the sink of [`pipeline::Session::step`] |
//! | [`store`] | [`model`] | [`event::Event`] again | [`store::Reader::for_each`] |
//! | [`model`] | [`analyse`] | [`model::Timeline`]: any moment of any thread, CPU and device | [`model::Timeline::push`], then [`finish`](model::Timeline::finish) |
//! | [`analyse`] | [`present`] | [`analyse::report::Report`], or the `Summary` of [`analyse::sched`] and [`analyse::syscalls`], folded [`analyse::stacks`], [`analyse::tracks`] | [`analyse::report()`] |
//! | [`present`] | a person, a program | text, JSON, SVG, frames of a terminal | |
//!
//! [`pipeline`] runs the first half: it reads the sources, has them decoded, and gives numbers their names while the machine
//! still knows them, those of functions by [`symbolize`]. A recording and a live view differ in where its events go.
//! [`unwind`] makes the tables by which the BPF programs walk user stacks, from the bytes of a program and its libraries.
//! [`checkup`] decides what `gdiag check` says, from facts that [`collect::machine`] reads: recordings have no part in it.
//! [`cli`] says what was asked, as plain values; [`commands`] wires the steps, one function for each subcommand.
//!
//! A live view goes the same way, in slices: [`analyse::live`] makes a small timeline of the last moments again and again,
//! and adds the results up to a window, which is a report. What adds up in the kernel (`gdiag sched`, `gdiag syscalls -s`) has no events:
//! [`collect::sched_sum`] and [`pipeline::call_sums`] read sums, and the rest of the way is the same.
//!
//! # What depends on what
//!
//! A module may use itself, the modules before it in this row, and those beside the row. `tests/layers.rs` reads both lines, and fails
//! where the code does otherwise:
//!
//! - row: `unwind` `collect` `checkup` `symbolize` `decode` `store` `model` `analyse` `pipeline` `cli` `present` `commands`
//! - beside: `units` `event` `facts` `fxhash` `histogram` `intern` `demangle` `error`
//!
//! Tests may look further. `store` uses nothing of the row, so that any machine can read a recording. `pipeline` comes after `analyse` because what the
//! kernel adds up becomes the summaries of that at once.
//!
//! # Three address spaces
//!
//! 1. **The kernel.** `bpf/` is C, compiled by `build.rs` against `bpf/vmlinux.h`, a minimal one: fields are found by BTF on the machine where gdiag runs (CO-RE). What a
//!    kernel does not have is left out, and the recording says so. There are six objects, so that each can fail to load without the others: `sched`
//!    (switches, wakeups, waits: what every recording needs), `stacks`, `driver`, `syscalls`, `sched_sum`, `cuda_processes`.
//! 2. **The target.** `cupti-shim/` is a library that the driver loads, or that gdiag puts there ([`collect::inject`]). It has one thread, and one shared memory with a ring.
//!    It is linked for glibc 2.17, and its promise is to do no harm. It shares with gdiag what the memory looks like (`cupti-shim/layout`) and how a libcupti is chosen (`cupti-shim/locate`).
//! 3. **gdiag.** All else. It lives outside of its targets and can be killed at any time: BPF programs end with their file descriptors, and a shim without a sign of
//!    life stops collecting within a second.
//!
//! # Threads
//!
//! The main thread of a command collects and decodes, and never waits for a target, a file system or a terminal. What can take long has a thread:
//!
//! | thread | what | in |
//! |---|---|---|
//! | main | [`pipeline::Session::step`], and what becomes of events | `record`: the file. `start`: the memory of `store/flight.rs`. `top`: that, and the analyst |
//! | `gdiag-beat` | the sign of life for shims | all that record |
//! | `gdiag-maps` (a few) | opens the files that targets have mapped, which may hang | all that take stacks |
//! | `gdiag-tables` | unwind tables, Python interpreters | the same |
//! | `gdiag-symbols` | names of functions; late, as [`event::Define::Functions`] | the same |
//! | `gdiag-inject` | puts the shim into a process | while it does |
//! | `gdiag-driver` | attaches probes to a CUDA driver | where CUPTI records nothing |
//! | `gdiag-control`, `gdiag-snapshot` | answers `stat`, `snapshot` and `stop`; writes a snapshot of chunks that both have | the flight recorder |
//! | `gdiag-analyst` | [`analyse::live`]: slices | `top` |
//! | `gdiag-output` | keys in and frames out, or windows as text | `top` |
//! | `gdiag-nvml`, `gdiag-load` | asks NVML, whose calls may hang; loads BPF programs when there is no CUDA | `top` |
//! | `gdiag-shim` | the only one of ours inside a target: CUPTI's buffers to the ring | each target with CUDA |
//!
//! The command to record is forked before there is a second thread ([`commands`], `subject.rs`). `report`, `flame` and `export` have one thread, and no privileges.
//!
//! # What is trusted
//!
//! Nothing that comes from outside: recordings, the shim's memory, `/proc`, ELF files and Python code objects of targets, names. Sizes, kinds and times are checked on
//! a private copy; what cannot be true is counted, not believed; what is limited says its limit. None of it may panic, hang, or take memory out of proportion:
//! `tests/harm/`, `tests/bad_input.rs`, `tests/export/hostile.rs` and the damaged recordings of `store` and `unwind` see to that.
//! Names are kept as they came, and made harmless where they are shown: [`present::text::clean`] for terminals, a serializer for JSON and SVG.
//! The kernel's own structures, and what our BPF programs send, are trusted to be of the shape that BTF says.
//!
//! # Time
//!
//! Every time in an [`event::Event`] is CLOCK_MONOTONIC in nanoseconds ([`units::Nanos`]): `bpf_ktime_get_ns` in BPF, [`collect::clock::monotonic`] here.
//! CUPTI stamps with CLOCK_REALTIME. Pairs of both clocks are taken ten times a second, recorded ([`event::ClockPair`]), and used by [`decode::clock::Clock`]; half the
//! bracket of a pair is the clock error that a report states. A step of the wall clock is a loss: GPU times of that moment are unsure. Events come in any order;
//! [`model`] sorts.
//!
//! # Losses
//!
//! Whatever was not seen becomes an [`event::Loss`] with a source and a span, and nobody is blamed in that span:
//!
//! | what is full | counted in | becomes |
//! |---|---|---|
//! | a BPF ring buffer | the program that could not send (`bpf/common.bpf.h`) | [`event::LossSource::Bpf`], by CPU |
//! | the shim's ring | `lost_ring` of [`gdiag_shim_layout::Control`] | [`event::LossSource::ShimRing`] |
//! | CUPTI's buffers, or CUPTI itself | `lost_cupti`, `pool_empty` there | [`event::LossSource::Cupti`] |
//! | the analyst of `top` | `left_out.rs` of [`commands::top`] | a loss of the slice |
//! | a recording that was damaged | [`store::Reader::for_each`] | [`event::LossSource::Damage`], a warning, and status 1 |
//! | a recording that was cut | [`store::Reader::coverage`] | a warning, and status 1: it ends there |
//!
//! [`model`] makes of them where it is blind, `analyse/missing.rs` and `analyse/quality.rs` what can still be said: `unknown.measurement`, or no idle time at all.
//! Every summary line and every JSON document has the count; `--strict` makes it an exit status.
//!
//! # Where to look first
//!
//! | to change | look at |
//! |---|---|
//! | what the kernel side sees | `bpf/events.h`, `bpf/sched.bpf.c`, [`decode::sched`], [`event`] |
//! | what is recorded of CUDA | `cupti-shim/layout/src/`, `cupti-shim/src/session.rs` and `decode.rs`, [`decode::gpu`] |
//! | how the shim gets into a process | [`collect::inject`], `pipeline/injections.rs` |
//! | user stacks, Python frames | [`unwind`], `bpf/stacks.bpf.c`, `bpf/python.bpf.h`, [`collect::python`] |
//! | the recording | `store/format.rs` first: versions |
//! | who is to blame, a cause | [`analyse::cause`], then `analyse/partition.rs`, `waits.rs`, `walk.rs`, `device.rs` |
//! | what the report says and how | [`analyse::report`](mod@analyse::report), [`present::report`], [`present::json`] |
//! | a screen of `top` | `present/top/screens/`, [`commands::top`] |
//! | an option, help, a manual page | [`cli`], `man/sections/` |
//! | an error or exit status | [`error`] |
//! | how a launched command is stood in for, signals | `commands/subject.rs` |
//!
//! CONTRIBUTING.md has the steps for the usual additions, and the table of tests.

pub mod analyse;
pub mod checkup;
pub mod cli;
pub mod collect;
pub mod commands;
pub mod decode;
pub mod demangle;
pub mod error;
pub mod event;
pub mod facts;
pub mod fxhash;
pub mod histogram;
pub mod intern;
pub mod model;
pub mod pipeline;
pub mod present;
pub mod store;
pub mod symbolize;
pub mod units;
pub mod unwind;

//! What runs in the target: the code, and the memory that it works on.
//!
//! Nobody can help it: gdiag may be killed at any moment, and then it runs on alone. So the thread
//! that was chosen gets everything at once, by one change of its registers, and goes back to its
//! own work by itself:
//!
//! ```text
//!   chosen thread                                   new thread
//!     blocks signals, saves vector registers
//!     maps the mailbox where gdiag looks for it
//!     pthread_create ──────────────────────────────► memfd_create, says READY
//!     restores all that it changed                   waits for GO (gdiag writes the library), 4 s at most
//!     calls again what it was waiting in             dlopen, InitializeInjection, says DONE
//!                                                    unmaps the mailbox, ends
//! ```
//!
//! The chosen thread makes a thread rather than load the library itself, because that is over in
//! microseconds, and another thread may hold the loader's lock for seconds.

use std::arch::global_asm;
use std::arch::x86_64::__cpuid_count;
use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of the mailbox: a page.
pub(super) const MAIL_BYTES: u64 = 4096;

/// Values of [`Mail::state`].
pub(super) mod state {
    /// The new thread has not begun.
    pub const NONE: u32 = 0;
    /// [`super::Mail::fd`] is there to be filled.
    pub const READY: u32 = 1;
    /// From gdiag: it is filled, and [`super::Mail::path`] names it.
    pub const GO: u32 = 2;
    pub const DONE: u32 = 3;
    /// No memfd: [`super::Mail::fd`] is a negative errno.
    pub const NO_MEMFD: u32 = 4;
    /// [`super::Mail::error`] says why.
    pub const NOT_LOADED: u32 = 5;
    pub const NO_ENTRY: u32 = 6;
    /// gdiag did not answer.
    pub const GAVE_UP: u32 = 7;
    /// From gdiag: it has seen how it ended.
    pub const SEEN: u32 = 8;
}

/// How many seconds the new thread waits for the library, or one less.
const GO_WITHIN_S: u32 = 4;
/// And for gdiag to look at the outcome.
const SEEN_WITHIN_S: u32 = 2;

/// [`Mail::created`] before `pthread_create` has returned.
pub(super) const NOT_YET: i32 = -1;

/// What gdiag and the new thread tell each other, in a page of the target.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(super) struct Mail {
    /// The new thread's pthread_t.
    pub thread: u64,
    /// Random, so that what was there before is not taken for it.
    pub token: u64,
    pub pthread_detach: u64,
    pub dlopen: u64,
    pub dlsym: u64,
    pub dlerror: u64,
    /// One of [`state`].
    pub state: u32,
    pub fd: i32,
    /// Result of `pthread_create`.
    pub created: i32,
    /// 1: the chosen thread does not touch the mailbox any more…
    pub left: u32,
    /// …since then, CLOCK_REALTIME: of all clocks it is the one that no namespace moves.
    pub left_at: [i64; 2],
    /// A timespec of a millisecond.
    pub pause: [i64; 2],
    /// For the new thread's clock.
    pub now: [i64; 2],
    /// NUL-terminated, as all that follows.
    pub memfd_name: [u8; 32],
    pub thread_name: [u8; 16],
    pub entry: [u8; 32],
    pub path: [u8; 256],
    pub error: [u8; 256],
}

/// What the chosen thread finds at its stack pointer; its vector registers are saved behind it.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(super) struct Block {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub flags: u64,
    /// Where the address to go on at is, right below the red zone.
    pub top: u64,
    /// What [`blocked`] says.
    pub blocked: u64,
    pub before: u64,
    pub mail_address: u64,
    pub pthread_create: u64,
    pub mail: Mail,
    pub pad: [u8; 24],
}

const _: () = assert!(size_of::<Mail>() <= MAIL_BYTES as usize);
const _: () = assert!(size_of::<Block>().is_multiple_of(64));

/// Memory below the stack pointer that code without calls may use (System V ABI).
pub(super) const RED_ZONE: u64 = 128;

/// Marks the code, and its version, in a target where it was left before.
const SIGNATURE: &[u8; 16] = b"gdiag injection2";

global_asm!(
    ".pushsection .rodata.gdiag_inject,\"a\",@progbits",
    ".balign 16",
    // For the whole crate: the code that refers to it may be compiled apart.
    ".globl gdiag_inject_begin, gdiag_inject_end",
    ".hidden gdiag_inject_begin, gdiag_inject_end",
    "gdiag_inject_begin:",
    ".ascii \"gdiag injection2\"",
    // The chosen thread. rsp is the block, 64-byte aligned; all other registers are its own.
    "mov rbp, rsp",
    "cld",
    // rt_sigprocmask(SIG_BLOCK, &blocked, &before, 8)
    "mov eax, 14",
    "xor edi, edi",
    "lea rsi, [rbp + {blocked}]",
    "lea rdx, [rbp + {before}]",
    "mov r10d, 8",
    "syscall",
    "mov eax, -1",
    "mov edx, -1",
    "xsave64 [rbp + {vectors}]",
    // mmap(mail_address, MAIL_BYTES, READ | WRITE, PRIVATE | ANONYMOUS | FIXED_NOREPLACE, -1, 0)
    "mov eax, 9",
    "mov rdi, [rbp + {mail_address}]",
    "mov esi, {mail_bytes}",
    "mov edx, 3",
    "mov r10d, 0x100022",
    "mov r8, -1",
    "xor r9d, r9d",
    "syscall",
    "cmp rax, [rbp + {mail_address}]",
    "jne 2f",
    "mov rdi, rax",
    "lea rsi, [rbp + {mail}]",
    "mov ecx, {mail_size}",
    "rep movsb",
    "mov rdi, [rbp + {mail_address}]",
    "xor esi, esi",
    "lea rdx, [rip + 10f]",
    "mov rcx, rdi",
    "call [rbp + {pthread_create}]",
    "mov rbx, [rbp + {mail_address}]",
    "mov [rbx + {created}], eax",
    // clock_gettime(CLOCK_REALTIME, &left_at)
    "mov eax, 228",
    "xor edi, edi",
    "lea rsi, [rbx + {left_at}]",
    "syscall",
    "mov dword ptr [rbx + {left}], 1",
    "jmp 3f",
    // Kernels before 4.17 take the address for a hint: munmap what came instead.
    "2:",
    "test rax, rax",
    "js 3f",
    "mov rdi, rax",
    "mov esi, {mail_bytes}",
    "mov eax, 11",
    "syscall",
    "3:",
    "mov eax, -1",
    "mov edx, -1",
    "xrstor64 [rbp + {vectors}]",
    // rt_sigprocmask(SIG_SETMASK, &before, NULL, 8)
    "mov eax, 14",
    "mov edi, 2",
    "lea rsi, [rbp + {before}]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "mov r15, [rsp + {r15}]",
    "mov r14, [rsp + {r14}]",
    "mov r13, [rsp + {r13}]",
    "mov r12, [rsp + {r12}]",
    "mov rbp, [rsp + {rbp}]",
    "mov rbx, [rsp + {rbx}]",
    "mov r11, [rsp + {r11}]",
    "mov r10, [rsp + {r10}]",
    "mov r9, [rsp + {r9}]",
    "mov r8, [rsp + {r8}]",
    "mov rax, [rsp + {rax}]",
    "mov rcx, [rsp + {rcx}]",
    "mov rdx, [rsp + {rdx}]",
    "mov rsi, [rsp + {rsi}]",
    "mov rdi, [rsp + {rdi}]",
    "push qword ptr [rsp + {flags}]",
    "popfq",
    // To where it was, over the red zone.
    "mov rsp, [rsp + {top}]",
    "ret 128",
    // The new thread: void *(*)(void *mail).
    ".balign 16",
    "10:",
    "push rbx",
    "push rbp",
    "push r12",
    "mov rbx, rdi",
    // prctl(PR_SET_NAME, thread_name)
    "mov eax, 157",
    "mov edi, 15",
    "lea rsi, [rbx + {thread_name}]",
    "syscall",
    // pthread_self()
    "mov rdi, fs:[0x10]",
    "call [rbx + {pthread_detach}]",
    // memfd_create(name, CLOEXEC), or with NOEXEC_SEAL where sysctl vm.memfd_noexec wants it
    "mov eax, 319",
    "lea rdi, [rbx + {memfd_name}]",
    "mov esi, 1",
    "syscall",
    "test eax, eax",
    "jns 11f",
    "mov eax, 319",
    "lea rdi, [rbx + {memfd_name}]",
    "mov esi, 9",
    "syscall",
    "11:",
    "mov [rbx + {fd}], eax",
    "test eax, eax",
    "mov ecx, {no_memfd}",
    "js 18f",
    "mov dword ptr [rbx + {state}], {ready}",
    "xor r12d, r12d",
    "call 31f",
    "mov r12, rax",
    "12:",
    "cmp dword ptr [rbx + {state}], {go}",
    "je 13f",
    "call 30f",
    "cmp rax, {go_within_s}",
    "jb 12b",
    "mov eax, {ready}",
    "mov ecx, {gave_up}",
    "lock cmpxchg [rbx + {state}], ecx",
    "jne 13f",
    "jmp 17f",
    "13:",
    "lea rdi, [rbx + {path}]",
    // RTLD_NOW
    "mov esi, 2",
    "call [rbx + {dlopen}]",
    "test rax, rax",
    "jz 14f",
    "mov rdi, rax",
    "lea rsi, [rbx + {entry}]",
    "call [rbx + {dlsym}]",
    "mov ecx, {no_entry}",
    "test rax, rax",
    "jz 16f",
    "call rax",
    "mov ecx, {done}",
    "jmp 16f",
    "14:",
    "call [rbx + {dlerror}]",
    "test rax, rax",
    "jz 15f",
    "mov rsi, rax",
    "lea rdi, [rbx + {error}]",
    "mov ecx, {error_most}",
    "19:",
    "lodsb",
    "stosb",
    "test al, al",
    "jz 15f",
    "dec ecx",
    "jnz 19b",
    "15:",
    "mov ecx, {not_loaded}",
    "16:",
    "mov [rbx + {state}], ecx",
    "17:",
    // close(fd)
    "mov eax, 3",
    "mov edi, [rbx + {fd}]",
    "syscall",
    "jmp 20f",
    "18:",
    "mov [rbx + {state}], ecx",
    "20:",
    "xor r12d, r12d",
    "call 31f",
    "mov r12, rax",
    "21:",
    "cmp dword ptr [rbx + {state}], {seen}",
    "je 22f",
    "call 30f",
    "cmp rax, {seen_within_s}",
    "jb 21b",
    // munmap, unless the chosen thread may still write there
    "22:",
    "cmp dword ptr [rbx + {left}], 1",
    "jne 23f",
    "mov eax, 11",
    "mov rdi, rbx",
    "mov esi, {mail_bytes}",
    "syscall",
    "23:",
    "xor eax, eax",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    // nanosleep(&pause, NULL), and then rax = seconds since r12
    "30:",
    "mov eax, 35",
    "lea rdi, [rbx + {pause}]",
    "xor esi, esi",
    "syscall",
    "31:",
    // clock_gettime(CLOCK_MONOTONIC, &now)
    "mov eax, 228",
    "mov edi, 1",
    "lea rsi, [rbx + {now}]",
    "syscall",
    "mov rax, [rbx + {now}]",
    "sub rax, r12",
    "ret",
    ".balign 8",
    "gdiag_inject_end:",
    ".popsection",
    blocked = const offset_of!(Block, blocked),
    before = const offset_of!(Block, before),
    vectors = const size_of::<Block>(),
    mail_address = const offset_of!(Block, mail_address),
    mail_bytes = const MAIL_BYTES,
    mail = const offset_of!(Block, mail),
    mail_size = const size_of::<Mail>(),
    pthread_create = const offset_of!(Block, pthread_create),
    created = const offset_of!(Mail, created),
    left_at = const offset_of!(Mail, left_at),
    left = const offset_of!(Mail, left),
    r15 = const offset_of!(Block, r15),
    r14 = const offset_of!(Block, r14),
    r13 = const offset_of!(Block, r13),
    r12 = const offset_of!(Block, r12),
    rbp = const offset_of!(Block, rbp),
    rbx = const offset_of!(Block, rbx),
    r11 = const offset_of!(Block, r11),
    r10 = const offset_of!(Block, r10),
    r9 = const offset_of!(Block, r9),
    r8 = const offset_of!(Block, r8),
    rax = const offset_of!(Block, rax),
    rcx = const offset_of!(Block, rcx),
    rdx = const offset_of!(Block, rdx),
    rsi = const offset_of!(Block, rsi),
    rdi = const offset_of!(Block, rdi),
    flags = const offset_of!(Block, flags),
    top = const offset_of!(Block, top),
    thread_name = const offset_of!(Mail, thread_name),
    pthread_detach = const offset_of!(Mail, pthread_detach),
    memfd_name = const offset_of!(Mail, memfd_name),
    fd = const offset_of!(Mail, fd),
    state = const offset_of!(Mail, state),
    pause = const offset_of!(Mail, pause),
    path = const offset_of!(Mail, path),
    dlopen = const offset_of!(Mail, dlopen),
    entry = const offset_of!(Mail, entry),
    dlsym = const offset_of!(Mail, dlsym),
    dlerror = const offset_of!(Mail, dlerror),
    error = const offset_of!(Mail, error),
    error_most = const 255,
    go_within_s = const GO_WITHIN_S,
    seen_within_s = const SEEN_WITHIN_S,
    now = const offset_of!(Mail, now),
    ready = const state::READY,
    go = const state::GO,
    done = const state::DONE,
    no_memfd = const state::NO_MEMFD,
    not_loaded = const state::NOT_LOADED,
    no_entry = const state::NO_ENTRY,
    gave_up = const state::GAVE_UP,
    seen = const state::SEEN,
);

extern "C" {
    static gdiag_inject_begin: u8;
    static gdiag_inject_end: u8;
}

/// The code, which runs at any address. It starts with a signature of [`ENTRY`] bytes.
pub(super) fn code() -> &'static [u8] {
    let begin = &raw const gdiag_inject_begin;
    let end = &raw const gdiag_inject_end;
    // SAFETY: both symbols are of one section of read-only data of this program.
    unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}

/// Where in [`code`] the chosen thread begins.
pub(super) const ENTRY: u64 = SIGNATURE.len() as u64;

/// Whether some version of the code was left here before.
pub(super) fn is_code(bytes: &[u8]) -> bool {
    bytes.starts_with(&SIGNATURE[..SIGNATURE.len() - 1])
}

/// Bytes that the vector registers take on this machine; `None` when it cannot save them all.
pub(super) fn vector_bytes() -> Option<usize> {
    let (features, area) = (__cpuid_count(1, 0), __cpuid_count(0xd, 0));
    // OSXSAVE: the kernel has turned it on.
    let on = features.ecx >> 27 & 1 == 1;
    on.then_some(area.ebx as usize)
        .filter(|&bytes| bytes >= 576)
}

/// A name as the kernel wants it.
pub(super) fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// How the chosen thread goes on when the code is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resume {
    pub rip: u64,
    pub rax: u64,
}

/// The registers' part of a block.
pub(super) fn block(
    regs: &libc::user_regs_struct,
    resume: Resume,
    mail_address: u64,
    pthread_create: u64,
    mail: Mail,
) -> Block {
    Block {
        r15: regs.r15,
        r14: regs.r14,
        r13: regs.r13,
        r12: regs.r12,
        rbp: regs.rbp,
        rbx: regs.rbx,
        r11: regs.r11,
        r10: regs.r10,
        r9: regs.r9,
        r8: regs.r8,
        rax: resume.rax,
        rcx: regs.rcx,
        rdx: regs.rdx,
        rsi: regs.rsi,
        rdi: regs.rdi,
        flags: regs.eflags,
        top: top(regs.rsp),
        blocked: blocked(),
        before: 0,
        mail_address,
        pthread_create,
        mail,
        pad: [0; 24],
    }
}

/// The signals that are blocked while the code runs, and in the new thread for good: all that may
/// wait. SIGCANCEL may: in a wait that is a cancellation point it could end the thread at once, in the
/// midst of `pthread_create`, which would never release its locks.
fn blocked() -> u64 {
    // What an instruction causes ends the process when it is blocked, whatever handles it.
    let by_instruction = [
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGSEGV,
        libc::SIGSYS,
    ];
    // setuid() of another thread waits, with a lock that pthread_create takes, for all to handle it.
    const SIGSETXID: i32 = 33;
    let open = by_instruction.into_iter().chain([SIGSETXID]);
    open.fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)))
}

/// Where the address to go on at is written.
pub(super) fn top(rsp: u64) -> u64 {
    rsp - RED_ZONE - 8
}

/// Of the path by which the new thread loads the library: none is ever the same, because the loader
/// gives an old library for an old name.
pub(super) fn path(fd: i32, token: u64) -> [u8; 256] {
    let slashes = "/".repeat(1 + (token % 199) as usize);
    text(&format!("/proc/self/fd{slashes}{fd}"))
}

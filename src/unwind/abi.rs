//! The numbers of `bpf/unwind.h` and `bpf/events.h`, which are their definition. This copy lets
//! the tables be made and tested without a BPF object; whoever hands them to one asserts that the
//! two agree.
#![forbid(unsafe_code)]

/// `GDIAG_PAGE_BITS`: a page is this many bits of an address in a file.
pub const PAGE_BITS: u32 = 16;
pub const MAX_RULES: usize = 65536;
/// `GDIAG_USER_DEPTH`: frames of a user stack.
pub const USER_DEPTH: usize = 256;

/// `enum gdiag_rule_id`.
pub const RULE_NONE: u16 = 0;
pub const RULE_ROOT: u16 = 1;
pub const FIRST_RULE: u16 = 2;

/// `enum gdiag_cfa`.
pub const CFA_UNSUPPORTED: u8 = 0;
pub const CFA_SP: u8 = 1;
pub const CFA_FP: u8 = 2;
pub const CFA_FP_DEREF: u8 = 3;
pub const CFA_SP_DEREF: u8 = 4;
pub const CFA_PLT: u8 = 5;
pub const CFA_SIGNAL: u8 = 6;

/// `enum gdiag_fp`.
pub const FP_SAME: u8 = 0;
pub const FP_AT_CFA: u8 = 1;
pub const FP_UNSUPPORTED: u8 = 2;
pub const FP_AT_FP: u8 = 3;

/// Where a signal's general registers keep three of theirs, in bytes from `r8`, the first of
/// them: the kernel's `struct sigcontext`, which is the `uc_mcontext` of a `ucontext_t`.
///
/// When `__restore_rt` is about to run, the handler's `ret` has taken the return address off the
/// stack, so sp is at the `ucontext_t` and `r8` 40 bytes above it.
pub mod sigcontext {
    pub const RBP: u64 = 80;
    pub const RSP: u64 = 120;
    pub const RIP: u64 = 128;
}

/// `struct gdiag_rule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireRule {
    pub cfa_off: i32,
    pub fp_off: i16,
    pub cfa: u8,
    pub fp: u8,
}

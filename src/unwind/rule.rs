//! Rules, and the numbers that all files share: a program has millions of rows, and all programs
//! together some hundreds of ways to get from a frame to its caller.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::abi::{self, WireRule};

/// New rules that one file may bring. Files of gcc, clang and rustc need some hundreds, so that
/// no file leaves the others without numbers.
pub const MAX_NEW_RULES: usize = 8192;

/// The number of [`Rule::UNSUPPORTED`], which also stands for rules beyond the limits.
pub const UNSUPPORTED: u16 = abi::FIRST_RULE;

/// How the canonical frame address (CFA) is found: the value of sp before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cfa {
    /// By an expression or a register that is not followed.
    Unsupported,
    /// sp + n
    Sp(i32),
    /// fp + n
    Fp(i32),
    /// What is stored at fp + n: the stack was realigned.
    FpDeref(i32),
    /// What is stored at sp + n.
    SpDeref(i32),
    /// sp + 8, and 8 more once the entry of the procedure linkage table has pushed its number:
    /// from byte n of its 16 on.
    Plt(i32),
    /// A signal's frame: the registers of the interrupted code are at sp + n, as
    /// [`abi::sigcontext`] says.
    Signal(i32),
}

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp {
    /// In its register still.
    Same,
    /// Stored at CFA + n.
    AtCfa(i16),
    /// Nowhere that is followed.
    Unsupported,
    /// Stored at fp + n: the stack was realigned.
    AtFp(i16),
}

/// One step of a walk. The return address is just below the CFA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    pub cfa: Cfa,
    /// [`Fp::Same`] where `cfa` says it all: for [`Cfa::Unsupported`] and [`Cfa::Signal`].
    pub fp: Fp,
}

/// What a table says about the code at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Nothing: no table covers it.
    Unknown,
    /// Nobody called it: it is where its thread began.
    Root,
    By(Rule),
}

impl Rule {
    pub const UNSUPPORTED: Rule = Rule {
        cfa: Cfa::Unsupported,
        fp: Fp::Same,
    };

    /// As the BPF program takes it.
    pub fn wire(self) -> WireRule {
        let (cfa, cfa_off) = match self.cfa {
            Cfa::Unsupported => (abi::CFA_UNSUPPORTED, 0),
            Cfa::Sp(n) => (abi::CFA_SP, n),
            Cfa::Fp(n) => (abi::CFA_FP, n),
            Cfa::FpDeref(n) => (abi::CFA_FP_DEREF, n),
            Cfa::SpDeref(n) => (abi::CFA_SP_DEREF, n),
            Cfa::Plt(n) => (abi::CFA_PLT, n),
            Cfa::Signal(n) => (abi::CFA_SIGNAL, n),
        };
        let (fp, fp_off) = match self.fp {
            Fp::Same => (abi::FP_SAME, 0),
            Fp::AtCfa(n) => (abi::FP_AT_CFA, n),
            Fp::Unsupported => (abi::FP_UNSUPPORTED, 0),
            Fp::AtFp(n) => (abi::FP_AT_FP, n),
        };
        WireRule {
            cfa_off,
            fp_off,
            cfa,
            fp,
        }
    }

    #[inline]
    fn hash(self) -> usize {
        let wire = self.wire();
        let kinds = u64::from(wire.cfa) << 8 | u64::from(wire.fp);
        let word = u64::from(wire.cfa_off as u32) << 32 | u64::from(wire.fp_off as u16) << 16;
        ((word | kinds).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - RECENT_BITS)) as usize
    }
}

const RECENT_BITS: u32 = 8;

/// The rules that have a number. Numbers are never taken back: files leave, rules stay.
#[derive(Debug)]
pub struct Rules {
    /// The rule with the number [`abi::FIRST_RULE`] is the first.
    rules: Vec<Rule>,
    ids: HashMap<Rule, u16>,
    /// The last rule for each hash: it is asked for each row, and most ask for one of a few rules.
    recent: Vec<(Rule, u16)>,
}

impl Default for Rules {
    fn default() -> Self {
        Rules::new()
    }
}

impl Rules {
    pub fn new() -> Self {
        Rules {
            rules: vec![Rule::UNSUPPORTED],
            ids: HashMap::from([(Rule::UNSUPPORTED, UNSUPPORTED)]),
            recent: vec![(Rule::UNSUPPORTED, UNSUPPORTED); 1 << RECENT_BITS],
        }
    }

    /// One more than the highest number in use.
    pub fn end(&self) -> usize {
        usize::from(abi::FIRST_RULE) + self.rules.len()
    }

    /// The rules numbered `first` and up, with their numbers: what is new since [`Self::end`] was
    /// `first`.
    pub fn since(&self, first: usize) -> impl Iterator<Item = (u16, Rule)> + '_ {
        let skip = first.saturating_sub(usize::from(abi::FIRST_RULE));
        let numbered = (abi::FIRST_RULE..=u16::MAX).zip(self.rules.iter().copied());
        numbered.skip(skip)
    }

    /// What the row with this number says.
    pub fn caller(&self, id: u16) -> Caller {
        match id {
            abi::RULE_NONE => Caller::Unknown,
            abi::RULE_ROOT => Caller::Root,
            _ => self
                .rules
                .get(usize::from(id - abi::FIRST_RULE))
                .map_or(Caller::Unknown, |rule| Caller::By(*rule)),
        }
    }

    /// The number of a rule; a new one while [`Self::end`] is below `limit`.
    #[inline]
    pub(super) fn id(&mut self, caller: Caller, limit: usize) -> u16 {
        let rule = match caller {
            Caller::Unknown => return abi::RULE_NONE,
            Caller::Root => return abi::RULE_ROOT,
            Caller::By(rule) => rule,
        };
        let slot = rule.hash();
        if self.recent[slot].0 == rule {
            return self.recent[slot].1;
        }
        let end = self.end();
        let id = match self.ids.get(&rule) {
            Some(id) => *id,
            None if end < limit.min(abi::MAX_RULES) => {
                let id = end as u16;
                self.ids.insert(rule, id);
                self.rules.push(rule);
                id
            }
            None => return UNSUPPORTED,
        };
        self.recent[slot] = (rule, id);
        id
    }
}

//! A walk from frame to frame, with the meaning that the one in BPF has. It is what the tests of
//! the tables run on, and the place to read how a table is used.
//!
//! - A return address is behind its call, which can be the last instruction of its function. So
//!   the rule of a caller is that of the byte before its address. Not so where a signal came: that
//!   is the next instruction to run, like the first frame's.
//! - The stack grows down, so a caller's sp is above that of the frame it called. A table that
//!   says otherwise would lead in circles; only a signal may have come from another stack. (Code
//!   that moves to a stack of its own and calls back from there is cut at that place.)
//! - A return address of 0 is the root too: some start threads with it, and tell no table.
#![forbid(unsafe_code)]

use super::abi::{self, sigcontext};
use super::rule::{Caller, Cfa, Fp, Rules};
use super::Table;
use crate::event::Cut;

/// Code of a process.
#[derive(Clone, Copy, Debug)]
pub struct Mapping<'a> {
    pub start: u64,
    pub end: u64,
    /// Address in the process minus address in the file.
    pub bias: u64,
    pub table: Option<&'a Table>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Leaf first. All but the leaf, and what a signal interrupted, are return addresses.
    pub frames: Vec<u64>,
    /// `None`: the last frame is the root.
    pub cut: Option<Cut>,
}

/// Walks a stack from the registers of a thread. `maps` are sorted by where they begin; `read`
/// reads 8 bytes of the process's memory.
pub fn walk(
    maps: &[Mapping<'_>],
    rules: &Rules,
    from: Registers,
    mut read: impl FnMut(u64) -> Option<u64>,
) -> Walk {
    let mut frames = Vec::new();
    let mut at = Frame {
        pc: from.pc,
        sp: from.sp,
        fp: Some(from.fp),
        exact: true,
    };
    let cut = loop {
        if frames.len() == abi::USER_DEPTH {
            break Some(Cut::TooDeep);
        }
        frames.push(at.pc);
        match at.caller(maps, rules, &mut read) {
            Ok(Some(caller)) => at = caller,
            Ok(None) => break None,
            Err(cut) => break Some(cut),
        }
    };
    Walk { frames, cut }
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    pc: u64,
    sp: u64,
    /// `None` when a frame below has not kept it where it can be found.
    fp: Option<u64>,
    /// `pc` is an instruction to run, not a return address.
    exact: bool,
}

impl Frame {
    fn caller(
        &self,
        maps: &[Mapping<'_>],
        rules: &Rules,
        read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Result<Option<Frame>, Cut> {
        let address = self.pc.wrapping_sub(u64::from(!self.exact));
        let after = maps.partition_point(|mapping| mapping.start <= address);
        let mapping = after.checked_sub(1).map(|i| &maps[i]);
        let mapping = mapping.filter(|mapping| address < mapping.end);
        let table = mapping.ok_or(Cut::Unmapped)?.table.ok_or(Cut::NoTable)?;
        let bias = mapping.map_or(0, |mapping| mapping.bias);
        let rule = match rules.caller(table.rule_at(address.wrapping_sub(bias))) {
            Caller::Unknown => return Err(Cut::NoTable),
            Caller::Root => return Ok(None),
            Caller::By(rule) => rule,
        };

        let mut load = |address: u64| read(address).ok_or(Cut::Unreadable);
        let offset = |base: u64, n: i32| base.wrapping_add_signed(i64::from(n));
        let fp = || self.fp.ok_or(Cut::Unsupported);
        let cfa = match rule.cfa {
            Cfa::Unsupported => return Err(Cut::Unsupported),
            Cfa::Sp(n) => offset(self.sp, n),
            Cfa::Fp(n) => offset(fp()?, n),
            Cfa::FpDeref(n) => load(offset(fp()?, n))?,
            Cfa::SpDeref(n) => load(offset(self.sp, n))?,
            Cfa::Plt(n) if (self.pc & 15) as i32 >= n => offset(self.sp, 16),
            Cfa::Plt(_) => offset(self.sp, 8),
            Cfa::Signal(n) => {
                let context = offset(self.sp, n);
                return Ok(Some(Frame {
                    pc: load(context.wrapping_add(sigcontext::RIP))?,
                    sp: load(context.wrapping_add(sigcontext::RSP))?,
                    fp: Some(load(context.wrapping_add(sigcontext::RBP))?),
                    exact: true,
                }));
            }
        };
        if cfa <= self.sp {
            return Err(Cut::Unreadable);
        }
        let pc = load(cfa.wrapping_sub(8))?;
        if pc == 0 {
            return Ok(None);
        }
        let fp = match rule.fp {
            Fp::Same => self.fp,
            Fp::AtCfa(n) => Some(load(offset(cfa, i32::from(n)))?),
            Fp::Unsupported => None,
            Fp::AtFp(n) => match self.fp {
                Some(fp) => Some(load(offset(fp, i32::from(n)))?),
                None => None,
            },
        };
        Ok(Some(Frame {
            pc,
            sp: cfa,
            fp,
            exact: false,
        }))
    }
}

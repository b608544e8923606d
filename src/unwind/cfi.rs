//! Runs the programs of `.eh_frame`: which rule holds from which address on.
//!
//! Only three columns of the table that DWARF describes are kept: the CFA, the frame pointer and
//! the return address. They are all that a walk needs, for a caller's sp is the CFA.
#![forbid(unsafe_code)]

use gimli::constants as dw;
use gimli::{
    CallFrameInstruction, CallFrameInstructionIter, CommonInformationEntry, EhFrame, EhFrameOffset,
    EndianSlice, FrameDescriptionEntry, LittleEndian, Reader, Register, UnwindExpression,
    UnwindSection, X86_64,
};

use super::abi::sigcontext;
use super::elf::Source;
use super::rule::{Caller, Cfa, Fp, Rule};

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// The most that one common entry may hold; compilers make them of 20 to 30 bytes. Each function
/// starts from one, so a long one would make a small file cost as much as a large one.
pub(super) const MAX_CIE_BYTES: usize = 1024;

/// States remembered at once. Compilers need one, people who write assembly a few.
const MAX_REMEMBERED: usize = 64;

/// A function, or a part of one that the compiler put elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub start: u64,
    /// Of its code, which is in one segment.
    pub len: u32,
    /// Of its entry in `.eh_frame`.
    entry: u32,
}

impl Function {
    pub fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }
}

/// Why a function's program could not be run to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

impl From<gimli::Error> for Broken {
    fn from(_: gimli::Error) -> Self {
        Broken
    }
}

/// `.eh_frame`, read entry by entry.
#[derive(Debug)]
pub(super) struct Frames<'a> {
    section: EhFrame<Bytes<'a>>,
    source: &'a Source<'a>,
    /// Those that functions asked for last, by their offset.
    common: Vec<Option<Common<'a>>>,
    remembered: Vec<State>,
}

/// A common entry and the state that it leaves to the functions.
#[derive(Clone, Debug)]
struct Common<'a> {
    offset: usize,
    entry: CommonInformationEntry<Bytes<'a>>,
    state: State,
}

const COMMON_SLOTS: usize = 64;

impl<'a> Frames<'a> {
    pub fn new(source: &'a Source<'a>) -> Self {
        Frames {
            section: EhFrame::new(source.eh_frame, LittleEndian),
            source,
            common: vec![None; COMMON_SLOTS],
            remembered: Vec::new(),
        }
    }

    /// All functions with code that a process would have, sorted by where they begin. Where two
    /// overlap, the later one holds from its beginning on, as for the binary search that debuggers
    /// and exceptions use.
    pub fn functions(&mut self) -> Vec<Function> {
        // Compilers take 24 bytes and more for one.
        let mut functions = Vec::with_capacity(self.source.eh_frame.len() / 32);
        let mut at = 0;
        while let Some((entry, next)) = entry_at(self.source.eh_frame, at) {
            match entry {
                Entry::Function => functions.extend(self.function(at)),
                Entry::Common => {}
                // Of a section that is known to its end, the linker may have left more behind it.
                Entry::Terminator if self.source.whole => {}
                Entry::Terminator => break,
            }
            at = next;
        }
        if !functions.is_sorted_by_key(|function| function.start) {
            functions.sort_by_key(|function| function.start);
        }
        for i in 1..functions.len() {
            let next = functions[i];
            let function = &mut functions[i - 1];
            if function.end() > next.start {
                function.len = (next.start - function.start) as u32;
            }
        }
        functions
    }

    fn function(&mut self, at: usize) -> Option<Function> {
        let fde = self.parse(at).ok()?.0;
        let start = fde.initial_address();
        // Of functions that the linker has dropped, the entry can be left over.
        let after = self.source.code.partition_point(|code| code.end <= start);
        let code = self.source.code.get(after)?;
        if start < code.start {
            return None;
        }
        let len = fde.len().min(code.end - start).min(u64::from(u32::MAX));
        (len > 0).then_some(Function {
            start,
            len: len as u32,
            entry: u32::try_from(at).ok()?,
        })
    }

    /// A function's entry, and the state that it starts from.
    fn parse(&mut self, at: usize) -> Result<(FrameDescriptionEntry<Bytes<'a>>, State), Broken> {
        let bases = &self.source.bases;
        let partial = self
            .section
            .partial_fde_from_offset(bases, EhFrameOffset(at))?;
        let offset = partial.cie_offset().0;
        let slot = &mut self.common[offset / 4 % COMMON_SLOTS];
        let common = match slot {
            Some(common) if common.offset == offset => common,
            Some(_) | None => slot.insert(Common::at(self.source, &self.section, offset)?),
        };
        let fde = partial.parse(|_, _, _| Ok(common.entry.clone()))?;
        Ok((fde, common.state))
    }

    /// Tells `row` of each range of the function's code, in order, and who called it there.
    pub fn rows(&mut self, function: &Function, mut row: impl FnMut(u64, u64, Caller)) {
        let end = function.end();
        let mut at = function.start;
        let done = self.run(function, |from, to, caller| {
            let (from, to) = (from.min(end), to.min(end));
            if from < to {
                row(from, to, caller);
            }
            at = to;
        });
        if done.is_err() && at < end {
            row(at, end, Caller::By(Rule::UNSUPPORTED));
        }
    }

    fn run(
        &mut self,
        function: &Function,
        mut row: impl FnMut(u64, u64, Caller),
    ) -> Result<(), Broken> {
        let (fde, initial) = self.parse(function.entry as usize)?;
        let signal = fde.is_signal_trampoline();
        let mut machine = Machine::new(&self.section, fde.cie(), Some(initial));
        self.remembered.clear();
        machine.remembered = std::mem::take(&mut self.remembered);

        let mut at = function.start;
        let mut instructions = fde.instructions(&self.section, &self.source.bases);
        let mut outcome = Ok(());
        loop {
            match machine.step(&mut instructions) {
                Ok(Step::Same) => {}
                Ok(Step::Advance(by)) => {
                    let next = at.saturating_add(by);
                    row(at, next, machine.state.caller(signal));
                    at = next;
                }
                Ok(Step::Goto(next)) if next >= at => {
                    row(at, next, machine.state.caller(signal));
                    at = next;
                }
                Ok(Step::Goto(_)) | Err(Broken) => {
                    outcome = Err(Broken);
                    break;
                }
                Ok(Step::End) => {
                    row(at, function.end(), machine.state.caller(signal));
                    break;
                }
            }
            // The rest is for code of the next function, or there is none.
            if at >= function.end() {
                break;
            }
        }
        self.remembered = machine.remembered;
        outcome
    }
}

enum Entry {
    Common,
    Function,
    Terminator,
}

/// The kind of the entry at an offset, and the offset of the next.
fn entry_at(section: &[u8], at: usize) -> Option<(Entry, usize)> {
    let word = |at: usize| {
        let bytes = section.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let (body, len) = match word(at)? {
        0 => return Some((Entry::Terminator, at + 4)),
        u32::MAX => {
            let len = u64::from(word(at + 4)?) | u64::from(word(at + 8)?) << 32;
            (at + 12, usize::try_from(len).ok()?)
        }
        len => (at + 4, len as usize),
    };
    let next = body.checked_add(len)?;
    let entry = match word(body)? {
        0 => Entry::Common,
        _ => Entry::Function,
    };
    Some((entry, next))
}

impl<'a> Common<'a> {
    fn at(
        source: &Source<'a>,
        section: &EhFrame<Bytes<'a>>,
        offset: usize,
    ) -> Result<Self, Broken> {
        let bases = &source.bases;
        let (kind, next) = entry_at(source.eh_frame, offset).ok_or(Broken)?;
        if !matches!(kind, Entry::Common) || next - offset > MAX_CIE_BYTES {
            return Err(Broken);
        }
        let entry = section.cie_from_offset(bases, EhFrameOffset(offset))?;
        let mut machine = Machine::new(section, &entry, None);
        let mut instructions = entry.instructions(section, bases);
        loop {
            match machine.step(&mut instructions)? {
                Step::Same => {}
                Step::End => break,
                // It is not about any address.
                Step::Advance(_) | Step::Goto(_) => return Err(Broken),
            }
        }
        if entry.return_address_register() != X86_64::RA {
            machine.state.ra = Ra::Unsupported;
        }
        Ok(Common {
            offset,
            entry,
            state: machine.state,
        })
    }
}

/// Three columns of the row that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    cfa: CfaColumn,
    fp: FpColumn,
    ra: Ra,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CfaColumn {
    Register(Register, i64),
    Expression(Expression),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FpColumn {
    Same,
    AtCfa(i64),
    At(Expression),
    Unsupported,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ra {
    AtCfa(i64),
    At(Expression),
    Undefined,
    Unsupported,
}

/// The expressions that compilers, linkers and libc make for the three columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expression {
    /// register + n
    Address(Register, i64),
    /// *(register + n)
    Deref(Register, i64),
    /// sp + 8 + ((pc & 15) >= n) * 8, for the procedure linkage table
    Plt(u8),
    Other,
}

impl Expression {
    fn of(bytes: &[u8]) -> Self {
        const PLT: [u8; 6] = [
            dw::DW_OP_breg7.0,
            8,
            dw::DW_OP_breg16.0,
            0,
            dw::DW_OP_lit15.0,
            dw::DW_OP_and.0,
        ];
        const PLT_END: [u8; 4] = [
            dw::DW_OP_ge.0,
            dw::DW_OP_lit3.0,
            dw::DW_OP_shl.0,
            dw::DW_OP_plus.0,
        ];
        if let Some([lit, end @ ..]) = bytes.strip_prefix(&PLT) {
            let n = lit.wrapping_sub(dw::DW_OP_lit0.0);
            return match n < 16 && end == PLT_END {
                true => Expression::Plt(n),
                false => Expression::Other,
            };
        }
        let Some((&first, rest)) = bytes.split_first() else {
            return Expression::Other;
        };
        let register = first.wrapping_sub(dw::DW_OP_breg0.0);
        if register >= 32 {
            return Expression::Other;
        }
        let register = Register(u16::from(register));
        let mut rest = EndianSlice::new(rest, LittleEndian);
        let Ok(offset) = rest.read_sleb128() else {
            return Expression::Other;
        };
        match rest.slice() {
            [] => Expression::Address(register, offset),
            [op] if *op == dw::DW_OP_deref.0 => Expression::Deref(register, offset),
            _ => Expression::Other,
        }
    }
}

impl State {
    /// Who called the function while this state holds.
    fn caller(&self, signal: bool) -> Caller {
        if self.ra == Ra::Undefined {
            return Caller::Root;
        }
        Caller::By(self.rule(signal).unwrap_or(Rule::UNSUPPORTED))
    }

    fn rule(&self, signal: bool) -> Option<Rule> {
        if let (true, Some(offset)) = (signal, self.sigcontext()) {
            return Some(Rule {
                cfa: Cfa::Signal(i32::try_from(offset).ok()?),
                fp: Fp::Same,
            });
        }
        if self.ra != Ra::AtCfa(-8) {
            return None;
        }
        let (of, offset): (fn(i32) -> Cfa, i64) = match self.cfa {
            CfaColumn::Register(X86_64::RSP, n) => (Cfa::Sp, n),
            CfaColumn::Register(X86_64::RBP, n) => (Cfa::Fp, n),
            CfaColumn::Expression(Expression::Deref(X86_64::RSP, n)) => (Cfa::SpDeref, n),
            CfaColumn::Expression(Expression::Deref(X86_64::RBP, n)) => (Cfa::FpDeref, n),
            CfaColumn::Expression(Expression::Plt(n)) => (Cfa::Plt, i64::from(n)),
            CfaColumn::Register(..) | CfaColumn::Expression(_) => return None,
        };
        Some(Rule {
            cfa: of(i32::try_from(offset).ok()?),
            fp: self.fp(),
        })
    }

    fn fp(&self) -> Fp {
        let short = |n: i64, of: fn(i16) -> Fp| i16::try_from(n).map_or(Fp::Unsupported, of);
        match self.fp {
            FpColumn::Same => Fp::Same,
            FpColumn::AtCfa(n) => short(n, Fp::AtCfa),
            FpColumn::At(Expression::Address(X86_64::RBP, n)) => short(n, Fp::AtFp),
            FpColumn::At(_) | FpColumn::Unsupported => Fp::Unsupported,
        }
    }

    /// Where the signal context of a `__restore_rt` is, from sp: it tells of each register where
    /// in the context it is, and three that agree are enough to know the layout.
    fn sigcontext(&self) -> Option<i64> {
        let CfaColumn::Expression(Expression::Deref(X86_64::RSP, rsp)) = self.cfa else {
            return None;
        };
        let at = |offset: u64| {
            let n = context_offset(rsp)?.checked_add(offset as i64)?;
            Some(Expression::Address(X86_64::RSP, n))
        };
        let agree = self.ra == Ra::At(at(sigcontext::RIP)?)
            && self.fp == FpColumn::At(at(sigcontext::RBP)?);
        agree.then_some(context_offset(rsp)?)
    }
}

fn context_offset(rsp: i64) -> Option<i64> {
    rsp.checked_sub(sigcontext::RSP as i64)
}

enum Step {
    Same,
    Advance(u64),
    Goto(u64),
    End,
}

/// Runs instructions on a state.
struct Machine<'s, 'a> {
    section: &'s EhFrame<Bytes<'a>>,
    code_factor: u64,
    data_factor: i64,
    state: State,
    /// What the common entry left, for `restore`. None while that entry itself runs.
    initial: Option<State>,
    remembered: Vec<State>,
}

impl<'s, 'a> Machine<'s, 'a> {
    fn new(
        section: &'s EhFrame<Bytes<'a>>,
        common: &CommonInformationEntry<Bytes<'a>>,
        initial: Option<State>,
    ) -> Self {
        Machine {
            section,
            code_factor: common.code_alignment_factor(),
            data_factor: common.data_alignment_factor(),
            state: initial.unwrap_or(State {
                cfa: CfaColumn::Expression(Expression::Other),
                fp: FpColumn::Same,
                ra: Ra::Unsupported,
            }),
            initial,
            remembered: Vec::new(),
        }
    }

    // Within the loop over a function's program, which is where the time goes, it is a tenth faster.
    #[inline(always)]
    fn step(
        &mut self,
        instructions: &mut CallFrameInstructionIter<'_, Bytes<'a>>,
    ) -> Result<Step, Broken> {
        use CallFrameInstruction as I;
        let Some(instruction) = instructions.next()? else {
            return Ok(Step::End);
        };
        let factored = |n: i64| n.wrapping_mul(self.data_factor);
        match instruction {
            I::AdvanceLoc { delta } => {
                return Ok(Step::Advance(
                    u64::from(delta).saturating_mul(self.code_factor),
                ));
            }
            I::SetLoc { address } => return Ok(Step::Goto(address)),

            I::DefCfa { register, offset } => {
                self.state.cfa = CfaColumn::Register(register, offset as i64);
            }
            I::DefCfaSf {
                register,
                factored_offset,
            } => self.state.cfa = CfaColumn::Register(register, factored(factored_offset)),
            I::DefCfaRegister { register } => {
                let (_, offset) = self.cfa_register()?;
                self.state.cfa = CfaColumn::Register(register, offset);
            }
            I::DefCfaOffset { offset } => {
                let (register, _) = self.cfa_register()?;
                self.state.cfa = CfaColumn::Register(register, offset as i64);
            }
            I::DefCfaOffsetSf { factored_offset } => {
                let (register, _) = self.cfa_register()?;
                self.state.cfa = CfaColumn::Register(register, factored(factored_offset));
            }
            I::DefCfaExpression { expression } => {
                self.state.cfa = CfaColumn::Expression(self.expression(expression)?);
            }

            I::Undefined { register } => {
                self.set(register, FpColumn::Unsupported, Ra::Undefined);
            }
            I::SameValue { register } => self.set(register, FpColumn::Same, Ra::Unsupported),
            I::Offset {
                register,
                factored_offset,
            } => {
                let offset = factored(factored_offset as i64);
                self.set(register, FpColumn::AtCfa(offset), Ra::AtCfa(offset));
            }
            I::OffsetExtendedSf {
                register,
                factored_offset,
            } => {
                let offset = factored(factored_offset);
                self.set(register, FpColumn::AtCfa(offset), Ra::AtCfa(offset));
            }
            I::Expression {
                register,
                expression,
            } if register == X86_64::RBP || register == X86_64::RA => {
                let at = self.expression(expression)?;
                self.set(register, FpColumn::At(at), Ra::At(at));
            }
            I::Expression { .. } => {}
            I::ValOffset { register, .. }
            | I::ValOffsetSf { register, .. }
            | I::ValExpression { register, .. }
            | I::Register {
                dest_register: register,
                ..
            } => self.set(register, FpColumn::Unsupported, Ra::Unsupported),
            I::Restore { register } => {
                let initial = self.initial.ok_or(Broken)?;
                self.set(register, initial.fp, initial.ra);
            }

            I::RememberState => {
                if self.remembered.len() == MAX_REMEMBERED {
                    return Err(Broken);
                }
                self.remembered.push(self.state);
            }
            I::RestoreState => self.state = self.remembered.pop().ok_or(Broken)?,

            // How much the callee takes off the stack, which only exceptions need.
            I::ArgsSize { .. } | I::Nop => {}
            I::NegateRaState => return Err(Broken),
        }
        Ok(Step::Same)
    }

    fn set(&mut self, register: Register, fp: FpColumn, ra: Ra) {
        match register {
            X86_64::RBP => self.state.fp = fp,
            X86_64::RA => self.state.ra = ra,
            _ => {}
        }
    }

    fn cfa_register(&self) -> Result<(Register, i64), Broken> {
        match self.state.cfa {
            CfaColumn::Register(register, offset) => Ok((register, offset)),
            CfaColumn::Expression(_) => Err(Broken),
        }
    }

    fn expression(&self, expression: UnwindExpression<usize>) -> Result<Expression, Broken> {
        Ok(Expression::of(expression.get(self.section)?.0.slice()))
    }
}

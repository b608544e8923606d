//! Real files: made by the assembler and the linker, and those of this machine, where gimli's own
//! reading of every row is the measure.

use std::fs;

use gimli::{
    CfaRule, CieOrFde, EndianSlice, LittleEndian, Operation, RegisterRule, UnwindContext,
    UnwindSection, UnwindTableRow, X86_64,
};

use super::super::{vdso, Unusable};
use super::*;

const ASSEMBLY: &str = "
    .text
    .globl framed, framed_end, start, trampoline, far, caller
    .subsection 1
framed:                     # behind the others in memory, before them in .eh_frame
    .cfi_startproc
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    mov %rsp, %rbp
    .cfi_def_cfa_register %rbp
    pop %rbp
    .cfi_def_cfa %rsp, 8
    .cfi_restore %rbp
    ret
    .cfi_endproc
framed_end:
    .subsection 0
start:
    .cfi_startproc
    .cfi_undefined %rip
    hlt
    .cfi_endproc
trampoline:                 # as libc says it of __restore_rt, for the registers that matter
    .cfi_startproc
    .cfi_signal_frame
    .cfi_escape 0x0f, 4, 0x77, 0xa0, 1, 6
    .cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0
    .cfi_escape 0x10, 16, 3, 0x77, 0xa8, 1
    mov $15, %eax
    syscall
    .cfi_endproc
caller:
    .cfi_startproc
    call outside@plt
    ret
    .cfi_endproc
    .fill 70000, 1, 0x90
far:
    .cfi_startproc
    ret
    .cfi_endproc
";

#[test]
fn a_file_of_the_assembler() {
    let elf = assemble(ASSEMBLY);
    let made = Made::of(&elf);
    let at = |name: &str, offset: u64| made.caller(symbol(&elf, name) + offset);

    assert_eq!(at("framed", 0), SP_8);
    assert_eq!(at("framed", 1), by(Cfa::Sp(16), Fp::AtCfa(-16)));
    assert_eq!(at("framed", 4), by(Cfa::Fp(16), Fp::AtCfa(-16)));
    assert_eq!(at("framed", 5), SP_8);
    assert_eq!(at("framed_end", 0), Caller::Unknown);
    assert_eq!(at("start", 0), Caller::Root);
    assert_eq!(at("trampoline", 3), by(Cfa::Signal(40), Fp::Same));
    assert_eq!(at("caller", 5), SP_8);
    assert_eq!(at("far", 0), SP_8);
}

#[test]
fn without_section_headers_the_program_headers_lead_to_the_same_table() {
    let mut elf = assemble(ASSEMBLY);
    let by_sections = Made::of(&elf);
    strip_sections(&mut elf);
    let by_segments = Made::of(&elf);
    // What the linker adds for the procedure linkage table may be in the one and not in the other.
    assert_eq!(by_sections.table, by_segments.table);
}

#[test]
fn the_linker_describes_the_procedure_linkage_table() {
    let elf = assemble(ASSEMBLY);
    let made = Made::of(&elf);
    let file = object::File::parse(&elf[..]).unwrap();
    use object::ObjectSection;
    let plt = file.section_by_name(".plt").unwrap().address();
    // The first entry pushes one word and jumps on; the others push theirs at their byte 6, or
    // where they hold a landing pad, at byte 4.
    assert_eq!(made.caller(plt), by(Cfa::Sp(16), Fp::Same));
    assert_eq!(made.caller(plt + 6), by(Cfa::Sp(24), Fp::Same));
    let Caller::By(entry) = made.caller(plt + 16) else {
        panic!("no rule");
    };
    assert!(matches!(entry.cfa, Cfa::Plt(9..=11)), "{entry:?}");
}

#[test]
fn files_without_a_table_say_why() {
    let mut rules = Rules::new();
    let mut of = |elf: &[u8]| Table::of(elf, &mut rules).unwrap_err();
    let good = assemble(ASSEMBLY);
    assert_eq!(of(b""), Unusable::NotElf);
    assert_eq!(
        of(b"#!/bin/sh\nexec something or other\n"),
        Unusable::NotElf
    );

    for (at, value, machine) in [(18, 183, 183), (4, 1, 62), (5, 2, 62 << 8)] {
        let mut other = good.clone();
        other[at] = value;
        assert_eq!(of(&other), Unusable::Machine(machine));
    }

    let mut none = assemble(".text\n.globl f\nf: ret\n");
    strip_sections(&mut none);
    assert_eq!(of(&none), Unusable::NoUnwindInfo);

    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a.s"), dir.path().join("a.o"));
    fs::write(&from, ASSEMBLY).unwrap();
    compile(&["-c", "-shared"], &from, &to);
    assert_eq!(of(&fs::read(to).unwrap()), Unusable::NoCode);
}

#[test]
fn code_where_no_process_has_any_is_refused() {
    let good = assemble(ASSEMBLY);
    let mut rules = Rules::new();
    for bit in 48..64 {
        let mut elf = good.clone();
        // The addresses of all segments of type LOAD: the file has some of the eight at most.
        for i in 0..usize::from(elf[0x38]) {
            let header = 64 + 56 * i;
            if elf[header] == 1 {
                elf[header + 16 + bit / 8] |= 1 << (bit % 8);
            }
        }
        let made = Table::of(&elf, &mut rules);
        assert_eq!(made, Err(Unusable::AddressTooHigh), "bit {bit}");
    }
}

#[test]
fn the_vdso_of_this_process() {
    let image = vdso::image().expect("there is a vdso");
    let made = Made::of(image);
    assert_eq!(made.caller(symbol(image, "__vdso_clock_gettime")), SP_8);
    let mut stripped = image.to_vec();
    strip_sections(&mut stripped);
    assert_eq!(Made::of(&stripped).table, made.table);
}

#[test]
fn each_row_of_this_program_and_its_libraries_is_what_gimli_reads() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    // Other tests of this program have data mapped, too.
    let paths = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let code = fields.nth(1)?.contains('x');
        fields.nth(3).filter(|_| code)
    });
    let mut files: Vec<_> = paths.filter(|path| path.starts_with('/')).collect();
    files.extend([
        "/usr/bin/python3",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0",
    ]);
    files.sort_unstable();
    files.dedup();
    let mut compared = 0;
    for path in files {
        let Ok(elf) = fs::read(path) else {
            continue;
        };
        compared += compare_with_gimli(path, &elf);
    }
    assert!(compared > 10_000, "{compared} rows");
}

/// Compares both ends of rows that gimli makes of a file. Says of how many.
fn compare_with_gimli(path: &str, elf: &[u8]) -> usize {
    let made = Made::of(elf);
    let source = Source::of(elf).unwrap();
    let section = gimli::EhFrame::new(source.eh_frame, LittleEndian);
    let mut context = UnwindContext::new();
    let mut entries = section.entries(&source.bases);
    let mut compared = 0;
    let mut n = 0;
    while let Some(entry) = entries.next().unwrap() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        // All of the large files would take long without optimisation.
        n += 1;
        if elf.len() > 4_000_000 && n % 16 != 0 {
            continue;
        }
        let fde = partial.parse(gimli::EhFrame::cie_from_offset).unwrap();
        let mut table = fde.rows(&section, &source.bases, &mut context).unwrap();
        while let Some(row) = table.next_row().unwrap() {
            let (start, end) = (row.start_address(), row.end_address());
            if start == end {
                continue;
            }
            let expected = expected(row, &section);
            for address in [start, end - 1] {
                assert_eq!(
                    made.caller(address),
                    expected,
                    "{path}: {address:#x} of {row:?}"
                );
            }
            compared += 1;
        }
    }
    compared
}

type Section<'a> = gimli::EhFrame<EndianSlice<'a, LittleEndian>>;

/// What a row comes to, by the text of DWARF's chapter on call frames.
fn expected(row: &UnwindTableRow<usize>, section: &Section<'_>) -> Caller {
    let operations = |expression: &gimli::UnwindExpression<usize>| {
        let encoding = gimli::Encoding {
            address_size: 8,
            format: gimli::Format::Dwarf32,
            version: 1,
        };
        let expression = expression.get(section).unwrap();
        let mut operations = expression.operations(encoding);
        std::iter::from_fn(|| operations.next().unwrap()).collect::<Vec<_>>()
    };
    let ra = row.register(X86_64::RA);
    let fp = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::SameValue) => Fp::Same,
        Some(RegisterRule::Offset(n)) => Fp::AtCfa(n as i16),
        Some(RegisterRule::Expression(expression)) => match operations(&expression)[..] {
            [Operation::RegisterOffset {
                register: X86_64::RBP,
                offset,
                ..
            }] => Fp::AtFp(offset as i16),
            _ => Fp::Unsupported,
        },
        Some(_) => Fp::Unsupported,
    };
    match ra {
        Some(RegisterRule::Undefined) => return Caller::Root,
        Some(RegisterRule::Offset(-8)) => {}
        Some(RegisterRule::Expression(_)) => return by(Cfa::Signal(40), Fp::Same),
        _ => return Caller::By(Rule::UNSUPPORTED),
    }
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => match *register {
            X86_64::RSP => Cfa::Sp(*offset as i32),
            X86_64::RBP => Cfa::Fp(*offset as i32),
            _ => return Caller::By(Rule::UNSUPPORTED),
        },
        CfaRule::Expression(expression) => match operations(expression)[..] {
            [Operation::RegisterOffset {
                register, offset, ..
            }, Operation::Deref { .. }] => match register {
                X86_64::RSP => Cfa::SpDeref(offset as i32),
                X86_64::RBP => Cfa::FpDeref(offset as i32),
                _ => return Caller::By(Rule::UNSUPPORTED),
            },
            [Operation::RegisterOffset {
                register: X86_64::RSP,
                offset: 8,
                ..
            }, Operation::RegisterOffset {
                register: X86_64::RA,
                offset: 0,
                ..
            }, Operation::UnsignedConstant { value: 15 }, Operation::And, Operation::UnsignedConstant { value }, Operation::Ge, Operation::UnsignedConstant { value: 3 }, Operation::Shl, Operation::Plus] => {
                Cfa::Plt(value as i32)
            }
            _ => return Caller::By(Rule::UNSUPPORTED),
        },
    };
    by(cfa, fp)
}

//! Hand-made programs: what each instruction and each expression comes to.

use super::super::rule::{MAX_NEW_RULES, UNSUPPORTED};
use super::super::{abi, Page, Unusable};
use super::*;

const UNSUPPORTED_RULE: Caller = Caller::By(Rule::UNSUPPORTED);

/// `DW_CFA_advance_loc` by `n` bytes, below 64.
const fn advance(n: u8) -> u8 {
    0x40 | n
}

fn steps(steps: &[&[u8]]) -> Made {
    function(&steps.concat())
}

#[test]
fn a_function_with_a_frame_pointer() {
    let made = steps(&[
        &[advance(1), 0x0e, 16, 0x86, 2], // push rbp: CFA = sp + 16, rbp at CFA - 16
        &[advance(3), 0x0d, 6],           // mov rbp, rsp: CFA = rbp + 16
        &[advance(20), 0x0c, 7, 8, 0xc6], // pop rbp: CFA = sp + 8, rbp restored
    ]);
    assert_eq!(made.caller(0x0fff), Caller::Unknown);
    assert_eq!(made.caller(0x1000), SP_8);
    assert_eq!(made.caller(0x1001), by(Cfa::Sp(16), Fp::AtCfa(-16)));
    assert_eq!(made.caller(0x1003), by(Cfa::Sp(16), Fp::AtCfa(-16)));
    assert_eq!(made.caller(0x1004), by(Cfa::Fp(16), Fp::AtCfa(-16)));
    assert_eq!(made.caller(0x1017), by(Cfa::Fp(16), Fp::AtCfa(-16)));
    assert_eq!(made.caller(0x1018), SP_8);
    assert_eq!(made.caller(0x10ff), SP_8);
    assert_eq!(made.caller(0x1100), Caller::Unknown);
    assert_eq!(made.table.rows.len(), 6);
}

#[test]
fn a_remembered_state_comes_back_whole() {
    let made = steps(&[
        &[advance(1), 0x0e, 16, 0x86, 2, 0x0a], // remember
        &[advance(1), 0x0c, 7, 8, 0xc6],
        &[advance(1), 0x0b], // restore
    ]);
    assert_eq!(made.caller(0x1002), SP_8);
    assert_eq!(made.caller(0x1003), by(Cfa::Sp(16), Fp::AtCfa(-16)));
}

#[test]
fn advances_of_all_sizes() {
    let made = steps(&[
        &[0x02, 0x10, 0x0e, 16],                         // advance_loc1
        &[0x03, 0x10, 0x00, 0x0e, 24],                   // advance_loc2
        &[0x04, 0x10, 0x00, 0x00, 0x00, 0x0e, 32],       // advance_loc4
        &[0x01, 0x40, 0x10, 0, 0, 0, 0, 0, 0, 0x0e, 40], // set_loc 0x1040
    ]);
    let at = |address| made.caller(address);
    assert_eq!(at(0x100f), SP_8);
    assert_eq!(at(0x1010), by(Cfa::Sp(16), Fp::Same));
    assert_eq!(at(0x1020), by(Cfa::Sp(24), Fp::Same));
    assert_eq!(at(0x1030), by(Cfa::Sp(32), Fp::Same));
    assert_eq!(at(0x1040), by(Cfa::Sp(40), Fp::Same));
}

#[test]
fn instructions_that_do_not_matter_make_no_rows() {
    let made = steps(&[
        &[advance(1), 0x2e, 32],                // GNU_args_size
        &[advance(1), 0x83, 3],                 // rbx at CFA - 24
        &[advance(1), 0x10, 12, 2, 0x76, 0x78], // r12 at rbp - 8
        &[advance(1), 0x00],                    // nop
        &[advance(1), 0x08, 6],                 // rbp: same value
    ]);
    assert_eq!(made.table.rows.len(), 3, "nothing, CFA = sp + 8, nothing");
}

#[test]
fn the_root_is_where_the_return_address_is_undefined() {
    let made = function(&[0x07, 16]);
    assert_eq!(made.caller(0x1000), Caller::Root);
}

#[test]
fn a_realigned_stack() {
    let made = steps(&[
        &[advance(5), 0x0c, 10, 0],               // lea r10, [rsp + 8]: CFA = r10
        &[advance(8), 0x10, 6, 2, 0x76, 0],       // rbp at rbp + 0
        &[advance(2), 0x0f, 3, 0x76, 0x78, 0x06], // CFA = *(rbp - 8)
        &[advance(9), 0x0f, 3, 0x77, 0x10, 0x06], // CFA = *(rsp + 16)
    ]);
    assert_eq!(made.caller(0x1005), UNSUPPORTED_RULE);
    assert_eq!(made.caller(0x100f), by(Cfa::FpDeref(-8), Fp::AtFp(0)));
    assert_eq!(made.caller(0x1018), by(Cfa::SpDeref(16), Fp::AtFp(0)));
}

#[test]
fn the_procedure_linkage_table() {
    let expression = [
        0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
    ];
    assert_eq!(
        function(&expression).caller(0x1000),
        by(Cfa::Plt(11), Fp::Same)
    );
    let mut other = expression;
    other[8] = 0x40; // lit16: never
    assert_eq!(function(&other).caller(0x1000), UNSUPPORTED_RULE);
}

#[test]
fn what_is_not_followed_is_said_to_be() {
    for instructions in [
        &[0x0d, 3][..],                           // CFA = rbx + 8
        &[0x0f, 2, 0x77, 16],                     // CFA = the expression rsp + 16
        &[0x0f, 0],                               // CFA = an empty expression
        &[0x09, 16, 3],                           // return address in rbx
        &[0x90, 2],                               // return address at CFA - 16
        &[0x16, 16, 1, 0x30],                     // return address = 0 by expression
        &[0x13, 0x80, 0x80, 0x80, 0x80, 0x80, 1], // an offset beyond 32 bits
    ] {
        assert_eq!(
            function(instructions).caller(0x1000),
            UNSUPPORTED_RULE,
            "{instructions:x?}"
        );
    }
}

#[test]
fn a_lost_frame_pointer_does_not_lose_the_frame() {
    for instructions in [
        &[0x07, 6][..],               // undefined
        &[0x09, 6, 3],                // in rbx
        &[0x14, 6, 2],                // CFA - 16
        &[0x10, 6, 2, 0x73, 0],       // at rbx
        &[0x05, 6, 0x80, 0x80, 0x02], // at CFA - 262144
    ] {
        let expected = by(Cfa::Sp(8), Fp::Unsupported);
        assert_eq!(
            function(instructions).caller(0x1000),
            expected,
            "{instructions:x?}"
        );
    }
}

#[test]
fn a_broken_program_is_unsupported_from_where_it_breaks() {
    for broken in [
        &[0x0b][..],                     // restore without remember
        &[0x3e],                         // no such instruction
        &[0x0e],                         // cut off
        &[0x01, 0, 0, 0, 0, 0, 0, 0, 0], // back to address 0
    ] {
        let made = function(&[&[advance(4), 0x0e, 16, advance(4)], broken].concat());
        assert_eq!(made.caller(0x1004), by(Cfa::Sp(16), Fp::Same));
        assert_eq!(made.caller(0x1008), UNSUPPORTED_RULE, "{broken:x?}");
        assert_eq!(made.caller(0x10ff), UNSUPPORTED_RULE);
        assert_eq!(made.caller(0x1100), Caller::Unknown);
    }
}

#[test]
fn states_cannot_be_remembered_without_end() {
    let made = function(&[0x0a; 100_000]);
    assert_eq!(made.caller(0x1000), UNSUPPORTED_RULE);
}

#[test]
fn a_long_common_entry_is_refused() {
    let mut frame = EhFrame::default();
    let long = frame.common(&[0], 16, &[CALLED, &[0; 1024]].concat());
    let short = frame.common(&[0], 16, CALLED);
    frame.function(long, 0x1000, 16, &[]);
    frame.function(short, 0x2000, 16, &[]);
    let made = frame.made();
    assert_eq!(made.caller(0x1000), Caller::Unknown);
    assert_eq!(made.caller(0x2000), SP_8);
}

#[test]
fn a_return_address_column_of_another_machine() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 17, CALLED);
    frame.function(common, 0x1000, 16, &[]);
    assert_eq!(frame.made().caller(0x1000), UNSUPPORTED_RULE);
}

/// A page is apart from the others: it begins with a row, whatever the page before ended with.
#[test]
fn a_function_over_three_pages() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    let far = [0x04, 0x10, 0, 1, 0, 0x0e, 16]; // at 0x2_0000 + 8: CFA = sp + 16
    frame.function(common, 0xfff8, 0x2_0000, &far);
    let made = frame.made();
    let row = |low: u32, caller: Caller| {
        let id = (0..made.rules.end() as u16).find(|id| made.rules.caller(*id) == caller);
        low << 16 | u32::from(id.unwrap())
    };
    let [sp_8, sp_16] = [SP_8, by(Cfa::Sp(16), Fp::Same)];
    assert_eq!(
        made.table.pages,
        [(0, 0..2), (1, 2..3), (2, 3..6)].map(|(number, rows)| Page { number, rows })
    );
    assert_eq!(
        made.table.rows,
        [
            row(0, Caller::Unknown),
            row(0xfff8, sp_8),
            row(0, sp_8),
            row(0, sp_8),
            row(8, sp_16),
            row(0xfff8, Caller::Unknown),
        ]
    );
}

#[test]
fn a_function_that_ends_with_its_page() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    frame.function(common, 0x1_0000, 0x1_0000, &[]);
    let made = frame.made();
    assert_eq!(made.table.rows.len(), 1);
    assert_eq!(made.caller(0x1_ffff), SP_8);
    assert_eq!(made.caller(0x2_0000), Caller::Unknown);
}

#[test]
fn pages_without_functions_are_not_there() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    frame.function(common, 0x1000, 16, &[]);
    frame.function(common, 0x50_0000, 16, &[]);
    let made = frame.made();
    let numbers: Vec<_> = made.table.pages.iter().map(|page| page.number).collect();
    assert_eq!(numbers, [0, 0x50]);
}

#[test]
fn functions_out_of_order_without_length_and_outside_of_the_code() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    frame.function(common, 0x3000, 16, &[0x0e, 24]);
    frame.function(common, 0x2000, 0, &[0x0e, 32]);
    frame.function(common, 0x1000, 16, &[]);
    frame.function(common, 0, 16, &[]); // dropped by the linker
    frame.function(common, 0x80_0000, 16, &[]); // behind the code
    frame.function(common, 0x7f_fff0, u64::MAX, &[]);
    let made = frame.made();
    assert_eq!(made.caller(0), Caller::Unknown);
    assert_eq!(made.caller(0x1000), SP_8);
    assert_eq!(made.caller(0x2000), Caller::Unknown);
    assert_eq!(made.caller(0x3000), by(Cfa::Sp(24), Fp::Same));
    assert_eq!(made.caller(0x7f_ffff), SP_8);
    assert_eq!(made.caller(0x80_0000), Caller::Unknown);
}

#[test]
fn of_two_functions_that_overlap_the_later_one_holds() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    frame.function(common, 0x1000, 0x100, &[advance(0x30), 0x0e, 16]);
    frame.function(common, 0x1020, 0x20, &[0x0e, 24]);
    let made = frame.made();
    assert_eq!(made.caller(0x101f), SP_8);
    assert_eq!(made.caller(0x1020), by(Cfa::Sp(24), Fp::Same));
    assert_eq!(made.caller(0x103f), by(Cfa::Sp(24), Fp::Same));
    assert_eq!(made.caller(0x1040), Caller::Unknown);
}

#[test]
fn neighbours_with_one_rule_are_one_row() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    for i in 0..10 {
        frame.function(common, 0x1000 + 16 * i, 16, &[]);
    }
    assert_eq!(frame.made().table.rows.len(), 3);
}

#[test]
fn what_comes_after_a_terminator_counts_where_the_end_is_known() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    frame.function(common, 0x1000, 16, &[]);
    frame.entry(&[]);
    frame.function(common, 0x2000, 16, &[]);
    assert_eq!(frame.made().caller(0x2000), SP_8);
    let source = Source {
        whole: false,
        ..frame.source()
    };
    let mut rules = Rules::new();
    let table = Table::from_source(&source, &mut rules).unwrap();
    assert_eq!(table.rule_at(0x2000), abi::RULE_NONE);
}

#[test]
fn rules_are_shared_by_files_and_told_once() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    frame.function(common, 0x1000, 16, &[advance(1), 0x0e, 16]);
    let mut rules = Rules::new();
    assert_eq!(
        rules.end(),
        3,
        "what is not followed has a rule from the start"
    );
    let one = Table::from_source(&frame.source(), &mut rules).unwrap();
    assert_eq!(
        rules.since(3).collect::<Vec<_>>(),
        [(3, Cfa::Sp(8)), (4, Cfa::Sp(16))].map(|(id, cfa)| (id, Rule { cfa, fp: Fp::Same }))
    );
    let two = Table::from_source(&frame.source(), &mut rules).unwrap();
    assert_eq!(one, two);
    assert_eq!(rules.since(5).count(), 0);
}

#[test]
fn a_file_with_too_many_rules_leaves_numbers_for_others() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    let many = MAX_NEW_RULES as u32 + 10;
    let mut instructions = Vec::new();
    for i in 0..many {
        // CFA = sp + 16384 + i, in three bytes of LEB128
        let [low, middle, high] = [i & 0x7f | 0x80, i >> 7 & 0x7f | 0x80, 1 + (i >> 14)];
        instructions.extend([0x0e, low as u8, middle as u8, high as u8, advance(1)]);
    }
    frame.function(common, 0x1000, u64::from(many), &instructions);
    let made = frame.made();
    assert_eq!(made.rules.end(), 3 + MAX_NEW_RULES);
    assert_eq!(
        made.table.rule_at(0x1000 + u64::from(many) - 1),
        UNSUPPORTED
    );
    assert_ne!(
        made.table.rule_at(0x1000 + MAX_NEW_RULES as u64 - 1),
        UNSUPPORTED
    );
}

/// Numbers do not wrap when there is none left.
#[test]
fn when_all_numbers_are_given_new_rules_are_unsupported() {
    let mut rules = Rules::new();
    for n in 0..70_000 {
        rules.id(by(Cfa::Sp(n), Fp::Same), usize::MAX);
    }
    assert_eq!(rules.end(), abi::MAX_RULES);
    assert_eq!(rules.caller(u16::MAX), by(Cfa::Sp(65_536 - 4), Fp::Same));
    assert_eq!(
        rules.id(by(Cfa::Sp(69_999), Fp::Same), usize::MAX),
        UNSUPPORTED
    );
    assert_eq!(rules.since(65_530).count(), 6);
}

#[test]
fn nothing_to_make_a_table_of() {
    let mut rules = Rules::new();
    let frame = EhFrame::default();
    let made = Table::from_source(&frame.source(), &mut rules);
    assert_eq!(made, Err(Unusable::NoUnwindInfo));
}

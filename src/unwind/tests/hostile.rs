//! Files that were cut, changed, or made to cost much: a table or a reason, and soon.

use super::super::cfi::MAX_CIE_BYTES;
use super::*;

const ASSEMBLY: &str = "
    .text
    .globl one
one:
    .cfi_startproc
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    .cfi_remember_state
    pop %rbp
    .cfi_def_cfa_offset 8
    ret
    .cfi_restore_state
    .cfi_escape 0x0f, 3, 0x76, 0x78, 6
    ret
    .cfi_endproc
two:
    .cfi_startproc
    call outside@plt
    ret
    .cfi_endproc
";

/// A table of anything, which has to be sound if it is one.
fn try_table(elf: &[u8]) -> bool {
    let mut rules = Rules::new();
    let Ok(table) = Table::of(elf, &mut rules) else {
        return false;
    };
    assert_sound(&table, &rules);
    let pages = elf.len() / (1 << 16) + 2 * 8;
    assert!(table.pages.len() <= pages, "{} pages", table.pages.len());
    assert!(table.rows.len() <= elf.len() + 2 * pages);
    true
}

#[test]
fn every_prefix_of_a_file() {
    for mut elf in [assemble(ASSEMBLY), stripped()] {
        let whole = elf.len();
        assert!(try_table(&elf));
        for len in (0..whole).rev() {
            elf.truncate(len);
            try_table(&elf);
        }
    }
}

#[test]
fn every_byte_of_the_headers_and_of_the_table_changed() {
    for elf in [assemble(ASSEMBLY), stripped()] {
        let source = Source::of(&elf).unwrap();
        let table = source.eh_frame.as_ptr() as usize - elf.as_ptr() as usize;
        let sections = u64::from_le_bytes(elf[0x28..0x30].try_into().unwrap()) as usize;
        let places = (0..64 + 56 * 8)
            .chain(table..elf.len().min(table + source.eh_frame.len().min(300)))
            .chain(sections..if sections > 0 { elf.len() } else { 0 });
        let mut changed = elf.clone();
        let mut usable = 0;
        for at in places {
            for value in [0, 0xff, elf[at] ^ 1] {
                changed[at] = value;
                usable += usize::from(try_table(&changed));
            }
            changed[at] = elf[at];
        }
        assert!(usable > 0, "nothing was left to look at");
    }
}

fn stripped() -> Vec<u8> {
    let mut elf = assemble(ASSEMBLY);
    strip_sections(&mut elf);
    elf
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_as_a_table(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..4096)) {
        let frame = EhFrame { bytes };
        let mut rules = Rules::new();
        if let Ok(table) = Table::from_source(&frame.source(), &mut rules) {
            assert_sound(&table, &rules);
        }
    }

    #[test]
    fn any_instructions(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        let made = function(&bytes);
        proptest::prop_assert_ne!(made.caller(0x10ff), Caller::Unknown);
    }
}

/// Each function names another common entry, and all of those are one inside the other. What they
/// cost is still in proportion to the file.
#[test]
fn common_entries_that_overlap_cost_no_more_than_their_limit() {
    let mut frame = EhFrame::default();
    let mut commons = Vec::new();
    // Each is 16 bytes, and says that it is as long as all that follow. What follows is, to the
    // ones before it, instructions.
    let count = 2000;
    for i in 0..count {
        commons.push(frame.bytes.len());
        let len = 16 * (count - i) - 4;
        frame.bytes.extend((len as u32).to_le_bytes());
        frame.bytes.extend([0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0, 0, 0]);
    }
    for (i, common) in commons.iter().enumerate() {
        frame.function(*common, 0x1000 + 16 * i as u64, 16, CALLED);
    }
    let made = frame.made();
    let short = MAX_CIE_BYTES / 16;
    assert_eq!(made.caller(0x1000), Caller::Unknown);
    assert_eq!(
        made.caller(0x1000 + 16 * (count - short - 1) as u64),
        Caller::Unknown
    );
    assert_eq!(made.caller(0x1000 + 16 * (count - 1) as u64), SP_8);
}

/// Functions that all say to be as long as the code: each is cut where the next begins, so that
/// pages and rows are no more than if they had told the truth.
#[test]
fn functions_over_each_other_make_no_more_pages() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    for i in 0..1000 {
        frame.function(
            common,
            0x1000 + i,
            u64::MAX / 2,
            &[0x0e, 8 + 8 * (i % 8) as u8],
        );
    }
    let made = frame.made();
    assert_eq!(made.table.pages.len(), 0x80);
    assert!(made.table.rows.len() <= 0x80 + 1002);
}

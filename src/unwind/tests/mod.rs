//! Tables against hand-made `.eh_frame`, against gimli's own reading of real files, against the
//! stacks of this very process, and against files that mean harm.

mod files;
mod hostile;
mod own_stack;
mod programs;

use std::path::Path;
use std::process::Command;

use object::read::elf::ProgramHeader;
use object::{Object, ObjectSymbol};

use super::elf::Source;
use super::{Caller, Cfa, Fp, Rule, Rules, Table};

const SP_8: Caller = by(Cfa::Sp(8), Fp::Same);

const fn by(cfa: Cfa, fp: Fp) -> Caller {
    Caller::By(Rule { cfa, fp })
}

/// A table, and the rules that its numbers mean.
#[derive(Debug)]
struct Made {
    table: Table,
    rules: Rules,
}

impl Made {
    fn of(elf: &[u8]) -> Self {
        let mut rules = Rules::new();
        let table = Table::of(elf, &mut rules).unwrap();
        assert_sound(&table, &rules);
        Made { table, rules }
    }

    fn caller(&self, address: u64) -> Caller {
        self.rules.caller(self.table.rule_at(address))
    }
}

/// What users of a table rely on.
fn assert_sound(table: &Table, rules: &Rules) {
    let mut end = 0;
    for (i, page) in table.pages.iter().enumerate() {
        assert!(i == 0 || table.pages[i - 1].number < page.number);
        assert_eq!(
            page.rows.start, end,
            "rows are those of the pages, in order"
        );
        end = page.rows.end;
        let rows = &table.rows[page.rows.clone()];
        assert!(!rows.is_empty() && rows.len() <= 1 << 16);
        assert_eq!(rows[0] >> 16, 0, "the first row is for the first address");
        for pair in rows.windows(2) {
            assert!(pair[0] >> 16 < pair[1] >> 16, "rows are in order");
            assert_ne!(
                pair[0] as u16, pair[1] as u16,
                "each row says something new"
            );
        }
        assert!(rows.iter().all(|row| (*row as u16 as usize) < rules.end()));
    }
    assert_eq!(end, table.rows.len());
}

/// `.eh_frame` by hand: addresses of 8 bytes, no augmentation, data in units of -8.
#[derive(Debug, Default)]
struct EhFrame {
    bytes: Vec<u8>,
}

/// CFA = sp + 8, return address at CFA - 8: as it is when a function begins.
const CALLED: &[u8] = &[0x0c, 7, 8, 0x90, 1];

impl EhFrame {
    fn entry(&mut self, body: &[u8]) -> usize {
        let at = self.bytes.len();
        self.bytes.extend((body.len() as u32).to_le_bytes());
        self.bytes.extend(body);
        at
    }

    /// A common entry with a version, an augmentation (with its end and data) and instructions.
    fn common(&mut self, augmentation: &[u8], ra: u8, instructions: &[u8]) -> usize {
        let parts = [&[0, 0, 0, 0, 1], augmentation, &[1, 0x78, ra], instructions];
        self.entry(&parts.concat())
    }

    fn function(&mut self, common: usize, start: u64, len: u64, instructions: &[u8]) {
        let back = (self.bytes.len() + 4 - common) as u32;
        let parts = [
            &back.to_le_bytes()[..],
            &start.to_le_bytes(),
            &len.to_le_bytes(),
            instructions,
        ];
        self.entry(&parts.concat());
    }

    fn source(&self) -> Source<'_> {
        Source {
            eh_frame: &self.bytes,
            bases: gimli::BaseAddresses::default().set_eh_frame(0x100_0000),
            code: std::iter::once(0x1000..0x80_0000).collect(),
            whole: true,
        }
    }

    fn made(&self) -> Made {
        let mut rules = Rules::new();
        let table = Table::from_source(&self.source(), &mut rules).unwrap();
        assert_sound(&table, &rules);
        Made { table, rules }
    }
}

/// One function at 0x1000, of 0x100 bytes, with these instructions.
fn function(instructions: &[u8]) -> Made {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    frame.function(common, 0x1000, 0x100, instructions);
    frame.made()
}

/// A shared object of assembly.
fn assemble(source: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a.s"), dir.path().join("a.so"));
    std::fs::write(&from, source).unwrap();
    compile(&["-nostdlib"], &from, &to);
    std::fs::read(to).unwrap()
}

fn compile(options: &[&str], from: &Path, to: &Path) {
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([to, from])
        .args(options)
        .output()
        .expect("a C compiler is there");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
}

fn symbol(elf: &[u8], name: &str) -> u64 {
    let file = object::File::parse(elf).unwrap();
    let mut symbols = file.symbols().chain(file.dynamic_symbols());
    symbols
        .find(|symbol| symbol.name() == Ok(name))
        .unwrap_or_else(|| panic!("no {name}"))
        .address()
}

/// Takes the section headers away.
fn strip_sections(elf: &mut [u8]) {
    elf[0x28..0x30].fill(0);
    elf[0x3c..0x40].fill(0);
}

/// The address in the file of a byte of its code. Two segments can share a page of the file, which is
/// then mapped twice.
fn address_of(elf: &[u8], offset: u64) -> Option<u64> {
    use object::elf::{FileHeader64, PF_X, PT_LOAD};
    use object::read::elf::FileHeader;
    let header = FileHeader64::<object::LittleEndian>::parse(elf).unwrap();
    let little = object::LittleEndian;
    let segments = header.program_headers(little, elf).unwrap();
    segments.iter().find_map(|segment| {
        let (start, bytes) = segment.file_range(little);
        // Segments are mapped by whole pages.
        let start = start & !0xfff;
        let code = segment.p_type(little) == PT_LOAD && segment.p_flags(little).contains(PF_X);
        let inside = code && start <= offset && offset < start + bytes;
        inside.then(|| (segment.p_vaddr(little) & !0xfff) + (offset - start))
    })
}

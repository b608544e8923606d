//! On libraries that are built for it: needs `cc`.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use super::*;

const SOURCE: &str = "\
int sink;
static inline __attribute__((always_inline)) int inner(int n)
{
	sink += n; /* line 4 */
	return sink;
}
int middle(int n) __asm__(\"_ZN5outer6middleEi\");
int middle(int n)
{
	return inner(n); /* line 10 */
}
";

fn library(dir: &Path, flags: &[&str]) -> Option<Arc<Elf>> {
    let code = dir.join("source.c");
    let out = dir.join("lib.so");
    fs::write(&code, SOURCE).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(&out)
        .arg(&code)
        .args(flags)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler");
        return None;
    }
    let elf = Elf::read(File::open(out).unwrap()).unwrap().unwrap();
    Some(Arc::new(elf))
}

fn asked(questions: &[(u32, &Arc<Elf>, u64)]) -> Vec<Vec<Function>> {
    let mut symbols = UserSymbols::start().unwrap();
    for (frame, &(file, elf, address)) in (1..).zip(questions) {
        symbols.ask(FrameId(frame), FileId(file), Arc::clone(elf), address);
    }
    let (mut answers, unanswered) = symbols.finish(Duration::from_secs(60));
    assert_eq!(unanswered, 0);
    answers.sort_by_key(|&(frame, _)| frame);
    answers
        .into_iter()
        .map(|(_, functions)| functions)
        .collect()
}

const MIDDLE: &str = "_ZN5outer6middleEi";

#[test]
fn inlined_functions_come_first_with_their_lines_and_names_stay_mangled() {
    let dir = tempfile::tempdir().unwrap();
    let Some(elf) = library(dir.path(), &["-g"]) else {
        return;
    };
    let start = elf.symbol(MIDDLE).unwrap().unwrap();
    let questions: Vec<_> = (start..start + 16).map(|at| (1, &elf, at)).collect();
    let answers = asked(&questions);
    let inlined = answers.iter().find(|f| f.len() == 2).unwrap();
    assert_eq!(inlined[0].name, "inner");
    assert_eq!(inlined[0].line, 4);
    assert_eq!((inlined[1].name.as_str(), inlined[1].line), (MIDDLE, 10));
    assert!(inlined[1].file.ends_with("source.c"), "{inlined:?}");
}

#[test]
fn compressed_debug_information_is_read_too() {
    let dir = tempfile::tempdir().unwrap();
    let Some(elf) = library(dir.path(), &["-g", "-gz=zlib"]) else {
        return;
    };
    let start = elf.symbol(MIDDLE).unwrap().unwrap();
    let answers = asked(&[(1, &elf, start)]);
    assert!(answers[0].iter().any(|f| f.line > 0), "{answers:?}");
}

#[test]
fn a_stripped_library_still_has_its_exported_names() {
    let dir = tempfile::tempdir().unwrap();
    let Some(elf) = library(dir.path(), &["-s"]) else {
        return;
    };
    let start = elf.symbol(MIDDLE).unwrap().unwrap();
    let function = Function {
        name: MIDDLE.to_string(),
        file: String::new(),
        line: 0,
    };
    assert_eq!(asked(&[(1, &elf, start)]), [[function]]);
    assert_eq!(asked(&[(1, &elf, u64::MAX)]), [[]]);
}

#[test]
fn a_library_that_is_truncated_while_in_use_costs_only_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let Some(elf) = library(dir.path(), &["-g"]) else {
        return;
    };
    let start = elf.symbol(MIDDLE).unwrap().unwrap();
    let mut library = Library::default();
    assert_eq!(
        library.functions(FileId(1), &elf, &[start])[0]
            .last()
            .unwrap()
            .name,
        MIDDLE
    );
    // As `cp other lib.so` does.
    File::create(dir.path().join("lib.so")).unwrap();
    let again = library.functions(FileId(1), &elf, &[start + 1]);
    assert_eq!(again[0].last().unwrap().name, MIDDLE);
    assert_eq!(library.functions(FileId(2), &elf, &[start]), [[]]);
    assert!(library.failed.contains(&FileId(2)));
}

#[test]
fn a_library_that_is_rewritten_in_place_gives_no_names_of_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let Some(elf) = library(dir.path(), &[]) else {
        return;
    };
    let start = elf.symbol(MIDDLE).unwrap().unwrap();
    let path = dir.path().join("lib.so");
    let mut bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() - MIDDLE.len() {
        if bytes[at..].starts_with(MIDDLE.as_bytes()) {
            bytes[at..at + MIDDLE.len()].copy_from_slice(b"_ZN5wrong6middleEi");
        }
    }
    fs::write(&path, &bytes).unwrap();
    assert_eq!(asked(&[(1, &elf, start)]), [[]]);
}

#[test]
fn links_to_other_files_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let Some(elf) = library(dir.path(), &["-g"]) else {
        return;
    };
    // A pipe to wait for, for ever.
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let link = dir.path().join("link");
    let mut text = pipe.to_str().unwrap().as_bytes().to_vec();
    text.resize((text.len() + 1).next_multiple_of(4) + 4, 0);
    fs::write(&link, text).unwrap();
    let linked = dir.path().join("linked.so");
    let section = format!(".gnu_debuglink={}", link.display());
    let built = Command::new("objcopy")
        .arg(format!("--add-section={section}"))
        .arg(dir.path().join("lib.so"))
        .arg(&linked)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no objcopy");
        return;
    }
    let start = elf.symbol(MIDDLE).unwrap().unwrap();
    let elf = Arc::new(Elf::read(File::open(linked).unwrap()).unwrap().unwrap());
    let sections = elf.sections().unwrap();
    assert!(sections.iter().any(|s| s.name == ".gnu_debuglink"));
    let functions = asked(&[(1, &elf, start)]).remove(0);
    assert_eq!(functions.last().unwrap().name, MIDDLE);
}

#[test]
fn the_copy_has_no_code_in_it() {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};
    let elf = Elf::read(File::open("/proc/self/exe").unwrap())
        .unwrap()
        .unwrap();
    let image = Image::of(&elf).unwrap();
    assert_eq!(image.file.metadata().unwrap().len(), elf.identity.size);
    let (text, bytes) = elf.section(".text", u64::MAX).unwrap().unwrap();
    let mut copied = vec![1; bytes.len()];
    image.file.read_exact_at(&mut copied, text.offset).unwrap();
    // All but the pages at its ends, which it may share with others.
    assert!(copied[4096..copied.len() - 4096].iter().all(|&b| b == 0));
    let held = image.file.metadata().unwrap().blocks() * 512;
    assert!(held < image.bytes + (1 << 20), "{held} for {}", image.bytes);
}

#[test]
fn answers_that_do_not_come_in_time_are_counted() {
    let elf = Elf::read(File::open("/proc/self/exe").unwrap())
        .unwrap()
        .unwrap();
    let elf = Arc::new(elf);
    let mut symbols = UserSymbols::start().unwrap();
    for frame in 1..=100 {
        symbols.ask(FrameId(frame), FileId(frame), Arc::clone(&elf), 0);
    }
    let (answers, unanswered) = symbols.finish(Duration::ZERO);
    assert_eq!(answers.len() + unanswered, 100);
    assert!(unanswered > 0, "a hundred copies take longer than nothing");
}

#[test]
fn copies_together_stay_within_their_bound() {
    let elf = Elf::read(File::open("/proc/self/exe").unwrap())
        .unwrap()
        .unwrap();
    let mut library = Library::default();
    for file in 1..=20 {
        library.functions(FileId(file), &elf, &[0]);
    }
    let held: u64 = library.books.values().map(|book| book.image.bytes).sum();
    assert!(held <= MOST_MEMORY && library.books.len() <= 20, "{held}");
    assert!(library.books.contains_key(&FileId(20)));
}

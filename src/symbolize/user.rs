//! Names of native frames, found in a thread of its own: the first address in a large library
//! takes a second, in which the recorder has other things to do.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsRawFd as _;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use blazesym::symbolize::source::{Elf as ElfSource, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};

use super::image::Image;
use crate::collect::elf::Elf;
use crate::collect::maps::FileId;
use crate::event::FrameId;

/// Copies of all files together, in bytes; then those not used for longest are dropped.
const MOST_MEMORY: u64 = 512 << 20;

/// Nothing asked for so long: all copies are dropped.
const IDLE: Duration = Duration::from_secs(10);

/// Files without names that are remembered as such.
const MOST_FAILED: usize = 1 << 16;

/// A function at a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// As the compiler mangled it.
    pub name: String,
    /// Empty when debug information does not tell.
    pub file: String,
    /// 0 when debug information does not tell.
    pub line: u32,
}

/// The functions at a frame, innermost first; none when the file names none there.
pub type Answer = (FrameId, Vec<Function>);

struct Question {
    frame: FrameId,
    file: FileId,
    elf: Arc<Elf>,
    address: u64,
}

/// The thread. Dropping this ends it, once it has finished the file it is at.
#[derive(Debug)]
pub struct UserSymbols {
    questions: Sender<Question>,
    answers: Receiver<Vec<Answer>>,
    /// Questions without an answer yet.
    pub pending: usize,
}

impl UserSymbols {
    pub fn start() -> io::Result<UserSymbols> {
        let (questions, asked) = mpsc::channel();
        let (done, answers) = mpsc::channel();
        thread::Builder::new()
            .name("gdiag-symbols".to_string())
            .spawn(move || {
                // The target comes first.
                // SAFETY: concerns only this thread (0), and cannot fail in a harmful way.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
                work(&asked, &done);
            })?;
        Ok(UserSymbols {
            questions,
            answers,
            pending: 0,
        })
    }

    /// Asks for the functions at `address` of the open file that is known as number `file`. The
    /// address is of the instruction that ran, or of the call that had not returned.
    pub fn ask(&mut self, frame: FrameId, file: FileId, elf: Arc<Elf>, address: u64) {
        let question = Question {
            frame,
            file,
            elf,
            address,
        };
        if self.questions.send(question).is_ok() {
            self.pending += 1;
        }
    }

    /// What has been found since; never waits.
    pub fn answers(&mut self) -> Vec<Answer> {
        let answers: Vec<_> = self.answers.try_iter().flatten().collect();
        self.pending -= answers.len();
        answers
    }

    /// The rest, as far as it comes within `wait`, and how many questions stay without an answer.
    pub fn finish(self, wait: Duration) -> (Vec<Answer>, usize) {
        let until = Instant::now() + wait;
        let mut rest = Vec::new();
        while rest.len() < self.pending {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(answers) => rest.extend(answers),
                Err(_) => break,
            }
        }
        let unanswered = self.pending - rest.len();
        (rest, unanswered)
    }
}

fn work(asked: &Receiver<Question>, done: &Sender<Vec<Answer>>) {
    let mut library = Library::default();
    loop {
        let first = match asked.recv_timeout(IDLE) {
            Ok(question) => question,
            Err(RecvTimeoutError::Timeout) => {
                library.clear();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut by_file: HashMap<FileId, Vec<Question>> = HashMap::new();
        for question in std::iter::once(first).chain(asked.try_iter()) {
            by_file.entry(question.file).or_default().push(question);
        }
        // Small files first: the many questions about them need not wait for a large one.
        let mut by_file: Vec<_> = by_file.into_iter().collect();
        by_file.sort_by_key(|(_, questions)| questions[0].elf.identity.size);
        for (file, questions) in by_file {
            let addresses: Vec<u64> = questions.iter().map(|q| q.address).collect();
            let functions = library.functions(file, &questions[0].elf, &addresses);
            let frames = questions.iter().map(|q| q.frame);
            if done.send(frames.zip(functions).collect()).is_err() {
                return;
            }
        }
    }
}

/// A file that names can be looked up in.
struct Book {
    symbolizer: Symbolizer,
    source: Source<'static>,
    image: Image,
    used: u64,
}

impl Book {
    fn of(elf: &Elf) -> io::Result<Book> {
        let image = Image::of(elf)?;
        let mut source = ElfSource::new(format!("/proc/self/fd/{}", image.file.as_raw_fd()));
        source.debug_syms = image.debug;
        Ok(Book {
            symbolizer: Symbolizer::builder()
                .enable_auto_reload(false)
                .enable_demangling(false)
                .enable_code_info(image.debug)
                .enable_inlined_fns(image.debug)
                .set_debug_dirs(Some(std::iter::empty::<PathBuf>()))
                .build(),
            source: Source::Elf(source),
            image,
            used: 0,
        })
    }

    /// In the order of `addresses`.
    fn functions(&self, addresses: &[u64]) -> Vec<Vec<Function>> {
        let found = self
            .symbolizer
            .symbolize(&self.source, Input::VirtOffset(addresses));
        let mut found = found.unwrap_or_default().into_iter();
        addresses
            .iter()
            .map(|_| match found.next() {
                Some(Symbolized::Sym(symbol)) => functions_of(&symbol),
                Some(Symbolized::Unknown(_)) | None => Vec::new(),
            })
            .collect()
    }
}

/// The files that are in use.
#[derive(Default)]
struct Library {
    books: HashMap<FileId, Book>,
    failed: HashSet<FileId>,
    turn: u64,
}

impl Library {
    fn clear(&mut self) {
        self.books.clear();
        self.failed.clear();
    }

    /// In the order of `addresses`.
    fn functions(&mut self, file: FileId, elf: &Elf, addresses: &[u64]) -> Vec<Vec<Function>> {
        // Files come from anywhere: a broken one may cost its own names only.
        let found = catch_unwind(AssertUnwindSafe(|| {
            let book = self.book(file, elf)?;
            Some(book.functions(addresses))
        }));
        match found {
            Ok(Some(functions)) => functions,
            Ok(None) => vec![Vec::new(); addresses.len()],
            Err(_) => {
                self.books.remove(&file);
                self.fail(file);
                vec![Vec::new(); addresses.len()]
            }
        }
    }

    fn fail(&mut self, file: FileId) {
        if self.failed.len() >= MOST_FAILED {
            self.failed.clear();
        }
        self.failed.insert(file);
    }

    fn book(&mut self, file: FileId, elf: &Elf) -> Option<&Book> {
        self.turn += 1;
        if !self.books.contains_key(&file) {
            if self.failed.contains(&file) {
                return None;
            }
            let Ok(book) = Book::of(elf) else {
                self.fail(file);
                return None;
            };
            self.make_room(book.image.bytes);
            self.books.insert(file, book);
        }
        let book = self.books.get_mut(&file)?;
        book.used = self.turn;
        Some(book)
    }

    fn make_room(&mut self, bytes: u64) {
        let held =
            |books: &HashMap<FileId, Book>| books.values().map(|b| b.image.bytes).sum::<u64>();
        while held(&self.books) + bytes > MOST_MEMORY {
            let oldest = self.books.iter().min_by_key(|(_, book)| book.used);
            let Some((&oldest, _)) = oldest else {
                return;
            };
            self.books.remove(&oldest);
        }
    }
}

/// Innermost first.
fn functions_of(symbol: &Sym<'_>) -> Vec<Function> {
    let inlined = symbol.inlined.iter().rev();
    inlined
        .map(|f| function(&f.name, f.code_info.as_ref()))
        .chain([function(&symbol.name, symbol.code_info.as_deref())])
        .collect()
}

fn function(name: &str, code: Option<&CodeInfo<'_>>) -> Function {
    Function {
        name: name.to_string(),
        file: code.map_or(String::new(), |code| {
            code.to_path().to_string_lossy().into_owned()
        }),
        line: code.and_then(|code| code.line).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;

//! Makes unwind tables, and looks for interpreters, in a thread of its own: a large library takes a good part of a second,
//! in which the recorder has other things to do.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

use memmap2::MmapMut;
use object::elf::{FileHeader64, SectionHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::LittleEndian as Little;

use crate::collect::elf::Elf;
use crate::collect::maps::FileId;
use crate::collect::python::Interpreter;
use crate::unwind::{Rule, Rules, Table, MAX_EH_FRAME};

/// Read of a file without section headers at most: then it is read whole.
const MOST_WITHOUT_SECTIONS: u64 = 64 << 20;

/// Read of the names of sections at most.
const MOST_NAMES: u64 = 64 << 10;

/// Sections from which tables are made.
const SECTIONS: [&[u8]; 2] = [b".eh_frame", b".eh_frame_hdr"];

/// What was found out about a file.
#[derive(Debug)]
pub enum Made {
    Table {
        file: FileId,
        /// The error is a sentence.
        table: Result<Table, String>,
        /// Rules that are new with it, with their numbers.
        rules: Vec<(u16, Rule)>,
    },
    /// The CPython in it, if there is one.
    Interpreter {
        file: FileId,
        found: Option<Box<Interpreter>>,
    },
}

/// The thread. Dropping this ends it, once it has finished what it is at.
#[derive(Debug)]
pub struct TableMaker {
    jobs: Sender<Job>,
    made: Receiver<Made>,
    /// Answers to come.
    pub pending: usize,
}

#[derive(Debug)]
struct Job {
    file: FileId,
    elf: Arc<Elf>,
    path: String,
}

impl TableMaker {
    pub fn start() -> io::Result<TableMaker> {
        let (jobs, todo) = channel();
        let (done, made) = channel();
        std::thread::Builder::new()
            .name("gdiag-tables".to_string())
            .spawn(move || {
                // The target comes first.
                // SAFETY: concerns only this thread (0), and cannot fail in a harmful way.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
                work(&todo, &done);
            })?;
        Ok(TableMaker {
            jobs,
            made,
            pending: 0,
        })
    }

    /// Looks into what is known as number `file`, and which a process has at `path`.
    pub fn ask(&mut self, file: FileId, elf: Arc<Elf>, path: &str) {
        let path = path.to_string();
        if self.jobs.send(Job { file, elf, path }).is_ok() {
            self.pending += 2;
        }
    }

    /// What has been found out since.
    pub fn take(&mut self) -> Option<Made> {
        let made = self.made.try_recv().ok()?;
        self.pending = self.pending.saturating_sub(1);
        Some(made)
    }
}

/// The files are those of any program: what one of them breaks must not end the thread, which all the
/// others need. Rules are only ever added, so that they are good for the next file.
fn careful<R>(of_file: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(of_file)).ok()
}

/// Every stack needs tables, few need an interpreter: all tables that are asked for come first.
fn work(todo: &Receiver<Job>, done: &Sender<Made>) {
    let mut rules = Rules::new();
    let mut told = 0;
    let mut later = VecDeque::new();
    loop {
        let job = match later.pop_front() {
            None => todo.recv().ok(),
            Some(first) => match todo.try_recv() {
                Ok(job) => {
                    later.push_front(first);
                    Some(job)
                }
                Err(_) => {
                    let Job { file, elf, path } = first;
                    // One that cannot be read is none that can be followed.
                    let found = careful(|| Interpreter::of(&elf, &path).ok().flatten())
                        .flatten()
                        .map(Box::new);
                    if done.send(Made::Interpreter { file, found }).is_err() {
                        return;
                    }
                    continue;
                }
            },
        };
        let Some(job) = job else { return };
        let made = Made::Table {
            file: job.file,
            table: careful(|| make(&job.elf, &mut rules))
                .unwrap_or_else(|| Err("it broke the reading of it".to_string())),
            rules: rules.since(told).collect(),
        };
        told = rules.end();
        if done.send(made).is_err() {
            return;
        }
        later.push_back(job);
    }
}

fn make(elf: &Elf, rules: &mut Rules) -> Result<Table, String> {
    let bytes = read_sparse(elf.file()).map_err(|e| format!("cannot read it: {e}"))?;
    Table::of(&bytes, rules).map_err(|e| e.to_string())
}

/// Memory as long as the file in which only the parts are filled that a table is made from; the rest
/// takes no memory. Not a mapping of the file: when another program truncated it, gdiag would die.
fn read_sparse(file: &File) -> io::Result<MmapMut> {
    let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut memory = MmapMut::map_anon(len)?;
    let mut head = [0; size_of::<FileHeader64<Little>>()];
    file.read_exact_at(&mut head, 0)?;
    fill(&mut memory, file, 0, head.len() as u64)?;
    let Ok(header) = FileHeader64::<Little>::parse(&head[..]) else {
        // The table says what is wrong with it.
        return Ok(memory);
    };
    let bytes = u64::from(header.e_phentsize.get(Little)) * u64::from(header.e_phnum.get(Little));
    fill(&mut memory, file, header.e_phoff.get(Little), bytes)?;
    if header.e_shoff.get(Little) == 0 {
        fill(&mut memory, file, 0, MOST_WITHOUT_SECTIONS)?;
        return Ok(memory);
    }
    let bytes = size_of::<SectionHeader64<Little>>() as u64 * u64::from(header.e_shnum.get(Little));
    fill(&mut memory, file, header.e_shoff.get(Little), bytes)?;
    let mut wanted = Vec::new();
    let sections = header.section_headers(Little, &memory[..]).unwrap_or(&[]);
    if let Some(names) = sections.get(header.e_shstrndx.get(Little).0 as usize) {
        let names = names.sh_offset.get(Little)..;
        for section in sections {
            let mut name = [0; 16];
            let at = names.start.saturating_add(section.sh_name(Little).into());
            let read = file.read_at(&mut name, at).unwrap_or(0);
            let is = |known: &&[u8]| {
                name[..read]
                    .strip_prefix(*known)
                    .is_some_and(|rest| rest.first() == Some(&0))
            };
            if SECTIONS.iter().any(is) {
                wanted.push((section.sh_offset.get(Little), section.sh_size.get(Little)));
            }
        }
        wanted.push((names.start, MOST_NAMES));
    }
    for (from, bytes) in wanted {
        // A hole in a sparse file may have any size.
        if bytes > MAX_EH_FRAME as u64 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        fill(&mut memory, file, from, bytes)?;
    }
    Ok(memory)
}

/// Reads a part of the file to where it belongs.
fn fill(memory: &mut MmapMut, file: &File, from: u64, bytes: u64) -> io::Result<()> {
    let end = from.saturating_add(bytes).min(memory.len() as u64);
    match (usize::try_from(from), usize::try_from(end)) {
        (Ok(start), Ok(end)) if start < end => file.read_exact_at(&mut memory[start..end], from),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwind_information_in_a_hole_of_a_gigabyte_is_not_read() {
        const NAMES: &[u8] = b"\0.eh_frame\0";
        let header = |name: u32, kind: u32, at: u64, size: u64| {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[24..32].copy_from_slice(&at.to_le_bytes());
            header[32..40].copy_from_slice(&size.to_le_bytes());
            header
        };
        let mut bytes = vec![0; 64];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[40..48].copy_from_slice(&64u64.to_le_bytes());
        bytes[58..60].copy_from_slice(&64u16.to_le_bytes());
        bytes[60..62].copy_from_slice(&3u16.to_le_bytes());
        bytes[62..64].copy_from_slice(&2u16.to_le_bytes());
        bytes.extend([0; 64]);
        bytes.extend(header(1, 1, 4096, 1 << 30));
        bytes.extend(header(0, 3, 256, NAMES.len() as u64));
        bytes.extend(NAMES);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        file.set_len(1 << 31).unwrap();
        let error = read_sparse(&file).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}

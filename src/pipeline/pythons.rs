//! Which processes run Python, and what their code objects are.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::rc::Rc;

use anyhow::Result;

use crate::collect::maps::{FileId, Mapping, Place};
use crate::collect::python::{Interpreter, Part};
use crate::collect::stacks::{types, Stacks};
use crate::decode::python::{self, Code, Merged, Side};
use crate::decode::stacks::{PyAddress, RawSample, UserAddress};
use crate::event::{Event, Frame, Pid};
use crate::intern::Names;

/// Code objects remembered of all processes at most; then all are forgotten, and functions that are
/// still running have no name. A large program has some ten thousand.
const CODES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Pythons {
    /// Files with CPython in them.
    interpreters: HashMap<FileId, Rc<Interpreter>>,
    processes: HashMap<Pid, Process>,
    codes: HashMap<(Pid, u64), Code>,
}

#[derive(Debug)]
struct Process {
    file: FileId,
    bias: u64,
    interpreter: Rc<Interpreter>,
}

impl Pythons {
    /// A file has CPython in it.
    pub(super) fn add(&mut self, file: FileId, interpreter: Interpreter) {
        self.interpreters.insert(file, Rc::new(interpreter));
    }

    /// These are the mappings of a process now.
    pub(super) fn mapped(
        &mut self,
        pid: Pid,
        mappings: &[Mapping],
        stacks: &mut Stacks,
    ) -> Result<()> {
        let found = mappings.iter().find_map(|m| {
            let file = m.file?;
            let interpreter = self.interpreters.get(&file)?;
            Some((file, m.bias, Rc::clone(interpreter)))
        });
        let known = self.processes.get(&pid).map(|p| (p.file, p.bias));
        if found.as_ref().map(|(file, bias, _)| (*file, *bias)) == known {
            return Ok(());
        }
        self.forget(pid);
        let Some((file, bias, interpreter)) = found else {
            stacks.forget_python(pid);
            return Ok(());
        };
        stacks.set_python(pid, file, &interpreter, bias)?;
        let process = Process {
            file,
            bias,
            interpreter,
        };
        self.processes.insert(pid, process);
        Ok(())
    }

    /// The process is another program now, or none.
    pub(super) fn forget(&mut self, pid: Pid) {
        if self.processes.remove(&pid).is_some() {
            self.codes.retain(|(of, _), _| *of != pid);
        }
    }

    pub(super) fn code(&mut self, record: &types::gdiag_pycode) {
        if self.codes.len() >= CODES {
            self.codes.clear();
        }
        let key = (Pid(record.pid), record.code);
        self.codes.insert(key, Code::of(record));
    }

    /// Native and Python frames of a sample in one, leaf first. `native` is as much of the native
    /// stack as can be believed, `whole` when that is all of it.
    pub(super) fn merge(
        &self,
        raw: &RawSample,
        native: &[(Place, &UserAddress)],
        whole: bool,
    ) -> Vec<python::Place> {
        let process = self.processes.get(&raw.pid);
        let Some(process) = process.filter(|_| !raw.python.is_empty()) else {
            return (0..native.len()).map(python::Place::Native).collect();
        };
        let parts: Vec<Part> = native
            .iter()
            .map(|(place, _)| match place {
                Place::File(mapped) if mapped.file == process.file => {
                    process.interpreter.part(mapped.address)
                }
                Place::File(_) | Place::Anonymous | Place::NotYet | Place::Unmapped => Part::Other,
            })
            .collect();
        let entries: Vec<bool> = raw.python.iter().map(|frame| frame.entry).collect();
        let Merged { frames, .. } = python::merge(
            Side {
                frames: &parts,
                whole,
            },
            Side {
                frames: &entries,
                whole: raw.python_whole,
            },
        );
        frames
    }

    /// The function and line of a Python frame; without a name when its code object is not known.
    pub(super) fn frame(
        &self,
        pid: Pid,
        at: PyAddress,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> Frame {
        let code = self.codes.get(&(pid, at.code));
        let process = self.processes.get(&pid);
        let text = |f: fn(&Code) -> &String| code.map_or("", |code| f(code).as_str());
        Frame::Python {
            function: names.name(text(|code| &code.function), sink),
            file: names.name(text(|code| &code.file), sink),
            line: match (code, process) {
                (Some(code), Some(process)) => code.line(process.interpreter.lines, at.instr),
                _ => 0,
            },
        }
    }
}

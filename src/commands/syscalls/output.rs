//! Where the result goes: stdout or a file.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::error::Error;
use crate::present::style::{Style, MAX_WIDTH};

pub(super) struct Output {
    out: BufWriter<Box<dyn Write>>,
    path: Option<PathBuf>,
}

impl Output {
    /// `None` is stdout.
    pub(super) fn create(path: Option<&Path>) -> Result<Output> {
        let out: Box<dyn Write> = match path {
            None => Box::new(io::stdout()),
            Some(path) => {
                let file = File::create(path);
                Box::new(file.with_context(|| format!("cannot create {}", path.display()))?)
            }
        };
        Ok(Output {
            out: BufWriter::with_capacity(64 * 1024, out),
            path: path.map(Path::to_path_buf),
        })
    }

    /// Only a terminal has a width: tables for others are whole.
    pub(super) fn style(&self) -> Style {
        let style = Style::for_stdout(0);
        let is_terminal = io::stdout().is_terminal() && self.path.is_none();
        Style {
            width: if is_terminal { style.width } else { MAX_WIDTH },
            color: style.color && self.path.is_none(),
            ..style
        }
    }

    /// Writes something. A reader that went away ends the program quietly: [`Error::OutputClosed`].
    pub(super) fn write(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        let written = write(&mut self.out);
        self.check(written)
    }

    /// So that whoever reads has all of it.
    pub(super) fn flush(&mut self) -> Result<()> {
        let flushed = self.out.flush();
        self.check(flushed)
    }

    fn check(&self, result: io::Result<()>) -> Result<()> {
        match (result, &self.path) {
            (Ok(()), _) => Ok(()),
            (Err(e), None) if e.kind() == io::ErrorKind::BrokenPipe => {
                Err(Error::OutputClosed.into())
            }
            (Err(e), None) => Err(e).context("cannot write to stdout"),
            (Err(e), Some(path)) => {
                Err(e).with_context(|| format!("cannot write {}", path.display()))
            }
        }
    }
}

//! The text of a frame.
//!
//! In folded text `;` divides frames and the last blank precedes the time, and there is no way to
//! escape either. So names are changed where they would be misread, the same way everywhere; times never are.
#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::analyse::stacks::frame::{Frame, Kind, WokenBy, Work};
use crate::event::{CopyKind, NameId, Pid};
use crate::model::frame_text;
use crate::model::thread::Who;
use crate::model::Timeline;
use crate::present::{names, text};

/// How processes and threads are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// With their ids: two of one name are two.
    Shown,
    /// By name only: another recording has other ids.
    Left,
}

/// A name as it can stand in a folded stack: no `;`, nothing that breaks a line or controls a
/// terminal, no blanks around it, and no number of its own at its end.
pub fn safe(name: &str) -> String {
    let clean = text::clean(name.trim());
    let mut safe: String = clean
        .chars()
        .map(|c| match c {
            ';' => ':',
            // XML has no way to write these.
            '\u{fffe}' | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
            c => c,
        })
        .collect();
    if safe.is_empty() {
        safe.push_str("[no name]");
    }
    // A line that begins like this is taken for a comment.
    if safe.starts_with("# ") {
        safe.remove(1);
    }
    // A number at the end would be read as a time.
    if let Some((head, tail)) = safe.rsplit_once(' ') {
        let mut halves = tail.splitn(2, '.');
        if halves.all(|half| half.bytes().all(|b| b.is_ascii_digit())) {
            safe = format!("{head} ({tail})");
        }
    }
    safe
}

/// The text of frames of one timeline.
#[derive(Clone, Copy, Debug)]
pub struct Labels<'t> {
    t: &'t Timeline,
    ids: Ids,
}

impl<'t> Labels<'t> {
    pub fn new(t: &'t Timeline, ids: Ids) -> Self {
        Labels { t, ids }
    }

    /// What other tools, too, take for kernel (`k`) and inlined (`i`) functions; ours marks the GPU (`g`),
    /// so that a kernel and the host function that launches it, which share a name, are two.
    pub fn text(&self, frame: Frame) -> String {
        let mut text = safe(&self.raw(frame));
        if matches!(frame, Frame::Function { inlined: true, .. }) {
            text.push_str("_[i]");
        } else if frame.kind() == Kind::Kernel {
            text.push_str("_[k]");
        } else if frame.kind() == Kind::Gpu {
            text.push_str("_[g]");
        }
        text
    }

    fn name(&self, id: NameId) -> &'t str {
        self.t.name(id)
    }

    fn raw(&self, frame: Frame) -> Cow<'t, str> {
        let text = match frame {
            Frame::Device(index) => self.device(index),
            Frame::Process(pid) => self.process(pid),
            Frame::Thread(who) => self.thread(who),
            Frame::Cause(cause) => return Cow::Borrowed(cause.id()),
            Frame::Kernel(name) => return Cow::Borrowed(self.name(name)),
            Frame::Function { name, .. } => return frame_text::function(self.name(name)),
            Frame::Module { module, .. } => {
                format!("[{}]", frame_text::file_name(self.name(module)))
            }
            Frame::Address {
                module, address, ..
            } => frame_text::address(self.name(module), address),
            Frame::Anonymous => return Cow::Borrowed(frame_text::ANONYMOUS),
            Frame::Python {
                function,
                file,
                line,
            } => frame_text::python(self.name(function), self.name(file), line),
            Frame::Gpu(work) => return self.work(work),
            Frame::Blocked(on) => format!("[blocked: {on}]"),
            Frame::Runnable(why) => format!("[runnable: {why}]"),
            Frame::WokenBy(by) => format!("-- woken by {} --", self.by(by)),
            Frame::TakenBy(by) => format!("-- CPU taken by {} --", self.by(by)),
            Frame::Cut(cut) => return Cow::Borrowed(frame_text::cut(cut)),
            Frame::Note(note) => format!("[{note}]"),
        };
        Cow::Owned(text)
    }

    fn device(&self, index: u32) -> String {
        let gpu = self.t.gpu().devices().get(index as usize);
        match gpu.map(|g| self.name(g.name)) {
            Some(name) if !name.is_empty() => format!("GPU {index} ({name})"),
            Some(_) | None => format!("GPU {index} (no name)"),
        }
    }

    fn process(&self, pid: Pid) -> String {
        let process = self.t.process(pid);
        let exe = process.map_or("", |p| frame_text::file_name(self.name(p.exe)));
        let name = if exe.is_empty() {
            self.first_thread(pid).unwrap_or("?")
        } else {
            exe
        };
        match self.ids {
            Ids::Shown => format!("{name} (pid {pid})"),
            Ids::Left => name.to_string(),
        }
    }

    fn first_thread(&self, pid: Pid) -> Option<&'t str> {
        let thread = self.t.find(crate::event::Tid(pid.0))?;
        Some(self.t.comm(self.t.who(thread, self.t.end())))
    }

    fn thread(&self, who: Who) -> String {
        let thread = self.t.thread(who.thread);
        let identities = thread.identities();
        let same = |i: u32| {
            let (a, b) = (thread.identity(who.identity)?, thread.identity(i)?);
            ((a.pid, a.start) == (b.pid, b.start)).then_some(i)
        };
        // The name that it had in the end.
        let last = (who.identity..).map_while(same).last();
        let comm = self.t.comm(Who {
            identity: last.unwrap_or(who.identity),
            ..who
        });
        let ours = thread.identity(who.identity);
        let shared = identities
            .iter()
            .any(|i| ours.is_some_and(|o| (i.pid, i.start) != (o.pid, o.start)));
        match (self.ids, ours) {
            (Ids::Left, _) => comm.to_string(),
            // One id, several threads in turn.
            (Ids::Shown, Some(ours)) if shared => {
                let since = ours.start.saturating_sub(self.t.start());
                format!("{comm} (tid {}, born at {since})", thread.tid)
            }
            (Ids::Shown, _) => format!("{comm} (tid {})", thread.tid),
        }
    }

    fn by(&self, by: WokenBy) -> String {
        match (by, self.ids) {
            (WokenBy::Thread(who), Ids::Left) => self.t.comm(who).to_string(),
            (WokenBy::Thread(who), Ids::Shown) => {
                let (pid, tid) = (self.t.pid(who), self.t.thread(who.thread).tid);
                if pid.0 == tid.0 {
                    format!("{} (pid {pid})", self.t.comm(who))
                } else {
                    format!("{} (pid {pid}, tid {tid})", self.t.comm(who))
                }
            }
            (WokenBy::Tid(_), Ids::Left) => "another thread".to_string(),
            (WokenBy::Tid(tid), Ids::Shown) => format!("tid {tid}"),
            (WokenBy::HardIrq(n), _) => match self.t.names().irq(n) {
                Some(name) => format!("interrupt {name}"),
                None => format!("interrupt {n}"),
            },
            (WokenBy::SoftIrq(n), _) => format!("softirq {n}"),
            (WokenBy::Timer, _) => "the timer".to_string(),
        }
    }

    fn work(&self, work: Work) -> Cow<'t, str> {
        match work {
            Work::Kernel(name) => names::short(self.name(name)),
            Work::Memcpy(kind) => Cow::Borrowed(match kind {
                CopyKind::HostToDevice => "memcpy HtoD",
                CopyKind::DeviceToHost => "memcpy DtoH",
                CopyKind::DeviceToDevice => "memcpy DtoD",
                CopyKind::HostToHost => "memcpy HtoH",
                CopyKind::PeerToPeer => "memcpy PtoP",
                CopyKind::Unknown | CopyKind::Other(_) => "memcpy",
            }),
            Work::Memset => Cow::Borrowed("memset"),
            Work::Graph => Cow::Borrowed("CUDA graph"),
        }
    }
}

/// What a colour stands for.
pub fn legend(kind: Kind) -> &'static str {
    match kind {
        Kind::Base => "process, thread",
        Kind::Native => "native",
        Kind::Python => "Python",
        Kind::Cuda => "CUDA library",
        Kind::Kernel => "OS kernel",
        Kind::Gpu => "GPU operation",
        Kind::Cause => "cause of idle",
        Kind::Blocked => "blocked",
        Kind::Runnable => "runnable",
        Kind::Unknown => "not known",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The names of threads and functions that broke other tools.
    #[test]
    fn names_that_would_be_misread_are_changed() {
        for (name, expected) in [
            ("[ET_NET 0]", "[ET_NET 0]"),
            ("a;b", "a:b"),
            ("x (y)", "x (y)"),
            ("Hashed wheel timer #1", "Hashed wheel timer #1"),
            (" lead", "lead"),
            ("", "[no name]"),
            ("  ", "[no name]"),
            ("thread 1234", "thread (1234)"),
            ("took 1.5", "took (1.5)"),
            ("end .", "end (.)"),
            ("1234", "1234"),
            ("v1.2.3", "v1.2.3"),
            ("# not a comment", "#not a comment"),
            ("a\nb\x1b[31m\u{202e}c", "a\\nb\\x1b[31m\\u{202e}c"),
            ("half \u{fffd} utf-8", "half \u{fffd} utf-8"),
            ("\u{ffff}", "\u{fffd}"),
        ] {
            assert_eq!(safe(name), expected);
        }
    }

    proptest! {
        #[test]
        fn any_name_is_one_frame_of_one_line(name in any::<String>()) {
            let safe = safe(&name);
            prop_assert!(!safe.is_empty() && !safe.starts_with("# "));
            prop_assert_eq!(safe.trim(), safe.as_str());
            let broken = safe.contains([';', '\n', '\r', '\0', '\u{ffff}']);
            prop_assert!(!broken);
            prop_assert_eq!(super::safe(&safe), safe.clone(), "does nothing twice");
        }
    }
}

//! Names, frames and stacks as small numbers, each defined by an event before its first use.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::event::{CallStackId, Cut, Define, Event, Frame, FrameId, NameId, StackId};

/// Texts that are remembered, in bytes. A recording of days sees sockets and command lines without
/// end; then all are forgotten, and those that come again are defined again under new ids.
const NAMES_BYTES: usize = 64 << 20;

/// What the map takes for a text, beside its bytes.
const ENTRY_BYTES: usize = 64;

/// Stacks that are remembered, likewise.
const STACKS: usize = 1 << 17;

/// Frames that are remembered, likewise.
const FRAMES: usize = 1 << 18;

/// Text → [`NameId`].
#[derive(Debug, Default)]
pub struct Names {
    ids: HashMap<String, NameId>,
    bytes: usize,
    last: u32,
}

impl Names {
    /// Whatever comes from now on is defined again, under a new id.
    pub fn forget(&mut self) {
        self.ids = HashMap::new();
        self.bytes = 0;
    }

    /// The id of `text`; a definition goes to `sink` when it is new. The empty text is id 0.
    pub fn name(&mut self, text: &str, sink: &mut dyn FnMut(Event)) -> NameId {
        if text.is_empty() {
            return NameId(0);
        }
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        self.bytes += text.len() + ENTRY_BYTES;
        if self.bytes > NAMES_BYTES {
            self.ids.clear();
            self.bytes = text.len() + ENTRY_BYTES;
        }
        self.last = self.last.saturating_add(1);
        let id = NameId(self.last);
        self.ids.insert(text.to_owned(), id);
        sink(Event::Define(Define::Name {
            id,
            text: text.to_owned(),
        }));
        id
    }
}

/// Frames, leaf first → [`StackId`].
#[derive(Debug, Default)]
pub struct Stacks {
    ids: HashMap<Vec<NameId>, StackId>,
    last: u32,
}

impl Stacks {
    /// Whatever comes from now on is defined again, under a new id.
    pub fn forget(&mut self) {
        self.ids = HashMap::new();
    }

    /// The id of `frames`; a definition goes to `sink` when it is new. No frames are id 0.
    pub fn stack(&mut self, frames: Vec<NameId>, sink: &mut dyn FnMut(Event)) -> StackId {
        if frames.is_empty() {
            return StackId(0);
        }
        if let Some(&id) = self.ids.get(&frames) {
            return id;
        }
        if self.ids.len() >= STACKS {
            self.ids.clear();
        }
        self.last = self.last.saturating_add(1);
        let id = StackId(self.last);
        self.ids.insert(frames.clone(), id);
        sink(Event::Define(Define::Stack { id, frames }));
        id
    }
}

/// [`Frame`] → [`FrameId`].
#[derive(Debug, Default)]
pub struct Frames {
    ids: HashMap<Frame, FrameId>,
    last: u32,
}

impl Frames {
    /// Whatever comes from now on is defined again, under a new id.
    pub fn forget(&mut self) {
        self.ids = HashMap::new();
    }

    /// The id of `frame`, and whether it is new; then its definition goes to `sink`.
    pub fn frame(&mut self, frame: Frame, sink: &mut dyn FnMut(Event)) -> (FrameId, bool) {
        if let Some(&id) = self.ids.get(&frame) {
            return (id, false);
        }
        if self.ids.len() >= FRAMES {
            self.ids.clear();
        }
        self.last = self.last.saturating_add(1);
        let id = FrameId(self.last);
        self.ids.insert(frame, id);
        sink(Event::Define(Define::Frame { id, frame }));
        (id, true)
    }
}

/// User frames, leaf first, with the reason why callers are missing → [`CallStackId`].
#[derive(Debug, Default)]
pub struct CallStacks {
    ids: HashMap<(Vec<FrameId>, Option<Cut>), CallStackId>,
    last: u32,
}

impl CallStacks {
    /// Whatever comes from now on is defined again, under a new id.
    pub fn forget(&mut self) {
        self.ids = HashMap::new();
    }

    /// The id of a stack; a definition goes to `sink` when it is new. Nothing at all is id 0.
    pub fn stack(
        &mut self,
        frames: Vec<FrameId>,
        cut: Option<Cut>,
        sink: &mut dyn FnMut(Event),
    ) -> CallStackId {
        if frames.is_empty() && cut.is_none() {
            return CallStackId(0);
        }
        let key = (frames, cut);
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        if self.ids.len() >= STACKS {
            self.ids.clear();
        }
        self.last = self.last.saturating_add(1);
        let id = CallStackId(self.last);
        sink(Event::Define(Define::CallStack {
            id,
            frames: key.0.clone(),
            cut,
        }));
        self.ids.insert(key, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_defined_once_and_before_its_use() {
        let mut names = Names::default();
        let mut seen = Vec::new();
        let a = names.name("a", &mut |e| seen.push(e));
        let b = names.name("b", &mut |e| seen.push(e));
        assert_eq!(names.name("a", &mut |e| seen.push(e)), a);
        assert_ne!(a, b);
        assert_eq!(seen.len(), 2);
        assert_eq!(
            names.name("", &mut |_| panic!("defined the empty name")),
            NameId(0)
        );
    }

    #[test]
    fn names_without_end_take_no_memory_without_end_and_no_id_twice() {
        let mut names = Names::default();
        let mut last = NameId(0);
        for n in 0..200 {
            let text = format!("{n}{}", "x".repeat(NAMES_BYTES / 100));
            let id = names.name(&text, &mut |_| {});
            assert!(id > last, "{id:?} after {last:?}");
            last = id;
            assert!(names.bytes <= NAMES_BYTES && names.ids.len() < 100);
        }
    }

    #[test]
    fn what_was_forgotten_is_defined_again_under_another_id() {
        let mut names = Names::default();
        let before = names.name("a", &mut |_| {});
        names.forget();
        let mut defined = 0;
        let after = names.name("a", &mut |_| defined += 1);
        assert!(after > before);
        assert_eq!(defined, 1);
    }

    #[test]
    fn equal_stacks_share_an_id() {
        let mut stacks = Stacks::default();
        let mut defined = 0;
        let one = stacks.stack(vec![NameId(1), NameId(2)], &mut |_| defined += 1);
        let two = stacks.stack(vec![NameId(2), NameId(1)], &mut |_| defined += 1);
        let again = stacks.stack(vec![NameId(1), NameId(2)], &mut |_| defined += 1);
        assert_eq!((one == again, one == two, defined), (true, false, 2));
        assert_eq!(stacks.stack(vec![], &mut |_| unreachable!()), StackId(0));
    }
}

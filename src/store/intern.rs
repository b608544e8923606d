//! Texts and stacks to small numbers, each defined just before its first use.
//!
//! The tables grow with the number of distinct texts of a recording, not with its
//! length. They live as long as the recording: a number is never given twice.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::event::{Define, Event, NameId, StackId};

/// Gives each distinct text its [`NameId`], from 1 on.
#[derive(Debug, Default)]
pub struct Names {
    ids: HashMap<Box<str>, NameId>,
}

impl Names {
    /// The number of `text`; `define` gets its definition when it is new. The empty text is 0.
    pub fn intern(&mut self, text: &str, define: impl FnOnce(Event)) -> NameId {
        if text.is_empty() {
            return NameId(0);
        }
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let id = NameId(next_id(self.ids.len()));
        self.ids.insert(text.into(), id);
        define(Event::Define(Define::Name {
            id,
            text: text.to_owned(),
        }));
        id
    }

    /// The same for bytes from outside, such as a comm: up to the first NUL, and made valid UTF-8.
    pub fn intern_bytes(&mut self, bytes: &[u8], define: impl FnOnce(Event)) -> NameId {
        let end = bytes
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(bytes.len());
        self.intern(&String::from_utf8_lossy(&bytes[..end]), define)
    }
}

/// Gives each distinct stack its [`StackId`], from 1 on.
#[derive(Debug, Default)]
pub struct Stacks {
    ids: HashMap<Box<[NameId]>, StackId>,
}

impl Stacks {
    /// The number of the stack, leaf first; `define` gets its definition when it is new. No frames are 0.
    pub fn intern(&mut self, frames: &[NameId], define: impl FnOnce(Event)) -> StackId {
        if frames.is_empty() {
            return StackId(0);
        }
        if let Some(&id) = self.ids.get(frames) {
            return id;
        }
        let id = StackId(next_id(self.ids.len()));
        self.ids.insert(frames.into(), id);
        define(Event::Define(Define::Stack {
            id,
            frames: frames.to_vec(),
        }));
        id
    }
}

fn next_id(len: usize) -> u32 {
    u32::try_from(len + 1).expect("four billion distinct names do not fit in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_defined_once_and_before_its_use() {
        let mut names = Names::default();
        let mut defined = Vec::new();
        let a = names.intern("worker", |e| defined.push(e));
        let b = names.intern("main", |e| defined.push(e));
        assert_eq!(names.intern("worker", |_| panic!("defined twice")), a);
        assert_ne!(a, b);
        assert_eq!(
            defined,
            [
                Event::Define(Define::Name {
                    id: a,
                    text: "worker".into()
                }),
                Event::Define(Define::Name {
                    id: b,
                    text: "main".into()
                }),
            ]
        );
    }

    #[test]
    fn nothing_is_number_zero_and_never_defined() {
        assert_eq!(
            Names::default().intern("", |_| panic!("defined")),
            NameId(0)
        );
        assert_eq!(
            Names::default().intern_bytes(&[0; 16], |_| panic!("defined")),
            NameId(0)
        );
        assert_eq!(
            Stacks::default().intern(&[], |_| panic!("defined")),
            StackId(0)
        );
    }

    #[test]
    fn a_comm_ends_at_its_first_nul_and_becomes_valid_text() {
        let mut names = Names::default();
        let mut text = None;
        names.intern_bytes(b"a\xffb\0junk", |e| text = Some(e));
        assert_eq!(
            text,
            Some(Event::Define(Define::Name {
                id: NameId(1),
                text: "a\u{fffd}b".into()
            }))
        );
    }

    #[test]
    fn a_stack_is_told_from_its_own_prefix() {
        let mut stacks = Stacks::default();
        let mut count = 0;
        let a = stacks.intern(&[NameId(1), NameId(2)], |_| count += 1);
        let b = stacks.intern(&[NameId(1)], |_| count += 1);
        assert_ne!(a, b);
        assert_eq!(stacks.intern(&[NameId(1), NameId(2)], |_| count += 1), a);
        assert_eq!(count, 2);
    }
}

//! From the ids of a recording to frames of a flame graph.
#![forbid(unsafe_code)]

use crate::analyse::stacks::folded::{Folded, NodeIdx};
use crate::analyse::stacks::frame::{is_cuda, Frame};
use crate::event::{self, CallStackId, FrameId, Function, NameId, StackId};
use crate::model::fxhash::FxHashMap;
use crate::model::thread::{ThreadIdx, Who};
use crate::model::Timeline;
use crate::units::Nanos;

/// Puts stacks on top of each other. What was put once is found again at once: most samples have
/// the stack of another one.
#[derive(Debug)]
pub(super) struct Places<'t> {
    pub(super) t: &'t Timeline,
    addresses: bool,
    cuda: FxHashMap<NameId, bool>,
    users: FxHashMap<(NodeIdx, CallStackId), NodeIdx>,
    kernels: FxHashMap<(NodeIdx, StackId), NodeIdx>,
    scratch: Vec<Frame>,
}

impl<'t> Places<'t> {
    pub(super) fn new(t: &'t Timeline, addresses: bool) -> Self {
        Places {
            t,
            addresses,
            cuda: FxHashMap::default(),
            users: FxHashMap::default(),
            kernels: FxHashMap::default(),
            scratch: Vec::new(),
        }
    }

    /// The process and the thread, which other stacks stand on.
    pub(super) fn thread(&self, out: &mut Folded, base: NodeIdx, who: Who) -> NodeIdx {
        let process = out.push(base, Frame::Process(self.t.pid(who)));
        out.push(process, Frame::Thread(first_identity(self.t, who)))
    }

    pub(super) fn user(&mut self, out: &mut Folded, base: NodeIdx, id: CallStackId) -> NodeIdx {
        if id.0 == 0 {
            return base;
        }
        if let Some(&known) = self.users.get(&(base, id)) {
            return known;
        }
        let mut frames = std::mem::take(&mut self.scratch);
        self.user_frames(id, &mut frames);
        let node = frames.iter().rev().fold(base, |node, &f| out.push(node, f));
        self.scratch = frames;
        self.users.insert((base, id), node);
        node
    }

    pub(super) fn kernel(&mut self, out: &mut Folded, base: NodeIdx, id: StackId) -> NodeIdx {
        if let Some(&known) = self.kernels.get(&(base, id)) {
            return known;
        }
        let frames = self.t.names().stack_ids(id);
        let node = frames
            .iter()
            .rev()
            .fold(base, |node, &name| out.push(node, Frame::Kernel(name)));
        self.kernels.insert((base, id), node);
        node
    }

    /// User and kernel frames with the leaf at the bottom, as the stack of a waker stands on its sleeper.
    pub(super) fn upside_down(
        &mut self,
        out: &mut Folded,
        base: NodeIdx,
        kernel: StackId,
        user: CallStackId,
    ) -> NodeIdx {
        let kernel = self.t.names().stack_ids(kernel);
        let base = kernel
            .iter()
            .fold(base, |node, &name| out.push(node, Frame::Kernel(name)));
        let mut frames = std::mem::take(&mut self.scratch);
        self.user_frames(user, &mut frames);
        let node = frames.iter().fold(base, |node, &f| out.push(node, f));
        self.scratch = frames;
        node
    }

    /// Leaf first.
    fn user_frames(&mut self, id: CallStackId, frames: &mut Vec<Frame>) {
        frames.clear();
        if id.0 == 0 {
            return;
        }
        let t = self.t;
        let Some(stack) = t.names().call_stack(id) else {
            frames.push(Frame::Note("stack lost"));
            return;
        };
        for &frame in stack.frames {
            self.frame(frame, frames);
        }
        if let Some(cut) = stack.cut {
            frames.push(Frame::Cut(cut));
        }
    }

    /// A place in the code is one frame or more: its function, and those inlined there.
    fn frame(&mut self, id: FrameId, frames: &mut Vec<Frame>) {
        let names = self.t.names();
        match names.frame(id) {
            None => frames.push(Frame::Note("frame lost")),
            Some(event::Frame::Anonymous { .. }) => frames.push(Frame::Anonymous),
            Some(event::Frame::Python {
                function,
                file,
                line,
            }) => frames.push(Frame::Python {
                function,
                file,
                line,
            }),
            Some(event::Frame::Native {
                module, address, ..
            }) => {
                let cuda = *self
                    .cuda
                    .entry(module)
                    .or_insert_with(|| is_cuda(names.get(module)));
                let named = |f: &&Function| !names.get(f.name).is_empty();
                let mut functions = names.functions(id).iter().filter(named).peekable();
                if functions.peek().is_none() {
                    frames.push(if self.addresses {
                        Frame::Address {
                            module,
                            address,
                            cuda,
                        }
                    } else {
                        Frame::Module { module, cuda }
                    });
                }
                while let Some(function) = functions.next() {
                    frames.push(Frame::Function {
                        name: function.name,
                        cuda,
                        inlined: functions.peek().is_some(),
                    });
                }
            }
        }
    }
}

/// The first identity of the same thread of the same process: renaming and exec make new ones.
fn first_identity(t: &Timeline, who: Who) -> Who {
    let identities = t.thread(who.thread).identities();
    let mut first = who.identity as usize;
    while let (Some(this), Some(before)) = (
        identities.get(first),
        first.checked_sub(1).and_then(|i| identities.get(i)),
    ) {
        if (this.pid, this.start) != (before.pid, before.start) {
            break;
        }
        first -= 1;
    }
    Who {
        identity: u32::try_from(first).unwrap_or(u32::MAX),
        ..who
    }
}

/// The threads that had this id in turn, with the time of each within `[from, to)`.
pub(super) fn lives(
    t: &Timeline,
    thread: ThreadIdx,
    (from, to): (Nanos, Nanos),
) -> Vec<(Who, Nanos, Nanos)> {
    let identities = t.thread(thread).identities();
    let mut lives: Vec<(Who, Nanos, Nanos)> = Vec::new();
    let count = u32::try_from(identities.len().max(1)).unwrap_or(u32::MAX);
    for identity in 0..count {
        let who = first_identity(t, Who { thread, identity });
        // What was before the first identity belongs to it.
        let start = match identities.get(identity as usize) {
            Some(id) if identity > 0 => id.from.clamp(from, to),
            Some(_) | None => from,
        };
        match lives.last_mut() {
            Some(last) if last.0 == who => {}
            Some(last) => {
                last.2 = start;
                lives.push((who, start, to));
            }
            None => lives.push((who, start, to)),
        }
    }
    lives.retain(|&(_, start, end)| start < end);
    lives
}

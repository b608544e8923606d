//! The samples of a recording, with names.

use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;

use gdiag::event::{
    CallStackId, Cut, Define, Event, Frame, FrameId, Function, NameId, Sample, SampleKind, Tid,
};
use gdiag::store::Reader;

use crate::names;

/// A function at a place in a stack; those that were inlined there have an entry of their own.
#[derive(Clone, Debug)]
pub enum Place {
    Native {
        /// Mangled and plain; empty when the frame has no name.
        mangled: String,
        name: String,
        /// Last part of the path.
        module: String,
        address: u64,
    },
    Anonymous(u64),
    Python {
        name: String,
        file: String,
        line: u32,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Native {
                name,
                module,
                address,
                ..
            } if name.is_empty() => {
                write!(f, "{module}+{address:#x}")
            }
            Place::Native { name, .. } => f.write_str(name),
            Place::Anonymous(address) => write!(f, "{address:#x}"),
            Place::Python { name, line, .. } => write!(f, "{name}:{line}"),
        }
    }
}

#[derive(Debug)]
pub struct Stack {
    /// Root first.
    pub places: Vec<Place>,
    pub cut: Option<Cut>,
}

#[derive(Debug)]
pub struct Recording {
    pub samples: Vec<Sample>,
    pub stacks: HashMap<CallStackId, Stack>,
    /// When each thread was switched in.
    pub resumed: HashMap<Tid, Vec<u64>>,
    pub size: u64,
    pub lost: u64,
}

impl Recording {
    pub fn read(path: &Path) -> Recording {
        let mut samples = Vec::new();
        let mut defined = Defined::default();
        let mut resumed: HashMap<Tid, Vec<u64>> = HashMap::new();
        let mut lost = 0;
        let mut reader = Reader::open(path).unwrap();
        reader
            .for_each(|event| {
                match event {
                    Event::Sample(sample) => samples.push(*sample),
                    Event::Define(define) => defined.add(define),
                    Event::Switch(switch) => {
                        resumed.entry(switch.next).or_default().push(switch.ts.0);
                    }
                    Event::Loss(loss) => lost += loss.count,
                    _ => {}
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(reader.coverage().is_whole());
        let stacks = defined.stacks.iter();
        Recording {
            samples,
            stacks: stacks
                .map(|(id, (frames, cut))| (*id, defined.stack(frames, *cut)))
                .collect(),
            resumed,
            size: reader.file_size().0,
            lost,
        }
    }
}

/// When it began and ended to be where it was.
pub fn time_of(sample: &Sample) -> Option<(u64, u64)> {
    match sample.kind {
        SampleKind::Cpu { .. } => Some((sample.ts.0, sample.ts.0)),
        SampleKind::OffCpu { since } => Some((since.0, sample.ts.0)),
        SampleKind::Waker { .. } | SampleKind::Launch { .. } => None,
    }
}

#[derive(Debug, Default)]
struct Defined {
    names: HashMap<NameId, String>,
    frames: HashMap<FrameId, Frame>,
    functions: HashMap<FrameId, Vec<Function>>,
    stacks: HashMap<CallStackId, (Vec<FrameId>, Option<Cut>)>,
}

impl Defined {
    fn add(&mut self, define: &Define) {
        match define {
            Define::Name { id, text } => {
                self.names.insert(*id, text.clone());
            }
            Define::Frame { id, frame } => {
                self.frames.insert(*id, *frame);
            }
            Define::Functions { frame, functions } => {
                self.functions.insert(*frame, functions.clone());
            }
            Define::CallStack { id, frames, cut } => {
                self.stacks.insert(*id, (frames.clone(), *cut));
            }
            Define::Stack { .. } | Define::Irq { .. } | Define::Endpoint { .. } => {}
        }
    }

    fn name(&self, id: NameId) -> String {
        self.names.get(&id).cloned().unwrap_or_default()
    }

    fn stack(&self, frames: &[FrameId], cut: Option<Cut>) -> Stack {
        let places = frames.iter().flat_map(|frame| self.places(*frame));
        let mut places: Vec<Place> = places.collect();
        places.reverse();
        Stack { places, cut }
    }

    /// Innermost first.
    fn places(&self, id: FrameId) -> Vec<Place> {
        match self.frames[&id] {
            Frame::Native {
                module, address, ..
            } => {
                let path = self.name(module);
                let module = path.rsplit('/').next().unwrap_or_default().to_string();
                let functions = self.functions.get(&id).map_or(&[][..], Vec::as_slice);
                let place = |mangled: String| Place::Native {
                    name: names::plain(&mangled),
                    mangled,
                    module: module.clone(),
                    address,
                };
                if functions.is_empty() {
                    return vec![place(String::new())];
                }
                functions.iter().map(|f| place(self.name(f.name))).collect()
            }
            Frame::Anonymous { address } => vec![Place::Anonymous(address)],
            Frame::Python {
                function,
                file,
                line,
            } => vec![Place::Python {
                name: self.name(function),
                file: self.name(file),
                line,
            }],
        }
    }
}

//! Stacks with their time, kept as the tree that a flame graph is.
#![forbid(unsafe_code)]

use crate::analyse::stacks::frame::Frame;
use crate::model::fxhash::FxHashMap;
use crate::units::Nanos;

/// A stack from the root to some frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIdx(u32);

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: NodeIdx,
    frame: Frame,
    /// Time of stacks that end here.
    own: Nanos,
}

/// Stacks, each with the time that ends in its leaf.
#[derive(Clone, Debug, Default)]
pub struct Folded {
    /// Node `i` has number `i + 1`; 0 is the root, which has no frame.
    nodes: Vec<Node>,
    children: FxHashMap<(NodeIdx, Frame), NodeIdx>,
}

impl Folded {
    pub const ROOT: NodeIdx = NodeIdx(0);

    /// The stack `parent` with one frame more.
    pub fn push(&mut self, parent: NodeIdx, frame: Frame) -> NodeIdx {
        let nodes = &mut self.nodes;
        *self.children.entry((parent, frame)).or_insert_with(|| {
            nodes.push(Node {
                parent,
                frame,
                own: Nanos::ZERO,
            });
            NodeIdx(u32::try_from(nodes.len()).unwrap_or(u32::MAX))
        })
    }

    /// Adds time to a stack. The root has no time of its own.
    pub fn add(&mut self, stack: NodeIdx, time: Nanos) {
        if let Some(node) = self.node_mut(stack) {
            node.own = Nanos(node.own.0.saturating_add(time.0));
        }
    }

    fn node(&self, stack: NodeIdx) -> Option<&Node> {
        self.nodes.get((stack.0 as usize).checked_sub(1)?)
    }

    fn node_mut(&mut self, stack: NodeIdx) -> Option<&mut Node> {
        self.nodes.get_mut((stack.0 as usize).checked_sub(1)?)
    }

    /// All time. The sum of a sensible recording fits in 64 bits, that of any file may not.
    pub fn total(&self) -> u128 {
        self.nodes.iter().map(|n| u128::from(n.own.0)).sum()
    }

    /// Frames from the root to the leaf of every stack with time, in no particular order.
    pub fn stacks(&self) -> impl Iterator<Item = (Vec<Frame>, Nanos)> + '_ {
        self.nodes
            .iter()
            .filter(|n| n.own > Nanos::ZERO)
            .map(|node| {
                let mut frames = vec![node.frame];
                let mut at = node.parent;
                while let Some(node) = self.node(at) {
                    frames.push(node.frame);
                    at = node.parent;
                }
                frames.reverse();
                (frames, node.own)
            })
    }
}

/// How much each of some stacks stands for, when time is shared out to them.
#[derive(Clone, Debug, Default)]
pub(super) struct Weights(FxHashMap<NodeIdx, u64>);

impl Weights {
    pub(super) fn add(&mut self, stack: NodeIdx, weight: u64) {
        let sum = self.0.entry(stack).or_default();
        *sum = sum.saturating_add(weight);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `time` to the stacks in proportion to their weights.
    pub(super) fn share(&self, time: Nanos, out: &mut Folded) {
        let mut stacks: Vec<(NodeIdx, u64)> = self.0.iter().map(|(&s, &w)| (s, w)).collect();
        stacks.sort_unstable();
        let weights: Vec<u64> = stacks.iter().map(|s| s.1).collect();
        for ((stack, _), part) in stacks.into_iter().zip(divide(time, &weights)) {
            out.add(stack, part);
        }
    }
}

/// Divides `time` in proportion to `weights`, to the nanosecond: what division leaves over goes to
/// the largest. All of it goes to the first when no weight is above 0.
fn divide(time: Nanos, weights: &[u64]) -> Vec<Nanos> {
    let sum: u128 = weights.iter().map(|&w| u128::from(w)).sum();
    let part = |w: u64| {
        let part = (u128::from(time.0) * u128::from(w)).checked_div(sum);
        Nanos(part.map_or(0, |p| u64::try_from(p).unwrap_or(u64::MAX)))
    };
    let mut parts: Vec<Nanos> = weights.iter().map(|&w| part(w)).collect();
    let rest = time.0 - parts.iter().map(|p| p.0).sum::<u64>();
    let largest = (0..weights.len()).rev().max_by_key(|&i| weights[i]);
    if let Some(i) = largest {
        parts[i].0 += rest;
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::NameId;

    #[test]
    fn equal_stacks_are_one() {
        let mut folded = Folded::default();
        let (a, b) = (Frame::Kernel(NameId(1)), Frame::Kernel(NameId(2)));
        for time in [3, 4] {
            let stack = folded.push(Folded::ROOT, a);
            let stack = folded.push(stack, b);
            folded.add(stack, Nanos(time));
        }
        let short = folded.push(Folded::ROOT, a);
        folded.add(short, Nanos(1));
        let mut stacks: Vec<_> = folded.stacks().collect();
        stacks.sort_by_key(|s| s.1);
        assert_eq!(stacks, [(vec![a], Nanos(1)), (vec![a, b], Nanos(7))]);
        assert_eq!(folded.total(), 8);
    }

    #[test]
    fn what_division_leaves_over_goes_to_the_largest() {
        let parts = divide(Nanos(10), &[1, 2, 0]);
        assert_eq!(parts, [Nanos(3), Nanos(7), Nanos(0)]);
        assert_eq!(divide(Nanos(9), &[0, 0]), [Nanos(9), Nanos(0)]);
        assert!(divide(Nanos(9), &[]).is_empty());
    }

    proptest! {
        #[test]
        fn parts_add_up(time: u64, weights in prop::collection::vec(any::<u64>(), 1..20)) {
            let parts = divide(Nanos(time), &weights);
            prop_assert_eq!(parts.iter().map(|p| u128::from(p.0)).sum::<u128>(), u128::from(time));
        }
    }
}

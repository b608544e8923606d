//! Which process has a socket open: the kernel does not say, so that the descriptors of processes are
//! looked through, a few at a time.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::collect::process;
use crate::collect::sock_diag::Inode;

/// Looking takes this part of the time that passes, in slices of at most `MOST` and at least `LEAST`.
const PART: u32 = 20;
const MOST: Duration = Duration::from_millis(15);
const LEAST: Duration = Duration::from_millis(2);

/// Having looked through all processes, so many times as long as that took is waited before the next time.
const REST: u32 = 20;
const LEAST_REST: Duration = Duration::from_millis(500);

/// What was found is looked for again after this: a descriptor may be handed on to another process.
const AGE: Duration = Duration::from_secs(10);

/// Descriptors that are looked at in one process, processes that are remembered for one socket, and
/// sockets that are remembered at all.
const DESCRIPTORS: usize = 16_384;
const OWNERS: usize = 8;
const SOCKETS: usize = 1 << 18;

/// Processes that are looked through before others.
const FIRST: usize = 4096;

/// The processes that have a socket, as far as they have been looked through. All are of /proc.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// As the last round found them. Nobody: it was looked for in vain.
    by_socket: HashMap<Inode, Vec<u32>>,
    /// As the present round has found them so far.
    next: HashMap<Inode, Vec<u32>>,
    /// Processes that the present round has not come to.
    todo: VecDeque<u32>,
    /// What has been asked for since it began.
    wanted: HashSet<Inode>,
    /// Processes that have to do with the targets, numbered as they came.
    first: HashMap<u32, u64>,
    came: u64,
    looked: Option<Instant>,
    /// The time that the present round has taken, or the last one.
    took: Duration,
    rested: Option<Instant>,
}

impl Owners {
    /// `pid` has to do with the targets.
    pub(super) fn prefer(&mut self, pid: u32) {
        if self.first.len() < FIRST && !self.first.contains_key(&pid) {
            self.came += 1;
            self.first.insert(pid, self.came);
            if !self.todo.is_empty() {
                self.todo.push_front(pid);
            }
        }
    }

    pub(super) fn forget(&mut self, pid: u32) {
        self.first.remove(&pid);
    }

    /// The process at `socket`, seen from `own`, which is at the other end: another one, if any has
    /// it. `None` too while it has not been found.
    pub(super) fn of(&mut self, socket: Inode, own: u32) -> Option<u32> {
        let known = self.by_socket.contains_key(&socket);
        let is_old = self.rested.is_none_or(|since| since.elapsed() >= AGE);
        if is_old || !known && !self.next.contains_key(&socket) {
            if self.wanted.len() < SOCKETS {
                self.wanted.insert(socket);
            }
            self.look();
        }
        if let Some(found) = self.by_socket.get(&socket) {
            return choose(found, own, process::parent);
        }
        // Of those that have it, only some have been looked through: it is nobody else's not before all have.
        let found = self.next.get(&socket)?;
        choose(found, own, process::parent).filter(|&pid| pid != own)
    }

    /// Looks through some processes, when it is time.
    fn look(&mut self) {
        let start = Instant::now();
        let passed = self.looked.map(|last| start - last);
        let slice = passed.map_or(MOST, |passed| (passed / PART).min(MOST));
        let rest = (self.took * REST).max(LEAST_REST);
        let rests = self.todo.is_empty() && self.rested.is_some_and(|since| start - since < rest);
        if slice < LEAST || rests {
            return;
        }
        if self.todo.is_empty() {
            self.begin();
        }
        while let Some(pid) = self.todo.pop_front() {
            self.look_through(pid);
            if start.elapsed() >= slice {
                break;
            }
        }
        let end = Instant::now();
        self.took += end - start;
        self.looked = Some(end);
        if self.todo.is_empty() {
            for socket in self.wanted.drain() {
                self.next.entry(socket).or_default();
            }
            self.by_socket = std::mem::take(&mut self.next);
            self.rested = Some(end);
        }
    }

    /// What came last is the most likely to have to do with what happens now.
    fn begin(&mut self) {
        self.took = Duration::ZERO;
        let mut first: Vec<_> = self.first.iter().collect();
        first.sort_by_key(|&(_, &came)| std::cmp::Reverse(came));
        self.todo.extend(first.into_iter().map(|(&pid, _)| pid));
        let others = process::all().into_iter();
        let others = others.filter(|pid| !self.first.contains_key(pid));
        self.todo.extend(others);
    }

    fn look_through(&mut self, pid: u32) {
        for inode in process::sockets(pid, DESCRIPTORS) {
            if self.next.len() >= SOCKETS {
                return;
            }
            let owners = self.next.entry(Inode(inode)).or_default();
            if owners.len() < OWNERS && !owners.contains(&pid) {
                owners.push(pid);
            }
        }
    }
}

/// Which of the processes that have a socket is at work there. Those that were forked after it was
/// made have it too: the one that all others descend from is the likely one. `own` may have both ends.
fn choose(found: &[u32], own: u32, parent: impl Fn(u32) -> Option<u32>) -> Option<u32> {
    let others: Vec<u32> = found.iter().copied().filter(|&pid| pid != own).collect();
    match others[..] {
        [] => found.first().copied(),
        [one] => Some(one),
        // Who else has it is not known.
        _ if found.len() >= OWNERS => None,
        _ => others.iter().copied().find(|&candidate| {
            others
                .iter()
                .all(|&pid| pid == candidate || parent(pid) == Some(candidate))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_belongs_to_the_one_other_process_that_has_it() {
        let nobody = |_| None;
        assert_eq!(choose(&[7, 8], 8, nobody), Some(7));
        assert_eq!(choose(&[8], 8, nobody), Some(8));
        assert_eq!(choose(&[7, 9], 8, nobody), None);
    }

    #[test]
    fn a_socket_that_children_inherited_belongs_to_their_parent() {
        let of_seven = |pid| (pid != 7).then_some(7);
        assert_eq!(choose(&[9, 7, 10], 8, of_seven), Some(7));
        // Two workers have it, and the process they are from asks.
        assert_eq!(choose(&[9, 7, 10], 7, of_seven), None);
    }
}

//! Which process has a socket open: the kernel does not say, so that the descriptors of processes are
//! looked through, a few at a time.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::collect::process;
use crate::collect::sock_diag::Inode;

/// One look takes not much longer than this, and the next comes not before `EVERY`.
const SLICE: Duration = Duration::from_millis(3);
const EVERY: Duration = Duration::from_millis(50);

/// Having looked through all processes, so many times as long as that took is waited before the next time.
const REST: u32 = 20;
const LEAST_REST: Duration = Duration::from_millis(500);

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
    by_socket: HashMap<Inode, Vec<u32>>,
    /// What is being made to replace it.
    next: HashMap<Inode, Vec<u32>>,
    todo: VecDeque<u32>,
    /// Processes that have to do with the targets.
    first: HashSet<u32>,
    looked: Option<Instant>,
    /// The time that the present round has taken, or the last one.
    took: Duration,
    rested: Option<Instant>,
}

impl Owners {
    /// `pid` has to do with the targets.
    pub(super) fn prefer(&mut self, pid: u32) {
        if self.first.len() < FIRST && self.first.insert(pid) && !self.todo.is_empty() {
            self.todo.push_front(pid);
        }
    }

    pub(super) fn forget(&mut self, pid: u32) {
        self.first.remove(&pid);
    }

    /// The process at `socket`, seen from `own`, which is at the other end: another one, if any has
    /// it. `None` too while it has not been found.
    pub(super) fn of(&mut self, socket: Inode, own: u32) -> Option<u32> {
        if !self.by_socket.contains_key(&socket) && !self.next.contains_key(&socket) {
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
        let now = Instant::now();
        if self.looked.is_some_and(|last| now - last < EVERY) {
            return;
        }
        if self.todo.is_empty() {
            let rest = (self.took * REST).max(LEAST_REST);
            if self.rested.is_some_and(|since| now - since < rest) {
                return;
            }
            self.took = Duration::ZERO;
            self.todo.extend(&self.first);
            let others = process::all();
            let first = &self.first;
            self.todo
                .extend(others.into_iter().filter(|pid| !first.contains(pid)));
        }
        while let Some(pid) = self.todo.pop_front() {
            for inode in process::sockets(pid, DESCRIPTORS) {
                if self.next.len() >= SOCKETS {
                    break;
                }
                let owners = self.next.entry(Inode(inode)).or_default();
                if owners.len() < OWNERS && !owners.contains(&pid) {
                    owners.push(pid);
                }
            }
            if now.elapsed() >= SLICE {
                break;
            }
        }
        let end = Instant::now();
        self.took += end - now;
        self.looked = Some(end);
        if self.todo.is_empty() {
            self.by_socket = std::mem::take(&mut self.next);
            self.rested = Some(end);
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

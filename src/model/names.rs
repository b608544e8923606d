//! Names and stacks as the recording defines them, and what the frames of a kernel stack say.
#![forbid(unsafe_code)]

use crate::event::{CallStackId, Define, Frame, FrameId, Function, NameId, Pid, Role, StackId};
use crate::model::frames::{CallStack, CallTraits, Frames};
use crate::model::fxhash::{FxHashMap, FxHashSet};

/// What the frames of a sleeper's kernel stack say about its wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits(u32);

impl Traits {
    /// Waits for a block device or the page cache.
    pub const IO: u32 = 1 << 0;
    /// Handles a page fault.
    pub const FAULT: u32 = 1 << 1;
    /// The fault is on a swapped-out page.
    pub const SWAP: u32 = 1 << 2;
    /// Data must reach the disk.
    pub const WRITEBACK: u32 = 1 << 3;
    /// Reads a file.
    pub const FILE_READ: u32 = 1 << 4;
    /// Waits for a server of a network or user-space file system.
    pub const REMOTE_FS: u32 = 1 << 5;
    pub const SOCKET: u32 = 1 << 6;
    pub const ACCEPT: u32 = 1 << 7;
    pub const POLL: u32 = 1 << 8;
    pub const EPOLL: u32 = 1 << 9;
    pub const PIPE: u32 = 1 << 10;
    pub const FUTEX: u32 = 1 << 11;
    pub const SLEEP: u32 = 1 << 12;
    pub const CHILD: u32 = 1 << 13;
    /// Sleeps on a lock inside the kernel.
    pub const KERNEL_LOCK: u32 = 1 << 14;
    /// Inside NVIDIA's driver.
    pub const DRIVER: u32 = 1 << 15;
    pub const RECLAIM: u32 = 1 << 16;
    pub const SIGNAL_STOP: u32 = 1 << 17;
    pub const PTRACE_STOP: u32 = 1 << 18;
    pub const FROZEN: u32 = 1 << 19;
    /// Makes a process, replaces its program, or copies memory that it shares with a child.
    pub const FORK: u32 = 1 << 20;
    /// Looks for memory that should be on another NUMA node.
    pub const BALANCE: u32 = 1 << 21;
    /// In sched_yield.
    pub const YIELD: u32 = 1 << 22;
    /// The fault is on a mapped file.
    pub const FILE_FAULT: u32 = 1 << 23;
    /// Reads the memory map of a process from /proc.
    pub const MAPS_READ: u32 = 1 << 24;

    pub fn has(self, traits: u32) -> bool {
        self.0 & traits != 0
    }

    fn of_frame(name: &str) -> u32 {
        let starts = |list: &[&str]| list.iter().any(|p| name.starts_with(p));
        let mut bits = 0;
        for (bit, prefixes) in FRAMES {
            if starts(prefixes) {
                bits |= bit;
            }
        }
        bits
    }

    /// `frames` are leaf first.
    pub fn of_stack<'a>(frames: impl Iterator<Item = &'a str>) -> Traits {
        let mut bits = 0;
        let mut first = true;
        for name in frames {
            // Neither offsets nor the compiler's clones change what a function is.
            let name = name.split(['+', '.']).next().unwrap_or(name);
            if is_scheduler(name) {
                continue;
            }
            // The cgroup v2 freezer parks a thread right in get_signal, in a state that looks like a
            // sleep. A stop by signal or tracer has a frame of its own below it.
            if first && name == "get_signal" {
                bits |= Traits::FROZEN;
            }
            first = false;
            bits |= Traits::of_frame(name);
        }
        Traits(bits)
    }
}

const FRAMES: &[(u32, &[&str])] = &[
    (
        Traits::IO,
        &[
            "folio_wait_bit",
            "folio_wait_locked",
            "__folio_lock",
            "wait_on_page_bit",
            "__lock_page",
            "__wait_on_buffer",
            "submit_bio_wait",
            "blk_mq_get_tag",
            "rq_qos_wait",
            "blkdev_",
            "__blkdev_direct_IO",
            "iomap_dio",
        ],
    ),
    (
        Traits::FAULT,
        &[
            "filemap_fault",
            "handle_mm_fault",
            "__handle_mm_fault",
            "do_fault",
            "__do_fault",
            "exc_page_fault",
            "asm_exc_page_fault",
            "do_user_addr_fault",
            "do_page_fault",
            "do_swap_page",
        ],
    ),
    (
        Traits::SWAP,
        &[
            "do_swap_page",
            "swapin_",
            "swap_read",
            "swap_cluster_readahead",
        ],
    ),
    (
        Traits::WRITEBACK,
        &[
            "folio_wait_writeback",
            "wait_on_page_writeback",
            "__filemap_fdatawait",
            "file_write_and_wait",
            "blkdev_issue_flush",
            "jbd2_log_wait",
            "jbd2_journal_",
            "jbd2_complete_transaction",
            "balance_dirty_pages",
            "ext4_sync_file",
            "xfs_file_fsync",
            "xfs_log_force",
            "btrfs_sync_file",
            "vfs_fsync",
            "do_fsync",
            "ksys_sync",
        ],
    ),
    (
        Traits::FILE_READ,
        &[
            "filemap_read",
            "filemap_get_pages",
            "filemap_update_page",
            "generic_file_read",
            "ext4_file_read",
            "xfs_file_read",
            "xfs_file_buffered_read",
            "btrfs_file_read",
            "blkdev_read",
            "nfs_file_read",
            "fuse_file_read",
            "fuse_read",
            "v9fs_file_read",
            "netfs_",
            "page_cache_ra",
            "page_cache_sync",
            "force_page_cache",
        ],
    ),
    (
        Traits::REMOTE_FS,
        &[
            "request_wait_answer",
            "fuse_",
            "rpc_wait_bit",
            "nfs_",
            "nfs4_",
            "p9_client_rpc",
            "ceph_",
            "cifs_",
            "smb2_",
        ],
    ),
    (
        Traits::SOCKET,
        &[
            "sk_wait_data",
            "sk_stream_wait",
            "tcp_recvmsg",
            "tcp_sendmsg",
            "inet_recvmsg",
            "inet_stream_connect",
            "unix_stream_read",
            "unix_stream_recv",
            "unix_stream_sendmsg",
            "unix_stream_data_wait",
            "unix_dgram",
            "__skb_wait",
            "__skb_recv",
            "udp_recvmsg",
            "vsock_",
            "sock_alloc_send",
        ],
    ),
    (
        Traits::ACCEPT,
        &[
            "inet_csk_accept",
            "inet_csk_wait_for_connect",
            "unix_accept",
        ],
    ),
    (
        Traits::POLL,
        &[
            "do_sys_poll",
            "do_poll",
            "poll_schedule_timeout",
            "do_select",
            "core_sys_select",
        ],
    ),
    (
        Traits::EPOLL,
        &["ep_poll", "do_epoll_wait", "do_epoll_pwait"],
    ),
    (
        Traits::PIPE,
        &[
            "pipe_read",
            "pipe_write",
            "anon_pipe_read",
            "anon_pipe_write",
            "pipe_wait",
            "wait_for_partner",
            "eventfd_read",
        ],
    ),
    (Traits::FUTEX, &["futex_", "__futex_wait", "do_futex"]),
    (Traits::SLEEP, &["do_nanosleep", "hrtimer_nanosleep"]),
    (
        Traits::CHILD,
        &[
            "do_wait",
            "kernel_wait4",
            "kernel_clone",
            "wait_for_vfork_done",
            "do_execve",
        ],
    ),
    (
        Traits::KERNEL_LOCK,
        &[
            "rwsem_down_",
            "down_read",
            "down_write",
            "__down",
            "__mutex_lock",
            "mutex_lock",
            "percpu_rwsem_wait",
            "__percpu_down_read",
            "rt_mutex_",
            "os_acquire_",
        ],
    ),
    (
        Traits::DRIVER,
        &[
            "nvidia_",
            "nvidia",
            "nv_",
            "_nv0",
            "uvm_",
            "os_acquire_",
            "rm_ioctl",
            "rmapi",
        ],
    ),
    (
        Traits::RECLAIM,
        &[
            "try_to_free_",
            "do_try_to_free_pages",
            "shrink_node",
            "shrink_lruvec",
            "reclaim_throttle",
            "throttle_direct_reclaim",
            "mem_cgroup_handle_over_high",
            "__mem_cgroup_handle_over_high",
            "mem_cgroup_oom",
            "compact_zone",
            "try_to_compact_pages",
            "__alloc_pages_direct",
            "do_swap_page",
        ],
    ),
    (Traits::SIGNAL_STOP, &["do_signal_stop", "do_jobctl_trap"]),
    (
        Traits::PTRACE_STOP,
        &["ptrace_stop", "ptrace_do_notify", "ptrace_notify"],
    ),
    (Traits::FROZEN, &["__refrigerator", "cgroup_enter_frozen"]),
    (
        Traits::FORK,
        &[
            "copy_process",
            "dup_mm",
            "copy_page_range",
            "copy_p4d_range",
            "copy_pte_range",
            "do_execve",
            "bprm_execve",
            "load_elf_binary",
            "begin_new_exec",
            "wp_page_copy",
        ],
    ),
    (
        Traits::BALANCE,
        &["task_numa_work", "change_prot_numa", "do_numa_page"],
    ),
    (
        Traits::YIELD,
        &[
            "do_sched_yield",
            "__do_sys_sched_yield",
            "__x64_sys_sched_yield",
        ],
    ),
    (
        Traits::FILE_FAULT,
        &["filemap_fault", "ext4_filemap_fault", "xfs_filemap_fault"],
    ),
    (
        Traits::MAPS_READ,
        &[
            "show_smap",
            "smap_gather_stats",
            "show_map",
            "m_start",
            "m_next",
            "m_stop",
            "pagemap_read",
        ],
    ),
];

/// Frames that every sleeper has and that say nothing.
pub fn is_scheduler(name: &str) -> bool {
    let name = name.split(['+', '.']).next().unwrap_or(name);
    matches!(
        name,
        "__schedule"
            | "schedule"
            | "schedule_timeout"
            | "schedule_preempt_disabled"
            | "schedule_hrtimeout_range"
            | "schedule_hrtimeout_range_clock"
            | "io_schedule"
            | "io_schedule_timeout"
            | "__cond_resched"
            | "preempt_schedule"
            | "__traceiter_sched_switch"
    )
}

#[derive(Clone, Debug, Default)]
struct Stack {
    frames: Vec<NameId>,
    traits: Traits,
}

/// Everything that [`Define`] events said.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Stacks that came since the last [`Names::finish`].
    new_stacks: Vec<StackId>,
    text: FxHashMap<NameId, Box<str>>,
    stacks: FxHashMap<StackId, Stack>,
    irqs: FxHashMap<u16, NameId>,
    endpoints: FxHashMap<NameId, Endpoint>,
    frames: Frames,
}

/// The other side of a socket, or of the sockets that an epoll watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub role: Role,
    /// The process of this machine at the other end.
    pub peer: Option<Pid>,
}

impl Names {
    pub fn define(&mut self, define: &Define) {
        match define {
            Define::Name { id, text } => {
                self.text.insert(*id, text.as_str().into());
            }
            Define::Stack { id, frames } => {
                self.new_stacks.push(*id);
                self.stacks.insert(
                    *id,
                    Stack {
                        frames: frames.clone(),
                        traits: Traits::default(),
                    },
                );
            }
            Define::Irq { irq, name } => {
                self.irqs.insert(*irq, *name);
            }
            Define::Endpoint { object, role, peer } => {
                let (role, peer) = (*role, *peer);
                self.endpoints.insert(*object, Endpoint { role, peer });
            }
            Define::Frame { id, frame } => self.frames.define_frame(*id, *frame),
            Define::CallStack { id, frames, cut } => self.frames.define_stack(*id, frames, *cut),
            Define::Functions { frame, functions } => {
                self.frames.define_functions(*frame, functions);
            }
        }
    }

    /// Says what the stacks that have come since the last time tell.
    pub(super) fn finish(&mut self) {
        let text = &self.text;
        for id in self.new_stacks.drain(..) {
            let Some(stack) = self.stacks.get_mut(&id) else {
                continue;
            };
            stack.traits = Traits::of_stack(
                stack
                    .frames
                    .iter()
                    .filter_map(|id| text.get(id))
                    .map(AsRef::as_ref),
            );
        }
        self.frames
            .finish(|id| text.get(&id).map_or("", AsRef::as_ref));
    }

    /// Of the texts only these, and those of interrupts; no stacks.
    pub fn only(self, names: &FxHashSet<NameId>) -> Names {
        let irqs: FxHashSet<NameId> = self.irqs.values().copied().collect();
        let mut text = self.text;
        text.retain(|id, _| names.contains(id) || irqs.contains(id));
        Names {
            text,
            irqs: self.irqs,
            ..Names::default()
        }
    }

    /// How many texts there are.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The text, empty when it was never defined.
    pub fn get(&self, id: NameId) -> &str {
        self.text.get(&id).map_or("", AsRef::as_ref)
    }

    /// What is known of the other side of a [`Wait::object`](crate::event::Wait::object).
    pub fn endpoint(&self, object: NameId) -> Option<Endpoint> {
        self.endpoints.get(&object).copied()
    }

    /// Frames leaf first; none when it was never defined.
    pub fn stack_ids(&self, id: StackId) -> &[NameId] {
        self.stacks.get(&id).map_or(&[], |s| s.frames.as_slice())
    }

    /// The names of its frames, leaf first.
    pub fn stack(&self, id: StackId) -> impl Iterator<Item = &str> {
        self.stack_ids(id).iter().map(|&name| self.get(name))
    }

    pub fn traits(&self, id: StackId) -> Traits {
        self.stacks
            .get(&id)
            .map_or_else(Traits::default, |s| s.traits)
    }

    /// The innermost frame that says what the wait is about; the empty name without one.
    pub fn telling_frame(&self, id: StackId) -> NameId {
        let telling = |f: &&NameId| !self.get(**f).is_empty() && !is_scheduler(self.get(**f));
        self.stack_ids(id)
            .iter()
            .find(telling)
            .copied()
            .unwrap_or_default()
    }

    /// A user stack; `None` for no stack, or one that was never defined.
    pub fn call_stack(&self, id: CallStackId) -> Option<CallStack<'_>> {
        self.frames.stack(id)
    }

    /// What the frames of a user stack say about the thread; nothing without a stack.
    pub fn call_traits(&self, id: CallStackId) -> CallTraits {
        self.frames.traits(id)
    }

    pub fn frame(&self, id: FrameId) -> Option<Frame> {
        self.frames.frame(id)
    }

    /// The functions at a native frame, innermost first; none when its symbols were not read.
    pub fn functions(&self, frame: FrameId) -> &[Function] {
        self.frames.functions(frame)
    }

    /// Handler names of an interrupt number.
    pub fn irq(&self, irq: u16) -> Option<&str> {
        self.irqs
            .get(&irq)
            .map(|&id| self.get(id))
            .filter(|s| !s.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traits(frames: &[&str]) -> Traits {
        Traits::of_stack(frames.iter().copied())
    }

    #[test]
    fn stacks_measured_on_a_real_kernel_say_what_was_waited_for() {
        for (frames, expected) in [
            (&["do_nanosleep", "hrtimer_nanosleep"][..], Traits::SLEEP),
            (&["futex_do_wait", "__futex_wait"], Traits::FUTEX),
            (&["blkdev_issue_flush", "ext4_sync_file"], Traits::WRITEBACK),
            (
                &["io_schedule", "folio_wait_bit_common", "filemap_fault"],
                Traits::FAULT,
            ),
            (
                &["__schedule", "folio_wait_bit+0x12", "filemap_read"],
                Traits::FILE_READ,
            ),
            (&["wait_for_completion", "kernel_clone"], Traits::CHILD),
            (&["unix_stream_recvmsg"], Traits::SOCKET),
            (&["do_signal_stop", "get_signal"], Traits::SIGNAL_STOP),
            (&["ptrace_stop", "get_signal"], Traits::PTRACE_STOP),
            (&["__refrigerator", "get_signal"], Traits::FROZEN),
            (
                &["rwsem_down_write_slowpath.isra.0", "down_write"],
                Traits::KERNEL_LOCK,
            ),
        ] {
            assert!(traits(frames).has(expected), "{frames:?}");
        }
    }

    #[test]
    fn only_a_sleep_directly_under_get_signal_is_the_freezer() {
        assert!(traits(&["__schedule", "schedule", "get_signal"]).has(Traits::FROZEN));
        assert!(!traits(&["schedule", "do_signal_stop", "get_signal"]).has(Traits::FROZEN));
        assert!(!traits(&["schedule", "do_nanosleep", "get_signal"]).has(Traits::FROZEN));
    }

    #[test]
    fn the_telling_frame_is_not_the_scheduler() {
        let mut names = Names::default();
        for (id, text) in [(1, "__schedule"), (2, "io_schedule"), (3, "folio_wait_bit")] {
            names.define(&Define::Name {
                id: NameId(id),
                text: text.into(),
            });
        }
        names.define(&Define::Stack {
            id: StackId(1),
            frames: vec![NameId(1), NameId(2), NameId(3)],
        });
        names.finish();
        assert_eq!(names.telling_frame(StackId(1)), NameId(3));
        assert_eq!(names.telling_frame(StackId(9)), NameId(0));
        assert!(names.traits(StackId(1)).has(Traits::IO));
    }
}

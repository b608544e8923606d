//! The CUPTI versions that the simulator can be, and what differs between them.
#![forbid(unsafe_code)]

use crate::kind;

/// One CUDA toolkit's CUPTI: the sizes of the newest record structs, which are what the library writes.
#[derive(Debug, PartialEq, Eq)]
pub struct Version {
    /// Major and minor of the toolkit.
    pub name: &'static str,
    /// `cuptiGetVersion`.
    pub api: u32,
    /// Sizes of records in bytes.
    pub kernel: u32,
    pub memcpy: u32,
    pub memset: u32,
    pub sync: u32,
    pub overhead: u32,
    pub event: u32,
    /// Highest activity kind that it knows.
    last_kind: u32,
}

/// Sizes that never changed.
pub const API_BYTES: u32 = 40;
pub const MEMCPY_PEER_BYTES: u32 = 96;

macro_rules! versions {
    ($($name:literal $api:literal $kernel:literal $memcpy:literal $memset:literal $sync:literal $overhead:literal $event:literal $last:literal)*) => {
        &[$(Version {
            name: $name, api: $api, kernel: $kernel, memcpy: $memcpy, memset: $memset,
            sync: $sync, overhead: $overhead, event: $event, last_kind: $last,
        }),*]
    };
}

/// Measured with 17 published header sets; every row is one of them, oldest first.
pub const VERSIONS: &[Version] = versions! {
    //      api    kernel memcpy memset sync overhead event last kind
    "11.7"  17     176    88     88     40   40       24    51
    "11.8"  18     200    88     88     40   40       24    52
    "12.0"  18     208    88     88     40   40       24    52
    "12.1"  18     208    88     88     40   40       24    52
    "12.2"  20     208    88     88     40   40       24    52
    "12.3"  21     208    88     88     40   48       24    52
    "12.4"  22     208    88     88     40   56       24    52
    "12.5"  23     208    88     88     40   56       24    52
    "12.6"  24     208    88     88     40   56       24    52
    "12.8"  26     208    96     88     56   56       56    54
    "12.9"  28     208    96     88     56   56       56    55
    "13.0"  130001 216    96     88     56   56       56    55
    "13.1"  130101 224    96     88     56   56       56    58
    "13.2"  130202 224    96     88     56   56       56    59
    "13.3"  130301 232    96     88     56   56       56    59
    "13.4"  130401 248    112    104    56   56       56    59
    "13.5"  130500 248    112    104    56   56       80    59
};

/// 13.0.85, where the facts about behaviour were measured.
pub const DEFAULT: &Version = &VERSIONS[11];

/// A version by the name of its toolkit; a third component is ignored.
pub fn find(name: &str) -> Option<&'static Version> {
    let mut parts = name.splitn(3, '.');
    let (major, minor) = (parts.next()?, parts.next()?);
    VERSIONS
        .iter()
        .find(|version| version.name.split_once('.') == Some((major, minor)))
}

/// Whether a kind can be enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    Yes,
    /// A later CUPTI has it.
    Later,
    No,
}

impl Version {
    fn is_at_least(&self, name: &str) -> bool {
        find(name).is_some_and(|other| {
            // Rows are in the order of versions.
            let at = |v: &Version| VERSIONS.iter().position(|row| row == v);
            at(self) >= at(other)
        })
    }

    /// Size of a record of `kind`, `None` for kinds that are never written.
    pub fn size(&self, kind: u32) -> Option<u32> {
        Some(match kind {
            kind::MEMCPY => self.memcpy,
            kind::MEMSET => self.memset,
            kind::KERNEL | kind::CONCURRENT_KERNEL => self.kernel,
            kind::DRIVER | kind::RUNTIME => API_BYTES,
            kind::OVERHEAD => self.overhead,
            kind::MEMCPY2 => MEMCPY_PEER_BYTES,
            kind::UNIFIED_MEMORY_COUNTER => {
                if self.is_at_least("12.8") {
                    104
                } else {
                    64
                }
            }
            kind::CUDA_EVENT => self.event,
            kind::SYNCHRONIZATION => self.sync,
            _ => return None,
        })
    }

    pub fn support(&self, kind: u32) -> Support {
        match kind {
            0 => Support::No,
            kind if kind <= self.last_kind => Support::Yes,
            kind if kind <= kind::LAST => Support::Later,
            _ => Support::No,
        }
    }

    /// `cuptiActivityEnableDriverApi` and `…RuntimeApi`.
    pub fn has_api_filter(&self) -> bool {
        self.is_at_least("12.5")
    }

    /// One buffer per thread unless asked otherwise.
    pub fn has_thread_buffers(&self) -> bool {
        self.is_at_least("13.0")
    }

    /// Event records come with SYNCHRONIZATION alone.
    pub fn sync_includes_events(&self) -> bool {
        !self.is_at_least("12.9")
    }

    /// The version writes overhead records of this kind.
    pub fn has_overhead(&self, what: u32) -> bool {
        match what {
            crate::overhead::COMMAND_BUFFER_FULL => self.is_at_least("12.4"),
            crate::overhead::ACTIVITY_BUFFER_REQUEST => self.is_at_least("12.6"),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_row() {
        assert_eq!(find("13.0").unwrap(), DEFAULT);
        assert_eq!(find("13.0.85").unwrap(), DEFAULT);
        assert_eq!(find("11.8").unwrap().kernel, 200);
        for bad in ["13", "13.", "12.7", "1.1", ""] {
            assert_eq!(find(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_never_shrink_with_the_version() {
        for pair in VERSIONS.windows(2) {
            for kind in 0..=kind::LAST {
                assert!(pair[0].size(kind) <= pair[1].size(kind));
            }
            assert!(pair[0].api <= pair[1].api);
        }
    }

    #[test]
    fn features_begin_with_their_version() {
        let old = find("12.4").unwrap();
        let new = find("12.6").unwrap();
        assert!(!old.has_api_filter() && new.has_api_filter());
        assert!(!old.has_overhead(7 << 16) && new.has_overhead(7 << 16));
        assert!(old.sync_includes_events() && !DEFAULT.sync_includes_events());
        assert!(!new.has_thread_buffers() && DEFAULT.has_thread_buffers());
    }

    #[test]
    fn kinds_of_later_versions_are_told_from_nonsense() {
        assert_eq!(DEFAULT.support(kind::CONCURRENT_KERNEL), Support::Yes);
        assert_eq!(DEFAULT.support(56), Support::Later);
        assert_eq!(DEFAULT.support(60), Support::No);
        assert_eq!(DEFAULT.support(0), Support::No);
        assert_eq!(find("13.1").unwrap().support(56), Support::Yes);
    }
}

//! What a person who looks into a bug report wants to know beside the checks: of the kernel's configuration, its
//! settings, mounts and CPUs what is on fixed lists, and nothing else.
//!
//! All of it is text of the kernel's own. Values that are neither numbers nor words of a list are left out: a
//! distribution may have put a name into one.
#![forbid(unsafe_code)]

use std::fs;
use std::io::Read as _;
use std::path::Path;

use super::read_line;

/// A configuration has some 300 KiB.
const MOST_CONFIG: u64 = 16 << 20;

/// Options that decide what BPF programs can do, by the beginning of their names, without `CONFIG_`.
const OPTIONS: [&str; 27] = [
    "BPF",
    "CGROUP",
    "DEBUG_INFO",
    "DYNAMIC_FTRACE",
    "FTRACE",
    "FUNCTION_TRACER",
    "HAVE_DYNAMIC_FTRACE",
    "HIGH_RES_TIMERS",
    "HYPERVISOR_GUEST",
    "HZ",
    "IKCONFIG",
    "IRQ_TIME_ACCOUNTING",
    "KALLSYMS",
    "KPROBE",
    "MEMFD_CREATE",
    "NO_HZ",
    "PERF_EVENTS",
    "PID_NS",
    "PREEMPT",
    "SCHED",
    "SECCOMP",
    "SECURITY_LOCKDOWN",
    "SECURITY_YAMA",
    "TRACEPOINTS",
    "TRACING",
    "UPROBE",
    "USER_NS",
];

const SETTINGS: [&str; 22] = [
    "fs/file-max",
    "fs/nr_open",
    "kernel/bpf_stats_enabled",
    "kernel/dmesg_restrict",
    "kernel/ftrace_enabled",
    "kernel/kptr_restrict",
    "kernel/nmi_watchdog",
    "kernel/numa_balancing",
    "kernel/perf_cpu_time_max_percent",
    "kernel/perf_event_max_sample_rate",
    "kernel/perf_event_max_stack",
    "kernel/perf_event_mlock_kb",
    "kernel/perf_event_paranoid",
    "kernel/pid_max",
    "kernel/randomize_va_space",
    "kernel/sched_schedstats",
    "kernel/unprivileged_bpf_disabled",
    "kernel/yama/ptrace_scope",
    "net/core/bpf_jit_enable",
    "net/core/bpf_jit_harden",
    "user/max_user_namespaces",
    "vm/overcommit_memory",
];

const MOUNTS: [&str; 14] = [
    "/",
    "/dev/shm",
    "/proc",
    "/run",
    "/sys",
    "/sys/fs/bpf",
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/cpu",
    "/sys/fs/cgroup/unified",
    "/sys/kernel/debug",
    "/sys/kernel/security",
    "/sys/kernel/tracing",
    "/tmp",
    "/var/tmp",
];

const MOUNT_OPTIONS: [&str; 9] = [
    "ro",
    "rw",
    "noexec",
    "nosuid",
    "nodev",
    "hidepid",
    "subset",
    "nsdelegate",
    "memory_recursiveprot",
];

const CPU: [&str; 7] = [
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "flags",
    "Features",
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// `None`: neither in /proc nor in /boot.
    pub config: Option<String>,
    pub settings: String,
    pub mounts: String,
    pub cpu: String,
    /// Name and version of the distribution.
    pub system: String,
}

impl Support {
    pub fn read(release: &str) -> Support {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let settings = SETTINGS.iter().map(|name| {
            let value = read_line(Path::new("/proc/sys").join(name));
            let value = value.filter(|value| is_numbers(value));
            format!(
                "{} = {}\n",
                name.replace('/', "."),
                value.as_deref().unwrap_or("-")
            )
        });
        Support {
            config: config(release).map(|text| options(&text)),
            settings: settings.collect(),
            mounts: mounts(&text("/proc/self/mountinfo")),
            cpu: cpu(&text("/proc/cpuinfo")),
            system: system(&text("/etc/os-release")),
        }
    }
}

fn is_numbers(text: &str) -> bool {
    text.bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'-' | b' ' | b'\t'))
}

fn config(release: &str) -> Option<String> {
    let mut text = String::new();
    if let Ok(file) = fs::File::open("/proc/config.gz") {
        let mut unpacked = flate2::read::GzDecoder::new(file).take(MOST_CONFIG);
        if unpacked.read_to_string(&mut text).is_ok() {
            return Some(text);
        }
    }
    let places = [
        format!("/boot/config-{release}"),
        format!("/lib/modules/{release}/config"),
    ];
    places.iter().find_map(|path| fs::read_to_string(path).ok())
}

/// Those of the list that are set to `y`, `m` or a number, and those that are not set.
fn options(config: &str) -> String {
    let name_of = |line: &str| -> Option<String> {
        let set = line.split_once('=');
        let (name, value) = match set {
            Some((name, value)) => (name, value),
            None => (line.strip_prefix("# ")?.strip_suffix(" is not set")?, "n"),
        };
        let known = OPTIONS.iter().any(|option| {
            name.strip_prefix("CONFIG_")
                .is_some_and(|name| name.starts_with(option))
        });
        (known && (matches!(value, "y" | "m" | "n") || is_numbers(value)))
            .then(|| format!("{name}={value}\n"))
    };
    config.lines().filter_map(name_of).collect()
}

fn mounts(mountinfo: &str) -> String {
    let line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(4);
        let (place, own) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, whole) = (after.next()?, after.nth(1)?);
        MOUNTS.contains(&place).then_some(())?;
        let options = own.split(',').chain(whole.split(','));
        let is_known =
            |option: &&str| MOUNT_OPTIONS.contains(&option.split('=').next().unwrap_or_default());
        let mut known: Vec<&str> = options.filter(is_known).collect();
        known.dedup();
        let is_kind = kind
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        let kind = if is_kind { kind } else { "-" };
        Some(format!("{place} {kind} {}\n", known.join(",")))
    };
    mountinfo.lines().filter_map(line).collect()
}

fn cpu(cpuinfo: &str) -> String {
    let first = cpuinfo.lines().take_while(|line| !line.is_empty());
    let line = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let name = name.trim();
        CPU.contains(&name)
            .then(|| format!("{name}: {}\n", value.trim()))
    };
    first.filter_map(line).collect()
}

/// `debian 12`.
fn system(os_release: &str) -> String {
    let value = |name: &str| {
        let mut lines = os_release.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        let value = value.unwrap_or_default().trim_matches(['"', '\'']);
        let plain = value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        if plain && value.len() < 32 {
            value
        } else {
            ""
        }
    };
    format!("{} {}", value("ID"), value("VERSION_ID"))
        .trim()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_list_are_kept_and_texts_are_not() {
        let config =
            "CONFIG_BPF=y\n# CONFIG_BPF_LSM is not set\nCONFIG_HZ=250\nCONFIG_HZ_NAME=\"SECRET\"\n\
            CONFIG_LOCALVERSION=\"-SECRET\"\nCONFIG_SMP=y\n# SECRET\n";
        assert_eq!(
            options(config),
            "CONFIG_BPF=y\nCONFIG_BPF_LSM=n\nCONFIG_HZ=250\n"
        );
    }

    #[test]
    fn of_mounts_only_places_and_options_of_the_lists_are_told() {
        let text = "1 0 0:1 / / rw,relatime - ext4 /dev/SECRET rw,errors=SECRET\n\
            2 1 0:2 /SECRET /proc rw,nosuid - proc proc rw,hidepid=2\n\
            3 1 0:3 / /home/SECRET rw - nfs SECRET:/x rw,addr=10.0.0.1\n";
        assert_eq!(
            mounts(text),
            "/ ext4 rw\n/proc proc rw,nosuid,rw,hidepid=2\n"
        );
    }

    #[test]
    fn the_cpu_is_told_without_its_number() {
        let text = "processor\t: 0\nvendor_id\t: X\nmodel name\t: Y 7\nserial\t\t: SECRET\nflags\t\t: a b\n\nvendor_id\t: Z\n";
        assert_eq!(cpu(text), "vendor_id: X\nmodel name: Y 7\nflags: a b\n");
    }

    #[test]
    fn a_distribution_is_its_id_and_version() {
        assert_eq!(
            system("PRETTY_NAME=\"S\"\nVERSION_ID=\"12\"\nID=debian\n"),
            "debian 12"
        );
        assert_eq!(system("ID=\"a b\"\n"), "");
    }
}

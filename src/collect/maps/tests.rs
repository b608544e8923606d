//! On real processes: needs `cc`, and for the events perf_event_open.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use memmap2::{Mmap as Memory, MmapOptions};
use tempfile::TempDir;

use super::*;
use crate::collect::clock;
use crate::collect::elf::Elf;
use crate::event::{FrameId, Pid};
use crate::symbolize::user::UserSymbols;
use crate::units::Nanos;

/// Maps what it is told to, where it is told to, and says when that is done.
const HOST: &str = r#"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
int NAME(void) { return VALUE; }
int main(void)
{
	char what[16], path[4096];
	unsigned long at, size;
	printf("%lx\n", (unsigned long)NAME);
	fflush(stdout);
	while (scanf("%15s %4095s %lx %lx", what, path, &at, &size) == 4) {
		void *got = MAP_FAILED;
		if (!strcmp(what, "map"))
			got = mmap((void *)at, size, PROT_READ | PROT_EXEC,
				   MAP_PRIVATE | MAP_FIXED, open(path, O_RDONLY), 0);
		if (!strcmp(what, "unmap"))
			got = munmap((void *)at, size) ? MAP_FAILED : 0;
		if (!strcmp(what, "sink")) {
			/* Deeper than any path that a system call takes: one step at a time. */
			char name[251] = {};
			memset(name, 'x', 250);
			for (int i = 0; i < 80; i++)
				if (mkdir(name, 0700) || chdir(name))
					return 1;
			got = rename(path, "lib.so") ? MAP_FAILED : 0;
		}
		if (!strcmp(what, "dlopen"))
			got = dlsym(dlopen(path, RTLD_NOW), "alpha");
		printf("%lx\n", (unsigned long)got);
		fflush(stdout);
	}
	return 0;
}
"#;

/// An address that no program of these tests uses.
const AT: u64 = 0x10_0000_0000;

fn required(need: &str) -> bool {
    std::env::var("GDIAG_REQUIRE").is_ok_and(|list| list.split(',').any(|n| n == need))
}

fn cc(dir: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let out = dir.join(name);
    let code = dir.join("source.c");
    fs::write(&code, source).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-Wl,--build-id", "-o"])
        .arg(&out)
        .arg(&code)
        .args(flags)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler");
        return None;
    }
    Some(out)
}

/// A library with one function.
fn library(dir: &Path, name: &str, function: &str) -> Option<PathBuf> {
    let source = format!("int {function}(void) {{ return 7; }}\n");
    cc(dir, name, &source, &["-shared", "-fPIC"])
}

struct Host {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Of the function in it.
    function: u64,
}

impl Host {
    fn build(dir: &Path, name: &str, function: &str) -> Option<PathBuf> {
        // Build ids tell apart code, not names.
        let value: u32 = function.bytes().map(u32::from).sum();
        let flags = [&format!("-DNAME={function}"), &format!("-DVALUE={value}")];
        cc(dir, name, HOST, &[flags[0], flags[1], "-ldl"])
    }

    fn run(command: &mut Command) -> Host {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut host = Host {
            child,
            stdin,
            stdout,
            function: 0,
        };
        host.function = host.answer();
        host
    }

    fn answer(&mut self) -> u64 {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    fn tell(&mut self, what: &str, path: &Path, at: u64, size: u64) -> u64 {
        writeln!(self.stdin, "{what} {} {at:x} {size:x}", path.display()).unwrap();
        let got = self.answer();
        assert_ne!(got, u64::MAX, "{what} {path:?}");
        got
    }

    fn map(&mut self, path: &Path) {
        let size = fs::metadata(path).unwrap().len();
        assert_eq!(self.tell("map", path, AT, size), AT);
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the recorder does.
struct Watch {
    events: Option<MmapEvents>,
    spaces: AddressSpaces,
    symbols: UserSymbols,
}

impl Watch {
    fn without_events() -> Watch {
        Watch {
            events: None,
            spaces: AddressSpaces::new(Options::default()).unwrap(),
            symbols: UserSymbols::start().unwrap(),
        }
    }

    fn with_events(everything: bool) -> Option<Watch> {
        let events = match MmapEvents::open() {
            Ok(events) => events,
            Err(e) => {
                assert!(
                    !required("bpf"),
                    "GDIAG_REQUIRE=bpf, but no perf events: {e}"
                );
                eprintln!("skipped: no perf events: {e}");
                return None;
            }
        };
        let options = Options {
            everything,
            events: true,
        };
        Some(Watch {
            events: Some(events),
            spaces: AddressSpaces::new(options).unwrap(),
            symbols: UserSymbols::start().unwrap(),
        })
    }

    /// Takes in everything up to now.
    fn settle(&mut self) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let spaces = &mut self.spaces;
            if let Some(events) = &mut self.events {
                if !events.read(|event| spaces.apply(&event)) {
                    spaces.distrust();
                }
                assert_eq!(events.counts().broken, 0);
            }
            spaces.poll(clock::monotonic());
            if spaces.waiting() == 0 {
                return;
            }
            assert!(Instant::now() < until, "nothing came");
            std::thread::yield_now();
        }
    }

    fn find(&mut self, pid: u32, pc: u64, ts: Nanos) -> Place {
        self.spaces.find(Pid(pid), pc, ts)
    }

    /// The functions at an address at that time; none when it is in no file that can be read.
    fn names(&mut self, pid: u32, pc: u64, ts: Nanos) -> Vec<String> {
        let Place::File(at) = self.find(pid, pc, ts) else {
            return Vec::new();
        };
        let Some(elf) = self.spaces.files().elf(at.file) else {
            return Vec::new();
        };
        self.symbols.ask(FrameId(1), at.file, elf, at.address);
        let symbols = std::mem::replace(&mut self.symbols, UserSymbols::start().unwrap());
        let (answers, unanswered) = symbols.finish(Duration::from_secs(20));
        assert_eq!((answers.len(), unanswered), (1, 0));
        let names = answers[0].1.iter().map(|f| f.name.clone());
        names.collect()
    }

    fn path(&mut self, place: Place) -> String {
        match place {
            Place::File(at) => self.spaces.files().path(at.file).to_string(),
            Place::Anonymous | Place::NotYet | Place::Unmapped => panic!("{place:?}"),
        }
    }
}

/// Where a function is when all of its file is mapped at [`AT`].
fn pc_of(library: &Path, function: &str) -> u64 {
    let elf = Elf::read(File::open(library).unwrap()).unwrap().unwrap();
    let size = fs::metadata(library).unwrap().len();
    elf.symbol(function).unwrap().unwrap() + elf.bias(AT, size, 0).unwrap()
}

/// All of a file, executable, in this process.
fn mapped_here(path: &Path) -> Memory {
    // SAFETY: nobody changes the file while the test runs.
    unsafe { MmapOptions::new().map_exec(&File::open(path).unwrap()) }.unwrap()
}

fn own() -> u32 {
    std::process::id()
}

#[inline(never)]
#[no_mangle]
extern "C" fn gdiag_test_marker() -> u32 {
    std::hint::black_box(7)
}

#[test]
fn the_maps_of_a_process_that_was_there_before_tell_its_functions() {
    let mut watch = Watch::without_events();
    let pc = gdiag_test_marker as *const () as u64;
    assert_eq!(watch.find(own(), pc, Nanos(1)), Place::NotYet);
    watch.spaces.add(Pid(own()), own());
    assert_eq!(watch.find(own(), pc, Nanos(1)), Place::NotYet);
    assert_eq!(watch.spaces.mappings(Pid(own())), None);
    watch.settle();
    let now = clock::monotonic();
    assert_eq!(watch.names(own(), pc, now), ["gdiag_test_marker"]);
    assert_eq!(watch.names(own(), pc, Nanos(1)), ["gdiag_test_marker"]);
    // Data is not executable.
    let data = std::ptr::from_ref(&HOST) as u64;
    assert_eq!(watch.find(own(), data, now), Place::Unmapped);
    let mappings = watch.spaces.mappings(Pid(own())).unwrap();
    assert!(mappings.is_sorted_by(|a, b| a.end <= b.start));
    let at = mappings.iter().find(|m| (m.start..m.end).contains(&pc));
    let at = at.unwrap();
    let Place::File(mapped) = watch.find(own(), pc, now) else {
        panic!("not found any more");
    };
    assert_eq!(at.file, Some(mapped.file));
    assert_eq!(pc.wrapping_sub(at.bias), mapped.address);
    assert_eq!(watch.spaces.changed(), [Pid(own())]);
    assert_eq!(watch.spaces.changed(), []);
}

#[test]
fn the_vdso_is_a_file_with_names() {
    let mut watch = Watch::without_events();
    watch.spaces.add(Pid(own()), own());
    watch.settle();
    let maps = proc::read(own()).unwrap();
    let vdso = maps.iter().find(|m| m.path == files::VDSO).unwrap();
    let image = crate::unwind::vdso::image().unwrap();
    let file = tempfile::tempfile().unwrap();
    (&file).write_all(image).unwrap();
    let elf = Elf::read(file).unwrap().unwrap();
    let gettime = elf.symbol("__vdso_clock_gettime").unwrap().unwrap();
    let pc = vdso.start + gettime;
    let now = clock::monotonic();
    let place = watch.find(own(), pc, now);
    assert_eq!(watch.path(place), "[vdso]");
    let names = watch.names(own(), pc, now);
    assert!(names[0].ends_with("clock_gettime"), "{names:?}");
}

#[test]
fn a_library_opened_while_running_is_known_by_its_event() {
    let dir = TempDir::new().unwrap();
    let Some(host) = Host::build(dir.path(), "host", "in_host") else {
        return;
    };
    let library = library(dir.path(), "liba.so", "alpha").unwrap();
    let Some(mut watch) = Watch::with_events(false) else {
        return;
    };
    let mut host = Host::run(&mut Command::new(host));
    let pid = host.pid();
    watch.spaces.add(Pid(pid), pid);
    watch.settle();
    let before = watch.spaces.generation(Pid(pid));
    let then = clock::monotonic();
    let alpha = host.tell("dlopen", &library, 0, 0);
    watch.settle();
    let now = clock::monotonic();
    assert_eq!(watch.names(pid, alpha, now), ["alpha"]);
    assert_eq!(watch.names(pid, host.function, now), ["in_host"]);
    assert_eq!(watch.find(pid, alpha, then), Place::Unmapped);
    assert!(watch.spaces.generation(Pid(pid)) > before);
    let old = watch.spaces.find_in(Pid(pid), alpha, before);
    assert_eq!(old, Place::Unmapped);
}

#[test]
fn two_libraries_at_one_address_are_told_apart_by_time() {
    let dir = TempDir::new().unwrap();
    let Some(host) = Host::build(dir.path(), "host", "in_host") else {
        return;
    };
    let alpha = library(dir.path(), "liba.so", "alpha").unwrap();
    let delta = library(dir.path(), "libd.so", "delta").unwrap();
    let pc = pc_of(&alpha, "alpha");
    assert_eq!(pc, pc_of(&delta, "delta"));
    let Some(mut watch) = Watch::with_events(false) else {
        return;
    };
    let mut host = Host::run(&mut Command::new(host));
    let pid = host.pid();
    watch.spaces.add(Pid(pid), pid);
    host.map(&alpha);
    let first = clock::monotonic();
    watch.settle();
    let generation = watch.spaces.generation(Pid(pid));
    host.tell("unmap", &alpha, AT, fs::metadata(&alpha).unwrap().len());
    host.map(&delta);
    watch.settle();
    let second = clock::monotonic();
    assert_eq!(watch.names(pid, pc, first), ["alpha"]);
    assert_eq!(watch.names(pid, pc, second), ["delta"]);
    let old = watch.spaces.find_in(Pid(pid), pc, generation);
    assert_eq!(old, watch.find(pid, pc, first));
    assert_ne!(old, watch.find(pid, pc, second));
}

#[test]
fn a_replaced_program_keeps_its_own_names() {
    let dir = TempDir::new().unwrap();
    let Some(path) = Host::build(dir.path(), "host", "in_old") else {
        return;
    };
    let other = Host::build(dir.path(), "other", "in_new").unwrap();
    let host = Host::run(&mut Command::new(&path));
    fs::rename(other, &path).unwrap();
    let mut watch = Watch::without_events();
    watch.spaces.add(Pid(host.pid()), host.pid());
    watch.settle();
    let now = clock::monotonic();
    assert_eq!(watch.names(host.pid(), host.function, now), ["in_old"]);
    // The mark of the kernel is no part of the name.
    let place = watch.find(host.pid(), host.function, now);
    assert_eq!(watch.path(place), path.to_str().unwrap());
}

#[test]
fn a_program_that_was_replaced_before_it_was_opened_has_no_names() {
    let dir = TempDir::new().unwrap();
    // A build of its own: other tests may run the others, and these are known then.
    let Some(path) = Host::build(dir.path(), "host", "in_gone") else {
        return;
    };
    let other = Host::build(dir.path(), "other", "in_new").unwrap();
    let Some(mut watch) = Watch::with_events(true) else {
        return;
    };
    if !watch.events.as_ref().unwrap().has_build_ids() {
        eprintln!("skipped: this kernel sends no build ids");
        return;
    }
    let host = Host::run(&mut Command::new(&path));
    let (pid, pc, ts) = (host.pid(), host.function, clock::monotonic());
    drop(host);
    fs::rename(other, &path).unwrap();
    watch.settle();
    watch.spaces.add(Pid(pid), pid);
    let place = watch.find(pid, pc, ts);
    assert_eq!(watch.path(place), path.to_str().unwrap());
    assert_eq!(watch.names(pid, pc, ts), Vec::<String>::new());
}

#[test]
fn a_process_that_is_gone_already_has_names() {
    let dir = TempDir::new().unwrap();
    let Some(path) = Host::build(dir.path(), "host", "in_short") else {
        return;
    };
    let Some(mut watch) = Watch::with_events(true) else {
        return;
    };
    let host = Host::run(&mut Command::new(&path));
    let (pid, pc, ts) = (host.pid(), host.function, clock::monotonic());
    drop(host);
    watch.settle();
    watch.spaces.add(Pid(pid), pid);
    assert_eq!(watch.names(pid, pc, ts), ["in_short"]);
}

#[test]
fn a_child_has_the_mappings_of_its_parent_until_it_becomes_another_program() {
    let dir = TempDir::new().unwrap();
    let Some(path) = Host::build(dir.path(), "host", "in_host") else {
        return;
    };
    let Some(mut watch) = Watch::with_events(false) else {
        return;
    };
    watch.spaces.add(Pid(own()), own());
    watch.settle();
    let host = Host::run(&mut Command::new(&path));
    watch.settle();
    let pid = host.pid();
    watch.spaces.add(Pid(pid), pid);
    let now = clock::monotonic();
    assert_eq!(watch.names(pid, host.function, now), ["in_host"]);
    let marker = gdiag_test_marker as *const () as u64;
    assert_eq!(watch.find(pid, marker, now), Place::Unmapped);
    assert!(matches!(watch.find(own(), marker, now), Place::File(_)));
}

#[test]
fn a_fork_that_is_told_of_late_takes_nothing_away() {
    let mut watch = Watch::without_events();
    watch.spaces.add(Pid(own()), own());
    watch.settle();
    let marker = gdiag_test_marker as *const () as u64;
    let now = clock::monotonic();
    let place = watch.find(own(), marker, now);
    let fork = |ts, proc_pid, parent| MapEvent {
        ts,
        proc_pid,
        what: What::Fork { parent },
    };
    watch.spaces.apply(&fork(Nanos(1), own(), 0x7fff_fff1));
    assert_eq!(watch.find(own(), marker, now), place);
    // A child of ours has what we have, and a stranger with its pid later has not.
    let child = 0x7fff_fff2;
    watch.spaces.apply(&fork(now, child, own()));
    watch.spaces.add(Pid(child), child);
    assert_eq!(watch.find(child, marker, now), place);
    assert_ne!(watch.find(child, marker, Nanos(now.0 - 1)), place);
    let later = clock::monotonic();
    watch.spaces.apply(&fork(later, child, 0x7fff_fff1));
    watch.settle();
    assert_eq!(watch.find(child, marker, now), place);
    assert_eq!(watch.find(child, marker, later), Place::Unmapped);
}

#[test]
fn another_mount_namespace_has_other_files_under_the_same_path() {
    let dir = TempDir::new().unwrap();
    let Some(path) = Host::build(dir.path(), "host", "in_host") else {
        return;
    };
    let alpha = library(dir.path(), "liba.so", "alpha").unwrap();
    let delta = library(dir.path(), "libd.so", "delta").unwrap();
    let pc = pc_of(&alpha, "alpha");
    let script = format!(
        "mount --bind {} {} && exec {}",
        alpha.display(),
        delta.display(),
        path.display()
    );
    let namespaces = Command::new("unshare")
        .args(["-m", "mount", "--bind", "/", "/"])
        .status();
    if !namespaces.is_ok_and(|status| status.success()) {
        assert!(
            !required("bpf"),
            "GDIAG_REQUIRE=bpf, but no mount namespaces"
        );
        eprintln!("skipped: mount namespaces are not allowed");
        return;
    }
    let mut host = Host::run(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    host.map(&delta);
    let pid = host.pid();
    let mut watch = Watch::without_events();
    watch.spaces.add(Pid(pid), pid);
    watch.settle();
    let now = clock::monotonic();
    assert_eq!(watch.names(pid, pc, now), ["alpha"]);
}

#[test]
fn a_newline_in_a_name_is_part_of_the_name() {
    let dir = TempDir::new().unwrap();
    let name = "lib\n7f0000000000-7f0000001000 r-xp 00000000 fe:01 1 /evil.so";
    let Some(plain) = library(dir.path(), "liba.so", "alpha") else {
        return;
    };
    let hostile = dir.path().join("a").join(name);
    fs::create_dir_all(hostile.parent().unwrap()).unwrap();
    fs::copy(&plain, &hostile).unwrap();
    let memory = mapped_here(&hostile);
    let mut watch = Watch::without_events();
    watch.spaces.add(Pid(own()), own());
    watch.settle();
    let pc = memory.as_ptr() as u64 + pc_of(&plain, "alpha") - AT;
    let now = clock::monotonic();
    let place = watch.find(own(), pc, now);
    assert_eq!(watch.path(place), hostile.to_str().unwrap());
    assert_eq!(watch.names(own(), pc, now), ["alpha"]);
    assert_eq!(watch.find(own(), 0x7f00_0000_0010, now), Place::Unmapped);
}

#[test]
fn a_path_longer_than_the_kernel_can_say_is_no_harm() {
    let dir = TempDir::new().unwrap();
    let Some(plain) = library(dir.path(), "liba.so", "alpha") else {
        return;
    };
    let host = Host::build(dir.path(), "host", "in_host").unwrap();
    let Some(mut watch) = Watch::with_events(false) else {
        return;
    };
    watch.spaces.add(Pid(own()), own());
    watch.settle();
    let mut host = Host::run(Command::new(host).current_dir(dir.path()));
    let size = fs::metadata(&plain).unwrap().len();
    let pc = pc_of(&plain, "alpha");
    host.tell("sink", &plain, 0, 0);
    host.tell("map", Path::new("lib.so"), AT, size);
    let pid = host.pid();
    watch.spaces.add(Pid(pid), pid);
    watch.settle();
    let now = clock::monotonic();
    assert_eq!(watch.names(pid, pc, now), ["alpha"], "from its event");
    let mut late = Watch::without_events();
    late.spaces.add(Pid(pid), pid);
    late.settle();
    assert_eq!(late.names(pid, pc, now), ["alpha"], "from its maps");
}

#[test]
fn five_thousand_mappings_are_all_known() {
    let dir = TempDir::new().unwrap();
    let Some(plain) = library(dir.path(), "liba.so", "alpha") else {
        return;
    };
    let memories: Vec<_> = (0..5000).map(|_| mapped_here(&plain)).collect();
    let mut watch = Watch::without_events();
    watch.spaces.add(Pid(own()), own());
    watch.settle();
    let inside = pc_of(&plain, "alpha") - AT;
    let now = clock::monotonic();
    let mut places = memories
        .iter()
        .map(|m| watch.find(own(), m.as_ptr() as u64 + inside, now));
    let first = places.next().unwrap();
    assert!(matches!(first, Place::File(_)), "{first:?}");
    assert!(places.all(|place| place == first));
}

#[test]
fn a_flood_of_mappings_is_noticed_when_some_are_lost() {
    let dir = TempDir::new().unwrap();
    let Some(plain) = library(dir.path(), "liba.so", "alpha") else {
        return;
    };
    let Some(mut watch) = Watch::with_events(false) else {
        return;
    };
    watch.spaces.add(Pid(own()), own());
    watch.settle();
    let memories: Vec<_> = (0..5000).map(|_| mapped_here(&plain)).collect();
    watch.settle();
    let counts = watch.events.as_ref().unwrap().counts();
    assert!(counts.full > 0, "{counts:?}");
    let inside = pc_of(&plain, "alpha") - AT;
    let now = clock::monotonic();
    let mut places = memories
        .iter()
        .map(|m| watch.find(own(), m.as_ptr() as u64 + inside, now));
    assert!(places.all(|place| matches!(place, Place::File(_))));
}

#[test]
fn code_made_at_run_time_is_in_no_file() {
    let memory = MmapOptions::new().len(4096).map_anon().unwrap();
    let anonymous = memory.make_exec().unwrap();
    let device = memory_of_memfd();
    let mut watch = Watch::without_events();
    watch.spaces.add(Pid(own()), own());
    watch.settle();
    let now = clock::monotonic();
    for memory in [&anonymous, &device] {
        let pc = memory.as_ptr() as u64 + 8;
        assert_eq!(watch.find(own(), pc, now), Place::Anonymous);
    }
}

fn memory_of_memfd() -> Memory {
    use nix::sys::memfd::{memfd_create, MFdFlags};
    let file = File::from(memfd_create("jit", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(4096).unwrap();
    // SAFETY: nobody else has this file.
    unsafe { MmapOptions::new().map_exec(&file) }.unwrap()
}

#[test]
fn a_program_in_a_memfd_is_a_file() {
    use nix::sys::memfd::{memfd_create, MFdFlags};
    let dir = TempDir::new().unwrap();
    let Some(plain) = library(dir.path(), "liba.so", "alpha") else {
        return;
    };
    let mut file = File::from(memfd_create("lib", MFdFlags::MFD_CLOEXEC).unwrap());
    file.write_all(&fs::read(&plain).unwrap()).unwrap();
    // SAFETY: nobody else has this file.
    let memory = unsafe { MmapOptions::new().map_exec(&file) }.unwrap();
    let mut watch = Watch::without_events();
    watch.spaces.add(Pid(own()), own());
    watch.settle();
    let pc = memory.as_ptr() as u64 + pc_of(&plain, "alpha") - AT;
    assert_eq!(watch.names(own(), pc, clock::monotonic()), ["alpha"]);
}

#[test]
fn a_library_without_build_id_is_known_by_its_inode() {
    let dir = TempDir::new().unwrap();
    let Some(host) = Host::build(dir.path(), "host", "in_host") else {
        return;
    };
    let source = "int alpha(void) { return 7; }\n";
    let flags = ["-shared", "-fPIC", "-Wl,--build-id=none"];
    let library = cc(dir.path(), "liba.so", source, &flags).unwrap();
    let Some(mut watch) = Watch::with_events(false) else {
        return;
    };
    let mut host = Host::run(&mut Command::new(host));
    let pid = host.pid();
    watch.spaces.add(Pid(pid), pid);
    watch.settle();
    let alpha = host.tell("dlopen", &library, 0, 0);
    watch.settle();
    assert_eq!(watch.names(pid, alpha, clock::monotonic()), ["alpha"]);
}

#[test]
fn a_process_that_cannot_be_read_is_not_waited_for() {
    let mut watch = Watch::without_events();
    watch.spaces.add(Pid(0x7fff_fff0), 0x7fff_fff0);
    watch.settle();
    assert_eq!(watch.find(0x7fff_fff0, 0x1000, Nanos(1)), Place::Unmapped);
    assert_eq!(watch.spaces.mappings(Pid(0x7fff_fff0)), None);
    watch.spaces.distrust();
    watch.settle();
    assert_eq!(watch.spaces.unread(), 0, "it is gone, not hidden");
}

#[test]
fn what_is_over_is_forgotten_after_a_while() {
    let dir = TempDir::new().unwrap();
    let Some(path) = Host::build(dir.path(), "host", "in_host") else {
        return;
    };
    let Some(mut watch) = Watch::with_events(false) else {
        return;
    };
    let host = Host::run(&mut Command::new(&path));
    let (pid, pc) = (host.pid(), host.function);
    watch.spaces.add(Pid(pid), pid);
    watch.settle();
    let ts = clock::monotonic();
    drop(host);
    watch.settle();
    assert_eq!(watch.names(pid, pc, ts), ["in_host"]);
    watch.spaces.poll(clock::monotonic() + Nanos::from_secs(60));
    assert_eq!(watch.find(pid, pc, ts), Place::NotYet);
    assert_eq!(watch.spaces.generation(Pid(pid)), 0);
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_not_opened() {
    let dir = TempDir::new().unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::set_permissions(&pipe, fs::Permissions::from_mode(0o600)).unwrap();
    let mmap = Mmap {
        start: AT,
        end: AT + 4096,
        offset: 0,
        file: FileHint::BuildId(crate::collect::elf::BuildId::new(&[1; 20])),
        path: pipe.as_os_str().as_encoded_bytes().to_vec(),
    };
    let opened = open::Opener::new().open(own(), &[mmap]).pop().unwrap();
    assert!(matches!(opened, open::Opened::No), "and it did not wait");
}

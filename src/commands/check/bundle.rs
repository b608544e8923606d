//! The support bundle: what a bug report needs, with nothing private in it.
//!
//! What the checks say is decided anew from facts that were scrubbed ([`scrubbed`]); the rest is of fixed lists
//! ([`Support`]). As a last net the names of this machine and of its user are looked for in every text.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::write::GzEncoder;
use flate2::Compression;
use nix::unistd::{geteuid, User};

use crate::checkup::{scrubbed, Checkup};
use crate::collect::machine::support::Support;
use crate::collect::machine::{Facts, Load};
use crate::commands::temporary::{is_replaceable, Temporary};
use crate::present::check;
use crate::present::style::{Style, MIN_WIDTH};
use crate::present::text::clean;

/// The directory that is unpacked.
const DIRECTORY: &str = "gdiag-bundle";

/// A file of the bundle.
struct File {
    name: String,
    /// What it is, for the manifest.
    what: &'static str,
    text: String,
}

impl File {
    fn new(name: &str, what: &'static str, text: String) -> File {
        File {
            name: name.to_string(),
            what,
            text,
        }
    }
}

/// What must not be in any text, and what stands there instead.
#[derive(Clone, Debug, Default)]
struct Names(Vec<(String, &'static str)>);

/// Writes the bundle, whole or not at all. What is in it is told in one line.
pub(super) fn write(place: Place<'_>, facts: &Facts) -> Result<String> {
    let support = Support::read(&facts.kernel.release);
    let mut files = files(facts, &support)?;
    let names = Names::of_this_machine();
    for file in &mut files {
        file.text = names.hide(&file.text);
    }
    files.insert(0, manifest(&files));
    let count = files.len();
    let path = place.path;
    place.write(&pack(&files).context("cannot pack the bundle")?)?;
    Ok(format!(
        "gdiag: bundle of {count} files in {}; MANIFEST says what they are",
        shown(path)
    ))
}

/// Everything but the manifest.
fn files(facts: &Facts, support: &Support) -> io::Result<Vec<File>> {
    let facts = scrubbed(facts);
    let checkup = Checkup::of(&facts);
    let style = Style {
        width: MIN_WIDTH,
        color: false,
        gaps_in_full: 0,
    };
    let mut text = Vec::new();
    check::write_text(&mut text, &checkup, style)?;
    let mut json = Vec::new();
    check::write_json(&mut json, &checkup)?;
    let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let config = support.config.clone();
    let config = config
        .unwrap_or_else(|| "neither /proc/config.gz nor /boot/config-* is here\n".to_string());
    let mut files = vec![
        File::new("check.txt", "what gdiag check says", lossy(text)),
        File::new("check.json", "the same, schema gdiag.check/1", lossy(json)),
        File::new(
            "versions.txt",
            "gdiag, kernel, distribution, C library, driver, libcupti",
            versions(&facts, support),
        ),
        File::new(
            "kernel-config.txt",
            "options of the kernel that BPF depends on",
            config,
        ),
        File::new(
            "settings.txt",
            "settings of the kernel (sysctl) of a fixed list",
            support.settings.clone(),
        ),
        File::new(
            "mounts.txt",
            "types and options of mounts at places of a fixed list",
            support.mounts.clone(),
        ),
        File::new(
            "cpu.txt",
            "model and features of the first CPU",
            support.cpu.clone(),
        ),
    ];
    for (name, load) in facts.loads.all() {
        if let Load::Refused(refused) = load {
            let text = format!("{}\n\n{}", refused.text, refused.messages);
            let what =
                "why the kernel refused these BPF programs, and what libbpf and the verifier said";
            files.push(File::new(&format!("refused-{name}.txt"), what, text));
        }
    }
    Ok(files)
}

fn versions(facts: &Facts, support: &Support) -> String {
    let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_string());
    let nvml = facts.driver.nvml.as_ref().ok();
    let cuda = nvml.and_then(|nvml| nvml.cuda);
    let cuda = cuda.map(|(major, minor)| format!("{major}.{minor}"));
    let module = facts.driver.module.clone();
    let driver = module.or_else(|| nvml?.version.clone());
    let mut text = format!(
        "gdiag: {} for {}\nkernel: {} {}\ndistribution: {}\nC library: {}\ndriver: {}\nCUDA of the driver: {}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        facts.kernel.release,
        facts.kernel.machine,
        support.system,
        or(&facts.place.libc),
        or(&driver),
        or(&cuda),
    );
    for library in &facts.libraries {
        text.push_str(&format!(
            "{}: {}\n",
            library.path.display(),
            or(&library.version)
        ));
    }
    text
}

fn manifest(files: &[File]) -> File {
    let width = files.iter().map(|file| file.name.len()).max().unwrap_or(0);
    let mut text = format!(
        "A support bundle of gdiag {}.\n\nIt holds no names of machines, users and programs, no command lines, no environment, no addresses\nand no ids of GPUs or containers. Paths are reduced to what the system or a package named.\n\n",
        env!("CARGO_PKG_VERSION")
    );
    for file in files {
        text.push_str(&format!("{:<width$}  {}\n", file.name, file.what));
    }
    File::new("MANIFEST", "this", text)
}

/// Nothing of whoever packs it goes into the archive: no owner, no time.
fn pack(files: &[File]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.text.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        archive.append_data(
            &mut header,
            format!("{DIRECTORY}/{}", file.name),
            file.text.as_bytes(),
        )?;
    }
    archive.into_inner()?.finish()
}

impl Names {
    fn of_this_machine() -> Names {
        let mut names = Names::default();
        if let Ok(name) = nix::sys::utsname::uname() {
            names.add(Some(name.nodename()), "(host)");
            names.add(Some(name.domainname()), "(domain)");
        }
        for variable in ["USER", "LOGNAME", "SUDO_USER"] {
            names.add(std::env::var_os(variable).as_deref(), "(user)");
        }
        if let Ok(Some(user)) = User::from_uid(geteuid()) {
            names.add(Some(OsStr::new(&user.name)), "(user)");
            names.add(Some(user.dir.as_os_str()), "~");
        }
        names.add(std::env::var_os("HOME").as_deref(), "~");
        // The longest first: one may be within another.
        names
            .0
            .sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        names
    }

    /// What everybody has tells nothing.
    fn add(&mut self, name: Option<&OsStr>, instead: &'static str) {
        const COMMON: [&str; 8] = [
            "root",
            "localhost",
            "(none)",
            "/root",
            "debian",
            "ubuntu",
            "fedora",
            "linux",
        ];
        let name = name.and_then(OsStr::to_str).unwrap_or_default();
        if name.len() >= 3 && !COMMON.contains(&name) {
            self.0.push((name.to_string(), instead));
        }
    }

    fn hide(&self, text: &str) -> String {
        let mut text = text.to_string();
        for (name, instead) in &self.0 {
            if text.contains(name.as_str()) {
                text = text.replace(name.as_str(), instead);
            }
        }
        text
    }
}

/// Where it goes.
pub(super) struct Place<'a> {
    temporary: Temporary,
    path: &'a Path,
}

impl<'a> Place<'a> {
    pub(super) fn at(path: &'a Path) -> Result<Place<'a>> {
        is_replaceable(path)?;
        let temporary = Temporary::beside(path, 0o600).with_context(|| cannot_write(path))?;
        Ok(Place { temporary, path })
    }

    fn write(self, bytes: &[u8]) -> Result<()> {
        let written = self.temporary.file().write_all(bytes);
        let written = written.and_then(|()| self.temporary.replace(self.path));
        written.with_context(|| cannot_write(self.path))
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write '{}'", shown(path))
}

fn shown(path: &Path) -> String {
    clean(&path.display().to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::collect::machine::Refused;

    #[test]
    fn the_manifest_names_every_file() {
        let mut facts = Facts::default();
        facts.loads.host = Load::Refused(Refused {
            text: "the kernel refused the BPF programs".to_string(),
            not_permitted: false,
            messages: "libbpf: prog 'x': BPF program load failed: /home/SECRET/y\n".to_string(),
        });
        let files = files(&facts, &Support::default()).unwrap();
        let manifest = manifest(&files);
        assert_eq!(files.len(), 8);
        for file in &files {
            assert!(
                manifest.text.contains(&format!("\n{} ", file.name)),
                "{}",
                file.name
            );
            assert!(!file.text.contains("SECRET"), "{}", file.name);
        }
    }

    #[test]
    fn the_archive_has_no_owner_and_no_time() {
        let files = [File::new("a", "", "text".to_string())];
        let bytes = pack(&files).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
        let header = entry.header().clone();
        assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 0));
        assert_eq!(header.username().unwrap(), Some(""));
        assert_eq!(entry.path().unwrap(), Path::new("gdiag-bundle/a"));
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }

    #[test]
    fn names_of_this_machine_are_hidden_and_common_ones_are_not() {
        let mut names = Names::default();
        names.add(Some(OsStr::new("gpu-node-17")), "(host)");
        names.add(Some(OsStr::new("root")), "(user)");
        names.add(Some(OsStr::new("")), "(user)");
        assert_eq!(names.hide("root at gpu-node-17"), "root at (host)");
    }
}

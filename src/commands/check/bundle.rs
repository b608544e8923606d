//! The support bundle: what a bug report needs, with nothing private in it.
//!
//! What the checks say is decided anew from facts that were scrubbed ([`scrubbed`]); the rest is of fixed lists
//! ([`Support`]). As a last net the names of this machine and of its user are looked for in every text.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::write::GzEncoder;
use flate2::Compression;
use nix::unistd::{geteuid, User};
use serde_json::Value;

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
    let mut files = files(facts, &support, Names::of_this_machine())?;
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
fn files(facts: &Facts, support: &Support, names: Names) -> io::Result<Vec<File>> {
    let facts = scrubbed(facts);
    let mut checkup = Checkup::of(&facts);
    let mut json = Vec::new();
    check::write_json(&mut json, &checkup)?;
    let names = names.without(&schema_words(&json));
    // In what was found, and not in the document that is made of it.
    for check in &mut checkup.checks {
        check.found = names.hide(&check.found);
        check.remedy = check.remedy.as_deref().map(|text| names.hide(text));
    }
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
            versions(&facts, support, &names),
        ),
        File::new(
            "kernel-config.txt",
            "options of the kernel that BPF depends on",
            names.hide(&config),
        ),
        File::new(
            "settings.txt",
            "settings of the kernel (sysctl) of a fixed list",
            names.hide(&support.settings),
        ),
        File::new(
            "mounts.txt",
            "types and options of mounts at places of a fixed list",
            names.hide(&support.mounts),
        ),
        File::new(
            "cpu.txt",
            "model and features of the first CPU",
            names.hide(&support.cpu),
        ),
    ];
    for (name, load) in facts.loads.all() {
        if let Load::Refused(refused) = load {
            let text = format!("{}\n\n{}", refused.text, refused.messages);
            let what =
                "why the kernel refused these BPF programs, and what libbpf and the verifier said";
            let text = names.hide(&text);
            files.push(File::new(&format!("refused-{name}.txt"), what, text));
        }
    }
    Ok(files)
}

fn versions(facts: &Facts, support: &Support, names: &Names) -> String {
    let or = |text: &Option<String>| {
        text.as_deref()
            .map_or("-".to_string(), |text| names.hide(text))
    };
    let nvml = facts.driver.nvml.as_ref().ok();
    let cuda = nvml.and_then(|nvml| nvml.cuda);
    let cuda = cuda.map(|(major, minor)| format!("{major}.{minor}"));
    let module = facts.driver.module.clone();
    let driver = module.or_else(|| nvml?.version.clone());
    let mut text = format!(
        "gdiag: {} for {}\nkernel: {} {}\ndistribution: {}\nC library: {}\ndriver: {}\nCUDA of the driver: {}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        names.hide(&facts.kernel.release),
        facts.kernel.machine,
        names.hide(&support.system),
        or(&facts.place.libc),
        or(&driver),
        or(&cuda),
    );
    for library in &facts.libraries {
        text.push_str(&format!(
            "{}: {}\n",
            names.hide(&library.path.display().to_string()),
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
            names.add_home(Some(user.dir.as_os_str()));
        }
        names.add_home(std::env::var_os("HOME").as_deref());
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
        let tells = name.chars().filter(|c| is_of_word(*c)).count() >= 3;
        if tells && !COMMON.contains(&name) {
            self.0.push((name.to_string(), instead));
            // The longest first: one may be within another.
            self.0.sort_by_key(|(name, _)| Reverse(name.len()));
        }
    }

    /// One right below the root, such as /usr, is everybody's.
    fn add_home(&mut self, home: Option<&OsStr>) {
        let below = |home: &&OsStr| home.as_bytes().iter().filter(|b| **b == b'/').count() > 1;
        self.add(home.filter(below), "~");
    }

    /// Leaves these words alone.
    fn without(mut self, words: &BTreeSet<String>) -> Names {
        self.0
            .retain(|(name, _)| !words.contains(&name.to_lowercase()));
        self
    }

    /// Whole words only: a user may be called as a part of any.
    fn hide(&self, text: &str) -> String {
        let joins = |left: Option<char>, right: Option<char>| {
            left.is_some_and(is_of_word) && right.is_some_and(is_of_word)
        };
        let mut out = String::with_capacity(text.len());
        let mut before = None;
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            let found = self.0.iter().find(|(name, _)| {
                rest.strip_prefix(name.as_str()).is_some_and(|after| {
                    !joins(before, Some(next))
                        && !joins(name.chars().next_back(), after.chars().next())
                })
            });
            let length = match found {
                Some((name, instead)) => {
                    out.push_str(instead);
                    name.len()
                }
                None => {
                    out.push(next);
                    next.len_utf8()
                }
            };
            before = rest[..length].chars().next_back();
            rest = &rest[length..];
        }
        out
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The words that every document of the schema has: a name that is one of them tells nobody.
fn schema_words(json: &[u8]) -> BTreeSet<String> {
    fn add(text: &str, words: &mut BTreeSet<String>) {
        let text = text.to_lowercase();
        words.extend(text.split(|c: char| !c.is_alphanumeric()).map(String::from));
        words.insert(text);
    }
    fn walk(value: &Value, words: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    add(key, words);
                    match value {
                        Value::String(text)
                            if matches!(key.as_str(), "schema" | "id" | "status" | "what") =>
                        {
                            add(text, words);
                        }
                        value => walk(value, words),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, words)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut words = BTreeSet::new();
    [
        "true", "false", "null", "ok", "warning", "failure", "unknown",
    ]
    .iter()
    .for_each(|word| add(word, &mut words));
    walk(
        &serde_json::from_slice(json).unwrap_or(Value::Null),
        &mut words,
    );
    words
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

    use proptest::prelude::*;

    use super::*;
    use crate::checkup::tests::{good, good_process};
    use crate::collect::machine::Refused;

    #[test]
    fn the_manifest_names_every_file() {
        let mut facts = Facts::default();
        facts.loads.host = Load::Refused(Refused {
            text: "the kernel refused the BPF programs".to_string(),
            not_permitted: false,
            messages: "libbpf: prog 'x': BPF program load failed: /home/SECRET/y\n".to_string(),
        });
        let files = files(&facts, &Support::default(), Names::default()).unwrap();
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

    #[test]
    fn only_whole_words_are_hidden_and_only_once() {
        let mut names = Names::default();
        names.add(Some(OsStr::new("art")), "(user)");
        names.add(Some(OsStr::new("user")), "(domain)");
        names.add(Some(OsStr::new("al")), "(user)");
        names.add_home(Some(OsStr::new("/home/art")));
        names.add_home(Some(OsStr::new("/usr")));
        assert_eq!(
            names.hide("art, start art_1 (art) /home/art/x /home/arthur /usr al\u{e9}"),
            "(user), start art_1 ((user)) ~/x /home/arthur /usr al\u{e9}"
        );
    }

    /// The document of the bundle: keys, ids and all else that is no text about this machine.
    fn shape(names: Names) -> Vec<String> {
        fn walk(value: &Value, path: &str, out: &mut Vec<String>) {
            match value {
                Value::Object(fields) => fields
                    .iter()
                    .for_each(|(key, value)| walk(value, &format!("{path}.{key}"), out)),
                Value::Array(items) => items
                    .iter()
                    .enumerate()
                    .for_each(|(at, item)| walk(item, &format!("{path}.{at}"), out)),
                Value::String(_) if path.ends_with(".found") || path.ends_with(".remedy") => {
                    out.push(path.to_string());
                }
                other => out.push(format!("{path}={other}")),
            }
        }
        let facts = Facts {
            process: Some(good_process()),
            ..good()
        };
        let files = files(&facts, &Support::default(), names).unwrap();
        let json = files.iter().find(|file| file.name == "check.json").unwrap();
        let mut out = Vec::new();
        walk(&serde_json::from_str(&json.text).unwrap(), "", &mut out);
        out
    }

    fn named(name: &str) -> Names {
        let mut names = Names::default();
        names.add(Some(OsStr::new(name)), "(user)");
        names.add_home(Some(OsStr::new(&format!("/{name}/\"{name}"))));
        names
    }

    #[test]
    fn a_name_that_is_a_word_of_the_schema_changes_nothing() {
        let plain = shape(Names::default());
        assert!(plain.len() > 100);
        for name in [
            "true",
            "null",
            "host",
            "gpu",
            "found",
            "checks",
            "gdiag",
            "kernel.btf",
            "warning",
            "gdiag.check/1",
            "\": ",
            "\",\n",
            "\\",
            "the",
            "process",
        ] {
            assert_eq!(shape(named(name)), plain, "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_name_changes_the_shape_of_the_document(name in "[a-z\":,{}.\\\\ ]{1,6}|\\PC{0,12}") {
            prop_assert_eq!(shape(named(&name)), shape(Names::default()));
        }
    }
}

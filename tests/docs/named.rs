//! Command lines that are only named: in running text, in tables, and those that build or take minutes.
//!
//! They are not typed, but each has to be one that there is: `gdiag` must take the arguments, and targets, tests,
//! packages and scripts must exist. [`OTHERS`] lists the programs that are left to a person.

use std::fs;
use std::path::Path;

use clap::error::ErrorKind;
use clap::Parser as _;
use gdiag::cli::{Action, Cli};

use super::{commands_of_markdown, read};

/// Not ours, and why no test runs them as they stand.
const OTHERS: &[(&str, &str)] = &[
    ("clang-format", "`make lint` runs it"),
    ("git", "it fetches the repository"),
];

/// What stands for a value in a command that is a form.
const VALUES: &[(&str, &str)] = &[
    ("PID", "1"),
    ("TID", "1"),
    ("TID,TID", "1"),
    ("DUR", "1s"),
    ("T", "1s"),
    ("MS", "10"),
    ("ID", "9e4f"),
    ("N", "3"),
];

/// What is between backquotes outside of blocks.
pub fn spans_of_markdown(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            prose.push_str(line);
            prose.push(' ');
        }
    }
    let spans = prose.split('`').skip(1).step_by(2);
    spans.map(str::to_string).collect()
}

/// What is bold in a manual page, but for names of pages.
pub fn spans_of_page(text: &str) -> Vec<String> {
    let text = text
        .replace("\\-", "-")
        .replace("\\(aq", "'")
        .replace("\\*(Aq", "'");
    text.split("\\fB")
        .skip(1)
        .filter_map(|rest| rest.split_once("\\fR"))
        .filter(|(_, after)| !after.starts_with("(1)"))
        .map(|(span, _)| span.to_string())
        .collect()
}

/// Words as a shell sees them, without what it does with them.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Up to what is for the shell: redirections and the next program.
fn arguments(line: &str) -> Vec<String> {
    words(line)
        .into_iter()
        .take_while(|word| !["|", ">", "2>", "&", ";"].contains(&word.as_str()))
        .map(|word| {
            let value = VALUES.iter().find(|(name, _)| *name == word);
            value.map_or(word, |(_, value)| (*value).to_string())
        })
        .collect()
}

/// What gdiag makes of a line. `None`: it is a form, in which a target or a value is left out.
fn parse(document: &str, line: &str, arguments: &[String]) -> Option<Action> {
    match Cli::try_parse_from(arguments).and_then(Cli::into_action) {
        Ok(action) => Some(action),
        Err(e) => {
            let is_form = match e.kind() {
                ErrorKind::MissingRequiredArgument
                | ErrorKind::DisplayHelp
                | ErrorKind::DisplayVersion
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
                _ => e.to_string().contains("a value is required for"),
            };
            assert!(is_form, "{document}: {line}\n{e}");
            None
        }
    }
}

/// A whole command that does more than name a subcommand.
pub fn is_whole(document: &str, span: &str) -> bool {
    span.starts_with("gdiag ")
        && words(span).len() > 2
        && !VALUES
            .iter()
            .any(|(name, _)| words(span).iter().any(|word| word == name))
        && parse(document, span, &arguments(span)).is_some()
}

/// All that a line could refer to.
struct Repository {
    makefile: String,
    manifests: String,
    /// Where variables are looked up.
    sources: String,
}

impl Repository {
    fn new() -> Repository {
        let mut sources = read("Makefile");
        for directory in ["src", "tests", "cupti-shim", ".ci"] {
            gather(
                &Path::new(env!("CARGO_MANIFEST_DIR")).join(directory),
                &mut sources,
            );
        }
        let workspace = read("Cargo.toml");
        let members = workspace
            .lines()
            .find_map(|line| line.strip_prefix("members = "));
        let manifests = (members.unwrap().split('"').skip(1).step_by(2))
            .map(|member| read(&format!("{member}/Cargo.toml")))
            .collect();
        Repository {
            makefile: read("Makefile"),
            manifests,
            sources,
        }
    }

    /// False when the line is no command.
    fn check(&self, document: &str, line: &str) -> bool {
        let mut is_command = false;
        for part in line.split(" && ") {
            let mut words = arguments(part);
            while let Some((variable, _)) = words.first().and_then(|word| word.split_once('=')) {
                if variable.starts_with("GDIAG_") {
                    assert!(self.sources.contains(variable), "{document}: {line}");
                }
                words.remove(0);
            }
            if words.first().is_some_and(|word| word == "sudo") {
                words.remove(0);
            }
            let Some((program, rest)) = words.split_first() else {
                continue;
            };
            let script = |path: &String| {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
                assert!(path.is_file(), "{document}: {line}");
            };
            match program.as_str() {
                "gdiag" if !rest.is_empty() => drop(parse(document, line, &words)),
                "make" => {
                    let rules = self
                        .makefile
                        .lines()
                        .filter_map(|line| line.split_once(':'));
                    let known: Vec<&str> = rules.flat_map(|(names, _)| names.split(' ')).collect();
                    for target in rest.iter().filter(|word| !word.contains('=')) {
                        assert!(known.contains(&target.as_str()), "{document}: {line}");
                    }
                }
                "cargo" if !rest.is_empty() => self.check_cargo(document, line, rest),
                "python3" | "sh" if rest.first().is_some_and(|path| path.contains('/')) => {
                    script(&rest[0]);
                }
                path if path.starts_with("tests/") || path.starts_with("docs/runbooks/") => {
                    // A name alone may be that of a directory.
                    if rest.is_empty() {
                        return is_command;
                    }
                    script(program);
                }
                _ if OTHERS.iter().any(|(name, _)| name == program) => {}
                _ => return is_command,
            }
            is_command = true;
        }
        is_command
    }

    fn check_cargo(&self, document: &str, line: &str, words: &[String]) {
        let known = [
            "build", "check", "test", "run", "fmt", "clippy", "doc", "bench", "install", "update",
        ];
        assert!(known.contains(&words[0].as_str()), "{document}: {line}");
        for pair in words.windows(2) {
            let name = &pair[1];
            let declared = || self.manifests.contains(&format!("name = \"{name}\"\n"));
            let is_there = match pair[0].as_str() {
                "--test" => [format!("tests/{name}.rs"), format!("tests/{name}/main.rs")]
                    .iter()
                    .any(|path| Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists()),
                "-p" | "--package" | "--example" | "--bench" => declared(),
                "--" => break,
                _ => true,
            };
            assert!(is_there, "{document}: {line}: {name}");
        }
    }
}

fn gather(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            gather(&path, text);
        } else if path
            .extension()
            .is_some_and(|e| e == "rs" || e == "py" || e == "sh")
        {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

fn markdown(directory: &Path, names: &mut Vec<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let name = directory.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            markdown(&name, names);
        } else if name.extension().is_some_and(|e| e == "md") {
            names.push(name.display().to_string());
        }
    }
}

/// Every document for people, and the least number of commands in it.
fn documents() -> Vec<(String, usize)> {
    let mut documents: Vec<(String, usize)> = [
        ("README.md", 30),
        ("CONTRIBUTING.md", 60),
        ("BENCHMARKS.md", 20),
        ("CHANGELOG.md", 10),
        ("tests/data/README.md", 4),
        ("docs/coming-from-perf.md", 60),
    ]
    .map(|(name, least)| (name.to_string(), least))
    .to_vec();
    let mut found = Vec::new();
    markdown(Path::new("docs"), &mut found);
    let new = found
        .into_iter()
        .filter(|name| !documents.iter().any(|(known, _)| known == name));
    let new: Vec<String> = new.collect();
    documents.extend(new.into_iter().map(|name| (name, 0)));
    for name in super::PAGES {
        documents.push((format!("man/{name}"), 1));
    }
    documents
}

#[test]
fn every_command_that_is_named_is_one() {
    let repository = Repository::new();
    for (document, least) in documents() {
        let text = read(&document);
        let lines = if document.starts_with("man/") {
            spans_of_page(&text)
        } else {
            [commands_of_markdown(&text), spans_of_markdown(&text)].concat()
        };
        let commands = lines
            .iter()
            .filter(|line| repository.check(&document, line));
        let count = commands.count();
        assert!(count >= least, "{document}: {count}");
    }
}

#[test]
fn every_target_of_the_makefile_is_told_of() {
    let contributing = read("CONTRIBUTING.md");
    let makefile = read("Makefile");
    let targets: Vec<&str> = makefile
        .lines()
        .filter_map(|line| line.strip_prefix(".PHONY: "))
        .flat_map(|targets| targets.split(' '))
        .filter(|target| *target != "all")
        .collect();
    assert!(targets.len() > 10, "{targets:?}");
    for target in targets {
        assert!(
            contributing.contains(&format!("| `make {target}`"))
                || contributing.contains(&format!(", `make {target}` |")),
            "{target}"
        );
    }
}

#[test]
fn a_command_that_is_none_is_found() {
    let repository = Repository::new();
    for line in [
        "gdiag doctor",
        "gdiag report --colour",
        "gdiag record -d 10",
        "make everything",
        "cargo test --test nothing",
        "cargo run --example nothing",
        "python3 tests/gpu/nothing.py",
        // In two parts, or it would be found here.
        concat!("GDIAG_NO", "_SUCH_THING=1 make test"),
    ] {
        let found = std::panic::catch_unwind(|| repository.check("here", line));
        assert!(found.is_err(), "{line}");
    }
    for line in ["gdiag", "gdiag.data", "host.lock", "tests/scenarios/"] {
        assert!(!repository.check("here", line), "{line}");
    }
    assert!(is_whole("here", "gdiag top -- sh -c 'a > b'"));
    for form in [
        "gdiag record",
        "gdiag record -p PID",
        "gdiag report -i",
        "gdiag top",
    ] {
        assert!(!is_whole("here", form), "{form}");
    }
}

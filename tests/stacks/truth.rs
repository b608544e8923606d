//! What a program knows about its own stacks; tests/programs/stacks/truth.h says what it writes.

use std::path::Path;

use serde_json::Value;

/// A time during which one thread has one known chain of calls.
#[derive(Clone, Debug)]
pub struct Phase {
    pub name: String,
    pub tid: u32,
    /// It waits; else it runs.
    pub off: bool,
    pub start: u64,
    pub end: u64,
    /// CPU time of the thread in between.
    pub cpu: u64,
    /// Root first.
    pub chain: Vec<Call>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A frame of this function; it may be missing.
    Native { name: String, optional: bool },
    /// Frames in files, or of a standard library (`std`), whose names begin with one of these; at least so many.
    Foreign { files: Vec<String>, least: usize },
    /// Python: the function by either of its names, and the lines it may be at.
    Python {
        names: [String; 2],
        file: String,
        lines: (u32, u32),
    },
}

impl Call {
    fn of(value: &Value) -> Call {
        match value {
            Value::String(text) => Call::native(text),
            _ => Call::python(value),
        }
    }

    /// Of a program that is no script.
    pub fn native(text: &str) -> Call {
        let files = |list: &str| list.split('|').map(str::to_string).collect();
        if let Some(list) = text.strip_prefix('+') {
            Call::Foreign {
                files: files(list),
                least: 1,
            }
        } else if let Some(list) = text.strip_prefix('*') {
            Call::Foreign {
                files: files(list),
                least: 0,
            }
        } else {
            let optional = text.ends_with('?');
            Call::Native {
                name: text.trim_end_matches('?').to_string(),
                optional,
            }
        }
    }

    fn python(value: &Value) -> Call {
        let text = |i: usize| value[i].as_str().unwrap().to_string();
        let line = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
        let lines = match &value[3] {
            Value::Array(pair) => (line(&pair[0]), line(&pair[1])),
            one => (line(one), line(one)),
        };
        Call::Python {
            names: [text(0), text(1)],
            file: text(2),
            lines,
        }
    }
}

pub fn read(path: &Path) -> Vec<Phase> {
    let text = std::fs::read_to_string(path).unwrap();
    let phases = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let number = |key: &str| line[key].as_u64().unwrap();
        Phase {
            name: line["phase"].as_str().unwrap().to_string(),
            tid: u32::try_from(number("tid")).unwrap(),
            off: line["kind"] == "off",
            start: number("start_ns"),
            end: number("end_ns"),
            cpu: number("cpu_ns"),
            chain: line["chain"]
                .as_array()
                .unwrap()
                .iter()
                .map(Call::of)
                .collect(),
        }
    });
    phases.collect()
}

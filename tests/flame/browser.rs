//! A headless Chromium that opens a picture from its file and uses it as a person would.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Added to a copy of the picture: clicks, and leaves what it saw in the document.
const SCRIPT: &str = include_str!("use.js");

#[derive(Debug)]
pub struct Browser {
    program: PathBuf,
}

/// What the script saw. Times are in nanoseconds.
#[derive(Debug)]
pub struct Seen {
    pub total: u64,
    /// Time of each stack by its boxes: the width of the topmost less what stands on it.
    pub stacks: BTreeMap<String, u64>,
    /// Time under the boxes that the search marked, none counted twice.
    pub searched: u64,
    pub matched_text: String,
    /// Marks left after the search was reset.
    pub marks_left: u64,
    /// Every box at the base, clicked.
    pub zooms: Vec<Zoom>,
    /// Texts of the legend that run into what follows, or out of the picture.
    pub legend_overlaps: u64,
    pub names: Vec<String>,
}

#[derive(Debug)]
pub struct Zoom {
    pub name: String,
    pub time: u64,
    /// It is as wide as the picture, and its neighbours are hidden.
    pub fills: bool,
    /// All is as before after "Reset Zoom".
    pub resets: bool,
}

impl Browser {
    pub fn find() -> Option<Browser> {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path)
            .flat_map(|dir| ["chromium", "chromium-browser", "google-chrome"].map(|p| dir.join(p)))
            .find(|program| program.is_file())
            .map(|program| Browser { program })
    }

    /// Opens a copy of the picture, searches it and zooms into it.
    pub fn use_picture(&self, picture: &Path, search: &str) -> Seen {
        let svg = std::fs::read_to_string(picture).unwrap();
        let end = svg.rfind("</svg>").unwrap();
        let script = SCRIPT.replace("SEARCH", search);
        let copy = format!(
            "{}<script><![CDATA[{script}]]></script><metadata id=\"seen\">-</metadata>{}",
            &svg[..end],
            &svg[end..]
        );
        let page = picture.with_extension("test.svg");
        std::fs::write(&page, copy).unwrap();
        let profile = picture.with_extension("profile");
        let output = Command::new(&self.program)
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--virtual-time-budget=10000", "--window-size=1400,900"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("--dump-dom")
            .arg(format!("file://{}", page.display()))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let dom = String::from_utf8_lossy(&output.stdout);
        let seen = dom
            .split_once("<metadata id=\"seen\">")
            .and_then(|(_, rest)| rest.split_once("</metadata>"))
            .map_or("", |(seen, _)| seen);
        let json = percent_decode(seen);
        let value: Value = serde_json::from_str(&json).unwrap_or_else(|e| {
            panic!("{e}: '{json}' {}", String::from_utf8_lossy(&output.stderr))
        });
        assert_eq!(value["error"], Value::Null, "the script failed");
        Seen::of(&value)
    }
}

impl Seen {
    fn of(value: &Value) -> Seen {
        let number = |v: &Value| v.as_u64().unwrap_or_else(|| panic!("{v} is no time"));
        let text = |v: &Value| v.as_str().unwrap().to_string();
        let zooms = value["zooms"].as_array().unwrap().iter().map(|z| Zoom {
            name: text(&z["name"]),
            time: number(&z["time"]),
            fills: z["fills"].as_bool().unwrap(),
            resets: z["resets"].as_bool().unwrap(),
        });
        let stacks = value["stacks"].as_array().unwrap().iter();
        Seen {
            total: number(&value["total"]),
            stacks: stacks.map(|s| (text(&s[0]), number(&s[1]))).collect(),
            searched: number(&value["searched"]),
            matched_text: text(&value["matched_text"]),
            marks_left: number(&value["marks_left"]),
            zooms: zooms.collect(),
            legend_overlaps: number(&value["legend_overlaps"]),
            names: value["names"]
                .as_array()
                .unwrap()
                .iter()
                .map(text)
                .collect(),
        }
    }
}

/// What encodeURIComponent made.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let hex: Vec<u8> = rest.by_ref().take(2).collect();
            let hex = std::str::from_utf8(&hex).unwrap();
            bytes.push(u8::from_str_radix(hex, 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}

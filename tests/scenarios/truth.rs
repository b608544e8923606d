//! What was injected, and when: the lines that the programs under `tests/programs` write.

use serde_json::Value;

/// For `ns` of the time from `start` to `end`, CLOCK_MONOTONIC, the fault was in effect.
#[derive(Clone, Debug)]
pub struct Truth {
    pub case: String,
    pub cause: String,
    /// Which time that the case came; a fault can take effect many times in it.
    pub step: u64,
    pub device: u64,
    pub start: u64,
    pub end: u64,
    pub ns: u64,
    /// Causes that are as true, and not told apart by the truth.
    pub besides: Vec<String>,
}

impl Truth {
    pub fn on_device(&self) -> bool {
        on_device(&self.cause)
    }
}

pub fn on_device(cause: &str) -> bool {
    cause.starts_with("gpu.")
}

/// By start. What a program writes must hold for every report of it, so nonsense is a panic.
pub fn read(text: &str) -> Vec<Truth> {
    let mut truth: Vec<Truth> = text.lines().map(read_line).collect();
    truth.sort_by_key(|span| (span.device, span.start));
    for pair in truth.windows(2) {
        let apart = pair[0].device != pair[1].device || pair[0].end <= pair[1].start;
        assert!(apart, "two truths at once: {pair:?}");
    }
    truth
}

/// Its texts, if it is a list.
fn list(value: &Value) -> Vec<String> {
    let texts = value.as_array().into_iter().flatten();
    texts
        .filter_map(Value::as_str)
        .map(str::to_string)
        .collect()
}

fn read_line(line: &str) -> Truth {
    let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    let number = |key: &str| {
        let number = value[key].as_u64();
        number.unwrap_or_else(|| panic!("no {key}: {line}"))
    };
    let text = |key: &str| {
        let text = value[key].as_str();
        text.unwrap_or_else(|| panic!("no {key}: {line}"))
            .to_string()
    };
    let truth = Truth {
        case: text("case"),
        cause: text("cause"),
        step: number("step"),
        device: value["device"].as_u64().unwrap_or(0),
        start: number("start_ns"),
        end: number("end_ns"),
        ns: number("ns"),
        besides: list(&value["besides"]),
    };
    assert!(
        truth.start < truth.end && truth.ns <= truth.end - truth.start,
        "impossible: {line}"
    );
    truth
}

//! What the driver says of a GPU, for the JSON lines of `gdiag top`. Keys are public, as in [`json`](super::json).
#![forbid(unsafe_code)]

use serde::Serialize;

use crate::event::Pid;
use crate::facts::GpuFacts;
use crate::units::Bytes;

#[derive(Serialize)]
pub(super) struct FactsDoc<'a> {
    index: u32,
    uuid: Option<&'a str>,
    name: Option<&'a str>,
    at_ns: u64,
    note: Option<&'a str>,
    utilization_percent: Option<u32>,
    memory_utilization_percent: Option<u32>,
    memory_used_bytes: Option<u64>,
    memory_total_bytes: Option<u64>,
    power_watts: Option<f64>,
    power_limit_watts: Option<f64>,
    temperature_celsius: Option<u32>,
    sm_clock_mhz: Option<u32>,
    sm_clock_max_mhz: Option<u32>,
    memory_clock_mhz: Option<u32>,
    throttle: Option<&'a [String]>,
    processes: Option<Vec<ProcessDoc>>,
}

#[derive(Serialize)]
struct ProcessDoc {
    pid: Pid,
    memory_bytes: Option<u64>,
}

impl<'a> FactsDoc<'a> {
    pub(super) fn new(facts: &'a GpuFacts) -> Self {
        let known = |text: &'a String| Some(text.as_str()).filter(|text| !text.is_empty());
        let bytes = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0);
        let processes = facts.processes.as_ref().map(|list| {
            let docs = list.iter().map(|&(pid, memory)| ProcessDoc {
                pid,
                memory_bytes: bytes(memory),
            });
            docs.collect()
        });
        FactsDoc {
            index: facts.index,
            uuid: known(&facts.uuid),
            name: known(&facts.name),
            at_ns: facts.at.as_u64(),
            note: facts.note.as_deref(),
            utilization_percent: facts.utilization,
            memory_utilization_percent: facts.memory_utilization,
            memory_used_bytes: bytes(facts.memory_used),
            memory_total_bytes: bytes(facts.memory_total),
            power_watts: facts.power_watts,
            power_limit_watts: facts.power_limit_watts,
            temperature_celsius: facts.temperature_celsius,
            sm_clock_mhz: facts.sm_clock_mhz,
            sm_clock_max_mhz: facts.sm_clock_max_mhz,
            memory_clock_mhz: facts.memory_clock_mhz,
            throttle: facts.throttle.as_deref(),
            processes,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, Value};

    use super::*;
    use crate::units::Nanos;

    #[test]
    fn what_is_not_told_is_null_and_what_is_told_has_its_unit() {
        let facts = GpuFacts {
            index: 1,
            at: Nanos(5),
            note: Some("MIG".to_string()),
            power_watts: Some(212.5),
            throttle: Some(Vec::new()),
            processes: Some(vec![(Pid(7), None)]),
            ..GpuFacts::default()
        };
        let doc = serde_json::to_value(FactsDoc::new(&facts)).unwrap();
        assert_eq!(doc["power_watts"], json!(212.5));
        assert_eq!(doc["throttle"], json!([]));
        assert_eq!(doc["processes"], json!([{"pid": 7, "memory_bytes": null}]));
        let told = [
            "index",
            "at_ns",
            "note",
            "power_watts",
            "throttle",
            "processes",
        ];
        for (key, value) in doc.as_object().unwrap() {
            assert_eq!(
                *value == Value::Null,
                !told.contains(&key.as_str()),
                "{key}"
            );
        }
    }
}

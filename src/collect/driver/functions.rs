//! Which functions of a driver get a probe, and where in its file they are.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::io;

use gdiag_shim_layout::api;

use crate::collect::elf::Elf;

/// Callback id and symbol of each function of the driver that a call in the table can go through.
fn symbols() -> Vec<(u32, String)> {
    // In the order of a row's callback ids. Graphs were captured by another function at first.
    const VARIANTS: [&[&str]; 4] = [&[""], &["_ptsz", "_ptds"], &["_v2"], &["_v2_ptsz"]];
    let mut symbols = Vec::new();
    for (name, cbids) in api::driver_calls() {
        for (&cbid, suffixes) in cbids.iter().zip(VARIANTS) {
            symbols.extend(
                suffixes
                    .iter()
                    .map(|suffix| (cbid, format!("{name}{suffix}"))),
            );
        }
    }
    symbols
}

/// Offset in the file and callback id of every function that the driver has. Where two names are one
/// function, it gets one probe.
pub(super) fn find(driver: &Elf) -> io::Result<Vec<(u64, u32)>> {
    let wanted: HashMap<Vec<u8>, (usize, u32)> = (0..)
        .zip(symbols())
        .map(|(order, (cbid, name))| (name.into_bytes(), (order, cbid)))
        .collect();
    let mut found: BTreeMap<u64, (usize, u32)> = BTreeMap::new();
    driver.symbols(|name, address, _| {
        let Some(&function) = wanted.get(name) else {
            return;
        };
        if let Some(offset) = driver.offset_of(address) {
            let first = found.entry(offset).or_insert(function);
            *first = function.min(*first);
        }
    })?;
    Ok(found
        .into_iter()
        .map(|(offset, (_, cbid))| (offset, cbid))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_call_of_the_driver_has_its_functions() {
        let symbols = symbols();
        let cbid = |name: &str| symbols.iter().find(|s| s.1 == name).map(|s| s.0);
        for (name, id) in [
            ("cuLaunchKernel", 307),
            ("cuLaunchKernel_ptsz", 442),
            ("cuMemcpyHtoD_v2", 276),
            ("cuMemcpyHtoD_v2_ptds", 397),
            ("cuStreamSynchronize_ptsz", 440),
            ("cuCtxSynchronize", 17),
            ("cuStreamBeginCapture", 495),
            ("cuStreamBeginCapture_v2_ptsz", 540),
            ("cuMemAlloc_v2", 243),
        ] {
            assert_eq!(cbid(name), Some(id), "{name}");
        }
        let rows: HashSet<u32> = api::driver_calls().flat_map(|(_, c)| c).copied().collect();
        let covered: HashSet<u32> = symbols.iter().map(|s| s.0).collect();
        assert_eq!(covered, rows);
        let names: HashSet<&String> = symbols.iter().map(|s| &s.1).collect();
        assert_eq!(names.len(), symbols.len(), "one name, one function");
    }
}

//! Whether a stack is the known chain.

use crate::names;
use crate::recording::Place;
use crate::truth::Call;

/// The functions in which threads begin, and the files that hold them where these have no names.
const FIRST: [&str; 5] = ["_start", "clone", "__clone", "clone3", "__clone3"];
const FIRST_FILES: [&str; 2] = ["libc.so", "ld-linux"];

/// Whether the first frame is where a thread begins.
pub fn begins_at_a_root(places: &[Place]) -> bool {
    match places.first() {
        Some(Place::Native { name, module, .. }) => {
            FIRST.contains(&name.as_str())
                || (name.is_empty() && FIRST_FILES.iter().any(|file| module.starts_with(file)))
        }
        _ => false,
    }
}

/// Whether the places from the first call of the chain on are the chain. What is before is the
/// runtime's that calls main, or the function of a thread.
pub fn is_equal(places: &[Place], chain: &[Call]) -> bool {
    if chain.iter().any(|call| matches!(call, Call::Python { .. })) {
        return is_equal_in_python(places, chain);
    }
    let is_first = |place: &Place| {
        chain
            .iter()
            .take_while(|call| may_be_absent(call))
            .any(|call| is(place, call))
            || chain
                .iter()
                .find(|call| !may_be_absent(call))
                .is_some_and(|call| is(place, call))
    };
    let starts = places
        .iter()
        .enumerate()
        .filter(|(_, place)| is_first(place));
    // The runtime of a language may have frames that an optional call at the start allows as well.
    let mut starts = starts.map(|(at, _)| at).take(12);
    starts.any(|at| at <= 12 && matches_from(&places[at..], chain))
}

fn may_be_absent(call: &Call) -> bool {
    match call {
        Call::Native { optional, .. } => *optional,
        Call::Foreign { least, .. } => *least == 0,
        Call::Python { .. } => false,
    }
}

fn matches_from(places: &[Place], chain: &[Call]) -> bool {
    let Some((call, rest)) = chain.split_first() else {
        return places.is_empty();
    };
    let here = places.first().is_some_and(|place| is(place, call));
    match call {
        Call::Native { optional, .. } => {
            (here && matches_from(&places[1..], rest)) || (*optional && matches_from(places, rest))
        }
        Call::Foreign { least, .. } => {
            let most = places.iter().take_while(|place| is(place, call)).count();
            (*least..=most).any(|n| matches_from(&places[n..], rest))
        }
        Call::Python { .. } => here && matches_from(&places[1..], rest),
    }
}

fn is(place: &Place, call: &Call) -> bool {
    match (place, call) {
        (Place::Native { name, .. }, Call::Native { name: known, .. }) => {
            // Debug information has some names without the namespace.
            name == known || (!name.contains("::") && known.rsplit("::").next() == Some(name))
        }
        (
            Place::Native {
                mangled, module, ..
            },
            Call::Foreign { files, .. },
        ) => files.iter().any(|file| match file.as_str() {
            "std" => names::of_std(mangled),
            file => module.starts_with(file),
        }),
        (
            Place::Python { name, file, line },
            Call::Python {
                names,
                file: known,
                lines,
            },
        ) => names.contains(name) && file == known && (lines.0..=lines.1).contains(line),
        _ => false,
    }
}

/// The frames of Python are known; the interpreter's own, between them, are not.
fn is_equal_in_python(places: &[Place], chain: &[Call]) -> bool {
    let python: Vec<&Place> = places
        .iter()
        .filter(|place| matches!(place, Place::Python { .. }))
        .collect();
    python.len() == chain.len()
        && python
            .iter()
            .zip(chain)
            .all(|(place, call)| is(place, call))
}

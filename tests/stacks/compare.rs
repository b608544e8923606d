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

/// Whether the places are the chain, above the frames of the runtime that calls main or the
/// function of a thread.
pub fn is_equal(places: &[Place], chain: &[Call]) -> bool {
    if chain.iter().any(|call| matches!(call, Call::Python { .. })) {
        return is_equal_in_python(places, chain);
    }
    let runtime = places.iter().take_while(|place| is_of_runtime(place));
    let runtime = runtime.count();
    (0..=runtime).any(|first| matches_from(&places[first..], chain))
}

/// `main` is the one that the compiler makes for Rust's.
fn is_of_runtime(place: &Place) -> bool {
    const FILES: [&str; 4] = ["std", "libc.so", "ld-linux", "libstdc++.so"];
    match place {
        Place::Native { name, .. } if name == "main" || name == "_start" => true,
        place => FILES.iter().any(|file| is_foreign(place, file)),
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
            // Debug information has names of inlined functions without the namespace.
            name == known || (!name.contains("::") && known.rsplit("::").next() == Some(name))
        }
        (place, Call::Foreign { files, .. }) => files.iter().any(|file| is_foreign(place, file)),
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

fn is_foreign(place: &Place, file: &str) -> bool {
    match place {
        Place::Native {
            name,
            mangled,
            module,
            ..
        } => match file {
            "std" => names::of_std(mangled),
            // A stub by which a call leaves the file.
            "plt" => name.is_empty() || name.ends_with("@plt"),
            file => module.starts_with(file),
        },
        Place::Anonymous(_) | Place::Python { .. } => false,
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

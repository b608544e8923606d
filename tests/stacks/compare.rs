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

/// The frames of Python are known; the interpreter's own, between them, are not, but for the loop
/// that runs them, in whose place they are.
fn is_equal_in_python(places: &[Place], chain: &[Call]) -> bool {
    const LOOP: &str = "_PyEval_EvalFrameDefault";
    let (mut python, mut loops) = (Vec::new(), 0);
    for place in places {
        match place {
            Place::Python { .. } => python.push(place),
            Place::Native { name, .. } => loops += usize::from(name == LOOP),
            Place::Anonymous(_) => {}
        }
    }
    loops == 0
        && python.len() == chain.len()
        && python
            .iter()
            .zip(chain)
            .all(|(place, call)| is(place, call))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(name: &str, module: &str) -> Place {
        Place::Native {
            mangled: name.to_string(),
            name: name.to_string(),
            module: module.to_string(),
            address: 0,
        }
    }

    /// A stack of functions of the program, but for `_start` and those of libc, in brackets.
    fn stack(names: &str) -> Vec<Place> {
        let place = |name: &str| match name.strip_prefix('[') {
            Some(libc) => native(libc.trim_end_matches(']'), "libc.so.6"),
            None => native(name, "program"),
        };
        names.split(' ').map(place).collect()
    }

    fn chain(calls: &str) -> Vec<Call> {
        calls.split(' ').map(Call::native).collect()
    }

    #[test]
    fn a_stack_is_equal_only_with_every_frame_in_its_place() {
        let known = chain("main f f leaf spin now?");
        for (names, equal) in [
            ("_start [start] main f f leaf spin", true),
            ("_start [start] main f f leaf spin now", true),
            ("main f f leaf spin", true),
            ("_start main f leaf spin", false),
            ("_start main f f f leaf spin", false),
            ("_start main f f leaf", false),
            ("_start main f f leaf spin now now", false),
            ("_start main f f leaf spin other", false),
            ("_start main f other f leaf spin", false),
            ("_start other main f f leaf spin", false),
            ("leaf spin", false),
        ] {
            assert_eq!(is_equal(&stack(names), &known), equal, "{names}");
        }
    }

    #[test]
    fn frames_of_a_library_are_equal_only_where_they_are_known() {
        let known = chain("main +libc.so f *libc.so");
        for (names, equal) in [
            ("main [qsort] f", true),
            ("main [qsort] [] f [clock_gettime]", true),
            ("main f", false),
            ("main [qsort] other f", false),
            ("main [qsort] f other", false),
        ] {
            assert_eq!(is_equal(&stack(names), &known), equal, "{names}");
        }
    }

    #[test]
    fn python_is_equal_only_with_its_lines_and_without_the_loop() {
        let call = |name: &str, lines| Call::Python {
            names: [name.to_string(), format!("Class.{name}")],
            file: "a.py".to_string(),
            lines,
        };
        let place = |name: &str, line| Place::Python {
            name: name.to_string(),
            file: "a.py".to_string(),
            line,
        };
        let known = [call("f", (3, 3)), call("leaf", (7, 9))];
        let between = || native("sorted", "python3");
        let good = [place("Class.f", 3), between(), place("leaf", 8)];
        assert!(is_equal(&good, &known));
        assert!(!is_equal(&[place("f", 4), place("leaf", 8)], &known));
        assert!(!is_equal(&[place("f", 3), place("leaf", 10)], &known));
        assert!(!is_equal(&[place("leaf", 8)], &known));
        let with_loop = native("_PyEval_EvalFrameDefault", "python3");
        assert!(!is_equal(
            &[place("f", 3), with_loop, place("leaf", 8)],
            &known
        ));
    }
}

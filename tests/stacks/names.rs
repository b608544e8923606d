//! Names of functions as the truth spells them: `chains::Derived::work_on`, whatever the compiler added.

/// Without parameters, template arguments, return type, numbers of clones and lambdas.
pub fn plain(mangled: &str) -> String {
    let full = gdiag::demangle::full(mangled);
    simplified(&full)
}

/// Of libstdc++, as debug information names them where they are inlined.
const INLINED_STD: [&str; 6] = [
    "_M_invoke",
    "__gthread_once",
    "__invoke_r",
    "__invoke_impl",
    "wait_for",
    "wait_until",
];

const STD: [&str; 7] = [
    "std::",
    "core::",
    "alloc::",
    "__gnu_cxx::",
    "__cxxabi",
    "__rust",
    "rust_",
];

/// Whether the function is of a standard library, though its code may be in the program.
pub fn of_std(mangled: &str) -> bool {
    if INLINED_STD.iter().any(|name| mangled.starts_with(name)) {
        return true;
    }
    let full = gdiag::demangle::full(mangled);
    let plain = simplified(&full);
    let own = |name: &str| STD.iter().any(|std| name.starts_with(std));
    // Of Rust, also what a type of the program or a pointer to one has by a trait of the library.
    let of_trait = full.starts_with('<') && full.split(" as ").skip(1).any(own);
    own(plain.trim_start_matches(['<', '&', '(', '*'])) || of_trait
}

fn simplified(full: &str) -> String {
    // The name of the operator would be taken for parameters.
    const CALL: &str = "operator\u{1}";
    let text = full.split(" [clone ").next().unwrap_or(full);
    let text = text
        .replace("operator()", CALL)
        .replace("::operator<", "::operator\u{2}");
    let text = text
        .strip_prefix('<')
        .map_or(text.clone(), |rest| of_self_type(rest, &text));
    let mut out = String::new();
    let mut depth = 0;
    for c in text.chars() {
        match c {
            '<' | '(' => depth += 1,
            '>' | ')' if depth > 0 => depth -= 1,
            _ if depth == 0 => out.push(c),
            _ => {}
        }
    }
    let out = out.trim_end_matches(" const").replace("::::", "::");
    let out = out.rsplit(' ').next().unwrap_or_default();
    let out = match out.split_once("{lambda#") {
        Some((before, rest)) => {
            let after = rest.split_once('}').map_or("", |(_, after)| after);
            format!("{before}{{lambda}}{after}")
        }
        None => out.to_string(),
    };
    // A part of a function that the compiler moved or specialised.
    let out = out.split('.').next().unwrap_or_default();
    out.trim_end_matches("::")
        .replace('\u{1}', "()")
        .replace('\u{2}', "<")
}

/// `A as B>::f` of Rust's `<A as B>::f`, as `A::f`.
fn of_self_type(rest: &str, whole: &str) -> String {
    let mut depth = 1;
    let mut end_of_type = None;
    for (at, c) in rest.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if !rest[..at].ends_with('-') => depth -= 1,
            ' ' if depth == 1 && rest[at..].starts_with(" as ") => end_of_type = Some(at),
            _ => {}
        }
        if depth == 0 {
            let own = &rest[..end_of_type.unwrap_or(at)];
            return format!("{own}{}", &rest[at + 1..]);
        }
    }
    whole.to_string()
}

#[test]
fn names_of_all_languages_become_plain() {
    for (full, plain) in [
        ("leaf", "leaf"),
        ("chains::catches(truth*) [clone .cold]", "chains::catches"),
        ("leaf.constprop.0", "leaf"),
        ("chains::function_object(truth*)::{lambda(truth*)#1}::operator()(truth*) const", "chains::function_object::{lambda}::operator()"),
        ("void chains::apply<chains::templates(truth*)::{lambda(truth*)#1}>(truth*, chains::templates(truth*)::{lambda(truth*)#1}, int)", "chains::apply"),
        ("chains::Key::operator<(chains::Key const&) const", "chains::Key::operator<"),
        ("<chains::Guard as core::ops::drop::Drop>::drop", "chains::Guard::drop"),
        ("chains::apply::<chains::generics::{closure#0}>", "chains::apply"),
        ("chains::closures::{{closure}}", "chains::closures::{{closure}}"),
    ] {
        assert_eq!(simplified(full), plain);
    }
}

//! Which calls are wanted, by their names.
#![forbid(unsafe_code)]

use crate::model::syscall::Table;

/// As `--filter` has it: names, with `*` for anything; with a `!` in front they are left out.
/// What is wrong with it is for a person.
pub(super) fn wanted(filter: &[String], table: Table, numbers: usize) -> Result<Vec<bool>, String> {
    // As perf has it, one ! is for all that follow.
    let names: Vec<(bool, &str)> = filter
        .iter()
        .map(|name| name.trim())
        .scan(false, |without, name| {
            let plain = name.strip_prefix('!');
            *without |= plain.is_some();
            Some((*without, plain.unwrap_or(name)))
        })
        .collect();
    let only = names.iter().any(|(without, _)| !without);
    let mut wanted = vec![!only; numbers];
    for (without, name) in names {
        let mut found = false;
        for (number, call) in table.calls() {
            if matches(name, call) {
                found = true;
                if let Some(wanted) = wanted.get_mut(usize::from(number)) {
                    *wanted = !without;
                }
            }
        }
        if !found {
            return Err(unknown(name, table));
        }
    }
    Ok(wanted)
}

/// Whether a name is one of a pattern, in which `*` stands for anything.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn unknown(name: &str, table: Table) -> String {
    if name.contains('*') {
        return format!("no system call of this machine has a name like '{name}'");
    }
    let similar = table
        .calls()
        .map(|(_, call)| (strsim::jaro_winkler(name, call), call))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match similar {
        Some((score, call)) if score > 0.7 => {
            format!("this machine has no system call '{name}'; there is '{call}'")
        }
        _ => format!("this machine has no system call '{name}'"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(filter: &[&str]) -> Result<Vec<&'static str>, String> {
        let table = Table::of_machine("x86_64");
        let filter: Vec<String> = filter.iter().map(ToString::to_string).collect();
        let wanted = wanted(&filter, table, 512)?;
        let calls = table.calls().filter(|(n, _)| wanted[usize::from(*n)]);
        Ok(calls.map(|(_, name)| name).collect())
    }

    #[test]
    fn names_and_globs_choose() {
        assert_eq!(names(&["openat", "close"]).unwrap(), ["close", "openat"]);
        let epoll = names(&["epoll_*wait*"]).unwrap();
        assert_eq!(epoll.len(), 4, "{epoll:?}");
        assert!(epoll.iter().all(|name| name.starts_with("epoll_")));
    }

    #[test]
    fn an_exclamation_mark_leaves_out() {
        let all = Table::of_machine("x86_64").calls().count();
        assert_eq!(names(&[]).unwrap().len(), all);
        // As with perf, it is for all that follow.
        assert_eq!(names(&["!futex", "poll"]).unwrap().len(), all - 2);
        let some = names(&["epoll_*", "!epoll_ctl*"]).unwrap();
        assert!(!some.contains(&"epoll_ctl") && some.contains(&"epoll_wait"));
    }

    #[test]
    fn what_is_no_call_is_said_with_what_it_may_be() {
        let of = |name| names(&[name]).unwrap_err();
        assert!(of("opneat").contains("'openat'"), "{}", of("opneat"));
        assert!(of("zzz*").contains("like 'zzz*'"));
        assert!(names(&[""]).is_err());
    }

    #[test]
    fn a_pattern_is_of_the_whole_name() {
        for (pattern, name, is) in [
            ("read", "read", true),
            ("read", "readv", false),
            ("read*", "readv", true),
            ("*read", "pread", true),
            ("*", "", true),
            ("a*a", "a", false),
            ("p*ad*", "pread64", true),
            ("p*zz*4", "pread64", false),
        ] {
            assert_eq!(matches(pattern, name), is, "{pattern} {name}");
        }
    }

    proptest! {
        /// Check that no pattern panics, and that each is its own.
        #[test]
        fn any_pattern_is_taken(pattern in ".{0,12}", name in ".{0,12}") {
            matches(&pattern, &name);
            prop_assert!(matches(&name.replace('*', ""), &name.replace('*', "")));
        }
    }
}

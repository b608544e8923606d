//! Names of functions as people write them.
//!
//! Recordings keep what the compiler made. Text shows the name without its return type and
//! parameters, cut where it must be; JSON has the whole demangled declaration of a kernel.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};

/// Short mangled names can stand for astronomically long ones; beyond this they stay mangled.
const MAX_LEN: usize = 1 << 16;

/// The whole declaration; `name` itself when it is not a mangled name of C++ or Rust.
pub fn full(name: &str) -> Cow<'_, str> {
    demangle(name, &DemangleOptions::new())
}

/// The name with its template arguments, without return type and parameters.
pub fn short(name: &str) -> Cow<'_, str> {
    demangle(
        name,
        &DemangleOptions::new()
            .no_params()
            .no_return_type()
            .hide_expression_literal_types(),
    )
}

fn demangle<'a>(name: &'a str, options: &DemangleOptions) -> Cow<'a, str> {
    // A name of old Rust is one of C++, too; only its own demangler knows the hash at the end.
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let mut out = Bounded(String::new());
        return match write!(out, "{rust:#}") {
            Ok(()) => Cow::Owned(out.0),
            Err(fmt::Error) => Cow::Borrowed(name),
        };
    }
    if !name.starts_with("_Z") {
        return Cow::Borrowed(name);
    }
    let Ok(symbol) = Symbol::new(name) else {
        return Cow::Borrowed(name);
    };
    let mut out = Bounded(String::new());
    match symbol.structured_demangle(&mut out, options) {
        Ok(()) if !out.0.is_empty() => Cow::Owned(out.0),
        _ => Cow::Borrowed(name),
    }
}

struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_LEN {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILL: &str =
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_";

    #[test]
    fn kernel_names_are_demangled() {
        assert_eq!(
            full(FILL),
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, \
             std::array<char*, (unsigned long)1> >(int, at::native::FillFunctor<float>, std::array<char*, (unsigned long)1>)"
        );
        assert_eq!(
            short(FILL),
            "at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1> >"
        );
    }

    #[test]
    fn names_of_rust_lose_their_hash() {
        for (mangled, name) in [
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
        ] {
            assert_eq!(short(mangled), name);
        }
    }

    #[test]
    fn what_is_not_mangled_stays() {
        for name in [
            "ampere_sgemm_128x64_nn",
            "",
            "_Z",
            "_Znonsense",
            "_ZN9999abcE",
            "HtoD 4.0 MiB",
            "x\x1by",
        ] {
            assert_eq!(full(name), name);
            assert_eq!(short(name), name);
        }
    }

    #[test]
    fn a_name_that_would_explode_stays_mangled() {
        // Each parameter names the one before it twice.
        let doubling = |depth: usize| {
            let mut name = "_Z1f1a2ttIS_S_E".to_string();
            for previous in "123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ".chars().take(depth) {
                name.push_str(&format!("S0_IS{previous}_S{previous}_E"));
            }
            name
        };
        assert_eq!(
            full(&doubling(1)),
            "f(a, tt<a, a>, tt<tt<a, a>, tt<a, a> >)"
        );
        let explosive = doubling(35);
        assert_eq!(full(&explosive), explosive.as_str());
    }

    #[test]
    fn a_very_long_name_is_kept_whole() {
        let name = "k".repeat(20_000);
        assert_eq!(full(&name), name.as_str());
        let mangled = format!("_Z20000{name}v");
        assert_eq!(short(&mangled), name.as_str());
    }

    #[test]
    fn deep_nesting_does_not_exhaust_the_stack() {
        let name = format!("_Z1f{}v", "P".repeat(20_000));
        let name = format!("{name}{}", "St4pairI".repeat(20_000));
        assert_eq!(full(&name), name.as_str());
    }

    proptest! {
        /// Check that no name, however broken, does more than stay as it is.
        #[test]
        fn any_name_is_shown(tail in "[0-9A-Z_a-z]{0,60}", other in any::<String>()) {
            for name in [format!("_Z{tail}"), format!("_ZN{tail}E"), format!("_R{tail}"), other] {
                prop_assert!(full(&name).len() <= MAX_LEN);
                prop_assert!(short(&name).len() <= MAX_LEN);
            }
        }
    }
}

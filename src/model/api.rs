//! What the calls of the CUDA API mean for idle time, from the table that the shim records by.
#![forbid(unsafe_code)]

use std::borrow::Cow;

use gdiag_shim_layout::api::{lookup, Domain};

pub use gdiag_shim_layout::api::Class;

use crate::event::{Api, ApiDomain};

fn domain(api: Api) -> Domain {
    match api.domain {
        ApiDomain::Runtime => Domain::Runtime,
        ApiDomain::Driver => Domain::Driver,
    }
}

/// What the call does; a call outside the table is [`Class::Other`].
pub fn class(api: Api) -> Class {
    lookup(domain(api), api.cbid).map_or(Class::Other, |info| info.class)
}

/// The name in the source of the program that calls it.
pub fn name(api: Api) -> Cow<'static, str> {
    match (lookup(domain(api), api.cbid), api.domain) {
        (Some(info), _) => Cow::Borrowed(info.name),
        (None, ApiDomain::Runtime) => Cow::Owned(format!("CUDA runtime call {}", api.cbid)),
        (None, ApiDomain::Driver) => Cow::Owned(format!("CUDA driver call {}", api.cbid)),
    }
}

/// Does the call put an operation on the device, one that must come back as a record?
/// Copies and memsets are left out: of no bytes, or from host to host, they start nothing.
pub fn starts_kernels(class: Class) -> bool {
    matches!(class, Class::Launch | Class::GraphLaunch)
}

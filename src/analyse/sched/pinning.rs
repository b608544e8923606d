//! Are the threads that matter where they should be?
#![forbid(unsafe_code)]

use super::{Summary, Who};

/// What is to be said of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub who: Who,
    pub says: String,
    pub evidence: Vec<String>,
    pub remedy: Option<String>,
}

pub fn judge(_summary: &Summary) -> Vec<Verdict> {
    Vec::new()
}

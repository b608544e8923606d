//! What is decided, of facts that are made up.
use super::*;

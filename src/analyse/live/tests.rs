//! Slices against the report of the whole.

//! The ring protocol. (Being written.)

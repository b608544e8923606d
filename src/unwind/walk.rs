//! A walk from frame to frame, as the BPF program does it. Only tests run this one.
#![forbid(unsafe_code)]

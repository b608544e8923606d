mod skel { include!(concat!(env!("OUT_DIR"), "/sched.skel.rs")); }

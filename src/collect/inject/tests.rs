//! A real process is made to load the real shim.

use std::fs;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::*;

/// A program that waits, killed at the end.
struct Sleeper(Child);

impl Sleeper {
    fn start(program: &str, args: &[&str]) -> Sleeper {
        let child = Command::new(program)
            .args(args)
            .spawn()
            .expect("a program that waits");
        let sleeper = Sleeper(child);
        // Until it waits: a program that is being loaded does other things.
        let deadline = Instant::now() + Duration::from_secs(10);
        while waits::find(sleeper.pid(), 1).is_empty() {
            assert!(Instant::now() < deadline, "{program} does not wait");
            sleep(Duration::from_millis(1));
        }
        sleeper
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn has(&self, what: &str) -> bool {
        fs::read_to_string(format!("/proc/{}/maps", self.pid())).is_ok_and(|m| m.contains(what))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_of_us_do_not_inject_at_once() {
    let own = std::process::id();
    let first = alone(own).unwrap();
    assert_eq!(alone(own).unwrap_err(), Failure::AnotherGdiag);
    drop(first);
    assert!(alone(own).is_ok());
    assert_eq!(alone(u32::MAX).unwrap_err(), Failure::Gone);
}

#[test]
fn a_process_that_waits_loads_the_shim_and_waits_on() {
    let sleeper = Sleeper::start("sleep", &["1000"]);
    let injected = match inject(sleeper.pid()) {
        Ok(injected) => injected,
        Err(Failure::Refused(e)) => {
            println!("skipped: ptrace is not allowed ({e})");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    assert_eq!(injected.through, Tid(sleeper.pid()));
    assert!(sleeper.has("/memfd:gdiag-shim"));
    assert!(sleeper.has("/memfd:libgdiag_cupti.so"));
    let status = waits::status(sleeper.pid(), Tid(sleeper.pid())).unwrap();
    assert_eq!((status.state, status.tracer), (b'S', 0));
    println!("{injected:?}");
}

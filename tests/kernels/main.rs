//! gdiag on other kernels than this one: each boots in a virtual machine, and in it everything that takes BPF
//! is done once, against programs that know what they did. `make kernels`.
//!
//! `GDIAG_KERNELS="trixie-backports /boot/vmlinuz-5.15"` takes these kernels instead: suites of Debian, or files.
#![cfg(target_arch = "x86_64")]
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

mod machine;

use machine::{Done, Step};
use serde_json::Value;

/// Debian's stable release and the one before.
const KERNELS: [&str; 2] = ["bookworm", "trixie"];

/// The status of what this kernel cannot do.
const CANNOT: i32 = 77;

/// What a kernel may lack, and when it came. Everything else works on all of them.
const MISSING: [&str; 2] = [
    "user stacks (BPF programs cannot loop before Linux 5.17)",
    "tracepoint sched_exit_tp, so waits have no user stack", // 6.16
];

#[test]
fn everything_works_on_the_kernels_of_debian() {
    let required =
        std::env::var("GDIAG_REQUIRE").is_ok_and(|list| list.split(',').any(|n| n == "kernels"));
    // It downloads kernels: nobody's tests do that unasked.
    if !required {
        eprintln!("skipped: `make kernels` runs this");
        return;
    }
    if let Some(missing) = machine::missing() {
        panic!("GDIAG_REQUIRE=kernels, but {missing}");
    }
    let asked = std::env::var("GDIAG_KERNELS").unwrap_or_default();
    let mut kernels: Vec<String> = asked.split_whitespace().map(str::to_string).collect();
    if kernels.is_empty() {
        kernels = KERNELS.map(str::to_string).to_vec();
    }
    let mut wrong = Vec::new();
    // Software emulation takes one CPU of this machine.
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    for group in kernels.chunks(at_once) {
        std::thread::scope(|scope| {
            let runs: Vec<_> = group
                .iter()
                .map(|name| (name, scope.spawn(move || try_kernel(name))))
                .collect();
            for (name, run) in runs {
                let found = run.join().unwrap_or_else(|_| vec!["see above".to_string()]);
                wrong.extend(found.into_iter().map(|what| format!("{name}: {what}")));
            }
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is wrong on this kernel.
fn try_kernel(name: &str) -> Vec<String> {
    let done = machine::kernel(name).and_then(|kernel| machine::boot(name, &kernel));
    let done = match done {
        Ok(done) => done,
        Err(e) => return vec![e],
    };
    let mut checks = Checks {
        done: &done,
        wrong: Vec::new(),
    };
    if done.steps["record"].status == CANNOT {
        checks.is_refused();
    } else {
        checks.works();
    }
    let wrong = checks.wrong;
    print_table(name, &done);
    wrong
}

fn print_table(name: &str, done: &Done) {
    let mut steps: Vec<(&String, &Step)> = done.steps.iter().collect();
    steps.sort_by_key(|(_, step)| std::cmp::Reverse(step.ms));
    let times: Vec<String> = steps
        .iter()
        .filter(|(_, step)| step.ms >= 500)
        .map(|(name, step)| format!("{name} {:.1}", step.ms as f64 / 1000.0))
        .collect();
    println!(
        "{name}: {} was up after {} s and off after {:.0} s; seconds by step: {}",
        done.steps["release"].out.trim(),
        done.steps["up"].out.split(' ').next().unwrap_or_default(),
        done.took.as_secs_f64(),
        times.join(", "),
    );
}

struct Checks<'a> {
    done: &'a Done,
    wrong: Vec<String>,
}

impl Checks<'_> {
    fn step(&mut self, name: &str) -> Option<&Step> {
        let step = self.done.steps.get(name);
        if step.is_none() {
            self.wrong.push(format!("{name}: was not done"));
        }
        step
    }

    fn hold(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(what());
        }
    }

    fn json(&mut self, name: &str) -> Value {
        let text = self
            .step(name)
            .map(|step| step.out.clone())
            .unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_else(|e| {
            self.wrong.push(format!("{name}: {e}: {text}"));
            Value::Null
        })
    }

    /// One line that says so, and one of help, for everything that takes BPF.
    fn is_refused(&mut self) {
        for name in ["record", "sched-all", "calls", "top", "start"] {
            let Some(step) = self.step(name) else {
                continue;
            };
            let (status, err) = (step.status, step.err.clone());
            let lines: Vec<&str> = err.lines().collect();
            let is_clear = lines.len() == 2
                && lines[0].starts_with("gdiag: this kernel (")
                && lines[1] == "hint: use Linux 5.15 or later";
            self.hold(status == CANNOT && is_clear, || {
                format!("{name}: status {status}: {err}")
            });
        }
    }

    fn works(&mut self) {
        let failed: Vec<String> = self
            .done
            .steps
            .iter()
            .filter(|(_, step)| step.status != 0)
            .map(|(name, step)| format!("{name}: status {}: {}", step.status, step.err))
            .collect();
        self.wrong.extend(failed);
        // An oops, or what the verifier is warned about.
        for sign in ["BUG:", "WARNING:", "Oops", "INFO: task"] {
            let console = &self.done.console;
            let found = console.lines().find(|line| line.contains(sign));
            let found = found.map(str::to_string);
            self.hold(found.is_none(), || {
                format!("the kernel said: {}", found.unwrap_or_default())
            });
        }
        self.is_able();
        self.explains_a_known_fault();
        self.has_user_stacks();
        self.counts_switches("sched-sleep.json");
        self.counts_switches("sched-futex.json");
        self.sees_the_machine();
        self.counts_calls();
        self.has_lines_of_calls();
        self.sees_the_gpu("report-pid", "simulated");
        self.sees_the_gpu("report-probes", "uprobe");
        // How much they saw of it depends on how slow this machine is.
        for name in ["report-all", "report-cgroup", "report-snapshot", "top"] {
            let report = self.json(name);
            self.is_whole(name, &report);
        }
    }

    /// `gdiag check` finds nothing wrong with the kernel.
    fn is_able(&mut self) {
        if !self.done.steps.contains_key("check") {
            return;
        }
        let check = self.json("check");
        let checks = check["checks"].as_array().cloned().unwrap_or_default();
        self.hold(!checks.is_empty(), || format!("check: {check}"));
        for line in checks.iter().filter(|line| line["status"] == "failure") {
            self.hold(false, || format!("check: {line}"));
        }
    }

    /// Nothing lost, and nothing left out but what this kernel may lack.
    fn is_whole(&mut self, name: &str, report: &Value) {
        let quality = &report["quality"];
        for lost in ["bpf_lost", "shim_lost", "cupti_lost"] {
            let count = quality[lost].as_u64();
            self.hold(matches!(count, None | Some(0)), || {
                format!("{name}: {lost}: {quality}")
            });
        }
        for warning in quality["warnings"].as_array().into_iter().flatten() {
            let warning = warning.as_str().unwrap_or_default();
            let missing = warning.strip_prefix("not recorded: ");
            let allowed = missing.is_none_or(|all| {
                let mut rest = all.to_string();
                for may in MISSING {
                    rest = rest.replace(may, "");
                }
                rest.trim_matches([' ', ',', ';']).is_empty()
            });
            self.hold(allowed, || format!("{name}: {warning}"));
        }
    }

    fn sees_the_gpu(&mut self, name: &str, source: &str) {
        let report = self.json(name);
        self.is_whole(name, &report);
        let found = &report["recording"]["gpu_source"];
        self.hold(found == source, || format!("{name}: gpu_source {found}"));
        if source == "simulated" {
            let busy = report["gpus"][0]["busy_ns"].as_u64().unwrap_or(0);
            let explained = report["gpus"][0]["idle_explained"].as_f64().unwrap_or(0.0);
            self.hold(busy > 0 && explained > 0.8, || {
                format!("{name}: busy {busy} ns, {explained} of idle time explained")
            });
        }
    }

    fn explains_a_known_fault(&mut self) {
        self.sees_the_gpu("report", "simulated");
        let report = self.json("report");
        let injected = self
            .step("truth")
            .map_or(0, |step| step.out.lines().count());
        let causes = report["gpus"][0]["causes"].as_array().cloned();
        let causes = causes.unwrap_or_default();
        let lock = causes.iter().find(|cause| cause["id"] == "host.lock");
        let ns = lock.and_then(|lock| lock["ns"].as_u64()).unwrap_or(0);
        let holder = lock.map_or(String::new(), |lock| lock["by"].to_string());
        // Each took 30 ms. Emulation is slow: other causes may come before the lock is waited for.
        let least = 15_000_000 * injected as u64;
        let named = ns >= least && holder.contains("lock-holder");
        self.hold(injected > 0 && named, || {
            format!("report: {injected} locks of 30 ms: {causes:?}")
        });
    }

    /// From the start of the program, of work, and of waits where this kernel can.
    fn has_user_stacks(&mut self) {
        let can = !self.lacks(MISSING[0]);
        let flame = self.step("flame").map(|step| step.out.clone());
        let flame = flame.unwrap_or_default();
        let whole = flame
            .lines()
            .any(|line| line.contains(";_start;") && line.contains(";main;run_steps"));
        self.hold(whole == can, || format!("flame: {flame}"));
        let waits = flame
            .lines()
            .any(|line| line.contains(";main;") && line.contains("[blocked: sleep]"));
        let can = !self.lacks(MISSING[1]) && can;
        self.hold(waits == can, || format!("flame, of waits: {flame}"));
    }

    fn lacks(&mut self, what: &str) -> bool {
        self.step("record")
            .is_some_and(|step| step.err.contains(what))
    }

    /// The program's own counts of its switches are those of the kernel.
    fn counts_switches(&mut self, name: &str) {
        let seen = self.json(name);
        let program = name.trim_end_matches(".json");
        let truth = self.json(program);
        self.hold(seen["lost"] == 0, || {
            format!("{name}: lost {}", seen["lost"])
        });
        for thread in truth["threads"].as_array().cloned().unwrap_or_default() {
            let threads = seen["threads"].as_array().cloned().unwrap_or_default();
            let same = threads.iter().find(|t| t["tid"] == thread["tid"]);
            let found = same.cloned().unwrap_or_default();
            // Its last switch, at its end, is after what the program can read.
            let (known, seen) = (&thread["life"]["voluntary"], &found["voluntary"]);
            let window = thread["window"]["voluntary"].as_u64().unwrap_or(u64::MAX);
            let whole = seen.as_u64() >= known.as_u64() && seen.as_u64() <= Some(window + 3);
            self.hold(whole, || {
                format!("{name}: {seen} sleeps of {thread}: {found}")
            });
        }
    }

    /// Every CPU, and all of its time.
    fn sees_the_machine(&mut self) {
        for name in ["sched-all", "sched-cgroup"] {
            let seen = self.json(name);
            let cpus = seen["cpus"].as_array().map_or(0, Vec::len);
            // The emulator stops one CPU while it runs the other: a waking can then be far ahead of the switch that it
            // ends, which counts as lost. Between two real CPUs that is 50 us at most.
            let lost = seen["lost"].as_u64();
            self.hold(cpus == 2 && lost.is_some_and(|lost| lost <= 5), || {
                format!("{name}: {cpus} CPUs, lost {lost:?}")
            });
            let threads = seen["threads"].as_array().map_or(0, Vec::len);
            self.hold(threads > 0, || format!("{name}: no threads"));
        }
    }

    fn counts_calls(&mut self) {
        let seen = self.json("calls.json");
        let truth = self.json("calls");
        let thread = &truth["threads"][0];
        for call in thread["calls"].as_array().cloned().unwrap_or_default() {
            let threads = seen["threads"].as_array().cloned().unwrap_or_default();
            let same = threads.iter().find(|t| t["tid"] == thread["tid"]);
            let calls = same.and_then(|t| t["calls"].as_array().cloned());
            let calls = calls.unwrap_or_default();
            let found = calls.iter().find(|c| c["name"] == call["name"]);
            let found = found.cloned().unwrap_or_default();
            let same = ["count", "errors"]
                .iter()
                .all(|key| found[key] == call[key]);
            self.hold(same, || format!("calls: {found} for {call}"));
        }
        self.hold(truth["threads"][0]["calls"][0]["count"] == 100, || {
            format!("calls: {truth}")
        });
    }

    /// Each call with its arguments.
    fn has_lines_of_calls(&mut self) {
        let lines = self.step("call-lines.json").map(|step| step.out.clone());
        let lines = lines.unwrap_or_default();
        let failed = lines.lines().filter(|line| {
            let line: Value = serde_json::from_str(line).unwrap_or_default();
            line["name"] == "read" && line["comm"] == "caller" && line["error"] == "EBADF"
        });
        let failed = failed.count();
        self.hold(failed == 100, || {
            let some: Vec<&str> = lines.lines().take(5).collect();
            format!("call-lines: {failed} of 100 reads failed: {some:?}")
        });
    }
}

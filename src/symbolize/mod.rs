//! Addresses → names, while recording: they mean nothing once the machine has restarted.

mod image;
pub mod user;

use std::collections::HashMap;

use blazesym::symbolize::source::{Kernel, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use blazesym::{Addr, MaybeDefault};

/// Frames that every sleeper has on top, and that say nothing.
const NOISE: [&str; 5] = [
    "__schedule",
    "schedule",
    "preempt_schedule",
    "__traceiter_sched_switch",
    "preempt_schedule_common",
];

/// Names of kernel functions, each looked up once.
#[derive(Debug)]
pub struct KernelSymbols {
    symbolizer: Symbolizer,
    source: Source<'static>,
    known: HashMap<u64, String>,
}

impl Default for KernelSymbols {
    fn default() -> Self {
        KernelSymbols {
            symbolizer: Symbolizer::builder()
                .enable_code_info(false)
                .enable_inlined_fns(false)
                .build(),
            source: Source::Kernel(Kernel {
                vmlinux: MaybeDefault::None,
                ..Kernel::default()
            }),
            known: HashMap::new(),
        }
    }
}

impl KernelSymbols {
    /// Reads the kernel's table of symbols, which the first stack would wait for: tens of
    /// milliseconds in which nothing else is read, and which the target may miss on its CPU.
    pub fn load(&mut self) {
        // No function is there, so that this names nothing.
        self.stack(&[1]);
    }

    /// Names of a stack, leaf first, without the scheduler's own frames at the leaf.
    /// An address without a name stays a number.
    pub fn stack(&mut self, ips: &[u64]) -> Vec<&str> {
        let new: Vec<Addr> = ips
            .iter()
            .copied()
            .filter(|ip| !self.known.contains_key(ip))
            .collect();
        if !new.is_empty() {
            let named = self
                .symbolizer
                .symbolize(&self.source, Input::AbsAddr(&new))
                .unwrap_or_default();
            for (i, &ip) in new.iter().enumerate() {
                let name = match named.get(i) {
                    Some(Symbolized::Sym(sym)) => sym.name.to_string(),
                    Some(Symbolized::Unknown(_)) | None => format!("{ip:#x}"),
                };
                self.known.insert(ip, name);
            }
        }
        ips.iter()
            .filter_map(|ip| self.known.get(ip).map(String::as_str))
            .skip_while(|name| NOISE.contains(name))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that a real symbol of this kernel is found, where the kernel shows its addresses.
    #[test]
    fn a_kernel_function_has_its_name() {
        let kallsyms = std::fs::read_to_string("/proc/kallsyms").unwrap();
        let Some((ip, name)) = kallsyms.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let ip = u64::from_str_radix(fields.next()?, 16).ok()?;
            let text = fields.next()?.eq_ignore_ascii_case("t");
            let name = fields.next()?;
            (text && ip != 0 && name == "do_nanosleep").then(|| (ip, name.to_string()))
        }) else {
            eprintln!("skipped: this kernel hides its addresses");
            return;
        };
        let mut symbols = KernelSymbols::default();
        assert_eq!(symbols.stack(&[ip + 4, 1]), [name.as_str(), "0x1"]);
    }
}

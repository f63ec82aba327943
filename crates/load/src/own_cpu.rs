//! The CPU time that the scheduler gave the calling thread.

use pollux_sys as sys;
use std::fs;

/// A thread's CPU time, and its time without a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct OwnCpu {
    /// CPU time used, user and system.
    pub(crate) used_ns: u64,
    /// Time in which it was runnable but had no CPU; `None` if the kernel does not count it (no
    /// CONFIG_SCHED_INFO, no /proc).
    pub(crate) delayed_ns: Option<u64>,
}

impl OwnCpu {
    /// The calling thread's values so far. It reads a file, so it is only for the start and the end of
    /// a run.
    pub(crate) fn now() -> Self {
        let text = fs::read_to_string("/proc/thread-self/schedstat").ok();
        Self {
            used_ns: sys::thread_cpu_time().as_nanos() as u64,
            delayed_ns: text.as_deref().and_then(run_delay_ns),
        }
    }

    /// The difference from `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        let delays = self.delayed_ns.zip(before.delayed_ns);
        Self {
            used_ns: self.used_ns.saturating_sub(before.used_ns),
            delayed_ns: delays.map(|(now, before)| now.saturating_sub(before)),
        }
    }
}

/// The second field of a schedstat file: `run_ns delay_ns slices` (sched-stats.rst).
fn run_delay_ns(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{thread, time::Duration};

    #[test]
    fn the_second_field_is_the_delay() {
        assert_eq!(run_delay_ns("12 345 6\n"), Some(345));
        assert_eq!(run_delay_ns("12"), None);
        assert_eq!(run_delay_ns("a b c"), None);
    }

    /// Uses `cpu_ns` of CPU time on the processor `cpu`, and returns how long it waited for the CPU.
    fn work(cpu: usize, nice: i32, cpu_ns: u64) -> u64 {
        crate::host::pin(Some(cpu)).unwrap();
        if nice > 0 {
            // On Linux, nice applies to the calling thread.
            rustix::process::nice(nice).unwrap();
        }
        let before = OwnCpu::now();
        let mut sum = 0u64;
        while (sys::thread_cpu_time().as_nanos() as u64) < before.used_ns + cpu_ns {
            sum = std::hint::black_box(sum + 1);
        }
        OwnCpu::now().since(before).delayed_ns.expect("the kernel counts it")
    }

    #[test]
    fn a_thread_that_shares_its_cpu_is_delayed_and_one_that_sleeps_is_not() {
        let before = OwnCpu::now();
        // The sleep under test.
        thread::sleep(Duration::from_secs(1));
        let slept = OwnCpu::now().since(before);
        let Some(asleep_ns) = slept.delayed_ns else {
            eprintln!("skipped: this kernel counts no run delay");
            return;
        };
        assert!(asleep_ns < 1_000_000_000, "sleeping is no delay: {slept:?}");
        let cpu = 0;
        let (own, other) = thread::scope(|scope| {
            let other = scope.spawn(move || work(cpu, 0, 60_000_000));
            let own = scope.spawn(move || work(cpu, 19, 20_000_000));
            (own.join().unwrap(), other.join().unwrap())
        });
        // While the other thread runs, the niced one waits: most of 60 ms.
        assert!(own > 20_000_000, "{own} {other}");
    }
}

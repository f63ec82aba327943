//! The generator's own figures.

use crate::{thread::ThreadResult, times::Times};
use serde::Serialize;

impl ThreadResult {
    /// An upper bound on the time in which the thread had work: it lies within its CPU time, and does
    /// not include the time that it is known to have waited.
    fn busy_ns(&self) -> u64 {
        self.cpu.used_ns.min(self.elapsed_ns.saturating_sub(self.spare_ns))
    }
}

/// The generator's own figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Generator {
    /// From the scheduled instant until the generator began to process the request; empty in a closed
    /// loop.
    pub lag_us: Times,
    /// CPU time of all threads, user and system, per request of the measured part.
    pub cpu_us_per_request: f64,
    /// CPU time by elapsed time, 0 to 1, of the thread that used most.
    pub cpu_utilization: f64,
    /// The fraction of elapsed time in which a thread had work, 0 to 1, of the busiest thread; at most
    /// `cpu_utilization`. A run in which it is above
    /// [`MAX_BUSY_UTILIZATION`](crate::validity::MAX_BUSY_UTILIZATION) is invalid.
    pub busy_utilization: f64,
    /// The fraction of elapsed time in which a thread was runnable but had no CPU, 0 to 1, of the
    /// thread that waited longest (the kernel's run delay, /proc/thread-self/schedstat). `None` if the
    /// kernel does not count it.
    pub run_delay_share: Option<f64>,
    /// Threads that sent.
    pub threads: usize,
}

impl Generator {
    pub(crate) fn new(threads: &[ThreadResult]) -> Self {
        let cpu_ns: u64 = threads.iter().map(|thread| thread.cpu.used_ns).sum();
        let requests: u64 = threads
            .iter()
            .map(|thread| thread.recorder.completed + thread.recorder.failures.total())
            .sum();
        let share = |thread: &ThreadResult, time_ns: u64| match thread.elapsed_ns {
            0 => 0.0,
            elapsed_ns => (time_ns as f64 / elapsed_ns as f64).min(1.0),
        };
        let greatest = |time_ns: fn(&ThreadResult) -> u64| {
            threads.iter().map(|thread| share(thread, time_ns(thread))).fold(0.0, f64::max)
        };
        let delays = threads.iter().map(|t| t.cpu.delayed_ns.map(|ns| share(t, ns)));
        Self {
            lag_us: Times::default(),
            cpu_us_per_request: cpu_ns as f64 / 1000.0 / requests.max(1) as f64,
            cpu_utilization: greatest(|thread| thread.cpu.used_ns),
            busy_utilization: greatest(ThreadResult::busy_ns),
            run_delay_share: delays.flatten().reduce(f64::max),
            threads: threads.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_cpu::OwnCpu;

    fn measured(used_ns: u64, spare_ns: u64, delayed_ns: Option<u64>) -> ThreadResult {
        ThreadResult {
            cpu: OwnCpu { used_ns, delayed_ns },
            spare_ns,
            elapsed_ns: 1_000,
            ..ThreadResult::empty()
        }
    }

    #[test]
    fn time_to_spare_is_not_busy_whether_it_was_slept_or_polled() {
        let measured = |cpu_ns, spare_ns| measured(cpu_ns, spare_ns, None);
        let shares = |threads: &[ThreadResult]| {
            let generator = Generator::new(threads);
            (generator.cpu_utilization, generator.busy_utilization)
        };
        assert_eq!(shares(&[measured(1_000, 400)]), (1.0, 0.6), "it polled");
        assert_eq!(shares(&[measured(300, 650)]), (0.3, 0.3), "it slept, and was woken by replies");
        assert_eq!(shares(&[measured(1_000, 0)]), (1.0, 1.0), "never idle");
        assert_eq!(shares(&[measured(500, 0), measured(1_000, 900)]), (1.0, 0.5), "two threads");
        assert_eq!(shares(&[measured(1_100, 1_100)]), (1.0, 0.0), "clocks differ by a little");
    }

    #[test]
    fn the_delay_is_that_of_the_thread_that_waited_longest() {
        let share = |threads: &[ThreadResult]| Generator::new(threads).run_delay_share;
        assert_eq!(share(&[measured(0, 0, Some(20)), measured(0, 0, Some(700))]), Some(0.7));
        assert_eq!(share(&[measured(0, 0, None), measured(0, 0, Some(10))]), Some(0.01));
        assert_eq!(share(&[measured(0, 0, None)]), None);
    }
}

//! The CPU time, the memory and the start of this process, as the kernel reports them.

use crate::{transport::inherited, upgrade};
use std::{sync::OnceLock, time::Duration};

/// The start of this process. It is computed once, from two clocks that advance differently: each further result would be
/// another one, and monitoring would take it for another start.
static STARTED: OnceLock<Option<f64>> = OnceLock::new();

/// CPU and memory of the process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessFigures {
    /// User and system time of all threads.
    pub(crate) cpu: Duration,
    /// Resident memory in bytes; 0 if /proc does not show it.
    pub(crate) resident_bytes: u64,
    /// The UNIX time in seconds at which the process started, by the clock of the first query.
    pub(crate) started_unix_s: f64,
    /// Whether it has taken over from a former process (a live upgrade).
    pub(crate) has_taken_over: bool,
    /// The number of failed attempts to hand the service over to a new process.
    pub(crate) failed_upgrades: u64,
}

/// Reads the values, from two small files and a clock.
pub(super) fn figures() -> ProcessFigures {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let resident_pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok())
        .unwrap_or(0);
    ProcessFigures {
        cpu: Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32),
        resident_bytes: resident_pages * rustix::param::page_size() as u64,
        started_unix_s: STARTED.get_or_init(started_unix_s).unwrap_or(0.0),
        has_taken_over: inherited::has_succeeded(),
        failed_upgrades: upgrade::failures(),
    }
}

/// Returns the start of the process. proc_pid_stat(5), field 22, has it in clock ticks after the
/// boot.
fn started_unix_s() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in parentheses, may contain spaces.
    let after_name = stat.rsplit_once(')')?.1;
    let ticks: f64 = after_name.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let booted_for = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let booted_for = booted_for.tv_sec as f64 + booted_for.tv_nsec as f64 / 1e9;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    Some(now.as_secs_f64() - booted_for + ticks / per_second)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_has_memory_and_has_started_before_now() {
        let figures = super::figures();
        assert!(figures.resident_bytes > 100_000, "{figures:?}");
        let now = pollux_sys::unix_second_coarse() as f64;
        let age = now - figures.started_unix_s;
        assert!((-2.0..86400.0).contains(&age), "{figures:?} at {now}");
    }

    /// Regression: the start differed by less than a microsecond from one scrape to the next, and the alert about
    /// restarts counted each difference.
    #[test]
    fn a_process_starts_once() {
        let first = super::figures().started_unix_s;
        for _ in 0..1_000 {
            let next = super::figures().started_unix_s;
            assert!(next.to_bits() == first.to_bits(), "{first} {next}");
        }
    }
}

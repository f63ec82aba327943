//! Progress on standard error, when that is a terminal and the run takes longer than two seconds.

use crate::{plan::Plan, thread::Gauges};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::IsTerminal,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// A shorter run shows no bar.
const SHORTEST: Duration = Duration::from_secs(2);

/// A progress bar for each phase of a run.
pub(crate) struct Progress {
    shows: bool,
    bar: Option<ProgressBar>,
    since: Instant,
    rate: LiveRate,
}

impl Progress {
    /// The redraw period, which is also the longest delay in noticing a run's end.
    pub(crate) const PERIOD: Duration = Duration::from_millis(20);

    pub(crate) fn new(wanted: bool) -> Self {
        let shows = wanted && std::io::stderr().is_terminal() && !is_dumb();
        Self { shows, bar: None, since: Instant::now(), rate: LiveRate::default() }
    }

    /// Whether any progress is shown.
    pub(crate) fn shows(&self) -> bool {
        self.shows
    }

    fn bar(&mut self, total: u64, style: &str) -> &ProgressBar {
        self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(style).expect("the template is valid");
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10))
                .with_style(style)
        })
    }

    /// Shows the number of idle connections that are held.
    pub(crate) fn idle(&mut self, held: usize, wanted: usize) {
        if !self.shows || self.since.elapsed() < SHORTEST {
            return;
        }
        let bar = self.bar(wanted as u64, "idle connections {bar:30} {pos}/{len} {eta}");
        bar.set_position(held as u64);
        if held >= wanted {
            self.finish();
        }
    }

    /// Shows the elapsed time of the run.
    pub(crate) fn run(&mut self, plan: &Plan, gauges: &[Gauges], elapsed_ns: u64) {
        let total_ns = plan.warmup_ns.saturating_add(plan.window_ns);
        let counts_requests = plan.closed_requests;
        let is_short = counts_requests.is_none() && u128::from(total_ns) < SHORTEST.as_nanos();
        if !self.shows || is_short {
            return;
        }
        let sum = |gauge: fn(&Gauges) -> &AtomicU64| -> u64 {
            gauges.iter().map(|gauges| gauge(gauges).load(Relaxed)).sum()
        };
        let (completed, failed) = (sum(|g| &g.completed), sum(|g| &g.failed));
        let message = if elapsed_ns < plan.warmup_ns {
            "warming up".to_owned()
        } else {
            let rate = self.rate.after(elapsed_ns, completed);
            format!("{rate:.0}/s, {completed} completed, {failed} failed")
        };
        let (position, total) = match counts_requests {
            Some(requests) => (completed + failed, requests),
            None => (elapsed_ns / 1_000_000, total_ns / 1_000_000),
        };
        let bar = self.bar(total, "{bar:20} {percent:>3} %  {wide_msg}");
        bar.set_position(position.min(total));
        bar.set_message(message);
    }

    /// Ends the phase and removes the bar.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.since = Instant::now();
    }
}

/// Whether the terminal cannot redraw a line. (The output has no colours, so NO_COLOR changes nothing.)
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// The reply rate over about the last second.
#[derive(Debug, Default)]
struct LiveRate {
    since_ns: u64,
    completed: u64,
    rate_rps: f64,
}

impl LiveRate {
    /// Updates and returns the rate.
    fn after(&mut self, elapsed_ns: u64, completed: u64) -> f64 {
        let passed_ns = elapsed_ns.saturating_sub(self.since_ns);
        if passed_ns >= 1_000_000_000 {
            self.rate_rps =
                completed.saturating_sub(self.completed) as f64 * 1e9 / passed_ns as f64;
            (self.since_ns, self.completed) = (elapsed_ns, completed);
        }
        self.rate_rps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_rate_is_that_of_the_last_second() {
        let mut rate = LiveRate::default();
        assert_eq!(rate.after(500_000_000, 50), 0.0);
        assert_eq!(rate.after(1_000_000_000, 100), 100.0);
        assert_eq!(rate.after(1_900_000_000, 500), 100.0);
        assert_eq!(rate.after(3_000_000_000, 500), 200.0);
    }
}

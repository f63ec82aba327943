//! Shows the current step and the remaining time on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// A progress bar on stderr; hidden if stderr is not a terminal.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Returns a bar that is shown if `wanted`: only the program knows whether its standard error is a
    /// terminal.
    pub fn shown(wanted: bool) -> Self {
        if !wanted {
            return Self::hidden();
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let template = "{bar:24} {pos}/{len}  {wide_msg}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Returns a bar that is never shown.
    pub fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    /// Shows that `what` is running, that `done` of `total` steps are complete, and that about `left_s`
    /// seconds remain.
    pub fn running(&self, what: &str, done: usize, total: usize, left_s: f64) {
        self.0.set_length(total as u64);
        self.0.set_position(done as u64);
        let seconds = left_s as u64;
        let left = match seconds {
            0..=99 => format!("{seconds} s"),
            _ => format!("{} min", seconds.div_ceil(60)),
        };
        self.0.set_message(format!("{left} left  {what}"));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

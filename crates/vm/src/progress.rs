//! Shows the current step on standard error: a spinner on a terminal, one line elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{IsTerminal, Write as _, stderr},
    time::Duration,
};

/// One step that may take long; it is shown until it is dropped.
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Shows `what` as the current step.
    pub(crate) fn start(what: &str) -> Progress {
        if !stderr().is_terminal() {
            say(what);
            return Progress(None);
        }
        let bar = ProgressBar::new_spinner().with_message(format!("pollux vm: {what}"));
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Progress(Some(bar))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Writes one line to standard error. A closed standard error is ignored; eprintln! would panic.
pub(crate) fn say(what: &str) {
    let _ = writeln!(stderr().lock(), "pollux vm: {what}");
}

//! Flags about what the server writes: the access log, statistics.

use pollux_server::{
    Config, Report,
    config::{Listen, LogTarget},
};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(next_help_heading = "Logs and statistics")]
pub(super) struct OutputArgs {
    /// Second listener for monitoring and for people: a page, Prometheus metrics, health (see
    /// pollux top). ADDRESS:PORT, unix:PATH or systemd:NAME; it has no password
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<Listen>,

    /// Write an access log in Common Log Format to FILE, or to standard output (-)
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,

    /// Measure the time that system calls take (shown in the statistics)
    #[arg(long)]
    time_system_calls: bool,

    /// Print lines of JSON on standard output: one when listening, and one with the statistics at
    /// each SIGUSR1 and at the end
    #[arg(long)]
    json: bool,
}

impl OutputArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        config.admin = self.admin.or(config.admin.take());
        config.access_log = self.access_log.map(target).or(config.access_log.take());
        config.time_system_calls |= self.time_system_calls;
    }

    /// How the server reports on itself.
    pub(super) fn report(&self) -> Report {
        if self.json { Report::Json } else { Report::Human }
    }
}

fn target(path: PathBuf) -> LogTarget {
    match path.to_str() {
        Some("-") => LogTarget::Stdout,
        _ => LogTarget::File(path),
    }
}

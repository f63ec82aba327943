//! Flags about what the server writes: the access log, statistics.

use super::value;
use pollux_server::{
    Report,
    config::{
        Listen,
        file::{ConfigFile, Text},
    },
};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(next_help_heading = "Logs and statistics")]
pub(super) struct OutputArgs {
    /// Second listener for monitoring and for people: a page, Prometheus metrics, health (see
    /// pollux top). ADDRESS:PORT, unix:PATH or systemd:NAME; it has no password
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<Text<Listen>>,

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
    pub(super) fn apply(self, config: &mut ConfigFile) {
        value::set_some(&mut config.admin, self.admin);
        value::set_some(&mut config.access_log, self.access_log);
        config.time_system_calls |= self.time_system_calls;
    }

    /// How the server reports on itself.
    pub(super) fn report(&self) -> Report {
        if self.json { Report::Json } else { Report::Human }
    }
}

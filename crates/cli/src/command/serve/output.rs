//! Flags about what the server writes: the access log, statistics.

use super::value;
use pollux_server::{
    Report,
    config::{
        Config, Listen, LogField, LogFormat, LogTarget, REQUEST_ID_ALONE, RequestIds, Text, Time,
    },
};

#[derive(clap::Args)]
#[command(next_help_heading = "Logs and statistics")]
pub(super) struct OutputArgs {
    /// Second listener for monitoring and for people: a page, Prometheus metrics, health (see
    /// pollux top). ADDRESS:PORT, unix:PATH or systemd:NAME; it has no password
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<Text<Listen>>,

    /// Write an access log to a file, to standard output (-), to syslog or to journald
    #[arg(long, value_name = "FILE|-|syslog|journald")]
    access_log: Option<Text<LogTarget>>,

    /// What a line of a log looks like: clf (Common Log Format), combined (with Referer and
    /// User-Agent) or json [default: clf]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<Text<LogFormat>>,

    /// Fields of a line of JSON, in this order: time, client, user, host, method, target, protocol, status,
    /// bytes, duration_ms, referer, user_agent, request_id, traceparent, header:NAME [default: all but the last
    /// two]
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    log_fields: Vec<Text<LogField>>,

    /// Also write the line of each request that took --slow-threshold or longer to this log
    #[arg(long, value_name = "FILE|-|syslog|journald")]
    slow_log: Option<Text<LogTarget>>,

    /// How long a request takes that is slow [default: 1s]
    #[arg(long, value_name = "TIME")]
    slow_threshold: Option<Time>,

    /// Give each request an identifier, which origins, the client and the log get (X-Request-Id):
    /// generate, or accept a client's if it is well-formed [without =HOW: generate]
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true,
          default_missing_value = REQUEST_ID_ALONE)]
    request_id: Option<Text<RequestIds>>,

    /// Measure the time that system calls take (shown in the statistics)
    #[arg(long)]
    time_system_calls: Option<bool>,

    /// Print lines of JSON on standard output: one when listening, and one with the statistics at
    /// each SIGUSR1 and at the end
    #[arg(long)]
    json: bool,
}

impl OutputArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        value::set_some(&mut config.admin, self.admin);
        value::set_some(&mut config.access_log, self.access_log);
        value::set(&mut config.log_format, self.log_format);
        value::replace(&mut config.log_fields, self.log_fields);
        value::set_some(&mut config.slow_log, self.slow_log);
        value::set(&mut config.slow_threshold, self.slow_threshold);
        value::set(&mut config.request_id, self.request_id);
        value::set(&mut config.time_system_calls, self.time_system_calls);
    }

    /// Returns the output that the server makes about itself.
    pub(super) fn report(&self) -> Report {
        if self.json { Report::Json } else { Report::Human }
    }
}

//! What a worker's connections share: the site, the clock, the rules, the counts.

use crate::{
    clock::{Clock, ticks},
    config::Config,
    log::LogWriter,
    site::Site,
};
use pollux_http::Limits;

/// All that answering a request needs besides the request. One per worker; knows no engine.
#[derive(Debug)]
pub(crate) struct Service {
    /// The files.
    pub(crate) site: Site,
    /// The time.
    pub(crate) clock: Clock,
    /// What is taken of a request.
    pub(crate) limits: Limits,
    /// Requests after which a connection is closed.
    pub(crate) max_requests: u32,
    /// The server is stopping: every response says that it is the connection's last.
    pub(crate) is_stopping: bool,
    /// Responses begun.
    pub(crate) requests: u64,
    /// The access log, if there is one.
    pub(crate) log: Option<LogWriter>,
    /// `Server` and the configured fields: lines with CRLF, for responses without a file.
    pub(crate) common_fields: Vec<u8>,
    /// The timeouts, in ticks.
    pub(crate) timeouts: TimeoutTicks,
}

/// [`crate::config::Timeouts`] in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeoutTicks {
    /// For a head or a body.
    pub(crate) header: u32,
    /// Between requests.
    pub(crate) keep_alive: u32,
    /// For progress in sending.
    pub(crate) send: u32,
}

impl Service {
    /// Opens the site.
    ///
    /// # Errors
    /// As [`Site::open`].
    pub(crate) fn new(config: &Config, log: Option<LogWriter>) -> anyhow::Result<Self> {
        let mut common_fields = Vec::new();
        if let Some(name) = &config.server_name {
            common_fields.extend_from_slice(format!("Server: {name}\r\n").as_bytes());
        }
        for (name, value) in &config.headers {
            common_fields.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        Ok(Self {
            site: Site::open(&config.site, common_fields.clone())?,
            clock: Clock::start(),
            limits: config.limits,
            max_requests: config.max_requests.map_or(u32::MAX, Into::into),
            is_stopping: false,
            requests: 0,
            log,
            common_fields,
            timeouts: TimeoutTicks {
                header: ticks(config.timeouts.header),
                keep_alive: ticks(config.timeouts.keep_alive),
                send: ticks(config.timeouts.send),
            },
        })
    }
}

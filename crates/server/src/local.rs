//! What one worker has of its own besides its connections: the clock, the counts, the log.

use crate::{clock::Clock, log::LogWriter, statistics::OriginCounts};
use pollux_http::Status;
use std::net::IpAddr;

/// A worker's own state that answering a request reads and writes. Knows neither the engine nor
/// the application.
#[derive(Debug)]
pub(crate) struct Local {
    /// The time.
    pub(crate) clock: Clock,
    /// The server is stopping: every response says that it is the connection's last.
    pub(crate) is_stopping: bool,
    /// Responses begun.
    pub(crate) requests: u64,
    /// What became of those that were passed on.
    pub(crate) origins: OriginCounts,
    /// The access log, if there is one.
    pub(crate) log: Option<LogWriter>,
}

/// What was answered, for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// With which status.
    pub(crate) status: Status,
    /// Octets of content that follow the head.
    pub(crate) len: u64,
}

impl Local {
    /// For a worker that begins.
    pub(crate) fn new(log: Option<LogWriter>) -> Self {
        Self {
            clock: Clock::start(),
            is_stopping: false,
            requests: 0,
            origins: OriginCounts::default(),
            log,
        }
    }

    /// Writes the line of a client of this address that another process answers: nobody here knows
    /// with which status.
    pub(crate) fn log_hand_over(&mut self, peer: Option<IpAddr>, request: &[u8]) {
        if let Some(log) = &mut self.log {
            log.peer = peer;
            log.write(self.clock.date(), request, 0, 0);
        }
    }

    /// Writes a line of the access log, if there is one. `request` is the request line.
    #[inline]
    pub(crate) fn log(&mut self, request: &[u8], answer: Answer) {
        self.log_code(request, answer.status.code(), answer.len);
    }

    /// The same with a status that need not be one of ours, and the octets of content.
    #[inline]
    pub(crate) fn log_code(&mut self, request: &[u8], status: u16, len: u64) {
        if let Some(log) = &mut self.log {
            log.write(self.clock.date(), request, status, len);
        }
    }
}

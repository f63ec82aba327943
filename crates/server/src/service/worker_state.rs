//! The state of one worker apart from its connections: the clock, the counters, the log.

use crate::{
    clients::ClientTable,
    config::RequestIds,
    log::{LogEntry, LogWriter, Peer, Records},
    settings::Settings,
    stats::Counters,
    time::clock::Clock,
};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The state of a worker that code for answering requests reads and writes. It knows neither the engine nor
/// the application.
#[derive(Debug)]
pub(crate) struct WorkerState {
    pub(crate) clock: Clock,
    /// Whether the server is stopping: every response announces that the connection is closed after it.
    pub(crate) is_stopping: bool,
    /// Whether the service has so much for its streams that it should send before this iteration is over.
    pub(crate) has_burst: bool,
    /// The counters of this worker.
    pub(crate) counters: Counters,
    /// The addresses of the clients, if a setting needs them.
    pub(crate) clients: ClientTable,
    /// The access log, if there is one.
    pub(crate) log: Option<LogWriter>,
    /// Records of requests, if the log or the identifiers of requests need them.
    pub(crate) records: Option<Box<Records>>,
}

/// The facts about a response that the log needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// The number of bytes of content after the head.
    pub(crate) len: u64,
}

impl WorkerState {
    /// Creates the state of a new worker.
    pub(crate) fn new(log: Option<LogWriter>) -> Self {
        Self {
            clock: Clock::start(),
            is_stopping: false,
            has_burst: false,
            counters: Counters::default(),
            clients: ClientTable::default(),
            records: Records::of(log.as_ref(), RequestIds::Off, false),
            log,
        }
    }

    /// Adds the records of requests that this configuration needs.
    pub(crate) fn with_records(mut self, config: &Settings) -> Self {
        self.records = self.records_of(config);
        self
    }

    /// Adds the records of requests if a replacing configuration needs them. Requests that wait keep their
    /// records.
    pub(crate) fn renew_records(&mut self, config: &Settings) {
        if self.records.is_none() {
            self.records = self.records_of(config);
        }
    }

    fn records_of(&self, config: &Settings) -> Option<Box<Records>> {
        let has_users =
            config.auth.is_some() || config.hosts.iter().any(|host| host.auth.is_some());
        let has_rewrites = !config.site.rules.rewrites.is_empty()
            || config.hosts.iter().any(|host| !host.site.rules.rewrites.is_empty());
        Records::of(self.log.as_ref(), config.request_ids, has_users || has_rewrites)
    }

    /// Begins the iteration of another client. Log lines that are written from now on belong to a client
    /// whose address is not known yet.
    #[inline]
    pub(crate) fn begin_iteration(&mut self) {
        if let Some(log) = &mut self.log {
            log.peer = Peer::Unknown;
        }
    }

    /// Writes the log line of a request that another process answers. This process does not know the status.
    pub(crate) fn log_hand_over(&mut self, socket: BorrowedFd<'_>, request: &[u8]) {
        let fd = socket.as_raw_fd();
        if let Some(records) = &mut self.records {
            records.resume(fd);
        }
        self.log_code(Some(socket), request, 0, 0);
        if let Some(records) = &mut self.records {
            records.leave(fd, false);
        }
    }

    /// Writes a line of the access log, if there is one, for the client of this connection. `request` is
    /// the request line.
    #[inline]
    pub(crate) fn log(&mut self, socket: Option<BorrowedFd<'_>>, request: &[u8], answer: Answer) {
        self.log_code(socket, request, answer.status, answer.len);
    }

    /// Writes a line as [`Self::log`] does, with any status code and the number of bytes of content.
    #[inline]
    pub(crate) fn log_code(
        &mut self,
        socket: Option<BorrowedFd<'_>>,
        request: &[u8],
        status: u16,
        len: u64,
    ) {
        if let Some(records) = &mut self.records {
            records.set_logged();
        }
        let Some(log) = &mut self.log else { return };
        let record = self.records.as_ref().and_then(|records| records.present());
        let elapsed_ms =
            record.map_or(0, |record| self.clock.elapsed_ms().wrapping_sub(record.begun_ms()));
        // The line is that of the client, also after a rewrite.
        let request = record.and_then(|record| record.line()).unwrap_or(request);
        if log.wants(elapsed_ms) {
            log.learn_peer(socket, &self.clients);
            log.write(self.clock.date(), &LogEntry { request, status, len, elapsed_ms, record });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{LogConfig, LogTarget},
        log::Log,
    };
    use std::{
        net::{IpAddr, TcpListener, TcpStream},
        os::fd::AsFd,
    };

    /// Regression: the address was read in each iteration, whether a line was written or not.
    #[test]
    fn the_client_address_is_read_with_the_first_line_of_an_iteration() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let target = LogTarget::File(directory.path().join("log"));
        let log = Log::start(&LogConfig::clf(target)).unwrap();
        let mut worker = WorkerState::new(Some(log.writer()));
        let peer = |worker: &WorkerState| worker.log.as_ref().map(|log| log.peer);
        let own: IpAddr = "127.0.0.1".parse().unwrap();
        for _ in 0..2 {
            worker.begin_iteration();
            assert_eq!(peer(&worker), Some(Peer::Unknown), "the address is not read yet");
            worker.log_code(Some(socket.as_fd()), b"GET / HTTP/1.1", 200, 0);
            assert_eq!(peer(&worker), Some(Peer::Known(Some(own))));
            // The address is not read again: without a socket it would be unknown.
            worker.log_code(None, b"GET / HTTP/1.1", 200, 0);
            assert_eq!(peer(&worker), Some(Peer::Known(Some(own))));
        }
    }
}

//! The configuration of a run.

use crate::{
    schedule::{Arrivals, Length},
    session::{self, Session},
    source::Sources,
    target::{RequestOptions, Targets, Url},
    tls::TlsOptions,
};
use anyhow::{Result, ensure};
use pollux_sys::OwnFileTables;
use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

/// The most threads.
pub const MAX_THREADS: usize = 256;

/// The most clients among whom a schedule is shared.
pub const MAX_CLIENTS: u64 = 1_000_000;

/// The most memory for the requests of a run, in bytes: the request of each URL is written before the
/// run, in two forms, each with the body.
pub const MAX_REQUEST_BYTES: u64 = 4 << 30;

/// The default of `--max-starved`: a closed loop that waits 100 ms per second for a CPU loses a tenth
/// of its requests.
pub const MAX_STARVED: f64 = 0.1;

/// The default of `--max-lag-share`: at most half of a quantile of the latency may be the generator's
/// lag.
pub const MAX_LAG_SHARE: f64 = 0.5;

/// The times at which requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// The schedule, regardless of the server's behaviour.
    Open {
        /// Requests a second.
        rate_rps: f64,
        /// How the arrivals are distributed in time.
        arrivals: Arrivals,
    },
    /// Each connection sends its next request when it has the reply to the previous one.
    Closed,
}

/// How a connection ends after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The generator closes as soon as the reply is complete, as httperf does.
    AtOnce,
    /// The generator waits for the server's close, so that TIME_WAIT falls to the server.
    Wait,
    /// The generator resets (SO_LINGER 0): no TIME_WAIT, and the server sees ECONNRESET.
    Reset,
}

/// What becomes of a request that is due while the limit on connections is reached and none is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtLimit {
    /// It waits for a connection, and the wait is a part of its latency.
    Wait,
    /// It fails ([`crate::outcome::Failure::NoConnection`]), as in httperf, which counts `fd-unavail` when
    /// it has no descriptor. Before that the generator reads the replies that have arrived, which may free
    /// a connection.
    Fail,
}

/// This process's share of a load that several processes generate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The index of the share, from 0.
    pub index: u64,
    /// The number of shares.
    pub count: u64,
}

/// The replies that count as good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Statuses that are good.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// The content's length in bytes, if it must have this value. The agreement with the framing is
    /// always checked.
    pub length: Option<u64>,
}

impl Default for Expectation {
    fn default() -> Self {
        Self { statuses: vec![200..=399], length: None }
    }
}

/// The actions of idle connections before they become idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleKind {
    /// Nothing: they connect only, over TLS with its handshake.
    Connect,
    /// They have sent a part of a request's head.
    Partial,
    /// They send one request, receive the reply, and keep the connection alive.
    AfterRequest,
    /// They send one request, and the reply is an event stream that does not end.
    Subscribe,
}

/// Idle connections to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleConfig {
    /// The number of connections.
    pub count: usize,
    /// Their actions before they become idle.
    pub kind: IdleKind,
}

/// The configuration of a run, made by the command line; [`Config::check`] finds contradictions.
#[derive(Clone, Debug)]
pub struct Config {
    /// The URLs to request, with weights.
    pub urls: Vec<(Url, f64)>,
    /// Requests the URLs one after the other instead of drawing them.
    pub in_turn: bool,
    /// The form of requests.
    pub request: RequestOptions,
    /// The replies that count as good.
    pub expect: Expectation,
    /// Open or closed loop.
    pub pace: Pace,
    /// The size of a burst of the open loop: this many requests are due at a time, at the same mean
    /// rate.
    pub burst: u64,
    /// The length of the measured part.
    pub length: Length,
    /// The part of the run before the measured part: sent but not measured.
    pub warmup: Duration,
    /// Decides Poisson arrivals and the choice among several URLs.
    pub seed: u64,
    /// Connections that are opened before the run and kept: the closed loop's, or a fixed pool for
    /// the schedule.
    pub connections: Option<usize>,
    /// The most connections that the schedule may have open at a time. `None`: as many as it needs, and a
    /// request for which there is no descriptor fails ([`crate::outcome::Failure::NoDescriptors`]).
    pub max_connections: Option<usize>,
    /// What becomes of a request of the schedule that finds no free connection at this limit, or among
    /// [`Config::connections`].
    pub at_limit: AtLimit,
    /// The number of requests of a connection, one after the other; `None` for no limit.
    pub requests_per_connection: Option<u64>,
    /// Sessions of several requests, each on a connection of its own, in place of single requests: the
    /// starts of sessions follow the schedule, at the rate that gives the configured rate of requests.
    pub session: Option<Session>,
    /// The TLS options of `https` URLs.
    pub tls: TlsOptions,
    /// The way in which a connection ends.
    pub closing: Closing,
    /// The longest time from the scheduled instant to the end of the reply.
    pub timeout: Duration,
    /// The longest time for the TCP handshake.
    pub connect_timeout: Duration,
    /// Source addresses.
    pub sources: Option<Sources>,
    /// The number of threads that share the schedule.
    pub threads: usize,
    /// Gives each thread a file table of its own, and with it the whole of RLIMIT_NOFILE and cheaper
    /// system calls, on the program's promise. Without it (the default) all threads share the program's
    /// table and its limit.
    pub own_file_tables: Option<OwnFileTables>,
    /// CPUs: thread i runs on the i-th, modulo their number. If empty, the kernel chooses.
    pub cpus: Vec<usize>,
    /// This process's share of a distributed load.
    pub share: Share,
    /// Idle connections held during the run.
    pub idle: Option<IdleConfig>,
    /// The 99th percentile of the generator's own lag beyond which a run is invalid.
    pub max_lag: Duration,
    /// The largest fraction of the latency, at the median and at the 99th percentile, that may be the
    /// generator's own lag; 1 allows all. Beyond it the latencies are marked as the generator's.
    pub max_lag_share: f64,
    /// The largest fraction of the time for which the generator may wait for a CPU in a closed loop
    /// before the run is invalid; 1 allows all.
    pub max_starved: f64,
    /// The file for the HdrHistogram interval log.
    pub hdr: Option<PathBuf>,
    /// Show progress when standard error is a terminal.
    pub progress: bool,
}

/// The longest run with its warm-up.
const LONGEST: Duration = Duration::from_secs(crate::record::MAX_SAMPLES as u64);
const LONGEST_DAYS: u64 = LONGEST.as_secs() / 86_400;

/// Refuses a run that would measure nothing, or is too long.
pub(crate) fn check_length(warmup: Duration, length: Length) -> Result<()> {
    ensure!(warmup <= LONGEST, "--warm-up: at most {LONGEST_DAYS} days");
    if let Length::Duration(duration) = length {
        ensure!(!duration.is_zero(), "--duration 0: nothing would be measured");
        ensure!(
            duration.saturating_add(warmup) <= LONGEST,
            "--duration: at most {LONGEST_DAYS} days with the warm-up"
        );
    }
    ensure!(length != Length::Requests(0), "--requests 0: nothing would be measured");
    Ok(())
}

/// Refuses a number of requests that takes too long at this rate: the schedule counts in nanoseconds,
/// which a few requests at a very low rate would exceed.
pub(crate) fn check_scheduled_time(rate_rps: f64, warmup: Duration, length: Length) -> Result<()> {
    if let Length::Requests(requests) = length {
        let seconds = warmup.as_secs_f64() + requests as f64 / rate_rps;
        ensure!(
            seconds <= LONGEST.as_secs_f64(),
            "--requests {requests}: at --rate {rate_rps} they take more than {LONGEST_DAYS} days \
             with the warm-up"
        );
    }
    Ok(())
}

impl Config {
    /// A run of `url` at `rate_rps` for `duration`, everything else by default: one connection per
    /// request, as httperf and the papers do.
    pub fn new(url: Url, rate_rps: f64, duration: Duration) -> Self {
        Self {
            urls: vec![(url, 1.0)],
            in_turn: false,
            request: RequestOptions::default(),
            expect: Expectation::default(),
            pace: Pace::Open { rate_rps, arrivals: Arrivals::Constant },
            burst: 1,
            length: Length::Duration(duration),
            warmup: Duration::ZERO,
            seed: 1,
            connections: None,
            max_connections: None,
            at_limit: AtLimit::Wait,
            requests_per_connection: Some(1),
            session: None,
            tls: TlsOptions::default(),
            closing: Closing::AtOnce,
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            sources: None,
            threads: 1,
            own_file_tables: None,
            cpus: Vec::new(),
            share: Share { index: 0, count: 1 },
            idle: None,
            max_lag: Duration::from_millis(5),
            max_lag_share: MAX_LAG_SHARE,
            max_starved: MAX_STARVED,
            hdr: None,
            progress: false,
        }
    }

    /// The URLs to request, and their order.
    ///
    /// # Errors
    /// The errors of [`Targets::new`] and [`Targets::in_turn`].
    pub(crate) fn targets(&self) -> Result<Targets> {
        let urls = self.urls.clone();
        if self.in_turn { Targets::in_turn(urls) } else { Targets::new(urls) }
    }

    /// Finds contradictory options.
    ///
    /// # Errors
    /// An error that names the flag.
    pub fn check(&self) -> Result<()> {
        self.request.check()?;
        self.targets()?;
        let (urls, body) = (self.urls.len() as u64, self.request.body.len() as u64);
        ensure!(
            urls.saturating_mul(body).saturating_mul(2) <= MAX_REQUEST_BYTES,
            "--body: {urls} URLs, each with two copies of {body} bytes, take more than {} GiB of \
             memory",
            MAX_REQUEST_BYTES >> 30
        );
        self.tls.check(self.urls.iter().map(|(url, _)| url))?;
        ensure!(
            (1..=MAX_THREADS).contains(&self.threads),
            "--threads {}: from 1 to {MAX_THREADS}",
            self.threads
        );
        check_length(self.warmup, self.length)?;
        ensure!(
            self.requests_per_connection != Some(0),
            "--requests-per-connection 0: a connection carries at least one"
        );
        for (flag, share) in
            [("--max-lag-share", self.max_lag_share), ("--max-starved", self.max_starved)]
        {
            ensure!((0.0..=1.0).contains(&share), "{flag} {share}: a share, from 0 to 1");
        }
        ensure!(!self.timeout.is_zero(), "--timeout 0: every request would fail");
        ensure!(!self.connect_timeout.is_zero(), "--connect-timeout 0: every connect would fail");
        ensure!(
            self.connections.is_none() || self.max_connections.is_none(),
            "--connections is a fixed number; --max-connections says nothing beside it"
        );
        ensure!(
            self.at_limit == AtLimit::Wait
                || self.connection_limit().is_some() && matches!(self.pace, Pace::Open { .. }),
            "--at-limit fail: this needs a limit, --max-connections or --connections, and a schedule, --rate"
        );
        if let Some((flag, connections)) = self.connection_limit() {
            ensure!(
                connections >= self.threads,
                "{flag} {connections}: at least one for each of {} threads",
                self.threads
            );
        }
        ensure!(
            self.share.count >= 1 && self.share.index < self.share.count,
            "--client: expected I/N with 1 ≤ I ≤ N"
        );
        ensure!(self.share.count <= MAX_CLIENTS, "--client: at most {MAX_CLIENTS} clients");
        if let Some(session) = self.session {
            self.check_session(session)?;
        }
        match self.pace {
            Pace::Closed => {
                ensure!(
                    self.connections.is_some(),
                    "give --rate, or --connections for a closed loop"
                );
                ensure!(
                    self.share.count == 1,
                    "--client: only a schedule (--rate) can be shared among clients"
                );
            }
            Pace::Open { rate_rps, .. } => {
                crate::schedule::check_rate(rate_rps)?;
                crate::schedule::check_burst(self.burst, self.scheduled())?;
                check_scheduled_time(rate_rps, self.warmup, self.length)?;
            }
        }
        Ok(())
    }

    /// The length of the schedule: with sessions, the number of their starts instead of all requests.
    pub(crate) fn scheduled(&self) -> Length {
        match (self.length, self.session) {
            (Length::Requests(all), Some(session)) => Length::Requests(all / session.requests),
            (length, _) => length,
        }
    }

    fn check_session(&self, session: Session) -> Result<()> {
        ensure!(
            (1..=session::MAX_REQUESTS).contains(&session.requests),
            "--session-requests {}: from 1 to {}",
            session.requests,
            session::MAX_REQUESTS
        );
        ensure!(
            matches!(self.pace, Pace::Open { .. }),
            "--session-requests: sessions start by a schedule; give --rate"
        );
        ensure!(
            self.connections.is_none(),
            "--session-requests: each session opens a connection of its own; leave --connections out"
        );
        ensure!(
            session.requests == 1 || !self.request.asks_for_close(),
            "--session-requests: after a request with --header 'Connection: close' no other may \
             follow on its connection"
        );
        if let Length::Requests(requests) = self.length {
            ensure!(
                requests % session.requests == 0,
                "--requests {requests}: not a multiple of --session-requests {}",
                session.requests
            );
        }
        Ok(())
    }

    /// The most connections open at a time, without the idle ones, and the flag that sets it.
    pub fn connection_limit(&self) -> Option<(&'static str, usize)> {
        let fixed = self.connections.map(|connections| ("--connections", connections));
        fixed.or(self.max_connections.map(|connections| ("--max-connections", connections)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_fail_at_a_limit_need_a_limit_and_a_schedule() {
        let mut config = Config::new("http://h/".parse().unwrap(), 1.0, Duration::from_secs(1));
        config.at_limit = AtLimit::Fail;
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("--at-limit") && error.contains("--max-connections"), "{error}");
        config.max_connections = Some(1);
        assert!(config.check().is_ok());
        config.max_connections = None;
        config.connections = Some(1);
        assert!(config.check().is_ok());
        config.pace = Pace::Closed;
        assert!(config.check().is_err(), "a connection of a closed loop has its own requests");
    }

    #[test]
    fn the_memory_for_the_requests_of_a_run_is_bounded() {
        let url: Url = "http://h/".parse().unwrap();
        let mut config = Config::new(url.clone(), 1.0, Duration::from_secs(1));
        config.request.body = vec![b'x'; 1 << 20];
        config.urls = vec![(url.clone(), 1.0); 2048];
        config.check().unwrap();
        config.urls.push((url, 1.0));
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("--body: 2049 URLs") && error.contains("4 GiB"), "{error}");
    }

    /// Regression test: the product of the numbers of clients and threads once overflowed.
    #[test]
    fn the_number_of_clients_is_bounded() {
        let mut config = Config::new("http://h/".parse().unwrap(), 1.0, Duration::from_secs(1));
        config.share = Share { index: MAX_CLIENTS - 1, count: MAX_CLIENTS };
        config.check().unwrap();
        config.share.count = u64::MAX;
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("--client: at most 1000000"), "{error}");
    }
}

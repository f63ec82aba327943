//! The immutable data that all threads share: the configuration, prepared for the loop.

use crate::{
    config::{AtLimit, Closing, Config, Pace},
    schedule::{Lane, Schedule, nanoseconds},
    session::SessionPlan,
    source::Sources,
    target::Targets,
    tls::TlsPlan,
};
use anyhow::Result;
use pollux_sys::{Address, OwnFileTables};
use std::{
    net::SocketAddr,
    time::{Instant, SystemTime},
};

/// The bytes of one request, in both forms.
#[derive(Debug)]
pub(crate) struct RequestBytes {
    /// For a connection that may send more requests.
    more: Box<[u8]>,
    /// For the connection's last request.
    last: Box<[u8]>,
}

impl RequestBytes {
    #[inline]
    pub(crate) fn get(&self, last: bool) -> &[u8] {
        if last { &self.last } else { &self.more }
    }
}

/// A prepared run.
pub(crate) struct Plan {
    pub(crate) destination: SocketAddr,
    pub(crate) address: Address,
    pub(crate) sources: Option<Sources>,
    /// The TLS settings, for `https` URLs.
    pub(crate) tls: Option<TlsPlan>,
    pub(crate) requests: Vec<RequestBytes>,
    pub(crate) is_head: bool,
    pub(crate) targets: Targets,
    /// Whether a status is good, indexed by status.
    pub(crate) good_status: Vec<bool>,
    pub(crate) expected_length: Option<u64>,
    /// The open loop's schedule; `None` for a closed loop.
    pub(crate) schedule: Option<Schedule>,
    pub(crate) seed: u64,
    pub(crate) warmup_ns: u64,
    /// The scheduled length of the measured part; for a closed loop that counts requests, the
    /// longest run.
    pub(crate) window_ns: u64,
    /// Requests are counted, not time: the rate is computed over all replies.
    pub(crate) is_counted: bool,
    /// The number of requests that a closed loop sends, if it counts them.
    pub(crate) closed_requests: Option<u64>,
    pub(crate) requests_per_connection: u64,
    pub(crate) session: Option<SessionPlan>,
    pub(crate) closing: Closing,
    pub(crate) timeout_ns: u64,
    pub(crate) connect_timeout_ns: u64,
    pub(crate) threads: usize,
    pub(crate) own_file_tables: Option<OwnFileTables>,
    /// The most connections; `None`: as many as there are descriptors.
    pub(crate) connection_limit: Option<usize>,
    pub(crate) at_limit: AtLimit,
    /// Connections to open before the run.
    pub(crate) standing: usize,
    pub(crate) client: (u64, u64),
    pub(crate) intervals: bool,
    /// The origin of all times of a run, which are in nanoseconds.
    pub(crate) origin: Instant,
    /// The origin by the calendar clock.
    pub(crate) origin_time: SystemTime,
}

impl Plan {
    /// Draws the schedule and writes the requests.
    ///
    /// # Errors
    /// The errors of [`Schedule::draw`] and [`Targets::new`].
    pub(crate) fn new(config: &Config, destination: SocketAddr) -> Result<Self> {
        use crate::schedule::Length;
        let warmup_ns = nanoseconds(config.warmup);
        let schedule = match config.pace {
            Pace::Open { rate_rps, arrivals } => {
                let (warmup, seed) = (config.warmup, config.seed);
                // The schedule contains the starts of sessions.
                let requests = config.session.map_or(1, |session| session.requests);
                let length = config.scheduled();
                let rate = rate_rps / requests as f64;
                Some(Schedule::draw_bursts(arrivals, rate, config.burst, warmup, length, seed)?)
            }
            Pace::Closed => None,
        };
        let window_ns = match (&schedule, config.length) {
            (Some(schedule), _) => schedule.window_ns(),
            (None, Length::Duration(duration)) => nanoseconds(duration),
            (None, Length::Requests(_)) => crate::record::MAX_SAMPLES as u64 * 1_000_000_000,
        };
        let closed_requests = match (&schedule, config.length) {
            (None, Length::Requests(requests)) => Some(requests),
            _ => None,
        };
        let targets = config.targets()?;
        let requests = targets
            .urls()
            .iter()
            .map(|url| {
                let bytes = |last| config.request.write(url, last).map(Vec::into_boxed_slice);
                Ok(RequestBytes { more: bytes(false)?, last: bytes(true)? })
            })
            .collect::<Result<_>>()?;
        let mut good_status = vec![false; 1000];
        for range in &config.expect.statuses {
            for status in range.clone() {
                if let Some(good) = good_status.get_mut(usize::from(status)) {
                    *good = true;
                }
            }
        }
        Ok(Self {
            destination,
            address: destination.into(),
            sources: config.sources,
            tls: TlsPlan::new(&config.tls, &targets.urls()[0])?,
            requests,
            is_head: config.request.method == "HEAD",
            targets,
            good_status,
            expected_length: config.expect.length,
            schedule,
            seed: config.seed,
            warmup_ns,
            window_ns,
            is_counted: matches!(config.length, Length::Requests(_)),
            closed_requests,
            requests_per_connection: match config.session {
                Some(session) => session.requests,
                None if config.request.asks_for_close() => 1,
                None => config.requests_per_connection.unwrap_or(u64::MAX),
            },
            session: config.session.map(|session| SessionPlan {
                requests: session.requests,
                think_ns: nanoseconds(session.think),
                is_cut: matches!(config.length, Length::Duration(_)),
            }),
            closing: config.closing,
            timeout_ns: nanoseconds(config.timeout),
            connect_timeout_ns: nanoseconds(config.connect_timeout),
            threads: config.threads,
            own_file_tables: config.own_file_tables,
            connection_limit: config.connection_limit().map(|(_, connections)| connections),
            at_limit: config.at_limit,
            standing: config.connections.unwrap_or(0),
            client: (config.share.index, config.share.count),
            intervals: config.hdr.is_some(),
            origin: Instant::now(),
            origin_time: SystemTime::now(),
        })
    }

    /// The part of the schedule that `thread` sends.
    pub(crate) fn lane(&self, thread: usize) -> Lane {
        let (client, clients) = self.client;
        let threads = self.threads as u64;
        Lane { offset: thread as u64 * clients + client, stride: threads * clients }
    }

    /// The part of `total` that belongs to `thread`.
    pub(crate) fn part(&self, thread: usize, total: usize) -> usize {
        Lane { offset: thread as u64, stride: self.threads as u64 }.share(total as u64) as usize
    }

    /// The time after the start of the measured part within which a reply counts for the rate.
    pub(crate) fn counted_ns(&self) -> u64 {
        if self.is_counted { u64::MAX } else { self.window_ns }
    }

    /// The current time, in nanoseconds from the origin.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

//! The configuration of `pollux load --subscribe`.

use super::payload;
use crate::{
    config::{self, Config, MAX_THREADS},
    schedule::{self, Arrivals, Length, Schedule},
    source::Sources,
    target::{RequestOptions, Url},
    tls::TlsOptions,
};
use anyhow::{Result, ensure};
use pollux_sys::OwnFileTables;
use std::time::Duration;

/// The placeholder for the content in the body of a publication.
pub const DATA: &str = "{data}";

/// The most publications of a run: each is counted separately, in every thread.
pub const MAX_PUBLICATIONS: u64 = 1_000_000;

/// The longest [`PushConfig::quiet_time`].
const MAX_QUIET_TIME: Duration = Duration::from_secs(3600);

/// How updates are published.
#[derive(Clone, Debug)]
pub struct PublishOptions {
    /// The URL to which updates are posted.
    pub url: Url,
    /// Fields of the requests; one of them may be Content-Type.
    pub headers: Vec<(String, String)>,
    /// The content of the requests, in which [`DATA`] is replaced by the content of the update.
    pub body: String,
}

/// The configuration of a run with subscribers.
#[derive(Clone, Debug)]
pub struct PushConfig {
    /// The subscription: the whole URL.
    pub url: Url,
    /// Fields of the subscriptions.
    pub headers: Vec<(String, String)>,
    /// The number of subscribers.
    pub subscribers: usize,
    /// How updates are published.
    pub publish: PublishOptions,
    /// Content of each update, in bytes.
    pub update_bytes: usize,
    /// Whether the data of an event must be exactly the content; otherwise the data may contain it
    /// anywhere.
    pub is_exact: bool,
    /// Updates per second.
    pub rate_rps: f64,
    /// The distribution of updates in time.
    pub arrivals: Arrivals,
    /// The number of updates that are published at a time.
    pub burst: u64,
    /// The length of the measured part.
    pub length: Length,
    /// The time before the measured part, in which updates are published but not measured.
    pub warmup: Duration,
    /// Decides random arrivals.
    pub seed: u64,
    /// The time, from the start, at which all subscribers close their connections and connect again.
    pub reconnect_at: Option<Duration>,
    /// How long the streams stay open without an update, before the first one and after the last
    /// delivery, so that another program can examine the server. `None`: as short as possible.
    pub quiet_time: Option<Duration>,
    /// The longest time that an answer to a publication may take. The run ends at the latest when this time has
    /// passed since the scheduled instant of the last update. Deliveries that are missing at the end are lost.
    pub timeout: Duration,
    /// The longest time for the handshake and the head of the stream.
    pub connect_timeout: Duration,
    /// Source addresses.
    pub sources: Option<Sources>,
    /// The least number of threads that hold subscribers.
    pub threads: usize,
    /// As in [`Config`].
    pub own_file_tables: Option<OwnFileTables>,
    /// CPUs of the threads that hold subscribers, used in rotation.
    pub cpus: Vec<usize>,
    /// The TLS options of `https` URLs.
    pub tls: TlsOptions,
    /// The 99th percentile of the lag of publications beyond which a run is invalid.
    pub max_lag: Duration,
    /// Keep a histogram of each second.
    pub intervals: bool,
    /// Show progress when standard error is a terminal.
    pub progress: bool,
}

impl PushConfig {
    /// The configuration for the subscribers and publications that `config` describes, for its first
    /// URL.
    pub fn new(config: &Config, subscribers: usize, publish: PublishOptions) -> Result<Self> {
        let crate::config::Pace::Open { rate_rps, arrivals } = config.pace else {
            anyhow::bail!("--subscribe: updates follow a schedule; give --rate");
        };
        let [(url, _)] = &config.urls[..] else {
            anyhow::bail!("--subscribe: expected one URL, that of the subscription");
        };
        Ok(Self {
            url: url.clone(),
            headers: config.request.headers.clone(),
            subscribers,
            publish,
            update_bytes: 100,
            is_exact: true,
            rate_rps,
            arrivals,
            burst: config.burst,
            length: config.length,
            warmup: config.warmup,
            seed: config.seed,
            reconnect_at: None,
            quiet_time: None,
            timeout: config.timeout,
            connect_timeout: config.connect_timeout,
            sources: config.sources,
            threads: config.threads,
            own_file_tables: config.own_file_tables,
            cpus: config.cpus.clone(),
            tls: config.tls.clone(),
            max_lag: config.max_lag,
            intervals: config.hdr.is_some(),
            progress: config.progress,
        })
    }

    /// Finds contradictory options.
    ///
    /// # Errors
    /// An error that names the flag.
    pub fn check(&self) -> Result<()> {
        self.subscription().check()?;
        self.publication(String::new()).check()?;
        self.tls.check([&self.url, &self.publish.url].into_iter())?;
        config::check_length(self.warmup, self.length)?;
        ensure!(self.subscribers > 0, "--subscribe 0: nobody would receive anything");
        ensure!(
            u32::try_from(self.subscribers).is_ok(),
            "--subscribe {}: at most {}",
            self.subscribers,
            u32::MAX
        );
        ensure!(
            (1..=MAX_THREADS).contains(&self.threads),
            "--threads {}: from 1 to {MAX_THREADS}",
            self.threads
        );
        ensure!(
            (payload::MIN_BYTES..=1 << 20).contains(&self.update_bytes),
            "--update-size {}: from {} bytes, which say what update it is, to 1 MiB",
            self.update_bytes,
            payload::MIN_BYTES
        );
        ensure!(
            self.publish.body.matches(DATA).count() == 1,
            "--publish-body: {DATA} must stand in it once, for the content of the update"
        );
        ensure!(
            self.quiet_time.is_none_or(|time| time <= MAX_QUIET_TIME),
            "--quiet-time: at most {MAX_QUIET_TIME:?}"
        );
        ensure!(
            self.quiet_time.is_none() || self.reconnect_at.is_none(),
            "--quiet-time and --reconnect-at exclude each other: all streams stay open in a quiet time"
        );
        ensure!(!self.timeout.is_zero(), "--timeout 0: every delivery would fail");
        ensure!(!self.connect_timeout.is_zero(), "--connect-timeout 0: every connect would fail");
        schedule::check_rate(self.rate_rps)?;
        schedule::check_burst(self.burst, self.length)?;
        config::check_scheduled_time(self.rate_rps, self.warmup, self.length)?;
        let schedule = self.schedule()?;
        ensure!(
            !schedule.is_empty(),
            "the schedule is empty: no update falls into so short a run at so low a --rate"
        );
        ensure!(
            schedule.len() <= MAX_PUBLICATIONS,
            "{} updates: at most {MAX_PUBLICATIONS}, since each is counted by itself; lower --rate or \
             --duration",
            schedule.len()
        );
        let last = Duration::from_nanos(schedule.last_ns());
        ensure!(
            self.reconnect_at.is_none_or(|at| at <= last),
            "--reconnect-at: the last update is {last:?} after the start, and the run may end then"
        );
        Ok(())
    }

    /// The instants of all publications.
    ///
    /// # Errors
    /// The errors of [`Schedule::draw_bursts`].
    pub(super) fn schedule(&self) -> Result<Schedule> {
        let (rate, burst) = (self.rate_rps, self.burst);
        Schedule::draw_bursts(self.arrivals, rate, burst, self.warmup, self.length, self.seed)
    }

    /// The requests of the subscribers.
    pub(super) fn subscription(&self) -> RequestOptions {
        let mut headers = self.headers.clone();
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("Accept")) {
            headers.push(("Accept".into(), "text/event-stream".into()));
        }
        RequestOptions { headers, ..RequestOptions::default() }
    }

    /// The request that publishes `data`.
    pub(super) fn publication(&self, data: String) -> RequestOptions {
        let mut headers = self.publish.headers.clone();
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("Content-Type")) {
            headers.push(("Content-Type".into(), "application/x-www-form-urlencoded".into()));
        }
        let body = self.publish.body.replacen(DATA, &data, 1).into_bytes();
        RequestOptions { method: "POST".into(), headers, body }
    }
}

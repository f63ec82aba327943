//! The data that all threads of a run share.

use super::{config::PushConfig, payload::Payloads};
use crate::{
    outcome::Failure,
    schedule::{Schedule, nanoseconds},
    target,
    tls::TlsPlan,
};
use anyhow::Result;
use pollux_sys::Address;
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

/// A prepared run. Times are nanoseconds from the origin.
pub(crate) struct PushPlan {
    pub(crate) config: PushConfig,
    pub(crate) destination: SocketAddr,
    pub(crate) address: Address,
    pub(crate) publish_address: Address,
    /// The subscribers' request without the empty line that ends it.
    pub(crate) head: Box<[u8]>,
    pub(crate) tls: Option<TlsPlan>,
    pub(crate) publish_tls: Option<TlsPlan>,
    pub(crate) schedule: Schedule,
    pub(crate) payloads: Payloads,
    pub(crate) origin: Instant,
    /// The origin by the calendar clock.
    pub(crate) origin_time: SystemTime,
    pub(crate) progress: Arc<RunProgress>,
}

/// The counters and flags by which the threads of a run inform each other.
#[derive(Debug, Default)]
pub(crate) struct RunProgress {
    /// The start of the schedule; 0 until it is known.
    pub(crate) start_ns: AtomicU64,
    /// Subscribers whose stream is open.
    pub(crate) held: AtomicUsize,
    /// Deliveries so far.
    pub(crate) delivered: AtomicU64,
    /// Publications that were sent, acknowledged, and failed.
    pub(crate) sent: AtomicU64,
    pub(crate) acknowledged: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Threads whose subscribers have received everything that they can get.
    pub(crate) complete_threads: AtomicUsize,
    /// All publications of this process have an outcome.
    pub(crate) is_published: AtomicBool,
    /// The run ends early: a thread has failed.
    pub(crate) is_broken: AtomicBool,
    /// The last reason why a stream could not be opened.
    pub(crate) last_failure: Mutex<Option<(Failure, String)>>,
}

impl PushPlan {
    /// Draws the schedule, resolves the names and writes the request.
    ///
    /// # Errors
    /// A name does not resolve; the errors of the configuration's check.
    pub(crate) fn new(config: &PushConfig, run: u32) -> Result<Self> {
        let destination = target::resolve(&config.url.host, config.url.port, config.sources)?;
        if let Some(sources) = config.sources {
            sources.check(destination.ip())?;
        }
        let publish = &config.publish.url;
        let publish_destination = match publish.has_address_of(&config.url) {
            true => destination,
            false => target::resolve(&publish.host, publish.port, None)?,
        };
        Ok(Self {
            destination,
            address: destination.into(),
            publish_address: publish_destination.into(),
            head: config.subscription().write_head(&config.url, false)?.into(),
            tls: TlsPlan::new(&config.tls, &config.url)?,
            publish_tls: TlsPlan::new(&config.tls, publish)?,
            schedule: config.schedule()?,
            payloads: Payloads::new(run, config.update_bytes),
            origin: Instant::now(),
            origin_time: SystemTime::now(),
            progress: Arc::default(),
            config: config.clone(),
        })
    }

    /// The current time.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// The start of the schedule, once it is known.
    #[inline]
    pub(crate) fn start_ns(&self) -> Option<u64> {
        match self.progress.start_ns.load(Relaxed) {
            0 => None,
            start_ns => Some(start_ns),
        }
    }

    /// The latest end of a run that began at `start_ns`: later deliveries count as lost, and nothing is published
    /// after it.
    pub(crate) fn end_ns(&self, start_ns: u64) -> u64 {
        let timeout_ns = nanoseconds(self.config.timeout);
        start_ns.saturating_add(self.schedule.last_ns()).saturating_add(timeout_ns)
    }

    /// Whether publication `number` belongs to the measured part.
    #[inline]
    pub(crate) fn is_measured(&self, scheduled_ns: u64) -> bool {
        scheduled_ns >= nanoseconds(self.config.warmup)
    }

    /// Whether the process's threads must end, regardless of missing deliveries.
    pub(crate) fn is_stopped(&self, stop: &AtomicBool) -> bool {
        stop.load(Relaxed) || self.progress.is_broken.load(Relaxed)
    }

    /// Stores the reason why a stream could not be opened.
    pub(crate) fn note_failure(&self, kind: Failure, reason: impl FnOnce() -> String) {
        if let Ok(mut last) = self.progress.last_failure.lock() {
            *last = Some((kind, reason()));
        }
    }
}

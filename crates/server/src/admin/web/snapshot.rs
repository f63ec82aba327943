//! The statistics of one moment, and the functions that provide them.

use super::process::{self, ProcessFigures};
use crate::stats::Statistics;
use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// The properties that do not change while a server runs.
#[derive(Clone, Debug)]
pub(crate) struct ServerInfo {
    /// The mechanism that really runs.
    pub(crate) mechanism: String,
    pub(crate) architecture: String,
    /// The number of workers that were started.
    pub(crate) workers: usize,
    /// The status of the orders for certificates.
    pub(crate) acme: Option<Arc<pollux_acme::Status>>,
}

/// A function that returns the sum of the workers' statistics.
pub(crate) type Figures = Box<dyn Fn() -> Statistics + Send + Sync>;
/// A function that returns the number of workers that run.
pub(crate) type WorkerCount = Box<dyn Fn() -> usize + Send + Sync>;

/// The server as the admin listener sees it.
pub(crate) struct ServerView {
    info: ServerInfo,
    figures: Figures,
    running: WorkerCount,
    is_stopping: AtomicBool,
    started_at: Instant,
    /// The last two snapshots of the page, from which rates are computed.
    recent: Mutex<[Snapshot; 2]>,
}

/// The statistics of one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) info: ServerInfo,
    pub(crate) statistics: Statistics,
    pub(crate) process: ProcessFigures,
    pub(crate) running: usize,
    /// The number of workers that should run.
    pub(crate) wanted: usize,
    /// The time since the start.
    pub(crate) uptime: Duration,
}

impl Snapshot {
    /// Returns whether idle and active connections are counted separately.
    pub(crate) fn knows_states(&self) -> bool {
        self.info.architecture == "event"
    }
}

/// The minimum interval for rates on a page without JavaScript.
const RECENT_MIN: Duration = Duration::from_secs(1);

impl ServerView {
    /// Creates the state of a server that has just been started.
    pub(crate) fn new(info: ServerInfo, figures: Figures, running: WorkerCount) -> Self {
        let zero = Snapshot {
            info: info.clone(),
            statistics: Statistics::default(),
            process: ProcessFigures::default(),
            running: info.workers,
            wanted: info.workers,
            uptime: Duration::ZERO,
        };
        Self {
            info,
            figures,
            running,
            is_stopping: AtomicBool::new(false),
            started_at: Instant::now(),
            recent: Mutex::new([zero.clone(), zero]),
        }
    }

    pub(crate) fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// Returns how many workers run, and how many should. During a stop a worker ends with its last connection, so that
    /// only those that still run should.
    pub(crate) fn running_of(&self) -> (usize, usize) {
        let running = (self.running)();
        // Read after the count: a worker that has ended for a stop is never counted as one that should run.
        (running, if self.is_stopping() { running } else { self.info.workers })
    }

    /// Returns whether a stop was requested.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(SeqCst)
    }

    /// Notes that a stop was requested: the server is no longer ready.
    pub(crate) fn begin_stop(&self) {
        self.is_stopping.store(true, SeqCst);
    }

    /// Returns the present statistics.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (running, wanted) = self.running_of();
        Snapshot {
            info: self.info.clone(),
            statistics: (self.figures)(),
            process: process::figures(),
            running,
            wanted,
            uptime: self.started_at.elapsed(),
        }
    }

    /// Returns an earlier snapshot, with which the caller computes rates; at the first call that of
    /// the start.
    pub(super) fn earlier(&self) -> Snapshot {
        let now = self.snapshot();
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if now.uptime.saturating_sub(recent[1].uptime) >= RECENT_MIN {
            recent.swap(0, 1);
            recent[1] = now;
        }
        recent[0].clone()
    }
}

impl fmt::Debug for ServerView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerView").field("info", &self.info).finish_non_exhaustive()
    }
}

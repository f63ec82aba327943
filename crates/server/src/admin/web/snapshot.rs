//! The figures of one moment, and where they come from.

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

/// What does not change while a server runs.
#[derive(Clone, Debug)]
pub(crate) struct ServerInfo {
    /// The mechanism that really runs.
    pub(crate) mechanism: String,
    pub(crate) architecture: String,
    /// Workers that were started.
    pub(crate) workers: usize,
    /// What became of orders for certificates.
    pub(crate) acme: Option<Arc<pollux_acme::Status>>,
}

/// Adds up the workers' figures.
pub(crate) type Figures = Box<dyn Fn() -> Statistics + Send + Sync>;
/// Counts the workers that run.
pub(crate) type Running = Box<dyn Fn() -> usize + Send + Sync>;

/// A server, seen by the admin listener.
pub(crate) struct Observed {
    info: ServerInfo,
    figures: Figures,
    running: Running,
    is_stopping: AtomicBool,
    started_at: Instant,
    /// The last snapshots that the page was made of, for rates.
    recent: Mutex<[Snapshot; 2]>,
}

/// The figures of one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) info: ServerInfo,
    pub(crate) statistics: Statistics,
    pub(crate) process: ProcessFigures,
    pub(crate) running: usize,
    /// Since the start.
    pub(crate) uptime: Duration,
}

impl Snapshot {
    /// Whether idle and active connections are counted apart.
    pub(crate) fn knows_states(&self) -> bool {
        self.info.architecture == "event"
    }
}

/// Rates on a page without JavaScript are of at least this time.
const RECENT_MIN: Duration = Duration::from_secs(1);

impl Observed {
    /// A server that has just been started.
    pub(crate) fn new(info: ServerInfo, figures: Figures, running: Running) -> Self {
        let zero = Snapshot {
            info: info.clone(),
            statistics: Statistics::default(),
            process: ProcessFigures::default(),
            running: info.workers,
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

    /// How many workers run.
    pub(crate) fn running(&self) -> usize {
        (self.running)()
    }

    /// Whether a stop was requested.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(SeqCst)
    }

    /// A stop was requested: the server is not ready any more.
    pub(crate) fn begin_stop(&self) {
        self.is_stopping.store(true, SeqCst);
    }

    /// The figures now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            info: self.info.clone(),
            statistics: (self.figures)(),
            process: process::figures(),
            running: self.running(),
            uptime: self.started_at.elapsed(),
        }
    }

    /// Figures of a while ago, at the first call those of the start, to make rates with the present ones.
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

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").field("info", &self.info).finish_non_exhaustive()
    }
}

//! Idle connections: opened, held, and re-opened when the server drops them, as the papers'
//! idleconn does.

mod first_reply;
mod holder;

use crate::{
    config::{IdleConfig, IdleKind},
    host::{self, RESERVED_DESCRIPTORS},
    outcome::Failure,
    source::Sources,
    target::{RequestOptions, Url},
    tls::{HandshakeCounts, HandshakeEnd, TlsOptions, TlsPlan},
};
use anyhow::{Context, Result, bail, ensure};
use holder::IdleHolder;
use pollux_sys::OwnFileTables;
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The set-up fails if no further connection is established for this long, or for the longest time that
/// a connection may take, if that is longer.
pub const SETUP_PATIENCE: Duration = Duration::from_secs(10);

/// The patience of a set-up whose connections may each take `timeout`.
pub(crate) fn setup_patience(timeout: Duration) -> Duration {
    SETUP_PATIENCE.max(timeout)
}

/// The most threads, each with a file table of its own, that hold idle connections.
pub const MAX_HOLDERS: usize = 256;

/// The idle connections to open, and their options.
#[derive(Clone, Debug)]
pub struct IdlePlan {
    /// Their number and state.
    pub config: IdleConfig,
    /// The server.
    pub destination: SocketAddr,
    /// Source addresses.
    pub sources: Option<Sources>,
    /// The target of the request.
    pub url: Url,
    /// The options for writing the request.
    pub request: RequestOptions,
    /// The TLS options of an `https` URL.
    pub tls: TlsOptions,
    /// The longest time for the handshakes and, with [`IdleKind::AfterRequest`], for the reply.
    pub timeout: Duration,
    /// The most connections that are begun per second. Without a limit, each holder has as many in progress
    /// as a usual backlog takes.
    pub rate: Option<f64>,
    /// CPUs for the threads that hold them. Empty: no binding.
    pub cpus: Vec<usize>,
    /// With the program's promise, as many file tables are made as the connections need. Without it
    /// all connections must fit into the program's own table.
    pub own_file_tables: Option<OwnFileTables>,
}

impl IdlePlan {
    /// The bytes that a connection sends before it becomes idle.
    fn bytes(&self) -> Result<Vec<u8>> {
        match self.config.kind {
            IdleKind::Connect => Ok(Vec::new()),
            // Everything but the empty line that would end the head.
            IdleKind::Partial => self.request.write_head(&self.url, false),
            IdleKind::AfterRequest | IdleKind::Subscribe => self.request.write(&self.url, false),
        }
    }
}

/// The counters of all holders.
#[derive(Debug, Default)]
struct IdleCounters {
    held: AtomicUsize,
    opened: AtomicU64,
    reopened: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    full_handshakes: AtomicU64,
    resumed_handshakes: AtomicU64,
    handshake_ns: AtomicU64,
    /// The [`Failure`] of the last failed attempt, by number, plus 1; 0 if none failed.
    last_failure: AtomicUsize,
    /// The reason of the last TLS failure.
    last_tls: Mutex<String>,
    /// The number of the last failed system call (errno(3)), or 0.
    last_error: AtomicI32,
}

impl IdleCounters {
    fn report(&self, wanted: usize) -> IdleReport {
        IdleReport {
            wanted,
            held: self.held.load(Relaxed),
            opened: self.opened.load(Relaxed),
            reopened: self.reopened.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            failed: self.failed.load(Relaxed),
            handshakes: HandshakeCounts {
                full: self.full_handshakes.load(Relaxed),
                resumed: self.resumed_handshakes.load(Relaxed),
            },
            handshake_ns: self.handshake_ns.load(Relaxed),
        }
    }

    /// Counts a TLS handshake that ended `took` after the TCP handshake.
    fn count_handshake(&self, end: HandshakeEnd, took: Duration) {
        let count = if end.is_resumed { &self.resumed_handshakes } else { &self.full_handshakes };
        count.fetch_add(1, Relaxed);
        self.handshake_ns.fetch_add(took.as_nanos() as u64, Relaxed);
    }
}

/// The state of the idle connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleReport {
    /// The number of requested connections.
    pub wanted: usize,
    /// The number of connections held at the end.
    pub held: usize,
    /// The number of times that a connection became idle, for the first time or again.
    pub opened: u64,
    /// Of these, replacements of connections that were lost.
    pub reopened: u64,
    /// The number of connections that the server closed or reset while they were idle.
    pub dropped: u64,
    /// The number of failed attempts: refused, timed out, no descriptor, …
    pub failed: u64,
    /// TLS handshakes that were completed.
    pub handshakes: HandshakeCounts,
    /// The sum of their times, each from the end of the TCP handshake, in nanoseconds.
    pub handshake_ns: u64,
}

impl std::ops::AddAssign for IdleReport {
    /// Adds the state of another rank.
    fn add_assign(&mut self, other: Self) {
        self.wanted += other.wanted;
        self.held += other.held;
        self.opened += other.opened;
        self.reopened += other.reopened;
        self.dropped += other.dropped;
        self.failed += other.failed;
        self.handshakes.merge(other.handshakes);
        self.handshake_ns += other.handshake_ns;
    }
}

/// Idle connections, held by threads that belong to this value; dropping it closes them.
#[derive(Debug)]
pub struct IdlePool {
    wanted: usize,
    patience: Duration,
    destination: SocketAddr,
    counters: Arc<IdleCounters>,
    stop: Arc<AtomicBool>,
    holders: Vec<JoinHandle<Result<()>>>,
}

impl IdlePool {
    /// Starts to open the connections.
    ///
    /// With [`IdlePlan::own_file_tables`] each thread has its own file table, so that the limit on
    /// descriptors (`descriptor_limit`, RLIMIT_NOFILE) applies to each thread alone. As many
    /// threads are started as the connections need.
    ///
    /// # Errors
    /// More connections than one table, or [`MAX_HOLDERS`] tables, can hold; no interest set or
    /// thread is available.
    pub fn start(plan: &IdlePlan, descriptor_limit: u64) -> Result<Self> {
        let limit = usize::try_from(descriptor_limit).unwrap_or(usize::MAX);
        let table = limit.saturating_sub(RESERVED_DESCRIPTORS);
        ensure!(
            table > 0,
            "the limit on descriptors, {limit}, leaves none for connections: raise `ulimit -n`"
        );
        let count = plan.config.count;
        let holders = count.div_ceil(table).max(1);
        ensure!(
            holders == 1 || plan.own_file_tables.is_some(),
            "{count} idle connections do not fit into one file table of {limit} descriptors, and \
             this program has not allowed more (IdlePlan::own_file_tables): raise `ulimit -n`"
        );
        ensure!(
            holders <= MAX_HOLDERS,
            "{count} idle connections need {holders} file tables of {limit} descriptors, and at \
             most {MAX_HOLDERS} are made: raise the hard limit (`ulimit -Hn`)"
        );
        let mut pool = Self {
            wanted: count,
            patience: setup_patience(plan.timeout),
            destination: plan.destination,
            counters: Arc::default(),
            stop: Arc::default(),
            holders: Vec::new(),
        };
        let bytes: Arc<[u8]> = plan.bytes()?.into();
        let tls = TlsPlan::new(&plan.tls, &plan.url)?;
        for index in 0..holders {
            let part = count / holders + usize::from(index < count % holders);
            let holder = IdleHolder::new(plan, bytes.clone(), tls.clone(), part, (index, holders));
            let (counters, stop) = (pool.counters.clone(), pool.stop.clone());
            let cpu = plan.cpus.get(index % plan.cpus.len().max(1)).copied();
            let thread = std::thread::Builder::new()
                .name(format!("idle-{index}"))
                .spawn(move || {
                    host::pin(cpu)?;
                    holder.run(&counters, &stop)
                })
                .context("starting a thread that holds idle connections")?;
            pool.holders.push(thread);
        }
        Ok(pool)
    }

    /// Waits until all are held, and passes their number to `progress`. Returns false when `stop`
    /// was set meanwhile.
    ///
    /// # Errors
    /// No progress within the longer of [`SETUP_PATIENCE`] and [`IdlePlan::timeout`], with the last failure and its
    /// remedy; a holder's own error.
    pub fn wait_until_held(
        &mut self,
        stop: &AtomicBool,
        mut progress: impl FnMut(usize),
    ) -> Result<bool> {
        let mut most = 0;
        let mut progressed_at = Instant::now();
        loop {
            let held = self.counters.held.load(Relaxed);
            progress(held);
            if held >= self.wanted {
                return Ok(true);
            }
            if stop.load(Relaxed) {
                return Ok(false);
            }
            if held > most {
                most = held;
                progressed_at = Instant::now();
            }
            self.check()?;
            if progressed_at.elapsed() > self.patience {
                bail!(
                    "only {most} of {} idle connections to {} could be held{}",
                    self.wanted,
                    self.destination,
                    self.last_failure()
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Checks that all threads still hold their connections. The caller calls it from time to time.
    ///
    /// # Errors
    /// The reason why one of them ended early. The others then close their connections.
    pub fn check(&mut self) -> Result<()> {
        let Some(at) = self.holders.iter().position(JoinHandle::is_finished) else {
            return Ok(());
        };
        let holder = self.holders.swap_remove(at);
        self.stop.store(true, Relaxed);
        join(holder)?;
        bail!("a thread that holds idle connections ended");
    }

    fn last_failure(&self) -> String {
        let index = self.counters.last_failure.load(Relaxed);
        let Some(kind) = index.checked_sub(1).and_then(|index| Failure::ALL.get(index)) else {
            return ": the rest hangs in the handshake or waits for its first reply".into();
        };
        let what = match self.counters.last_error.load(Relaxed) {
            // Errors without a kind of their own have a name, such as "Network is unreachable".
            error if *kind == Failure::Other && error != 0 => {
                io::Error::from_raw_os_error(error).to_string()
            }
            _ if *kind == Failure::Tls => {
                self.counters.last_tls.lock().map(|text| text.clone()).unwrap_or_default()
            }
            _ => kind.name().to_owned(),
        };
        let advice = kind.advice().map(|advice| format!("; {advice}")).unwrap_or_default();
        format!("; the last failure was: {what}{advice}")
    }

    /// The present state.
    pub fn report(&self) -> IdleReport {
        self.counters.report(self.wanted)
    }

    /// A function that returns the present state, from any thread.
    pub(crate) fn gauge(&self) -> impl Fn() -> IdleReport + Send + 'static {
        let (counters, wanted) = (self.counters.clone(), self.wanted);
        move || counters.report(wanted)
    }

    /// Closes all connections.
    ///
    /// # Errors
    /// The reason why a holder ended early.
    pub fn stop(mut self) -> Result<IdleReport> {
        let report = self.report();
        self.stop.store(true, Relaxed);
        for holder in std::mem::take(&mut self.holders) {
            join(holder)?;
        }
        Ok(report)
    }
}

impl Drop for IdlePool {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for holder in std::mem::take(&mut self.holders) {
            let _ = holder.join();
        }
    }
}

fn join(holder: JoinHandle<Result<()>>) -> Result<()> {
    match holder.join() {
        Ok(outcome) => outcome.context("holding idle connections"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_up_waits_as_long_as_a_connection_may_take() {
        assert_eq!(setup_patience(Duration::from_millis(1)), SETUP_PATIENCE);
        let hour = Duration::from_secs(3600);
        assert_eq!(setup_patience(hour), hour);
    }

    #[test]
    fn a_keeper_that_fails_is_noticed_at_once() {
        let held = |holder: fn(&AtomicBool) -> Result<()>| {
            let stop: Arc<AtomicBool> = Arc::default();
            let stopped = stop.clone();
            let holders = vec![std::thread::spawn(move || holder(&stopped))];
            let destination = ([127, 0, 0, 1], 9).into();
            let patience = SETUP_PATIENCE;
            IdlePool { wanted: 1, patience, destination, counters: Arc::default(), stop, holders }
        };
        let waits = |stop: &AtomicBool| -> Result<()> {
            pollux_testkit::wait_until("the stop", || stop.load(Relaxed));
            Ok(())
        };
        let mut pool = held(waits);
        pool.check().unwrap();
        drop(pool);
        let mut pool = held(|_| bail!("no memory"));
        let error = pollux_testkit::wait_for("the end of a thread", || pool.check().err());
        assert!(format!("{error:#}").contains("no memory"), "{error:#}");
    }
}

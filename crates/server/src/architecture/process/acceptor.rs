//! The acceptor of an architecture in which each connection gets its own process. It runs in the
//! process that starts them.

use super::super::Plan;
use crate::{
    clients::client_key,
    config::IdleEviction,
    engine::{Refusal, blocking::RETRY},
    stats::{
        Counter, Counts, Statistics,
        scoreboard::{Scoreboard, ScoreboardSlot},
    },
    transport::queue::{ListenerRotation, has_connections, is_shut_down},
};
use pollux_sys::{self as sys, Counters};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// The delay before a failed fork(2) is tried again. It is tried earlier if a process ends.
const FORK_RETRY: Duration = Duration::from_millis(100);

/// The time that a process normally needs to end after its idle connection was selected for
/// eviction. If no connection is idle, the next attempt is made after the same time.
const EVICT_RETRY: Duration = Duration::from_millis(100);

/// Accepts connections from the kernel's queues for new processes.
#[derive(Debug)]
pub(super) struct ProcessAcceptor {
    /// The slot for the counters of this process itself.
    slot: ScoreboardSlot,
    before: Counters,
    waits: u64,
    pauses: u64,
    /// The slot for the next connection. It is claimed before the connection is accepted: as long
    /// as there is none, the connection waits in the kernel's queue.
    next: Option<ScoreboardSlot>,
    /// A connection that was accepted but has no process yet.
    waiting: Option<(OwnedFd, ScoreboardSlot)>,
    retry_at: Option<Instant>,
    /// Whether the maximum number of processes runs.
    is_full: bool,
    /// While `is_full`: the time from which an idle connection may be closed for a connection that
    /// waits.
    evict_at: Option<Instant>,
    given_up: Vec<RawFd>,
    warnings: bool,
    rotation: ListenerRotation,
    /// Whether all connections that waited when a stop was requested have been accepted.
    is_shut: bool,
}

impl ProcessAcceptor {
    /// Returns `None` if the scoreboard has no slot for the acceptor.
    pub(super) fn new(scoreboard: &Arc<Scoreboard>) -> Option<Self> {
        Some(Self {
            slot: scoreboard.claim_slot()?,
            before: sys::counters(),
            waits: 0,
            pauses: 0,
            next: None,
            waiting: None,
            retry_at: None,
            is_full: false,
            evict_at: None,
            given_up: Vec::new(),
            warnings: false,
            rotation: ListenerRotation::default(),
            is_shut: false,
        })
    }

    /// Returns whether no more connections are accepted and none waits for a process.
    pub(super) fn is_shut(&self) -> bool {
        self.is_shut && self.waiting.is_none()
    }

    /// Returns the next connection that gets a process, with the slot for that process. Returns
    /// `None` if there is no connection now, or if it has to wait.
    pub(super) fn take(&mut self, plan: &Plan, now: Instant) -> Option<(OwnedFd, ScoreboardSlot)> {
        if self.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        self.retry_at = None;
        if let Some(waiting) = self.waiting.take() {
            return Some(waiting);
        }
        if self.is_shut {
            return None;
        }
        if self.is_full {
            self.make_room(plan, now);
            return None;
        }
        if self.next.is_none() {
            self.next = plan.scoreboard.claim_slot();
            if self.next.is_none() {
                self.is_full = true;
                self.pauses += 1;
                self.make_room(plan, now);
                self.say(&format!(
                    "all {} processes that may run at a time are busy (more: --max-connections)",
                    plan.max_connections
                ));
                return None;
            }
        }
        let sockets = plan.queues.of(0).sockets;
        let is_stopping = plan.scoreboard.stop_at_ms().is_some();
        if is_stopping {
            self.rotation.stop(sockets);
        }
        for index in self.rotation.order(sockets.len()) {
            let fd = sockets[index].as_raw_fd();
            while self.rotation.may_take(index) && !self.given_up.contains(&fd) {
                let error = match sys::accept_with_address(sockets[index].as_fd()) {
                    Ok((connection, address)) => {
                        self.rotation.took(index);
                        let slot = self.next.take()?;
                        slot.set_client(address.map_or(0, |address| client_key(address.ip())));
                        return Some((connection, slot));
                    }
                    Err(error) => error,
                };
                let refusal = Refusal::of(&error);
                match refusal {
                    // This was one of the connections that waited at the stop; others may wait
                    // behind it.
                    Refusal::Dead if is_stopping => self.rotation.took(index),
                    Refusal::Empty | Refusal::Dead => break,
                    Refusal::Exhausted | Refusal::Forbidden => {
                        self.pauses += 1;
                        self.retry_at = Some(now + RETRY);
                        let advice = refusal.advice();
                        self.say(&format!("accepting pauses: accept4: {error} ({advice})"));
                        return None;
                    }
                    Refusal::Gone => {
                        tracing::error!(
                            "a listener is given up, it does not listen any more: {error}"
                        );
                        self.given_up.push(fd);
                    }
                }
            }
        }
        self.is_shut = is_stopping;
        None
    }

    /// Closes an idle connection if the maximum number of processes runs and a connection waits.
    fn make_room(&mut self, plan: &Plan, now: Instant) {
        let is_due = self.evict_at.is_none_or(|at| now >= at);
        if plan.config.idle_eviction == IdleEviction::Off || !is_due {
            return;
        }
        self.evict_at = None;
        let sockets = plan.queues.of(0).sockets.iter();
        let mut open = sockets.filter(|socket| !self.given_up.contains(&socket.as_raw_fd()));
        if open.clone().any(|socket| has_connections(socket.as_fd())) {
            plan.scoreboard.make_room_for_worker();
            self.evict_at = Some(now + EVICT_RETRY);
        } else if open.any(|socket| is_shut_down(socket.as_fd())) {
            // The listener will be ready for ever; the next accept4(2) fails, and it is given up.
            self.evict_at = Some(now + EVICT_RETRY);
        }
    }

    /// Takes back a connection for which no process could be started. It waits until a process has
    /// ended, or for a moment.
    pub(super) fn put_back(
        &mut self,
        waiting: Option<(OwnedFd, ScoreboardSlot)>,
        error: &io::Error,
        now: Instant,
    ) {
        self.waiting = waiting;
        self.pauses += 1;
        self.retry_at = Some(now + FORK_RETRY);
        self.say(&format!(
            "a process cannot be started: {error} (`ulimit -u`, pids.max of the cgroup, memory)"
        ));
    }

    /// Stops accepting, and closes the connection that waits: a stop leaves no more time.
    pub(super) fn shut(&mut self) {
        self.is_shut = true;
        self.waiting = None;
    }

    /// Notes that a process has ended.
    pub(super) fn slot_is_free(&mut self) {
        self.is_full = false;
        self.evict_at = None;
        if self.waiting.is_some() {
            self.retry_at = None;
        }
    }

    /// Returns the descriptors to wait for: the listeners, if a connection could be accepted or an
    /// idle connection could be closed.
    pub(super) fn wanted<'p>(&self, plan: &'p Plan) -> impl Iterator<Item = RawFd> + use<'p, '_> {
        let is_full = self.is_full
            && (plan.config.idle_eviction == IdleEviction::Off || self.evict_at.is_some());
        let is_held_up = is_full || self.waiting.is_some() || self.retry_at.is_some();
        let may_enter = !self.is_shut && !is_held_up;
        let sockets = if may_enter { plan.queues.of(0).sockets } else { &[] };
        sockets.iter().map(AsRawFd::as_raw_fd).filter(|fd| !self.given_up.contains(fd))
    }

    /// Returns the time of the next attempt.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        [self.retry_at, self.evict_at].into_iter().flatten().min()
    }

    /// Publishes the counters of this process before it waits.
    pub(super) fn show(&mut self) {
        self.waits += 1;
        let mut counts = Counts::default();
        counts[Counter::Waits] = self.waits;
        counts[Counter::AcceptPauses] = self.pauses;
        self.slot.show(&Statistics {
            counts,
            system_calls: sys::counters().since(&self.before),
            ..Statistics::default()
        });
    }

    fn say(&mut self, what: &str) {
        if !std::mem::replace(&mut self.warnings, true) {
            tracing::warn!("{what}; new connections wait meanwhile. (Reported once.)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        architecture::Assignment, config::Listen, protocol::rules::Rules, services::site::Contents,
        settings::Settings, transport::queue::Queues,
    };
    use pollux_testkit::denied;
    use std::net::TcpStream;

    /// Regression: the first connection at a stop that was already dead closed the acceptor,
    /// although others waited behind it.
    #[test]
    fn at_a_stop_all_that_wait_are_accepted_though_the_first_is_dead() {
        let config = Settings::new(".");
        let queues =
            Queues::open(&config.listen, config.backlog, config.way_to_accept(), 1).unwrap();
        let scoreboard = Arc::new(Scoreboard::new(2).unwrap());
        let plan = Plan {
            rules: Arc::new(Rules::new(&config)),
            config,
            tree: None,
            contents: Contents::new(0, 1),
            assignment: Assignment::One,
            queues: queues.0,
            max_connections: 1,
            scoreboard,
        };
        let Listen::Tcp(address) = plan.queues.addresses().unwrap()[0] else {
            panic!("a TCP address")
        };
        let _clients = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        let mut acceptor = ProcessAcceptor::new(&plan.scoreboard).unwrap();
        plan.scoreboard.stop(Duration::from_secs(600));
        let calls = denied(libc::SYS_accept4, libc::ECONNABORTED, || {
            let before = sys::counters();
            assert!(acceptor.take(&plan, Instant::now()).is_none());
            sys::counters().since(&before).of(sys::Call::Accept)
        });
        assert_eq!(calls, 3, "one for each connection that waited, and no more");
        assert!(acceptor.is_shut());
    }
}

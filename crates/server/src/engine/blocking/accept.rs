//! Waits for the next connection.
//!
//! A worker waits in the way that is chosen for its pool ([`Accepting`]), with epoll unless it blocks in
//! accept(2). A worker that has upstream connections of its own (to a store) attends to them while it
//! waits, if the way allows this: it then waits with ppoll(2) in place of epoll. A worker that blocks in
//! accept(2) or for the lock cannot do this. It attends to them as soon as it has accepted a connection,
//! before it serves the connection.

use super::Blocking;
use crate::stats::{Counter, scoreboard::WorkerPhase};
use crate::{
    clients::client_key,
    config::Accepting,
    engine::{FailedWaits, Refusal, upstreams::UpstreamDriver as _},
    service::Service,
    time::clock::ticks,
    transport::queue::{ListenerRotation, Queue, has_connections, shut_down},
};
use libc::{EPOLLEXCLUSIVE, EPOLLIN, POLLIN};
use pollux_sys::{self as sys, EpollEvent, EpollOp};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    time::Duration,
};

/// The time after which accepting is tried again when a descriptor or memory was lacking.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// The description of a failure of [`Blocking::prepare`]; for messages.
pub(crate) const NO_SET: &str = "no epoll set to wait for connections with";

/// The state with which this worker waits for connections.
#[derive(Debug, Default)]
pub(super) struct Acceptor {
    /// The epoll set of the listeners and the notifier, and room for events; `None` before
    /// [`Blocking::prepare`], and for a worker that blocks in accept(2).
    epoll: Option<(OwnedFd, Vec<EpollEvent>)>,
    failed_waits: FailedWaits,
    /// Listeners that no longer listen.
    pub(super) given_up: Vec<RawFd>,
    warnings: bool,
    has_said_forbidden: bool,
    rotation: ListenerRotation,
    /// The address of the last client, as [`client_key`]; 0 if it has none.
    client: u64,
}

impl<A: Service> Blocking<A> {
    /// Creates the resources of the wait for connections, before the worker reports that it is ready, so
    /// that this cannot fail later.
    ///
    /// # Errors
    /// No descriptor or memory is free, or the user's limit of epoll watches is reached (ENOSPC).
    pub(crate) fn prepare(&mut self, queue: Queue<'_>) -> io::Result<()> {
        if queue.way == Accepting::Blocking {
            return Ok(());
        }
        let epoll = sys::epoll_create()?;
        let notifier = self.slot.notifier(false).as_raw_fd();
        sys::epoll_ctl(epoll.as_fd(), EpollOp::Add, notifier, EPOLLIN as u32, 1)?;
        let events = (EPOLLIN | EPOLLEXCLUSIVE) as u32;
        for listener in queue.sockets {
            sys::epoll_ctl(epoll.as_fd(), EpollOp::Add, listener.as_raw_fd(), events, 0)?;
        }
        // There is room for the notifier and one listener: a larger batch would take connections from other
        // waiting workers.
        self.acceptor.epoll = Some((epoll, Vec::with_capacity(2)));
        Ok(())
    }

    /// Waits for the next connection. Returns `None` when a stop was requested and all connections that
    /// waited at that time have been accepted: then no worker listens any more. Later connections wait in the
    /// listeners of the service manager, and are refused by the others.
    ///
    /// # Errors
    /// The wait fails permanently.
    pub(crate) fn accept(&mut self, queue: Queue<'_>) -> io::Result<Option<OwnedFd>> {
        self.enter(WorkerPhase::Accepting);
        let outcome = self.accept_in_its_way(queue);
        self.enter(WorkerPhase::Serving);
        outcome
    }

    fn accept_in_its_way(&mut self, queue: Queue<'_>) -> io::Result<Option<OwnedFd>> {
        let outcome = match (queue.way, queue.lock) {
            (Accepting::Blocking, _) => Ok(self.block(queue.sockets)),
            (_, Some(lock)) => {
                self.perform();
                self.show();
                let held = lock.hold()?;
                self.worker.clock.update();
                let outcome = self.wait_for_one(queue.sockets);
                drop(held);
                outcome
            }
            (_, None) => self.wait_for_one(queue.sockets),
        };
        match &outcome {
            Ok(Some(_)) if queue.way == Accepting::Blocking || queue.lock.is_some() => {
                self.catch_up();
            }
            Ok(None) => {
                let is_own = |fd: &&OwnedFd| !queue.of_manager.contains(&fd.as_raw_fd());
                let own = queue.sockets.iter().filter(is_own);
                own.for_each(|socket| shut_down(socket.as_fd()));
            }
            _ => {}
        }
        outcome
    }

    /// Returns the address of the client that was accepted last, as [`client_key`]. The worker that serves
    /// the client shows it on the scoreboard.
    pub(crate) fn last_client(&self) -> u64 {
        self.acceptor.client
    }

    /// Waits until one of the listeners has a connection, or a stop ends the wait. Events of upstream
    /// connections are handled meanwhile.
    fn wait_for_one(&mut self, listeners: &[OwnedFd]) -> io::Result<Option<OwnedFd>> {
        loop {
            if self.is_over() {
                return Ok(None);
            }
            let was_stopping = self.worker.is_stopping;
            let found = self.accept_in_turn(listeners);
            if found.is_some() || was_stopping {
                return Ok(found);
            }
            // The stop may have been noticed during a pause: connections that are waiting by now are still
            // accepted.
            if !self.worker.is_stopping {
                self.wait_for_listeners(listeners)?;
            }
        }
    }

    /// Accepts a waiting connection. At a stop, accepts only connections that were waiting when the stop
    /// was noticed; `None` then means that none of them is left, or that none can be accepted.
    fn accept_in_turn(&mut self, listeners: &[OwnedFd]) -> Option<OwnedFd> {
        let is_stopping = self.worker.is_stopping;
        if is_stopping {
            self.acceptor.rotation.stop(listeners);
        }
        for index in self.acceptor.rotation.order(listeners.len()) {
            let listener = &listeners[index];
            while self.acceptor.rotation.may_take(index) {
                match self.accept_from(listener) {
                    Ok(socket) => {
                        self.acceptor.rotation.took(index);
                        return Some(socket);
                    }
                    // This was one of the waiting connections; others may follow it.
                    Err(Refusal::Dead) if is_stopping => self.acceptor.rotation.took(index),
                    // A connection that ends frees a descriptor. Without a free descriptor, accept(2) fails
                    // even when no connection is waiting.
                    Err(Refusal::Exhausted)
                        if is_stopping && !self.is_over() && has_connections(listener.as_fd()) =>
                    {
                        self.pause_for_want();
                    }
                    Err(_) => break,
                }
            }
        }
        None
    }

    /// Blocks in accept(2). At a stop, the listeners are changed so that accept(2) no longer blocks.
    fn block(&mut self, listeners: &[OwnedFd]) -> Option<OwnedFd> {
        loop {
            if !self.worker.is_stopping && self.slot.is_stop_requested() {
                self.handle_notifier();
            }
            if self.is_over() {
                return None;
            }
            if self.acceptor.given_up.len() == listeners.len() {
                if self.worker.is_stopping {
                    return None;
                }
                // accept(2) would not block any more. Only a stop is left to wait for.
                self.wait_until(&[], None);
                continue;
            }
            self.perform();
            self.show();
            // There is exactly one listener: accept(2) cannot wait for several.
            let was_stopping = self.worker.is_stopping;
            let found = self.accept_in_turn(listeners);
            self.worker.counters.add(Counter::Waits, 1);
            self.worker.clock.update();
            if found.is_some() || was_stopping {
                return found;
            }
        }
    }

    /// Attends to upstream connections and alarms, after a wait during which the worker could not.
    fn catch_up(&mut self) {
        self.worker.clock.update();
        if !self.upstreams.is_empty()
            || !self.alarms.is_empty()
            || self.reactor.pending_commands() > 0
        {
            self.wait_until(&[], Some(self.worker.clock.tick()));
        }
    }

    /// Waits for one tick. Returns false when the grace time of a stop is over.
    pub(crate) fn rest(&mut self) -> bool {
        self.worker.counters.add(Counter::AcceptPauses, 1);
        let until = self.worker.clock.after(1);
        self.wait_until(&[], Some(until));
        !self.is_over()
    }

    /// Accepts from one listener. If no connection can be accepted for now, pauses before it returns.
    fn accept_from(&mut self, listener: &OwnedFd) -> Result<OwnedFd, Refusal> {
        if self.acceptor.given_up.contains(&listener.as_raw_fd()) {
            return Err(Refusal::Gone);
        }
        let error = match sys::accept_with_address(listener.as_fd()) {
            Ok((socket, address)) => {
                self.acceptor.client = address.map_or(0, |address| client_key(address.ip()));
                self.slot.set_client(self.acceptor.client);
                return Ok(socket);
            }
            Err(error) => error,
        };
        let refusal = Refusal::of(&error);
        match refusal {
            Refusal::Empty | Refusal::Dead => {}
            Refusal::Exhausted | Refusal::Forbidden => {
                let acceptor = &mut self.acceptor;
                let warnings = match refusal {
                    Refusal::Forbidden => &mut acceptor.has_said_forbidden,
                    _ => &mut acceptor.warnings,
                };
                if !std::mem::replace(warnings, true) {
                    tracing::warn!(
                        "accepting pauses: accept4: {error}; new connections wait in the kernel's \
                         queue. (Reported once.) {}",
                        refusal.advice()
                    );
                }
                // At a stop, the caller pauses, if a connection is waiting.
                if !self.worker.is_stopping {
                    self.pause_for_want();
                }
            }
            Refusal::Gone => {
                // At a stop, the first worker that finds the queue empty shuts the listener down for all
                // workers.
                if !self.slot.is_stop_requested() {
                    tracing::error!("a listener is given up, it does not listen any more: {error}");
                }
                if let Some((epoll, _)) = &self.acceptor.epoll {
                    let fd = listener.as_raw_fd();
                    let _ = sys::epoll_ctl(epoll.as_fd(), EpollOp::Remove, fd, 0, 0);
                }
                self.acceptor.given_up.push(listener.as_raw_fd());
            }
        }
        Err(refusal)
    }

    /// Pauses until accepting may be tried again, a stop is requested, or the grace time of a stop is over.
    fn pause_for_want(&mut self) {
        self.worker.counters.add(Counter::AcceptPauses, 1);
        let until = self.worker.clock.after(ticks(RETRY));
        let was_stopping = self.worker.is_stopping;
        while self.worker.clock.tick() < until
            && self.worker.is_stopping == was_stopping
            && !self.is_over()
        {
            self.wait_until(&[], Some(until));
        }
    }

    fn wait_for_listeners(&mut self, listeners: &[OwnedFd]) -> io::Result<()> {
        self.perform();
        let is_prepared = self.acceptor.epoll.is_some();
        let waits_for_more = !self.upstreams.is_empty()
            || !self.alarms.is_empty()
            || self.reactor.pending_commands() > 0;
        if waits_for_more || !is_prepared {
            let given_up = &self.acceptor.given_up;
            let wanted: Vec<_> = listeners
                .iter()
                .map(AsRawFd::as_raw_fd)
                .filter(|fd| !given_up.contains(fd))
                .map(|fd| (fd, POLLIN))
                .collect();
            self.wait_until(&wanted, None);
            return Ok(());
        }
        self.show();
        let Some((epoll, events)) = &mut self.acceptor.epoll else { return Ok(()) };
        let outcome = sys::epoll_wait(epoll.as_fd(), events, -1);
        let rings = outcome.is_ok() && events.iter().any(|event| event.u64 == 1);
        self.worker.counters.add(Counter::Waits, 1);
        self.worker.clock.update();
        match outcome {
            Ok(ready) => {
                self.acceptor.failed_waits.forget();
                self.worker.counters.add(Counter::Events, ready as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.acceptor.failed_waits.bear_error(error)?,
        }
        // A wait that failed does not report the notifier.
        if rings || !self.worker.is_stopping && self.slot.is_stop_requested() {
            self.handle_notifier();
        }
        Ok(())
    }
}

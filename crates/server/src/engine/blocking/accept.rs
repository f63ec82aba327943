//! Waiting for the next connection.
//!
//! A unit waits in the way that is chosen for its pool ([`Accepting`]), with epoll except for those that
//! block in accept(2). One that has links of its own (to a store) looks after them while it waits,
//! where the way allows: with ppoll(2), in place of epoll. Where it does not, because the unit blocks
//! in accept(2) or for the lock, they are looked after as soon as a connection is there, before it is
//! served.

use super::Blocking;
use crate::stats::{Counter, scoreboard::Phase};
use crate::{
    clients::client_key,
    config::Accepting,
    engine::{FailedWaits, Refusal, upstreams::UpstreamDriver as _},
    service::Service,
    time::clock::ticks,
    transport::queue::{Queue, Turns, has_connections, shut_down},
};
use libc::{EPOLLEXCLUSIVE, EPOLLIN, POLLIN};
use pollux_sys::{self as sys, EpollEvent, EpollOp};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    time::Duration,
};

/// After which time accepting is tried again where a descriptor or memory was wanting.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// What [`Blocking::prepare`] could not do; for messages.
pub(crate) const NO_SET: &str = "no epoll set to wait for connections with";

/// How this unit waits for connections.
#[derive(Debug, Default)]
pub(super) struct Acceptor {
    /// The listeners and the notifier, and room for events; of a unit that is prepared.
    epoll: Option<(OwnedFd, Vec<EpollEvent>)>,
    failed_waits: FailedWaits,
    /// Listeners that listen no more.
    pub(super) given_up: Vec<RawFd>,
    warnings: bool,
    has_said_forbidden: bool,
    turns: Turns,
    /// The address of the last client, as [`client_key`]; 0 if it has none.
    client: u64,
}

impl<A: Service> Blocking<A> {
    /// Creates what the wait for connections needs, before the worker reports that it is ready, so
    /// that this cannot fail later.
    ///
    /// # Errors
    /// No descriptor or no memory is left, or the user's watches are used up (ENOSPC).
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
        // One at a time: a larger batch would take connections from other waiting workers.
        self.acceptor.epoll = Some((epoll, Vec::with_capacity(2)));
        Ok(())
    }

    /// Waits for the next connection. `None` when a stop was requested and all connections that
    /// waited by then have been handed out: no worker listens any more then.
    ///
    /// # Errors
    /// When nothing can be waited for at all.
    pub(crate) fn accept(&mut self, queue: Queue<'_>) -> io::Result<Option<OwnedFd>> {
        self.enter(Phase::Accepting);
        let outcome = self.accept_in_its_way(queue);
        self.enter(Phase::Serving);
        outcome
    }

    fn accept_in_its_way(&mut self, queue: Queue<'_>) -> io::Result<Option<OwnedFd>> {
        let outcome = match (queue.way, queue.lock) {
            (Accepting::Blocking, _) => {
                self.finish_background();
                Ok(self.block(queue.sockets))
            }
            (_, Some(lock)) => {
                self.finish_background();
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
            Ok(None) => queue.sockets.iter().for_each(|socket| shut_down(socket.as_fd())),
            _ => {}
        }
        outcome
    }

    /// The address of the client that was accepted last, as [`client_key`]. The unit that serves the client shows it on the
    /// scoreboard.
    pub(crate) fn last_client(&self) -> u64 {
        self.acceptor.client
    }

    /// Waits until one of the listeners has a connection, the notifier is signalled, or a link wants something.
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
            // The stop was noticed during a pause: connections that wait by now are still accepted.
            if !self.worker.is_stopping {
                self.wait_for_listeners(listeners)?;
            }
        }
    }

    /// Accepts a waiting connection. At a stop only one of those that waited when the stop was
    /// noticed; `None` then means that none of them is left, or none can be accepted.
    fn accept_in_turn(&mut self, listeners: &[OwnedFd]) -> Option<OwnedFd> {
        let is_stopping = self.worker.is_stopping;
        if is_stopping {
            self.acceptor.turns.stop(listeners);
        }
        for place in self.acceptor.turns.order(listeners.len()) {
            let listener = &listeners[place];
            while self.acceptor.turns.may_take(place) {
                match self.accept_from(listener) {
                    Ok(socket) => {
                        self.acceptor.turns.took(place);
                        return Some(socket);
                    }
                    // One of the connections that waited; there may be others behind it.
                    Err(Refusal::Dead) if is_stopping => self.acceptor.turns.took(place),
                    // A connection that ends frees a descriptor. With none left accept(2) fails
                    // even when no connection waits.
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

    /// Blocks in accept(2). A stop makes the listeners such that nobody blocks any more.
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
                // Nothing would block any more. A stop is what is left to wait for.
                self.wait_until(&[], None);
                continue;
            }
            self.perform();
            self.show();
            // There is one: else it would have to wait for one of several.
            let was_stopping = self.worker.is_stopping;
            let found = self.accept_in_turn(listeners);
            self.worker.counters.add(Counter::Waits, 1);
            self.worker.clock.update();
            if found.is_some() || was_stopping {
                return found;
            }
        }
    }

    /// Looks after links and alarms, after a wait in which nobody could.
    fn catch_up(&mut self) {
        self.worker.clock.update();
        if !self.upstreams.is_empty()
            || !self.alarms.is_empty()
            || self.reactor.pending_commands() > 0
        {
            self.wait_until(&[], Some(self.worker.clock.tick()));
        }
    }

    /// Waits a moment. Returns false when a stop leaves no more time.
    pub(crate) fn rest(&mut self) -> bool {
        self.worker.counters.add(Counter::AcceptPauses, 1);
        let until = self.worker.clock.after(1);
        self.wait_until(&[], Some(until));
        !self.is_over()
    }

    /// Accepts from one listener. Where that cannot be done for now, this pauses first.
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
                // At a stop it depends on whether somebody waits.
                if !self.worker.is_stopping {
                    self.pause_for_want();
                }
            }
            Refusal::Gone => {
                // At a stop it is the first unit to find the queue empty that ends it for all.
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

    /// A pause until accepting may be tried again, or a stop is heard, or its time is over.
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
        // A wait that failed says nothing of the notifier.
        if rings || !self.worker.is_stopping && self.slot.is_stop_requested() {
            self.handle_notifier();
        }
        Ok(())
    }
}

//! Accepts connections: the accept limit, the connection limit, and the case that the system has no free
//! descriptor.

use super::{Engine, evict};
use crate::stats::Counter;
use crate::{engine::Refusal, service::Service, time::clock::ticks, transport::queue::waiting_at};
use anyhow::Context;
use pollux_event::{Error, Interest, Mechanism, Token};
use pollux_sys as sys;
use std::{
    num::NonZeroU32,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

/// The time after which accepting is tried again if this worker frees no descriptor: the system as a whole
/// may have run out (ENFILE), and other processes may free one.
const RETRY: Duration = Duration::from_secs(1);

/// The number of consecutive connections, closed before they were accepted, that end a listener's turn.
const DEAD_IN_A_ROW: u32 = 64;

/// The maximum number of idle connections that one accept(2) closes after a reload has lowered the connection limit.
/// Connections in progress do not wait long for this, and the number falls to the limit however fast clients arrive.
const SURPLUS_CLOSED_MAX: usize = 64;

/// The listeners of one worker.
#[derive(Debug)]
pub(super) struct Acceptor {
    listeners: Vec<PolledListener>,
    /// The maximum number of connections to accept for one event.
    limit: Option<NonZeroU32>,
    max_connections: usize,
    /// A connection whose descriptor is too large for the mechanism. It is stored until a smaller one is
    /// free.
    held: Option<OwnedFd>,
    /// Nothing is accepted, because the limit is reached, or the system has no free descriptor or memory.
    is_paused: bool,
    /// Nothing is accepted, because a successor is about to take the listeners over.
    is_suspended: bool,
    /// Whether a paused acceptor may try again.
    may_resume: bool,
    retry_at: Option<u32>,
    warnings: OnceWarnings,
}

bitflags::bitflags! {
    /// Warnings that were logged, each once.
    #[derive(Clone, Copy, Debug, Default)]
    struct OnceWarnings: u8 {
        /// The connection limit is reached.
        const LIMIT = 1;
        /// The system has no free descriptor or memory.
        const EXHAUSTED = 1 << 1;
        /// accept(2) is forbidden.
        const REFUSED = 1 << 2;
        /// The mechanism cannot add a connection.
        const CANNOT_WAIT = 1 << 3;
        /// A descriptor is too large for the mechanism.
        const TOO_LARGE = 1 << 4;
    }
}

impl OnceWarnings {
    /// Returns whether this has not been logged yet, and marks it as logged.
    fn is_news(&mut self, what: Self) -> bool {
        let is_news = !self.contains(what);
        *self |= what;
        is_news
    }
}

#[derive(Debug)]
struct PolledListener {
    socket: OwnedFd,
    token: Token,
    /// Whether the accept limit was reached before the queue was empty.
    has_more: bool,
}

impl Acceptor {
    pub(super) fn new<M: Mechanism>(
        mechanism: &mut M,
        sockets: Vec<OwnedFd>,
        limit: Option<NonZeroU32>,
        max_connections: usize,
    ) -> anyhow::Result<Self> {
        let mut listeners = Vec::with_capacity(sockets.len());
        for socket in sockets {
            let token = mechanism
                .add(socket.as_fd(), Interest::READ)
                .context("cannot wait for connections")?;
            listeners.push(PolledListener { socket, token, has_more: false });
        }
        Ok(Self {
            listeners,
            limit,
            max_connections,
            held: None,
            is_paused: false,
            is_suspended: false,
            may_resume: false,
            retry_at: None,
            warnings: OnceWarnings::default(),
        })
    }

    /// Sets new limits.
    pub(super) fn set_limits(&mut self, limit: Option<NonZeroU32>, max_connections: usize) {
        self.limit = limit;
        if max_connections != self.max_connections {
            // The warning names the limit.
            self.warnings.remove(OnceWarnings::LIMIT);
        }
        self.max_connections = max_connections;
        self.slot_is_free();
    }

    /// Returns whether connections may be waiting that no event will report.
    pub(super) fn has_more(&self) -> bool {
        !self.is_paused && self.listeners.iter().any(|listener| listener.has_more)
            || self.is_paused && self.may_resume
    }

    /// Returns the tick at which to try again.
    pub(super) fn retry_at(&self) -> Option<u32> {
        self.retry_at
    }

    /// Allows a paused acceptor to try again, because a connection was closed.
    #[inline]
    pub(super) fn slot_is_free(&mut self) {
        self.may_resume = self.is_paused && !self.is_suspended;
    }
}

/// The outcome of one accept(2).
enum AcceptOutcome {
    One,
    /// The connection was already closed; there may be others.
    Dead,
    /// The queue is empty.
    None,
    /// No connection can be accepted at present.
    Full,
    /// This listener will never return a connection again.
    Never,
}

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Accepts connections from the listener with this token, after an event or when it has more.
    #[cold]
    pub(super) fn accept(&mut self, token: Token) {
        let listeners = &self.acceptor.listeners;
        let Some(index) = listeners.iter().position(|listener| listener.token == token) else {
            return;
        };
        self.acceptor.listeners[index].has_more = false;
        if self.acceptor.is_paused {
            return;
        }
        // Without an accept limit, all waiting connections are accepted, up to the connection limit.
        let limit = self.acceptor.limit.map_or(u32::MAX, NonZeroU32::get);
        let mut dead = 0;
        for _ in 0..limit {
            match self.accept_one(index) {
                AcceptOutcome::One => dead = 0,
                AcceptOutcome::Dead if dead < DEAD_IN_A_ROW => dead += 1,
                AcceptOutcome::Dead => break,
                AcceptOutcome::None => return,
                AcceptOutcome::Full => return self.pause_accepting(),
                AcceptOutcome::Never => return self.give_up(index),
            }
        }
        // A level-triggered mechanism reports the listener again.
        self.acceptor.listeners[index].has_more = self.is_edge;
    }

    /// Removes a listener; the others continue.
    #[cold]
    fn give_up(&mut self, index: usize) {
        let listener = self.acceptor.listeners.remove(index);
        let _ = self.mechanism.close(listener.token, listener.socket);
    }

    fn accept_one(&mut self, index: usize) -> AcceptOutcome {
        if self.clients >= self.acceptor.max_connections && !self.makes_room(index) {
            if self.idle.is_on() {
                let nobody_waits = self.acceptor.held.is_none()
                    && !evict::is_readable(self.acceptor.listeners[index].socket.as_fd());
                if nobody_waits {
                    return AcceptOutcome::None;
                }
                // A connection may become idle soon, without any being closed.
                self.acceptor.retry_at = Some(self.worker.clock.after(1));
            }
            if self.acceptor.warnings.is_news(OnceWarnings::LIMIT) {
                tracing::warn!(
                    "accepting stops at {} connections, as many as --max-connections says or the \
                     limit of open files leaves room for (`ulimit -Hn`); {} are open, and it goes \
                     on when fewer are. (Reported once.)",
                    self.acceptor.max_connections,
                    self.clients
                );
            }
            return AcceptOutcome::Full;
        }
        if let Some(held) = self.acceptor.held.take() {
            // A copy of a descriptor gets the lowest free number, such as that of a closed connection.
            return match held.try_clone() {
                Ok(socket) if socket.as_raw_fd() < held.as_raw_fd() => {
                    drop(held);
                    self.take_in(socket)
                }
                _ => self.hold(held),
            };
        }
        let error = match sys::accept(self.acceptor.listeners[index].socket.as_fd()) {
            Ok(socket) => return self.take_in(socket),
            Err(error) => error,
        };
        let refusal = Refusal::of(&error);
        match refusal {
            Refusal::Empty => AcceptOutcome::None,
            Refusal::Dead => AcceptOutcome::Dead,
            Refusal::Gone => {
                tracing::error!("a listener is given up, it does not listen any more: {error}");
                AcceptOutcome::Never
            }
            Refusal::Exhausted if self.evict_idle() => AcceptOutcome::Dead,
            Refusal::Exhausted => {
                if self.acceptor.warnings.is_news(OnceWarnings::EXHAUSTED) {
                    tracing::warn!(
                        "accepting stops at {} connections: {error}; it goes on when one closes. \
                         (Reported once.) {}",
                        self.clients,
                        refusal.advice()
                    );
                }
                self.acceptor.retry_at = Some(self.worker.clock.after(ticks(RETRY)));
                AcceptOutcome::Full
            }
            Refusal::Forbidden => {
                if self.acceptor.warnings.is_news(OnceWarnings::REFUSED) {
                    tracing::error!(
                        "no connection can be accepted: accept4: {error}; it is tried again each \
                         second. (Reported once.) {}",
                        refusal.advice()
                    );
                }
                self.acceptor.retry_at = Some(self.worker.clock.after(ticks(RETRY)));
                AcceptOutcome::Full
            }
        }
    }

    /// Closes an idle connection if another one is waiting to be accepted, and more of them if there are more
    /// connections than the limit, which a reload may have lowered. Returns whether there is room now.
    #[cold]
    fn makes_room(&mut self, index: usize) -> bool {
        if !self.idle.is_on()
            || self.stop_at.is_some()
            || !evict::is_readable(self.acceptor.listeners[index].socket.as_fd())
        {
            return false;
        }
        let mut closed = 0;
        while !self.has_room() && closed < SURPLUS_CLOSED_MAX && self.evict_idle() {
            closed += 1;
        }
        self.has_room()
    }

    fn take_in(&mut self, socket: OwnedFd) -> AcceptOutcome {
        let fd = socket.as_raw_fd();
        match self.mechanism.add(socket.as_fd(), Interest::READ) {
            Ok(token) => {
                let (transport, timeout, client) = match self.admit(socket) {
                    Ok(accepted) => accepted,
                    Err(socket) => {
                        let _ = self.mechanism.close(token, socket);
                        return AcceptOutcome::One;
                    }
                };
                self.table.insert(transport, token, client);
                self.clients += 1;
                self.worker.counters.add(Counter::Accepted, 1);
                let deadline = self.worker.clock.after(timeout);
                self.arm(fd as u32, deadline);
            }
            // The mechanism's limit acts like --max-connections: later connections wait.
            Err(Error::DescriptorTooLarge { .. }) => return self.hold(socket),
            Err(error) => {
                self.worker.counters.add(Counter::Refused, 1);
                if self.acceptor.warnings.is_news(OnceWarnings::CANNOT_WAIT) {
                    tracing::warn!("refusing connections: {error}. (Reported once.)");
                }
                sys::close(socket);
            }
        }
        AcceptOutcome::One
    }

    /// Stores a connection until a descriptor is free for which the mechanism can wait. An idle connection is closed
    /// to free one.
    #[cold]
    fn hold(&mut self, socket: OwnedFd) -> AcceptOutcome {
        if self.idle.is_on() && self.stop_at.is_none() {
            if self.evict_idle()
                && let Ok(copy) = socket.try_clone()
                && copy.as_raw_fd() < socket.as_raw_fd()
            {
                sys::close(socket);
                return self.take_in(copy);
            }
            // A connection may become idle soon, without any being closed.
            self.acceptor.retry_at = Some(self.worker.clock.after(1));
        }
        if self.acceptor.warnings.is_news(OnceWarnings::TOO_LARGE) {
            tracing::warn!(
                "accepting stops at {} connections: the mechanism waits for no descriptor above its \
                 limit; it goes on when one closes. (Reported once.) Another --mechanism has no such \
                 limit",
                self.clients
            );
        }
        self.acceptor.held = Some(socket);
        AcceptOutcome::Full
    }

    /// Leaves the waiting connections to another process, until [`Engine::resume_accepting`].
    #[cold]
    pub(super) fn suspend_accepting(&mut self) {
        self.acceptor.is_paused = true;
        self.acceptor.is_suspended = true;
        self.acceptor.may_resume = false;
        self.acceptor.retry_at = None;
        self.watch_listeners(Interest::empty());
    }

    /// Accepts again, from the next iteration on.
    #[cold]
    pub(super) fn resume_accepting(&mut self) {
        if self.acceptor.is_suspended {
            self.acceptor.is_suspended = false;
            self.acceptor.may_resume = true;
        }
    }

    /// Returns whether one more connection may be accepted.
    pub(super) fn has_room(&self) -> bool {
        self.clients < self.acceptor.max_connections
    }

    /// Removes the interest in the listeners. A level-triggered mechanism would otherwise report them at
    /// every wait.
    #[cold]
    fn pause_accepting(&mut self) {
        self.acceptor.is_paused = true;
        self.acceptor.may_resume = false;
        self.worker.counters.add(Counter::AcceptPauses, 1);
        self.watch_listeners(Interest::empty());
    }

    /// Continues to accept after a limit, if that is possible. Called after each batch of events.
    #[inline]
    pub(super) fn accept_more(&mut self) {
        if self.acceptor.is_paused || self.acceptor.listeners.iter().any(|l| l.has_more) {
            self.accept_what_waits();
        }
    }

    #[cold]
    fn accept_what_waits(&mut self) {
        let acceptor = &mut self.acceptor;
        if acceptor.is_paused {
            let is_time = acceptor.retry_at.is_some_and(|at| at <= self.worker.clock.tick());
            if !acceptor.may_resume && !is_time {
                return;
            }
            acceptor.is_paused = false;
            acceptor.may_resume = false;
            acceptor.retry_at = None;
            // When its interest is changed, every mechanism reports a descriptor that is already ready.
            self.watch_listeners(Interest::READ);
            // The stored connection may have been the last in the queue: then no listener reports anything.
            let first = self.acceptor.listeners.first().map(|listener| listener.token);
            if let (true, Some(first)) = (self.acceptor.held.is_some(), first) {
                self.accept(first);
            }
            return;
        }
        // The loop may remove a listener. The listener that is skipped then is served in the next
        // iteration.
        let mut index = 0;
        while let Some(listener) = self.acceptor.listeners.get(index) {
            if listener.has_more {
                self.accept(listener.token);
            }
            index += 1;
        }
    }

    fn watch_listeners(&mut self, interest: Interest) {
        for listener in &self.acceptor.listeners {
            if let Err(error) = self.mechanism.modify(listener.token, interest) {
                tracing::error!("a listener's interest cannot be changed: {error}");
            }
        }
    }

    /// Accepts the connections that are already waiting, and then closes the listeners.
    pub(super) fn stop_accepting(&mut self) {
        self.accept_last();
        for listener in std::mem::take(&mut self.acceptor.listeners) {
            let _ = self.mechanism.close(listener.token, listener.socket);
        }
    }

    /// Accepts the connections that are already waiting, and then releases the listeners, which another
    /// process may also have open.
    pub(super) fn leave_listeners(&mut self) {
        self.accept_last();
        for listener in std::mem::take(&mut self.acceptor.listeners) {
            let _ = self.mechanism.remove(listener.token);
            self.transfers.close_later(listener.socket);
        }
    }

    fn accept_last(&mut self) {
        for index in 0..self.acceptor.listeners.len() {
            // Only the connections that are waiting now are accepted: with a steady stream of new
            // connections, the queue would never be found empty.
            let waiting = waiting_at(&self.acceptor.listeners[index].socket);
            let held = u32::from(self.acceptor.held.is_some());
            for _ in 0..waiting.saturating_add(held) {
                match self.accept_one(index) {
                    AcceptOutcome::One | AcceptOutcome::Dead => {}
                    AcceptOutcome::None | AcceptOutcome::Full | AcceptOutcome::Never => break,
                }
            }
            // There is still no descriptor for the stored connection. Drop it, because the other listeners
            // have a queue, too.
            self.acceptor.held = None;
        }
        self.acceptor.is_paused = false;
        self.acceptor.is_suspended = false;
        self.acceptor.retry_at = None;
    }
}

//! Taking connections in: the accept limit, the connection limit, and what happens when the
//! system has no descriptor left.

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

/// After which time accepting is tried again where nothing of ours frees a descriptor: the system
/// as a whole may have run out (ENFILE), and others may free one.
const RETRY: Duration = Duration::from_secs(1);

/// So many connections in a row that were dead before they were accepted end a listener's turn.
const DEAD_IN_A_ROW: u32 = 64;

/// The listeners of one worker.
#[derive(Debug)]
pub(super) struct Acceptor {
    listeners: Vec<Listener>,
    /// Accepts for one event.
    limit: Option<NonZeroU32>,
    max_connections: usize,
    /// A connection whose descriptor is too large for the mechanism: it waits for a smaller one.
    held: Option<OwnedFd>,
    /// Nothing is accepted: the limit is reached, or the system is out of something.
    is_paused: bool,
    /// Nothing is accepted: a successor is about to take the listeners over.
    is_suspended: bool,
    /// Whether it may be tried again.
    may_resume: bool,
    retry_at: Option<u32>,
    warnings: OnceWarnings,
}

bitflags::bitflags! {
    /// Warnings that were logged, each once.
    #[derive(Clone, Copy, Debug, Default)]
    struct OnceWarnings: u8 {
        /// That the limit of connections is reached.
        const LIMIT = 1;
        /// That the system is out of something.
        const EXHAUSTED = 1 << 1;
        /// That accept(2) is refused.
        const REFUSED = 1 << 2;
        /// That the mechanism cannot hold a connection.
        const CANNOT_WAIT = 1 << 3;
        /// That a descriptor is too large for the mechanism.
        const TOO_LARGE = 1 << 4;
    }
}

impl OnceWarnings {
    /// Whether this has not been logged yet; marks it as logged.
    fn is_news(&mut self, what: Self) -> bool {
        let is_news = !self.contains(what);
        *self |= what;
        is_news
    }
}

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    token: Token,
    /// The accept limit was reached before the queue was empty.
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
            listeners.push(Listener { socket, token, has_more: false });
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

    /// Other limits hold from now on.
    pub(super) fn set_limits(&mut self, limit: Option<NonZeroU32>, max_connections: usize) {
        self.limit = limit;
        self.max_connections = max_connections;
        self.slot_is_free();
    }

    /// Whether connections are known to wait.
    pub(super) fn has_more(&self) -> bool {
        !self.is_paused && self.listeners.iter().any(|listener| listener.has_more)
            || self.is_paused && self.may_resume
    }

    /// The tick at which to try again.
    pub(super) fn retry_at(&self) -> Option<u32> {
        self.retry_at
    }

    /// A connection was closed.
    #[inline]
    pub(super) fn slot_is_free(&mut self) {
        self.may_resume = self.is_paused && !self.is_suspended;
    }
}

/// What one accept(2) led to.
enum AcceptOutcome {
    One,
    /// A connection was dead already; there may be others.
    Dead,
    /// The queue is empty.
    None,
    /// Nothing can be taken in for now.
    Full,
    /// Nothing will ever come of this listener.
    Never,
}

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// A listener has connections.
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
        // Without a limit as many as there are; the connection limit bounds them.
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
        // A level-triggered mechanism will say it again.
        self.acceptor.listeners[index].has_more = self.is_edge;
    }

    /// Takes a listener out; the others go on.
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
                // One may be idle soon, without any being closed.
                self.acceptor.retry_at = Some(self.worker.clock.after(1));
            }
            if self.acceptor.warnings.is_news(OnceWarnings::LIMIT) {
                tracing::warn!(
                    "accepting stops at {} connections, as many as --max-connections says or the \
                     limit of open files leaves room for (`ulimit -Hn`); it goes on when one \
                     closes. (Reported once.)",
                    self.clients
                );
            }
            return AcceptOutcome::Full;
        }
        if let Some(held) = self.acceptor.held.take() {
            // The lowest number that is free, which a connection that was closed has left.
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

    /// Lets an idle connection give way to one that waits. Returns whether there is room now.
    #[cold]
    fn makes_room(&mut self, index: usize) -> bool {
        self.idle.is_on()
            && self.stop_at.is_none()
            && evict::is_readable(self.acceptor.listeners[index].socket.as_fd())
            && self.evict_idle()
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
            // Its limit is a limit like --max-connections: later connections wait.
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

    /// Keeps a connection until a descriptor is free that the mechanism can wait for.
    #[cold]
    fn hold(&mut self, socket: OwnedFd) -> AcceptOutcome {
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

    /// Leaves what waits at the listeners to another process, until [`Engine::resume_accepting`].
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

    /// Whether one more connection may be taken in.
    pub(super) fn has_room(&self) -> bool {
        self.clients < self.acceptor.max_connections
    }

    /// Looks away from the listeners, which a level-triggered mechanism would report for ever.
    #[cold]
    fn pause_accepting(&mut self) {
        self.acceptor.is_paused = true;
        self.acceptor.may_resume = false;
        self.worker.counters.add(Counter::AcceptPauses, 1);
        self.watch_listeners(Interest::empty());
    }

    /// After each batch of events: goes on where a limit has cut, if that can be.
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
            // Every mechanism reports what is ready when its interest is changed.
            self.watch_listeners(Interest::READ);
            // The connection on hold may have been the last in the queue: then no listener reports
            // anything.
            let first = self.acceptor.listeners.first().map(|listener| listener.token);
            if let (true, Some(first)) = (self.acceptor.held.is_some(), first) {
                self.accept(first);
            }
            return;
        }
        // A listener may be given up on the way; one that is skipped then has its turn the next
        // time.
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

    /// Accepts the connections that wait already, and then closes the listeners.
    pub(super) fn stop_accepting(&mut self) {
        self.accept_last();
        for listener in std::mem::take(&mut self.acceptor.listeners) {
            let _ = self.mechanism.close(listener.token, listener.socket);
        }
    }

    /// The same, where another process may have the listeners, too.
    pub(super) fn leave_listeners(&mut self) {
        self.accept_last();
        for listener in std::mem::take(&mut self.acceptor.listeners) {
            let _ = self.mechanism.remove(listener.token);
            self.transfers.close_later(listener.socket);
        }
    }

    fn accept_last(&mut self) {
        for index in 0..self.acceptor.listeners.len() {
            // Connections that arrive meanwhile do not count: under a steady stream of them a queue
            // would never be found empty.
            let waiting = waiting_at(&self.acceptor.listeners[index].socket);
            let held = u32::from(self.acceptor.held.is_some());
            for _ in 0..waiting.saturating_add(held) {
                match self.accept_one(index) {
                    AcceptOutcome::One | AcceptOutcome::Dead => {}
                    AcceptOutcome::None | AcceptOutcome::Full | AcceptOutcome::Never => break,
                }
            }
            // For him there is still no place, and the other listeners have a queue, too.
            self.acceptor.held = None;
        }
        self.acceptor.is_paused = false;
        self.acceptor.is_suspended = false;
        self.acceptor.retry_at = None;
    }
}

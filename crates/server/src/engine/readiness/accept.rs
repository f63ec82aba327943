//! Taking connections in: the accept limit, the connection limit, and what happens when the
//! system has no descriptor left.

use super::Engine;
use crate::clock::ticks;
use anyhow::Context;
use pollux_event::{Interest, Mechanism, Token, sys};
use std::{
    net::IpAddr,
    num::NonZeroU32,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

/// After which time accepting is tried again where nothing of ours frees a descriptor: the system
/// as a whole may have run out (ENFILE), and others may free one.
const RETRY: Duration = Duration::from_secs(1);

/// The listeners of one worker.
#[derive(Debug)]
pub(super) struct Acceptor {
    listeners: Vec<Listener>,
    /// Accepts for one event.
    limit: Option<NonZeroU32>,
    max_connections: usize,
    /// Nothing is accepted: the limit is reached, or the system is out of something.
    is_paused: bool,
    /// Whether it may be tried again.
    may_resume: bool,
    retry_at: Option<u32>,
    pauses: u64,
    has_said: bool,
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
            is_paused: false,
            may_resume: false,
            retry_at: None,
            pauses: 0,
            has_said: false,
        })
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

    /// How often accepting was paused.
    pub(super) fn pauses(&self) -> u64 {
        self.pauses
    }

    /// A connection was closed.
    #[inline]
    pub(super) fn a_place_is_free(&mut self) {
        self.may_resume = self.is_paused;
    }
}

/// What one accept(2) led to.
enum Accepted {
    One,
    /// The queue is empty.
    None,
    /// Nothing can be taken in for now.
    Full,
    /// Nothing will ever come of this listener.
    Never,
}

impl<M: Mechanism> Engine<M> {
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
        for _ in 0..limit {
            match self.accept_one(index) {
                Accepted::One => {}
                Accepted::None => return,
                Accepted::Full => return self.pause_accepting(),
                Accepted::Never => return self.give_up(index),
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

    fn accept_one(&mut self, index: usize) -> Accepted {
        if self.table.len() >= self.acceptor.max_connections {
            if !std::mem::replace(&mut self.acceptor.has_said, true) {
                tracing::warn!(
                    "accepting stops at {} connections, as many as --max-connections says or the \
                     limit of open files leaves room for (`ulimit -Hn`); it goes on when one \
                     closes. (Said once.)",
                    self.table.len()
                );
            }
            return Accepted::Full;
        }
        let error = match sys::accept(self.acceptor.listeners[index].socket.as_fd()) {
            Ok(socket) => {
                self.take_in(socket);
                return Accepted::One;
            }
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Accepted::None,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                if !std::mem::replace(&mut self.acceptor.has_said, true) {
                    tracing::warn!(
                        "accepting stops at {} connections: {error}; it goes on when one closes. \
                         (Said once.) Raise the limit with `ulimit -n`, or lower --max-connections",
                        self.table.len()
                    );
                }
                self.acceptor.retry_at = Some(self.service.clock.after(ticks(RETRY)));
                Accepted::Full
            }
            // It is no listener any more (somebody who shares it has shut it down), and would say
            // so at each call.
            Some(libc::EINVAL | libc::EBADF | libc::ENOTSOCK) => {
                tracing::error!("a listener is given up, it does not listen any more: {error}");
                Accepted::Never
            }
            // accept(2): errors of the new connection are handed over here, and are none of ours.
            _ => Accepted::One,
        }
    }

    fn take_in(&mut self, socket: OwnedFd) {
        let fd = socket.as_raw_fd();
        match self.mechanism.add(socket.as_fd(), Interest::READ) {
            Ok(token) => {
                self.table.insert(socket, token);
                self.connections.accepted += 1;
                let deadline = self.service.clock.after(self.service.timeouts.header);
                self.timers.arm(&mut self.table, fd, deadline);
            }
            Err(error) => {
                self.connections.refused += 1;
                if !std::mem::replace(&mut self.acceptor.has_said, true) {
                    tracing::warn!("refusing connections: {error}. (Said once.)");
                }
                sys::close(socket);
            }
        }
    }

    /// Looks away from the listeners, which a level-triggered mechanism would report for ever.
    #[cold]
    fn pause_accepting(&mut self) {
        self.acceptor.is_paused = true;
        self.acceptor.may_resume = false;
        self.acceptor.pauses += 1;
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
            let is_time = acceptor.retry_at.is_some_and(|at| at <= self.service.clock.tick());
            if !acceptor.may_resume && !is_time {
                return;
            }
            acceptor.is_paused = false;
            acceptor.may_resume = false;
            acceptor.retry_at = None;
            // Every mechanism reports what is ready when its interest is changed.
            self.watch_listeners(Interest::READ);
            return;
        }
        // One may be given up on the way; who is passed over then has its turn the next time.
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

    /// Takes in what waits already, and then no more: the listeners are closed.
    pub(super) fn stop_accepting(&mut self) {
        for index in 0..self.acceptor.listeners.len() {
            while let Accepted::One = self.accept_one(index) {}
        }
        for listener in std::mem::take(&mut self.acceptor.listeners) {
            let _ = self.mechanism.close(listener.token, listener.socket);
        }
        self.acceptor.is_paused = false;
        self.acceptor.retry_at = None;
    }
}

/// Who is at the other end; nobody of a UNIX socket.
pub(super) fn peer(socket: &OwnedFd) -> Option<IpAddr> {
    let address = socket2::SockRef::from(socket).peer_addr().ok()?;
    address.as_socket().map(|address| address.ip().to_canonical())
}

//! One thread that holds idle connections.

use super::{IdleCounters, IdlePlan, first_reply::FirstReply};
use crate::{
    client::begin_connect,
    config::IdleKind,
    deadlines::Deadlines,
    outcome::Failure,
    source::Sources,
    tls::{TlsConnections, TlsPlan},
};
use anyhow::{Context, Result};
use pollux_event::{
    Event, Interest, Mechanism, Options, Readiness, Token, mechanism::epoll::EpollEdge,
};
use pollux_sys::{self as sys, Address};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// The most connections that one thread opens at the same time, so that the server's backlog does
/// not overflow.
const MAX_OPENING: usize = 64;

/// The pause after a failure, doubled by each further one, and the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A connection that the server drops sooner counts as a failed attempt. Otherwise a server that
/// accepts and closes at once would receive a flood of connects.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);

/// The longest time for which missed connects are made up for, so that waits of whole milliseconds, and waits that
/// end late, do not lower the rate.
const MAX_CATCH_UP: Duration = Duration::from_millis(2);

/// The longest wait, after which the stop flag is checked.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// The most receives for one event, 1 MiB, so that a server that never stops sending does not delay
/// other connections, timeouts or a stop.
const MAX_RECEIVES: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// Connecting, or sending.
    Opening,
    /// In the TLS handshake.
    Handshaking,
    /// Waiting for the reply to its one request.
    Replying,
    /// Idle.
    Idle,
}

struct IdleConnection {
    socket: OwnedFd,
    token: Token,
    phase: ConnectionPhase,
    /// The start of opening; later, the time at which it became idle.
    since: Instant,
    written: u32,
    /// The time from `since` to the start of the TLS handshake, in microseconds.
    connected_us: u32,
    /// The TLS handshake is complete.
    is_secure: bool,
    /// The connection is in the list `unread`.
    is_unread: bool,
    /// The reader of the reply; `None` once the connection is idle.
    reply: Option<Box<FirstReply>>,
}

/// Holds a part of the idle connections.
pub(super) struct IdleHolder {
    address: Address,
    sources: Option<Sources>,
    kind: IdleKind,
    bytes: Arc<[u8]>,
    tls: Option<TlsPlan>,
    is_head: bool,
    timeout: Duration,
    /// The time from the instant at which a connect is due to that of the next one, if the rate is limited.
    interval: Option<Duration>,
    own_file_tables: Option<sys::OwnFileTables>,
    wanted: usize,
    /// This holder's index, and the number of holders.
    position: (usize, usize),
}

impl IdleHolder {
    pub(super) fn new(
        plan: &IdlePlan,
        bytes: Arc<[u8]>,
        tls: Option<TlsPlan>,
        wanted: usize,
        position: (usize, usize),
    ) -> Self {
        Self {
            address: plan.destination.into(),
            sources: plan.sources,
            kind: plan.config.kind,
            bytes,
            tls,
            is_head: plan.request.method == "HEAD",
            timeout: plan.timeout,
            interval: plan.rate.map(|rate| Duration::from_secs_f64(position.1 as f64 / rate)),
            own_file_tables: plan.own_file_tables,
            wanted,
            position,
        }
    }

    /// Opens connections and holds them until `stop`.
    ///
    /// # Errors
    /// No file table or interest set is available; a wait failed.
    pub(super) fn run(self, counters: &IdleCounters, stop: &AtomicBool) -> Result<()> {
        if let Some(promise) = self.own_file_tables {
            sys::own_file_table(promise, &[]).context("a file table for idle connections")?;
        }
        let set = EpollEdge::open(&Options::default())?;
        let tls = self.tls.as_ref().map(TlsPlan::connections).transpose()?;
        let mut idle_loop = IdleLoop {
            tls,
            holder: self,
            counters,
            set,
            table: Vec::new(),
            opening: Deadlines::default(),
            open: 0,
            held: 0,
            connects: 0,
            next_connect_at: None,
            to_replace: 0,
            pause: FIRST_PAUSE,
            resume_at: None,
            unread: VecDeque::new(),
            scratch: vec![0; crate::thread::SCRATCH_BYTES].into(),
        };
        while !stop.load(Relaxed) {
            idle_loop.open_missing();
            idle_loop.expire();
            let wait = idle_loop.next_wait();
            idle_loop.set.wait(Some(wait)).context("waiting on idle connections")?;
            while let Some(event) = idle_loop.set.next_event() {
                idle_loop.on_event(event);
            }
            idle_loop.resume_reading();
        }
        counters.held.fetch_sub(idle_loop.held, Relaxed);
        Ok(())
    }
}

struct IdleLoop<'a> {
    holder: IdleHolder,
    /// The TLS connections, for an `https` URL.
    tls: Option<TlsConnections>,
    counters: &'a IdleCounters,
    set: EpollEdge,
    table: Vec<Option<IdleConnection>>,
    /// Connections that are not idle yet, in the order of their start.
    opening: Deadlines,
    open: usize,
    held: usize,
    connects: u64,
    /// The earliest time of the next connect, if connects have an interval.
    next_connect_at: Option<Instant>,
    /// The number of connections that were dropped while idle and not replaced yet.
    to_replace: usize,
    pause: Duration,
    resume_at: Option<Instant>,
    /// Connections with more input than one event may read, each at most once.
    unread: VecDeque<Token>,
    scratch: Box<[u8]>,
}

impl IdleLoop<'_> {
    fn open_missing(&mut self) {
        if self.open == self.holder.wanted {
            return;
        }
        let now = Instant::now();
        if self.resume_at.is_some_and(|at| now < at) {
            return;
        }
        while self.open < self.holder.wanted && self.opening.len() < MAX_OPENING {
            if self.next_connect_at.is_some_and(|at| now < at) {
                return;
            }
            let due_at = self.next_connect_at;
            self.next_connect_at =
                self.holder.interval.map(|interval| next_connect(due_at, now, interval));
            let Err(kind) = self.open_one(now) else { continue };
            return self.record_failure(kind, now);
        }
    }

    fn open_one(&mut self, now: Instant) -> Result<(), Failure> {
        let (index, holders) = self.holder.position;
        let nth = self.connects * holders as u64 + index as u64;
        self.connects += 1;
        let source = self.holder.sources.map(|sources| sources.get(nth).into());
        let socket = begin_connect(&self.holder.address, source, false)
            .map_err(|error| self.kind_of(&error))?;
        let token = self
            .set
            .add(socket.as_fd(), Interest::READ | Interest::WRITE)
            .map_err(|_| Failure::Other)?;
        let fd = socket.as_raw_fd();
        let index = fd as usize;
        if index >= self.table.len() {
            self.table.resize_with((index + 1).next_multiple_of(1024), || None);
        }
        let phase = ConnectionPhase::Opening;
        self.table[index] = Some(IdleConnection {
            socket,
            token,
            phase,
            since: now,
            written: 0,
            connected_us: 0,
            is_secure: false,
            is_unread: false,
            reply: FirstReply::new(self.holder.kind, self.holder.is_head),
        });
        self.open += 1;
        self.opening.push(fd);
        Ok(())
    }

    /// The kind of a failed system call; its number is stored for the message.
    #[cold]
    fn kind_of(&self, error: &io::Error) -> Failure {
        self.counters.last_error.store(error.raw_os_error().unwrap_or(0), Relaxed);
        let kind = Failure::from_io(error);
        if kind == Failure::Tls
            && let Ok(mut last) = self.counters.last_tls.lock()
        {
            *last = error.to_string();
        }
        kind
    }

    fn record_failure(&mut self, kind: Failure, now: Instant) {
        self.counters.failed.fetch_add(1, Relaxed);
        self.counters.last_failure.store(kind as usize + 1, Relaxed);
        // Failures within one pause count as one.
        match self.resume_at {
            Some(at) if now < at => return,
            Some(at) if now < at + LONGEST_PAUSE => {
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
            _ => self.pause = FIRST_PAUSE,
        }
        self.resume_at = Some(now + self.pause);
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while let Some(fd) = self.opening.first() {
            let due = self.table[fd as usize]
                .as_ref()
                .is_none_or(|connection| connection.since + self.holder.timeout <= now);
            if !due {
                return;
            }
            self.lose(fd, Failure::Timeout, now);
        }
    }

    fn next_wait(&self) -> Duration {
        if !self.unread.is_empty() {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let mut wait = LONGEST_WAIT;
        let is_missing = self.open < self.holder.wanted && self.opening.len() < MAX_OPENING;
        if is_missing {
            let resume_at = self.resume_at.max(self.next_connect_at).unwrap_or(now);
            wait = wait.min(resume_at.saturating_duration_since(now));
        }
        if let Some(connection) =
            self.opening.first().and_then(|fd| self.table[fd as usize].as_ref())
        {
            let due_at = connection.since + self.holder.timeout;
            wait = wait.min(due_at.saturating_duration_since(now));
        }
        wait
    }

    fn on_event(&mut self, Event { token, readiness }: Event) {
        let fd = token.fd;
        let Some(connection) = self.table[fd as usize].as_mut() else { return };
        let now = Instant::now();
        if connection.phase == ConnectionPhase::Opening {
            if readiness.intersects(Readiness::ERROR | Readiness::HANGUP) {
                let kind = match sys::take_socket_error(connection.socket.as_fd()) {
                    Err(error) => self.kind_of(&error),
                    Ok(()) => Failure::ClosedEarly,
                };
                return self.lose(fd, kind, now);
            }
            if readiness.is_writable() {
                if let Some(tls) = &mut self.tls
                    && !connection.is_secure
                {
                    connection.phase = ConnectionPhase::Handshaking;
                    let connected = now.saturating_duration_since(connection.since);
                    connection.connected_us = connected.as_micros().try_into().unwrap_or(u32::MAX);
                    if let Err(error) = tls.begin(fd) {
                        let kind = self.kind_of(&error);
                        return self.lose(fd, kind, now);
                    }
                } else {
                    self.send_all(fd, now);
                }
            }
        }
        let Some(connection) = self.table[fd as usize].as_mut() else { return };
        if connection.phase == ConnectionPhase::Handshaking {
            self.handshake(fd, now);
            // The server may have sent more together with the end of the handshake, or closed the connection: no other
            // event reports that.
            let is_secure = self.table[fd as usize].as_ref().is_some_and(|one| one.is_secure);
            if is_secure {
                self.receive(fd, now);
            }
            return;
        }
        if readiness.is_readable() {
            self.receive(fd, now);
        }
    }

    /// Continues the TLS handshake, and sends the request after it.
    fn handshake(&mut self, fd: RawFd, now: Instant) {
        let Some(connection) = self.table[fd as usize].as_mut() else { return };
        let Some(tls) = &mut self.tls else { return };
        match tls.handshake(connection.socket.as_fd(), &mut self.scratch) {
            Ok(end) => {
                connection.phase = ConnectionPhase::Opening;
                connection.is_secure = true;
                let began_at =
                    connection.since + Duration::from_micros(connection.connected_us.into());
                self.counters.count_handshake(end, Instant::now() - began_at);
                self.send_all(fd, now);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                let kind = self.kind_of(&error);
                self.lose(fd, kind, now);
            }
        }
    }

    /// Sends as much as possible, and then enters the next phase.
    fn send_all(&mut self, fd: RawFd, now: Instant) {
        match self.send(fd) {
            Err(kind) => return self.lose(fd, kind, now),
            Ok(false) => return,
            Ok(true) => {}
        }
        match self.holder.kind {
            IdleKind::AfterRequest | IdleKind::Subscribe => {
                self.set_phase(fd, ConnectionPhase::Replying)
            }
            IdleKind::Connect | IdleKind::Partial => self.hold(fd, now),
        }
    }

    /// Sends the rest; true when everything has been sent.
    fn send(&mut self, fd: RawFd) -> Result<bool, Failure> {
        let Some(connection) = self.table[fd as usize].as_mut() else { return Ok(false) };
        let bytes = &self.holder.bytes;
        while (connection.written as usize) < bytes.len() {
            let rest = &bytes[connection.written as usize..];
            let sent = match &mut self.tls {
                None => sys::send(connection.socket.as_fd(), rest, false),
                Some(tls) => tls.send(connection.socket.as_fd(), rest),
            };
            match sent {
                Ok(count) => connection.written += count as u32,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.kind_of(&error)),
            }
        }
        Ok(true)
    }

    fn set_phase(&mut self, fd: RawFd, phase: ConnectionPhase) {
        if let Some(connection) = self.table[fd as usize].as_mut() {
            connection.phase = phase;
        }
    }

    /// Marks the connection as complete and idle.
    fn hold(&mut self, fd: RawFd, now: Instant) {
        let Some(connection) = self.table[fd as usize].as_mut() else { return };
        connection.phase = ConnectionPhase::Idle;
        connection.since = now;
        connection.reply = None;
        self.opening.remove(fd);
        self.held += 1;
        self.counters.held.fetch_add(1, Relaxed);
        self.counters.opened.fetch_add(1, Relaxed);
        if self.to_replace > 0 {
            self.to_replace -= 1;
            self.counters.reopened.fetch_add(1, Relaxed);
        }
    }

    /// Continues to read connections that have more input than one event may read.
    fn resume_reading(&mut self) {
        let now = Instant::now();
        for _ in 0..self.unread.len() {
            let Some(token) = self.unread.pop_front() else { return };
            let connection = self.table.get_mut(token.fd as usize).and_then(Option::as_mut);
            let Some(connection) = connection.filter(|connection| connection.token == token) else {
                continue;
            };
            connection.is_unread = false;
            self.receive(token.fd, now);
        }
    }

    fn receive(&mut self, fd: RawFd, now: Instant) {
        for _ in 0..MAX_RECEIVES {
            let Some(connection) = self.table[fd as usize].as_mut() else { return };
            let state = connection.phase;
            let received = match &mut self.tls {
                None => sys::recv(connection.socket.as_fd(), &mut self.scratch),
                Some(tls) => tls.receive(connection.socket.as_fd(), &mut self.scratch),
            };
            let len = match received {
                Ok(0) => return self.lose(fd, Failure::ClosedEarly, now),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let kind = self.kind_of(&error);
                    return self.lose(fd, kind, now);
                }
            };
            let Some(reply) = &mut connection.reply else {
                // A partial request may be answered (408) before the close, so read on. The events of a
                // stream are dropped.
                continue;
            };
            match reply.feed(&self.scratch[..len]) {
                Ok(false) => {}
                Ok(true) if state == ConnectionPhase::Replying => self.hold(fd, now),
                // A reply to a request that was not sent.
                Ok(true) => return self.lose(fd, Failure::ClosedEarly, now),
                Err(kind) => return self.lose(fd, kind, now),
            }
        }
        if let Some(connection) = self.table[fd as usize].as_mut()
            && !std::mem::replace(&mut connection.is_unread, true)
        {
            self.unread.push_back(connection.token);
        }
    }

    /// Removes the connection.
    fn lose(&mut self, fd: RawFd, kind: Failure, now: Instant) {
        self.opening.remove(fd);
        let Some(connection) = self.table[fd as usize].take() else { return };
        self.open -= 1;
        let was_held = connection.phase == ConnectionPhase::Idle;
        if was_held {
            self.held -= 1;
            self.to_replace += 1;
            self.counters.held.fetch_sub(1, Relaxed);
            self.counters.dropped.fetch_add(1, Relaxed);
        }
        if !was_held || now - connection.since < SHORTEST_LIFE {
            self.record_failure(kind, now);
        }
        if let Some(tls) = &mut self.tls {
            tls.end(connection.socket.as_fd(), false);
        }
        let _ = self.set.close(connection.token, connection.socket);
    }
}

/// The instant of the connect that follows one at `now`, which was due at `due_at`.
fn next_connect(due_at: Option<Instant>, now: Instant, interval: Duration) -> Instant {
    let earliest = now.checked_sub(MAX_CATCH_UP).unwrap_or(now);
    due_at.unwrap_or(now).max(earliest) + interval
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: each holder once made at most 1,000 connections per second, whatever --rate was.
    #[test]
    fn connects_may_be_closer_than_the_waits_between_them() {
        let begin = Instant::now();
        let mut due_at: Option<Instant> = None;
        let mut connect = |now: Instant| {
            let mut count = 0;
            while due_at.is_none_or(|at| at <= now) {
                due_at = Some(next_connect(due_at, now, Duration::from_micros(200)));
                count += 1;
            }
            count
        };
        let in_a_second: u32 = (0..1000).map(|ms| connect(begin + Duration::from_millis(ms))).sum();
        assert_eq!(in_a_second, 4_996);
        // After a pause, only those of the last two milliseconds are made up for.
        assert_eq!(connect(begin + Duration::from_secs(60)), 11);
    }
}

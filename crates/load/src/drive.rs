//! The work of a thread on its connections: opens them, sends, receives, and ends requests.

mod handshake;
#[cfg(test)]
mod tests;

use crate::{
    client::{Connection, ConnectionState, Request, SendProgress, begin_connect},
    config::Closing,
    outcome::Failure,
    record::{FailedRequest, Reply},
    thread::Worker,
};
use pollux_event::{Event, Interest, Mechanism, Readiness};
use pollux_http::reply::{self, Decoder, ReplyError};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
};

/// The most receives for one event, 1 MiB; then other connections are served.
const MAX_RECEIVES: usize = 16;

impl Worker<'_> {
    /// Begins request `number` on connection `free`, or on a new one.
    #[inline]
    pub(super) fn begin(
        &mut self,
        free: Option<RawFd>,
        scheduled_ns: u64,
        number: u64,
        now_ns: u64,
    ) {
        let mut request = Request {
            scheduled_ns,
            sent_ns: 0,
            target: self.plan.targets.choose(self.plan.seed, number) as u32,
            last: self.plan.requests_per_connection == 1,
            measured: scheduled_ns >= self.measured_ns,
            written: 0,
        };
        let Some(fd) = free else {
            if let Err(kind) = self.open(now_ns, Some((request, number))) {
                self.count_connect_failure(now_ns, kind);
                self.record_failure(kind, scheduled_ns, now_ns);
                self.end_session(now_ns, |sessions| &mut sessions.broken);
                self.record_lost_connection(now_ns, false);
            }
            return;
        };
        let connection = self.pool.get(fd).expect("a free descriptor has its connection");
        connection.requests_left -= 1;
        request.last = connection.requests_left == 0;
        connection.number = number;
        let former = std::mem::replace(&mut connection.state, ConnectionState::Busy);
        connection.request = Some(request);
        connection.decoder.begin(self.plan.is_head);
        if former == ConnectionState::Thinking {
            self.lists.replies.push_follow_up(fd);
        } else {
            self.lists.replies.push(fd);
        }
        if let Err(kind) = self.send(fd, now_ns) {
            self.fail(fd, kind, now_ns);
        }
    }

    /// Opens a connection, with its first request and the request's number if there is one.
    ///
    /// # Errors
    /// The reason why there is no connection; the caller counts the failure.
    #[inline]
    pub(super) fn open(
        &mut self,
        now_ns: u64,
        first: Option<(Request, u64)>,
    ) -> Result<(), Failure> {
        let request = first.map(|(request, _)| request);
        // Each thread starts at another source, so that two threads do not use the same source at the
        // same time.
        let nth = self.opening.connects * self.plan.threads as u64 + self.index as u64;
        self.opening.connects += 1;
        let source = self.plan.sources.map(|sources| sources.get(nth).into());
        let reset = self.plan.closing == Closing::Reset;
        let socket = begin_connect(&self.plan.address, source, reset)
            .map_err(|error| self.recorder.kind_of(&error))?;
        let fd = socket.as_raw_fd();
        let carries = u64::from(request.is_some());
        let mut connection = Connection {
            socket,
            // A placeholder until the socket is in the interest set.
            token: pollux_event::Token { fd, generation: u32::MAX },
            state: ConnectionState::Connecting,
            since_ns: now_ns,
            handshake_ns: 0,
            requests_left: self.plan.requests_per_connection - carries,
            number: first.map_or(0, |(_, number)| number),
            request,
            decoder: Decoder::new(),
            watches_write: false,
            is_closed: false,
        };
        connection.decoder.begin(self.plan.is_head);
        // Read before the send: the server may have answered when the send returns.
        let sending_ns = self.plan.now_ns();
        // A send before the descriptor is in the interest set causes no event for writability.
        let sent = match request {
            // TLS has a handshake first.
            Some(_) if self.tls.is_none() => connection.send(self.plan, None),
            _ => Ok(SendProgress::Nothing),
        };
        let is_whole = matches!(sent, Ok(SendProgress::Complete));
        connection.watches_write = !is_whole;
        let interest = if is_whole { Interest::READ } else { Interest::READ | Interest::WRITE };
        connection.token =
            self.set.add(connection.socket.as_fd(), interest).map_err(|_| Failure::Other)?;
        self.pool.insert(connection);
        self.lists.handshakes.push(fd);
        if request.is_some() {
            self.lists.replies.push(fd);
        }
        match sent {
            Ok(SendProgress::Nothing) => {}
            Ok(SendProgress::Complete | SendProgress::Partial) => {
                self.connected(fd, sending_ns);
                self.record_sent(fd, sending_ns);
            }
            Err(error) => {
                let kind = self.recorder.kind_of(&error);
                self.fail(fd, kind, now_ns);
            }
        }
        Ok(())
    }

    /// Handles the end of the TCP handshake of `fd`.
    #[inline]
    fn connected(&mut self, fd: RawFd, now_ns: u64) {
        let Some(connection) = self.pool.get(fd) else { return };
        if connection.state != ConnectionState::Connecting {
            return;
        }
        if self.opening.is_setup || now_ns >= self.measured_ns {
            self.recorder.connect.saturating_record(now_ns - connection.since_ns);
        }
        if self.tls.is_some() {
            return self.begin_handshake(fd, now_ns);
        }
        self.opened(fd, now_ns);
    }

    /// Marks `fd` as ready for requests.
    #[inline]
    fn opened(&mut self, fd: RawFd, now_ns: u64) {
        let Some(connection) = self.pool.get(fd) else { return };
        let has_request = connection.request.is_some();
        let token = connection.token;
        connection.state = if has_request { ConnectionState::Busy } else { ConnectionState::Free };
        self.lists.handshakes.remove(fd);
        if self.opening.is_setup || now_ns >= self.measured_ns {
            self.recorder.connections.opened += 1;
        }
        if !has_request && !self.next_for(fd, now_ns) {
            self.pool.push_free(token);
        }
    }

    /// Records that the kernel has accepted the first bytes of the request on `fd`.
    #[inline]
    fn record_sent(&mut self, fd: RawFd, now_ns: u64) {
        let Some(connection) = self.pool.get(fd) else { return };
        let Some(request) = &mut connection.request else { return };
        if request.sent_ns == 0 {
            request.sent_ns = now_ns;
            let measured = request.measured;
            let at_ns = self.measured_at(now_ns);
            self.recorder.send(at_ns, measured);
        }
    }

    /// Sends the rest of the request on `fd`.
    #[inline]
    fn send(&mut self, fd: RawFd, now_ns: u64) -> Result<(), Failure> {
        let connection = self.pool.get(fd).expect("the caller has found it");
        let sent = connection.send(self.plan, self.tls.as_mut());
        let sent = sent.map_err(|error| self.recorder.kind_of(&error))?;
        if sent != SendProgress::Complete {
            connection.watch_write(&mut self.set)?;
        }
        if sent != SendProgress::Nothing {
            self.record_sent(fd, now_ns);
        }
        Ok(())
    }

    /// Handles the events of the last wait. After each event, requests whose instant is reached are
    /// dispatched, so that many replies at once do not delay the schedule.
    #[inline]
    pub(super) fn drain_events(&mut self) {
        while let Some(event) = self.set.next_event() {
            let now_ns = self.plan.now_ns();
            self.on_event(event, now_ns);
            if !self.opening.is_setup {
                self.dispatch_due(now_ns);
                self.start_waiting(now_ns);
                self.continue_sessions(now_ns);
            }
        }
    }

    #[inline]
    fn on_event(&mut self, Event { token, readiness }: Event, now_ns: u64) {
        let fd = token.fd;
        let Some(connection) = self.pool.get(fd) else { return };
        match connection.state {
            ConnectionState::Connecting => self.on_connecting(fd, readiness, now_ns),
            ConnectionState::Handshaking => self.go_on_with_handshake(fd, readiness, now_ns),
            ConnectionState::Busy => {
                let request = connection.request.expect("a busy connection has a request");
                if connection.watches_write && readiness.is_writable() {
                    let is_whole = request.written
                        == self.plan.requests[request.target as usize].get(request.last).len();
                    if !is_whole && let Err(kind) = self.send(fd, now_ns) {
                        // The reply may have arrived before the reset that stopped the request.
                        let has_data = readiness.contains(Readiness::READABLE);
                        if !has_data {
                            return self.fail(fd, kind, now_ns);
                        }
                    }
                }
                if readiness.is_readable() {
                    self.receive(fd, readiness);
                }
            }
            ConnectionState::Free | ConnectionState::Thinking => {
                self.on_unused(fd, readiness, now_ns);
            }
            ConnectionState::Closing => {
                if readiness
                    .intersects(Readiness::READ_CLOSED | Readiness::HANGUP | Readiness::ERROR)
                {
                    self.drop_connection(fd);
                }
            }
        }
    }

    /// Handles an event of a connection without a request.
    #[inline]
    fn on_unused(&mut self, fd: RawFd, readiness: Readiness, now_ns: u64) {
        let Some(connection) = self.pool.get(fd) else { return };
        let state = connection.state;
        if readiness.is_readable() && !self.is_record_layers_own(fd) {
            // No request is pending, so this is a close, or data that cannot be used.
            if state == ConnectionState::Thinking {
                self.end_session(now_ns, |sessions| &mut sessions.broken);
            }
            self.recorder.connections.dropped_idle += 1;
            self.drop_connection(fd);
            self.record_lost_connection(now_ns, true);
        }
    }

    #[inline]
    fn on_connecting(&mut self, fd: RawFd, readiness: Readiness, now_ns: u64) {
        if readiness.intersects(Readiness::ERROR | Readiness::HANGUP) {
            let error = self.pool.get(fd).and_then(|connection| connection.take_error());
            let kind = error.map_or(Failure::Reset, |error| self.recorder.kind_of(&error));
            return self.fail(fd, kind, now_ns);
        }
        if !readiness.is_writable() {
            return;
        }
        self.connected(fd, now_ns);
        self.send_first(fd, readiness, now_ns);
    }

    /// Sends the request that has waited for the connection, if there is one. If there is none, the event
    /// may have reported the server's close, too, and no other event repeats that.
    #[inline]
    fn send_first(&mut self, fd: RawFd, readiness: Readiness, now_ns: u64) {
        if self.pool.get(fd).is_some_and(|connection| connection.state == ConnectionState::Free) {
            return self.on_unused(fd, readiness, now_ns);
        }
        let is_busy = self.pool.get(fd).is_some_and(|connection| {
            connection.state == ConnectionState::Busy
                && connection.request.is_some_and(|request| request.sent_ns == 0)
        });
        if is_busy {
            if let Err(kind) = self.send(fd, now_ns) {
                return self.fail(fd, kind, now_ns);
            }
            if readiness.contains(Readiness::READABLE) {
                self.receive(fd, readiness);
            }
        }
    }

    /// Continues to read connections that have more input than one event may read.
    #[inline]
    pub(super) fn resume_reading(&mut self) {
        for _ in 0..self.lists.unread.len() {
            let Some(token) = self.lists.unread.pop_front() else { return };
            let is_live = self.pool.get(token.fd).is_some_and(|connection| {
                connection.token == token && connection.state == ConnectionState::Busy
            });
            if is_live {
                self.receive(token.fd, Readiness::READABLE);
            }
        }
    }

    /// Receives until the reply is complete or the socket is empty.
    ///
    /// A receive that does not fill the buffer has emptied the socket (epoll(7), Q9), which saves a
    /// call that returns EAGAIN. If the peer closes after that, another event reports it; a close that
    /// was reported before is in `readiness` or in [`Connection::is_closed`].
    #[inline]
    fn receive(&mut self, fd: RawFd, readiness: Readiness) {
        let connection = self.pool.get(fd).expect("the caller has found it");
        connection.is_closed |=
            readiness.intersects(Readiness::READ_CLOSED | Readiness::HANGUP | Readiness::ERROR);
        for _ in 0..MAX_RECEIVES {
            let connection = self.pool.get(fd).expect("the caller has found it");
            let received = match &mut self.tls {
                None => pollux_sys::recv(connection.socket.as_fd(), &mut self.scratch),
                Some(tls) => {
                    let received = tls.receive(connection.socket.as_fd(), &mut self.scratch);
                    // The end may have come with the reply.
                    connection.is_closed |= tls.has_received_close(fd);
                    received
                }
            };
            match received {
                Ok(0) => {
                    connection.is_closed = true;
                    let reply = connection.decoder.finish();
                    let now_ns = self.plan.now_ns();
                    return match reply {
                        Ok(reply) => self.reply(fd, reply, now_ns),
                        Err(_) => self.fail(fd, Failure::ClosedEarly, now_ns),
                    };
                }
                Ok(len) => {
                    let fed = connection.decoder.feed(&self.scratch[..len]);
                    if connection.request.is_some_and(|request| request.measured) {
                        self.recorder.bytes_received += len as u64;
                    }
                    match fed {
                        Err(bad) => {
                            return self.reject(fd, Rejection::Malformed(bad), self.plan.now_ns());
                        }
                        Ok(fed) => {
                            if let Some(reply) = fed.reply {
                                let now_ns = self.plan.now_ns();
                                if fed.consumed < len {
                                    // The peer sent more than the requested reply, so the reply's
                                    // length is wrong.
                                    return self.reject(fd, Rejection::Malformed(TOO_LONG), now_ns);
                                }
                                return self.reply(fd, reply, now_ns);
                            }
                        }
                    }
                    let may_have_more = match &self.tls {
                        None => len == self.scratch.len(),
                        Some(tls) => tls.may_have_more,
                    };
                    if !may_have_more && !connection.is_closed {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let kind = self.recorder.kind_of(&error);
                    return self.fail(fd, kind, self.plan.now_ns());
                }
            }
        }
        if let Some(connection) = self.pool.get(fd) {
            self.lists.unread.push_back(connection.token);
        }
    }

    /// Handles the complete reply on `fd`.
    #[inline]
    fn reply(&mut self, fd: RawFd, reply: reply::Reply, now_ns: u64) {
        let status = usize::from(reply.status);
        let connection = self.pool.get(fd).expect("the caller has found it");
        let Some(request) = connection.request else { return };
        if request.measured {
            self.recorder.statuses[status] += 1;
            self.recorder.content_bytes += reply.body;
        }
        let is_sent =
            request.written == self.plan.requests[request.target as usize].get(request.last).len();
        let is_closed = connection.is_closed;
        let is_reusable = reply.keep_alive && !is_closed && is_sent && connection.requests_left > 0;
        let bad = if !self.plan.good_status[status] {
            Some(Rejection::Status)
        } else if self.plan.expected_length.is_some_and(|length| length != reply.body) {
            Some(Rejection::Length)
        } else {
            None
        };
        if let Some(bad) = bad {
            // A failure ends its session. Without sessions the connection stays usable after a
            // complete reply.
            if !is_reusable || self.plan.session.is_some() {
                return self.reject(fd, bad, now_ns);
            }
            connection.request = None;
            self.lists.replies.remove(fd);
            self.count_bad(bad, request.measured);
            self.record_failure(bad.kind(), request.scheduled_ns, now_ns);
            return self.go_on_with(fd, now_ns);
        }
        connection.request = None;
        self.lists.replies.remove(fd);
        let was_last = connection.requests_left == 0;
        // A reply to a request that was not sent has no service time.
        let sent_ns = request.sent_ns.max(request.scheduled_ns);
        let at_ns = self.measured_at(now_ns);
        self.recorder.complete(Reply {
            latency_ns: now_ns - request.scheduled_ns,
            service_ns: now_ns - sent_ns,
            at_ns,
            measured: request.measured,
        });
        if is_reusable && self.plan.session.is_some() {
            if self.think(fd, now_ns) {
                return;
            }
        } else if is_reusable {
            return self.go_on_with(fd, now_ns);
        }
        if was_last {
            self.end_session(now_ns, |sessions| &mut sessions.completed);
        } else if !is_reusable {
            self.end_session(now_ns, |sessions| &mut sessions.broken);
        }
        // The server closes after the last request, and after a reply by which it ends the connection.
        let ends = was_last || !reply.keep_alive;
        if self.plan.closing == Closing::Wait && !is_closed && ends {
            let connection = self.pool.get(fd).expect("the caller has found it");
            connection.state = ConnectionState::Closing;
            connection.since_ns = now_ns;
            self.lists.handshakes.push(fd);
        } else {
            self.drop_connection(fd);
        }
        self.record_lost_connection(now_ns, true);
    }

    /// Continues with the connection `fd`, which has no request any more and may get another.
    #[inline]
    fn go_on_with(&mut self, fd: RawFd, now_ns: u64) {
        let connection = self.pool.get(fd).expect("the caller has found it");
        connection.state = ConnectionState::Free;
        let token = connection.token;
        if !self.next_for(fd, now_ns) {
            self.pool.push_free(token);
        }
    }

    /// Fails the request on `fd`, if any, and closes the connection.
    #[cold]
    pub(super) fn fail(&mut self, fd: RawFd, kind: Failure, now_ns: u64) {
        let Some(connection) = self.pool.get(fd) else { return };
        let was_connecting =
            matches!(connection.state, ConnectionState::Connecting | ConnectionState::Handshaking);
        let request = connection.request.take();
        self.drop_connection(fd);
        if was_connecting {
            self.count_connect_failure(now_ns, kind);
        }
        if let Some(request) = request {
            self.record_failure(kind, request.scheduled_ns, now_ns);
            self.end_session(now_ns, |sessions| &mut sessions.broken);
        }
        self.record_lost_connection(now_ns, !was_connecting);
    }

    #[cold]
    fn count_connect_failure(&mut self, now_ns: u64, kind: Failure) {
        if self.opening.is_setup || now_ns >= self.measured_ns {
            self.recorder.connections.failed += 1;
        }
        self.opening.last_failure = Some(kind);
    }

    /// Rejects the reply on `fd`.
    #[cold]
    fn reject(&mut self, fd: RawFd, bad: Rejection, now_ns: u64) {
        let is_measured = self
            .pool
            .get(fd)
            .and_then(|connection| connection.request)
            .is_some_and(|request| request.measured);
        self.count_bad(bad, is_measured);
        self.fail(fd, bad.kind(), now_ns);
    }

    #[cold]
    fn count_bad(&mut self, bad: Rejection, is_measured: bool) {
        if !is_measured {
            return;
        }
        let counts = &mut self.recorder.bad_replies;
        match bad {
            Rejection::Malformed(reason) => {
                counts.malformed += 1;
                counts.first_malformed.get_or_insert_with(|| reason.to_string());
            }
            Rejection::Status => counts.status += 1,
            Rejection::Length => counts.length += 1,
        }
    }

    /// Counts a failed request.
    #[cold]
    pub(super) fn record_failure(&mut self, kind: Failure, scheduled_ns: u64, now_ns: u64) {
        let at_ns = self.measured_at(now_ns);
        self.recorder.fail(FailedRequest {
            kind,
            latency_ns: now_ns.saturating_sub(scheduled_ns),
            at_ns,
            measured: scheduled_ns >= self.measured_ns,
        });
    }

    /// An instant relative to the start of the measured part; negative before it.
    #[inline]
    fn measured_at(&self, now_ns: u64) -> i64 {
        now_ns as i64 - self.measured_ns as i64
    }

    /// Closes `fd` and removes it.
    #[inline]
    pub(super) fn drop_connection(&mut self, fd: RawFd) {
        self.lists.replies.remove(fd);
        self.lists.handshakes.remove(fd);
        self.lists.thinking.remove(fd);
        if let Some(connection) = self.pool.remove(fd) {
            if let Some(tls) = &mut self.tls {
                tls.end(connection.socket.as_fd(), self.plan.closing != Closing::Reset);
            }
            let _ = self.set.close(connection.token, connection.socket);
        }
    }
}

const TOO_LONG: ReplyError = ReplyError::Syntax("more came than its framing announced");

/// The reason why a reply is rejected.
#[derive(Clone, Copy)]
enum Rejection {
    Malformed(ReplyError),
    Status,
    Length,
}

impl Rejection {
    /// The kind of failure.
    fn kind(self) -> Failure {
        match self {
            Self::Status => Failure::Status,
            Self::Malformed(_) | Self::Length => Failure::BadReply,
        }
    }
}

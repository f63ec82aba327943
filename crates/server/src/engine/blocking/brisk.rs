//! Waiting for a brisk client in recv(2) itself: two system calls a request, recv and send, where
//! ppoll(2) before recv(2) makes three.
//!
//! A worker that waits in recv(2) notices no notifier, no upstream connection and no alarm. So it
//! waits there only while the client is all that it waits for, for [`PATIENCE`] at the longest, and
//! only for a client that has sent some requests, the last of them soon after the one before. A
//! client that lets this time pass is idle or slow: the next wait is one in ppoll(2), without that
//! limit. An idle client costs one more wait, once.

use super::{Blocking, Class};
use crate::stats::Counter;
use crate::{engine::upstreams::UpstreamDriver as _, service::Service, time::clock::TICK};
use pollux_sys as sys;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

/// How long a stop may have to wait for a unit that waits in recv(2).
const PATIENCE: Duration = TICK;
/// After so many requests a connection is worth the two system calls that it takes to begin.
const REQUESTS: u32 = 4;

/// How a client's requests follow one another.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The last one came within the patience.
    is_brisk: bool,
    /// The socket is blocking, with a timeout.
    blocks: bool,
    /// sendfile(2) or another process has the socket: it is to stay non-blocking.
    is_left_alone: bool,
}

impl Pace {
    /// Makes the socket what it was, for good: sendfile(2) knows no MSG_DONTWAIT.
    #[inline]
    pub(super) fn stop(&mut self, socket: BorrowedFd<'_>) {
        (self.is_left_alone, self.is_brisk) = (true, false);
        if std::mem::take(&mut self.blocks) {
            let _ = sys::set_nonblocking(socket, true);
            let _ = sys::set_receive_timeout(socket, Duration::ZERO);
        }
    }

    /// Makes the socket one that waits in recv(2). Returns whether it is.
    fn begin(&mut self, socket: BorrowedFd<'_>) -> bool {
        if !self.blocks {
            let outcome = sys::set_receive_timeout(socket, PATIENCE)
                .and_then(|()| sys::set_nonblocking(socket, false));
            self.blocks = outcome.is_ok();
            self.is_left_alone |= outcome.is_err();
        }
        self.blocks
    }
}

impl<A: Service> Blocking<A> {
    /// Notes how long a wait in ppoll(2) that began at this tick has lasted.
    pub(super) fn note_pace(&mut self, begun: u32) {
        let Some(client) = &mut self.client else { return };
        client.pace.is_brisk = !client.pace.is_left_alone
            && client.connection.requests() >= REQUESTS
            && self.worker.clock.tick() - begun <= 1;
    }

    /// Waits for input of a brisk client and takes it, in one call. Returns false when that is not to
    /// be done: then ppoll(2) is what to wait in.
    pub(super) fn receive_in_one_call(&mut self, class: Class) -> bool {
        if !self.client.as_ref().is_some_and(|client| client.pace.is_brisk)
            || self.worker.is_stopping
        {
            return false;
        }
        let turns = self.turns;
        self.perform();
        if self.turns != turns {
            // The connection was worked on: what it needs may be another thing since.
            return true;
        }
        if self.slot.is_stop_requested() {
            self.handle_notifier();
            return true;
        }
        if !self.waits_for_client_alone() {
            return false;
        }
        if self.begin_time(Some(class)).is_none() {
            return true;
        }
        let Some(client) = &mut self.client else { return false };
        if !client.pace.begin(client.transport.as_fd()) {
            client.pace.is_brisk = false;
            return false;
        }
        self.show();
        let Some(client) = &mut self.client else { return false };
        let mut outcome = client.transport.wait_and_receive(&mut self.input);
        if outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
            // After a stop of the process (SIGSTOP) the deadlines are over: input that arrived
            // during the stop is handled first.
            outcome = client.transport.receive(&mut self.input);
        }
        self.worker.counters.add(Counter::Waits, 1);
        self.worker.clock.update();
        if outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            client.pace.is_brisk = false;
        } else {
            self.worker.counters.add(Counter::Events, 1);
        }
        self.take_input(outcome);
        true
    }

    /// Whether there is no link, no alarm and no name that could want something meanwhile.
    fn waits_for_client_alone(&self) -> bool {
        self.upstreams.is_empty()
            && self.alarms.is_empty()
            && self.reactor.pending_commands() == 0
            && !self.names.is_pending()
    }
}

//! Waits for a brisk client in recv(2) itself: two system calls for each request, recv and send, where
//! ppoll(2) before recv(2) makes three.
//!
//! A worker that waits in recv(2) notices no notifier, no upstream connection and no alarm. So it waits
//! there only while it waits for nothing except the client, and at most for [`PATIENCE`]. The client must
//! have sent some requests, the last of them soon after the one before. A client that sends nothing within
//! this time is idle or slow: the worker then waits in ppoll(2), without that limit. An idle client costs
//! one additional wait, once.

use super::{Blocking, Class};
use crate::stats::Counter;
use crate::{engine::upstreams::UpstreamDriver as _, service::Service, time::clock::TICK};
use pollux_sys as sys;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

/// The maximum time for which a worker that waits in recv(2) may delay a stop.
const PATIENCE: Duration = TICK;
/// The number of requests after which it pays to spend the two system calls that make the socket blocking.
const REQUESTS: u32 = 4;

/// The pace of a client's requests.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Whether the last request arrived soon after the wait for it began.
    is_brisk: bool,
    /// Whether the socket is blocking, with a timeout.
    blocks: bool,
    /// Whether the socket must stay non-blocking, for sendfile(2).
    is_left_alone: bool,
}

impl Pace {
    /// Makes the socket non-blocking permanently: sendfile(2) has no MSG_DONTWAIT.
    #[inline]
    pub(super) fn stop(&mut self, socket: BorrowedFd<'_>) {
        (self.is_left_alone, self.is_brisk) = (true, false);
        if std::mem::take(&mut self.blocks) {
            let _ = sys::set_nonblocking(socket, true);
            let _ = sys::set_receive_timeout(socket, Duration::ZERO);
        }
    }

    /// Makes the socket blocking, so that recv(2) waits. Returns whether it is blocking.
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
    /// Records how long a wait in ppoll(2) that began at the tick `begun` has lasted.
    pub(super) fn note_pace(&mut self, begun: u32) {
        let Some(client) = &mut self.client else { return };
        client.pace.is_brisk = !client.pace.is_left_alone
            && client.connection.requests() >= REQUESTS
            && self.worker.clock.tick() - begun <= 1;
    }

    /// Waits for input of a brisk client and receives it, in one call. Returns false if the caller must
    /// wait in ppoll(2) instead.
    pub(super) fn receive_in_one_call(&mut self, class: Class) -> bool {
        if !self.client.as_ref().is_some_and(|client| client.pace.is_brisk)
            || self.worker.is_stopping
        {
            return false;
        }
        let before = self.iterations;
        self.perform();
        if self.iterations != before {
            // An iteration has run, so the connection may need something else now.
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
            // After a suspension of the process (SIGSTOP), the deadlines have passed: input that arrived
            // during the suspension is handled first.
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

    /// Returns whether no upstream connection, alarm, command or name lookup could need attention
    /// meanwhile.
    fn waits_for_client_alone(&self) -> bool {
        self.upstreams.is_empty()
            && self.alarms.is_empty()
            && self.reactor.pending_commands() == 0
            && !self.names.is_pending()
    }
}

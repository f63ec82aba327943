//! Stops the engine: new connections are refused, and requests in progress may complete.

use super::{Engine, table::Peer};
use crate::{service::Service, time::clock::ticks};
use pollux_event::Mechanism;
use std::time::Duration;

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Closes the listeners and the idle connections. Each other connection is closed after its response.
    pub(super) fn stop(&mut self, grace: Duration) {
        self.stop_at = Some(self.worker.clock.tick().saturating_add(ticks(grace)));
        if self.worker.is_stopping {
            return;
        }
        self.worker.is_stopping = true;
        self.keeps_idle = false;
        self.end_transfers();
        self.end_streams();
        self.end_waiting();
        // Idle connections are closed first, to make room for connections that wait to be accepted. Some of
        // the accepted connections are idle, too.
        self.close_idle();
        self.stop_accepting();
        self.close_idle();
    }

    fn close_idle(&mut self) {
        for fd in self.table.descriptors() {
            if let Some(Peer::Preamble(_)) = self.table.get_mut(fd).map(|slot| &slot.peer) {
                // The header may be followed by a request.
                self.on_preamble_event(fd);
            }
            if let Some(Peer::Preamble(_)) = self.table.get_mut(fd).map(|slot| &slot.peer) {
                self.close_preamble(fd, None);
            }
            // The socket may already contain a request, which is also in flight.
            if self.is_idle(fd) {
                self.receive(fd);
            }
            if self.is_idle(fd) {
                self.close(fd);
            }
        }
    }

    /// Returns whether a stop has been requested and nothing is left to wait for.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.stop_at.is_some_and(|at| {
            self.clients == 0 && self.transfers.is_quiet() || self.worker.clock.tick() >= at
        })
    }

    fn is_idle(&mut self, fd: std::os::fd::RawFd) -> bool {
        self.client(fd).is_some_and(|client| client.is_idle())
    }
}

//! Passes a client's connection to another process, for the event-driven engine.

use super::Engine;
use crate::stats::Counter;
use crate::{
    engine::{event::table::Peer, upstreams::UpstreamDriver as _},
    reactor::{EventTarget, HandOver, HandoverError},
    service::{Event, Service},
};
use pollux_event::Mechanism;
use pollux_sys as sys;
use std::os::fd::{AsFd, AsRawFd};

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Passes the connection on and removes it from the table. If that fails, the exchange receives
    /// the reason as an event.
    #[cold]
    pub(super) fn hand_over(&mut self, what: &HandOver) {
        if !self.is_running(what.exchange) {
            return;
        }
        let fd = what.exchange.client.fd;
        let Some(slot) = self.table.get_mut(fd) else { return };
        let Some((transport, Peer::Client(connection))) = slot.parts() else { return };
        let outcome = match connection.raw() {
            None => Err(HandoverError::OutputFirst),
            Some(input) => {
                let receivers = &mut self.reactor.receivers;
                let outcome = receivers.pass(&what.path, &what.head, transport.as_fd(), input);
                outcome.map_err(|error| HandoverError::Error(error.kind()))
            }
        };
        match outcome {
            Ok(()) => {
                connection.take_raw();
                if let Some((transport, token)) = self.table.remove(fd) {
                    debug_assert_eq!(transport.as_raw_fd(), fd);
                    // The other process keeps the socket open, so closing this descriptor alone would
                    // leave the socket in the mechanism's interest set.
                    let _ = self.mechanism.remove(token);
                    self.worker.begin_iteration();
                    self.worker.log_hand_over(transport.as_fd(), what.line());
                    sys::close(transport.into_socket());
                }
                self.worker.counters.add(Counter::HandedOver, 1);
                self.client_has_gone(fd);
                let (service, mut context) = self.parts();
                service.exchange_has_left(&mut context);
            }
            Err(why) => {
                self.deliver(EventTarget::Exchange(what.exchange), Event::NotTaken(why));
            }
        }
    }
}

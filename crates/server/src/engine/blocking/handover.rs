//! Passes the client's connection to another process, for the blocking engine.

use super::Blocking;
use crate::stats::Counter;
use crate::{
    engine::upstreams::UpstreamDriver as _,
    reactor::{EventTarget, HandOver, NotTaken},
    service::{Event, Service},
};
use std::os::fd::AsFd;

impl<A: Service> Blocking<A> {
    /// Passes the connection on and ends its service here. If that fails, the exchange receives the
    /// reason as an event.
    #[cold]
    pub(super) fn hand_over(&mut self, what: &HandOver) {
        if !self.is_running(what.exchange) {
            return;
        }
        let Some(client) = &mut self.client else { return };
        let outcome = match client.connection.raw() {
            None => Err(NotTaken::OutputFirst),
            Some(input) => {
                // The receiving process expects a socket in the state that accept(2) returns.
                client.pace.stop(client.transport.as_fd());
                let outcome = self.reactor.receivers.pass(what, client.transport.as_fd(), input);
                outcome.map_err(|error| NotTaken::Error(error.kind()))
            }
        };
        match outcome {
            Ok(()) => {
                client.connection.take_raw();
                client.is_broken = true;
                self.turns += 1;
                self.worker.log_hand_over(client.transport.as_fd(), what.line());
                self.worker.counters.add(Counter::HandedOver, 1);
            }
            Err(why) => {
                self.tell(EventTarget::Exchange(what.exchange), Event::NotTaken(why));
            }
        }
    }
}

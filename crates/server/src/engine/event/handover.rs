//! A client's connection becomes another process'.

use super::Engine;
use crate::stats::Counter;
use crate::{
    engine::{event::table::Peer, upstreams::UpstreamDriver as _},
    reactor::{EventTarget, HandOver, NotTaken},
    service::{Event, Service},
};
use pollux_event::Mechanism;
use pollux_sys as sys;
use std::os::fd::{AsFd, AsRawFd};

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Hands a connection over and forgets it; or delivers the reason why not.
    #[cold]
    pub(super) fn hand_over(&mut self, what: &HandOver) {
        if !self.is_running(what.exchange) {
            return;
        }
        let fd = what.exchange.client.fd;
        let Some(slot) = self.table.get_mut(fd) else { return };
        let Some((transport, Peer::Client(connection))) = slot.parts() else { return };
        let outcome = match connection.raw() {
            None => Err(NotTaken::OutputFirst),
            Some(input) => {
                let outcome = self.reactor.receivers.pass(what, transport.as_fd(), input);
                outcome.map_err(|error| NotTaken::Error(error.kind()))
            }
        };
        match outcome {
            Ok(()) => {
                connection.take_raw();
                if let Some((transport, token)) = self.table.remove(fd) {
                    debug_assert_eq!(transport.as_raw_fd(), fd);
                    // The other process keeps it open: closing alone would end no interest in it.
                    let _ = self.mechanism.remove(token);
                    self.worker.begin_iteration();
                    self.worker.log_hand_over(transport.as_fd(), what.line());
                    sys::close(transport.into_socket());
                }
                self.worker.counters.add(Counter::HandedOver, 1);
                self.client_has_gone(fd);
            }
            Err(why) => {
                self.tell(EventTarget::Exchange(what.exchange), Event::NotTaken(why));
            }
        }
    }
}

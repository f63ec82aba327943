//! Parked exchanges: clients that wait for a response and for nothing else, such as long polls.
//!
//! A parked exchange owns no memory in the engine: the client's slot has what the protocol must know of it, and the timer
//! of the slot is its timeout. Whatever happens to the client restores the exchange first.

use super::Engine;
use crate::{
    engine::event::table::{Class, Parked, Peer},
    reactor::{ClientId, ExchangeId, WakeReason},
    service::{Event, Service, ServiceContext},
};
use pollux_event::{Mechanism, Readiness};
use std::os::fd::RawFd;

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Parks an exchange for this number of ticks, if it only waits and its service can park it. Otherwise nothing changes.
    pub(super) fn park(&mut self, exchange: ExchangeId, ticks: u32) {
        if !self.is_running(exchange) {
            return;
        }
        let fd = exchange.client.fd;
        let Self { service, rules, worker, reactor, table, .. } = self;
        let Some(slot) = table.get_mut(fd).filter(|slot| !slot.marks.is_left()) else { return };
        let Some((parked, state)) = slot.client().and_then(|client| client.park()) else { return };
        let number = match service.park(&mut ServiceContext { rules, worker, reactor }, state) {
            Ok(number) => number,
            Err(state) => {
                slot.peer = Peer::Client(parked.restore(state));
                return;
            }
        };
        slot.peer = Peer::Parked(Parked { exchange: parked, number });
        slot.class = Class::Parked;
        let deadline = self.worker.clock.after(ticks);
        self.arm(fd as u32, deadline);
    }

    /// Returns whether this exchange is parked.
    pub(super) fn is_parked(&self, id: ExchangeId) -> bool {
        let slot = self.table.get(id.client.fd);
        slot.filter(|slot| slot.generation() == id.client.generation).is_some_and(|slot| {
            matches!(&slot.peer, Peer::Parked(parked) if parked.exchange.number() == id.number)
        })
    }

    /// Restores a parked exchange. Returns false if there is none, or if the connection had to be closed.
    pub(super) fn unpark(&mut self, fd: RawFd) -> bool {
        let Self { service, rules, worker, reactor, table, .. } = self;
        let Some(slot) = table.get_mut(fd) else { return false };
        let client = ClientId { fd, generation: slot.generation() };
        // `Clock::after` adds a tick, which the deadline has already.
        let next = worker.clock.tick().saturating_add(1);
        let left = slot.timer.deadline().unwrap_or(0).saturating_sub(next);
        let Parked { exchange, number } = match std::mem::replace(&mut slot.peer, Peer::None) {
            Peer::Parked(parked) => parked,
            other => {
                slot.peer = other;
                return false;
            }
        };
        let id = ExchangeId { client, number: exchange.number() };
        let mut context = ServiceContext { rules, worker, reactor };
        slot.timer.disarm();
        let Some(state) = service.unpark(&mut context, id, number, left) else {
            debug_assert!(false, "a service does not know an exchange that it has parked");
            self.close_socket(fd);
            self.client_has_gone(fd);
            return false;
        };
        slot.peer = Peer::Client(exchange.restore(state));
        slot.class = Class::Service;
        true
    }

    /// Restores a parked exchange, if there is one, and lets its service continue it.
    pub(super) fn wake_parked(&mut self, fd: RawFd) {
        if self.unpark(fd) {
            self.wake(fd, Event::Woken(WakeReason::Ready));
        }
    }

    /// Lets the exchanges that wait for news be answered, because this process is about to end: it would keep their
    /// clients for as long as they wait, and may learn of no further news.
    pub(super) fn end_waiting(&mut self) {
        let Self { service, rules, worker, reactor, .. } = self;
        service.end_waiting(&mut ServiceContext { rules, worker, reactor });
        for fd in self.table.descriptors() {
            self.wake_parked(fd);
        }
    }

    /// Handles an event of a client whose exchange is parked: it has sent more, or has gone.
    #[cold]
    pub(super) fn on_parked_event(&mut self, fd: RawFd, readiness: Readiness) {
        // Nothing is to be sent, so that room in the socket changes nothing.
        if readiness.is_readable()
            && self.unpark(fd)
            && let Some(client) = self.client(fd)
        {
            let need = client.need();
            self.on_event_meanwhile(fd, need, readiness);
        }
    }
}

//! The exchanges that wait for answers of the store.

use crate::reactor::ExchangeId;
use pollux_guestbook::{Answer, StoreError};
use slab::Slab;

/// The identifier of a request to the store. It stays harmless after the request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    index: u32,
    serial: u32,
}

/// All requests that are not answered, and the answers that no exchange has taken yet.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    pending: Slab<PendingRequest>,
    /// The serial number of the last ticket.
    serial: u32,
}

#[derive(Debug)]
struct PendingRequest {
    /// The serial number of the ticket: slots are reused.
    serial: u32,
    exchange: ExchangeId,
    answer: Option<Result<Answer, StoreError>>,
}

impl Ticket {
    /// Returns the number of its slot, which is small and is reused.
    pub(super) fn index(self) -> usize {
        self.index as usize
    }
}

impl Tickets {
    /// Creates a ticket for an exchange that is about to wait.
    pub(super) fn insert(&mut self, exchange: ExchangeId) -> Ticket {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let index = self.pending.insert(PendingRequest { serial, exchange, answer: None }) as u32;
        Ticket { index, serial }
    }

    /// Stores an answer until its exchange takes it. Returns the exchange to wake, or `None` if the exchange
    /// has ended meanwhile.
    pub(super) fn answer(
        &mut self,
        ticket: Ticket,
        answer: Result<Answer, StoreError>,
    ) -> Option<ExchangeId> {
        let pending = self.get_mut(ticket)?;
        pending.answer = Some(answer);
        Some(pending.exchange)
    }

    /// Answers all unanswered requests with this error. Returns the exchanges to wake.
    pub(super) fn fail_all(&mut self, why: &StoreError) -> Vec<ExchangeId> {
        let pending = self.pending.iter_mut().map(|(_, pending)| pending);
        let unanswered = pending.filter(|pending| pending.answer.is_none());
        unanswered
            .map(|pending| {
                pending.answer = Some(Err(why.clone()));
                pending.exchange
            })
            .collect()
    }

    /// Ends a ticket. Returns the answer, if it has arrived.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Result<Answer, StoreError>> {
        self.get_mut(ticket)?;
        self.pending.remove(ticket.index()).answer
    }

    fn get_mut(&mut self, ticket: Ticket) -> Option<&mut PendingRequest> {
        self.pending.get_mut(ticket.index()).filter(|pending| pending.serial == ticket.serial)
    }
}

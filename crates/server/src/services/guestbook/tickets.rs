//! Which exchange waits for which answer of the store.

use crate::reactor::ExchangeId;
use pollux_guestbook::{Answer, StoreError};

/// A question to the store, or one that once was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    index: u32,
    serial: u32,
}

/// All questions that are not answered, and the answers that are not taken.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Place {
    serial: u32,
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    exchange: ExchangeId,
    answer: Option<Result<Answer, StoreError>>,
}

impl Ticket {
    /// The number of its place: small, and used again.
    pub(super) fn index(self) -> usize {
        self.index as usize
    }
}

impl Tickets {
    /// A ticket for an exchange that is about to wait.
    pub(super) fn insert(&mut self, exchange: ExchangeId) -> Ticket {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.serial = place.serial.wrapping_add(1);
        place.waiting = Some(Waiting { exchange, answer: None });
        Ticket { index, serial: place.serial }
    }

    /// Keeps an answer until its exchange takes it. Returns whom to wake; nobody where the exchange
    /// has ended meanwhile.
    pub(super) fn answer(
        &mut self,
        ticket: Ticket,
        answer: Result<Answer, StoreError>,
    ) -> Option<ExchangeId> {
        let place = self.places.get_mut(ticket.index as usize)?;
        let waiting = place.waiting.as_mut().filter(|_| place.serial == ticket.serial)?;
        waiting.answer = Some(answer);
        Some(waiting.exchange)
    }

    /// All that are not answered are, with this error. Returns whom to wake.
    pub(super) fn fail_all(&mut self, why: &StoreError) -> Vec<ExchangeId> {
        let waiting = self.places.iter_mut().filter_map(|place| place.waiting.as_mut());
        let unanswered = waiting.filter(|waiting| waiting.answer.is_none());
        unanswered
            .map(|waiting| {
                waiting.answer = Some(Err(why.clone()));
                waiting.exchange
            })
            .collect()
    }

    /// Ends a ticket. Returns the answer, if it has come.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Result<Answer, StoreError>> {
        let place = self.places.get_mut(ticket.index as usize)?;
        if place.serial != ticket.serial {
            return None;
        }
        let waiting = place.waiting.take()?;
        self.free.push(ticket.index);
        waiting.answer
    }
}

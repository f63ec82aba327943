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
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Entry {
    serial: u32,
    waiting: Option<Pending>,
}

#[derive(Debug)]
struct Pending {
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
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.serial = entry.serial.wrapping_add(1);
        entry.waiting = Some(Pending { exchange, answer: None });
        Ticket { index, serial: entry.serial }
    }

    /// Keeps an answer until its exchange takes it. Returns whom to wake; nobody where the exchange
    /// has ended meanwhile.
    pub(super) fn answer(
        &mut self,
        ticket: Ticket,
        answer: Result<Answer, StoreError>,
    ) -> Option<ExchangeId> {
        let entry = self.entries.get_mut(ticket.index as usize)?;
        let waiting = entry.waiting.as_mut().filter(|_| entry.serial == ticket.serial)?;
        waiting.answer = Some(answer);
        Some(waiting.exchange)
    }

    /// All that are not answered are, with this error. Returns whom to wake.
    pub(super) fn fail_all(&mut self, why: &StoreError) -> Vec<ExchangeId> {
        let waiting = self.entries.iter_mut().filter_map(|entry| entry.waiting.as_mut());
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
        let entry = self.entries.get_mut(ticket.index as usize)?;
        if entry.serial != ticket.serial {
            return None;
        }
        let waiting = entry.waiting.take()?;
        self.free.push(ticket.index);
        waiting.answer
    }
}

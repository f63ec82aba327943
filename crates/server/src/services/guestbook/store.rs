//! The store behind a guestbook: a Redis server, or a file.

mod file;
mod redis;

use super::{
    StoreOpening,
    tickets::{Ticket, Tickets},
};
use crate::reactor::WakeReason;
use crate::{config, reactor::Reactor, service::Event, settings::GuestbookConfig};
use file::FileStore;
use pollux_guestbook::{Answer, Request, StoreError};
use redis::RedisStore;

/// An answer, with the ticket of its request.
type Outcome = (Ticket, Result<Answer, StoreError>);

/// The access of one worker to a store.
#[derive(Debug)]
pub(super) enum Store {
    /// Through connections to Redis.
    Redis(RedisStore),
    /// Through a thread that waits for the disk.
    File(FileStore),
}

impl Store {
    /// Opens the store for one worker. No connection is dialled yet.
    ///
    /// # Errors
    /// The file cannot be used as the store.
    pub(super) fn open(config: &GuestbookConfig, opening: StoreOpening) -> anyhow::Result<Self> {
        Ok(match &config.store {
            config::Store::Redis(url) => {
                Self::Redis(RedisStore::new(url.clone(), config.connections))
            }
            config::Store::File(path) => Self::File(FileStore::open(path, opening)?),
        })
    }

    /// Sends a request. The answer, or the error, is returned with [`Store::deliver`] after this or a later
    /// [`Store::event`]. `now` is the clock's tick.
    pub(super) fn submit(
        &mut self,
        reactor: &mut Reactor,
        now: u32,
        ticket: Ticket,
        request: Request,
    ) {
        match self {
            Self::Redis(store) => store.submit(reactor, now, ticket, &request),
            Self::File(store) => store.submit(reactor, ticket, request),
        }
    }

    /// Handles an event of the store's connection. Returns an error if no earlier request will be answered
    /// any more.
    pub(super) fn event(
        &mut self,
        reactor: &mut Reactor,
        now: u32,
        event: Event<'_>,
    ) -> Option<StoreError> {
        match self {
            Self::Redis(store) => {
                store.event(reactor, now, event);
                None
            }
            Self::File(store) => store.event(reactor, event),
        }
    }

    /// Handles a request whose answer did not arrive in time.
    pub(super) fn is_late(&mut self, reactor: &mut Reactor, ticket: Ticket) {
        match self {
            Self::Redis(store) => store.is_late(reactor, ticket),
            // The thread answers as soon as the disk permits: a repeated request would gain nothing.
            Self::File(_) => {}
        }
    }

    /// Handles a request for whose answer no exchange waits any more.
    pub(super) fn is_gone(&mut self, reactor: &mut Reactor, ticket: Ticket) {
        match self {
            Self::Redis(store) => store.is_gone(reactor, ticket),
            // The thread of the file answers in any case.
            Self::File(_) => {}
        }
    }

    /// Passes on the answers that have arrived, and wakes the exchanges that wait for them.
    pub(super) fn deliver(&mut self, tickets: &mut Tickets, reactor: &mut Reactor) {
        let answers = match self {
            Self::Redis(store) => store.answers(),
            Self::File(store) => store.answers(),
        };
        for (ticket, answer) in answers.drain(..) {
            if let Some(exchange) = tickets.answer(ticket, answer) {
                reactor.wake(exchange, WakeReason::Ready);
            }
        }
    }
}

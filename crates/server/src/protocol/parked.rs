//! An exchange that only waits, in a few bytes.
//!
//! A waiting exchange normally owns memory: its state, and what the response must know of the request. If its service can
//! remember the state in less room, the engine stores the rest in the connection's own entry. The exchange is restored
//! before anything else happens to the connection.

use super::{
    Connection, ExchangeTerms, Framing, KeepAlive,
    connection::{ActiveExchange, ConnectionPhase, ExchangeMemory, Flags},
};
use crate::{policy::OriginNumber, stats::census::Busy};

/// What a connection keeps of an exchange that is parked.
#[derive(Debug)]
pub(crate) struct ParkedExchange {
    /// The number of requests received. It is also the number of the exchange: none has begun since.
    requests: u32,
    begun_ms: u32,
    keep_alive: KeepAlive,
    allowed_origin: Option<OriginNumber>,
    hides_authorization: bool,
    wants_more: bool,
    _busy: Busy,
}

impl ParkedExchange {
    /// Returns the number of the exchange.
    pub(crate) fn number(&self) -> u32 {
        self.requests
    }

    /// Restores the connection, with the state of the exchange.
    pub(crate) fn restore<X>(self, state: X) -> Connection<X> {
        let Self { requests, begun_ms, keep_alive, allowed_origin, .. } = self;
        let terms = ExchangeTerms {
            remaining: 0,
            number: requests,
            begun_ms,
            keep_alive,
            framing: Framing::None,
            hides_authorization: self.hides_authorization,
            allowed_origin,
            is_head: false,
            wants_more: self.wants_more,
            expects_continue: false,
        };
        let exchange = ActiveExchange { state, terms, wants_body: false, is_owed_room: false };
        let mut ongoing = Box::<ExchangeMemory<X>>::default();
        ongoing.exchange = Some(exchange);
        Connection { ongoing: Some(ongoing), requests, ..Connection::default() }
    }
}

impl<X> Connection<X> {
    /// Takes the exchange out of the connection, if it only waits: no part of the response has been written, no output is
    /// unsent, and no input is stored. Otherwise the connection does not change.
    pub(crate) fn park(&mut self) -> Option<(ParkedExchange, X)> {
        let is_open = self.phase == ConnectionPhase::Open && self.flags == Flags::empty();
        let requests = self.requests;
        let waits = |exchange: &ActiveExchange<X>| {
            let ActiveExchange { terms, wants_body, is_owed_room, .. } = exchange;
            !wants_body
                && terms.framing == Framing::None
                && !is_owed_room
                && !terms.is_head
                && !terms.expects_continue
                && terms.number == requests
        };
        if !is_open || self.work().is_some() || !self.exchange().is_some_and(waits) {
            return None;
        }
        let ActiveExchange { state, terms, .. } = self.ongoing.take()?.exchange?;
        let parked = ParkedExchange {
            requests,
            begun_ms: terms.begun_ms,
            keep_alive: terms.keep_alive,
            allowed_origin: terms.allowed_origin,
            hides_authorization: terms.hides_authorization,
            wants_more: terms.wants_more,
            _busy: Busy::default(),
        };
        Some((parked, state))
    }
}

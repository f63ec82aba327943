//! Long polls that wait, in little memory: a slot among the subscribers, and an entry here.

use super::{
    Exchange, Extra, Hub, HubExchange, HubPhase,
    answer::Responder,
    connection_of,
    poll::{Poll, Reader, Wait},
};
use crate::{
    reactor::{EventTarget, ExchangeId},
    service::ServiceContext,
};
use pollux_hub::subscribers::SubscriberId;
use std::sync::Arc;

/// What the hub remembers of a poll that waits. Its audience and the last update that it has are those of the subscriber,
/// and [`Extra`] has what only some polls need.
#[derive(Debug)]
pub(super) struct ParkedPoll {
    last_id: Option<Arc<str>>,
    subscriber: SubscriberId,
    is_new: bool,
    has_query_token: bool,
}

impl Hub {
    /// Takes a poll that waits. Another exchange, and a poll for which an update has arrived already, is returned.
    pub(crate) fn park(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: Exchange,
    ) -> Result<u32, Exchange> {
        let HubExchange { responder, phase } = *exchange.0;
        let (reader, wait) = match phase {
            HubPhase::Poll(Poll { reader, wait: Some(wait), .. }) if self.can_park(&wait) => {
                (reader, wait)
            }
            phase => return Err(Exchange(Box::new(HubExchange { responder, phase }))),
        };
        let Wait { subscriber, connection, alarm } = wait;
        context.reactor.cancel(alarm);
        self.polls.remove(&connection);
        if responder.has_memory() {
            self.extras.entry(connection).or_default().responder = Some(Box::new(responder));
        }
        let Reader { last_id, is_new, has_query_token, .. } = reader;
        let parked = ParkedPoll { last_id, subscriber, is_new, has_query_token };
        Ok(u32::try_from(self.parked.insert(parked)).expect("`can_park` has checked the number"))
    }

    /// Returns whether no update has arrived for a poll since it began to wait, and there is a number for it.
    fn can_park(&self, wait: &Wait) -> bool {
        self.polls.contains_key(&wait.connection)
            && self.subscribers.connection(wait.subscriber) == Some(wait.connection)
            && u32::try_from(self.parked.vacant_key()).is_ok()
    }

    /// Returns the exchange of a parked poll, which waits for `left` ticks more.
    pub(crate) fn unpark(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: ExchangeId,
        number: u32,
        left: u32,
    ) -> Option<Exchange> {
        let parked = self.parked.try_remove(number as usize)?;
        let ParkedPoll { last_id, subscriber, is_new, has_query_token } = parked;
        let (audience, cursor) = self.subscribers.position(subscriber)?;
        let connection = connection_of(exchange.client);
        let extra = self.extras.get_mut(&connection);
        let responder = extra.and_then(|extra| extra.responder.take());
        let responder = responder.map_or_else(Responder::for_hub, |responder| *responder);
        if self.extras.get(&connection).is_some_and(Extra::is_empty) {
            self.extras.remove(&connection);
        }
        self.polls.insert(connection, exchange.number);
        let alarm = context.reactor.timer(left, EventTarget::Exchange(exchange));
        let reader = Reader { audience, cursor, is_new, last_id, has_query_token };
        let wait = Some(Wait { subscriber, connection, alarm });
        // The seconds count only until a poll waits.
        let phase = HubPhase::Poll(Poll { reader, seconds: 0, wait });
        Some(Exchange(Box::new(HubExchange { responder, phase })))
    }
}

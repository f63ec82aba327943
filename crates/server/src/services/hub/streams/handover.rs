//! A subscriber goes from one process to another, with its position in the log.

use super::{
    super::{Extra, Hub, connection_of},
    *,
};
use crate::upgrade::message::STREAM_MAX;
use pollux_hub::{
    matcher::{MatcherCache, MatcherType, Rule, Selector},
    subscribers::Audience,
    subscriptions::Subscription,
    topic::HubUrl,
};
use serde::{Deserialize, Serialize};
use std::{net::IpAddr, time::Duration};

/// What the other process must know of a subscriber.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamState {
    /// It has every update up to here.
    cursor: u64,
    /// When its token expires.
    expires_at: Option<u64>,
    /// How long its stream may still last. An earlier version does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lasts_ms: Option<u64>,
    /// The address that it is counted for.
    address: Option<IpAddr>,
    routes: Vec<WrittenMatcher>,
    grants: Vec<WrittenMatcher>,
    subscriptions: Vec<WrittenSubscription>,
}

/// A matcher: its type and its text.
type WrittenMatcher = (MatcherType, String);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSubscription {
    matcher: WrittenMatcher,
    subscriber: String,
    payload: Option<serde_json::Value>,
}

impl Hub {
    /// Whether subscribers can go to the new process of an upgrade.
    pub(crate) fn hands_over_streams(&self) -> bool {
        self.shared.is_handed_over()
    }

    /// Gives a subscriber up, which the other process takes in by what this returns. `None` if it has to stay.
    pub(crate) fn release_stream(&mut self, number: u32) -> Option<Vec<u8>> {
        if !self.hands_over_streams() {
            return None;
        }
        let id = SubscriberId::of(number);
        let connection = self.subscribers.connection(id)?;
        if self.polls.contains_key(&connection) {
            return None;
        }
        self.read_on();
        let expires_at = self.expiries.of(connection);
        let (audience, cursor) =
            self.subscribers.resume_point(id, &self.history, &self.shared.url)?;
        if self.shared.redis().is_some() && cursor + 1 < self.history.first() {
            // It has lost updates here, of which the log of the other process may not know: it learns that first.
            return None;
        }
        let extra = self.extras.get(&connection);
        let subscriptions = extra.map(|extra| &*extra.subscriptions).unwrap_or_default();
        let registry = self.shared.registry();
        let subscriptions = subscriptions.iter().map(|subscription| WrittenSubscription {
            matcher: written(&subscription.selector),
            subscriber: subscription.subscriber.to_string(),
            payload: registry.payload(subscription).cloned(),
        });
        let left = self.shared.max_lifetime.zip(self.subscribers.deadline(id));
        let left = left.map(|(limit, deadline)| limit.left(self.shared.now(), deadline));
        let state = StreamState {
            cursor,
            expires_at,
            lasts_ms: left.and_then(|left| u64::try_from(left.as_millis()).ok()),
            address: extra.and_then(|extra| extra.address),
            routes: audience.routes().iter().map(|rule| written(&rule.selector)).collect(),
            grants: audience.grants().iter().map(|rule| written(&rule.selector)).collect(),
            subscriptions: subscriptions.collect(),
        };
        drop(registry);
        let state = serde_json::to_vec(&state).ok().filter(|state| state.len() <= STREAM_MAX)?;
        self.subscribers.remove(id);
        let extra = self.extras.remove(&connection).unwrap_or_default();
        if let Some(address) = extra.address {
            self.shared.leave(address);
        }
        for subscription in &extra.subscriptions {
            // It goes on: nobody is to be informed of an end.
            let _ = self.shared.registry().remove(subscription, &self.shared.url);
        }
        Some(state)
    }

    /// Takes in a subscriber that another process has given up. `None` if this one cannot serve it.
    pub(crate) fn adopt_stream(
        &mut self,
        context: &mut ServiceContext<'_>,
        client: ClientId,
        state: &[u8],
    ) -> Option<u32> {
        let state: StreamState = serde_json::from_slice(state).ok()?;
        self.read_on();
        let HubShared { matchers, token_matchers, url, .. } = &*self.shared;
        let routes = rules(state.routes, matchers, url)?;
        let audience = Audience::new(routes, rules(state.grants, token_matchers, url)?);
        if audience.routes().is_empty() {
            return None;
        }
        let cursor = self.shared.own_position(state.cursor)?;
        let address = state.address;
        let connection = connection_of(client);
        let id = self.add_subscriber(connection, &audience, cursor)?;
        if let Some(address) = address {
            self.shared.enter_again(address);
        }
        if let Some(at) = state.expires_at {
            self.expiries.add(Expiry::new(at, id, connection), since_1970());
        }
        self.limit_lifetime(id, state.lasts_ms.map(Duration::from_millis));
        let mut subscriptions = Vec::new();
        for WrittenSubscription { matcher, subscriber, payload } in state.subscriptions {
            let selector = Selector::new(matcher.0, matcher.1);
            let subscription = Subscription { selector, subscriber: subscriber.into() };
            // It went on: nobody is to be informed of a beginning.
            let _ = self.shared.registry().add(subscription.clone(), payload, &self.shared.url);
            subscriptions.push(subscription);
        }
        if address.is_some() || !subscriptions.is_empty() {
            self.extras.insert(connection, Extra { address, subscriptions, responder: None });
        }
        self.care_later(context.reactor);
        Some(id.number())
    }
}

fn rules(written: Vec<WrittenMatcher>, matchers: &MatcherCache, url: &HubUrl) -> Option<Vec<Rule>> {
    let selectors = written.into_iter().map(|(kind, text)| Selector::new(kind, text)).collect();
    matchers.rules(selectors, url, None).ok()
}

fn written(selector: &Selector) -> WrittenMatcher {
    (selector.kind, selector.text.to_string())
}

//! Active subscriptions: the documents of the subscription API, and the updates that announce the
//! beginning and the end of a subscription.
//!
//! The texts of draft 08 differ in the names: `match_type` and `exact` in the newest, `matchType` and
//! `Exact` before. Documents have the members of both, the API has both URLs, and an event has both
//! topics. The identifier of a document is the newest, unless the URL is an earlier one.

use crate::{
    dialect::Dialect,
    matcher::{MatcherType, Selector},
    token::DETAIL_TYPES,
    topic::HubUrl,
    update::Publication,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// The media type of the documents.
pub const MEDIA_TYPE: &str = "application/ld+json";

/// The event type of subscription events.
pub const EVENT_TYPE: &str = "mercure";

const CONTEXT: &str = "https://mercure.rocks/";

/// The set of names that a URL uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// The names of the newest text.
    Newest,
    /// The names of the earlier texts of draft 08.
    Draft,
}

/// One subscription: a matcher of one subscriber.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subscription {
    /// The matcher.
    pub selector: Selector,
    /// The identity of the subscriber: derived from its token, or drawn by the hub.
    pub subscriber: Arc<str>,
}

impl Subscription {
    /// The URL of the subscription in relative form, which is also the topic of its events.
    #[must_use]
    pub fn topic(&self, hub: &HubUrl) -> String {
        self.path(hub, Names::Newest)
    }

    fn path(&self, hub: &HubUrl, names: Names) -> String {
        let kind = match (self.selector.kind, names) {
            (MatcherType::Template, _) => "",
            (kind, Names::Newest) => kind.name(),
            (kind, Names::Draft) => kind.draft_name(),
        };
        let mut path = format!("{}/subscriptions", hub.path());
        for variable in [kind, &escape(&self.selector.text), &escape(&self.subscriber)] {
            if !variable.is_empty() {
                path.push('/');
                path.push_str(variable);
            }
        }
        path
    }

    /// Returns the document of the subscription. In dialect 0 the matcher is its `topic`.
    fn document(&self, hub: &HubUrl, names: Names, record: &Record, active: bool) -> Value {
        let mut document = json!({
            "id": self.path(hub, names),
            "type": "Subscription",
            "subscriber": &*self.subscriber,
            "active": active,
        });
        let kind = self.selector.kind;
        if kind == MatcherType::Template {
            document["topic"] = (&*self.selector.text).into();
        } else {
            document["match_type"] = kind.name().into();
            document["matchType"] = kind.draft_name().into();
            document["match"] = (&*self.selector.text).into();
        }
        if let Some(payload) = &record.payload {
            document["payload"] = payload.clone();
        }
        document
    }
}

/// Percent-encodes a variable as RFC 6570 §3.2.2 does, once.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// The active subscriptions of all workers.
#[derive(Debug, Default)]
pub struct Registry {
    active: BTreeMap<Subscription, Record>,
}

#[derive(Debug)]
struct Record {
    payload: Option<Value>,
    /// The number of connections that have this subscription: one subscriber may have several.
    connections: u32,
}

impl Registry {
    /// Adds a subscription. Returns the update that announces it, unless it was already active.
    pub fn add(
        &mut self,
        subscription: Subscription,
        payload: Option<Value>,
        hub: &HubUrl,
    ) -> Option<Publication> {
        if let Some(record) = self.active.get_mut(&subscription) {
            record.connections += 1;
            return None;
        }
        let record = Record { payload, connections: 1 };
        let event = event(&subscription, &record, true, hub);
        self.active.insert(subscription, record);
        Some(event)
    }

    /// Removes a subscription. Returns the update that announces its end, unless another connection has
    /// it.
    pub fn remove(&mut self, subscription: &Subscription, hub: &HubUrl) -> Option<Publication> {
        let record = self.active.get_mut(subscription)?;
        record.connections -= 1;
        if record.connections > 0 {
            return None;
        }
        let record = self.active.remove(subscription)?;
        Some(event(subscription, &record, false, hub))
    }

    /// The payload of an active subscription.
    #[must_use]
    pub fn payload(&self, subscription: &Subscription) -> Option<&Value> {
        self.active.get(subscription)?.payload.as_ref()
    }

    /// The number of active subscriptions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.active.len()
    }

    /// Whether no subscription is active.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Answers a request of the subscription API: `path` is the raw path of the request, `last_id` the
    /// identifier of the hub's newest update. `None` means 404.
    #[must_use]
    pub fn answer(
        &self,
        path: &str,
        dialect: Dialect,
        hub: &HubUrl,
        last_id: &str,
    ) -> Option<Value> {
        let rest = path.strip_prefix(hub.path())?.strip_prefix("/subscriptions")?;
        let segments: Vec<&str> = rest.split('/').skip(1).collect();
        let first = segments.first().copied().unwrap_or_default();
        let kind = MatcherType::parse(first).filter(|_| dialect.one() && segments.len() > 1);
        let (kind, variables) = match kind {
            Some(kind) => (kind, &segments[1..]),
            None if dialect.zero() || segments.is_empty() => (MatcherType::Template, &segments[..]),
            None => return None,
        };
        let names = if first == kind.draft_name() { Names::Draft } else { Names::Newest };
        let mut document = match *variables {
            [] => self.collection(path, names, |_| true, hub),
            [text] => {
                let selector = Selector::new(kind, unescape(text)?);
                self.collection(path, names, |subscription| subscription.selector == selector, hub)
            }
            [text, subscriber] => {
                let selector = Selector::new(kind, unescape(text)?);
                let subscriber = unescape(subscriber)?.into();
                let subscription = Subscription { selector, subscriber };
                let record = self.active.get(&subscription)?;
                subscription.document(hub, names, record, true)
            }
            _ => return None,
        };
        document["@context"] = CONTEXT.into();
        document["last_event_id"] = last_id.into();
        document["lastEventID"] = last_id.into();
        Some(document)
    }

    fn collection(
        &self,
        path: &str,
        names: Names,
        wanted: impl Fn(&Subscription) -> bool,
        hub: &HubUrl,
    ) -> Value {
        let found = self.active.iter().filter(|(subscription, _)| wanted(subscription));
        let documents: Vec<_> = found
            .map(|(subscription, record)| subscription.document(hub, names, record, true))
            .collect();
        json!({"id": path, "type": "Subscriptions", "subscriptions": documents})
    }
}

/// Makes the private update that announces the beginning or the end of a subscription.
fn event(subscription: &Subscription, record: &Record, active: bool, hub: &HubUrl) -> Publication {
    let mut document = subscription.document(hub, Names::Newest, record, active);
    document["@context"] = CONTEXT.into();
    let old = subscription.selector.kind == MatcherType::Template;
    let mut topics = vec![subscription.topic(hub)];
    if !old {
        topics.push(subscription.path(hub, Names::Draft));
    }
    Publication {
        topics,
        data: document.to_string(),
        private: true,
        event_type: (!old).then(|| EVENT_TYPE.to_owned()),
        ..Publication::default()
    }
}

fn unescape(segment: &str) -> Option<String> {
    // In a path a plus is a plus; only in a query it is a space.
    let fields = crate::fields::decode(segment.replace('+', "%2B").replace('&', "%26").as_bytes());
    let (name, _) = fields.ok()?.into_iter().next()?;
    Some(name)
}

/// Returns the document of RFC 9728 that describes the hub to clients. `jwks_uri` is the URL of the
/// hub's keys; `has_subscriptions` means that the hub publishes subscriptions.
#[must_use]
pub fn metadata(
    hub: &HubUrl,
    issuers: &[String],
    jwks_uri: Option<&str>,
    has_subscriptions: bool,
) -> Value {
    let mut document = json!({
        "resource": hub.as_str(),
        "bearer_methods_supported": ["header", "query"],
        "authorization_details_types_supported": DETAIL_TYPES,
        "mercure_cookie": true,
        "mercure_matcher_types_supported":
            [MatcherType::Exact.name(), MatcherType::UrlPattern.name()],
        "mercure_version": 8,
        "mercure_hub": hub.as_str(),
    });
    if !issuers.is_empty() {
        document["authorization_servers"] = issuers.into();
    }
    if let Some(uri) = jwks_uri {
        document["jwks_uri"] = uri.into();
    }
    if has_subscriptions {
        document["mercure_subscriptions"] = true.into();
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub() -> HubUrl {
        HubUrl::parse("https://h/.well-known/mercure").unwrap()
    }

    fn subscription(kind: MatcherType, text: &str) -> Subscription {
        Subscription { selector: Selector::new(kind, text), subscriber: "urn:me".into() }
    }

    #[test]
    fn events_announce_the_beginning_and_the_end() {
        let mut registry = Registry::default();
        let one = subscription(MatcherType::UrlPattern, "https://a/:b");
        let event = registry.add(one.clone(), Some(json!({"x": 1})), &hub()).unwrap();
        let path = |name| {
            format!("/.well-known/mercure/subscriptions/{name}/https%3A%2F%2Fa%2F%3Ab/urn%3Ame")
        };
        let topic = path("urlpattern");
        assert_eq!(event.topics, [topic.clone(), path("URLPattern")]);
        assert!(event.private);
        let document: Value = serde_json::from_str(&event.data).unwrap();
        let expected = json!({
            "@context": "https://mercure.rocks/", "id": topic, "type": "Subscription",
            "match_type": "urlpattern", "matchType": "URLPattern", "match": "https://a/:b",
            "subscriber": "urn:me",
            "active": true, "payload": {"x": 1},
        });
        assert_eq!(document, expected);
        assert_eq!(registry.add(one.clone(), None, &hub()), None);
        assert_eq!(registry.remove(&one, &hub()), None);
        let end = registry.remove(&one, &hub()).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&end.data).unwrap()["active"], false);
        assert!(registry.is_empty() && registry.remove(&one, &hub()).is_none());
    }

    #[test]
    fn the_api_has_three_kinds_of_resource() {
        let mut registry = Registry::default();
        for (kind, text) in [
            (MatcherType::Exact, "a+b&c/d%"),
            (MatcherType::UrlPattern, "/x/:y"),
            (MatcherType::Template, "/z/{w}"),
        ] {
            registry.add(subscription(kind, text), None, &hub());
        }
        let get = |path: &str| registry.answer(path, Dialect::Both, &hub(), "last");
        let all = get("/.well-known/mercure/subscriptions").unwrap();
        assert_eq!(all["subscriptions"].as_array().unwrap().len(), 3);
        assert_eq!([&all["last_event_id"], &all["lastEventID"]], ["last", "last"]);
        assert_eq!(all["type"], "Subscriptions");
        for document in all["subscriptions"].as_array().unwrap() {
            let id = document["id"].as_str().unwrap();
            let one = get(id).unwrap();
            assert_eq!(one["id"], id);
            assert_eq!(one["last_event_id"], "last");
            let collection = get(id.rsplit_once('/').unwrap().0).unwrap();
            assert_eq!(collection["subscriptions"][0]["id"], id);
        }
        let draft = "/.well-known/mercure/subscriptions/URLPattern/%2Fx%2F%3Ay";
        assert_eq!(get(draft).unwrap()["subscriptions"][0]["id"], format!("{draft}/urn%3Ame"));
        assert_eq!(get(&format!("{draft}/urn%3Ame")).unwrap()["id"], format!("{draft}/urn%3Ame"));
        for path in ["/a", "/a/urn%3Ame", "/%2Fz%2F%7Bw%7D", "/exact"] {
            let path = format!("/.well-known/mercure/subscriptions{path}");
            assert_eq!(registry.answer(&path, Dialect::One, &hub(), "last"), None, "{path}");
        }
        assert_eq!(get("/.well-known/mercure/subscriptions/exact/a/b"), None);
        assert_eq!(get("/.well-known/mercure/subscriptions/Exact/a/b"), None);
        assert_eq!(get("/.well-known/mercure/subscriptions/a/b/c/d"), None);
        assert_eq!(get("/.well-known/mercure/subscriptions/Exact/%ff"), None);
        assert_eq!(get("/other"), None);
    }
}

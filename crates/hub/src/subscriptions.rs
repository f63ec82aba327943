//! Active subscriptions: the documents of the subscription API, and the updates that announce the
//! beginning and the end of a subscription.
//!
//! The texts of draft 08 differ in the names: `match_type` and `exact` in the newest, `matchType` and
//! `Exact` before. Documents have the members of both, the API has both URLs, and an event has both
//! topics. The identifier of a document is the newest, unless the URL is an earlier one.

use crate::{
    dialect::Dialect,
    limits::{PAGE_BYTES, PAGE_SUBSCRIPTIONS},
    matcher::{MatcherType, Selector},
    token::DETAIL_TYPES,
    topic::HubUrl,
    update::Publication,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included, Unbounded},
    sync::Arc,
};

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
    ///
    /// A list has at most [`PAGE_SUBSCRIPTIONS`] members. If there are more, the member `next` of the
    /// document is the URL of the next ones. It has the path of the last subscription as the parameter
    /// `after`, whose value in the request is `after` here.
    #[must_use]
    pub fn answer(
        &self,
        path: &str,
        after: Option<&str>,
        dialect: Dialect,
        hub: &HubUrl,
        last_id: &str,
    ) -> Option<Value> {
        let Resource { kind, text, subscriber, names } = Resource::parse(path, dialect, hub)?;
        let selector = text.map(|text| Selector::new(kind, text));
        let mut document = match (selector, subscriber) {
            (Some(selector), Some(subscriber)) => {
                let subscription = Subscription { selector, subscriber: subscriber.into() };
                let record = self.active.get(&subscription)?;
                subscription.document(hub, names, record, true)
            }
            (selector, _) => {
                let after = match after {
                    Some(after) => Some(Resource::parse(after, dialect, hub)?.subscription()?),
                    None => None,
                };
                self.list(path, names, selector.as_ref(), after.as_ref(), hub)
            }
        };
        document["@context"] = CONTEXT.into();
        document["last_event_id"] = last_id.into();
        document["lastEventID"] = last_id.into();
        Some(document)
    }

    /// Returns a document with the subscriptions, those of one selector if one is given, after a certain one.
    fn list(
        &self,
        path: &str,
        names: Names,
        selector: Option<&Selector>,
        after: Option<&Subscription>,
        hub: &HubUrl,
    ) -> Value {
        // No subscriber has an empty name.
        let first = selector
            .map(|selector| Subscription { selector: selector.clone(), subscriber: "".into() });
        let start = match (&first, after) {
            (Some(first), Some(after)) => Excluded(first.max(after)),
            (_, Some(after)) => Excluded(after),
            (Some(first), None) => Included(first),
            (None, None) => Unbounded,
        };
        let mut found = self.active.range((start, Unbounded)).peekable();
        let (mut documents, mut bytes, mut last) = (Vec::new(), 0, None);
        let is_wanted = |(subscription, _): &(&Subscription, &Record)| {
            selector.is_none_or(|selector| subscription.selector == *selector)
        };
        while documents.len() < PAGE_SUBSCRIPTIONS && bytes < PAGE_BYTES {
            let Some((subscription, record)) = found.next_if(is_wanted) else { break };
            bytes += record.payload.as_ref().map_or(0, |payload| payload.to_string().len());
            documents.push(subscription.document(hub, names, record, true));
            last = Some(subscription);
        }
        let mut list = json!({"id": path, "type": "Subscriptions", "subscriptions": documents});
        if let (Some(last), Some(_)) = (last, found.next_if(is_wanted)) {
            list["next"] = format!("{path}?after={}", escape(&last.topic(hub))).into();
        }
        list
    }
}

/// The parts of a URL of the subscription API.
struct Resource {
    kind: MatcherType,
    text: Option<String>,
    subscriber: Option<String>,
    names: Names,
}

impl Resource {
    fn parse(path: &str, dialect: Dialect, hub: &HubUrl) -> Option<Self> {
        let rest = path.strip_prefix(hub.path())?.strip_prefix("/subscriptions")?;
        if !rest.is_empty() && !rest.starts_with('/') {
            return None;
        }
        let segments: Vec<&str> = rest.split('/').skip(1).collect();
        let first = segments.first().copied().unwrap_or_default();
        let kind = MatcherType::parse(first).filter(|_| dialect.one() && segments.len() > 1);
        let (kind, variables) = match kind {
            Some(kind) => (kind, &segments[1..]),
            None if dialect.zero() || segments.is_empty() => (MatcherType::Template, &segments[..]),
            None => return None,
        };
        let names = if first == kind.draft_name() { Names::Draft } else { Names::Newest };
        // In a path a plus is a plus. An empty segment names nothing.
        let unescape = |segment: &str| {
            let text = crate::fields::unescape(segment.as_bytes(), b'+').ok();
            text.filter(|text| !text.is_empty())
        };
        let (text, subscriber) = match *variables {
            [] => (None, None),
            [text] => (Some(unescape(text)?), None),
            [text, subscriber] => (Some(unescape(text)?), Some(unescape(subscriber)?)),
            _ => return None,
        };
        Some(Self { kind, text, subscriber, names })
    }

    /// Returns the subscription that it names, if it names one.
    fn subscription(self) -> Option<Subscription> {
        let selector = Selector::new(self.kind, self.text?);
        Some(Subscription { selector, subscriber: self.subscriber?.into() })
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

/// Returns the document of RFC 9728 that describes the hub to clients. `jwks_uri` is the URL of the
/// hub's keys; `has_subscriptions` means that the hub publishes subscriptions. With dialect 0 alone, the document has no
/// members of 1.0.
#[must_use]
pub fn metadata(
    hub: &HubUrl,
    issuers: &[String],
    jwks_uri: Option<&str>,
    has_subscriptions: bool,
    dialect: Dialect,
) -> Value {
    let mut document = json!({
        "resource": hub.as_str(),
        "bearer_methods_supported": ["header", "query"],
        "mercure_cookie": true,
        "mercure_hub": hub.as_str(),
    });
    // A client that finds these members sends requests and tokens that a hub of 0.x does not understand.
    if dialect.one() {
        document["authorization_details_types_supported"] = json!(DETAIL_TYPES);
        document["mercure_matcher_types_supported"] =
            json!([MatcherType::Exact.name(), MatcherType::UrlPattern.name()]);
        document["mercure_version"] = 8.into();
    }
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
        let get = |path: &str| registry.answer(path, None, Dialect::Both, &hub(), "last");
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
            assert_eq!(registry.answer(&path, None, Dialect::One, &hub(), "last"), None, "{path}");
        }
        assert_eq!(get("/.well-known/mercure/subscriptions/exact/a/b"), None);
        assert_eq!(get("/.well-known/mercure/subscriptions/Exact/a/b"), None);
        assert_eq!(get("/.well-known/mercure/subscriptions/a/b/c/d"), None);
        assert_eq!(get("/.well-known/mercure/subscriptions/Exact/%ff"), None);
        assert_eq!(get("/other"), None);
    }

    /// Regression: what followed an equals sign was ignored, and so was what followed the name of the list.
    #[test]
    fn a_path_names_one_resource() {
        let mut registry = Registry::default();
        for text in ["a", "a=b"] {
            registry.add(subscription(MatcherType::Exact, text), None, &hub());
        }
        let get = |path: &str| {
            let path = format!("/.well-known/mercure{path}");
            registry.answer(&path, None, Dialect::Both, &hub(), "last")
        };
        for path in ["/subscriptions/exact/a=b/urn:me", "/subscriptions/exact/a%3Db/urn%3Ame"] {
            assert_eq!(get(path).unwrap()["match"], "a=b", "{path}");
        }
        for path in ["/subscriptionsfoo", "/subscriptions.json", "/subscriptions/"] {
            assert_eq!(get(path), None, "{path}");
        }
    }

    /// Regression: one document had all subscriptions, however many there were.
    #[test]
    fn a_list_has_pages() {
        let mut registry = Registry::default();
        let count = 2 * PAGE_SUBSCRIPTIONS + 10;
        for number in 0..count {
            let kind =
                [MatcherType::Exact, MatcherType::UrlPattern, MatcherType::Template][number.min(2)];
            let subscriber = format!("urn:{number:05}").into();
            let selector = Selector::new(kind, if number == 5 { "/other" } else { "/a&b" });
            registry.add(Subscription { selector, subscriber }, None, &hub());
        }
        let pages = |path: &str| {
            let (mut pages, mut ids, mut after) = (Vec::new(), Vec::new(), None);
            for _ in 0..5 {
                let page = registry.answer(path, after.as_deref(), Dialect::Both, &hub(), "last");
                let page = page.unwrap();
                let list = page["subscriptions"].as_array().unwrap();
                pages.push(list.len());
                ids.extend(list.iter().map(|one| one["subscriber"].as_str().unwrap().to_owned()));
                let Some(next) = page.get("next") else { break };
                let query = next.as_str().unwrap().strip_prefix(path).unwrap();
                let fields = crate::fields::decode(&query.as_bytes()[1..]).unwrap();
                assert_eq!(fields[0].0, "after");
                after = Some(fields[0].1.clone());
            }
            let is_ascending = ids.is_sorted();
            ids.sort();
            ids.dedup();
            (pages, ids.len(), is_ascending)
        };
        let all = "/.well-known/mercure/subscriptions";
        assert_eq!(pages(all), (vec![PAGE_SUBSCRIPTIONS, PAGE_SUBSCRIPTIONS, 10], count, false));
        let one = format!("{all}/%2Fa%26b");
        assert_eq!(pages(&one), (vec![PAGE_SUBSCRIPTIONS, PAGE_SUBSCRIPTIONS, 7], count - 3, true));
        assert_eq!(pages(&format!("{all}/exact/%2Fa%26b")), (vec![1], 1, true));
        for after in ["", "/x", all, &one] {
            assert_eq!(registry.answer(all, Some(after), Dialect::Both, &hub(), "last"), None);
        }
        // Large payloads end a page before.
        let payload = json!("x".repeat(PAGE_BYTES / 4));
        for number in 0..10 {
            let subscriber = format!("urn:{number}").into();
            let selector = Selector::new(MatcherType::Exact, "large");
            registry.add(Subscription { selector, subscriber }, Some(payload.clone()), &hub());
        }
        let path = format!("{all}/exact/large");
        let page = registry.answer(&path, None, Dialect::Both, &hub(), "last").unwrap();
        assert_eq!(page["subscriptions"].as_array().unwrap().len(), 4);
    }
}

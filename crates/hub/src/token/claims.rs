//! What the claims of a token permit. Everything that is not understood makes the whole token
//! invalid: a part of it would be another permission than its issuer wrote.

use super::Access;
use crate::{
    limits,
    matcher::{MatcherCache, MatcherType, Rule, Selector},
    topic::HubUrl,
};
use serde_json::{Map, Value};

/// A time in seconds since 1970 (RFC 7519 §2), which may have a fraction; rounded down.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to fit")]
pub(super) fn seconds(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let seconds = value.as_f64()?;
        (0.0..9e15).contains(&seconds).then_some(seconds as u64)
    })
}

/// The same, rounded up.
pub(super) fn seconds_up(value: &Value) -> Option<u64> {
    let whole = seconds(value)?;
    Some(if value.is_u64() { whole } else { whole + 1 })
}

/// The types of authorization details that are read: of draft 08, and of the hubs of 1.0.
pub const DETAIL_TYPES: [&str; 2] = ["mercure", "https://mercure.rocks/authorization-detail"];

/// Reads `authorization_details` (RFC 9396), those of the [types](DETAIL_TYPES) of the protocol.
pub(super) fn details(
    claims: &Map<String, Value>,
    cache: &MatcherCache,
    hub: &HubUrl,
) -> Option<Access> {
    let mut access = Access::default();
    let mut selectors = Selectors::default();
    let none = Vec::new();
    let all = match claims.get("authorization_details") {
        None => &none,
        Some(details) => details.as_array()?,
    };
    let mut count = 0;
    for detail in all {
        let detail = detail.as_object()?;
        if !DETAIL_TYPES.contains(&detail.get("type")?.as_str()?) {
            continue;
        }
        count += 1;
        if count > limits::TOKEN_DETAILS {
            return None;
        }
        let topics = detail.get("topics")?.as_array().filter(|topics| !topics.is_empty())?;
        let topics = topics.iter().map(selector).collect::<Option<Vec<_>>>()?;
        let actions = detail.get("actions")?.as_array().filter(|actions| !actions.is_empty())?;
        let mut subscribes = false;
        for action in actions {
            match action.as_str()? {
                "publish" => selectors.publish.extend_from_slice(&topics),
                "subscribe" => {
                    subscribes = true;
                    selectors.subscribe.extend_from_slice(&topics);
                }
                // An action of a later text permits nothing here, and leaves the others valid.
                _ => {}
            }
        }
        let payload = detail.get("payload");
        if let Some(payload) = payload {
            payload.as_object()?;
        }
        if subscribes {
            // Also without a payload: the first detail that matches a subscription decides.
            access.payloads.push((rules(topics, cache, hub)?, payload.cloned()));
        }
    }
    if access.payloads.iter().all(|(_, payload)| payload.is_none()) {
        access.payloads = Vec::new();
    }
    selectors.store(&mut access, cache, hub)?;
    Some(access)
}

/// Reads the claim `mercure` of dialect 0. Its entries are URI templates, or objects as in the 1.0
/// alpha. A token without the claim is for something else, such as the ID token of a login service that has the
/// same keys.
pub(super) fn mercure(
    claims: &Map<String, Value>,
    cache: &MatcherCache,
    hub: &HubUrl,
) -> Option<Access> {
    let mut access = Access::default();
    // Some identity providers allow only claims whose names are URLs.
    let claim = claims.get("https://mercure.rocks/").or_else(|| claims.get("mercure"));
    let claim = claim?.as_object()?;
    let mut selectors = Selectors::default();
    for (name, found) in
        [("publish", &mut selectors.publish), ("subscribe", &mut selectors.subscribe)]
    {
        let entries = match claim.get(name) {
            None | Some(Value::Null) => continue,
            Some(entries) => entries.as_array()?,
        };
        for entry in entries {
            let entry_selector = match entry {
                Value::String(text) => Selector::new(MatcherType::Template, text.as_str()),
                object => selector(object)?,
            };
            if let Some(payload) = entry.get("payload").filter(|_| name == "subscribe") {
                let topics = vec![entry_selector.clone()];
                access.payloads.push((rules(topics, cache, hub)?, Some(payload.clone())));
            }
            found.push(entry_selector);
        }
    }
    if let Some(payload) = claim.get("payload") {
        let any = vec![Selector::new(MatcherType::Exact, "*")];
        access.payloads.push((rules(any, cache, hub)?, Some(payload.clone())));
    }
    selectors.store(&mut access, cache, hub)?;
    Some(access)
}

/// A topic matcher object: `match` and perhaps `match_type`, `matchType` in earlier texts.
fn selector(object: &Value) -> Option<Selector> {
    let object = object.as_object()?;
    let text = object.get("match")?.as_str()?;
    let kind = match object.get("match_type").or_else(|| object.get("matchType")) {
        None => MatcherType::Exact,
        Some(name) => MatcherType::parse(name.as_str()?)?,
    };
    Some(Selector::new(kind, text))
}

fn rules(selectors: Vec<Selector>, cache: &MatcherCache, hub: &HubUrl) -> Option<Vec<Rule>> {
    if selectors.len() > limits::TOKEN_MATCHERS {
        return None;
    }
    cache.rules(selectors, hub).ok()
}

#[derive(Default)]
struct Selectors {
    publish: Vec<Selector>,
    subscribe: Vec<Selector>,
}

impl Selectors {
    fn store(self, access: &mut Access, cache: &MatcherCache, hub: &HubUrl) -> Option<()> {
        access.publish = rules(self.publish, cache, hub)?;
        access.subscribe = rules(self.subscribe, cache, hub)?;
        Some(())
    }
}

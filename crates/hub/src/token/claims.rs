//! What the claims of a token permit. Everything that is not understood makes the whole token
//! invalid: a part of it would be another permission than its issuer wrote.

use super::Access;
use crate::{
    limits,
    matcher::{MatcherCache, MatcherError, MatcherType, Selector},
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

/// The types of authorization details that are read: of draft 08, and of the hubs of 1.0.
pub const DETAIL_TYPES: [&str; 2] = ["mercure", "https://mercure.rocks/authorization-detail"];

/// What a token permits, as it is written.
#[derive(Debug, Default)]
pub(super) struct Permissions {
    publish: Vec<Selector>,
    subscribe: Vec<Selector>,
    payloads: Vec<(Vec<Selector>, Option<Value>)>,
}

impl Permissions {
    /// Compiles the matchers.
    ///
    /// # Errors
    /// One of them is malformed, or there is no room for it at present.
    pub(super) fn compile(
        self,
        cache: &MatcherCache,
        hub: &HubUrl,
    ) -> Result<Access, MatcherError> {
        let payloads = self.payloads.into_iter();
        let payloads = payloads
            .map(|(topics, payload)| cache.rules(topics, hub, None).map(|rules| (rules, payload)));
        Ok(Access {
            publish: cache.rules(self.publish, hub, None)?,
            subscribe: cache.rules(self.subscribe, hub, None)?,
            payloads: payloads.collect::<Result<_, _>>()?,
            ..Access::default()
        })
    }

    /// Returns `None` if a list is too long.
    fn checked(self) -> Option<Self> {
        let is_short = |list: &Vec<Selector>| list.len() <= limits::TOKEN_MATCHERS;
        let are_short = is_short(&self.publish)
            && is_short(&self.subscribe)
            && self.payloads.iter().all(|(topics, _)| is_short(topics));
        are_short.then_some(self)
    }
}

/// Reads `authorization_details` (RFC 9396), those of the [types](DETAIL_TYPES) of the protocol.
pub(super) fn details(claims: &Map<String, Value>) -> Option<Permissions> {
    let mut found = Permissions::default();
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
                "publish" => found.publish.extend_from_slice(&topics),
                "subscribe" => {
                    subscribes = true;
                    found.subscribe.extend_from_slice(&topics);
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
            found.payloads.push((topics, payload.cloned()));
        }
    }
    let found = found.checked()?;
    let has_payload = found.payloads.iter().any(|(_, payload)| payload.is_some());
    Some(if has_payload { found } else { Permissions { payloads: Vec::new(), ..found } })
}

/// Reads the claim `mercure` of dialect 0. Its entries are URI templates, or objects as in the 1.0
/// alpha. A token without the claim is for something else, such as the ID token of a login service that has the
/// same keys.
pub(super) fn mercure(claims: &Map<String, Value>) -> Option<Permissions> {
    // Some identity providers allow only claims whose names are URLs.
    let claim = claims.get("https://mercure.rocks/").or_else(|| claims.get("mercure"));
    let claim = claim?.as_object()?;
    let mut found = Permissions::default();
    let Permissions { publish, subscribe, payloads } = &mut found;
    for (name, found) in [("publish", publish), ("subscribe", subscribe)] {
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
                payloads.push((vec![entry_selector.clone()], Some(payload.clone())));
            }
            found.push(entry_selector);
        }
    }
    if let Some(payload) = claim.get("payload") {
        let any = vec![Selector::new(MatcherType::Exact, "*")];
        payloads.push((any, Some(payload.clone())));
    }
    found.checked()
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

//! The query of a subscribe request.

use crate::{
    dialect::Dialect,
    fields,
    limits::Limits,
    matcher::{MatcherType, Selector},
    reject::Reject,
    topic,
};

/// The request of a subscriber.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// The topics that it reads: sorted, each once, never empty.
    pub selectors: Vec<Selector>,
    /// The last update that it has. Empty if the parameter has no value.
    pub last_event_id: Option<String>,
    /// A token in the query. Servers should not write it to a log.
    pub access_token: Option<String>,
}

/// Parses the query of a subscribe request (draft-dunglas-mercure §3).
///
/// Names of parameters are accepted in the form of the newest text (`match_urlpattern`,
/// `last_event_id`), of earlier ones of draft 08 (`matchURLPattern`, `lastEventID`) and, in
/// dialect 0, of 0.x (`topic`, `Last-Event-ID`, `authorization`). `lastEventId` is what
/// polyfills of `EventSource` add when they reconnect.
///
/// # Errors
/// 400 for a malformed query, an unknown parameter whose name begins with `match`, no matcher, or
/// too many.
pub fn parse(query: &[u8], dialect: Dialect, limits: &Limits) -> Result<Query, Reject> {
    let mut parsed = Query::default();
    let mut reconnects_after = None;
    for (name, value) in fields::decode_query(query).map_err(as_bad_request)? {
        if let Some(kind) = matcher_type(&name, dialect)? {
            let value = value?;
            if parsed.selectors.len() == limits.matchers {
                return Err(Reject::invalid(format!(
                    "a subscriber may have {} topic matchers: use fewer, or a pattern",
                    limits.matchers
                )));
            }
            topic::check(&value).map_err(as_bad_request)?;
            parsed.selectors.push(Selector::new(kind, value));
            continue;
        }
        let zero = dialect.zero();
        match name.as_str() {
            // The query of the target is before the content of a QUERY, and wins over it.
            "last_event_id" | "lastEventID" => {
                parsed.last_event_id.get_or_insert(value?);
            }
            "Last-Event-ID" if zero => {
                parsed.last_event_id.get_or_insert(value?);
            }
            "lastEventId" => reconnects_after = Some(value?),
            "access_token" => parsed.access_token = Some(value?),
            "authorization" if zero && parsed.access_token.is_none() => {
                parsed.access_token = Some(value?);
            }
            _ => {}
        }
    }
    // When a polyfill reconnects, the page's own parameter is still in the URL. The polyfill's identifier is newer.
    if reconnects_after.as_ref().is_some_and(|id| !id.is_empty()) {
        parsed.last_event_id = reconnects_after;
    }
    if parsed.selectors.is_empty() {
        return Err(Reject::invalid(match dialect {
            Dialect::Zero => "the query names no topic: add topic=TOPIC",
            _ => "the query names no topic: add match=TOPIC or match_urlpattern=PATTERN",
        }));
    }
    parsed.selectors.sort();
    parsed.selectors.dedup();
    Ok(parsed)
}

/// Returns the token in the query of a request that names no topics.
///
/// # Errors
/// 400 for a malformed query, and for several tokens (RFC 6750 §3.1).
pub fn token(query: &[u8], dialect: Dialect) -> Result<Option<String>, Reject> {
    let fields = fields::decode_query(query).map_err(as_bad_request)?;
    let find = |name: &str| {
        let mut found = fields.iter().filter(|(field, _)| field == name);
        let first = found.next().map(|(_, value)| value.clone());
        match found.next() {
            None => first.transpose(),
            Some(_) => Err(Reject::invalid("the query has several tokens: send one")),
        }
    };
    match find("access_token")? {
        None if dialect.zero() => find("authorization"),
        token => Ok(token),
    }
}

/// Returns the parameter `after` of a request for a list of subscriptions: the path of the last one that its client has.
///
/// # Errors
/// 400 for a malformed query.
pub fn after(query: &[u8]) -> Result<Option<String>, Reject> {
    let fields = fields::decode_query(query).map_err(as_bad_request)?;
    fields.into_iter().find_map(|(name, value)| (name == "after").then_some(value)).transpose()
}

/// Turns a limit error into 400: for a query every limit is answered with 400, because 413 is about
/// content.
fn as_bad_request(reject: Reject) -> Reject {
    Reject::invalid(reject.message)
}

fn matcher_type(name: &str, dialect: Dialect) -> Result<Option<MatcherType>, Reject> {
    if dialect.zero() {
        match name {
            "topic" => return Ok(Some(MatcherType::Template)),
            "topicURLPattern" => return Ok(Some(MatcherType::UrlPattern)),
            _ => {}
        }
    }
    if !dialect.one() {
        return Ok(None);
    }
    match name {
        "match" | "matchExact" | "match_exact" => Ok(Some(MatcherType::Exact)),
        "matchURLPattern" | "match_urlpattern" => Ok(Some(MatcherType::UrlPattern)),
        _ if name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("match")) => {
            Err(Reject::invalid(
                "the query has an unknown matcher type: use match, match_exact or match_urlpattern",
            ))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn query(text: &str, dialect: Dialect) -> Result<Query, u16> {
        parse(text.as_bytes(), dialect, &Limits::default()).map_err(|reject| reject.status)
    }

    #[test]
    fn the_name_of_a_parameter_is_the_type_of_the_matcher() {
        let text = "match=a&matchExact=b&match_exact=c&matchURLPattern=/d&match_urlpattern=/e";
        let parsed = query(text, Dialect::One).unwrap();
        let kinds: Vec<_> = parsed.selectors.iter().map(|s| (s.kind, &*s.text)).collect();
        use MatcherType::{Exact, UrlPattern};
        let expected =
            [(Exact, "a"), (Exact, "b"), (Exact, "c"), (UrlPattern, "/d"), (UrlPattern, "/e")];
        assert_eq!(kinds, expected);
        let old = query("topic=a&topic=a&topic=b", Dialect::Both).unwrap();
        assert_eq!(old.selectors.len(), 2);
        assert!(old.selectors.iter().all(|s| s.kind == MatcherType::Template));
    }

    #[test]
    fn names_that_begin_with_match_are_reserved() {
        for name in ["matchFoo", "matchurlpattern", "Match", "MATCH", "matchExact2", "matching"] {
            assert_eq!(query(&format!("match=a&{name}=b"), Dialect::One), Err(400), "{name}");
            assert_eq!(query(&format!("match=a&{name}=b"), Dialect::Both), Err(400), "{name}");
            assert!(query(&format!("topic=a&{name}=b"), Dialect::Zero).is_ok(), "{name}");
        }
    }

    #[test]
    fn bad_queries_are_rejected_with_400() {
        let long = format!("match={}", "a".repeat(4097));
        for text in ["", "topic=a", "match=", "match=%00", "match=%ff", "match=%c2%85", &long] {
            assert_eq!(query(text, Dialect::One), Err(400), "{text}");
        }
        assert_eq!(query("match=a", Dialect::Zero), Err(400));
        for text in ["last_event_id=%ff", "access_token=%ff"] {
            assert_eq!(query(&format!("match=a&{text}"), Dialect::One), Err(400), "{text}");
        }
        // What other parameters have is not the hub's affair.
        for text in ["utm=%ff", "utm=50%", "%=%", "%ff=x"] {
            assert!(query(&format!("match=a&{text}"), Dialect::One).is_ok(), "{text}");
            assert_eq!(super::token(text.as_bytes(), Dialect::Both), Ok(None), "{text}");
        }
        let parsed = query("match=100%", Dialect::One).unwrap();
        assert_eq!(&*parsed.selectors[0].text, "100%");
        let many = |count: usize| "&match=a".repeat(count);
        assert!(query(&many(100), Dialect::One).is_ok());
        assert_eq!(query(&many(101), Dialect::One), Err(400));
    }

    #[test]
    fn the_last_event_id_and_the_token_may_be_in_the_query() {
        let parsed = query("match=a&lastEventID=x%2Fy&access_token=t", Dialect::One).unwrap();
        assert_eq!(parsed.last_event_id.as_deref(), Some("x/y"));
        assert_eq!(parsed.access_token.as_deref(), Some("t"));
        let old = query("topic=a&last_event_id=1&authorization=t", Dialect::Both).unwrap();
        assert_eq!(old.last_event_id.as_deref(), Some("1"));
        assert_eq!(old.access_token.as_deref(), Some("t"));
        let new = query("match=a&last_event_id=1&authorization=t", Dialect::One).unwrap();
        assert_eq!((new.last_event_id.as_deref(), new.access_token), (Some("1"), None));
        let new = query("match=a&Last-Event-ID=1", Dialect::One).unwrap();
        assert_eq!(new.last_event_id, None);
        let twice = query("last_event_id=1&match=a&lastEventID=2", Dialect::One).unwrap();
        assert_eq!(twice.last_event_id.as_deref(), Some("1"));
        let empty = query("match=a&last_event_id=", Dialect::One).unwrap();
        assert_eq!(empty.last_event_id.as_deref(), Some(""));
        let polyfill = query("match=a&lastEventId=2&last_event_id=1", Dialect::One).unwrap();
        assert_eq!(polyfill.last_event_id.as_deref(), Some("2"));
    }

    #[test]
    fn a_query_without_topics_may_have_a_token() {
        let token = |query: &str, dialect| token(query.as_bytes(), dialect).unwrap();
        assert_eq!(token("x=1&access_token=a%2Eb", Dialect::One).as_deref(), Some("a.b"));
        assert_eq!(token("authorization=t", Dialect::Both).as_deref(), Some("t"));
        assert_eq!(token("authorization=t&access_token=u", Dialect::Both).as_deref(), Some("u"));
        assert_eq!(token("authorization=t", Dialect::One), None);
        assert_eq!(token("", Dialect::Both), None);
        let twice = super::token(b"access_token=a&access_token=a", Dialect::One);
        assert_eq!(twice.unwrap_err().status, 400);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, Dialect::Both, &Limits::default());
        }
    }
}

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
    /// The last update that it has.
    pub last_event_id: Option<String>,
    /// A token in the query. Servers should not write it to a log.
    pub access_token: Option<String>,
}

/// Parses the query of a subscribe request (draft-dunglas-mercure §3).
///
/// Names of parameters are accepted in the form of draft 08 (`matchURLPattern`, `lastEventID`), of
/// the 1.0 alpha (`match_urlpattern`) and, in dialect 0, of 0.x (`topic`, `last_event_id`,
/// `Last-Event-ID`, `authorization`).
///
/// # Errors
/// 400 for a malformed query, an unknown parameter whose name begins with `match`, no matcher, or
/// too many.
pub fn parse(query: &[u8], dialect: Dialect, limits: &Limits) -> Result<Query, Reject> {
    let mut parsed = Query::default();
    for (name, value) in fields::decode(query).map_err(as_bad_request)? {
        if let Some(kind) = matcher_type(&name, dialect)? {
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
            "lastEventID" => parsed.last_event_id = Some(value),
            "last_event_id" | "Last-Event-ID" if zero => parsed.last_event_id = Some(value),
            "access_token" => parsed.access_token = Some(value),
            "authorization" if zero && parsed.access_token.is_none() => {
                parsed.access_token = Some(value);
            }
            _ => {}
        }
    }
    if parsed.selectors.is_empty() {
        return Err(Reject::invalid(match dialect {
            Dialect::Zero => "the query names no topic: add topic=TOPIC",
            _ => "the query names no topic: add match=TOPIC or matchURLPattern=PATTERN",
        }));
    }
    parsed.selectors.sort();
    parsed.selectors.dedup();
    Ok(parsed)
}

/// In a query, every limit is answered with 400: 413 is about content.
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
                "the query has an unknown matcher type: use match, matchExact or matchURLPattern",
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
        assert_eq!((new.last_event_id, new.access_token), (None, None));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, Dialect::Both, &Limits::default());
        }
    }
}

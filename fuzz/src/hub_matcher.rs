//! Topic matchers: a selector that compiles matches what it must, in bounded time, and what is too large is refused.
//!
//! A URI template must match each of its expansions (RFC 6570), which this file computes itself. A URL pattern of
//! plain segments must match the paths that have the same ones. Both must find a topic however often they look.

use pollux_hub::{
    matcher::{Matcher, MatcherError, MatcherType, Selector},
    topic::{self, HubUrl},
};

/// The input is the type of the matcher, its text, a line's end, and the topic.
pub fn check(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let (text, topic) = text.split_once('\n').unwrap_or((text, ""));
    let kinds = [MatcherType::Exact, MatcherType::UrlPattern, MatcherType::Template];
    let kind = kinds[usize::from(first % 3)];
    let hub = HubUrl::parse("https://hub.example/.well-known/mercure").expect("a URL");
    let selector = Selector::new(kind, text);
    let matcher = match Matcher::compile(&selector, &hub) {
        Ok(matcher) => matcher,
        Err(error) => {
            let is_text = topic::check(text).is_ok();
            assert_eq!(error == MatcherError::Text, !is_text, "{selector:?}");
            assert!(!is_text || (!selector.is_any() && selector.exact().is_none()), "{selector:?}");
            return;
        }
    };
    let found = matcher.matches_topic(topic, &hub);
    assert_eq!(matcher.matches_topic(topic, &hub), found, "{selector:?} of {topic:?}");
    if selector.is_any() {
        assert!(found);
        return;
    }
    match kind {
        MatcherType::Exact => assert_eq!(found, text == topic, "{selector:?} of {topic:?}"),
        // What is no template is a topic.
        MatcherType::Template if matches!(matcher, Matcher::Exact(_)) => {
            assert_eq!(found, text == topic, "{selector:?} of {topic:?}");
        }
        MatcherType::Template => {
            assert!(matcher.matches_topic(text, &hub), "its own text: {selector:?}");
            let mut expansion = expand(text, topic);
            if crate::planted() {
                // The planted fault: the expansion begins with a byte that no template has.
                expansion.insert(0, '\u{1}');
            }
            assert!(matcher.matches_topic(&expansion, &hub), "{selector:?} of {expansion:?}");
        }
        MatcherType::UrlPattern => {
            if let Some(expected) = segments_match(text, topic) {
                assert_eq!(found, expected, "{selector:?} of {topic:?}");
            }
        }
    }
}

/// The expansion of a template, in which variables have as values the parts of `values` between commas, in turn.
fn expand(template: &str, values: &str) -> String {
    let mut values = values.split(',').cycle();
    let mut expansion = String::new();
    let mut rest = template;
    while let Some((literal, tail)) = rest.split_once('{') {
        expansion.push_str(literal);
        let (expression, after) = tail.split_once('}').expect("it compiles");
        rest = after;
        let operator = expression.chars().next().filter(|first| "+#./;?&".contains(*first));
        let variables = &expression[operator.map_or(0, char::len_utf8)..];
        let separator = match operator {
            Some(';') => ";",
            Some('?' | '&') => "&",
            Some('.') => ".",
            Some('/') => "/",
            _ => ",",
        };
        let first = operator.filter(|operator| *operator != '+').map(String::from);
        let is_named = matches!(operator, Some(';' | '?' | '&'));
        let is_reserved = matches!(operator, Some('+' | '#'));
        let mut parts = Vec::new();
        for variable in variables.split(',') {
            let value = values.next().unwrap_or_default();
            let (name, length) = match variable.split_once(':') {
                Some((name, length)) => (name, length.parse().unwrap_or(usize::MAX)),
                None => (variable.trim_end_matches('*'), usize::MAX),
            };
            let value: String = value.chars().take(length).collect();
            let value = escape(&value, is_reserved);
            parts.push(match (is_named, value.is_empty(), operator) {
                (false, ..) => value,
                (true, true, Some(';')) => name.to_owned(),
                (true, ..) => format!("{name}={value}"),
            });
        }
        expansion.push_str(&first.unwrap_or_default());
        expansion.push_str(&parts.join(separator));
    }
    expansion + rest
}

fn escape(value: &str, is_reserved: bool) -> String {
    let mut escaped = String::new();
    for byte in value.bytes() {
        let is_plain = byte.is_ascii_alphanumeric()
            || b"-._~".contains(&byte)
            || (is_reserved && b":/?#[]@!$&'()*+,;=".contains(&byte));
        if is_plain {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// Whether a pattern matches a topic, where both are paths of plain segments and the pattern's may be `:name`. `None`
/// of others.
fn segments_match(pattern: &str, topic: &str) -> Option<bool> {
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase());
    let segments = |path: &'_ str| -> Option<Vec<String>> {
        Some(path.strip_prefix('/')?.split('/').map(ToOwned::to_owned).collect())
    };
    let (pattern, topic) = (segments(pattern)?, segments(topic)?);
    let name = |segment: &str| segment.strip_prefix(':').map(ToOwned::to_owned);
    if !pattern.iter().all(|one| plain(&name(one).unwrap_or(one.clone()))) {
        return None;
    }
    let names: Vec<_> = pattern.iter().filter_map(|one| name(one)).collect();
    let is_twice = names.iter().enumerate().any(|(at, one)| names[..at].contains(one));
    if is_twice || !topic.iter().all(|one| plain(one)) {
        return None;
    }
    let fits = |(one, other): (&String, &String)| one == other || name(one).is_some();
    Some(pattern.len() == topic.len() && pattern.iter().zip(&topic).all(fits))
}

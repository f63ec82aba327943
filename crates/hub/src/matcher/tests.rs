use super::*;
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn hub() -> HubUrl {
    HubUrl::parse("https://example.com/.well-known/mercure").unwrap()
}

fn matches(kind: MatcherType, text: &str, topic: &str) -> bool {
    Matcher::compile(&Selector::new(kind, text), &hub()).unwrap().matches_topic(topic, &hub())
}

#[test]
fn exact_compares_bytes() {
    assert!(matches(MatcherType::Exact, "https://a/b", "https://a/b"));
    assert!(!matches(MatcherType::Exact, "https://a/b", "https://a/B"));
    assert!(!matches(MatcherType::Exact, "/b", "https://example.com/b"));
    assert!(!matches(MatcherType::Exact, "e\u{301}", "\u{e9}"));
    assert!(!matches(MatcherType::Exact, "/{id}", "/1"));
}

#[test]
fn a_star_matches_everything_whatever_its_type() {
    for kind in [MatcherType::Exact, MatcherType::UrlPattern, MatcherType::Template] {
        assert!(matches(kind, "*", "urn:anything"));
        assert!(matches(kind, "*", "no url : at all"));
    }
}

#[test]
fn url_patterns_follow_the_standard() {
    let pattern = |text, topic| matches(MatcherType::UrlPattern, text, topic);
    assert!(pattern("https://example.com/books/:id", "https://example.com/books/1"));
    assert!(!pattern("https://example.com/books/:id", "https://example.com/books/1/2"));
    assert!(!pattern("https://example.com/books/:id", "https://example.org/books/1"));
    assert!(pattern("https://EXAMPLE.com/*", "https://example.COM/a/b"));
    assert!(!pattern("https://example.com/Books/*", "https://example.com/books/1"));
    assert!(pattern("/books/:id", "/books/1"));
    assert!(pattern("/books/:id", "https://example.com/books/1"));
    assert!(pattern("https://example.com/books/:id", "/books/1"));
    assert!(pattern("/books/:id(\\d+)", "/books/12"));
    assert!(!pattern("/books/:id(\\d+)", "/books/x"));
    // A topic that is no URL, not even a relative one.
    assert!(!pattern("https://*/*", "https://[") && !pattern("/*", "http://:x"));
    // Regression: the path of the hub's URL was part of these patterns, too.
    assert!(pattern("urn:*", "urn:isbn:1"));
    assert!(!pattern("urn:*", "tag:isbn:1") && !pattern("urn:*", "/isbn:1"));
    let subscriptions = "/.well-known/mercure/subscriptions/Exact/:topic/:subscriber";
    assert!(pattern(
        subscriptions,
        "/.well-known/mercure/subscriptions/Exact/https%3A%2F%2Fa/urn%3Ax"
    ));
}

#[test]
fn templates_match_what_they_expand_to() {
    let template = |text, topic| matches(MatcherType::Template, text, topic);
    assert!(template("https://a/books/{id}", "https://a/books/1"));
    assert!(template("https://a/books/{id}", "https://a/books/{id}"));
    assert!(!template("https://a/books/{id}", "https://a/books/1/2"));
    assert!(template("https://a/{+path}", "https://a/books/1/2"));
    assert!(template("/a{?x,y}", "/a?x=1&y=2"));
    assert!(template("/a{?x,y}", "/a"));
    assert!(template("/a{/segments*}", "/a/b/c"));
    // Regression: the pairs of an exploded variable (RFC 6570 §3.2.3 to §3.2.6) did not match.
    for (text, topic) in [
        ("/a{/keys*}", "/a/semi=%3B/dot=./comma=%2C"),
        ("{keys*}", "semi=%3B,dot=.,comma=%2C"),
        ("X{.keys*}", "X.semi=%3B.dot=..comma=%2C"),
        ("{/list*,path:4}", "/red/green/blue/%2Ffoo"),
    ] {
        assert!(template(text, topic), "{text} {topic}");
    }
    assert!(!template("/a{/keys}", "/a/semi=1"));
    // The reason why a topic in the hub's namespace is reserved as it is written, too.
    let subscriptions = "/.well-known/mercure/subscriptions{/topic}{/subscriber}";
    assert!(template(subscriptions, "/.well-known/mercure/subscriptions/../.."));
    assert!(template("/a{.ext}", "/a.json"));
    assert!(template("/a{;x}", "/a;x=1"));
    assert!(template("/a{#frag}", "/a#x/y"));
    assert!(template("/{id:3}", "/abc"));
    assert!(template("plain", "plain"));
    assert!(!template("a.c", "abc"));
    // A text that is not a template is compared unchanged.
    for text in ["{", "}", "{}", "{a", "a}", "{a b}", "{a:}", "{a:x}", "{{a}}", "{?%}", "{%4}"] {
        assert!(template(text, text), "{text}");
        assert!(!template(text, "x"), "{text}");
    }
    let large = Selector::new(MatcherType::Template, "{a}".repeat(33));
    assert_eq!(Matcher::compile(&large, &hub()).unwrap_err(), MatcherError::Template);
}

#[test]
fn patterns_of_explosive_cost_are_rejected_or_fast() {
    let text = format!("/{}", ":a(x{1,1000})".repeat(50));
    for text in ["/:a((x{1,1000}){1,1000})", "/:a((?:(?:x{1,99}){1,99}){1,99})", &text] {
        let selector = Selector::new(MatcherType::UrlPattern, text);
        assert_eq!(Matcher::compile(&selector, &hub()).unwrap_err(), MatcherError::UrlPattern);
    }
    let started = Instant::now();
    let topic = format!("/{}b", "a".repeat(4000));
    assert!(!matches(MatcherType::UrlPattern, "/:x((?:a+)+)", &topic));
    assert!(!matches(MatcherType::UrlPattern, "/*a*a*a*a*a*a*a*a*a*c", &topic));
    assert!(!matches(MatcherType::Template, "/{a}{b}{c}{d}{e}{f}!", &topic));
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn malformed_selectors_are_rejected() {
    for text in ["", "a\nb", "a\u{9f}", "a\u{200b}"] {
        let selector = Selector::new(MatcherType::Exact, text);
        assert_eq!(Matcher::compile(&selector, &hub()).unwrap_err(), MatcherError::Text);
    }
    for text in ["/:a(", "/(", "https://[::/"] {
        let selector = Selector::new(MatcherType::UrlPattern, text);
        assert!(Matcher::compile(&selector, &hub()).is_err(), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_compiles_or_is_rejected(text in "[a-z:/{}()*?+.\\\\|0-9\u{e9} ]{0,40}", topic in ".{0,40}") {
        for kind in [MatcherType::Exact, MatcherType::UrlPattern, MatcherType::Template] {
            if let Ok(matcher) = Matcher::compile(&Selector::new(kind, text.as_str()), &hub()) {
                let _ = matcher.matches_topic(&topic, &hub());
            }
        }
    }
}

/// Found by fuzzing: the crate that parses patterns counted brackets below zero, and a debug build
/// panicked.
#[test]
fn a_bracket_that_closes_nothing_ends_no_worker() {
    let hub = HubUrl::parse("https://hub.example/.well-known/mercure").unwrap();
    for text in ["*:11](a:1g", "*:1]", "https://a]b/c"] {
        let selector = Selector::new(MatcherType::UrlPattern, text);
        if let Ok(matcher) = Matcher::compile(&selector, &hub) {
            assert!(!matcher.matches_topic("https://hub.example/a", &hub), "{text}");
        }
    }
}

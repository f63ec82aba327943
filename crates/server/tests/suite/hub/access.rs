//! Permissions to publish, to subscribe and to read private updates.

use super::*;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

const SECRET: &str = "!ChangeThisMercureHubJWTSecretKey!";

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Starts a hub in which every client needs a token.
fn strict(change: impl FnOnce(&mut HubConfig)) -> Hub {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    std::fs::write(&key, format!("{SECRET}\n")).unwrap();
    Hub::start(1, |_, hub| {
        hub.subscriber_keys = Some(key);
        hub.anonymous = false;
        hub.publish_anonymous = false;
        change(hub);
    })
}

fn sign(typ: &str, claims: &Value) -> String {
    pollux_testkit::token::sign(&json!({"typ": typ}), claims, SECRET)
}

/// Returns a token of dialect 1 for one action on one topic.
fn token(action: &str, topic: &str, seconds: u64) -> String {
    token_until(action, topic, now() + seconds)
}

fn token_until(action: &str, topic: &str, expires_at: u64) -> String {
    sign(
        "at+jwt",
        &json!({
            "aud": "http://hub.test/.well-known/mercure",
            "exp": expires_at,
            "sub": "urn:me",
            "authorization_details": [{
                "type": "mercure", "actions": [action],
                "topics": [{"match": topic, "match_type": "urlpattern"}],
                "payload": {"name": "test"},
            }],
        }),
    )
}

/// Returns a token of dialect 0.
fn old_token(action: &str, topic: &str) -> String {
    sign("JWT", &json!({"mercure": {action: [topic]}}))
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

#[test]
fn publishing_needs_a_token_that_permits_the_topic() {
    let hub = strict(|_| ());
    let reply = hub.post("topic=a", &[]);
    assert_eq!(reply.status, 401);
    let challenge = reply.field("www-authenticate").unwrap();
    assert!(challenge.starts_with("Bearer resource_metadata=\"http://hub.test/"), "{challenge}");
    for (token, status, code) in [
        ("nonsense".to_owned(), 401, Some("invalid_token")),
        (token("publish", "*", 0), 401, Some("invalid_token")),
        (token("publish", "/b", 60), 403, Some("insufficient_scope")),
        (token("subscribe", "*", 60), 403, Some("insufficient_scope")),
        (old_token("publish", "b"), 403, Some("insufficient_scope")),
        (old_token("publish", "*"), 200, None),
        (token("publish", "*", 60), 200, None),
        (token("publish", "a", 60), 200, None),
    ] {
        let reply = hub.post("topic=a", &[&bearer(&token)]);
        assert_eq!(reply.status, status, "{}", reply.text());
        let challenge = reply.field("www-authenticate").unwrap_or_default();
        match code {
            Some(code) => assert!(challenge.contains(&format!("error=\"{code}\"")), "{challenge}"),
            None => assert_eq!(challenge, ""),
        }
    }
    let reply = hub.post("topic=a", &["Authorization: Basic eDp5"]);
    assert_eq!(reply.status, 400);
    assert!(reply.field("www-authenticate").unwrap().contains("invalid_request"));
}

#[test]
fn the_dialect_of_the_token_is_the_dialect_of_the_update() {
    let hub = strict(|_| ());
    let old = bearer(&old_token("publish", "*"));
    let new = bearer(&token("publish", "*", 60));
    assert_eq!(hub.post("topic=a&topic=b", &[&old]).status, 200);
    assert_eq!(hub.post("topic=a&topic=b", &[&new]).status, 400);
    let only_a = bearer(&old_token("publish", "a"));
    assert_eq!(hub.post("topic=a&topic=b", &[&only_a]).status, 403, "both must be permitted");
}

#[test]
fn private_updates_reach_only_those_with_permission() {
    let hub = strict(|hub| hub.anonymous = true);
    let publisher = bearer(&token("publish", "*", 60));
    let mut anonymous = hub.subscribe("match=a", &[]);
    let mut stranger = hub.subscribe("match=a", &[&bearer(&token("subscribe", "/b", 60))]);
    let mut friend = hub.subscribe("match=a", &[&bearer(&token("subscribe", "a", 60))]);
    let mut old_friend = hub.subscribe("topic=a", &[&bearer(&old_token("subscribe", "a"))]);
    let secret = hub.post("topic=a&private=&data=secret", &[&publisher]).text();
    assert_eq!(hub.post("topic=a&data=public", &[&publisher]).status, 200);
    assert_eq!([anonymous.data(), stranger.data()], ["public", "public"]);
    assert_eq!([friend.data(), friend.data()], ["secret", "public"]);
    assert_eq!([old_friend.data(), old_friend.data()], ["secret", "public"]);
    // The same holds for replayed updates, and the hub does not disclose the identifier of a private
    // update.
    let since = format!("Last-Event-ID: {secret}");
    let mut anonymous = hub.subscribe("match=a", &[&since]);
    assert_eq!(anonymous.field("last-event-id"), Some("earliest"));
    assert_eq!(anonymous.data(), "public");
    let mut all = hub.subscribe("match=a&last_event_id=earliest", &[]);
    assert_eq!(all.data(), "public");
}

#[test]
fn subscribers_need_a_token_unless_the_hub_says_otherwise() {
    let hub = strict(|_| ());
    let target = format!("{PATH}?match=a");
    assert_eq!(hub.request("GET", &target, &[]).status, 401);
    let good = token("subscribe", "*", 60);
    let in_query = format!("{target}&access_token={good}");
    for (target, fields, status) in [
        (&target, vec![bearer(&good)], 200),
        (&in_query, vec![], 200),
        (&target, vec![format!("Cookie: x=y; mercureAccessToken={good}")], 200),
        (&target, vec![format!("Cookie: mercureAuthorization={good}")], 200),
        (&target, vec![format!("Cookie: __Secure-mercure_access_token={good}")], 200),
        (&format!("{target}&authorization={good}"), vec![], 200),
        (&target, vec![bearer(&good), bearer(&good)], 400),
        (&format!("{in_query}&access_token={good}"), vec![], 400),
        // Only the first token counts, in the order field, query, cookie.
        (&in_query, vec![bearer("bad")], 401),
        (&format!("{target}&access_token=bad"), vec![bearer(&good)], 200),
        (
            &format!("{target}&access_token=bad"),
            vec![format!("Cookie: mercureAccessToken={good}")],
            401,
        ),
    ] {
        let fields: Vec<_> = fields.iter().map(String::as_str).collect();
        let reply = hub.request("HEAD", target, &fields);
        assert_eq!(reply.status, status, "{target} {fields:?}");
        let cache = reply.field("cache-control").unwrap();
        let is_private = target.contains('&') && fields.is_empty();
        assert_eq!(cache.contains("private"), is_private && status == 200, "{cache}");
    }
}

#[test]
fn a_token_of_another_issuer_or_for_something_else_opens_no_stream() {
    let hub = strict(|hub| hub.issuers = vec!["https://login.test".into()]);
    let status = |claims: Value| {
        let token = bearer(&sign("JWT", &claims));
        hub.request("HEAD", &format!("{PATH}?match=a"), &[&token]).status
    };
    let (known, other) = ("https://login.test", "https://other.test");
    let read = json!({"subscribe": ["*"]});
    let url = "http://hub.test/.well-known/mercure";
    assert_eq!(status(json!({"iss": known, "mercure": read})), 200);
    assert_eq!(status(json!({"iss": known, "mercure": read, "aud": url})), 200);
    assert_eq!(status(json!({"iss": known, "mercure": read, "aud": "shop"})), 401);
    assert_eq!(status(json!({"iss": other, "mercure": read})), 401);
    assert_eq!(status(json!({"mercure": read})), 401);
    // What a login service says about its user.
    assert_eq!(status(json!({"iss": known, "aud": url, "sub": "me", "exp": now() + 60})), 401);
    // With a secret of its own and no named issuer, a hub takes what those of 0.x take.
    let hub = strict(|_| ());
    let token = sign("JWT", &json!({"mercure": read, "aud": "shop", "iss": other}));
    let reply = hub.request("HEAD", &format!("{PATH}?match=a"), &[&bearer(&token)]);
    assert_eq!(reply.status, 200);
}

#[test]
fn the_token_comes_before_everything_else() {
    let hub = strict(|_| ());
    for method in ["GET", "POST", "QUERY"] {
        let reply = hub.request(method, PATH, &[]);
        assert_eq!(reply.status, 401, "{method}: {}", reply.text());
        assert!(reply.field("www-authenticate").is_some());
    }
    let publisher = token("publish", "*", 60);
    let reply = hub.request("POST", PATH, &[&bearer(&publisher)]);
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("topic"), "{}", reply.text());
    // In dialect 0 a publisher may also send the token in the query.
    for (name, token) in [("authorization", old_token("publish", "*")), ("access_token", publisher)]
    {
        let target = format!("{PATH}?{name}={token}");
        let form = "topic=a";
        let mut client = hub.client();
        client.send(format!(
            "POST {target} HTTP/1.1\r\nHost: hub.test\r\nContent-Length: {}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\n\r\n{form}",
            form.len()
        ));
        assert_eq!(client.reply_to("POST").status, 200, "{name}");
    }
}

#[test]
fn a_stream_ends_when_its_token_expires() {
    let hub = strict(|_| ());
    let started_at = Instant::now();
    let mut stream = hub.subscribe("match=a", &[&bearer(&token("subscribe", "*", 4))]);
    let mut stayer = hub.subscribe("match=a", &[&bearer(&token("subscribe", "*", 600))]);
    assert_eq!(stream.event(), None);
    assert!(started_at.elapsed() <= Duration::from_millis(4500), "{:?}", started_at.elapsed());
    assert!(started_at.elapsed() >= Duration::from_millis(1500), "{:?}", started_at.elapsed());
    hub.post("topic=a&data=x", &[&bearer(&token("publish", "*", 60))]);
    assert_eq!(stayer.data(), "x");
}

#[test]
fn a_long_poll_ends_before_its_token_expires() {
    let hub = strict(|_| ());
    let expires_at = now() + 3;
    let expiring = bearer(&token_until("subscribe", "*", expires_at));
    let path = "/.well-known/mercure?match=a";
    let reply = hub.request("GET", path, &[&expiring, "Prefer: wait=30"]);
    assert_eq!(reply.status, 204);
    let ended_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!(ended_at <= Duration::from_secs(expires_at), "{ended_at:?}");
}

#[test]
fn a_token_that_is_about_to_expire_ends_its_stream_at_once() {
    let hub = strict(|_| ());
    // It is the first subscriber, in the middle of a second: the next check would come after the expiry.
    let part = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_millis();
    wait_until("the middle of a second", || (400..600).contains(&part()));
    let expires_at = now() + 1;
    let expiring = bearer(&token_until("subscribe", "*", expires_at));
    let mut stream = hub.subscribe("match=a", &[&expiring]);
    assert_eq!(stream.event(), None);
    let ended_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!(ended_at <= Duration::from_millis(1000 * expires_at + 200), "{ended_at:?}");
}

#[test]
fn a_cookie_publishes_only_from_the_hubs_own_pages() {
    let hub = strict(|hub| hub.cors = vec!["https://friend.test".into()]);
    let cookie = format!("Cookie: mercureAccessToken={}", token("publish", "*", 60));
    for (source, status) in [
        (None, 403),
        (Some("Origin: http://hub.test"), 200),
        (Some("Origin: https://friend.test"), 200),
        (Some("Referer: http://hub.test/page"), 200),
        (Some("Origin: https://evil.test"), 403),
        (Some("Origin: null"), 403),
        (Some("Referer: https://evil.test/http://hub.test"), 403),
    ] {
        let fields: Vec<_> = [Some(cookie.as_str()), source].into_iter().flatten().collect();
        assert_eq!(hub.post("topic=a", &fields).status, status, "{source:?}");
    }
}

#[test]
fn keys_of_publishers_and_subscribers_are_different_if_so_configured() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("other");
    std::fs::write(&other, "another secret, of at least 32 bytes").unwrap();
    let hub = strict(|hub| hub.publisher_keys = Some(other));
    assert_eq!(hub.post("topic=a", &[&bearer(&token("publish", "*", 60))]).status, 401);
    let subscriber = bearer(&token("subscribe", "*", 60));
    assert_eq!(hub.request("HEAD", &format!("{PATH}?match=a"), &[&subscriber]).status, 200);
}

#[test]
fn subscriptions_are_published_and_listed() {
    let hub = strict(|hub| hub.subscriptions = true);
    let list = format!("{PATH}/subscriptions");
    assert_eq!(hub.request("GET", &list, &[]).status, 401);
    let me = bearer(&token("subscribe", "a", 60));
    assert_eq!(hub.request("GET", &list, &[&me]).status, 403);
    let watcher = bearer(&token("subscribe", "/.well-known/mercure/subscriptions{/*}?", 60));
    let reply = hub.request("GET", &list, &[&watcher]);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.field("content-type"), Some("application/ld+json"));
    let tag = reply.field("etag").unwrap();
    assert!(tag.starts_with('"') && tag.ends_with('"') && tag.len() > 10, "{tag}");
    assert!(reply.field("link").unwrap().contains("; rel=\"mercure\""));
    let same = hub.request("GET", &list, &[&watcher, &format!("If-None-Match: {tag}")]);
    assert_eq!(same.status, 304);
    assert_eq!(hub.request("GET", &list, &[&watcher, "If-Match: \"other\""]).status, 412);
    assert_eq!(hub.request("GET", &list, &[&watcher, &format!("If-Match: {tag}")]).status, 200);
    let pattern = "/.well-known/mercure/subscriptions/exact/:topic/:subscriber";
    let mut events = hub.subscribe(&format!("match_urlpattern={pattern}"), &[&watcher]);
    let draft = pattern.replace("exact", "Exact");
    let mut draft_events = hub.subscribe(&format!("matchURLPattern={draft}"), &[&watcher]);
    let subscription = format!("{PATH}/subscriptions/exact/a/urn%3Ame");
    let stream = hub.subscribe("match=a", &[&me]);
    let event = events.event().unwrap();
    assert_eq!(event.event, "mercure");
    let document: Value = serde_json::from_str(&event.data).unwrap();
    assert_eq!(document["id"], subscription);
    assert_eq!(document["active"], true);
    assert_eq!(document["payload"], json!({"name": "test"}));
    assert_eq!(draft_events.event().unwrap(), event);
    let reply = hub.request("GET", &subscription, &[&watcher]);
    assert_ne!(reply.field("etag"), Some(tag));
    let listed: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((&listed["match"], &listed["match_type"]), (&json!("a"), &json!("exact")));
    assert_eq!(listed["last_event_id"], event.id);
    let reply = hub.request("GET", &subscription.replace("exact", "Exact"), &[&watcher]);
    let listed: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((&listed["matchType"], &listed["lastEventID"]), (&json!("Exact"), &json!(event.id)));
    drop(stream);
    let document: Value = serde_json::from_str(&events.data()).unwrap();
    assert_eq!(document["active"], false);
    assert_eq!(hub.request("GET", &subscription, &[&watcher]).status, 404);
}

#[test]
fn the_same_subject_of_two_issuers_is_two_subscribers() {
    let issuers = ["https://one.test", "https://two.test"];
    let hub = strict(|hub| {
        hub.subscriptions = true;
        hub.issuers = issuers.map(Into::into).into();
    });
    let token = |issuer: &str, topic: &str| {
        bearer(&sign(
            "at+jwt",
            &json!({
                "aud": "http://hub.test/.well-known/mercure", "exp": now() + 60,
                "iss": issuer, "sub": "urn:me",
                "authorization_details": [{
                    "type": "mercure", "actions": ["subscribe"], "topics": [{"match": topic}],
                }],
            }),
        ))
    };
    let _streams = issuers.map(|issuer| hub.subscribe("match=a", &[&token(issuer, "a")]));
    let list = format!("{PATH}/subscriptions/exact/a");
    let reply = hub.request("GET", &list, &[&token(issuers[0], &list)]);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let document: Value = serde_json::from_slice(&reply.body).unwrap();
    let names = document["subscriptions"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|one| one["subscriber"].as_str().unwrap()).collect();
    assert_eq!(names, ["https://one.test#urn:me", "https://two.test#urn:me"]);
}

#[test]
fn a_log_has_no_token_of_a_query() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let hub = Hub::start(1, |config, _| {
        config.log = pollux_server::config::LogConfig::clf(pollux_server::config::LogTarget::File(
            path.clone(),
        ));
    });
    for name in ["access_token", "access%5Ftoken", "%61uthorization"] {
        let reply = hub.request("GET", &format!("{PATH}?match=a&{name}=hidden&x=1"), &[]);
        assert_eq!(reply.status, 401, "{name}");
        wait_until("the line", || {
            let line = format!("{name}=-&x=1");
            std::fs::read_to_string(&path).is_ok_and(|log| log.contains(&line))
        });
        assert!(!std::fs::read_to_string(&path).unwrap().contains("hidden"));
    }
}

//! The protocol, except for permissions (see docs/push-conformance.md).

use super::*;
use pollux_cache::Store;
use pollux_server::settings::{FrontendConfig, VirtualHost};
use pollux_testkit::origin::Origin;

#[test]
fn an_update_is_answered_with_its_identifier_and_has_all_fields() {
    let hub = Hub::open();
    let mut stream = hub.subscribe("match=https://example.com/foo", &[]);
    assert_eq!(stream.field("content-type"), Some("text/event-stream"));
    let form =
        "topic=https%3A%2F%2Fexample.com%2Ffoo&data=a%0Ab%0D%0Ac&id=urn%3Ax&type=price&retry=1500";
    let reply = hub.post(form, &[]);
    assert_eq!((reply.status, reply.text().as_str()), (200, "urn:x"));
    let expected = SseEvent {
        id: "urn:x".into(),
        event: "price".into(),
        retry: "1500".into(),
        data: "a\nb\nc".into(),
    };
    assert_eq!(stream.event(), Some(expected));
    let generated = hub.publish("https%3A%2F%2Fexample.com%2Ffoo", "x");
    assert!(generated.starts_with("urn:uuid:"), "{generated}");
    assert_eq!(stream.event().unwrap().id, generated);
}

#[test]
fn matchers_are_exact_patterns_or_everything() {
    let hub = Hub::open();
    let mut exact = hub.subscribe("match=https://hub.test/a/1&matchExact=last", &[]);
    let mut pattern = hub.subscribe("match_urlpattern=/a/:id&match=last", &[]);
    let mut draft = hub.subscribe("matchURLPattern=http://hub.test/a/:id&match=last", &[]);
    let mut template = hub.subscribe("topic=http://hub.test/%7Bx%7D/2&topic=last", &[]);
    let mut all = hub.subscribe("match=*", &[]);
    for topic in ["https://hub.test/a/1", "http://hub.test/a/2", "/a/3", "other", "last"] {
        hub.publish(topic, topic);
    }
    let expect = |stream: &mut Stream, topics: &[&str]| {
        for topic in topics {
            assert_eq!(stream.data(), *topic);
        }
    };
    expect(&mut exact, &["https://hub.test/a/1", "last"]);
    expect(&mut pattern, &["http://hub.test/a/2", "/a/3", "last"]);
    expect(&mut draft, &["http://hub.test/a/2", "/a/3", "last"]);
    expect(&mut template, &["http://hub.test/a/2", "last"]);
    expect(&mut all, &["https://hub.test/a/1", "http://hub.test/a/2", "/a/3", "other", "last"]);
}

#[test]
fn bad_requests_are_answered_with_a_sentence() {
    let hub = Hub::open();
    for query in ["", "?", "?match=", "?match=%00", "?match=%ff", "?match=a&matchFoo=b", "?Match=a"]
    {
        let reply = hub.request("GET", &format!("{PATH}{query}"), &[]);
        assert_eq!(reply.status, 400, "{query}");
        assert!(reply.field("www-authenticate").unwrap().contains("invalid_request"));
        assert!(reply.text().len() > 20 && reply.text().ends_with('\n'), "{}", reply.text());
    }
    for (form, status) in [
        ("data=x", 400),
        ("topic=", 400),
        ("topic=a%0Ab", 400),
        ("topic=a&id=%23x", 400),
        ("topic=a&retry=soon", 400),
        ("topic=a&type=x%0Ay", 400),
        ("topic=a&data=%ff", 400),
        ("topic=a&data=%zz", 400),
        ("topic=a%E2%80%8Bb", 400),
        ("topic=a&type=mercure", 400),
        ("topic=/.well-known/mercure/subscriptions/exact/a/b", 403),
        ("topic=https://elsewhere/a/../.well-known/mercure", 403),
    ] {
        let reply = hub.post(form, &[]);
        assert_eq!(reply.status, status, "{form}: {}", reply.text());
    }
}

#[test]
fn a_dialect_that_is_not_spoken_is_refused() {
    use pollux_hub::dialect::Dialect;
    let one = Hub::start(1, |_, hub| hub.dialect = Dialect::One);
    let zero = Hub::start(1, |_, hub| hub.dialect = Dialect::Zero);
    for (query, with_one, with_zero) in [("match=a", 200, 400), ("topic=a", 400, 200)] {
        let target = format!("{PATH}?{query}");
        assert_eq!(one.request("HEAD", &target, &[]).status, with_one, "{query}");
        assert_eq!(zero.request("HEAD", &target, &[]).status, with_zero, "{query}");
    }
    assert_eq!(one.post("topic=a&topic=b", &[]).status, 400);
    assert_eq!(one.post("topic=a&type=mercure", &[]).status, 400);
    assert_eq!(zero.post("topic=a&topic=b", &[]).status, 200);
}

#[test]
fn a_query_has_its_topics_in_the_content() {
    let hub = Hub::open();
    let form = "Content-Type: application/x-www-form-urlencoded; charset=utf-8";
    let query = |client: &mut Client, target: &str, fields: &[&str], content: &str| {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        client.send(format!(
            "QUERY {target} HTTP/1.1\r\nHost: hub.test\r\nContent-Length: {}\r\n{fields}\r\n{content}",
            content.len()
        ));
        client.reply_to("QUERY")
    };
    hub.publish("/a/1", "one");
    hub.publish("b", "two");
    let target = format!("{PATH}?match=b");
    let content = "match_urlpattern=%2Fa%2F:x&last_event_id=earliest";
    let reply = query(&mut hub.client(), &target, &[form, "Prefer: wait=9"], content);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(reply.text().contains("data: one\n\n") && reply.text().ends_with("data: two\n\n"));
    assert_eq!(reply.field("accept-query"), Some("application/x-www-form-urlencoded"));
    let large = format!("match={}", "a".repeat(2 << 20));
    for (fields, content, status) in [
        (&[form][..], "match_regex=x", 400),
        (&[form], "", 400),
        (&[], "match=a", 400),
        (&["Content-Type: application/json"], "{}", 415),
        (&[form, "Content-Encoding: gzip"], "match=a", 415),
        (&[form], &large, 413),
    ] {
        let reply = query(&mut hub.client(), PATH, fields, content);
        assert_eq!(reply.status, status, "{fields:?}");
    }
    // It may be long, but not as long as an update: anybody can send one.
    for (bytes, status) in [(2000, 204), (3000, 413)] {
        let topics = (0..90).map(|number| format!("match={number}{}", "a".repeat(bytes)));
        let content = topics.collect::<Vec<_>>().join("&");
        let reply = query(&mut hub.client(), PATH, &[form, "Prefer: wait=0"], &content);
        assert_eq!(reply.status, status, "{}", content.len());
        let mut client = hub.client();
        client.send(format!(
            "QUERY {PATH} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n{form}\r\n\
             Prefer: wait=0\r\n\r\n{:x}\r\n{content}\r\n0\r\n\r\n",
            content.len()
        ));
        assert_eq!(client.reply_to("QUERY").status, status, "{}", content.len());
    }
    let below = format!("{PATH}/subscriptions");
    assert_eq!(query(&mut hub.client(), &below, &[form], "match=a").status, 405);
}

#[test]
fn the_content_of_a_query_may_begin_a_stream() {
    let hub = Hub::open();
    let mut stream = std::net::TcpStream::connect(hub.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "QUERY /.well-known/mercure HTTP/1.1\r\nHost: hub.test\r\nContent-Length: 7\r\n\
                Content-Type: application/x-www-form-urlencoded\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    // A slow client: the content arrives later than the head.
    std::thread::sleep(Duration::from_millis(50));
    stream.write_all(b"match=a").unwrap();
    let mut text = String::new();
    let mut read_until = |what: &str| {
        while !text.contains(what) {
            let mut bytes = [0; 1024];
            let count = stream.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "{text}");
            text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
    };
    read_until(":\n");
    hub.publish("a", "hello");
    read_until("data: hello\n\n");
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

#[test]
fn the_head_of_a_stream_names_no_length() {
    let hub = Hub::open();
    let mut client = hub.client();
    for fields in [&[][..], &["Prefer: wait=1"]] {
        let reply = client.request("HEAD", &format!("{PATH}?match=a"), fields);
        assert_eq!(reply.status, 200);
        assert_eq!(reply.field("content-type"), Some("text/event-stream"));
        assert_eq!(reply.field("content-length"), None);
        assert!(reply.field("cache-control").is_some());
    }
    // The same connection takes further requests.
    assert_eq!(client.request("GET", "/", &[]).status, 404);
}

#[test]
fn a_template_that_is_none_is_the_topic_itself() {
    let hub = Hub::open();
    let mut stream = hub.subscribe("topic=http://a/hub?topic=faulty%7Biri", &[]);
    hub.publish("http://a/hub?topic=faulty%7Biri", "x");
    assert_eq!(stream.data(), "x");
}

#[test]
fn an_alternate_topic_of_dialect_0_is_enough() {
    let hub = Hub::open();
    let mut stream = hub.subscribe("topic=b", &[]);
    assert_eq!(hub.post("topic=a&topic=b&data=x", &[]).status, 200);
    assert_eq!(hub.post("topic=a&data=y", &[]).status, 200);
    assert_eq!(hub.post("topic=b&data=z", &[]).status, 200);
    assert_eq!([stream.data(), stream.data()], ["x", "z"]);
}

#[test]
fn pages_find_the_hub_and_its_metadata() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("index.html"), "page").unwrap();
    let hub = Hub::start(1, |config, hub| {
        config.site.directory = Some(directory.path().into());
        hub.issuers = vec!["https://as.test".into()];
    });
    let reply = hub.request("GET", "/", &[]);
    assert_eq!(reply.text(), "page");
    assert_eq!(reply.field("link"), Some("</.well-known/mercure>; rel=\"mercure\""));
    let path = format!("/.well-known/oauth-protected-resource{PATH}");
    let reply = hub.request("GET", &path, &[]);
    assert_eq!(reply.field("content-type"), Some("application/json"));
    let document: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(document["resource"], format!("http://hub.test{PATH}"));
    assert_eq!(document["authorization_servers"][0], "https://as.test");
    assert_eq!(document["mercure_version"], 8);
    let types = &document["authorization_details_types_supported"];
    assert_eq!(types[1], "https://mercure.rocks/authorization-detail");
    assert_eq!(document["mercure_matcher_types_supported"][1], "urlpattern");
    assert_eq!(document.get("mercure_subscriptions"), None);
    assert_eq!(document["mercure_cookie"], true);
}

#[test]
fn every_resource_names_its_own_methods() {
    let hub = Hub::start(1, |_, hub| hub.subscriptions = true);
    let metadata = format!("/.well-known/oauth-protected-resource{PATH}");
    let list = format!("{PATH}/subscriptions");
    for (path, methods) in [
        (PATH, "GET, HEAD, POST, QUERY, OPTIONS"),
        (list.as_str(), "GET, HEAD, OPTIONS"),
        (metadata.as_str(), "GET, HEAD, OPTIONS"),
    ] {
        for (method, status) in [("OPTIONS", 204), ("DELETE", 405)] {
            let reply = hub.request(method, path, &[]);
            assert_eq!(reply.status, status, "{method} {path}");
            assert_eq!(reply.field("allow"), Some(methods), "{method} {path}");
            let is_query = reply.field("accept-query").is_some();
            assert_eq!(is_query, path == PATH && method == "OPTIONS", "{method} {path}");
        }
    }
    for path in [&list, &metadata] {
        assert_eq!(hub.request("POST", path, &[]).field("allow"), Some("GET, HEAD, OPTIONS"));
    }
    // The metadata of another resource are none of the hub's.
    assert_eq!(hub.request("GET", &format!("{metadata}/x"), &[]).status, 404);
}

/// Responses of an origin get the link wherever they come from: from the origin, into the cache and out of it, or as the
/// answer to a condition.
#[test]
fn pages_of_an_origin_name_the_hub() {
    let origin = Origin::start(|request| {
        let caching = if request.target() == "/new" { "no-store" } else { "max-age=60" };
        request.say(format!(
            "HTTP/1.1 200 OK\r\nCache-Control: {caching}\r\nETag: \"x\"\r\nLink: </a.css>; rel=preload\r\n\
             Content-Length: 4\r\n\r\npage"
        ))
    });
    let start = |cache: Option<Store>| {
        Hub::start(1, |config, _| {
            let mut frontend = FrontendConfig::new(vec![origin.url().parse().unwrap()]);
            frontend.cache = cache;
            config.frontend = Some(Arc::new(frontend));
        })
    };
    let get = |hub: &Hub, path: &str, fields: &[&str]| {
        let reply = hub.request("GET", path, fields);
        let links = reply.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("link"));
        let mut links: Vec<_> = links.map(|(_, value)| value.as_str()).collect();
        links.sort_unstable();
        let expected = ["</.well-known/mercure>; rel=\"mercure\"", "</a.css>; rel=preload"];
        assert_eq!(links, expected, "{path} {fields:?}");
        reply
    };
    let plain = start(None);
    assert_eq!(get(&plain, "/", &[]).text(), "page");
    let cached = start(Some(Store::new(pollux_cache::Config::default())));
    for (path, fields, status, is_hit) in [
        ("/new", &[][..], 200, false),
        ("/", &[], 200, false),
        ("/", &[], 200, true),
        ("/", &["If-None-Match: \"x\""], 304, true),
        ("/", &["Range: bytes=0-1"], 206, true),
    ] {
        let reply = get(&cached, path, fields);
        assert_eq!(reply.status, status);
        let source = reply.field("cache-status").unwrap();
        assert_eq!(source.starts_with("Pollux; hit"), is_hit, "{source}");
    }
}

/// Regression: the metadata of a hub that refuses 1.0 named it.
#[test]
fn the_metadata_name_what_is_spoken() {
    use pollux_hub::dialect::Dialect;
    let metadata = format!("/.well-known/oauth-protected-resource{PATH}");
    for (dialect, version) in [(Dialect::Zero, None), (Dialect::One, Some(8))] {
        let hub = Hub::start(1, |_, hub| hub.dialect = dialect);
        let reply = hub.request("GET", &metadata, &[]);
        let document: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(document["mercure_version"].as_u64(), version);
        assert_eq!(document["resource"], format!("http://hub.test{PATH}"));
        for name in ["authorization_details_types_supported", "mercure_matcher_types_supported"] {
            assert_eq!(document.get(name).is_some(), version.is_some(), "{name}");
        }
    }
}

#[test]
fn pages_elsewhere_may_use_it_if_they_are_named() {
    let hub = Hub::start(1, |_, hub| hub.cors = vec!["https://page.test".into()]);
    let page = "Origin: https://page.test";
    let reply = hub.request("OPTIONS", PATH, &[page, "Access-Control-Request-Method: POST"]);
    assert_eq!(reply.status, 204);
    assert_eq!(reply.field("access-control-allow-origin"), Some("https://page.test"));
    let names = reply.field("access-control-allow-headers").unwrap();
    for name in ["Authorization", " Mercure-Last-Event-ID", "If-None-Match"] {
        assert!(names.contains(name), "{names}");
    }
    let stream = hub.subscribe("match=a", &[page]);
    assert_eq!(stream.field("access-control-allow-credentials"), Some("true"));
    assert_eq!(stream.field("vary"), Some("Origin"));
    // Scripts may read all of these.
    let exposed = stream.field("access-control-expose-headers").unwrap();
    for name in ["Accept-Query", "Link", "Mercure-Last-Event-ID", "Retry-After"] {
        assert!(exposed.split(", ").any(|one| one == name), "{exposed}");
    }
    let stream = hub.subscribe("match=a", &["Origin: https://other.test"]);
    assert_eq!(stream.field("access-control-allow-origin"), None);
    // A cache may store this document, but not for every page.
    let metadata = format!("/.well-known/oauth-protected-resource{PATH}");
    for fields in [&[page][..], &["Origin: https://other.test"], &[]] {
        assert_eq!(hub.request("GET", &metadata, fields).field("vary"), Some("Origin"));
    }
    let everybody = Hub::start(1, |_, hub| hub.cors = vec!["*".into()]);
    let stream = everybody.subscribe("match=a", &[page]);
    assert_eq!(stream.field("access-control-allow-origin"), Some("*"));
    assert_eq!(stream.field("access-control-allow-credentials"), None);
}

/// Regression: such a page could read neither the status nor the reason, because the server answered without the hub.
#[test]
fn a_page_elsewhere_may_read_why_its_update_is_too_long() {
    let page = "https://page.test";
    let directory = tempfile::tempdir().unwrap();
    // Longer than the server takes, and longer than this site of several takes.
    for (length, site_takes) in [(1_u64 << 40, None), (5000, Some(1000))] {
        let hub = Hub::start(1, |config, hub| {
            hub.cors = vec![page.into()];
            config.site.directory = Some(directory.path().into());
            if let Some(most) = site_takes {
                config.default_body = most;
                config.hosts.push(VirtualHost::new(&["other.test"], config.site.clone()));
            }
        });
        let post_to = |target: &str| {
            let mut client = hub.client();
            client.send(format!(
                "POST {target} HTTP/1.1\r\nHost: hub.test\r\nContent-Length: {length}\r\nOrigin: {page}\r\n\
                 Content-Type: application/x-www-form-urlencoded\r\n\r\n"
            ));
            client.reply_to("POST")
        };
        let reply = post_to(PATH);
        assert_eq!(reply.status, 413, "{length}");
        assert_eq!(reply.field("access-control-allow-origin"), Some(page));
        assert!(reply.text().ends_with(": send less\n"), "{}", reply.text());
        let reply = post_to("/");
        assert_eq!((reply.status, reply.field("access-control-allow-origin")), (413, None));
    }
}

/// Regression: the pages of all sites named the hub, which the default site alone has.
#[test]
fn the_pages_of_other_sites_name_no_hub() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("index.html"), "page").unwrap();
    let hub = Hub::start(1, |config, _| {
        config.site.directory = Some(directory.path().into());
        config.default_body = config.limits.body;
        config.hosts.push(VirtualHost::new(&["other.test"], config.site.clone()));
    });
    for (host, link, status) in [
        ("hub.test", Some("</.well-known/mercure>; rel=\"mercure\""), 200),
        ("other.test", None, 404),
    ] {
        let request = |method: &str, target: &str| {
            let mut client = hub.client();
            client.send(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            client.reply_to(method)
        };
        let page = request("GET", "/");
        assert_eq!((page.text().as_str(), page.field("link")), ("page", link), "{host}");
        assert_eq!(request("HEAD", &format!("{PATH}?match=a")).status, status, "{host}");
    }
}

#[test]
fn a_configuration_that_admits_no_client_or_every_client_is_refused() {
    let start = |change: &dyn Fn(&mut Settings, &mut HubConfig)| {
        let mut hub = HubConfig::new(PATH);
        let mut config = Settings::new("");
        config.site.directory = None;
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        change(&mut config, &mut hub);
        config.hub = Some(Arc::new(hub));
        format!("{:#}", Server::start(config).expect_err("it starts"))
    };
    assert!(start(&|_, _| ()).contains("--hub-anonymous"));
    assert!(start(&|_, hub| hub.anonymous = true).contains("--hub-publish-anonymous"));
    let far = start(&|config, hub| {
        hub.anonymous = true;
        hub.publish_anonymous = true;
        config.listen = vec!["0.0.0.0:0".parse().unwrap()];
    });
    assert!(far.contains("every client that can reach"), "{far}");
    let threads = start(&|config, hub| {
        hub.anonymous = true;
        hub.publish_anonymous = true;
        config.architecture = pollux_server::config::Architecture::Threaded;
    });
    assert!(threads.contains("--architecture"), "{threads}");
}

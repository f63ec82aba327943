//! Requests and replies that are forwarded, and the choice of the origin.

use super::*;
use pollux_server::config::{ForwardedPolicy, HostPolicy};
use pollux_server::stats::Counter;
use pollux_testkit::origin::Origin;
use std::process::{Command, Stdio};

#[test]
fn requests_and_replies_are_passed_on_and_connections_kept() {
    on_every_engine(|engine| {
        let origin = Origin::start(|request| {
            let body = request.body();
            let what = format!("{} {} {}", request.method(), request.target(), body.len());
            let len = what.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nServer: origin\r\nX-A: 1\r\nConnection: X-Hop\r\nX-Hop: 1\r\nContent-Length: {len}\r\n\r\n"
            );
            request.say(head);
            if request.method() != "HEAD" { request.say(what) } else { true }
        });
        let fixture = Fixture::new(&[&origin.url()], |config, _| serve_with(config, engine));
        let mut client = fixture.client();
        for _ in 0..3 {
            let reply = client.get("/a?b=c");
            assert_eq!((reply.status, &*reply.text()), (200, "GET /a?b=c 0"), "{engine}");
            assert_eq!((reply.field("server"), reply.field("x-a")), (Some("origin"), Some("1")));
            assert!(reply.field("date").is_some() && reply.field("x-hop").is_none(), "{reply:?}");
            assert_eq!(reply.field("connection"), None);
        }
        let head = client.request("HEAD", "/head", &[]);
        assert_eq!((head.status, head.field("content-length")), (200, Some("12")), "{engine}");
        client.send("POST /p HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!(client.reply().text(), "POST /p 5", "{engine}");
        client.send("PUT /p HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n");
        assert_eq!(client.reply().text(), "PUT /p 8", "{engine}");
        // Pipelined, with a request for the site's own file between them.
        client.send("GET /1 HTTP/1.1\r\nHost: t\r\n\r\nGET /file HTTP/1.1\r\nHost: t\r\n\r\nGET /2 HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(client.reply().text(), "GET /1 0", "{engine}");
        assert_eq!(client.reply().text(), "of the site", "{engine}");
        assert_eq!(client.reply().text(), "GET /2 0", "{engine}");
        assert_eq!((origin.requests(), origin.connections()), (8, 1), "{engine}: one is enough");
        fixture.stop();
    });
}

#[test]
fn the_fields_an_origin_receives_follow_the_policies() {
    let origin = Origin::start(|request| request.ok("x"));
    let received = |change: &dyn Fn(&mut FrontendConfig)| {
        let fixture = Fixture::new(&[&origin.url()], |_, frontend| change(frontend));
        let fields = ["X-Forwarded-For: 10.0.0.1", "Cookie: a=b", "Via: 1.1 a"];
        assert_eq!(fixture.client().request("GET", "/", &fields).status, 200);
        fixture.stop();
        origin.last_head()
    };
    let head = received(&|_| {});
    for line in [
        "Host: test",
        "Cookie: a=b",
        "Via: 1.1 a",
        "Via: 1.1 pollux",
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Host: test",
        "X-Forwarded-Proto: http",
        "Forwarded: for=127.0.0.1;host=\"test\";proto=http",
    ] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line}: {head}");
    }
    assert!(!head.contains("10.0.0.1") && !head.contains("Connection"), "{head}");
    let head = received(&|frontend| {
        frontend.forwarded = ForwardedPolicy::Append;
        frontend.host = HostPolicy::Origin;
        frontend.via = None;
    });
    assert!(head.contains("X-Forwarded-For: 10.0.0.1, 127.0.0.1\r\n"), "{head}");
    assert!(head.contains(&format!("Host: {}\r\n", origin.address())) && !head.contains("pollux"));
    let head = received(&|frontend| frontend.forwarded = ForwardedPolicy::Keep);
    assert!(head.contains("X-Forwarded-For: 10.0.0.1\r\n") && !head.contains("Forwarded: for"));
}

#[test]
fn paths_have_their_origins_and_origins_their_turns() {
    let [a, b, c] = ["a", "b", "c"].map(|name| Origin::start(move |request| request.ok(name)));
    let routes = [a.url(), b.url(), format!("/api={}", c.url())];
    let fixture = Fixture::new(&routes.each_ref().map(|route| &**route), |_, _| {});
    let mut client = fixture.client();
    let mut got = |path: &str| client.get(path).text();
    assert_eq!([got("/"), got("/x"), got("/y"), got("/z")], ["a", "b", "a", "b"]);
    assert_eq!(
        [got("/api"), got("/api/x"), got("/apix"), got("/file")],
        ["c", "c", "a", "of the site"]
    );
    // The site answers GET requests for the file.
    let mut client = fixture.client();
    assert_eq!(client.request("DELETE", "/file", &[]).text(), "b");
    assert_eq!(client.request("OPTIONS", "*", &[]).text(), "a");
    fixture.stop();
    // Without files, and without an origin for the rest.
    let config = Settings::without_files(FrontendConfig::new(vec![routes[2].parse().unwrap()]));
    let server = Server::start(config).unwrap();
    let Listen::Tcp(address) = server.addresses()[0] else { panic!("no TCP address") };
    let mut client = Client::connect(address);
    assert_eq!((client.get("/").status, client.get("/api").status), (404, 200));
    server.stop(Duration::from_secs(5)).unwrap();
}

/// Regression: clients were sent from the path of a directory without an index to that path with a slash,
/// which the origin answers. If the origin sends clients back, they never arrive.
#[test]
fn a_directory_without_an_index_is_no_file() {
    let origin = Origin::start(|request| request.ok("of the origin"));
    for lists in [false, true] {
        let fixture = Fixture::new(&[&origin.url()], |config, _| {
            config.site.rules.listing = lists;
        });
        let root = fixture.directory.path();
        for name in ["bare", "indexed"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        std::fs::write(root.join("indexed/index.html"), "indexed").unwrap();
        let mut client = fixture.client();
        let sent = client.get("/indexed");
        assert_eq!((sent.status, sent.field("location")), (301, Some("/indexed/")));
        assert_eq!(client.get("/indexed/").text(), "indexed");
        let bare = client.get("/bare");
        if lists {
            assert_eq!((bare.status, bare.field("location")), (301, Some("/bare/")));
            assert_eq!(client.get("/bare/").status, 200);
        } else {
            assert_eq!(bare.text(), "of the origin");
            assert_eq!(client.get("/bare/").text(), "of the origin");
        }
        fixture.stop();
    }
}

#[test]
fn what_must_not_be_passed_on_is_answered_here() {
    let origin = Origin::start(|request| {
        let head = request.head().to_owned();
        request.ok(head)
    });
    let fixture = Fixture::before(&origin.url());
    let mut client = fixture.client();
    let last = client.request("OPTIONS", "/", &["Max-Forwards: 0"]);
    assert_eq!(last.status, 204);
    assert!(last.field("allow").unwrap().contains("PATCH"));
    let trace = client.request("TRACE", "/x", &["Max-Forwards: 0", "Cookie: secret", "X: y"]);
    assert_eq!(trace.field("content-type"), Some("message/http"));
    assert!(trace.text().starts_with("TRACE /x HTTP/1.1\r\n") && trace.text().contains("X: y"));
    assert!(!trace.text().contains("secret"));
    assert_eq!(origin.requests(), 0);
    let passed = client.request("TRACE", "/x", &["Max-Forwards: 5"]).text();
    assert!(passed.contains("Max-Forwards: 4\r\n"), "{passed}");
    client.send("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n");
    assert_eq!(client.reply().status, 405);
    assert!(client.is_closed());
    // A request that could be read in two ways is not forwarded.
    for request in [
        "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: t\r\nX: a\n\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : t\r\n\r\n",
    ] {
        let before = origin.requests();
        let mut client = fixture.client();
        client.send(request);
        assert_eq!(client.reply().status, 400, "{request}");
        assert_eq!(origin.requests(), before, "{request}");
    }
    fixture.stop();
}

/// RFC 9110 §15.2: a proxy forwards interim replies that it has not requested itself.
#[test]
fn a_100_that_nobody_has_requested_is_passed_on() {
    let origin = Origin::start(|request| {
        request.say("HTTP/1.1 100 Continue\r\n\r\n");
        request.ok("hello")
    });
    let fixture = Fixture::before(&origin.url());
    let mut client = fixture.client();
    assert_eq!(client.get("/").status, 100);
    assert_eq!(client.reply().text(), "hello");
    fixture.stop();
}

#[test]
fn old_clients_are_served_as_they_can_be() {
    let origin = Origin::start(|request| {
        request.say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        request.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    });
    let fixture = Fixture::before(&origin.url());
    let mut old = fixture.client();
    old.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let reply = old.reply();
    assert_eq!((reply.status, &*reply.text()), (200, "hello"));
    assert_eq!(reply.field("connection"), Some("close"));
    assert!(origin.last_head().starts_with("GET / HTTP/1.1\r\nHost: 127.0.0.1:"));
    let mut new = fixture.client();
    let hints = new.get("/");
    assert_eq!((hints.status, hints.field("link")), (103, Some("</a>")));
    assert_eq!(new.reply().text(), "hello");
    fixture.stop();
}

/// RFC 9112 §5.1: a proxy removes this white space before it forwards a reply, and refuses a request
/// that contains it.
#[test]
fn white_space_before_a_colon_is_not_passed_on() {
    let origin = Origin::start(|request| {
        request.say("HTTP/1.1 200 OK\r\nX-A : 1\r\nServer\t: o\r\nContent-Length : 5\r\n\r\nhello")
    });
    let fixture = Fixture::before(&origin.url());
    let mut client = fixture.client();
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        let reply = client.reply();
        assert_eq!((reply.status, &*reply.text()), (200, "hello"));
        for (name, value) in [("x-a", "1"), ("server", "o"), ("content-length", "5")] {
            assert_eq!(reply.field(name), Some(value), "{reply:?}");
        }
    }
    assert_eq!(origin.connections(), 1);
    fixture.stop();
}

/// Real servers: another Pollux, and Python's.
#[test]
fn real_origins_are_passed_on_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    std::fs::write(directory.path().join("large"), &content).unwrap();
    let behind = Server::start(Settings::new(directory.path())).unwrap();
    let Listen::Tcp(address) = behind.addresses()[0] else { panic!("no TCP address") };
    let fixture = Fixture::before(&format!("http://localhost:{}", address.port()));
    let mut client = fixture.client();
    let whole = client.get("/large");
    assert!(whole.body == content, "{} bytes", whole.body.len());
    let etag = format!("If-None-Match: {}", whole.field("etag").unwrap());
    assert_eq!(client.request("GET", "/large", &[&etag]).status, 304);
    assert_eq!(client.request("GET", "/large", &["Range: bytes=5-9"]).body, &content[5..10]);
    assert_eq!(client.request("HEAD", "/large", &[]).field("content-length"), Some("3000000"));
    assert_eq!(client.get("/none").status, 404);
    fixture.stop();
    assert_eq!(behind.stop(Duration::from_secs(5)).unwrap().count(Counter::Accepted), 1);

    let python = Command::new("python3")
        .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "0"])
        .current_dir(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut python) = python else { return eprintln!("skipped: there is no python3") };
    let mut line = String::new();
    let stdout = python.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let port = line.split(" port ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let fixture = Fixture::before(&format!("http://127.0.0.1:{port}"));
    let mut client = fixture.client();
    // Python's server speaks HTTP/1.0, and closes each connection.
    for _ in 0..3 {
        assert!(client.get("/large").body == content);
        assert_eq!(client.get("/none").status, 404);
    }
    fixture.stop();
    python.kill().unwrap();
    python.wait().unwrap();
}

#[test]
fn a_unix_socket_is_an_origin_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    std::fs::write(directory.path().join("a"), "behind").unwrap();
    let mut config = Settings::new(directory.path());
    config.listen = vec![Listen::Unix(path.clone())];
    let behind = Server::start(config).unwrap();
    let fixture = Fixture::before(&format!("unix:{}", path.display()));
    assert_eq!(fixture.get("/a").text(), "behind");
    assert!(fixture.directory.path().exists());
    behind.stop(Duration::from_secs(5)).unwrap();
    assert_eq!(error(&fixture.get("/a")), (502, "connection_refused".into()));
    fixture.stop();
}

/// Regression: responses had the policy of the origin and that of the site (RFC 6797 §7.1).
#[test]
fn a_response_has_one_policy_for_https() {
    const HSTS: &str = "strict-transport-security";
    let origin = Origin::start(|request| {
        let policy = if request.target() == "/with" {
            "Strict-Transport-Security: max-age=1\r\n"
        } else {
            ""
        };
        let fields = "ETag: \"a\"\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok";
        request.say(format!("HTTP/1.1 200 OK\r\n{policy}{fields}"))
    });
    for has_cache in [false, true] {
        let fixture = Fixture::new(&[&origin.url()], |config, frontend| {
            frontend.cache =
                has_cache.then(|| pollux_cache::Store::new(pollux_cache::Config::default()));
            let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            config.headers =
                vec![field("Strict-Transport-Security", "max-age=2"), field("X-Own", "a")];
        });
        let mut client = fixture.client();
        for (path, policy) in [("/with", "max-age=1"), ("/without", "max-age=2")] {
            // With a cache, the second response is a stored one, and the third has no content.
            for fields in [&[][..], &[], &["If-None-Match: \"a\""]] {
                let reply = client.request("GET", path, fields);
                assert_eq!(reply.field(HSTS), Some(policy), "{path} {fields:?}: {reply:?}");
                assert_eq!(reply.field("x-own"), Some("a"));
            }
        }
        fixture.stop();
    }
}

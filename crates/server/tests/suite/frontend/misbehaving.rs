//! Origins that misbehave: the response that the client receives, and the state of the connection
//! afterwards.

use super::*;
use pollux_testkit::{Port, origin::Origin};
use std::io::{ErrorKind, Read};

/// Starts an origin that answers each request with `reply`; `keeps` decides whether it keeps the
/// connection open.
fn saying(reply: Vec<u8>, keeps: bool) -> Origin {
    Origin::start(move |request| {
        request.body();
        request.say(&reply);
        keeps
    })
}

#[test]
fn what_is_no_reply_or_no_safe_one_is_a_502() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(70_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "Connection: a\r\n".repeat(9));
    let flood = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(30)
        + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    for (reply, why) in [
        ("", "connection_terminated"),
        ("HTTP/1.1 200 OK\r\nContent-", "http_response_incomplete"),
        ("SSH-2.0-OpenSSH\r\n", "http_protocol_error"),
        // A status below 100 would be written with fewer than three digits. Regression: such a first
        // head was treated as not yet sent, and a second head followed it.
        ("HTTP/1.1 000 X\r\nContent-Length: 5\r\n\r\nab", "http_protocol_error"),
        ("HTTP/1.1 099 X\r\nContent-Length: 2\r\n\r\nab", "http_protocol_error"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "http_protocol_error",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "http_protocol_error",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "http_protocol_error",
        ),
        ("HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "http_protocol_error"),
        ("HTTP/1.1 200 OK\nContent-Length: 0\n\n", "http_protocol_error"),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "http_protocol_error"),
        (&many, "http_protocol_error"),
        (&long, "http_response_header_section_size"),
    ] {
        let origin = saying(reply.into(), false);
        let fixture = Fixture::before(&origin.url());
        let mut client = fixture.client();
        let answer = client.get("/");
        assert_eq!(error(&answer), (502, why.into()), "{reply:.60}");
        // The client's connection is as usable as before.
        assert_eq!(client.get("/file").text(), "of the site");
        assert_eq!(origin.requests(), 1, "nothing new was to be had: {reply:.60}");
        fixture.stop();
    }
    let origin = saying(flood.into(), true);
    let fixture = Fixture::before(&origin.url());
    let mut client = fixture.client();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    let mut interim = 0;
    let last = loop {
        match client.reply() {
            reply if reply.status == 103 => interim += 1,
            reply => break reply,
        }
    };
    assert_eq!((error(&last), interim), ((502, "http_protocol_error".into()), 16));
    fixture.stop();
}

/// An incomplete reply must not look complete, in whatever way the client detects the end.
#[test]
fn a_truncated_reply_stays_truncated() {
    on_every_engine(|engine| {
        for reply in [
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalfnonsense\r\n",
        ] {
            let origin = saying(reply.into(), false);
            let fixture = Fixture::new(&[&origin.url()], |config, _| serve_with(config, engine));
            let mut client = fixture.client();
            client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
            let all = String::from_utf8(client.read_to_end_or_reset()).unwrap();
            // Otherwise the server would wait until the client closes its side, too.
            drop(client);
            assert!(all.starts_with("HTTP/1.1 200 OK\r\n"), "{engine}: {all}");
            assert!(all.contains("half") && !all.ends_with("0\r\n\r\n"), "{engine}: {all}");
            assert!(!all.contains("nonsense"), "{engine}: {all}");
            assert_eq!(origin.requests(), 1, "{engine}");
            fixture.stop();
        }
    });
}

/// A client of HTTP/1.0 has no chunks, so only a reset shows that a reply is incomplete. Regression: its end
/// was the proper end of the connection.
#[test]
fn a_truncated_reply_is_reset_for_a_client_without_chunks() {
    on_every_engine(|engine| {
        for option in ["close", "keep-alive"] {
            let reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf";
            let origin = saying(reply.into(), false);
            let fixture = Fixture::new(&[&origin.url()], |config, _| serve_with(config, engine));
            let mut client = fixture.client();
            client.send(format!("GET / HTTP/1.0\r\nHost: t\r\nConnection: {option}\r\n\r\n"));
            let mut all = Vec::new();
            let end = client.socket().read_to_end(&mut all).map_err(|error| error.kind());
            assert_eq!(end, Err(ErrorKind::ConnectionReset), "{engine}: {}", all.escape_ascii());
            fixture.stop();
        }
    });
}

#[test]
fn bytes_behind_a_reply_end_the_connection_and_answer_no_request() {
    let extra = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let mine = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood";
    for (reply, pause) in [
        (format!("{mine}{extra}"), 0),
        (mine.to_owned(), 30),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello".to_owned(), 0),
    ] {
        let origin = Origin::start(move |request| {
            request.say(&reply);
            if pause > 0 {
                request.after(Duration::from_millis(pause)).say(extra);
            }
            true
        });
        let fixture = Fixture::before(&origin.url());
        let mut client = fixture.client();
        for round in 1..=3 {
            let answer = client.get("/");
            assert!(matches!(answer.status, 200 | 204) && answer.text() != "evil");
            wait_until("the end of the origin's connection", || origin.ended() == round);
            assert_eq!(origin.connections(), round, "none is used twice");
        }
        fixture.stop();
    }
}

/// If localhost is also ::1, the front end may meet a refused connection after a kept connection that
/// was closed.
#[test]
fn a_closed_connection_and_a_refused_one_cost_no_request() {
    let origin = Origin::start(|request| request.number == 1 && request.ok("x"));
    let fixture = Fixture::before(&format!("http://localhost:{}", origin.address().port()));
    for _ in 0..6 {
        assert_eq!(fixture.get("/").text(), "x");
    }
}

#[test]
fn a_kept_connection_that_was_closed_costs_no_request() {
    // The origin answers one request, and closes the connection when the next one arrives.
    let closing = || {
        Origin::start(|request| {
            if request.number == 2 {
                return false;
            }
            let body = request.body();
            request.ok(format!("{}", body.len()))
        })
    };
    on_every_engine(|engine| {
        let origin = closing();
        let fixture = Fixture::new(&[&origin.url()], |config, _| serve_with(config, engine));
        let mut client = fixture.client();
        assert_eq!(client.get("/").text(), "0");
        // The front end sends the request once more, which is safe for GET.
        assert_eq!(client.get("/").text(), "0", "{engine}");
        assert_eq!((origin.connections(), origin.requests()), (2, 3), "{engine}");
        // The front end cannot know whether the origin has executed the POST, so it does not send it
        // again.
        client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nab");
        let answer = client.reply();
        assert_eq!(error(&answer), (502, "connection_terminated".into()), "{engine}");
        assert_eq!(origin.requests(), 4, "{engine}");
        fixture.stop();
    });
    // The front end does not retry without end.
    let origin = Origin::start(|request| {
        request.number == 1 && request.target() == "/first" && request.ok("x")
    });
    let fixture = Fixture::before(&origin.url());
    let mut client = fixture.client();
    assert_eq!(client.get("/first").text(), "x");
    assert_eq!(error(&client.get("/")), (502, "connection_terminated".into()));
    assert_eq!(origin.requests(), 3, "once, and once more");
    fixture.stop();
}

#[test]
fn an_origin_that_is_silent_is_a_504_and_one_that_is_slow_is_waited_for() {
    on_every_engine(|engine| {
        let origin = Origin::start(|request| match request.target() {
            "/silent" => !request.wait_for_close(),
            "/stalls" => {
                request.say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
                !request.wait_for_close()
            }
            _ => {
                request.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
                "hello".chars().all(|character| {
                    request.after(Duration::from_millis(450)).say(character.to_string())
                })
            }
        });
        let fixture = Fixture::new(&[&origin.url()], |config, frontend| {
            serve_with(config, engine);
            frontend.timeout = Duration::from_secs(2);
        });
        let start = Instant::now();
        assert_eq!(error(&fixture.get("/silent")), (504, "http_response_timeout".into()));
        assert!(start.elapsed() >= Duration::from_secs(2), "{engine}");
        let mut client = fixture.client();
        client.send("GET /stalls HTTP/1.1\r\nHost: t\r\n\r\n");
        assert!(client.read_to_end_or_reset().ends_with(b"half"), "{engine}");
        assert_eq!(fixture.get("/slow").text(), "hello", "{engine}");
        wait_until("the ends of two of the origin's connections", || origin.ended() >= 2);
        fixture.stop();
    });
}

#[test]
fn a_missing_origin_is_reported_and_others_take_its_place() {
    let reserved = Port::reserve();
    let nobody = format!("http://{}", reserved.address());
    let fixture = Fixture::before(&nobody);
    assert_eq!(error(&fixture.get("/")), (502, "connection_refused".into()));
    assert_eq!(fixture.get("/file").text(), "of the site");
    fixture.stop();
    let fixture = Fixture::before("http://no-such-host.invalid");
    assert_eq!(error(&fixture.get("/")), (502, "dns_error".into()));
    fixture.stop();
    on_every_engine(|engine| {
        let there = Origin::start(|request| {
            let body = request.body();
            request.ok(body)
        });
        let fixture =
            Fixture::new(&[&nobody, &there.url()], |config, _| serve_with(config, engine));
        let mut client = fixture.client();
        for _ in 0..4 {
            client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nab");
            assert_eq!(
                client.reply().text(),
                "ab",
                "{engine}: nothing of it was sent to the other"
            );
        }
        fixture.stop();
    });
}

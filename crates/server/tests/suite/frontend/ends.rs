//! Clients and origins that disconnect.

use super::*;
use pollux_testkit::origin::Origin;
use std::net::Shutdown;

#[test]
fn a_client_that_goes_away_ends_its_upstream_request() {
    on_every_engine(|engine| {
        for begins in [false, true] {
            let origin = Origin::start(move |request| {
                if begins {
                    request.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
                }
                !request.wait_for_close()
            });
            let fixture = Fixture::new(&[&origin.url()], |config, _| serve_with(config, engine));
            let mut client = fixture.client();
            client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
            wait_until("the request at the origin", || origin.requests() == 1);
            socket2::SockRef::from(client.socket()).set_linger(Some(Duration::ZERO)).unwrap();
            drop(client);
            wait_until("the end of the origin's connection", || origin.ended() == 1);
            assert_eq!(fixture.get("/file").text(), "of the site", "{engine}");
            fixture.stop();
        }
    });
}

#[test]
fn a_client_that_has_closed_its_side_may_still_read() {
    on_every_engine(|engine| {
        let origin = Origin::start(|request| {
            if request.target() == "/never" {
                return !request.wait_for_close();
            }
            request.after(Duration::from_millis(200)).ok("late")
        });
        let fixture = Fixture::new(&[&origin.url()], |config, _| serve_with(config, engine));
        let send = |path: &str| {
            let mut client = fixture.client();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
            client.socket().shutdown(Shutdown::Write).unwrap();
            client
        };
        let mut never = send("/never");
        let mut client = send("/");
        assert_eq!(client.reply().text(), "late", "{engine}");
        assert!(client.is_closed(), "{engine}");
        // If no response begins for some seconds, the server treats the half-closed client as
        // disconnected.
        assert!(never.is_closed(), "{engine}");
        wait_until("the end of the origin's connection", || origin.ended() >= 1);
        fixture.stop();
    });
}

#[test]
fn a_stop_lets_requests_end_that_an_origin_is_answering() {
    let origin = Origin::start(|request| {
        request.say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nla");
        // The stop begins in the meantime.
        request.after(Duration::from_millis(400)).say("te")
    });
    let fixture = Fixture::before(&origin.url());
    let mut client = fixture.client();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    wait_until("the request at the origin", || origin.requests() == 1);
    let stopping = thread::spawn(move || fixture.stop());
    assert_eq!(client.reply().text(), "late");
    stopping.join().unwrap();
}

/// The origin resets or cuts off some connections while it receives requests. Every response must be
/// complete and belong to its request, or be an error, or be cut off.
#[test]
fn no_reply_is_ever_anothers() {
    let origin = Origin::start(|request| {
        let number: usize = request.target()[1..].parse().unwrap();
        let content = format!("{number}.").repeat(1 + number % 5000);
        match number % 7 {
            0 => {
                request.reset();
                false
            }
            1 => {
                request
                    .say(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len()));
                request.say(&content[..content.len() / 2]);
                false
            }
            2 => {
                request.ok(&content);
                false
            }
            _ => request.ok(&content),
        }
    });
    let fixture = Fixture::new(&[&origin.url()], |config, _| config.workers = 2);
    thread::scope(|scope| {
        for thread in 0..4 {
            let fixture = &fixture;
            scope.spawn(move || {
                let mut client = fixture.client();
                for number in (thread..1200).step_by(4) {
                    let text = format!("GET /{number} HTTP/1.1\r\nHost: t\r\n\r\n");
                    if number % 7 == 1 {
                        let mut other = fixture.client();
                        other.send(&text);
                        let all = String::from_utf8(other.read_to_end_or_reset()).unwrap();
                        let (_, got) = all.split_once("\r\n\r\n").unwrap();
                        assert!(format!("{number}.").repeat(5000).starts_with(got), "{number}");
                        continue;
                    }
                    client.send(&text);
                    let reply = client.reply();
                    match number % 7 {
                        0 => assert_eq!(reply.status, 502, "{number}"),
                        _ => {
                            let wanted = format!("{number}.").repeat(1 + number % 5000);
                            assert!(reply.status == 200 && reply.text() == wanted, "{number}");
                        }
                    }
                }
            });
        }
    });
    fixture.stop();
}

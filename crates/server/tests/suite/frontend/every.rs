//! Each feature once on every mechanism, with each of its options, in both disciplines.

use super::{handover::receiver, *};
use pollux_cache::Store;
use pollux_event::{MechanismSpec, registry};
use pollux_server::config::Discipline;
use pollux_server::stats::Counter;
use pollux_testkit::origin::Origin;
use std::{
    io::{Read, Write},
    path::Path,
};

/// Returns every mechanism with each value of its own options.
fn specs() -> Vec<MechanismSpec> {
    let mut specs: Vec<MechanismSpec> = Vec::new();
    for description in registry::ALL {
        specs.push(description.name.parse().unwrap());
        for (key, values, _) in description.own_options {
            for value in values.iter().skip(1) {
                specs.push(format!("{}:{key}={value}", description.name).parse().unwrap());
            }
        }
    }
    specs
}

/// Starts an origin that sends the body of a request back, and after an upgrade every byte that it
/// receives.
fn origin() -> Origin {
    Origin::start(|request| {
        if request.field("upgrade").is_some() {
            request.say(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n",
            );
            let mut buffer = [0; 4096];
            while let Ok(received @ 1..) = request.reader().read(&mut buffer) {
                if !request.say(&buffer[..received]) {
                    break;
                }
            }
            return false;
        }
        let body = request.body();
        let fields = if request.target() == "/kept" { "Cache-Control: max-age=60\r\n" } else { "" };
        request
            .say(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n", body.len() + 2))
            && request.say("ok")
            && request.say(body)
    })
}

fn does_all(origin: &Origin, receiver: &Path, name: &str, change: impl FnOnce(&mut Settings)) {
    let fixture = Fixture::new(&[&origin.url()], |config, frontend| {
        frontend.cache = Some(Store::new(pollux_cache::Config::default()));
        frontend.handovers = vec![format!("/given=unix:{}", receiver.display()).parse().unwrap()];
        change(config);
    });
    let mut client = fixture.client();
    assert_eq!(client.get("/file").text(), "of the site", "{name}");
    assert_eq!(client.get("/x").text(), "ok", "{name}");
    let body = "b".repeat(300_000);
    client.send(format!(
        "POST /x HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert!(client.reply().text() == format!("ok{body}"), "{name}");
    for status in ["Pollux; fwd", "Pollux; hit"] {
        let reply = client.get("/kept");
        assert_eq!(reply.text(), "ok", "{name}");
        assert!(reply.field("cache-status").unwrap().starts_with(status), "{name}: {reply:?}");
    }
    client.send("GET /t HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(client.reply().status, 101, "{name}");
    let mut got = [0; 4];
    for _ in 0..3 {
        client.send("ping");
        client.socket().read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ping", "{name}");
    }
    client.socket().shutdown(std::net::Shutdown::Write).unwrap();
    assert!(client.is_closed(), "{name}");
    let mut client = fixture.client();
    client.socket().write_all(b"GET /given HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    assert!(client.reply().text().starts_with("GET /given "), "{name}");
    drop(client);
    assert_eq!(error(&Fixture::get(&fixture, "/x")), (200, String::new()), "{name}");
    let last = fixture.stop();
    assert_eq!(last.count(Counter::HandedOver), 1, "{name}");
}

#[test]
fn everything_works_under_every_mechanism() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sock");
    let listener = receiver::listen(&path).unwrap();
    thread::spawn(move || {
        receiver::receive_all(&listener, |first, client| receiver::answer(first, client).unwrap())
    });
    let origin = origin();
    let mut tested = 0;
    for spec in specs() {
        if let Err(reason) = registry::probe(&spec) {
            eprintln!("skipped: {spec}: {reason}");
            continue;
        }
        tested += 1;
        for interest in [Discipline::Eager, Discipline::PerState] {
            does_all(&origin, &path, &format!("{spec}, {interest:?}"), |config| {
                config.mechanism = MechanismChoice::Named(spec.clone());
                // While other tests run, `select` would not get low enough descriptors without its own
                // file table.
                config.own_file_tables =
                    (spec.name == "select").then(pollux_testkit::own_file_tables);
                config.interest = interest;
            });
        }
    }
    assert!(tested >= 4, "only {tested} could be tested");
}

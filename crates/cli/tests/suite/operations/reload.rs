//! SIGHUP and `pollux ctl reload`.

use super::{
    subscriber::{Subscriber, connect, publish},
    *,
};
use pollux_testkit::{origin::Origin, wait_until};
use rustix::process::Signal;
use std::io::Read;

/// Idle connections that a reload must not close.
const IDLE: usize = 200;
const RELOADS: usize = 20;

#[test]
fn twenty_reloads_lose_no_connection_and_fail_no_request() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let server = folder.serve(&["--workers", "2"]);
    let mut idle: Vec<_> = (0..IDLE).map(|_| server.client()).collect();
    idle.iter_mut().for_each(|client| assert_answers(client, "site a\n"));
    let load = Load::start(server.address());
    for round in 1..=RELOADS {
        let site = ["a", "b"][round % 2];
        folder.write(
            "keep-alive = \"100s\"",
            &format!("root = \"{site}\"\nheader = [\"X-Round: {round}\"]"),
        );
        let text = printed(&folder.ctl("reload"));
        assert!(text.contains("site[0].root: ") && text.contains("site[0].header: "), "{text}");
        assert_eq!(text.contains("keep-alive: "), round == 1, "{text}");
        // The new configuration applies at once, for open connections and for new ones.
        for client in [&mut server.client(), &mut idle[round]] {
            client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
            let reply = client.reply();
            assert_eq!(reply.text(), format!("site {site}\n"));
            assert_eq!(reply.field("x-round"), Some(round.to_string().as_str()));
        }
    }
    assert!(load.end() > 0);
    idle.iter_mut().for_each(|client| assert_answers(client, "site a\n"));
    let (status, statistics) = server.stop();
    assert!(status.success());
    assert_eq!(statistics["connections"]["timed_out"], 0, "{statistics}");
}

/// Updates that are published before, between and after reloads reach every subscriber once.
#[test]
fn subscribers_stay_connected_through_reloads_and_get_each_update_once() {
    const SUBSCRIBERS: usize = 100;
    const UPDATES: usize = 20;
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let hub = ["--hub", "--hub-anonymous", "--hub-publish-anonymous", "--workers", "2"];
    let server = folder.serve(&hub);
    let mut subscribers: Vec<_> = (0..SUBSCRIBERS)
        .map(|_| Subscriber::new(connect(server.address()), "match=a", ""))
        .collect();
    let mut publisher = server.client();
    for round in 0..UPDATES {
        publish(&mut publisher, "a", &round.to_string());
        if round % 4 == 0 {
            let site = ["b", "a"][round / 4 % 2];
            folder.write("", &format!("root = \"{site}\""));
            assert!(printed(&folder.ctl("reload")).contains("site[0].root: "));
        }
    }
    for subscriber in &mut subscribers {
        (0..UPDATES).for_each(|round| assert_eq!(subscriber.data(), round.to_string()));
    }
    publish(&mut publisher, "a", "last");
    subscribers.iter_mut().for_each(|subscriber| assert_eq!(subscriber.data(), "last"));
}

#[test]
fn a_faulty_file_changes_nothing_and_the_fault_is_located() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let server = folder.serve(&[]);
    let mut client = server.client();
    assert_answers(&mut client, "site a\n");
    for (text, expected) in [
        ("[[site]]\nroot = \"b\"\nlistng = true\n", vec!["pollux.toml:3:", "listing"]),
        ("keep-alive = true\n[[site]]\nroot = \"b\"\n", vec!["pollux.toml:1:"]),
        ("[[site]]\nroot = \"nowhere\"\n", vec!["nowhere"]),
        (
            "workers = 3\n[[site]]\nroot = \"b\"\n",
            vec!["pollux.toml:1: workers: 1 -> 3", "restart"],
        ),
        ("[[site\n", vec!["pollux.toml:1:"]),
    ] {
        fs::write(folder.config(), text).unwrap();
        let reason = refused(&folder.ctl("reload"));
        for part in expected {
            assert!(reason.contains(part), "{text}: {reason}");
        }
        assert_answers(&mut client, "site a\n");
        assert!(
            server.stderr_text().contains("the former configuration stays in use"),
            "{}",
            server.stderr_text()
        );
    }
    // The next reload works again.
    folder.write("", "root = \"b\"");
    assert!(printed(&folder.ctl("reload")).contains("site[0].root"));
    assert_answers(&mut client, "site b\n");
    assert_eq!(printed(&folder.ctl("reload")), "nothing has changed\n");
    server.stop();
}

/// Regression: after a deployment that had replaced a link to the directory, or the directory itself, a reload
/// found no change, and the former directory stayed in use.
#[test]
fn a_reload_notices_that_a_root_is_another_directory() {
    let folder = Folder::new();
    let [root, new] = ["current", "new"].map(|name| folder.0.path().join(name));
    std::os::unix::fs::symlink("a", &root).unwrap();
    folder.write("", "root = \"current\"");
    let server = folder.serve(&["--workers", "2"]);
    let mut client = server.client();
    assert_answers(&mut client, "site a\n");
    std::os::unix::fs::symlink("b", &new).unwrap();
    fs::rename(&new, &root).unwrap();
    assert!(printed(&folder.ctl("reload")).contains("current: it is another directory now"));
    assert_answers(&mut client, "site b\n");
    assert_eq!(printed(&folder.ctl("reload")), "nothing has changed\n");
    server.stop();
}

/// Regression: after a rotation the server wrote into the moved file for as long as its configuration
/// file had a fault.
#[test]
fn a_refused_reload_opens_the_log_again() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let [log, moved] = ["log", "log.1"].map(|name| folder.0.path().join(name));
    let server = folder.serve(&["--access-log", log.to_str().unwrap()]);
    assert_eq!(server.client().get("/").text(), "site a\n");
    fs::rename(&log, &moved).unwrap();
    folder.write("workers = 3", "root = \"a\"");
    assert!(refused(&folder.ctl("reload")).contains("restart"));
    assert_eq!(server.client().get("/large").status, 200);
    server.stop();
    assert!(fs::read_to_string(&log).unwrap().contains("GET /large "));
    assert!(!fs::read_to_string(&moved).unwrap().contains("GET /large "));
}

/// Regression: a slow log that could not be opened again kept the access log from being rotated, and the command
/// succeeded.
#[test]
fn a_log_that_cannot_be_opened_again_fails_the_reload_and_nothing_else() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let [log, moved, slow] = ["log", "log.1", "slow"].map(|name| folder.0.path().join(name));
    fs::create_dir(&slow).unwrap();
    let slow_log = slow.join("log");
    let arguments =
        ["--access-log", log.to_str().unwrap(), "--slow-log", slow_log.to_str().unwrap()];
    let server = folder.serve(&arguments);
    fs::rename(&log, &moved).unwrap();
    fs::remove_dir_all(&slow).unwrap();
    folder.write("", "root = \"b\"");
    let reason = refused(&folder.ctl("reload"));
    assert!(reason.contains("slow/log: "), "{reason}");
    assert!(reason.contains("the rest of the reload is done"), "{reason}");
    assert_eq!(server.client().get("/").text(), "site b\n");
    fs::create_dir(&slow).unwrap();
    assert!(printed(&folder.ctl("reload")).contains("access-log: opened again"));
    server.stop();
    assert!(fs::read_to_string(&log).unwrap().contains("GET / "));
    assert_eq!(fs::read_to_string(&moved).unwrap(), "");
}

/// Regression: each new connection closed one idle connection, so that a server with new clients stayed above a limit
/// that a reload had lowered; and the log named the number of open connections as the limit.
#[test]
fn a_lower_limit_of_connections_takes_effect() {
    for eviction in ["on", "off"] {
        let folder = Folder::new();
        let keys = |limit: u32| {
            format!("workers = 1\nidle-eviction = \"{eviction}\"\nmax-connections = {limit}")
        };
        folder.write(&keys(6), "root = \"a\"");
        let mut server = folder.serve(&["--keep-alive", "300s"]);
        let mut idle: Vec<Client> = (0..6).map(|_| server.client()).collect();
        idle.iter_mut().for_each(|client| assert_answers(client, "site a\n"));
        folder.write(&keys(3), "root = \"a\"");
        assert!(printed(&folder.ctl("reload")).contains("max-connections"));
        let mut late = server.client();
        if eviction == "on" {
            assert_answers(&mut late, "site a\n");
            let counts = server.statistics()["connections"].clone();
            assert_eq!((&counts["open"], &counts["evicted"]), (&3.into(), &4.into()), "{counts}");
        } else {
            wait_until("the new limit in the log", || {
                let stderr = server.stderr_text();
                stderr.contains("accepting stops at 3 connections")
                    && stderr.contains("6 are open, and it goes on when fewer are")
            });
            idle.truncate(2);
            assert_answers(&mut late, "site a\n");
        }
        assert!(server.stop().0.success());
    }
}

/// Regression: the reload was reported as done, and the former times stayed in force.
#[test]
fn the_times_of_a_stop_and_of_an_upgrade_can_change() {
    let folder = Folder::new();
    let site = "root = \"a\"";
    /// Begins a response that its client does not receive.
    fn begin(server: &Serve) -> Client {
        let mut client = server.client();
        client.send(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
        client.socket().read_exact(&mut [0; 64]).unwrap();
        client
    }
    for is_upgrade in [false, true] {
        folder.write("grace = \"1h\"\ndrain = \"1h\"", site);
        let mut server = folder.serve(&[]);
        let _client = begin(&server);
        folder.write("grace = \"100ms\"\ndrain = \"100ms\"", site);
        let text = printed(&folder.ctl("reload"));
        assert!(text.contains("grace: ") && text.contains("drain: "), "{text}");
        if is_upgrade {
            printed(&folder.ctl("upgrade"));
            let process = server.next_process();
            server.wait_for_end();
            process.signal(Signal::TERM);
            process.wait();
        } else {
            server.stop();
        }
    }
}

/// Regression: the listener of `--redirect-http` kept the limits with which it was started.
#[test]
fn the_listener_for_plain_http_gets_the_new_limits() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let server = folder.serve(&["--tls", "self-signed", "--redirect-http", "127.0.0.1:0"]);
    let plain = crate::tls::redirect_address(&server);
    let redirected = |client: &mut Client| {
        client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let reply = client.reply();
        assert_eq!(reply.status, 308);
        reply.field("connection").map(str::to_owned)
    };
    let mut kept = Client::connect(&plain);
    (0..3).for_each(|_| assert_eq!(redirected(&mut kept), None));
    for most in [2, 3] {
        folder.write(&format!("max-requests = {most}"), "root = \"a\"");
        assert!(printed(&folder.ctl("reload")).contains("max-requests"));
        let mut client = Client::connect(&plain);
        (1..most).for_each(|_| assert_eq!(redirected(&mut client), None));
        assert_eq!(redirected(&mut client).as_deref(), Some("close"), "{most}");
        assert!(client.is_closed());
    }
    // The connection stayed open, and has the new limit, too.
    assert_eq!(redirected(&mut kept).as_deref(), Some("close"));
    server.stop();
}

#[test]
fn sighup_reloads_as_well() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let server = folder.serve(&[]);
    folder.write("", "root = \"b\"");
    server.signal_and_wait(Signal::HUP);
    wait_until("the reload", || server.stderr_text().contains("reload: site[0].root"));
    assert_eq!(server.client().get("/").text(), "site b\n");
    server.stop();
}

/// An exchange with an origin ends under the configuration under which it began; the next exchange
/// goes to the new origin.
#[test]
fn an_exchange_in_progress_ends_under_the_former_configuration() {
    let (release, wait) = gate();
    let slow = Origin::start(move |request| {
        if request.target() == "/slow" {
            wait();
        }
        request.say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow")
    });
    let other =
        Origin::start(|request| request.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother"));
    let folder = Folder::new();
    folder.write("", &format!("origin = [\"{}\"]", slow.url()));
    let mut server = folder.serve(&[]);
    assert_eq!(server.client().get("/").text(), "slow");
    let mut waiting = server.client();
    waiting.send(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut second = server.client();
    assert_eq!(second.get("/").text(), "slow");
    folder.write("", &format!("origin = [\"{}\"]\nheader = [\"X-Is: new\"]", other.url()));
    printed(&folder.ctl("reload"));
    let reply = server.client().get("/");
    assert_eq!((reply.text().as_str(), reply.field("x-is")), ("other", Some("new")));
    assert_eq!(former_configurations(&mut server), 1);
    release.send(()).unwrap();
    let reply = waiting.reply();
    assert_eq!((reply.text().as_str(), reply.field("x-is")), ("slow", None));
    assert_eq!(former_configurations(&mut server), 0);
    // The same connection uses the new configuration now.
    waiting.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(waiting.reply().text(), "other");
    server.stop();
}

/// Regression: the commands of `pollux ctl` waited for as long as the last response took.
#[test]
fn a_server_that_stops_refuses_commands_at_once() {
    let (release, wait) = gate();
    let slow = Origin::start(move |request| {
        wait();
        request.say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow")
    });
    let folder = Folder::new();
    folder.write("", &format!("origin = [\"{}\"]", slow.url()));
    let mut server = folder.serve(&["--grace", "60s"]);
    let mut waiting = server.client();
    waiting.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    wait_until("the request at the origin", || slow.requests() == 1);
    server.signal(Signal::TERM);
    let address = server.address().to_owned();
    wait_until("the end of accepting", || std::net::TcpStream::connect(&address).is_err());
    for command in ["reload", "upgrade"] {
        let reason = refused(&folder.ctl(command));
        assert!(reason.contains("about to end"), "{command}: {reason}");
    }
    release.send(()).unwrap();
    assert_eq!(waiting.reply().text(), "slow");
    let (status, _) = server.wait();
    assert!(status.success(), "{status}");
}

fn former_configurations(server: &mut Serve) -> u64 {
    server.statistics()["workers"]["former_configurations"].as_u64().unwrap()
}

/// Regression: the former configuration stayed in memory until the next change.
#[test]
fn a_former_configuration_ends_when_its_last_exchange_becomes_a_tunnel() {
    let (release, wait) = gate();
    let origin = Origin::start(move |request| {
        wait();
        request.say(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\nwelcome",
        );
        request.wait_for_close();
        false
    });
    let folder = Folder::new();
    let site = format!("origin = [\"{}\"]", origin.url());
    folder.write("", &site);
    let mut server = folder.serve(&[]);
    let mut client = server.client();
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
    wait_until("the request at the origin", || origin.requests() == 1);
    folder.write("", &format!("{site}\nheader = [\"X-Is: new\"]"));
    printed(&folder.ctl("reload"));
    assert_eq!(former_configurations(&mut server), 1);
    release.send(()).unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"welcome") {
        let mut byte = [0];
        client.socket().read_exact(&mut byte).unwrap();
        received.extend(byte);
    }
    wait_until("the end of the configuration", || former_configurations(&mut server) == 0);
    drop(client);
    server.stop();
}

/// A former configuration does not stay in memory for a long poll that began under it.
#[test]
fn a_long_poll_goes_on_under_the_next_configuration() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let mut server = folder.serve(&["--hub", "--hub-anonymous", "--hub-publish-anonymous"]);
    let mut polling = server.client();
    polling.send(
        b"GET /.well-known/mercure?match=news HTTP/1.1\r\nHost: h\r\nPrefer: wait=50\r\n\r\n",
    );
    wait_until("the long poll", || server.statistics()["hub"]["polls"] == 1);
    folder.write("", "root = \"b\"");
    printed(&folder.ctl("reload"));
    assert_eq!(former_configurations(&mut server), 0);
    publish(&mut server.client(), "news", "1");
    assert!(polling.reply().text().contains("data: 1"));
    server.stop();
}

/// A stale reply is sent at once, and the cache fetches a new one. This fetch has no client.
#[test]
fn a_former_configuration_ends_with_its_last_background_fetch() {
    let (release, wait) = gate();
    let requests = std::sync::atomic::AtomicU64::new(0);
    let origin = Origin::start(move |request| {
        if requests.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0 {
            wait();
        }
        request.say(
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\
             Cache-Control: max-age=0, stale-while-revalidate=100\r\n\r\nsome",
        )
    });
    let folder = Folder::new();
    let site = format!("origin = [\"{}\"]\ncache = \"1M\"", origin.url());
    folder.write("", &site);
    let mut server = folder.serve(&[]);
    (0..2).for_each(|_| assert_eq!(server.client().get("/").text(), "some"));
    folder.write("", &format!("{site}\nheader = [\"X-Is: new\"]"));
    printed(&folder.ctl("reload"));
    assert_eq!(former_configurations(&mut server), 1);
    release.send(()).unwrap();
    wait_until("the end of the fetch", || former_configurations(&mut server) == 0);
    server.stop();
}

/// Regression: the workers held the configuration of the start for ever, and with it its cache: the memory was not
/// freed, and "another server" used the folder. And a name that was added to a site took its cache away.
#[test]
fn a_cache_with_a_folder_can_be_renamed_removed_and_added_again() {
    let origin = Origin::start(|request| {
        request
            .say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nCache-Control: max-age=1000\r\n\r\nsome")
    });
    let folder = Folder::new();
    let site = |names: &str, cache: &str| {
        let text = format!("names = [{names}]\norigin = [\"{}\"]\n{cache}", origin.url());
        folder.write("", &text);
    };
    let cache = "cache = \"1M\"\ncache-dir = \"kept\"";
    site("\"h\"", cache);
    let server = folder.serve(&["--workers", "2"]);
    let is_hit = || {
        let reply = server.client().get("/");
        assert_eq!(reply.text(), "some");
        reply.field("cache-status").is_some_and(|status| status.contains("hit"))
    };
    assert!(!is_hit());
    site("\"h\", \"other\"", cache);
    assert!(printed(&folder.ctl("reload")).contains("site[0].names"));
    assert!(is_hit());
    site("\"h\"", "");
    assert!(printed(&folder.ctl("reload")).contains("site[0].cache-dir"));
    assert!(!is_hit());
    site("\"h\"", cache);
    assert!(printed(&folder.ctl("reload")).contains("site[0].cache-dir"));
    assert!(is_hit(), "the files were kept");
    server.stop();
}

/// Regression: the counters of a cache that a reload replaced or removed were missing from the sum, so that counters
/// decreased.
#[test]
fn no_counter_of_the_caches_decreases_at_a_reload() {
    let origin = Origin::start(|request| {
        request
            .say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nCache-Control: max-age=1000\r\n\r\nsome")
    });
    let folder = Folder::new();
    let site = |size: &str| {
        let text = format!("origin = [\"{}\"]\ncache = \"{size}\"", origin.url());
        folder.write("", &text);
    };
    site("1M");
    let mut server = folder.serve(&[]);
    for (misses, size) in [(1, "2M"), (2, "3M"), (3, "3M")] {
        assert_eq!(server.client().get("/").text(), "some");
        let line = server.wait_until("the entry", |line| line["cache"]["entries"] == 1);
        assert_eq!(line["cache"]["misses"], misses, "{line}");
        site(size);
        printed(&folder.ctl("reload"));
    }
    server.stop();
}

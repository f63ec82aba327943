//! Workers that die: their connections end, and other workers replace them.

use super::{
    subscriber::{Subscriber, connect, publish},
    *,
};
use pollux_testkit::{becomes_true, http::PATIENCE};
use std::time::{Duration, Instant};

/// The path of a request at which a worker panics; only in debug builds.
const PLANTED: &str = "/planted";
/// The maximum number of workers that are replaced within a minute.
const REPLACEMENTS_MAX: usize = 10;
/// A replacement takes less than this, also on a machine that is busy with other tests.
const SOON: Duration = Duration::from_millis(100);

fn serve(folder: &Folder, arguments: &[&str]) -> Serve {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]).arg(folder.config());
    command.arg("--control").arg(folder.control()).args(arguments);
    command.env("POLLUX_TEST_PANIC", PLANTED);
    Serve::start_command(command)
}

/// Makes the worker of this connection panic; returns how long the server took to start another
/// worker.
fn panic_of(server: &Serve, mut client: Client, count: usize) -> Duration {
    client.send(format!("GET {PLANTED} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
    let received = client.read_to_end_or_reset();
    assert!(received.is_empty(), "its connection is lost");
    let started_at = Instant::now();
    let messages = || server.stderr_text().matches("another takes its place").count();
    assert!(becomes_true(PATIENCE, || messages() >= count), "{}", server.stderr_text());
    started_at.elapsed()
}

/// Returns whether the server has kept the connection open.
pub(super) fn is_open(client: &Client) -> bool {
    let socket = client.socket();
    socket.set_nonblocking(true).unwrap();
    let outcome = socket.peek(&mut [0]);
    socket.set_nonblocking(false).unwrap();
    outcome.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// The other workers continue, a reload reaches the new worker, and the statistics count it.
#[cfg_attr(not(debug_assertions), ignore = "a panic is planted in debug builds alone")]
#[test]
fn a_worker_that_panics_loses_its_connections_and_is_replaced() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let mut server = serve(&folder, &["--workers", "2"]);
    let mut idle: Vec<_> = (0..40).map(|_| server.client()).collect();
    idle.iter_mut().for_each(|client| assert_answers(client, "site a\n"));
    let took = panic_of(&server, server.client(), 1);
    assert!(took < SOON, "{took:?}");
    let statistics = server.statistics();
    assert_eq!(statistics["workers"]["replaced"], 1, "{statistics}");
    let open = statistics["connections"]["open"].as_u64().unwrap();
    assert!((1..40).contains(&open), "those of one worker: {open}");
    let mut left: Vec<_> = idle.into_iter().filter(is_open).collect();
    assert_eq!(left.len() as u64, open);
    left.iter_mut().for_each(|client| assert_answers(client, "site a\n"));
    folder.write("", "root = \"b\"");
    assert!(printed(&folder.ctl("reload")).contains("site[0].root"));
    (0..20).for_each(|_| assert_answers(&mut server.client(), "site b\n"));
    // The new worker also panics, under the current configuration.
    panic_of(&server, server.client(), 2);
    (0..20).for_each(|_| assert_answers(&mut server.client(), "site b\n"));
    let statistics = server.statistics();
    assert_eq!(statistics["workers"]["replaced"], 2);
    let (status, last) = server.stop();
    assert!(status.success());
    // Regression: the last statistics did not have the system calls of workers that were replaced.
    let accepts = |line: &serde_json::Value| line["system_calls"]["accept4"]["count"].as_u64();
    assert!(accepts(&last).unwrap() >= accepts(&statistics).unwrap(), "{statistics}\n{last}");
}

/// Regression: the worker that replaced another one after a reload had no guestbook, except in the default site.
#[cfg_attr(not(debug_assertions), ignore = "a panic is planted in debug builds alone")]
#[test]
fn a_new_worker_has_the_guestbook_of_every_site() {
    let folder = Folder::new();
    let write = |round: usize| {
        let other = format!(
            "names = [\"test\", \"t\"]\nroot = \"b\"\nheader = [\"X-Round: {round}\"]\n\
             guestbook = \"/guestbook\"\nstore = \"file:book\""
        );
        folder.write("", &format!("root = \"a\"\n[[site]]\n{other}"));
    };
    write(0);
    let server = serve(&folder, &[]);
    let assert_guestbook = |round: usize| {
        assert_eq!(server.client().get("/").field("x-round"), Some(round.to_string().as_str()));
        assert_eq!(server.client().get("/guestbook").status, 200);
    };
    assert_guestbook(0);
    write(1);
    assert!(printed(&folder.ctl("reload")).contains("site[1].header"));
    assert_guestbook(1);
    panic_of(&server, server.client(), 1);
    assert_guestbook(1);
}

/// Regression: after a panic nothing answered at the address of `--redirect-http`, and nobody noticed.
#[cfg_attr(not(debug_assertions), ignore = "a panic is planted in debug builds alone")]
#[test]
fn the_worker_of_the_redirect_is_replaced_as_well() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    for architecture in ["event", "threaded"] {
        let tls = ["--tls", "self-signed", "--redirect-http", "127.0.0.1:0"];
        let server = serve(&folder, &[&tls[..], &["--architecture", architecture]].concat());
        let plain = crate::tls::redirect_address(&server);
        panic_of(&server, Client::connect(&plain), 1);
        let mut client = Client::connect(&plain);
        client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.reply().status, 308, "{architecture}");
        let (status, _) = server.stop();
        assert!(status.success(), "{architecture}: {status}");
    }
}

/// Subscribers of the other worker notice nothing. The subscribers of the lost worker connect again,
/// miss no update, and are not counted twice.
#[cfg_attr(not(debug_assertions), ignore = "a panic is planted in debug builds alone")]
#[test]
fn a_worker_with_subscribers_is_replaced_and_they_miss_nothing() {
    const SUBSCRIBERS: usize = 40;
    const ROUNDS: usize = 3;
    const UPDATES: usize = 30;
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let file = format!("file:{}", folder.0.path().join("history").display());
    let most = SUBSCRIBERS.to_string();
    let hub = ["--hub", "--hub-anonymous", "--hub-publish-anonymous", "--workers", "2"];
    let hub = [&hub[..], &["--hub-max-per-address", &most]].concat();
    for store in [&[][..], &["--hub-store", &file]] {
        let mut server = serve(&folder, &[&hub, store].concat());
        let address = server.address().to_owned();
        let mut subscribers: Vec<_> = (0..SUBSCRIBERS)
            .map(|_| (Subscriber::new(connect(&address), "match=a", ""), String::new(), 0_usize))
            .collect();
        for round in 1..=ROUNDS {
            let number = |update: usize| ((round - 1) * UPDATES + update).to_string();
            let mut publisher = server.client();
            (0..UPDATES / 2).for_each(|update| publish(&mut publisher, "a", &number(update)));
            let took = panic_of(&server, server.client(), round);
            assert!(took < SOON, "{took:?}");
            // The publisher's connection may have been lost.
            let mut publisher = server.client();
            (UPDATES / 2..UPDATES).for_each(|update| publish(&mut publisher, "a", &number(update)));
            let mut lost = 0;
            for (subscriber, last, count) in &mut subscribers {
                while *count < round * UPDATES {
                    match subscriber.event() {
                        Some((id, data)) => {
                            assert_eq!(data, count.to_string());
                            (*last, *count) = (id, *count + 1);
                        }
                        None => {
                            lost += 1;
                            let since = format!("Last-Event-ID: {last}\r\n");
                            *subscriber = Subscriber::new(connect(&address), "match=a", &since);
                        }
                    }
                }
            }
            assert!((1..SUBSCRIBERS).contains(&lost), "{lost}");
        }
        assert_eq!(server.statistics()["workers"]["replaced"], ROUNDS);
        let (status, _) = server.stop();
        assert!(status.success());
    }
}

#[cfg_attr(not(debug_assertions), ignore = "a panic is planted in debug builds alone")]
#[test]
fn a_crash_loop_ends_the_server() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let mut server = serve(&folder, &[]);
    for count in 1..=REPLACEMENTS_MAX {
        panic_of(&server, server.client(), count);
    }
    server.client().send(format!("GET {PLANTED} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
    let (status, _) = server.wait();
    assert_eq!(status.code(), Some(1));
    let said = server.stderr_text();
    assert!(said.contains("worker 0 panicked") && said.contains("more than 10 workers"), "{said}");
}

/// Tests the threads that serve one connection at a time.
#[cfg_attr(not(debug_assertions), ignore = "a panic is planted in debug builds alone")]
#[test]
fn a_thread_that_panics_is_replaced_in_every_architecture() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    for (architecture, arguments) in
        [("iterative", &[][..]), ("prethreaded", &["--pool", "2"]), ("threaded", &[])]
    {
        let mut server = serve(&folder, &[&["--architecture", architecture], arguments].concat());
        let has_pool = architecture != "threaded";
        for count in 1..=3 {
            if has_pool {
                panic_of(&server, server.client(), count);
            } else {
                let mut client = server.client();
                client.send(format!("GET {PLANTED} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
                assert!(client.read_to_end_or_reset().is_empty());
            }
            assert_eq!(server.client().get("/").text(), "site a\n", "{architecture}");
        }
        server.wait_until("all to be counted", |now| now["workers"]["replaced"] == 3);
        let (status, last) = server.stop();
        assert!(status.success(), "{architecture}");
        assert_eq!(last["connections"]["open"], 0, "{architecture}: {last}");
    }
}

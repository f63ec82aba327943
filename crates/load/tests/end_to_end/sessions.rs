//! Tests of sessions: several requests on a connection, with think time between them.

use super::{Server, open, run};
use pollux_load::{
    Config,
    config::Pace,
    schedule::{Arrivals, Length},
    session::{Session, Sessions},
};
use pollux_testkit::becomes_true;
use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

fn sessions(server: &Server, count: u64, requests: u64, think: Duration) -> Config {
    let mut config = open(server, count * requests);
    config.session = Some(Session { requests, think });
    config
}

#[test]
fn a_session_is_one_connection_and_its_client_thinks() {
    let server = Server::good("hello");
    let think = Duration::from_millis(400);
    let report = run(&sessions(&server, 10, 4, think));
    assert_eq!((report.requests.scheduled, report.requests.completed), (40, 40));
    assert_eq!(report.sessions, Sessions { completed: 10, broken: 0, cut: 0 });
    assert_eq!((server.counters.connections(), report.connections.opened), (10, 10));
    assert_eq!(report.generator.lag_us.count, 40, "each request has an instant");
    let closing =
        server.counters.heads().iter().filter(|h| h.contains("Connection: close")).count();
    assert_eq!(closing, 10, "the last request of each session says so");
    // The last session starts after 9 fiftieths of a second and has three think times.
    assert!(report.elapsed_s >= 0.18 + 1.2, "{}", report.elapsed_s);
    assert!(report.latency_us.p50 < 400_000.0, "thinking is no latency: {:?}", report.latency_us);
}

#[test]
fn the_end_of_the_run_cuts_sessions_off() {
    let server = Server::good("hello");
    let mut config = sessions(&server, 1, 3, Duration::from_secs(3600));
    config.length = Length::Duration(Duration::from_millis(300));
    let report = run(&config);
    // 200 requests a second are 66.7 sessions; each sent its first request.
    assert_eq!((report.requests.scheduled, report.requests.completed), (20, 20));
    assert_eq!(report.sessions, Sessions { completed: 0, broken: 0, cut: 20 });
    assert!(report.elapsed_s < 60.0, "no client waits for an hour of think time");
}

#[test]
fn a_server_that_closes_between_requests_breaks_the_session() {
    let server = Server::start(|mut peer| {
        peer.request();
        peer.reply(200, "x");
    });
    let report = run(&sessions(&server, 6, 3, Duration::from_millis(300)));
    assert_eq!(report.sessions, Sessions { completed: 0, broken: 6, cut: 0 });
    assert_eq!(report.requests.completed, 6);
    assert_eq!(server.counters.connections(), 6, "a broken session is not taken up again");
}

#[test]
fn a_request_that_fails_breaks_the_session() {
    let server = Server::start(|mut peer| peer.hang());
    let mut config = sessions(&server, 5, 3, Duration::ZERO);
    config.timeout = Duration::from_millis(300);
    let report = run(&config);
    assert_eq!(report.errors["timeout"], 5, "the others of the session never came due");
    assert_eq!((report.requests.scheduled, report.sessions.broken), (5, 5));
}

/// Of three sessions on two connections, the third waits for a connection until the first session's
/// second request has been sent, which was scheduled later and is never answered.
#[test]
fn a_session_that_waited_for_a_connection_has_no_more_time_than_others() {
    let in_time = || {
        let is_followed = AtomicBool::new(false);
        let server = Server::start(move |mut peer| {
            if peer.number == 2 || peer.request().is_none() {
                return peer.hang();
            }
            peer.reply_after(Duration::from_millis(1500), 200, "x");
            peer.request();
            if peer.number == 0 {
                is_followed.store(true, SeqCst);
                return peer.hang();
            }
            // At most ten seconds, because the machine may be too busy for this arrangement.
            becomes_true(Duration::from_secs(10), || is_followed.load(SeqCst));
            peer.reply(200, "x");
            peer.hang();
        });
        let mut config = sessions(&server, 3, 2, Duration::ZERO);
        config.pace = Pace::Open { rate_rps: 1e6, arrivals: Arrivals::Constant };
        config.max_connections = Some(2);
        config.timeout = Duration::from_secs(2);
        let report = run(&config);
        // The request begins after 1.5 s, with half a second left: it must not get the two seconds that
        // the other request has.
        report.requests.failed == 2 && report.latency_with_failures_us.max < 3_000_000.0
    };
    // The machine may be too busy for a reply in time, but not in every attempt.
    assert!((0..4).any(|_| in_time()), "a request had more time than --timeout");
}

#[test]
fn the_requested_urls_depend_on_the_seed_alone() {
    let requested = |threads| {
        let server = Server::good("hello");
        let mut config = sessions(&server, 20, 5, Duration::from_millis(1));
        config.urls =
            vec![(server.url("/a"), 3.0), (server.url("/b"), 1.0), (server.url("/c"), 1.0)];
        config.threads = threads;
        assert_eq!(run(&config).requests.completed, 100);
        let heads = server.counters.heads();
        let mut paths: Vec<String> =
            heads.iter().map(|head| head.lines().next().unwrap().to_owned()).collect();
        paths.sort();
        paths
    };
    let first = requested(1);
    assert!(first.iter().any(|path| path.contains("/b")) && first[0].contains("/a"));
    assert_eq!(first, requested(1));
    assert_eq!(first, requested(2), "however many threads share them");
}

//! Tests of the generator with a server that the tests control.

mod errors;
mod idle;
mod push;
mod replies;
mod server;
mod sessions;
mod timing;

use pollux_load::{
    Config, Report,
    config::Pace,
    schedule::{Arrivals, Length},
};
use pollux_testkit::wait_until;
use server::Server;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

/// One connection per request, 200 a second, `requests` of them. Lag is not judged: tests run on busy
/// machines.
fn open(server: &Server, requests: u64) -> Config {
    let mut config = Config::new(server.url("/x"), 200.0, Duration::from_secs(1));
    config.length = Length::Requests(requests);
    config.max_lag = Duration::from_secs(3600);
    config.max_starved = 1.0;
    config
}

/// A closed loop over `connections` connections.
fn closed(server: &Server, connections: usize, requests: u64) -> Config {
    let mut config = open(server, requests);
    config.pace = Pace::Closed;
    config.connections = Some(connections);
    config.requests_per_connection = None;
    config
}

/// Runs, and checks the properties that every report must have.
fn run(config: &Config) -> Report {
    run_until(config, &AtomicBool::new(false))
}

fn run_until(config: &Config, stop: &AtomicBool) -> Report {
    let report = pollux_load::run(config, stop).unwrap();
    let requests = &report.requests;
    assert_eq!(
        requests.scheduled,
        requests.completed + requests.failed + requests.unsent + requests.unfinished,
        "every request has exactly one outcome: {requests:?}"
    );
    assert_eq!(report.errors.values().sum::<u64>(), requests.failed);
    let bad = &report.bad_replies;
    assert_eq!(bad.malformed + bad.length, report.errors["bad_reply"]);
    assert_eq!(bad.status, report.errors["status"]);
    for times in [&report.latency_us, &report.service_us] {
        assert_eq!(times.count, requests.completed);
        assert!(times.min <= times.p50 && times.p50 <= times.p99 && times.p99 <= times.max);
    }
    report
}

#[test]
fn a_connection_per_request() {
    let server = Server::good("hello");
    let report = run(&open(&server, 60));
    assert_eq!((report.requests.scheduled, report.requests.completed), (60, 60));
    assert_eq!((report.requests.sent, report.connections.opened), (60, 60));
    assert_eq!(server.counters.connections(), 60);
    assert_eq!(report.content_bytes, 300);
    assert_eq!(report.statuses[&200], 60);
    assert_eq!(report.connect_us.count, 60);
    assert_eq!(report.generator.lag_us.count, 60);
    assert!(report.valid && report.mode == "open" && !report.interrupted);
    assert!(server.counters.heads().iter().all(|head| head.contains("\r\nConnection: close\r\n")));
}

#[test]
fn sessions_of_five_requests() {
    let server = Server::good("hello");
    let mut config = open(&server, 50);
    config.requests_per_connection = Some(5);
    config.max_connections = Some(1);
    let report = run(&config);
    assert_eq!(report.requests.completed, 50);
    assert_eq!(server.counters.connections(), 10);
    let closing =
        server.counters.heads().iter().filter(|h| h.contains("Connection: close")).count();
    assert_eq!(closing, 10, "the last request of each connection says so");
}

#[test]
fn a_schedule_over_standing_connections() {
    let server = Server::good("hello");
    let mut config = open(&server, 80);
    config.connections = Some(4);
    config.requests_per_connection = None;
    let report = run(&config);
    assert_eq!(report.requests.completed, 80);
    assert_eq!((server.counters.connections(), report.connections.opened), (4, 4));
}

#[test]
fn a_closed_loop_sends_exactly_the_configured_requests() {
    let server = Server::good("hello");
    for threads in [1, 3] {
        let mut config = closed(&server, 6, 500);
        config.threads = threads;
        let report = run(&config);
        assert_eq!((report.requests.scheduled, report.requests.completed), (500, 500));
        assert_eq!((report.mode, report.generator.lag_us.count), ("closed", 0));
        assert!(report.latency_valid, "without a schedule there is no lag");
        assert_eq!(report.connections.opened, 6);
    }
}

#[test]
fn a_closed_loop_ends_in_time() {
    let server = Server::good("hello");
    let mut config = closed(&server, 3, 1);
    config.length = Length::Duration(Duration::from_millis(300));
    let report = run(&config);
    assert!(report.requests.completed > 3);
    assert!((0.29..5.0).contains(&report.elapsed_s), "{}", report.elapsed_s);
}

#[test]
fn the_warm_up_is_sent_but_not_measured() {
    let server = Server::good("hello");
    let mut config = open(&server, 40);
    config.warmup = Duration::from_millis(200);
    let report = run(&config);
    assert_eq!((report.requests.scheduled, report.requests.completed), (40, 40));
    assert_eq!(server.counters.heads().len(), 80);
    assert_eq!(report.latency_us.count, 40);
}

#[test]
fn threads_and_clients_share_one_schedule() {
    let server = Server::good("hello");
    let mut all = Vec::new();
    for client in 0..2 {
        let mut config = open(&server, 61);
        config.pace = Pace::Open { rate_rps: 400.0, arrivals: Arrivals::Poisson };
        config.threads = 2;
        config.share = pollux_load::config::Share { index: client, count: 2 };
        all.push(run(&config).requests.completed);
    }
    assert_eq!(all, [31, 30]);
    assert_eq!(server.counters.heads().len(), 61);
}

#[test]
fn an_interrupt_ends_the_run_with_what_was_measured() {
    let answered = Arc::new(AtomicBool::new(false));
    let server = Server::start({
        let answered = answered.clone();
        move |mut peer| {
            // Every other connection gets no answer.
            let is_answered = peer.number % 2 == 0 && peer.request().is_some();
            if is_answered {
                peer.reply(200, "x");
            }
            // Waits until the generator closes, after it has its reply.
            peer.hang();
            answered.fetch_or(is_answered, SeqCst);
        }
    });
    let stop = AtomicBool::new(false);
    let mut config = open(&server, 1);
    config.length = Length::Duration(Duration::from_secs(60));
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("40 requests and an answer", || {
                server.counters.heads().len() >= 40 && answered.load(SeqCst)
            });
            stop.store(true, SeqCst);
        });
        run_until(&config, &stop)
    });
    assert!(report.interrupted && report.valid);
    assert!(report.requests.completed > 0 && report.requests.unfinished > 0);
    assert!(report.requests.scheduled < 10_000 && report.duration_s < 50.0);
}

#[test]
fn a_lag_above_the_limit_makes_the_run_invalid() {
    let server = Server::good("hello");
    let mut config = open(&server, 20);
    config.max_lag = Duration::from_nanos(1);
    let report = run(&config);
    assert!(!report.valid);
    assert!(report.invalid_reason.unwrap().contains("--max-lag"));
}

#[test]
fn a_rate_beyond_the_generator_makes_the_run_invalid() {
    let server = Server::good("hello");
    let mut config = open(&server, 1);
    config.pace = Pace::Open { rate_rps: 2e7, arrivals: Arrivals::Constant };
    config.connections = Some(4);
    config.requests_per_connection = None;
    config.timeout = Duration::from_millis(500);
    // A fiftieth of a microsecond per request: no generator can send them all before the second of
    // grace is over.
    config.length = Length::Duration(Duration::from_millis(500));
    let report = run(&config);
    assert!(!report.valid);
    let reason = report.invalid_reason.unwrap();
    assert!(reason.contains("the generator was the bottleneck"), "{reason}");
}

#[test]
fn a_generator_that_waits_is_not_busy() {
    let server = Server::good("hello");
    let mut config = open(&server, 2_000);
    // One instant every 50 µs: too short an interval for a sleep, so that the CPU time alone would mean
    // little.
    config.pace = Pace::Open { rate_rps: 20_000.0, arrivals: Arrivals::Constant };
    config.connections = Some(2);
    config.requests_per_connection = None;
    let generator = run(&config).generator;
    assert!(generator.busy_utilization > 0.0, "{generator:?}");
    assert!(generator.busy_utilization <= generator.cpu_utilization, "{generator:?}");
}

/// Regression test: the generator once polled until the last reply if the server had closed another connection, and
/// called itself the bottleneck.
#[test]
fn a_closed_loop_sleeps_until_its_last_reply() {
    let server = Server::start(|mut peer| match peer.number {
        0 => {
            peer.request();
            peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx");
        }
        _ => peer.hang(),
    });
    let mut config = closed(&server, 2, 2);
    config.timeout = Duration::from_secs(1);
    let report = run(&config);
    assert_eq!((report.requests.completed, report.errors["timeout"]), (1, 1));
    assert!(report.valid && report.generator.cpu_utilization < 0.25, "{:?}", report.generator);
}

#[test]
fn both_families_and_many_sources() {
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        let server = Server::listen("[::1]:0", |mut peer| peer.serve("six"));
        assert_eq!(run(&open(&server, 10)).requests.completed, 10);
    } else {
        eprintln!("skipped: no IPv6 loopback here");
    }
    let peers = std::sync::Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let server = Server::start({
        let peers = peers.clone();
        move |mut peer| {
            peers.lock().unwrap().insert(peer.stream.peer_addr().unwrap().ip());
            peer.serve("x");
        }
    });
    let mut config = open(&server, 20);
    config.sources = Some("127.0.7.0/29".parse().unwrap());
    assert_eq!(run(&config).requests.completed, 20);
    assert_eq!(peers.lock().unwrap().len(), 6, "{peers:?}");
}

#[test]
fn more_connections_than_descriptors_are_refused_before_the_run() {
    let server = Server::good("x");
    let mut config = closed(&server, 50_000_000, 1);
    let error = pollux_load::run(&config, &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error.contains("--connections") && error.contains("--threads"), "{error}");
    config.connections = None;
    config.pace = Pace::Open { rate_rps: 1.0, arrivals: Arrivals::Constant };
    config.max_connections = Some(50_000_000);
    let error = pollux_load::run(&config, &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error.contains("--max-connections"), "{error}");
}

//! What makes an open loop: it does not wait, and its latency runs from the schedule.

use super::{Server, closed, open, run};
use pollux_load::{
    config::Pace,
    schedule::{Arrivals, Length},
};
use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

#[test]
fn a_stall_shows_in_the_latency_of_all_who_came_meanwhile() {
    // One connection, 200 requests a second for 2 s; the hundredth is answered after 600 ms.
    // 120 requests are due meanwhile; a loop that waits would not have sent them, and would see one
    // slow reply in 400.
    let server = Server::start(|mut peer| {
        let mut number = 0;
        while peer.request().is_some() {
            number += 1;
            if number == 100 {
                std::thread::sleep(Duration::from_millis(600));
            }
            peer.reply(200, "x");
        }
    });
    let mut config = open(&server, 400);
    config.connections = Some(1);
    config.requests_per_connection = None;
    let report = run(&config);
    assert_eq!(report.requests.completed, 400);
    let (latency, service) = (&report.latency_us, &report.service_us);
    assert!(latency.p90 > 200_000.0, "the stall is felt: {latency:?}");
    assert!(service.max > 590_000.0, "one reply was slow: {service:?}");
    assert!(service.p95 < latency.p90 / 2.0, "and one only: {service:?} {latency:?}");
}

#[test]
fn a_server_that_never_answers_does_not_slow_the_schedule() {
    let server = Server::start(|mut peer| peer.hang());
    let mut config = open(&server, 100);
    config.timeout = Duration::from_millis(1500);
    let report = run(&config);
    // All were sent although not one reply came; in a loop that waits the first would have
    // held all others up.
    assert_eq!(report.requests.sent, 100);
    assert_eq!(server.seen.connections(), 100);
    assert_eq!(report.errors["timeout"], 100);
    // Half a second of schedule and the last request's patience.
    assert!((1.9..20.0).contains(&report.elapsed_s), "{}", report.elapsed_s);
}

#[test]
fn a_request_without_a_free_connection_waits_and_its_latency_counts() {
    let server = Server::start(|mut peer| {
        while peer.request().is_some() {
            std::thread::sleep(Duration::from_millis(50));
            peer.reply(200, "x");
        }
    });
    // 2 connections take 40 a second; 20 requests come within 20 ms, so the last waits 450 ms.
    let mut config = open(&server, 20);
    config.pace = Pace::Open { rate_rps: 1000.0, arrivals: Arrivals::Constant };
    config.max_connections = Some(2);
    config.requests_per_connection = None;
    let report = run(&config);
    assert_eq!(report.requests.completed, 20);
    assert_eq!(server.seen.connections(), 2);
    assert!(report.latency_us.max > 400_000.0, "{:?}", report.latency_us);
    assert!(report.service_us.p50 < report.latency_us.p90, "{:?}", report.service_us);
}

#[test]
fn requests_that_wait_too_long_for_a_connection_time_out() {
    let server = Server::start(|mut peer| peer.hang());
    // All come at once, so that the first two hold the connections for as long as the others wait.
    let mut config = open(&server, 30);
    config.pace = Pace::Open { rate_rps: 1e6, arrivals: Arrivals::Constant };
    config.max_connections = Some(2);
    config.timeout = Duration::from_millis(400);
    let report = run(&config);
    assert_eq!(report.errors["timeout"], 30);
    assert!(report.requests.sent < 30, "{:?}", report.requests);
}

#[test]
fn replies_after_the_window_are_no_part_of_the_rate() {
    let late = AtomicUsize::new(0);
    let server = Server::start(move |mut peer| {
        peer.request();
        if late.fetch_add(1, SeqCst) >= 150 {
            std::thread::sleep(Duration::from_millis(2000));
        }
        peer.reply(200, "x");
    });
    let mut config = open(&server, 1);
    config.length = Length::Duration(Duration::from_secs(1));
    let report = run(&config);
    assert_eq!((report.requests.completed, report.duration_s), (200, 1.0));
    assert_eq!(report.reply_rate_rps.samples.len(), 1);
    assert!(report.reply_rate_rps.mean <= 150.0, "{:?}", report.reply_rate_rps);
}

#[test]
fn a_closed_loop_that_counts_requests_has_a_rate_over_its_whole_time() {
    let server = Server::start(|mut peer| {
        while peer.request().is_some() {
            std::thread::sleep(Duration::from_millis(10));
            peer.reply(200, "x");
        }
    });
    let report = run(&closed(&server, 1, 220));
    assert!(report.elapsed_s > 2.2 && report.duration_s == report.elapsed_s);
    let rate = &report.reply_rate_rps;
    assert!((rate.mean - 220.0 / report.elapsed_s).abs() < 0.01, "{rate:?}");
    assert!(rate.samples.len() >= 2 && rate.min > 0.0, "{rate:?}");
}

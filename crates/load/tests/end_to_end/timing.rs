//! Properties of an open loop: it does not wait for replies, and latency counts from the schedule.

use super::{Server, closed, open, run};
use pollux_load::{
    config::{AtLimit, Pace},
    schedule::{Arrivals, Length},
};
use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::{Duration, Instant},
};

#[test]
fn a_stall_shows_in_the_latency_of_all_requests_scheduled_meanwhile() {
    // One connection, 200 requests a second for 2 s; the hundredth request is answered after 600 ms.
    // During that time 120 requests are due. A loop that waits would not have sent them, and would see
    // one slow reply in 400.
    let server = Server::start(|mut peer| {
        let mut number = 0;
        while peer.request().is_some() {
            number += 1;
            let delay_ms = if number == 100 { 600 } else { 0 };
            peer.reply_after(Duration::from_millis(delay_ms), 200, "x");
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

/// Server and generator share one CPU: the send of a request wakes the server, which may answer before
/// the send returns. The service time must still count from before the send.
#[test]
fn the_service_time_of_a_new_connection_begins_before_the_send() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(cpu);
    // Threads that this thread starts inherit its CPU.
    sched_setaffinity(None, &one).unwrap();
    let work = Duration::from_millis(2);
    let server = Server::start(move |mut peer| {
        peer.request();
        let begun = Instant::now();
        while begun.elapsed() < work {
            std::hint::spin_loop();
        }
        peer.reply(200, "x");
    });
    let mut config = open(&server, 100);
    config.cpus = vec![cpu];
    let report = run(&config);
    assert_eq!(report.requests.completed, 100);
    // The histogram's resolution is 0.1 %.
    assert!(report.service_us.min >= 1995.0, "{:?}", report.service_us);
}

#[test]
fn a_server_that_never_answers_does_not_slow_the_schedule() {
    let server = Server::start(|mut peer| peer.hang());
    let mut config = open(&server, 100);
    config.timeout = Duration::from_millis(1500);
    let report = run(&config);
    // All requests were sent although no reply arrived; in a loop that waits, the first request would
    // have delayed all others.
    assert_eq!(report.requests.sent, 100);
    assert_eq!(server.counters.connections(), 100);
    assert_eq!(report.errors["timeout"], 100);
    // Half a second of schedule and the timeout of the last request.
    assert!((1.9..20.0).contains(&report.elapsed_s), "{}", report.elapsed_s);
}

#[test]
fn a_request_without_a_free_connection_waits_and_its_latency_counts() {
    let server = Server::start(|mut peer| {
        while peer.request().is_some() {
            peer.reply_after(Duration::from_millis(50), 200, "x");
        }
    });
    // 2 connections serve 40 requests a second; 20 requests arrive within 20 ms, so the last one waits
    // 450 ms.
    let mut config = open(&server, 20);
    config.pace = Pace::Open { rate_rps: 1000.0, arrivals: Arrivals::Constant };
    config.max_connections = Some(2);
    config.requests_per_connection = None;
    let report = run(&config);
    assert_eq!(report.requests.completed, 20);
    assert_eq!(server.counters.connections(), 2);
    assert!(report.latency_us.max > 400_000.0, "{:?}", report.latency_us);
    assert!(report.service_us.p50 < report.latency_us.p90, "{:?}", report.service_us);
}

#[test]
fn requests_that_wait_too_long_for_a_connection_time_out() {
    let server = Server::start(|mut peer| peer.hang());
    // All requests are due at once, so the first two occupy the connections while the others wait.
    let mut config = open(&server, 30);
    config.pace = Pace::Open { rate_rps: 1e6, arrivals: Arrivals::Constant };
    config.max_connections = Some(2);
    config.timeout = Duration::from_millis(400);
    let report = run(&config);
    assert_eq!(report.errors["timeout"], 30);
    assert!(report.requests.sent < 30, "{:?}", report.requests);
}

#[test]
fn requests_that_may_not_wait_for_a_connection_fail_at_once() {
    let server = Server::start(|mut peer| peer.hang());
    let mut config = open(&server, 30);
    config.pace = Pace::Open { rate_rps: 100.0, arrivals: Arrivals::Constant };
    config.max_connections = Some(2);
    config.at_limit = AtLimit::Fail;
    config.timeout = Duration::from_secs(2);
    let report = run(&config);
    // The first two requests use the connections for two seconds. The last request is due after 0.3 s.
    assert_eq!((report.errors["no_connection"], report.errors["timeout"]), (28, 2), "{report:?}");
    assert_eq!((report.requests.sent, report.requests.failed), (2, 30));
    assert_eq!(server.counters.connections(), 2);
    assert!(report.valid, "the limit is the user's choice: {:?}", report.invalid_reason);
    config.connections = Some(2);
    config.max_connections = None;
    assert_eq!(run(&config).errors["no_connection"], 28, "the same among standing connections");
}

#[test]
fn a_connection_that_has_become_free_takes_a_request_that_may_not_wait() {
    let server = Server::start(|mut peer| {
        while peer.request().is_some() {
            peer.reply_after(Duration::from_millis(30), 200, "x");
        }
    });
    let mut config = open(&server, 20);
    // A request every 100 ms; the reply to the one before has arrived.
    config.pace = Pace::Open { rate_rps: 10.0, arrivals: Arrivals::Constant };
    config.max_connections = Some(1);
    config.at_limit = AtLimit::Fail;
    let report = run(&config);
    // A busy machine may delay a reply, but not each time.
    assert!(report.requests.completed > 10, "{:?}", report.errors);
    assert_eq!(report.requests.completed + report.errors["no_connection"], 20);
}

#[test]
fn replies_after_the_window_are_no_part_of_the_rate() {
    let late = AtomicUsize::new(0);
    let server = Server::start(move |mut peer| {
        peer.request();
        let delay_s = if late.fetch_add(1, SeqCst) >= 150 { 2 } else { 0 };
        peer.reply_after(Duration::from_secs(delay_s), 200, "x");
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
            peer.reply_after(Duration::from_millis(10), 200, "x");
        }
    });
    let report = run(&closed(&server, 1, 220));
    assert!(report.elapsed_s > 2.2 && report.duration_s == report.elapsed_s);
    let rate = &report.reply_rate_rps;
    assert!((rate.mean - 220.0 / report.elapsed_s).abs() < 0.01, "{rate:?}");
    assert!(rate.samples.len() >= 2 && rate.min > 0.0, "{rate:?}");
}

/// A server that answers each request 500 ms after its arrival.
fn slow() -> Server {
    Server::start(|mut peer| {
        while peer.request().is_some() {
            peer.reply_after(Duration::from_millis(500), 200, "x");
        }
    })
}

/// With a fixed delay of half a second and 100 requests a second, the number of replies within a window
/// is known for any length of the window: all requests except those of its last half second.
#[test]
fn a_known_delay_makes_a_known_rate() {
    let server = slow();
    let report_of = |window_ms, warmup_ms| {
        let mut config = open(&server, 1);
        config.pace = Pace::Open { rate_rps: 100.0, arrivals: Arrivals::Constant };
        config.length = Length::Duration(Duration::from_millis(window_ms));
        config.warmup = Duration::from_millis(warmup_ms);
        let report = run(&config);
        assert_eq!(report.requests.completed, window_ms / 10, "{:?}", report.errors);
        let rate = &report.reply_rate_rps;
        assert_eq!(rate.over_s, window_ms as f64 / 1e3);
        let expected = rate.replies as f64 * 1e3 / window_ms as f64;
        assert!((rate.mean - expected).abs() < 1e-9, "{rate:?}");
        report
    };
    // At least one run in five must have few late requests, because the delays that the machine causes
    // are not known. If only whole seconds counted, 20 replies of the first window would be missing,
    // and all of the second.
    let in_time = |replies: u64, wanted: u64| replies.abs_diff(wanted) <= 15;
    // Requests 0, 10, … ms are answered at 500, 510, … ms.
    for (window_ms, wanted) in [(1_200, 70), (900, 40), (400, 0)] {
        let is_known = || {
            let replies = report_of(window_ms, 0).reply_rate_rps.replies;
            // No reply arrives before its time.
            assert!(replies <= wanted, "{replies} of {wanted}");
            in_time(replies, wanted)
        };
        assert!((0..5).any(|_| is_known()), "never {wanted} within {window_ms} ms");
    }
    // After a warm-up as long as the delay, the rate is the schedule's, even in a short window.
    // Requests of the warm-up may be answered in the window.
    let is_warm = || {
        let warmed = report_of(600, 700);
        let series = &warmed.series;
        assert_eq!(series.start_s.len(), 13);
        assert_eq!((series.start_s[0], series.start_s[7]), (-0.7, 0.0));
        assert_eq!(series.replies[..5], [0, 0, 0, 0, 0], "{series:?}");
        let median_us = series.latency_p50_us[9];
        in_time(warmed.reply_rate_rps.replies, 60)
            && series.replies[7..].iter().all(|&count| count > 0)
            && series.sent.iter().sum::<u64>() > 120
            && (450_000.0..900_000.0).contains(&median_us)
    };
    assert!((0..5).any(|_| is_warm()), "never the schedule's rate after a warm-up");
}

#[test]
fn failures_count_as_the_timeout_in_the_second_distribution() {
    // Of four replies, three arrive at once and one never.
    let requests = AtomicUsize::new(0);
    let server = Server::start(move |mut peer| {
        peer.request();
        match requests.fetch_add(1, SeqCst) % 4 {
            0 => peer.hang(),
            _ => peer.reply(200, "x"),
        }
    });
    let mut config = open(&server, 80);
    config.timeout = Duration::from_secs(2);
    let report = run(&config);
    assert_eq!((report.requests.failed, report.latency_us.count), (20, 60));
    let (replies, all) = (&report.latency_us, &report.latency_with_failures_us);
    assert_eq!(all.count, 80);
    assert!(replies.p99 < 1_990_000.0, "{replies:?}");
    assert!(all.p90 >= 1_999_000.0 && all.p99 >= 1_999_000.0, "{all:?}");
    assert!(all.p50 < 1_990_000.0, "{all:?}");

    // A request that fails at once was not answered either.
    let server = Server::start(|mut peer| drop(peer.request()));
    let report = run(&open(&server, 10));
    assert_eq!(report.errors["closed_early"], 10);
    assert!(report.latency_with_failures_us.min >= 9_990_000.0);
}

#[test]
fn a_closed_loop_that_stalls_says_what_it_left_out() {
    let server = Server::start(|mut peer| {
        let mut number = 0;
        while peer.request().is_some() {
            number += 1;
            let delay_ms = if number == 100 { 1_000 } else { 1 };
            peer.reply_after(Duration::from_millis(delay_ms), 200, "x");
        }
    });
    let report = run(&closed(&server, 1, 200));
    // Each omission stands for about 2 ms. A busy machine has longer delays and other stalls; but no
    // delay is shorter than 1 ms, so no more requests can be missing than milliseconds have passed.
    let most = (report.elapsed_s * 1e3) as u64;
    assert!((20..most).contains(&report.omitted_requests), "{}", report.omitted_requests);
    let notes = report.notes.concat();
    assert!(notes.contains("stalled") && notes.contains("--rate"), "{notes}");

    let mut config = open(&server, 200);
    config.connections = Some(1);
    config.requests_per_connection = None;
    let report = run(&config);
    assert_eq!((report.omitted_requests, report.notes.len()), (0, 0));
}

/// Regression test: each 404 once counted as a stall of the time limit, 10,000 omitted requests.
#[test]
fn a_failure_at_once_is_no_stall() {
    let server = Server::start(|mut peer| {
        let mut number = 0;
        while peer.request().is_some() {
            number += 1;
            let status = if number % 10 == 0 { 404 } else { 200 };
            peer.reply_after(Duration::from_millis(1), status, "x");
        }
    });
    let report = run(&closed(&server, 1, 200));
    assert_eq!(report.errors["status"], 20);
    // As above: no delay is shorter than 1 ms.
    let most = (report.elapsed_s * 1e3) as u64;
    assert!(report.omitted_requests <= most, "{}", report.omitted_requests);
    assert!(report.latency_with_failures_us.max >= 9_990_000.0, "as long as the limit");
}

#[test]
fn a_lag_as_long_as_the_latency_makes_the_latencies_invalid() {
    let server = Server::good("hello");
    let mut config = open(&server, 40);
    config.max_lag_share = 1.0;
    assert!(run(&config).latency_valid, "a part is never more than the whole");
    config.max_lag_share = 0.0;
    let report = run(&config);
    assert!(!report.latency_valid && report.valid);
    assert!(report.latency_invalid_reason.unwrap().contains("--max-lag-share 0%"));
}

/// A server with known delays has known quantiles: of ten delays from 300 ms to 3 s, used in rotation,
/// the median is 1.5 s, the 90th percentile 2.7 s and the 99th 3 s.
#[test]
fn known_delays_have_known_quantiles() {
    const STEP_US: f64 = 300e3;
    let in_known_bounds = || {
        let requests = AtomicUsize::new(0);
        let server = Server::start(move |mut peer| {
            peer.request();
            let steps = (requests.fetch_add(1, SeqCst) % 10 + 1) as f64;
            peer.reply_after(Duration::from_micros((steps * STEP_US) as u64), 200, "x");
        });
        let report = run(&open(&server, 200));
        assert_eq!(report.requests.completed, 200);
        // A sleep is never shorter than its argument; the excess depends on the machine.
        let mut is_near = true;
        for times in [report.latency_us, report.latency_with_failures_us] {
            for (us, steps) in [(times.min, 1.0), (times.p50, 5.0), (times.p90, 9.0)] {
                assert!(
                    us >= steps * STEP_US * 0.999,
                    "{steps} steps cannot be {us} µs: {times:?}"
                );
                is_near &= us < (steps + 1.0) * STEP_US * 0.999;
            }
            let (p99, mean) = (times.p99 / STEP_US, times.mean / STEP_US);
            assert!(p99 >= 10.0 * 0.999 && mean >= 5.5 * 0.999, "{times:?}");
        }
        // Service time counts from the time when the send is known to be complete, which may be late.
        let service = report.service_us;
        for (us, steps) in [(service.p50, 5.0), (service.p90, 9.0)] {
            is_near &= (us / STEP_US - steps).abs() < 0.999;
        }
        is_near
    };
    // On a machine that is quiet for some seconds, each quantile is distinct from the next delay.
    assert!((0..5).any(|_| in_known_bounds()), "never within a step of what is known");
}

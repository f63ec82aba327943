//! Tests of subscribers of a push server: every fault of a server is found and counted.

use super::{Server, open, server::ServerConnection};
use pollux_load::push::{Moment, Publications, PublishOptions, PushConfig, PushReport};
use pollux_load::{ClientTrust, schedule::Length};
use std::{
    io::Write,
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

type Streams = Arc<Mutex<Vec<TcpStream>>>;

/// The server's reaction to the `number`-th update, which has this content: the events that it sends to
/// subscriber `subscriber`.
type Events = fn(number: usize, subscriber: usize, content: &str, last: &str) -> Vec<String>;

/// The time that a subscriber's connection may be silent.
const PATIENCE: Duration = Duration::from_secs(30);

/// The status with which the server answers an update.
type Status = fn(number: usize) -> u16;

/// A push server: a GET is a subscription, a POST an update.
fn server(events: Events) -> Server {
    server_that_answers(|_| 200, PATIENCE, events)
}

/// A push server that closes a connection on which no request arrives for `patience`.
fn server_that_answers(status: Status, patience: Duration, events: Events) -> Server {
    let streams = Streams::default();
    let last = Mutex::new((0, String::new()));
    Server::start(move |mut peer| {
        peer.stream.set_read_timeout(Some(patience)).unwrap();
        while let Some(head) = peer.request() {
            if head.starts_with("GET ") {
                peer.stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return subscribe(&mut peer, &head, &streams);
            }
            let body = content_of(&mut peer, &head).unwrap();
            let content =
                String::from_utf8(body).unwrap().split_once("data=").unwrap().1.to_owned();
            let mut last = last.lock().unwrap();
            for (subscriber, stream) in streams.lock().unwrap().iter_mut().enumerate() {
                for event in events(last.0, subscriber, &content, &last.1) {
                    let event = format!("id: {}\ndata: {event}\n\n", last.0);
                    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
                    let _ = stream.write_all(chunk.as_bytes());
                }
            }
            let status = status(last.0);
            *last = (last.0 + 1, content);
            drop(last);
            peer.reply(status, "id");
        }
    })
}

/// A push server that answers subscriptions, but no update.
fn server_without_answers() -> Server {
    Server::start(|mut peer| {
        let head = peer.request().unwrap_or_default();
        if head.starts_with("GET ") {
            return subscribe(&mut peer, &head, &Streams::default());
        }
        peer.hang();
    })
}

/// Reads the content of the request that has this head.
fn content_of(peer: &mut ServerConnection, head: &str) -> Option<Vec<u8>> {
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    peer.content(length.unwrap().parse().unwrap())
}

fn subscribe(peer: &mut ServerConnection, head: &str, streams: &Streams) {
    assert!(head.contains("Accept: text/event-stream\r\n"), "{head}");
    peer.send(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    // The server's number of a subscriber is the number of its connection, without counting the
    // publisher's.
    streams.lock().unwrap().push(peer.stream.try_clone().unwrap());
    peer.hang();
}

fn config(server: &Server, updates: u64) -> PushConfig {
    let mut base = open(server, updates);
    base.length = Length::Requests(updates);
    base.timeout = Duration::from_secs(20);
    let publish = PublishOptions {
        url: server.url("/hub"),
        headers: Vec::new(),
        body: "topic=t&data={data}".into(),
    };
    PushConfig::new(&base, 10, publish).unwrap()
}

fn run(config: &PushConfig) -> PushReport {
    let report = pollux_load::push::run(config, &AtomicBool::new(false), |_| ()).unwrap();
    assert_eq!(report.publications.acknowledged, report.publications.scheduled);
    assert_eq!(report.subscribers.at_start, 10);
    report
}

#[test]
fn every_delivery_of_a_good_server_is_whole_and_in_order() {
    let server = server(|_, _, content, _| vec![content.to_owned()]);
    let report = run(&PushConfig { threads: 3, ..config(&server, 20) });
    assert!(report.is_complete(), "{:?}", report.deliveries);
    assert_eq!((report.deliveries.expected, report.deliveries.delivered), (200, 200));
    assert_eq!((report.latency_us.count, report.fan_out_us.count), (200, 20));
    assert_eq!((report.subscribers.at_end, report.generator.threads), (10, 3));
}

#[test]
fn quiet_times_frame_the_updates() {
    let quiet = Duration::from_millis(300);
    let moments = |events: Events, timeout: Duration| {
        let server = server(events);
        let config = PushConfig { quiet_time: Some(quiet), timeout, ..config(&server, 5) };
        let mut moments = Vec::new();
        let observe = |moment| {
            // The updates that the server has received, at this moment and a part of the quiet time
            // later.
            let posts =
                || server.counters.heads().iter().filter(|it| it.starts_with("POST")).count();
            let before = posts();
            // A part of the quiet time, in which nothing may be published.
            std::thread::sleep(quiet / 10);
            moments.push((moment, before, posts()));
        };
        let report = pollux_load::push::run(&config, &AtomicBool::new(false), observe).unwrap();
        (moments, report)
    };
    let (found, report) = moments(|_, _, content, _| vec![content.into()], Duration::from_secs(20));
    assert_eq!(found, [(Moment::Holding, 0, 0), (Moment::Delivered, 5, 5)]);
    assert!(report.is_complete() && report.subscribers.at_end == 10, "{report:?}");
    // If one delivery is missing, the second moment is never reported.
    let loses: Events = |number, subscriber, content, _| match (number, subscriber) {
        (3, 0) => vec![],
        _ => vec![content.into()],
    };
    let (found, report) = moments(loses, Duration::from_secs(2));
    assert_eq!(found, [(Moment::Holding, 0, 0)]);
    assert_eq!(report.deliveries.lost, 1);
}

#[test]
fn what_a_server_loses_repeats_reorders_and_changes_is_counted() {
    let server = server(|number, subscriber, content, last| match (number, subscriber) {
        // One subscriber never receives update 3, another receives it twice.
        (3, 0) => vec![],
        (3, 1) => vec![content.into(), content.into()],
        // A third receives it after update 4.
        (3, 2) => vec![],
        (4, 2) => vec![content.into(), last.into()],
        // A fourth receives another content, a fifth only half of it, a sixth a greeting before it.
        (3, 3) => vec![format!("{content}x")],
        (3, 4) => vec![content[..50].into()],
        (3, 5) => vec!["hello".into(), content.into()],
        _ => vec![content.into()],
    });
    let mut config = config(&server, 10);
    config.timeout = Duration::from_secs(3);
    let found = run(&config).deliveries;
    assert_eq!((found.expected, found.delivered, found.lost), (100, 97, 3), "{found:?}");
    assert_eq!((found.duplicated, found.reordered), (1, 1), "{found:?}");
    assert_eq!((found.corrupt, found.foreign), (2, 1), "{found:?}");
}

/// Regression test: each line without the content once counted as an event that is not of the run.
#[test]
fn an_event_counts_once_however_many_lines_it_has() {
    let documents = server(|_, _, content, _| {
        vec!["two\ndata: lines".into(), format!("{{\ndata: \"update\": \"{content}\"\ndata: }}")]
    });
    let found = run(&PushConfig { is_exact: false, ..config(&documents, 5) }).deliveries;
    assert_eq!((found.delivered, found.corrupt, found.foreign), (50, 0, 50), "{found:?}");

    let server = server(|number, subscriber, content, _| match (number, subscriber) {
        (1, 0) => vec![format!("{content}\ndata: more")],
        _ => vec![content.into()],
    });
    let timeout = Duration::from_secs(3);
    let found = run(&PushConfig { timeout, ..config(&server, 3) }).deliveries;
    assert_eq!((found.delivered, found.corrupt, found.foreign), (29, 1, 0), "{found:?}");
}

/// Regression test: 100 deliveries of 90 were once reported.
#[test]
fn deliveries_of_an_update_that_is_not_acknowledged_are_not_counted() {
    let status: Status = |number| if number == 3 { 500 } else { 200 };
    let events: Events = |_, _, content, _| vec![content.to_owned()];
    let server = server_that_answers(status, PATIENCE, events);
    let config = config(&server, 10);
    let report = pollux_load::push::run(&config, &AtomicBool::new(false), |_| ()).unwrap();
    assert_eq!((report.publications.acknowledged, report.publications.failed), (9, 1));
    let found = report.deliveries;
    assert_eq!((found.expected, found.delivered, found.lost), (90, 90, 0), "{found:?}");
    assert_eq!(report.latency_us.count, 100, "the times of all that arrived");
}

/// Regression test: the log once began with the warm-up, and its times were those of the measured part.
#[test]
fn the_log_begins_with_the_measured_part() {
    let server = server(|_, _, content, _| vec![content.to_owned()]);
    let warmup = Duration::from_millis(500);
    let report = run(&PushConfig { warmup, intervals: true, ..config(&server, 20) });
    let mut log = Vec::new();
    pollux_load::output::hdr::write_push(&report, &mut log).unwrap();
    let log = String::from_utf8(log).unwrap();
    let base = log.lines().find_map(|line| line.strip_prefix("#[BaseTime: ")).unwrap();
    let base_s: f64 = base.split(' ').next().unwrap().parse().unwrap();
    let before_s = base_s - report.started_at_unix_s;
    assert!((before_s - 0.5).abs() < 0.01, "{before_s}: {base}");
}

/// Regression test: a close that came with an event was once never noticed, and the stream counted as open.
#[test]
fn a_stream_that_ends_with_an_event_has_ended() {
    let streams = Streams::default();
    let server = Server::start(move |mut peer| {
        while let Some(head) = peer.request() {
            if head.starts_with("GET ") {
                peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
                streams.lock().unwrap().push(peer.stream);
                return;
            }
            let body = content_of(&mut peer, &head).unwrap();
            let content = String::from_utf8(body).unwrap();
            let event = format!("data: {}\n\n", content.split_once("data=").unwrap().1);
            for mut stream in streams.lock().unwrap().drain(..) {
                let _ = stream.write_all(event.as_bytes());
            }
            peer.reply(200, "id");
        }
    });
    // The streams may end before the start of the measurement has counted them.
    let config = config(&server, 1);
    let report = pollux_load::push::run(&config, &AtomicBool::new(false), |_| ()).unwrap();
    assert!(report.is_complete(), "{:?}", report.deliveries);
    // Regression: each was once a failed attempt, too.
    let subscribers = report.subscribers;
    assert_eq!((subscribers.dropped, subscribers.failed), (10, 0), "{subscribers:?}");
}

#[test]
fn a_subscriber_that_comes_back_names_the_last_update_that_it_got() {
    let server = server(|_, _, content, _| vec![content.to_owned()]);
    let mut config = config(&server, 20);
    config.rate_rps = 20.0;
    config.reconnect_at = Some(Duration::from_millis(500));
    config.timeout = Duration::from_secs(2);
    let report = run(&config);
    assert_eq!((report.subscribers.reopened, report.reconnect_us.count), (10, 10));
    let heads = server.counters.heads();
    let named = heads.iter().filter(|head| head.contains("Last-Event-ID: ")).count();
    assert_eq!(named, 10, "each names it: {heads:?}");
    let mut summary = Vec::new();
    pollux_load::output::text::push(&report, &mut summary).unwrap();
    let summary = String::from_utf8(summary).unwrap();
    // Regression: the row once was among those that run from an update's instant.
    assert!(summary.contains("\nreconnect runs from --reconnect-at"), "{summary}");
}

/// Regression test: a stream that the server ended later once counted as one that --reconnect-at had closed.
#[test]
fn a_subscriber_comes_back_once_after_a_reconnect() {
    let streams = Streams::default();
    let server = Server::start(move |mut peer| {
        let mut updates = 0;
        while let Some(head) = peer.request() {
            if head.starts_with("GET ") {
                peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
                streams.lock().unwrap().push(peer.stream);
                return;
            }
            content_of(&mut peer, &head);
            updates += 1;
            if updates == 15 {
                streams.lock().unwrap().clear();
            }
            peer.reply(200, "id");
        }
    });
    let mut config = config(&server, 20);
    config.rate_rps = 20.0;
    config.reconnect_at = Some(Duration::from_millis(200));
    config.timeout = Duration::from_secs(2);
    let report = run(&config);
    assert!(report.subscribers.reopened > 10, "{:?}", report.subscribers);
    assert_eq!(report.reconnect_us.count, 10);
}

#[test]
fn a_refusal_is_the_reason_why_nothing_can_be_measured() {
    let server = Server::start(|mut peer| {
        while peer.request().is_some() {
            peer.reply(401, "a token is needed");
        }
    });
    let config = config(&server, 1);
    let error = pollux_load::push::run(&config, &AtomicBool::new(false), |_| ()).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("only 0 of 10") && text.contains("401: a token is needed"), "{text}");
}

/// Returns the reason why nothing is measured if the server answers a subscription with this head and "a page".
fn refusal_of(head: &'static str) -> String {
    let server = Server::start(move |mut peer| {
        while peer.request().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\n{head}Content-Length: 6\r\n\r\na page"));
        }
    });
    let config = config(&server, 1);
    let error = pollux_load::push::run(&config, &AtomicBool::new(false), |_| ()).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("only 0 of 10"), "{text}");
    text
}

/// Regression test: the number of open streams once wrapped below zero, so that the run began without one.
#[test]
fn a_stream_that_is_over_at_once_is_no_subscription() {
    let text = refusal_of("content-type: TEXT/event-stream ; charset=utf-8\r\n");
    assert!(text.contains("the server ended the stream"), "{text}");
}

/// Regression test: a page of any type once was a subscription for as long as it did not end.
#[test]
fn a_page_that_is_no_stream_is_no_subscription() {
    let cases = [
        ("Content-Type: text/html; charset=utf-8\r\n", "the answer is of the type text/html, not"),
        ("Content-Type: text/event-streams\r\n", "is of the type text/event-streams, not"),
        ("", "the answer is without a type, not text/event-stream"),
    ];
    // Each run takes as long as a set-up may stand still.
    let runs = cases.map(|(head, found)| (std::thread::spawn(move || refusal_of(head)), found));
    for (run, found) in runs {
        let text = run.join().unwrap();
        assert!(text.contains(found), "{text}");
    }
}

#[test]
fn the_publisher_connects_again_when_the_server_has_closed_its_idle_connection() {
    // Longer than the time until the first update, shorter than that between two.
    let patience = Duration::from_millis(250);
    let events: Events = |_, _, content, _| vec![content.to_owned()];
    let server = server_that_answers(|_| 200, patience, events);
    let mut config = config(&server, 3);
    config.rate_rps = 2.0;
    let report = run(&config);
    assert!(report.is_complete() && report.publications.failed == 0, "{report:?}");
}

#[test]
fn a_stop_does_not_wait_for_the_answer_to_an_update() {
    let server = server_without_answers();
    let config = config(&server, 5);
    let stop = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        let run = scope.spawn(|| pollux_load::push::run(&config, &stop, |_| ()).unwrap());
        let is_posted = || server.counters.heads().iter().any(|head| head.starts_with("POST "));
        pollux_testkit::wait_until("an update", is_posted);
        stop.store(true, SeqCst);
        run.join().unwrap()
    });
    assert!(report.interrupted);
    assert_eq!((report.publications.sent, report.publications.failed), (1, 0));
}

/// Regression test: the length and the updates of the whole schedule were once reported.
#[test]
fn an_interrupted_run_reports_its_schedule_until_the_interrupt() {
    let server = server(|_, _, content, _| vec![content.to_owned()]);
    // An hour of updates.
    let config = PushConfig { rate_rps: 20.0, ..config(&server, 72_000) };
    let stop = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        let run = scope.spawn(|| pollux_load::push::run(&config, &stop, |_| ()).unwrap());
        let posts = || server.counters.heads().iter().filter(|it| it.starts_with("POST ")).count();
        pollux_testkit::wait_until("four updates", || posts() >= 4);
        stop.store(true, SeqCst);
        run.join().unwrap()
    });
    assert!(report.interrupted);
    let Publications { scheduled, sent, .. } = report.publications;
    assert!(sent >= 4 && (sent..1000).contains(&scheduled), "{sent} of {scheduled}");
    // The updates are 50 ms apart: the interrupt was after the instant of the last one, and before that of the next.
    let by_rate_s = scheduled as f64 / config.rate_rps;
    let found = (report.duration_s, report.elapsed_s);
    assert!((by_rate_s - 0.05..=by_rate_s).contains(&found.0), "{found:?}, {scheduled} updates");
    assert!(found.1 > 0.0 && found.1 < 60.0, "{found:?}");
    let mut summary = Vec::new();
    pollux_load::output::text::push(&report, &mut summary).unwrap();
    let summary = String::from_utf8(summary).unwrap();
    let load = format!("for {:.1} s", report.duration_s);
    assert!(
        summary.contains(&load) && summary.contains(&format!("{scheduled} scheduled")),
        "{summary}"
    );
}

/// Regression test: each of the updates once waited for as long as its answer might take, long after the subscribers
/// had ended.
#[test]
fn a_server_that_does_not_answer_updates_is_not_waited_for_after_the_end() {
    let server = server_without_answers();
    let config = PushConfig { timeout: Duration::from_millis(500), ..config(&server, 5) };
    let report = pollux_load::push::run(&config, &AtomicBool::new(false), |_| ()).unwrap();
    let found = report.publications;
    // The first one takes nearly all of the time.
    assert!(found.sent <= 2 && found.failed == found.sent, "{found:?}");
    assert_eq!(report.deliveries.lost, 0, "{:?}", report.deliveries);
}

/// Regression test: the updates on their way once counted as lost, which the server was not to blame for.
#[test]
fn what_is_on_its_way_at_a_stop_is_not_lost() {
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, streams) = (stop.clone(), Streams::default());
    let server = Server::start(move |mut peer| {
        let mut first = None;
        while let Some(head) = peer.request() {
            if head.starts_with("GET ") {
                return subscribe(&mut peer, &head, &streams);
            }
            let body = String::from_utf8(content_of(&mut peer, &head).unwrap()).unwrap();
            let Some(first) = &first else {
                first = Some(body);
                peer.reply(200, "id");
                continue;
            };
            // The second update shows that the first one is acknowledged.
            stopped.store(true, SeqCst);
            // The delivery is slow: the publisher ends first, which looks at the flag less often than a subscriber.
            assert!(peer.request().is_none());
            let event = format!("data: {}\n\n", first.split_once("data=").unwrap().1);
            for mut stream in streams.lock().unwrap().iter() {
                let _ = write!(stream, "{:x}\r\n{event}\r\n", event.len());
            }
            return;
        }
    });
    let config = config(&server, 5);
    let report = pollux_load::push::run(&config, &stop, |_| ()).unwrap();
    assert!(report.interrupted);
    let found = report.deliveries;
    assert_eq!((found.expected, found.delivered, found.lost), (10, 10, 0), "{found:?}");
}

#[test]
fn a_refusal_without_content_is_counted_as_a_status() {
    let server = Server::start(|mut peer| {
        while let Some(head) = peer.request() {
            // The first connections are those of the subscribers and of the publisher.
            match (head.starts_with("POST "), peer.number) {
                (false, ..11) => return subscribe(&mut peer, &head, &Streams::default()),
                (false, _) => return peer.reply(401, ""),
                (true, _) => {}
            }
            content_of(&mut peer, &head);
            peer.reply(200, "id");
        }
    });
    let mut config = config(&server, 10);
    config.reconnect_at = Some(Duration::from_millis(10));
    config.timeout = Duration::from_secs(1);
    let errors = run(&config).errors;
    assert!(errors["status"] > 0 && !errors.contains_key("closed_early"), "{errors:?}");
}

#[test]
fn contradictions_name_the_flag() {
    let server = Server::good("");
    let refusal = |change: fn(&mut PushConfig)| {
        let mut config = config(&server, 1);
        change(&mut config);
        config.check().unwrap_err().to_string()
    };
    assert!(refusal(|config| config.subscribers = 0).contains("--subscribe"));
    assert!(refusal(|config| config.update_bytes = 3).contains("--update-size"));
    assert!(refusal(|config| config.quiet_time = Some(Duration::MAX)).contains("--quiet-time"));
    let both = |config: &mut PushConfig| {
        config.quiet_time = Some(Duration::from_secs(1));
        config.reconnect_at = config.quiet_time;
    };
    assert!(refusal(both).contains("--quiet-time and --reconnect-at"));
    assert!(refusal(|config| config.publish.body = "x".into()).contains("--publish-body"));
    // Regression: these were accepted.
    assert!(refusal(|config| config.tls.trust = ClientTrust::Anybody).contains("--insecure"));
    assert!(refusal(|config| config.warmup = Duration::MAX).contains("--warm-up"));
    assert!(
        refusal(|config| config.length = Length::Duration(Duration::MAX)).contains("--duration")
    );
    assert!(refusal(|config| config.rate_rps = 1e-9).contains("--requests 1"));
    let late = |config: &mut PushConfig| config.reconnect_at = Some(Duration::from_secs(9));
    assert!(refusal(late).contains("--reconnect-at: the last update"));
    assert!(refusal(|config| config.length = Length::Requests(2_000_000)).contains("--rate"));
}

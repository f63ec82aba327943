//! Very many waiters, and patterns that take long: what one iteration does is bounded.

use super::*;
use pollux_hub::matcher::MatcherCache;

/// The number of clients that wait.
const WAITERS: i32 = 100_000;
/// The most that one call of the hub may wake or send.
const MOST: usize = 256;

/// Wakes everybody in many small iterations. After each of them another client is served.
#[test]
fn a_hundred_thousand_waiters_are_woken_a_few_in_each_iteration() {
    let shared = shared(|_| ());
    let mut bench = Bench::new(&shared, 0);
    // Half of them have streams, the others poll.
    let mut polls = HashMap::new();
    for fd in 0..WAITERS {
        match fd % 2 {
            0 => {
                bench.stream(fd, "X: y");
            }
            _ => {
                polls.insert(fd, bench.wait(fd, "Prefer: wait=30"));
            }
        }
        bench.response();
    }
    bench.commands();
    publish(&shared, "1");
    let (mut sent, mut woken, mut iterations) = (0, 0, 0);
    while bench.hub.has_stream_work() {
        let events = bench.pump_once();
        let commands = bench.commands();
        assert!(events.len() + commands.len() <= MOST, "{} {}", events.len(), commands.len());
        sent += events.len();
        woken += commands.len();
        for fd in commands {
            let exchange = polls.remove(&fd).expect("each is woken once");
            let (flow, response) = bench.wake(fd, exchange);
            assert!(matches!(flow, Flow::Done) && response.contains("\nid: 1\n"), "{response}");
        }
        // A client that comes meanwhile does not wait for the others.
        let response = bench.answer(WAITERS, "Prefer: wait=0\r\nLast-Event-ID: earliest");
        assert!(response.contains("\nid: 1\n"), "{response}");
        iterations += 1;
    }
    let half = (WAITERS / 2) as usize;
    assert_eq!((sent, woken, polls.len()), (half, half, 0));
    assert!(iterations >= WAITERS as usize / MOST, "{iterations} iterations");
}

/// A pattern that reads a topic of the letters b and c to its end, and does not select it.
fn pattern(number: i32) -> String {
    format!("/hub?match_urlpattern=/:x{number}(%5Bbc%5D*d)")
}

/// Begins streams with different patterns.
fn begin_patterns(bench: &mut Bench, count: i32) {
    for fd in 0..count {
        let target = pattern(fd);
        let Flow::Waiting(_) = bench.request(1000 + fd, &target, "X: y") else {
            panic!("{}", bench.response())
        };
        bench.response();
    }
}

/// Regression: one client could use up the patterns of all others.
#[test]
fn the_patterns_of_one_client_are_limited() {
    let mut shared = shared(|_| ());
    let matchers = MatcherCache::default().with_client_patterns(5);
    Arc::get_mut(&mut shared).expect("no thread has it").matchers = matchers;
    let mut bench = Bench::new(&shared, 0);
    for fd in 1000..1006 {
        bench.at(fd, "192.0.2.1");
    }
    begin_patterns(&mut bench, 5);
    let refused = |bench: &mut Bench, fd, target: &str| {
        bench.response();
        let is_over = matches!(bench.request(fd, target, "X: y"), Flow::Done);
        let response = bench.response();
        assert_eq!(is_over, response.starts_with("HTTP/1.1 429 "), "{response}");
        is_over
    };
    assert!(refused(&mut bench, 1005, "/hub?match_urlpattern=/:another"));
    // Other topics, and patterns that are in use, are not limited; neither is another client.
    assert!(!refused(&mut bench, 1005, &format!("{}&match=b", pattern(4))));
    bench.at(1006, "192.0.2.2");
    assert!(!refused(&mut bench, 1006, "/hub?match_urlpattern=/:another"));
}

/// Regression: a poll with patterns compared the whole history in one call.
#[test]
fn polls_with_patterns_take_turns() {
    let shared = shared(|_| ());
    let mut bench = Bench::new(&shared, 0);
    for number in 0..100 {
        publish(&shared, &number.to_string());
    }
    let target = "/hub?match_urlpattern=/:x(b.*)";
    let begin = |bench: &mut Bench, fd: i32, seconds: u32| {
        let fields = format!("Prefer: wait={seconds}\r\nLast-Event-ID: earliest");
        match bench.request(fd, target, &fields) {
            Flow::Waiting(exchange) => exchange,
            _ => panic!("it does not wait for its turn: {}", bench.response()),
        }
    };
    let mut waiting: HashMap<_, _> = (0..40).map(|fd| (fd, begin(&mut bench, fd, 0))).collect();
    let mut turns = Vec::new();
    while !waiting.is_empty() {
        bench.pump_once();
        // As if the time of the iteration were over: each compares one update.
        bench.hub.search_until = Instant::now();
        let woken = bench.commands();
        assert!((1..=poll::SEARCHES).contains(&woken.len()), "{woken:?}");
        turns.push(woken.len());
        assert!(turns.len() < 1000, "it does not end");
        for fd in woken {
            let (flow, response) = bench.wake(fd, waiting.remove(&fd).unwrap());
            match flow {
                Flow::Waiting(exchange) => {
                    waiting.insert(fd, exchange);
                }
                _ => assert!(response.starts_with("HTTP/1.1 204 "), "{response}"),
            }
        }
    }
    assert_eq!(turns.iter().sum::<usize>(), 40 * 100, "a turn for each update");
    // One that finds nothing waits for an update, and then gets it.
    let exchange = begin(&mut bench, 3, 30);
    bench.pump();
    assert_eq!(bench.commands(), [3]);
    bench.hub.search_until = Instant::now() + Duration::from_secs(60);
    let (Flow::Waiting(exchange), _) = bench.wake(3, exchange) else { panic!("it is over") };
    assert!(bench.hub.searches.is_empty());
    bench.commands();
    let publication = Publication { topics: vec!["/bx".into()], ..publication("last") };
    shared.publish(publication, None).unwrap();
    bench.pump();
    assert_eq!(bench.commands(), [3]);
    let (Flow::Waiting(exchange), _) = bench.wake(3, exchange) else { panic!("no turn") };
    bench.pump();
    let (_, response) = bench.wake(3, exchange);
    assert!(
        response.starts_with("HTTP/1.1 200 ") && response.contains("\nid: last\n"),
        "{response}"
    );
}

/// Regression: an update was compared with all patterns in one iteration.
#[test]
fn an_update_is_compared_with_patterns_for_a_limited_time() {
    const PATTERNS: i32 = 200;
    let shared = shared(|_| ());
    let mut bench = Bench::new(&shared, 0);
    begin_patterns(&mut bench, PATTERNS);
    bench.stream(3, "X: y");
    bench.response();
    // Each pattern reads 64 kB.
    let long = (0..16).map(|number| format!("/b{}", "c".repeat(4000 + number)));
    let topics = std::iter::once("a".into()).chain(long).collect();
    let slow = Publication { topics, ..publication("1") };
    shared.publish(slow, None).unwrap();
    let first = bench.pump_once();
    assert_eq!(ids(&first), [(3, "1".to_owned())], "it does not wait for the patterns");
    let mut iterations = 1;
    while bench.hub.has_stream_work() {
        assert!(bench.pump_once().is_empty());
        iterations += 1;
    }
    assert!(iterations > 1, "everything in one iteration");
}

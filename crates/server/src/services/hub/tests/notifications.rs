//! Which workers an update wakes.

use super::*;
use crate::services::hub::NewsRound;
use pollux_hub::{
    matcher::{MatcherType, Selector},
    subscribers::Audience,
};
use std::sync::atomic::{AtomicBool, AtomicUsize};

fn publish_to(shared: &HubShared, topic: &str) {
    let publication = Publication { topics: vec![topic.into()], ..publication(topic) };
    shared.publish(Publication { id: None, ..publication }, None).unwrap();
}

impl Bench {
    /// Begins a stream of what `selector` selects.
    fn stream_of(&mut self, fd: i32, selector: &str) -> u32 {
        match self.request(fd, &format!("/hub?{selector}"), "X: y") {
            Flow::Waiting(exchange) => match exchange.0.phase {
                HubPhase::Stream(id) => id.number(),
                ref other => panic!("no stream: {other:?}"),
            },
            _ => panic!("it is over: {}", self.response()),
        }
    }
}

#[test]
fn an_update_wakes_the_workers_whose_subscribers_may_read_it() {
    let shared = shared(|_| ());
    let mut benches = [Bench::new(&shared, 0), Bench::new(&shared, 1)];
    publish_to(&shared, "a");
    assert_eq!(shared.woken(), [0; 0], "there is no subscriber");
    let number = benches[0].stream_of(3, "match=a");
    benches[1].stream_of(4, "match=b");
    for (topic, expected) in [("a", &[0][..]), ("b", &[1]), ("c", &[])] {
        publish_to(&shared, topic);
        assert_eq!(shared.woken(), expected, "{topic}");
        // A worker that was not woken reads the log when it wakes for another reason.
        let sent: Vec<usize> =
            (0..2).filter(|worker| !benches[*worker].pump().is_empty()).collect();
        assert_eq!(sent, expected, "{topic}");
    }
    publish_to(&shared, "a");
    assert_eq!((shared.woken(), shared.woken()), (vec![0], vec![]), "once until it has looked");
    benches[0].pump();
    benches[0].hub.stream_has_ended(number);
    publish_to(&shared, "a");
    assert_eq!(shared.woken(), [0; 0], "the subscriber has left");
    // The filter has no topics of a pattern.
    benches[1].stream_of(5, "match_urlpattern=/:any");
    publish_to(&shared, "c");
    assert_eq!(shared.woken(), [1]);
}

#[test]
fn a_worker_that_has_read_an_update_is_not_woken_for_it() {
    let shared = shared(|_| ());
    let mut bench = Bench::new(&shared, 0);
    bench.stream_of(3, "match=a");
    publish_to(&shared, "a");
    assert_eq!(bench.pump().len(), 1);
    assert_eq!(shared.woken(), [0; 0]);
}

#[test]
fn an_answer_wakes_the_worker_of_its_exchange() {
    let shared = shared(|_| ());
    let bench = [Bench::new(&shared, 0), Bench::new(&shared, 1)];
    shared.answer(bench[1].ticket(3), Ok("".into()));
    assert_eq!((shared.woken(), shared.woken()), (vec![1], vec![]));
}

/// A worker misses updates of other topics. Its subscribers have missed nothing.
#[test]
fn only_the_loss_of_updates_that_a_worker_may_need_is_a_loss() {
    for (topic, notices) in [("b", 0), ("a", 1)] {
        let shared = shared(|hub| hub.limits.history_updates = 4);
        let mut bench = Bench::new(&shared, 0);
        bench.stream_of(3, "match=a");
        for _ in 0..10 {
            publish_to(&shared, topic);
            // The thread keeps up, and the worker does not.
            shared.woken();
        }
        publish_to(&shared, "a");
        shared.woken();
        let sent = bench.pump();
        let skips = sent.iter().filter(|(_, text)| text.contains("skipped")).count();
        assert_eq!(skips, notices, "{topic}: {sent:?}");
        assert_eq!(ids(&sent).len(), if topic == "a" { 4 } else { 1 }, "{topic}");
    }
}

/// The copy of the history in a worker that sleeps on keeps old updates in memory.
#[test]
fn a_worker_is_woken_before_it_is_far_behind() {
    let by_number = |hub: &mut HubConfig| hub.limits.history_updates = 80;
    let by_bytes = |hub: &mut HubConfig| hub.limits.history_bytes = 16_000;
    for change in [&by_number as &dyn Fn(&mut HubConfig), &by_bytes] {
        let shared = shared(change);
        let mut bench = Bench::new(&shared, 0);
        bench.stream_of(3, "match=a");
        let mut woken_after = Vec::new();
        for number in 1..=30 {
            publish_to(&shared, "b");
            if !shared.woken().is_empty() {
                assert_eq!(bench.pump(), []);
                woken_after.push(number);
            }
        }
        assert!((2..=4).contains(&woken_after.len()), "{woken_after:?}");
    }
}

/// A worker whose subscribers need nothing from time to time sleeps for longer.
#[test]
fn a_hub_without_heartbeats_and_tokens_is_checked_seldom() {
    let day = 24 * 3600;
    for (heartbeat, lifetime, expected) in
        [(0, day, 30), (0, 0, 30), (0, 640, 10), (0, 10, 1), (40, day, 1)]
    {
        let shared = shared(|hub| {
            hub.heartbeat = Duration::from_secs(heartbeat);
            hub.max_lifetime = Duration::from_secs(lifetime);
        });
        let mut bench = Bench::new(&shared, 0);
        bench.stream_of(3, "match=a");
        let interval = bench.hub.care.expect("an alarm").interval;
        assert_eq!(interval, Duration::from_secs(expected), "{heartbeat} s, {lifetime} s");
    }
}

#[test]
fn if_updates_leave_the_log_before_they_are_compared_all_workers_may_have_missed_them() {
    let shared = shared(|hub| hub.limits.history_updates = 4);
    let mut benches = [Bench::new(&shared, 0), Bench::new(&shared, 1)];
    (0..2).for_each(|worker| _ = benches[worker].stream_of(3, "match=a"));
    for _ in 0..10 {
        publish_to(&shared, "b");
    }
    assert_eq!(shared.woken(), [0, 1]);
    for bench in &mut benches {
        let sent = bench.pump();
        assert!(sent.len() == 1 && sent[0].1.contains("skipped"), "{sent:?}");
    }
}

/// An update may be compared with the filter before the worker adds a topic to it.
#[test]
fn an_update_that_arrives_while_a_subscriber_is_added_is_not_lost_silently() {
    let shared = shared(|hub| hub.limits.history_updates = 2);
    let mut bench = Bench::new(&shared, 0);
    bench.stream_of(3, "match=a");
    // The worker has read the log, and is about to add a subscriber of `b`.
    for topic in ["b", "a"] {
        publish_to(&shared, topic);
    }
    assert!(shared.woken().contains(&0));
    let last = bench.hub.last();
    let selector = Selector::new(MatcherType::Exact, "b".to_owned());
    let routes = shared.matchers.rules(vec![selector], &shared.url, None).unwrap();
    bench.hub.add_subscriber(4, &Audience::new(routes, Vec::new()), last).unwrap();
    // The update of `b` leaves the log before the worker reads on.
    publish_to(&shared, "c");
    shared.woken();
    let sent = bench.pump();
    let skips = sent.iter().filter(|(_, text)| text.contains("skipped")).count();
    assert_eq!(skips, 2, "{sent:?}");
}

/// Ends the threads of a test if it fails.
struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// A worker gets subscribers of new topics, and sleeps when it has nothing to do, while another thread publishes to these
/// topics. No update may be left at the end of the log that concerns the worker and has not woken it.
#[test]
fn no_update_is_missed_by_a_worker_that_gets_its_first_subscriber_of_a_topic() {
    const TOPICS: usize = 2000;
    let shared = shared(|_| ());
    let (is_over, next) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut delivered = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            for topic in 0..TOPICS {
                // The worker is about to get a subscriber of this topic, or has just got it.
                while next.load(Ordering::SeqCst) < topic {
                    std::hint::spin_loop();
                }
                publish_to(&shared, &format!("t{topic}"));
            }
        });
        scope.spawn(|| {
            let mut round = NewsRound::default();
            while !is_over.load(Ordering::SeqCst) {
                shared.wake_workers(&mut round, |_| ());
            }
        });
        let _end = AtEnd(|| {
            next.store(TOPICS, Ordering::SeqCst);
            is_over.store(true, Ordering::SeqCst);
        });
        let mut bench = Bench::new(&shared, 0);
        for topic in 0..TOPICS {
            next.store(topic, Ordering::SeqCst);
            let number = bench.stream_of(3, &format!("match=t{topic}&last_event_id=earliest"));
            bench.response();
            delivered += bench.pump().len();
            if delivered <= topic {
                // The worker sleeps: only a notification wakes it.
                wait_until("a notification", || shared.notifications.is_notified(0));
                delivered += bench.pump().len();
            }
            // The topic leaves the filter, so that no later one has its bucket.
            bench.hub.stream_has_ended(number);
        }
    });
    assert_eq!(delivered, TOPICS);
}

//! Very many topics, each with a subscriber: an update affects only the subscribers of its topic, and
//! the memory used is the number that [`Subscribers::bytes`] reports.

use pollux_hub::{
    history::History,
    limits::Limits,
    matcher::{Matcher, MatcherType, Rule, Selector},
    subscribers::{Audience, Delivery, Message, OnLoss, SubscriberId, Subscribers},
    topic::HubUrl,
    update::{Publication, Update},
};
use std::{
    fs,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Updates that the history holds.
const HISTORY: usize = 2_000;
/// User memory for a subscriber that is the only one of its topic, everything included.
const BYTES_PER_TOPIC: usize = 700;

/// The tests read the memory of the process, and so run one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn topic(number: usize) -> String {
    format!("https://example.com/users/{number}/messages")
}

fn update(number: usize) -> Arc<Update> {
    let data = number.to_string();
    let publication = Publication { topics: vec![topic(number)], data, ..Publication::default() };
    Arc::new(Update::new(&format!("urn:x:{number}"), &publication))
}

/// Subscribes to `topics` topics, and then publishes an update of each.
fn update_each_of(topics: usize) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let started_at = Instant::now();
    let hub = HubUrl::parse("https://example.com/.well-known/mercure").unwrap();
    let limits = Limits { history_updates: HISTORY, ..Limits::default() };
    let (mut history, mut subscribers) =
        (History::new(&limits), Subscribers::new(OnLoss::Skip, None));
    // The history is full before, so the memory used after that is the memory of topics.
    (0..HISTORY).for_each(|number| {
        history.append(update(number), Duration::ZERO);
    });
    let before = resident_bytes();
    let ids: Vec<SubscriberId> = (0..topics)
        .map(|number| {
            let selector = Selector::new(MatcherType::Exact, topic(number));
            let matcher = Arc::new(Matcher::compile(&selector, &hub).unwrap());
            let audience = Audience::new(vec![Rule { selector, matcher }], Vec::new());
            let last = history.last();
            subscribers.add(number as u64, &audience, last, last).unwrap()
        })
        .collect();
    assert_eq!((subscribers.len(), subscribers.sets()), (topics, topics));
    for number in 0..topics {
        let one = update(number);
        let sequence = history.append(one.clone(), Duration::ZERO);
        subscribers.publish(sequence, &one, &hub);
        let mut touched = Vec::new();
        let mut calls = 0;
        while subscribers.has_work() {
            subscribers.deliver(
                &history,
                &hub,
                2,
                || true,
                |connection, message| {
                    assert!(matches!(message, Message::Update(sent) if Arc::ptr_eq(sent, &one)));
                    touched.push(connection);
                    Delivery::Taken
                },
            );
            calls += 1;
        }
        assert_eq!((&touched[..], calls), (&[number as u64][..], 1), "update {number}");
    }
    let (resident, reported) = (resident_bytes().saturating_sub(before), subscribers.bytes());
    println!(
        "{topics} topics: {} bytes of memory for each, {} reported, {:?}",
        resident / topics,
        reported / topics,
        started_at.elapsed()
    );
    assert!(resident <= topics * BYTES_PER_TOPIC, "{} for each topic", resident / topics);
    assert!(reported * 2 >= resident && reported <= 2 * resident, "{reported}, not {resident}");
    ids.into_iter().for_each(|id| subscribers.remove(id));
    assert_eq!((subscribers.len(), subscribers.sets()), (0, 0));
}

#[test]
fn an_update_of_each_of_many_topics_touches_its_subscriber_alone() {
    update_each_of(20_000);
}

#[test]
#[ignore = "slow: a million topics"]
fn an_update_of_each_of_a_million_topics_touches_its_subscriber_alone() {
    update_each_of(1_000_000);
}

/// A publisher that invents topics fills the history, but uses no other memory.
#[test]
fn topics_without_subscribers_leave_nothing() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let hub = HubUrl::parse("https://example.com/.well-known/mercure").unwrap();
    let limits = Limits { history_updates: HISTORY, ..Limits::default() };
    let (mut history, mut subscribers) =
        (History::new(&limits), Subscribers::new(OnLoss::Skip, None));
    let mut publish = |number| {
        let one = update(number);
        let sequence = history.append(one.clone(), Duration::ZERO);
        subscribers.publish(sequence, &one, &hub);
    };
    (0..2 * HISTORY).for_each(&mut publish);
    let before = resident_bytes();
    (2 * HISTORY..10 * HISTORY).for_each(&mut publish);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes");
    assert!(!subscribers.has_work() && subscribers.bytes() == 0);
}

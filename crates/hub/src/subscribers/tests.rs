use super::*;
use crate::{
    limits::Limits,
    matcher::{Matcher, MatcherType, Rule, Selector},
    update::Publication,
};
use proptest::prelude::*;
use std::{sync::LazyLock, time::Duration};

fn hub() -> HubUrl {
    HubUrl::parse("http://h/.well-known/mercure").unwrap()
}

fn rules(texts: &[&str]) -> Vec<Rule> {
    let kind = |text: &str| {
        if text.contains(':') { MatcherType::UrlPattern } else { MatcherType::Exact }
    };
    let mut rules: Vec<_> = texts
        .iter()
        .map(|text| {
            let selector = Selector::new(kind(text), *text);
            let matcher = Arc::new(Matcher::compile(&selector, &hub()).unwrap());
            Rule { selector, matcher }
        })
        .collect();
    rules.sort_by(|a, b| a.selector.cmp(&b.selector));
    rules
}

fn audience(routes: &[&str], grants: &[&str]) -> Audience {
    Audience::new(rules(routes), rules(grants))
}

/// A history and the subscribers of one worker, with what each connection received.
struct Rig {
    history: History,
    subscribers: Subscribers,
    received: HashMap<u64, Vec<String>>,
    full: Vec<u64>,
    gone: Vec<u64>,
}

impl Rig {
    fn new(updates: usize, on_loss: OnLoss) -> Self {
        Self {
            history: History::new(&Limits { history_updates: updates, ..Limits::default() }),
            subscribers: Subscribers::new(on_loss, None),
            received: HashMap::new(),
            full: Vec::new(),
            gone: Vec::new(),
        }
    }

    fn add(&mut self, connection: u64, audience: &Audience) -> SubscriberId {
        let last = self.history.last();
        self.subscribers.add(connection, audience, last, last).unwrap()
    }

    fn publish(&mut self, id: &str, topic: &str, private: bool) {
        let topics = vec![topic.to_owned()];
        let publication = Publication { topics, private, ..Publication::default() };
        let update = Arc::new(Update::new(id, &publication));
        let sequence = self.history.append(Arc::clone(&update), Duration::ZERO);
        self.subscribers.publish(sequence, &update, &hub());
    }

    /// Delivers until nothing is left to do; the number of calls is bounded.
    fn deliver(&mut self) {
        for _ in 0..100_000 {
            if !self.subscribers.has_work() {
                return;
            }
            self.deliver_some(3);
        }
        panic!("delivery does not end");
    }

    /// Sends at most `budget` messages, and compares about as many patterns.
    fn deliver_some(&mut self, budget: usize) {
        let Self { history, subscribers, received, full, gone } = self;
        let mut left = budget;
        let has_time = || {
            left = left.saturating_sub(1);
            left > 0
        };
        subscribers.deliver(history, &hub(), budget, has_time, |connection, message| {
            if gone.contains(&connection) {
                return Delivery::Gone;
            }
            if full.contains(&connection) {
                return Delivery::Full;
            }
            let text = match message {
                Message::Update(update) => update.id.to_string(),
                Message::Comment(_) => "skip".to_owned(),
                Message::Heartbeat(_) => "heartbeat".to_owned(),
                Message::End => "end".to_owned(),
            };
            received.entry(connection).or_default().push(text);
            Delivery::Taken
        });
    }

    fn received(&self, connection: u64) -> String {
        self.received.get(&connection).map_or_else(String::new, |events| events.join(" "))
    }
}

/// What a slab makes of slots.
#[expect(dead_code, reason = "only its size counts")]
enum Vacancy {
    Vacant(usize),
    Occupied(Slot),
}

#[test]
fn a_subscriber_costs_32_bytes() {
    assert_eq!(size_of::<Slot>(), 32);
    assert_eq!(size_of::<Option<Slot>>(), 32);
    assert_eq!(size_of::<Vacancy>(), 32, "as in the slab");
    let mut rig = Rig::new(10, OnLoss::Skip);
    let one = audience(&["a"], &[]);
    for connection in 0..4096 {
        rig.add(connection, &one);
    }
    assert_eq!(rig.subscribers.sets(), 1);
    assert!(rig.subscribers.bytes() < 4096 * 32 + 2048);
}

#[test]
fn updates_reach_those_that_read_their_topic() {
    let mut rig = Rig::new(10, OnLoss::Skip);
    rig.add(1, &audience(&["a"], &[]));
    rig.add(2, &audience(&["a", "b", "*"], &[]));
    rig.add(3, &audience(&["/x/:id", "a"], &[]));
    rig.add(4, &audience(&["b"], &[]));
    for (id, topic) in [("1", "a"), ("2", "b"), ("3", "/x/7"), ("4", "none")] {
        rig.publish(id, topic, false);
    }
    rig.deliver();
    let all = [1, 2, 3, 4].map(|connection| rig.received(connection));
    assert_eq!(all, ["1", "1 2 3 4", "1 3", "2"]);
}

#[test]
fn private_updates_need_permission() {
    let mut rig = Rig::new(10, OnLoss::Skip);
    rig.add(1, &audience(&["*"], &[]));
    rig.add(2, &audience(&["*"], &["a"]));
    rig.add(3, &audience(&["*"], &["*"]));
    rig.add(4, &audience(&["b"], &["a"]));
    rig.publish("1", "a", true);
    rig.publish("2", "b", true);
    rig.publish("3", "b", false);
    rig.deliver();
    let all = [1, 2, 3, 4].map(|connection| rig.received(connection));
    assert_eq!(all, ["3", "1 3", "1 2 3", "3"]);
}

#[test]
fn a_slow_subscriber_skips_dropped_updates_and_gets_a_comment() {
    let mut rig = Rig::new(3, OnLoss::Skip);
    let slow = rig.add(1, &audience(&["a"], &[]));
    rig.add(2, &audience(&["a"], &[]));
    rig.full.push(1);
    for id in 1..=8 {
        rig.publish(&id.to_string(), "a", false);
        rig.deliver();
    }
    rig.full.clear();
    assert_eq!(rig.received(1), "");
    rig.subscribers.resume(slow);
    rig.deliver();
    assert_eq!(rig.received(1), "skip 6 7 8");
    assert_eq!(rig.received(2), "1 2 3 4 5 6 7 8");
}

#[test]
fn or_is_disconnected() {
    let mut rig = Rig::new(3, OnLoss::Disconnect);
    let slow = rig.add(1, &audience(&["a"], &[]));
    rig.full.push(1);
    for id in 1..=8 {
        rig.publish(&id.to_string(), "a", false);
        rig.deliver();
    }
    rig.full.clear();
    rig.subscribers.resume(slow);
    rig.deliver();
    assert_eq!(rig.received(1), "end");
    assert!(rig.subscribers.is_empty());
}

#[test]
fn a_full_connection_gets_its_end_later() {
    let mut rig = Rig::new(3, OnLoss::Disconnect);
    for id in 1..=8 {
        rig.publish(&id.to_string(), "a", false);
    }
    rig.full.push(1);
    let last = rig.history.last();
    let id = rig.subscribers.add(1, &audience(&["a"], &[]), 1, last).unwrap();
    rig.deliver();
    assert_eq!(rig.subscribers.connection(id), Some(1));
    rig.full.clear();
    rig.subscribers.resume(id);
    rig.deliver();
    assert_eq!(rig.received(1), "end");
    assert!(rig.subscribers.is_empty());

    let limit = MaxLifetime::new(Duration::from_secs(10), Duration::from_secs(1)).unwrap();
    let id = rig.add(2, &audience(&["a"], &[]));
    rig.subscribers.set_deadline(id, limit.draw(Duration::ZERO, 0));
    let now = limit.instant(Duration::from_secs(11));
    for (delivery, left) in [(Delivery::Full, 1), (Delivery::Gone, 0)] {
        let slots = rig.subscribers.slots();
        let looked = rig.subscribers.end_overdue(slots, slots, now, |_, _| delivery);
        assert_eq!((looked, rig.subscribers.len()), (slots, left));
    }
}

#[test]
fn an_idle_subscriber_of_a_quiet_topic_loses_nothing() {
    let mut rig = Rig::new(3, OnLoss::Skip);
    let quiet = audience(&["quiet"], &[]);
    rig.add(1, &quiet);
    rig.publish("1", "quiet", false);
    rig.deliver();
    for id in 2..=20 {
        rig.publish(&id.to_string(), "loud", false);
    }
    // Another one comes to the same set and wants all that there is.
    rig.subscribers.add(2, &quiet, 0, rig.history.last());
    rig.deliver();
    rig.publish("21", "quiet", false);
    rig.deliver();
    assert_eq!(rig.received(1), "1 21");
    assert_eq!(rig.received(2), "skip 21");
}

#[test]
fn a_subscriber_with_a_position_reads_on_from_there() {
    let mut rig = Rig::new(1000, OnLoss::Skip);
    for id in 1..=300 {
        rig.publish(&id.to_string(), if id % 100 == 0 { "a" } else { "b" }, id == 200);
    }
    let start = rig.history.start("150");
    rig.subscribers.add(1, &audience(&["a"], &[]), start.cursor, 300);
    rig.subscribers.add(2, &audience(&["a"], &["a"]), start.cursor, 300);
    rig.publish("301", "a", false);
    rig.deliver();
    assert_eq!(rig.received(1), "300 301");
    assert_eq!(rig.received(2), "200 300 301");
}

#[test]
fn connections_that_are_gone_leave_nothing() {
    let mut rig = Rig::new(10, OnLoss::Skip);
    let ids: Vec<_> = (0..9).map(|c| rig.add(c, &audience(&["a", "/:x"], &[]))).collect();
    rig.gone.extend([0, 4, 8]);
    rig.publish("1", "a", false);
    rig.deliver();
    assert_eq!(rig.subscribers.len(), 6);
    for id in ids {
        rig.subscribers.remove(id);
    }
    assert_eq!((rig.subscribers.len(), rig.subscribers.sets()), (0, 0));
    rig.publish("2", "a", false);
    assert!(!rig.subscribers.has_work());
}

#[test]
fn a_gap_in_the_log_is_a_loss_of_everybody_who_was_idle() {
    for on_loss in [OnLoss::Skip, OnLoss::Disconnect] {
        let mut rig = Rig::new(10, on_loss);
        rig.add(1, &audience(&["a"], &[]));
        rig.publish("1", "a", false);
        rig.deliver();
        rig.history.leave_gap();
        rig.subscribers.publish_gap(2);
        rig.publish("3", "a", false);
        rig.deliver();
        match on_loss {
            OnLoss::Skip => assert_eq!(rig.received(1), "1 skip 3"),
            OnLoss::Disconnect => assert!(rig.subscribers.is_empty()),
        }
    }
}

#[test]
fn an_update_touches_only_the_subscribers_of_its_topic() {
    let mut rig = Rig::new(10, OnLoss::Skip);
    for connection in 0..20_000 {
        rig.add(connection, &audience(&[&format!("topic-{connection}")], &[]));
    }
    rig.publish("1", "topic-777", false);
    assert_eq!(rig.subscribers.dirty.len(), 1);
    rig.deliver();
    assert_eq!(rig.received.len(), 1);
    assert_eq!(rig.received(777), "1");
}

/// A pattern that selects the topics that begin with this letter.
fn pattern(letter: char, number: u64) -> String {
    format!("/.well-known/:x{number}({letter}.*)")
}

/// Positions may leave the log unread because no subscriber of this worker needs them.
#[test]
fn positions_that_concern_nobody_are_no_loss_for_patterns_either() {
    let mut rig = Rig::new(10, OnLoss::Skip);
    // A pattern in the token.
    rig.add(0, &audience(&["a"], &[&pattern('a', 1)]));
    rig.publish("1", "b", false);
    rig.deliver();
    let publication = Publication { topics: vec!["a".into()], ..Publication::default() };
    let update = Arc::new(Update::new("100", &publication));
    rig.history.append_at(100, Arc::clone(&update), Duration::ZERO);
    rig.subscribers.publish(100, &update, &hub());
    rig.deliver();
    assert_eq!(rig.received(0), "100");
}

/// Regression: an update was compared with all patterns in one call.
#[test]
fn patterns_are_compared_a_few_in_each_call() {
    const PATTERNS: u64 = 200;
    for (is_private, letter) in [(false, 'a'), (false, 'z'), (true, 'a'), (true, 'z')] {
        let mut rig = Rig::new(10, OnLoss::Skip);
        rig.add(0, &audience(&["a1"], &["a1"]));
        for connection in 1..=PATTERNS {
            let pattern = pattern(letter, connection);
            let one = match is_private {
                false => audience(&[&pattern], &[]),
                true => audience(&["*"], &[&pattern]),
            };
            rig.add(connection, &one);
        }
        rig.publish("1", "a1", is_private);
        rig.publish("2", "a2", is_private);
        let mut calls = 0;
        while rig.subscribers.has_work() {
            let before = rig.received.len();
            rig.deliver_some(10);
            assert!(rig.received.len() - before <= 10);
            calls += 1;
            // Those without patterns do not wait for the others.
            assert_eq!(rig.received(0), "1");
        }
        // Both updates are compared with each pattern.
        assert!(calls >= 2 * PATTERNS / 10, "{calls} calls");
        let expected = if letter == 'a' { "1 2" } else { "" };
        assert!((1..=PATTERNS).all(|connection| rig.received(connection) == expected));
    }
}

#[test]
fn updates_that_leave_the_history_before_they_are_compared_are_a_loss() {
    let mut rig = Rig::new(3, OnLoss::Skip);
    rig.add(1, &audience(&[&pattern('a', 1)], &[]));
    rig.add(2, &audience(&["a1"], &[]));
    rig.publish("1", "a1", false);
    rig.deliver();
    for id in 2..=8 {
        rig.publish(&id.to_string(), "a2", false);
    }
    rig.deliver();
    assert_eq!([1, 2].map(|connection| rig.received(connection)), ["1 skip 6 7 8", "1"]);
}

/// Another process would not send it what was not compared here.
#[test]
fn a_subscriber_is_handed_over_with_what_was_not_compared() {
    let mut rig = Rig::new(10, OnLoss::Skip);
    let [first, second] =
        [pattern('a', 1), "a1".into()].map(|topic: String| rig.add(1, &audience(&[&topic], &[])));
    rig.publish("1", "b", false);
    rig.publish("2", "a1", false);
    rig.publish("3", "b", false);
    let at = |rig: &Rig, id| rig.subscribers.resume_point(id, &rig.history, &hub()).unwrap().1;
    assert_eq!((at(&rig, first), at(&rig, second)), (0, 1));
    rig.deliver();
    assert_eq!((at(&rig, first), at(&rig, second)), (3, 3));
}

/// Regression: a search of the history for a subscriber with many patterns had no limit but the number of updates.
#[test]
fn a_search_of_the_history_ends_with_the_time() {
    let mut rig = Rig::new(1000, OnLoss::Skip);
    for id in 1..=600 {
        rig.publish(&id.to_string(), "b", false);
    }
    rig.subscribers.add(1, &audience(&[&pattern('a', 1)], &[]), 0, 600);
    let mut calls = 0;
    while rig.subscribers.has_work() {
        rig.deliver_some(10);
        calls += 1;
    }
    assert!(calls >= 60, "{calls} calls");
}

/// Looks at all subscribers once; the connections that got a heartbeat.
fn beats(rig: &mut Rig) -> Vec<u64> {
    let mut beats = Vec::new();
    let all = rig.subscribers.slots();
    rig.subscribers.heartbeat(all, all, |connection, _| {
        beats.push(connection);
        Delivery::Taken
    });
    beats
}

#[test]
fn heartbeats_reach_every_idle_subscriber_once_in_two_looks() {
    let mut rig = Rig::new(10, OnLoss::Skip);
    for connection in 0..100 {
        rig.add(connection, &audience(&["a"], &[]));
    }
    let mut beats = HashMap::new();
    let share = (2 * rig.subscribers.slots()).div_ceil(10);
    for _ in 0..20 {
        let mut now = 0;
        rig.subscribers.heartbeat(share, share, |connection, _| {
            now += 1;
            *beats.entry(connection).or_insert(0) += 1;
            Delivery::Taken
        });
        assert!(now <= share);
    }
    assert_eq!(beats.len(), 100);
    assert!(beats.values().all(|count| (1..=3).contains(count)), "{beats:?}");
}

/// Regression: a heartbeat was sent to a subscriber right after an update, at the price of a delivery.
#[test]
fn an_update_takes_the_place_of_a_heartbeat() {
    let mut rig = Rig::new(10, OnLoss::Skip);
    rig.add(1, &audience(&["a"], &[]));
    rig.add(2, &audience(&["b"], &[]));
    let blocked = rig.add(3, &audience(&["a"], &[]));
    rig.full.push(3);
    assert!(beats(&mut rig).is_empty(), "their streams have just begun");
    rig.publish("1", "a", false);
    rig.deliver();
    assert_eq!(beats(&mut rig), [2]);
    assert_eq!(beats(&mut rig), [1], "the second look since the update");
    assert_eq!(beats(&mut rig), [2]);
    rig.full.clear();
    rig.subscribers.resume(blocked);
    rig.deliver();
    assert_eq!(rig.received(3), "1");
    assert_eq!(beats(&mut rig), [1]);
    assert_eq!(beats(&mut rig), [2, 3]);
}

/// A budget bounds what one call sends; the next call goes on where it ended.
#[test]
fn heartbeats_have_a_budget() {
    let mut rig = Rig::new(10, OnLoss::Skip);
    for connection in 0..100 {
        rig.add(connection, &audience(&["a"], &[]));
    }
    assert!(beats(&mut rig).is_empty());
    let (mut beats, mut left) = (Vec::new(), rig.subscribers.slots());
    while left > 0 {
        let before = beats.len();
        left -= rig.subscribers.heartbeat(left, 7, |connection, _| {
            beats.push(connection);
            Delivery::Taken
        });
        assert!(beats.len() - before <= 7);
    }
    assert_eq!(beats, (0..100).collect::<Vec<_>>());
}

#[test]
fn streams_end_when_their_deadline_is_over_a_few_at_a_time() {
    let limit = MaxLifetime::new(Duration::from_secs(600), Duration::from_secs(1)).unwrap();
    let mut rig = Rig::new(10, OnLoss::Skip);
    for connection in 0..100 {
        let id = rig.add(connection, &audience(&["a"], &[]));
        if connection < 90 {
            rig.subscribers
                .set_deadline(id, limit.draw(Duration::ZERO, u32::try_from(connection).unwrap()));
        }
    }
    let mut ended = Vec::new();
    for second in 0..600 {
        let now = limit.instant(Duration::from_secs(second));
        let before = ended.len();
        let mut left = limit.share(rig.subscribers.slots(), Duration::from_secs(1));
        while left > 0 {
            left -= rig.subscribers.end_overdue(left, 1, now, |connection, message| {
                assert!(matches!(message, Message::End));
                ended.push(connection);
                Delivery::Gone
            });
        }
        assert!(second >= 295 || ended.is_empty(), "after {second} s: {ended:?}");
        assert!(
            ended.len() - before <= limit.share(rig.subscribers.slots(), Duration::from_secs(1))
        );
    }
    ended.sort_unstable();
    assert_eq!(ended, (0..90).collect::<Vec<_>>());
    assert_eq!(rig.subscribers.len(), 10, "without a limit");
}

#[derive(Clone, Debug)]
enum Action {
    Add(u8),
    Remove(u8),
    Publish(u8),
    Deliver,
    DeliverSome(u8),
    Block(u8),
    Unblock(u8),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        2 => (0..8u8).prop_map(Action::Add),
        1 => (0..8u8).prop_map(Action::Remove),
        4 => (0..3u8).prop_map(Action::Publish),
        1 => Just(Action::Deliver),
        3 => (1..5u8).prop_map(Action::DeliverSome),
        1 => (0..8u8).prop_map(Action::Block),
        1 => (0..8u8).prop_map(Action::Unblock),
    ]
}

/// By the remainder of a connection's number. Half of them have a pattern.
static AUDIENCES: LazyLock<Vec<Audience>> = LazyLock::new(|| {
    let route = |number| match number % 2 {
        0 => format!("t{}", number % 3),
        _ => format!("/.well-known/:x(t{})", number % 3),
    };
    (0..6).map(|number| audience(&[&route(number)], &[])).collect()
});

proptest! {
    /// Whatever happens, a subscriber gets exactly the updates of its topic that were published
    /// while it was there, in order, as long as the history holds them.
    #[test]
    fn every_subscriber_gets_all_in_order(actions in prop::collection::vec(action(), 1..120)) {
        let mut rig = Rig::new(10_000, OnLoss::Skip);
        let mut present: HashMap<u64, SubscriberId> = HashMap::new();
        let mut expected: HashMap<u64, Vec<String>> = HashMap::new();
        let topic = |connection: u64| format!("t{}", connection % 3);
        for (index, action) in actions.iter().enumerate() {
            match *action {
                Action::Add(connection) => {
                    let connection = u64::from(connection);
                    let routes = &AUDIENCES[usize::try_from(connection % 6).unwrap()];
                    present.entry(connection).or_insert_with(|| {
                        expected.remove(&connection);
                        rig.received.remove(&connection);
                        rig.add(connection, routes)
                    });
                }
                Action::Remove(connection) => {
                    if let Some(id) = present.remove(&u64::from(connection)) {
                        rig.subscribers.remove(id);
                        expected.remove(&u64::from(connection));
                        rig.received.remove(&u64::from(connection));
                    }
                }
                Action::Publish(number) => {
                    let topic_name = topic(u64::from(number));
                    rig.publish(&index.to_string(), &topic_name, false);
                    for connection in present.keys().filter(|c| topic(**c) == topic_name) {
                        expected.entry(*connection).or_default().push(index.to_string());
                    }
                }
                Action::Deliver => rig.deliver(),
                Action::DeliverSome(budget) => rig.deliver_some(usize::from(budget)),
                Action::Block(connection) => rig.full.push(u64::from(connection)),
                Action::Unblock(connection) => {
                    rig.full.retain(|c| *c != u64::from(connection));
                    if let Some(id) = present.get(&u64::from(connection)) {
                        rig.subscribers.resume(*id);
                    }
                }
            }
        }
        rig.full.clear();
        for id in present.values() {
            rig.subscribers.resume(*id);
        }
        rig.deliver();
        prop_assert_eq!(&rig.received, &expected);
        prop_assert_eq!(rig.subscribers.len(), present.len());
    }
}

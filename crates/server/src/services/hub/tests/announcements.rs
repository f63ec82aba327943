//! The events of subscriptions.

use super::*;

/// Returns whether each event of a subscription in the log says that it is active, the oldest first.
fn announced(shared: &HubShared) -> Vec<bool> {
    let log = shared::lock(&shared.log);
    let texts = log
        .entries()
        .map(|(_, update, _)| String::from_utf8_lossy(update.frame.text()).into_owned());
    let texts = texts.filter(|text| text.contains("\"type\":\"Subscription\""));
    texts.map(|text| text.contains("\"active\":true")).collect()
}

/// Regression: if a subscriber connected again at another worker, the beginning of its subscription could be published
/// before the end of the former one.
#[test]
fn the_events_of_a_subscription_are_in_the_order_of_its_changes() {
    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    std::fs::write(&key, SECRET).unwrap();
    let shared = shared(|hub| {
        hub.subscriptions = true;
        hub.subscriber_keys = Some(key);
    });
    let claims = serde_json::json!({"sub": "urn:me", "mercure": {"subscribe": ["*"]}});
    let token = pollux_testkit::token::sign(&serde_json::json!({}), &claims, SECRET);
    let field = format!("Authorization: Bearer {token}");
    thread::scope(|scope| {
        for worker in 0..2 {
            let (shared, field) = (&shared, &field);
            scope.spawn(move || {
                let mut bench = Bench::new(shared, worker);
                for _ in 0..1000 {
                    let number = bench.stream(3, field);
                    bench.hub.stream_has_ended(number);
                    bench.response();
                }
            });
        }
    });
    let announced = announced(&shared);
    assert!(!announced.is_empty());
    let is_alternating = announced.chunks(2).all(|pair| *pair == [true, false]);
    assert!(is_alternating, "{announced:?}");
}

/// Regression: the event was lost.
#[test]
fn the_event_of_a_subscription_waits_if_no_update_is_accepted() {
    let shared = shared(|hub| hub.subscriptions = true);
    let mut bench = Bench::new(&shared, 0);
    let number = bench.stream(3, "X: y");
    bench.pump();
    shared.hold();
    let mut held = 0;
    while shared.publish(publication(&held.to_string()), None).is_ok() {
        held += 1;
    }
    bench.hub.stream_has_ended(number);
    shared.release();
    assert_eq!((announced(&shared), shared.head()), (vec![true], held + 1));
    // The alarm continues, although no subscriber is left.
    let alarm = bench.hub.care.expect("an alarm").alarm;
    let Bench { hub, rules, worker, reactor, .. } = &mut bench;
    let mut context = ServiceContext { rules, worker, reactor };
    hub.event(&mut context, Event::Time(alarm));
    assert!(bench.hub.care.is_some());
    bench.pump();
    assert_eq!(announced(&shared), [true, false]);
    assert!(!shared.has_announcements());
}

/// Regression: the event was lost.
#[test]
fn the_event_of_a_subscription_that_is_refused_is_published_later() {
    let shared = shared(|hub| hub.subscriptions = true);
    let mut bench = Bench::new(&shared, 0);
    let number = bench.stream(3, "X: y");
    bench.stream(4, "X: y");
    bench.pump();
    shared.hold();
    bench.hub.stream_has_ended(number);
    // What waits for the other process is lost with it.
    *shared::lock(&shared.transfer) = transfer::Transfer::None;
    shared.is_transferring.store(false, Ordering::Release);
    assert!(shared.has_announcements());
    // An event behind it does not overtake it, and no second one of it is published.
    bench.stream(5, "X: y");
    assert_eq!(announced(&shared), [true, true]);
    wait_until("the events", || {
        shared.announce_again();
        !shared.has_announcements()
    });
    assert_eq!(announced(&shared), [true, true, false, true]);
}

/// A store that is slow has a part of the events, and gets none of them twice.
#[test]
fn the_store_gets_each_event_once_and_not_all_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let shared = shared(|hub| {
        hub.subscriptions = true;
        hub.store = HubStoreConfig::File(directory.path().join("history"));
    });
    let mut bench = Bench::new(&shared, 0);
    for _ in 0..1500 {
        let number = bench.stream(3, "X: y");
        bench.hub.stream_has_ended(number);
        bench.response();
    }
    wait_until("all events", || {
        shared.announce_again();
        !shared.has_announcements()
    });
    let announced = announced(&shared);
    let is_alternating = announced.chunks(2).all(|pair| *pair == [true, false]);
    assert!(announced.len() == 3000 && is_alternating, "{}", announced.len());
}

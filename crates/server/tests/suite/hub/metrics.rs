//! The counters of a hub, as `/metrics` and `/stats.json` report them.

use super::*;
use pollux_hub::subscribers::OnLoss;
use pollux_server::stats::Counter;

impl Hub {
    /// Waits until the counters have these values: workers count after they have answered.
    fn wait_for(&self, expected: &[(Counter, u64)]) {
        wait_until(&format!("the counts {expected:?}"), || {
            let statistics = self.statistics();
            expected.iter().all(|(counter, value)| statistics.count(*counter) == *value)
        });
    }
}

#[test]
fn subscribers_updates_and_deliveries_are_counted() {
    let hub = Hub::start(2, |_, hub| {
        hub.limits.update_bytes = 1000;
        hub.limits.updates_per_second = 100;
    });
    let mut streams: Vec<_> = (0..5).map(|_| hub.subscribe("match=a", &[])).collect();
    let mut poll = hub.client();
    poll.send(format!("GET {PATH}?match=a HTTP/1.1\r\nHost: h\r\nPrefer: wait=20\r\n\r\n"));
    hub.wait_for(&[(Counter::Streams, 5), (Counter::HubPolls, 1)]);
    for data in ["1", "2"] {
        hub.publish("a", data);
    }
    hub.publish("b", "nobody reads this");
    for stream in &mut streams {
        assert_eq!([stream.data(), stream.data()], ["1", "2"]);
    }
    assert_eq!(poll.reply_to("GET").status, 200);
    hub.wait_for(&[(Counter::HubAccepted, 3), (Counter::HubPolls, 0)]);
    wait_until("deliveries", || (11..=12).contains(&hub.statistics().count(Counter::HubDelivered)));
    assert_eq!(hub.statistics().hub.unwrap().history_updates, 3);
    assert!(hub.statistics().hub.unwrap().history_bytes > 0);
    assert_eq!(hub.statistics().hub.unwrap().store, None);

    assert_eq!(hub.post("data=x", &[]).status, 400);
    assert_eq!(hub.post(&format!("topic=a&data={}", "x".repeat(2000)), &[]).status, 413);
    assert_eq!(hub.post("topic=a", &["Authorization: Bearer x.y.z"]).status, 401);
    let many = (0..400).find(|_| hub.post("topic=c", &[]).status == 429);
    assert!(many.is_some(), "the limit of the rate");
    hub.wait_for(&[
        (Counter::HubInvalid, 1),
        (Counter::HubTooLarge, 1),
        (Counter::HubUnauthorized, 1),
        (Counter::HubTooMany, 1),
    ]);
}

#[test]
fn the_ends_of_streams_are_counted_by_reason() {
    let hub = Hub::start(1, |_, hub| {
        hub.max_lifetime = Duration::from_secs(2);
        hub.limits.history_updates = 3;
    });
    let mut stream = hub.subscribe("match=b", &[]);
    assert_eq!(stream.event(), None);
    hub.wait_for(&[(Counter::HubEndedLifetime, 1), (Counter::HubTopicSets, 0)]);

    for on_loss in [OnLoss::Skip, OnLoss::Disconnect] {
        let hub = Hub::start(1, |_, hub| {
            hub.limits.history_updates = 3;
            hub.on_loss = on_loss;
        });
        let mut slow = hub.subscribe("match=a", &[]);
        let big = "x".repeat(200_000);
        for round in 0..100 {
            hub.publish("a", &format!("{round}-{big}"));
        }
        if on_loss == OnLoss::Skip {
            while !slow.data().starts_with("99-") {}
            assert!(hub.statistics().count(Counter::HubSkips) > 0);
            hub.wait_for(&[(Counter::HubEndedSlow, 0)]);
        } else {
            while slow.event().is_some() {}
            hub.wait_for(&[(Counter::HubEndedSlow, 1), (Counter::HubSkips, 0)]);
        }
    }
}

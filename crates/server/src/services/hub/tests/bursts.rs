//! More updates in one iteration than the history holds.

use super::*;
use pollux_hub::subscribers::OnLoss;

const HISTORY: usize = 120;

/// Creates a hub that ends the streams of subscribers which have missed an update.
fn strict(change: impl FnOnce(&mut HubConfig)) -> Arc<HubShared> {
    shared(|hub| {
        hub.publish_anonymous = true;
        hub.on_loss = OnLoss::Disconnect;
        hub.limits.history_updates = HISTORY;
        change(hub);
    })
}

impl Bench {
    /// Publishes an update as a client does.
    fn post(&mut self, fd: i32, form: &str) {
        let head = format!(
            "POST /hub HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {}\r\n\r\n",
            form.len()
        );
        let Ok(ParseStatus::Complete { request, .. }) = parse(head.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("a request")
        };
        let mut flow =
            self.call(fd, |hub, context, response| hub.begin(context, &request, response));
        for part in [Part::Data(form.as_bytes()), Part::End { trailers: &[] }] {
            let Flow::NeedBody(exchange) = flow else { panic!("no content is wanted") };
            flow =
                self.call(fd, |hub, context, response| hub.body(context, exchange, part, response));
        }
        let response = self.response();
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }

    /// Begins a stream of a topic to which nobody publishes in these tests.
    fn quiet(&mut self, fd: i32) {
        assert!(matches!(self.request(fd, "/hub?match=quiet", "X: y"), Flow::Waiting(_)));
    }

    fn is_there(&self, fd: i32) -> bool {
        let connection = connection_of(exchange_of(fd).client);
        let ids = (0..).map(SubscriberId::of).take(self.hub.subscribers.slots());
        ids.into_iter().any(|id| self.hub.subscribers.connection(id) == Some(connection))
    }
}

/// Regression: a worker read the log only between two iterations. If updates had left it by then, all streams were
/// those of slow subscribers, whatever their topics.
#[test]
fn a_burst_to_one_topic_is_no_loss_for_another() {
    let by_number = |_: &mut HubConfig| ();
    let by_bytes = |hub: &mut HubConfig| {
        (hub.limits.history_updates, hub.limits.history_bytes) = (10_000, 40_000);
    };
    for change in [&by_number as &dyn Fn(&mut HubConfig), &by_bytes] {
        let shared = strict(change);
        let mut bench = Bench::new(&shared, 0);
        bench.quiet(3);
        for _ in 0..10 * HISTORY {
            bench.post(4, "topic=noise&data=x");
        }
        assert!(shared.statistics().history_updates < 10 * HISTORY as u64);
        assert_eq!(bench.pump(), []);
        assert!(bench.is_there(3));
        bench.post(4, "topic=quiet&data=x");
        assert_eq!(bench.pump().len(), 1);
    }
}

/// The hub asks to be called before the updates of a burst have left the history, and then sends more than otherwise.
#[test]
fn a_subscriber_gets_a_whole_burst() {
    const UPDATES: usize = 10 * HISTORY;
    let mut bench = Bench::new(&strict(|_| ()), 0);
    bench.stream(3, "X: y");
    let mut sent = 0;
    for _ in 0..UPDATES {
        bench.post(4, "topic=a&data=x");
        if bench.worker.has_burst {
            sent += bench.pump_once().len();
            assert!(!bench.worker.has_burst);
        }
    }
    sent += bench.pump().len();
    assert_eq!(sent, UPDATES);
}

/// Regression: a subscriber of many topics made all others miss updates.
#[test]
fn the_events_of_many_subscriptions_are_no_loss_for_others() {
    let mut bench = Bench::new(&strict(|hub| hub.subscriptions = true), 0);
    bench.quiet(3);
    let topics: Vec<_> = (0..100).map(|number| format!("match={number}")).collect();
    let target = format!("/hub?{}", topics.join("&"));
    for fd in [4, 5] {
        assert!(matches!(bench.request(fd, &target, "X: y"), Flow::Waiting(_)));
    }
    assert_eq!(bench.pump(), []);
    assert!([3, 4, 5].iter().all(|fd| bench.is_there(*fd)));
    // The streams of both end.
    for fd in [4, 5] {
        bench.hub.forget(connection_of(exchange_of(fd).client));
    }
    assert_eq!(bench.pump(), []);
    assert!(bench.is_there(3));
}

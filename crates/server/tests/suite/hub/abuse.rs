//! Subscribers that read slowly or not at all, many at a time, and publishers that flood: other
//! clients are not affected.

use super::*;
use std::thread;

#[test]
fn a_subscriber_that_reads_a_byte_at_a_time_delays_no_other() {
    on_every_mechanism(|mechanism| {
        let hub = Hub::start(1, |config, _| config.mechanism = mechanism.clone());
        let mut slow = hub.subscribe("match=a", &[]);
        let mut quick = hub.subscribe("match=a", &[]);
        let big = "x".repeat(50_000);
        for round in 0..60 {
            hub.publish("a", &format!("{round}-{big}"));
            // One byte for each update.
            let mut byte = [0];
            slow.reader.get_mut().read_exact(&mut byte).unwrap();
            assert!(quick.data().starts_with(&format!("{round}-")), "{mechanism:?}");
        }
        assert_eq!(hub.request("GET", "/", &[]).status, 404, "{mechanism:?}");
    });
}

#[test]
fn many_that_never_read_cost_no_memory_and_no_time() {
    const SUBSCRIBERS: usize = 200;
    let hub = Hub::start(1, |_, hub| hub.limits.history_updates = 10);
    let silent: Vec<_> = (0..SUBSCRIBERS).map(|_| hub.subscribe("match=a", &[])).collect();
    let mut quick = hub.subscribe("match=a", &[]);
    let big = "x".repeat(100_000);
    let before = resident_bytes();
    for round in 0..60 {
        hub.publish("a", &format!("{round}-{big}"));
        assert!(quick.data().starts_with(&format!("{round}-")));
    }
    // 60 updates of 100 kB for each of 200 would be 1.2 GB.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 100 << 20, "{grown} bytes for {} subscribers", silent.len());
}

/// Returns the memory of this process, which includes the hub, in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn a_flood_of_updates_delays_no_plain_request_for_long() {
    let hub = Hub::start(1, |_, _| ());
    let mut stream = hub.subscribe("match=a", &[]);
    let address = hub.address;
    let publishers: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(move || {
                let mut client = Client::connect(address);
                for _ in 0..250 {
                    assert_eq!(post(&mut client, "topic=a&data=x", &[]).status, 200);
                }
            })
        })
        .collect();
    // The server answers these requests during the flood, each within the client's timeout.
    for _ in 0..20 {
        assert_eq!(hub.request("GET", "/", &[]).status, 404);
    }
    for publisher in publishers {
        publisher.join().unwrap();
    }
    for _ in 0..1000 {
        assert_eq!(stream.data(), "x");
    }
}

/// Each subscriber gets the update of its own topic, whatever is published for others.
#[test]
fn updates_of_many_topics_reach_their_own_subscribers_alone() {
    const SUBSCRIBERS: usize = 100;
    const TOPICS: usize = 500;
    let hub = Hub::start(2, |_, hub| hub.limits.history_updates = 10);
    let own = |number: usize| number * TOPICS / SUBSCRIBERS;
    let mut streams: Vec<_> = (0..SUBSCRIBERS)
        .map(|number| hub.subscribe(&format!("match=topic{}", own(number)), &[]))
        .collect();
    let mut publisher = hub.client();
    let mut publish = |topic: usize, data: &str| {
        let form = format!("topic=topic{topic}&data={data}");
        assert_eq!(post(&mut publisher, &form, &[]).status, 200);
    };
    let mut number = 0;
    for topic in 0..TOPICS {
        publish(topic, &topic.to_string());
        if number < SUBSCRIBERS && topic == own(number) {
            assert_eq!(streams[number].data(), topic.to_string());
            number += 1;
        }
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        publish(own(number), "end");
        assert_eq!(stream.data(), "end", "nothing of another topic came before");
    }
}

//! `--hub-max-lifetime`: a stream ends after some time, whatever the expiry of its token.

use super::*;

fn limited(seconds: u64) -> Hub {
    Hub::start(1, |_, hub| hub.max_lifetime = Duration::from_secs(seconds))
}

#[test]
fn a_stream_ends_with_its_last_chunk_and_the_next_one_continues() {
    let hub = limited(4);
    let started_at = Instant::now();
    let mut stream = hub.subscribe("match=a", &[]);
    let mut http10 = TcpStream::connect(hub.address).unwrap();
    http10.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(http10, "GET {PATH}?match=a HTTP/1.0\r\nHost: hub.test\r\n\r\n").unwrap();
    let first = hub.publish("a", "1");
    assert_eq!(stream.data(), "1");
    assert_eq!(stream.event(), None);
    let elapsed = started_at.elapsed();
    assert!(stream.has_end, "without the last chunk the client would take it for a failure");
    // A stream ends at a random time between half of the maximum lifetime and all of it; the margins
    // allow for busy machines.
    let (least, most) = (Duration::from_millis(1900), Duration::from_millis(4700));
    assert!((least..most).contains(&elapsed), "{elapsed:?}");
    let mut rest = String::new();
    http10.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with(&format!("id: {first}\ndata: 1\n\n")), "{rest}");

    hub.publish("a", "2");
    hub.publish("b", "other");
    let mut next = hub.subscribe("match=a", &[&format!("Last-Event-ID: {first}")]);
    hub.publish("a", "3");
    assert_eq!([next.data(), next.data()], ["2", "3"]);
}

#[test]
fn streams_that_began_at_once_do_not_end_at_once() {
    let hub = limited(12);
    let streams: Vec<_> = (0..200).map(|_| hub.subscribe("match=a", &[])).collect();
    let begun = Instant::now();
    let ends: Vec<_> = std::thread::scope(|scope| {
        let wait = |mut stream: Stream| {
            scope.spawn(move || {
                assert_eq!(stream.event(), None);
                begun.elapsed().as_secs()
            })
        };
        let threads: Vec<_> = streams.into_iter().map(wait).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ends.iter().all(|second| (4..=13).contains(second)), "{ends:?}");
    let in_second = |second| ends.iter().filter(|end| **end == second).count();
    assert!((0..20).all(|second| in_second(second) < 120), "{ends:?}");
}

#[test]
fn an_address_gets_its_place_back() {
    let hub = Hub::start(1, |_, hub| {
        hub.max_lifetime = Duration::from_secs(3);
        hub.limits.subscribers_per_address = 1;
    });
    let mut stream = hub.subscribe("match=a", &[]);
    let target = format!("{PATH}?match=a");
    assert_eq!(hub.request("GET", &target, &[]).status, 429);
    assert_eq!(stream.event(), None);
    // The address may open another stream.
    let _next = hub.subscribe("match=a", &[]);
}

#[test]
fn without_a_limit_streams_stay() {
    let hub = limited(0);
    let mut stream = hub.subscribe("match=a", &[]);
    // Nothing ends the stream in a time that is longer than the limits of the other tests.
    std::thread::sleep(Duration::from_secs(3));
    hub.publish("a", "1");
    assert_eq!(stream.data(), "1");
}

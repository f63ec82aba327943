use super::*;
use crate::reactor::{ClientId, Command};
use std::io::ErrorKind;

fn pool(origins: &[&str], change: impl FnOnce(&mut FrontendConfig)) -> OriginPool {
    let mut config =
        FrontendConfig::new(origins.iter().map(|origin| origin.parse().unwrap()).collect());
    change(&mut config);
    OriginPool::new(&config)
}

fn exchange(number: u32) -> ExchangeId {
    ExchangeId { client: ClientId { fd: 3, generation: 1 }, number }
}

fn upstream(dialled: DialOutcome) -> UpstreamId {
    match dialled {
        DialOutcome::Upstream(upstream) => upstream,
        other => panic!("{other:?}"),
    }
}

/// Returns the exchanges that were woken since the last call.
fn woken(reactor: &mut Reactor) -> Vec<u32> {
    std::iter::from_fn(|| reactor.next_command())
        .filter_map(|command| match command {
            Command::Wake(exchange, WakeReason::Capacity) => Some(exchange.number),
            _ => None,
        })
        .collect()
}

const DOWN: Failure = Failure::Connect(ErrorKind::ConnectionRefused);

#[test]
fn what_was_kept_is_taken_again_the_last_one_first() {
    let mut reactor = Reactor::default();
    let mut all = pool(&["http://127.0.0.1:1"], |config| config.keep = 2);
    let upstreams: Vec<_> =
        (0..3).map(|number| upstream(all.dial(&mut reactor, 0, 0, exchange(number)))).collect();
    for &upstream in &upstreams {
        all.keep(&mut reactor, 5, 0, upstream);
    }
    assert_eq!(all.open(), 2, "one is more than are kept");
    assert_eq!(
        (all.take(0), all.take(0), all.take(0)),
        (Some(upstreams[1]), Some(upstreams[0]), None)
    );
    // Input on an idle connection closes it, and so does its end.
    all.keep(&mut reactor, 5, 0, upstreams[0]);
    all.keep(&mut reactor, 5, 0, upstreams[1]);
    let event = Event::Received(upstreams[0], b"HTTP/1.1 200 OK\r\n\r\n");
    assert!(all.is_meant(&event) && !all.is_meant(&Event::Ended(upstreams[2])));
    all.event(&mut reactor, 6, event);
    all.event(&mut reactor, 6, Event::Ended(upstreams[1]));
    assert_eq!((all.take(0), all.open()), (None, 0));
}

#[test]
fn what_is_kept_for_too_long_is_closed() {
    let mut reactor = Reactor::default();
    let mut all = pool(&["http://127.0.0.1:1"], |config| {
        config.keep_timeout = std::time::Duration::from_secs(2);
    });
    let first = upstream(all.dial(&mut reactor, 0, 0, exchange(1)));
    let second = upstream(all.dial(&mut reactor, 0, 0, exchange(2)));
    all.keep(&mut reactor, 0, 0, first);
    all.keep(&mut reactor, 15, 0, second);
    let alarm = all.sweep.expect("somebody looks after them");
    all.event(&mut reactor, 19, Event::Time(alarm));
    assert_eq!(all.open(), 2);
    all.event(&mut reactor, 20, Event::Time(alarm));
    assert_eq!(all.open(), 1);
    all.event(&mut reactor, 40, Event::Time(alarm));
    assert_eq!((all.open(), all.sweep), (0, None), "nobody looks after nothing");
}

#[test]
fn an_exchange_without_a_connection_waits_and_none_is_lost() {
    let mut reactor = Reactor::default();
    let mut all = pool(&["http://127.0.0.1:1", "/b=http://127.0.0.1:2"], |config| {
        config.connections = 2.try_into().unwrap();
    });
    let first = upstream(all.dial(&mut reactor, 0, 0, exchange(1)));
    let second = upstream(all.dial(&mut reactor, 0, 0, exchange(2)));
    for number in 3..6 {
        assert_eq!(all.dial(&mut reactor, 0, 0, exchange(number)), DialOutcome::NoCapacity);
    }
    woken(&mut reactor);
    // An exchange that stops waiting frees no connection. If it was woken before, the next exchange is woken
    // in its place.
    all.forget(&mut reactor, exchange(4));
    assert!(woken(&mut reactor).is_empty());
    all.close(&mut reactor, first);
    assert_eq!(woken(&mut reactor), [3]);
    all.forget(&mut reactor, exchange(3));
    assert_eq!(woken(&mut reactor), [5]);
    upstream(all.dial(&mut reactor, 0, 0, exchange(5)));
    // An idle connection is closed to make room for a connection to another origin.
    all.keep(&mut reactor, 1, 0, second);
    upstream(all.dial(&mut reactor, 1, 1, exchange(6)));
    assert_eq!((all.open(), all.take(0)), (2, None));
}

#[test]
fn an_origin_that_fails_is_left_aside_and_tried_again() {
    let mut all = pool(&["http://127.0.0.1:1", "http://127.0.0.1:2"], |_| {});
    let chosen = |all: &OriginPool, now| all.choose([0, 1].into_iter(), now, 0);
    for _ in 0..2 {
        all.failed(100, 0, DOWN);
        assert_eq!(chosen(&all, 100), 0, "twice is not yet often");
    }
    all.failed(100, 0, DOWN);
    assert_eq!((chosen(&all, 100), chosen(&all, 109)), (1, 1));
    assert_eq!(chosen(&all, 110), 0, "after a second it is tried");
    all.failed(110, 0, DOWN);
    assert_eq!((chosen(&all, 129), chosen(&all, 130)), (1, 0), "then after two");
    for _ in 0..20 {
        all.failed(200, 0, DOWN);
    }
    assert_eq!((chosen(&all, 359), chosen(&all, 360)), (1, 0), "and never after more than 16");
    // The origin that failed is not tried again at once; if all fail, one is still tried.
    assert_eq!(all.choose([0, 1].into_iter(), 500, 0b01), 1);
    assert_eq!(all.choose([0, 1].into_iter(), 500, 0b11), 1);
    for _ in 0..3 {
        all.failed(500, 1, Failure::Silent);
    }
    assert_eq!(chosen(&all, 500), 0);
    all.succeeded(0);
    assert_eq!((chosen(&all, 500), all.origins[0].failures), (0, 0));
    // A fault of this server or of the request does not count as a failure of the origin.
    for _ in 0..10 {
        all.failed(600, 0, Failure::Request);
        all.failed(600, 0, Failure::Connect(ErrorKind::OutOfMemory));
    }
    assert_eq!(chosen(&all, 600), 0);
}

#[test]
fn a_name_is_resolved_once_and_again_when_it_is_old() {
    let mut reactor = Reactor::default();
    let mut all = pool(&["http://origin.example:81"], |_| {});
    let lookups = |reactor: &mut Reactor| {
        std::iter::from_fn(|| reactor.next_command())
            .filter_map(|command| match command {
                Command::Resolve(question) => Some((question.name, question.port, question.id)),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(all.dial(&mut reactor, 0, 0, exchange(1)), DialOutcome::NoName);
    assert_eq!(all.dial(&mut reactor, 0, 0, exchange(2)), DialOutcome::NoName);
    let questions = lookups(&mut reactor);
    assert_eq!(questions.len(), 1);
    let id = questions[0].2;
    assert_eq!((&*questions[0].0, questions[0].1), ("origin.example", 81));
    // The name has no address: a waiting exchange is woken with that result, and the name is not resolved
    // again at once.
    let none = Event::Resolved(id, Err(ResolveError::Failed("none".into())));
    let of_others = Event::Resolved(LookupGroup::new().lookup(0), Err(ResolveError::Busy));
    assert!(all.is_meant(&none) && !all.is_meant(&of_others));
    all.event(&mut reactor, 1, none);
    assert_eq!(woken(&mut reactor), [1, 2]);
    assert_eq!(all.dial(&mut reactor, 5, 0, exchange(1)), DialOutcome::Failed(Failure::Name));
    assert_eq!(all.dial(&mut reactor, 11, 0, exchange(1)), DialOutcome::NoName);
    assert_eq!(lookups(&mut reactor).len(), 1);
    let addresses: Vec<SocketAddr> =
        vec!["192.0.2.1:81".parse().unwrap(), "192.0.2.2:81".parse().unwrap()];
    all.event(&mut reactor, 12, Event::Resolved(id, Ok(addresses)));
    assert_eq!(woken(&mut reactor), [1]);
    upstream(all.dial(&mut reactor, 12, 0, exchange(1)));
    assert!(lookups(&mut reactor).is_empty());
    assert_eq!(all.addresses(0), 2);
    // An old address is used, and the name is resolved again meanwhile.
    upstream(all.dial(&mut reactor, 12 + NAME_TICKS, 0, exchange(1)));
    assert_eq!(lookups(&mut reactor).len(), 1);
    all.event(&mut reactor, 400, Event::Resolved(id, Err(ResolveError::Busy)));
    upstream(all.dial(&mut reactor, 400, 0, exchange(1)));
}

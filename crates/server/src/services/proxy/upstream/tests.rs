use super::*;
use crate::reactor::{Ask, ClientId};
use std::io::ErrorKind;

fn upstream(origins: &[&str], change: impl FnOnce(&mut FrontendConfig)) -> Upstream {
    let mut config =
        FrontendConfig::new(origins.iter().map(|origin| origin.parse().unwrap()).collect());
    change(&mut config);
    Upstream::new(&config)
}

fn exchange(number: u32) -> ExchangeId {
    ExchangeId { client: ClientId { fd: 3, generation: 1 }, number }
}

fn link(dialled: Dialled) -> LinkId {
    match dialled {
        Dialled::Link(link) => link,
        other => panic!("{other:?}"),
    }
}

/// Who was woken since this was last asked.
fn woken(outside: &mut Outside) -> Vec<u32> {
    std::iter::from_fn(|| outside.next_ask())
        .filter_map(|ask| match ask {
            Ask::Wake(exchange, GO_ON) => Some(exchange.number),
            _ => None,
        })
        .collect()
}

const DOWN: Failure = Failure::Connect(ErrorKind::ConnectionRefused);

#[test]
fn what_was_kept_is_taken_again_the_last_one_first() {
    let mut outside = Outside::default();
    let mut all = upstream(&["http://127.0.0.1:1"], |config| config.keep = 2);
    let links: Vec<_> =
        (0..3).map(|number| link(all.dial(&mut outside, 0, 0, exchange(number)))).collect();
    for &link in &links {
        all.keep(&mut outside, 5, 0, link);
    }
    assert_eq!(all.open(), 2, "one is more than are kept");
    assert_eq!((all.take(0), all.take(0), all.take(0)), (Some(links[1]), Some(links[0]), None));
    // What comes on one that nobody uses closes it, as its end does.
    all.keep(&mut outside, 5, 0, links[0]);
    all.keep(&mut outside, 5, 0, links[1]);
    let wake = Wake::Received(links[0], b"HTTP/1.1 200 OK\r\n\r\n");
    assert!(all.is_meant(&wake) && !all.is_meant(&Wake::Ended(links[2])));
    all.event(&mut outside, 6, wake);
    all.event(&mut outside, 6, Wake::Ended(links[1]));
    assert_eq!((all.take(0), all.open()), (None, 0));
}

#[test]
fn what_is_kept_for_too_long_is_closed() {
    let mut outside = Outside::default();
    let mut all = upstream(&["http://127.0.0.1:1"], |config| {
        config.keep_timeout = std::time::Duration::from_secs(2);
    });
    let first = link(all.dial(&mut outside, 0, 0, exchange(1)));
    let second = link(all.dial(&mut outside, 0, 0, exchange(2)));
    all.keep(&mut outside, 0, 0, first);
    all.keep(&mut outside, 15, 0, second);
    let alarm = all.sweep.expect("somebody looks after them");
    all.event(&mut outside, 19, Wake::Time(alarm));
    assert_eq!(all.open(), 2);
    all.event(&mut outside, 20, Wake::Time(alarm));
    assert_eq!(all.open(), 1);
    all.event(&mut outside, 40, Wake::Time(alarm));
    assert_eq!((all.open(), all.sweep), (0, None), "nobody looks after nothing");
}

#[test]
fn who_finds_no_place_waits_and_none_is_lost() {
    let mut outside = Outside::default();
    let mut all = upstream(&["http://127.0.0.1:1", "/b=http://127.0.0.1:2"], |config| {
        config.connections = 2.try_into().unwrap();
    });
    let first = link(all.dial(&mut outside, 0, 0, exchange(1)));
    let second = link(all.dial(&mut outside, 0, 0, exchange(2)));
    for number in 3..6 {
        assert_eq!(all.dial(&mut outside, 0, 0, exchange(number)), Dialled::NoPlace);
    }
    woken(&mut outside);
    // Who goes away frees no place, and who was woken and goes away passes his on.
    all.forget(&mut outside, exchange(4));
    assert!(woken(&mut outside).is_empty());
    all.close(&mut outside, first);
    assert_eq!(woken(&mut outside), [3]);
    all.forget(&mut outside, exchange(3));
    assert_eq!(woken(&mut outside), [5]);
    link(all.dial(&mut outside, 0, 0, exchange(5)));
    // What is only kept makes room for another origin's.
    all.keep(&mut outside, 1, 0, second);
    link(all.dial(&mut outside, 1, 1, exchange(6)));
    assert_eq!((all.open(), all.take(0)), (2, None));
}

#[test]
fn an_origin_that_fails_is_left_aside_and_tried_again() {
    let mut all = upstream(&["http://127.0.0.1:1", "http://127.0.0.1:2"], |_| {});
    let chosen = |all: &Upstream, now| all.choose([0, 1].into_iter(), now, 0);
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
    // The one that was tried is not tried at once again; where all fail, one is asked still.
    assert_eq!(all.choose([0, 1].into_iter(), 500, 0b01), 1);
    assert_eq!(all.choose([0, 1].into_iter(), 500, 0b11), 1);
    for _ in 0..3 {
        all.failed(500, 1, Failure::Silent);
    }
    assert_eq!(chosen(&all, 500), 0);
    all.succeeded(0);
    assert_eq!((chosen(&all, 500), all.origins[0].failures), (0, 0));
    // What is this server's own fault, or the request's, is nobody's else.
    for _ in 0..10 {
        all.failed(600, 0, Failure::Request);
        all.failed(600, 0, Failure::Connect(ErrorKind::OutOfMemory));
    }
    assert_eq!(chosen(&all, 600), 0);
}

#[test]
fn a_name_is_asked_for_once_and_again_when_it_is_old() {
    let mut outside = Outside::default();
    let mut all = upstream(&["http://origin.example:81"], |_| {});
    let asked = |outside: &mut Outside| {
        std::iter::from_fn(|| outside.next_ask())
            .filter_map(|ask| match ask {
                Ask::Resolve(question) => Some((question.name, question.port, question.note)),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(all.dial(&mut outside, 0, 0, exchange(1)), Dialled::NoName);
    assert_eq!(all.dial(&mut outside, 0, 0, exchange(2)), Dialled::NoName);
    let questions = asked(&mut outside);
    assert_eq!(questions.len(), 1);
    let note = questions[0].2;
    assert_eq!((&*questions[0].0, questions[0].1), ("origin.example", 81));
    // It has none: who waits is woken, and told so, and it is not asked for again at once.
    let none = Wake::Resolved(note, Err("none".into()));
    assert!(all.is_meant(&none) && !all.is_meant(&Wake::Resolved(0, Err(String::new()))));
    all.event(&mut outside, 1, none);
    assert_eq!(woken(&mut outside), [1, 2]);
    assert_eq!(all.dial(&mut outside, 5, 0, exchange(1)), Dialled::Failed(Failure::Name));
    assert_eq!(all.dial(&mut outside, 11, 0, exchange(1)), Dialled::NoName);
    assert_eq!(asked(&mut outside).len(), 1);
    let addresses: Vec<SocketAddr> =
        vec!["192.0.2.1:81".parse().unwrap(), "192.0.2.2:81".parse().unwrap()];
    all.event(&mut outside, 12, Wake::Resolved(note, Ok(addresses)));
    assert_eq!(woken(&mut outside), [1]);
    link(all.dial(&mut outside, 12, 0, exchange(1)));
    assert!(asked(&mut outside).is_empty() && all.has_more_addresses(0));
    // Old: it is used, and asked for meanwhile.
    link(all.dial(&mut outside, 12 + NAME_TICKS, 0, exchange(1)));
    assert_eq!(asked(&mut outside).len(), 1);
    all.event(&mut outside, 400, Wake::Resolved(note, Err("lost".into())));
    link(all.dial(&mut outside, 400, 0, exchange(1)));
}

use super::*;
use std::net::SocketAddr;

fn endpoint() -> Endpoint {
    Endpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], 80)))
}

fn asked(outside: &mut Outside) -> Vec<String> {
    std::iter::from_fn(|| outside.next_ask()).map(|ask| format!("{ask:?}")).collect()
}

#[test]
fn a_link_is_asked_about_once_however_much_is_asked() {
    let mut outside = Outside::default();
    let link = outside.dial(endpoint(), 10, To::Application);
    outside.send(link).bytes().extend_from_slice(b"a");
    outside.pause(link);
    outside.send(link).bytes().extend_from_slice(b"b");
    assert_eq!(asked(&mut outside), [format!("{:?}", Ask::Link(link))]);
    assert_eq!(outside.links.get(link).unwrap().output.len(), 2);
    outside.go_on(link);
    outside.finish(link);
    assert_eq!(outside.asks(), 1);
    let state = outside.links.get(link).unwrap();
    assert!(!state.is_paused && state.is_finished && !state.is_closed);
}

#[test]
fn what_is_gone_is_not_what_has_its_place_now() {
    let mut outside = Outside::default();
    let first = outside.dial(endpoint(), 10, To::Application);
    outside.links.remove(first).unwrap();
    let second = outside.dial(endpoint(), 10, To::Application);
    assert_eq!((first.index(), outside.links.len()), (second.index(), 1));
    asked(&mut outside);
    // All of this says nothing to the second.
    outside.send(first).bytes().extend_from_slice(b"lost");
    outside.close(first);
    outside.pause(first);
    assert!(asked(&mut outside).is_empty() && outside.links.remove(first).is_none());
    assert!(outside.send(first).is_empty(), "what was lost is not kept");
    let state = outside.links.get(second).unwrap();
    assert!(state.output.is_empty() && !state.is_closed && !state.is_paused);
}

#[test]
fn an_alarm_that_is_cancelled_or_over_is_nobodys() {
    let mut outside = Outside::default();
    let first = outside.timer(5, To::Application);
    assert_eq!(outside.alarms.get(first), Some((To::Application, 5)));
    outside.cancel(first);
    assert_eq!(outside.alarms.get(first), None);
    let second = outside.timer(7, To::Application);
    assert_eq!(first.index(), second.index());
    outside.cancel(first);
    assert_eq!(outside.alarms.take(second.index()), Some((second, To::Application)));
    assert_eq!(outside.alarms.take(second.index()), None);
}

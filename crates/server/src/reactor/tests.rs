use super::*;
use std::net::SocketAddr;

fn endpoint() -> Endpoint {
    Endpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], 80)))
}

fn commands(reactor: &mut Reactor) -> Vec<String> {
    std::iter::from_fn(|| reactor.next_command()).map(|command| format!("{command:?}")).collect()
}

#[test]
fn an_upstream_is_queued_once_however_many_commands_it_gets() {
    let mut reactor = Reactor::default();
    let upstream = reactor.dial(endpoint(), 10, EventTarget::Service);
    reactor.send(upstream).bytes().extend_from_slice(b"a");
    reactor.pause(upstream);
    reactor.send(upstream).bytes().extend_from_slice(b"b");
    assert_eq!(commands(&mut reactor), [format!("{:?}", Command::Upstream(upstream))]);
    assert_eq!(reactor.upstreams.get(upstream).unwrap().output.len(), 2);
    reactor.go_on(upstream);
    reactor.finish(upstream);
    assert_eq!(reactor.pending_commands(), 1);
    let state = reactor.upstreams.get(upstream).unwrap();
    assert!(!state.is_paused && state.is_finished && !state.is_closed);
}

#[test]
fn what_is_gone_is_not_what_has_its_place_now() {
    let mut reactor = Reactor::default();
    let first = reactor.dial(endpoint(), 10, EventTarget::Service);
    reactor.upstreams.remove(first).unwrap();
    let second = reactor.dial(endpoint(), 10, EventTarget::Service);
    assert_eq!((first.index(), reactor.upstreams.len()), (second.index(), 1));
    commands(&mut reactor);
    // These commands do not affect the second connection.
    reactor.send(first).bytes().extend_from_slice(b"lost");
    reactor.close(first);
    reactor.pause(first);
    assert!(commands(&mut reactor).is_empty() && reactor.upstreams.remove(first).is_none());
    assert!(reactor.send(first).is_empty(), "what was lost is not kept");
    let state = reactor.upstreams.get(second).unwrap();
    assert!(state.output.is_empty() && !state.is_closed && !state.is_paused);
}

#[test]
fn an_alarm_that_is_cancelled_or_over_is_nobodys() {
    let mut reactor = Reactor::default();
    let first = reactor.timer(5, EventTarget::Service);
    assert_eq!(reactor.alarms.get(first), Some((EventTarget::Service, 5)));
    reactor.cancel(first);
    assert_eq!(reactor.alarms.get(first), None);
    let second = reactor.timer(7, EventTarget::Service);
    assert_eq!(first.index(), second.index());
    reactor.cancel(first);
    assert_eq!(reactor.alarms.take(second.index()), Some((second, EventTarget::Service)));
    assert_eq!(reactor.alarms.take(second.index()), None);
}

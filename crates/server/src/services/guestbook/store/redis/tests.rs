//! The store without I/O: its commands, and its handling of events.

use super::*;
use crate::{
    reactor::{ClientId, Command, ExchangeId, UpstreamState},
    services::guestbook::tickets::Tickets,
};
use pollux_guestbook::Answer;

const VISIT: Request = Request::Visit { shown: 1 };
/// The reply to a visit.
const REPLY: &[u8] = b"*0\r\n:7\r\n";

/// A store whose driver the test simulates.
struct SimulatedStore {
    store: RedisStore,
    reactor: Reactor,
    tickets: Tickets,
    now: u32,
}

impl SimulatedStore {
    /// Creates a store whose server has these ports of this host as its addresses.
    fn new(policy: &str, ports: &[u16]) -> Self {
        let mut store = RedisStore::new("redis://a.test".parse().unwrap(), policy.parse().unwrap());
        if !ports.is_empty() {
            store.addresses =
                Addresses::Known { all: ports.iter().map(|&port| at(port)).collect(), next: 0 };
        }
        let (reactor, tickets) = (Reactor::default(), Tickets::default());
        Self { store, reactor, tickets, now: 100 }
    }

    fn visit(&mut self) -> Ticket {
        let client = ClientId { fd: 1, generation: 1 };
        let ticket = self.tickets.insert(ExchangeId { client, number: 1 });
        self.store.submit(&mut self.reactor, self.now, ticket, &VISIT);
        ticket
    }

    fn deliver(&mut self, event: Event<'_>) {
        self.store.event(&mut self.reactor, self.now, event);
    }

    /// Returns the upstream connections to dial, with their endpoints. Removes those that are closed.
    fn dialled(&mut self) -> Vec<(UpstreamId, Endpoint)> {
        let mut dialled = Vec::new();
        while let Some(command) = self.reactor.next_command() {
            let Command::Upstream(id) = command else { continue };
            let Some(upstream) = self.reactor.upstreams.get(id) else { continue };
            if upstream.is_closed {
                self.reactor.upstreams.remove(id);
            } else if let UpstreamState::ToDial(endpoint, _) = &upstream.adapter {
                dialled.push((id, endpoint.clone()));
            }
        }
        dialled
    }

    /// Returns the only upstream connection to dial.
    fn dialled_once(&mut self) -> (UpstreamId, Endpoint) {
        let all = self.dialled();
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().next().unwrap()
    }

    fn connects(&mut self, upstream: UpstreamId) {
        self.reactor.upstreams.get_mut(upstream).unwrap().adapter = UpstreamState::Open(5);
        self.deliver(Event::Connected(upstream));
    }

    fn fails(&mut self, upstream: UpstreamId) {
        self.fails_with(upstream, ErrorKind::ConnectionRefused);
    }

    fn fails_with(&mut self, upstream: UpstreamId, why: ErrorKind) {
        self.reactor.upstreams.remove(upstream);
        self.deliver(Event::Failed(upstream, why.into()));
    }

    /// Returns the answers since the last call.
    fn answers(&mut self) -> Vec<Result<i64, StoreError>> {
        let number = |answer| match answer {
            Answer::Visit { visitor, .. } => visitor,
            Answer::Posted => panic!("a visit was requested"),
        };
        self.store.answers().drain(..).map(|(_, answer)| answer.map(number)).collect()
    }

    fn is_refused(&mut self) -> bool {
        self.visit();
        matches!(self.answers()[..], [Err(StoreError::Unreachable(_))])
    }
}

fn at(port: u16) -> Endpoint {
    Endpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], port)))
}

/// One of the two addresses of a name does not work: no request fails, and the address is not tried again and
/// again.
#[test]
fn a_dead_address_costs_no_request() {
    for policy in ["per-request", "pooled:2"] {
        let mut redis = SimulatedStore::new(policy, &[1, 2]);
        redis.visit();
        let (dead, endpoint) = redis.dialled_once();
        assert_eq!(endpoint, at(1));
        redis.fails(dead);
        let (alive, endpoint) = redis.dialled_once();
        assert_eq!(endpoint, at(2), "{policy}");
        redis.connects(alive);
        redis.deliver(Event::Received(alive, REPLY));
        assert_eq!(redis.answers(), [Ok(7)], "{policy}");
        // From now on the working address is dialled, also for two requests at once.
        redis.visit();
        redis.visit();
        assert!(redis.dialled().iter().all(|(_, endpoint)| *endpoint == at(2)), "{policy}");
        assert!(redis.answers().is_empty(), "{policy}");
    }
}

#[test]
fn after_all_addresses_have_failed_it_is_reported_and_the_name_resolved_again() {
    let mut redis = SimulatedStore::new("per-request", &[1, 2]);
    redis.visit();
    redis.visit();
    // Two connections that fail together change `next` only once.
    for _ in 0..2 {
        assert!(redis.answers().is_empty());
        for (upstream, _) in redis.dialled() {
            redis.fails(upstream);
        }
    }
    assert_eq!(redis.answers().len(), 2);
    assert!(matches!(redis.store.addresses, Addresses::Unknown));
    assert_eq!(redis.store.back_off.failures, 1, "one outage, whatever connections it has cost");
    assert!(redis.is_refused());
    redis.now = redis.store.back_off.until;
    redis.visit();
    assert!(matches!(redis.store.addresses, Addresses::Resolving(_)));
}

/// A pool that could not grow continues with its existing connections.
#[test]
fn a_living_connection_serves_while_none_can_be_dialled() {
    let mut redis = SimulatedStore::new("pooled:8", &[1]);
    redis.visit();
    let (alive, _) = redis.dialled_once();
    redis.connects(alive);
    redis.visit();
    let (dead, _) = redis.dialled_once();
    redis.fails(dead);
    assert_eq!(redis.answers().len(), 1, "of the one that was put on the new connection");
    assert!(redis.now < redis.store.back_off.until);
    // The server has a name: the connection also serves while the name is resolved again.
    for _ in 0..20 {
        redis.visit();
    }
    assert!(redis.answers().is_empty());
    redis.deliver(Event::Received(alive, &REPLY.repeat(21)));
    assert_eq!(redis.answers().len(), 21);
}

/// A server that accepts connections but refuses every user is dialled after longer and longer pauses.
#[test]
fn a_server_that_accepts_and_refuses_is_not_dialled_without_end() {
    let mut redis = SimulatedStore::new("pooled:1", &[1]);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        redis.visit();
        let (upstream, _) = redis.dialled_once();
        redis.connects(upstream);
        redis.deliver(Event::Received(upstream, b"what is this\r\n"));
        assert_eq!(redis.answers().len(), 1);
        pauses.push(redis.store.back_off.until - redis.now);
        assert!(redis.is_refused());
        redis.now = redis.store.back_off.until;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 20]);
    redis.visit();
    let (upstream, _) = redis.dialled_once();
    redis.connects(upstream);
    redis.deliver(Event::Received(upstream, REPLY));
    assert_eq!((redis.answers(), redis.store.back_off.failures), (vec![Ok(7)], 0));
}

#[test]
fn what_this_host_lacks_is_no_outage_of_the_server() {
    let mut redis = SimulatedStore::new("per-request", &[1]);
    redis.visit();
    let (upstream, _) = redis.dialled_once();
    redis.fails_with(upstream, ErrorKind::QuotaExceeded);
    assert_eq!(redis.answers().len(), 1);
    redis.visit();
    assert_eq!(redis.dialled().len(), 1, "the next is dialled at once");
}

#[test]
fn a_request_whose_client_has_gone_leaves_no_connection() {
    let mut redis = SimulatedStore::new("per-request", &[1]);
    let ticket = redis.visit();
    let (upstream, _) = redis.dialled_once();
    redis.connects(upstream);
    redis.dialled();
    redis.store.is_gone(&mut redis.reactor, ticket);
    redis.dialled();
    assert_eq!(redis.reactor.upstreams.len(), 0);
}

/// A connection of a pool is closed also if no request waits for the replies that the server owes.
#[test]
fn a_silent_connection_of_a_pool_ends_also_without_waiting_requests() {
    let mut redis = SimulatedStore::new("pooled:1", &[1]);
    let ticket = redis.visit();
    let alarm = redis.store.connections.iter().flatten().next().unwrap().alarm.expect("an alarm");
    let (upstream, _) = redis.dialled_once();
    redis.connects(upstream);
    redis.store.is_gone(&mut redis.reactor, ticket);
    // Bytes have arrived meanwhile: the connection is checked again later.
    redis.now += STORE_TIMEOUT - 1;
    redis.deliver(Event::Received(upstream, b"*0\r\n"));
    redis.now += 1;
    redis.deliver(Event::Time(alarm));
    let connection = redis.store.connections.iter().flatten().next().expect("it lives");
    let alarm = connection.alarm.expect("another alarm");
    redis.now += STORE_TIMEOUT - 1;
    redis.deliver(Event::Time(alarm));
    redis.dialled();
    assert_eq!((redis.reactor.upstreams.len(), redis.store.pool.len()), (0, 0));
    // The next request gets another connection.
    redis.visit();
    assert_eq!(redis.dialled().len(), 1);
}

#[test]
fn nothing_is_sent_before_the_server_accepts_the_login() {
    let mut redis = SimulatedStore::new("per-request", &[1]);
    redis.store.url = "redis://a.test/99".parse().unwrap();
    redis.visit();
    let (upstream, _) = redis.dialled_once();
    assert!(redis.reactor.upstreams.get(upstream).unwrap().output.is_empty());
    redis.connects(upstream);
    let login = redis.reactor.upstreams.get(upstream).unwrap().output.len();
    redis.deliver(Event::Received(upstream, b"+OK\r\n"));
    assert!(redis.reactor.upstreams.get(upstream).unwrap().output.len() > login);
}

//! Connections to a Redis server: one for each request, one for all requests, or a pool.

use super::{Outcome, Ticket};
use crate::{
    config::StoreConnections,
    reactor::{
        AlarmId, Endpoint, EventTarget, LookupGroup, Question, Reactor, ResolveError,
        UpstreamError, UpstreamId,
    },
    service::Event,
    services::guestbook::STORE_TIMEOUT,
};
use pollux_guestbook::{
    Request, StoreError,
    redis::{Address, Session, Url},
};
use std::{
    collections::VecDeque,
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
};

/// The maximum time for connecting, in ticks: 2 s.
const DIAL_TIMEOUT: u32 = 20;
/// The maximum number of requests that wait until the server's name is resolved.
const UNRESOLVED_MAX: usize = 4096;
/// The pauses after a server could not be reached, in ticks: the first pause, which doubles with each further
/// failure, and the longest pause.
const BACK_OFF: (u32, u32) = (1, 20);

/// The access of one worker to a Redis server.
#[derive(Debug)]
pub(in crate::services::guestbook) struct RedisStore {
    url: Url,
    policy: StoreConnections,
    addresses: Addresses,
    /// Indexed by the index of the upstream connection.
    connections: Vec<Option<StoreConnection>>,
    /// The connections that accept further requests.
    pool: Vec<UpstreamId>,
    /// The connection on which the request of each ticket was sent last, indexed by the ticket's slot.
    sent_on: Vec<Option<UpstreamId>>,
    /// The lookup of the server's name.
    lookups: LookupGroup,
    back_off: BackOff,
    answers: Vec<Outcome>,
}

#[derive(Debug)]
struct StoreConnection {
    upstream: UpstreamId,
    session: Session<Ticket>,
    /// Whether the connection is established. Until then no output goes to the upstream connection, so that
    /// another address can be tried with the same requests.
    is_connected: bool,
    /// The tick at which it was dialled first.
    dialled_at: u32,
    /// The index of the address that was dialled last, and the number of addresses that have failed.
    address: usize,
    failed: usize,
    /// The tick since which the server owes a reply and has sent nothing.
    silent_since: u32,
    /// The alarm that checks whether the server is silent for too long. Only connections of a pool have one:
    /// the server may owe them replies that no guest waits for any more.
    alarm: Option<AlarmId>,
}

/// The known addresses of the server.
#[derive(Debug)]
enum Addresses {
    /// The server has these addresses. `next` is the index of the address to dial next; it changes after that
    /// address has failed.
    Known { all: Vec<Endpoint>, next: usize },
    /// The server has a name that is not resolved yet, or all addresses of which have failed.
    Unknown,
    /// The server's name is being resolved, and these requests wait for the result.
    Resolving(VecDeque<(Ticket, Request)>),
}

/// The time during which the server is not dialled. The first successful reply ends it, not a connection: a
/// server that accepts connections but refuses every user is not available either.
#[derive(Debug, Default)]
struct BackOff {
    failures: u32,
    until: u32,
}

impl RedisStore {
    pub(super) fn new(url: Url, policy: StoreConnections) -> Self {
        let at = |endpoint| Addresses::Known { all: vec![endpoint], next: 0 };
        let addresses = match &url.address {
            Address::Unix(path) => at(Endpoint::Unix(path.clone())),
            Address::Tcp(host, port) => match host.parse::<IpAddr>() {
                Ok(address) => at(Endpoint::Tcp(SocketAddr::new(address, *port))),
                Err(_) => Addresses::Unknown,
            },
        };
        Self {
            url,
            policy,
            addresses,
            connections: Vec::new(),
            pool: Vec::new(),
            sent_on: Vec::new(),
            lookups: LookupGroup::new(),
            back_off: BackOff::default(),
            answers: Vec::new(),
        }
    }

    pub(super) fn answers(&mut self) -> &mut Vec<Outcome> {
        &mut self.answers
    }

    pub(super) fn submit(
        &mut self,
        reactor: &mut Reactor,
        now: u32,
        ticket: Ticket,
        request: &Request,
    ) {
        let Some(upstream) = self.connection(reactor, now) else {
            return match &mut self.addresses {
                Addresses::Resolving(waiting) if waiting.len() < UNRESOLVED_MAX => {
                    waiting.push_back((ticket, request.clone()));
                }
                Addresses::Resolving(_) => self.answers.push((ticket, Err(StoreError::Busy))),
                _ => {
                    let why = format!("{} was not there a moment ago", self.url);
                    self.answers.push((ticket, Err(StoreError::Unreachable(why))));
                }
            };
        };
        if ticket.index() >= self.sent_on.len() {
            self.sent_on.resize(ticket.index() + 1, None);
        }
        self.sent_on[ticket.index()] = Some(upstream);
        let is_pooled = matches!(self.policy, StoreConnections::Pooled(_));
        let Some(connection) = self.get_mut(upstream) else { return };
        if connection.session.pending_requests() == 0 {
            connection.silent_since = now;
        }
        if is_pooled && connection.alarm.is_none() {
            connection.alarm = Some(reactor.timer(STORE_TIMEOUT, EventTarget::Service));
        }
        connection.session.begin(ticket, request);
        self.flush(reactor, upstream);
        self.collect(upstream);
    }

    /// Returns a connection for one more request, or `None` while the server's name is being resolved, or
    /// while a pause after a failure lasts.
    fn connection(&mut self, reactor: &mut Reactor, now: u32) -> Option<UpstreamId> {
        let StoreConnections::Pooled(most) = self.policy else { return self.dial(reactor, now) };
        let least = self.pool.iter().copied().min_by_key(|&upstream| self.under_way(upstream));
        if let Some(upstream) = least
            && (self.under_way(upstream) == 0 || self.pool.len() >= most.get())
        {
            return Some(upstream);
        }
        // If no further connection can be made, the existing ones accept the request.
        self.dial(reactor, now).or_else(|| {
            let is_connected =
                |upstream: &UpstreamId| self.get(*upstream).is_some_and(|c| c.is_connected);
            let connected = self.pool.iter().copied().filter(is_connected);
            connected.min_by_key(|&upstream| self.under_way(upstream))
        })
    }

    /// Returns the number of requests that are pending on a connection.
    fn under_way(&self, upstream: UpstreamId) -> usize {
        self.get(upstream).map_or(0, |connection| connection.session.pending_requests())
    }

    /// Dials a new connection, unless a pause after a failure lasts or the server has no known address.
    fn dial(&mut self, reactor: &mut Reactor, now: u32) -> Option<UpstreamId> {
        if now < self.back_off.until {
            return None;
        }
        let (address, endpoint) = match &self.addresses {
            Addresses::Known { all, next } => (*next, all[*next].clone()),
            Addresses::Resolving(_) => return None,
            Addresses::Unknown => {
                let Address::Tcp(name, port) = &self.url.address else { return None };
                let (name, port) = (name.clone(), *port);
                let id = self.lookups.lookup(0);
                reactor.resolve(Question { name, port, to: EventTarget::Service, id });
                self.addresses = Addresses::Resolving(VecDeque::new());
                return None;
            }
        };
        let upstream = reactor.dial(endpoint, DIAL_TIMEOUT, EventTarget::Service);
        if matches!(self.policy, StoreConnections::Pooled(_)) {
            self.pool.push(upstream);
        }
        self.put(StoreConnection {
            upstream,
            session: Session::new(&self.url),
            is_connected: false,
            dialled_at: now,
            address,
            failed: 0,
            silent_since: now,
            alarm: None,
        });
        Some(upstream)
    }

    pub(super) fn event(&mut self, reactor: &mut Reactor, now: u32, event: Event<'_>) {
        match event {
            Event::Connected(upstream) => {
                if let Some(connection) = self.get_mut(upstream) {
                    connection.is_connected = true;
                }
                self.flush(reactor, upstream);
            }
            Event::Received(upstream, bytes) => self.received(reactor, now, upstream, bytes),
            Event::Failed(upstream, why) if self.get(upstream).is_some_and(|c| !c.is_connected) => {
                self.not_reached(reactor, now, upstream, why);
            }
            Event::Failed(upstream, error) => {
                let why = format!("{}: {error}", self.url);
                self.give_up(reactor, upstream, &StoreError::Unreachable(why));
            }
            Event::Ended(upstream) => {
                let why = format!("{} has closed the connection", self.url);
                self.give_up(reactor, upstream, &StoreError::Unreachable(why));
            }
            Event::Resolved(id, outcome) if self.lookups.index_of(id).is_some() => {
                self.resolved(reactor, now, outcome);
            }
            Event::Time(alarm) => self.look_whether_silent(reactor, now, alarm),
            _ => {}
        }
    }

    fn received(&mut self, reactor: &mut Reactor, now: u32, upstream: UpstreamId, bytes: &[u8]) {
        let Some(connection) = self.get_mut(upstream) else { return };
        connection.silent_since = now;
        let dialled_at = connection.dialled_at;
        match connection.session.receive(bytes) {
            Ok(()) => {
                self.collect(upstream);
                self.flush(reactor, upstream);
            }
            Err(why) => {
                // A server that refuses the login is tried again later, not at once.
                self.back_off.extend(now, dialled_at);
                self.give_up(reactor, upstream, &why);
            }
        }
        let is_over = self.get(upstream).is_some_and(|c| !c.session.is_waiting());
        if is_over && self.policy == StoreConnections::PerRequest {
            self.remove(reactor, upstream);
        }
    }

    /// Handles a failure to connect to one address: the same requests are tried at the other addresses. A
    /// pause begins only when all addresses have failed.
    fn not_reached(
        &mut self,
        reactor: &mut Reactor,
        now: u32,
        upstream: UpstreamId,
        why: UpstreamError,
    ) {
        let Some(connection) = self.get_mut(upstream) else { return };
        // A lack of resources on this host says nothing about the server.
        if matches!(why, UpstreamError::Io(ErrorKind::QuotaExceeded | ErrorKind::OutOfMemory)) {
            let why = "this host has no descriptor or no memory left for a connection to it";
            let why = StoreError::Unreachable(why.to_owned());
            return self.give_up(reactor, upstream, &why);
        }
        connection.failed += 1;
        let (failed, address, dialled_at) =
            (connection.failed, connection.address, connection.dialled_at);
        let is_wanted = connection.session.pending_requests() > 0;
        if let Addresses::Known { all, next } = &mut self.addresses {
            // If several connections failed at this address, only the first changes `next`.
            if address == *next {
                *next = (*next + 1) % all.len();
            }
            if failed < all.len() && is_wanted {
                let (address, endpoint) = (*next, all[*next].clone());
                return self.dial_instead(reactor, upstream, address, endpoint);
            }
        }
        self.back_off.extend(now, dialled_at);
        self.forget_addresses();
        let why = format!("{}: {why}", self.url);
        self.give_up(reactor, upstream, &StoreError::Unreachable(why));
    }

    /// Dials another address for a connection, which keeps its pending requests.
    fn dial_instead(
        &mut self,
        reactor: &mut Reactor,
        upstream: UpstreamId,
        address: usize,
        endpoint: Endpoint,
    ) {
        let addresses = self.connections.get_mut(upstream.index() as usize).and_then(Option::take);
        let Some(mut connection) = addresses else { return };
        let instead = reactor.dial(endpoint, DIAL_TIMEOUT, EventTarget::Service);
        for ticket in connection.session.tickets() {
            self.sent_on[ticket.index()] = Some(instead);
        }
        for pooled in self.pool.iter_mut().filter(|pooled| **pooled == upstream) {
            *pooled = instead;
        }
        connection.upstream = instead;
        connection.address = address;
        self.put(connection);
    }

    /// Checks a connection of a pool after its alarm. If the server owes replies and has sent nothing for too
    /// long, the connection is closed, and the next request gets another one.
    fn look_whether_silent(&mut self, reactor: &mut Reactor, now: u32, alarm: AlarmId) {
        let mut all = self.connections.iter_mut().flatten();
        let Some(connection) = all.find(|c| c.alarm == Some(alarm)) else { return };
        connection.alarm = None;
        if connection.session.pending_requests() == 0 {
            return;
        }
        let silent = now.saturating_sub(connection.silent_since);
        if silent < STORE_TIMEOUT {
            connection.alarm = Some(reactor.timer(STORE_TIMEOUT - silent, EventTarget::Service));
        } else {
            let upstream = connection.upstream;
            self.give_up(reactor, upstream, &StoreError::TimedOut);
        }
    }

    /// Handles a request whose answer did not arrive in time. The answers behind it will not arrive in time
    /// either, so the connection is closed.
    pub(super) fn is_late(&mut self, reactor: &mut Reactor, ticket: Ticket) {
        if let Some(upstream) = self.upstream_of(ticket) {
            self.give_up(reactor, upstream, &StoreError::TimedOut);
        }
        self.forget(ticket);
    }

    /// Handles a request for whose answer no exchange waits any more. If the request has its own connection,
    /// that is closed: nothing else would close it if the server keeps it open and sends nothing.
    pub(super) fn is_gone(&mut self, reactor: &mut Reactor, ticket: Ticket) {
        if self.policy == StoreConnections::PerRequest
            && let Some(upstream) = self.upstream_of(ticket)
        {
            self.remove(reactor, upstream);
        }
        self.forget(ticket);
    }

    /// Returns the connection on which the request of a ticket is pending.
    fn upstream_of(&self, ticket: Ticket) -> Option<UpstreamId> {
        let upstream = (*self.sent_on.get(ticket.index())?)?;
        self.get(upstream).filter(|c| c.session.has(ticket)).map(|c| c.upstream)
    }

    /// Removes a request from those that wait for the server's name.
    fn forget(&mut self, ticket: Ticket) {
        if let Addresses::Resolving(waiting) = &mut self.addresses {
            waiting.retain(|(waiting, _)| *waiting != ticket);
        }
    }

    fn resolved(
        &mut self,
        reactor: &mut Reactor,
        now: u32,
        outcome: Result<Vec<SocketAddr>, ResolveError>,
    ) {
        let Addresses::Resolving(waiting) =
            std::mem::replace(&mut self.addresses, Addresses::Unknown)
        else {
            return;
        };
        let why = match outcome {
            Ok(addresses) if !addresses.is_empty() => {
                let all = addresses.into_iter().map(Endpoint::Tcp).collect();
                self.addresses = Addresses::Known { all, next: 0 };
                for (ticket, request) in waiting {
                    self.submit(reactor, now, ticket, &request);
                }
                return;
            }
            Ok(_) => "the name has no address".to_owned(),
            Err(error) => error.to_string(),
        };
        self.back_off.extend(now, now);
        for (ticket, _) in waiting {
            let why = StoreError::Unreachable(format!("{}: {why}", self.url));
            self.answers.push((ticket, Err(why)));
        }
    }

    /// Forgets the addresses of a name, all of which have failed: the name may have other addresses now, so
    /// it is resolved again.
    fn forget_addresses(&mut self) {
        if let (Address::Tcp(host, _), Addresses::Known { .. }) =
            (&self.url.address, &self.addresses)
            && host.parse::<IpAddr>().is_err()
        {
            self.addresses = Addresses::Unknown;
        }
    }

    fn give_up(&mut self, reactor: &mut Reactor, upstream: UpstreamId, why: &StoreError) {
        if let Some(connection) = self.get_mut(upstream) {
            connection.session.fail(why);
            self.collect(upstream);
            self.remove(reactor, upstream);
        }
    }

    fn remove(&mut self, reactor: &mut Reactor, upstream: UpstreamId) {
        reactor.close(upstream);
        if self.get(upstream).is_some()
            && let Some(connection) = self.connections[upstream.index() as usize].take()
            && let Some(alarm) = connection.alarm
        {
            reactor.cancel(alarm);
        }
        self.pool.retain(|other| *other != upstream);
    }

    /// Moves the output of a connection to its upstream connection, once that is established.
    fn flush(&mut self, reactor: &mut Reactor, upstream: UpstreamId) {
        let Some(connection) = self.get_mut(upstream).filter(|c| c.is_connected) else { return };
        let output = connection.session.output();
        if output.is_empty() {
            return;
        }
        reactor.send(upstream).bytes().extend_from_slice(output);
        let len = output.len();
        connection.session.sent(len);
    }

    /// Moves the answers of a connection to `answers`.
    fn collect(&mut self, upstream: UpstreamId) {
        let Self { connections, answers, back_off, .. } = self;
        if let Some(Some(connection)) = connections.get_mut(upstream.index() as usize)
            && connection.upstream == upstream
        {
            while let Some((ticket, answer)) = connection.session.next_answer() {
                if answer.is_ok() {
                    *back_off = BackOff::default();
                }
                answers.push((ticket, answer));
            }
        }
    }

    fn put(&mut self, connection: StoreConnection) {
        let index = connection.upstream.index() as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
    }

    fn get(&self, upstream: UpstreamId) -> Option<&StoreConnection> {
        self.connections.get(upstream.index() as usize)?.as_ref().filter(|c| c.upstream == upstream)
    }

    fn get_mut(&mut self, upstream: UpstreamId) -> Option<&mut StoreConnection> {
        self.connections
            .get_mut(upstream.index() as usize)?
            .as_mut()
            .filter(|c| c.upstream == upstream)
    }
}

impl BackOff {
    /// Begins a pause after the failure of a connection that was dialled at `dialled_at`. A connection that
    /// was dialled before the end of the last pause reports the same outage, so it is not counted again.
    fn extend(&mut self, now: u32, dialled_at: u32) {
        if dialled_at < self.until {
            return;
        }
        let (first, most) = BACK_OFF;
        self.until = now + (first << self.failures.min(8)).min(most);
        self.failures += 1;
    }
}

#[cfg(test)]
mod tests;

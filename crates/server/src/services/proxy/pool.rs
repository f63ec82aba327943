//! The origins of one worker: their addresses, their health, and the connections to them.

use super::failure::Failure;
use crate::reactor::WakeReason;
use crate::{
    config::Origin,
    reactor::{
        AlarmId, Endpoint, EventTarget, ExchangeId, LookupGroup, LookupId, Question, Reactor,
        ResolveError, UpstreamId,
    },
    service::Event,
    settings::FrontendConfig,
    transport::tls::{OriginTls, TlsPeer},
};
use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// The maximum number of exchanges that wait for a free connection, and of those that wait for each name.
const WAITING_MAX: usize = 4096;
/// The time after which a name is resolved again, in ticks, while its former addresses are still used: 30 s.
const NAME_TICKS: u32 = 300;
/// The time for which a name without an address is not resolved again, in ticks: 1 s.
const NO_NAME_TICKS: u32 = 10;
/// The number of consecutive failures after which other origins are preferred, if there are any.
const FAILURES: u32 = 3;
/// The times for which other origins are preferred, in ticks: the first time, which doubles with each further
/// failure, and the longest time (1 to 16 s).
const ASIDE: (u32, u32) = (10, 160);
/// The time between two checks of the idle connections, in ticks.
const SWEEP: u32 = 10;

/// All origins.
#[derive(Debug)]
pub(super) struct OriginPool {
    /// The lookups of the origins' names, by the number of the origin.
    lookups: LookupGroup,
    origins: Vec<OriginState>,
    /// The number of connections: those that are being made, are in use, or are idle.
    open: usize,
    /// The maximum of `open`.
    most: usize,
    /// The maximum number of idle connections to one origin.
    keep: usize,
    /// The number of ticks for which an idle connection is kept.
    keep_ticks: u32,
    connect_ticks: u32,
    /// The exchanges that wait for a connection to become free.
    queue: VecDeque<ExchangeId>,
    /// The alarm for the next check of the idle connections, while there are any.
    sweep: Option<AlarmId>,
}

/// One origin.
#[derive(Debug)]
struct OriginState {
    origin: Origin,
    authority: String,
    /// The identity that the certificate of an https origin must have.
    tls: Option<Arc<TlsPeer>>,
    /// Its addresses; empty until its name is resolved.
    endpoints: Vec<Endpoint>,
    /// The index of the address for the next connection.
    next: usize,
    /// For a name: the tick at which it is resolved again.
    resolve_at: Option<u32>,
    is_resolving: bool,
    /// The exchanges that wait for the name.
    waiting: Vec<ExchangeId>,
    /// The idle connections, each with the tick at which it was last used. The most recently used one is at
    /// the end and is taken first, so that connections that are not needed accumulate at the front and
    /// expire.
    idle: Vec<(UpstreamId, u32)>,
    /// The number of failures in a row.
    failures: u32,
    /// The tick until which other origins are preferred.
    aside_until: u32,
}

/// The outcome of [`OriginPool::dial`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DialOutcome {
    /// A connection is being made.
    Upstream(UpstreamId),
    /// Another connection has to be closed or become free first.
    NoCapacity,
    /// The name has to be resolved first.
    NoName,
    /// There will be no connection.
    Failed(Failure),
}

impl OriginPool {
    pub(super) fn new(config: &FrontendConfig) -> Self {
        let tls = config.tls.as_ref();
        let origins =
            config.routes.iter().map(|route| OriginState::new(&route.origin, tls)).collect();
        Self {
            lookups: LookupGroup::new(),
            origins,
            open: 0,
            most: config.connections.get(),
            keep: config.keep,
            keep_ticks: crate::time::clock::ticks(config.keep_timeout),
            connect_ticks: crate::time::clock::ticks(config.connect_timeout),
            queue: VecDeque::new(),
            sweep: None,
        }
    }

    /// Returns the authority in the URL of an origin.
    pub(super) fn authority(&self, origin: u32) -> &str {
        &self.origins[origin as usize].authority
    }

    /// Returns the number of an origin's addresses.
    pub(super) fn addresses(&self, origin: u32) -> usize {
        self.origins[origin as usize].endpoints.len()
    }

    /// Selects one of these origins: the first that is healthy and is not in `tried`, a set of indices;
    /// otherwise an unhealthy one, and finally one that was tried.
    pub(super) fn choose(
        &self,
        origins: impl Iterator<Item = u32> + Clone,
        now: u32,
        tried: u64,
    ) -> u32 {
        let untried = origins.clone().filter(|&origin| tried & (1 << origin) == 0);
        let until = |&origin: &u32| self.origins[origin as usize].aside_until;
        let well = untried.clone().find(|origin| until(origin) <= now);
        well.or_else(|| untried.min_by_key(until))
            .or_else(|| origins.min_by_key(until))
            .unwrap_or(0)
    }

    /// Takes an idle connection to an origin, if there is one.
    pub(super) fn take(&mut self, origin: u32) -> Option<UpstreamId> {
        self.origins[origin as usize].idle.pop().map(|(upstream, _)| upstream)
    }

    /// Dials an origin for an exchange. If that is not possible now, notes that the exchange waits, and wakes
    /// it with [`WakeReason::Capacity`] when it should try again.
    pub(super) fn dial(
        &mut self,
        reactor: &mut Reactor,
        now: u32,
        origin: u32,
        exchange: ExchangeId,
    ) -> DialOutcome {
        let state = &mut self.origins[origin as usize];
        if state.resolve_at.is_some_and(|at| at <= now) && !state.is_resolving {
            state.resolve(reactor, self.lookups.lookup(origin));
        }
        if state.endpoints.is_empty() {
            if !state.is_resolving {
                return DialOutcome::Failed(Failure::Name);
            }
            if state.waiting.len() >= WAITING_MAX {
                return DialOutcome::Failed(Failure::NoCapacity);
            }
            state.waiting.push(exchange);
            return DialOutcome::NoName;
        }
        if self.open >= self.most && !self.evict(reactor) {
            if self.queue.len() >= WAITING_MAX {
                return DialOutcome::Failed(Failure::NoCapacity);
            }
            self.queue.push_back(exchange);
            return DialOutcome::NoCapacity;
        }
        let state = &mut self.origins[origin as usize];
        let endpoint = state.endpoints[state.next % state.endpoints.len()].clone();
        state.next = (state.next + 1) % state.endpoints.len();
        self.open += 1;
        DialOutcome::Upstream(reactor.dial(
            endpoint,
            self.connect_ticks,
            EventTarget::Exchange(exchange),
        ))
    }

    /// Makes room by closing the connection that has been idle for the longest time. Returns whether there
    /// was one.
    fn evict(&mut self, reactor: &mut Reactor) -> bool {
        let oldest = |state: &OriginState| state.idle.first().map(|&(_, since)| since);
        let idle = self.origins.iter_mut().filter(|state| !state.idle.is_empty());
        let Some(state) = idle.min_by_key(|state| oldest(state)) else { return false };
        let (upstream, _) = state.idle.remove(0);
        reactor.close(upstream);
        self.open -= 1;
        true
    }

    /// Keeps a connection on which another request may be sent.
    pub(super) fn keep(
        &mut self,
        reactor: &mut Reactor,
        now: u32,
        origin: u32,
        upstream: UpstreamId,
    ) {
        let idle = &mut self.origins[origin as usize].idle;
        if idle.len() >= self.keep {
            return self.close(reactor, upstream);
        }
        idle.push((upstream, now));
        reactor.give(upstream, EventTarget::Service);
        if self.sweep.is_none() {
            self.sweep = Some(reactor.timer(SWEEP, EventTarget::Service));
        }
        self.wake_next(reactor);
    }

    /// Closes a connection.
    pub(super) fn close(&mut self, reactor: &mut Reactor, upstream: UpstreamId) {
        reactor.close(upstream);
        self.is_gone(reactor);
    }

    /// Counts a connection that is closed, or is no longer a connection of the pool. Wakes the next waiting
    /// exchange.
    pub(super) fn is_gone(&mut self, reactor: &mut Reactor) {
        self.open = self.open.saturating_sub(1);
        self.wake_next(reactor);
    }

    fn wake_next(&mut self, reactor: &mut Reactor) {
        if let Some(exchange) = self.queue.pop_front() {
            reactor.wake(exchange, WakeReason::Capacity);
        }
    }

    /// Removes an exchange that no longer waits for a connection or a name.
    pub(super) fn forget(&mut self, reactor: &mut Reactor, exchange: ExchangeId) {
        for origin in &mut self.origins {
            origin.waiting.retain(|waiting| *waiting != exchange);
        }
        match self.queue.iter().position(|waiting| *waiting == exchange) {
            Some(position) => drop(self.queue.remove(position)),
            // The exchange has been woken already: the connection for which it was woken goes to another one.
            None => self.wake_next(reactor),
        }
    }

    /// Notes that an origin has answered.
    pub(super) fn succeeded(&mut self, origin: u32) {
        let state = &mut self.origins[origin as usize];
        if state.failures >= FAILURES {
            tracing::info!("the origin {} answers again", state.origin);
        }
        (state.failures, state.aside_until) = (0, 0);
    }

    /// Notes that an origin has failed.
    pub(super) fn failed(&mut self, now: u32, origin: u32, why: Failure) {
        if !why.is_the_origins() {
            return;
        }
        let state = &mut self.origins[origin as usize];
        state.failures = state.failures.saturating_add(1);
        let Some(more) = state.failures.checked_sub(FAILURES) else { return };
        if more == 0 {
            tracing::warn!("the origin {} does not answer: {why}", state.origin);
        }
        let (first, longest) = ASIDE;
        state.aside_until = now.saturating_add((first << more.min(8)).min(longest));
        // The name may have other addresses now.
        if state.resolve_at.is_some() {
            state.resolve_at = Some(now);
        }
    }

    /// Returns whether an event concerns an idle connection of this pool, its alarm, or a name that it
    /// resolves.
    pub(super) fn is_meant(&self, event: &Event<'_>) -> bool {
        match event {
            Event::Connected(upstream)
            | Event::Received(upstream, _)
            | Event::Ended(upstream)
            | Event::UpstreamRoom(upstream)
            | Event::Failed(upstream, _) => self.find(*upstream).is_some(),
            Event::Time(alarm) => self.sweep == Some(*alarm),
            Event::Resolved(id, _) => self.lookups.index_of(*id).is_some(),
            Event::Room | Event::ClientEnded | Event::Woken(_) | Event::NotTaken(_) => false,
        }
    }

    /// Handles an event of an idle connection, of the alarm, or of a name.
    pub(super) fn event(&mut self, reactor: &mut Reactor, now: u32, event: Event<'_>) {
        match event {
            Event::Resolved(id, outcome) => self.resolved(reactor, now, id, outcome),
            Event::Time(_) => self.sweep(reactor, now),
            // No request was sent, so any input is an error.
            Event::Received(upstream, _) | Event::Ended(upstream) => {
                self.drop_idle(upstream);
                self.close(reactor, upstream);
            }
            Event::Failed(upstream, _) => {
                self.drop_idle(upstream);
                self.is_gone(reactor);
            }
            _ => {}
        }
    }

    fn find(&self, upstream: UpstreamId) -> Option<(usize, usize)> {
        self.origins.iter().enumerate().find_map(|(origin, state)| {
            let position = state.idle.iter().position(|&(idle, _)| idle == upstream)?;
            Some((origin, position))
        })
    }

    fn drop_idle(&mut self, upstream: UpstreamId) {
        if let Some((origin, position)) = self.find(upstream) {
            self.origins[origin].idle.remove(position);
        }
    }

    /// Closes all idle connections.
    pub(super) fn retire(&mut self, reactor: &mut Reactor) {
        for (upstream, _) in self.origins.iter_mut().flat_map(|state| state.idle.drain(..)) {
            reactor.close(upstream);
            self.open -= 1;
        }
        if let Some(sweep) = self.sweep.take() {
            reactor.cancel(sweep);
        }
    }

    /// Closes the connections that have been idle for too long.
    fn sweep(&mut self, reactor: &mut Reactor, now: u32) {
        for state in &mut self.origins {
            let is_old =
                |&(_, since): &(UpstreamId, u32)| now.saturating_sub(since) >= self.keep_ticks;
            // The connections at the front have been idle for the longest time.
            let old = state.idle.iter().take_while(|idle| is_old(idle)).count();
            for (upstream, _) in state.idle.drain(..old) {
                reactor.close(upstream);
                self.open -= 1;
            }
        }
        let has_idle = self.origins.iter().any(|state| !state.idle.is_empty());
        self.sweep = has_idle.then(|| reactor.timer(SWEEP, EventTarget::Service));
    }

    fn resolved(
        &mut self,
        reactor: &mut Reactor,
        now: u32,
        id: LookupId,
        outcome: Result<Vec<SocketAddr>, ResolveError>,
    ) {
        let origin = self.lookups.index_of(id);
        let Some(state) = origin.and_then(|origin| self.origins.get_mut(origin as usize)) else {
            return;
        };
        state.is_resolving = false;
        match outcome {
            Ok(addresses) if !addresses.is_empty() => {
                let mut addresses = addresses;
                addresses.dedup();
                let tls = &state.tls;
                state.endpoints = addresses.into_iter().map(|at| endpoint(at, tls)).collect();
                state.resolve_at = Some(now.saturating_add(NAME_TICKS));
            }
            outcome => {
                let why = outcome.err().map(|error| error.to_string());
                let why = why.as_deref().unwrap_or("it has no address");
                // Known addresses remain in use.
                tracing::warn!("the origin {}: {why}", state.origin);
                state.resolve_at = Some(now.saturating_add(NO_NAME_TICKS));
            }
        }
        for exchange in state.waiting.drain(..) {
            reactor.wake(exchange, WakeReason::Capacity);
        }
    }

    /// Returns the number of exchanges that wait for a connection.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of connections to origins.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.open
    }
}

impl OriginState {
    fn new(origin: &Origin, tls: Option<&OriginTls>) -> Self {
        let tls = origin.tls_name().and_then(|name| Some(tls?.peer(name)));
        let (endpoints, resolve_at) = match origin {
            Origin::Unix(path) => (vec![Endpoint::Unix(path.clone())], None),
            Origin::Tcp { host, port, .. } => match host.parse::<IpAddr>() {
                Ok(address) => (vec![endpoint(SocketAddr::new(address, *port), &tls)], None),
                Err(_) => (Vec::new(), Some(0)),
            },
        };
        Self {
            origin: origin.clone(),
            tls,
            authority: origin.authority(),
            endpoints,
            next: 0,
            resolve_at,
            is_resolving: false,
            waiting: Vec::new(),
            idle: Vec::new(),
            failures: 0,
            aside_until: 0,
        }
    }

    fn resolve(&mut self, reactor: &mut Reactor, id: LookupId) {
        let Origin::Tcp { host, port, .. } = &self.origin else { return };
        self.is_resolving = true;
        reactor.resolve(Question { name: host.clone(), port: *port, to: EventTarget::Service, id });
    }
}

/// Returns the endpoint of an origin: its address, with TLS or without.
fn endpoint(address: SocketAddr, tls: &Option<Arc<TlsPeer>>) -> Endpoint {
    match tls {
        Some(peer) => Endpoint::Tls(address, Arc::clone(peer)),
        None => Endpoint::Tcp(address),
    }
}

#[cfg(test)]
mod tests;

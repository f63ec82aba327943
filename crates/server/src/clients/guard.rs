//! Admission of connections and requests. All workers of a server share it.

use super::{ClientConfig, Rate, access::AccessLists, network, shared::SharedUse};
use crate::stats::Counter;
use hashlink::LruCache;
use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher, RandomState},
    io,
    net::IpAddr,
    num::NonZeroU32,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The maximum number of addresses whose rates are remembered; each needs some 72 bytes. If there
/// are more, the address that has been quiet longest is forgotten, and may then have a whole burst
/// again.
pub(super) const ADDRESSES_MAX: usize = 65_536;
/// The number of parts over which addresses are distributed. Each part has its own lock, so that
/// workers rarely wait for each other.
const PARTS: usize = 64;

/// The reason why a client is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// The allow and deny lists refuse its address.
    Denied,
    /// Its address has the maximum number of connections.
    Connections,
    /// Its address opens connections too often.
    AcceptRate,
}

impl RefusalReason {
    /// Returns the counter for this reason.
    pub(crate) fn counter(self) -> Counter {
        match self {
            Self::Denied => Counter::Denied,
            Self::Connections => Counter::OverConnections,
            Self::AcceptRate => Counter::OverAcceptRate,
        }
    }
}

/// The limits, and the present use of each address.
#[derive(Debug)]
pub(crate) struct ClientLimits {
    lists: Option<AccessLists>,
    connections: Option<NonZeroU32>,
    accept_rate: Option<Rate>,
    request_rate: Option<Rate>,
    started: Instant,
    hasher: RandomState,
    parts: Box<[Mutex<Part>]>,
    /// Replaces `parts` if the workers are processes.
    shared: Option<SharedUse>,
}

#[derive(Debug)]
struct Part {
    /// The number of open connections of each address; there are at most as many entries as
    /// connections.
    open: HashMap<u128, u32>,
    /// The hash has a random key, because clients choose their addresses.
    rates: LruCache<u128, Arrivals, RandomState>,
}

/// The times at which the next connection and the next request are due at the full rate, in
/// nanoseconds since the start.
#[derive(Debug, Default)]
struct Arrivals {
    connection_ns: u64,
    request_ns: u64,
}

impl ClientLimits {
    /// Returns `None` if there are no lists and no limits.
    pub(crate) fn new(config: &ClientConfig) -> Option<Self> {
        Self::with_limit(config, ADDRESSES_MAX)
    }

    fn with_limit(config: &ClientConfig, addresses: usize) -> Option<Self> {
        let lists = AccessLists::new(config);
        if lists.is_none() && !config.has_limits() {
            return None;
        }
        // `LruCache::entry` removes the oldest entry when it exceeds the capacity by one.
        let capacity = (addresses / PARTS).saturating_sub(1);
        let part = || Part {
            open: HashMap::new(),
            rates: LruCache::with_hasher(capacity, RandomState::new()),
        };
        Some(Self {
            lists,
            connections: config.connections,
            accept_rate: config.accept_rate,
            request_rate: config.request_rate,
            started: Instant::now(),
            hasher: RandomState::new(),
            parts: (0..PARTS).map(|_| Mutex::new(part())).collect(),
            shared: None,
        })
    }

    /// Does the same as [`ClientLimits::new`], for a server whose workers are processes. Each has a slot
    /// of the scoreboard, of which there are `slots`. Must be called before they are forked.
    ///
    /// # Errors
    /// No memory is left.
    pub(crate) fn for_processes(config: &ClientConfig, slots: usize) -> io::Result<Option<Self>> {
        let Some(mut limits) = Self::new(config) else { return Ok(None) };
        if config.has_limits() {
            limits.shared = Some(SharedUse::new(slots)?);
        }
        Ok(Some(limits))
    }

    /// Sets the slot of this process, which serves one connection at a time.
    pub(crate) fn claim_slot(&self, slot: usize) {
        if let Some(shared) = &self.shared {
            shared.claim(slot);
        }
    }

    /// Notes that the process with this slot has ended, and its connection with it.
    pub(crate) fn free_slot(&self, slot: usize) {
        if let Some(shared) = &self.shared {
            shared.forget(slot);
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn part(&self, client: u128) -> MutexGuard<'_, Part> {
        let part = self.hasher.hash_one(client) as usize % PARTS;
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a new connection of this address. `Ok` counts it as open, so that [`ClientLimits::leave`]
    /// must follow.
    ///
    /// # Errors
    /// The reason why the connection must be closed.
    pub(crate) fn enter(&self, address: IpAddr) -> Result<(), RefusalReason> {
        self.admit(address, self.accept_rate)
    }

    /// Admits a connection that comes from another process, or back from it. Does the same as
    /// [`ClientLimits::enter`], but the rate of new connections does not apply.
    ///
    /// # Errors
    /// The reason why the connection must be closed.
    pub(crate) fn readmit(&self, address: IpAddr) -> Result<(), RefusalReason> {
        self.admit(address, None)
    }

    fn admit(&self, address: IpAddr, rate: Option<Rate>) -> Result<(), RefusalReason> {
        if self.lists.as_ref().is_some_and(|lists| !lists.allows(address)) {
            return Err(RefusalReason::Denied);
        }
        if self.connections.is_none() && rate.is_none() {
            return Ok(());
        }
        if let Some(shared) = &self.shared {
            return shared.enter(address, self.connections, rate, self.now_ns());
        }
        let client = network::client(address);
        let mut part = self.part(client);
        if let Some(most) = self.connections
            && part.open.get(&client).is_some_and(|open| *open >= most.get())
        {
            return Err(RefusalReason::Connections);
        }
        if let Some(rate) = rate {
            let arrivals = part.rates.entry(client).or_insert_with(Arrivals::default);
            rate.take(&mut arrivals.connection_ns, self.now_ns())
                .map_err(|_| RefusalReason::AcceptRate)?;
        }
        if self.connections.is_some() {
            *part.open.entry(client).or_default() += 1;
        }
        Ok(())
    }

    /// Notes that a connection of this address has been closed.
    pub(crate) fn leave(&self, address: IpAddr) {
        if self.connections.is_none() {
            return;
        }
        if let Some(shared) = &self.shared {
            return shared.leave();
        }
        let client = network::client(address);
        if let Entry::Occupied(mut open) = self.part(client).open.entry(client) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }

    /// Admits a new request of this address.
    ///
    /// # Errors
    /// The rate is exceeded; the value is the time until a request is admitted again.
    pub(crate) fn request(&self, address: IpAddr) -> Result<(), Duration> {
        let Some(rate) = self.request_rate else { return Ok(()) };
        if let Some(shared) = &self.shared {
            return shared.request(address, rate, self.now_ns()).map_err(Duration::from_nanos);
        }
        let client = network::client(address);
        let mut part = self.part(client);
        let arrivals = part.rates.entry(client).or_insert_with(Arrivals::default);
        rate.take(&mut arrivals.request_ns, self.now_ns()).map_err(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(change: impl FnOnce(&mut ClientConfig)) -> ClientLimits {
        let mut config = ClientConfig::default();
        change(&mut config);
        ClientLimits::with_limit(&config, 2 * PARTS).unwrap()
    }

    #[test]
    fn without_settings_there_is_none() {
        assert!(ClientLimits::new(&ClientConfig::default()).is_none());
    }

    #[test]
    fn each_address_has_its_own_connections() {
        let guard = guard(|config| config.connections = NonZeroU32::new(2));
        let (one, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        for _ in 0..2 {
            guard.enter(one).unwrap();
        }
        assert_eq!(guard.enter(one), Err(RefusalReason::Connections));
        guard.enter(other).unwrap();
        guard.leave(one);
        guard.enter(one).unwrap();
        for address in [one, one, other] {
            guard.leave(address);
        }
        let is_empty = |part: &Mutex<Part>| part.lock().unwrap().open.is_empty();
        assert!(guard.parts.iter().all(is_empty), "an address without connections costs nothing");
    }

    #[test]
    fn rates_of_connections_and_requests_are_apart() {
        let guard = guard(|config| {
            config.accept_rate = Some("1/m:2".parse().unwrap());
            config.request_rate = Some("1/m:1".parse().unwrap());
        });
        let one = "2001:db8::1".parse().unwrap();
        let neighbour = "2001:db8::2".parse().unwrap();
        guard.enter(one).unwrap();
        guard.enter(neighbour).unwrap();
        assert_eq!(guard.enter(one), Err(RefusalReason::AcceptRate), "both are one /64");
        guard.request(one).unwrap();
        let wait = guard.request(one).unwrap_err();
        assert!(wait > Duration::from_secs(50) && wait <= Duration::from_secs(60), "{wait:?}");
    }

    #[test]
    fn a_connection_that_is_handed_over_counts_but_is_not_a_new_one() {
        let guard = guard(|config| {
            config.connections = NonZeroU32::new(3);
            config.accept_rate = Some("1/m:1".parse().unwrap());
            config.deny = vec!["198.51.100.0/24".parse().unwrap()];
        });
        let one = "192.0.2.1".parse().unwrap();
        guard.readmit(one).unwrap();
        guard.readmit(one).unwrap();
        guard.enter(one).unwrap();
        assert_eq!(guard.readmit(one), Err(RefusalReason::Connections));
        guard.leave(one);
        assert_eq!(guard.enter(one), Err(RefusalReason::AcceptRate));
        guard.readmit(one).unwrap();
        assert_eq!(guard.readmit("198.51.100.1".parse().unwrap()), Err(RefusalReason::Denied));
    }

    #[test]
    fn memory_is_bounded_however_many_addresses_come() {
        let guard = guard(|config| config.request_rate = Some("1/m:1".parse().unwrap()));
        for number in 0..10_000_u32 {
            let _ = guard.request(IpAddr::from(number.to_be_bytes()));
        }
        let held: usize = guard.parts.iter().map(|part| part.lock().unwrap().rates.len()).sum();
        assert!(held <= 2 * PARTS, "{held}");
    }
}

//! The counters of a worker: one enum, one array of atomics, readable by any thread at any time.

use std::{
    ops::{Index, IndexMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

macro_rules! counters {
    ($($name:ident, $group:literal, $key:literal, $help:literal;)*) => {
        /// The counters of a worker. All values only grow, except those of `Busy`, `Streams`,
        /// `FormerConfigurations`, `HubPolls` and `HubTopicSets`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Counter {
            $(#[doc = $help] $name,)*
        }

        impl Counter {
            /// All counters, in the order of the enum.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the object of the statistics line that contains the counter; empty for the
            /// line itself.
            pub const fn group(self) -> &'static str {
                match self { $(Self::$name => $group,)* }
            }

            /// Returns its key in that object.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }

            /// Returns a description for people, in one sentence.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$name => $help,)* }
            }
        }
    };
}

counters! {
    Accepted, "connections", "accepted", "Connections accepted and taken in.";
    Closed, "connections", "closed", "Connections taken in and closed since.";
    Busy, "connections", "busy",
        "Connections that have a request or a response under way now or are tunnels, with \
         --architecture event.";
    Streams, "connections", "streams", "Connections that are streams of a hub now.";
    Refused, "connections", "refused",
        "Connections accepted and closed at once, because the mechanism could not hold one more.";
    TimedOut, "connections", "timed_out",
        "Connections closed because a timeout was over (also counted as closed).";
    HandedOver, "connections", "handed_over",
        "Connections handed over to another process (also counted as closed).";
    TakenOver, "connections", "taken_over",
        "Idle connections that the former process had at an upgrade (also counted as accepted).";
    Evicted, "connections", "evicted",
        "Idle connections closed at the limit, to let another in (also counted as closed).";
    Denied, "clients", "denied", "Connections closed at once: --allow or --deny refuses their address.";
    OverConnections, "clients", "over_connections",
        "Connections closed at once: their address has --limit-connections-per-address already.";
    OverAcceptRate, "clients", "over_accept_rate",
        "Connections closed at once: their address exceeds --limit-accept-rate.";
    OverRequestRate, "clients", "over_request_rate",
        "Requests answered with 429: their address exceeds --limit-request-rate.";
    ProxyMalformed, "clients", "proxy_malformed",
        "Connections closed because they did not begin with a PROXY protocol header (--proxy-protocol).";
    Malformed, "clients", "malformed", "Requests refused because they are malformed, too large or too slow.";
    TlsHandshakes, "tls", "handshakes", "TLS handshakes that succeeded.";
    TlsFailures, "tls", "failures", "TLS handshakes that failed or did not end in time.";
    TlsKernel, "tls", "kernel", "TLS connections on which the kernel encrypts, since a long file (--kernel-tls).";
    TlsKernelRefused, "tls", "kernel_refused",
        "Times that the kernel refused the keys of a TLS connection, which goes on without it.";
    Responses1xx, "responses", "1xx", "Responses with a status from 100 to 199.";
    Responses2xx, "responses", "2xx", "Responses with a status from 200 to 299.";
    Responses3xx, "responses", "3xx", "Responses with a status from 300 to 399.";
    Responses4xx, "responses", "4xx", "Responses with a status from 400 to 499.";
    Responses5xx, "responses", "5xx", "Responses with a status from 500 to 599.";
    Latency5, "latency", "le_5ms", "Responses within 5 ms of their request.";
    Latency10, "latency", "le_10ms", "Responses after more than 5 ms, up to 10 ms.";
    Latency25, "latency", "le_25ms", "Responses after more than 10 ms, up to 25 ms.";
    Latency50, "latency", "le_50ms", "Responses after more than 25 ms, up to 50 ms.";
    Latency100, "latency", "le_100ms", "Responses after more than 50 ms, up to 100 ms.";
    Latency250, "latency", "le_250ms", "Responses after more than 100 ms, up to 250 ms.";
    Latency500, "latency", "le_500ms", "Responses after more than 250 ms, up to 500 ms.";
    Latency1000, "latency", "le_1s", "Responses after more than 500 ms, up to 1 s.";
    Latency2500, "latency", "le_2500ms", "Responses after more than 1 s, up to 2500 ms.";
    Latency5000, "latency", "le_5s", "Responses after more than 2500 ms, up to 5 s.";
    Latency10000, "latency", "le_10s", "Responses after more than 5 s, up to 10 s.";
    LatencyMore, "latency", "more", "Responses after more than 10 s.";
    LatencySum, "latency", "sum_ms", "Milliseconds of all these responses together.";
    Requests, "", "requests", "Responses begun, whatever their status.";
    BytesSent, "", "bytes_sent", "Bytes that the kernel took.";
    Waits, "", "waits", "Waits of the mechanism.";
    Events, "", "events", "Events that the mechanism reported.";
    AcceptPauses, "", "accept_pauses",
        "Times that accepting stopped because descriptors or memory were used up, or at the limit.";
    LogLinesDropped, "", "log_lines_dropped",
        "Lines of logs that were dropped: the writer was behind, or could not write them.";
    WorkersReplaced, "workers", "replaced", "Worker threads and processes that died and were replaced.";
    FormerConfigurations, "workers", "former_configurations",
        "Former configurations that exchanges in progress or background tasks of workers still use now.";
    OriginOpened, "origins", "opened", "Connections made to origins.";
    OriginReused, "origins", "reused", "Requests sent on a connection to an origin that was kept.";
    OriginFailures, "origins", "failures",
        "Origins that could not be reached, did not answer in time, or sent what is no reply.";
    OriginRetries, "origins", "retries",
        "Requests tried again: at another address or origin, or on a new connection.";
    HubPolls, "hub", "polls", "Long polls that wait for an update now.";
    HubTopicSets, "hub", "topic_sets", "Distinct sets of topics that subscribers of this worker read now.";
    HubAccepted, "hub", "accepted", "Updates accepted from publishers.";
    HubInvalid, "hub", "refused_invalid", "Updates refused because the request is malformed.";
    HubUnauthorized, "hub", "refused_unauthorized",
        "Updates refused because the publisher has no token that permits them.";
    HubTooLarge, "hub", "refused_too_large", "Updates refused because they are larger than --hub-max-update.";
    HubTooMany, "hub", "refused_rate", "Updates refused because they exceed --hub-max-rate.";
    HubUnavailable, "hub", "refused_unavailable", "Updates refused because they could not be stored.";
    HubDelivered, "hub", "delivered", "Updates sent to subscribers, one for each subscriber.";
    HubSkips, "hub", "skips", "Times that a subscriber missed updates, because they had left the history.";
    HubEndedSlow, "hub", "ended_slow", "Streams ended because the subscriber was too slow (--hub-slow close).";
    HubEndedToken, "hub", "ended_token", "Streams ended because the subscriber's token expired.";
    HubEndedLifetime, "hub", "ended_lifetime", "Streams ended because of --hub-max-lifetime.";
}

/// The number of counters.
pub(crate) const COUNTERS: usize = Counter::ALL.len();

/// The values of all counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts([u64; COUNTERS]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; COUNTERS])
    }
}

impl Counts {
    /// Adds the counts of another worker.
    pub fn merge(&mut self, other: &Self) {
        for (ours, theirs) in self.0.iter_mut().zip(other.0) {
            *ours += theirs;
        }
    }

    /// Returns each counter with its value.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter, self[counter]))
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> u64 {
        self[Counter::Accepted].saturating_sub(self[Counter::Closed])
    }

    /// Returns the number of open connections without a request or a response in progress, for the
    /// architecture `event`.
    pub fn idle(&self) -> u64 {
        self.open().saturating_sub(self[Counter::Busy] + self[Counter::Streams])
    }
}

impl Index<Counter> for Counts {
    type Output = u64;

    #[inline]
    fn index(&self, counter: Counter) -> &u64 {
        &self.0[counter as usize]
    }
}

impl IndexMut<Counter> for Counts {
    #[inline]
    fn index_mut(&mut self, counter: Counter) -> &mut u64 {
        &mut self.0[counter as usize]
    }
}

/// A worker's counters. Only the worker adds to them. Clones can be read in other threads at any
/// time; they are behind only by the time that a store needs to become visible to another CPU.
#[derive(Clone, Debug)]
pub struct Counters(Arc<[AtomicU64; COUNTERS]>);

impl Default for Counters {
    fn default() -> Self {
        Self(Arc::new([const { AtomicU64::new(0) }; COUNTERS]))
    }
}

impl Counters {
    /// Adds to a counter. Only its worker may call it: this is a plain addition in memory, without
    /// a locked instruction.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, count: u64) {
        let cell = &self.0[counter as usize];
        cell.store(cell.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Sets a counter whose value is counted elsewhere. Only its worker may call it.
    #[inline]
    pub(crate) fn set(&self, counter: Counter, value: u64) {
        self.0[counter as usize].store(value, Relaxed);
    }

    /// Returns the value of one counter.
    #[inline]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }

    /// Returns the values of all counters. Each is exact, but they are not all from the same
    /// instant.
    pub fn read(&self) -> Counts {
        Counts(std::array::from_fn(|index| self.0[index].load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_reads_what_a_worker_counts() {
        let counters = Counters::default();
        let reader = counters.clone();
        counters.add(Counter::Accepted, 3);
        counters.add(Counter::Closed, 1);
        let counts = std::thread::spawn(move || reader.read()).join().unwrap();
        assert_eq!((counts[Counter::Accepted], counts.open()), (3, 2));
        let mut sum = counts;
        sum.merge(&counts);
        assert_eq!(sum[Counter::Accepted], 6);
        assert_eq!(counts.iter().count(), COUNTERS);
    }
}

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
        /// What a worker counts. Every value only grows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Counter {
            $(#[doc = $help] $name,)*
        }

        impl Counter {
            /// All counters, in the order of the enum.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The object of the statistics line in which it stands; empty for the line itself.
            pub const fn group(self) -> &'static str {
                match self { $(Self::$name => $group,)* }
            }

            /// Its key in that object.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }

            /// What it counts, in one sentence for people.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$name => $help,)* }
            }
        }
    };
}

counters! {
    Accepted, "connections", "accepted", "Connections accepted and taken in.";
    Closed, "connections", "closed", "Connections taken in and closed since.";
    Refused, "connections", "refused",
        "Connections accepted and closed at once, because the mechanism could not hold one more.";
    TimedOut, "connections", "timed_out",
        "Connections closed because a timeout was over (also counted as closed).";
    HandedOver, "connections", "handed_over",
        "Connections handed over to another process (also counted as closed).";
    Evicted, "connections", "evicted",
        "Idle connections closed at the limit, to let another in (also counted as closed).";
    Denied, "clients", "denied", "Connections closed at once: --allow or --deny refuses their address.";
    OverConnections, "clients", "over_connections",
        "Connections closed at once: their address has --limit-connections-per-address already.";
    OverAcceptRate, "clients", "over_accept_rate",
        "Connections closed at once: their address exceeds --limit-accept-rate.";
    OverRequestRate, "clients", "over_request_rate",
        "Requests answered with 429: their address exceeds --limit-request-rate.";
    Requests, "", "requests", "Responses begun, whatever their status.";
    BytesSent, "", "bytes_sent", "Bytes that the kernel took.";
    Waits, "", "waits", "Waits of the mechanism.";
    Events, "", "events", "Events that the mechanism reported.";
    AcceptPauses, "", "accept_pauses",
        "Times that accepting stopped for want of descriptors or memory, or at the limit.";
    LogLinesDropped, "", "log_lines_dropped",
        "Access-log lines dropped because the log's writer was behind.";
    OriginOpened, "origins", "opened", "Connections made to origins.";
    OriginReused, "origins", "reused", "Requests sent on a connection to an origin that was kept.";
    OriginFailures, "origins", "failures",
        "Origins that could not be reached, did not answer in time, or sent what is no reply.";
    OriginRetries, "origins", "retries",
        "Requests tried again: at another address or origin, or on a new connection.";
}

/// How many counters there are.
pub(crate) const COUNTERS: usize = Counter::ALL.len();

/// The values of all counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; COUNTERS]);

impl Counts {
    /// Adds those of another worker.
    pub fn merge(&mut self, other: &Self) {
        for (ours, theirs) in self.0.iter_mut().zip(other.0) {
            *ours += theirs;
        }
    }

    /// Each counter with its value.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter, self[counter]))
    }

    /// Connections that are open now.
    pub fn open(&self) -> u64 {
        self[Counter::Accepted].saturating_sub(self[Counter::Closed])
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

/// A worker's counters. The worker alone adds; clones read in other threads at any time and are
/// never behind by more than the memory of the CPUs is.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<[AtomicU64; COUNTERS]>);

impl Counters {
    /// Adds to a counter. For its worker alone: a plain addition to memory, with no locked
    /// instruction.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, count: u64) {
        let cell = &self.0[counter as usize];
        cell.store(cell.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Sets a counter that is kept elsewhere. For its worker alone.
    #[inline]
    pub(crate) fn set(&self, counter: Counter, value: u64) {
        self.0[counter as usize].store(value, Relaxed);
    }

    /// The value of one counter.
    #[inline]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }

    /// The values of all counters. Each is exact; together they are not from one instant.
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

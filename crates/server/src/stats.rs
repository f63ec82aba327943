//! What a server counts, and how it is told.

pub(crate) mod scoreboard;

use pollux_sys::{Call, Counters};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Connections by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionCounts {
    /// Accepted and taken in.
    pub accepted: u64,
    /// Open now.
    pub open: u64,
    /// Taken in and closed since.
    pub closed: u64,
    /// Accepted and closed at once, because the mechanism could not hold one more.
    pub refused: u64,
    /// Closed because a timeout was over (counted in `closed` too).
    pub timed_out: u64,
    /// Handed over to another process (counted in `closed` too).
    #[serde(default)]
    pub handed_over: u64,
}

/// Connections to origins, and what became of requests on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginCounts {
    /// Connections that were made.
    pub opened: u64,
    /// Requests for which a kept one was taken.
    pub reused: u64,
    /// Origins that could not be reached, did not answer in time, or answered what is no reply. A kept
    /// connection that was closed meanwhile is none of these.
    pub failures: u64,
    /// Requests that were tried again: at another address or origin, or on a new connection.
    pub retries: u64,
}

/// One worker's counts, or those of several added up.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Connections.
    pub connections: ConnectionCounts,
    /// Responses begun, whatever their status.
    pub requests: u64,
    /// Bytes that the kernel took.
    pub bytes_sent: u64,
    /// Waits of the mechanism.
    pub waits: u64,
    /// Events that it handed out.
    pub events: u64,
    /// Times that accepting stopped for want of descriptors or memory, or at the limit.
    pub accept_pauses: u64,
    /// Access-log lines that were dropped because the log's writer was behind.
    pub log_lines_dropped: u64,
    /// Connections to origins.
    pub origins: OriginCounts,
    /// The cache's counters, which all workers share; nothing without one, or of a single worker.
    pub cache: Option<pollux_cache::Statistics>,
    /// System calls of the workers' threads.
    pub system_calls: Counters,
    /// What only this mechanism counts.
    pub mechanism: BTreeMap<&'static str, u64>,
}

impl Statistics {
    /// Adds another worker's.
    pub fn merge(&mut self, other: &Self) {
        let (ours, theirs) = (&mut self.connections, &other.connections);
        ours.accepted += theirs.accepted;
        ours.open += theirs.open;
        ours.closed += theirs.closed;
        ours.refused += theirs.refused;
        ours.timed_out += theirs.timed_out;
        ours.handed_over += theirs.handed_over;
        self.requests += other.requests;
        self.bytes_sent += other.bytes_sent;
        self.waits += other.waits;
        self.events += other.events;
        self.accept_pauses += other.accept_pauses;
        self.log_lines_dropped += other.log_lines_dropped;
        let (ours, theirs) = (&mut self.origins, &other.origins);
        ours.opened += theirs.opened;
        ours.reused += theirs.reused;
        ours.failures += theirs.failures;
        ours.retries += theirs.retries;
        self.cache = self.cache.or(other.cache);
        self.system_calls.merge(&other.system_calls);
        for (name, value) in &other.mechanism {
            let ours = self.mechanism.entry(name).or_default();
            // A maximum stays one. What else is no count, such as `on_partner` or `pinned`, says of
            // all workers together how many of them, or of theirs, there are.
            *ours = if name.starts_with("longest_") || *name == "stay_ms" {
                (*ours).max(*value)
            } else {
                *ours + value
            };
        }
    }

    /// Reads what [`Statistics::to_json`] has written, such as another process has.
    ///
    /// # Errors
    /// When it is something else.
    pub(crate) fn from_json(line: &str) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Calls {
            count: u64,
            ns: u64,
        }
        #[derive(Deserialize)]
        struct Line {
            connections: ConnectionCounts,
            requests: u64,
            bytes_sent: u64,
            waits: u64,
            events: u64,
            accept_pauses: u64,
            log_lines_dropped: u64,
            #[serde(default)]
            origins: OriginCounts,
            system_calls: BTreeMap<String, Calls>,
            details: BTreeMap<String, u64>,
        }
        let line: Line = serde_json::from_str(line)?;
        let mut system_calls = Counters::default();
        for call in Call::ALL {
            if let Some(calls) = line.system_calls.get(call.name()) {
                system_calls.add(*call, calls.count, Duration::from_nanos(calls.ns));
            }
        }
        Ok(Self {
            connections: line.connections,
            requests: line.requests,
            bytes_sent: line.bytes_sent,
            waits: line.waits,
            events: line.events,
            accept_pauses: line.accept_pauses,
            log_lines_dropped: line.log_lines_dropped,
            origins: line.origins,
            cache: None,
            system_calls,
            mechanism: line.details.into_iter().map(|(name, n)| (interned(name), n)).collect(),
        })
    }

    /// The line of JSON that `--json` prints at the end and at each SIGUSR1.
    pub fn to_json(&self, mechanism: &str) -> String {
        #[derive(Serialize)]
        struct Calls {
            count: u64,
            ns: u64,
        }
        #[derive(Serialize)]
        struct Line<'a> {
            event: &'static str,
            mechanism: &'a str,
            connections: ConnectionCounts,
            requests: u64,
            bytes_sent: u64,
            waits: u64,
            events: u64,
            accept_pauses: u64,
            log_lines_dropped: u64,
            origins: OriginCounts,
            #[serde(skip_serializing_if = "Option::is_none")]
            cache: Option<BTreeMap<&'static str, u64>>,
            system_calls: BTreeMap<&'static str, Calls>,
            details: &'a BTreeMap<&'static str, u64>,
        }
        let system_calls = self
            .system_calls
            .iter()
            .map(|(call, count, time)| (call.name(), Calls { count, ns: time.as_nanos() as u64 }))
            .collect();
        serde_json::to_string(&Line {
            event: "statistics",
            mechanism,
            connections: self.connections,
            requests: self.requests,
            bytes_sent: self.bytes_sent,
            waits: self.waits,
            events: self.events,
            accept_pauses: self.accept_pauses,
            log_lines_dropped: self.log_lines_dropped,
            origins: self.origins,
            cache: self.cache.map(|cache| cache.iter().collect()),
            system_calls,
            details: &self.mechanism,
        })
        .expect("numbers and names have a JSON form")
    }

    /// The same for people, a line a thing.
    pub fn to_text(&self) -> String {
        let ConnectionCounts { accepted, open, closed, refused, timed_out, handed_over } =
            self.connections;
        let handed_over = match handed_over {
            0 => String::new(),
            count => format!(", {count} handed over"),
        };
        let mut text = format!(
            "connections: {accepted} accepted, {open} open, {closed} closed ({timed_out} timed \
             out{handed_over}), {refused} refused\nrequests: {}, {} bytes sent\nwaits: {}, {} events\n",
            self.requests, self.bytes_sent, self.waits, self.events
        );
        if self.origins != OriginCounts::default() {
            let OriginCounts { opened, reused, failures, retries } = self.origins;
            text.push_str(&format!(
                "origins: {opened} connections opened, {reused} reused, {failures} failures, \
                 {retries} retries\n"
            ));
        }
        if let Some(cache) = &self.cache {
            text.push_str("cache:\n");
            for (name, value) in cache.iter().filter(|(_, value)| *value > 0) {
                text.push_str(&format!("  {name}: {value}\n"));
            }
        }
        for (call, count, time) in self.system_calls.iter() {
            let time = if time.is_zero() { String::new() } else { format!(", {time:?}") };
            text.push_str(&format!("  {}: {count}{time}\n", call.name()));
        }
        if !self.mechanism.is_empty() {
            text.push_str("the mechanism's own:\n");
        }
        for (name, value) in &self.mechanism {
            text.push_str(&format!("  {name}: {value}\n"));
        }
        text
    }
}

/// The name as one that lives on. There are no more of them than mechanisms have names.
fn interned(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name: &'static str = name.leak();
    names.insert(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut calls = Counters::default();
        calls.add(Call::Recv, 7, Duration::from_nanos(99));
        let written = Statistics {
            connections: ConnectionCounts {
                accepted: 1,
                open: 2,
                closed: 3,
                refused: 4,
                timed_out: 5,
                handed_over: 13,
            },
            requests: 6,
            bytes_sent: 1 << 60,
            waits: 8,
            events: 9,
            accept_pauses: 10,
            log_lines_dropped: 11,
            origins: OriginCounts { opened: 14, reused: 15, failures: 16, retries: 17 },
            cache: None,
            system_calls: calls,
            mechanism: BTreeMap::from([("hints", 12)]),
        };
        let read = Statistics::from_json(&written.to_json("epoll")).unwrap();
        assert_eq!(format!("{read:?}"), format!("{written:?}"));
        assert!(Statistics::from_json("{}").is_err());
    }

    #[test]
    fn maxima_of_workers_are_not_added_up() {
        let one = |longest, switches| Statistics {
            mechanism: BTreeMap::from([
                ("longest_switch_ns", longest),
                ("stay_ms", longest),
                ("switches_to_partner", switches),
            ]),
            ..Statistics::default()
        };
        let mut all = Statistics::default();
        for worker in [one(5, 1), one(9, 2), one(7, 3)] {
            all.merge(&worker);
        }
        let values: Vec<u64> = all.mechanism.values().copied().collect();
        assert_eq!(values, [9, 9, 6]);
    }
}

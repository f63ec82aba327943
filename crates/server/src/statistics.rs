//! What a server counts, and how it is told.

use pollux_event::sys::Counters;
use serde::Serialize;
use std::collections::BTreeMap;

/// Connections by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
}

/// One worker's counts, or those of several added up.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Connections.
    pub connections: ConnectionCounts,
    /// Responses begun, whatever their status.
    pub requests: u64,
    /// Octets that the kernel took.
    pub bytes_sent: u64,
    /// Waits of the mechanism.
    pub waits: u64,
    /// Events that it handed out.
    pub events: u64,
    /// Times that accepting stopped for want of descriptors or memory, or at the limit.
    pub accept_pauses: u64,
    /// Access-log lines that were dropped because the log's writer was behind.
    pub log_lines_dropped: u64,
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
        self.requests += other.requests;
        self.bytes_sent += other.bytes_sent;
        self.waits += other.waits;
        self.events += other.events;
        self.accept_pauses += other.accept_pauses;
        self.log_lines_dropped += other.log_lines_dropped;
        self.system_calls.merge(&other.system_calls);
        for (name, value) in &other.mechanism {
            *self.mechanism.entry(name).or_default() += value;
        }
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
            system_calls,
            details: &self.mechanism,
        })
        .expect("numbers and names have a JSON form")
    }

    /// The same for people, a line a thing.
    pub fn to_text(&self) -> String {
        let ConnectionCounts { accepted, open, closed, refused, timed_out } = self.connections;
        let mut text = format!(
            "connections: {accepted} accepted, {open} open, {closed} closed ({timed_out} timed \
             out), {refused} refused\nrequests: {}, {} octets sent\nwaits: {}, {} events\n",
            self.requests, self.bytes_sent, self.waits, self.events
        );
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

//! The rows of the page and of `pollux top`: each has a name and a value, and some values are
//! rates.

use super::snapshot::Snapshot;
use crate::stats::{Counter, Counts, HubStoreStatistics, latency};
use std::{cmp::Reverse, fmt::Write};

/// A row without its value.
#[derive(Debug)]
pub struct Row {
    /// The key of the row in server-sent events and on the page.
    pub key: &'static str,
    /// The heading of its group; the rows of a group are adjacent.
    pub group: &'static str,
    /// The name for people.
    pub label: &'static str,
}

macro_rules! rows {
    ($($group:literal { $($key:literal $label:literal,)+ })+) => {
        /// All rows, in order. A server sends the rows of the hub only if it has one.
        pub const ROWS: &[Row] = &[$($(Row { key: $key, group: $group, label: $label },)+)+];
    };
}

rows! {
    "Connections" {
        "open" "open now",
        "idle" "of these, idle",
        "active" "of these, active",
        "streams" "of these, streams of the hub",
        "accepted_s" "accepted a second",
        "closed" "closed so far",
        "timed_out" "of these, timed out",
        "refused" "refused: no room left",
    }
    "Requests" {
        "requests_s" "a second",
        "requests" "so far",
        "latency_median" "median time of a response",
        "latency_tail" "99th percentile",
        "sent_s" "sent a second",
        "sent" "sent so far",
    }
    "The cost of waiting" {
        "waits_s" "waits a second",
        "events_wait" "events a wait",
        "calls_request" "system calls a request",
        "cpu_request" "CPU a request",
        "cpu" "CPU in use",
        "memory" "resident memory",
    }
    "Origins and cache" {
        "origin_reused" "requests on idle connections",
        "origin_opened" "connections made",
        "origin_failures" "failures",
        "cache_hits" "answered by the cache",
        "cache_entries" "URLs in the cache",
        "cache_bytes" "memory of the cache",
    }
    "Hub" {
        "hub_subscribers" "subscribers",
        "hub_topic_sets" "sets of topics that they read",
        "hub_updates_s" "updates accepted a second",
        "hub_updates" "updates accepted so far",
        "hub_deliveries_s" "deliveries a second",
        "hub_deliveries" "deliveries so far",
        "hub_skips" "times updates were missed",
        "hub_ended_slow" "streams ended: too slow",
        "hub_ended_token" "streams ended: token expired",
        "hub_ended_lifetime" "streams ended: lifetime over",
        "hub_store" "connection to the store",
    }
    "Rejections" {
        "reject_first" "most frequent",
        "reject_second" "second",
        "reject_third" "third",
    }
    "Health" {
        "accept_pauses" "pauses of accepting",
        "log_dropped" "access-log lines dropped",
        "workers" "workers that run",
        "uptime" "up for",
    }
}

/// Returns the rows that the server has, in the order of [`ROWS`], with their values.
pub(super) fn rows(earlier: &Snapshot, now: &Snapshot) -> Vec<(&'static Row, String)> {
    let rates = Rates::new(earlier, now);
    let statistics = &now.statistics;
    let counts = &statistics.counts;
    let cache = statistics.cache.as_ref();
    let has_hub = statistics.hub.is_some();
    ROWS.iter()
        .filter(|row| has_hub || !row.key.starts_with("hub_"))
        .map(|row| {
            let value = match row.key {
                "open" => whole(counts.open()),
                "idle" if now.knows_states() => whole(counts.idle()),
                "active" if now.knows_states() => whole(counts[Counter::Busy]),
                "streams" if now.knows_states() => whole(counts[Counter::Streams]),
                "latency_median" => rates.latency(0.5),
                "latency_tail" => rates.latency(0.99),
                "reject_first" => rejection(counts, 0),
                "reject_second" => rejection(counts, 1),
                "reject_third" => rejection(counts, 2),
                "accepted_s" => rates.a_second(|s| s.statistics.counts[Counter::Accepted]),
                "closed" => whole(counts[Counter::Closed]),
                "timed_out" => whole(counts[Counter::TimedOut]),
                "refused" => whole(counts[Counter::Refused]),
                "requests_s" => rates.a_second(|s| s.statistics.count(Counter::Requests)),
                "requests" => whole(counts[Counter::Requests]),
                "sent_s" => size(rates.per_second(|s| s.statistics.count(Counter::BytesSent))),
                "sent" => size(counts[Counter::BytesSent] as f64),
                "waits_s" => rates.a_second(|s| s.statistics.count(Counter::Waits)),
                "events_wait" => rates.ratio(
                    |s| s.statistics.count(Counter::Events),
                    |s| s.statistics.count(Counter::Waits),
                ),
                "calls_request" => rates.ratio(
                    |s| s.statistics.system_calls.total(),
                    |s| s.statistics.count(Counter::Requests),
                ),
                "cpu_request" => rates.cpu_a_request(),
                "cpu" => format!("{:.1} %", rates.cpu_share() * 100.0),
                "memory" => size(now.process.resident_bytes as f64),
                "origin_reused" => whole(counts[Counter::OriginReused]),
                "origin_opened" => whole(counts[Counter::OriginOpened]),
                "origin_failures" => whole(counts[Counter::OriginFailures]),
                "cache_hits" => cache.map_or_else(none, |cache| {
                    let answered = cache.hits + cache.stale_hits + cache.stale_if_error;
                    let all = answered + cache.misses + cache.validations;
                    format!("{:.1} %", 100.0 * answered as f64 / all.max(1) as f64)
                }),
                "cache_entries" => cache.map_or_else(none, |cache| whole(cache.entries)),
                "cache_bytes" => cache.map_or_else(none, |cache| size(cache.bytes as f64)),
                "hub_subscribers" => whole(counts[Counter::Streams] + counts[Counter::HubPolls]),
                "hub_topic_sets" => whole(counts[Counter::HubTopicSets]),
                "hub_updates_s" => rates.a_second(|s| s.statistics.count(Counter::HubAccepted)),
                "hub_updates" => whole(counts[Counter::HubAccepted]),
                "hub_deliveries_s" => rates.a_second(|s| s.statistics.count(Counter::HubDelivered)),
                "hub_deliveries" => whole(counts[Counter::HubDelivered]),
                "hub_skips" => whole(counts[Counter::HubSkips]),
                "hub_ended_slow" => whole(counts[Counter::HubEndedSlow]),
                "hub_ended_token" => whole(counts[Counter::HubEndedToken]),
                "hub_ended_lifetime" => whole(counts[Counter::HubEndedLifetime]),
                "hub_store" => store(statistics.hub.and_then(|hub| hub.store)),
                "accept_pauses" => whole(counts[Counter::AcceptPauses]),
                "log_dropped" => whole(counts[Counter::LogLinesDropped]),
                "workers" => format!("{} of {}", now.running, now.wanted),
                "uptime" => duration(now.uptime.as_secs()),
                _ => none(),
            };
            (row, value)
        })
        .collect()
}

/// The reasons why connections and requests are rejected. The texts are short because a block of
/// `pollux top` is narrow.
const REASONS: [(Counter, &str); 9] = [
    (Counter::Malformed, "malformed request"),
    (Counter::TlsFailures, "TLS handshake"),
    (Counter::Denied, "denied address"),
    (Counter::OverConnections, "connections"),
    (Counter::OverAcceptRate, "accept rate"),
    (Counter::OverRequestRate, "request rate"),
    (Counter::ProxyMalformed, "PROXY header"),
    (Counter::Refused, "no room"),
    (Counter::Evicted, "evicted"),
];

/// Returns the reason of this rank with its count; rank 0 is the most frequent reason.
fn rejection(counts: &Counts, rank: usize) -> String {
    let mut found: Vec<_> = REASONS
        .into_iter()
        .map(|(counter, reason)| (counts[counter], reason))
        .filter(|(count, _)| *count > 0)
        .collect();
    found.sort_by_key(|(count, _)| Reverse(*count));
    found.get(rank).map_or_else(none, |(count, reason)| format!("{reason}: {}", whole(*count)))
}

/// Returns one server-sent event: a JSON object of keys and values.
pub(super) fn event(rows: &[(&'static Row, String)]) -> String {
    let mut text = String::from("data: {");
    for (index, (row, value)) in rows.iter().enumerate() {
        let key = row.key;
        // Neither contains a character that JSON escapes.
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(text, "{comma}\"{key}\":\"{value}\"");
    }
    text.push_str("}\n\n");
    text
}

/// Returns the state of the connection to a hub's Redis, or a dash if its updates are not stored there.
fn store(store: Option<HubStoreStatistics>) -> String {
    match store {
        None => none(),
        Some(store) if store.is_connected => "connected".into(),
        Some(_) => "interrupted".into(),
    }
}

fn none() -> String {
    "–".into()
}

/// The difference between two snapshots.
struct Rates<'s> {
    earlier: &'s Snapshot,
    now: &'s Snapshot,
    seconds: f64,
}

impl<'s> Rates<'s> {
    fn new(earlier: &'s Snapshot, now: &'s Snapshot) -> Self {
        let seconds = now.uptime.saturating_sub(earlier.uptime).as_secs_f64().max(0.001);
        Self { earlier, now, seconds }
    }

    /// Returns the difference. The counters of threads that have ended can be behind for a moment,
    /// so a negative difference counts as 0.
    fn difference(&self, of: impl Fn(&Snapshot) -> u64) -> f64 {
        of(self.now).saturating_sub(of(self.earlier)) as f64
    }

    fn per_second(&self, of: impl Fn(&Snapshot) -> u64) -> f64 {
        self.difference(of) / self.seconds
    }

    fn a_second(&self, of: impl Fn(&Snapshot) -> u64) -> String {
        whole(self.per_second(of).round() as u64)
    }

    fn ratio(&self, of: impl Fn(&Snapshot) -> u64, to: impl Fn(&Snapshot) -> u64) -> String {
        let to = self.difference(to);
        if to == 0.0 { none() } else { format!("{:.2}", self.difference(of) / to) }
    }

    /// Returns the limit of the histogram below which this share of the responses stayed.
    fn latency(&self, share: f64) -> String {
        let (before, now) = (&self.earlier.statistics.counts, &self.now.statistics.counts);
        let (before, now) = (latency::histogram(before), latency::histogram(now));
        let counts: Vec<_> = before
            .iter()
            .zip(&now)
            .map(|((_, before), (limit, now))| (*limit, now.saturating_sub(*before)))
            .collect();
        let all = counts.last().map_or(0, |(_, count)| *count);
        let rank = share * all as f64;
        let found = counts.iter().find(|(_, count)| *count > 0 && *count as f64 >= rank);
        match found.map(|(limit, _)| *limit) {
            None => none(),
            Some(limit) if limit.is_infinite() => "over 10 s".into(),
            Some(limit) if limit >= 1.0 => format!("≤ {limit} s"),
            Some(limit) => format!("≤ {:.0} ms", limit * 1000.0),
        }
    }

    fn cpu_share(&self) -> f64 {
        self.now.process.cpu.saturating_sub(self.earlier.process.cpu).as_secs_f64() / self.seconds
    }

    fn cpu_a_request(&self) -> String {
        let requests = self.difference(|snapshot| snapshot.statistics.count(Counter::Requests));
        if requests == 0.0 {
            return none();
        }
        format!("{:.1} µs", self.cpu_share() * self.seconds * 1e6 / requests)
    }
}

/// Formats a number with commas between thousands.
fn whole(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn size(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{value:.0} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!(
            [whole(0), whole(999), whole(1000), whole(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [size(0.0), size(1023.0), size(1536.0), size(3e12)],
            ["0 B", "1023 B", "1.5 KiB", "2.7 TiB"]
        );
        assert_eq!(
            [duration(59), duration(61), duration(7260), duration(90_000)],
            ["59 s", "1 min 1 s", "2 h 1 min", "1 d 1 h"]
        );
    }

    #[test]
    fn the_state_of_a_store_is_a_word() {
        let of = |is_connected| Some(HubStoreStatistics { is_connected, reconnections: 3 });
        assert_eq!(
            [store(None), store(of(true)), store(of(false))],
            ["–", "connected", "interrupted"]
        );
    }

    #[test]
    fn every_row_has_a_key_of_its_own_that_json_and_html_take() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..index].iter().all(|other| other.key != row.key), "{}", row.key);
            assert!(row.key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        }
    }
}

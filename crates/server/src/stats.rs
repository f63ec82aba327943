//! The statistics of a server, and their formats.

pub(crate) mod census;
mod counter;
mod hub;
pub(crate) mod latency;
#[cfg(test)]
mod page_tests;
pub(crate) mod scoreboard;

pub(crate) use counter::COUNTERS;
pub use counter::{Counter, Counters, Counts};
pub use hub::{HubStatistics, HubStoreStatistics};

use pollux_sys::Counters as CallCounters;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The statistics of one worker, or the sum of several.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// The values of all counters.
    pub counts: Counts,
    /// The cache's counters, which all workers share; `None` without a cache, or for a single
    /// worker.
    pub cache: Option<pollux_cache::Statistics>,
    /// The statistics of the hub, which all workers share; `None` without a hub, or for a single
    /// worker.
    pub hub: Option<HubStatistics>,
    /// The system calls of the workers' threads.
    pub system_calls: CallCounters,
    /// The counters that only this mechanism has.
    pub mechanism: BTreeMap<&'static str, u64>,
}

impl Statistics {
    /// Returns the value of a counter.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counts[counter]
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> u64 {
        self.counts.open()
    }

    /// Adds the statistics of another worker.
    pub fn merge(&mut self, other: &Self) {
        self.counts.merge(&other.counts);
        self.cache = self.cache.or(other.cache);
        self.hub = self.hub.or(other.hub);
        self.system_calls.merge(&other.system_calls);
        for (name, value) in &other.mechanism {
            let ours = self.mechanism.entry(name).or_default();
            // A maximum stays a maximum. Other values that are not counters, such as `on_partner`
            // or `pinned`, are added, so that the sum is the number for all workers together.
            *ours = if name.starts_with("longest_") || *name == "stay_ms" {
                (*ours).max(*value)
            } else {
                *ours + value
            };
        }
    }

    /// Returns the line of JSON that `--json` prints at the end and after each SIGUSR1. `docs/statistics.md` explains its
    /// members.
    pub fn to_json(&self, mechanism: &str) -> String {
        let mut line = Map::new();
        line.insert("event".into(), "statistics".into());
        line.insert("mechanism".into(), mechanism.into());
        for (counter, value) in self.counts.iter() {
            let object = match counter.group() {
                "" => Some(&mut line),
                group => {
                    line.entry(group).or_insert_with(|| Value::Object(Map::new())).as_object_mut()
                }
            };
            if let Some(object) = object {
                object.insert(counter.key().into(), value.into());
            }
        }
        if let Some(connections) = line.get_mut("connections") {
            connections["open"] = self.counts.open().into();
        }
        if let Some(cache) = &self.cache {
            let cache: Map<_, _> =
                cache.iter().map(|(name, value)| (name.into(), value.into())).collect();
            line.insert("cache".into(), cache.into());
        }
        if let (Some(hub), Some(object)) = (&self.hub, line.get_mut("hub")) {
            for (name, value) in hub.iter() {
                object[name] = value.into();
            }
        }
        let calls: Map<_, _> = self
            .system_calls
            .iter()
            .map(|(call, count, time)| {
                let calls = json!({ "count": count, "ns": time.as_nanos() as u64 });
                (call.name().into(), calls)
            })
            .collect();
        line.insert("system_calls".into(), calls.into());
        line.insert("details".into(), json!(self.mechanism));
        Value::Object(line).to_string()
    }

    /// Returns the statistics as text for people, one item on each line.
    pub fn to_text(&self) -> String {
        let counts = &self.counts;
        let mut also = String::new();
        for (counter, what) in
            [(Counter::HandedOver, "handed over"), (Counter::Evicted, "evicted while idle")]
        {
            if counts[counter] > 0 {
                also.push_str(&format!(", {} {what}", counts[counter]));
            }
        }
        let mut text = format!(
            "connections: {} accepted, {} open, {} closed ({} timed out{also}), {} \
             refused\nrequests: {}, {} bytes sent\nwaits: {}, {} events\n",
            counts[Counter::Accepted],
            counts.open(),
            counts[Counter::Closed],
            counts[Counter::TimedOut],
            counts[Counter::Refused],
            counts[Counter::Requests],
            counts[Counter::BytesSent],
            counts[Counter::Waits],
            counts[Counter::Events],
        );
        if counts.iter().any(|(counter, count)| counter.group() == "origins" && count > 0) {
            text.push_str(&format!(
                "origins: {} connections opened, {} reused, {} failures, {} retries\n",
                counts[Counter::OriginOpened],
                counts[Counter::OriginReused],
                counts[Counter::OriginFailures],
                counts[Counter::OriginRetries],
            ));
        }
        let refused: Vec<_> = counts
            .iter()
            .filter(|(counter, count)| counter.group() == "clients" && *count > 0)
            .map(|(counter, count)| format!("{count} {}", counter.key().replace('_', " ")))
            .collect();
        if !refused.is_empty() {
            text.push_str(&format!("clients refused: {}\n", refused.join(", ")));
        }
        if let Some(cache) = &self.cache
            && cache.iter().any(|(_, value)| value > 0)
        {
            text.push_str("cache:\n");
            for (name, value) in cache.iter().filter(|(_, value)| *value > 0) {
                text.push_str(&format!("  {name}: {value}\n"));
            }
        }
        if self.system_calls.iter().next().is_some() {
            text.push_str("system calls:\n");
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

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_sys::Call;
    use std::time::Duration;

    #[test]
    fn a_line_has_every_counter() {
        let mut calls = CallCounters::default();
        calls.add(Call::Recv, 7, Duration::from_nanos(99));
        let mut counts = Counts::default();
        for (value, &counter) in (1 << 60..).zip(Counter::ALL) {
            counts[counter] = value;
        }
        let written = Statistics {
            counts,
            cache: None,
            hub: None,
            system_calls: calls,
            mechanism: BTreeMap::from([("hints", 12)]),
        };
        let line: Value = serde_json::from_str(&written.to_json("epoll")).unwrap();
        for (counter, value) in counts.iter() {
            let object = if counter.group().is_empty() { &line } else { &line[counter.group()] };
            assert_eq!(object[counter.key()], value, "{counter:?}");
        }
        assert_eq!(line["system_calls"]["recvfrom"], json!({ "count": 7, "ns": 99 }));
        assert_eq!(line["details"], json!({ "hints": 12 }));
    }

    /// Regression: the text said that none was refused, since it had no counts of limits and lists.
    #[test]
    fn refused_clients_are_named_with_their_reasons() {
        let mut counts = Counts::default();
        assert!(!Statistics { counts, ..Statistics::default() }.to_text().contains("clients"));
        counts[Counter::OverConnections] = 2;
        counts[Counter::Denied] = 1;
        let text = Statistics { counts, ..Statistics::default() }.to_text();
        assert!(text.contains("2 over connections") && text.contains("1 denied"), "{text}");
    }

    /// Regression: they were below the heading of the cache.
    #[test]
    fn system_calls_have_a_heading() {
        let mut calls = CallCounters::default();
        calls.add(Call::Recv, 7, Duration::ZERO);
        let statistics = Statistics {
            cache: Some(pollux_cache::Statistics::default()),
            system_calls: calls,
            ..Statistics::default()
        };
        let text = statistics.to_text();
        assert!(text.contains("system calls:\n  recvfrom: 7\n"), "{text}");
        assert!(!text.contains("cache:"), "{text}");
    }

    #[test]
    fn figures_of_a_hub_are_beside_its_counters() {
        let store = HubStoreStatistics { is_connected: true, reconnections: 2 };
        let hub = HubStatistics { history_updates: 7, history_bytes: 700, store: Some(store) };
        let statistics = Statistics { hub: Some(hub), ..Statistics::default() };
        let line: Value = serde_json::from_str(&statistics.to_json("epoll")).unwrap();
        let keys = ["history_updates", "history_bytes", "store_connected", "store_reconnections"];
        assert_eq!(keys.map(|key| line["hub"][key].as_u64().unwrap()), [7, 700, 1, 2]);
        assert_eq!(line["hub"]["delivered"], 0);
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

//! The list of metrics. Names follow Prometheus' conventions: base units, `_total` for counters, a
//! prefix.

mod acme;
mod http;
mod hub;

use super::{
    exposition::{Family, Kind, Sample, Value},
    snapshot::Snapshot,
};
use crate::stats::Counter;

/// The cache's counters that count outcomes of requests; its other counters and its gauges follow
/// below.
const CACHE_OUTCOMES: &[&str] = &[
    "hits",
    "stale_hits",
    "stale_if_error",
    "misses",
    "validations",
    "revalidated",
    "refreshes",
    "bypasses",
    "collapsed",
    "only_if_cached",
    "failures",
];
/// The values of the cache that are not counters.
const CACHE_GAUGES: &[&str] = &["entries", "bytes", "disk_files", "disk_bytes", "fetching"];

/// Returns all metrics of a moment, except those without a sample.
pub(super) fn families(snapshot: &Snapshot) -> Vec<Family> {
    let mut all = Vec::with_capacity(32);
    process(snapshot, &mut all);
    connections(snapshot, &mut all);
    waiting(snapshot, &mut all);
    http::families(&snapshot.statistics.counts, &mut all);
    origins(snapshot, &mut all);
    cache(snapshot, &mut all);
    hub::families(snapshot, &mut all);
    acme::families(snapshot, &mut all);
    all.retain(|family| !family.samples.is_empty());
    all
}

fn single(value: u64) -> Vec<Sample> {
    vec![Sample { suffix: "", labels: Vec::new(), value: Value::Count(value) }]
}

fn real(value: f64) -> Vec<Sample> {
    vec![Sample { suffix: "", labels: Vec::new(), value: Value::Real(value) }]
}

/// Returns a sample for each value of one label.
fn by<N: Into<String>>(
    label: &'static str,
    values: impl IntoIterator<Item = (N, u64)>,
) -> Vec<Sample> {
    let sample = |(name, value): (N, u64)| Sample {
        suffix: "",
        labels: vec![(label, name.into())],
        value: Value::Count(value),
    };
    values.into_iter().map(sample).collect()
}

fn counter(name: &'static str, help: &'static str, samples: Vec<Sample>) -> Family {
    Family { name, kind: Kind::Counter, unit: unit_of(name), help, samples }
}

fn gauge(name: &'static str, help: &'static str, samples: Vec<Sample>) -> Family {
    Family { name, kind: Kind::Gauge, unit: unit_of(name), help, samples }
}

/// Returns the unit of a metric. OpenMetrics requires it as metadata and at the end of the name.
fn unit_of(name: &str) -> &'static str {
    ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit)).unwrap_or("")
}

fn process(snapshot: &Snapshot, all: &mut Vec<Family>) {
    let info = &snapshot.info;
    let process = &snapshot.process;
    let build = Sample {
        suffix: "",
        labels: vec![
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("mechanism", info.mechanism.clone()),
            ("architecture", info.architecture.clone()),
        ],
        value: Value::Count(1),
    };
    all.extend([
        gauge("pollux_build_info", "What runs: version, mechanism, architecture.", vec![build]),
        gauge("pollux_workers", "Workers that run.", single(snapshot.running as u64)),
        gauge(
            "pollux_workers_started",
            "Workers that were started, and should run: during a stop, those that still do.",
            single(snapshot.wanted as u64),
        ),
        counter(
            "pollux_workers_replaced",
            "Workers that died and were replaced.",
            single(snapshot.statistics.counts[Counter::WorkersReplaced]),
        ),
        gauge(
            "pollux_former_configurations",
            "Former configurations that exchanges in progress still use, summed over the workers.",
            single(snapshot.statistics.counts[Counter::FormerConfigurations]),
        ),
        counter(
            "process_cpu_seconds",
            "User and system CPU time.",
            real(process.cpu.as_secs_f64()),
        ),
        gauge("process_resident_memory_bytes", "Resident memory.", single(process.resident_bytes)),
        gauge(
            "process_start_time_seconds",
            "Start of the process, as a UNIX time.",
            real(process.started_unix_s),
        ),
    ]);
}

/// Returns the open connections: those that wait for a request, those that have a request or its
/// response in progress, and streams. Blocking architectures do not distinguish them.
fn states(snapshot: &Snapshot) -> Vec<Sample> {
    let counts = &snapshot.statistics.counts;
    if !snapshot.knows_states() {
        return by("state", [("open", counts.open())]);
    }
    by(
        "state",
        [
            ("idle", counts.idle()),
            ("active", counts[Counter::Busy]),
            ("stream", counts[Counter::Streams]),
        ],
    )
}

fn connections(snapshot: &Snapshot, all: &mut Vec<Family>) {
    let statistics = &snapshot.statistics;
    let counts = &statistics.counts;
    let others = counts[Counter::Closed].saturating_sub(
        counts[Counter::TimedOut] + counts[Counter::HandedOver] + counts[Counter::Evicted],
    );
    all.extend([
        gauge("pollux_connections", "Connections that are open, by state.", states(snapshot)),
        counter(
            "pollux_connections_accepted",
            "Connections that were accepted and served.",
            single(counts[Counter::Accepted]),
        ),
        counter(
            "pollux_connections_taken_over",
            "Idle connections that a former process handed over at an upgrade.",
            single(counts[Counter::TakenOver]),
        ),
        counter(
            "pollux_upgrades",
            "Live upgrades: whether this process has taken over from another one, and attempts to leave to a new one \
             that failed.",
            by(
                "outcome",
                [
                    ("taken_over", snapshot.process.has_taken_over.into()),
                    ("failed", snapshot.process.failed_upgrades),
                ],
            ),
        ),
        counter(
            "pollux_connections_refused",
            "Connections that were accepted and closed at once, because there was no room.",
            single(counts[Counter::Refused]),
        ),
        counter(
            "pollux_clients_refused",
            "Connections that were closed at once and requests that were refused, by reason.",
            by(
                "reason",
                [
                    ("denied", counts[Counter::Denied]),
                    ("connections", counts[Counter::OverConnections]),
                    ("accept_rate", counts[Counter::OverAcceptRate]),
                    ("request_rate", counts[Counter::OverRequestRate]),
                    ("malformed_request", counts[Counter::Malformed]),
                    ("proxy_protocol", counts[Counter::ProxyMalformed]),
                ],
            ),
        ),
        counter(
            "pollux_connections_closed",
            "Connections that were closed, by reason.",
            by(
                "reason",
                [
                    ("timeout", counts[Counter::TimedOut]),
                    ("handover", counts[Counter::HandedOver]),
                    ("eviction", counts[Counter::Evicted]),
                    ("other", others),
                ],
            ),
        ),
        counter(
            "pollux_http_requests",
            "Responses that were begun.",
            single(counts[Counter::Requests]),
        ),
        counter(
            "pollux_sent_bytes",
            "Bytes that the kernel took from the server.",
            single(counts[Counter::BytesSent]),
        ),
        counter(
            "pollux_access_log_lines_dropped",
            "Lines of the access log that were dropped, because its target was behind or failed.",
            single(counts[Counter::LogLinesDropped]),
        ),
    ]);
}

fn waiting(snapshot: &Snapshot, all: &mut Vec<Family>) {
    let statistics = &snapshot.statistics;
    let counts = &statistics.counts;
    let calls = || statistics.system_calls.iter();
    let timed = || calls().filter(|(_, _, time)| !time.is_zero());
    let seconds = timed().map(|(call, _, time)| Sample {
        suffix: "",
        labels: vec![("call", call.name().into())],
        value: Value::Real(time.as_secs_f64()),
    });
    all.extend([
        counter("pollux_waits", "Waits of the mechanism.", single(counts[Counter::Waits])),
        counter(
            "pollux_wait_events",
            "Events that the mechanism reported.",
            single(counts[Counter::Events]),
        ),
        counter(
            "pollux_accept_pauses",
            "Pauses of accepting, because descriptors or memory were used up, or at the limit.",
            single(counts[Counter::AcceptPauses]),
        ),
        counter(
            "pollux_system_calls",
            "System calls of the workers, by name.",
            by(
                "call",
                calls()
                    .filter(|(_, count, _)| *count > 0)
                    .map(|(call, count, _)| (call.name(), count)),
            ),
        ),
        counter(
            "pollux_system_call_seconds",
            "CPU time of system calls, with --time-system-calls.",
            seconds.collect(),
        ),
        Family {
            name: "pollux_mechanism",
            kind: Kind::Unknown,
            unit: "",
            help: "Counters that only this mechanism has.",
            samples: by("figure", statistics.mechanism.iter().map(|(name, value)| (*name, *value))),
        },
    ]);
}

fn origins(snapshot: &Snapshot, all: &mut Vec<Family>) {
    let counts = &snapshot.statistics.counts;
    all.extend([
        counter(
            "pollux_upstream_connections_opened",
            "Connections to origins that were made.",
            single(counts[Counter::OriginOpened]),
        ),
        counter(
            "pollux_upstream_connections_reused",
            "Requests that took an idle connection to an origin.",
            single(counts[Counter::OriginReused]),
        ),
        counter(
            "pollux_upstream_failures",
            "Origins that could not be reached, or did not reply as they should.",
            single(counts[Counter::OriginFailures]),
        ),
        counter(
            "pollux_upstream_retries",
            "Requests to origins that were tried again.",
            single(counts[Counter::OriginRetries]),
        ),
    ]);
}

fn cache(snapshot: &Snapshot, all: &mut Vec<Family>) {
    let Some(cache) = &snapshot.statistics.cache else { return };
    let named =
        |names: &'static [&'static str]| cache.iter().filter(|(name, _)| names.contains(name));
    let value =
        |wanted: &str| cache.iter().find(|(name, _)| *name == wanted).map_or(0, |(_, value)| value);
    let others = cache
        .iter()
        .filter(|(name, _)| !CACHE_OUTCOMES.contains(name) && !CACHE_GAUGES.contains(name));
    all.extend([
        counter(
            "pollux_cache_requests",
            "Requests to the cache, by what became of them.",
            by("outcome", named(CACHE_OUTCOMES)),
        ),
        counter(
            "pollux_cache_changes",
            "Changes of what the cache has, by kind.",
            by("kind", others),
        ),
        gauge("pollux_cache_entries", "URLs stored in memory.", single(value("entries"))),
        gauge(
            "pollux_cache_memory_bytes",
            "Memory of the responses stored in memory.",
            single(value("bytes")),
        ),
        gauge("pollux_cache_disk_files", "Files in the disk tier.", single(value("disk_files"))),
        gauge(
            "pollux_cache_disk_bytes",
            "Size of the files in the disk tier.",
            single(value("disk_bytes")),
        ),
        gauge(
            "pollux_cache_fetching",
            "Requests that are being fetched from an origin.",
            single(value("fetching")),
        ),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::web::{exposition::Format, process::ProcessFigures, snapshot::ServerInfo};
    use crate::stats::{Counts, HubStatistics, HubStoreStatistics, Statistics};
    use std::{collections::BTreeSet, time::Duration};

    fn snapshot() -> Snapshot {
        let mut counts = Counts::default();
        counts[Counter::Requests] = 9;
        let statistics = Statistics {
            counts,
            cache: Some(pollux_cache::Statistics { hits: 3, entries: 2, ..Default::default() }),
            hub: Some(HubStatistics {
                store: Some(HubStoreStatistics::default()),
                ..HubStatistics::default()
            }),
            ..Statistics::default()
        };
        Snapshot {
            info: ServerInfo {
                mechanism: "epoll-et".into(),
                architecture: "event".into(),
                workers: 1,
                acme: None,
            },
            statistics,
            process: ProcessFigures::default(),
            running: 1,
            wanted: 1,
            uptime: Duration::from_secs(1),
        }
    }

    #[test]
    fn names_are_conventional_and_each_is_there_once() {
        let all = families(&snapshot());
        let names: BTreeSet<_> = all.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), all.len());
        for family in &all {
            let name = family.name;
            assert!(name.starts_with("pollux_") || name.starts_with("process_"), "{name}");
            assert!(!name.ends_with("_total"), "{name}: the format adds it");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(family.help.ends_with('.'), "{name}");
        }
    }

    #[test]
    fn metrics_of_the_hub_are_there_with_a_hub() {
        let mut snapshot = snapshot();
        let text = Format::Prometheus.write(&families(&snapshot));
        for line in [
            "pollux_hub_subscribers{kind=\"poll\"} 0\n",
            "pollux_hub_updates_refused_total{reason=\"rate\"} 0\n",
            "pollux_hub_subscribers_disconnected_total{reason=\"lifetime\"} 0\n",
            "pollux_hub_store_connected 0\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        snapshot.statistics.hub = None;
        assert!(!Format::Prometheus.write(&families(&snapshot)).contains("pollux_hub"));
    }

    #[test]
    fn every_counter_of_the_cache_is_exported() {
        let text = Format::Prometheus.write(&families(&snapshot()));
        for line in [
            "pollux_http_requests_total 9\n",
            "pollux_workers_started 1\n",
            "pollux_cache_requests_total{outcome=\"hits\"} 3\n",
            "pollux_cache_entries 2\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let cache = pollux_cache::Statistics::default();
        for (name, _) in cache.iter().filter(|(name, _)| !CACHE_GAUGES.contains(name)) {
            assert!(text.contains(&format!("=\"{name}\"}} ")), "{name}");
        }
    }
}

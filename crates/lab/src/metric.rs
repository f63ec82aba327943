//! The metrics of a run: their names, units, and which way is better.
//!
//! A run's metrics are a flat map from name to number, so that claims and figures can name any of
//! them. Families have a name with a dot, such as `calls_per_request.epoll_wait`.

use crate::measure::WAIT_CALLS;
use anyhow::bail;

/// What is known about a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name in experiments and in `result.json`.
    pub name: &'static str,
    /// What tables and axes say, without the unit.
    pub label: &'static str,
    /// The unit, as it is written after a figure; empty for a pure number.
    pub unit: &'static str,
    /// Whether less is better; `None` where neither is.
    pub less_is_better: Option<bool>,
}

const fn metric(
    name: &'static str,
    label: &'static str,
    unit: &'static str,
    less_is_better: Option<bool>,
) -> Metric {
    Metric { name, label, unit, less_is_better }
}

/// Every metric with a fixed name.
pub const ALL: &[Metric] = &[
    metric("server_cpu_us_per_request", "server CPU per request", "µs", Some(true)),
    metric(
        "server_instructions_per_request",
        "the server's instructions per request",
        "",
        Some(true),
    ),
    metric(
        "generator_instructions_per_request",
        "the generator's instructions per request",
        "",
        Some(true),
    ),
    metric("wait_p50_instructions", "median cost of a wait in instructions", "", Some(true)),
    metric("wait_mean_instructions", "mean cost of a wait in instructions", "", Some(true)),
    metric(
        "replies_per_cpu_second",
        "replies for a second of the server's CPU time",
        "replies/s",
        Some(false),
    ),
    metric("server_cpu_utilization", "server CPU in use", "", None),
    metric(
        "server_cpu_busy_share",
        "time the server used its CPU, or its part of one, or waited for it",
        "",
        None,
    ),
    metric("server_queue_share", "time the server was kept from its CPU", "", Some(true)),
    metric("server_throttled_share", "time the server had used its part of a CPU up", "", None),
    metric("cpu_idle_share", "time the server's CPU had nothing to do", "", None),
    metric(
        "partner_after_load_ns",
        "time that a hybrid is with its partner when the load has dropped",
        "ns",
        Some(true),
    ),
    metric("throughput_rps", "reply rate", "replies/s", Some(false)),
    metric("reply_rate_min_rps", "lowest reply rate of an interval", "replies/s", Some(false)),
    metric("reply_rate_max_rps", "highest reply rate of an interval", "replies/s", Some(false)),
    metric("reply_rate_stddev_rps", "standard deviation of reply rates", "replies/s", Some(true)),
    metric("offered_rps", "requests offered", "requests/s", None),
    metric("requests_scheduled", "requests scheduled", "", None),
    metric("requests_completed", "requests answered", "", None),
    metric("requests_failed", "requests failed", "", None),
    metric("packets_dropped", "packets dropped before the server", "", Some(true)),
    metric("completed_share", "scheduled requests answered", "", Some(false)),
    metric("error_share", "scheduled requests failed", "", Some(true)),
    metric("latency_p50_us", "median latency", "µs", Some(true)),
    metric("latency_p90_us", "90th percentile of latency", "µs", Some(true)),
    metric("latency_p99_us", "99th percentile of latency", "µs", Some(true)),
    metric("latency_p99_9_us", "99.9th percentile of latency", "µs", Some(true)),
    metric(
        "latency_with_failures_p50_us",
        "median latency, failures counted as the timeout",
        "µs",
        Some(true),
    ),
    metric(
        "latency_with_failures_p99_us",
        "99th percentile of latency, failures counted as the timeout",
        "µs",
        Some(true),
    ),
    metric("latency_mean_us", "mean latency", "µs", Some(true)),
    metric("latency_max_us", "longest latency", "µs", Some(true)),
    metric("service_p50_us", "median service time", "µs", Some(true)),
    metric("service_p99_us", "99th percentile of service time", "µs", Some(true)),
    metric("connect_p50_us", "median connect time", "µs", Some(true)),
    metric("generator_cpu_us_per_request", "generator CPU per request", "µs", Some(true)),
    metric("generator_cpu_utilization", "generator CPU in use", "", Some(true)),
    metric("generator_busy_utilization", "time the generator was busy", "", Some(true)),
    metric("generator_lag_p99_us", "99th percentile of generator lag", "µs", Some(true)),
    metric("fill_s", "time to take the idle connections in", "s", Some(true)),
    metric("fill_cpu_us_per_connection", "server CPU to take one in", "µs", Some(true)),
    metric("user_bytes_per_connection", "server memory of an idle connection", "bytes", Some(true)),
    metric(
        "kernel_bytes_per_connection",
        "kernel memory of an idle connection, both ends",
        "bytes",
        Some(true),
    ),
    metric(
        "user_bytes_per_loaded_connection",
        "server memory of a connection under load",
        "bytes",
        Some(true),
    ),
    metric(
        "kernel_bytes_per_loaded_connection",
        "kernel memory of a connection under load, both ends",
        "bytes",
        Some(true),
    ),
    metric("objects_stored", "documents that were stored before", "", None),
    metric("user_bytes_per_object", "server memory of a stored document", "bytes", Some(true)),
    metric(
        "user_overhead_bytes_per_object",
        "server memory of a stored document beside its own bytes",
        "bytes",
        Some(true),
    ),
    metric("context_switches_per_request", "context switches per request", "", Some(true)),
    metric("redis_cpu_us_per_request", "CPU of Redis per request", "µs", Some(true)),
    metric("origin_requests", "requests that came to the origin", "", Some(true)),
    metric("origin_requests_per_request", "requests to the origin per request", "", Some(true)),
    metric("open_connections", "connections open on average", "", None),
    metric("calls_per_request", "system calls per request", "", Some(true)),
    metric("event_call_share", "share of server CPU in calls about events", "", Some(true)),
    metric("interest_call_share", "share of server CPU in calls about interest", "", Some(true)),
    metric("outside_calls_share", "share of server CPU outside system calls", "", None),
    metric("timing_share", "share of server CPU that timing the calls takes", "", Some(true)),
    metric("interest_calls_per_request", "calls about interest per request", "", Some(true)),
    metric("acts_per_wait", "accepts and reads per wait", "", Some(false)),
    metric("waits_per_request", "waits per request", "", Some(true)),
    metric("events_per_wait", "events per wait", "", None),
    metric("wait_p50_us", "median cost of a wait", "µs", Some(true)),
    metric("wait_mean_us", "mean cost of a wait", "µs", Some(true)),
    metric("wait_p99_us", "99th percentile of the cost of a wait", "µs", Some(true)),
    metric("events_per_timed_wait", "events per wait", "", None),
];

/// The families: prefix, label, unit.
pub const FAMILIES: &[Metric] = &[
    metric("calls_per_request.", "calls per request", "", Some(true)),
    metric("call_us_per_request.", "time in the call per request", "µs", Some(true)),
    metric("call_share.", "share of server CPU", "", Some(true)),
    metric(
        "kernel_calls_per_request.",
        "the server's calls in the kernel per request",
        "",
        Some(true),
    ),
    metric("kernel_calls_per_wait.", "calls in the kernel per wait", "", Some(true)),
    metric("details_per_wait.", "mechanism's own counter per wait", "", None),
    metric("details.", "mechanism's own counter per run", "", None),
];

/// The entry of `name`, or of the family that it belongs to.
pub fn find(name: &str) -> Option<&'static Metric> {
    ALL.iter().find(|metric| metric.name == name).or_else(|| {
        FAMILIES
            .iter()
            .find(|family| name.len() > family.name.len() && name.starts_with(family.name))
    })
}

/// Metrics that are the same on whichever CPU the network's receive work is done: what a connection at rest or a
/// document takes, and what the server does for each request.
const ON_ANY_RECEIVE_CPU: &[&str] = &[
    "user_bytes_per_connection",
    "kernel_bytes_per_connection",
    "objects_stored",
    "user_bytes_per_object",
    "user_overhead_bytes_per_object",
    "interest_calls_per_request",
];

/// Whether `name` may be another figure where the network's receive work is done on another CPU. So are times,
/// CPU costs, rates and what fails under load, and with them whatever depends on how many events come together,
/// the number of waits among that. What is not known not to be is.
pub fn depends_on_receive_cpu(name: &str) -> bool {
    let is_act = |call: &str| !WAIT_CALLS.contains(&call);
    let is_count = name.strip_prefix("calls_per_request.").is_some_and(is_act);
    !is_count && !ON_ANY_RECEIVE_CPU.contains(&name)
}

/// What an axis or a table's head says: label, member of the family, unit.
pub fn title(name: &str) -> String {
    let Some(metric) = find(name) else { return name.to_owned() };
    let mut title = match name.split_once('.') {
        Some((_, member)) => format!("{member}: {}", metric.label),
        None => metric.label.to_owned(),
    };
    if !metric.unit.is_empty() {
        title.push_str(&format!(" ({})", metric.unit));
    }
    title
}

/// # Errors
/// When no metric has this name, with those that exist.
pub fn check(name: &str) -> anyhow::Result<()> {
    if find(name).is_some() {
        return Ok(());
    }
    let names: Vec<_> = ALL.iter().map(|metric| metric.name).collect();
    let families: Vec<_> = FAMILIES.iter().map(|family| format!("{}*", family.name)).collect();
    bail!("no metric {name:?}; there are {}, {}", names.join(", "), families.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same_on_any_receive_cpu_is_a_metric() {
        for name in ON_ANY_RECEIVE_CPU {
            assert!(find(name).is_some() && !depends_on_receive_cpu(name), "{name}");
        }
        let is_same = |name: &str| !depends_on_receive_cpu(name);
        assert!(is_same("calls_per_request.epoll_ctl"));
        // With the number of events that come together the number of waits is another.
        for name in ["calls_per_request", "calls_per_request.ppoll", "waits_per_request"] {
            assert!(depends_on_receive_cpu(name), "{name}");
        }
        assert!(depends_on_receive_cpu("a metric of tomorrow"));
    }
}

//! The metrics of a run: name, unit, formula, and whether less or more is better.
//!
//! A run's metrics are stored as a flat map from name to number, so that claims and figures can name any of
//! them, and so that results of old runs can be read. [`Metric`] has the metrics with a fixed name,
//! [`Family`] those that exist once for each system call or counter: `calls_per_request.epoll_wait`.

mod family;
mod reading;

pub use family::Family;
pub(crate) use reading::Reading;
use reading::{INTEREST_CALLS, US, WAIT_CALLS, over};

use crate::measure::Raw;
use anyhow::bail;
use std::collections::BTreeMap;

/// The definition of a metric, or of the members of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The name in experiments and in `result.json`; the name of a family ends with a dot.
    pub name: &'static str,
    /// The label in tables and on axes, without the unit.
    pub label: &'static str,
    /// The unit after a figure; empty for a pure number.
    pub unit: &'static str,
    /// Whether less is better; `None` if neither less nor more is.
    pub less_is_better: Option<bool>,
}

const LESS: Option<bool> = Some(true);
const MORE: Option<bool> = Some(false);
const NEITHER: Option<bool> = None;

macro_rules! metrics {
    ($($metric:ident $name:literal $label:literal $unit:literal $better:ident $formula:expr;)*) => {
        /// A metric with a fixed name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Metric {
            $(#[doc = $label] $metric,)*
        }

        impl Metric {
            /// Every metric.
            pub const ALL: &[Self] = &[$(Self::$metric),*];

            /// Returns the definition of the metric.
            pub const fn definition(self) -> Definition {
                match self {
                    $(Self::$metric => Definition {
                        name: $name, label: $label, unit: $unit, less_is_better: $better,
                    },)*
                }
            }

            /// Computes the metric for a run, if the run has the data.
            fn of(self, reading: &Reading<'_>) -> Option<f64> {
                let formula: fn(&Reading<'_>) -> Option<f64> = match self {
                    $(Self::$metric => $formula,)*
                };
                formula(reading)
            }
        }
    };
}

metrics! {
    ServerCpu "server_cpu_us_per_request" "server CPU per request" "µs" LESS
        |r| over(Some(r.cpu_us), r.timed_requests);
    ServerInstructions "server_instructions_per_request" "the server's instructions per request" "" LESS
        |r| r.instructions(over(Some(r.cpu_us), r.timed_requests));
    GeneratorInstructions "generator_instructions_per_request" "the generator's instructions per request" "" LESS
        |r| r.instructions(r.load("/generator/cpu_us_per_request"));
    WaitP50Instructions "wait_p50_instructions" "median cost of a wait in instructions" "" LESS
        |r| r.instructions(r.wait_us("p50"));
    WaitMeanInstructions "wait_mean_instructions" "mean cost of a wait in instructions" "" LESS
        |r| r.instructions(r.wait_us("mean"));
    RepliesPerCpuSecond "replies_per_cpu_second" "replies per second of the server's CPU time" "replies/s" MORE
        |r| over(r.timed_requests, Some(r.cpu_us / 1e6));
    ServerCpuUtilization "server_cpu_utilization" "server CPU in use" "" NEITHER
        |r| r.of_wall(Some(r.raw.cpu.run_ns));
    ServerCpuBusy "server_cpu_busy_share" "time in which the server used its CPU, or waited for it" "" NEITHER
        |r| r.busy_share();
    ServerQueue "server_queue_share" "time in which the server waited for its CPU" "" LESS
        |r| r.of_wall(r.waited_ns());
    CpuIdle "cpu_idle_share" "time in which the server's CPU was idle" "" NEITHER
        |r| r.of_wall(r.raw.idle_ns);
    PartnerAfterLoad "partner_after_load_ns" "time in which a hybrid uses its partner after the load has dropped" "ns" LESS
        |r| r.partner_after_load_ns();
    Throughput "throughput_rps" "reply rate" "replies/s" MORE
        |r| r.load("/reply_rate_rps/mean");
    ReplyRateMin "reply_rate_min_rps" "lowest reply rate of an interval" "replies/s" MORE
        |r| r.of_intervals("min");
    ReplyRateMax "reply_rate_max_rps" "highest reply rate of an interval" "replies/s" MORE
        |r| r.of_intervals("max");
    ReplyRateStddev "reply_rate_stddev_rps" "standard deviation of reply rates" "replies/s" LESS
        |r| r.of_intervals("stddev");
    Offered "offered_rps" "requests offered" "requests/s" NEITHER
        |r| r.offered_rps();
    RequestsScheduled "requests_scheduled" "requests scheduled" "" NEITHER
        |r| r.load("/requests/scheduled");
    RequestsCompleted "requests_completed" "requests answered" "" NEITHER
        |r| r.load("/requests/completed");
    RequestsFailed "requests_failed" "requests failed" "" NEITHER
        |r| r.load("/requests/failed");
    PacketsDropped "packets_dropped" "packets dropped before the server" "" LESS
        |r| r.raw.packets_dropped.map(|packets| packets as f64);
    CompletedShare "completed_share" "scheduled requests answered" "" MORE
        |r| over(r.load("/requests/completed"), r.load("/requests/scheduled"));
    ErrorShare "error_share" "scheduled requests failed" "" LESS
        |r| over(r.load("/requests/failed"), r.load("/requests/scheduled"));
    LatencyP50 "latency_p50_us" "median latency" "µs" LESS
        |r| r.latency("latency_us", "p50");
    LatencyP90 "latency_p90_us" "90th percentile of latency" "µs" LESS
        |r| r.latency("latency_us", "p90");
    LatencyP99 "latency_p99_us" "99th percentile of latency" "µs" LESS
        |r| r.latency("latency_us", "p99");
    LatencyP999 "latency_p99_9_us" "99.9th percentile of latency" "µs" LESS
        |r| r.latency("latency_us", "p99_9");
    LatencyWithFailuresP50 "latency_with_failures_p50_us" "median latency, failures counted as the timeout" "µs" LESS
        |r| r.latency("latency_with_failures_us", "p50");
    LatencyWithFailuresP99 "latency_with_failures_p99_us"
        "99th percentile of latency, failures counted as the timeout" "µs" LESS
        |r| r.latency("latency_with_failures_us", "p99");
    LatencyMean "latency_mean_us" "mean latency" "µs" LESS
        |r| r.latency("latency_us", "mean");
    LatencyMax "latency_max_us" "longest latency" "µs" LESS
        |r| r.latency("latency_us", "max");
    ServiceP50 "service_p50_us" "median service time" "µs" LESS
        |r| r.latency("service_us", "p50");
    ServiceP99 "service_p99_us" "99th percentile of service time" "µs" LESS
        |r| r.latency("service_us", "p99");
    ConnectP50 "connect_p50_us" "median connect time" "µs" LESS
        |r| r.latency("connect_us", "p50");
    GeneratorCpu "generator_cpu_us_per_request" "generator CPU per request" "µs" LESS
        |r| r.load("/generator/cpu_us_per_request");
    GeneratorCpuUtilization "generator_cpu_utilization" "generator CPU in use" "" LESS
        |r| r.load("/generator/cpu_utilization");
    GeneratorBusy "generator_busy_utilization" "time in which the generator was busy" "" LESS
        |r| r.load("/generator/busy_utilization");
    GeneratorLagP99 "generator_lag_p99_us" "99th percentile of generator lag" "µs" LESS
        |r| r.load("/generator/lag_us/p99");
    Fill "fill_s" "time to accept all idle connections" "s" LESS
        |r| r.raw.held.map(|held| held.fill_ns as f64 / 1e9);
    FillCpu "fill_cpu_us_per_connection" "server CPU to accept a connection" "µs" LESS
        |r| r.raw.held.map(|held| held.fill_cpu_ns as f64 / US / held.connections as f64);
    UserBytes "user_bytes_per_connection" "server memory of an idle connection" "bytes" LESS
        |r| r.raw.held?.of_one(|memory| memory.user_bytes);
    KernelBytes "kernel_bytes_per_connection" "kernel memory of an idle connection, both ends" "bytes" LESS
        |r| r.raw.held?.of_one(|memory| memory.kernel_bytes);
    UserBytesLoaded "user_bytes_per_loaded_connection" "server memory of a connection under load" "bytes" LESS
        |r| r.raw.loaded?.of_one(|memory| memory.user_bytes);
    KernelBytesLoaded "kernel_bytes_per_loaded_connection"
        "kernel memory of a connection under load, both ends" "bytes" LESS
        |r| r.raw.loaded?.of_one(|memory| memory.kernel_bytes);
    ServerCpuPerUpdate "server_cpu_us_per_update" "server CPU per update" "µs" LESS
        |r| over(Some(r.cpu_us), r.load("/publications/acknowledged"));
    ServerCpuPerDelivery "server_cpu_us_per_delivery" "server CPU per delivery" "µs" LESS
        |r| over(Some(r.cpu_us), r.load("/deliveries/delivered"));
    Deliveries "deliveries" "deliveries" "" NEITHER
        |r| r.load("/deliveries/delivered");
    WrongDeliveries "wrong_deliveries" "deliveries lost, repeated, out of order or changed" "" LESS
        |r| r.raw.wrong_deliveries();
    FanOutP50 "fan_out_p50_us" "median time until the last subscriber has an update" "µs" LESS
        |r| r.latency("fan_out_us", "p50");
    UserBytesPerSubscriber "user_bytes_per_subscriber" "server memory of a subscriber" "bytes" LESS
        |r| r.raw.push.as_ref()?.held?.of_one(|memory| memory.user_bytes);
    ObjectsStored "objects_stored" "documents that were stored before" "" NEITHER
        |r| Some(r.stored()?.objects as f64);
    UserBytesPerObject "user_bytes_per_object" "server memory of a stored document" "bytes" LESS
        |r| r.of_object(|stored| stored.memory.user_bytes);
    OverheadPerObject "user_overhead_bytes_per_object"
        "server memory of a stored document without its own bytes" "bytes" LESS
        |r| r.of_object(|stored| stored.memory.user_bytes - stored.own_bytes as i64);
    ContextSwitches "context_switches_per_request" "context switches per request" "" LESS
        |r| r.per_request(r.raw.switches);
    RedisCpu "redis_cpu_us_per_request" "CPU of Redis per request" "µs" LESS
        |r| r.per_request(r.raw.redis_cpu_ns).map(|ns| ns / US);
    OriginRequests "origin_requests" "requests to the origin" "" LESS
        |r| r.raw.origin_requests.map(|requests| requests as f64);
    OriginRequestsPerRequest "origin_requests_per_request" "requests to the origin per request" "" LESS
        |r| r.per_request(r.raw.origin_requests);
    OpenConnections "open_connections" "connections open on average" "" NEITHER
        |r| Some(r.raw.open.iter().sum::<u64>() as f64 / r.raw.open.len() as f64);
    Calls "calls_per_request" "system calls per request" "" LESS
        |r| over(r.calls(), r.requests);
    EventCalls "event_call_share" "share of server CPU in calls about events" "" LESS
        |r| over(r.us_of_calls(&[INTEREST_CALLS, WAIT_CALLS].concat()), r.untimed_us());
    InterestCallShare "interest_call_share" "share of server CPU in calls about interest" "" LESS
        |r| over(r.us_of_calls(INTEREST_CALLS), r.untimed_us());
    OutsideCalls "outside_calls_share" "share of server CPU outside system calls" "" NEITHER
        |r| over(r.outside_calls_us(), r.untimed_us());
    Timing "timing_share" "share of server CPU that timing the calls takes" "" LESS
        |r| over(r.timing_us().filter(|&us| us > 0.0), r.timed_us);
    InterestCalls "interest_calls_per_request" "calls about interest per request" "" LESS
        |r| over(r.of_calls("count", INTEREST_CALLS), r.requests);
    ActsPerWait "acts_per_wait" "accepts and reads per wait" "" MORE
        |r| over(r.of_calls("count", &["accept4", "recvfrom"]), r.waits());
    Waits "waits_per_request" "waits per request" "" LESS
        |r| over(r.waits(), r.requests);
    EventsPerWait "events_per_wait" "events per wait" "" NEITHER
        |r| over(r.delta(&["events"]), r.waits());
    WaitP50 "wait_p50_us" "median cost of a wait" "µs" LESS
        |r| r.wait_us("p50");
    WaitMean "wait_mean_us" "mean cost of a wait" "µs" LESS
        |r| r.wait_us("mean");
    WaitP99 "wait_p99_us" "99th percentile of the cost of a wait" "µs" LESS
        |r| r.wait_us("p99");
    EventsPerTimedWait "events_per_timed_wait" "events per wait" "" NEITHER
        |r| over(r.load("/events"), r.load("/waits"));
}

impl Metric {
    /// Returns the metric's name in experiments and in `result.json`.
    pub const fn name(self) -> &'static str {
        self.definition().name
    }
}

/// Distributions whose points are stored under names of the form `connect_p99_us`.
const DISTRIBUTIONS: [(&str, &str); 4] = [
    ("latency_us", "latency"),
    ("latency_with_failures_us", "latency_with_failures"),
    ("service_us", "service"),
    ("connect_us", "connect"),
];
const POINTS: [&str; 9] = ["min", "mean", "p50", "p90", "p95", "p99", "p99_9", "p99_99", "max"];

/// Computes every metric for which the raw data suffice.
pub(crate) fn all_of(raw: &Raw) -> BTreeMap<String, f64> {
    let reading = Reading::of(raw);
    let named = Metric::ALL.iter().map(|metric| (metric.name().to_owned(), metric.of(&reading)));
    let points = POINTS.iter().flat_map(|point| {
        let of = |(key, name): &(&str, &str)| {
            (format!("{name}_{point}_us"), reading.latency(key, point))
        };
        let wait = (format!("wait_{point}_us"), reading.wait_us(point));
        DISTRIBUTIONS.iter().map(of).chain([wait]).collect::<Vec<_>>()
    });
    let members = Family::ALL.iter().flat_map(|family| family.of(&reading));
    let all = named.chain(points).chain(members);
    all.filter_map(|(name, value)| Some((name, value.filter(|value| value.is_finite())?))).collect()
}

/// Returns the definition of the metric of this name, or of its family.
pub fn find(name: &str) -> Option<Definition> {
    let named = Metric::ALL.iter().map(|metric| metric.definition()).find(|it| it.name == name);
    named.or_else(|| {
        let mut families = Family::ALL.iter().map(|family| family.definition());
        families.find(|it| name.len() > it.name.len() && name.starts_with(it.name))
    })
}

/// Returns the unit in which a figure of `name` is shown after the figure, and the factor to that unit: times in
/// nanoseconds are shown in seconds.
pub fn shown_in(name: &str) -> (f64, &'static str) {
    match find(name).map_or("", |metric| metric.unit) {
        "ns" => (1e-9, "s"),
        unit => (1.0, unit),
    }
}

/// Metrics that do not depend on which CPU does the network's receive work: the memory of an idle
/// connection or of a document, and counts of the server's work for each request.
const ON_ANY_RECEIVE_CPU: &[Metric] = &[
    Metric::UserBytes,
    Metric::UserBytesPerSubscriber,
    Metric::KernelBytes,
    Metric::ObjectsStored,
    Metric::UserBytesPerObject,
    Metric::OverheadPerObject,
    Metric::InterestCalls,
];

/// Whether the figure of `name` may change when another CPU does the network's receive work. Times, CPU
/// costs, rates and failures under load do, and so does every metric that depends on how many events arrive
/// together, for example the number of waits. A metric that is not known to be independent counts as
/// dependent.
pub fn depends_on_receive_cpu(name: &str) -> bool {
    let is_act = |call: &str| !WAIT_CALLS.contains(&call);
    let is_count = name.strip_prefix(Family::Calls.definition().name).is_some_and(is_act);
    !is_count && !ON_ANY_RECEIVE_CPU.iter().any(|metric| metric.name() == name)
}

/// Returns the title of an axis or a table: label, member of the family, unit.
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

/// Checks a metric's name.
///
/// # Errors
/// When no metric has this name; the message lists the existing ones.
pub fn check(name: &str) -> anyhow::Result<()> {
    if find(name).is_some() {
        return Ok(());
    }
    let names: Vec<_> = Metric::ALL.iter().map(|metric| metric.name()).collect();
    let families = Family::ALL.iter().map(|family| format!("{}*", family.definition().name));
    let families: Vec<_> = families.collect();
    bail!("no metric {name:?}; there are {}, {}", names.join(", "), families.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_there_once() {
        let names = Metric::ALL.iter().map(|metric| metric.name());
        assert_eq!(names.collect::<std::collections::BTreeSet<_>>().len(), Metric::ALL.len());
    }

    #[test]
    fn what_is_the_same_on_any_receive_cpu_is_a_metric() {
        for metric in ON_ANY_RECEIVE_CPU {
            assert!(!depends_on_receive_cpu(metric.name()), "{metric:?}");
        }
        let is_same = |name: &str| !depends_on_receive_cpu(name);
        assert!(is_same("calls_per_request.epoll_ctl"));
        // The number of waits changes with the number of events that arrive together.
        for name in ["calls_per_request", "calls_per_request.ppoll", "waits_per_request"] {
            assert!(depends_on_receive_cpu(name), "{name}");
        }
        assert!(depends_on_receive_cpu("a metric of tomorrow"));
    }
}

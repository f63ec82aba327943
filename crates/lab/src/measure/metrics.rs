//! What the raw data of a run come to.

use super::{Raw, number};
use crate::memory::{HoldCost, LEAST_CONNECTIONS, LEAST_OBJECTS};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Calls that say what is waited for: io_uring_enter carries the interest changes of `epoll-ctlv`.
const INTEREST_CALLS: &[&str] = &["epoll_ctl", "io_uring_enter"];
/// Calls that wait for events.
pub(crate) const WAIT_CALLS: &[&str] = &["epoll_wait", "epoll_pwait2", "ppoll", "pselect6"];

/// What the timing of calls costs itself. It is of no mechanism: shares are of the CPU time without it.
const TIMING: &str = "clock_gettime";

/// Whether a hybrid is with its partner.
const ON_PARTNER: &str = "on_partner";
/// If the server has counted fewer than this share of the answered requests, it reported its counters too
/// late, and its CPU time belongs to another interval than the requests.
const LEAST_COUNTED: f64 = 0.8;

/// The largest share of a latency that may be the generator's own lag, where that is too large somewhere.
const MOST_LAG: f64 = 0.5;

impl Raw {
    fn delta(&self, path: &[&str]) -> Option<f64> {
        Some(number(&self.after, path)? - number(&self.before, path).unwrap_or(0.0))
    }

    /// Whether the server has one thread alone: what keeps that from its CPU is then no thread of its own.
    fn has_one_thread(&self) -> bool {
        let text = |key: &str| self.listening.get(key).and_then(Json::as_str).unwrap_or_default();
        let workers = self.listening.get("workers").and_then(Json::as_array).map_or(0, Vec::len);
        // The sibling that takes connections over has a thread of its own.
        let has_sibling = text("mechanism_spec").contains("handoff");
        workers == 1 && matches!(text("architecture"), "" | "event") && !has_sibling
    }

    /// Every metric that the raw data allow (names: [`crate::metric`]).
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let mut metrics = BTreeMap::new();
        let mut put = |name: &str, value: Option<f64>| {
            if let Some(value) = value.filter(|value| value.is_finite()) {
                metrics.insert(name.to_owned(), value);
            }
        };
        let load = |path: &[&str]| number(&self.load, path);
        let share = |part: Option<f64>, whole: Option<f64>| {
            Some(part? / whole.filter(|&whole| whole > 0.0)?)
        };
        // A peer reports no statistics: it is measured from before the load to its end.
        let of_load = || self.after.is_null().then(|| load(&["requests", "completed"])).flatten();
        let requests = self.delta(&["requests"]).or_else(of_load);
        let requests = requests.filter(|&requests| requests > 0.0 && !self.is_beside_others);
        let counted = requests.zip(load(&["requests", "completed"]));
        let is_of_one_time = self.after.is_null()
            || counted.is_none_or(|(counted, completed)| counted >= LEAST_COUNTED * completed);
        // CPU time and requests, where they are of one time.
        let cpu_us = self.cpu.run_ns as f64 / 1e3;
        let timed_us = is_of_one_time.then_some(cpu_us);
        let timed_requests = requests.filter(|_| is_of_one_time);
        let wall = Some(self.wall_ns as f64);
        put("server_cpu_us_per_request", share(Some(cpu_us), timed_requests));
        put("replies_per_cpu_second", share(timed_requests, Some(cpu_us / 1e6)));
        // A microsecond of a clock that counts instructions is so many of them.
        let mips = self.mips.map(f64::from);
        let instructions = |us: Option<f64>| Some(us? * mips?);
        put("server_instructions_per_request", instructions(share(Some(cpu_us), timed_requests)));
        put(
            "generator_instructions_per_request",
            instructions(load(&["generator", "cpu_us_per_request"])),
        );
        for point in ["mean", "p50"] {
            let us = load(&["wait_ns", point]).map(|ns| ns / 1e3);
            put(&format!("wait_{point}_instructions"), instructions(us));
        }
        put("server_cpu_utilization", share(Some(self.cpu.run_ns as f64), wall));
        let of_wall = |ns: Option<u64>| share(ns.map(|ns| ns as f64), wall);
        put("server_throttled_share", of_wall(self.throttled_ns));
        put("cpu_idle_share", of_wall(self.idle_ns));
        let waited_ns = self.has_one_thread().then_some(self.cpu.wait_ns as f64);
        put("server_queue_share", share(waited_ns, wall));
        if let Some(held) = self.held.filter(|held| held.connections > 0) {
            let of_one = |amount: f64| Some(amount / held.connections as f64);
            put("fill_s", Some(held.fill_ns as f64 / 1e9));
            put("fill_cpu_us_per_connection", of_one(held.fill_cpu_ns as f64 / 1e3));
            if held.connections >= LEAST_CONNECTIONS {
                let memory = held.memory;
                put("user_bytes_per_connection", of_one(memory.user_bytes as f64));
                put("kernel_bytes_per_connection", of_one(memory.kernel_bytes as f64));
            }
        }
        let loaded = self.loaded.filter(|loaded| loaded.connections >= LEAST_CONNECTIONS);
        if let Some(HoldCost { connections, memory, .. }) = loaded {
            let of_one = |bytes: i64| Some(bytes as f64 / connections as f64);
            put("user_bytes_per_loaded_connection", of_one(memory.user_bytes));
            put("kernel_bytes_per_loaded_connection", of_one(memory.kernel_bytes));
        }
        if let Some(stored) = self.stored.filter(|stored| stored.objects >= LEAST_OBJECTS) {
            let of_one = |bytes: i64| Some(bytes as f64 / stored.objects as f64);
            let user_bytes = stored.memory.user_bytes;
            put("objects_stored", Some(stored.objects as f64));
            put("user_bytes_per_object", of_one(user_bytes));
            let overhead = user_bytes - stored.own_bytes as i64;
            put("user_overhead_bytes_per_object", of_one(overhead));
        }
        let per_request =
            |amount: Option<u64>| share(amount.map(|amount| amount as f64), timed_requests);
        put("context_switches_per_request", per_request(self.switches));
        put("redis_cpu_us_per_request", per_request(self.redis_cpu_ns).map(|ns| ns / 1e3));
        put("origin_requests", self.origin_requests.map(|requests| requests as f64));
        put("origin_requests_per_request", per_request(self.origin_requests));
        put("packets_dropped", self.packets_dropped.map(|packets| packets as f64));
        let open = self.open.iter().sum::<u64>() as f64;
        put("open_connections", Some(open / self.open.len() as f64));
        // Over the time in which the generator had to send. It is shorter than the whole by the generator's
        // start and end, so that a server without idle CPU is seen as one. For a peer it is the whole.
        let asked_ns = load(&["duration_s"]).map(|seconds| seconds * 1e9);
        let asked_ns = asked_ns.filter(|_| !self.after.is_null());
        // Several threads wait mostly for each other, which is no want of a CPU. Whether there was CPU to spare is then
        // read from the CPU's own idle time, or, where that was not kept, from what they used.
        let used_ns = self.cpu.run_ns as f64 + waited_ns.unwrap_or(0.0);
        let of_cpu = self.idle_ns.filter(|_| waited_ns.is_none()).zip(wall);
        let of_cpu = of_cpu.map(|(idle, wall)| (1.0 - idle as f64 / wall).max(0.0));
        // A process with a part of a CPU is at its limit when that part is used up.
        let used_ns = self.server_share.map_or(used_ns, |part| self.cpu.run_ns as f64 / part);
        let of_cpu = of_cpu.filter(|_| self.server_share.is_none());
        put("server_cpu_busy_share", of_cpu.or_else(|| share(Some(used_ns), asked_ns.or(wall))));
        put("throughput_rps", load(&["reply_rate_rps", "mean"]));
        // A window of one second is one sample: its least, its greatest and its mean are the same.
        let samples = self.load.pointer("/reply_rate_rps/samples").and_then(Json::as_array);
        let has_several = samples.is_some_and(|samples| samples.len() > 1);
        for point in ["min", "max", "stddev"] {
            let read = load(&["reply_rate_rps", point]).filter(|_| has_several);
            put(&format!("reply_rate_{point}_rps"), read);
        }
        let scheduled = load(&["requests", "scheduled"]);
        // A closed loop offers no rate: a client sends its next request after a response.
        let is_closed = self.load.get("mode").and_then(Json::as_str) == Some("closed");
        let offered = share(scheduled, load(&["duration_s"]));
        put("offered_rps", offered.filter(|_| !is_closed));
        for count in ["scheduled", "completed", "failed"] {
            put(&format!("requests_{count}"), load(&["requests", count]));
        }
        put("completed_share", share(load(&["requests", "completed"]), scheduled));
        put("error_share", share(load(&["requests", "failed"]), scheduled));
        // Where the generator's own lag is most of a latency, it is not the server's. A lag of one request in
        // fifty is most of the 99th percentile, and nothing of the median.
        let latencies = [
            ("latency_us", "latency"),
            ("latency_with_failures_us", "latency_with_failures"),
            ("service_us", "service"),
            ("connect_us", "connect"),
        ];
        let doubted = self.latency_doubt().is_some();
        let is_servers = |point: &str| {
            let (lag, latency) =
                (load(&["generator", "lag_us", point]), load(&["latency_us", point]));
            !doubted || lag.zip(latency).is_some_and(|(lag, latency)| lag <= MOST_LAG * latency)
        };
        let points = ["min", "mean", "p50", "p90", "p95", "p99", "p99_9", "p99_99", "max"];
        for (family, name) in latencies {
            for point in points.into_iter().filter(|point| is_servers(point)) {
                put(&format!("{name}_{point}_us"), load(&[family, point]));
            }
        }
        put("generator_cpu_us_per_request", load(&["generator", "cpu_us_per_request"]));
        put("generator_cpu_utilization", load(&["generator", "cpu_utilization"]));
        put("generator_busy_utilization", load(&["generator", "busy_utilization"]));
        put("generator_lag_p99_us", load(&["generator", "lag_us", "p99"]));
        for point in ["mean", "p50", "p90", "p99", "max"] {
            put(&format!("wait_{point}_us"), load(&["wait_ns", point]).map(|ns| ns / 1e3));
        }
        let timed = load(&["waits"]);
        put("events_per_timed_wait", share(load(&["events"]), timed));
        let own = self.load.get("details").and_then(Json::as_object);
        for key in own.into_iter().flat_map(|details| details.keys()) {
            put(&format!("details_per_wait.{key}"), share(load(&["details", key]), timed));
        }
        let counted = load(&["counted", "waits"]);
        let calls = self.load.pointer("/counted/kernel_calls").and_then(Json::as_object);
        for (function, count) in calls.into_iter().flatten() {
            put(&format!("kernel_calls_per_wait.{function}"), share(count.as_f64(), counted));
        }
        let waits = self.delta(&["waits"]);
        for (function, &count) in &self.kernel_calls {
            let count = Some(count as f64);
            put(&format!("kernel_calls_per_request.{function}"), share(count, timed_requests));
            put(&format!("kernel_calls_per_wait.{function}"), share(count, waits));
        }
        put("waits_per_request", share(waits, requests));
        put("events_per_wait", share(self.delta(&["events"]), waits));
        // Runs of before it was counted do not say.
        let timing_us = self.delta(&["system_calls", TIMING, "ns"]).map(|ns| ns / 1e3);
        let untimed_us = timed_us.map(|us| us - timing_us.unwrap_or(0.0));
        put("timing_share", share(timing_us.filter(|&us| us > 0.0), timed_us));
        let (mut calls, mut calls_us) = (0.0, 0.0);
        let kinds = self.after.get("system_calls").and_then(Json::as_object);
        for kind in kinds.into_iter().flat_map(|kinds| kinds.keys()) {
            if kind == TIMING {
                continue;
            }
            let count = self.delta(&["system_calls", kind, "count"]);
            calls += count.unwrap_or(0.0);
            put(&format!("calls_per_request.{kind}"), share(count, requests));
            // Zero while the timing is off: no figure is better than a false one.
            let time = self.delta(&["system_calls", kind, "ns"]).filter(|&ns| ns > 0.0);
            let time_us = time.map(|ns| ns / 1e3);
            put(&format!("call_us_per_request.{kind}"), share(time_us, requests));
            put(&format!("call_share.{kind}"), share(time_us, untimed_us));
            calls_us += time_us.unwrap_or(0.0);
        }
        let is_known = timing_us.is_some() && calls_us > 0.0;
        let outside_us = untimed_us.filter(|_| is_known).map(|us| us - calls_us);
        put("outside_calls_share", share(outside_us, untimed_us));
        // Of the calls by which a server learns of events, or says what it waits for.
        let of = |delta: &str, names: &[&str]| -> Option<f64> {
            let found = names.iter().filter_map(|kind| self.delta(&["system_calls", kind, delta]));
            found.reduce(|a, b| a + b)
        };
        let us_of = |names: &[&str]| of("ns", names).filter(|&ns| ns > 0.0).map(|ns| ns / 1e3);
        let about_events = us_of(&[INTEREST_CALLS, WAIT_CALLS].concat());
        put("event_call_share", share(about_events, untimed_us));
        put("interest_call_share", share(us_of(INTEREST_CALLS), untimed_us));
        put("interest_calls_per_request", share(of("count", INTEREST_CALLS), requests));
        put("acts_per_wait", share(of("count", &["accept4", "recvfrom"]), waits));
        put("calls_per_request", kinds.and_then(|_| share(Some(calls), requests)));
        let details = self.after.get("details").and_then(Json::as_object);
        for key in details.into_iter().flat_map(|details| details.keys()) {
            put(&format!("details.{key}"), self.delta(&["details", key]));
        }
        // What a hybrid that was not with its partner does there afterwards is nothing.
        let was_on_partner =
            number(&self.before, &["details", ON_PARTNER]).is_some_and(|n| n > 0.0);
        let after_load = self.delta(&["details", "on_partner_ns"]).filter(|_| was_on_partner);
        put("partner_after_load_ns", after_load);
        metrics
    }
}

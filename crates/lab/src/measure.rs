//! What a run cost: CPU time of the server's processes, system calls, latencies.
//!
//! CPU time is read before the generator starts and after it has ended, while idle connections
//! are held and nothing else happens to the server; so all of the difference belongs to the
//! requests, and nothing hangs on catching the moment at which the load begins.

use crate::{
    memory::{Held, LEAST_CONNECTIONS, LEAST_OBJECTS, Stored},
    sys,
};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::{collections::BTreeMap, fs, ops::Sub};

/// The most processes of one server that are looked at (a forking server has one a connection).
const MAX_PROCESSES: usize = 65_536;

/// CPU time of a process and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Nanoseconds on a CPU.
    pub run_ns: u64,
    /// Nanoseconds runnable but kept waiting for a CPU, of the live threads
    /// (/proc/PID/task/TID/schedstat, second field).
    pub wait_ns: u64,
}

impl Sub for CpuTime {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self {
            run_ns: self.run_ns.saturating_sub(earlier.run_ns),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
        }
    }
}

/// The CPU time so far of the process `pid`, its descendants, and those descendants that have
/// ended and were waited for.
///
/// Live processes are counted in nanoseconds; ended children in the clock ticks of
/// /proc/PID/stat (10 ms in all, not per child: the kernel sums before it rounds).
///
/// # Errors
/// When the process is gone or /proc is not there.
pub fn cpu_time(pid: u32) -> anyhow::Result<CpuTime> {
    let mut total = CpuTime::default();
    let mut pending = vec![pid];
    let mut seen = 0;
    while let Some(pid) = pending.pop() {
        seen += 1;
        anyhow::ensure!(
            seen <= MAX_PROCESSES,
            "the server has more than {MAX_PROCESSES} processes"
        );
        match one_process(pid) {
            Ok((time, children)) => {
                total.run_ns += time.run_ns;
                total.wait_ns += time.wait_ns;
                pending.extend(children);
            }
            // A descendant that ended meanwhile is in its parent's account by now, or at the
            // next reading.
            Err(_) if seen > 1 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

/// The CPU time of those children of this process that have ended and were waited for, in nanoseconds; the
/// kernel tells it in clock ticks (10 ms).
///
/// # Errors
/// When /proc is not there.
pub fn ended_children_ns() -> anyhow::Result<u64> {
    let path = "/proc/self/stat";
    let stat = fs::read_to_string(path).context(path)?;
    reaped_children_ns(&stat).context(path)
}

/// The process `pid` and its descendants.
///
/// # Errors
/// When the process is gone or /proc is not there.
pub fn processes(pid: u32) -> anyhow::Result<Vec<u32>> {
    let mut all = vec![pid];
    let mut seen = 0;
    while seen < all.len() && seen < MAX_PROCESSES {
        match one_process(all[seen]) {
            Ok((_, children)) => all.extend(children),
            Err(error) if seen == 0 => return Err(error),
            // It has ended meanwhile.
            Err(_) => {}
        }
        seen += 1;
    }
    Ok(all)
}

fn one_process(pid: u32) -> anyhow::Result<(CpuTime, Vec<u32>)> {
    let live = sys::process_cpu_time(pid).with_context(|| format!("CPU clock of process {pid}"))?;
    let mut time = CpuTime { run_ns: live.as_nanos() as u64, wait_ns: 0 };
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
    time.run_ns += reaped_children_ns(&stat).with_context(|| path)?;
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        // A thread may end while we look.
        if let Ok(text) = fs::read_to_string(task.join("schedstat")) {
            let wait = text.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
            time.wait_ns += wait.unwrap_or(0);
        }
        if let Ok(text) = fs::read_to_string(task.join("children")) {
            children.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    Ok((time, children))
}

/// cutime + cstime of a line of /proc/PID/stat (fields 16 and 17), in nanoseconds.
fn reaped_children_ns(stat: &str) -> anyhow::Result<u64> {
    // The second field is the program's name in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(')').context("no program name")?;
    let mut fields = rest.split_whitespace().skip(13);
    let mut ticks = || fields.next().and_then(|f| f.parse::<u64>().ok()).context("no cutime");
    let total = ticks()? + ticks()?;
    Ok(total * 1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// What was read around one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Raw {
    /// The server's `listening` line.
    pub listening: Json,
    /// Its statistics before the load.
    pub before: Json,
    /// Its statistics after the load.
    pub after: Json,
    /// CPU time between the two.
    pub cpu: CpuTime,
    /// Wall-clock time between the two, in nanoseconds.
    pub wall_ns: u64,
    /// The generator's result.
    pub load: Json,
    /// Calls of the kernel's functions by the server between the two.
    #[serde(default)]
    pub kernel_calls: BTreeMap<String, u64>,
    /// How many millions of instructions a second of this machine's clocks has, where they count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mips: Option<u32>,
    /// What the idle connections took, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// What many connections took in the middle of the load, where that is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Held>,
    /// What the documents took that the server had to store first, where that is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<Stored>,
    /// The server's context switches between the two, where they are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<u64>,
    /// The CPU time of the Redis behind the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis_cpu_ns: Option<u64>,
    /// Another load was there, and what the server did is not of the measured one alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_beside_others: bool,
    /// Requests that came to the origin behind the server, from before the load to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_requests: Option<u64>,
    /// How many connections the server had open at instants between the two, where that is asked.
    #[serde(default)]
    pub open: Vec<u64>,
    /// Why not all of the idle connections were there to the end, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_lost: Option<String>,
}

/// Calls that say what is waited for: io_uring_enter carries the interest changes of `epoll-ctlv`.
const INTEREST_CALLS: &[&str] = &["epoll_ctl", "io_uring_enter"];
/// Calls that wait for events.
const WAIT_CALLS: &[&str] = &["epoll_wait", "epoll_pwait2", "ppoll", "pselect6"];

/// Finds a number by its path of keys.
fn number(json: &Json, path: &[&str]) -> Option<f64> {
    path.iter().try_fold(json, |json, key| json.get(key))?.as_f64()
}

impl Raw {
    fn delta(&self, path: &[&str]) -> Option<f64> {
        Some(number(&self.after, path)? - number(&self.before, path).unwrap_or(0.0))
    }

    /// Whether what was to be measured was measured: the idle connections were there, and the generator
    /// calls its result valid.
    ///
    /// # Errors
    /// What was missing, or the generator's reason.
    pub fn validity(&self) -> Result<(), String> {
        if let Some(reason) = &self.idle_lost {
            return Err(reason.clone());
        }
        match self.load.get("valid").and_then(Json::as_bool) {
            Some(true) => Ok(()),
            Some(false) => Err(self
                .load
                .get("invalid_reason")
                .and_then(Json::as_str)
                .unwrap_or("the generator gave no reason")
                .to_owned()),
            None => Err("the generator's result lacks `valid`".into()),
        }
    }

    /// Why the server was offered less than the report says, if so: the generator had no descriptor or
    /// no port for a part of its requests. It calls such a run invalid; it did not always.
    pub fn shortage(&self) -> Option<String> {
        let wanting: f64 = ["no_descriptors", "no_ports"]
            .iter()
            .filter_map(|kind| number(&self.load, &["errors", kind]))
            .sum();
        (wanting > 0.0).then(|| {
            format!(
                "the generator was the bottleneck: it had no descriptor or port for {wanting} of its \
                 requests"
            )
        })
    }

    /// Why a run that is kept as one that counts does not.
    pub fn doubt(&self) -> Option<String> {
        let is_valid = self.load.get("valid").and_then(Json::as_bool);
        // A wait that is measured by itself has no generator.
        let said = is_valid.and_then(|_| self.validity().err());
        self.idle_lost.clone().or(said).or_else(|| self.shortage())
    }

    /// Why the generator says that the latencies are not the server's.
    pub fn latency_doubt(&self) -> Option<&str> {
        let valid = self.load.get("latency_valid").and_then(Json::as_bool).unwrap_or(true);
        let reason = self.load.get("latency_invalid_reason").and_then(Json::as_str);
        (!valid).then(|| reason.unwrap_or("the generator gave no reason"))
    }

    /// Replies in equal intervals of the load, and the length of one in seconds.
    pub fn series(&self) -> Option<(Vec<f64>, f64)> {
        let replies = self.load.pointer("/series/replies")?.as_array()?;
        let length_s = number(&self.load, &["series", "interval_s"])?;
        Some((replies.iter().filter_map(Json::as_f64).collect(), length_s))
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
        // A peer does not tell: it is measured from before the load to its end.
        let of_load = || self.after.is_null().then(|| load(&["requests", "completed"])).flatten();
        let requests = self.delta(&["requests"]).or_else(of_load);
        let requests = requests.filter(|&requests| requests > 0.0 && !self.is_beside_others);
        let cpu_us = self.cpu.run_ns as f64 / 1e3;
        let wall = Some(self.wall_ns as f64);
        put("server_cpu_us_per_request", share(Some(cpu_us), requests));
        // A microsecond of a clock that counts instructions is so many of them.
        let mips = self.mips.map(f64::from);
        let instructions = |us: Option<f64>| Some(us? * mips?);
        put("server_instructions_per_request", instructions(share(Some(cpu_us), requests)));
        put(
            "generator_instructions_per_request",
            instructions(load(&["generator", "cpu_us_per_request"])),
        );
        for point in ["mean", "p50"] {
            let us = load(&["wait_ns", point]).map(|ns| ns / 1e3);
            put(&format!("wait_{point}_instructions"), instructions(us));
        }
        put("server_cpu_utilization", share(Some(self.cpu.run_ns as f64), wall));
        put("server_queue_share", share(Some(self.cpu.wait_ns as f64), wall));
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
        if let Some(Held { connections, memory, .. }) = loaded {
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
        let per_request = |amount: Option<u64>| share(amount.map(|amount| amount as f64), requests);
        put("context_switches_per_request", per_request(self.switches));
        put("redis_cpu_us_per_request", per_request(self.redis_cpu_ns).map(|ns| ns / 1e3));
        put("origin_requests", self.origin_requests.map(|requests| requests as f64));
        put("origin_requests_per_request", per_request(self.origin_requests));
        let open = self.open.iter().sum::<u64>() as f64;
        put("open_connections", Some(open / self.open.len() as f64));
        // Over the time that the generator was asked to send, which is shorter than the whole by its
        // start and its end, so that a server without idle CPU is seen as one.
        let asked_ns = load(&["duration_s"]).map(|seconds| seconds * 1e9);
        let used_ns = (self.cpu.run_ns + self.cpu.wait_ns) as f64;
        put("server_cpu_busy_share", share(Some(used_ns), asked_ns.or(wall)));
        put("throughput_rps", load(&["reply_rate_rps", "mean"]));
        for point in ["min", "max", "stddev"] {
            put(&format!("reply_rate_{point}_rps"), load(&["reply_rate_rps", point]));
        }
        let scheduled = load(&["requests", "scheduled"]);
        // A closed loop offers no rate: it asks again when it is answered.
        let is_closed = self.load.get("mode").and_then(Json::as_str) == Some("closed");
        let offered = share(scheduled, load(&["duration_s"]));
        put("offered_rps", offered.filter(|_| !is_closed));
        for count in ["scheduled", "completed", "failed"] {
            put(&format!("requests_{count}"), load(&["requests", count]));
        }
        put("completed_share", share(load(&["requests", "completed"]), scheduled));
        put("error_share", share(load(&["requests", "failed"]), scheduled));
        // Where the generator's own lag is most of a latency, it is not the server's.
        let latencies = [
            ("latency_us", "latency"),
            ("latency_with_failures_us", "latency_with_failures"),
            ("service_us", "service"),
            ("connect_us", "connect"),
        ];
        let doubted = self.latency_doubt().is_some();
        for (family, name) in latencies.into_iter().filter(|_| !doubted) {
            for point in ["min", "mean", "p50", "p90", "p95", "p99", "p99_9", "p99_99", "max"] {
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
            put(&format!("kernel_calls_per_request.{function}"), share(count, requests));
            put(&format!("kernel_calls_per_wait.{function}"), share(count, waits));
        }
        put("waits_per_request", share(waits, requests));
        put("events_per_wait", share(self.delta(&["events"]), waits));
        let mut calls = 0.0;
        let kinds = self.after.get("system_calls").and_then(Json::as_object);
        for kind in kinds.into_iter().flat_map(|kinds| kinds.keys()) {
            let count = self.delta(&["system_calls", kind, "count"]);
            calls += count.unwrap_or(0.0);
            put(&format!("calls_per_request.{kind}"), share(count, requests));
            // Zero while the timing is off: no figure is better than a false one.
            let time = self.delta(&["system_calls", kind, "ns"]).filter(|&ns| ns > 0.0);
            let time_us = time.map(|ns| ns / 1e3);
            put(&format!("call_us_per_request.{kind}"), share(time_us, requests));
            put(&format!("call_share.{kind}"), share(time_us, Some(cpu_us)));
        }
        // Of the calls by which a server learns of events, or says what it waits for.
        let of = |delta: &str, names: &[&str]| -> Option<f64> {
            let found = names.iter().filter_map(|kind| self.delta(&["system_calls", kind, delta]));
            found.reduce(|a, b| a + b)
        };
        let timed_us = |names: &[&str]| of("ns", names).filter(|&ns| ns > 0.0).map(|ns| ns / 1e3);
        put(
            "event_call_share",
            share(timed_us(&[INTEREST_CALLS, WAIT_CALLS].concat()), Some(cpu_us)),
        );
        put("interest_call_share", share(timed_us(INTEREST_CALLS), Some(cpu_us)));
        put("interest_calls_per_request", share(of("count", INTEREST_CALLS), requests));
        put("acts_per_wait", share(of("count", &["accept4", "recvfrom"]), waits));
        put("calls_per_request", kinds.and_then(|_| share(Some(calls), requests)));
        let details = self.after.get("details").and_then(Json::as_object);
        for key in details.into_iter().flat_map(|details| details.keys()) {
            put(&format!("details.{key}"), self.delta(&["details", key]));
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn metrics_from_known_raw_data() {
        let raw = Raw {
            before: json!({"requests": 10, "waits": 5, "events": 5,
                "system_calls": {"epoll_wait": {"count": 5, "ns": 0}}}),
            after: json!({"requests": 110, "waits": 55, "events": 205,
                "system_calls": {"epoll_wait": {"count": 55, "ns": 0},
                    "sendto": {"count": 100, "ns": 500_000}},
                "details": {"sent_changes": 7, "name": "not a number"}}),
            cpu: CpuTime { run_ns: 1_000_000, wait_ns: 0 },
            wall_ns: 10_000_000,
            load: json!({"valid": true, "requests": {"scheduled": 200, "completed": 100, "failed": 50},
                "latency_us": {"p50": 12.5}, "reply_rate_rps": {"mean": 1000.0}}),
            kernel_calls: [("tcp_poll".to_owned(), 300)].into(),
            open: vec![7, 9],
            ..Raw::default()
        };
        let metrics = raw.metrics();
        for (name, expected) in [
            ("server_cpu_us_per_request", 10.0),
            ("server_cpu_utilization", 0.1),
            ("throughput_rps", 1000.0),
            ("completed_share", 0.5),
            ("error_share", 0.25),
            ("latency_p50_us", 12.5),
            ("waits_per_request", 0.5),
            ("events_per_wait", 4.0),
            ("calls_per_request", 1.5),
            ("calls_per_request.epoll_wait", 0.5),
            ("calls_per_request.sendto", 1.0),
            ("call_us_per_request.sendto", 5.0),
            ("call_share.sendto", 0.5),
            ("details.sent_changes", 7.0),
            ("kernel_calls_per_request.tcp_poll", 3.0),
            ("kernel_calls_per_wait.tcp_poll", 6.0),
            ("open_connections", 8.0),
        ] {
            assert_eq!(metrics.get(name), Some(&expected), "{name}");
        }
        assert!(!metrics.contains_key("call_us_per_request.epoll_wait"), "timing was off");
        assert!(!metrics.contains_key("details.name"));
        assert!(
            metrics.keys().all(|name| name.ends_with("_us") || crate::metric::find(name).is_some())
        );
    }

    #[test]
    fn the_memory_of_few_connections_is_not_told() {
        let held = |connections| Held {
            connections,
            fill_ns: 2_000_000_000,
            fill_cpu_ns: 1_000 * connections,
            memory: crate::memory::Memory { user_bytes: 64_000, kernel_bytes: 8_000_000 },
            kernel_moved_bytes: None,
        };
        let metrics = |held| Raw { held: Some(held), ..Raw::default() }.metrics();
        let many = metrics(held(1_000));
        assert_eq!(many.get("user_bytes_per_connection"), Some(&64.0));
        assert_eq!(many.get("kernel_bytes_per_connection"), Some(&8000.0));
        assert_eq!(many.get("fill_s"), Some(&2.0));
        let few = metrics(held(10));
        assert_eq!(few.get("fill_cpu_us_per_connection"), Some(&1.0));
        assert!(!few.contains_key("user_bytes_per_connection"), "{few:?}");
    }

    #[test]
    fn the_memory_of_stored_documents_is_told_with_and_without_their_own_octets() {
        let metrics = |objects| {
            let memory =
                crate::memory::Memory { user_bytes: 440 * objects as i64, kernel_bytes: 0 };
            let stored = Stored { objects, own_bytes: 250 * objects, fill_ns: 1, memory };
            Raw { stored: Some(stored), ..Raw::default() }.metrics()
        };
        let many = metrics(20_000);
        assert_eq!(many.get("objects_stored"), Some(&20_000.0));
        assert_eq!(many.get("user_bytes_per_object"), Some(&440.0));
        assert_eq!(many.get("user_overhead_bytes_per_object"), Some(&190.0));
        assert!(!metrics(10).contains_key("user_bytes_per_object"), "of few it is not told");
    }

    #[test]
    fn instructions_are_time_where_the_clock_counts_them() {
        let raw = |mips| Raw {
            before: json!({"requests": 0}),
            after: json!({"requests": 100}),
            cpu: CpuTime { run_ns: 1_000_000, wait_ns: 0 },
            load: json!({"generator": {"cpu_us_per_request": 20.0}, "wait_ns": {"p50": 1200}}),
            mips,
            ..Raw::default()
        };
        let metrics = raw(Some(250)).metrics();
        assert_eq!(metrics.get("server_instructions_per_request"), Some(&2500.0));
        assert_eq!(metrics.get("generator_instructions_per_request"), Some(&5000.0));
        assert_eq!(metrics.get("wait_p50_instructions"), Some(&300.0));
        assert!(raw(None).metrics().keys().all(|name| !name.contains("instructions")));
    }

    #[test]
    fn calls_of_a_lone_wait_are_those_of_the_counted_waits() {
        let counted = json!({"waits": 20, "kernel_calls": {"tcp_poll": 2000}});
        let raw = Raw { load: json!({"waits": 100, "counted": counted}), ..Raw::default() };
        let metrics = raw.metrics();
        assert_eq!(metrics.get("kernel_calls_per_wait.tcp_poll"), Some(&100.0));
        assert!(!metrics.contains_key("open_connections"), "nobody asked");
    }

    #[test]
    fn a_server_that_answered_nothing_has_no_cost_per_request() {
        let raw = Raw {
            before: json!({"requests": 10}),
            after: json!({"requests": 10}),
            wall_ns: 1,
            ..Raw::default()
        };
        assert!(!raw.metrics().contains_key("server_cpu_us_per_request"));
        assert!(raw.validity().is_err());
    }

    #[test]
    fn stat_with_a_hostile_program_name() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 0 0 0 0 0 11 12 13 14 20 0 1 0 5";
        let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        assert_eq!(reaped_children_ns(line).unwrap(), 27 * tick);
        assert!(reaped_children_ns("7 (x) S 1").is_err());
    }

    #[test]
    fn a_busy_process_uses_its_cpu() {
        let mut busy =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let before = cpu_time(busy.id()).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let mut used = CpuTime::default();
        while used.run_ns < 5_000_000 && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(5));
            used = cpu_time(busy.id()).unwrap() - before;
        }
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(used.run_ns >= 5_000_000, "{used:?}");
        assert!(cpu_time(busy.id()).is_err(), "it is gone");
    }

    #[test]
    fn what_an_ended_child_used_is_told() {
        let before = ended_children_ns().unwrap();
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let status = std::process::Command::new("sh").args(["-c", script]).status().unwrap();
        assert!(status.success());
        assert!(ended_children_ns().unwrap() - before >= 10_000_000);
    }

    #[test]
    fn a_child_that_has_ended_is_in_its_parents_account() {
        // The parent only waits; its child counts to 50,000, and ends when it is told to.
        let script =
            "sh -c 'i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; read line'; read line";
        let mut parent = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let children = format!("/proc/{0}/task/{0}/children", parent.id());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut most = 0;
        for has_child in [true, false] {
            while std::fs::read_to_string(&children).unwrap().trim().is_empty() == has_child {
                assert!(std::time::Instant::now() < deadline, "has a child: {}", !has_child);
                most = most.max(cpu_time(parent.id()).unwrap().run_ns);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            if has_child {
                std::io::Write::write_all(parent.stdin.as_mut().unwrap(), b"\n").unwrap();
            }
        }
        let after = cpu_time(parent.id()).unwrap().run_ns;
        parent.kill().unwrap();
        parent.wait().unwrap();
        // Two clock ticks of rounding: user and system time.
        assert!(after + 20_000_000 >= most, "{after} ns after, {most} ns before");
        assert!(after > 0);
    }
}

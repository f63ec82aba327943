//! The cost of a run: CPU time of the server's processes, system calls, latencies.
//!
//! CPU time is read before the generator starts, or when its warm-up is over, and after the generator has
//! ended. Idle connections stay open during this time and the server has no other work, so the whole
//! difference belongs to the requests. Both readings are taken after the server has reported its counters,
//! because a busy server reports them late.

use crate::{
    memory::{HoldCost, StoreCost},
    metric, sys,
};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::{collections::BTreeMap, fs, ops::Sub};

/// The most processes of one server that are read (a forking server has one for each connection).
const MAX_PROCESSES: usize = 65_536;

/// CPU time of a process and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// The time on a CPU, in nanoseconds.
    pub run_ns: u64,
    /// The time in which live threads were runnable but waited for a CPU, in nanoseconds
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

/// Returns the CPU time so far of the process `pid`, its descendants, and the ended descendants that have
/// been reaped.
///
/// Live processes are counted in nanoseconds; ended children in the clock ticks of /proc/PID/stat (10 ms in
/// total, not for each child: the kernel sums before it rounds).
///
/// # Errors
/// When the process has ended or /proc is missing.
pub fn cpu_time(pid: u32) -> anyhow::Result<CpuTime> {
    let family = family(pid)?;
    let sum = |ns: fn(&CpuTime) -> u64| family.iter().map(|(_, time)| ns(time)).sum();
    Ok(CpuTime { run_ns: sum(|time| time.run_ns), wait_ns: sum(|time| time.wait_ns) })
}

/// Returns the CPU time of the ended and reaped children of this process, in nanoseconds; the kernel counts
/// it in clock ticks (10 ms).
///
/// # Errors
/// When /proc is missing.
pub fn ended_children_ns() -> anyhow::Result<u64> {
    let path = "/proc/self/stat";
    let stat = fs::read_to_string(path).context(path)?;
    reaped_children_ns(&stat).context(path)
}

/// Returns the process `pid` and its descendants.
///
/// # Errors
/// When the process has ended or /proc is missing.
pub fn processes(pid: u32) -> anyhow::Result<Vec<u32>> {
    Ok(family(pid)?.into_iter().map(|(pid, _)| pid).collect())
}

/// Returns the process `pid`, then its descendants, each with its CPU time.
fn family(pid: u32) -> anyhow::Result<Vec<(u32, CpuTime)>> {
    let mut all = Vec::new();
    let mut pending = vec![pid];
    while let Some(pid) = pending.pop() {
        anyhow::ensure!(
            all.len() < MAX_PROCESSES,
            "the server has more than {MAX_PROCESSES} processes"
        );
        match one_process(pid) {
            Ok((time, children)) => {
                all.push((pid, time));
                pending.extend(children);
            }
            // If a descendant ended in the meantime, its time is in its parent's account now, or at the
            // next reading.
            Err(_) if !all.is_empty() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Returns the threads of the process `pid`.
///
/// # Errors
/// When the process has ended or /proc is missing.
pub fn threads(pid: u32) -> anyhow::Result<Vec<u32>> {
    let path = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(&path).context(path)?;
    Ok(tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect())
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
        // A thread may end during this loop.
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

/// Returns cutime + cstime of a line of /proc/PID/stat (fields 16 and 17), in nanoseconds.
fn reaped_children_ns(stat: &str) -> anyhow::Result<u64> {
    // The second field is the program's name in parentheses and may contain any character.
    let (_, rest) = stat.rsplit_once(')').context("no program name")?;
    let mut fields = rest.split_whitespace().skip(13);
    let mut ticks = || fields.next().and_then(|f| f.parse::<u64>().ok()).context("no cutime");
    let total = ticks()? + ticks()?;
    Ok(total * 1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// Returns how long this CPU has been idle so far, in nanoseconds, with the resolution of /proc/stat's
/// clock ticks (proc_stat(5)); `None` if the kernel does not report it.
pub fn idle_ns(cpu: u32) -> Option<u64> {
    idle_in(&fs::read_to_string("/proc/stat").ok()?, cpu)
}

/// Returns idle + iowait of a CPU's line (fields 4 and 5), in nanoseconds.
fn idle_in(stat: &str, cpu: u32) -> Option<u64> {
    let name = format!("cpu{cpu}");
    let mut lines = stat.lines().map(str::split_whitespace);
    let mut fields =
        lines.find_map(|mut fields| (fields.next() == Some(&name)).then_some(fields))?;
    let idle: u64 = fields.nth(3)?.parse().ok()?;
    let waiting: u64 = fields.next()?.parse().ok()?;
    Some((idle + waiting) * 1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// Returns how many packets the kernel has dropped so far because a CPU's queue of packets to receive was
/// full (net.core.netdev_max_backlog), on all CPUs, in all namespaces: /proc/net/softnet_stat. `None` if
/// the kernel does not report it.
///
/// The loopback has no other queue, and no server has received a packet that was dropped in it.
pub fn dropped_packets() -> Option<u64> {
    dropped_in(&fs::read_to_string("/proc/net/softnet_stat").ok()?)
}

/// Returns the sum of the second column, which is hexadecimal.
fn dropped_in(softnet_stat: &str) -> Option<u64> {
    let of_cpu = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    softnet_stat.lines().map(of_cpu).sum()
}

/// The raw data of one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Raw {
    /// The server's `listening` line.
    pub listening: Json,
    /// Its statistics before the load.
    pub before: Json,
    /// Its statistics after the load.
    pub after: Json,
    /// The CPU time between these two readings.
    pub cpu: CpuTime,
    /// The wall-clock time between the two readings, in nanoseconds.
    pub wall_ns: u64,
    /// How long the server's CPU was idle in this time, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ns: Option<u64>,
    /// The generator's result.
    pub load: Json,
    /// Calls of kernel functions by the server between the two readings.
    #[serde(default)]
    pub kernel_calls: BTreeMap<String, u64>,
    /// Millions of instructions per second of this machine's clocks, if they count instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mips: Option<u32>,
    /// The cost of the idle connections, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<HoldCost>,
    /// The memory of many connections in the middle of the load, if the experiment uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<HoldCost>,
    /// The memory of the documents that the server had to store first, if the experiment uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoreCost>,
    /// The server's context switches between the two readings, if they are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<u64>,
    /// The packets that were dropped between the two readings before any server received them
    /// ([`dropped_packets`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_dropped: Option<u64>,
    /// The CPU time of the Redis behind the server, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis_cpu_ns: Option<u64>,
    /// Whether there was another load, so that the server's work was not only for the measured one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_beside_others: bool,
    /// Requests that the origin behind the server received, from before the load to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_requests: Option<u64>,
    /// The server's number of open connections at several instants between the two readings, if the
    /// experiment uses it.
    #[serde(default)]
    pub open: Vec<u64>,
    /// The subscribers, for a push server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<PushRaw>,
    /// Why some idle connections were lost before the end, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_lost: Option<String>,
}

/// The subscribers of a push server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PushRaw {
    /// The subscribers of all topics.
    pub subscribers: u64,
    /// The subscribers that every update reaches.
    pub recipients: u64,
    /// The cost of holding the subscribers that receive nothing, if there are many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<HoldCost>,
    /// Why the readings of the server do not enclose exactly the updates, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misread: Option<String>,
}

/// The possible errors of a delivery, by the keys of the generator's result.
const WRONG_DELIVERIES: [&str; 4] = ["lost", "duplicated", "reordered", "corrupt"];

/// Returns the number at this path of keys.
pub(crate) fn number(json: &Json, path: &[&str]) -> Option<f64> {
    path.iter().try_fold(json, |json, key| json.get(key))?.as_f64()
}

impl Raw {
    /// Computes every metric for which the raw data suffice (names: [`crate::metric`]).
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        metric::all_of(self)
    }

    /// Checks whether the run measured its subject: the idle connections stayed open, and the generator
    /// calls its result valid.
    ///
    /// # Errors
    /// The missing part, or the generator's reason.
    pub fn validity(&self) -> Result<(), String> {
        if let Some(reason) = &self.idle_lost {
            return Err(reason.clone());
        }
        if let Some(reason) = self.push.as_ref().and_then(|push| push.misread.clone()) {
            return Err(reason);
        }
        // A wrong delivery is reported first: a generator without CPU time does not explain a lost
        // delivery.
        let is_wrong = self.wrong_deliveries() > Some(0.0);
        match self.load.get("valid").and_then(Json::as_bool) {
            Some(valid) if self.push.is_some() && (valid || is_wrong) => {
                self.deliveries_doubt().map_or(Ok(()), Err)
            }
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

    /// Returns the number of wrong deliveries of a push server.
    pub(crate) fn wrong_deliveries(&self) -> Option<f64> {
        let of = |kind: &&str| number(&self.load, &["deliveries", kind]);
        self.push.as_ref()?;
        WRONG_DELIVERIES.iter().map(of).sum()
    }

    /// Returns why the cost of the deliveries is meaningless, if so: a server that loses or duplicates
    /// deliveries does different work.
    fn deliveries_doubt(&self) -> Option<String> {
        let of = |path: &[&str]| number(&self.load, path).unwrap_or(0.0);
        let wrong = self.wrong_deliveries();
        if wrong != Some(0.0) {
            let kinds =
                WRONG_DELIVERIES.map(|kind| format!("{} {kind}", of(&["deliveries", kind])));
            return Some(format!("not every delivery was right: {}", kinds.join(", ")));
        }
        let failed = of(&["publications", "failed"]);
        if failed > 0.0 || of(&["publications", "acknowledged"]) == 0.0 {
            let reason = self.load.pointer("/publications/first_failure").and_then(Json::as_str);
            return Some(format!(
                "{failed} updates were not acknowledged: {}",
                reason.unwrap_or("none was published")
            ));
        }
        let dropped = of(&["subscribers", "dropped"]);
        (dropped > 0.0).then(|| format!("the server ended {dropped} streams"))
    }

    /// Returns why the server was offered less than the report says, if so: the generator had no descriptor
    /// or no port for a part of its requests. The generator now calls such a run invalid; older versions
    /// did not.
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

    /// Returns why a stored run that is marked as valid does not count, if so.
    pub fn doubt(&self) -> Option<String> {
        // A wait that is measured without a server has no generator.
        let has_generator = self.load.get("valid").is_some();
        let reason = if has_generator { self.validity().err() } else { self.idle_lost.clone() };
        reason.or_else(|| self.shortage())
    }

    /// Returns the generator's reason why the latencies do not describe the server, if so.
    pub fn latency_doubt(&self) -> Option<&str> {
        let valid = self.load.get("latency_valid").and_then(Json::as_bool).unwrap_or(true);
        let reason = self.load.get("latency_invalid_reason").and_then(Json::as_str);
        (!valid).then(|| reason.unwrap_or("the generator gave no reason"))
    }

    /// Returns the replies in equal intervals of the load, and the length of an interval in seconds.
    pub fn series(&self) -> Option<(Vec<f64>, f64)> {
        let replies = self.load.pointer("/series/replies")?.as_array()?;
        let length_s = number(&self.load, &["series", "interval_s"])?;
        Some((replies.iter().filter_map(Json::as_f64).collect(), length_s))
    }

    /// Returns the replies in the intervals of the measured window, without its warm-up.
    pub fn measured_replies(&self) -> Option<Vec<f64>> {
        let (replies, _) = self.series()?;
        let starts = self.load.pointer("/series/start_s")?.as_array()?;
        let is_measured = |start: &Json| start.as_f64().is_some_and(|start_s| start_s >= 0.0);
        let measured = replies.into_iter().zip(starts).filter(|(_, start)| is_measured(start));
        Some(measured.map(|(replies, _)| replies).collect())
    }
}

#[cfg(test)]
mod tests;

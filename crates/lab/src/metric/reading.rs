//! The quantities from which metrics are computed, taken from the raw data of a run.

use crate::{
    measure::{Raw, number},
    memory::{LEAST_OBJECTS, StoreCost},
};
use serde_json::Value as Json;

/// Nanoseconds in a microsecond.
pub(super) const US: f64 = 1e3;
/// Calls that change the interest set: io_uring_enter carries the interest changes of `epoll-ctlv`.
pub(super) const INTEREST_CALLS: &[&str] = &["epoll_ctl", "io_uring_enter"];
/// Calls that wait for events.
pub(super) const WAIT_CALLS: &[&str] = &["epoll_wait", "epoll_pwait2", "ppoll", "pselect6"];
/// The call that times the other calls. It belongs to no mechanism: shares are computed from the CPU time
/// without it.
const TIMING: &str = "clock_gettime";
/// If the server has counted fewer than this share of the answered requests, it reported its counters too
/// late, and its CPU time belongs to another interval than the requests.
const LEAST_COUNTED: f64 = 0.8;
/// The largest share of a latency that may be the generator's own lag, if the generator reports that its
/// lag is too large.
const MOST_LAG: f64 = 0.5;

/// Returns the ratio of a part to a whole that is above zero.
pub(super) fn over(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    Some(part? / whole.filter(|&whole| whole > 0.0)?)
}

/// The raw data of a run, with the quantities that most formulas need.
pub(crate) struct Reading<'a> {
    pub(super) raw: &'a Raw,
    /// The requests that the server answered.
    pub(super) requests: Option<f64>,
    /// The same number, if the requests and the CPU time belong to the same interval.
    pub(super) timed_requests: Option<f64>,
    pub(super) cpu_us: f64,
    /// The CPU time, if the requests belong to the same interval.
    pub(super) timed_us: Option<f64>,
}

impl<'a> Reading<'a> {
    pub(super) fn of(raw: &'a Raw) -> Self {
        let cpu_us = raw.cpu.run_ns as f64 / US;
        let mut reading =
            Self { raw, requests: None, timed_requests: None, cpu_us, timed_us: None };
        let completed = reading.load("/requests/completed");
        // A peer reports no statistics: its requests are counted by the generator, from before the load
        // until the load's end.
        let is_peer = raw.after.is_null();
        let requests = reading.delta(&["requests"]).or(completed.filter(|_| is_peer));
        reading.requests = requests.filter(|&requests| requests > 0.0 && !raw.is_beside_others);
        let counted = reading.requests.zip(completed);
        let is_of_one_time = is_peer
            || counted.is_none_or(|(counted, completed)| counted >= LEAST_COUNTED * completed);
        reading.timed_us = is_of_one_time.then_some(cpu_us);
        reading.timed_requests = reading.requests.filter(|_| is_of_one_time);
        reading
    }

    /// Returns the growth of a number in the server's statistics.
    pub(super) fn delta(&self, path: &[&str]) -> Option<f64> {
        Some(number(&self.raw.after, path)? - number(&self.raw.before, path).unwrap_or(0.0))
    }

    /// Returns a number of the generator's result.
    pub(super) fn load(&self, pointer: &str) -> Option<f64> {
        self.raw.load.pointer(pointer)?.as_f64()
    }

    pub(super) fn per_request(&self, amount: Option<u64>) -> Option<f64> {
        over(amount.map(|amount| amount as f64), self.timed_requests)
    }

    pub(super) fn of_wall(&self, ns: Option<u64>) -> Option<f64> {
        over(ns.map(|ns| ns as f64), Some(self.raw.wall_ns as f64))
    }

    /// Converts microseconds of a clock that counts instructions to instructions.
    pub(super) fn instructions(&self, us: Option<f64>) -> Option<f64> {
        Some(us? * f64::from(self.raw.mips?))
    }

    /// Returns how long the server had to wait for its CPU. This is known only for a server with one
    /// thread: its CPU is then taken by another process, not by another thread of the server.
    pub(super) fn waited_ns(&self) -> Option<u64> {
        let listening = &self.raw.listening;
        let text = |key: &str| listening.get(key).and_then(Json::as_str).unwrap_or_default();
        let workers = listening.get("workers").and_then(Json::as_array).map_or(0, Vec::len);
        // The sibling that takes over connections is another thread.
        let has_sibling = text("mechanism_spec").contains("handoff");
        let is_one = workers == 1 && matches!(text("architecture"), "" | "event") && !has_sibling;
        is_one.then_some(self.raw.cpu.wait_ns)
    }

    /// Returns the share of time in which the server's CPU was busy. The time is that in which the
    /// generator had to send. It is shorter than the whole interval by the generator's start and end, so
    /// that a server without idle CPU is recognized. For a peer it is the whole interval.
    ///
    /// Several threads mostly wait for each other, which is not a lack of CPU time. Whether CPU time was
    /// left is then read from the CPU's own idle time, or, if that was not recorded, from the time that the
    /// threads used.
    pub(super) fn busy_share(&self) -> Option<f64> {
        let raw = self.raw;
        let sent_ns = self.load("/duration_s").map(|seconds| seconds * 1e9);
        let sent_ns = sent_ns.filter(|_| !raw.after.is_null());
        let waited_ns = self.waited_ns();
        let used_ns = (raw.cpu.run_ns + waited_ns.unwrap_or(0)) as f64;
        let of_cpu = raw.idle_ns.filter(|_| waited_ns.is_none());
        let of_cpu = of_cpu.map(|idle| (1.0 - idle as f64 / raw.wall_ns as f64).max(0.0));
        of_cpu.or_else(|| over(Some(used_ns), sent_ns.or(Some(raw.wall_ns as f64))))
    }

    /// Returns how long a hybrid used its partner after the load had dropped. `None` if it did not use the
    /// partner before.
    pub(super) fn partner_after_load_ns(&self) -> Option<f64> {
        let was_there =
            number(&self.raw.before, &["details", "on_partner"]).is_some_and(|n| n > 0.0);
        self.delta(&["details", "on_partner_ns"]).filter(|_| was_there)
    }

    /// Returns a point of the distribution of reply rates over the seconds of a window. `None` for a window
    /// of one second: with one sample the minimum, the maximum and the mean are the same.
    pub(super) fn of_intervals(&self, point: &str) -> Option<f64> {
        let samples = self.raw.load.pointer("/reply_rate_rps/samples").and_then(Json::as_array);
        let has_several = samples.is_some_and(|samples| samples.len() > 1);
        self.load(&format!("/reply_rate_rps/{point}")).filter(|_| has_several)
    }

    /// Returns the offered rate. A closed loop has none: a client sends its next request after a response.
    pub(super) fn offered_rps(&self) -> Option<f64> {
        let is_closed = self.raw.load.get("mode").and_then(Json::as_str) == Some("closed");
        let offered = over(self.load("/requests/scheduled"), self.load("/duration_s"));
        offered.filter(|_| !is_closed)
    }

    /// Returns a point of a latency distribution, if it describes the server. It does not if most of the
    /// latency is the generator's own lag. A lag of one request in fifty is most of the 99th percentile,
    /// and does not affect the median.
    pub(super) fn latency(&self, distribution: &str, point: &str) -> Option<f64> {
        let at = |distribution: &str| self.load(&format!("/{distribution}/{point}"));
        let lag = self.load(&format!("/generator/lag_us/{point}")).zip(at("latency_us"));
        let is_servers = self.raw.latency_doubt().is_none()
            || lag.is_some_and(|(lag, latency)| lag <= MOST_LAG * latency);
        at(distribution).filter(|_| is_servers)
    }

    /// Returns the time of a wait that was measured without a server, in microseconds.
    pub(super) fn wait_us(&self, point: &str) -> Option<f64> {
        Some(self.load(&format!("/wait_ns/{point}"))? / US)
    }

    pub(super) fn waits(&self) -> Option<f64> {
        self.delta(&["waits"])
    }

    pub(super) fn stored(&self) -> Option<StoreCost> {
        self.raw.stored.filter(|stored| stored.objects >= LEAST_OBJECTS)
    }

    pub(super) fn of_object(&self, bytes: fn(&StoreCost) -> i64) -> Option<f64> {
        let stored = self.stored()?;
        Some(bytes(&stored) as f64 / stored.objects as f64)
    }

    /// Returns the system calls that the server counts, except the one that times them.
    pub(super) fn calls_made(&self) -> impl Iterator<Item = &String> {
        let kinds = self.raw.after.get("system_calls").and_then(Json::as_object);
        kinds.into_iter().flat_map(|kinds| kinds.keys()).filter(|kind| *kind != TIMING)
    }

    /// Returns the number of all these calls; none if they are not counted.
    pub(super) fn calls(&self) -> Option<f64> {
        self.raw.after.get("system_calls").and_then(Json::as_object)?;
        let count = |kind: &String| self.delta(&["system_calls", kind, "count"]);
        Some(self.calls_made().filter_map(count).fold(0.0, |sum, count| sum + count))
    }

    /// Sums a quantity over the calls of these names; `None` if the server counts none of them.
    pub(super) fn of_calls(&self, what: &str, names: &[&str]) -> Option<f64> {
        let found = names.iter().filter_map(|kind| self.delta(&["system_calls", kind, what]));
        found.reduce(|a, b| a + b)
    }

    /// Returns the time that these calls took, if they were timed.
    pub(super) fn us_of_calls(&self, names: &[&str]) -> Option<f64> {
        self.of_calls("ns", names).filter(|&ns| ns > 0.0).map(|ns| ns / US)
    }

    /// Returns the time that the timing of the calls took; `None` for older runs, in which it was not
    /// counted.
    pub(super) fn timing_us(&self) -> Option<f64> {
        Some(self.delta(&["system_calls", TIMING, "ns"])? / US)
    }

    /// Returns the CPU time without the timing of calls.
    pub(super) fn untimed_us(&self) -> Option<f64> {
        Some(self.timed_us? - self.timing_us().unwrap_or(0.0))
    }

    /// Returns the CPU time outside of all calls, if the calls were timed.
    pub(super) fn outside_calls_us(&self) -> Option<f64> {
        self.timing_us()?;
        let us = |kind: &String| Some(self.delta(&["system_calls", kind, "ns"])?.max(0.0) / US);
        let calls_us = self.calls_made().filter_map(us).fold(0.0, |sum, us| sum + us);
        Some(self.untimed_us().filter(|_| calls_us > 0.0)? - calls_us)
    }
}

//! The figures that are read before and after a load.

use crate::measure::{CpuTime, Raw};
use std::{collections::BTreeMap, time::Instant};

/// The server's figures at an instant.
pub(super) struct ServerReading {
    pub(super) at: Instant,
    pub(super) cpu: CpuTime,
    pub(super) idle_ns: Option<u64>,
    pub(super) statistics: serde_json::Value,
    pub(super) kernel_calls: BTreeMap<String, u64>,
    pub(super) switches: Option<u64>,
    pub(super) redis_cpu_ns: Option<u64>,
    pub(super) packets_dropped: Option<u64>,
}

impl ServerReading {
    /// Stores the differences between this reading and `later` in `raw`.
    pub(super) fn until(&self, later: &Self, raw: &mut Raw) {
        raw.wall_ns = (later.at - self.at).as_nanos() as u64;
        raw.cpu = later.cpu - self.cpu;
        for (function, count) in &later.kernel_calls {
            let before = self.kernel_calls.get(function).copied().unwrap_or(0);
            raw.kernel_calls.insert(function.clone(), count.saturating_sub(before));
        }
        let between = |a: Option<u64>, b: Option<u64>| Some(b?.saturating_sub(a?));
        raw.idle_ns = between(self.idle_ns, later.idle_ns);
        raw.packets_dropped = between(self.packets_dropped, later.packets_dropped);
        raw.switches = between(self.switches, later.switches);
        raw.redis_cpu_ns = between(self.redis_cpu_ns, later.redis_cpu_ns);
        raw.before = self.statistics.clone();
        raw.after = later.statistics.clone();
    }
}

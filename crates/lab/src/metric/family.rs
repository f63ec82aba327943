//! Metrics that exist once for each system call, kernel function or counter.

use super::{
    Definition, LESS, NEITHER, Reading,
    reading::{US, over},
};
use crate::measure::number;
use serde_json::Value as Json;

/// A family of metrics. A member's name consists of the family's name and the name of the call, function or
/// counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The number of calls per request.
    Calls,
    /// The time in this call per request.
    CallTime,
    /// The share of the server's CPU time that this call takes.
    CallShare,
    /// The number of calls of a kernel function per request.
    KernelCallsPerRequest,
    /// The number of calls of a kernel function per wait.
    KernelCallsPerWait,
    /// The mechanism's own counters, per wait.
    DetailsPerWait,
    /// The mechanism's own counters.
    Details,
}

impl Family {
    /// Every family.
    pub const ALL: &[Self] = &[
        Self::Calls,
        Self::CallTime,
        Self::CallShare,
        Self::KernelCallsPerRequest,
        Self::KernelCallsPerWait,
        Self::DetailsPerWait,
        Self::Details,
    ];

    /// Returns the definition that all members share.
    pub const fn definition(self) -> Definition {
        let (name, label, unit, less_is_better) = match self {
            Self::Calls => ("calls_per_request.", "calls per request", "", LESS),
            Self::CallTime => ("call_us_per_request.", "time in the call per request", "µs", LESS),
            Self::CallShare => ("call_share.", "share of server CPU", "", LESS),
            Self::KernelCallsPerRequest => {
                let label = "the server's calls in the kernel per request";
                ("kernel_calls_per_request.", label, "", LESS)
            }
            Self::KernelCallsPerWait => {
                ("kernel_calls_per_wait.", "calls in the kernel per wait", "", LESS)
            }
            Self::DetailsPerWait => {
                ("details_per_wait.", "mechanism's own counter per wait", "", NEITHER)
            }
            Self::Details => ("details.", "mechanism's own counter per run", "", NEITHER),
        };
        Definition { name, label, unit, less_is_better }
    }

    /// Returns the family's members in a run, with their names and values.
    pub(super) fn of(self, reading: &Reading<'_>) -> Vec<(String, Option<f64>)> {
        let r = reading;
        // Zero means that the timing is off: it is better to report no figure than a wrong one.
        let call_us = |kind: &str| {
            r.delta(&["system_calls", kind, "ns"]).filter(|&ns| ns > 0.0).map(|ns| ns / US)
        };
        let counted = &r.raw.kernel_calls;
        let count = |name: &str| counted.get(name).map(|&n| n as f64);
        let members = match self {
            Self::Calls => each(r.calls_made(), |kind| {
                over(r.delta(&["system_calls", kind, "count"]), r.requests)
            }),
            Self::CallTime => each(r.calls_made(), |kind| over(call_us(kind), r.requests)),
            Self::CallShare => each(r.calls_made(), |kind| over(call_us(kind), r.untimed_us())),
            Self::KernelCallsPerRequest => {
                each(counted.keys(), |name| over(count(name), r.timed_requests))
            }
            Self::KernelCallsPerWait => {
                let own = &r.raw.load["counted"]["kernel_calls"];
                let waits = r.load("/counted/waits");
                let of_loops = each(keys(own), |name| over(number(own, &[name]), waits));
                let of_servers = each(counted.keys(), |name| over(count(name), r.waits()));
                [of_loops, of_servers].concat()
            }
            Self::DetailsPerWait => {
                let own = &r.raw.load["details"];
                each(keys(own), |name| over(number(own, &[name]), r.load("/waits")))
            }
            Self::Details => {
                each(keys(&r.raw.after["details"]), |name| r.delta(&["details", name]))
            }
        };
        let name = self.definition().name;
        members.into_iter().map(|(member, value)| (format!("{name}{member}"), value)).collect()
    }
}

/// Returns the names in a map of counters; none if there is no such map.
fn keys(counters: &Json) -> impl Iterator<Item = &String> {
    counters.as_object().into_iter().flat_map(|counters| counters.keys())
}

/// Returns each name with its value.
fn each<'n>(
    names: impl Iterator<Item = &'n String>,
    value: impl Fn(&str) -> Option<f64>,
) -> Vec<(String, Option<f64>)> {
    names.map(|name| (name.clone(), value(name))).collect()
}

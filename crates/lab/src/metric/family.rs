//! Metrics of which there is one for each system call, kernel function or counter.

use super::{
    Definition, LESS, NEITHER, Reading,
    reading::{US, over},
};
use crate::measure::number;
use serde_json::Value as Json;

/// A family of metrics; a member's name is the family's and what it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// How often a request makes a system call.
    Calls,
    /// How long it is in that call.
    CallTime,
    /// The call's share of the server's CPU.
    CallShare,
    /// How often a request makes the kernel call one of its functions.
    KernelCallsPerRequest,
    /// How often a wait does.
    KernelCallsPerWait,
    /// The mechanism's own counters, for each wait.
    DetailsPerWait,
    /// The mechanism's own counters.
    Details,
}

impl Family {
    /// Every one.
    pub const ALL: &[Self] = &[
        Self::Calls,
        Self::CallTime,
        Self::CallShare,
        Self::KernelCallsPerRequest,
        Self::KernelCallsPerWait,
        Self::DetailsPerWait,
        Self::Details,
    ];

    /// What is known about its members.
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

    /// Its members in a run, by name.
    pub(super) fn of(self, reading: &Reading<'_>) -> Vec<(String, Option<f64>)> {
        let r = reading;
        let keys = |json: &Json| -> Vec<String> {
            json.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect()
        };
        // Zero while the timing is off: no figure is better than a false one.
        let call_us = |kind: &str| {
            r.delta(&["system_calls", kind, "ns"]).filter(|&ns| ns > 0.0).map(|ns| ns / US)
        };
        let counted = || r.raw.kernel_calls.iter().map(|(name, &n)| (name.clone(), n as f64));
        let members: Vec<(String, Option<f64>)> = match self {
            Self::Calls => {
                let count = |kind: &str| r.delta(&["system_calls", kind, "count"]);
                r.calls_made().map(|kind| (kind.clone(), over(count(kind), r.requests))).collect()
            }
            Self::CallTime => {
                r.calls_made().map(|kind| (kind.clone(), over(call_us(kind), r.requests))).collect()
            }
            Self::CallShare => {
                let share = |kind: &String| (kind.clone(), over(call_us(kind), r.untimed_us()));
                r.calls_made().map(share).collect()
            }
            Self::KernelCallsPerRequest => {
                counted().map(|(name, n)| (name, over(Some(n), r.timed_requests))).collect()
            }
            Self::KernelCallsPerWait => {
                let of_wait = &r.raw.load["counted"]["kernel_calls"];
                let waits = r.load("/counted/waits");
                let own = keys(of_wait).into_iter().map(|name| {
                    let value = over(number(of_wait, &[&name]), waits);
                    (name, value)
                });
                own.chain(counted().map(|(name, n)| (name, over(Some(n), r.waits())))).collect()
            }
            Self::DetailsPerWait => {
                let own = &r.raw.load["details"];
                let of = |key: String| {
                    let value = over(number(own, &[&key]), r.load("/waits"));
                    (key, value)
                };
                keys(own).into_iter().map(of).collect()
            }
            Self::Details => {
                let of = |key: String| {
                    let value = r.delta(&["details", &key]);
                    (key, value)
                };
                keys(&r.raw.after["details"]).into_iter().map(of).collect()
            }
        };
        let name = self.definition().name;
        members.into_iter().map(|(member, value)| (format!("{name}{member}"), value)).collect()
    }
}

//! Metrics of requests: responses by status, their latency, and TLS handshakes.

use super::super::exposition::{Family, Kind, Sample, Value};
use super::{by, counter, single};
use crate::stats::{Counter, Counts, latency};

/// Appends the metrics.
pub(super) fn families(counts: &Counts, all: &mut Vec<Family>) {
    let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
    let by_class = latency::CLASSES.map(|class| counts[class]);
    all.extend([
        counter(
            "pollux_http_responses",
            "Responses, by the class of their status.",
            by("code", classes.into_iter().zip(by_class)),
        ),
        Family {
            name: "pollux_http_request_duration_seconds",
            kind: Kind::Histogram,
            unit: "seconds",
            help: "Time from a request's head to its response, by the clock that a loop reads once a wait.",
            samples: durations(counts),
        },
        counter(
            "pollux_tls_handshakes",
            "TLS handshakes that succeeded.",
            single(counts[Counter::TlsHandshakes]),
        ),
        counter(
            "pollux_tls_handshake_failures",
            "TLS handshakes that failed or did not end in time.",
            single(counts[Counter::TlsFailures]),
        ),
        counter(
            "pollux_tls_kernel_connections",
            "TLS connections on which the kernel encrypts, since a long file (--kernel-tls).",
            single(counts[Counter::TlsKernel]),
        ),
        counter(
            "pollux_tls_kernel_refusals",
            "Times that the kernel refused the keys of a TLS connection, which goes on without it.",
            single(counts[Counter::TlsKernelRefused]),
        ),
    ]);
}

fn durations(counts: &Counts) -> Vec<Sample> {
    let histogram = latency::histogram(counts);
    let all = histogram.last().map_or(0, |(_, count)| *count);
    let bucket = |&(limit, count): &(f64, u64)| {
        let le = if limit.is_infinite() { "+Inf".to_owned() } else { format!("{limit:?}") };
        Sample { suffix: "_bucket", labels: vec![("le", le)], value: Value::Count(count) }
    };
    let plain = |suffix, value| Sample { suffix, labels: Vec::new(), value };
    let seconds = counts[Counter::LatencySum] as f64 / 1000.0;
    let ends = [plain("_sum", Value::Real(seconds)), plain("_count", Value::Count(all))];
    histogram.iter().map(bucket).chain(ends).collect()
}

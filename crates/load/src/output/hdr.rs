//! The HdrHistogram interval log, the format of HistogramLogProcessor, HistogramLogAnalyzer and others.
//!
//! There is one histogram of each kind per second. Untagged histograms are latencies from the scheduled
//! instant. Those with the tag `service` are service times, and those with the tag `publish` the times that
//! publications took. Those with the tag `handshake`, which only https URLs have, are TLS handshakes. All
//! values are in nanoseconds, and the "interval max" column is in milliseconds, which is the tools' own
//! default.

use crate::{histogram::histogram, push::PushReport, record::Interval, report::Report};
use anyhow::{Context, Result, bail};
use hdrhistogram::{
    Histogram,
    serialization::{
        Deserializer, V2DeflateSerializer,
        interval_log::{IntervalLogWriterBuilder, Tag},
    },
};
use std::{
    io::Write,
    time::{Duration, SystemTime},
};

/// Nanoseconds in the "interval max" column's unit.
const MAX_VALUE_DIVISOR: f64 = 1e6;

/// Writes the log of `report`.
///
/// # Errors
/// The errors of the writer.
pub fn write(report: &Report, out: impl Write) -> Result<()> {
    let comments = [
        "untagged: latency from the scheduled instant; service: from the send; ns",
        "handshake: TLS, from the end of the TCP handshake; ns",
    ];
    let handshake = report.tls.is_some().then_some("handshake");
    let tags = Tags { service: "service", handshake };
    write_log(report.started_at_unix_s, &comments, &report.intervals, tags, out)
}

/// Writes the log of a run with subscribers.
///
/// # Errors
/// The errors of the writer.
pub fn write_push(report: &PushReport, out: impl Write) -> Result<()> {
    let comments = [
        "untagged: from an update's scheduled instant to each delivery; ns",
        "publish: from an update's scheduled instant to the answer; ns",
    ];
    let tags = Tags { service: "publish", handshake: None };
    // The intervals are those of the measured part.
    let measured_at_unix_s = report.started_at_unix_s + report.warmup_s;
    write_log(measured_at_unix_s, &comments, &report.intervals, tags, out)
}

/// The tags of the histograms that have one.
struct Tags {
    service: &'static str,
    handshake: Option<&'static str>,
}

fn write_log(
    started_at_unix_s: f64,
    comments: &[&str],
    intervals: &[Interval],
    tags: Tags,
    mut out: impl Write,
) -> Result<()> {
    let started_at = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(started_at_unix_s.max(0.0));
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment(concat!("pollux load ", env!("CARGO_PKG_VERSION")));
    for comment in comments {
        builder.add_comment(comment);
    }
    builder
        .with_start_time(started_at)
        .with_base_time(started_at)
        .with_max_value_divisor(MAX_VALUE_DIVISOR);
    let mut log = builder.begin_log_with(&mut out, &mut serializer).context("writing the log")?;
    let tag = |name| Tag::new(name).context("the log does not take this tag");
    let service = tag(tags.service)?;
    let handshake = tags.handshake.map(tag).transpose()?;
    for interval in merge(intervals)? {
        let duration = Duration::from_nanos(interval.duration_ns);
        let start = Duration::from_nanos(interval.start_ns);
        let mut histograms = vec![(&interval.latency, None), (&interval.service, Some(service))];
        if handshake.is_some() {
            histograms.push((&interval.handshake, handshake));
        }
        for (histogram, tag) in histograms {
            if let Err(error) = log.write_histogram(histogram, start, duration, tag) {
                bail!("writing the log: {error:?}");
            }
        }
    }
    out.flush().context("writing the log")
}

struct MergedInterval {
    start_ns: u64,
    duration_ns: u64,
    latency: Histogram<u64>,
    service: Histogram<u64>,
    handshake: Histogram<u64>,
}

/// Combines the threads' intervals, which are in the order of their starts: those that begin within half an interval
/// become one.
fn merge(intervals: &[Interval]) -> Result<Vec<MergedInterval>> {
    let mut merged: Vec<MergedInterval> = Vec::new();
    let mut deserializer = Deserializer::new();
    for interval in intervals {
        let mut read = |bytes: &[u8]| -> Result<Histogram<u64>> {
            match deserializer.deserialize(&mut &bytes[..]) {
                Ok(histogram) => Ok(histogram),
                Err(error) => bail!("an interval's histogram cannot be read back: {error}"),
            }
        };
        let (latency, service) = (read(&interval.latency)?, read(&interval.service)?);
        let end_ns = interval.start_ns + interval.duration_ns;
        // The threads close their intervals within a short time of each other.
        let is_new = merged
            .last()
            .is_none_or(|last| interval.start_ns >= last.start_ns + last.duration_ns.max(2) / 2);
        if is_new {
            merged.push(MergedInterval {
                start_ns: interval.start_ns,
                duration_ns: interval.duration_ns,
                latency: histogram(),
                service: histogram(),
                handshake: histogram(),
            });
        }
        let Some(last) = merged.last_mut() else { continue };
        last.duration_ns = last.duration_ns.max(end_ns - last.start_ns);
        last.latency.add(&latency)?;
        last.service.add(&service)?;
        if !interval.handshake.is_empty() {
            last.handshake.add(&read(&interval.handshake)?)?;
        }
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Recorder, Reply, SAMPLE_NS};
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn the_log_can_be_read_back_with_every_value() {
        let mut threads = [Recorder::new(3 * SAMPLE_NS, true), Recorder::new(3 * SAMPLE_NS, true)];
        for (index, recorder) in threads.iter_mut().enumerate() {
            for second in 0..3 {
                for value in 1..=100 {
                    let latency_ns = (second + 1) * value * 10_000;
                    let service_ns = value * 1000;
                    let at_ns = (second * SAMPLE_NS) as i64;
                    recorder.complete(Reply { latency_ns, service_ns, at_ns, measured: true });
                }
                // The threads are not quite synchronised.
                recorder.close_interval((second + 1) * SAMPLE_NS + index as u64 * 70_000);
            }
        }
        let [mut whole, other] = threads;
        whole.merge(other);
        let mut report = crate::report::tests::empty();
        report.intervals = whole.take_intervals();
        let mut log = Vec::new();
        report.started_at_unix_s = 1000.25;
        write(&report, &mut log).unwrap();
        assert!(log.windows(20).any(|text| text == b"#[BaseTime: 1000.250"));

        let mut deserializer = Deserializer::new();
        let (mut latency, mut service) = (histogram(), histogram());
        let mut intervals = 0;
        for entry in IntervalLogIterator::new(&log) {
            let LogEntry::Interval(interval) = entry.unwrap() else { continue };
            let bytes = base64(interval.encoded_histogram());
            let histogram: Histogram<u64> = deserializer.deserialize(&mut &bytes[..]).unwrap();
            match interval.tag().map(|tag| tag.as_str().to_owned()) {
                None => {
                    intervals += 1;
                    let max_ms = histogram.max() as f64 / 1e6;
                    assert!((interval.max() - max_ms).abs() < 0.01, "{}", interval.max());
                    latency.add(&histogram).unwrap();
                }
                Some(tag) => {
                    assert_eq!(tag, "service");
                    service.add(&histogram).unwrap();
                }
            }
        }
        assert_eq!(intervals, 3);
        assert_eq!((latency.len(), service.len()), (600, 600));
        assert_eq!(latency, whole.latency);
        assert_eq!(service, whole.service);
    }

    /// Standard Base64 (RFC 4648 §4), enough for a test.
    fn base64(text: &str) -> Vec<u8> {
        const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
        for digit in text.chars().filter(|&digit| digit != '=') {
            bits = bits << 6 | ALPHABET.find(digit).unwrap() as u32;
            count += 6;
            if count >= 8 {
                count -= 8;
                bytes.push((bits >> count) as u8);
            }
        }
        bytes
    }
}

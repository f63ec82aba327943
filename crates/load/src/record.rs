//! The measurements of one thread. Nothing here allocates per request; once a second there is one more
//! sample and, with `--hdr`, one more interval.

use serde::{Deserialize, Serialize};

use crate::{
    histogram::histogram,
    outcome::{Failure, Failures},
    series::Series,
    session::Sessions,
    tls::{HandshakeCounts, HandshakeEnd},
};
use hdrhistogram::{
    Histogram,
    serialization::{Serializer, V2Serializer},
};
use std::io;

/// The interval of samples of the reply rate. (httperf samples every 5 s, too coarse for short runs.)
pub const SAMPLE_NS: u64 = 1_000_000_000;

/// The longest run, in samples: a week.
pub const MAX_SAMPLES: usize = 7 * 86_400;

/// One complete reply.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// From the scheduled instant to the end of the reply.
    pub latency_ns: u64,
    /// From the first byte sent to the end of the reply.
    pub service_ns: u64,
    /// The time at which it was complete, from the start of the measured part; in the warm-up negative.
    pub at_ns: i64,
    /// Its request belongs to the measured part, not to the warm-up.
    pub measured: bool,
}

/// One request that failed.
#[derive(Clone, Copy, Debug)]
pub struct FailedRequest {
    /// The reason.
    pub kind: Failure,
    /// From the scheduled instant to the failure.
    pub latency_ns: u64,
    /// The time of the failure, from the start of the measured part; in the warm-up negative.
    pub at_ns: i64,
    /// It belongs to the measured part.
    pub measured: bool,
}

/// The number of bad replies by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadReplies {
    /// Not HTTP, or with wrong framing.
    pub malformed: u64,
    /// The fault of the first of these.
    pub first_malformed: Option<String>,
    /// A status that was not expected.
    pub status: u64,
    /// A length that was not expected.
    pub length: u64,
}

/// Counters of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionCounts {
    /// Handshakes completed.
    pub opened: u64,
    /// Handshakes that failed or ran out of time.
    pub failed: u64,
    /// Kept-alive connections that the server closed while no request was on them.
    pub dropped_idle: u64,
}

/// The histograms of one interval, ready for a log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Interval {
    /// Its start, from the start of the measured part.
    pub start_ns: u64,
    /// Its length.
    pub duration_ns: u64,
    /// Latencies, HdrHistogram V2.
    pub latency: Vec<u8>,
    /// Service times, HdrHistogram V2.
    pub service: Vec<u8>,
    /// Times of TLS handshakes, HdrHistogram V2; empty if there were none.
    pub handshake: Vec<u8>,
}

/// Gathers intervals for `--hdr`.
#[derive(Debug, Serialize, Deserialize)]
struct Intervals {
    #[serde(with = "crate::histogram")]
    latency: Histogram<u64>,
    #[serde(with = "crate::histogram")]
    service: Histogram<u64>,
    #[serde(with = "crate::histogram")]
    handshake: Histogram<u64>,
    start_ns: u64,
    done: Vec<Interval>,
}

/// All measurements of a thread.
#[derive(Debug, Serialize, Deserialize)]
pub struct Recorder {
    /// Times from the scheduled instant to the end of the reply.
    #[serde(with = "crate::histogram")]
    pub latency: Histogram<u64>,
    /// Times from the scheduled instant to the failure, of the requests that failed.
    #[serde(with = "crate::histogram")]
    pub failed_latency: Histogram<u64>,
    /// Times from the send to the end of the reply.
    #[serde(with = "crate::histogram")]
    pub service: Histogram<u64>,
    /// Times from connect(2) until the connection was known to be established.
    #[serde(with = "crate::histogram")]
    pub connect: Histogram<u64>,
    /// Times from the end of the TCP handshake to the end of the TLS handshake.
    #[serde(with = "crate::histogram")]
    pub handshake: Histogram<u64>,
    /// Times from the scheduled instant until the generator began to process the request.
    #[serde(with = "crate::histogram")]
    pub lag: Histogram<u64>,
    /// Requests sent, completely or in part.
    pub sent: u64,
    /// Requests with a complete reply as expected.
    pub completed: u64,
    /// Requests that failed.
    pub failures: Failures,
    /// The system's message for the first failure that has no kind of its own
    /// ([`Failure::Other`]): its errno.
    pub first_other: Option<i32>,
    /// The reason of the first TLS failure.
    pub first_tls: Option<String>,
    /// TLS handshakes that were completed.
    pub handshakes: HandshakeCounts,
    /// The number of these in the measured part, not in the set-up.
    pub measured_handshakes: u64,
    /// The bad replies among the failures, by reason.
    pub bad_replies: BadReplies,
    /// Complete replies by status.
    pub statuses: Vec<u64>,
    /// Connections.
    pub connections: ConnectionCounts,
    /// How sessions ended.
    pub sessions: Sessions,
    /// Bytes received for the requests of the measured part, heads and all.
    pub bytes_received: u64,
    /// Bytes of content of the complete replies to these requests, whatever their status and length.
    pub content_bytes: u64,
    /// Good replies in each [`SAMPLE_NS`] of the measured part.
    pub samples: Vec<u64>,
    /// Good replies that were complete within the measured part, including those to the warm-up's
    /// requests.
    pub window_replies: u64,
    /// The time of the last good reply, from the start of the measured part.
    pub last_reply_ns: u64,
    /// The run in short intervals, the warm-up included.
    pub series: Series,
    /// The longest length of the measured part.
    window_ns: u64,
    intervals: Option<Intervals>,
}

impl Recorder {
    /// Creates an empty recorder for a measured part of at most `window_ns`; `intervals` for `--hdr`.
    pub fn new(window_ns: u64, intervals: bool) -> Self {
        Self {
            latency: histogram(),
            failed_latency: histogram(),
            service: histogram(),
            connect: histogram(),
            handshake: histogram(),
            lag: histogram(),
            sent: 0,
            completed: 0,
            failures: Failures::default(),
            first_other: None,
            first_tls: None,
            handshakes: HandshakeCounts::default(),
            measured_handshakes: 0,
            bad_replies: BadReplies::default(),
            statuses: vec![0; 1000],
            connections: ConnectionCounts::default(),
            sessions: Sessions::default(),
            bytes_received: 0,
            content_bytes: 0,
            samples: Vec::new(),
            window_replies: 0,
            last_reply_ns: 0,
            series: Series::default(),
            window_ns,
            intervals: intervals.then(|| Intervals {
                latency: histogram(),
                service: histogram(),
                handshake: histogram(),
                start_ns: 0,
                done: Vec::new(),
            }),
        }
    }

    /// Records that a request was sent.
    #[inline]
    pub fn send(&mut self, at_ns: i64, measured: bool) {
        self.series.sent(at_ns);
        self.sent += u64::from(measured);
    }

    /// Records a good reply.
    #[inline]
    pub fn complete(&mut self, reply: Reply) {
        self.series.reply(reply.at_ns, reply.latency_ns);
        if let Ok(at_ns) = u64::try_from(reply.at_ns) {
            self.count_in_window(at_ns);
        }
        if !reply.measured {
            return;
        }
        self.completed += 1;
        self.latency.saturating_record(reply.latency_ns);
        self.service.saturating_record(reply.service_ns);
        if let Some(intervals) = &mut self.intervals {
            intervals.latency.saturating_record(reply.latency_ns);
            intervals.service.saturating_record(reply.service_ns);
        }
    }

    #[inline]
    fn count_in_window(&mut self, at_ns: u64) {
        self.last_reply_ns = self.last_reply_ns.max(at_ns);
        if at_ns >= self.window_ns {
            return;
        }
        self.window_replies += 1;
        let sample = (at_ns / SAMPLE_NS) as usize;
        if sample < MAX_SAMPLES {
            if sample >= self.samples.len() {
                self.samples.resize(sample + 1, 0);
            }
            self.samples[sample] += 1;
        }
    }

    /// Records the end of a TLS handshake, `took_ns` after the end of the TCP handshake; `measured`
    /// unless it was before the run.
    #[inline]
    pub(crate) fn handshake(&mut self, end: HandshakeEnd, took_ns: u64, measured: bool) {
        self.handshakes.add(end);
        self.measured_handshakes += u64::from(measured);
        self.handshake.saturating_record(took_ns);
        if let Some(intervals) = &mut self.intervals {
            intervals.handshake.saturating_record(took_ns);
        }
    }

    /// Records that a request failed.
    #[cold]
    pub fn fail(&mut self, failed: FailedRequest) {
        self.series.failed(failed.at_ns);
        if failed.measured {
            self.failures.add(failed.kind);
            self.failed_latency.saturating_record(failed.latency_ns);
        }
    }

    /// Returns the kind of a failed system call. If the error has no kind of its own, its number is
    /// stored, so that the report can name it.
    #[cold]
    pub fn kind_of(&mut self, error: &io::Error) -> Failure {
        let kind = Failure::from_io(error);
        if kind == Failure::Other && self.first_other.is_none() {
            self.first_other = error.raw_os_error();
        }
        if kind == Failure::Tls && self.first_tls.is_none() {
            self.first_tls = Some(error.to_string());
        }
        kind
    }

    /// The system's message for the first failure that has no kind of its own.
    pub fn other_reason(&self) -> Option<String> {
        self.first_other.map(|number| io::Error::from_raw_os_error(number).to_string())
    }

    /// The latencies of the good replies and of the failures together. A failure counts as the time limit
    /// at least, because the client has no answer before the limit either.
    pub fn latency_with_failures(&self, timeout_ns: u64) -> Histogram<u64> {
        let mut all = self.latency.clone();
        for failed in self.failed_latency.iter_recorded() {
            let latency_ns = failed.value_iterated_to().max(timeout_ns);
            all.saturating_record_n(latency_ns, failed.count_at_value());
        }
        all
    }

    /// The end of the present interval, if there are intervals.
    #[inline]
    pub fn interval_end_ns(&self) -> Option<u64> {
        self.intervals.as_ref().map(|intervals| intervals.start_ns + SAMPLE_NS)
    }

    /// Closes the running interval. The generator pays the cost, some ten microseconds a second, which
    /// shows in its lag.
    pub fn close_interval(&mut self, now_ns: u64) {
        let Some(intervals) = &mut self.intervals else { return };
        if now_ns <= intervals.start_ns {
            return;
        }
        let mut serializer = V2Serializer::new();
        let mut serialize = |histogram: &mut Histogram<u64>| {
            let mut bytes = Vec::new();
            serializer.serialize(histogram, &mut bytes).expect("a Vec takes every write");
            histogram.reset();
            bytes
        };
        let interval = Interval {
            start_ns: intervals.start_ns,
            duration_ns: now_ns - intervals.start_ns,
            latency: serialize(&mut intervals.latency),
            service: serialize(&mut intervals.service),
            handshake: match intervals.handshake.is_empty() {
                true => Vec::new(),
                false => serialize(&mut intervals.handshake),
            },
        };
        intervals.done.push(interval);
        intervals.start_ns = now_ns;
    }

    /// The closed intervals, in order of their start.
    pub fn take_intervals(&mut self) -> Vec<Interval> {
        let mut done = self.intervals.take().map(|intervals| intervals.done).unwrap_or_default();
        done.sort_by_key(|interval| interval.start_ns);
        done
    }

    /// Adds the measurements of another thread.
    pub fn merge(&mut self, other: Self) {
        for (own, other) in [
            (&mut self.latency, &other.latency),
            (&mut self.failed_latency, &other.failed_latency),
            (&mut self.service, &other.service),
            (&mut self.connect, &other.connect),
            (&mut self.handshake, &other.handshake),
            (&mut self.lag, &other.lag),
        ] {
            own.add(other).expect("all histograms have the same bounds");
        }
        self.sent += other.sent;
        self.completed += other.completed;
        self.failures.merge(&other.failures);
        self.first_other = self.first_other.or(other.first_other);
        self.first_tls = self.first_tls.take().or(other.first_tls);
        self.handshakes.merge(other.handshakes);
        self.measured_handshakes += other.measured_handshakes;
        self.bad_replies.malformed += other.bad_replies.malformed;
        let first = &mut self.bad_replies.first_malformed;
        *first = first.take().or(other.bad_replies.first_malformed);
        self.bad_replies.status += other.bad_replies.status;
        self.bad_replies.length += other.bad_replies.length;
        self.connections.opened += other.connections.opened;
        self.connections.failed += other.connections.failed;
        self.connections.dropped_idle += other.connections.dropped_idle;
        self.sessions.merge(other.sessions);
        self.bytes_received += other.bytes_received;
        self.content_bytes += other.content_bytes;
        add_each(&mut self.statuses, &other.statuses);
        add_each(&mut self.samples, &other.samples);
        self.window_replies += other.window_replies;
        self.last_reply_ns = self.last_reply_ns.max(other.last_reply_ns);
        self.series.merge(other.series);
        if let (Some(own), Some(other)) = (&mut self.intervals, other.intervals) {
            own.done.extend(other.done);
        }
    }
}

fn add_each(own: &mut Vec<u64>, other: &[u64]) {
    own.resize(own.len().max(other.len()), 0);
    for (own, other) in own.iter_mut().zip(other) {
        *own += other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::LONGEST_NS;

    fn reply(latency_ns: u64, at_ns: u64) -> Reply {
        let at_ns = at_ns as i64;
        Reply { latency_ns, service_ns: latency_ns / 2, at_ns, measured: true }
    }

    fn failed(latency_ns: u64) -> FailedRequest {
        FailedRequest { kind: Failure::Reset, latency_ns, at_ns: 0, measured: true }
    }

    #[test]
    fn two_threads_make_one_measurement() {
        let mut first = Recorder::new(3 * SAMPLE_NS, true);
        let mut second = Recorder::new(3 * SAMPLE_NS, true);
        first.complete(reply(1000, 10));
        first.close_interval(SAMPLE_NS);
        second.complete(reply(3000, 2 * SAMPLE_NS));
        second.fail(failed(9_000));
        second.close_interval(SAMPLE_NS + 5);
        first.merge(second);
        assert_eq!((first.completed, first.failures.total()), (2, 1));
        assert_eq!((first.samples.as_slice(), first.window_replies), (&[1, 0, 1][..], 2));
        let longest_us = |timeout_ns| first.latency_with_failures(timeout_ns).max() / 1000;
        assert_eq!((longest_us(0), longest_us(9_000), longest_us(20_000)), (9, 9, 20));
        assert_eq!((first.latency_with_failures(0).len(), first.latency.len()), (3, 2));
        assert_eq!((first.latency.min(), first.latency.max()), (1000, 3001));
        assert_eq!(first.service.len(), 2);
        assert_eq!(first.take_intervals().len(), 2);
    }

    #[test]
    fn replies_after_the_window_are_recorded_but_not_sampled() {
        let mut recorder = Recorder::new(SAMPLE_NS, false);
        recorder.complete(reply(10, 5 * SAMPLE_NS));
        assert!(recorder.samples.is_empty() && recorder.window_replies == 0);
        assert_eq!(recorder.latency.len(), 1);
        assert!(recorder.interval_end_ns().is_none());
    }

    #[test]
    fn a_time_beyond_the_longest_counts_as_the_longest() {
        let mut recorder = Recorder::new(SAMPLE_NS, false);
        recorder.complete(reply(u64::MAX, 0));
        assert!(recorder.latency.max() >= LONGEST_NS);
    }
}

//! The measurements of the threads that hold subscribers, of the publisher, and of a whole run.

use super::plan::PushPlan;
use crate::{
    histogram::histogram,
    outcome::Failures,
    own_cpu::OwnCpu,
    record::{Interval, SAMPLE_NS},
};
use hdrhistogram::{
    Histogram,
    serialization::{Serializer as _, V2Serializer},
};
use serde::{Deserialize, Serialize};

/// The numbers of subscribers in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscribers {
    /// Subscribers that the run was to hold.
    pub wanted: usize,
    /// Subscribers with an open stream when the schedule began.
    pub at_start: usize,
    /// Subscribers with an open stream at the end.
    pub at_end: usize,
    /// Streams that the server ended.
    pub dropped: u64,
    /// Streams that were opened again, after the server had ended them or because of --reconnect-at.
    pub reopened: u64,
    /// Failed attempts to open a stream.
    pub failed: u64,
}

/// The measurements of one thread of subscribers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SubscriberRecord {
    /// Time from the scheduled instant of a publication to each of its deliveries.
    #[serde(with = "crate::histogram")]
    pub(crate) latency: Histogram<u64>,
    /// Time from the instant of --reconnect-at until each subscriber has its stream again.
    #[serde(with = "crate::histogram")]
    pub(crate) reconnect: Histogram<u64>,
    /// For each publication, the number of subscribers that received it.
    pub(crate) delivered: Vec<u32>,
    /// For each publication, the time from the scheduled start to its last delivery.
    pub(crate) last_ns: Vec<u64>,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) corrupt: u64,
    pub(crate) foreign: u64,
    pub(crate) subscribers: Subscribers,
    pub(crate) failures: Failures,
    pub(crate) bytes_received: u64,
    pub(crate) cpu: OwnCpu,
    pub(crate) elapsed_ns: u64,
    pub(crate) intervals: Vec<Interval>,
}

impl SubscriberRecord {
    pub(crate) fn new(publications: u64) -> Self {
        Self {
            latency: histogram(),
            reconnect: histogram(),
            delivered: vec![0; publications as usize],
            last_ns: vec![0; publications as usize],
            duplicated: 0,
            reordered: 0,
            corrupt: 0,
            foreign: 0,
            subscribers: Subscribers::default(),
            failures: Failures::default(),
            bytes_received: 0,
            cpu: OwnCpu::default(),
            elapsed_ns: 0,
            intervals: Vec::new(),
        }
    }

    /// Adds the measurements of another thread.
    pub(crate) fn merge(&mut self, other: Self) {
        let bounds = "both have the same bounds";
        self.latency.add(&other.latency).expect(bounds);
        self.reconnect.add(&other.reconnect).expect(bounds);
        self.delivered.iter_mut().zip(other.delivered).for_each(|(own, other)| *own += other);
        self.last_ns
            .iter_mut()
            .zip(other.last_ns)
            .for_each(|(own, other)| *own = (*own).max(other));
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupt += other.corrupt;
        self.foreign += other.foreign;
        let (own, other_subscribers) = (&mut self.subscribers, other.subscribers);
        own.wanted += other_subscribers.wanted;
        own.at_start += other_subscribers.at_start;
        own.at_end += other_subscribers.at_end;
        own.dropped += other_subscribers.dropped;
        own.reopened += other_subscribers.reopened;
        own.failed += other_subscribers.failed;
        self.failures.merge(&other.failures);
        self.bytes_received += other.bytes_received;
        self.intervals.extend(other.intervals);
    }
}

/// The measurements of the publisher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PublisherRecord {
    /// Time from the scheduled instant to the start of the request.
    #[serde(with = "crate::histogram")]
    pub(crate) lag: Histogram<u64>,
    /// Time from the scheduled instant to the response.
    #[serde(with = "crate::histogram")]
    pub(crate) answer: Histogram<u64>,
    /// For each publication, whether the server acknowledged it.
    pub(crate) acknowledged: Vec<bool>,
    pub(crate) sent: u64,
    pub(crate) failed: u64,
    /// The reason of the first failure.
    pub(crate) first_failure: Option<String>,
    /// The time from the start of the schedule at which a stop of the run ended the publishing early.
    pub(crate) cut_ns: Option<u64>,
    pub(crate) intervals: Vec<Interval>,
    pub(crate) cpu: OwnCpu,
}

impl PublisherRecord {
    pub(crate) fn new(publications: u64) -> Self {
        Self {
            lag: histogram(),
            answer: histogram(),
            acknowledged: vec![false; publications as usize],
            sent: 0,
            failed: 0,
            first_failure: None,
            cut_ns: None,
            intervals: Vec::new(),
            cpu: OwnCpu::default(),
        }
    }
}

/// A finished run.
pub(crate) struct PushRun {
    pub(crate) plan: PushPlan,
    pub(crate) threads: Vec<SubscriberRecord>,
    /// The record of the process that published.
    pub(crate) publisher: Option<PublisherRecord>,
}

/// Collects one histogram for each second of the measured part.
pub(super) struct IntervalRecorder {
    histogram: Histogram<u64>,
    start_ns: u64,
    /// Whether the times are those of answers to the publisher; otherwise they are those of
    /// deliveries. Each is one histogram of an [`Interval`].
    is_publisher: bool,
    done: Vec<Interval>,
}

impl IntervalRecorder {
    pub(super) fn new(is_publisher: bool) -> Self {
        Self { histogram: histogram(), start_ns: 0, is_publisher, done: Vec::new() }
    }

    /// Records a time that was measured `now_ns` after the start of the measured part.
    pub(super) fn record(&mut self, time_ns: u64, now_ns: u64) {
        if now_ns >= self.start_ns + SAMPLE_NS {
            self.close(now_ns);
        }
        self.histogram.saturating_record(time_ns);
    }

    fn close(&mut self, now_ns: u64) {
        let serialize = |histogram: &Histogram<u64>| {
            let mut bytes = Vec::new();
            V2Serializer::new().serialize(histogram, &mut bytes).expect("a Vec takes every write");
            bytes
        };
        let (own, empty) = (serialize(&self.histogram), serialize(&histogram()));
        let (latency, service) = if self.is_publisher { (empty, own) } else { (own, empty) };
        // Intervals of all threads begin at whole seconds.
        let duration_ns = SAMPLE_NS * ((now_ns - self.start_ns) / SAMPLE_NS).max(1);
        self.done.push(Interval {
            start_ns: self.start_ns,
            duration_ns,
            latency,
            service,
            handshake: Vec::new(),
        });
        self.histogram.reset();
        self.start_ns += duration_ns;
    }

    /// Closes the last interval and returns all of them.
    pub(super) fn finish(mut self) -> Vec<Interval> {
        if !self.histogram.is_empty() {
            self.close(self.start_ns + SAMPLE_NS);
        }
        self.done
    }
}

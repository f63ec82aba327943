//! The number of good replies per second, counted only within the measured part.

use crate::record::{Recorder, SAMPLE_NS};
use serde::Serialize;

/// Good replies per second: the figures of httperf.
///
/// A reply counts by the instant at which it was complete, regardless of its request. A reply after the
/// window is not part of the rate; the reply to a request of the warm-up is, if it arrives within the
/// window. So for a server in its steady state this is the rate at which it answers, regardless of the
/// duration of each answer.
#[derive(Clone, Debug, Serialize)]
pub struct ReplyRate {
    /// Over the whole measured part: `replies` by `over_s`.
    pub mean: f64,
    /// Least of the samples.
    pub min: f64,
    /// Mean of the samples.
    pub avg: f64,
    /// Greatest of the samples.
    pub max: f64,
    /// Standard deviation of the samples, with n − 1 in the denominator, as in httperf; 0 for one
    /// sample.
    pub stddev: f64,
    /// Good replies that were complete within the measured part.
    pub replies: u64,
    /// The time in which they are counted: the measured part. If requests are counted instead of time
    /// (`--requests`), it lasts until the last reply, if that is later.
    pub over_s: f64,
    /// The length of each sample: a second, or the whole measured part if that is shorter.
    pub sample_s: f64,
    /// One for each whole second of the measured part; a part of a second at its end is in `mean`
    /// only.
    pub samples: Vec<f64>,
}

impl ReplyRate {
    /// The rate in a measured part of `window_ns`; `is_counted` when it ends with its last reply.
    pub(crate) fn new(recorder: &Recorder, window_ns: u64, is_counted: bool) -> Self {
        let last_ns = if is_counted { recorder.last_reply_ns } else { 0 };
        let over_ns = window_ns.max(last_ns).max(1);
        let replies = recorder.window_replies;
        let mean = replies as f64 * 1e9 / over_ns as f64;
        let whole = (window_ns / SAMPLE_NS) as usize;
        let (sample_ns, samples) = if whole == 0 {
            (over_ns, vec![mean])
        } else {
            let counts = recorder.samples.iter().take(whole).map(|&count| count as f64);
            let mut samples: Vec<f64> = counts.collect();
            samples.resize(whole, 0.0);
            (SAMPLE_NS, samples)
        };
        let avg = samples.iter().sum::<f64>() / samples.len() as f64;
        let squares: f64 = samples.iter().map(|sample| (sample - avg).powi(2)).sum();
        let others = samples.len() - 1;
        Self {
            mean,
            min: samples.iter().copied().fold(f64::INFINITY, f64::min),
            avg,
            max: samples.iter().copied().fold(0.0, f64::max),
            stddev: if others > 0 { (squares / others as f64).sqrt() } else { 0.0 },
            replies,
            over_s: over_ns as f64 / 1e9,
            sample_s: sample_ns as f64 / 1e9,
            samples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Reply;

    fn rate(at: &[i64], window_ns: u64) -> ReplyRate {
        let mut recorder = Recorder::new(window_ns, false);
        for &at_ns in at {
            let measured = at_ns >= 0;
            recorder.complete(Reply { latency_ns: 1, service_ns: 1, at_ns, measured });
        }
        ReplyRate::new(&recorder, window_ns, false)
    }

    const SECOND: i64 = SAMPLE_NS as i64;

    #[test]
    fn the_rate_is_that_of_the_window_whatever_comes_later() {
        let all = [0, 1, 2, SECOND, SECOND + 1, 2 * SECOND, 2 * SECOND + 5, 9 * SECOND];
        let rate = rate(&all, 2 * SAMPLE_NS);
        assert_eq!(rate.samples, [3.0, 2.0]);
        assert_eq!((rate.mean, rate.min, rate.avg, rate.max), (2.5, 2.0, 2.5, 3.0));
        assert!((rate.stddev - 0.5f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_part_of_a_second_counts_in_the_mean_only_and_ends_with_the_window() {
        // The window ends within a second: replies in the rest of that second do not count.
        let rate = rate(&[0, SECOND + 1, SECOND + SECOND / 2], 3 * SAMPLE_NS / 2);
        assert_eq!(rate.samples, [1.0]);
        assert!((rate.mean - 2.0 / 1.5).abs() < 1e-12, "{rate:?}");
        assert_eq!((rate.replies, rate.over_s), (2, 1.5));
    }

    #[test]
    fn a_window_below_a_second_is_no_longer_than_it_is() {
        let rate = rate(&[0, SECOND / 4, SECOND / 2, 3 * SECOND / 4], SAMPLE_NS / 2);
        assert_eq!((rate.mean, rate.replies), (4.0, 2));
        assert_eq!((rate.samples, rate.sample_s), (vec![4.0], 0.5));
    }

    #[test]
    fn a_reply_of_the_warm_up_counts_when_it_comes_within_the_window() {
        let mut recorder = Recorder::new(SAMPLE_NS, false);
        for at_ns in [-5, 0, 5] {
            recorder.complete(Reply { latency_ns: 9, service_ns: 9, at_ns, measured: false });
        }
        assert_eq!(ReplyRate::new(&recorder, SAMPLE_NS, false).replies, 2);
        assert_eq!((recorder.completed, recorder.latency.len()), (0, 0));
    }

    #[test]
    fn one_request_has_a_rate() {
        let mut recorder = Recorder::new(u64::MAX, false);
        let at_ns = SECOND / 2;
        recorder.complete(Reply { latency_ns: 1, service_ns: 1, at_ns, measured: true });
        assert_eq!(ReplyRate::new(&recorder, 1_000_000, true).mean, 2.0);
    }

    #[test]
    fn no_reply_is_a_rate_of_none() {
        let rate = rate(&[], 3 * SAMPLE_NS);
        assert_eq!((rate.mean, rate.min, rate.max, rate.samples.len()), (0.0, 0.0, 0.0, 3));
    }
}

//! The instant of each request: drawn before the run, independent of the replies.

use anyhow::{Result, ensure};
use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use rand_distr::{Distribution, Exp1};
use std::time::Duration;

/// The most random arrivals of one run: they are held in memory, 8 bytes each (400 MB).
/// Constant arrivals are computed and have no such limit.
pub const MAX_DRAWN_ARRIVALS: u64 = 50_000_000;

/// The highest possible rate: one request per nanosecond has no finer schedule.
pub const MAX_RATE_RPS: f64 = 1e9;

/// The most requests of one burst: more than a machine has ports, so a larger number is a mistake.
pub const MAX_BURST: u64 = 1_000_000;

/// The distribution of the arrivals in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// At equal intervals.
    Constant,
    /// Independently of each other: exponentially distributed intervals.
    Poisson,
    /// The number of arrivals in each second is the rate, and their instants are drawn from the second
    /// evenly: a binomial process, which is a Poisson process whose count is known. Within a second
    /// they cluster like Poisson arrivals; two windows of one length have the same number of them, so
    /// that the number of replies does not vary with the number of requests.
    Binomial,
}

/// The period for which the number of binomial arrivals is fixed.
const BINOMIAL_CELL_NS: u64 = 1_000_000_000;

/// The length of the measured part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// A time.
    Duration(Duration),
    /// A number of requests.
    Requests(u64),
}

/// The instants of all requests of a run, in nanoseconds from its start, in order.
#[derive(Debug)]
pub struct Schedule {
    times: Instants,
    len: u64,
    window_ns: u64,
    /// The number of arrivals at each of the instants.
    burst: u64,
}

#[derive(Debug)]
enum Instants {
    Constant { rate_rps: f64 },
    Drawn(Vec<u64>),
}

impl Schedule {
    /// Draws the arrivals at `rate_rps` requests a second: those of `warmup`, then `length`.
    /// The same arguments give the same schedule, on every machine.
    ///
    /// # Errors
    /// A rate that is not above 0 and at most [`MAX_RATE_RPS`]; more than
    /// [`MAX_DRAWN_ARRIVALS`] random arrivals.
    pub fn draw(
        arrivals: Arrivals,
        rate_rps: f64,
        warmup: Duration,
        length: Length,
        seed: u64,
    ) -> Result<Self> {
        check_rate(rate_rps)?;
        let interval_ns = 1e9 / rate_rps;
        let warmup_ns = nanoseconds(warmup);
        let window_ns = match length {
            Length::Duration(duration) => nanoseconds(duration),
            Length::Requests(requests) => (requests as f64 * interval_ns).ceil() as u64,
        };
        let (times, len) = match arrivals {
            Arrivals::Constant => {
                let before = |time_ns: u64| (time_ns as f64 * rate_rps / 1e9).ceil() as u64;
                let len = match length {
                    Length::Duration(_) => before(warmup_ns + window_ns),
                    Length::Requests(requests) => before(warmup_ns) + requests,
                };
                (Instants::Constant { rate_rps }, len)
            }
            Arrivals::Poisson => {
                let expected = expected(interval_ns, warmup_ns, window_ns)?;
                drawn(poisson(interval_ns, warmup_ns, length, expected, seed))
            }
            Arrivals::Binomial => {
                expected(interval_ns, warmup_ns, window_ns)?;
                drawn(binomial(rate_rps, warmup_ns, window_ns, seed))
            }
        };
        // Random intervals may take longer than expected, and the last arrival belongs to the run, too.
        let window_ns = match (&times, length) {
            (Instants::Drawn(times), Length::Requests(_)) => {
                let last_ns = times.last().map_or(0, |last_ns| last_ns.saturating_sub(warmup_ns));
                window_ns.max(last_ns + 1)
            }
            _ => window_ns,
        };
        Ok(Self { times, len, window_ns, burst: 1 })
    }

    /// As [`Schedule::draw`], but requests come in bursts of `burst`, at the same mean rate: the drawn
    /// arrivals are those of the bursts.
    ///
    /// # Errors
    /// As [`Schedule::draw`]; a burst of zero or of more than [`MAX_BURST`]; a number of requests that
    /// is not a multiple of the burst.
    pub fn draw_bursts(
        arrivals: Arrivals,
        rate_rps: f64,
        burst: u64,
        warmup: Duration,
        length: Length,
        seed: u64,
    ) -> Result<Self> {
        check_burst(burst, length)?;
        let length = match length {
            Length::Requests(requests) => Length::Requests(requests / burst),
            duration => duration,
        };
        // Checked here for the error, which must name the rate of requests, not that of bursts.
        if burst > 1 {
            check_rate(rate_rps)?;
        }
        let bursts = Self::draw(arrivals, rate_rps / burst as f64, warmup, length, seed)?;
        Ok(Self { len: bursts.len.saturating_mul(burst), burst, ..bursts })
    }

    /// The number of arrivals, the warm-up's included.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no arrival, which is possible for a short random schedule at a low rate.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The length of the measured part by the schedule, in nanoseconds; it begins at the end of the
    /// warm-up, and contains the last arrival.
    pub fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// The instant of arrival `index` in nanoseconds from the start; `None` after the last.
    #[inline]
    pub fn at(&self, index: u64) -> Option<u64> {
        if index >= self.len {
            return None;
        }
        // Most schedules have no bursts and do not need the division.
        let index = if self.burst == 1 { index } else { index / self.burst };
        Some(match &self.times {
            // The division is made for each arrival: the error of a rounded interval would accumulate.
            Instants::Constant { rate_rps } => (index as f64 * 1e9 / rate_rps) as u64,
            Instants::Drawn(times) => times[index as usize],
        })
    }

    /// The number of arrivals before `time_ns`, in nanoseconds from the start.
    pub(crate) fn before(&self, time_ns: u64) -> u64 {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.at(middle).is_some_and(|at_ns| at_ns < time_ns) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The instant of the last arrival in nanoseconds from the start; 0 if there is none.
    pub(crate) fn last_ns(&self) -> u64 {
        self.at(self.len.saturating_sub(1)).unwrap_or(0)
    }
}

pub(crate) fn check_rate(rate_rps: f64) -> Result<()> {
    ensure!(
        rate_rps > 0.0 && rate_rps <= MAX_RATE_RPS,
        "--rate {rate_rps}: expected a number of requests a second above 0, at most 1e9"
    );
    Ok(())
}

/// The errors of [`Schedule::draw_bursts`] that concern the bursts.
pub(crate) fn check_burst(burst: u64, length: Length) -> Result<()> {
    ensure!((1..=MAX_BURST).contains(&burst), "--burst {burst}: from 1 to {MAX_BURST}");
    if let Length::Requests(requests) = length {
        ensure!(requests % burst == 0, "--requests {requests}: not a multiple of --burst {burst}");
    }
    Ok(())
}

/// The expected number of arrivals with this mean interval.
///
/// # Errors
/// There is not enough memory for them.
fn expected(interval_ns: f64, warmup_ns: u64, window_ns: u64) -> Result<usize> {
    let expected = (warmup_ns as f64 + window_ns as f64) / interval_ns;
    ensure!(
        expected <= MAX_DRAWN_ARRIVALS as f64,
        "about {expected:.0} random arrivals do not fit in memory (at most \
         {MAX_DRAWN_ARRIVALS}): lower --rate, shorten the run, or use --arrivals constant"
    );
    Ok(expected as usize)
}

fn drawn(times: Vec<u64>) -> (Instants, u64) {
    let len = times.len() as u64;
    (Instants::Drawn(times), len)
}

fn poisson(
    interval_ns: f64,
    warmup_ns: u64,
    length: Length,
    expected: usize,
    seed: u64,
) -> Vec<u64> {
    let (end_ns, wanted) = match length {
        Length::Duration(duration) => (warmup_ns + nanoseconds(duration), u64::MAX),
        Length::Requests(requests) => (u64::MAX, requests),
    };
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut times = Vec::with_capacity(expected);
    let mut now_ns = 0.0f64;
    let mut measured = 0;
    // Bounded: the expectation was checked above, and the sum of so many draws is close to it.
    while measured < wanted && (times.len() as u64) < 2 * MAX_DRAWN_ARRIVALS {
        let gap: f64 = Exp1.sample(&mut random);
        now_ns += gap * interval_ns;
        if now_ns >= end_ns as f64 {
            break;
        }
        times.push(now_ns as u64);
        measured += u64::from(now_ns as u64 >= warmup_ns);
    }
    times
}

/// Draws the cells of the warm-up, then those of the window, so that each of the two has its exact
/// number.
fn binomial(rate_rps: f64, warmup_ns: u64, window_ns: u64, seed: u64) -> Vec<u64> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut times = Vec::new();
    // At less than one arrival per second, a cell has the length of ten arrivals.
    let cell_ns = BINOMIAL_CELL_NS.max((1e10 / rate_rps) as u64 * u64::from(rate_rps < 1.0));
    for (part_ns, length_ns) in [(0, warmup_ns), (warmup_ns, window_ns)] {
        let until = |ns: u64| (ns as f64 * rate_rps / 1e9).round() as u64;
        let total = until(length_ns);
        let (mut begin_ns, mut drawn) = (0u64, 0u64);
        // Ends with the last arrival: at a rate far below one per second, most cells have none.
        while drawn < total {
            let end_ns = length_ns.min(begin_ns.saturating_add(cell_ns));
            let wanted = until(end_ns);
            let first = times.len();
            for _ in drawn..wanted {
                times.push(part_ns + random.random_range(begin_ns..end_ns));
            }
            times[first..].sort_unstable();
            (begin_ns, drawn) = (end_ns, wanted);
        }
    }
    times
}

/// Every `stride`-th arrival from `offset` on: the part of the schedule that one thread of one client
/// sends.
///
/// All lanes together send the whole schedule. If the arrivals of a Poisson process are assigned in
/// rotation, a single lane is no longer Poisson, but their sum is, and the server sees the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The first arrival.
    pub offset: u64,
    /// The number of lanes.
    pub stride: u64,
}

impl Lane {
    /// The arrival's number in the whole schedule.
    #[inline]
    pub fn global(self, index: u64) -> u64 {
        self.offset + index * self.stride
    }

    /// The number of arrivals of `total` in this lane.
    pub fn share(self, total: u64) -> u64 {
        total.saturating_sub(self.offset).div_ceil(self.stride)
    }
}

/// A duration in whole nanoseconds; at most 584 years.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn all(schedule: &Schedule) -> Vec<u64> {
        (0..schedule.len()).map(|index| schedule.at(index).unwrap()).collect()
    }

    fn draw(
        arrivals: Arrivals,
        rate: f64,
        warmup: Duration,
        length: Length,
        seed: u64,
    ) -> Schedule {
        Schedule::draw(arrivals, rate, warmup, length, seed).unwrap()
    }

    #[test]
    fn constant_arrivals_are_evenly_spaced_and_end_before_the_end() {
        let schedule =
            draw(Arrivals::Constant, 1000.0, Duration::ZERO, Length::Duration(SECOND), 1);
        let times = all(&schedule);
        assert_eq!(times.len(), 1000);
        assert_eq!(times[0], 0);
        assert_eq!(times[999], 999_000_000);
        assert_eq!(schedule.at(1000), None);
        let before = [0, 1, 1_000_000, 1_000_001, u64::MAX].map(|ns| schedule.before(ns));
        assert_eq!(before, [0, 1, 1, 2, 1000]);
        assert_eq!(schedule.window_ns(), 1_000_000_000);
    }

    #[test]
    fn constant_arrivals_do_not_drift() {
        // 3 arrivals per second: the interval has no exact binary form.
        let day = Length::Duration(Duration::from_secs(86_400));
        let schedule = draw(Arrivals::Constant, 3.0, Duration::ZERO, day, 1);
        assert_eq!(schedule.len(), 3 * 86_400);
        let last = schedule.at(3 * 86_400 - 3).unwrap() as f64;
        assert!((last - 86_399e9).abs() < 1e3, "{last}");
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() {
        let length = Length::Duration(Duration::from_secs(100));
        let times = all(&draw(Arrivals::Poisson, 1000.0, Duration::ZERO, length, 7));
        // 100,000 are expected; the standard deviation of the count is 316.
        assert!((98_400..101_600).contains(&times.len()), "{}", times.len());
        assert!(times.is_sorted());
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        let coefficient = variance.sqrt() / mean;
        assert!((coefficient - 1.0).abs() < 0.03, "exponential gaps have 1, these {coefficient}");
        // Memoryless: a tenth of the gaps is above ln 10 means.
        let long = gaps.iter().filter(|&&gap| gap > std::f64::consts::LN_10 * mean).count() as f64;
        assert!((long / gaps.len() as f64 - 0.1).abs() < 0.005, "{long}");
    }

    #[test]
    fn binomial_arrivals_have_the_same_number_in_each_second_and_the_gaps_of_a_poisson_process() {
        const SECONDS: u64 = 100;
        let length = Length::Duration(Duration::from_secs(SECONDS));
        let warmup = Duration::from_millis(2_500);
        let times = all(&draw(Arrivals::Binomial, 1000.0, warmup, length, 7));
        assert!(times.is_sorted());
        assert_eq!(times.len(), 102_500);
        let in_window = |second: u64| {
            let begin = 2_500_000_000 + second * 1_000_000_000;
            times.iter().filter(|&&time| (begin..begin + 1_000_000_000).contains(&time)).count()
        };
        assert!((0..SECONDS).all(|second| in_window(second) == 1000));
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let long = gaps.iter().filter(|&&gap| gap > std::f64::consts::LN_10 * mean).count() as f64;
        assert!((long / gaps.len() as f64 - 0.1).abs() < 0.005, "{long}");
        // In parts of a second the numbers vary as in a Poisson process.
        let parts = (0..10 * SECONDS).map(|part| {
            let begin = 2_500_000_000 + part * 100_000_000;
            times.iter().filter(|&&time| (begin..begin + 100_000_000).contains(&time)).count()
        });
        let parts: Vec<f64> = parts.map(|count| count as f64).collect();
        let variance =
            parts.iter().map(|count| (count - 100.0).powi(2)).sum::<f64>() / parts.len() as f64;
        assert!((75.0..105.0).contains(&variance), "a tenth of 1,000 has 90, these {variance}");
        let other = all(&draw(Arrivals::Binomial, 1000.0, warmup, length, 8));
        assert_ne!(times, other, "drawn from the seed");
        // At a rate far below one per second, empty seconds take no draws.
        let rare = draw(Arrivals::Binomial, 1e-6, Duration::ZERO, Length::Requests(25), 1);
        assert_eq!(rare.len(), 25);
        // A rate that is not a whole number keeps its mean.
        let odd = draw(Arrivals::Binomial, 2.5, Duration::ZERO, length, 1);
        assert_eq!(odd.len(), 250);
    }

    #[test]
    fn bursts_share_their_instants_and_keep_the_mean_rate() {
        for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
            let length = Length::Duration(10 * SECOND);
            let schedule =
                Schedule::draw_bursts(arrivals, 1000.0, 50, Duration::ZERO, length, 7).unwrap();
            let times = all(&schedule);
            assert!(times.chunks(50).all(|burst| burst.len() == 50 && burst[0] == burst[49]));
            assert!(times.chunks(50).is_sorted_by(|one, next| one[0] < next[0]));
            // 200 bursts; the standard deviation of a Poisson count is 14.
            assert!((150 * 50..250 * 50).contains(&times.len()), "{arrivals:?}: {}", times.len());
            assert_eq!(schedule.window_ns(), 10_000_000_000);
            let single = Schedule::draw_bursts(arrivals, 1000.0, 1, SECOND, length, 7).unwrap();
            assert_eq!(all(&single), all(&draw(arrivals, 1000.0, SECOND, length, 7)));
        }
        let requests = |number| {
            let length = Length::Requests(number);
            Schedule::draw_bursts(Arrivals::Constant, 1e3, 4, Duration::ZERO, length, 1)
        };
        assert_eq!(requests(12).unwrap().len(), 12);
        assert!(requests(13).unwrap_err().to_string().contains("--burst 4"));
    }

    #[test]
    fn the_seed_alone_decides() {
        let length = Length::Requests(5000);
        let first = all(&draw(Arrivals::Poisson, 500.0, SECOND, length, 42));
        assert_eq!(first, all(&draw(Arrivals::Poisson, 500.0, SECOND, length, 42)));
        assert_ne!(first, all(&draw(Arrivals::Poisson, 500.0, SECOND, length, 43)));
    }

    #[test]
    fn requests_are_counted_after_the_warmup() {
        for arrivals in [Arrivals::Constant, Arrivals::Poisson, Arrivals::Binomial] {
            let schedule = draw(arrivals, 100.0, SECOND, Length::Requests(250), 3);
            let times = all(&schedule);
            let measured = times.iter().filter(|&&time| time >= 1_000_000_000).count();
            assert_eq!(measured, 250, "{arrivals:?}");
            assert!(times.len() > 250, "{arrivals:?}: the warm-up has arrivals too");
        }
    }

    /// Regression test: arrivals more than a second after the expected end were once never sent.
    #[test]
    fn a_run_of_random_requests_contains_the_last_one() {
        let mut longest_ns = 0;
        for seed in 1..50 {
            let length = Length::Requests(100);
            let schedule = draw(Arrivals::Poisson, 10.0, SECOND, length, seed);
            let last_ns = schedule.at(schedule.len() - 1).unwrap();
            let window_ns = schedule.window_ns();
            assert!(window_ns >= 10_000_000_000, "as long as expected: {window_ns}");
            assert!(last_ns < 1_000_000_000 + window_ns, "{last_ns} is after {window_ns}");
            longest_ns = longest_ns.max(window_ns);
        }
        // The standard deviation of the sum of 100 intervals is a second.
        assert!(longest_ns > 11_000_000_000, "{longest_ns}");
    }

    #[test]
    fn lanes_deal_out_every_arrival_once() {
        for total in [0, 1, 5, 6, 7, 1000] {
            let mut seen = vec![0; total as usize];
            for offset in 0..6 {
                let lane = Lane { offset, stride: 6 };
                for index in 0..lane.share(total) {
                    seen[lane.global(index) as usize] += 1;
                }
                assert!(lane.global(lane.share(total)) >= total);
            }
            assert!(seen.iter().all(|&times| times == 1), "{total}");
        }
    }

    #[test]
    fn limits_are_errors_that_name_the_flag() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 2e9] {
            let error =
                Schedule::draw(Arrivals::Constant, rate, Duration::ZERO, Length::Requests(1), 1);
            assert!(error.unwrap_err().to_string().contains("--rate"));
        }
        let long = Length::Duration(Duration::from_secs(86_400));
        for arrivals in [Arrivals::Poisson, Arrivals::Binomial] {
            let error = Schedule::draw(arrivals, 1e6, Duration::ZERO, long, 1).unwrap_err();
            assert!(error.to_string().contains("--arrivals constant"), "{error}");
        }
        assert!(Schedule::draw(Arrivals::Constant, 1e6, Duration::ZERO, long, 1).is_ok());
    }
}

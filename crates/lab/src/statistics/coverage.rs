//! Simulates the statistics of this module: how often an interval covers the true value, and how often a
//! plan of looks makes a wrong decision.
//!
//! The simulated noise is like that of published runs (`docs/runs`) with 10 to 24 blocks. Between
//! blocks, the standard deviation of the logarithms of a figure is 0.004 to 0.36 (its tenth and its
//! ninetieth percentile). A third of the variance comes from the machine and is common to two
//! consecutive variants. One of the two variants is 1.6 times as noisy as the other, and in one pair of
//! ten 3.8 times. Noise that only one side has does not cancel: a server that is sometimes slow skews
//! the comparison.
//!
//! - The claims make 52 comparisons of positive figures by ratio. The absolute sample skewness of their
//!   logarithms is at most 1.39 in nine of ten comparisons and at most 1.79 in 19 of 20. If all were
//!   normal, these two bounds would be 1.08 and 1.33; if all had a skewness of 1, the bounds would be
//!   1.55 and 1.85. No single skewness fits all: most comparisons look normal, and one in six is as
//!   skewed as an exponential delay (2) or has a block far from the others. Examples are P2 of
//!   `2026-11-25-provos-fig4-9-devpoll` (2.73 in 24 blocks; the run is in the history of the repository)
//!   and G9-share of `2026-11-25-gammo-table1` (1.79 in 10).
//! - One block in a hundred is farther from the middle than five standard deviations (estimated from the
//!   median deviation); the farthest is 6.2, in `2026-11-25-provos-fig4-9-devpoll`.
//!
//! An interval with a nominal coverage of 95 % covers 94 to 96 % in these cases: the noise is normal, in
//! any proportion between the sides; one side or both sides have outliers; both sides have the same
//! skew; or one side is skewed and the other is half as noisy. If only one side has noise, with a
//! skewness of 1, the interval covers 93.4 % in six blocks and 94.5 % in forty; if that noise is an
//! exponential delay, 88.6 and 93.2 % ([`KINDS`]). Nearly all misses are at one end: in six blocks 5.7
//! of 6.6 % and 11.0 of 11.4 %, not 2.5 of 5 %. In these two cases a plan of looks decides wrongly in
//! 6.1 and 8.9 % of the experiments, not in 5 %.
//!
//! The code does not use N. Johnson's correction of t for skewness (*Modified t tests and confidence
//! intervals for asymmetrical populations*, J. American Statistical Association 73, 1978). A simulation of
//! it showed that it would raise the 93.4 % to 94.4 %, but lower the 94.4 % of outliers in twenty blocks to
//! 93.0 %, and the 95.0 % of normal noise to 94.7 % (the simulation is in the repository's history, commit
//! 8d7d6d7e^).

use super::{
    Compare, ERROR, MIN_BLOCKS, Sample, paired, rank,
    sequential::{LOOKS, levels},
    student,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// The true ratio of side a to side b.
const TRUTH: f64 = 1.3;
/// The number of draws of each case. The share that covers is then known to within 0.6 % (two standard
/// errors).
const DRAWS: usize = 6_000;
/// The permitted difference between a share and the share of many more draws: three standard errors in
/// most cases.
const CLOSE: f64 = 0.01;

/// The distribution of the logarithm of a side's figure around its true value, in units of its standard
/// deviation. Its mean is 0.
#[derive(Clone, Copy, Debug)]
enum Noise {
    Normal,
    /// The sum of this number n of exponential delays: it is never much faster, and sometimes much
    /// slower. Its skewness is 2 ÷ √n.
    Delays(u32),
    /// One block in forty is slower by five standard deviations of the others.
    Outliers,
}

/// The noise that each side has in addition to the shared noise, with its standard deviation in units of
/// the shared one.
#[derive(Clone, Copy, Debug)]
struct Kind {
    a: (Noise, f64),
    b: (Noise, f64),
}

const fn kind(a: Noise, a_sd: f64, b: Noise, b_sd: f64) -> Kind {
    Kind { a: (a, a_sd), b: (b, b_sd) }
}

const NORMAL: Kind = kind(Noise::Normal, 1.0, Noise::Normal, 1.0);
const OUTLIERS: Kind = kind(Noise::Outliers, 1.0, Noise::Outliers, 1.0);
const SKEWED: Kind = kind(Noise::Delays(4), 1.0, Noise::Delays(4), 1.0);
/// Only one side has outliers, and that side has all the noise that is not shared.
const ONE_FAR_OFF: Kind = kind(Noise::Outliers, 1.0, Noise::Normal, 0.0);
/// Only one side is skewed, and that side has all the noise that is not shared: the skewness of the
/// comparison is 1.
const ONE_SKEWED: Kind = kind(Noise::Delays(4), 1.0, Noise::Normal, 0.0);
/// The worst case: the skewness of the comparison is 2.
const ONE_EXPONENTIAL: Kind = kind(Noise::Delays(1), 1.0, Noise::Normal, 0.0);

/// The numbers of blocks that are simulated.
const BLOCKS: [usize; 4] = [MIN_BLOCKS, 10, 20, 40];

/// The coverage in [`BLOCKS`] blocks, from a million draws, and whether all of it is within 94 to 96 %.
const KINDS: [(Kind, [f64; 4], bool); 10] = [
    (NORMAL, [0.950, 0.950, 0.950, 0.950], true),
    (kind(Noise::Normal, 3.0, Noise::Normal, 1.0), [0.950, 0.950, 0.950, 0.950], true),
    (SKEWED, [0.954, 0.952, 0.951, 0.950], true),
    (OUTLIERS, [0.957, 0.956, 0.954, 0.952], true),
    (kind(Noise::Delays(4), 1.0, Noise::Normal, 1.0), [0.949, 0.949, 0.949, 0.950], true),
    (kind(Noise::Delays(4), 1.0, Noise::Normal, 0.5), [0.943, 0.944, 0.945, 0.948], true),
    (kind(Noise::Outliers, 1.0, Noise::Normal, 1.0), [0.951, 0.950, 0.949, 0.949], true),
    (ONE_FAR_OFF, [0.950, 0.948, 0.944, 0.944], true),
    (ONE_SKEWED, [0.934, 0.936, 0.942, 0.945], false),
    (ONE_EXPONENTIAL, [0.886, 0.901, 0.919, 0.932], false),
];

pub(crate) fn normal(random: &mut StdRng) -> f64 {
    // The Box–Muller method.
    let (u, v): (f64, f64) = (1.0 - random.random::<f64>(), random.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

fn noise(kind: Noise, random: &mut StdRng) -> f64 {
    match kind {
        Noise::Normal => normal(random),
        Noise::Delays(n) => {
            let product: f64 = (0..n).map(|_| 1.0 - random.random::<f64>()).product();
            (-product.ln() - f64::from(n)) / f64::from(n).sqrt()
        }
        Noise::Outliers => {
            let far = if random.random::<f64>() < 1.0 / 40.0 { 5.0 } else { 0.0 };
            normal(random) + far - 5.0 / 40.0
        }
    }
}

/// Draws both sides of one block. `sd` is the standard deviation of the logarithm of a side whose noise
/// has size 1; half of that variance is shared.
fn block(kind: Kind, sd: f64, random: &mut StdRng) -> (f64, f64) {
    let half = sd / 2f64.sqrt();
    let shared = half * normal(random);
    let mut side = |(of, size): (Noise, f64)| {
        // A side without noise of its own draws no random number.
        if size > 0.0 { shared + half * size * noise(of, random) } else { shared }
    };
    ((TRUTH.ln() + side(kind.a)).exp(), side(kind.b).exp())
}

/// Returns the share of [`DRAWS`] draws, from a generator with this seed, for which `is_so` is true.
fn share_of_draws(seed: u64, mut is_so: impl FnMut(&mut StdRng) -> bool) -> f64 {
    let mut random = StdRng::seed_from_u64(seed);
    (0..DRAWS).filter(|_| is_so(&mut random)).count() as f64 / DRAWS as f64
}

/// Returns the share of intervals over `blocks` blocks that cover the truth.
fn covered(
    blocks: usize,
    kind: Kind,
    sd: f64,
    truth: f64,
    interval: impl Fn(&[(f64, f64)]) -> Option<(f64, f64)>,
) -> f64 {
    share_of_draws(blocks as u64 ^ sd.to_bits(), |random| {
        let drawn: Vec<_> = (0..blocks).map(|_| block(kind, sd, random)).collect();
        interval(&drawn).is_some_and(|(low, high)| low <= truth && truth <= high)
    })
}

fn says_what_it_covers(share: f64) -> bool {
    (0.94..=0.96).contains(&share)
}

/// Does the same as [`paired`], but without the rank estimate, which takes most of the time. `reach` is
/// Student's for this number of blocks.
fn of_logarithms(drawn: &[(f64, f64)], reach: f64) -> (f64, f64) {
    let logs: Vec<f64> = drawn.iter().map(|(a, b)| (a / b).ln()).collect();
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    let variance = logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let half = reach * (variance / n).sqrt();
    ((mean - half).exp(), (mean + half).exp())
}

/// Returns the shares of intervals over each number of [`BLOCKS`] that cover the true value. The smaller
/// numbers are the first blocks of the largest one.
fn covered_by_paired(kind: Kind, sd: f64) -> [f64; BLOCKS.len()] {
    let reach = BLOCKS.map(|blocks| student::reach(blocks, ERROR));
    let mut random = StdRng::seed_from_u64(sd.to_bits());
    let mut hits = [0; BLOCKS.len()];
    for _ in 0..DRAWS {
        let most = BLOCKS[BLOCKS.len() - 1];
        let drawn: Vec<_> = (0..most).map(|_| block(kind, sd, &mut random)).collect();
        for ((hits, blocks), reach) in hits.iter_mut().zip(BLOCKS).zip(reach) {
            let (low, high) = of_logarithms(&drawn[..blocks], reach);
            *hits += usize::from((low..=high).contains(&TRUTH));
        }
    }
    hits.map(|hits| hits as f64 / DRAWS as f64)
}

#[test]
fn the_paired_interval_covers_what_the_table_says() {
    for (kind, covers, says_it) in KINDS {
        let shares = covered_by_paired(kind, 0.36).into_iter().zip(covers);
        for (blocks, (share, expected)) in BLOCKS.into_iter().zip(shares) {
            assert!((share - expected).abs() < CLOSE, "{blocks} {kind:?}: {share}, not {expected}");
        }
        let is_so = covers.into_iter().all(says_what_it_covers);
        assert_eq!(is_so, says_it, "{kind:?}: {covers:?}");
    }
    // Because of the logarithms, the coverage is the same at any scale.
    let reach = student::reach(10, ERROR);
    let share = covered(10, NORMAL, 0.02, TRUTH, |drawn| Some(of_logarithms(drawn, reach)));
    assert!(says_what_it_covers(share), "{share}");
}

/// The control: the test tells skewed noise on one side from noise that cancels.
#[test]
fn control_what_one_side_alone_has_does_not_cancel() {
    let reach = student::reach(MIN_BLOCKS, ERROR);
    let of = |drawn: &[(f64, f64)]| Some(of_logarithms(drawn, reach));
    let both = covered(MIN_BLOCKS, SKEWED, 0.36, TRUTH, of);
    let one = covered(MIN_BLOCKS, ONE_SKEWED, 0.36, TRUTH, of);
    assert!(says_what_it_covers(both) && !says_what_it_covers(one), "{both} {one}");
}

/// One tail decides a claim, and with a skewed side nearly all the error is in one tail. The errors of
/// both tails together are the intervals that miss.
#[test]
fn the_tails_of_a_skewed_side_are_not_alike() {
    let mut random = StdRng::seed_from_u64(8);
    let (mut above, mut below, mut missed) = (0, 0, 0);
    for _ in 0..DRAWS {
        let drawn = (0..MIN_BLOCKS).map(|_| block(ONE_SKEWED, 0.36, &mut random));
        let pairs = drawn.map(|(a, b)| (Some(a), Some(b)));
        let sample = Sample::of(pairs, Compare::Ratio, true).unwrap();
        let interval = sample.interval(ERROR).unwrap();
        above += usize::from(2.0 * sample.tail_above(TRUTH) <= ERROR);
        below += usize::from(2.0 * sample.tail_below(TRUTH) <= ERROR);
        missed += usize::from(TRUTH < interval.low || interval.high < TRUTH);
    }
    let [wrongly_above, wrongly_below] = [above, below].map(|wrong| wrong as f64 / DRAWS as f64);
    assert!((wrongly_above - 0.010).abs() < CLOSE / 2.0, "{wrongly_above}");
    assert!((wrongly_below - 0.057).abs() < CLOSE, "{wrongly_below}");
    assert_eq!(above + below, missed);
}

/// Tests side a alone, with the noise that both sides share: on the logarithmic scale, which is used if
/// a claim's limit is positive, and on the linear scale.
#[test]
fn the_interval_of_a_value_has_its_nominal_coverage() {
    let alone = |kind: Kind, sd: f64, blocks: usize, may_be_log: bool, truth: f64| {
        covered(blocks, kind, sd, truth, |drawn| {
            let values = drawn.iter().map(|&(a, b)| (Some(a), Some(b)));
            let interval = Sample::of(values, Compare::Value, may_be_log)?.interval(ERROR)?;
            Some((interval.low, interval.high))
        })
    };
    for (kind, expected) in [(NORMAL, 0.950), (ONE_SKEWED, 0.949), (OUTLIERS, 0.951)] {
        let share = alone(kind, 0.36, MIN_BLOCKS, true, TRUTH);
        assert!((share - expected).abs() < CLOSE, "{kind:?}: {share}");
        assert!(says_what_it_covers(share), "{kind:?}: {share}");
    }
    // The mean of values whose logarithms are normal is larger than their geometric mean, and their
    // noise is skewed.
    let mean = |sd: f64| TRUTH * (sd * sd / 2.0).exp();
    for (sd, blocks, expected) in [(0.12, MIN_BLOCKS, 0.948), (0.36, MIN_BLOCKS, 0.932)] {
        let share = alone(NORMAL, sd, blocks, false, mean(sd));
        assert!((share - expected).abs() < CLOSE, "{sd} {blocks}: {share}");
    }
    // The control: on the linear scale the interval does not cover the geometric mean.
    let other = alone(NORMAL, 0.36, 40, false, TRUTH);
    assert!(other < 0.9, "{other}");
}

/// The tests above simulate `paired` by `of_logarithms`; this test shows that both give the same
/// interval.
#[test]
fn the_simulated_interval_is_the_one_that_is_built() {
    let mut random = StdRng::seed_from_u64(3);
    for blocks in [6, 10, 40] {
        let drawn: Vec<_> = (0..blocks).map(|_| block(ONE_SKEWED, 0.3, &mut random)).collect();
        let built = paired(drawn.iter().map(|&(a, b)| (Some(a), Some(b))), Compare::Ratio).unwrap();
        let (low, high) = of_logarithms(&drawn, student::reach(blocks, ERROR));
        assert!((built.low.unwrap() / low - 1.0).abs() < 1e-9, "{blocks}: {built:?}, not {low}");
        assert!((built.high.unwrap() / high - 1.0).abs() < 1e-9, "{blocks}: {built:?}, not {high}");
    }
}

/// The rank interval covers the centre of the distribution, which differs from the mean if the noise is
/// skewed.
#[test]
fn the_interval_of_the_ranks_covers_less_only_of_one_sides_skew() {
    let of_ranks = |blocks: usize, kind: Kind| {
        covered(blocks, kind, 0.12, TRUTH, |drawn| {
            let logs: Vec<f64> = drawn.iter().map(|(a, b)| (a / b).ln()).collect();
            let interval = rank::estimate(&logs, ERROR)?.1?;
            Some((interval.low.exp(), interval.high.exp()))
        })
    };
    for blocks in [6, 10, 20] {
        let share = of_ranks(blocks, OUTLIERS);
        assert!((0.94..=0.98).contains(&share), "{blocks}: {share}");
    }
    let share = of_ranks(20, ONE_SKEWED);
    assert!((share - 0.933).abs() < CLOSE, "{share}");
}

/// The control: earlier published results used the range of three blocks, which is the percentile
/// bootstrap of three values, and called it 95 %.
#[test]
fn control_three_blocks_do_not_cover_what_they_say() {
    let share = covered(3, NORMAL, 0.12, TRUTH, |drawn| {
        let ratios = drawn.iter().map(|(a, b)| a / b);
        Some((ratios.clone().fold(f64::INFINITY, f64::min), ratios.fold(0.0, f64::max)))
    });
    assert!((0.73..=0.77).contains(&share), "{share}");
    assert!(!says_what_it_covers(share));
}

/// Returns the share of experiments that decide, at one of the looks, that a ratio differs from its true
/// value.
fn wrongly_decided(limits: &[f64], looks: &[usize], kind: Kind, sd: f64) -> f64 {
    let reach: Vec<f64> =
        looks.iter().zip(limits).map(|(&look, &level)| student::reach(look, level)).collect();
    let most = looks[looks.len() - 1];
    share_of_draws(99 ^ sd.to_bits(), |random| {
        let (mut sum, mut squares, mut look) = (0.0, 0.0, 0);
        for made in 1..=most {
            let (a, b) = block(kind, sd, random);
            let off = (a / b / TRUTH).ln();
            sum += off;
            squares += off * off;
            if made == looks[look] {
                let n = made as f64;
                let (mean, error) = (sum / n, (squares - sum * sum / n) / (n - 1.0) / n);
                if mean.abs() > reach[look] * error.sqrt() {
                    return true;
                }
                look += 1;
            }
        }
        false
    })
}

#[test]
fn looks_keep_the_error() {
    let spending = levels(&LOOKS, 40, ERROR, true);
    let errors = [
        (NORMAL, 0.02, 0.051),
        (NORMAL, 0.36, 0.051),
        (SKEWED, 0.36, 0.049),
        (OUTLIERS, 0.36, 0.049),
        (ONE_FAR_OFF, 0.36, 0.059),
        (ONE_SKEWED, 0.36, 0.061),
        (ONE_EXPONENTIAL, 0.36, 0.089),
    ];
    for (kind, sd, expected) in errors {
        let error = wrongly_decided(&spending, &LOOKS, kind, sd);
        assert!((error - expected).abs() < CLOSE, "{kind:?} {sd}: {error}, not {expected}");
    }
    // The time limit is reached at the third look, which then spends the remaining error.
    let cut = levels(&[MIN_BLOCKS, 10, 14], 40, ERROR, true);
    let error = wrongly_decided(&cut, &[MIN_BLOCKS, 10, 14], NORMAL, 0.12);
    assert!((0.038..=0.058).contains(&error), "{error}");
    // The control: five looks at a level of 5 % each.
    let naive = wrongly_decided(&[ERROR; 5], &LOOKS, NORMAL, 0.12);
    assert!(naive > 0.1, "{naive}");
}

/// An interrupt by the user is an additional look. It must take error from the later looks; otherwise
/// that error is spent twice.
#[test]
fn looks_beside_the_plan_keep_the_error() {
    let interrupted = [MIN_BLOCKS, 10, 13, 16, 24, 29, 40];
    let spending = levels(&interrupted, 40, ERROR, true);
    let error = wrongly_decided(&spending, &interrupted, NORMAL, 0.12);
    assert!((0.038..=0.058).contains(&error), "{error}");
    // The control: a look after 10 blocks spends all the remaining error, and the experiment then
    // continues as if that look had not taken place.
    let looks = [MIN_BLOCKS, 10, 16, 20];
    let mut forgotten = levels(&looks, 40, ERROR, true);
    forgotten[1] = levels(&looks[..2], 40, ERROR, true)[1];
    let error = wrongly_decided(&forgotten, &looks, NORMAL, 0.12);
    assert!(error > 0.065, "{error}");
}

/// Returns the share of experiments that decide, at one of the looks, that the mean of figures which are
/// 0 or 2 with equal probability is not 1. `tail` returns the p-value of one side for the values.
fn wrongly_decided_of_two_values(tail: impl Fn(&[f64]) -> f64) -> f64 {
    let spending = levels(&LOOKS, LOOKS[LOOKS.len() - 1], ERROR, true);
    share_of_draws(6, |random| {
        let mut value = || if random.random::<bool>() { 2.0 } else { 0.0 };
        let values: Vec<f64> = (0..LOOKS[LOOKS.len() - 1]).map(|_| value()).collect();
        let decides = |(&look, &level): (&usize, &f64)| 2.0 * tail(&values[..look]) <= level;
        LOOKS.iter().zip(&spending).any(decides)
    })
}

/// Counts are often equal in all of six blocks; equal values do not prove that there is no noise.
#[test]
fn equal_values_keep_the_error() {
    let tail =
        |values: &[f64]| student::tail_above(values, 1.0).min(student::tail_below(values, 1.0));
    let error = wrongly_decided_of_two_values(tail);
    assert!(error <= 0.058, "{error}");
    // The control: values without a spread are treated as values without noise.
    let certain = wrongly_decided_of_two_values(|values| {
        if values.iter().all(|value| *value == values[0]) { 0.0 } else { tail(values) }
    });
    assert!(certain > 0.07, "{certain}");
}

/// A claim about three variants fails if one of them fails: each variant has a third of the error for
/// that.
#[test]
fn a_claim_about_several_fails_no_more_often_than_about_one() {
    let failed = |level: f64| {
        share_of_draws(7, |random| {
            (0..3).any(|_| {
                let logs: Vec<f64> = (0..10).map(|_| normal(random)).collect();
                2.0 * student::tail_below(&logs, 0.0) <= level
            })
        })
    };
    // One half of the 5 % is for the verdict *holds*, so that 2.5 % is left for a failure.
    let shared = failed(ERROR / 3.0);
    assert!((0.018..=0.031).contains(&shared), "{shared}");
    // The control: each variant has the whole error.
    let alone = failed(ERROR);
    assert!(alone > 0.06, "{alone}");
}

/// A fifth of the blocks is lost because of their values, all at one end. The true value lies on the
/// threshold. With the correction, the remaining blocks decide wrongly no more often than the error
/// allows; without it, they decide wrongly in more than 15 % of the cases.
#[test]
fn blocks_that_are_lost_at_one_end_decide_nothing() {
    for blocks in [10usize, 16, 24, 40] {
        let mut random = StdRng::seed_from_u64(blocks as u64);
        let lost = blocks / 5;
        let mut wrong = [0, 0];
        for _ in 0..DRAWS {
            let mut drawn: Vec<f64> = (0..blocks).map(|_| 0.1 * normal(&mut random)).collect();
            drawn.sort_by(f64::total_cmp);
            let pairs = drawn[lost..].iter().map(|value| (Some(value.exp()), Some(1.0)));
            let found = Sample::of(pairs, Compare::Ratio, true).unwrap();
            let decides = |sample: &Sample| usize::from(2.0 * sample.tail_above(1.0) <= ERROR);
            wrong[0] += decides(&found);
            wrong[1] += decides(&found.lacking(lost));
        }
        let [without, with] = wrong.map(|wrong| wrong as f64 / DRAWS as f64);
        assert!(with <= ERROR / 2.0 + 0.006, "{blocks}: {with}");
        assert!(without > 0.15, "control, {blocks}: {without}");
    }
}

//! Detects when a server under load is in its steady state.
//!
//! At first a queue fills, a cache warms, or connections open, and measurements during that time do not
//! represent the server. The rule is K. White's (*An effective truncation heuristic for bias reduction in
//! simulation output*, Simulation 69, 1997, the "marginal standard error rule"): from the beginning of a
//! series of replies per interval, remove so many that the standard error of the mean of the rest is
//! smallest. If that removes more than half of the series, the series is not steady. It is also not steady
//! if the two halves of the rest differ by more than noise, because that rule alone does not detect a
//! server that collapses late, when its queue is full.

/// The fewest intervals that can be judged.
pub const FEWEST: usize = 8;

/// Returns how many intervals at the beginning of `series` are not yet steady; `None` when it does not
/// become steady within its first half, or is shorter than [`FEWEST`].
pub fn settled_after(series: &[f64]) -> Option<usize> {
    if series.len() < FEWEST {
        return None;
    }
    let error = |skipped: usize| {
        let rest = &series[skipped..];
        let n = rest.len() as f64;
        let mean = rest.iter().sum::<f64>() / n;
        rest.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n * n)
    };
    // The end of a series may be quiet by chance, so the rule examines only the first half.
    let half = series.len() / 2;
    let best = (0..=half).min_by(|&a, &b| error(a).total_cmp(&error(b)))?;
    let rest = &series[best..];
    let (first, second) = rest.split_at(rest.len() / 2);
    (best < half && are_alike(first, second)).then_some(best)
}

/// Whether two parts have the same mean, within three standard errors or a twentieth.
fn are_alike(a: &[f64], b: &[f64]) -> bool {
    let of = |part: &[f64]| {
        let n = part.len() as f64;
        let mean = part.iter().sum::<f64>() / n;
        let variance = part.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        (mean, variance / n)
    };
    let ((mean_a, error_a), (mean_b, error_b)) = (of(a), of(b));
    let difference = (mean_a - mean_b).abs();
    difference <= 3.0 * (error_a + error_b).sqrt()
        || difference <= mean_a.abs().max(mean_b.abs()) / 20.0
}

#[cfg(test)]
mod tests {
    use super::settled_after;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    /// Forty intervals of `shape`, each with noise of two per cent.
    fn series(seed: u64, shape: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut random = StdRng::seed_from_u64(seed);
        (0..40)
            .map(|i| shape(f64::from(i)) * (1.0 + 0.04 * (random.random::<f64>() - 0.5)))
            .collect()
    }

    /// The fewest of twenty series that must be recognized as steady: noise may end with a quiet half.
    const MOST: usize = 16;

    #[test]
    fn what_is_steady_from_the_start_loses_little() {
        let skipped = |seed| settled_after(&series(seed, |_| 1000.0));
        // Noise may begin with an outlier.
        let little = (0..20).filter(|&seed| skipped(seed).is_some_and(|skipped| skipped < 20));
        let little = little.count();
        assert!(little >= MOST, "{little} of 20");
        assert_eq!(settled_after(&[1000.0; 40]), Some(0));
    }

    #[test]
    fn a_start_that_differs_is_left_out() {
        // A queue that fills for eight intervals, a rate that decays to a steady one, and a burst of
        // retries.
        let fills = |i: f64| if i < 8.0 { 100.0 * i } else { 800.0 };
        let decays = |i: f64| 500.0 + 1500.0 * (-i / 3.0).exp();
        let bursts = |i: f64| if i < 5.0 { 3000.0 } else { 1000.0 };
        for (name, shape, least) in [
            ("fills", &fills as &dyn Fn(f64) -> f64, 7),
            ("decays", &decays, 5),
            ("bursts", &bursts, 5),
        ] {
            let skipped: Vec<Option<usize>> =
                (0..20).map(|seed| settled_after(&series(seed, shape))).collect();
            assert!(skipped.iter().flatten().all(|&s| s >= least), "{name}: {skipped:?}");
            let settled = skipped.iter().flatten().count();
            assert!(settled >= MOST, "{name}: {settled} of 20");
        }
    }

    #[test]
    fn what_goes_on_changing_is_not_steady() {
        for seed in 0..20 {
            assert_eq!(settled_after(&series(seed, |i| 100.0 + 30.0 * i)), None, "climbs {seed}");
            let late = series(seed, |i| if i < 30.0 { 1000.0 } else { 200.0 });
            assert_eq!(settled_after(&late), None, "collapses late, {seed}");
        }
        assert_eq!(settled_after(&[1.0; 7]), None, "too short to say");
    }
}

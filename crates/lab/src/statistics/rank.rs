//! The Hodges–Lehmann estimate and the exact interval of Wilcoxon's signed-rank test.
//!
//! The estimate is the median of Walsh's averages: the means of all pairs of values, including each
//! value paired with itself. The two ends of the interval are two of these averages. The exact
//! distribution of the signed-rank statistic determines which two. That distribution is the same for all
//! symmetric distributions of the values. The logarithm of a ratio of two like measurements has a
//! symmetric distribution (M. Hollander, D. Wolfe, E. Chicken, *Nonparametric Statistical Methods*, 3rd
//! ed., sections 3.2 and 3.3).

use super::estimate::{Interval, median};

/// The largest number of values that [`estimate`] accepts, which is more than the blocks of any
/// experiment: 200 values have about 20,000 averages.
pub const MAX_VALUES: usize = 200;

/// Returns the estimate, and the interval that misses the true centre with a probability of at most
/// `error`. The interval is `None` if there are too few values for one. Returns `None` if there is no
/// value, or more than [`MAX_VALUES`].
pub fn estimate(values: &[f64], error: f64) -> Option<(f64, Option<Interval>)> {
    if values.len() > MAX_VALUES {
        return None;
    }
    let mut averages: Vec<f64> = (0..values.len())
        .flat_map(|i| (i..values.len()).map(move |j| (values[i] + values[j]) / 2.0))
        .collect();
    averages.sort_by(f64::total_cmp);
    let centre = median(&averages)?;
    // The ends of the interval are the `beyond`-th smallest and the `beyond`-th largest average: the
    // probability that the statistic is smaller than `beyond` is at most `error` / 2.
    let beyond = quantile(values.len(), error / 2.0);
    let interval = beyond
        .checked_sub(1)
        .map(|last| Interval { low: averages[last], high: averages[averages.len() - 1 - last] });
    Some((centre, interval))
}

/// Returns the largest number c with P(T⁺ < c) ≤ `tail`, where T⁺ is the signed-rank statistic of `n`
/// values; 0 if no positive number satisfies this.
fn quantile(n: usize, tail: f64) -> usize {
    let most = n * (n + 1) / 2;
    // The distribution of the sum of a random subset of the ranks 1 … n, computed by adding one rank
    // after the other.
    let mut probability = vec![0.0; most + 1];
    probability[0] = 1.0;
    for rank in 1..=n {
        for sum in (0..=rank * (rank + 1) / 2).rev() {
            let with = if sum >= rank { probability[sum - rank] } else { 0.0 };
            probability[sum] = (probability[sum] + with) / 2.0;
        }
    }
    let mut below = 0.0;
    for (sum, probability) in probability.iter().enumerate() {
        below += probability;
        if below > tail {
            return sum;
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn critical_values_are_those_of_the_tables() {
        // Wilcoxon's table, two-sided 5 %: the test rejects at T ≤ 0, 8, 52, 264 for n = 6, 10, 20, 40.
        // The end of the interval is the next average.
        for (n, rejected) in [(6, 0), (10, 8), (20, 52), (40, 264)] {
            assert_eq!(quantile(n, 0.025), rejected + 1, "n = {n}");
        }
        assert_eq!(quantile(5, 0.025), 0, "five values have no interval at 95 %");
    }

    #[test]
    fn six_values_give_their_range() {
        let values = [1.0, 1.2, 1.1, 1.4, 0.9, 1.3];
        let (centre, interval) = estimate(&values, 0.05).unwrap();
        assert_eq!(interval, Some(Interval { low: 0.9, high: 1.4 }));
        assert!((centre - 1.15).abs() < 1e-9);
        assert_eq!(estimate(&values[..5], 0.05).unwrap().1, None);
        assert!(estimate(&[], 0.05).is_none());
    }

    #[test]
    fn an_outlier_moves_it_little() {
        let mut values: Vec<f64> = (0..20).map(|i| 1.0 + f64::from(i) / 100.0).collect();
        let before = estimate(&values, 0.05).unwrap().0;
        values[19] = 1000.0;
        let (after, interval) = estimate(&values, 0.05).unwrap();
        assert!((after - before).abs() < 0.02, "{before} {after}");
        assert!(interval.unwrap().high < 1.3);
    }

    /// Compares with the definition: all 2ⁿ combinations of signs are equally likely.
    #[test]
    fn the_distribution_is_that_of_all_signs() {
        let n = 8;
        let sums: Vec<usize> = (0..1 << n)
            .map(|signs: usize| (1..=n).filter(|rank| signs >> (rank - 1) & 1 == 1).sum())
            .collect();
        for c in 1..12 {
            let below = sums.iter().filter(|&&sum| sum < c).count() as f64 / 256.0;
            assert!(quantile(n, below) >= c && quantile(n, below - 1e-9) < c, "{c}");
        }
    }
}

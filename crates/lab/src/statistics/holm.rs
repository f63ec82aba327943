//! Holm's step-down procedure, with which several claims share one error.
//!
//! S. Holm, *A simple sequentially rejective multiple test procedure*, Scandinavian Journal of
//! Statistics 6 (1979). The probability that at least one claim is decided wrongly is at most the error
//! of a single claim, however the claims depend on each other.

/// Returns the adjusted p-values, in the order of `p`. At an error e for all claims together, a claim is
/// decided if its adjusted value is at most e.
pub fn adjust(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut most = 0.0f64;
    for (rank, &index) in order.iter().enumerate() {
        most = most.max(((p.len() - rank) as f64 * p[index]).min(1.0));
        adjusted[index] = most;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::adjust;

    #[test]
    fn the_smallest_pays_for_all() {
        let adjusted = adjust(&[0.01, 0.04, 0.03, 0.005]);
        for (value, expected) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((value - expected).abs() < 1e-12, "{adjusted:?}");
        }
        assert_eq!(adjust(&[0.9, 0.8]), [1.0, 1.0]);
        assert!(adjust(&[]).is_empty());
    }
}

//! The goal of the mechanisms: taking many signals at a time must be cheaper.

use super::run::{Figure, Results};
use crate::goal::Goal;
use pollux_lab::statistics::{Compare, paired};

/// Signals as phhttpd took them, one per call.
pub(crate) const ONE: &str = "rtsig:dequeue=one";
/// Many signals per call, as the paper's `sigtimedwait4()` would take them (Provos and Lever 2000, §6).
const BATCH: &str = "rtsig";
/// The largest ratio of the cost of an event in a batch to the cost of an event taken alone.
const LIMIT: f64 = 0.8;

/// Returns one goal for each number of ready connections that has figures. The ratios are made within a
/// round, as everywhere.
pub(crate) fn goals(results: &Results) -> Vec<Goal> {
    let of = |name: &'static str| {
        results.figures.iter().filter(move |f| f.case == "all-ready" && f.name == name)
    };
    let goal = |batch: &Figure| {
        let one = of(ONE).find(|one| one.n == batch.n)?;
        let pairs = batch.samples_ns.iter().zip(&one.samples_ns);
        let ratio = paired(pairs.map(|(&a, &b)| (Some(a), Some(b))), Compare::Ratio)?;
        let statement = format!("an event of {} that are all ready, {BATCH} / {ONE}", batch.n);
        Some(Goal::at_most(statement, LIMIT, ratio, ""))
    };
    of(BATCH).filter_map(goal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goal::Verdict;
    use pollux_lab::statistics::estimate;

    fn figure(case: &'static str, n: usize, name: &str, samples_ns: [f64; 6]) -> Figure {
        let ns = estimate(&samples_ns).expect("samples");
        let name = name.to_owned();
        Figure { case, n, changed: None, name, samples_ns: samples_ns.into(), ns, ratio: None }
    }

    #[test]
    fn a_batch_is_compared_with_one_at_a_time_of_the_same_round() {
        // The machine is slower from round to round; a batch always costs half.
        let one = [100.0, 200.0, 300.0, 400.0, 500.0, 600.0];
        let half = one.map(|ns| ns / 2.0);
        let results = Results::of(vec![
            figure("wait", 10, BATCH, half),
            figure("wait", 10, ONE, one),
            figure("all-ready", 10, BATCH, half),
            figure("all-ready", 10, ONE, one),
            figure("all-ready", 100, BATCH, one),
            figure("all-ready", 100, ONE, one),
            figure("all-ready", 1000, BATCH, half),
        ]);
        let goals = goals(&results);
        let [ten, hundred] = &goals[..] else { panic!("{goals:?}") };
        assert!((ten.figure.value - 0.5).abs() < 1e-9 && ten.verdict == Verdict::Met, "{ten:?}");
        assert_eq!(hundred.verdict, Verdict::Missed, "{hundred:?}");
    }
}

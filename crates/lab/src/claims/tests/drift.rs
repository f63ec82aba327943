//! Verdicts on servers that were not steady while they were measured.

use super::*;
use crate::claims::drift::halves;
use serde_json::json;

/// Replies per second of `one` and `two`, of 20 offered requests per second; and the change of the
/// replies of `one` from the first half of its window to the second, block by block.
struct DriftCase<'a> {
    answered: [f64; 2],
    change: &'a dyn Fn(u32) -> f64,
}

/// Returns five intervals of warm-up, with hardly any replies, and ten measured intervals.
fn series(replies: f64, change: f64) -> serde_json::Value {
    let first = 2.0 / (1.0 + change);
    let at = |tenth: i32| match tenth {
        ..0 => 1.0,
        0..5 => replies * first,
        _ => replies * first * change,
    };
    let starts: Vec<f64> = (-5..10).map(|tenth| f64::from(tenth) / 10.0).collect();
    let replies: Vec<f64> = (-5..10).map(at).collect();
    json!({ "series": { "interval_s": 0.1, "start_s": starts, "replies": replies } })
}

/// Judges both servers at the higher rate with idle connections, in the quick form, whose warm-up has
/// not been tested.
fn judged(holds: &str, made: &DriftCase<'_>) -> ClaimOutcome {
    let answered = |variant: &str| made.answered[usize::from(variant == "two")];
    let mut outcome = outcome(&ratio_claim(holds, RIVALS), |variant, _, _, block| {
        Some(answered(variant) * (1.0 + alternating(0.002, block)))
    });
    outcome.quick = true;
    for run in &mut outcome.runs {
        let is_one = run.cell.variant == "one";
        let change = if is_one { (made.change)(run.block) } else { 1.0 };
        run.raw.load = series(100.0, change * (1.0 + alternating(0.01, run.block)));
    }
    concluded(outcome)
}

/// The replies if `one` answers 11 of 20 and `two` answers 10.
const AHEAD: [f64; 2] = [11.0, 10.0];

#[test]
fn what_is_steady_is_judged_as_it_stands() {
    let claim = judged("{ above = 1.0 }", &DriftCase { answered: AHEAD, change: &|_| 1.0 });
    assert_eq!((claim.verdict, claim.remark()), (Verdict::Holds, None));
    // A small change is not a drift: no server is perfectly even.
    let claim = judged("{ above = 1.0 }", &DriftCase { answered: AHEAD, change: &|_| 0.97 });
    assert_eq!((claim.verdict, claim.remark()), (Verdict::Holds, None));
}

/// The queue of `one` fills in its window: `one` has a tenth more than `two` on average, and much less
/// at the end.
#[test]
fn what_falls_by_more_than_it_is_ahead_decides_nothing() {
    let claim = judged("{ above = 1.0 }", &DriftCase { answered: AHEAD, change: &|_| 0.7 });
    assert_eq!(claim.verdict, Verdict::Undecided);
    assert_eq!(
        claim.remark().unwrap(),
        "one was not steady at this point: the second half of a window had 30 % fewer replies than the first; \
         if this continues, the result may cross the threshold"
    );
    assert!(crate::claims::is_settled(&claim, 1), "more blocks would fall as far");
    // A claim of the opposite is not decided by these data either.
    let claim = judged("{ below = 1.0 }", &DriftCase { answered: AHEAD, change: &|_| 0.7 });
    assert_eq!(claim.verdict, Verdict::Undecided);
    let claim =
        judged("{ within = [1.05, 1.2] }", &DriftCase { answered: AHEAD, change: &|_| 1.2 });
    assert_eq!(claim.verdict, Verdict::Undecided);
}

#[test]
fn a_drift_smaller_than_the_lead_is_reported_and_judged() {
    for (holds, change, verdict) in [
        // 1.1 · 0.9 is still above 0.9.
        ("{ above = 0.9 }", 0.9, Verdict::Holds),
        ("{ above = 1.2 }", 0.7, Verdict::DoesNotHold),
        // A falling figure makes it even more certain that the ratio is below the threshold.
        ("{ below = 1.2 }", 0.7, Verdict::Holds),
        ("{ above = 1.0 }", 1.5, Verdict::Holds),
    ] {
        let claim = judged(holds, &DriftCase { answered: AHEAD, change: &|_| change });
        assert_eq!(claim.verdict, verdict, "{holds}, {change}");
        let remark = claim.remark().unwrap();
        assert!(
            remark.contains("if this continued by as much again, the result would not cross"),
            "{remark}"
        );
    }
}

/// Noise is not a drift: the blocks differ from each other by more than their mean differs from 1.
#[test]
fn what_falls_in_some_blocks_and_rises_in_others_is_noise() {
    let change = |block: u32| if block.is_multiple_of(3) { 1.3 } else { 0.8 };
    let claim = judged("{ above = 1.0 }", &DriftCase { answered: AHEAD, change: &change });
    assert_eq!((claim.verdict, claim.remark()), (Verdict::Holds, None));
}

/// A server that answers everything is not at its limit: its reply rate equals the request rate.
#[test]
fn what_changes_below_the_limit_is_the_load() {
    let made = DriftCase { answered: [20.0, 10.0], change: &|_| 0.5 };
    let claim = judged("{ above = 1.5 }", &made);
    assert_eq!((claim.verdict, claim.remark()), (Verdict::Holds, None));
}

#[test]
fn a_window_of_three_intervals_has_no_halves() {
    let mut raw = crate::measure::Raw { load: series(100.0, 0.5), ..Default::default() };
    assert_eq!(raw.measured_replies().unwrap().len(), 10);
    let starts: Vec<f64> = (-12..3).map(|tenth| f64::from(tenth) / 10.0).collect();
    raw.load["series"]["start_s"] = json!(starts);
    assert!(halves(&raw).is_none());
}

/// A share of errors, and the difference of two such shares: requests that are no longer answered fail.
#[test]
fn a_share_of_errors_rises_as_replies_fall() {
    let verdict = |limit: f64, compare: &str, change: f64| {
        let b = match compare {
            "difference" => "\nb = { variant = \"two\", at = { idle = \"max\", rate = \"max\" } }",
            _ => "",
        };
        let claim = format!(
            "compare = \"{compare}\"\neach = [\"one\"]\nholds = {{ below = {limit} }}\n\
             a = {{ at = {{ idle = \"max\", rate = \"max\" }} }}{b}"
        );
        let mut outcome = outcome_of(6, &claim, "error_share", |variant, _, _, block| {
            let share = if variant == "one" { 0.4 } else { 0.1 };
            Some(share + alternating(0.002, block))
        });
        for run in &mut outcome.runs {
            run.metrics.insert("throughput_rps".into(), 12.0);
            let change = if run.cell.variant == "one" { change } else { 1.0 };
            run.raw.load = series(100.0, change * (1.0 + alternating(0.01, run.block)));
        }
        concluded(outcome).verdict
    };
    // 1 - 0.6 · 0.8 is 0.52.
    for (compare, less) in [("value", 0.0), ("difference", 0.1)] {
        assert_eq!(verdict(0.5 - less, compare, 1.0), Verdict::Holds, "{compare}");
        assert_eq!(verdict(0.5 - less, compare, 0.8), Verdict::Undecided, "{compare}");
        assert_eq!(verdict(0.55 - less, compare, 0.8), Verdict::Holds, "{compare}");
        assert_eq!(verdict(0.35 - less, compare, 0.8), Verdict::DoesNotHold, "{compare}");
        // The server recovers: 1 - 0.6 · 1.2 is 0.28.
        assert_eq!(verdict(0.35 - less, compare, 1.2), Verdict::Undecided, "{compare}");
    }
}

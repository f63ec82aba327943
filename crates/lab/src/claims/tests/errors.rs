//! Cases in which a claim might be decided too easily: one bad run, equal blocks, an additional look,
//! lost blocks.

use super::*;
use crate::result::Look;

/// Regression test: one run in which the generator was disturbed once removed the limit for all blocks.
#[test]
fn one_bad_run_is_not_the_limit_of_a_server() {
    let judged = |bad_blocks: u32| {
        let claim = &ratio_claim("{ below = 1.1 }", RIVALS);
        let answered = |variant: &str, block: u32| match variant {
            "one" if block < bad_blocks => 0.97,
            _ => 1.0,
        };
        let measured =
            |variant: &str, _: f64, rate: f64, block: u32| Some(rate * answered(variant, block));
        concluded(outcome_of(10, claim, "throughput_rps", measured))
    };
    for bad_blocks in [0, 1, 5] {
        let claim = judged(bad_blocks);
        assert_eq!(claim.verdict, Verdict::Undecided, "{bad_blocks}");
        assert!(claim.parts[0].note.as_ref().unwrap().contains("answered all"), "{claim:?}");
    }
    assert_eq!(judged(6).verdict, Verdict::Holds, "it was driven to its limit in most blocks");
}

/// Regression test: 37 of 38 bursts were once taken for a server's limit, because the last burst came at
/// the end of the window.
#[test]
fn a_burst_on_its_way_is_not_the_limit_of_a_server() {
    let judged = |burst: f64| {
        let claim = &ratio_claim("{ below = 0.5 }", RIVALS);
        let mut outcome = outcome_of(6, claim, "throughput_rps", |_, _, rate, _| Some(0.75 * rate));
        outcome.experiment.load.insert("burst".into(), Value::Number(burst));
        concluded(outcome)
    };
    let claim = judged(5.0);
    assert_eq!(claim.verdict, Verdict::Undecided);
    assert!(claim.parts[0].note.as_ref().unwrap().contains("answered all"), "{claim:?}");
    assert_eq!(judged(4.0).verdict, Verdict::DoesNotHold, "more than a burst is missing");
}

/// An error that moves from rate to rate was once read only where it did not occur. A claim about every
/// rate is judged at every rate.
#[test]
fn a_claim_about_every_rate_sees_each_of_them() {
    let judged = |take: &str, per_run: f64, failed: &dyn Fn(f64, u32) -> f64| {
        let claim = format!(
            "compare = \"value\"\neach = [\"one\"]\nholds = {{ below = 0.0001 }}\n\
             a = {{ at = {{ idle = \"max\" }}, over = [\"rate\"], take = \"{take}\" }}"
        );
        let mut outcome =
            outcome_of(6, &claim, "error_share", |_, _, rate, block| Some(failed(rate, block)));
        for run in &mut outcome.runs {
            let hits = run.metrics["error_share"] * per_run;
            run.metrics.insert("requests_scheduled".into(), per_run);
            run.metrics.insert("requests_failed".into(), hits);
        }
        concluded(outcome)
    };
    let wandering = |rate: f64, block: u32| {
        let at = if [2, 3].contains(&block) { 20.0 } else { 10.0 };
        if rate == at { 0.05 } else { 0.0 }
    };
    assert_eq!(judged("max", 20_000.0, &wandering).verdict, Verdict::Holds, "the fault");
    let claim = judged("each", 20_000.0, &wandering);
    assert_ne!(claim.verdict, Verdict::Holds, "{claim:?}");
    assert!(claim.value.unwrap() > 0.01, "{claim:?}");

    let steady =
        |rate: f64, block: u32| if rate == 20.0 { 0.05 + alternating(0.01, block) } else { 0.0 };
    let claim = judged("each", 20_000.0, &steady);
    assert_eq!(claim.verdict, Verdict::DoesNotHold);
    assert_eq!(claim.parts[0].note.as_deref(), Some("at idle 100, rate 20"));
    assert!((claim.value.unwrap() - 0.05).abs() < 1e-4, "of that rate: {claim:?}");
    let once = |rate: f64, block: u32| if rate == 20.0 && block == 4 { 0.05 } else { 0.0 };
    assert_eq!(judged("each", 20_000.0, &once).verdict, Verdict::Undecided);
    // 24,000 requests at one rate are too few for a statement about that rate; 48,000 in total are enough.
    let none = |_: f64, _: u32| 0.0;
    assert_eq!(judged("each", 4_000.0, &none).verdict, Verdict::Holds);
    assert_eq!(judged("each", 2_000.0, &none).verdict, Verdict::Undecided);
}

/// If three variants are at the threshold, one of them lies below it, by more than the allowed error, in
/// 7 of 100 cases.
#[test]
fn one_of_several_fails_at_a_share_of_the_error() {
    let judged = |each: &str, of_one: f64| {
        let claim = ratio_claim_of(each, "{ above = 1.0 }", IDLE_OR_NOT);
        concluded(outcome_of(6, &claim, "latency_p50_us", |variant, idle, _, block| {
            let centre = if variant == "one" { of_one } else { 0.0 };
            Some(if idle > 0.0 { (centre + alternating(0.1, block)).exp() } else { 1.0 })
        }))
    };
    let (alone, both) = ("[\"one\"]", "[\"one\", \"two\"]");
    let near = judged(alone, -0.134);
    assert_eq!(near.verdict, Verdict::DoesNotHold);
    assert!((0.026..0.049).contains(&near.p.unwrap()), "{near:?}");
    let one_of_two = judged(both, -0.134);
    assert_eq!(one_of_two.verdict, Verdict::Undecided, "{one_of_two:?}");
    assert!(one_of_two.p.unwrap() > ERROR);
    // The p-value of a variant is multiplied by the number of variants, once.
    let (far, one_of_two) = (judged(alone, -0.3), judged(both, -0.3));
    assert_eq!((far.verdict, one_of_two.verdict), (Verdict::DoesNotHold, Verdict::DoesNotHold));
    let ratio = one_of_two.p.unwrap() / far.p.unwrap();
    assert!((ratio - 2.0).abs() < 1e-9, "{ratio}: {one_of_two:?}");
}

/// Six of six windows have a second without replies in 5 of 100 cases even if only six of ten windows
/// have such a second.
#[test]
fn equal_blocks_are_no_certainty() {
    let judged = |blocks: u32, planned: u32| {
        let claim = "compare = \"value\"\neach = [\"one\"]\nholds = { below = 1.0 }\n\
            a = { at = { idle = \"max\", rate = \"max\" } }";
        let mut outcome = outcome_of(blocks, claim, "reply_rate_min_rps", |_, _, _, _| Some(0.0));
        outcome.experiment.budget.blocks = planned;
        outcome.looks = vec![Look { blocks, is_last: blocks == planned }];
        concluded(outcome)
    };
    let first_look = judged(6, 40);
    assert_eq!(first_look.verdict, Verdict::Undecided, "{first_look:?}");
    assert_eq!(judged(24, 40).verdict, Verdict::Holds);
    let all = judged(6, 6);
    assert_eq!((all.verdict, all.p), (Verdict::Holds, Some(2.0 / 64.0)));
}

/// A user who interrupts a run has seen its results and may stop because of them; a time limit cannot.
#[test]
fn an_interrupt_spends_no_more_than_a_look() {
    let claim = &ratio_claim("{ above = 1.0 }", IDLE_OR_NOT);
    let measured = |blocks: u32, later: f64| {
        let mut outcome = outcome_of(blocks, claim, "latency_p50_us", |_, idle, _, block| {
            let centre = if block < 10 { 0.0858 } else { later };
            Some(if idle > 0.0 { (centre + alternating(0.1, block)).exp() } else { 1.0 })
        });
        outcome.experiment.budget.blocks = 40;
        outcome
    };
    let judged = |mut outcome: Outcome, interrupted: bool| {
        outcome.interrupted = interrupted;
        outcome.conclude();
        (outcome.claims.remove(0), outcome.looks)
    };
    let (by_hand, looks) = judged(measured(10, 0.0), true);
    assert_eq!(by_hand.verdict, Verdict::Undecided, "{by_hand:?}");
    assert_eq!(looks, [Look { blocks: 10, is_last: false }]);
    let (by_clock, looks) = judged(measured(10, 0.0), false);
    assert_eq!(by_clock.verdict, Verdict::Holds, "{by_clock:?}");
    assert_eq!(looks, [Look { blocks: 10, is_last: true }]);

    // A run that continues after the time limit ended it: the verdict of that time stays, whatever is
    // measured later.
    let mut resumed = measured(20, -0.4);
    resumed.looks = looks;
    let (again, looks) = judged(resumed, false);
    assert_eq!((again.verdict, again.value), (Verdict::Holds, by_clock.value));
    assert!(again.parts[0].note.as_ref().unwrap().contains("first 10 blocks"), "{again:?}");
    assert_eq!(looks.len(), 2);
    // A run that continues after an interrupt: the next look takes the interrupt into account.
    let mut resumed = measured(20, 0.0858);
    let (fresh, _) = judged(resumed.clone(), true);
    resumed.looks = vec![Look { blocks: 19, is_last: false }];
    let (resumed, _) = judged(resumed, true);
    assert!(resumed.p.unwrap() > fresh.p.unwrap(), "{:?} {:?}", resumed.p, fresh.p);
}

/// If the server crashes in most blocks, only the blocks that it survived remain.
#[test]
fn lost_blocks_are_reported_and_bounded() {
    let claim = &ratio_claim("{ below = 0.5 }", IDLE_OR_NOT);
    let measured = |blocks: u32, lost: u32| {
        outcome_of(blocks, claim, "latency_p50_us", |_, idle, _, block| {
            let a = (block >= lost).then_some(0.4 + alternating(0.01, block));
            if idle > 0.0 { a } else { Some(1.0) }
        })
    };
    let part = |outcome: Outcome| {
        let part = concluded(outcome).parts.remove(0);
        (part.verdict, part.note)
    };
    assert_eq!(part(measured(20, 0)), (Verdict::Holds, None));
    let note = |blocks| Some(format!("{blocks} of 20 blocks lack a side: it would not"));
    assert_eq!(part(measured(20, 4)), (Verdict::Holds, note(4)));
    assert_eq!(part(measured(20, 5)), (Verdict::Undecided, note(5)));
    assert_eq!(part(measured(20, 14)), (Verdict::Undecided, note(14)));
    // A time limit or an interrupt ends a block independently of its figures.
    let mut cut = measured(7, 0);
    cut.runs.retain(|run| run.block < 6 || run.cell.point["idle"] == Value::Number(0.0));
    assert_eq!(part(cut), (Verdict::Holds, None));
}

#[test]
fn a_ratio_to_nothing_is_not_left_out() {
    let judged = |holds: &str, zeros: u32| {
        let claim = ratio_claim(holds, IDLE_OR_NOT);
        concluded(outcome_of(10, &claim, "latency_p50_us", |_, idle, _, block| {
            let b = if block < zeros { 0.0 } else { 1.0 };
            Some(if idle > 0.0 { 0.4 + alternating(0.01, block) } else { b })
        }))
    };
    let below = "{ below = 0.5 }";
    assert_eq!(judged(below, 0).verdict, Verdict::Holds);
    let claim = judged(below, 4);
    assert_eq!((claim.verdict, claim.bound), (Verdict::Undecided, Some(Bound::AtLeast)));
    assert!(claim.parts[0].note.as_ref().unwrap().contains("in 4 of 10 blocks"), "{claim:?}");
    assert_eq!(judged(below, 9).verdict, Verdict::DoesNotHold);
    assert_eq!(judged("{ above = 0.5 }", 9).verdict, Verdict::Holds);
}

/// In a window of two seconds, the replies that arrive shortly after its end are more than one in fifty.
#[test]
fn a_server_that_answers_all_a_little_later_is_not_at_its_limit() {
    let claim = &ratio_claim("{ within = [0.9, 1.1] }", RIVALS);
    let judged = |completed: f64, busy: f64| {
        let mut outcome = outcome(claim, |_, _, rate, _| Some(0.97 * rate));
        for run in &mut outcome.runs {
            run.metrics.insert("completed_share".into(), completed);
            run.metrics.insert(limit::BUSY.into(), busy);
        }
        concluded(outcome).verdict
    };
    assert_eq!(judged(1.0, 0.2), Verdict::Undecided, "it answered all that came");
    // Late requests are answered when no more requests arrive; failed requests never are.
    assert_eq!(judged(1.0, 0.95), Verdict::Holds);
    // A dropped SYN is sent again after a second, in which the server may be idle.
    assert_eq!(judged(1.0, 0.75), Verdict::Holds);
    assert_eq!(judged(0.97, 0.2), Verdict::Holds);
}

/// A negative difference is no base for a ratio. Regression test: -300 to 2 was once less than every
/// limit.
#[test]
fn what_costs_less_than_another_is_no_base_of_a_ratio() {
    let judged = |holds: &str, many: f64, few: f64, busy: f64| {
        let claim = format!(
            "compare = \"ratio\"\neach = [\"one\"]\nholds = {holds}\n\
             a = {{ minus = \"two\", at = {{ idle = \"max\", rate = \"max\" }} }}\n\
             b = {{ minus = \"two\", at = {{ idle = \"min\", rate = \"max\" }} }}"
        );
        let mut outcome = outcome_of(10, &claim, limit::COST, |variant, idle, _, block| {
            let more = if idle > 0.0 { many } else { few } * (1.0 + alternating(0.01, block));
            Some(100.0 + if variant == "one" { more } else { 0.0 })
        });
        for run in &mut outcome.runs {
            let is_taken_off =
                run.cell.variant == "two" && run.cell.point["idle"] != Value::Number(0.0);
            run.metrics.insert(limit::BUSY.into(), if is_taken_off { busy } else { 0.3 });
        }
        let claim = concluded(outcome);
        (claim.verdict, claim.parts[0].note.clone().unwrap_or_default())
    };
    let (most, least) = ("{ below = 1.25 }", "{ above = 0.8 }");
    assert_eq!(judged(most, 20.0, 20.0, 0.3).0, Verdict::Holds);
    assert_eq!(judged(least, 20.0, 20.0, 0.3).0, Verdict::Holds);
    // A positive difference divided by a negative one.
    let (verdict, note) = judged(most, 30.0, -2.0, 0.3);
    assert_eq!(verdict, Verdict::Undecided, "{note}");
    // A negative difference divided by a negative one.
    for holds in [most, least] {
        let (verdict, note) = judged(holds, -10.0, -10.0, 0.3);
        assert_eq!(verdict, Verdict::Undecided, "{note}");
        assert!(note.contains("no ratio"), "{note}");
    }
    // The subtracted cost may be higher than measured, and the rest of side a lower.
    let (verdict, note) = judged(least, 20.0, 20.0, 0.99);
    assert_eq!(verdict, Verdict::Undecided);
    assert!(note.contains("two had no idle CPU"), "{note}");
    assert_eq!(judged(most, 20.0, 20.0, 0.99).0, Verdict::Holds);
}

/// Regression test: the outlook once was the number of blocks that a single test would need, at which
/// the plan has no look; and once it was always one more.
#[test]
fn the_blocks_that_would_decide_are_those_of_a_look() {
    let claim = &ratio_claim("{ above = 1.0 }", IDLE_OR_NOT);
    let part = |mean: f64, made: u32, planned: u32, interrupted: bool| {
        let mut outcome = outcome_of(made, claim, "latency_p50_us", |_, idle, _, block| {
            Some(if idle > 0.0 { (mean + alternating(0.1, block)).exp() } else { 1.0 })
        });
        (outcome.experiment.budget.blocks, outcome.interrupted) = (planned, interrupted);
        concluded(outcome).parts.remove(0)
    };
    let early = part(0.08, 10, 100, true);
    assert_eq!((early.verdict, early.outlook), (Verdict::Undecided, Some(Outlook::Blocks(40))));
    assert_eq!(part(0.08, 24, 100, true).outlook, Some(Outlook::Blocks(40)));
    assert_eq!(part(0.08, 40, 100, true).verdict, Verdict::Holds);
    // At the end of its own plan: the number of blocks of another plan.
    let Some(Outlook::Blocks(blocks)) = part(0.06, 10, 10, false).outlook else {
        panic!("no outlook")
    };
    assert!((24..=40).contains(&blocks), "{blocks}");
    let blocks = blocks as u32;
    assert_eq!(part(0.06, blocks, blocks, false).verdict, Verdict::Holds);
}

/// Regression test: the figure of another variant was once shown beside the verdict.
#[test]
fn the_figure_is_that_of_the_part_that_fails() {
    let claim = &ratio_claim_of("[\"one\", \"two\"]", "{ below = 2.0 }", IDLE_OR_NOT);
    let claim = concluded(outcome_of(10, claim, "latency_p50_us", |variant, idle, _, block| {
        let (size, noise) = if variant == "one" { (2.1, 0.001) } else { (2.2, 1.5) };
        Some(if idle > 0.0 { size * alternating(noise, block).exp() } else { 1.0 })
    }));
    assert_eq!(claim.verdict, Verdict::DoesNotHold);
    assert!((claim.value.unwrap() - 2.1).abs() < 1e-3, "{claim:?}");
    assert_eq!(claim.deciding().unwrap().variant, "one");
}

/// A verdict that depends on a limit of connections: the claim holds with 64 connections at once and not
/// without a limit.
#[test]
fn operating_points_that_disagree_make_a_claim_depend() {
    let judged = |many: f64| {
        let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { below = 0.6 }\noperating-points = \"idle\"\n\
            a = { at = { rate = \"min\" } }\nb = { variant = \"two\", at = { rate = \"min\" } }";
        concluded(outcome_of(8, claim, "latency_p50_us", |variant, idle, _, block| {
            let noise = 1.0 + alternating(0.01, block);
            Some(match (variant, idle > 0.0) {
                ("one", true) => many * noise,
                ("one", false) => 0.2 * noise,
                _ => 1.0,
            })
        }))
    };
    let claim = judged(0.97);
    assert_eq!(claim.verdict, Verdict::Depends, "{claim:?}");
    let remark = claim.remark().unwrap();
    assert!(remark.contains("does not hold (0.970") && remark.contains("holds (0.200"), "{remark}");
    assert_eq!(claim.measured().unwrap(), "0.200 to 0.970", "one figure would hide the other");
    assert_eq!(judged(0.3).verdict, Verdict::Holds);
}

/// Regression test: a point at which a claim is open once made the verdict *depends* not significant, although
/// the claim surely holds at another point, and surely does not hold at a third one.
#[test]
fn an_open_point_does_not_make_two_others_less_certain() {
    use Verdict::{Depends, DoesNotHold, Holds, Undecided};
    let near = |p: Option<f64>, expected: f64| (p.unwrap() - expected).abs() < 1e-12;
    let points = [
        (Holds, Some(0.004)),
        (Holds, Some(0.0001)),
        (DoesNotHold, Some(0.001)),
        (Undecided, Some(1.0)),
    ];
    assert!(near(p_of_points(Depends, &points), 0.004), "the less certain one, found among four");
    assert!(near(p_of_points(Undecided, &points), 1.0));
    let unknown = [points[0], points[2], (Verdict::Seen, None)];
    assert!(near(p_of_points(Depends, &unknown), 0.012));
    assert_eq!(p_of_points(Verdict::Seen, &unknown), None);
    assert!(near(p_of_points(Holds, &points[..2]), 0.004), "it holds at both");
    let failed = [(DoesNotHold, Some(0.02)), (DoesNotHold, Some(0.001))];
    assert!(near(p_of_points(DoesNotHold, &failed), 0.002), "it fails at one of two");
    assert!(near(p_of_points(DoesNotHold, &failed[..1]), 0.02), "there is nothing to choose");
}

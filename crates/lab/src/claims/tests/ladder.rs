//! The best of several rates, which lies between two of them.

use super::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::cell::RefCell;

/// The best reply rates of both variants.
pub(super) const BESTS: &str = "a = { at = { idle = \"max\" }, over = [\"rate\"], take = \"max\" }\n\
    b = { variant = \"two\", at = { idle = \"max\" }, over = [\"rate\"], take = \"max\" }";

/// Returns the verdict on a claim about two servers that answer as many requests of each rate as
/// `answered` returns.
fn climbed(claim: &str, rates: &[f64], answered: impl Fn(&str, f64, u32) -> f64) -> ClaimOutcome {
    climbed_with_gaps(claim, rates, |variant, rate, block| Some(answered(variant, rate, block)))
}

/// Does the same where some runs are not valid.
fn climbed_with_gaps(
    claim: &str,
    rates: &[f64],
    answered: impl Fn(&str, f64, u32) -> Option<f64>,
) -> ClaimOutcome {
    let mut outcome = outcome(claim, |_, _, rate, _| Some(rate));
    // The claims of this file read no runs without idle connections.
    outcome.runs.retain(|run| run.cell.point["idle"] == Value::Number(100.0));
    at_rates(&mut outcome, rates, |run, rate| match answered(&run.cell.variant, rate, run.block) {
        Some(answered) => _ = run.metrics.insert("throughput_rps".into(), answered),
        None => run.status = Status::Invalid,
    });
    concluded(outcome)
}

/// Replaces the rates of the outcome by `rates`, with a run at each rate that `measured` completes.
pub(super) fn at_rates(outcome: &mut Outcome, rates: &[f64], measured: impl Fn(&mut Run, f64)) {
    outcome.dimensions[1].values = rates.iter().map(|&rate| Value::Number(rate)).collect();
    let lowest = |run: &Run| run.cell.point["rate"] == Value::Number(10.0);
    let runs: Vec<Run> = outcome.runs.drain(..).filter(lowest).collect();
    for (run, &rate) in runs.iter().flat_map(|run| rates.iter().map(move |rate| (run, rate))) {
        let mut run = run.clone();
        measured(&mut run, rate);
        run.cell.point.insert("rate".into(), Value::Number(rate));
        outcome.runs.push(run);
    }
}

/// Regression test: the best of several rates was read where all requests were answered, and the next
/// rate was far away. Two servers with any limits between these two rates then had the same best rate:
/// the offered one.
#[test]
fn a_step_between_two_rates_is_not_the_limit_of_a_server() {
    let judged = |holds: &str, rates: &[f64], one: f64, two: f64| {
        climbed(&ratio_claim(holds, BESTS), rates, |variant, rate, _| {
            let limit = if variant == "one" { one } else { two };
            if rate <= limit { rate } else { 0.75 * limit }
        })
    };
    let (equal, above, below) = ("{ within = [0.9, 1.1] }", "{ above = 1.0 }", "{ below = 0.9 }");
    for holds in [equal, above, below, "{ above = 0.9 }"] {
        for (one, two) in [(10.0, 10.0), (10.0, 12.9), (12.9, 10.0)] {
            let claim = judged(holds, &[10.0, 13.0], one, two);
            assert_eq!(claim.value, Some(1.0), "a step");
            assert_eq!(claim.verdict, Verdict::Undecided, "{holds} {one} {two}");
            let part = &claim.parts[0];
            let note = part.note.as_ref().unwrap();
            assert!(note.contains("answered all requests at 10.0 a second"), "{note}");
            assert!(note.contains("not all at 13.0"), "{note}");
            assert_eq!(part.outlook, None, "more blocks would not decide it");
        }
        // The same if both servers were best at an overload that had already reduced their reply rates.
        for rates in [&[20.0][..], &[20.0, 30.0]] {
            let claim = judged(holds, rates, 12.0, 12.0);
            assert_eq!(claim.value, Some(1.0), "{rates:?}");
            assert_eq!(claim.verdict, Verdict::Undecided, "{holds} {rates:?}");
            let note = claim.parts[0].note.as_ref().unwrap();
            assert!(note.contains("did not answer all of them"), "{note}");
        }
    }
    // A finer ladder decides those claims for which its steps are fine enough.
    let fine = [10.0, 10.5];
    assert_eq!(judged(equal, &fine, 10.0, 10.4).verdict, Verdict::Holds);
    assert_eq!(judged(below, &fine, 10.0, 10.4).verdict, Verdict::DoesNotHold);
    assert_eq!(judged("{ above = 0.9 }", &fine, 10.0, 10.4).verdict, Verdict::Holds);
    assert_eq!(judged(above, &fine, 10.0, 10.4).verdict, Verdict::Undecided);
    // A coarse ladder is enough for limits that are far from each other.
    assert_eq!(judged(below, &[5.0, 6.0, 10.0, 13.0], 5.0, 10.0).verdict, Verdict::Holds);
    assert_eq!(judged(above, &[5.0, 6.0, 10.0, 13.0], 10.0, 5.0).verdict, Verdict::Holds);
    assert_eq!(judged(above, &[5.0, 6.0, 10.0, 13.0], 5.0, 10.0).verdict, Verdict::DoesNotHold);
}

/// Regression test: one disturbed run, at a rate with no other valid run, was once taken for the limit
/// of a server that answers all requests.
#[test]
fn a_rate_at_which_few_runs_count_is_nobodys_limit() {
    let claim = ratio_claim("{ above = 1.0 }", BESTS);
    let rates = [10.0, 10.5, 11.0, 20.0];
    // The limit of `one` is 10.7; `two` has no limit. Above 10.0, the only valid runs of `two` are some
    // at 10.5, and these were disturbed.
    let judged = |lost: u32| {
        climbed_with_gaps(&claim, &rates, |variant, rate, block| match variant {
            "one" => Some(if rate <= 10.7 { rate } else { 9.0 }),
            _ if rate <= 10.0 => Some(rate),
            _ => (rate == 10.5 && block >= lost).then_some(0.93 * rate),
        })
    };
    for lost in [2, 5, 6] {
        let claim = judged(lost);
        assert_eq!(claim.verdict, Verdict::Undecided, "{lost}: {claim:?}");
    }
    let note = judged(5).parts[0].note.clone().unwrap();
    assert!(note.contains("too few runs of two at 10.5 a second are valid"), "{note}");
    // If `two` is the slower server, the lost runs do not matter.
    let slow = |lost: u32| {
        climbed_with_gaps(&claim, &rates, |variant, rate, block| match variant {
            "one" => Some(if rate <= 10.7 { rate } else { 9.0 }),
            _ if rate < 20.0 => Some(7.0),
            _ => (block >= lost).then_some(6.0),
        })
    };
    assert_eq!(slow(5).verdict, Verdict::Holds);
}

/// Equal reply rates at two consecutive rates that are too high do not show the limit: the server may
/// have lost something at its limit and continue with less.
#[test]
fn a_level_above_the_limit_is_not_the_limit() {
    let rates = [10.0, 13.0, 16.0, 19.0];
    for (left, holds) in [(0.75, "{ within = [0.9, 1.1] }"), (0.85, "{ above = 0.95 }")] {
        let claim = climbed(&ratio_claim(holds, BESTS), &rates, |variant, rate, _| {
            let limit = if variant == "one" { 10.0 } else { 12.9 };
            if rate <= limit { rate } else { left * limit }
        });
        assert_eq!(claim.verdict, Verdict::Undecided, "{left}: {claim:?}");
    }
}

/// For any rates, limits and costs of overload, no verdict contradicts the truth, and a ladder that is
/// fine enough gives a verdict.
#[test]
fn no_ladder_of_rates_decides_against_the_limits() {
    let mut random = StdRng::seed_from_u64(1);
    let (mut decided, mut fine) = (0, 0);
    for case in 0..80 {
        let is_fine = case % 4 == 0;
        let step: f64 = random.random_range(1.03..if is_fine { 1.06 } else { 1.4 });
        let begin: f64 = random.random_range(if is_fine { 35.0..40.0 } else { 10.0..80.0 });
        let rungs = random.random_range(1..10);
        let rates: Vec<f64> = std::iter::successors(Some(begin), |rate| Some(rate * step))
            .enumerate()
            .take_while(|&(rung, rate)| if is_fine { rate < 90.0 } else { rung < rungs })
            .map(|(_, rate)| rate)
            .collect();
        let limits = [random.random_range(40.0..80.0), random.random_range(40.0..80.0)];
        let losses = [random.random_range(0.0..2.0), random.random_range(0.0..2.0)];
        let truth: f64 = limits[0] / limits[1];
        let threshold = truth * random.random_range(0.8..1.25);
        for (holds, is_true) in [
            (format!("{{ above = {threshold} }}"), truth > threshold),
            (format!("{{ below = {threshold} }}"), truth < threshold),
            (format!("{{ within = [{}, {}] }}", threshold * 0.9, threshold * 1.1), {
                (0.9 * threshold..=1.1 * threshold).contains(&truth)
            }),
        ] {
            let claim = climbed(&ratio_claim(&holds, BESTS), &rates, |variant, rate, _| {
                let of = usize::from(variant == "two");
                if rate <= limits[of] {
                    rate
                } else {
                    limits[of] * (limits[of] / rate).powf(losses[of])
                }
            });
            let wrong = if is_true { Verdict::DoesNotHold } else { Verdict::Holds };
            assert_ne!(claim.verdict, wrong, "{holds} {rates:?} {limits:?} {losses:?}: {claim:?}");
            decided += u32::from(claim.verdict.is_decided());
            let is_far = |end: f64| !(0.93..=1.07).contains(&(truth / end));
            let ends = [threshold, 0.9 * threshold, 1.1 * threshold];
            if is_fine && ends.into_iter().all(is_far) {
                fine += 1;
                assert!(
                    claim.verdict.is_decided(),
                    "{holds} {rates:?} {limits:?} {losses:?}: {claim:?}"
                );
            }
        }
    }
    assert!(decided > 50 && fine > 10, "{decided} were decided, {fine} fine enough to be");
}

/// Noise does not decide either: claims with a threshold just above or below the true value are seldom
/// decided, and claims with a threshold far from it are.
#[test]
fn noise_seldom_decides_what_is_on_the_threshold() {
    let (mut on_it, mut far) = (0, 0);
    for case in 0..60 {
        let random = RefCell::new(StdRng::seed_from_u64(case));
        let draw = |from: f64, to: f64| random.borrow_mut().random_range(from..to);
        let step = draw(1.03, 1.3);
        let rates: Vec<f64> =
            std::iter::successors(Some(draw(35.0, 40.0)), |rate| Some(rate * step))
                .take_while(|&rate| rate < 90.0)
                .collect();
        let limits = [draw(40.0, 80.0), draw(40.0, 80.0)];
        let truth = limits[0] / limits[1];
        let decided = |holds: String| {
            let claim = climbed(&ratio_claim(&holds, BESTS), &rates, |variant, rate, _| {
                let limit = limits[usize::from(variant == "two")] * draw(0.95, 1.05);
                if rate <= limit { rate } else { limit * limit / rate }
            });
            u32::from(claim.verdict.is_decided())
        };
        on_it += decided(format!("{{ above = {truth} }}"));
        far += decided(format!("{{ above = {} }}", 0.6 * truth));
    }
    assert!(on_it <= 6, "{on_it} of 60 were decided");
    assert!(far >= 50, "{far} of 60 were decided");
}

/// Server and generator share one CPU, and the generator uses two thirds of it. If a reply costs one
/// server half as much again, the reply rate changes only by a sixth.
#[test]
fn a_rate_that_is_the_generators_too_is_not_the_servers() {
    let holds = "{ within = [0.8, 1.25] }";
    let judged_of = |sides, cost, is_shared: bool| {
        let claim = ratio_claim(holds, sides);
        let limit = |cost: f64| 1.0 / (2.0 + cost);
        let mut outcome = outcome_of(10, &claim, "throughput_rps", |_, _, _, _| Some(1.0));
        let rates: Vec<f64> = (0..20).map(|step| 0.25 * 1.02f64.powi(step)).collect();
        at_rates(&mut outcome, &rates, |run, rate| {
            let cost = if run.cell.variant == "one" { cost } else { 1.0 };
            let noise = 1.0 + alternating(0.001, run.block);
            let answered = if rate <= limit(cost) { rate } else { 0.6 * limit(cost) };
            run.metrics.insert("throughput_rps".into(), noise * answered);
            run.metrics.insert("replies_per_cpu_second".into(), noise / cost);
        });
        let generator = u32::from(!is_shared);
        outcome.environment.pinned = Some(crate::environment::Cpus { server: 0, generator });
        outcome.environment.receive_cpu = Some(0);
        concluded(outcome)
    };
    let judged = |cost, is_shared| judged_of(BESTS, cost, is_shared);
    assert_eq!(judged(1.0, true).verdict, Verdict::Holds);
    assert_eq!(judged(1.5, false).verdict, Verdict::Holds, "it has a CPU of its own");
    let claim = judged(1.5, true);
    assert_eq!(claim.verdict, Verdict::Undecided, "{claim:?}");
    let note = claim.parts[0].note.as_ref().unwrap();
    assert!(
        note.contains("the generator has a part of that CPU: by what the server alone"),
        "{note}"
    );
    assert!(note.contains("it is 0.667"), "{note}");
    assert_eq!(judged(9.0, true).verdict, Verdict::DoesNotHold, "both say so");
    // The reply rate at a single offered rate above the limit is not the server's own rate either.
    assert_eq!(judged_of(RIVALS, 1.5, true).verdict, Verdict::Undecided);
    assert_eq!(judged_of(RIVALS, 1.5, false).verdict, Verdict::Holds);
}

/// A server that loses one request in a hundred has reached its limit, and one more request per second
/// gains nothing. A ladder of fine steps separates limits that differ by two per cent. At any noise in
/// this test, a claim whose true value lies on the threshold is seldom decided.
#[test]
fn what_lacks_of_one_rate_is_not_found_at_the_next() {
    let rates: Vec<f64> = (0..11).map(|step| 1200.0 * 1.012f64.powi(step)).collect();
    // The further the rate is above the limit, the fewer requests the server answers.
    let answered = |limit: f64, rate: f64| {
        let soft = 0.01 * limit;
        let lacks = soft * (1.0 + ((rate - limit) / soft).exp()).ln();
        rate - 1.2 * lacks
    };
    let best = |limit: f64| {
        (0..2000).map(|at| answered(limit, 1100.0 + 0.15 * f64::from(at))).fold(0.0, f64::max)
    };
    let (mut on_it, mut near) = (0, 0);
    for case in 0..60 {
        let mut random = StdRng::seed_from_u64(case);
        let limits = [1.02, 1.0].map(|more| more * random.random_range(1255.0..1275.0));
        let truth = best(limits[0]) / best(limits[1]);
        // Both servers receive the same arrivals in a block.
        let of_block: Vec<f64> = (0..6).map(|_| random.random_range(0.985..1.015)).collect();
        let random = RefCell::new(random);
        let verdict = |threshold: f64| {
            let holds = format!("{{ above = {threshold} }}");
            let claim = climbed(&ratio_claim(&holds, BESTS), &rates, |variant, rate, block| {
                let own = random.borrow_mut().random_range(0.996..1.004);
                let limit = limits[usize::from(variant == "two")] * of_block[block as usize];
                own * answered(limit, rate)
            });
            claim.verdict
        };
        on_it += u32::from(verdict(truth).is_decided());
        let is_two_below = verdict(0.98 * truth);
        assert_ne!(is_two_below, Verdict::DoesNotHold);
        near += u32::from(is_two_below == Verdict::Holds);
    }
    assert!(on_it <= 6, "{on_it} of 60 were decided");
    assert!(near >= 30, "{near} of 60 were decided");
}

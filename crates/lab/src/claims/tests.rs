//! Verdicts on data whose answer is known.

use super::{sides::points, *};
use crate::{
    environment::Environment,
    experiment::{Experiment, Side, Value},
    plan::{Cell, Dimension, Point},
    result::{FORMAT, Run, Status, VariantOutcome},
    statistics::{self, Sample},
};

fn sample(values: &[f64]) -> Sample {
    let pairs = values.iter().map(|&value| (Some(value), None));
    Sample::of(pairs, statistics::Compare::Value, true).unwrap()
}

#[test]
fn figures_are_held_against_a_threshold() {
    let near = |centre: f64| sample(&[0.99, 1.01, 1.0, 1.02, 0.98, 1.0].map(|v| v * centre));
    let (above, below) = (Threshold::Above(1.0), Threshold::Below(1.0));
    let within = Threshold::Within([0.9, 1.1]);
    for (centre, if_above, if_below, if_within) in [
        (1.3, Verdict::Holds, Verdict::DoesNotHold, Verdict::DoesNotHold),
        (0.7, Verdict::DoesNotHold, Verdict::Holds, Verdict::DoesNotHold),
        (1.0, Verdict::Undecided, Verdict::Undecided, Verdict::Holds),
        // Surely above 1, not surely within a tenth of it.
        (1.1, Verdict::Holds, Verdict::DoesNotHold, Verdict::Undecided),
    ] {
        let verdict = |threshold| Evidence::of(&near(centre), threshold).verdict(0.05);
        assert_eq!(verdict(above), if_above, "{centre}");
        assert_eq!(verdict(below), if_below, "{centre}");
        assert_eq!(verdict(within), if_within, "{centre}");
    }
    // That no difference was found does not make two things equal.
    let wide = sample(&[0.5, 1.5, 0.8, 1.3, 0.6, 1.6]);
    assert_eq!(Evidence::of(&wide, within).verdict(0.05), Verdict::Undecided);
    // On the threshold is not beyond it.
    let on = Evidence::of(&sample(&[1.0; 6]), above);
    assert_eq!(on.verdict(0.05), Verdict::Undecided);
}

/// Two variants and two axes; the claim is what differs from test to test.
fn outcome(claim: &str, measured: impl Fn(&str, f64, f64, u32) -> Option<f64>) -> Outcome {
    outcome_of(6, claim, "throughput_rps", measured)
}

/// The same with so many blocks and another metric.
fn outcome_of(
    blocks: u32,
    claim: &str,
    metric: &str,
    measured: impl Fn(&str, f64, f64, u32) -> Option<f64>,
) -> Outcome {
    let budget = "seconds = 60\nblocks = 6\nmin-window-seconds = 1\nmax-window-seconds = 1\n\
                  saturation-seconds = 1\nsaturation-of = \"all\"";
    let text = format!(
        "id = \"t\"\ntitle = \"t\"\nsource = \"t\"\nsummary = \"t\"\nworkload = \"one-byte\"\n\
         [[variant]]\nname = \"one\"\nmechanism = \"poll\"\n\
         [[variant]]\nname = \"two\"\nmechanism = \"epoll\"\n\
         [[axis]]\nname = \"idle\"\nlabel = \"idle\"\nvalues = [0, 100]\n\
         [rate]\nfractions = [0.5, 1.0]\nsaturation-connections = 1\n\
         [full]\n{budget}\n[quick]\n{budget}\n\
         [[claim]]\nid = \"C\"\nstatement = \"t\"\nsource = \"gammo\"\npaper = \"t\"\n\
         metric = \"{metric}\"\n{claim}\n"
    );
    let experiment = Experiment::parse(&text).unwrap();
    let numbers = |values: &[f64]| values.iter().map(|&v| Value::Number(v)).collect();
    let dimension = |name: &str, values: &[f64]| Dimension {
        name: name.into(),
        label: name.into(),
        values: numbers(values),
    };
    let dimensions = vec![dimension("idle", &[0.0, 100.0]), dimension("rate", &[10.0, 20.0])];
    let mut runs = Vec::new();
    for block in 0..blocks {
        for variant in ["one", "two"] {
            for point in crate::plan::points(&dimensions) {
                let at = |axis: &str| point[axis].number().unwrap();
                let value = measured(variant, at("idle"), at("rate"), block);
                runs.push(Run {
                    cell: Cell { variant: variant.into(), point },
                    block,
                    started_s: 0.0,
                    window_s: 1.0,
                    mechanism: String::new(),
                    status: if value.is_some() { Status::Valid } else { Status::Failed },
                    reason: value.is_none().then(|| "it would not".to_owned()),
                    metrics: value.map(|value| (metric.into(), value)).into_iter().collect(),
                    raw: Default::default(),
                    commands: Vec::new(),
                });
            }
        }
    }
    let variant = |name: &str| VariantOutcome {
        name: name.into(),
        mechanism: name.into(),
        unavailable: None,
    };
    let mut outcome = Outcome {
        format: FORMAT.into(),
        experiment,
        quick: false,
        paper_rates: false,
        seed: 1,
        started_at: String::new(),
        elapsed_s: 1.0,
        interrupted: false,
        decided_early: false,
        looks: Vec::new(),
        phase_rps: Vec::new(),
        warmup_s: 0.0,
        notes: Vec::new(),
        environment: Environment::default(),
        variants: vec![variant("one"), variant("two")],
        dimensions,
        saturation: Vec::new(),
        claims: Vec::new(),
        cells: Vec::new(),
        runs,
    };
    outcome.conclude();
    outcome
}

/// What differs between blocks, without a change of their mean.
fn alternating(size: f64, block: u32) -> f64 {
    if block.is_multiple_of(2) { size } else { -size }
}

#[test]
fn a_peak_over_the_rates_is_compared_with_another_variants() {
    // "one" peaks at rate 10, "two" at rate 20: 0.75 to 1 in every block, however fast it was.
    let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { below = 0.8 }\n\
        a = { at = { idle = \"max\" }, over = [\"rate\"], take = \"max\" }\n\
        b = { variant = \"two\", at = { idle = \"max\" }, over = [\"rate\"], take = \"max\" }";
    let outcome = outcome(claim, |variant, _, rate, block| {
        let peak = match (variant, rate) {
            ("one", 10.0) => 0.75,
            ("two", 20.0) => 1.0,
            _ => 0.5,
        };
        Some(peak * f64::from(block + 1))
    });
    let claim = &outcome.claims[0];
    for figure in [claim.value, claim.low, claim.high] {
        assert!((figure.unwrap() - 0.75).abs() < 1e-9, "{claim:?}");
    }
    assert_eq!(claim.verdict, Verdict::Holds);
}

/// Rates are 10 and 20: who answers all of them could perhaps have answered more.
#[test]
fn a_server_that_was_never_driven_to_its_limit_decides_nothing() {
    let sides = "a = { at = { idle = \"max\" }, over = [\"rate\"], take = \"max\" }\n\
        b = { variant = \"two\", at = { idle = \"max\" }, over = [\"rate\"], take = \"max\" }";
    let verdict = |holds: &str, one: f64, two: f64| {
        let claim = format!("compare = \"ratio\"\neach = [\"one\"]\nholds = {holds}\n{sides}");
        let outcome = outcome(&claim, |variant, _, rate, _| {
            Some(rate * if variant == "one" { one } else { two })
        });
        let claim = &outcome.claims[0];
        assert_eq!(claim.parts[0].note.is_some(), claim.verdict == Verdict::Undecided);
        claim.verdict
    };
    let above = "{ above = 1.1 }";
    assert_eq!(verdict(above, 1.0, 1.0), Verdict::Undecided);
    assert_eq!(verdict(above, 0.9, 1.0), Verdict::DoesNotHold);
    assert_eq!(verdict(above, 1.0, 0.8), Verdict::Holds);
    let below = "{ below = 0.9 }";
    assert_eq!(verdict(below, 1.0, 1.0), Verdict::Undecided);
    assert_eq!(verdict(below, 1.0, 0.9), Verdict::DoesNotHold);
    assert_eq!(verdict(below, 0.8, 1.0), Verdict::Holds);
    // What speaks for the claim: then it is the other side that might have been larger.
    let (above, below) = ("{ above = 0.9 }", "{ below = 1.1 }");
    assert_eq!(verdict(above, 1.0, 1.0), Verdict::Undecided);
    assert_eq!(verdict(above, 0.9, 0.9), Verdict::Holds);
    assert_eq!(verdict(below, 1.0, 1.0), Verdict::Undecided);
    assert_eq!(verdict(below, 0.9, 1.0), Verdict::Holds);
}

/// One run in which the generator was disturbed lifted the gate for all blocks.
#[test]
fn one_bad_run_is_not_the_limit_of_a_server() {
    let judged = |bad_blocks: u32| {
        let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { below = 1.1 }\n\
            a = { at = { idle = \"max\", rate = \"max\" } }\n\
            b = { variant = \"two\", at = { idle = \"max\", rate = \"max\" } }";
        let answered = |variant: &str, block: u32| match variant {
            "one" if block < bad_blocks => 0.97,
            _ => 1.0,
        };
        let measured =
            |variant: &str, _: f64, rate: f64, block: u32| Some(rate * answered(variant, block));
        let mut outcome = outcome_of(10, claim, "throughput_rps", measured);
        outcome.claims.remove(0)
    };
    for bad_blocks in [0, 1, 5] {
        let claim = judged(bad_blocks);
        assert_eq!(claim.verdict, Verdict::Undecided, "{bad_blocks}");
        assert!(claim.parts[0].note.as_ref().unwrap().contains("answered all"), "{claim:?}");
    }
    assert_eq!(judged(6).verdict, Verdict::Holds, "it was driven to its limit in most blocks");
}

/// A fault that wanders from rate to rate was read where it was not: what is said of every rate is
/// judged at every rate.
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
        outcome.conclude();
        outcome.claims.remove(0)
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
    // 24,000 at a rate are too few to say it of that rate; of 48,000 in all it can be said.
    let none = |_: f64, _: u32| 0.0;
    assert_eq!(judged("each", 4_000.0, &none).verdict, Verdict::Holds);
    assert_eq!(judged("each", 2_000.0, &none).verdict, Verdict::Undecided);
}

/// With three variants at the threshold one of them lies below it, by more than chance, in 7 of 100.
#[test]
fn one_of_several_fails_at_a_share_of_the_error() {
    let judged = |each: &str| {
        let claim = format!(
            "compare = \"ratio\"\neach = {each}\nholds = {{ above = 1.0 }}\n\
             a = {{ at = {{ idle = \"max\", rate = \"min\" }} }}\n\
             b = {{ at = {{ idle = \"min\", rate = \"min\" }} }}"
        );
        let mut outcome = outcome_of(6, &claim, "latency_p50_us", |variant, idle, _, block| {
            let centre = if variant == "one" { -0.134 } else { 0.0 };
            Some(if idle > 0.0 { (centre + alternating(0.1, block)).exp() } else { 1.0 })
        });
        outcome.claims.remove(0)
    };
    let alone = judged("[\"one\"]");
    assert_eq!(alone.verdict, Verdict::DoesNotHold);
    assert!((0.026..0.049).contains(&alone.p.unwrap()), "{alone:?}");
    let one_of_two = judged("[\"one\", \"two\"]");
    assert_eq!(one_of_two.verdict, Verdict::Undecided, "{one_of_two:?}");
    assert!(one_of_two.p.unwrap() > ERROR);
}

/// Six windows with a second of nothing are 5 of 100 even if only six in ten have one.
#[test]
fn equal_blocks_are_no_certainty() {
    let judged = |blocks: u32, planned: u32| {
        let claim = "compare = \"value\"\neach = [\"one\"]\nholds = { below = 1.0 }\n\
            a = { at = { idle = \"max\", rate = \"max\" } }";
        let mut outcome = outcome_of(blocks, claim, "reply_rate_min_rps", |_, _, _, _| Some(0.0));
        outcome.experiment.full.blocks = planned;
        outcome.decided_early = blocks < planned;
        outcome.looks.clear();
        outcome.conclude();
        outcome.claims.remove(0)
    };
    let first_look = judged(6, 40);
    assert_eq!(first_look.verdict, Verdict::Undecided, "{first_look:?}");
    assert_eq!(judged(24, 40).verdict, Verdict::Holds);
    let all = judged(6, 6);
    assert_eq!((all.verdict, all.p), (Verdict::Holds, Some(2.0 / 64.0)));
}

/// Who interrupts a run has seen it: he ends it for what he saw, as a clock does not.
#[test]
fn an_interrupt_spends_no_more_than_a_look() {
    let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { above = 1.0 }\n\
        a = { at = { idle = \"max\", rate = \"min\" } }\n\
        b = { at = { idle = \"min\", rate = \"min\" } }";
    let measured = |blocks: u32, later: f64| {
        let mut outcome = outcome_of(blocks, claim, "latency_p50_us", |_, idle, _, block| {
            let centre = if block < 10 { 0.0858 } else { later };
            Some(if idle > 0.0 { (centre + alternating(0.1, block)).exp() } else { 1.0 })
        });
        outcome.experiment.full.blocks = 40;
        outcome.looks.clear();
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

    // Gone on from the end that the clock made: it decided then, whatever came later.
    let mut resumed = measured(20, -0.4);
    resumed.looks = looks;
    let (again, looks) = judged(resumed, false);
    assert_eq!((again.verdict, again.value), (Verdict::Holds, by_clock.value));
    assert!(again.parts[0].note.as_ref().unwrap().contains("first 10 blocks"), "{again:?}");
    assert_eq!(looks.len(), 2);
    // And from an interrupt: the next look knows of it.
    let mut resumed = measured(20, 0.0858);
    let (fresh, _) = judged(resumed.clone(), true);
    resumed.looks = vec![Look { blocks: 19, is_last: false }];
    let (resumed, _) = judged(resumed, true);
    assert!(resumed.p.unwrap() > fresh.p.unwrap(), "{:?} {:?}", resumed.p, fresh.p);
}

/// What is left when the server dies in most blocks are the blocks that it survived.
#[test]
fn blocks_that_are_lost_are_told_and_not_too_many() {
    let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { below = 0.5 }\n\
        a = { at = { idle = \"max\", rate = \"min\" } }\n\
        b = { at = { idle = \"min\", rate = \"min\" } }";
    let measured = |blocks: u32, lost: u32| {
        outcome_of(blocks, claim, "latency_p50_us", |_, idle, _, block| {
            let a = (block >= lost).then_some(0.4 + alternating(0.01, block));
            if idle > 0.0 { a } else { Some(1.0) }
        })
    };
    let part = |outcome: &Outcome| {
        let part = &outcome.claims[0].parts[0];
        (part.verdict, part.note.clone())
    };
    assert_eq!(part(&measured(20, 0)), (Verdict::Holds, None));
    let note = |blocks| Some(format!("{blocks} of 20 blocks lack a side (it would not)"));
    assert_eq!(part(&measured(20, 4)), (Verdict::Holds, note(4)));
    assert_eq!(part(&measured(20, 5)), (Verdict::Undecided, note(5)));
    assert_eq!(part(&measured(20, 14)), (Verdict::Undecided, note(14)));
    // What the time or a person cut short did not choose.
    let mut cut = measured(7, 0);
    cut.runs.retain(|run| run.block < 6 || run.cell.point["idle"] == Value::Number(0.0));
    cut.conclude();
    assert_eq!(part(&cut), (Verdict::Holds, None));
}

#[test]
fn a_ratio_to_nothing_is_not_left_out() {
    let judged = |holds: &str, zeros: u32| {
        let claim = format!(
            "compare = \"ratio\"\neach = [\"one\"]\nholds = {holds}\n\
             a = {{ at = {{ idle = \"max\", rate = \"min\" }} }}\n\
             b = {{ at = {{ idle = \"min\", rate = \"min\" }} }}"
        );
        let mut outcome = outcome_of(10, &claim, "latency_p50_us", |_, idle, _, block| {
            let b = if block < zeros { 0.0 } else { 1.0 };
            Some(if idle > 0.0 { 0.4 + alternating(0.01, block) } else { b })
        });
        outcome.claims.remove(0)
    };
    let below = "{ below = 0.5 }";
    assert_eq!(judged(below, 0).verdict, Verdict::Holds);
    let claim = judged(below, 4);
    assert_eq!((claim.verdict, claim.bound), (Verdict::Undecided, Some(Bound::AtLeast)));
    assert!(claim.parts[0].note.as_ref().unwrap().contains("in 4 of 10 blocks"), "{claim:?}");
    assert_eq!(judged(below, 9).verdict, Verdict::DoesNotHold);
    assert_eq!(judged("{ above = 0.5 }", 9).verdict, Verdict::Holds);
}

#[test]
fn the_variant_nearest_to_failing_decides() {
    let claim = "compare = \"ratio\"\neach = [\"one\", \"two\"]\nholds = { above = 2.0 }\n\
        a = { at = { idle = \"max\", rate = \"min\" } }\n\
        b = { at = { idle = \"min\", rate = \"min\" } }";
    let measure = |variant: &str, idle: f64, _: f64, block: u32| match (variant, idle > 0.0) {
        (_, false) => Some(1.0),
        ("one", true) => Some(9.0),
        _ => Some(1.5 * alternating(0.001, block).exp()),
    };
    let outcome = outcome(claim, measure);
    let claim = &outcome.claims[0];
    assert_eq!(claim.verdict, Verdict::DoesNotHold, "it holds for one of two only");
    assert!((claim.value.unwrap() - 1.5).abs() < 1e-9);
    let parts: Vec<_> = claim.parts.iter().map(|part| part.verdict).collect();
    assert_eq!(parts, [Verdict::Holds, Verdict::DoesNotHold]);
}

#[test]
fn a_difference_and_a_plain_value() {
    let at = "{ idle = \"max\", rate = \"max\" }";
    let difference = format!(
        "compare = \"difference\"\neach = [\"one\"]\nholds = {{ above = 3.0 }}\n\
         a = {{ at = {at} }}\nb = {{ variant = \"two\", at = {at} }}"
    );
    let measured =
        |variant: &str, _: f64, _: f64, _: u32| Some(if variant == "one" { 7.0 } else { 2.0 });
    assert_eq!(outcome(&difference, measured).claims[0].value, Some(5.0));
    let value = format!(
        "compare = \"value\"\neach = [\"two\"]\nholds = {{ below = 3.0 }}\na = {{ at = {at} }}"
    );
    let judged = &outcome(&value, measured).claims[0];
    assert!((judged.value.unwrap() - 2.0).abs() < 1e-9);
    assert_eq!(judged.verdict, Verdict::Holds);
}

#[test]
fn a_claim_over_several_is_not_applicable_when_one_is_missing() {
    let claim = "compare = \"ratio\"\neach = [\"one\", \"two\"]\nholds = { above = 2.0 }\n\
        a = { at = { idle = \"max\", rate = \"min\" } }\n\
        b = { at = { idle = \"min\", rate = \"min\" } }";
    let outcome = outcome(claim, |variant, idle, _, _| match (variant, idle > 0.0) {
        ("two", true) => None,
        (_, true) => Some(9.0),
        _ => Some(1.0),
    });
    let claim = &outcome.claims[0];
    assert_eq!(claim.verdict, Verdict::NotApplicable, "what is missing might have failed");
    assert_eq!(claim.parts[0].verdict, Verdict::Holds);
    assert_eq!(claim.parts[1].verdict, Verdict::NotApplicable);
    assert_eq!(claim.parts[1].note.as_deref(), Some("it would not"));
}

/// A quick form may have one value of an axis where the full one has two.
#[test]
fn a_form_without_the_values_of_a_claim_judges_nothing() {
    let judged = |a: &str, b: &str| {
        let claim = format!(
            "compare = \"ratio\"\neach = [\"one\"]\nholds = {{ below = 2.0 }}\n\
             a = {{ at = {{ idle = {a}, rate = \"min\" }} }}\n\
             b = {{ at = {{ idle = {b}, rate = \"min\" }} }}"
        );
        let mut outcome = outcome(&claim, |_, _, _, block| Some(1.0 + f64::from(block) / 100.0));
        assert_eq!(outcome.claims[0].verdict, Verdict::Holds);
        outcome.dimensions[0].values.pop();
        outcome.runs.retain(|run| run.cell.point["idle"] == Value::Number(0.0));
        outcome.conclude();
        let part = &outcome.claims[0].parts[0];
        assert_eq!(part.verdict, Verdict::NotApplicable);
        part.note.clone().unwrap()
    };
    assert_eq!(
        judged("\"max\"", "\"min\""),
        "both sides are the same in this form of the experiment"
    );
    assert_eq!(judged("\"min\"", "100"), "this form of the experiment has no idle 100");
}

#[test]
fn a_block_that_lacks_one_side_does_not_count() {
    let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { above = 2.0 }\n\
        a = { at = { idle = \"max\", rate = \"min\" } }\n\
        b = { at = { idle = \"min\", rate = \"min\" } }";
    // Five of six blocks are incomplete: what is left decides nothing.
    let outcome = outcome(claim, |_, idle, _, block| {
        (idle == 0.0 || block == 1).then_some(if idle > 0.0 { 9.0 } else { 1.0 })
    });
    let claim = &outcome.claims[0];
    assert_eq!((claim.verdict, claim.low), (Verdict::Seen, None));
    assert_eq!(claim.parts[0].estimate.unwrap().blocks, 1);
    assert!(claim.parts[0].note.as_ref().unwrap().contains("only 1 of 6 blocks"));
}

#[test]
fn fewer_than_six_blocks_decide_nothing() {
    let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { above = 2.0 }\n\
        a = { at = { idle = \"max\", rate = \"min\" } }\n\
        b = { at = { idle = \"min\", rate = \"min\" } }";
    let nine = |_: &str, idle: f64, _: f64, block: u32| {
        Some(if idle > 0.0 { 9.0 } else { 1.0 } + f64::from(block % 2) / 100.0)
    };
    let judged = |blocks| {
        let outcome = outcome_of(blocks, claim, "latency_p50_us", nine);
        (outcome.claims[0].verdict, outcome.claims[0].p.is_some())
    };
    assert_eq!(judged(3), (Verdict::Seen, false));
    assert_eq!(judged(5), (Verdict::Seen, false));
    assert_eq!(judged(6), (Verdict::Holds, true));
}

/// Noise of a tenth on ten equal points: the best of them, read where it was chosen, is a tenth too good.
#[test]
fn the_best_point_is_chosen_on_other_blocks_than_it_is_read_on() {
    let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { within = [0.9, 1.1] }\n\
        a = { at = { idle = \"max\" }, over = [\"rate\"], take = \"max\" }\n\
        b = { at = { idle = \"min\", rate = \"min\" } }";
    // At rate 20 blocks 0 and 1 are lucky, at rate 10 all others: each is best in its own half only.
    let outcome = outcome_of(4, claim, "latency_p50_us", |_, idle, rate, block| {
        let lucky = (rate == 20.0) == (block < 2);
        Some(if idle > 0.0 && lucky { 1.1 } else { 1.0 })
    });
    let value = outcome.claims[0].value.unwrap();
    assert!((value - 1.0).abs() < 1e-9, "{value}: read where it was chosen it is 1.1");
}

/// The fault that was published: a server that scans for as long as it has CPU costs 1/rate, with
/// 1,000 idle connections as with 8,000.
#[test]
fn a_cost_at_the_ceiling_is_a_bound() {
    let sides = "a = { at = { idle = \"max\", rate = \"max\" } }\n\
        b = { at = { idle = \"min\", rate = \"max\" } }";
    let judged = |holds: &str, busy_a: f64, busy_b: f64, ratio: f64| {
        let claim = format!("compare = \"ratio\"\neach = [\"one\"]\nholds = {holds}\n{sides}");
        let mut outcome = outcome_of(6, &claim, limit::COST, |_, idle, _, block| {
            Some(100.0 * if idle > 0.0 { ratio } else { 1.0 } + f64::from(block % 2))
        });
        for run in &mut outcome.runs {
            let idle = run.cell.point["idle"].number().unwrap();
            run.metrics.insert(limit::BUSY.into(), if idle > 0.0 { busy_a } else { busy_b });
        }
        outcome.conclude();
        outcome.claims.remove(0)
    };
    let claim = judged("{ above = 2.0 }", 0.99, 0.3, 5.5);
    assert_eq!((claim.verdict, claim.bound), (Verdict::Holds, Some(Bound::AtLeast)));
    let claim = judged("{ above = 9.0 }", 0.99, 0.3, 5.5);
    assert_eq!(claim.verdict, Verdict::Undecided, "it may be more");
    assert!(claim.parts[0].note.as_ref().unwrap().contains("no idle CPU"), "{claim:?}");
    assert_eq!(judged("{ above = 9.0 }", 0.5, 0.3, 5.5).verdict, Verdict::DoesNotHold);
    assert_eq!(judged("{ below = 9.0 }", 0.99, 0.3, 5.5).verdict, Verdict::Undecided);
    // Both at the ceiling: epoll2 with and without idle connections.
    let claim = judged("{ above = 1.5 }", 0.99, 0.99, 1.0);
    assert_eq!((claim.verdict, claim.bound), (Verdict::Undecided, None));
    let claim = judged("{ above = 0.5 }", 0.3, 0.99, 1.0);
    assert_eq!((claim.verdict, claim.bound), (Verdict::Undecided, Some(Bound::AtMost)));
}

/// Phases have no rate in their point: what they were offered is a metric of the run.
#[test]
fn a_phase_that_answered_all_decides_nothing() {
    let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { above = 0.98 }\n\
        a = { at = { idle = \"max\", rate = \"max\" } }\n\
        b = { variant = \"two\", at = { idle = \"max\", rate = \"max\" } }";
    let judged = |answered: f64| {
        let mut outcome = outcome(claim, |_, _, _, _| Some(1000.0));
        for run in &mut outcome.runs {
            // As a phase has it.
            run.cell.point.insert("rate".into(), Value::Word("busy".into()));
            run.metrics.insert("offered_rps".into(), 1000.0 / answered);
        }
        outcome.dimensions[1].values = vec![Value::Word("busy".into())];
        outcome.conclude();
        outcome.claims.remove(0)
    };
    assert_eq!(judged(0.8).verdict, Verdict::Holds);
    let claim = judged(1.0);
    assert_eq!(claim.verdict, Verdict::Undecided);
    assert!(claim.parts[0].note.as_ref().unwrap().contains("answered all"), "{claim:?}");
}

#[test]
fn shares_are_counted() {
    let claim = "compare = \"value\"\neach = [\"one\"]\nholds = { below = 0.0001 }\n\
        a = { at = { idle = \"max\", rate = \"max\" } }";
    let judged = |scheduled: f64| {
        let mut outcome = outcome_of(6, claim, "error_share", |_, _, _, _| Some(0.0));
        for run in &mut outcome.runs {
            run.metrics.insert("requests_scheduled".into(), scheduled);
            run.metrics.insert("requests_failed".into(), 0.0);
        }
        outcome.conclude();
        outcome.claims.remove(0)
    };
    let claim = judged(2_000.0);
    assert_eq!(claim.verdict, Verdict::Undecided, "none of 12,000 may be one in 4,000");
    assert!(claim.high.unwrap() > 1e-4);
    assert_eq!(judged(20_000.0).verdict, Verdict::Holds);
}

#[test]
fn primary_claims_share_one_error() {
    let mut outcome = outcome(
        "compare = \"ratio\"\neach = [\"one\"]\nholds = { above = 1.0 }\nprimary = true\n\
         a = { at = { idle = \"max\", rate = \"min\" } }\n\
         b = { at = { idle = \"min\", rate = \"min\" } }",
        |_, idle, _, block| {
            let noise = [0.0, 0.02, 0.05, -0.01, 0.03, 0.01][block as usize];
            Some(if idle > 0.0 { 1.02 + noise } else { 1.0 })
        },
    );
    let alone = outcome.claims[0].p.unwrap();
    assert_eq!(outcome.claims[0].p_with_all, Some(alone));
    let second = outcome.experiment.claim[0].clone();
    outcome.experiment.claim.push(second);
    outcome.conclude();
    assert!((outcome.claims[0].p_with_all.unwrap() - 2.0 * alone).abs() < 1e-9);
    outcome.experiment.claim[1].primary = false;
    outcome.conclude();
    assert_eq!(outcome.claims[0].p_with_all, Some(alone));
    assert_eq!(outcome.claims[1].p_with_all, None);
}

/// Without a network of its own the generator is the limit, and a reply rate is the generator's.
#[test]
fn a_run_without_its_network_judges_no_overload() {
    let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { above = 2.0 }\n\
        a = { at = { idle = \"max\", rate = \"min\" } }\n\
        b = { at = { idle = \"min\", rate = \"min\" } }";
    let judged = |metric: &str, receive_cpu| {
        let mut outcome =
            outcome_of(6, claim, metric, |_, idle, _, _| Some(if idle > 0.0 { 9.0 } else { 1.0 }));
        outcome.experiment.receive_on = ReceiveOn::Server;
        let pinned = crate::run::trial::Cpus { server: 0, generator: 1 };
        outcome.environment.pinned = Some(pinned);
        outcome.environment.receive_cpu = receive_cpu;
        outcome.conclude();
        outcome.claims.remove(0).verdict
    };
    assert_eq!(judged("throughput_rps", Some(0)), Verdict::Holds);
    assert_eq!(judged("throughput_rps", None), Verdict::NotApplicable);
    assert_eq!(judged("calls_per_request", None), Verdict::Holds, "counts are counts");
}

/// A first look must see more than the last one; what is not seen then is not settled.
#[test]
fn an_early_look_decides_what_is_plain() {
    let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { above = 1.0 }\n\
         a = { at = { idle = \"max\", rate = \"min\" } }\n\
         b = { at = { idle = \"min\", rate = \"min\" } }";
    let settled = |effect: f64| {
        let mut outcome = outcome_of(6, claim, "latency_p50_us", |_, idle, _, block| {
            let noise = [0.0, 0.02, 0.03, -0.01, 0.02, 0.01][block as usize];
            Some(if idle > 0.0 { effect + noise } else { 1.0 })
        });
        outcome.experiment.full.blocks = 40;
        outcome.decided_early = true;
        outcome.looks.clear();
        outcome.conclude();
        (outcome.claims[0].verdict, all_settled(&outcome))
    };
    assert_eq!(settled(1.02), (Verdict::Undecided, false));
    assert_eq!(settled(2.0), (Verdict::Holds, true));
}

/// The experiment with data that were made for one claim: its side b is 1 everywhere, and side a
/// what `a` makes of it.
fn made_for(experiment: &Experiment, claim: &Claim, quick: bool, a: f64) -> Outcome {
    let mut dimensions = experiment.dimensions(quick);
    if !experiment.phase.is_empty() {
        dimensions.push(crate::plan::phase_dimension(&experiment.phase));
    } else if experiment.rate.is_some() {
        dimensions.push(crate::plan::rate_dimension(&[10.0, 20.0, 30.0]));
    }
    let names: Vec<String> = if experiment.variant.is_empty() {
        pollux_event::registry::ALL.iter().map(|entry| entry.name.into()).collect()
    } else {
        experiment.variant.iter().map(|variant| variant.name.clone()).collect()
    };
    let variants = names.iter().map(|name| VariantOutcome {
        name: name.clone(),
        mechanism: name.clone(),
        unavailable: None,
    });
    let mut outcome = Outcome {
        format: FORMAT.into(),
        experiment: experiment.clone(),
        quick,
        paper_rates: false,
        seed: 1,
        started_at: String::new(),
        elapsed_s: 1.0,
        interrupted: false,
        decided_early: false,
        looks: Vec::new(),
        phase_rps: Vec::new(),
        warmup_s: 0.0,
        notes: Vec::new(),
        environment: Environment::default(),
        variants: variants.collect(),
        dimensions,
        saturation: Vec::new(),
        claims: Vec::new(),
        cells: Vec::new(),
        runs: Vec::new(),
    };
    for (block, name) in (0..6).flat_map(|block| names.iter().map(move |name| (block, name))) {
        let a = a * (1.0 + alternating(0.002, block));
        for point in crate::plan::points(&outcome.dimensions) {
            let mut metrics = std::collections::BTreeMap::new();
            for (side, value) in sides_at(&outcome, claim, &point, name, a) {
                metrics.insert(side.metric.as_ref().unwrap_or(&claim.metric).clone(), value);
            }
            outcome.runs.push(Run {
                cell: Cell { variant: name.clone(), point },
                block,
                started_s: 0.0,
                window_s: 1.0,
                mechanism: name.clone(),
                status: Status::Valid,
                reason: None,
                metrics,
                raw: Default::default(),
                commands: Vec::new(),
            });
        }
    }
    outcome
}

/// The sides that speak of `name` at `point`, with its value there: side a is to be worth `a`, side
/// b 1. A variant that is only taken off is worth 10, and what it is taken from so much more.
fn sides_at<'a>(
    outcome: &Outcome,
    claim: &'a Claim,
    point: &Point,
    name: &str,
    a: f64,
) -> Vec<(&'a Side, f64)> {
    let sides = [(Some(&claim.a), a), (claim.b.as_ref(), 1.0)];
    let here = sides
        .into_iter()
        .filter_map(|(side, value)| Some((side?, value)))
        .filter(|(side, _)| points(outcome, side).contains(point));
    let mut found = Vec::new();
    for (side, value) in here {
        let variant = side.variant.as_ref();
        if variant.map_or(claim.each.iter().any(|each| each == name), |variant| variant == name) {
            let taken_off = side.minus.as_ref().map_or(0.0, |minus| {
                let known = sides_at(outcome, claim, point, minus, a);
                known.last().map_or(10.0, |(_, value)| *value)
            });
            found.push((side, taken_off + value));
        } else if side.minus.as_deref() == Some(name) {
            found.insert(0, (side, 10.0));
        }
    }
    found
}

/// Far enough from a limit to be beyond it.
fn step(limit: f64) -> f64 {
    0.1 * limit.abs().max(if limit == 0.0 { 1.0 } else { 0.0 })
}

/// The control of every claim that is built in: there are data by which it holds and data by which
/// it does not, in the full form and in the quick one.
#[test]
fn every_built_in_claim_can_hold_and_can_fail() {
    let mut judged = 0;
    for id in crate::experiment::ids() {
        let experiment = crate::experiment::find(id).unwrap();
        for (claim, quick) in
            experiment.claim.iter().flat_map(|claim| [(claim, false), (claim, true)])
        {
            if quick && claim.full_form_only {
                continue;
            }
            let (holding, failing) = match claim.holds {
                Threshold::Above(limit) => (limit + step(limit), limit - step(limit)),
                Threshold::Below(limit) => (limit - step(limit), limit + step(limit)),
                Threshold::Within([low, high]) => ((low + high) / 2.0, high + step(high)),
            };
            let offset = match claim.compare {
                statistics::Compare::Difference => 1.0,
                statistics::Compare::Ratio | statistics::Compare::Value => 0.0,
            };
            let verdict = |a: f64| {
                let outcome = made_for(&experiment, claim, quick, offset + a);
                judge_one(&outcome, claim).verdict
            };
            let place = format!("{id}, {}, quick: {quick}", claim.id);
            assert_eq!(verdict(holding), Verdict::Holds, "{place}");
            assert_eq!(verdict(failing), Verdict::DoesNotHold, "{place}");
            judged += 1;
        }
    }
    assert!(judged > 50, "only {judged} claims");
}

#[test]
fn what_one_costs_more_than_another_is_a_side() {
    // `one` has 3 more than `two` with many, 1 more with few; both less than is offered.
    let claim = "compare = \"ratio\"\neach = [\"one\"]\n\
                 a = { minus = \"two\", at = { idle = \"max\", rate = \"max\" } }\n\
                 b = { minus = \"two\", at = { idle = \"min\", rate = \"max\" } }\n\
                 holds = { above = 2.5 }";
    let cost = |variant: &str, idle: f64, _: f64, block: u32| {
        let step = if idle > 0.0 { 3.0 } else { 1.0 };
        Some(1.0 + f64::from(block) + if variant == "one" { step } else { 0.0 })
    };
    let judged = judge(&outcome(claim, cost));
    assert_eq!(judged[0].verdict, Verdict::Holds, "{judged:?}");
    assert!((judged[0].value.unwrap() - 3.0).abs() < 1e-9);

    let missing = |variant: &str, idle, rate, block| match variant {
        "two" => None,
        _ => cost(variant, idle, rate, block),
    };
    let judged = judge(&outcome(claim, missing));
    assert_eq!(judged[0].verdict, Verdict::NotApplicable);
    assert!(judged[0].parts[0].note.is_some(), "{judged:?}");
}

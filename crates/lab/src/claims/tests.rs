//! Verdicts on data whose answer is known.

use super::*;
use crate::{
    environment::Environment,
    experiment::{Experiment, Value},
    plan::{Cell, Dimension},
    result::{FORMAT, Run, Status, VariantOutcome},
};

fn estimate(low: Option<f64>, high: Option<f64>) -> Estimate {
    Estimate { value: 1.0, low, high, blocks: 3 }
}

#[test]
fn an_interval_is_held_against_a_threshold() {
    let above = Threshold::Above(1.0);
    let below = Threshold::Below(1.0);
    for (low, high, if_above, if_below) in [
        (Some(1.1), Some(1.2), Verdict::Holds, Verdict::DoesNotHold),
        (Some(0.8), Some(0.9), Verdict::DoesNotHold, Verdict::Holds),
        (Some(0.9), Some(1.1), Verdict::Undecided, Verdict::Undecided),
        // On the threshold is not beyond it.
        (Some(1.0), Some(1.0), Verdict::DoesNotHold, Verdict::DoesNotHold),
        (None, None, Verdict::Undecided, Verdict::Undecided),
    ] {
        assert_eq!(above.verdict(&estimate(low, high)), if_above, "{low:?} to {high:?}");
        assert_eq!(below.verdict(&estimate(low, high)), if_below, "{low:?} to {high:?}");
    }
}

/// Two variants and two axes; the claim is what differs from test to test.
fn outcome(claim: &str, measured: impl Fn(&str, f64, f64, u32) -> Option<f64>) -> Outcome {
    let budget = "seconds = 60\nblocks = 3\nmin-window-seconds = 1\nmax-window-seconds = 1\n\
                  saturation-seconds = 1\nsaturation-of = \"all\"";
    let text = format!(
        "id = \"t\"\ntitle = \"t\"\nsource = \"t\"\nsummary = \"t\"\nworkload = \"one-byte\"\n\
         [[variant]]\nname = \"one\"\nmechanism = \"poll\"\n\
         [[variant]]\nname = \"two\"\nmechanism = \"epoll\"\n\
         [[axis]]\nname = \"idle\"\nlabel = \"idle\"\nvalues = [0, 100]\n\
         [rate]\nfractions = [0.5, 1.0]\nsaturation-connections = 1\n\
         [full]\n{budget}\n[quick]\n{budget}\n\
         [[claim]]\nid = \"C\"\nstatement = \"t\"\nsource = \"t\"\npaper = \"t\"\n\
         metric = \"throughput_rps\"\n{claim}\n"
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
    for block in 0..3 {
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
                    metrics: value
                        .map(|value| ("throughput_rps".into(), value))
                        .into_iter()
                        .collect(),
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
    assert_eq!((claim.value, claim.low, claim.high), (Some(0.75), Some(0.75), Some(0.75)));
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

#[test]
fn the_variant_nearest_to_failing_decides() {
    let claim = "compare = \"ratio\"\neach = [\"one\", \"two\"]\nholds = { above = 2.0 }\n\
        a = { at = { idle = \"max\", rate = \"min\" } }\n\
        b = { at = { idle = \"min\", rate = \"min\" } }";
    let measure = |variant: &str, idle: f64, _: f64, _: u32| match (variant, idle > 0.0) {
        (_, false) => Some(1.0),
        ("one", true) => Some(9.0),
        _ => Some(1.5),
    };
    let outcome = outcome(claim, measure);
    let claim = &outcome.claims[0];
    assert_eq!(claim.verdict, Verdict::DoesNotHold, "it holds for one of two only");
    assert_eq!(claim.value, Some(1.5));
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
    assert_eq!((judged.value, judged.verdict), (Some(2.0), Verdict::Holds));
}

#[test]
fn what_could_not_be_measured_is_left_out_and_says_why() {
    let claim = "compare = \"ratio\"\neach = [\"one\", \"two\"]\nholds = { above = 2.0 }\n\
        a = { at = { idle = \"max\", rate = \"min\" } }\n\
        b = { at = { idle = \"min\", rate = \"min\" } }";
    let outcome = outcome(claim, |variant, idle, _, _| match (variant, idle > 0.0) {
        ("two", true) => None,
        (_, true) => Some(9.0),
        _ => Some(1.0),
    });
    let claim = &outcome.claims[0];
    assert_eq!(claim.verdict, Verdict::Holds, "for all that could be measured");
    assert_eq!(claim.parts[1].verdict, Verdict::Undecided);
    assert_eq!(claim.parts[1].note.as_deref(), Some("it would not"));
}

#[test]
fn a_block_that_lacks_one_side_does_not_count() {
    let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { above = 2.0 }\n\
        a = { at = { idle = \"max\", rate = \"min\" } }\n\
        b = { at = { idle = \"min\", rate = \"min\" } }";
    // Two of three blocks are incomplete: what is left has no interval and decides nothing.
    let outcome = outcome(claim, |_, idle, _, block| {
        (idle == 0.0 || block == 1).then_some(if idle > 0.0 { 9.0 } else { 1.0 })
    });
    let claim = &outcome.claims[0];
    assert_eq!((claim.verdict, claim.value, claim.low), (Verdict::Undecided, Some(9.0), None));
    assert_eq!(claim.parts[0].estimate.unwrap().blocks, 1);
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
        notes: Vec::new(),
        environment: Environment::default(),
        variants: variants.collect(),
        dimensions,
        saturation: Vec::new(),
        claims: Vec::new(),
        cells: Vec::new(),
        runs: Vec::new(),
    };
    for (block, name) in (0..3).flat_map(|block| names.iter().map(move |name| (block, name))) {
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
            let (limit, way) = match claim.holds {
                Threshold::Above(limit) => (limit, 1.0),
                Threshold::Below(limit) => (limit, -1.0),
            };
            let offset = match claim.compare {
                stats::Compare::Difference => 1.0,
                stats::Compare::Ratio | stats::Compare::Value => 0.0,
            };
            let step = way * limit.abs().max(1.0) * 0.1;
            let verdict = |a: f64| {
                let outcome = made_for(&experiment, claim, quick, offset + a);
                judge_one(&outcome, claim).verdict
            };
            let place = format!("{id}, {}, quick: {quick}", claim.id);
            assert_eq!(verdict(limit + step), Verdict::Holds, "{place}");
            assert_eq!(verdict(limit - step), Verdict::DoesNotHold, "{place}");
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
    assert_eq!((judged[0].verdict, judged[0].value), (Verdict::Holds, Some(3.0)), "{judged:?}");

    let missing = |variant: &str, idle, rate, block| match variant {
        "two" => None,
        _ => cost(variant, idle, rate, block),
    };
    let judged = judge(&outcome(claim, missing));
    assert_eq!(judged[0].verdict, Verdict::Undecided);
    assert!(judged[0].parts[0].note.is_some(), "{judged:?}");
}

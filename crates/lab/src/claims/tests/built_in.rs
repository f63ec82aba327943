//! The control of every built-in claim: data with which it holds, and data with which it does not.

use super::*;
use crate::{claims::sides::points, experiment::Form, result::Saturation};

/// The reference rate; the rates of the experiments are multiples of it.
const REFERENCE: f64 = 20_000.0;

/// Returns the experiment with artificial data for one claim: side b is 1 everywhere, and side a is `a`,
/// as the claim compares them.
fn made_for(experiment: &Experiment, claim: &Claim, quick: bool, a: f64) -> Outcome {
    let mut dimensions = experiment.dimensions();
    // The verdict at one operating point; another test covers claims with several operating points.
    for dimension in &mut dimensions {
        if claim.operating_points.as_deref() == Some(&*dimension.name) {
            dimension.values.drain(..dimension.values.len() - 1);
        }
    }
    if !experiment.phase.is_empty() {
        dimensions.push(crate::plan::phase_dimension(&experiment.phase));
    } else if experiment.rate.is_some() {
        // The best of several rates is known if the next rate is near. In other experiments the rates
        // are far above the figures, including bursts, so that no rate is a ceiling.
        let is_best = claim.sides().any(|side| side.over.iter().any(|axis| axis == RATE));
        // Rates that differ by less than one or two hundredths count as one rate.
        let of_a = if (a - 1.0).abs() < 0.02 { 2.0 } else { a };
        let near = [1.03, 1.03 * of_a, 10.0];
        let reference = experiment.rate.as_ref().filter(|rate| rate.reference.is_some());
        let multiples = |rate: &crate::experiment::Rate| {
            // The verdict at one of the rates at which the claim is judged.
            let others =
                claim.operating_rates.iter().filter(|rate| Some(*rate) != claim.a.at.get(RATE));
            let others: Vec<f64> = others.filter_map(Select::multiple).collect();
            let fractions = rate.fractions.iter().filter(|of| !others.contains(of));
            fractions.map(|of| of * REFERENCE).collect::<Vec<f64>>()
        };
        let rates = match reference.map(multiples) {
            _ if is_best => near.to_vec(),
            _ if claim.operating_points.as_deref() == Some(crate::experiment::RATE) => vec![3e4],
            Some(rates) => rates,
            None => vec![1e4, 2e4, 3e4],
        };
        dimensions.push(crate::plan::rate_dimension(&rates));
    }
    let variants = crate::run::variants(experiment).into_iter();
    let names: Vec<String> = variants.map(|variant| variant.name).collect();
    let mut outcome = made::outcome(experiment.clone(), quick, dimensions, &names, Vec::new());
    outcome.saturation.push(Saturation {
        cell: Cell { variant: names[0].clone(), point: Point::new() },
        rps: Some(REFERENCE),
        note: None,
        raw: Default::default(),
    });
    let sides = [(Some(&claim.a), true), (claim.b.as_ref(), false)].into_iter();
    let sides: Vec<_> =
        sides.filter_map(|(side, is_a)| Some((side?, points(&outcome, side?), is_a))).collect();
    for point in crate::plan::points(&outcome.dimensions) {
        let here = sides.iter().filter(|(_, points, _)| points.contains(&point));
        let here: Vec<(&Side, bool)> = here.map(|(side, _, is_a)| (*side, *is_a)).collect();
        for (block, name) in (0..6).flat_map(|block| names.iter().map(move |name| (block, name))) {
            let noise = 1.0 + alternating(0.002, block);
            // The difference from the other side, which is 1, may be small.
            let a = match claim.compare {
                statistics::Compare::Difference => 1.0 + (a - 1.0) * noise,
                statistics::Compare::Ratio | statistics::Compare::Value => a * noise,
            };
            let values = values_of(&here, claim, name, a).into_iter();
            let metric = |side: &Side| side.metric.as_ref().unwrap_or(&claim.metric).clone();
            let metrics: BTreeMap<_, _> = values.map(|(side, it)| (metric(side), it)).collect();
            // The claim reads no other run.
            if !metrics.is_empty() {
                let cell = Cell { variant: name.clone(), point: point.clone() };
                outcome.runs.push(made::run(cell, block, metrics));
            }
        }
    }
    outcome
}

/// Returns the sides of `here` that use the variant `name`, with its value: side a, which `here` marks, must
/// have the value `a`, and side b the value 1. A variant that is only subtracted has the value 10, and the
/// variant from which it is subtracted has that much more.
fn values_of<'a>(
    here: &[(&'a Side, bool)],
    claim: &Claim,
    name: &str,
    a: f64,
) -> Vec<(&'a Side, f64)> {
    let mut found = Vec::new();
    for &(side, is_a) in here {
        let variant = side.variant.as_ref();
        if variant.map_or(claim.each.iter().any(|each| each == name), |variant| variant == name) {
            let taken_off = side.minus.as_ref().map_or(0.0, |minus| {
                let known = values_of(here, claim, minus, a);
                known.last().map_or(10.0, |(_, value)| *value)
            });
            found.push((side, taken_off + if is_a { a } else { 1.0 }));
        } else if side.minus.as_deref() == Some(name) {
            found.insert(0, (side, 10.0));
        }
    }
    found
}

/// Returns a distance from a limit that is large enough to be beyond it.
fn step(limit: f64) -> f64 {
    0.1 * limit.abs().max(if limit == 0.0 { 1.0 } else { 0.0 })
}

/// The control of every built-in claim: with some data it holds and with other data it does not, in the
/// full form and in the quick one.
#[test]
fn every_built_in_claim_can_hold_and_can_fail() {
    let mut judged = 0;
    for id in crate::experiment::ids() {
        let forms = [false, true].map(|quick| Form { quick, ..Form::default() });
        let forms =
            forms.map(|form| (crate::experiment::find(id).unwrap().form(form).unwrap(), form));
        for (experiment, claim, quick) in forms
            .iter()
            .flat_map(|(it, form)| it.claim.iter().map(move |claim| (it, claim, form.quick)))
        {
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
                let outcome = made_for(experiment, claim, quick, offset + a);
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

/// In the blocks that measure only what claims read, no cell by which a claim is judged is missing.
#[test]
fn a_claim_reads_every_cell_that_it_is_judged_by() {
    for id in crate::experiment::ids() {
        let experiment = crate::experiment::find(id).unwrap();
        for claim in &experiment.claim {
            let mut outcome = made_for(&experiment, claim, false, 1.0);
            outcome.experiment.claim = vec![claim.clone()];
            assert!(!outcome.runs.is_empty(), "{id}, {}", claim.id);
            for run in outcome.runs.iter().filter(|run| run.block == 0) {
                assert!(is_read(&outcome, &run.cell), "{id}, {}: {}", claim.id, run.cell.name());
                let other = Cell { variant: "another".into(), ..run.cell.clone() };
                assert!(!is_read(&outcome, &other), "{id}, {}", claim.id);
            }
        }
    }
}

#[test]
fn a_claim_is_judged_at_each_of_its_rates_that_the_run_has() {
    let experiment = crate::experiment::find("provos-fig10").unwrap();
    let judged_at = |id: &str, multiples: &[f64]| {
        let claim = experiment.find_claim(id).unwrap();
        let mut outcome = made_for(&experiment, claim, false, 0.5);
        outcome.dimensions = experiment.dimensions();
        let rates: Vec<f64> = multiples.iter().map(|of| of * REFERENCE).collect();
        outcome.dimensions.push(crate::plan::rate_dimension(&rates));
        at_operating_points(&outcome, claim)
    };
    let both = judged_at("P4", &[0.5, 1.05, 1.15]);
    let names: Vec<&str> = both.iter().filter_map(|(name, _)| name.as_deref()).collect();
    assert_eq!(names.len(), 6, "{names:?}");
    assert_eq!(names[..2], ["backlog 5, rate x1.05", "backlog 5, rate x1.15"]);
    let rate = |side: &Side| side.at[RATE].0.to_string();
    assert_eq!(rate(&both[1].1.a), "x1.15");
    assert_eq!(judged_at("P4", &[0.5, 1.05]).len(), 3, "a short form lacks one of the rates");
    // Side b is at the lowest rate, which is no multiple.
    let climb = judged_at("P4-climb", &[0.5, 1.05, 1.15]);
    assert_eq!(climb[1].1.b.as_ref().map(rate).unwrap(), "min");
}

/// P12 ends at the limit of its own variant, which is below that of the fastest.
#[test]
fn a_claim_about_failures_ends_at_the_limit() {
    let experiment = crate::experiment::find("provos-overflow").unwrap();
    let claim = experiment.find_claim("P12").unwrap();
    let mut outcome = made_for(&experiment, claim, false, 0.0);
    outcome.dimensions = experiment.dimensions();
    outcome.dimensions.push(crate::plan::rate_dimension(&[5e3, 8.5e3, 1e4, 1.15e4]));
    let mut judged_at = |limit: Option<f64>| {
        outcome.saturation[0].cell.variant = "inplace".into();
        outcome.saturation[0].rps = limit;
        let points = at_operating_points(&outcome, claim);
        points.into_iter().filter_map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(judged_at(Some(9e3)), ["rate 5,000", "rate 8,500"]);
    assert_eq!(judged_at(Some(1e3)), ["rate 5,000"], "the lowest rate always counts");
    assert_eq!(judged_at(None).len(), 4, "an unknown limit excludes no rate");
}

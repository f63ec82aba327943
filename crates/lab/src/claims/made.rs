//! Outcomes and runs with artificial data, for the tests of verdicts.

use crate::{
    experiment::Experiment,
    plan::{Cell, Dimension},
    result::{Outcome, Run, Status, VariantOutcome},
};
use std::collections::BTreeMap;

/// Returns a valid run of one second.
pub(crate) fn run(cell: Cell, block: u32, metrics: BTreeMap<String, f64>) -> Run {
    Run {
        mechanism: cell.variant.clone(),
        cell,
        block,
        started_s: 0.0,
        window_s: 1.0,
        status: Status::Valid,
        reason: None,
        metrics,
        raw: Default::default(),
        commands: Vec::new(),
    }
}

/// Returns an outcome that is not yet concluded, in which all variants are available.
pub(crate) fn outcome(
    experiment: Experiment,
    quick: bool,
    dimensions: Vec<Dimension>,
    names: &[String],
    runs: Vec<Run>,
) -> Outcome {
    let variant = |name: &String| VariantOutcome {
        name: name.clone(),
        mechanism: name.clone(),
        unavailable: None,
    };
    let variants = names.iter().map(variant).collect();
    Outcome { quick, variants, dimensions, runs, ..Outcome::new(experiment) }
}

//! The controls of `provos-overflow`, on data without the overflow that they test for.

use super::*;
use crate::{experiment::Form, measure::Raw};
use serde_json::json;

/// Returns the verdicts of the controls if the server hands over this number of connections in a run:
/// `short` with the short queue, and `long` with the queue that has enough room.
fn controls(short: u64, long: u64) -> [Verdict; 2] {
    let quick = Form { quick: true, ..Form::default() };
    let experiment = crate::experiment::find("provos-overflow").unwrap().form(quick).unwrap();
    let mut dimensions = experiment.dimensions();
    dimensions.push(crate::plan::rate_dimension(&[20_000.0]));
    let last = crate::plan::points(&dimensions).pop().unwrap();
    let names = ["handoff", "handoff-long"].map(String::from);
    let of_block = |block: u32| {
        let last = &last;
        [(0, short), (1, long)].map(|(index, handed_over): (usize, u64)| {
            let handed_over = handed_over + if handed_over > 0 { u64::from(block) } else { 0 };
            let raw = Raw {
                before: json!({ "details": { "handed_over": 0 } }),
                after: json!({ "details": { "handed_over": handed_over } }),
                ..Raw::default()
            };
            let cell = Cell { variant: names[index].clone(), point: last.clone() };
            made::run(cell, block, raw.metrics())
        })
    };
    let runs = (0..6).flat_map(of_block).collect();
    let outcome = made::outcome(experiment.clone(), true, dimensions, &names, runs);
    ["P11-control", "P11-room"]
        .map(|id| judge_one(&outcome, experiment.find_claim(id).unwrap()).verdict)
}

#[test]
fn a_control_without_its_trigger_does_not_hold() {
    assert_eq!(controls(2_000, 0), [Verdict::Holds, Verdict::Holds]);
    // The bursts fit into the queue: nothing is handed over, and P11 would show nothing.
    assert_eq!(controls(0, 0), [Verdict::DoesNotHold, Verdict::Holds]);
    // The connections are handed over for another reason than the overflow.
    assert_eq!(controls(2_000, 2_000), [Verdict::Holds, Verdict::DoesNotHold]);
}

//! Where a claim is read, and how the machine differs from the paper's.

use crate::{
    claims,
    experiment::{
        Claim, Experiment, RATE, Side, Take, Value,
        soundness::{BACKLOG, CAPS},
    },
    format,
    plan::{Dimension, Point},
    result::Outcome,
};
use std::slice;

/// The server's listen backlog if no flag sets it.
const DEFAULT_BACKLOG: &str = "4,096";

/// Describes the operating point of a claim: its variants, and for each axis the value or the pair of values
/// that it compares.
pub(super) fn operating_point(outcome: &Outcome, claim: &Claim) -> String {
    let mut parts = vec![variants(claim)];
    parts.extend(outcome.dimensions.iter().map(|dimension| along(outcome, claim, dimension)));
    parts.extend(constant_caps(&outcome.experiment));
    parts.join("; ")
}

/// Returns the compared variants: `devpoll to poll`.
fn variants(claim: &Claim) -> String {
    let each = || claim.each.join(", ");
    let name = |side: &Side| {
        let name = side.variant.clone().unwrap_or_else(each);
        side.minus.as_ref().map_or(name.clone(), |minus| format!("{name} minus {minus}"))
    };
    let a = name(&claim.a);
    match claim.b.as_ref().map(name) {
        Some(b) if b != a => format!("{a} to {b}"),
        _ => a,
    }
}

fn along(outcome: &Outcome, claim: &Claim, dimension: &Dimension) -> String {
    let axis = dimension.name.as_str();
    let is_rate = axis == RATE;
    let is_judged_at_each = claim.operating_points.as_deref() == Some(axis);
    if is_judged_at_each || is_rate && !claim.operating_rates.is_empty() {
        let rates = claim.operating_rates.iter().filter(|rate| claims::has_rate(outcome, rate));
        let chosen = rates.map(|rate| rate.0.to_string());
        let chosen: Vec<String> = chosen.filter(|_| is_rate && !is_judged_at_each).collect();
        let all = claims::operating_values(outcome, claim, axis).iter();
        let all = all.map(|value| short(outcome, axis, value)).collect();
        let values = if chosen.is_empty() { all } else { chosen };
        return format!("{axis} {}", values.join(", "));
    }
    let text = |side: &Side| match side.take {
        Take::Max if side.over.iter().any(|over| over == axis) => format!("best {axis}"),
        Take::Each if side.over.iter().any(|over| over == axis) => format!("every {axis}"),
        _ => value(outcome, side, axis),
    };
    let a = text(&claim.a);
    match claim.b.as_ref().map(text) {
        Some(b) if b != a => format!("{a} to {b}"),
        _ => a,
    }
}

/// Returns the value of an axis at which a side is read: `idle 501`, `rate x1.05`.
fn value(outcome: &Outcome, side: &Side, axis: &str) -> String {
    let points = claims::points(outcome, side);
    let read = points.first().and_then(|point: &Point| point.get(axis));
    let read = read.map_or_else(|| "?".to_owned(), |value| short(outcome, axis, value));
    format!("{axis} {read}")
}

/// Formats a value of an axis; a rate that is a multiple of the reference limit is shown as that multiple.
fn short(outcome: &Outcome, axis: &str, value: &Value) -> String {
    let multiple = || {
        let rate = outcome.experiment.rate.as_ref().filter(|rate| rate.reference.is_some())?;
        let is_it = |of: &&f64| claims::rate_of(outcome, **of, slice::from_ref(value)).is_some();
        rate.fractions.iter().find(is_it).map(|of| format!("x{of}"))
    };
    let multiple = (axis == RATE).then(multiple).flatten();
    multiple.unwrap_or_else(|| format::value(value))
}

/// Returns the caps that are the same in all runs.
fn constant_caps(experiment: &Experiment) -> Vec<String> {
    let flags = [&experiment.load, &experiment.server];
    let caps = flags.into_iter().flatten().filter(|(flag, _)| CAPS.contains(&flag.as_str()));
    caps.map(|(flag, value)| format!("{flag} {}", format::value(value))).collect()
}

/// Describes the machine of a run, as far as it differs from the machines of the papers.
pub(super) fn machine(outcome: &Outcome) -> String {
    facts(outcome).join(", ")
}

/// Returns the part of a machine that a page has not said of all machines: nothing, what this one has beside
/// `common`, or everything if it lacks a part of that. A machine without a listen backlog has it as an axis.
pub(super) fn beside(facts: &[String], common: &[String]) -> String {
    let is_backlog = |fact: &&String| fact.starts_with(BACKLOG);
    let lacks = common.iter().any(|fact| !facts.contains(fact) && !is_backlog(&fact));
    let own = facts.iter().filter(|fact| lacks || !common.contains(fact));
    own.map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Returns what differs from the machines of the papers, one fact each.
pub(super) fn facts(outcome: &Outcome) -> Vec<String> {
    let Outcome { environment, experiment, .. } = outcome;
    let is_shared = environment.pinned.is_some_and(|cpus| cpus.server == cpus.generator);
    let mut parts = Vec::new();
    match (&environment.guest, environment.guest_mips) {
        (Some(_), Some(mips)) => {
            parts.push(format!("emulated CPU of {mips} million instructions/s"));
        }
        (Some(_), None) => parts.push("emulated CPU".to_owned()),
        (None, _) => parts.push("loopback on one machine".to_owned()),
    }
    if is_shared {
        parts.push("shared with the generator".to_owned());
    }
    let flags = [&experiment.load, &experiment.server];
    let has_flag = flags.iter().any(|flags| flags.contains_key(BACKLOG));
    let is_axis = experiment.axis.iter().any(|axis| axis.name == BACKLOG);
    let has_server = experiment.workload.is_some();
    if has_server && !has_flag && !is_axis {
        parts.push(format!("{BACKLOG} {DEFAULT_BACKLOG}"));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::find, plan::rate_dimension};

    fn outcome(id: &str, rates: &[f64]) -> Outcome {
        let mut outcome = Outcome::new(find(id).unwrap());
        outcome.dimensions.push(rate_dimension(rates));
        outcome
    }

    #[test]
    fn a_claim_names_what_it_compares_and_where() {
        let point = |id: &str, of: &str| {
            let outcome = outcome(id, &[500.0, 1_100.0]);
            let claim = outcome.experiment.find_claim(of).unwrap();
            operating_point(&outcome, claim)
        };
        assert_eq!(point("provos-fig4-9", "P1"), "poll; idle 501 to idle 1; best rate");
        assert_eq!(point("provos-fig4-9", "P2-poll"), "devpoll to poll; idle 251; best rate");
        let capped = point("gammo-fig5-6", "G3");
        assert_eq!(capped, "poll; idle 10,000 to idle 0; at-once 8, 64, 512, 16,000; rate 1,100");
    }

    #[test]
    fn a_rate_is_shown_as_a_multiple_of_the_reference() {
        let mut outcome = outcome("provos-fig10", &[500.0, 1_050.0, 1_150.0, 1_300.0]);
        let cell = crate::plan::Cell { variant: "poll".into(), point: Point::new() };
        let raw = crate::measure::Raw::default();
        let probe = crate::result::Saturation { cell, rps: Some(1_000.0), note: None, raw };
        outcome.saturation.push(probe);
        let point = |of: &str| {
            let claim = outcome.experiment.find_claim(of).unwrap();
            operating_point(&outcome, claim)
        };
        assert_eq!(point("P4"), "poll; idle 501; backlog 5, 128, 4,096; rate x1.05, x1.15");
        assert_eq!(point("P4-control"), "poll; idle 501; backlog 5, 128, 4,096; rate x1.3");
    }

    #[test]
    fn a_machine_is_described_as_far_as_it_is_another_one() {
        let facts = |text: &str| text.split(", ").map(str::to_owned).collect::<Vec<_>>();
        let common = facts("an emulated CPU, one CPU for both, backlog 4,096");
        let of = |text: &str| beside(&facts(text), &common);
        assert_eq!(of("an emulated CPU, one CPU for both, backlog 4,096"), "");
        assert_eq!(of("an emulated CPU, one CPU for both"), "", "the backlog is an axis");
        let share = "an emulated CPU, one CPU for both, a share of 0.28, backlog 4,096";
        assert_eq!(of(share), "a share of 0.28");
        assert_eq!(of("loopback, backlog 4,096"), "loopback, backlog 4,096");
    }

    #[test]
    fn the_machine_of_a_guest_and_of_the_host() {
        let mut outcome = outcome("provos-fig4-9", &[500.0]);
        assert_eq!(machine(&outcome), "loopback on one machine, backlog 4,096");
        outcome.environment.guest = Some("6.1".into());
        outcome.environment.guest_mips = Some(250);
        let guest = "emulated CPU of 250 million instructions/s, backlog 4,096";
        assert_eq!(machine(&outcome), guest);
        let outcome = self::outcome("provos-fig10", &[500.0]);
        assert_eq!(machine(&outcome), "loopback on one machine");
    }
}

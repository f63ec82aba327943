//! Judges the papers' claims.
//!
//! A claim compares two sides of the experiment inside each block, takes the median over the
//! blocks with its bootstrap interval ([`crate::stats`]), and holds the interval against a
//! threshold. An interval that lies across the threshold decides nothing, and too few blocks have
//! no interval. Nor does a reply rate decide a claim where all that was offered was answered
//! (`limit`).

mod limit;

use crate::{
    experiment::{Claim, Side, Take, Threshold},
    plan::Point,
    result::Outcome,
    stats::{self, Estimate},
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The whole interval lies where the claim says.
    #[serde(rename = "holds")]
    Holds,
    /// The whole interval lies on the other side.
    #[serde(rename = "does not hold")]
    DoesNotHold,
    /// The interval lies across the threshold, there are no data, or a server whose higher reply
    /// rate might change the verdict answered all it was offered.
    #[serde(rename = "undecided")]
    Undecided,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::Undecided => "undecided",
        })
    }
}

/// A claim as judged for one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The variant.
    pub variant: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The figure with its interval, when there are data.
    pub estimate: Option<Estimate>,
    /// Why there are none, or why they do not decide.
    pub note: Option<String>,
}

/// A claim as judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimOutcome {
    /// The claim's number.
    pub id: String,
    /// What is claimed.
    pub statement: String,
    /// *Holds* when it holds for every variant that could be measured.
    pub verdict: Verdict,
    /// The figure of the part that decides: the one nearest to failing.
    pub value: Option<f64>,
    /// Its interval's lower end.
    pub low: Option<f64>,
    /// Its interval's upper end.
    pub high: Option<f64>,
    /// The paper's own number, in the same unit.
    pub paper: Option<f64>,
    /// The paper's own words.
    pub paper_says: String,
    /// When it holds.
    pub threshold: Threshold,
    /// Variant by variant.
    pub parts: Vec<Part>,
}

impl Threshold {
    /// The verdict on an estimate.
    pub fn verdict(self, estimate: &Estimate) -> Verdict {
        let (Some(low), Some(high)) = (estimate.low, estimate.high) else {
            return Verdict::Undecided;
        };
        let (holds, fails) = match self {
            Self::Above(limit) => (low > limit, high <= limit),
            Self::Below(limit) => (high < limit, low >= limit),
        };
        match (holds, fails) {
            (true, _) => Verdict::Holds,
            (_, true) => Verdict::DoesNotHold,
            _ => Verdict::Undecided,
        }
    }

    /// How far the estimate is on the right side; the part with the least decides the claim.
    fn margin(self, estimate: &Estimate) -> f64 {
        match self {
            Self::Above(limit) => estimate.low.unwrap_or(estimate.value) - limit,
            Self::Below(limit) => limit - estimate.high.unwrap_or(estimate.value),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Above(limit) => write!(f, "> {limit}"),
            Self::Below(limit) => write!(f, "< {limit}"),
        }
    }
}

/// Judges every claim of the experiment.
pub fn judge(outcome: &Outcome) -> Vec<ClaimOutcome> {
    outcome.experiment.claim.iter().map(|claim| judge_one(outcome, claim)).collect()
}

fn judge_one(outcome: &Outcome, claim: &Claim) -> ClaimOutcome {
    let parts: Vec<Part> =
        claim.each.iter().map(|variant| judge_part(outcome, claim, variant)).collect();
    let measured: Vec<(&Part, &Estimate)> =
        parts.iter().filter_map(|part| Some((part, part.estimate.as_ref()?))).collect();
    let verdict = if measured.iter().any(|(part, _)| part.verdict == Verdict::DoesNotHold) {
        Verdict::DoesNotHold
    } else if !measured.is_empty() && measured.iter().all(|(p, _)| p.verdict == Verdict::Holds) {
        Verdict::Holds
    } else {
        Verdict::Undecided
    };
    let deciding = measured
        .iter()
        .map(|(_, estimate)| *estimate)
        .min_by(|a, b| claim.holds.margin(a).total_cmp(&claim.holds.margin(b)));
    ClaimOutcome {
        id: claim.id.clone(),
        statement: claim.statement.clone(),
        verdict,
        value: deciding.map(|estimate| estimate.value),
        low: deciding.and_then(|estimate| estimate.low),
        high: deciding.and_then(|estimate| estimate.high),
        paper: claim.paper_value,
        paper_says: claim.paper.clone(),
        threshold: claim.holds,
        parts,
    }
}

fn judge_part(outcome: &Outcome, claim: &Claim, variant: &str) -> Part {
    let blocks = outcome.runs.iter().map(|run| run.block + 1).max().unwrap_or(0);
    let a = points(outcome, &claim.a);
    let b = claim.b.as_ref().map(|side| points(outcome, side));
    let pair = |block| {
        let left = side_value(outcome, claim, &claim.a, variant, &a, block);
        let right =
            claim.b.as_ref().zip(b.as_ref()).and_then(|(side, points)| {
                side_value(outcome, claim, side, variant, points, block)
            });
        (left, right)
    };
    let pairs: Vec<(Option<f64>, Option<f64>)> = (0..blocks).map(pair).collect();
    let estimate = stats::paired(pairs.iter().copied(), claim.compare, outcome.seed);
    let mut verdict = estimate.as_ref().map_or(Verdict::Undecided, |e| claim.holds.verdict(e));
    let note = if estimate.is_none() {
        Some(match pairs.iter().any(|(a, b)| a.and(*b).is_some()) {
            true => format!("{} is 0 on one side: there is no ratio", claim.metric),
            false => why_missing(outcome, claim, variant),
        })
    } else {
        let undriven = limit::undriven(outcome, claim, variant, verdict);
        if undriven.is_some() {
            verdict = Verdict::Undecided;
        }
        undriven
    };
    Part { variant: variant.to_owned(), verdict, note, estimate }
}

/// The points that a side speaks of: one, or all along `over`.
fn points(outcome: &Outcome, side: &Side) -> Vec<Point> {
    outcome.dimensions.iter().fold(vec![Point::new()], |points, dimension| {
        let values: Vec<_> = if side.over.contains(&dimension.name) {
            dimension.values.iter().collect()
        } else if let Some(select) = side.at.get(&dimension.name) {
            select.among(&dimension.values).into_iter().collect()
        } else {
            // Validated: an axis that is not named has one value. The rate may have several when
            // it comes from the paper; its last is the highest.
            dimension.values.last().into_iter().collect()
        };
        points
            .iter()
            .flat_map(|point| {
                values.iter().map(|&value| {
                    let mut point = point.clone();
                    point.insert(dimension.name.clone(), value.clone());
                    point
                })
            })
            .collect()
    })
}

fn side_value(
    outcome: &Outcome,
    claim: &Claim,
    side: &Side,
    variant: &str,
    points: &[Point],
    block: u32,
) -> Option<f64> {
    let variant = side.variant.as_deref().unwrap_or(variant);
    let metric = side.metric.as_ref().unwrap_or(&claim.metric);
    let value = |variant: &str, point: &Point| {
        // A run that did not count may have been made again.
        let runs = outcome.runs.iter().filter(|run| {
            run.block == block && run.cell.variant == variant && run.cell.point == *point
        });
        runs.filter_map(|run| run.metric(metric)).next()
    };
    let values: Option<Vec<f64>> = points
        .iter()
        .map(|point| {
            let taken_off = side.minus.as_ref().map_or(Some(0.0), |minus| value(minus, point));
            Some(value(variant, point)? - taken_off?)
        })
        .collect();
    let values = values?;
    match side.take {
        Take::Max => values.into_iter().max_by(f64::total_cmp),
        Take::Min => values.into_iter().min_by(f64::total_cmp),
        Take::Median => stats::median(&values),
    }
}

fn why_missing(outcome: &Outcome, claim: &Claim, variant: &str) -> String {
    let sides = [Some(&claim.a), claim.b.as_ref()];
    let names = sides.into_iter().flatten().flat_map(|side| {
        let name = side.variant.as_deref().unwrap_or(variant);
        std::iter::once(name).chain(side.minus.as_deref()).map(move |name| (side, name))
    });
    for (side, name) in names {
        match outcome.variants.iter().find(|v| v.name == name) {
            None => return format!("{name} was not run"),
            Some(v) => {
                if let Some(reason) = &v.unavailable {
                    return format!("{name}: {reason}");
                }
            }
        }
        for point in points(outcome, side) {
            match outcome.cell(name, &point) {
                Some(cell) if cell.valid == 0 => {
                    return cell.reason.clone().unwrap_or_else(|| "no run counts".into());
                }
                None => return format!("{name} was not measured there"),
                _ => {}
            }
        }
    }
    format!("the runs have no {}", claim.metric)
}

#[cfg(test)]
mod tests;

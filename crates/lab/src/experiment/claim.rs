//! Claims: predicates over the data of an experiment.

use super::value::Select;
use crate::statistics::{Compare, Estimate};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// One claim of a paper, as a predicate over the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Claim {
    /// Its number in `docs/papers.md`.
    pub id: String,
    /// What is claimed, in terms of what is measured here.
    pub statement: String,
    /// Which paper and figure says so; without one, this laboratory does.
    #[serde(default = "this_laboratory")]
    pub source: String,
    /// The paper's own words or number, for people.
    #[serde(default = "not_in_the_papers")]
    pub paper: String,
    /// The paper's own number in the unit of the comparison, if it gives one.
    pub paper_value: Option<f64>,
    /// The metric compared.
    pub metric: String,
    /// How.
    #[serde(default)]
    pub compare: Compare,
    /// The variants for which it is judged, each by itself; the claim holds if it holds for each.
    pub each: Vec<String>,
    /// The side compared.
    #[serde(default)]
    pub a: Side,
    /// What it is compared with; not for `compare = "value"`.
    pub b: Option<Side>,
    /// When it holds.
    pub holds: Threshold,
    /// Whether it is the one claim that stands for a figure of the paper. The primary claims of a
    /// paper share one error, and an experiment goes on until they are decided.
    #[serde(default)]
    pub primary: bool,
    /// An axis whose values are operating points that can each be defended. The claim is judged at every value, on
    /// both sides; where one says yes and another no, it *depends*.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_points: Option<String>,
    /// The claim of the same experiment which shows that this one could have come out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
}

fn this_laboratory() -> String {
    "this laboratory".into()
}

fn not_in_the_papers() -> String {
    "not in the papers".into()
}

/// The papers, as `source` of a claim names them.
pub const PAPERS: [&str; 4] = ["provos", "mail", "gammo", "zerohttpd"];

impl Claim {
    /// The paper that it is taken from; none for what goes beyond the papers.
    pub fn paper_key(&self) -> Option<&'static str> {
        let first = self.source.split(|c: char| !c.is_ascii_alphabetic()).next();
        PAPERS.into_iter().find(|paper| Some(*paper) == first)
    }

    /// Whether `other` compares the same data with the same threshold.
    pub(super) fn compares_as(&self, other: &Self) -> bool {
        let same_data = self.metric == other.metric && self.each == other.each;
        let same_sides = self.a == other.a && self.b == other.b;
        same_data && same_sides && self.compare == other.compare && self.holds == other.holds
    }
}

/// One side of a comparison: a cell, or several summed up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Side {
    /// The variant; that of `each` when absent.
    pub variant: Option<String>,
    /// A variant whose figure is taken off: what the one costs more than the other.
    pub minus: Option<String>,
    /// The metric; the claim's when absent.
    pub metric: Option<String>,
    /// The values of the axes. An axis with a single value need not be named.
    #[serde(default)]
    pub at: BTreeMap<String, Select>,
    /// Sum up over these axes, inside each block …
    #[serde(default)]
    pub over: Vec<String>,
    /// … to this.
    #[serde(default)]
    pub take: Take,
    /// Of the rates those of the paper alone, where some of this run are: its claims do not speak of those beyond.
    #[serde(default, skip_serializing_if = "is_false")]
    pub paper_rates: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// How the cells along an axis become one figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Take {
    /// The largest: the peak of a throughput curve.
    #[default]
    Max,
    /// None of them: each point is judged by itself, and the claim holds if it holds at every point. For
    /// claims about all points, such as that nothing fails anywhere.
    Each,
}

/// When a claim holds: the figures lie there by more than chance. It does not hold when they lie on
/// the other side by more than chance, and is undecided otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threshold {
    /// Above it.
    Above(f64),
    /// Below it.
    Below(f64),
    /// Between the two: as good as, with the margin that counts as nothing.
    Within([f64; 2]),
}

impl Threshold {
    /// Whether all its limits are positive, so that figures may be compared by their logarithms.
    pub fn is_positive(self) -> bool {
        match self {
            Self::Above(limit) | Self::Below(limit) | Self::Within([limit, _]) => limit > 0.0,
        }
    }

    /// Whether a figure that were known exactly would hold.
    pub(crate) fn has(self, value: f64) -> bool {
        match self {
            Self::Above(limit) => value > limit,
            Self::Below(limit) => value < limit,
            Self::Within([least, most]) => (least..=most).contains(&value),
        }
    }

    /// Whether `value` is where it ends, or one of its ends.
    pub(crate) fn has_end(self, value: f64) -> bool {
        match self {
            Self::Above(limit) | Self::Below(limit) => value == limit,
            Self::Within(ends) => ends.contains(&value),
        }
    }

    /// How far the estimate is on the right side; the part with the least decides the claim.
    pub(crate) fn margin(self, estimate: &Estimate) -> f64 {
        let low = estimate.low.unwrap_or(estimate.value);
        let high = estimate.high.unwrap_or(estimate.value);
        match self {
            Self::Above(limit) => low - limit,
            Self::Below(limit) => limit - high,
            Self::Within([least, most]) => (low - least).min(most - high),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Above(limit) => write!(f, "> {limit}"),
            Self::Below(limit) => write!(f, "< {limit}"),
            Self::Within([low, high]) => write!(f, "{low} to {high}"),
        }
    }
}

//! Claims: predicates over the data of an experiment.

use super::value::Select;
use crate::statistics::{Compare, Estimate};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, iter};

/// One claim of a paper, as a predicate over the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Claim {
    /// The claim's number in `docs/papers.md`.
    pub id: String,
    /// The claim in terms of the metrics that are measured here.
    pub statement: String,
    /// The paper and the figure that make the claim; if absent, this laboratory makes it.
    #[serde(default = "this_laboratory")]
    pub source: String,
    /// The paper's own words or number, for readers.
    #[serde(default = "not_in_the_papers")]
    pub paper: String,
    /// The paper's own number in the unit of the comparison, if it gives one.
    pub paper_value: Option<f64>,
    /// The compared metric.
    pub metric: String,
    /// The way in which the sides are compared.
    #[serde(default)]
    pub compare: Compare,
    /// The variants for which the claim is judged separately. It holds if it holds for each of them.
    pub each: Vec<String>,
    /// The first side.
    #[serde(default)]
    pub a: Side,
    /// The second side, with which the first is compared; absent for `compare = "value"`.
    pub b: Option<Side>,
    /// The condition under which the claim holds.
    pub holds: Threshold,
    /// Whether this claim represents a figure of the paper. The primary claims of a paper share one error,
    /// and an experiment continues until they are decided.
    #[serde(default)]
    pub primary: bool,
    /// An axis whose values are operating points that can each be defended. The claim is judged at every
    /// value, on both sides; if it holds at one and does not hold at another, its verdict is *depends*.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_points: Option<String>,
    /// Whether the operating points, which are rates, end at the limit of the claim's variants, as it was found
    /// before the run. For a claim about failures: beyond its limit every server lets requests fail.
    #[serde(default, skip_serializing_if = "is_false")]
    pub up_to_limit: bool,
    /// Multiples of the reference limit at which the claim is also judged: a side whose rate is such a
    /// multiple is read at each of them. They are operating points like those of `operating_points`. A form
    /// that lacks one of these rates is judged at the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operating_rates: Vec<Select>,
    /// The claim of the same experiment that shows that this claim could have had another outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
}

fn this_laboratory() -> String {
    "this laboratory".into()
}

fn not_in_the_papers() -> String {
    "not in the papers".into()
}

/// The papers, by the name in the `source` of a claim.
pub const PAPERS: [&str; 4] = ["provos", "mail", "gammo", "zerohttpd"];

impl Claim {
    /// Returns the paper that makes the claim; none for a claim beyond the papers.
    pub fn paper_key(&self) -> Option<&'static str> {
        let first = self.source.split(|c: char| !c.is_ascii_alphabetic()).next();
        PAPERS.into_iter().find(|paper| Some(*paper) == first)
    }

    /// Returns the sides that the claim has: a, and b if it is compared with something.
    pub(crate) fn sides(&self) -> impl Iterator<Item = &Side> {
        iter::once(&self.a).chain(&self.b)
    }

    /// Returns the same sides to be changed.
    pub(crate) fn sides_mut(&mut self) -> impl Iterator<Item = &mut Side> {
        iter::once(&mut self.a).chain(&mut self.b)
    }

    /// Whether `other` compares the same data with the same threshold as this claim.
    pub(super) fn compares_as(&self, other: &Self) -> bool {
        let same_data = self.metric == other.metric && self.each == other.each;
        let same_sides = self.a == other.a && self.b == other.b;
        let same_points = self.operating_points == other.operating_points
            && self.operating_rates == other.operating_rates
            && self.up_to_limit == other.up_to_limit;
        same_data
            && same_sides
            && same_points
            && self.compare == other.compare
            && self.holds == other.holds
    }
}

/// One side of a comparison: a cell, or several cells combined.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Side {
    /// The variant; if absent, the one of `each`.
    pub variant: Option<String>,
    /// A variant whose figure is subtracted: the difference is the extra cost of the first variant.
    pub minus: Option<String>,
    /// The metric; if absent, the claim's.
    pub metric: Option<String>,
    /// The values of the axes. An axis with a single value need not be named.
    #[serde(default)]
    pub at: BTreeMap<String, Select>,
    /// The axes over which the cells are combined, inside each block.
    #[serde(default)]
    pub over: Vec<String>,
    /// The way in which these cells are combined.
    #[serde(default)]
    pub take: Take,
    /// Uses only the paper's rates, if the run has some of them: the paper's claims do not cover the rates
    /// beyond them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub paper_rates: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The way in which the cells along an axis are combined into one figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Take {
    /// The largest: the peak of a throughput curve.
    #[default]
    Max,
    /// No combination: each point is judged separately, and the claim holds if it holds at every point. For
    /// claims about all points, such as that no request fails at any of them.
    Each,
}

/// The condition under which a claim holds: the figures are in this range by more than chance. It does not
/// hold when they are outside by more than chance, and is undecided otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threshold {
    /// Above this value.
    Above(f64),
    /// Below this value.
    Below(f64),
    /// Between the two values: equal, within a margin of irrelevant differences.
    Within([f64; 2]),
}

impl Threshold {
    /// Whether all limits are positive, so that figures can be compared by their logarithms.
    pub fn is_positive(self) -> bool {
        match self {
            Self::Above(limit) | Self::Below(limit) | Self::Within([limit, _]) => limit > 0.0,
        }
    }

    /// Whether a figure without uncertainty would fulfil the condition.
    pub(crate) fn has(self, value: f64) -> bool {
        match self {
            Self::Above(limit) => value > limit,
            Self::Below(limit) => value < limit,
            Self::Within([least, most]) => (least..=most).contains(&value),
        }
    }

    /// Whether `value` is a limit.
    pub(crate) fn has_end(self, value: f64) -> bool {
        match self {
            Self::Above(limit) | Self::Below(limit) => value == limit,
            Self::Within(ends) => ends.contains(&value),
        }
    }

    /// How far the estimate is inside the range. The part with the smallest margin decides the claim.
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

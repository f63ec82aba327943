//! Verdicts as data: the outcome of a claim, of each of its variants, and what keeps it open.
//!
//! How they are reached is in [`crate::claims`].

use crate::{
    experiment::{Threshold, Value},
    format,
    statistics::{Estimate, Interval},
};
use serde::{Deserialize, Serialize};
use std::{fmt, iter};

/// Above this number of blocks a claim counts as undecidable.
pub(crate) const MAX_BLOCKS: usize = 1_000;

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The figures lie where the claim says, by more than chance.
    #[serde(rename = "holds")]
    Holds,
    /// They lie on the other side, by more than chance.
    #[serde(rename = "does not hold")]
    DoesNotHold,
    /// Chance may have put them where they are, or the figure was at a limit that is not the server's.
    #[serde(rename = "undecided")]
    Undecided,
    /// There are figures, of too few blocks to decide anything.
    #[serde(rename = "seen, not decided")]
    Seen,
    /// Something that the claim speaks of is not there: a mechanism, or room for its connections.
    #[serde(rename = "not testable here")]
    NotTestable,
    /// It holds at one operating point that can be defended, and not at another.
    #[serde(rename = "depends")]
    Depends,
}

impl Verdict {
    /// Every one, in the order in which a summary counts them.
    pub(crate) const ALL: [Self; 6] = [
        Self::Holds,
        Self::DoesNotHold,
        Self::Undecided,
        Self::Seen,
        Self::NotTestable,
        Self::Depends,
    ];

    /// What a sentence about one claim says, and one about several.
    pub(crate) fn predicate(self) -> (&'static str, &'static str) {
        match self {
            Self::Holds => ("holds", "hold"),
            Self::DoesNotHold => ("does not hold", "do not hold"),
            Self::Undecided => ("is undecided", "are undecided"),
            Self::Seen => ("is seen, not decided", "are seen, not decided"),
            Self::NotTestable => ("is not testable here", "are not testable here"),
            Self::Depends => ("depends on the operating point", "depend on the operating point"),
        }
    }

    /// Whether it says yes or no.
    pub fn is_decided(self) -> bool {
        matches!(self, Self::Holds | Self::DoesNotHold)
    }

    /// Whether more blocks might make it yes or no.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Undecided | Self::Seen)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::Undecided => "undecided",
            Self::Seen => "seen, not decided",
            Self::NotTestable => "not testable here",
            Self::Depends => "depends",
        })
    }
}

/// A claim as judged for one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The variant.
    pub variant: String,
    /// The operating point, where the claim is judged at several: `at-once 64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_point: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// The figure with its interval, when there are data.
    pub estimate: Option<Estimate>,
    /// Of a reply rate where the generator has a part of the server's CPU: the same by what the server alone
    /// spends on a reply. Such a claim is decided where both say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<Estimate>,
    /// The interval that decides: wider than the other, the earlier the experiment looked.
    #[serde(default)]
    pub deciding: Option<Interval>,
    /// The probability of figures that speak as clearly if the truth were at the threshold, over all
    /// looks.
    #[serde(default)]
    pub p: Option<f64>,
    /// When the figure is a bound: the server was at the limit of its CPU.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// Why there are no data, why they do not decide, or what to know of them.
    pub note: Option<String>,
    /// Where it is open: what it would take to decide it. None where more blocks would change nothing, for
    /// the reason that the note says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
    /// More blocks would change nothing: it lies at a limit, or something is not there.
    #[serde(skip)]
    pub(crate) is_final: bool,
}

/// A claim as judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimOutcome {
    /// The claim's number.
    pub id: String,
    /// What is claimed.
    pub statement: String,
    /// *Holds* when it holds for every variant that it names.
    pub verdict: Verdict,
    /// The figure of the part that decides: the one nearest to failing.
    pub value: Option<f64>,
    /// Its interval's lower end.
    pub low: Option<f64>,
    /// Its interval's upper end.
    pub high: Option<f64>,
    /// Whether that figure is a bound.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// The paper's own number, in the same unit.
    pub paper: Option<f64>,
    /// The paper's own words.
    pub paper_says: String,
    /// When it holds.
    pub threshold: Threshold,
    /// Whether it is the one claim that stands for a figure of a paper.
    #[serde(default)]
    pub primary: bool,
    /// The probability of figures that speak as clearly if the truth were at the threshold.
    #[serde(default)]
    pub p: Option<f64>,
    /// The same, adjusted for all primary claims of the paper in this run (`holm`).
    #[serde(default)]
    pub p_with_all: Option<f64>,
    /// Variant by variant.
    pub parts: Vec<Part>,
}

impl Part {
    /// A part of which nothing is known yet.
    pub(crate) fn open(variant: &str) -> Self {
        Self {
            variant: variant.to_owned(),
            operating_point: None,
            verdict: Verdict::Undecided,
            estimate: None,
            alone: None,
            deciding: None,
            p: None,
            bound: None,
            note: None,
            outlook: None,
            is_final: false,
        }
    }

    /// The variant with its operating point.
    pub fn name(&self) -> String {
        let point = self.operating_point.iter().map(|point| format!(" at {point}"));
        iter::once(self.variant.clone()).chain(point).collect()
    }

    /// Why there are no data or they do not decide, what to know of them, and what it would take.
    pub fn why(&self) -> Option<String> {
        let outlook = self.outlook.map(|outlook| outlook.to_string());
        let why: Vec<String> = self.note.clone().into_iter().chain(outlook).collect();
        (!why.is_empty()).then(|| why.join("; "))
    }
}

impl ClaimOutcome {
    /// The part whose figure is the claim's.
    pub fn deciding(&self) -> Option<&Part> {
        let is_it = |part: &&Part| part.estimate.is_some_and(|it| Some(it.value) == self.value);
        self.parts.iter().find(is_it)
    }

    /// Why it is open, if it is, and what it would take to decide it; else what to know of the verdict, as the
    /// blocks that lack a side. In words, of each variant that the verdict comes from. Where it depends: what each
    /// operating point says.
    pub fn remark(&self) -> Option<String> {
        let is_of = |part: &&Part| match self.verdict {
            Verdict::NotTestable => false,
            Verdict::Depends => true,
            verdict => part.verdict == verdict || verdict.is_open() && part.verdict.is_open(),
        };
        let text = |part: &Part| {
            let reading = part.estimate.as_ref().map(format::interval_of);
            let reading = reading.filter(|_| self.verdict == Verdict::Depends);
            let verdict = reading.map(|reading| format!("{} ({reading})", part.verdict));
            let why: Vec<String> = verdict.into_iter().chain(part.why()).collect();
            let why = (!why.is_empty()).then(|| why.join("; "))?;
            let name = part.name();
            Some(if self.parts.len() > 1 { format!("{name}: {why}") } else { why })
        };
        let remarks: Vec<String> = self.parts.iter().filter(is_of).filter_map(text).collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }

    /// The figure with its interval, or with what was seen; `None` without a figure.
    pub fn measured(&self) -> Option<String> {
        let interval = self.interval_text();
        let space = if interval.is_empty() { "" } else { " " };
        Some(format!("{}{}{space}{interval}", Bound::sign(self.bound), format::number(self.value?)))
    }

    /// The interval alone.
    pub fn interval_text(&self) -> String {
        let estimate = self.deciding().and_then(|part| part.estimate);
        let ends = || format::ends(self.low, self.high);
        estimate.map_or_else(ends, |estimate| format::interval(&estimate))
    }
}

/// A figure that is no more than a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The true one is at least so large.
    AtLeast,
    /// The true one is at most so large.
    AtMost,
}

impl Bound {
    /// What stands before the figure.
    pub fn sign(bound: Option<Self>) -> &'static str {
        match bound {
            Some(Self::AtLeast) => "> ",
            Some(Self::AtMost) => "< ",
            None => "",
        }
    }
}

/// What it would take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outlook {
    /// About so many blocks in all, if they are as those that were made.
    Blocks(usize),
    /// At least so many: one block says nothing of the noise.
    AtLeast(usize),
    /// The claim is which of two is larger, and they are equal within this many per cent: no number of
    /// blocks decides it.
    EqualWithinPercent(f64),
    /// The figure stands at the threshold in every block.
    OnThreshold,
    /// The figure is so near to the threshold that no number of blocks decides it that anyone makes.
    AtThreshold,
}

fn in_full(blocks: usize) -> String {
    format::value(&Value::Number(blocks as f64))
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks(blocks) => {
                write!(f, "about {} blocks would decide it", in_full(*blocks))
            }
            Self::AtLeast(blocks) => write!(f, "a verdict needs at least {blocks} blocks"),
            Self::EqualWithinPercent(percent) => write!(
                f,
                "both sides are equal within {percent:.1} %: no number of blocks can decide which is larger"
            ),
            Self::OnThreshold => f.write_str(
                "the result is at the threshold in every block: no number of blocks can decide it",
            ),
            Self::AtThreshold => write!(
                f,
                "the result is so near to the threshold that {} blocks would not decide it",
                in_full(MAX_BLOCKS)
            ),
        }
    }
}

impl Outlook {
    /// What it takes where both things are to be decided: what takes more.
    pub(crate) fn longest(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let blocks = |outlook: &Self| match outlook {
            Self::Blocks(blocks) | Self::AtLeast(blocks) => *blocks,
            _ => usize::MAX,
        };
        one.into_iter().chain(other).max_by_key(blocks)
    }
}

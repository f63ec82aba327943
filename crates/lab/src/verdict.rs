//! Verdicts as data: the outcome of a claim, of each of its variants, and the reasons why it is undecided.
//!
//! [`crate::claims`] describes how verdicts are reached.

use crate::{
    experiment::Threshold,
    format, metric,
    statistics::{Compare, Estimate, Interval},
};
use serde::{Deserialize, Serialize};
use std::{fmt, iter};

/// Above this number of blocks a claim counts as undecidable.
pub(crate) const MAX_BLOCKS: usize = 1_000;

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The figures fulfil the claim, by more than chance.
    #[serde(rename = "holds")]
    Holds,
    /// The figures contradict the claim, by more than chance.
    #[serde(rename = "does not hold")]
    DoesNotHold,
    /// The figures may be due to chance, or the figure was at a limit that is not the server's.
    #[default]
    #[serde(rename = "undecided")]
    Undecided,
    /// There are figures, but of too few blocks to decide the claim.
    #[serde(rename = "seen, not decided")]
    Seen,
    /// A part of the claim is not available: a mechanism, or capacity for its connections.
    #[serde(rename = "not testable here")]
    NotTestable,
    /// The claim holds at one operating point that can be defended, and does not hold at another.
    #[serde(rename = "depends")]
    Depends,
}

impl Verdict {
    /// Every verdict, in the order in which a summary counts them.
    pub(crate) const ALL: [Self; 6] = [
        Self::Holds,
        Self::DoesNotHold,
        Self::Undecided,
        Self::Seen,
        Self::NotTestable,
        Self::Depends,
    ];

    /// Returns the predicate of a sentence about one claim, and about several.
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

    /// Whether the claim holds or does not hold.
    pub fn is_decided(self) -> bool {
        matches!(self, Self::Holds | Self::DoesNotHold)
    }

    /// Whether more blocks might decide the claim.
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

/// The verdict on a claim for one variant; by default a part without data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The variant.
    pub variant: String,
    /// The operating point, if the claim is judged at several: `at-once 64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_point: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// The figure with its interval, if there are data.
    pub estimate: Option<Estimate>,
    /// For a reply rate while the generator shares the server's CPU: the same comparison with the CPU time
    /// that the server alone spends on a reply. Such a claim is decided only if both comparisons agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<Estimate>,
    /// The interval that decides: the earlier the experiment looked at the data, the wider it is than the
    /// other.
    #[serde(default)]
    pub deciding: Option<Interval>,
    /// The probability of figures at least as clear as these if the true value were at the threshold, over
    /// all looks.
    #[serde(default)]
    pub p: Option<f64>,
    /// The kind of bound, if the figure is one because the server was at the limit of its CPU.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// Why there are no data, why they do not decide the claim, or a remark on them.
    pub note: Option<String>,
    /// For an undecided claim: the data that would decide it. None if more blocks would not change the
    /// verdict, for the reason in the note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
    /// Whether more blocks would not change the verdict: the figure is at a limit, or a part is not
    /// available.
    #[serde(skip)]
    pub(crate) is_final: bool,
}

/// The verdict on a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimOutcome {
    /// The claim's number.
    pub id: String,
    /// The claim in words.
    pub statement: String,
    /// The verdict: *holds* if the claim holds for every variant that it names.
    pub verdict: Verdict,
    /// The compared metric.
    #[serde(default)]
    pub metric: String,
    /// The way in which the sides are compared.
    #[serde(default)]
    pub compare: Compare,
    /// The figure of the deciding part: the one nearest to failing.
    pub value: Option<f64>,
    /// The lower end of its interval.
    pub low: Option<f64>,
    /// The upper end of its interval.
    pub high: Option<f64>,
    /// The kind of bound, if that figure is one.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// The paper's own number, in the same unit.
    pub paper: Option<f64>,
    /// The paper's own words.
    pub paper_says: String,
    /// The condition under which the claim holds.
    pub threshold: Threshold,
    /// Whether this claim represents a figure of a paper.
    #[serde(default)]
    pub primary: bool,
    /// The probability of figures at least as clear as these if the true value were at the threshold.
    #[serde(default)]
    pub p: Option<f64>,
    /// The same probability, adjusted for all primary claims of the paper in this run (`holm`).
    #[serde(default)]
    pub p_with_all: Option<f64>,
    /// The verdicts for each variant.
    pub parts: Vec<Part>,
}

impl Part {
    /// Returns the name of the variant, with its operating point.
    pub fn name(&self) -> String {
        let point = self.operating_point.iter().map(|point| format!(" at {point}"));
        iter::once(self.variant.clone()).chain(point).collect()
    }

    /// Explains why there are no data or why they do not decide the claim, and which data would decide it.
    pub fn why(&self) -> Option<String> {
        let outlook = self.outlook.map(|outlook| outlook.to_string());
        let why: Vec<String> = self.note.clone().into_iter().chain(outlook).collect();
        (!why.is_empty()).then(|| why.join("; "))
    }
}

impl ClaimOutcome {
    /// Returns the part whose figure is the claim's.
    pub fn deciding(&self) -> Option<&Part> {
        let is_it = |part: &&Part| part.estimate.is_some_and(|it| Some(it.value) == self.value);
        self.parts.iter().find(is_it)
    }

    /// Explains, for each variant that determines the verdict: if the claim is undecided, why it is and
    /// which data would decide it; otherwise a remark on the verdict, such as blocks in which one side is
    /// missing. If the verdict is *depends*, shows the result of each operating point.
    pub fn remark(&self) -> Option<String> {
        let is_of = |part: &&Part| match self.verdict {
            Verdict::NotTestable => false,
            Verdict::Depends => true,
            verdict => part.verdict == verdict || verdict.is_open() && part.verdict.is_open(),
        };
        let text = |part: &Part| {
            let reading = self.reading_of(part).filter(|_| self.verdict == Verdict::Depends);
            let verdict = reading.map(|reading| format!("{} ({reading})", part.verdict));
            let why: Vec<String> = verdict.into_iter().chain(part.why()).collect();
            let why = (!why.is_empty()).then(|| why.join("; "))?;
            let name = part.name();
            Some(if self.parts.len() > 1 { format!("{name}: {why}") } else { why })
        };
        let remarks: Vec<String> = self.parts.iter().filter(is_of).filter_map(text).collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }

    /// Formats the least and the greatest figure of the operating points if the verdict is *depends*: one figure would
    /// hide the others.
    pub fn span(&self) -> Option<String> {
        let values = || self.parts.iter().filter_map(|part| Some(part.estimate?.value));
        let (least, most) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
        let span = || format!("{} to {}", self.number(least), self.number(most));
        (self.verdict == Verdict::Depends).then(span)
    }

    /// Formats the figure with its interval, or with the range of the values, and its unit; `None` without a
    /// figure. If the verdict is *depends*, formats the least and the greatest figure.
    pub fn measured(&self) -> Option<String> {
        if let Some(span) = self.span() {
            return Some(self.with_unit([span]));
        }
        let texts = [self.number(self.value?), self.interval_text()];
        Some(format!("{}{}", Bound::sign(self.bound), self.with_unit(texts)))
    }

    /// Formats the figure of a part with its interval and its unit.
    pub fn reading_of(&self, part: &Part) -> Option<String> {
        let estimate = part.estimate?;
        let texts = [self.number(estimate.value), self.interval_of(&estimate)];
        Some(format!("{}{}", Bound::sign(part.bound), self.with_unit(texts)))
    }

    /// Formats the condition under which the claim holds, with its unit.
    pub fn condition(&self) -> String {
        let scale = self.scale();
        let threshold = match self.threshold {
            Threshold::Above(limit) => Threshold::Above(limit * scale),
            Threshold::Below(limit) => Threshold::Below(limit * scale),
            Threshold::Within([low, high]) => Threshold::Within([low * scale, high * scale]),
        };
        self.with_unit([threshold.to_string()])
    }

    /// Formats the paper's own number with its unit; `None` if the paper gives none.
    pub fn of_paper(&self) -> Option<String> {
        Some(self.with_unit([self.number(self.paper?)]))
    }

    /// Formats a figure of this claim without its unit.
    pub fn number(&self, value: f64) -> String {
        format::number(value * self.scale())
    }

    /// Formats the interval alone.
    pub fn interval_text(&self) -> String {
        let estimate = self.deciding().and_then(|part| part.estimate);
        let ends = || self.ends(self.low, self.high);
        estimate.map_or_else(ends, |estimate| self.interval_of(&estimate))
    }

    fn interval_of(&self, estimate: &Estimate) -> String {
        match estimate.range {
            Some(_) => format::interval(&estimate.scaled(self.scale())),
            None => self.ends(estimate.low, estimate.high),
        }
    }

    /// Formats `[low, high]` of this claim without its unit, if both are known.
    pub fn ends(&self, low: Option<f64>, high: Option<f64>) -> String {
        let scaled = |end: Option<f64>| end.map(|end| end * self.scale());
        format::ends(scaled(low), scaled(high))
    }

    /// Returns the factor from the metric's unit to the unit that is shown.
    fn scale(&self) -> f64 {
        self.shown_in().0
    }

    /// Returns the unit of the claim's figures; empty for a ratio or a pure number.
    pub fn unit(&self) -> &'static str {
        self.shown_in().1
    }

    fn shown_in(&self) -> (f64, &'static str) {
        if self.compare == Compare::Ratio { (1.0, "") } else { metric::shown_in(&self.metric) }
    }

    fn with_unit<const N: usize>(&self, texts: [String; N]) -> String {
        let unit = self.unit().to_owned();
        let parts = texts.into_iter().chain([unit]).filter(|text| !text.is_empty());
        parts.collect::<Vec<_>>().join(" ")
    }
}

/// The kind of bound of a figure that is only a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The true value is at least the figure.
    AtLeast,
    /// The true value is at most the figure.
    AtMost,
}

impl Bound {
    /// Returns the sign before the figure.
    pub fn sign(bound: Option<Self>) -> &'static str {
        match bound {
            Some(Self::AtLeast) => "> ",
            Some(Self::AtMost) => "< ",
            None => "",
        }
    }
}

/// The data that would decide a claim.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outlook {
    /// About this number of blocks in total, if further blocks resemble the ones that were made.
    Blocks(usize),
    /// At least this number of blocks: one block gives no information about the noise.
    AtLeast(usize),
    /// The claim is which of two is larger, and they are equal within this many per cent: no number of
    /// blocks decides it.
    EqualWithinPercent(f64),
    /// The figure is at the threshold in every block.
    OnThreshold,
    /// The figure is so near to the threshold that no practical number of blocks decides the claim.
    AtThreshold,
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks(blocks) => {
                write!(f, "about {} blocks would decide it", format::count(*blocks as u64))
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
                format::count(MAX_BLOCKS as u64)
            ),
        }
    }
}

impl Outlook {
    /// Returns the outlook that requires more blocks, if both things have to be decided.
    pub(crate) fn longest(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let blocks = |outlook: &Self| match outlook {
            Self::Blocks(blocks) | Self::AtLeast(blocks) => *blocks,
            _ => usize::MAX,
        };
        one.into_iter().chain(other).max_by_key(blocks)
    }
}

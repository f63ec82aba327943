//! `result.json`: everything that was measured, and what was concluded from it.
//!
//! The conclusions are computed from the runs alone (`crate::conclusion`).

use crate::{
    archive,
    environment::Environment,
    experiment::{Experiment, RATE, Value},
    format,
    measure::Raw,
    plan::{Cell, Dimension, Point},
    statistics::Estimate,
    verdict::ClaimOutcome,
};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, path::Path};

/// The version of the file's layout.
pub const FORMAT: &str = "pollux-lab-result/1";

pub use crate::archive::FILE;

/// What became of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It counts.
    Valid,
    /// It was measured but does not count: the generator was the bottleneck, or idle connections were lost.
    Invalid,
    /// It could not be measured: the mechanism cannot hold the connections, the server died.
    Failed,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Valid => "valid",
            Self::Invalid => "invalid",
            Self::Failed => "failed",
        })
    }
}

/// One run of one cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// What was measured.
    #[serde(flatten)]
    pub cell: Cell,
    /// Which pass over all cells it belongs to.
    pub block: u32,
    /// Seconds from the start of the experiment.
    pub started_s: f64,
    /// The requested measured window.
    pub window_s: f64,
    /// The mechanism that really ran, as the server reports it.
    pub mechanism: String,
    /// Whether it counts.
    pub status: Status,
    /// Why not.
    pub reason: Option<String>,
    /// What was made of the raw data.
    pub metrics: BTreeMap<String, f64>,
    /// The raw data.
    pub raw: Raw,
    /// The command lines: server, generator, idle holder.
    pub commands: Vec<String>,
}

impl Run {
    /// The rate that the run was to be offered, in requests per second, if its cell says it.
    pub fn offered_rps(&self) -> Option<f64> {
        self.cell.point.get(RATE)?.number()
    }

    /// A metric of the run, if it counts.
    pub fn metric(&self, name: &str) -> Option<f64> {
        (self.status == Status::Valid).then(|| self.metrics.get(name).copied()).flatten()
    }
}

/// A variant and whether this kernel has its mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariantOutcome {
    /// Its name.
    pub name: String,
    /// The mechanism with its options.
    pub mechanism: String,
    /// Why it could not run at all.
    pub unavailable: Option<String>,
}

/// One probe for saturation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saturation {
    /// What was probed.
    #[serde(flatten)]
    pub cell: Cell,
    /// Replies per second of the closed loop.
    pub rps: Option<f64>,
    /// What to know about it: why it failed, or that the generator was the limit.
    pub note: Option<String>,
    /// The raw data.
    pub raw: Raw,
}

/// One probe in the search for a server's limit: the offered rate and the answered rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitProbe {
    /// Requests per second.
    pub offered_rps: f64,
    /// Replies per second.
    pub answered_rps: f64,
}

/// The rates at which one variant is measured at one point, beside those that all are offered: around its limit,
/// which was sought before the blocks ([`crate::experiment::Rate::limit_step`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ladder {
    /// Which: a cell without a rate.
    #[serde(flatten)]
    pub line: Cell,
    /// About where its limit lies; none where it answers the highest rate, or could not be measured.
    pub limit_rps: Option<f64>,
    /// Requests per second.
    pub rates_rps: Vec<f64>,
    /// The search.
    #[serde(rename = "asked")]
    pub probes: Vec<LimitProbe>,
}

/// A cell over all blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellSummary {
    /// Which.
    #[serde(flatten)]
    pub cell: Cell,
    /// Mean and interval of every metric.
    pub metrics: BTreeMap<String, Estimate>,
    /// How many runs count.
    pub valid: usize,
    /// How many do not, and the last reason.
    pub excluded: usize,
    /// Why the last of these does not count.
    pub reason: Option<String>,
}

/// That what was measured was judged and shown: the end of a run, or of a part of one that was gone on
/// from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// After so many blocks.
    pub blocks: u32,
    /// It was to be the last, since the time was over or all blocks were made: it spent all that was left
    /// of the error.
    pub is_last: bool,
}

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// [`FORMAT`].
    pub format: String,
    /// The experiment as it was run.
    pub experiment: Experiment,
    /// Under `--quick`.
    pub quick: bool,
    /// With `--paper-rates`.
    pub paper_rates: bool,
    /// What every random choice was drawn from.
    pub seed: u64,
    /// UTC, RFC 3339.
    pub started_at: String,
    /// How long it took.
    pub elapsed_s: f64,
    /// It was stopped before its end; what is here was measured before that.
    pub interrupted: bool,
    /// When it was judged and shown. A run that continues this one must take the looks over: each forgotten
    /// look spends a part of the error again.
    #[serde(default)]
    pub looks: Vec<Look>,
    /// What a reader should know: shortened runs, invalid runs, a shared CPU.
    pub notes: Vec<String>,
    /// The machine.
    pub environment: Environment,
    /// What was compared.
    pub variants: Vec<VariantOutcome>,
    /// How long each load lasted before it was measured, in seconds.
    #[serde(default)]
    pub warmup_s: f64,
    /// The rate of each phase, in requests per second, in their order.
    #[serde(default)]
    pub phase_rps: Vec<f64>,
    /// The axes with the values of this run, the rate included.
    pub dimensions: Vec<Dimension>,
    /// How the rates were found.
    pub saturation: Vec<Saturation>,
    /// The rates that each has of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ladders: Vec<Ladder>,
    /// The claims with their verdicts; not those of a file that is read, which are made anew.
    #[serde(skip_deserializing)]
    pub claims: Vec<ClaimOutcome>,
    /// The cells over all blocks; made anew as well.
    #[serde(skip_deserializing)]
    pub cells: Vec<CellSummary>,
    /// Every run.
    pub runs: Vec<Run>,
}

impl Outcome {
    /// That of `experiment` in its full form before anything was measured.
    pub fn new(experiment: Experiment) -> Self {
        Self {
            format: FORMAT.into(),
            dimensions: experiment.dimensions(),
            experiment,
            quick: false,
            paper_rates: false,
            seed: 1,
            started_at: String::new(),
            elapsed_s: 0.0,
            interrupted: false,
            looks: Vec::new(),
            notes: Vec::new(),
            environment: Environment::default(),
            variants: Vec::new(),
            warmup_s: 0.0,
            phase_rps: Vec::new(),
            saturation: Vec::new(),
            ladders: Vec::new(),
            claims: Vec::new(),
            cells: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// How many blocks were begun.
    pub fn blocks(&self) -> u32 {
        self.runs.iter().map(|run| run.block + 1).max().unwrap_or(0)
    }

    /// How many blocks were planned at most.
    pub fn planned_blocks(&self) -> u32 {
        self.experiment.budget.blocks
    }

    /// Whether nothing is to follow: neither a person nor a plan ended it, so that what was seen has
    /// nothing to do with its end.
    pub(crate) fn is_at_its_end(&self) -> bool {
        let blocks = self.blocks();
        let here = self.looks.iter().find(|look| look.blocks == blocks);
        here.map_or(!self.interrupted, |look| look.is_last)
    }

    /// Whether `variant` is measured at `point`: not at the rates that others have of their own.
    pub fn measures(&self, variant: &str, point: &Point) -> bool {
        let Some(rate) = point.get(RATE).and_then(Value::number) else { return true };
        let has = |ladder: &&Ladder| ladder.rates_rps.contains(&rate);
        let is_own = |ladder: &Ladder| {
            let point = point.iter().filter(|(axis, _)| *axis != RATE);
            ladder.line.variant == variant && point.eq(&ladder.line.point)
        };
        let mut having = self.ladders.iter().filter(has).peekable();
        having.peek().is_none() || having.any(is_own)
    }

    /// The summary of a cell.
    pub fn cell(&self, variant: &str, point: &Point) -> Option<&CellSummary> {
        self.cells.iter().find(|s| s.cell.variant == variant && s.cell.point == *point)
    }

    /// The runs of `variant` at `point`, whether they count or not.
    pub(crate) fn runs_at(&self, variant: &str, point: &Point) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.cell.variant == variant && run.cell.point == *point)
    }

    /// The axes that vary, in words: `idle 8,000`; "everywhere" when none does.
    pub(crate) fn point_text(&self, point: &Point) -> String {
        let part = |(axis, value): (&String, &Value)| {
            let several = self.values(axis).is_some_and(|values| values.len() > 1);
            several.then(|| format!("{axis} {}", format::value(value)))
        };
        let parts: Vec<_> = point.iter().filter_map(part).collect();
        if parts.is_empty() { "everywhere".into() } else { parts.join(", ") }
    }

    /// The values of an axis in this run.
    pub fn values(&self, axis: &str) -> Option<&[Value]> {
        self.dimensions.iter().find(|d| d.name == axis).map(|d| d.values.as_slice())
    }

    /// Writes `result.json` into `directory`: whole or not at all.
    ///
    /// # Errors
    /// When the directory cannot be written to; the message names the file.
    pub fn write(&self, directory: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("result.json")?;
        archive::replace(&directory.join(FILE), text.as_bytes())
    }
}

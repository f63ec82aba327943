//! `result.json`: all measurements and the conclusions from them.
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

/// The status of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The run counts.
    Valid,
    /// The run was measured but does not count: the generator was the bottleneck, or idle connections were
    /// lost.
    Invalid,
    /// The run could not be measured: the mechanism cannot hold the connections, or the server ended.
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
    /// The measured cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// The number of the pass over all cells to which the run belongs.
    pub block: u32,
    /// The start in seconds from the start of the experiment.
    pub started_s: f64,
    /// The requested length of the measured window, in seconds.
    pub window_s: f64,
    /// The mechanism that the server reports.
    pub mechanism: String,
    /// Whether the run counts.
    pub status: Status,
    /// Why the run does not count.
    pub reason: Option<String>,
    /// The metrics that were computed from the raw data.
    pub metrics: BTreeMap<String, f64>,
    /// The raw data.
    pub raw: Raw,
    /// The command lines: server, generator, idle holder.
    pub commands: Vec<String>,
}

impl Run {
    /// Returns the rate that the run was to be offered, in requests per second, if its cell has one.
    pub fn offered_rps(&self) -> Option<f64> {
        self.cell.point.get(RATE)?.number()
    }

    /// Returns a metric of the run, if the run counts.
    pub fn metric(&self, name: &str) -> Option<f64> {
        (self.status == Status::Valid).then(|| self.metrics.get(name).copied()).flatten()
    }
}

/// A variant and whether this kernel has its mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariantOutcome {
    /// The variant's name.
    pub name: String,
    /// The mechanism with its options.
    pub mechanism: String,
    /// Why the variant could not run at all.
    pub unavailable: Option<String>,
}

/// One probe for saturation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saturation {
    /// The probed cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Replies per second of the closed loop.
    pub rps: Option<f64>,
    /// A remark: why the probe failed, or that the generator was the limit.
    pub note: Option<String>,
    /// The raw data.
    pub raw: Raw,
}

/// One probe in the search for a server's limit: the offered rate and the answered rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitProbe {
    /// The offered rate in requests per second.
    pub offered_rps: f64,
    /// The answered rate in replies per second.
    pub answered_rps: f64,
}

/// The rates at which one variant is measured at one point beside the common rates. They are near its
/// limit, which was searched for before the blocks ([`crate::experiment::Rate::limit_step`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ladder {
    /// The variant and the point: a cell without a rate.
    #[serde(flatten)]
    pub line: Cell,
    /// The approximate limit; none if the server answers the highest rate, or the limit could not be
    /// measured.
    pub limit_rps: Option<f64>,
    /// The rates in requests per second.
    pub rates_rps: Vec<f64>,
    /// The probes of the search.
    #[serde(alias = "asked")]
    pub probes: Vec<LimitProbe>,
}

/// A cell over all blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellSummary {
    /// The summarized cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// The mean and interval of every metric.
    pub metrics: BTreeMap<String, Estimate>,
    /// The number of runs that count.
    pub valid: usize,
    /// The number of runs that do not count.
    pub excluded: usize,
    /// Why the last of these runs does not count.
    pub reason: Option<String>,
}

impl CellSummary {
    /// Returns how many runs of the cell do not count, and why.
    pub(crate) fn excluded_text(&self) -> String {
        let (excluded, all) = (self.excluded, self.excluded + self.valid);
        let reason = self.reason.as_deref().unwrap_or("no reason given");
        format!("{excluded} of {all} runs do not count: {reason}")
    }
}

/// A look at the data: the runs were judged and the verdicts shown, at the end of a run, or of a part of a
/// run that was resumed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The number of blocks before the look.
    pub blocks: u32,
    /// Whether it was meant to be the last look, because the time was over or all blocks were made: it
    /// spent all of the remaining error.
    pub is_last: bool,
}

/// The complete result of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// [`FORMAT`].
    pub format: String,
    /// The experiment as it was run.
    pub experiment: Experiment,
    /// Whether `--quick` was given.
    pub quick: bool,
    /// Whether `--paper-rates` was given.
    pub paper_rates: bool,
    /// The seed of all random choices.
    pub seed: u64,
    /// The start time: UTC, RFC 3339.
    pub started_at: String,
    /// The duration in seconds.
    pub elapsed_s: f64,
    /// Whether the run was stopped before its end; the result contains the measurements until then.
    pub interrupted: bool,
    /// The looks at the data so far. A run that continues this one must take them over: each forgotten look
    /// spends a part of the error again.
    #[serde(default)]
    pub looks: Vec<Look>,
    /// Remarks for readers: shortened runs, invalid runs, a shared CPU.
    pub notes: Vec<String>,
    /// The machine.
    pub environment: Environment,
    /// The compared variants.
    pub variants: Vec<VariantOutcome>,
    /// How long each load lasted before it was measured, in seconds.
    #[serde(default)]
    pub warmup_s: f64,
    /// The rate of each phase, in requests per second, in their order.
    #[serde(default)]
    pub phase_rps: Vec<f64>,
    /// The axes with the values of this run, the rate included.
    pub dimensions: Vec<Dimension>,
    /// The probes that determined the rates.
    pub saturation: Vec<Saturation>,
    /// The rates of each variant's own limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ladders: Vec<Ladder>,
    /// The claims with their verdicts. They are not read from a file but computed again.
    #[serde(skip_deserializing)]
    pub claims: Vec<ClaimOutcome>,
    /// The cells over all blocks. They are also computed again.
    #[serde(skip_deserializing)]
    pub cells: Vec<CellSummary>,
    /// Every run.
    pub runs: Vec<Run>,
}

/// Groups values by their keys, in the order in which the keys occur first.
pub(crate) fn grouped<K: PartialEq, V>(pairs: impl Iterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

impl Outcome {
    /// Returns the outcome of `experiment` in its full form before any measurement.
    pub fn new(experiment: Experiment) -> Self {
        Self {
            format: FORMAT.into(),
            dimensions: experiment.dimensions(),
            experiment,
            seed: 1,
            ..Self::default()
        }
    }

    /// Returns how many blocks were begun.
    pub fn blocks(&self) -> u32 {
        self.runs.iter().map(|run| run.block + 1).max().unwrap_or(0)
    }

    /// Returns the highest number of blocks that was planned.
    pub fn planned_blocks(&self) -> u32 {
        self.experiment.budget.blocks
    }

    /// Whether the result is final: neither the user nor a plan stopped it early, so that the data did not
    /// influence its end.
    pub(crate) fn is_at_its_end(&self) -> bool {
        let blocks = self.blocks();
        let here = self.looks.iter().find(|look| look.blocks == blocks);
        here.map_or(!self.interrupted, |look| look.is_last)
    }

    /// Whether `variant` is measured at `point`: it is not measured at the rates of another variant's
    /// ladder.
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

    /// Returns whether the experiment's file says that this cell is not measured.
    pub(crate) fn is_left_out(&self, cell: &CellSummary) -> bool {
        let mut variants = self.experiment.variant.iter();
        let variant = variants.find(|variant| variant.name == cell.cell.variant);
        variant.is_some_and(|variant| self.experiment.left_out(variant, &cell.cell.point).is_some())
    }

    /// Returns whether the experiment's file says that none of `variants` is measured at `point`. Variants that are
    /// not available have no cells and do not count.
    pub(crate) fn leaves_out(&self, variants: &[VariantOutcome], point: &Point) -> bool {
        let mut here = variants.iter().filter(|variant| variant.unavailable.is_none()).peekable();
        let is_left_out = |variant: &VariantOutcome| {
            self.cell(&variant.name, point).is_some_and(|cell| self.is_left_out(cell))
        };
        here.peek().is_some() && here.all(is_left_out)
    }

    /// Returns a sentence for each reason for which cells of `variant`, or of all variants, are not measured.
    pub(crate) fn left_out_texts(&self, variant: Option<&str>) -> Vec<String> {
        let is_meant = |cell: &&CellSummary| {
            variant.is_none_or(|name| cell.cell.variant == name) && self.is_left_out(cell)
        };
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for cell in self.cells.iter().filter(is_meant) {
            *counts.entry(cell.reason.as_deref().unwrap_or_default()).or_default() += 1;
        }
        let text = |(reason, count): (&str, usize)| match count {
            1 => format!("1 cell is not measured, as planned: {reason}"),
            _ => format!("{count} cells are not measured, as planned: {reason}"),
        };
        counts.into_iter().map(text).collect()
    }

    /// Returns the summary of a cell.
    pub fn cell(&self, variant: &str, point: &Point) -> Option<&CellSummary> {
        self.cells.iter().find(|s| s.cell.variant == variant && s.cell.point == *point)
    }

    /// Returns the runs of `variant` at `point`, whether they count or not.
    pub(crate) fn runs_at(&self, variant: &str, point: &Point) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.cell.variant == variant && run.cell.point == *point)
    }

    /// Returns the values of the axes that vary, in words: `idle 8,000`.
    pub(crate) fn varied(&self, point: &Point) -> Vec<String> {
        let part = |(axis, value): (&String, &Value)| {
            let several = self.values(axis).is_some_and(|values| values.len() > 1);
            several.then(|| format!("{axis} {}", format::value(value)))
        };
        point.iter().filter_map(part).collect()
    }

    /// Describes the axes that vary: `idle 8,000`; "everywhere" when none does.
    pub(crate) fn point_text(&self, point: &Point) -> String {
        let parts = self.varied(point);
        if parts.is_empty() { "everywhere".into() } else { parts.join(", ") }
    }

    /// Returns the values of an axis in this run.
    pub fn values(&self, axis: &str) -> Option<&[Value]> {
        self.dimensions.iter().find(|d| d.name == axis).map(|d| d.values.as_slice())
    }

    /// Writes `result.json` into `directory`: completely or not at all.
    ///
    /// # Errors
    /// When the directory cannot be written to; the message names the file.
    pub fn write(&self, directory: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("result.json")?;
        archive::replace(&directory.join(archive::FILE), text.as_bytes())
    }
}

//! Conclusions from the runs of a result: cells, claims, and the result as it is read from a file.
//!
//! They are computed from the runs alone, so that a report can be rendered again from the file and any
//! reader can check it. A program that reads the file computes the conclusions with its current code.

use crate::{
    archive, claims,
    experiment::{self, Claim, Experiment, Figure, RATE, Side},
    plan::Cell,
    result::{CellSummary, FORMAT, Look, Outcome, Run, Status, grouped},
    statistics,
};
use anyhow::Context as _;
use serde_json::Value as Json;
use std::{collections::BTreeMap, path::Path};

impl Outcome {
    /// Computes [`Outcome::cells`] and [`Outcome::claims`] from the runs.
    pub fn conclude(&mut self) {
        self.cells = self.summaries();
        self.note_look();
        self.claims = claims::judge(self);
    }

    /// Records that the verdicts were judged after so many blocks. Each look at the data spends a part of the
    /// probability of an error (see [`Look`]).
    fn note_look(&mut self) {
        let look = Look { blocks: self.blocks(), is_last: self.is_at_its_end() };
        if look.blocks > 0 {
            self.looks.retain(|earlier| earlier.blocks != look.blocks);
            self.looks.push(look);
        }
    }

    /// Replaces the claims stored with a run of a built-in experiment by the current claims. A run of a
    /// user's file keeps the claims of that file, whatever the id of its experiment is.
    fn take_todays_claims(&mut self) {
        let Some(today) = self.todays_experiment() else { return };
        if today.has_the_design_of(&self.experiment) {
            self.experiment.claim = today.claim;
            return;
        }
        self.experiment.take_words_of(&today);
        if today.claim != self.experiment.claim {
            let note = format!(
                "Judged by the claims stored with it: the experiment {} now needs other data.",
                self.experiment.id
            );
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// Returns the current claim `id` of the built-in experiment that was run, if the run has the points that
    /// the claim compares, and its variants. The run itself need not have the claim.
    pub(crate) fn todays_claim(&self, id: &str) -> Option<Claim> {
        let mut today = self.todays_experiment()?.claim.into_iter();
        let claim = today.find(|claim| claim.id == id)?;
        let axes = claim.sides().flat_map(|side| side.at.keys().chain(&side.over));
        let has_axes = axes.chain(&claim.operating_points).all(|axis| self.values(axis).is_some());
        let has_reference =
            self.experiment.rate.as_ref().is_some_and(|rate| rate.reference.is_some());
        let variants = &self.experiment.variant;
        let has_variant =
            |name: &String| variants.is_empty() || variants.iter().any(|it| it.name == *name);
        let of_sides = claim.sides().flat_map(|side| side.variant.iter().chain(&side.minus));
        let has_variants = claim.each.iter().chain(of_sides).all(has_variant);
        // A rate of 0.95 of something else is another point.
        let is_known = |side: &Side| {
            let is_multiple = side.at.get(RATE).is_some_and(|at| at.multiple().is_some());
            (has_reference || !is_multiple) && !claims::points(self, side).is_empty()
        };
        let is_there = has_axes && has_variants && claim.sides().all(is_known);
        is_there.then_some(claim)
    }

    /// Whether the claim `id` of this run is judged at the operating points of today's claim. An older run may have
    /// been made at one point that decides the verdict.
    pub(crate) fn has_todays_operating_points(&self, id: &str) -> bool {
        let points = |experiment: &Experiment| {
            let claim = experiment.find_claim(id)?;
            Some((claim.operating_points.clone(), claim.operating_rates.clone()))
        };
        experiment::find_built_in(&self.experiment.id)
            .is_none_or(|today| points(today) == points(&self.experiment))
    }

    /// Returns the figures of a result: those of its experiment, with the current form of each figure of the
    /// built-in experiment that draws the same data, and with the figures that the experiment has got since.
    /// A figure does not change what was measured.
    pub(crate) fn figures(&self) -> Vec<&Figure> {
        let own = &self.experiment.figure;
        let today = self.built_in().map_or(&[][..], |today| &today.figure);
        let draws_the_same = |it: &Figure, figure: &Figure| {
            it.id == figure.id && it.x == figure.x && it.y == figure.y && it.at == figure.at
        };
        let current = |figure| today.iter().find(|it| draws_the_same(it, figure)).unwrap_or(figure);
        let has_axis = |axis: &String| self.values(axis).is_some();
        let has_data = |figure: &&Figure| {
            has_axis(&figure.x)
                && figure.at.keys().all(has_axis)
                && self.runs.iter().any(|run| run.metrics.contains_key(&figure.y))
        };
        let is_new = |figure: &&Figure| own.iter().all(|it| it.id != figure.id);
        let new = today.iter().filter(is_new).filter(has_data);
        own.iter().map(current).chain(new).collect()
    }

    /// Returns the built-in experiment that was run, as it is today; `None` if the experiment was a user's file.
    fn built_in(&self) -> Option<&'static Experiment> {
        let is_file = |word: &str| word.ends_with(".toml");
        let is_of_a_file = self.environment.command.split_whitespace().any(is_file);
        experiment::find_built_in(&self.experiment.id).filter(|_| !is_of_a_file)
    }

    /// Returns the same experiment in the form of this run.
    fn todays_experiment(&self) -> Option<Experiment> {
        let in_guest = self.environment.guest.is_some();
        self.built_in()?.in_the_form_of(&self.experiment, in_guest, self.quick).ok()
    }

    fn summaries(&self) -> Vec<CellSummary> {
        let mut cells = grouped(self.runs.iter().map(|run| (&run.cell, run)));
        let position = |cell: &Cell| {
            let variant = self.variants.iter().position(|v| v.name == cell.variant);
            let point: Vec<_> = self
                .dimensions
                .iter()
                .map(|d| d.values.iter().position(|value| cell.point.get(&d.name) == Some(value)))
                .collect();
            (variant, point)
        };
        cells.sort_by_cached_key(|(cell, _)| position(cell));
        cells.into_iter().map(|(cell, runs)| self.summary(cell, &runs)).collect()
    }

    fn summary(&self, cell: &Cell, runs: &[&Run]) -> CellSummary {
        let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for run in runs.iter().filter(|run| run.status == Status::Valid) {
            for (name, &value) in &run.metrics {
                values.entry(name).or_default().push(value);
            }
        }
        let excluded: Vec<_> = runs.iter().filter(|run| run.status != Status::Valid).collect();
        CellSummary {
            cell: cell.clone(),
            metrics: values
                .into_iter()
                .filter_map(|(name, values)| {
                    Some((name.to_owned(), statistics::estimate(&values)?))
                })
                .collect(),
            valid: runs.len() - excluded.len(),
            excluded: excluded.len(),
            reason: excluded.last().and_then(|run| run.reason.clone()),
        }
    }

    /// Reads `result.json` from `directory` and judges it again from the raw data: by the current claims of
    /// the built-in experiment, if that one was run. A run that this program would not have counted no
    /// longer counts ([`Raw::doubt`](crate::measure::Raw::doubt)).
    ///
    /// # Errors
    /// When there is no result, or it has another format; the message names the file.
    pub fn read(directory: &Path) -> anyhow::Result<Self> {
        let text = archive::read_text(directory)?;
        let path = directory.join(archive::file_name(directory));
        let foreign = || format!("{}: not a result of pollux lab", path.display());
        let stored: Json = serde_json::from_str(&text).with_context(foreign)?;
        let format = stored["format"].as_str().with_context(foreign)?;
        anyhow::ensure!(
            format == FORMAT,
            "{} has format {format:?}; this program reads {FORMAT:?}",
            path.display()
        );
        let read = serde_json::from_value(stored).with_context(|| path.display().to_string());
        let mut outcome: Self = read?;
        for run in outcome.runs.iter_mut().filter(|run| !run.raw.load.is_null()) {
            run.metrics = run.raw.metrics();
            if run.status == Status::Valid
                && let Some(reason) = run.raw.doubt()
            {
                (run.status, run.reason) = (Status::Invalid, Some(reason));
            }
        }
        outcome.take_todays_claims();
        outcome.conclude();
        Ok(outcome)
    }
}

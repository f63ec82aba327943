//! The drawings of an outcome.

use crate::{
    experiment::{Figure, PaperLine, Select, Value},
    format,
    plan::{self, Dimension, Point},
    result::{Outcome, VariantOutcome},
};
use std::collections::BTreeMap;

/// The largest number of lines in one drawing: with more, a reader cannot find a line.
const MAX_LINES: usize = 6;

/// One drawing: a figure at one value of each axis other than its x axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel<'a> {
    /// File name.
    pub id: String,
    /// The figure that it belongs to.
    pub figure: &'a Figure,
    /// The axis along which it is drawn.
    pub x: &'a Dimension,
    /// The values of the other axes.
    pub at: Point,
    /// The variants that are drawn.
    pub variants: &'a [VariantOutcome],
    /// The number of this drawing among the drawings of one figure at one point, counted from one, and
    /// their total.
    pub part: (usize, usize),
    /// Whether the figure also has drawings at other points.
    pub has_others: bool,
}

impl Panel<'_> {
    /// Returns the values of the other axes, for example `offered rate (requests/s): 2,000`.
    pub fn subtitle(&self, outcome: &Outcome) -> String {
        let parts: Vec<String> = self
            .at
            .iter()
            .filter_map(|(name, value)| {
                let dimension = outcome.dimensions.iter().find(|d| d.name == *name)?;
                let value = format::value(value);
                Some(format!("{}: {value}", dimension.label))
            })
            .collect();
        parts.join(", ")
    }

    /// Returns whether the panel shows this variant.
    pub fn shows(&self, variant: &str) -> bool {
        self.variants.iter().any(|it| it.name == variant)
    }

    /// Returns whether the panel's values of the other axes are those of `at`, as far as `at` names these axes.
    pub(super) fn is_at(&self, outcome: &Outcome, at: &BTreeMap<String, Select>) -> bool {
        at.iter().all(|(axis, select)| {
            let values = outcome.values(axis).unwrap_or_default();
            self.at.get(axis).is_none_or(|value| select.among(values) == Some(value))
        })
    }

    /// Returns the paper's lines and marks for this panel's values of the other axes.
    pub fn paper(&self, outcome: &Outcome) -> Vec<&PaperLine> {
        self.figure.paper.iter().filter(|line| self.is_at(outcome, &line.at)).collect()
    }

    /// Divides the panel into drawings with as many lines as a reader can follow, those of the paper included; they
    /// differ only in their variants.
    fn parts(self, outcome: &Outcome) -> Vec<Self> {
        let is_drawn = |variant: &VariantOutcome| {
            self.x.values.iter().any(|x| {
                let cell = outcome.cell(&variant.name, &self.point(x));
                cell.is_some_and(|cell| cell.metrics.contains_key(&self.figure.y))
            })
        };
        let paper = self.paper(outcome);
        let lines_of = |variant: &VariantOutcome| {
            let is_its = |line: &&&PaperLine| line.variant == variant.name && line.points.len() > 1;
            if is_drawn(variant) { 1 + paper.iter().filter(is_its).count() } else { 0 }
        };
        let lines: Vec<usize> = self.variants.iter().map(lines_of).collect();
        let all: usize = lines.iter().sum();
        let least = all.div_ceil(MAX_LINES).max(1);
        // Parts of about the same size, unless that takes more of them.
        let alike = sizes_of_parts(&lines, all.div_ceil(least));
        let sizes = if alike.len() > least { sizes_of_parts(&lines, MAX_LINES) } else { alike };
        let parts = sizes.len();
        let mut rest = self.variants;
        let part = |(index, size): (usize, usize)| {
            let (variants, after) = rest.split_at(size);
            rest = after;
            let part = index + 1;
            let id = match part {
                1 => self.id.clone(),
                _ => format!("{}-part-{part}", self.id),
            };
            Self { id, variants, part: (part, parts), ..self.clone() }
        };
        sizes.into_iter().enumerate().map(part).collect()
    }

    /// Returns whether none of its cells is measured, as planned: it would have no point.
    fn is_left_out(&self, outcome: &Outcome) -> bool {
        self.x.values.iter().all(|x| outcome.leaves_out(self.variants, &self.point(x)))
    }

    /// Returns the point at `x`.
    pub fn point(&self, x: &Value) -> Point {
        let mut point = self.at.clone();
        point.insert(self.x.name.clone(), x.clone());
        point
    }
}

/// Returns how many variants each part has, in their order, if no part has more than `most` lines. `lines` has the
/// number of lines of each variant.
fn sizes_of_parts(lines: &[usize], most: usize) -> Vec<usize> {
    let (mut sizes, mut size, mut drawn) = (Vec::new(), 0, 0_usize);
    for &of_variant in lines {
        if drawn > 0 && drawn + of_variant > most {
            sizes.push(size);
            (size, drawn) = (0, 0);
        }
        drawn += of_variant;
        size += 1;
    }
    sizes.push(size);
    sizes
}

/// Returns all drawings of an outcome, in the order of the experiment's file. A drawing that would have no point
/// is left out; the others have the numbers that they would have with it.
pub fn panels(outcome: &Outcome) -> Vec<Panel<'_>> {
    let mut panels = Vec::new();
    for figure in outcome.figures() {
        let Some(x) = outcome.dimensions.iter().find(|d| d.name == figure.x) else { continue };
        let others: Vec<Dimension> = outcome
            .dimensions
            .iter()
            .filter(|dimension| dimension.name != figure.x)
            .map(|dimension| {
                let chosen = figure.at.get(&dimension.name);
                let chosen = chosen.and_then(|select| select.among(&dimension.values));
                let values = chosen.map_or_else(|| dimension.values.clone(), |v| vec![v.clone()]);
                Dimension { values, ..dimension.clone() }
            })
            .collect();
        let points = plan::points(&others);
        let several = points.len() > 1;
        for (index, at) in points.into_iter().enumerate() {
            let id =
                if several { format!("{}-{}", figure.id, index + 1) } else { figure.id.clone() };
            let variants = &outcome.variants;
            let whole = Panel { id, figure, x, at, variants, part: (1, 1), has_others: several };
            if !whole.is_left_out(outcome) {
                panels.extend(whole.parts(outcome));
            }
        }
    }
    panels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{claims::made, experiment::find};

    /// Regression test: the page of figure 10 once began with six figures without a point.
    #[test]
    fn what_is_not_measured_as_planned_has_no_drawing() {
        let experiment = find("provos-fig10").unwrap();
        let mut dimensions = experiment.dimensions();
        dimensions.push(plan::rate_dimension(&[500.0, 1_000.0]));
        let names = ["poll", "devpoll"].map(str::to_owned);
        let cells = plan::cells(["poll"], &dimensions).unwrap();
        let run = |cell| made::run(cell, 0, [("error_share".to_owned(), 0.1)].into());
        let runs = cells.into_iter().map(run).collect();
        let mut outcome = made::outcome(experiment, false, dimensions, &names, runs);
        // Its cells have no runs.
        outcome.variants[1].unavailable = Some("this kernel has no /dev/poll".into());
        outcome.conclude();
        let panels = panels(&outcome);
        let of_errors = || panels.iter().filter(|panel| panel.figure.id == "errors");
        let idle = |panel: &Panel<'_>| panel.at["idle"].number().unwrap();
        assert!(of_errors().all(|panel| idle(panel) > 1.0), "only the limit is needed at 1");
        assert_eq!(of_errors().count(), 6, "three queues with 251 and with 501");
        assert_eq!(of_errors().next_back().unwrap().id, "errors-9");
        let tables = crate::report::terminal::tables(&outcome, 1000);
        assert!(tables.contains("idle 251 ") && !tables.contains("idle 1 "), "{tables}");
    }

    #[test]
    fn lines_of_the_paper_count() {
        let experiment = find("zerohttpd-table").unwrap();
        let names: Vec<String> = experiment.variant.iter().map(|it| it.name.clone()).collect();
        let dimensions = experiment.dimensions();
        let cells = plan::cells(names.iter().map(String::as_str), &dimensions).unwrap();
        let run = |cell| made::run(cell, 0, [("throughput_rps".to_owned(), 100.0)].into());
        let runs = cells.into_iter().map(run).collect();
        let mut outcome = made::outcome(experiment, false, dimensions, &names, runs);
        outcome.conclude();
        let panels = panels(&outcome);
        let drawings: Vec<_> = panels.iter().filter(|it| it.figure.id == "throughput").collect();
        for panel in &drawings {
            let paper = panel.paper(&outcome);
            let of_paper = paper.iter().filter(|line| panel.shows(&line.variant)).count();
            assert!(panel.variants.len() + of_paper <= MAX_LINES, "{}", panel.id);
        }
        let variants: usize = drawings.iter().map(|panel| panel.variants.len()).sum();
        assert_eq!((drawings.len(), variants), (4, names.len()));
        assert_eq!(drawings[3].id, "throughput-part-4");
    }

    #[test]
    fn parts_are_about_the_same_size() {
        assert_eq!(sizes_of_parts(&[1; 8], 4), [4, 4]);
        assert_eq!(sizes_of_parts(&[1; 7], 4), [4, 3]);
        assert_eq!(sizes_of_parts(&[1, 0, 1, 0, 1], 2), [4, 1], "what is not drawn needs no room");
        assert_eq!(sizes_of_parts(&[2, 2, 2, 1], 5), [2, 2]);
        assert_eq!(sizes_of_parts(&[], 6), [0]);
        assert_eq!(sizes_of_parts(&[9, 1], 6), [1, 1]);
    }
}

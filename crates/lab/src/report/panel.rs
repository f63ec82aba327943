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

    /// Divides the panel into drawings with as many variants as a reader can follow; they differ only in
    /// their variants.
    fn parts(self, outcome: &Outcome) -> Vec<Self> {
        let is_drawn = |variant: &&VariantOutcome| {
            self.x.values.iter().any(|x| {
                let cell = outcome.cell(&variant.name, &self.point(x));
                cell.is_some_and(|cell| cell.metrics.contains_key(&self.figure.y))
            })
        };
        let lines = self.variants.iter().filter(&is_drawn).count();
        let parts = lines.div_ceil(MAX_LINES).max(1);
        let most = lines.div_ceil(parts);
        let mut rest = self.variants;
        let part = |part: usize| {
            let mut drawn = 0;
            let end = rest.iter().position(|variant| {
                drawn += usize::from(is_drawn(&variant));
                drawn > most
            });
            let (variants, after) =
                rest.split_at(end.filter(|_| part < parts).unwrap_or(rest.len()));
            rest = after;
            let id = match part {
                1 => self.id.clone(),
                _ => format!("{}-part-{part}", self.id),
            };
            Self { id, variants, part: (part, parts), ..self.clone() }
        };
        (1..=parts).map(part).collect()
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
}

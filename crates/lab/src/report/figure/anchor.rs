//! The papers' own numbers, drawn at the points where claims read them.
//!
//! A paper's number is a mark in the colour of its mechanism, at the point where the claim reads side a.
//! If the claim compares with a side b, the paper's ratio or difference is applied to the figure of side
//! b that was measured here.

use super::{
    Drawing,
    appearance::{Appearance, appearances},
    pen::{DrawResult, Root},
};
use crate::{
    claims,
    experiment::{Claim, PaperLine, Side, Take},
    plan::Point,
    result::Outcome,
    statistics::Compare,
};
use plotters::prelude::*;

/// The distance from the centre of the mark to its corners, in pixels: it surrounds the mark of a line.
const REACH: i32 = 9;

/// A number from a paper.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Anchor {
    pub(super) appearance: Appearance,
    /// The position in the coordinates of the axes.
    pub(super) at: (f64, f64),
    /// The paper's figure or table.
    pub(super) source: String,
}

/// Returns the numbers that the paper states for the figure, and those of the claims about it. The latter are
/// not shown if the panel has the paper's whole table as lines.
pub(super) fn of(drawing: &Drawing<'_>) -> Vec<Anchor> {
    let Drawing { outcome, panel, places } = drawing;
    let looks = appearances(&outcome.variants);
    let lines = panel.paper(outcome);
    let mut anchors = stated(drawing, &lines, &looks);
    let about_it = outcome.experiment.claim.iter().filter(|claim| {
        let has_one_metric = claim.sides().all(|side| side.metric.is_none());
        claim.paper_key().is_some() && claim.metric == panel.figure.y && has_one_metric
    });
    let has_table = lines.iter().any(|line| !line.points.is_empty());
    // A claim that is judged at several operating points has a mark at each of them.
    let at_points = about_it
        .filter(|_| !has_table)
        .flat_map(|claim| claims::at_operating_points(outcome, claim))
        .map(|(_, claim)| claim);
    for claim in at_points {
        for each in &claim.each {
            let name = claim.a.variant.as_ref().unwrap_or(each);
            let index =
                outcome.variants.iter().position(|it| it.name == *name && panel.shows(name));
            let found = index.zip(number(outcome, &claim, each));
            let Some((index, (point, y))) = found else { continue };
            let here = panel.x.values.iter().position(|x| panel.point(x) == point);
            // No metric is negative, so a difference that leads below zero is not drawn.
            let is_drawn = y.is_finite() && y >= 0.0 && (y > 0.0 || !panel.figure.log_y);
            let Some(x) = here.filter(|_| is_drawn) else { continue };
            let source = claim.source.clone();
            let anchor = Anchor { appearance: looks[index], at: (places[x], y), source };
            if !anchors.contains(&anchor) {
                anchors.push(anchor);
            }
        }
    }
    anchors
}

/// Returns the marks of the paper's stated numbers, at the last value of the axis.
fn stated(drawing: &Drawing<'_>, lines: &[&PaperLine], looks: &[Appearance]) -> Vec<Anchor> {
    let Drawing { outcome, panel, places } = drawing;
    let mark = |line: &&PaperLine| {
        let index = outcome.variants.iter().position(|it| it.name == line.variant)?;
        let y = line.mark.filter(|_| panel.shows(&line.variant))?;
        let source = line.source.clone().unwrap_or_else(|| outcome.experiment.source.clone());
        Some(Anchor { appearance: looks[index], at: (*places.last()?, y), source })
    };
    lines.iter().filter_map(mark).collect()
}

/// Returns the paper's number in the unit of the metric, and the point at which the claim reads it.
fn number(outcome: &Outcome, claim: &Claim, each: &str) -> Option<(Point, f64)> {
    let paper = claim.paper_value?;
    let read = |side: &Side| {
        let name = side.variant.as_deref().unwrap_or(each);
        let value = |point: Point| {
            let value = outcome.cell(name, &point)?.metrics.get(&claim.metric)?.value;
            Some((point, value))
        };
        let points = claims::points(outcome, side);
        let is_one = points.len() == 1;
        let mut known = points.into_iter().filter_map(value);
        let by = |a: &(Point, f64), b: &(Point, f64)| a.1.total_cmp(&b.1);
        match side.take {
            _ if side.minus.is_some() => None,
            Take::Max => known.max_by(by),
            Take::Each if is_one => known.next(),
            Take::Each => None,
        }
    };
    let (point, _) = read(&claim.a)?;
    let of_b = || Some(read(claim.b.as_ref()?)?.1);
    let y = match claim.compare {
        Compare::Value => paper,
        Compare::Ratio => paper * of_b()?,
        Compare::Difference => paper + of_b()?,
    };
    Some((point, y))
}

/// Draws a large hollow square that stands on its corner.
pub(super) fn draw(root: &Root<'_>, (x, y): (i32, i32), colour: RGBColor) -> DrawResult {
    let corners = [(0, -REACH), (REACH, 0), (0, REACH), (-REACH, 0), (0, -REACH), (REACH, 0)];
    let path: Vec<(i32, i32)> = corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
    root.draw(&PathElement::new(path, colour.stroke_width(2)))
}

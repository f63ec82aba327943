//! The bars of the papers' own figures of reply rates (provos figs. 4 to 13): what the seconds within one window
//! had, not how sure the mean of the blocks is.

use super::{SHIFT, pen::Failure};
use crate::{metric::Metric, report::panel::Panel, result::Outcome};
use plotters::{coord::Shift, prelude::*};

/// What the bars are, in the figure itself.
pub(in crate::report) const NOTE: &str =
    "pale bars: least and most replies of a second in the window";
/// How strong they are: behind everything else.
const STRENGTH: f64 = 0.45;

/// The least and the most replies of a second, each the mean over the blocks, at a place on the x axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) x: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// Those of a variant. None unless the figure shows the reply rate, nor where a window was too short to have two
/// seconds: the metrics are not there, then.
pub(super) fn of(
    outcome: &Outcome,
    panel: &Panel<'_>,
    variant: &str,
    places: &[f64],
) -> Vec<Spread> {
    if panel.figure.y != Metric::Throughput.name() {
        return Vec::new();
    }
    let at = |(value, &x)| {
        let metrics = &outcome.cell(variant, &panel.point(value))?.metrics;
        let rate = |name: &str| metrics.get(name).map(|estimate| estimate.value);
        Some(Spread {
            x,
            least: rate(Metric::ReplyRateMin.name())?,
            most: rate(Metric::ReplyRateMax.name())?,
        })
    };
    panel.x.values.iter().zip(places).filter_map(at).collect()
}

/// One bar with its caps, from `top` to `bottom`, in pixels.
pub(super) fn draw<DB: DrawingBackend>(
    root: &DrawingArea<DB, Shift>,
    [top, bottom]: [(i32, i32); 2],
    colour: RGBColor,
) -> Result<(), Failure<DB>> {
    let colour = colour.mix(STRENGTH);
    root.draw(&PathElement::new(vec![top, bottom], colour.stroke_width(1)))?;
    for (x, y) in [top, bottom] {
        root.draw(&PathElement::new(vec![(x - SHIFT, y), (x + SHIFT, y)], colour.stroke_width(2)))?;
    }
    Ok(())
}

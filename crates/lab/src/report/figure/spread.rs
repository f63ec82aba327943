//! The bars of the papers' own figures of reply rates (provos figs. 4 to 13). They show the range of the
//! seconds within one window, not the uncertainty of the mean of the blocks.

use super::{
    Drawing, SHIFT,
    pen::{DrawResult, Root},
};
use crate::metric::Metric;
use plotters::prelude::*;

/// The explanation of the bars, in the figure itself.
pub(in crate::report) const NOTE: &str =
    "pale bars: least and most replies of a second in the window";
/// The opacity of the bars, which are behind everything else.
const STRENGTH: f64 = 0.45;

/// The smallest and the largest number of replies in a second, each the mean over the blocks, at a
/// position on the x axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) x: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// Returns the bars of a variant. There are none if the figure does not show the reply rate, or if a
/// window was shorter than two seconds, because the metrics do not exist then.
pub(super) fn of(drawing: &Drawing<'_>, variant: &str) -> Vec<Spread> {
    let Drawing { outcome, panel, places } = drawing;
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

/// Draws one bar with its caps, from `top` to `bottom`, in pixels.
pub(super) fn draw(
    root: &Root<'_>,
    [top, bottom]: [(i32, i32); 2],
    colour: RGBColor,
) -> DrawResult {
    let colour = colour.mix(STRENGTH);
    root.draw(&PathElement::new(vec![top, bottom], colour.stroke_width(1)))?;
    for (x, y) in [top, bottom] {
        root.draw(&PathElement::new(vec![(x - SHIFT, y), (x + SHIFT, y)], colour.stroke_width(2)))?;
    }
    Ok(())
}

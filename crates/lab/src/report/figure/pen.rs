//! Dashed lines and marks, which plotters does not have.

use plotters::{coord::Shift, prelude::*};
use std::io;

/// The drawing area of a figure.
pub(super) type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// The result of drawing, with the error of the drawing library.
pub(super) type DrawResult<T = ()> = Result<T, DrawingAreaErrorKind<io::Error>>;

/// Draws a line with dashes; `pattern` has the lengths of dashes and gaps in pixels.
pub(super) fn dashed(
    root: &Root<'_>,
    path: &[(i32, i32)],
    pattern: &[i32],
    colour: RGBColor,
) -> DrawResult {
    let style = colour.stroke_width(2);
    if pattern.is_empty() {
        return root.draw(&PathElement::new(path.to_vec(), style));
    }
    for pair in path.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let (dx, dy) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
        let length = dx.hypot(dy);
        let at = |distance: f64| {
            let share = (distance / length).min(1.0);
            (from.0 + (dx * share).round() as i32, from.1 + (dy * share).round() as i32)
        };
        let mut done = 0.0;
        for (step, on) in pattern.iter().cycle().zip([true, false].into_iter().cycle()) {
            if done >= length {
                break;
            }
            let next = done + f64::from(*step);
            if on {
                root.draw(&PathElement::new(vec![at(done), at(next)], style))?;
            }
            done = next;
        }
    }
    Ok(())
}

/// Draws one of ten marks: filled shapes, hollow shapes, and two marks of strokes.
pub(super) fn mark(
    root: &Root<'_>,
    (x, y): (i32, i32),
    number: usize,
    colour: RGBColor,
) -> DrawResult {
    let (filled, line) = (colour.filled(), colour.stroke_width(2));
    let shape =
        |points: &[(i32, i32)]| points.iter().map(|(dx, dy)| (x + dx, y + dy)).collect::<Vec<_>>();
    let full = |points: &[(i32, i32)]| root.draw(&Polygon::new(shape(points), filled));
    let hollow = |points: &[(i32, i32)]| {
        root.draw(&Polygon::new(shape(points), WHITE.filled()))?;
        let closed: Vec<_> = points.iter().chain(&points[..2]).copied().collect();
        root.draw(&PathElement::new(shape(&closed), line))
    };
    let strokes = |ends: [[(i32, i32); 2]; 2]| {
        ends.into_iter().try_for_each(|pair| root.draw(&PathElement::new(shape(&pair), line)))
    };
    match number {
        0 => root.draw(&Circle::new((x, y), 5, filled)),
        1 => full(&[(0, -6), (6, 5), (-6, 5)]),
        2 => full(&[(-4, -4), (4, -4), (4, 4), (-4, 4)]),
        3 => full(&[(0, -6), (6, 0), (0, 6), (-6, 0)]),
        4 => {
            root.draw(&Circle::new((x, y), 5, WHITE.filled()))?;
            root.draw(&Circle::new((x, y), 5, line))
        }
        5 => full(&[(0, 6), (6, -5), (-6, -5)]),
        6 => hollow(&[(-4, -4), (4, -4), (4, 4), (-4, 4)]),
        7 => strokes([[(-5, -5), (5, 5)], [(-5, 5), (5, -5)]]),
        8 => strokes([[(-6, 0), (6, 0)], [(0, -6), (0, 6)]]),
        _ => hollow(&[(0, -6), (6, 0), (0, 6), (-6, 0)]),
    }
}

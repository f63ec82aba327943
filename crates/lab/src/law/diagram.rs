//! The phase diagram of a mechanism: the share of its best rate that remains with idle connections, by
//! the number of requests that may be open at once.
//!
//! The colours come from the fitted law. A small number in a cell is the measured share, so that readers
//! see where the law is not confirmed by a measurement. Marks show the operating points of the papers.

use super::{Open, fit::Fit};
use crate::format::escape;
use std::fmt::Write as _;

/// The rows: numbers of idle connections, in descending order.
const IDLE: [f64; 9] = [10_000.0, 3_000.0, 1_000.0, 501.0, 251.0, 100.0, 30.0, 10.0, 1.0];
/// The columns: numbers of requests that may be open at once.
const OPEN: [f64; 9] = [1.0, 4.0, 8.0, 16.0, 64.0, 128.0, 512.0, 4_096.0, 16_000.0];
const CELL: (f64, f64) = (64.0, 38.0);
const LEFT: f64 = 78.0;
const TOP: f64 = 56.0;
/// Room for the axis and the legend below.
const BOTTOM: f64 = 104.0;

/// An operating point of a paper.
struct PaperPoint {
    letter: char,
    idle: f64,
    open: f64,
    source: &'static str,
}

const PAPERS: [PaperPoint; 4] = [
    PaperPoint {
        letter: 'P',
        idle: 501.0,
        open: 128.0,
        source: "Provos and Lever, figures 4 to 14: listen queue 128",
    },
    PaperPoint {
        letter: 'p',
        idle: 251.0,
        open: 128.0,
        source: "the same with 251 idle connections",
    },
    PaperPoint {
        letter: 'G',
        idle: 10_000.0,
        open: 64.0,
        source: "Gammo et al., figures 3 and 5, as repeated here: 64 connections",
    },
    PaperPoint {
        letter: 'Z',
        idle: 1.0,
        open: 4_096.0,
        source: "Hussain: 20 to 15,000 open requests, none idle (drawn at 4,096)",
    },
];

/// Returns the share of its best rate that the mechanism keeps, between 0 and 1.
fn kept(fit: &Fit, idle: f64, open: f64) -> f64 {
    let rate = |idle| fit.law.best_rate(idle, fit.events, Open::AtMost(open));
    rate(idle) / rate(fit.law.scans.first().map_or(0.0, |&(least, _)| least))
}

/// Returns the measured share: the completed rate beyond the limit, divided by that with the fewest idle
/// connections.
fn measured(fit: &Fit, idle: f64, open: f64) -> Option<f64> {
    let fastest = fit.measured.iter().filter_map(|cell| cell.rate_rps).fold(0.0, f64::max);
    let least = fit.law.scans.first()?.0;
    let rate = |idle: f64| {
        let cell = fit.measured.iter().find(|cell| {
            cell.idle == idle && cell.open == Some(open) && cell.rate_rps == Some(fastest)
        })?;
        cell.completed_rps
    };
    Some(rate(idle)? / rate(least)?)
}

/// Returns a colour from pale blue, where everything is kept, to dark blue, where nothing is.
fn colour(kept: f64) -> String {
    let lost = (1.0 - kept).clamp(0.0, 1.0);
    let mix = |from: f64, to: f64| (from + (to - from) * lost).round();
    format!("rgb({},{},{})", mix(239.0, 8.0), mix(246.0, 48.0), mix(255.0, 107.0))
}

/// Returns the diagram as an SVG file.
pub fn draw(fit: &Fit) -> String {
    let (width, height) =
        (LEFT + CELL.0 * OPEN.len() as f64 + 12.0, TOP + CELL.1 * IDLE.len() as f64 + BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"13\" \
         aria-label=\"What idle connections leave of the best rate of {0}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"15\" font-weight=\"600\">{0}: percentage of the best rate that is \
         left</text>\n<text x=\"{LEFT}\" y=\"40\" fill=\"#555\">large: the law; small: measured; circled: where a \
         paper measured</text>\n",
        escape(&fit.variant)
    );
    for (row, &idle) in IDLE.iter().enumerate() {
        let y = TOP + CELL.1 * row as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{idle}</text>",
            LEFT - 8.0,
            y + 24.0
        );
        for (column, &open) in OPEN.iter().enumerate() {
            cell(&mut svg, fit, (LEFT + CELL.0 * column as f64, y), (idle, open));
        }
    }
    let below = TOP + CELL.1 * IDLE.len() as f64;
    for (column, open) in OPEN.iter().enumerate() {
        let x = LEFT + CELL.0 * (column as f64 + 0.5);
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{open}</text>",
            below + 18.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\" fill=\"#555\">→ requests that may be open at once; ↑ idle connections</text>",
        below + 36.0
    );
    for (line, point) in PAPERS.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{}\" font-size=\"12\" fill=\"#333\"><tspan font-weight=\"700\">{}</tspan> {}</text>",
            below + 54.0 + 15.0 * line as f64,
            point.letter,
            escape(point.source)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn cell(svg: &mut String, fit: &Fit, (x, y): (f64, f64), (idle, open): (f64, f64)) {
    let kept = kept(fit, idle, open);
    let ink = if kept < 0.55 { "#fff" } else { "#111" };
    let middle = x + CELL.0 / 2.0;
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"#fff\"/>\
         <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"{ink}\">{:.0}</text>",
        CELL.0,
        CELL.1,
        colour(kept),
        y + 17.0,
        100.0 * kept
    );
    if let Some(measured) = measured(fit, idle, open) {
        let _ = writeln!(
            svg,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" font-size=\"11\" fill=\"{ink}\">{:.0}</text>",
            y + 32.0,
            100.0 * measured
        );
    }
    for point in PAPERS.iter().filter(|point| point.idle == idle && point.open == open) {
        // The mark is beside the number, which is in the middle.
        let (cx, cy) = (x + 11.0, y + CELL.1 - 11.0);
        let _ = writeln!(
            svg,
            "<circle cx=\"{cx}\" cy=\"{cy}\" r=\"9\" fill=\"#fff\" stroke=\"#d55e00\" stroke-width=\"2\"/>\
             <text x=\"{cx}\" y=\"{}\" text-anchor=\"middle\" font-size=\"12\" font-weight=\"700\" \
             fill=\"#111\">{}</text>",
            cy + 4.5,
            point.letter
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::law::{Law, fit::Cell};

    #[test]
    fn idle_connections_are_dear_where_few_requests_are_open() {
        let law = Law::made(35.0, &[(1.0, 1.0), (10_000.0, 4_100.0)]);
        let cell = |idle, rps| Cell {
            name: String::new(),
            idle,
            open: Some(64.0),
            rate_rps: Some(9_000.0),
            point: Default::default(),
            // Beyond the limit the CPU time of a request is not known.
            measured: None,
            completed_rps: Some(rps),
        };
        let fit = Fit {
            variant: "poll".to_owned(),
            law,
            events: 2.0,
            latency: None,
            cells: 0,
            predictions: Vec::new(),
            measured: vec![cell(1.0, 8_000.0), cell(10_000.0, 2_000.0)],
        };
        assert!(kept(&fit, 10_000.0, 64.0) < 0.3 && kept(&fit, 10_000.0, 16_000.0) > 0.95);
        assert_eq!(measured(&fit, 10_000.0, 64.0), Some(0.25));
        assert_eq!(measured(&fit, 10_000.0, 4.0), None);
        let svg = draw(&fit);
        for point in &PAPERS {
            assert!(IDLE.contains(&point.idle) && OPEN.contains(&point.open), "{}", point.source);
            assert!(svg.contains(point.source));
        }
        assert!(svg.contains(">25</text>"), "the measured percentage");
    }
}

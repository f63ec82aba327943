//! All claims in one picture: the measured figures beside the claimed ones.
//!
//! In each row, the threshold of the claim is on the vertical line in the middle, and figures that
//! support the claim are to its right, whichever direction the comparison has. Distances are ratios to
//! the threshold, so that rows can be compared. The thick bar is the interval over the blocks. The thin
//! bar is the interval that decided the claim; it is wider the earlier the run looked. The diamond is
//! the paper's own number.

use crate::{
    experiment::Threshold,
    format::{escape, number},
    verdict::{Bound, ClaimOutcome, Verdict},
};
use std::fmt::Write as _;

const WIDTH: f64 = 900.0;
/// The height of a row, which has the statement, and the bar below it.
const ROW: f64 = 44.0;
const LABELS: f64 = 24.0;
/// The longest statement that fits, in characters.
const MAX_STATEMENT: usize = 132;
/// The width of the column of numbers to the right of the picture.
const FIGURES: f64 = 210.0;
const TOP: f64 = 34.0;
/// The permitted ratios between the edge of the picture and the threshold; within them, the claims
/// determine the edge. A figure beyond the edge is drawn at the edge, and a bar that continues beyond it
/// ends in a triangle.
const FARTHEST: std::ops::RangeInclusive<f64> = 1.25..=8.0;

/// An explanation of the picture for new readers.
pub const LEGEND: &str = "The vertical line is the threshold of each claim. A point to the right of it supports the claim; the \
    distance is a factor. A thick bar is the 95 % interval. A thin bar is the interval that decides; it is wider if the \
    run ended early. A dashed bar is the range of fewer than six blocks, which have no interval. A bar that continues \
    beyond the picture ends in a triangle. ◆ is the paper's number. ★ marks the primary claim of a figure. On the right: \
    the measured value and the condition under which the claim holds.";

/// Returns the ratio of `value` to the threshold, inverted if smaller values support the claim; a ratio
/// below 1 is evidence against the claim. Returns `None` if the threshold gives no scale.
fn ratio(threshold: Threshold, value: f64) -> Option<f64> {
    match threshold {
        Threshold::Above(limit) if limit > 0.0 => Some(value / limit),
        Threshold::Below(limit) if limit > 0.0 => Some(limit / value.max(1e-12)),
        // The distance from the nearer limit, on the inside.
        Threshold::Within([low, high]) if low > 0.0 => Some((value / low).min(high / value)),
        _ => None,
    }
}

/// Returns the position of `value` in a picture whose edge is at `farthest`, from -1 (against the claim)
/// through 0 (the threshold) to 1. Positions outside of this range are outside of the picture.
fn place(threshold: Threshold, value: f64, farthest: f64) -> Option<f64> {
    Some(ratio(threshold, value)?.max(1e-9).ln() / farthest.ln())
}

/// Returns the edge of the picture: as far as possible, all measured figures fit into it.
fn farthest(claims: &[(String, &ClaimOutcome)]) -> f64 {
    let ends = |claim: &ClaimOutcome| {
        let values = [claim.value, claim.low, claim.high].into_iter().flatten();
        let ratios = values.filter_map(|value| ratio(claim.threshold, value));
        ratios.map(|ratio| ratio.max(1.0 / ratio.max(1e-9))).fold(1.0, f64::max)
    };
    let most = claims.iter().map(|(_, claim)| ends(claim)).fold(1.0, f64::max);
    (most * 1.05).clamp(*FARTHEST.start(), *FARTHEST.end())
}

/// The file name among the figures.
pub const FILE: &str = "forest.svg";

/// Returns the picture for a page, which supplies the colours; each claim's name is a link to its anchor
/// there. Returns an empty text if there are no claims.
pub fn draw(claims: &[(String, &ClaimOutcome)]) -> String {
    if claims.is_empty() {
        return String::new();
    }
    format!("<div class=\"scroll\">{}</div>\n", svg(claims, ""))
}

/// Returns the picture as a file, which is light or dark by the reader's preference.
pub fn file(claims: &[ClaimOutcome]) -> String {
    let style = format!(
        "<style>{}</style>\n<rect width=\"100%\" height=\"100%\" class=\"ground\"/>\n",
        include_str!("forest.css")
    );
    let claims: Vec<_> = claims.iter().map(|claim| (String::new(), claim)).collect();
    svg(&claims, &style)
}

/// Returns the picture with `head` before everything else. A claim without an anchor has no link.
fn svg(claims: &[(String, &ClaimOutcome)], head: &str) -> String {
    let height = TOP + ROW * claims.len() as f64 + 8.0;
    let x = |place: f64| LABELS + (WIDTH - LABELS - FIGURES) * (place + 1.0) / 2.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"forest\" role=\"img\" \
         aria-label=\"All claims with their figures\" viewBox=\"0 0 {WIDTH} {height}\" width=\"100%\">\n{head}"
    );
    let (middle, farthest) = (x(0.0), farthest(claims));
    let _ = writeln!(
        svg,
        "<text x=\"{:.0}\" y=\"16\" class=\"soft\" text-anchor=\"end\">← against the claim</text>\
         <text x=\"{:.0}\" y=\"16\" class=\"soft\">for the claim →</text>\
         <line x1=\"{middle:.1}\" x2=\"{middle:.1}\" y1=\"22\" y2=\"{height}\" class=\"axis\"/>",
        middle - 8.0,
        middle + 8.0
    );
    let _ = writeln!(
        svg,
        "<text x=\"4\" y=\"16\" class=\"soft\">{1} times</text>\
         <text x=\"{0:.0}\" y=\"16\" class=\"soft\" text-anchor=\"middle\">{1} times</text>",
        x(1.0),
        number(farthest)
    );
    for (row, (anchor, claim)) in claims.iter().enumerate() {
        let y = TOP + ROW * row as f64 + ROW * 0.7;
        let class = match claim.verdict {
            Verdict::Holds => "yes",
            Verdict::DoesNotHold => "no",
            _ => "open",
        };
        let star = if claim.primary { "★ " } else { "" };
        let statement = escape(&shortened(&claim.statement));
        let name = format!("<text x=\"4\" y=\"{:.1}\">{star}{statement}</text>", y - 13.0);
        let _ = match anchor.as_str() {
            "" => write!(svg, "{name}"),
            anchor => write!(svg, "<a href=\"#{}\">{name}</a>", escape(anchor)),
        };
        let _ = write!(svg, "<g class=\"{class}\"><title>{}</title>", escape(&claim.statement));
        bars(&mut svg, claim, farthest, y, &x);
        let measured = claim.value.map_or_else(String::new, |value| {
            format!("{}{} ", Bound::sign(claim.bound), claim.number(value))
        });
        let _ = writeln!(
            svg,
            "</g><text x=\"{:.1}\" y=\"{:.1}\">{}<tspan class=\"soft\">({})</tspan></text>",
            WIDTH - FIGURES + 24.0,
            y + 5.0,
            escape(&measured),
            escape(&claim.condition())
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the statement, shortened if it does not fit.
fn shortened(statement: &str) -> String {
    if statement.chars().count() <= MAX_STATEMENT {
        return statement.to_owned();
    }
    let room: String = statement.chars().take(MAX_STATEMENT - 1).collect();
    let words = room.rsplit_once(' ').map_or(room.as_str(), |(words, _)| words);
    format!("{words} …")
}

fn bars(svg: &mut String, claim: &ClaimOutcome, farthest: f64, y: f64, x: &impl Fn(f64) -> f64) {
    let place = |value: f64| place(claim.threshold, value, farthest);
    let at = |value: f64| place(value).map(|place| x(place.clamp(-1.0, 1.0)));
    let goes_on = |value: f64| place(value).filter(|place| place.abs() > 1.0);
    let Some(value) = claim.value.and_then(at) else {
        let text = match (claim.verdict, claim.value) {
            (Verdict::NotTestable, _) => "not testable here",
            (_, None) => "no figure",
            _ => "see the table: the threshold is not above zero",
        };
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"soft\">{text}</text>",
            x(-1.0),
            y + 5.0
        );
        return;
    };
    // For a figure between two limits, both ends of its interval may be on one side.
    let span = |low: f64, high: f64| {
        let beyond = [goes_on(low), goes_on(high)].into_iter().flatten().map(f64::signum).collect();
        Some((at(low)?, at(high)?, beyond))
    };
    let mut bar = |ends: Option<(f64, f64, Vec<f64>)>, width: f64, dashes: &str| {
        let Some((a, b, beyond)) = ends else { return };
        let (low, high) = (a.min(b).min(value), a.max(b).max(value));
        let _ = write!(
            svg,
            "<line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" \
             stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\"/>"
        );
        for side in beyond {
            let (tip, back) = (x(side) + 9.0 * side, -9.0 * side);
            let _ =
                write!(svg, "<path class=\"beyond\" d=\"M{tip:.1} {y:.1} l{back:.1} -6 v12 z\"/>");
        }
    };
    let deciding = claim.deciding();
    let seen = deciding.and_then(|part| part.estimate?.range);
    bar(seen.and_then(|i| span(i.low, i.high)), 1.2, "4 3");
    bar(deciding.and_then(|part| part.deciding).and_then(|i| span(i.low, i.high)), 1.2, "none");
    bar(claim.low.zip(claim.high).and_then(|(low, high)| span(low, high)), 5.0, "none");
    let arrow = match claim.bound {
        Some(Bound::AtLeast) => "≥",
        Some(Bound::AtMost) => "≤",
        None => "",
    };
    let _ = write!(
        svg,
        "<circle cx=\"{value:.1}\" cy=\"{y:.1}\" r=\"4.5\"/><text x=\"{:.1}\" y=\"{:.1}\">{arrow}</text>",
        value + 7.0,
        y - 4.0
    );
    if let Some(paper) = claim.paper.and_then(at) {
        let _ = write!(
            svg,
            "<path class=\"paper\" d=\"M{paper:.1} {:.1} l5 6 l-5 6 l-5 -6 z\"/>",
            y - 6.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(low: f64, high: f64, range: Option<(f64, f64)>) -> String {
        draw(&[("g3".into(), &claim(low, high, range))])
    }

    fn claim(low: f64, high: f64, range: Option<(f64, f64)>) -> ClaimOutcome {
        let ends = |ends: Option<(f64, f64)>| match ends {
            Some((low, high)) => serde_json::json!({ "low": low, "high": high }),
            None => serde_json::Value::Null,
        };
        let is_seen = range.is_some();
        let own = |end: f64| Some(end).filter(|_| !is_seen);
        serde_json::from_value(serde_json::json!({
            "id": "G3", "statement": "s", "verdict": if is_seen { "seen, not decided" } else { "undecided" },
            "value": 2.0, "low": own(low), "high": own(high), "paper": null, "paper_says": "p",
            "threshold": { "above": 1.5 },
            "parts": [{
                "variant": "poll", "verdict": "undecided", "note": null,
                "estimate": {
                    "value": 2.0, "low": own(low), "high": own(high), "range": ends(range), "blocks": 10,
                },
            }],
        }))
        .unwrap()
    }

    #[test]
    fn the_edge_is_as_far_as_the_claims_need() {
        let edge = |low, high| farthest(&[(String::new(), &claim(low, high, None))]);
        // The figures are ratios to the threshold 1.5.
        assert_eq!(edge(1.8, 3.0), 2.0 * 1.05);
        assert_eq!(edge(1.8, 3e9), 8.0);
        let mut near = claim(1.49, 1.51, None);
        near.value = Some(1.5);
        assert_eq!(farthest(&[(String::new(), &near)]), 1.25);
    }

    #[test]
    fn a_file_stands_alone() {
        let file = file(&[claim(1.2, 3.0, None)]);
        for part in ["xmlns=", "prefers-color-scheme: dark", "2.00 ", "(&gt; 1.5)"] {
            assert!(file.contains(part), "{part}: {file}");
        }
        assert!(!file.contains("<a ") && !file.contains("var("), "{file}");
    }

    /// Regression test: the left label once did not fit into the picture.
    #[test]
    fn both_edges_have_a_label_inside_the_picture() {
        let svg = drawn(1.8, 3.0, None);
        assert!(svg.contains("<text x=\"4\" y=\"16\" class=\"soft\">2.10 times</text>"), "{svg}");
        assert_eq!(svg.matches("2.10 times").count(), 2);
        let mut claim = claim(1.8, 3.0, None);
        claim.threshold = Threshold::Below(-0.3);
        assert!(draw(&[("g3".into(), &claim)]).contains("the threshold is not above zero"));
    }

    #[test]
    fn what_goes_on_beyond_the_picture_is_marked() {
        let marks = |svg: &str| svg.matches("class=\"beyond\"").count();
        assert_eq!(marks(&drawn(1.2, 3.0, None)), 0);
        assert_eq!(marks(&drawn(1.2, 4e9, None)), 1);
        assert_eq!(marks(&drawn(1e-9, 4e9, None)), 2);
    }

    #[test]
    fn what_few_blocks_showed_is_dashed() {
        let dashed = |svg: &str| svg.contains("stroke-dasharray=\"4 3\"");
        assert!(!dashed(&drawn(1.2, 3.0, None)) && dashed(&drawn(1.2, 3.0, Some((1.9, 2.1)))));
    }

    #[test]
    fn right_of_the_line_is_for_the_claim() {
        for (threshold, value, sign) in [
            (Threshold::Above(2.0), 4.0, 1.0),
            (Threshold::Above(2.0), 1.0, -1.0),
            (Threshold::Below(0.5), 0.25, 1.0),
            (Threshold::Below(0.5), 0.9, -1.0),
            (Threshold::Within([0.9, 1.1]), 1.0, 1.0),
            (Threshold::Within([0.9, 1.1]), 1.3, -1.0),
            (Threshold::Within([0.9, 1.1]), 0.7, -1.0),
        ] {
            let place = place(threshold, value, 8.0).unwrap();
            assert_eq!(place.signum(), sign, "{threshold} {value}: {place}");
        }
        assert!(place(Threshold::Above(1.0), 1e9, 8.0).unwrap() > 1.0, "beyond the edge");
        assert!(place(Threshold::Below(2.0), 0.0, 8.0).unwrap() > 1.0);
        assert_eq!(place(Threshold::Above(0.0), 3.0, 8.0), None, "no scale");
    }
}

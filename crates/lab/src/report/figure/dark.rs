//! Figures on a dark page: every colour of the light form has its counterpart, which the browser uses when
//! the reader prefers dark pages. The picture stays one file.

use super::{COLOURS, GRID, GUIDE, TEXT};
use plotters::style::{RGBColor, WHITE};
use std::fmt::Write as _;

/// The background of the page, as in `page.css`.
const PAGE: RGBColor = RGBColor(23, 27, 34);
const DARK_GRID: RGBColor = RGBColor(52, 58, 68);
const DARK_GUIDE: RGBColor = RGBColor(120, 125, 135);
const DARK_TEXT: RGBColor = RGBColor(225, 228, 234);

/// The counterparts of [`COLOURS`], in the same order: the same hues, light enough for a dark page.
const DARK: [RGBColor; COLOURS.len()] = [
    RGBColor(240, 240, 240),
    RGBColor(240, 130, 40),
    RGBColor(70, 160, 230),
    RGBColor(40, 200, 150),
    RGBColor(225, 150, 190),
    RGBColor(215, 185, 50),
    RGBColor(140, 200, 255),
    RGBColor(175, 140, 230),
    RGBColor(200, 140, 125),
    RGBColor(60, 175, 175),
    RGBColor(165, 165, 165),
    RGBColor(165, 205, 60),
    RGBColor(245, 95, 140),
    RGBColor(120, 130, 235),
];

/// Returns each colour of a figure with its counterpart on a dark page.
fn pairs() -> impl Iterator<Item = (RGBColor, RGBColor)> {
    let ground = [(WHITE, PAGE), (GRID, DARK_GRID), (GUIDE, DARK_GUIDE), (TEXT, DARK_TEXT)];
    ground.into_iter().chain(COLOURS.into_iter().zip(DARK))
}

fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// The class of a figure's root element, because a page also has pictures of other kinds.
pub(super) const CLASS: &str = "drawn";

/// Returns the style sheet that is written into the picture.
pub(super) fn style() -> String {
    let mut style = "<style>@media (prefers-color-scheme: dark) {".to_owned();
    for (light, dark) in pairs() {
        let (light, dark) = (hex(light), hex(dark));
        for attribute in ["fill", "stroke"] {
            let _ = write!(style, " .{CLASS} [{attribute}=\"{light}\"]{{{attribute}:{dark}}}");
        }
    }
    style + " }</style>"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the contrast ratio by the relative luminance of WCAG 2.1.
    fn contrast(a: RGBColor, b: RGBColor) -> f64 {
        let luminance = |RGBColor(red, green, blue): RGBColor| {
            let part = |value: u8| match f64::from(value) / 255.0 {
                small if small <= 0.03928 => small / 12.92,
                value => ((value + 0.055) / 1.055).powf(2.4),
            };
            0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue)
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// Graphical objects need a contrast of 3 to 1 (WCAG 2.1, 1.4.11), text a contrast of 4.5 to 1.
    #[test]
    fn lines_can_be_seen_on_a_dark_page() {
        for colour in DARK {
            assert!(contrast(colour, PAGE) >= 3.0, "{colour:?}");
        }
        assert!(contrast(DARK_TEXT, PAGE) >= 4.5);
        // The control: the first light colour has too little contrast.
        assert!(contrast(COLOURS[0], PAGE) < 3.0);
    }

    #[test]
    fn no_two_are_alike() {
        for (index, colour) in DARK.iter().enumerate() {
            assert!(!DARK[..index].contains(colour), "{colour:?}");
        }
    }
}

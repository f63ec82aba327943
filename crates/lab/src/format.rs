//! Formats figures for readers.

use std::ffi::OsString;

use crate::{experiment::Value, statistics::Estimate};

/// Formats a number with three significant digits and separated thousands: `8,000`, `12.3`, `0.0451`.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = value.abs().log10().floor() as i32;
    // Rounding may carry into the next magnitude (99.96 to 100).
    let scale = 10f64.powi(2 - magnitude.min(2));
    let rounded = (value * scale).round() / scale;
    let magnitude = rounded.abs().log10().floor() as i32;
    let decimals = (2 - magnitude).clamp(0, 9) as usize;
    let text = format!("{rounded:.decimals$}");
    group_thousands(&text)
}

/// Formats `value` with as many decimals as [`number`] gives `model`.
pub fn like(value: f64, model: f64) -> String {
    let decimals = number(model).split_once('.').map_or(0, |(_, decimals)| decimals.len());
    group_thousands(&format!("{value:.decimals$}"))
}

fn group_thousands(text: &str) -> String {
    let (whole, rest) = text.find('.').map_or((text, ""), |dot| text.split_at(dot));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut grouped = String::with_capacity(text.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{rest}")
}

/// Formats a value of an axis. Whole numbers are written in full.
pub fn value(value: &Value) -> String {
    match value {
        Value::Number(number) if number.fract() == 0.0 => group_thousands(&format!("{number}")),
        Value::Number(number) => self::number(*number),
        other => other.to_string(),
    }
}

/// Formats a count in full.
pub fn count(number: u64) -> String {
    group_thousands(&number.to_string())
}

/// Formats the interval as `[low, high]`. With too few blocks for an interval it shows the range of the
/// values, and with one block nothing.
pub fn interval(estimate: &Estimate) -> String {
    match estimate.range {
        Some(seen) => {
            let (low, high, blocks) = (number(seen.low), number(seen.high), estimate.blocks);
            format!("(seen {low} to {high} in {blocks} blocks)")
        }
        None => ends(estimate.low, estimate.high),
    }
}

/// Formats `[low, high]` if both are known.
pub fn ends(low: Option<f64>, high: Option<f64>) -> String {
    match (low, high) {
        (Some(low), Some(high)) => format!("[{}, {}]", number(low), number(high)),
        _ => String::new(),
    }
}

/// Formats a duration: `45 s`, `12 min`.
pub fn seconds(seconds: f64) -> String {
    if seconds < 180.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

/// Formats bytes with a binary unit.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", number(value), UNITS[unit])
}

/// Wraps `text` at words. The first line begins with `first`, all other lines with `later`.
pub(crate) fn wrap(text: &str, width: usize, first: &str, later: &str) -> String {
    let options = textwrap::Options::new(width)
        .initial_indent(first)
        .subsequent_indent(later)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}

/// Escapes text for use inside an element or an attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Formats a command line as a user would type it.
pub fn command_line(program: &[OsString]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,%+@".contains(c);
    let words: Vec<String> = program
        .iter()
        .map(|word| {
            let word = word.to_string_lossy();
            if !word.is_empty() && word.chars().all(plain) {
                word.into_owned()
            } else {
                format!("'{}'", word.replace('\'', r"'\''"))
            }
        })
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::estimate;

    /// With two points, Student's interval had a width of a billion.
    #[test]
    fn few_blocks_show_what_was_seen() {
        let interval = |values: &[f64]| interval(&estimate(values).unwrap());
        assert_eq!(interval(&[0.5, 2.0]), "(seen 0.500 to 2.00 in 2 blocks)");
        assert_eq!(interval(&[2.0]), "");
        assert_eq!(interval(&[2.0; 6]), "[2.00, 2.00]");
    }

    #[test]
    fn numbers_have_three_digits_and_thousands() {
        for (value, text) in [
            (0.0, "0"),
            (0.004512, "0.00451"),
            (1.0, "1.00"),
            (12.345, "12.3"),
            (99.96, "100"),
            (123.4, "123"),
            (8000.0, "8,000"),
            (1234567.0, "1,234,567"),
            (-4321.0, "-4,321"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(like(0.42, 14.4), "0.4");
        assert_eq!(like(49.2, 1749.0), "49");
        assert_eq!(value(&Value::Number(8000.0)), "8,000");
        assert_eq!(value(&Value::Word("inf".into())), "inf");
        assert_eq!(bytes(25_769_803_776), "24.0 GiB");
        let durations = [80.0, 179.0, 180.0, 900.0].map(seconds);
        assert_eq!(durations, ["80 s", "179 s", "3 min", "15 min"]);
        assert_eq!(escape(r#"<a href="x">'&"#), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;");
    }

    #[test]
    fn command_lines_can_be_typed() {
        let words = ["serve", "a b", "it's", ""].map(OsString::from);
        assert_eq!(command_line(&words), r"serve 'a b' 'it'\''s' ''");
    }
}

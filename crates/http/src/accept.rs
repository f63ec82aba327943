//! `Accept`: how much a client wants a media type (RFC 9110 §12.5.1).

use crate::{accept_encoding::parse_weight, syntax};

/// How much a client wants a media type; it prefers the greater one of two.
///
/// Of two types with the same weight it prefers the one that it has named more precisely:
/// `application/json, */*` is sent by programs that expect JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preference {
    weight: u16,
    precision: Precision,
}

/// The part of a media type that a range names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Precision {
    /// `*/*`, or no range.
    Nothing,
    /// `text/*`.
    TopLevel,
    /// `text/html`.
    Whole,
}

impl Preference {
    /// Parses the lines of the field. Without the field, or with an empty one, every type is
    /// accepted.
    ///
    /// The most precise range for the type counts, the last one of several. Parameters other than
    /// the weight are ignored, and so is a range with an invalid weight.
    ///
    /// ```
    /// use pollux_http::accept::Preference;
    ///
    /// let of = |kind| Preference::of(kind, [&b"text/html;q=0.5, application/json"[..]].into_iter());
    /// assert!(of("application/json") > of("text/html"));
    /// ```
    pub fn of<'b>(media_type: &str, values: impl Iterator<Item = &'b [u8]>) -> Self {
        let media_type = media_type.as_bytes();
        let top_level = media_type.split(|&b| b == b'/').next().unwrap_or_default();
        let mut found: Option<Self> = None;
        let mut has_range = false;
        for member in values.flat_map(syntax::list) {
            has_range = true;
            let mut parts = member.split(|&b| b == b';').map(syntax::trim);
            let range = parts.next().unwrap_or_default();
            let of_top_level = |top: &[u8]| top.eq_ignore_ascii_case(top_level);
            let precision = if range.eq_ignore_ascii_case(media_type) {
                Precision::Whole
            } else if range == b"*/*" {
                Precision::Nothing
            } else if range.strip_suffix(b"/*").is_some_and(of_top_level) {
                Precision::TopLevel
            } else {
                continue;
            };
            let Some(weight) = weight_of(parts) else { continue };
            if found.is_none_or(|earlier| precision >= earlier.precision) {
                found = Some(Self { weight, precision });
            }
        }
        match found {
            // Of two types that are not accepted, none is preferred.
            Some(Self { weight: 0, .. }) => Self { weight: 0, precision: Precision::Nothing },
            Some(found) => found,
            None if has_range => Self { weight: 0, precision: Precision::Nothing },
            None => Self { weight: 1000, precision: Precision::Nothing },
        }
    }
}

/// Returns the weight among the parameters of a range, in thousandths; `None` if it is invalid.
fn weight_of<'b>(mut parameters: impl Iterator<Item = &'b [u8]>) -> Option<u16> {
    let value = |part: &'b [u8]| part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q="));
    parameters.find_map(value).map_or(Some(1000), parse_weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Ordering::{self, Equal, Greater, Less};

    /// Compares how much a client with these lines wants JSON and HTML.
    fn json_to_html(lines: &[&str]) -> Ordering {
        let of = |kind| Preference::of(kind, lines.iter().map(|line| line.as_bytes()));
        of("application/json").cmp(&of("text/html"))
    }

    #[test]
    fn preferences_of_rfc_9110_12_5_1() {
        for (line, expected) in [
            ("", Equal),
            ("*/*", Equal),
            ("text/plain", Equal),
            ("text/html, application/json", Equal),
            ("application/json", Greater),
            ("APPLICATION/JSON ; q=0.5", Greater),
            ("application/json;charset=utf-8", Greater),
            ("application/*", Greater),
            ("text/html;q=0.5, application/json", Greater),
            ("application/json, text/plain, */*", Greater),
            ("application/json, text/javascript, */*; q=0.01", Greater),
            ("text/html;Q=0, */*", Greater),
            ("application/json;q=0.5, */*", Less),
            ("application/json;q=0, */*;q=0.1", Less),
            ("application/json;q=0, text/plain", Equal),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Less),
            // The most precise range counts, and the last one of several.
            ("*/*, application/*;q=0.9, application/json;q=0.1, text/*;q=0.2", Less),
            ("application/json;q=0.1, application/json, text/html;q=0.5", Greater),
            // Ranges with invalid syntax are ignored.
            ("application/json;q=2", Equal),
            ("application/json;q=", Equal),
            ("applicationjson, json, /*", Equal),
        ] {
            assert_eq!(json_to_html(&[line]), expected, "{line:?}");
        }
        assert_eq!(json_to_html(&[]), Equal);
        assert_eq!(json_to_html(&["text/plain", "application/json"]), Greater);
    }
}

//! Strict decoding of `application/x-www-form-urlencoded` fields, in a body or a query.

use crate::{limits, reject::Reject};
use regex::Regex;
use std::sync::LazyLock;

/// Decodes the fields of a form, in their order (URL Standard §5.1). Unlike a browser, it repairs nothing: a percent sign
/// without two hexadecimal digits, and a decoded text that is not UTF-8, are errors, because a repaired topic is another
/// topic.
///
/// # Errors
/// 400 for malformed fields, 413 for more than [`limits::FIELDS`].
pub fn decode(text: &[u8]) -> Result<Vec<(String, String)>, Reject> {
    let fields = split(text)?.into_iter();
    fields.map(|(name, value)| Ok((unescape(name, b' ')?, unescape(value, b' ')?))).collect()
}

/// The fields of a query: their names and, unless it is not UTF-8, their values.
pub type QueryFields = Vec<(String, Result<String, Reject>)>;

/// Decodes the fields of a query, in their order, exactly as the URL Standard does (§5.1), which the protocol requires
/// for a query: a percent sign without two hexadecimal digits stands for itself. A value that is not UTF-8 is an error
/// only for its own parameter, because a query may have parameters that are not the hub's.
///
/// # Errors
/// 413 for more than [`limits::FIELDS`].
pub fn decode_query(text: &[u8]) -> Result<QueryFields, Reject> {
    let fields = split(text)?.into_iter();
    let decode = |(name, value)| {
        let name = String::from_utf8_lossy(&unescape_leniently(name)).into_owned();
        (name, String::from_utf8(unescape_leniently(value)).map_err(|_| not_utf8()))
    };
    Ok(fields.map(decode).collect())
}

/// Names and values that are not decoded yet.
type RawFields<'a> = Vec<(&'a [u8], &'a [u8])>;

/// Splits a text into fields.
fn split(text: &[u8]) -> Result<RawFields<'_>, Reject> {
    let mut fields = Vec::new();
    for field in text.split(|byte| *byte == b'&').filter(|field| !field.is_empty()) {
        if fields.len() == limits::FIELDS {
            return Err(Reject::too_large("the request has too many fields: send fewer"));
        }
        let equals = field.iter().position(|byte| *byte == b'=').unwrap_or(field.len());
        fields.push((&field[..equals], field.get(equals + 1..).unwrap_or_default()));
    }
    Ok(fields)
}

fn not_utf8() -> Reject {
    Reject::invalid("a field is not UTF-8: encode it as UTF-8, then as %XX")
}

/// Decodes escapes. A percent sign that begins no escape stands for itself.
fn unescape_leniently(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        decoded.push(match (byte, tail) {
            (b'+', _) => b' ',
            (b'%', [high, low, after @ ..]) => match (digit(high), digit(low)) {
                (Some(high), Some(low)) => {
                    rest = after;
                    high << 4 | low
                }
                _ => b'%',
            },
            _ => *byte,
        });
    }
    decoded
}

/// Decodes escapes. `plus` is what a plus stands for: a space in a form or a query, itself in a path.
pub(crate) fn unescape(text: &[u8], plus: u8) -> Result<String, Reject> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => plus,
            b'%' => match (bytes.next().and_then(digit), bytes.next().and_then(digit)) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => {
                    return Err(Reject::invalid(
                        "a percent sign is not followed by two hexadecimal digits: write %25",
                    ));
                }
            },
            other => *other,
        });
    }
    String::from_utf8(decoded).map_err(|_| not_utf8())
}

#[expect(clippy::cast_possible_truncation, reason = "a hexadecimal digit is below 16")]
fn digit(byte: &u8) -> Option<u8> {
    char::from(*byte).to_digit(16).map(|digit| digit as u8)
}

/// Control characters, and characters that format the text around them, such as the zero-width and bidirectional
/// ones: with them, two topics look the same to a person.
static INVISIBLE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\p{Cc}\p{Cf}]").expect("it is a pattern"));

/// Whether a text has control characters or invisible ones (the general categories Cc and Cf of Unicode). No topic,
/// matcher, identifier or type may have them.
#[must_use]
pub fn has_invisible(text: &str) -> bool {
    INVISIBLE.is_match(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decoding_is_strict() {
        let fields = decode(b"topic=a+b&data=%e2%82%AC&empty&&x=1=2").unwrap();
        let expected = [("topic", "a b"), ("data", "\u{20ac}"), ("empty", ""), ("x", "1=2")];
        assert!(fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
        for bad in [&b"a=%"[..], b"a=%4", b"a=%zz", b"a=%ff", b"\xff=1", b"a=%C3"] {
            assert_eq!(decode(bad).unwrap_err().status, 400, "{bad:?}");
        }
        assert_eq!(decode(&b"a&".repeat(2000)).unwrap_err().status, 413);
    }

    /// Regression: a query with a malformed value was refused, even if the parameter was not one of the hub's.
    #[test]
    fn a_query_is_decoded_as_by_the_url_standard() {
        let fields =
            decode_query(b"match=100%&m%61tch=a+b%2B&x=%zz%4&&y=%C3%A9&%&z=%ff&\xff").unwrap();
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref().map_err(|error| error.status)))
            .collect();
        let expected = [
            ("match", Ok("100%")),
            ("match", Ok("a b+")),
            ("x", Ok("%zz%4")),
            ("y", Ok("\u{e9}")),
            ("%", Ok("")),
            ("z", Err(400)),
            ("\u{fffd}", Ok("")),
        ];
        assert_eq!(fields, expected);
        assert_eq!(decode_query(&b"a&".repeat(2000)).unwrap_err().status, 413);
    }

    #[test]
    fn invisible_characters_are_found() {
        for text in ["\0", "a\u{7f}", "\u{85}", "\u{ad}", "a\u{202e}b", "\u{feff}a", "\u{e0041}"] {
            assert!(has_invisible(text), "{text:?}");
        }
        for text in ["", "a b", "\u{e9}", "\u{645}\u{631}\u{62d}", "\u{1f600}", "\u{a0}"] {
            assert!(!has_invisible(text), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn escaped_text_comes_back(text in ".{0,60}") {
            let escaped: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let form = format!("k={escaped}");
            let fields = decode(form.as_bytes()).unwrap();
            prop_assert_eq!(&fields[0].1, &text);
            let fields = decode_query(form.as_bytes()).unwrap();
            prop_assert_eq!(&fields[0].1, &Ok(text));
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            let _ = decode_query(&bytes);
        }
    }
}

//! Texts in UTF-8: files that people edit, and streams of events.

/// The byte order mark (U+FEFF). Some editors put it in front of a text, and a stream of events may begin with it (HTML
/// Standard §9.2.6). It is no part of the text.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Returns `text` without a byte order mark in front.
///
/// ```
/// use pollux_http::text::without_mark;
///
/// assert_eq!(without_mark("\u{feff}# Müller\n"), "# Müller\n");
/// assert_eq!(without_mark("a\u{feff}"), "a\u{feff}");
/// ```
#[must_use]
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// As [`without_mark`], for bytes that are possibly no text.
///
/// ```
/// use pollux_http::text::bytes_without_mark;
///
/// assert_eq!(bytes_without_mark(b"\xef\xbb\xbf{}"), b"{}");
/// assert_eq!(bytes_without_mark(b"\xef\xbb"), b"\xef\xbb");
/// ```
#[must_use]
pub fn bytes_without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(BYTE_ORDER_MARK.as_bytes()).unwrap_or(text)
}

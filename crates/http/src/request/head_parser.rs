//! Parses heads that arrive in pieces; each byte is examined a bounded number of times.

use super::{ParseStatus, head};
use crate::{Limits, Reject};

/// State of an incomplete head: 8 bytes.
///
/// [`parse`](super::parse) starts from the first byte, so calling it for each byte of a slow sender
/// would take quadratic time. This parser calls it for the first bytes, when the request line is
/// complete, when a blank line arrives, and when a limit is exceeded: a few times per head, regardless
/// of the number of pieces. All other bytes are only searched for LF, once.
///
/// ```
/// use pollux_http::{Limits, request::{HeadParser, ParseStatus}};
///
/// let head = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
/// let mut parser = HeadParser::new();
/// // Each call passes all bytes that have arrived so far.
/// assert!(matches!(parser.parse(&head[..10], &Limits::DEFAULT)?, ParseStatus::Partial));
/// assert!(matches!(parser.parse(head, &Limits::DEFAULT)?, ParseStatus::Complete { .. }));
/// # Ok::<(), pollux_http::Reject>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadParser {
    /// The number of bytes that have been searched.
    searched: u32,
    /// The offset after the LF of the request line; 0 if that has not arrived.
    section_start: u32,
}

/// Up to this length a head is parsed for every piece: a CRLF and the first letter of the method.
const METHOD_START_LEN: u32 = 3;

impl HeadParser {
    /// Creates a parser for a new head.
    pub const fn new() -> Self {
        Self { searched: 0, section_start: 0 }
    }

    /// Parses the request at the start of `bytes`. These must begin with the bytes of the previous
    /// call.
    ///
    /// After [`ParseStatus::Complete`] the parser is ready for the next request.
    ///
    /// # Errors
    /// As [`parse`](super::parse). An error after the first piece may be reported only when the
    /// request line or the head is complete or a limit is exceeded.
    pub fn parse<'b>(
        &mut self,
        bytes: &'b [u8],
        limits: &Limits,
    ) -> Result<ParseStatus<'b>, Reject> {
        if !self.should_parse(bytes, limits) {
            return Ok(ParseStatus::Partial);
        }
        let parsed = head::parse(bytes, limits)?;
        if matches!(parsed, ParseStatus::Complete { .. }) {
            *self = Self::new();
        }
        Ok(parsed)
    }

    /// Searches the new bytes and returns whether parsing may have a new result.
    fn should_parse(&mut self, bytes: &[u8], limits: &Limits) -> bool {
        // The first bytes are parsed at once, so that data that is not HTTP is rejected
        // immediately.
        let mut should_parse = self.searched <= METHOD_START_LEN;
        let searched = self.searched as usize;
        for lf in memchr::memchr_iter(b'\n', bytes.get(searched..).unwrap_or(b"")) {
            let lf = searched + lf;
            // LF LF is invalid; report it now rather than at a timeout.
            should_parse |= bytes[..lf].ends_with(b"\n") || bytes[..lf].ends_with(b"\n\r");
            // An LF before the third byte ends the CRLF that may precede the request line.
            if self.section_start == 0 && lf >= 2 {
                self.section_start = lf as u32 + 1;
                should_parse = true;
            }
        }
        self.searched = bytes.len() as u32;
        should_parse || self.exceeds_limits(bytes.len(), limits)
    }

    fn exceeds_limits(&self, len: usize, limits: &Limits) -> bool {
        match self.section_start as usize {
            0 => len > 2 + limits.request_line,
            section_start => len > section_start + limits.header_section,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of times the head is parsed when `bytes` arrive one at a time.
    fn parses(bytes: &[u8], limits: &Limits) -> usize {
        let mut parser = HeadParser::new();
        let mut count = 0;
        for end in 1..=bytes.len() {
            let mut ahead = parser;
            count += usize::from(ahead.should_parse(&bytes[..end], limits));
            match parser.parse(&bytes[..end], limits) {
                Ok(ParseStatus::Partial) => {}
                _ => return count,
            }
        }
        count
    }

    /// Slow senders cause only a few parses, regardless of their bytes.
    #[test]
    fn single_bytes_do_not_cause_a_parse_each() {
        const MAX_PARSES: usize = 8;
        let limits = Limits::DEFAULT;
        let start = "GET / HTTP/1.1\r\nHost: a\r\n";
        for text in [
            format!("{start}\r\n"),
            format!("\r\n{start}\r\n"),
            format!("{start}{}\r\n", "A: b\r\n".repeat(90)),
            format!("{start}{}\r\n", "A:\n".repeat(90)),
            format!("{start}A: {}", "x".repeat(20_000)),
            format!("GET /{}", "x".repeat(20_000)),
            format!("{start}A: {}", "\r".repeat(1000)),
            format!("{start}{}", "\n".repeat(1000)),
            format!("{start}{}", "\r\n ".repeat(1000)),
            "\r\n".repeat(100),
            "\n".repeat(100),
            "\r".repeat(100),
        ] {
            let count = parses(text.as_bytes(), &limits);
            assert!(
                count <= MAX_PARSES,
                "{count} parses of {:.60}",
                text.escape_debug().to_string()
            );
        }
    }

    /// An endless head is rejected as soon as a limit is exceeded.
    #[test]
    fn the_limits_hold_for_single_bytes() {
        let limits = Limits { request_line: 40, header_section: 60, ..Limits::DEFAULT };
        let line = "GET / HTTP/1.1\r\n";
        for (text, most) in [
            (format!("GET /{}", "x".repeat(500)), 40 + 4),
            (format!("\r\nGET /{}", "x".repeat(500)), 40 + 6),
            ("G".repeat(500), 40 + 4),
            (format!("{line}A: {}", "x".repeat(500)), line.len() + 60 + 1),
            (format!("{line}{}", "A: b\r\n".repeat(90)), line.len() + 60 + 1),
            (format!("{line}{}", "A".repeat(500)), line.len() + 60 + 1),
        ] {
            let mut parser = HeadParser::new();
            let refused = (1..=text.len())
                .find(|&end| parser.parse(&text.as_bytes()[..end], &limits).is_err());
            let refused = refused.unwrap_or(usize::MAX);
            assert!(refused <= most, "{refused} > {most}: {:.60}", text.escape_debug().to_string());
        }
    }

    #[test]
    fn a_parser_is_reset_after_a_head() {
        let text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut parser = HeadParser::new();
        assert!(matches!(parser.parse(&text[..20], &Limits::DEFAULT), Ok(ParseStatus::Partial)));
        assert_ne!(parser, HeadParser::new());
        assert!(matches!(parser.parse(text, &Limits::DEFAULT), Ok(ParseStatus::Complete { .. })));
        assert_eq!(parser, HeadParser::new());
    }

    #[test]
    fn a_request_line_of_http_0_9_is_refused_when_it_ends() {
        let mut parser = HeadParser::new();
        let text = b"GET /index.html\r\n";
        for end in 1..text.len() {
            let got = parser.parse(&text[..end], &Limits::DEFAULT);
            assert!(matches!(got, Ok(ParseStatus::Partial)), "{end}");
        }
        assert!(parser.parse(text, &Limits::DEFAULT).is_err());
    }
}

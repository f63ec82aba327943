//! Heads that arrive in pieces: each octet is looked at a bounded number of times.

use super::{ParseStatus, head};
use crate::{Limits, Reject};

/// What is remembered of a head that is not yet whole: 8 bytes, kept while a head is partial.
///
/// [`parse`](super::parse) starts from the first octet, so that calling it for each octet of a slow
/// sender would be quadratic. This one calls it for the first piece (or the first few octets), when
/// the request line is whole, when a blank line shows up, and when a limit is passed: a handful of
/// times a head, whatever the number of pieces. Other octets are only searched for LF, once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadParser {
    /// Octets that have been searched.
    searched: u32,
    /// Where the octet after the request line's LF is; 0 while there is none.
    section_start: u32,
}

/// Heads no longer than this are parsed at every piece: a CRLF and the method's first letter.
const METHOD_START_LEN: u32 = 3;

impl HeadParser {
    /// For a head of which nothing has been seen.
    pub const fn new() -> Self {
        Self { searched: 0, section_start: 0 }
    }

    /// Reads the request that begins at `bytes`, which begins with the octets that were given at
    /// the last call and has perhaps grown since.
    ///
    /// After [`ParseStatus::Complete`] it is fresh for the next request.
    ///
    /// # Errors
    /// As [`parse`](super::parse), though a fault after the first piece may be told only when
    /// the request line or the head is whole or a limit is passed.
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

    /// Searches the octets that have come since, and tells whether parsing may bring news.
    fn should_parse(&mut self, bytes: &[u8], limits: &Limits) -> bool {
        // The first octets are judged as they come: what is no HTTP at all is refused at once.
        let mut should_parse = self.searched <= METHOD_START_LEN;
        let searched = self.searched as usize;
        for lf in memchr::memchr_iter(b'\n', bytes.get(searched..).unwrap_or(b"")) {
            let lf = searched + lf;
            // Also LF LF, which is a fault, but one that is better told now than at a time-out.
            should_parse |= bytes[..lf].ends_with(b"\n") || bytes[..lf].ends_with(b"\n\r");
            // An LF before the third octet ends the CRLF that may precede the request line.
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

    /// How often the head is parsed when `bytes` come one at a time, and when it was over.
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

    /// Slow senders cost no more than a handful of parses, whatever they send.
    #[test]
    fn octets_that_come_one_at_a_time_are_not_parsed_each_time() {
        const HANDFUL: usize = 8;
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
            assert!(count <= HANDFUL, "{count} parses of {:.60}", text.escape_debug().to_string());
        }
    }

    /// What never ends is refused as soon as a limit is passed, not kept until it does.
    #[test]
    fn the_limits_hold_octet_by_octet() {
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
    fn after_a_head_it_is_fresh() {
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

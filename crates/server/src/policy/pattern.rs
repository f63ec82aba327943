//! The one kind of pattern for paths, which redirects, rewrites and fields use.
//!
//! | pattern | matches | captures |
//! |---|---|---|
//! | `/old` | `/old` alone | |
//! | `/old/*` | `/old/` and all below it | `*` |
//! | `/blog/:year/:slug` | one segment for each name | `:year`, `:slug` |
//! | `/u/:user/*` | both | `:user`, `*` |
//!
//! Paths are compared byte by byte, without any change except percent-decoding: `%41` is `A`, and an encoded
//! `/` does not separate segments.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode, percent_encode};
use std::{borrow::Cow, fmt, str::FromStr};

/// The maximum number of segments of a pattern.
pub(crate) const SEGMENTS_MAX: usize = 32;

/// A pattern for paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    segments: Vec<Segment>,
    /// Whether the pattern ends in `/*`.
    takes_rest: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(Vec<u8>),
    Name(String),
}

/// The parts of one path that a pattern has captured, as they are in the path: decoding would confuse an encoded
/// slash with the end of a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Captures<'p> {
    names: Vec<(&'p str, &'p [u8])>,
    rest: Option<&'p [u8]>,
}

impl Pattern {
    /// Returns the captures of `path`, which is percent-encoded, or `None` if the pattern does not match it.
    pub(crate) fn matches<'p>(&'p self, path: &'p [u8]) -> Option<Captures<'p>> {
        self.capture(path, |part| percent_decode(part).into())
    }

    /// Returns whether the pattern matches the path of a file, which is not encoded.
    pub(crate) fn matches_file(&self, path: &[u8]) -> bool {
        self.capture(path, Cow::Borrowed).is_some()
    }

    fn capture<'p>(
        &'p self,
        path: &'p [u8],
        decode: impl Fn(&'p [u8]) -> Cow<'p, [u8]>,
    ) -> Option<Captures<'p>> {
        let mut rest = path.strip_prefix(b"/")?;
        let mut captures = Captures::default();
        let last = self.segments.len().wrapping_sub(1);
        for (index, segment) in self.segments.iter().enumerate() {
            let end = rest.iter().position(|&byte| byte == b'/');
            let is_last = index == last && !self.takes_rest;
            let (found, after) = match (end, is_last) {
                // A further segment after the last one does not match.
                (Some(_), true) => return None,
                (None, true) => (rest, &rest[rest.len()..]),
                (Some(end), false) => (&rest[..end], &rest[end + 1..]),
                (None, false) => return None,
            };
            match segment {
                Segment::Literal(wanted) if *wanted == *decode(found) => {}
                Segment::Name(name) if !found.is_empty() => captures.names.push((name, found)),
                _ => return None,
            }
            rest = after;
        }
        if self.takes_rest {
            captures.rest = Some(rest);
        }
        Some(captures)
    }

    /// Returns one of the paths that the pattern matches, percent-encoded.
    pub(super) fn example(&self) -> Vec<u8> {
        let mut path = String::new();
        for segment in &self.segments {
            path.push('/');
            match segment {
                Segment::Literal(bytes) => path.extend(percent_encode(bytes, NON_ALPHANUMERIC)),
                Segment::Name(_) => path.push('x'),
            }
        }
        path.push_str(if self.takes_rest { "/x" } else { "" });
        path.into_bytes()
    }

    /// Returns whether the pattern captures `:name`, or `*` for the rest.
    pub(crate) fn captures(&self, name: &str) -> bool {
        match name {
            "*" => self.takes_rest,
            name => self.segments.iter().any(|s| matches!(s, Segment::Name(own) if own == name)),
        }
    }
}

impl Captures<'_> {
    /// Returns the capture with this name, or that of `*`.
    pub(crate) fn get(&self, name: &str) -> &[u8] {
        match name {
            "*" => self.rest.unwrap_or_default(),
            name => {
                let found = self.names.iter().find(|(own, _)| *own == name);
                found.map_or(&[], |&(_, value)| value)
            }
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = text.strip_prefix('/').ok_or("a pattern begins with a slash")?;
        let (path, takes_rest) = match path.strip_suffix('*') {
            Some("") => ("", true),
            Some(path) => match path.strip_suffix('/') {
                Some(path) => (path, true),
                None => return Err("* is a whole segment, and the last: /a/*".into()),
            },
            None => (path, false),
        };
        let mut segments = Vec::new();
        // The pattern `/*` has no segment before the rest.
        for segment in
            path.split('/').take(if takes_rest && path.is_empty() { 0 } else { usize::MAX })
        {
            if segment.contains('*') {
                return Err("* is a whole segment, and the last: /a/*".into());
            }
            segments.push(match segment.strip_prefix(':') {
                Some(name) if is_name(name) => Segment::Name(name.into()),
                Some(_) => return Err("a name after : has letters, digits and _".into()),
                None => Segment::Literal(percent_decode(segment.as_bytes()).collect()),
            });
        }
        if segments.len() > SEGMENTS_MAX {
            return Err(format!("more than {SEGMENTS_MAX} segments"));
        }
        Ok(Self { text: text.into(), segments, takes_rest })
    }
}

/// Returns whether a capture may have this name.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(path.as_bytes()).is_some()
    }

    #[test]
    fn exact_prefix_and_names() {
        for (pattern, path, expected) in [
            ("/", "/", true),
            ("/", "/a", false),
            ("/a", "/a", true),
            ("/a", "/a/", false),
            ("/a", "/%61", true),
            ("/a/", "/a/", true),
            ("/a/*", "/a/", true),
            ("/a/*", "/a/b/c", true),
            ("/a/*", "/a", false),
            ("/a/*", "/ab/", false),
            ("/*", "/", true),
            ("/*", "/x/y", true),
            ("/blog/:year/:slug", "/blog/2026/x", true),
            ("/blog/:year/:slug", "/blog/2026/", false),
            ("/blog/:year/:slug", "/blog/2026/x/y", false),
            ("/:a/*", "//x", false),
            ("/a", "a", false),
            ("/a", "", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn the_example_of_a_pattern_matches_it() {
        for text in ["/", "/*", "/a", "/a/", "/a/*", "/:a/b c/:d", "/%2F%ff/:a/*"] {
            let pattern: Pattern = text.parse().unwrap();
            assert!(pattern.matches(&pattern.example()).is_some(), "{text}");
        }
    }

    #[test]
    fn captures_stay_encoded() {
        let pattern: Pattern = "/u/:user/*".parse().unwrap();
        let captures = pattern.matches(b"/%75/a%20b/x/%2F%0d").unwrap();
        let expected = (&b"a%20b"[..], &b"x/%2F%0d"[..]);
        assert_eq!((captures.get("user"), captures.get("*")), expected);
        assert!(captures.get("none").is_empty());
        assert!(pattern.captures("user") && pattern.captures("*") && !pattern.captures("none"));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in ["", "a", "/a*", "/*/a", "/a/*/b", "/:", "/:a-b", "/a**"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
        assert!("/a".repeat(40).parse::<Pattern>().is_err());
    }
}

//! Entity tags (RFC 9110 §8.8.3) and lists of them.

use crate::{
    output::Output,
    syntax::{TAG, is},
};

/// An entity tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ETag<'t> {
    /// A weak tag (`W/`): equivalent content, but possibly not the same bytes.
    pub weak: bool,
    /// The text between the quotes. May contain commas and backslashes.
    pub opaque: &'t [u8],
}

impl<'t> ETag<'t> {
    /// Parses `text` as exactly one tag.
    ///
    /// ```
    /// use pollux_http::etag::ETag;
    ///
    /// let tag = ETag::parse(b"W/\"abc\"").expect("a valid tag");
    /// assert!(tag.weak && tag.opaque == b"abc");
    /// assert!(tag.weakly_equals(&ETag { weak: false, opaque: b"abc" }));
    /// ```
    pub fn parse(text: &'t [u8]) -> Option<Self> {
        match Self::split(text) {
            Some((tag, b"")) => Some(tag),
            _ => None,
        }
    }

    /// Parses the tag at the start of `text`. Returns it and the rest.
    fn split(text: &'t [u8]) -> Option<(Self, &'t [u8])> {
        let (weak, quoted) = match text.strip_prefix(b"W/") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let rest = quoted.strip_prefix(b"\"")?;
        let end = rest.iter().position(|&b| !is(TAG, b))?;
        (rest[end] == b'"').then(|| (Self { weak, opaque: &rest[..end] }, &rest[end + 1..]))
    }

    /// Strong comparison (§8.8.3.2): the content has the same bytes.
    pub fn strongly_equals(&self, other: &ETag<'_>) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// Weak comparison (§8.8.3.2): the content is equivalent.
    pub fn weakly_equals(&self, other: &ETag<'_>) -> bool {
        self.opaque == other.opaque
    }

    /// Appends the tag as it is written in a field.
    pub fn write(&self, out: &mut impl Output) {
        out.put(if self.weak { b"W/\"" } else { b"\"" });
        out.put(self.opaque);
        out.put(b"\"");
    }
}

/// An iterator over the tags of one field line. It ends at the first invalid tag.
#[derive(Clone, Debug)]
pub struct ETags<'t> {
    rest: &'t [u8],
}

impl<'t> ETags<'t> {
    /// Iterates over the tags of `value`, a comma-separated list.
    pub fn new(value: &'t [u8]) -> Self {
        Self { rest: value }
    }
}

impl<'t> Iterator for ETags<'t> {
    type Item = ETag<'t>;

    fn next(&mut self) -> Option<ETag<'t>> {
        // Empty members are skipped (§5.6.1.2).
        let start = self.rest.iter().position(|b| !matches!(b, b' ' | b'\t' | b','))?;
        let found = ETag::split(&self.rest[start..]);
        let Some((tag, rest)) = found else {
            self.rest = b"";
            return None;
        };
        let rest = crate::syntax::trim(rest);
        // The tag itself is valid even if something other than a comma follows it.
        self.rest = if rest.first() == Some(&b',') { rest } else { b"" };
        Some(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn tag(weak: bool, opaque: &[u8]) -> ETag<'_> {
        ETag { weak, opaque }
    }

    #[test]
    fn one_tag_of_rfc_9110_8_8_3() {
        for (text, expected) in [
            (&b"\"xyzzy\""[..], Some(tag(false, b"xyzzy"))),
            (b"W/\"xyzzy\"", Some(tag(true, b"xyzzy"))),
            (b"\"\"", Some(tag(false, b""))),
            (b"\"a,b\\\"", Some(tag(false, b"a,b\\"))),
            (b"\"\xe9\"", Some(tag(false, b"\xe9"))),
            (b"w/\"x\"", None),
            (b"xyzzy", None),
            (b"\"x", None),
            (b"\"a b\"", None),
            (b"\"a\"b", None),
            (b"W/ \"x\"", None),
            (b"*", None),
            (b"", None),
        ] {
            assert_eq!(ETag::parse(text), expected, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn lists_may_have_commas_in_tags_and_empty_members() {
        let tags: Vec<_> = ETags::new(b", \"a,b\" ,W/\"c\",,\"d\"").collect();
        assert_eq!(tags, [tag(false, b"a,b"), tag(true, b"c"), tag(false, b"d")]);
        assert_eq!(ETags::new(b"\"a\", nonsense, \"b\"").count(), 1);
        assert_eq!(ETags::new(b"\"a\" \"b\"").count(), 1);
        assert_eq!(ETags::new(b"").count(), 0);
    }

    #[test]
    fn the_comparisons_of_rfc_9110_8_8_3_2() {
        for (a, b, strong, weak) in [
            (tag(true, b"1"), tag(true, b"1"), false, true),
            (tag(true, b"1"), tag(true, b"2"), false, false),
            (tag(true, b"1"), tag(false, b"1"), false, true),
            (tag(false, b"1"), tag(false, b"1"), true, true),
        ] {
            assert_eq!(a.strongly_equals(&b), strong);
            assert_eq!(a.weakly_equals(&b), weak);
        }
    }
}

//! Header and trailer sections: httparse finds the fields, and this module adds stricter checks.
//!
//! httparse rejects a name that is not a token (and with it whitespace before the colon, folded
//! lines, and lines that begin with a space) and control characters in values. It accepts a bare LF
//! instead of CRLF. Some recipients treat a bare LF as the end of a line and others do not, which
//! permits request smuggling, so it is rejected here, except by `parse_leniently`.

use crate::{Limits, Reject, Status, limits::MAX_FIELDS, syntax};
use httparse::EMPTY_HEADER;

/// One field line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'b> {
    /// The name as sent; compare it with [`Field::is`].
    pub name: &'b [u8],
    /// The value without surrounding whitespace. May contain bytes above 0x7f.
    pub value: &'b [u8],
}

impl Field<'_> {
    /// Whether this field is named `name`. Field names are case-insensitive (RFC 9110 §5.1).
    #[inline]
    pub fn is(&self, name: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// Whether this field is named `lower`, a name in lower case, also if it is written with
    /// underscores (see [`is_alias`]).
    pub fn is_alias(&self, lower: &[u8]) -> bool {
        is_alias(self.name, lower)
    }
}

/// Whether `name` is the field `lower`, a name in lower case, also if it is written with
/// underscores: programs that read fields in the way of CGI do not distinguish the two.
#[inline]
pub fn is_alias(name: &[u8], lower: &[u8]) -> bool {
    name.len() == lower.len() && has_alias_prefix(name, lower)
}

/// Whether `name` begins with `prefix`, in lower case, also if it is written with underscores (see
/// [`is_alias`]).
#[inline]
pub fn has_alias_prefix(name: &[u8], prefix: &[u8]) -> bool {
    name.len() >= prefix.len()
        && name.iter().zip(prefix).all(|(&byte, &wanted)| match byte {
            b'_' => wanted == b'-',
            _ => byte.to_ascii_lowercase() == wanted,
        })
}

/// Whether `name`, a token, equals `lower` in any case. Compares eight bytes at a time; the last
/// two groups may overlap.
///
/// Setting bit 5 turns a capital into a small letter. Of the other token characters it changes only
/// `^` and `_`, and neither becomes a letter or a hyphen, which are the only characters in `lower`.
#[inline]
pub(crate) fn is_name<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    const {
        assert!(N >= 4);
    }
    let Ok(name) = <&[u8; N]>::try_from(name) else { return false };
    if N < 8 {
        let word = |text: &[u8; N], at: usize| {
            u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]])
        };
        let differ = |at| (word(name, at) | 0x2020_2020) ^ word(lower, at);
        return differ(0) | differ(N - 4) == 0;
    }
    let word = |text: &[u8; N], at: usize| {
        text[at..].first_chunk::<8>().map_or(0, |&chunk| u64::from_le_bytes(chunk))
    };
    let differ = |at| (word(name, at) | 0x2020_2020_2020_2020) ^ word(lower, at);
    let mut difference = differ(N - 8);
    let mut at = 0;
    while at + 8 < N {
        difference |= differ(at);
        at += 8;
    }
    difference == 0
}

/// Most requests have fewer fields than this, and a short array is cheaper to initialise. Sections
/// with more fields are parsed a second time.
const FEW_FIELDS: usize = 16;

/// The maximum number of bytes and of fields of one section.
#[derive(Clone, Copy)]
pub(crate) struct SectionLimits {
    pub(crate) bytes: usize,
    pub(crate) fields: usize,
}

impl SectionLimits {
    /// The limits of a header section. Offsets in it have 32 bits, so it is never longer than that.
    pub(crate) fn for_header(limits: &Limits) -> Self {
        Self { bytes: limits.header_section.min(u32::MAX as usize), fields: limits.fields }
    }
}

pub(crate) const TOO_LONG: Reject =
    Reject::new(Status::FieldsTooLarge, "the header section is too long");
const TOO_MANY: Reject = Reject::new(Status::FieldsTooLarge, "too many header fields");
const BARE_LF: Reject = Reject::bad("a line ends in LF without CR");

/// Parses the section that begins at `bytes`, just after a CRLF, and calls `visit` for each field.
///
/// Returns the length of the section with its empty line. Returns `None`, without calling `visit`,
/// if the section is incomplete.
///
/// # Errors
/// The first violation of the syntax or of `limits`, or the first error of `visit`.
#[inline]
pub(crate) fn parse<'b>(
    bytes: &'b [u8],
    limits: SectionLimits,
    visit: impl FnMut(Field<'b>) -> Result<(), Reject>,
) -> Result<Option<usize>, Reject> {
    // Bytes beyond the limit are not examined, which bounds the work.
    let is_cut = bytes.len() > limits.bytes;
    let bytes = if is_cut { &bytes[..limits.bytes] } else { bytes };
    let mut few = [EMPTY_HEADER; FEW_FIELDS];
    let section = match httparse::parse_headers(bytes, &mut few) {
        Err(httparse::Error::TooManyHeaders) if limits.fields > FEW_FIELDS => {
            parse_many(bytes, limits, visit)
        }
        outcome => check::<true>(bytes, limits, outcome, visit),
    }?;
    if section.is_none() && is_cut { Err(TOO_LONG) } else { Ok(section) }
}

#[cold]
#[inline(never)]
fn parse_many<'b>(
    bytes: &'b [u8],
    limits: SectionLimits,
    visit: impl FnMut(Field<'b>) -> Result<(), Reject>,
) -> Result<Option<usize>, Reject> {
    let mut many = [EMPTY_HEADER; MAX_FIELDS];
    let outcome = httparse::parse_headers(bytes, &mut many);
    check::<true>(bytes, limits, outcome, visit)
}

/// Like [`parse`], with the leniency of a client, for sections that [`parse`] rejected: a bare LF ends
/// a line, as a recipient may decide (§2.2), folded lines are unfolded, as a client must (§5.2), white
/// space before a colon is removed (§5.1), and more fields than [`MAX_FIELDS`] cost an allocation
/// instead of an error.
#[cold]
#[inline(never)]
pub(crate) fn parse_leniently(
    bytes: &[u8],
    limits: SectionLimits,
    visit: impl FnMut(Field<'_>) -> Result<(), Reject>,
) -> Result<Option<usize>, Reject> {
    let is_cut = bytes.len() > limits.bytes;
    let mut section = bytes[..bytes.len().min(limits.bytes)].to_vec();
    // Before unfolding: a line that continues the previous one is not a field.
    let readable = strip_space_before_colons(&mut section);
    section.truncate(readable);
    unfold(&mut section);
    let lines = memchr::memchr_iter(b'\n', &section).count();
    let mut headers = vec![EMPTY_HEADER; (lines + 1).min(limits.fields)];
    let outcome = httparse::parse_headers(&section, &mut headers);
    let len = check::<false>(&section, limits, outcome, visit)?;
    if len.is_none() && is_cut { Err(TOO_LONG) } else { Ok(len) }
}

/// Removes the white space between each name and its colon, as a recipient that forwards a reply
/// must (RFC 9112 §5.1). The colon and the white space swap places, so nothing else moves.
///
/// Returns how many bytes can be parsed now. An incomplete last line that ends in such white space
/// is not included, because its colon may follow.
#[cold]
#[inline(never)]
pub(crate) fn strip_space_before_colons(section: &mut [u8]) -> usize {
    let mut at = 0;
    while at < section.len() && !matches!(section[at..], [b'\n', ..] | [b'\r', b'\n', ..]) {
        let lf = memchr::memchr(b'\n', &section[at..]);
        let end = lf.map_or(section.len(), |lf| at + lf + 1);
        let line = &mut section[at..end];
        let name = syntax::span(syntax::TOKEN, line);
        let gap = line[name..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        if name > 0 && gap > 0 {
            match line.get(name + gap) {
                Some(b':') => {
                    line[name] = b':';
                    line[name + 1..=name + gap].fill(b' ');
                }
                None => return at,
                Some(_) => {}
            }
        }
        at = end;
    }
    section.len()
}

/// Replaces the line end before each folded line by spaces, up to the empty line, so that nothing moves.
fn unfold(section: &mut [u8]) {
    let mut at = 0;
    while let Some(lf) = memchr::memchr(b'\n', &section[at..]) {
        let next = at + lf + 1;
        let line = &section[at..next - 1];
        let end = at + line.strip_suffix(b"\r").unwrap_or(line).len();
        if end == at {
            return;
        }
        if matches!(section.get(next), Some(b' ' | b'\t')) {
            section[end..next].fill(b' ');
        }
        at = next;
    }
}

/// Calls `visit` for the fields that httparse has found. `STRICT`: a bare LF is an error.
#[inline]
fn check<'b, const STRICT: bool>(
    bytes: &'b [u8],
    limits: SectionLimits,
    outcome: httparse::Result<(usize, &[httparse::Header<'b>])>,
    mut visit: impl FnMut(Field<'b>) -> Result<(), Reject>,
) -> Result<Option<usize>, Reject> {
    let (len, headers) = match outcome {
        Ok(httparse::Status::Complete(found)) => found,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(reject_from(error)),
    };
    if headers.len() > limits.fields {
        return Err(TOO_MANY);
    }
    // Names and values contain no CR, so a CR two bytes before a line belongs to the end of the
    // previous line. The first line follows a CRLF that is not part of `bytes`.
    let follows_crlf = |line: usize| match line {
        0 => true,
        1 => false,
        _ => bytes[line - 2] == b'\r',
    };
    if STRICT && (!follows_crlf(len) || !follows_crlf(len - 2)) {
        return Err(BARE_LF);
    }
    for header in headers {
        let name = header.name.as_bytes();
        if STRICT && !follows_crlf(name.as_ptr() as usize - bytes.as_ptr() as usize) {
            return Err(BARE_LF);
        }
        visit(Field { name, value: header.value })?;
    }
    Ok(Some(len))
}

#[cold]
fn reject_from(error: httparse::Error) -> Reject {
    match error {
        httparse::Error::HeaderName => Reject::bad("invalid field name, or a folded line"),
        httparse::Error::HeaderValue => Reject::bad("invalid character in a field value"),
        httparse::Error::TooManyHeaders => TOO_MANY,
        _ => Reject::bad("invalid line ending"),
    }
}

/// An iterator over the fields of a header or trailer section that was parsed before.
#[derive(Clone, Debug)]
pub struct Fields<'b> {
    rest: &'b [u8],
}

impl<'b> Fields<'b> {
    /// Iterates over the lines of a section, each with its CRLF, with or without the empty line. If
    /// the section was not validated by this crate, the iteration ends at the first line without a
    /// name, a colon or a CRLF.
    pub fn new(section: &'b [u8]) -> Self {
        Self { rest: section }
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Field<'b>;

    fn next(&mut self) -> Option<Field<'b>> {
        let end = memchr::memchr(b'\r', self.rest)?;
        let rest = self.rest[end..].strip_prefix(b"\r\n")?;
        // The empty line has no colon.
        let colon = memchr::memchr(b':', &self.rest[..end]).filter(|&colon| colon > 0)?;
        let field =
            Field { name: &self.rest[..colon], value: syntax::trim(&self.rest[colon + 1..end]) };
        self.rest = rest;
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::{Field, Fields, has_alias_prefix, is_alias, is_name};
    use crate::syntax::{TOKEN, is};

    #[test]
    fn underscores_hide_nothing() {
        let field = Field { name: b"X_Forwarded-For", value: b"" };
        assert!(field.is_alias(b"x-forwarded-for") && !field.is_alias(b"x-forwarded"));
        assert!(has_alias_prefix(field.name, b"x-forwarded-"));
        assert!(!has_alias_prefix(b"X", b"x-"));
        assert!(!is_alias(b"a-b", b"a_b"));
    }

    /// Regression: a section that ended in CR was a panic.
    #[test]
    fn lines_that_were_not_validated_end_the_iteration() {
        for (section, values) in [
            (&b"A: b\r\nC:d\r\n"[..], &[&b"b"[..], b"d"][..]),
            (b"A: b\r\n\r\nC: d\r\n", &[b"b"]),
            (b"A: b\r", &[]),
            (b"A: b\rC: d\r\n", &[]),
            (b"A: b\r\nC\r\nE: f\r\n", &[b"b"]),
            (b"A: b\r\n: d\r\nE: f\r\n", &[b"b"]),
            (b"A: b\r\nC: d", &[b"b"]),
            (b"\r", &[]),
            (b"", &[]),
        ] {
            let found: Vec<&[u8]> = Fields::new(section).map(|field| field.value).collect();
            assert_eq!(found, values, "{}", section.escape_ascii());
        }
    }

    /// Every token character, at every position, in a name of every length in use.
    #[test]
    fn names_are_compared_as_eq_ignore_ascii_case_does() {
        fn check<const N: usize>(lower: &[u8; N]) {
            assert!(is_name(&lower.to_ascii_uppercase(), lower));
            assert!(!is_name(&lower[1..], lower));
            for at in 0..N {
                for byte in (0..=255).filter(|&b| is(TOKEN, b)) {
                    let mut name = *lower;
                    name[at] = byte;
                    assert_eq!(is_name(&name, lower), name.eq_ignore_ascii_case(lower));
                }
            }
        }
        check(b"host");
        check(b"range");
        check(b"expect");
        check(b"referer");
        check(b"if-match");
        check(b"connection");
        check(b"content-type");
        check(b"if-none-match");
        check(b"content-length");
        check(b"accept-encoding");
        check(b"abcdefghijklmnop");
        check(b"transfer-encoding");
        check(b"if-unmodified-since");
    }
}

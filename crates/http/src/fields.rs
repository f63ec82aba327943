//! Header and trailer sections, in one pass: each octet is judged once, nothing is laid out.
//!
//! Refused is what is not a token before the colon (and with it whitespace there, folded lines, a
//! line that begins with a space), control characters in values, and a bare LF for a CRLF, which
//! some recipients take for a line's end and some don't: a way to smuggle.
//!
//! This was httparse with checks of what it forgives, which cost a good fifth of all instructions
//! that the server spends on a request: an array of fields laid out to be walked once, and every
//! line's end looked for twice. The tests still hold the two against each other.

use crate::{
    Limits, Reject, Status,
    limits::MAX_FIELDS,
    syntax::{TOKEN, is, span},
};

/// One field line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'b> {
    /// The name as sent; compare it with [`Field::is`].
    pub name: &'b [u8],
    /// The value without the whitespace around it. May hold octets above 0x7f.
    pub value: &'b [u8],
}

impl Field<'_> {
    /// Whether this is the field `name`; field names are case-insensitive (RFC 9110 §5.1).
    #[inline]
    pub fn is(&self, name: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

/// Whether `name`, a token, is `lower` in any case: eight octets at a time, the last ones
/// overlapping.
///
/// Setting bit 5 makes a capital small. Of the other characters of a token it changes only `^` and
/// `_`, and neither becomes a letter or a hyphen, which is all that `lower` may hold.
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

/// The largest number of octets and of fields of one section.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) octets: usize,
    pub(crate) fields: usize,
}

impl Bounds {
    pub(crate) fn of_header(limits: &Limits) -> Self {
        Self { octets: limits.header_section, fields: limits.fields }
    }
}

const TOO_LONG: Reject = Reject::new(Status::FieldsTooLarge, "the header section is too long");
const TOO_MANY: Reject = Reject::new(Status::FieldsTooLarge, "too many header fields");
const BARE_LF: Reject = Reject::bad("a line ends in LF without CR");
const BAD_END: Reject = Reject::bad("invalid line ending");
const BAD_NAME: Reject = Reject::bad("invalid field name, or a folded line");

/// Reads the section that begins at `bytes` (just after a CRLF) and calls `visit` for each field.
///
/// Returns the section's length with its empty line, or nothing while that is still to come; then
/// what `visit` was told counts for nothing.
///
/// # Errors
/// The first breach of the syntax or of `bounds`, or what `visit` refused, in the order of the
/// octets.
#[inline]
pub(crate) fn parse<'b>(
    bytes: &'b [u8],
    bounds: Bounds,
    visit: impl FnMut(Field<'b>) -> Result<(), Reject>,
) -> Result<Option<usize>, Reject> {
    // What lies beyond the limit is not looked at: the work is bounded too.
    let is_cut = bytes.len() > bounds.octets;
    let bytes = if is_cut { &bytes[..bounds.octets] } else { bytes };
    let section = parse_lines(bytes, bounds.fields.min(MAX_FIELDS), visit)?;
    if section.is_none() && is_cut { Err(TOO_LONG) } else { Ok(section) }
}

#[inline]
fn parse_lines<'b>(
    bytes: &'b [u8],
    most: usize,
    mut visit: impl FnMut(Field<'b>) -> Result<(), Reject>,
) -> Result<Option<usize>, Reject> {
    let mut rest = bytes;
    let mut count = 0;
    loop {
        match rest {
            [first, ..] if is(TOKEN, *first) => {}
            [b'\r', b'\n', ..] => return Ok(Some(bytes.len() - rest.len() + 2)),
            [] | [b'\r'] => return Ok(None),
            _ => return Err(no_field(rest)),
        }
        if count == most {
            return Err(TOO_MANY);
        }
        count += 1;
        let (name, after) = rest.split_at(span(TOKEN, rest));
        let after = match after {
            [b':', after @ ..] => after,
            [] => return Ok(None),
            _ => return Err(BAD_NAME),
        };
        let start = after.iter().position(|b| !matches!(b, b' ' | b'\t')).unwrap_or(after.len());
        let after = &after[start..];
        let (value, end) = after.split_at(value_len(after));
        rest = match end {
            [b'\r', b'\n', next @ ..] => next,
            [] | [b'\r'] => return Ok(None),
            _ => return Err(no_line_end(end)),
        };
        visit(Field { name, value: trim_end(value) })?;
    }
}

/// The length of the longest prefix without control characters other than HTAB: a `field-value`
/// (RFC 9110 §5.5), to which octets above 0x7f belong. Eight octets at a time.
#[inline]
fn value_len(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * ONES;
    let mut at = 0;
    while let Some(&chunk) = bytes[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(chunk);
        // The high bit of each octet below 0x20, and of each that is 0x7f. A borrow can mark an
        // octet too many, but only above a marked one, and the lowest is what is asked for.
        let low = word.wrapping_sub(0x20 * ONES) & !word & HIGH;
        let delete = word ^ (0x7f * ONES);
        let marked = low | (delete.wrapping_sub(ONES) & !delete & HIGH);
        if marked == 0 {
            at += 8;
            continue;
        }
        at += marked.trailing_zeros() as usize / 8;
        if bytes[at] != b'\t' {
            return at;
        }
        at += 1;
    }
    let is_control = |b: &u8| matches!(b, 0..0x20 | 0x7f) && *b != b'\t';
    bytes[at..].iter().position(is_control).map_or(bytes.len(), |end| at + end)
}

#[inline]
fn trim_end(mut value: &[u8]) -> &[u8] {
    while let [start @ .., b' ' | b'\t'] = value {
        value = start;
    }
    value
}

/// What begins neither a field nor an empty line.
#[cold]
fn no_field(rest: &[u8]) -> Reject {
    match rest {
        [b'\n', ..] => BARE_LF,
        [b'\r', ..] => BAD_END,
        _ => BAD_NAME,
    }
}

/// What ends a value, and is not CRLF.
#[cold]
fn no_line_end(end: &[u8]) -> Reject {
    match end {
        [b'\n', ..] => BARE_LF,
        [b'\r', ..] => BAD_END,
        _ => Reject::bad("invalid character in a field value"),
    }
}

/// The fields of a section that [`parse`] has accepted.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'b> {
    rest: &'b [u8],
}

impl<'b> Fields<'b> {
    /// `section` includes its empty line.
    pub(crate) fn new(section: &'b [u8]) -> Self {
        Self { rest: section }
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Field<'b>;

    fn next(&mut self) -> Option<Field<'b>> {
        let end = memchr::memchr(b'\r', self.rest).filter(|&end| end > 0)?;
        let colon = memchr::memchr(b':', &self.rest[..end])?;
        let field = Field {
            name: &self.rest[..colon],
            value: crate::syntax::trim(&self.rest[colon + 1..end]),
        };
        self.rest = &self.rest[end + 2..];
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    /// All fields and the length; or nothing yet; or that it is refused.
    fn ours(bytes: &[u8]) -> Result<Option<(usize, Fields)>, ()> {
        let mut fields = Fields::new();
        let bounds = Bounds { octets: usize::MAX, fields: MAX_FIELDS };
        let note = |field: Field<'_>| {
            fields.push((field.name.to_vec(), field.value.to_vec()));
            Ok(())
        };
        match parse(bytes, bounds, note) {
            Ok(len) => Ok(len.map(|len| (len, fields))),
            Err(_) => Err(()),
        }
    }

    /// The same of httparse, and the refusal of LF where it is not after CR.
    fn theirs(bytes: &[u8]) -> Result<Option<(usize, Fields)>, ()> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let outcome = httparse::parse_headers(bytes, &mut headers).map_err(drop)?;
        let httparse::Status::Complete((len, headers)) = outcome else { return Ok(None) };
        for (at, _) in bytes[..len].iter().enumerate().filter(|&(_, &b)| b == b'\n') {
            if at == 0 || bytes[at - 1] != b'\r' {
                return Err(());
            }
        }
        let field = |h: &httparse::Header<'_>| (h.name.as_bytes().to_vec(), h.value.to_vec());
        Ok(Some((len, headers.iter().map(field).collect())))
    }

    /// Pieces of which sections and what is nearly one are made.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            6 => prop::sample::select(vec![
                &b"\r\n"[..], b"\n", b"\r", b": ", b":", b" ", b"\t", b"Host", b"a", b"\0",
                b"\x7f", b"\x0b", b"\x80", b"\xff", b"12345678", b"value of sixteen", b"\r\n\r\n",
                b"A: b\r\n", b"Content-Length: 5\r\n", b"X:\t \r\n", b"Y: tail \t\r\n",
            ]).prop_map(<[u8]>::to_vec),
            1 => prop::collection::vec(any::<u8>(), 1..12),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

        /// Whole sections are read as httparse reads them. What httparse refuses or would still
        /// wait for, we may refuse only where it has a bare LF, which it would forgive.
        #[test]
        fn sections_are_read_as_httparse_reads_them(
            pieces in prop::collection::vec(piece(), 0..20)
        ) {
            let bytes = pieces.concat();
            match (ours(&bytes), theirs(&bytes)) {
                (Err(()), Ok(None)) => {
                    let has_bare_lf = bytes
                        .iter()
                        .enumerate()
                        .any(|(at, &b)| b == b'\n' && (at == 0 || bytes[at - 1] != b'\r'));
                    prop_assert!(has_bare_lf, "{}", bytes.escape_ascii());
                }
                (ours, theirs) => prop_assert_eq!(ours, theirs, "{}", bytes.escape_ascii()),
            }
        }
    }

    /// Each octet at each place of a value, beside the places where eight end.
    #[test]
    fn values_end_at_any_control_character_but_tab() {
        for len in 1..20 {
            for at in 0..len {
                for byte in 0..=255u8 {
                    let mut value = vec![b'x'; len];
                    value[at] = byte;
                    let ends = byte != b'\t' && byte.is_ascii_control();
                    assert_eq!(value_len(&value), if ends { at } else { len }, "{byte} at {at}");
                    // What looks like a control character but for its high bit does not end it.
                    value[0] |= 0x80;
                    let ends = ends && at > 0;
                    assert_eq!(value_len(&value), if ends { at } else { len }, "{byte} at {at}");
                }
            }
        }
    }

    /// Every octet that a token can hold, at every place of a name of every length in use.
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

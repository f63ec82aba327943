//! Character classes and lists: the grammar that several modules share.

/// Character classes, one bit each, for lookup in [`CLASSES`].
pub(crate) const TOKEN: u8 = 1;
pub(crate) const TARGET: u8 = 2;
pub(crate) const REG_NAME: u8 = 4;
pub(crate) const TAG: u8 = 8;
/// TARGET without `?`.
pub(crate) const TARGET_PATH: u8 = 128;
pub(crate) const PATH_SPECIAL: u8 = 16;
pub(crate) const SLASH: u8 = 32;
pub(crate) const SLASH_OR_DOT: u8 = 64;

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0usize;
    while byte < 256 {
        let b = byte as u8;
        let alphanumeric = b.is_ascii_alphanumeric();
        // tchar, RFC 9110 §5.6.2.
        let token = matches!(
            b,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        );
        // Visible ASCII without the fragment and the delimiters that all browsers escape (RFC 3986
        // appendix C). `[ ] { } | ^ ` \` are accepted because browsers send them unescaped in
        // queries (WHATWG URL §1.3).
        let target = b.is_ascii_graphic() && !matches!(b, b'#' | b'"' | b'<' | b'>');
        // unreserved and sub-delims, RFC 3986 §2.2 and §2.3.
        let unreserved = alphanumeric || matches!(b, b'-' | b'.' | b'_' | b'~');
        let sub_delims = matches!(
            b,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'='
        );
        // etagc, RFC 9110 §8.8.3.
        let tag = b == 0x21 || (b >= 0x23 && b <= 0x7e) || b >= 0x80;
        // Characters that must be decoded or rejected.
        let path_special = matches!(b, b'%' | b'\\' | 0..=0x1f | 0x7f);
        table[byte] = (if alphanumeric || token { TOKEN } else { 0 })
            | (if target { TARGET } else { 0 })
            | (if unreserved || sub_delims { REG_NAME } else { 0 })
            | (if tag { TAG } else { 0 })
            | (if path_special { PATH_SPECIAL } else { 0 })
            | (if target && b != b'?' { TARGET_PATH } else { 0 })
            | (if b == b'/' { SLASH | SLASH_OR_DOT } else { 0 })
            | (if b == b'.' { SLASH_OR_DOT } else { 0 });
        byte += 1;
    }
    table
}

static CLASSES: [u8; 256] = classes();

/// The classes of `byte`.
#[inline]
pub(crate) fn classes_of(byte: u8) -> u8 {
    CLASSES[byte as usize]
}

#[inline]
pub(crate) fn is(class: u8, byte: u8) -> bool {
    CLASSES[byte as usize] & class != 0
}

/// The length of the longest prefix whose bytes all belong to `class`.
#[inline]
pub(crate) fn span(class: u8, bytes: &[u8]) -> usize {
    let mut len = 0;
    // Four bytes per length check.
    while let Some(&[a, b, c, d]) = bytes.get(len..).and_then(<[u8]>::first_chunk) {
        if !is(class, a) {
            return len;
        }
        if !is(class, b) {
            return len + 1;
        }
        if !is(class, c) {
            return len + 2;
        }
        if !is(class, d) {
            return len + 3;
        }
        len += 4;
    }
    while len < bytes.len() && is(class, bytes[len]) {
        len += 1;
    }
    len
}

/// Whether `bytes` is a `token` (RFC 9110 §5.6.2).
#[inline]
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && span(TOKEN, bytes) == bytes.len()
}

/// Removes optional whitespace (SP, HTAB) at both ends (RFC 9110 §5.6.3).
#[inline]
pub(crate) fn trim(bytes: &[u8]) -> &[u8] {
    let is_space = |b: &u8| matches!(b, b' ' | b'\t');
    let start = bytes.iter().position(|b| !is_space(b)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|b| !is_space(b)).map_or(start, |last| last + 1);
    &bytes[start..end]
}

/// Splits a comma-separated list of tokens; members are trimmed and empty ones skipped (RFC 9110
/// §5.6.1.2). Not for lists that may contain quoted strings.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(trim).filter(|member| !member.is_empty())
}

/// Parses a decimal number. Returns `None` unless all bytes are digits. A number beyond 64 bits
/// saturates, so that it exceeds every limit.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &b| {
        b.is_ascii_digit().then(|| number.saturating_mul(10).saturating_add(u64::from(b - b'0')))
    })
}

/// Whether `bytes`, up to its end, matches `pattern`, in which `#` means a digit.
#[inline]
pub(crate) fn follows(pattern: &[u8], bytes: &[u8]) -> bool {
    pattern.iter().zip(bytes).all(|(&wanted, &got)| match wanted {
        b'#' => got.is_ascii_digit(),
        _ => got == wanted,
    })
}

/// The value of a hexadecimal digit.
#[inline]
pub(crate) fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_takes_digits_only_and_saturates() {
        for (text, number) in [
            (&b"0"[..], Some(0)),
            (b"0042", Some(42)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"18446744073709551616", Some(u64::MAX)),
            (b"99999999999999999999999999999", Some(u64::MAX)),
            (b"", None),
            (b"+1", None),
            (b"-1", None),
            (b"1 ", None),
            (b"0x1", None),
            (b"1,1", None),
        ] {
            assert_eq!(decimal(text), number, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn lists_skip_empty_members_and_trim() {
        let members: Vec<&[u8]> = list(b" , a,\tb ,, c d,").collect();
        assert_eq!(members, [&b"a"[..], b"b", b"c d"]);
    }

    #[test]
    fn trim_takes_space_and_tab_only() {
        assert_eq!(trim(b" \t a b\t "), b"a b");
        assert_eq!(trim(b" \t "), b"");
        assert_eq!(trim(b"\x0ba"), b"\x0ba");
    }
}

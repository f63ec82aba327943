//! The syntax of `Host` and of an authority: `uri-host [ ":" port ]` (RFC 9110 §7.2, RFC 3986
//! §3.2).

use crate::syntax::{REG_NAME, hex, is, span};
use std::net::Ipv6Addr;

/// A host and, if given, its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'b> {
    /// The name or address as written; an IPv6 address includes its brackets.
    pub host: &'b [u8],
    /// The port; `None` also for an empty one (`example.org:`).
    pub port: Option<u16>,
}

impl<'b> Authority<'b> {
    /// Parses `uri-host [ ":" port ]`. Rejects an empty host, user information (RFC 9110 §4.2.4),
    /// and a zone in an address.
    ///
    /// ```
    /// use pollux_http::host::Authority;
    ///
    /// let authority = Authority::parse(b"[::1]:8080").expect("a valid authority");
    /// assert_eq!((authority.host, authority.port), (&b"[::1]"[..], Some(8080)));
    /// ```
    #[inline]
    pub fn parse(text: &'b [u8]) -> Option<Self> {
        let (host, port) = if text.first() == Some(&b'[') {
            let end = text.iter().position(|&b| b == b']')?;
            if !is_ip_literal(&text[1..end]) {
                return None;
            }
            text.split_at(end + 1)
        } else {
            let end = reg_name_len(text)?;
            if end == 0 {
                return None;
            }
            text.split_at(end)
        };
        let port = match port {
            b"" | b":" => None,
            [b':', digits @ ..] => Some(parse_port(digits)?),
            _ => return None,
        };
        Some(Self { host, port })
    }
}

#[inline]
fn parse_port(digits: &[u8]) -> Option<u16> {
    // Every port fits into five digits; more could only be leading zeros.
    if digits.len() > 5 {
        return None;
    }
    let mut port = 0;
    for &digit in digits {
        let value = u32::from(digit.wrapping_sub(b'0'));
        if value > 9 {
            return None;
        }
        port = port * 10 + value;
    }
    u16::try_from(port).ok()
}

/// The length of the `reg-name` or IPv4 address at the start; `None` if its percent-encoding is
/// invalid.
#[inline]
fn reg_name_len(text: &[u8]) -> Option<usize> {
    let len = span(REG_NAME, text);
    if text.get(len) == Some(&b'%') { encoded_name_len(text, len) } else { Some(len) }
}

/// Like [`reg_name_len`], for a text whose first `%` is at `len`.
#[cold]
fn encoded_name_len(text: &[u8], mut len: usize) -> Option<usize> {
    loop {
        match text[len..] {
            [b'%', high, low, ..] if hex(high).is_some() && hex(low).is_some() => len += 3,
            [b'%', ..] => return None,
            _ => return Some(len),
        }
        len += span(REG_NAME, &text[len..]);
    }
}

#[cold]
fn is_ip_literal(text: &[u8]) -> bool {
    if let [b'v' | b'V', future @ ..] = text {
        // IPvFuture = "v" 1*HEXDIG "." 1*( unreserved / sub-delims / ":" )
        let Some(dot) = future.iter().position(|&b| b == b'.') else { return false };
        let (version, address) = (&future[..dot], &future[dot + 1..]);
        return !version.is_empty()
            && version.iter().all(u8::is_ascii_hexdigit)
            && !address.is_empty()
            && address.iter().all(|&b| is(REG_NAME, b) || b == b':');
    }
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_rfc_3986_3_2_2() {
        for (text, host, port) in [
            ("example.org", "example.org", None),
            ("example.org:", "example.org", None),
            ("example.org:80", "example.org", Some(80)),
            ("127.0.0.1:8080", "127.0.0.1", Some(8080)),
            ("[::1]", "[::1]", None),
            ("[::1]:443", "[::1]", Some(443)),
            ("[v1.a:b]:1", "[v1.a:b]", Some(1)),
            ("a_b~c!d", "a_b~c!d", None),
            ("ex%41mple", "ex%41mple", None),
            ("a:65535", "a", Some(65535)),
        ] {
            let expected = Authority { host: host.as_bytes(), port };
            assert_eq!(Authority::parse(text.as_bytes()), Some(expected), "{text}");
        }
    }

    #[test]
    fn invalid_hosts_are_rejected() {
        for text in [
            "",
            ":80",
            "a b",
            "a/b",
            "user@host",
            "a?b",
            "a#b",
            "a,b c",
            "[::1",
            "[]",
            "[::g]",
            "[::1%25eth0]",
            "[::1]x",
            "a:b",
            "a:65536",
            "a:-1",
            "a:000080",
            "a:80:80",
            "a%4",
            "a%zz",
            "\u{e9}",
            "a\"b",
            "a\\b",
            "<a>",
            "[v.a]",
            "[v1.]",
            "::1",
        ] {
            assert_eq!(Authority::parse(text.as_bytes()), None, "{text}");
        }
    }
}

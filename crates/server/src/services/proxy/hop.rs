//! The fields of a message that concern only one connection, and are not forwarded (RFC 9110 §7.6.1).

use pollux_http::fields::{Field, has_alias_prefix, is_alias};

/// The maximum number of `Connection` lines of one message; a message with more is refused. One line is
/// usual.
const CONNECTION_LINES: usize = 8;

/// The fields that a message's `Connection` names.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionOptions<'b> {
    lines: [&'b [u8]; CONNECTION_LINES],
    count: usize,
}

/// The error for more than [`CONNECTION_LINES`] lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyLines;

impl<'b> ConnectionOptions<'b> {
    /// Collects the options of a message with these fields.
    ///
    /// # Errors
    /// There are more than [`CONNECTION_LINES`] `Connection` lines.
    pub(super) fn of(fields: impl Iterator<Item = Field<'b>>) -> Result<Self, TooManyLines> {
        let mut named = Self { lines: [b""; CONNECTION_LINES], count: 0 };
        for field in fields.filter(|field| field.is(b"connection")) {
            *named.lines.get_mut(named.count).ok_or(TooManyLines)? = field.value;
            named.count += 1;
        }
        Ok(named)
    }

    /// Returns whether `Connection` names this field.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.lines[..self.count]
            .iter()
            .flat_map(|line| members(line))
            .any(|member| member.eq_ignore_ascii_case(name))
    }
}

/// Returns the members of a list of tokens.
pub(super) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|member| !member.is_empty())
}

/// Returns whether a field always concerns only one connection. This includes `Transfer-Encoding` and
/// `Content-Length`: a proxy that forwards a message frames it again.
pub(super) fn is_hop_by_hop(name: &[u8]) -> bool {
    const ALWAYS: [&[u8]; 9] = [
        b"connection",
        b"content-length",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    ];
    ALWAYS.iter().any(|always| is_alias(name, always))
}

/// Appends the trailer fields that may be forwarded, each as a line. A field that would frame, route or
/// authorise the message is dropped, because it arrives too late to be checked (RFC 9110 §6.5.1).
pub(super) fn put_trailers<'b>(out: &mut Vec<u8>, trailers: impl Iterator<Item = Field<'b>>) {
    const NEVER: [&[u8]; 10] = [
        b"host",
        b"authorization",
        b"proxy-authorization",
        b"cookie",
        b"set-cookie",
        b"cache-control",
        b"max-forwards",
        b"expect",
        b"proxy",
        b"x-real-ip",
    ];
    for field in trailers {
        let is_passed = !is_hop_by_hop(field.name)
            && !NEVER.iter().any(|never| is_alias(field.name, never))
            && !has_alias_prefix(field.name, b"content-")
            && !has_alias_prefix(field.name, b"x-forwarded-")
            && !has_alias_prefix(field.name, b"client-cert")
            && !is_alias(field.name, b"forwarded");
        if is_passed {
            put_line(out, field.name, field.value);
        }
    }
}

/// Appends a field that was parsed: its name is a token, and its value contains no line end.
pub(super) fn put_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::fields::Fields;

    #[test]
    fn what_connection_names_is_found_on_every_line() {
        let section = b"Connection: close, X-A\r\nX-A: 1\r\nconnection:, ,x-b\r\n";
        let named = ConnectionOptions::of(Fields::new(section)).unwrap();
        assert!(named.has(b"x-a") && named.has(b"X-B") && named.has(b"close"));
        assert!(!named.has(b"x") && !named.has(b""));
        let many = b"Connection: a\r\n".repeat(CONNECTION_LINES + 1);
        assert_eq!(ConnectionOptions::of(Fields::new(&many)).unwrap_err(), TooManyLines);
    }

    #[test]
    fn underscores_hide_nothing() {
        assert!(is_hop_by_hop(b"Transfer_Encoding") && is_hop_by_hop(b"CONTENT-LENGTH"));
        assert!(!is_hop_by_hop(b"Content-Type") && !is_hop_by_hop(b"_e"));
    }

    #[test]
    fn trailers_that_come_too_late_are_dropped() {
        let section = b"X-Sum: 1\r\nHost: evil\r\nContent_Length: 3\r\nForwarded: for=x\r\n\
                        X-Real-IP: ::1\r\nX-REAL_IP: ::2\r\nExpires: 0\r\n";
        let mut out = Vec::new();
        put_trailers(&mut out, Fields::new(section));
        assert_eq!(out, b"X-Sum: 1\r\nExpires: 0\r\n");
    }
}

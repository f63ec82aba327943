//! The protocols of `Upgrade` (RFC 9110 §7.8).

/// Returns whether a protocol is another version of HTTP, or TLS. A proxy never switches to it, because the connection
/// would then bypass all its checks.
#[must_use]
pub fn is_http_or_tls(protocol: &[u8]) -> bool {
    let name = protocol.split(|&byte| byte == b'/').next().unwrap_or_default().trim_ascii();
    [&b"h2c"[..], b"h2", b"http", b"tls"].iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Returns whether a proxy may forward this value of `Upgrade`. A server may ignore the field, and some clients offer
/// HTTP/2 with every request.
#[must_use]
pub fn may_be_forwarded(protocols: &[u8]) -> bool {
    let members = protocols.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    let mut members = members.filter(|member| !member.is_empty()).peekable();
    members.peek().is_some() && !members.any(is_http_or_tls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_case_make_no_difference() {
        for protocol in ["h2c", "H2", "HTTP/2.0", "TLS/1.0", "http "] {
            assert!(is_http_or_tls(protocol.as_bytes()), "{protocol}");
        }
        for protocol in ["websocket", "https/1", "echo", ""] {
            assert!(!is_http_or_tls(protocol.as_bytes()), "{protocol}");
        }
    }

    #[test]
    fn one_protocol_that_bypasses_the_proxy_is_enough() {
        for (protocols, may) in
            [("websocket", true), ("a, b/1", true), ("h2c, websocket", false), (" , ", false)]
        {
            assert_eq!(may_be_forwarded(protocols.as_bytes()), may, "{protocols}");
        }
    }
}

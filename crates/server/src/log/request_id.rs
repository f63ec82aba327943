//! The identifier of a request: `X-Request-Id`, the same for origins, the log and the client.

use crate::config::RequestIds;
use pollux_http::{fields::Fields, request::Request};
use std::io::Write;

/// The name of the field.
pub(crate) const NAME: &[u8] = b"X-Request-Id";
/// The maximum length, in bytes, of an identifier that is accepted from a client.
const LENGTH_MAX: usize = 128;

/// Replaces `id` by the identifier of a request: the client's own, or 32 random hexadecimal digits.
pub(crate) fn identify(policy: RequestIds, request: &Request<'_>, id: &mut Vec<u8>) {
    id.clear();
    if policy == RequestIds::Accept {
        let mut lines = request.fields().filter(|field| field.is(NAME));
        if let (Some(first), None) = (lines.next(), lines.next())
            && is_well_formed(first.value)
        {
            return id.extend_from_slice(first.value);
        }
    }
    if policy != RequestIds::Off {
        // A write to a vector does not fail.
        let _ = write!(id, "{:032x}", rand::random::<u128>());
    }
}

/// Returns whether an identifier can be used unchanged in a field, a log and a URL.
fn is_well_formed(id: &[u8]) -> bool {
    let is_taken = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:=+/~@".contains(byte);
    (1..=LENGTH_MAX).contains(&id.len()) && id.iter().all(is_taken)
}

/// Inserts the identifier into the head of the final response that begins at `start`. It replaces an
/// identifier that the head has already: that of an origin, or of the request for which a stored response was
/// made. Returns false if there is no such head yet.
pub(crate) fn put(bytes: &mut Vec<u8>, mut start: usize, id: &[u8]) -> bool {
    loop {
        let Some(head) = bytes.get(start..) else { return false };
        let Some(line) = find(head, b"\r\n").filter(|_| head.starts_with(b"HTTP/")) else {
            return false;
        };
        let Some(end) = find(head, b"\r\n\r\n") else { return false };
        let status = head.get(9..12).unwrap_or_default();
        // An interim response (RFC 9110 §15.2) comes before the final one; 101 is final.
        if status.first() == Some(&b'1') && status != b"101" {
            start += end + 4;
            continue;
        }
        let first_field = start + line + 2;
        // In a head without fields, the end of the head is the end of its first line.
        let end = (start + end + 2).max(first_field);
        if let Some(known) = find_field(&bytes[first_field..end]) {
            bytes.drain(first_field + known.start..first_field + known.end);
        }
        let parts = [NAME, b": ", id, b"\r\n"];
        drop(bytes.splice(first_field..first_field, parts.into_iter().flatten().copied()));
        return true;
    }
}

/// Returns the range of the line with the field, including its CRLF.
fn find_field(lines: &[u8]) -> Option<std::ops::Range<usize>> {
    Fields::new(lines).find(|field| field.is(NAME))?;
    let mut start = 0;
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        if name.eq_ignore_ascii_case(NAME) {
            return Some(start..start + line.len());
        }
        start += line.len();
    }
    None
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::{
        Limits,
        request::{ParseStatus, parse},
    };

    fn id_of(policy: RequestIds, lines: &str) -> String {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let Ok(ParseStatus::Complete { request, .. }) = parse(head.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("{head}")
        };
        let mut id = b"former".to_vec();
        identify(policy, &request, &mut id);
        String::from_utf8(id).unwrap()
    }

    #[test]
    fn only_a_well_formed_identifier_of_a_client_is_kept() {
        let is_new = |id: &str| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
        let own = "X-Request-Id: 7f.A-1\r\n";
        assert_eq!(id_of(RequestIds::Accept, own), "7f.A-1");
        assert!(is_new(&id_of(RequestIds::Generate, own)));
        assert_eq!(id_of(RequestIds::Off, own), "");
        let long = format!("X-Request-Id: {}\r\n", "a".repeat(129));
        for lines in
            ["", "X-Request-Id:\r\n", "X-Request-Id: a b\r\n", "X-Request-Id: \"\r\n", &long]
        {
            assert!(is_new(&id_of(RequestIds::Accept, lines)), "{lines}");
        }
        assert!(is_new(&id_of(RequestIds::Accept, &own.repeat(2))), "which one?");
        assert_ne!(id_of(RequestIds::Generate, ""), id_of(RequestIds::Generate, ""));
    }

    #[test]
    fn the_identifier_stands_in_the_final_head_once() {
        for (before, after) in [
            (
                "HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody",
                "HTTP/1.1 200 OK\r\nX-Request-Id: id\r\nA: b\r\n\r\nbody",
            ),
            ("HTTP/1.1 204 No\r\n\r\n", "HTTP/1.1 204 No\r\nX-Request-Id: id\r\n\r\n"),
            (
                "HTTP/1.1 103 Early\r\nB: c\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\nx-request-id: old\r\n\r\n",
                "HTTP/1.1 103 Early\r\nB: c\r\n\r\nHTTP/1.1 200 OK\r\nX-Request-Id: id\r\nA: b\r\n\r\n",
            ),
            (
                "HTTP/1.1 101 Switching\r\nUpgrade: a\r\n\r\n",
                "HTTP/1.1 101 Switching\r\nX-Request-Id: id\r\nUpgrade: a\r\n\r\n",
            ),
        ] {
            let mut bytes = format!("earlier{before}").into_bytes();
            assert!(put(&mut bytes, 7, b"id"));
            assert_eq!(String::from_utf8(bytes).unwrap(), format!("earlier{after}"));
        }
        for incomplete in
            ["", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n", "data\r\n\r\n"]
        {
            let mut bytes = incomplete.as_bytes().to_vec();
            assert!(!put(&mut bytes, 0, b"id"), "{incomplete}");
            assert_eq!(bytes, incomplete.as_bytes());
        }
    }
}

//! Writes responses. Each is the last response on its connection.

use pollux_http::{Status, date::DateCache, request::Version, response::Head};
use std::io::{self, Write};

/// The fields of every response: statistics are never cached, and the page loads nothing from other
/// servers.
const FIELDS: &[u8] = b"Cache-Control: no-store\r\n\
X-Content-Type-Options: nosniff\r\n\
Referrer-Policy: no-referrer\r\n\
Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'\r\n";

/// Writes the head of a response of unknown length, such as a stream of events. The response ends
/// with the connection.
pub(super) fn begin(out: &mut impl Write, kind: &str) -> io::Result<()> {
    let mut head = Vec::new();
    Head::new(&mut head, Status::Ok)
        .date(&now())
        .lines(FIELDS)
        .field("Content-Type", kind.as_bytes())
        .connection(false, Version::Http11)
        .end();
    out.write_all(&head)
}

/// Writes a whole response; for HEAD only its head.
pub(super) fn send(
    out: &mut impl Write,
    status: Status,
    kind: &str,
    body: &[u8],
    is_head: bool,
) -> io::Result<()> {
    let mut response = Vec::with_capacity(512 + body.len());
    let mut head = Head::new(&mut response, status)
        .date(&now())
        .lines(FIELDS)
        .field("Content-Type", kind.as_bytes())
        .content_length(body.len() as u64);
    if status == Status::MethodNotAllowed {
        head = head.lines(b"Allow: GET, HEAD\r\n");
    }
    head.connection(false, Version::Http11).end();
    if !is_head {
        response.extend_from_slice(body);
    }
    out.write_all(&response)
}

/// Writes a response that describes an error; for HEAD only its head.
pub(super) fn refuse(
    out: &mut impl Write,
    status: Status,
    reason: &str,
    is_head: bool,
) -> io::Result<()> {
    let body = format!("{} {}: {reason}\n", status.code(), status.reason());
    send(out, status, "text/plain; charset=utf-8", body.as_bytes(), is_head)
}

fn now() -> DateCache {
    DateCache::new(pollux_sys::unix_second_coarse())
}

//! Sends clients of plain HTTP to the same path over HTTPS.

use crate::service::{ALL_METHODS, Page, RequestContext, ResponseWriter, worker_state::Answer};
use pollux_http::{
    Status,
    request::{Request, Target},
};

/// Answers every request for a path with 308 and the same URL over HTTPS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpsRedirect {
    /// The port of the HTTPS listener.
    port: u16,
}

impl HttpsRedirect {
    /// Redirects to this port.
    pub(crate) fn new(port: u16) -> Self {
        Self { port }
    }

    /// Answers a request. A client that names no host cannot be redirected, and `OPTIONS *` and CONNECT are not for
    /// a resource that has another URL.
    pub(crate) fn answer(
        self,
        context: &RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Answer {
        let fields = match request.target {
            Target::Path { path, query } => location(request.host, path, query, self.port),
            // It is about this listener (RFC 9110 §9.3.7).
            Target::Asterisk => {
                return response.head(context, Status::NoContent).lines(ALL_METHODS).content(b"");
            }
            Target::Authority(_) => return Page::NO_TUNNEL.put(context, response),
        };
        let page = match &fields {
            Some(fields) => Page { status: Status::PermanentRedirect, reason: "", fields },
            None => Page {
                status: Status::BadRequest,
                reason: "this server speaks HTTPS, and the request names no host",
                fields: b"",
            },
        };
        page.put(context, response)
    }
}

/// Returns the Location field. The host was checked when the request was read, and the target is visible
/// ASCII.
fn location(host: Option<&[u8]>, path: &[u8], query: Option<&[u8]>, port: u16) -> Option<Vec<u8>> {
    let host = without_port(host.filter(|host| !host.is_empty())?);
    let mut field = [b"Location: https://".as_slice(), host].concat();
    if port != 443 {
        field.extend_from_slice(format!(":{port}").as_bytes());
    }
    field.extend_from_slice(path);
    if let Some(query) = query {
        field.push(b'?');
        field.extend_from_slice(query);
    }
    field.extend_from_slice(b"\r\n");
    Some(field)
}

fn without_port(host: &[u8]) -> &[u8] {
    match host.iter().rposition(|&byte| byte == b':') {
        // A colon inside brackets is part of an IPv6 address.
        Some(colon) if !host[colon..].contains(&b']') => &host[..colon],
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_the_same_but_for_scheme_and_port() {
        let cases: [(&[u8], u16, &str); 5] = [
            (b"a.example", 443, "https://a.example/x?y=1"),
            (b"a.example:80", 443, "https://a.example/x?y=1"),
            (b"a.example:8080", 8443, "https://a.example:8443/x?y=1"),
            (b"[::1]", 443, "https://[::1]/x?y=1"),
            (b"[::1]:80", 8443, "https://[::1]:8443/x?y=1"),
        ];
        for (host, port, url) in cases {
            let field = location(Some(host), b"/x", Some(b"y=1"), port).unwrap();
            assert_eq!(String::from_utf8(field).unwrap(), format!("Location: {url}\r\n"));
        }
        assert_eq!(location(None, b"/", None, 443), None);
        assert_eq!(location(Some(b""), b"/", None, 443), None);
    }
}

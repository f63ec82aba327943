//! Sends clients of plain HTTP to the same path over HTTPS.

use crate::service::{Page, RequestContext, ResponseWriter};
use pollux_http::{
    Status,
    request::{Request, Target},
};

/// Answers every request with 308 and the same URL over HTTPS.
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

    /// Answers a request. A client that names no host cannot be redirected.
    pub(crate) fn answer(
        self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) {
        let fields = location(request.host, &request.target, self.port);
        let page = match &fields {
            Some(fields) => Page { status: Status::PermanentRedirect, reason: "", fields },
            None => Page {
                status: Status::BadRequest,
                reason: "this server speaks HTTPS, and the request names no host",
                fields: b"",
            },
        };
        let answer = page.put(context, response);
        context.log(request.line, answer);
    }
}

/// Returns the Location field. The host was checked when the request was read, and the target is visible
/// ASCII.
fn location(host: Option<&[u8]>, target: &Target<'_>, port: u16) -> Option<Vec<u8>> {
    let host = without_port(host.filter(|host| !host.is_empty())?);
    let Target::Path { path, query } = target else { return None };
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
            let target = Target::Path { path: b"/x", query: Some(b"y=1") };
            let field = location(Some(host), &target, port).unwrap();
            assert_eq!(String::from_utf8(field).unwrap(), format!("Location: {url}\r\n"));
        }
        assert_eq!(location(None, &Target::Asterisk, 443), None);
        assert_eq!(location(Some(b"a"), &Target::Asterisk, 443), None);
    }
}

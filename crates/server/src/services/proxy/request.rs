//! The head of a request in the form for an origin.

use super::{
    forwarded::{self, Client},
    hop::{self, ConnectionOptions, TooManyLines},
    override_fields,
};
use crate::{config::HostPolicy, log::request_id, settings::FrontendConfig};
use pollux_http::{
    fields::{Fields, is_alias},
    request::{Framing, KnownField, Method, Request, Target, Version, WriteError, Writer},
    upgrade::may_be_forwarded,
};
use std::borrow::Cow;

/// The error for a request that cannot be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotForwardable;

impl From<WriteError> for NotForwardable {
    fn from(_: WriteError) -> Self {
        Self
    }
}

impl From<TooManyLines> for NotForwardable {
    fn from(_: TooManyLines) -> Self {
        Self
    }
}

/// The data from which a head is made, besides the request.
#[derive(Debug)]
pub(super) struct UpstreamRequest<'a> {
    pub(super) config: &'a FrontendConfig,
    /// The authority in the origin's URL.
    pub(super) authority: &'a str,
    pub(super) client: Client,
    /// The certificate that the client has presented, as the value of its field.
    pub(super) client_certificate: Option<&'a [u8]>,
    /// The identifier of the request, which replaces the client's field. An empty one, as in background
    /// tasks, only removes that field. With `None` the client's field is forwarded.
    pub(super) request_id: Option<&'a [u8]>,
    /// Whether `Authorization` was for this server and is not forwarded.
    pub(super) hides_authorization: bool,
    /// Lines that replace the fields that make the request conditional or request a part.
    pub(super) conditions: Option<&'a [u8]>,
    /// Whether the request is sent with GET, regardless of the client's method.
    pub(super) is_refresh: bool,
    /// A buffer that is overwritten, so that its memory is reused.
    pub(super) scratch: &'a mut Vec<u8>,
}

/// The forwarded fields that decide which replies are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestFacts {
    /// `Upgrade` was forwarded: 101 is a valid reply.
    pub(super) upgrade: bool,
    /// `TE: trailers` was forwarded.
    pub(super) trailers: bool,
    /// `If-None-Match` or `If-Modified-Since` was forwarded: 304 is a valid reply.
    pub(super) conditional: bool,
    /// `Range` was forwarded: 206 is a valid reply.
    pub(super) range: bool,
}

impl UpstreamRequest<'_> {
    /// Appends the head of `request`.
    ///
    /// # Errors
    /// A part of the head cannot be written, or there are too many `Connection` lines. Then nothing is
    /// appended.
    pub(super) fn put(
        mut self,
        out: &mut Vec<u8>,
        request: &Request<'_>,
    ) -> Result<RequestFacts, NotForwardable> {
        let start = out.len();
        let outcome = self.write(out, request);
        if outcome.is_err() {
            out.truncate(start);
        }
        outcome
    }

    fn write(
        &mut self,
        out: &mut Vec<u8>,
        request: &Request<'_>,
    ) -> Result<RequestFacts, NotForwardable> {
        let Self {
            config,
            authority,
            client,
            client_certificate,
            request_id,
            hides_authorization,
            conditions,
            is_refresh,
            scratch,
        } = self;
        let named = ConnectionOptions::of(request.fields())?;
        let target = target(request, scratch);
        // A response that is stored must not depend on how one client has spelled the host.
        let client_host = request.host.map(|host| match &config.cache {
            Some(_) => pollux_cache::host_of_key(host, pollux_cache::site(client.is_tls)),
            None => Cow::Borrowed(host),
        });
        let client_host = client_host.as_deref();
        let host = match &config.host {
            HostPolicy::Client => client_host.unwrap_or(authority.as_bytes()),
            HostPolicy::Origin => authority.as_bytes(),
            HostPolicy::Named(name) => name.as_bytes(),
        };
        let left = forwards_left(request);
        let method = if *is_refresh { b"GET" } else { request.method.as_bytes() };
        let is_cacheable = *is_refresh || matches!(request.method, Method::Get | Method::Head);
        let drops_overrides = config.cache.is_some() && is_cacheable;
        let mut writer = Writer::new(out, method, target)?;
        writer = writer.field(b"Host", host)?;
        for field in request.fields() {
            if !is_passed(field.name)
                || named.has(field.name)
                || conditions.is_some() && pollux_cache::is_condition(field.name)
                || forwarded::is_taken(config.forwarded, field.name)
                || forwarded::is_forged_certificate(config.forwarded, *client, field.name)
                || *hides_authorization && field.is_alias(b"authorization")
                || request_id.is_some() && field.is_alias(b"x-request-id")
                || drops_overrides && override_fields::is_override(field.name)
            {
                continue;
            }
            writer = match left {
                Some(left) if field.is(b"max-forwards") => {
                    let left = left.saturating_sub(1).to_string();
                    writer.field(field.name, left.as_bytes())?
                }
                _ => writer.field(field.name, field.value)?,
            };
        }
        for field in Fields::new(conditions.unwrap_or_default()) {
            writer = writer.field(field.name, field.value)?;
        }
        let mut writer = Some(writer);
        let put_forwarded = |name: &[u8], value: &[u8]| {
            if let Some(before) = writer.take() {
                writer = Some(before.field(name, value)?);
            }
            Ok::<(), WriteError>(())
        };
        forwarded::fields(
            config.forwarded,
            request,
            &named,
            client_host,
            *client,
            scratch,
            put_forwarded,
        )?;
        let Some(mut writer) = writer else { return Err(NotForwardable) };
        if let Some(certificate) = client_certificate {
            writer = writer.field(forwarded::CLIENT_CERTIFICATE, certificate)?;
        }
        if let Some(id) = request_id.filter(|id| !id.is_empty()) {
            writer = writer.field(request_id::NAME, id)?;
        }
        if let Some(via) = &config.via {
            scratch.clear();
            let version: &[u8] = if request.version == Version::Http10 { b"1.0 " } else { b"1.1 " };
            scratch.extend_from_slice(version);
            scratch.extend_from_slice(via.as_bytes());
            writer = writer.field(b"Via", scratch)?;
        }
        let upgrade = upgrade(request, &named);
        // A field that `Connection` names was not forwarded, so no reply of the origin refers to it.
        let is_passed_on = |known, name: &[u8]| request.has(known) && !named.has(name);
        let passed = RequestFacts {
            upgrade: upgrade.is_some(),
            trailers: takes_trailers(request),
            conditional: match conditions {
                Some(lines) => has_any(lines, &[b"if-none-match", b"if-modified-since"]),
                None => {
                    is_passed_on(KnownField::IfNoneMatch, b"if-none-match")
                        || is_passed_on(KnownField::IfModifiedSince, b"if-modified-since")
                }
            },
            range: match conditions {
                Some(lines) => has_any(lines, &[b"range"]),
                None => is_passed_on(KnownField::Range, b"range"),
            },
        };
        let connection: Option<&[u8]> = match (passed.upgrade, passed.trailers) {
            (true, true) => Some(b"upgrade, TE"),
            (true, false) => Some(b"upgrade"),
            (false, true) => Some(b"TE"),
            (false, false) => None,
        };
        if let Some(options) = connection {
            writer = writer.field(b"Connection", options)?;
        }
        if let Some(protocols) = upgrade {
            writer = writer.field(b"Upgrade", protocols)?;
        }
        if passed.trailers {
            writer = writer.field(b"TE", b"trailers")?;
        }
        if request.expect_continue {
            writer = writer.field(b"Expect", b"100-continue")?;
        }
        let writer = match request.framing {
            Framing::Chunked => writer.chunked(),
            Framing::Length(length) => writer.content_length(length),
            Framing::None if announces_content(request) => writer.content_length(0),
            Framing::None => writer,
        };
        writer.end();
        Ok(passed)
    }
}

/// Returns the target as it was received, or the path and query of an absolute-form target (RFC 9112 §3.2.1).
fn target<'t>(request: &Request<'t>, scratch: &'t mut Vec<u8>) -> &'t [u8] {
    let Target::Path { path, query } = request.target else { return b"*" };
    let word = request.line.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
    if word.starts_with(b"/") {
        return word;
    }
    scratch.clear();
    scratch.extend_from_slice(path);
    if let Some(query) = query {
        scratch.push(b'?');
        scratch.extend_from_slice(query);
    }
    scratch
}

/// Returns whether a field is forwarded, unless `Connection` names it. Other fields are generated again, or
/// must not reach the origin: `Proxy` would become the variable HTTP_PROXY of a CGI program.
fn is_passed(name: &[u8]) -> bool {
    const NOT: [&[u8]; 4] = [b"host", b"expect", b"proxy", b"proxy-authorization"];
    !hop::is_hop_by_hop(name) && !NOT.iter().any(|not| is_alias(name, not))
}

/// Returns the number of further recipients that a request may have, if it has the field `Max-Forwards` and
/// its method supports that field (RFC 9110 §7.6.2).
pub(super) fn forwards_left(request: &Request<'_>) -> Option<u64> {
    let is_counted = matches!(request.method, Method::Trace | Method::Options);
    let field = is_counted.then(|| request.field(b"max-forwards")).flatten()?;
    let digits = std::str::from_utf8(field).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Returns the protocols to which the connection may be switched. Another HTTP and TLS are excluded. A request
/// with content is excluded too, because the content would have to be sent first.
fn upgrade<'b>(request: &Request<'b>, named: &ConnectionOptions<'_>) -> Option<&'b [u8]> {
    if request.version == Version::Http10
        || request.framing != Framing::None
        || !named.has(b"upgrade")
    {
        return None;
    }
    let mut lines = request.fields().filter(|field| field.is(b"upgrade"));
    let protocols = lines.next()?.value;
    (lines.next().is_none() && may_be_forwarded(protocols)).then_some(protocols)
}

/// Returns whether one of these fields is among `lines`.
fn has_any(lines: &[u8], names: &[&[u8]]) -> bool {
    Fields::new(lines).any(|field| names.iter().any(|name| field.is(name)))
}

/// Returns whether the client accepts trailer fields (RFC 9110 §10.1.4).
fn takes_trailers(request: &Request<'_>) -> bool {
    request.version == Version::Http11
        && request
            .fields()
            .filter(|field| field.is(b"te"))
            .any(|field| hop::members(field.value).any(|m| m.eq_ignore_ascii_case(b"trailers")))
}

/// Returns whether an origin may need to know that there is no content (RFC 9110 §8.6).
fn announces_content(request: &Request<'_>) -> bool {
    matches!(request.method, Method::Post | Method::Put | Method::Patch)
        || request.has(KnownField::ContentType)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ForwardedPolicy;
    use pollux_http::{
        Limits,
        request::{ParseStatus, parse},
    };

    fn config() -> FrontendConfig {
        let mut config = FrontendConfig::new(vec!["http://origin:81".parse().unwrap()]);
        config.forwarded = ForwardedPolicy::Remove;
        config.via = None;
        config
    }

    fn put(config: &FrontendConfig, head: &str) -> Result<(String, RequestFacts), NotForwardable> {
        let Ok(ParseStatus::Complete { request, .. }) = parse(head.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("{head}")
        };
        let client = Client {
            address: Some([192, 0, 2, 1].into()),
            is_tls: false,
            requests_certificates: false,
        };
        let upstream_request = UpstreamRequest {
            config,
            authority: "origin:81",
            client,
            client_certificate: None,
            request_id: None,
            hides_authorization: false,
            conditions: None,
            is_refresh: false,
            scratch: &mut Vec::new(),
        };
        let mut out = Vec::new();
        let passed = upstream_request.put(&mut out, &request)?;
        assert!(matches!(parse(&out, &Limits::DEFAULT), Ok(ParseStatus::Complete { .. })));
        Ok((String::from_utf8(out).unwrap(), passed))
    }

    fn passed(head: &str) -> String {
        put(&config(), head).unwrap().0
    }

    #[test]
    fn what_is_about_the_connection_stays_here() {
        assert_eq!(
            passed(
                "GET /a%2Fb?c=d HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, X-Secret\r\n\
                 Keep-Alive: timeout=5\r\nX-Secret: 1\r\nTE: gzip\r\nCookie: a=b\r\n\
                 Proxy: http://evil\r\nProxy-Connection: close\r\nTransfer_Encoding: chunked\r\n\
                 Upgrade: websocket\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n"
            ),
            "GET /a%2Fb?c=d HTTP/1.1\r\nHost: h\r\nCookie: a=b\r\n\r\n"
        );
    }

    /// The origin does not receive the condition, so it has no reason to reply with 304 or 206.
    #[test]
    fn a_condition_that_connection_names_is_not_forwarded() {
        let forward = |connection: &str, fields: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{connection}{fields}\r\n");
            put(&config(), &head).unwrap()
        };
        for (name, fields, expected) in [
            ("if-none-match", "If-None-Match: \"a\"\r\n", (true, false)),
            (
                "if-modified-since",
                "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
                (true, false),
            ),
            ("range", "Range: bytes=0-1\r\n", (false, true)),
        ] {
            let (head, passed) = forward("", fields);
            assert_eq!((passed.conditional, passed.range), expected, "{name}");
            assert!(head.contains(fields), "{head}");
            let (head, passed) = forward(&format!("Connection: close, {name}\r\n"), fields);
            assert_eq!(passed, RequestFacts::default(), "{name}");
            assert_eq!(head, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        }
    }

    #[test]
    fn the_target_and_the_host_are_those_that_were_meant() {
        let head = "GET http://real:80/x?y HTTP/1.1\r\nHost: other\r\n\r\n";
        assert_eq!(passed(head), "GET /x?y HTTP/1.1\r\nHost: real:80\r\n\r\n");
        assert_eq!(
            passed("GET http://real?y HTTP/1.1\r\nHost: other\r\n\r\n"),
            "GET /?y HTTP/1.1\r\nHost: real\r\n\r\n"
        );
        let old = "GET / HTTP/1.0\r\n\r\n";
        assert_eq!(passed(old), "GET / HTTP/1.1\r\nHost: origin:81\r\n\r\n");
        let star = "OPTIONS * HTTP/1.1\r\nHost: h\r\nMax-Forwards: 3\r\n\r\n";
        assert_eq!(passed(star), "OPTIONS * HTTP/1.1\r\nHost: h\r\nMax-Forwards: 2\r\n\r\n");
        let mut config = config();
        config.host = HostPolicy::Origin;
        assert!(put(&config, head).unwrap().0.contains("Host: origin:81\r\n"));
        config.host = HostPolicy::Named("name".into());
        assert!(put(&config, head).unwrap().0.contains("Host: name\r\n"));
    }

    /// A key has one spelling of the host. If the origin saw another one, one client could choose the response
    /// that all clients get.
    #[test]
    fn an_origin_behind_a_cache_receives_the_host_of_the_key() {
        let mut config = config();
        let head = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let start = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n");
        let unchanged = put(&config, &head("A.example:80")).unwrap().0;
        assert!(unchanged.starts_with(&start("A.example:80")), "without a cache: {unchanged}");
        config.cache = Some(pollux_cache::Store::new(pollux_cache::Config::default()));
        config.forwarded = ForwardedPolicy::Replace;
        for host in ["a.example", "A.EXAMPLE", "a.example:80", "a.example:"] {
            let sent = put(&config, &head(host)).unwrap().0;
            assert!(sent.starts_with(&start("a.example")), "{sent}");
            assert!(sent.contains("X-Forwarded-Host: a.example\r\n"), "{sent}");
            assert!(sent.contains(";host=\"a.example\";"), "{sent}");
        }
        let sent = put(&config, &head("a.example:443")).unwrap().0;
        assert!(sent.starts_with(&start("a.example:443")), "{sent}");
    }

    #[test]
    fn fields_that_override_the_request_are_dropped_before_a_cache() {
        let fields = "X-HTTP-Method-Override: POST\r\nx-http-method: PUT\r\nX_Method-Override: a\r\n\
                      X-Original-URL: /a\r\nX-Rewrite-URL: /a\r\nX-Override-URL: /a\r\n\
                      X-ORIGINAL_URI: /a\r\nX-Host: evil\r\nX-Original-Host: evil\r\n\
                      X-HTTP-Host-Override: evil\r\n";
        let head =
            |method: &str| format!("{method} / HTTP/1.1\r\nHost: h\r\nX-Kept: 1\r\n{fields}\r\n");
        let mut config = config();
        assert!(put(&config, &head("GET")).unwrap().0.contains(fields), "without a cache");
        config.cache = Some(pollux_cache::Store::new(pollux_cache::Config::default()));
        for method in ["GET", "HEAD"] {
            let expected = format!("{method} / HTTP/1.1\r\nHost: h\r\nX-Kept: 1\r\n\r\n");
            assert_eq!(put(&config, &head(method)).unwrap().0, expected);
        }
        assert!(put(&config, &head("POST")).unwrap().0.contains(fields), "it is not stored");
    }

    #[test]
    fn a_body_is_framed_once() {
        let chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\
                       Content_Length: 5\r\nExpect: 100-continue\r\n\r\n";
        assert_eq!(
            passed(chunked),
            "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        let length = "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 0005\r\n\r\n";
        assert_eq!(passed(length), "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n");
        let none = "POST / HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(passed(none), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    }

    #[test]
    fn only_protocols_that_are_no_http_are_switched_to() {
        let forward = |fields: &str| {
            put(&config(), &format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).unwrap()
        };
        let (head, passed) =
            forward("Connection: Upgrade\r\nUpgrade: websocket\r\nTE: trailers\r\n");
        let all = RequestFacts { upgrade: true, trailers: true, ..RequestFacts::default() };
        assert_eq!(passed, all);
        assert!(
            head.ends_with("Connection: upgrade, TE\r\nUpgrade: websocket\r\nTE: trailers\r\n\r\n")
        );
        for fields in [
            "Upgrade: websocket\r\n",
            "Connection: upgrade\r\n",
            "Connection: upgrade\r\nUpgrade: ,\r\n",
            "Connection: upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n",
            "Connection: upgrade\r\nUpgrade: websocket, H2C\r\n",
            "Connection: upgrade\r\nUpgrade: TLS/1.0, HTTP/1.1\r\n",
            "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n",
            "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n",
        ] {
            let (head, passed) = forward(fields);
            assert!(!passed.upgrade && !head.contains("pgrade"), "{fields}: {head}");
            assert!(!head.contains("HTTP2"), "{head}");
        }
    }

    #[test]
    fn via_is_written_behind_what_came_and_floods_are_refused() {
        let mut config = config();
        config.via = Some("p".into());
        let head = "GET / HTTP/1.0\r\nHost: h\r\nVia: 1.1 a\r\n\r\n";
        assert!(put(&config, head).unwrap().0.ends_with("Via: 1.1 a\r\nVia: 1.0 p\r\n\r\n"));
        let flood = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "Connection: a\r\n".repeat(20));
        assert_eq!(put(&config, &flood).unwrap_err(), NotForwardable);
    }
}

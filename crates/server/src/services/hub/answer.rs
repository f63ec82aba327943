//! The responses of a hub, except for streams.

use crate::service::{HeadWriter, RequestContext, ResponseWriter, worker_state::Answer};
use pollux_http::{
    Status,
    request::{Method, Request, Target},
};
use pollux_hub::{fields, reject::Reject, topic::HubUrl};
use std::borrow::Cow;

/// The methods of a hub.
const ALLOW: &str = "Allow: GET, HEAD, POST, QUERY, OPTIONS\r\n";

/// The methods of its documents.
const ALLOW_DOCUMENT: &str = "Allow: GET, HEAD, OPTIONS\r\n";

/// The media type of the content of a QUERY (RFC 10008 §3).
pub(super) const ACCEPT_QUERY: &str = "Accept-Query: application/x-www-form-urlencoded\r\n";

/// The response fields that a page of another origin may read (Fetch Standard §3.3.3).
const EXPOSED: &str =
    "Accept-Query, ETag, Last-Event-ID, Link, Mercure-Last-Event-ID, Retry-After, WWW-Authenticate";

/// The parts of the client's request that a later response needs.
#[derive(Debug)]
pub(super) struct Responder {
    /// The request line for the log, without a token; empty if there is no log.
    line: Box<[u8]>,
    /// Response fields for a page of another origin.
    cors: Box<[u8]>,
    pub(super) is_head: bool,
    /// Whether the request is for the hub itself, and not for one of its documents.
    is_for_hub: bool,
}

impl Responder {
    /// The responder for a GET or QUERY of the hub itself, if there is no log and the request is of no page.
    pub(super) fn for_hub() -> Self {
        Self { line: Box::default(), cors: Box::default(), is_head: false, is_for_hub: true }
    }

    /// Returns whether this is not the same as [`Responder::for_hub`].
    pub(super) fn has_memory(&self) -> bool {
        let Self { line, cors, is_head, is_for_hub } = self;
        !line.is_empty() || !cors.is_empty() || *is_head || !is_for_hub
    }

    /// Reads the request. `allowed` are the origins of pages that may use the hub, and `is_for_hub` means that the request
    /// is for the hub itself.
    pub(super) fn of(
        request: &Request<'_>,
        allowed: &[String],
        has_log: bool,
        is_for_hub: bool,
    ) -> Self {
        Self {
            // A poll that waits keeps it.
            line: if has_log { without_token(request).into() } else { Box::default() },
            cors: cors_fields(request, allowed).into_bytes().into(),
            is_head: request.method == Method::Head,
            is_for_hub,
        }
    }

    /// Returns the field with the methods of the resource (RFC 9110 §10.2.1).
    fn allow(&self) -> &'static str {
        if self.is_for_hub { ALLOW } else { ALLOW_DOCUMENT }
    }

    /// Answers an OPTIONS.
    pub(super) fn answer_options(
        &self,
        context: &mut RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
    ) {
        let query = if self.is_for_hub { ACCEPT_QUERY } else { "" };
        let fields = [self.allow(), query].concat();
        self.answer(context, response, Status::NoContent, fields.as_bytes(), ("", b""));
    }

    /// Answers with content of a known length.
    pub(super) fn answer(
        &self,
        context: &mut RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        status: Status,
        fields: &[u8],
        content: (&str, &[u8]),
    ) {
        let (media_type, content) = content;
        let mut head = self.head(context, response, status).lines(fields);
        if !matches!(status, Status::NoContent | Status::NotModified) {
            head = head.field("Content-Type", media_type.as_bytes());
        }
        let answer = head.content(content);
        context.log(&self.line, answer);
    }

    /// Begins a response with the fields that a page of another origin needs.
    pub(super) fn head<'r>(
        &self,
        context: &RequestContext<'_>,
        response: &'r mut ResponseWriter<'_>,
        status: Status,
    ) -> HeadWriter<'r> {
        let fields = &context.rules.fields_without_cors;
        response.head_with(context, fields, status).lines(&self.cors)
    }

    /// Answers a HEAD for a stream or a long poll. The content has no length that is known now, so none is named (RFC 9110
    /// §9.3.2).
    pub(super) fn answer_head(
        &self,
        context: &mut RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        fields: &str,
    ) {
        let head = self.head(context, response, Status::Ok).lines(fields.as_bytes());
        let _ = head.field("Content-Type", b"text/event-stream").stream();
        self.log(context, Status::Ok);
    }

    /// Answers with the reason why a request is refused.
    pub(super) fn reject(
        &self,
        context: &mut RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        reject: &Reject,
        hub: &HubUrl,
    ) {
        let status = status_of(reject.status);
        let mut fields = String::from("Cache-Control: no-store\r\n");
        if matches!(reject.status, 400 | 401 | 403)
            && let Some(challenge) = reject.challenge(Some(&hub.metadata_url()))
        {
            fields.push_str(&format!("WWW-Authenticate: {challenge}\r\n"));
        }
        match status {
            Status::TooManyRequests | Status::ServiceUnavailable => {
                fields.push_str("Retry-After: 1\r\n");
            }
            Status::MethodNotAllowed => fields.push_str(self.allow()),
            Status::UnsupportedMediaType => fields.push_str(ACCEPT_QUERY),
            _ => {}
        }
        let text = format!("{}\n", reject.message);
        let content = ("text/plain; charset=utf-8", text.as_bytes());
        self.answer(context, response, status, fields.as_bytes(), content);
    }

    /// Writes the log line of a response that other code has written.
    pub(super) fn log(&self, context: &mut RequestContext<'_>, status: Status) {
        context.log(&self.line, Answer { status: status.code(), len: 0 });
    }
}

fn status_of(code: u16) -> Status {
    let known = Status::ALL.iter().find(|status| status.code() == code);
    known.copied().unwrap_or(Status::InternalServerError)
}

/// Returns the request line with the values of the query's tokens replaced: more people read a log than may
/// use these tokens.
pub(crate) fn without_token<'b>(request: &Request<'b>) -> Cow<'b, [u8]> {
    let Target::Path { query: Some(query), .. } = request.target else {
        return Cow::Borrowed(request.line);
    };
    let name_of = |field: &[u8]| field.iter().position(|byte| *byte == b'=');
    let has_token = |field: &[u8]| name_of(field).is_some_and(|end| is_token(&field[..end]));
    if !query.split(|byte| *byte == b'&').any(has_token) {
        return Cow::Borrowed(request.line);
    }
    let fields = query.split(|byte| *byte == b'&').map(|field| match name_of(field) {
        Some(end) if is_token(&field[..end]) => [&field[..end], b"=-"].concat(),
        _ => field.to_vec(),
    });
    let query = fields.collect::<Vec<_>>().join(&b'&');
    let line = request.line;
    let start = line.iter().position(|byte| *byte == b'?').map_or(line.len(), |at| at + 1);
    let end = line.iter().rposition(|byte| *byte == b' ').unwrap_or(line.len());
    Cow::Owned([&line[..start], &query, &line[end.max(start)..]].concat())
}

/// Returns whether a parameter of this name is a token. The name may have escapes, as for the parser of the query.
fn is_token(name: &[u8]) -> bool {
    if !name.contains(&b'%') {
        return matches!(name, b"access_token" | b"authorization");
    }
    let names = fields::decode(name).unwrap_or_default();
    names.first().is_some_and(|(name, _)| matches!(name.as_str(), "access_token" | "authorization"))
}

/// Returns the CORS fields for the page that sent a request, if its origin may use the hub.
fn cors_fields(request: &Request<'_>, allowed: &[String]) -> String {
    if allowed.is_empty() {
        return String::new();
    }
    // Also without an origin, or for one that may not use the hub: a cache must not give this response to another page.
    let mut fields = String::from("Vary: Origin\r\n");
    let Some(origin) = request.field(b"origin").and_then(|value| std::str::from_utf8(value).ok())
    else {
        return fields;
    };
    if allowed.iter().any(|one| one == origin) {
        fields.push_str(&format!(
            "Access-Control-Allow-Origin: {origin}\r\nAccess-Control-Allow-Credentials: true\r\n"
        ));
    } else if allowed.iter().any(|one| one == "*") {
        // Without credentials: otherwise every page could read everything that a cookie permits.
        fields.push_str("Access-Control-Allow-Origin: *\r\n");
    } else {
        return fields;
    }
    if request.method == Method::Options {
        fields.push_str(
            "Access-Control-Allow-Methods: GET, HEAD, POST, QUERY\r\n\
             Access-Control-Allow-Headers: Authorization, Cache-Control, Content-Type, If-None-Match, \
             Last-Event-ID, Mercure-Last-Event-ID, Prefer\r\nAccess-Control-Max-Age: 600\r\n",
        );
    } else {
        fields.push_str(&format!("Access-Control-Expose-Headers: {EXPOSED}\r\n"));
    }
    fields
}

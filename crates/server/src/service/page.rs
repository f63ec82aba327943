//! Responses that contain only a status: one small HTML page.

use crate::service::{RequestContext, ResponseWriter, worker_state::Answer};
use pollux_http::Status;

/// A response that has no content of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page<'a> {
    /// The status.
    pub(crate) status: Status,
    /// One more sentence for the reader. The server itself writes it, so it needs no escaping.
    pub(crate) reason: &'a str,
    /// Fields for this response only: lines with CRLF.
    pub(crate) fields: &'a [u8],
}

/// The field of a listener that redirects or forwards requests with all methods (RFC 9110 §10.2.1) except CONNECT.
pub(crate) const ALL_METHODS: &[u8] =
    b"Allow: GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS, TRACE\r\n";

impl Page<'static> {
    /// The response to CONNECT.
    pub(crate) const NO_TUNNEL: Self = Self {
        status: Status::MethodNotAllowed,
        reason: "this server leads to no other",
        fields: ALL_METHODS,
    };
}

impl Page<'_> {
    /// Writes the response.
    #[cold]
    pub(crate) fn put(
        self,
        context: &RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Answer {
        let Page { status, reason, fields } = self;
        let title = format!("{} {}", status.code(), status.reason());
        let paragraph = if reason.is_empty() { String::new() } else { format!("<p>{reason}</p>") };
        let body = format!(
            "<!doctype html><html lang=\"en\"><title>{title}</title><h1>{title}</h1>{paragraph}</html>\n"
        );
        response
            .head(context, status)
            .lines(fields)
            .field("Content-Type", b"text/html; charset=utf-8")
            .content(body.as_bytes())
    }
}

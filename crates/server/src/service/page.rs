//! Responses that contain only a status: one small HTML page.

use crate::{
    protocol::{KeepAlive, rules::Rules},
    service::worker_state::{Answer, WorkerState},
    transport::outbox::Outbox,
};
use pollux_http::{Status, request::Method, response::Head};

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

impl Page<'_> {
    /// Writes the response. A response to HEAD has no content.
    #[cold]
    pub(crate) fn put(
        self,
        rules: &Rules,
        worker: &WorkerState,
        outbox: &mut Outbox,
        method: Method<'_>,
        keep: KeepAlive,
    ) -> Answer {
        let Page { status, reason, fields } = self;
        let title = format!("{} {}", status.code(), status.reason());
        let paragraph = if reason.is_empty() { String::new() } else { format!("<p>{reason}</p>") };
        let body = format!(
            "<!doctype html><html lang=\"en\"><title>{title}</title><h1>{title}</h1>{paragraph}</html>\n"
        );
        let out = outbox.bytes();
        Head::new(out, status)
            .date(worker.clock.date())
            .lines(&rules.common_fields)
            .lines(fields)
            .field("Content-Type", b"text/html; charset=utf-8")
            .content_length(body.len() as u64)
            .lines(keep.line())
            .end();
        if method == Method::Head {
            return Answer { status, len: 0 };
        }
        out.extend_from_slice(body.as_bytes());
        Answer { status, len: body.len() as u64 }
    }
}

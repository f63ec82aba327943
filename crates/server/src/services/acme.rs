//! Answers an ACME authority that validates a name over plain HTTP (RFC 8555 §8.3).

use crate::{
    service::{RequestContext, worker_state::Answer},
    transport::outbox::Outbox,
};
use pollux_http::{
    Status,
    request::{Framing, Method, Request, Target},
    response::Head,
};
use std::path::PathBuf;

/// The answers to challenges, which the thread that orders certificates stores as files.
#[derive(Debug)]
pub(crate) struct AcmeAnswers {
    folder: PathBuf,
}

impl AcmeAnswers {
    /// Uses the answers in this directory.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Answers a request for a pending challenge. Returns false for any other request, which is then handled
    /// as usual: another ACME client may have files in the site's directory.
    pub(crate) fn answer(
        &self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> bool {
        let Target::Path { path, .. } = request.target else { return false };
        let is_read = matches!(request.method, Method::Get | Method::Head);
        if !is_read || !path.starts_with(pollux_acme::HTTP_PREFIX) {
            return false;
        }
        let Some(content) = pollux_acme::http_answer(&self.folder, path) else { return false };
        if request.framing != Framing::None {
            context.close_after();
        }
        let status = Status::Ok;
        Head::new(outbox.bytes(), status)
            .date(context.worker.clock.date())
            .lines(&context.rules.common_fields)
            .field("Content-Type", b"application/octet-stream")
            .field("Cache-Control", b"no-store")
            .content_length(content.len() as u64)
            .lines(context.keep_alive().line())
            .end();
        let mut len = 0;
        if request.method == Method::Get {
            outbox.bytes().extend_from_slice(&content);
            len = content.len() as u64;
        }
        context.log(request.line, Answer { status, len });
        true
    }
}

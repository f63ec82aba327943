//! Answers an ACME authority that validates a name over plain HTTP (RFC 8555 §8.3).

use crate::service::{RequestContext, ResponseWriter};
use pollux_http::{
    Status,
    request::{Framing, Method, Request, Target},
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
        response: &mut ResponseWriter<'_>,
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
        let answer = response
            .head(context, Status::Ok)
            .field("Content-Type", b"application/octet-stream")
            .field("Cache-Control", b"no-store")
            .content(&content);
        context.log(request.line, answer);
        true
    }
}

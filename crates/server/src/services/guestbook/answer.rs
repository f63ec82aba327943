//! The responses to guests.

use crate::{
    service::{Page, RequestContext, ResponseWriter},
    settings::GuestbookConfig,
};
use pollux_guestbook::{Answer, StoreError, Template};
use pollux_http::{
    Status,
    request::{Method, Request},
};

/// Every page is different, so none is stored in a cache.
const NO_STORE: &[u8] = b"Cache-Control: no-store\r\n";

/// The parts of the client's request that a later response needs.
#[derive(Debug)]
pub(super) struct Reader {
    is_post: bool,
    /// The request line, for the log.
    line: Box<[u8]>,
}

impl Reader {
    pub(super) fn of(request: &Request<'_>) -> Self {
        Self { is_post: request.method == Method::Post, line: request.line.into() }
    }

    pub(super) fn is_post(&self) -> bool {
        self.is_post
    }

    /// Answers with a status and a sentence.
    pub(super) fn refuse(
        &self,
        context: &mut RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        status: Status,
        reason: &str,
        fields: &[u8],
    ) {
        let fields = [NO_STORE, fields].concat();
        let answer = if status == Status::NoContent {
            response.head(context, status).lines(&fields).content(b"")
        } else {
            Page { status, reason, fields: &fields }.put(context, response)
        };
        context.log(&self.line, answer);
    }

    /// Answers with the result of the store.
    pub(super) fn answer(
        &self,
        context: &mut RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        config: &GuestbookConfig,
        template: &Template,
        answer: Result<Answer, StoreError>,
    ) {
        match answer {
            Ok(Answer::Visit { remarks, visitor }) => {
                let mut page = Vec::new();
                template.put_page(&mut page, &remarks, visitor);
                let answer = response
                    .head(context, Status::Ok)
                    .lines(NO_STORE)
                    .field("Content-Type", b"text/html; charset=utf-8")
                    .content(&page);
                context.log(&self.line, answer);
            }
            Ok(Answer::Posted) => {
                // A reload of the page after this redirection does not post again.
                let answer = response
                    .head(context, Status::SeeOther)
                    .lines(NO_STORE)
                    .field("Location", config.path.as_bytes())
                    .content(b"");
                context.log(&self.line, answer);
            }
            Err(error) => {
                let seconds = error.retry_after().as_secs();
                let retry = format!("Retry-After: {seconds}\r\n");
                let reason = "the guestbook's store does not answer; please try again";
                let status = Status::ServiceUnavailable;
                self.refuse(context, response, status, reason, retry.as_bytes());
            }
        }
    }
}

//! The responses to guests.

use crate::{
    service::{Page, RequestContext, worker_state::Answer as Logged},
    settings::GuestbookConfig,
    transport::outbox::Outbox,
};
use pollux_guestbook::{Answer, StoreError, Template};
use pollux_http::{
    Status,
    request::{Method, Request},
    response::Head,
};

/// Every page is different, so none is stored in a cache.
const NO_STORE: &[u8] = b"Cache-Control: no-store\r\n";

/// The parts of the client's request that a later response needs.
#[derive(Debug)]
pub(super) struct Reader {
    kind: Kind,
    /// The request line, for the log.
    line: Box<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Head,
    Post,
}

impl Reader {
    pub(super) fn of(request: &Request<'_>) -> Self {
        let kind = match request.method {
            Method::Head => Kind::Head,
            Method::Post => Kind::Post,
            _ => Kind::Get,
        };
        Self { kind, line: request.line.into() }
    }

    pub(super) fn is_post(&self) -> bool {
        self.kind == Kind::Post
    }

    /// Answers with a status and a sentence.
    pub(super) fn refuse(
        &self,
        context: &mut RequestContext<'_>,
        outbox: &mut Outbox,
        status: Status,
        reason: &str,
        fields: &[u8],
    ) {
        let fields = [NO_STORE, fields].concat();
        let answer = if status == Status::NoContent {
            Head::new(outbox.bytes(), status)
                .date(context.worker.clock.date())
                .lines(&context.rules.common_fields)
                .lines(&fields)
                .lines(context.keep_alive().line())
                .end();
            Logged { status, len: 0 }
        } else {
            let page = Page { status, reason, fields: &fields };
            page.put(context.rules, context.worker, outbox, self.method(), context.keep_alive())
        };
        context.log(&self.line, answer);
    }

    /// Answers with the result of the store.
    pub(super) fn answer(
        &self,
        context: &mut RequestContext<'_>,
        outbox: &mut Outbox,
        config: &GuestbookConfig,
        template: &Template,
        answer: Result<Answer, StoreError>,
    ) {
        match answer {
            Ok(Answer::Visit { remarks, visitor }) => {
                let mut page = Vec::new();
                template.put_page(&mut page, &remarks, visitor);
                let status = Status::Ok;
                Head::new(outbox.bytes(), status)
                    .date(context.worker.clock.date())
                    .lines(&context.rules.common_fields)
                    .lines(NO_STORE)
                    .lines(context.keep_alive().line())
                    .field("Content-Type", b"text/html; charset=utf-8")
                    .content_length(page.len() as u64)
                    .end();
                let mut len = 0;
                if self.kind != Kind::Head {
                    outbox.bytes().extend_from_slice(&page);
                    len = page.len() as u64;
                }
                context.log(&self.line, Logged { status, len });
            }
            Ok(Answer::Posted) => {
                // A reload of the page after this redirection does not post again.
                let status = Status::SeeOther;
                Head::new(outbox.bytes(), status)
                    .date(context.worker.clock.date())
                    .lines(&context.rules.common_fields)
                    .lines(NO_STORE)
                    .lines(context.keep_alive().line())
                    .field("Location", config.path.as_bytes())
                    .content_length(0)
                    .end();
                context.log(&self.line, Logged { status, len: 0 });
            }
            Err(error) => {
                let seconds = error.retry_after().as_secs();
                let retry = format!("Retry-After: {seconds}\r\n");
                let reason = "the guestbook's store does not answer; please try again";
                let status = Status::ServiceUnavailable;
                self.refuse(context, outbox, status, reason, retry.as_bytes());
            }
        }
    }

    fn method(&self) -> Method<'static> {
        match self.kind {
            Kind::Get => Method::Get,
            Kind::Head => Method::Head,
            Kind::Post => Method::Post,
        }
    }
}

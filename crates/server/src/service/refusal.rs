//! Answers to requests that the service does not begin.

use super::{Adapter, ExchangeTerms, Page, Service};
use crate::{stats::Counter, transport::outbox::Outbox};
use pollux_http::{
    Limits, Reject, Status,
    request::{self, Method, ParseStatus},
};

impl<A: Service> Adapter<'_, A> {
    /// Answers with a page, without the service.
    pub(super) fn answer_with(
        &mut self,
        terms: &mut ExchangeTerms,
        line: &[u8],
        outbox: &mut Outbox,
        page: Page<'_>,
    ) {
        let (_, mut context, mut response) = self.call(terms, outbox);
        let answer = page.put(&context, &mut response);
        context.log(line, answer);
    }

    /// Answers as [`Handler::refused`](crate::protocol::Handler::refused) requires.
    pub(super) fn refuse(
        &mut self,
        reject: &Reject,
        method: Method<'_>,
        head: &[u8],
        outbox: &mut Outbox,
    ) {
        self.worker.counters.add(Counter::Requests, 1);
        self.worker.counters.add(Counter::Malformed, 1);
        let begun_ms = self.worker.clock.elapsed_ms();
        let mut terms = ExchangeTerms::of_refusal(method == Method::Head, begun_ms);
        if reject.status == Status::ContentTooLarge && self.refuse_large(head, &mut terms, outbox) {
            return;
        }
        // Without `Cache-Status`, because no cache was consulted (RFC 9211 §2).
        let page = Page { status: reject.status, reason: reject.reason, fields: b"" };
        self.answer_with(&mut terms, b"-", outbox, page);
    }

    /// Lets the service answer a request with this head, whose content alone is the fault. Returns whether it has done so.
    fn refuse_large(
        &mut self,
        head: &[u8],
        terms: &mut ExchangeTerms,
        outbox: &mut Outbox,
    ) -> bool {
        let limits = Limits { body: u64::MAX, ..self.rules.limits };
        let Ok(ParseStatus::Complete { request, .. }) = request::parse(head, &limits) else {
            return false;
        };
        let (service, mut context, mut response) = self.call(terms, outbox);
        service.refuse_large(&mut context, &request, &mut response)
    }
}

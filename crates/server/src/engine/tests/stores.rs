//! Tests the store of a guestbook on an engine whose mechanism fails.

use super::seam::{FaultAt, Worker, fail};
use crate::service::ResponseWriter;
use crate::{
    config::Store,
    protocol::rules::Rules,
    service::{Event, Flow, Part, RequestContext, Service, ServiceContext},
    services::guestbook::{Guestbook, StoreOpening},
    settings::{GuestbookConfig, Settings},
};
use pollux_http::request::Request;
use pollux_testkit::http::Client;
use std::sync::Arc;

/// A guestbook whose thread cannot notify it: the mechanism accepts no upstream connection the first time.
struct WithoutNotifier {
    guestbook: Guestbook,
    has_failed: bool,
}

impl Service for WithoutNotifier {
    type Exchange = <Guestbook as Service>::Exchange;

    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Self::Exchange> {
        if !std::mem::replace(&mut self.has_failed, true) {
            fail(FaultAt::Add, 1, libc::ENOSPC);
        }
        self.guestbook.begin(context, request, response)
    }
    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Self::Exchange,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Self::Exchange> {
        self.guestbook.body(context, exchange, part, response)
    }
    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Self::Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Self::Exchange> {
        self.guestbook.resume(context, exchange, event, response)
    }
    fn cancel(&mut self, context: &mut RequestContext<'_>, exchange: Self::Exchange) {
        self.guestbook.cancel(context, exchange);
    }
    fn event(&mut self, context: &mut ServiceContext<'_>, event: Event<'_>) {
        self.guestbook.event(context, event);
    }
}

/// Regression: every further request waited for a notifier that was not signalled, until the server was
/// restarted.
#[test]
fn a_store_whose_notifier_is_broken_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::File(directory.path().join("remarks"));
    let guestbook = Arc::new(GuestbookConfig::new("/g", store));
    let open = move |_: &Settings, _: &Rules, _| WithoutNotifier {
        guestbook: Guestbook::open(&guestbook, StoreOpening::Now).unwrap(),
        has_failed: false,
    };
    let worker = Worker::serve(Settings::new("."), open, || ());
    let mut client = Client::connect(worker.address);
    assert_eq!(client.get("/g").status, 503);
    assert_eq!(client.get("/g").status, 200);
    worker.stop().unwrap();
}

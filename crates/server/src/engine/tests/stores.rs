//! The store of a guestbook behind an engine whose mechanism fails.

use super::seam::{FaultAt, Worker, fail};
use crate::{
    config::{Config, GuestbookConfig, Store},
    protocol::rules::Rules,
    service::{Application, Flow, Part, Turn, Wake, World},
    services::guestbook::{Guestbook, Opening},
    transport::outbox::Outbox,
};
use pollux_http::request::Request;
use pollux_testkit::http::Client;
use std::sync::Arc;

/// A guestbook whose thread cannot ring: the mechanism takes no link the first time.
struct WithoutBell {
    guestbook: Guestbook,
    is_told: bool,
}

impl Application for WithoutBell {
    type Exchange = <Guestbook as Application>::Exchange;

    fn begin(
        &mut self,
        turn: &mut Turn<'_>,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange> {
        if !std::mem::replace(&mut self.is_told, true) {
            fail(FaultAt::Add, 1, libc::ENOSPC);
        }
        self.guestbook.begin(turn, request, outbox)
    }
    fn body(
        &mut self,
        turn: &mut Turn<'_>,
        exchange: Self::Exchange,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange> {
        self.guestbook.body(turn, exchange, part, outbox)
    }
    fn resume(
        &mut self,
        turn: &mut Turn<'_>,
        exchange: Self::Exchange,
        wake: Wake<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange> {
        self.guestbook.resume(turn, exchange, wake, outbox)
    }
    fn cancel(&mut self, turn: &mut Turn<'_>, exchange: Self::Exchange) {
        self.guestbook.cancel(turn, exchange);
    }
    fn event(&mut self, world: &mut World<'_>, wake: Wake<'_>) {
        self.guestbook.event(world, wake);
    }
}

/// Before, every further visit waited for a bell that did not ring, until the server was started anew.
#[test]
fn a_store_whose_bell_is_broken_gets_another() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::File(directory.path().join("remarks"));
    let guestbook = Arc::new(GuestbookConfig::new("/g", store));
    let open = move |_: &Config, _: &Rules, _| WithoutBell {
        guestbook: Guestbook::open(&guestbook, Opening::Now).unwrap(),
        is_told: false,
    };
    let worker = Worker::serve(Config::new("."), open, || ());
    let mut client = Client::connect(worker.address);
    assert_eq!(client.get("/g").status, 503);
    assert_eq!(client.get("/g").status, 200);
    worker.stop().unwrap();
}

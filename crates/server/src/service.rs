//! What is answered: the trait of whoever answers, and what it is given.
//!
//! An application never knows which engine or architecture drives it, and an engine never knows
//! which application it drives. It does no I/O on sockets itself: what it needs from elsewhere it
//! asks for through its [`RequestContext`], and is told by a [`Event`].

mod page;
pub(crate) mod worker_state;

pub(crate) use crate::protocol::{ExchangeTerms, Flow, KeepAlive, Part};
pub(crate) use page::Page;

use crate::stats::Counter;
use crate::{
    protocol::{Handler, rules::Rules},
    reactor::{AlarmId, ClientId, ExchangeId, NotTaken, Reactor, UpstreamId},
    service::worker_state::{Answer, WorkerState},
    transport::{listener, outbox::Outbox},
};
use pollux_http::{
    Reject,
    request::{Method, Request},
};
use pollux_hub::subscribers::Delivery;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    ops::Range,
    os::fd::BorrowedFd,
    sync::Arc,
};

/// Answers requests.
///
/// One value serves all connections of one worker. Each call gets a [`RequestContext`] and the outbox of the
/// connection: what is put into it leaves after the call, in the order of the requests. Content of
/// unknown length is framed by the application (`pollux_http::response::chunk`).
pub(crate) trait Service {
    /// The state of an exchange that is not answered at once. Handed over with each call and
    /// handed back in the [`Flow`], so that an exchange that is over has none.
    type Exchange;

    /// A request's head has come. The path of nearly all requests ends here, with [`Flow::Done`].
    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange>;

    /// Some of the body that [`Flow::NeedBody`] asked for.
    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Self::Exchange,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange>;

    /// Something that the exchange waited for has come.
    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Self::Exchange,
        event: Event<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange>;

    /// The exchange has ended without an answer: the client has gone, its time is over, or its
    /// body was malformed.
    fn cancel(&mut self, context: &mut RequestContext<'_>, exchange: Self::Exchange);

    /// Something has come that an errand waited for: an exchange of the application's own, which no
    /// client owns ([`Reactor::begin_background`]). Returns whether it is still there.
    fn background(
        &mut self,
        context: &mut ServiceContext<'_>,
        background: ExchangeId,
        event: Event<'_>,
    ) -> bool {
        let _ = (context, background, event);
        false
    }

    /// Whether [`Service::pump_streams`] has something to do. Called in each pass of the loop.
    #[inline]
    fn has_stream_work(&self) -> bool {
        false
    }

    /// Sends to streams ([`Reactor::stream`]), as much as one call should: other connections wait
    /// meanwhile. `send` says whether the stream took what it was given.
    fn pump_streams(
        &mut self,
        context: &mut ServiceContext<'_>,
        send: impl FnMut(ClientId, StreamSend<'_>) -> Delivery,
    ) {
        let _ = (context, send);
    }

    /// A stream that was full can take more.
    fn stream_has_room(&mut self, number: u32) {
        let _ = number;
    }

    /// The connection of a stream has ended.
    fn stream_has_ended(&mut self, number: u32) {
        let _ = number;
    }

    /// Something that the application itself waited for has come
    /// ([`EventTarget::Service`](crate::reactor::To)): what several exchanges share.
    fn event(&mut self, context: &mut ServiceContext<'_>, event: Event<'_>) {
        let _ = (context, event);
    }
}

/// What is sent to a stream.
#[derive(Clone, Debug)]
pub(crate) enum StreamSend<'a> {
    /// A range of bytes. What the connection does not take at once is kept for it, by reference.
    Bytes(&'a Arc<[u8]>, Range<usize>),
    /// These bytes, if they can be sent at once, and then the end of the connection.
    End(&'a [u8]),
}

/// Why an exchange, or an application, is called again.
#[derive(Debug)]
pub(crate) enum Event<'b> {
    /// The outbox was full when the exchange last had its say, and is low now.
    Room,
    /// The client has closed its side of the connection. It may still read: HTTP lets it close
    /// its side after its last request. It may also have gone: nothing tells until more is sent.
    ClientEnded,
    /// A link is connected.
    Connected(UpstreamId),
    /// Bytes have come on a link. They are all to be taken: to get no more, pause the link.
    Received(UpstreamId, &'b [u8]),
    /// The peer of a link has closed its side. Ours is open still.
    Ended(UpstreamId),
    /// A link was full, and is low now.
    UpstreamRoom(UpstreamId),
    /// A link could not be dialled, or has broken; it is gone.
    Failed(UpstreamId, io::ErrorKind),
    /// An alarm has its time.
    Time(AlarmId),
    /// A name is resolved, or why it is not; with the note of the question.
    Resolved(u64, Result<Vec<SocketAddr>, String>),
    /// The application itself has woken the exchange, with this note.
    Note(u64),
    /// The client could not be handed over.
    NotTaken(NotTaken),
}

/// What an application may do and know in one call.
pub(crate) struct RequestContext<'a> {
    /// What all workers go by.
    pub(crate) rules: &'a Rules,
    /// What this worker has of its own.
    pub(crate) worker: &'a mut WorkerState,
    /// Where to ask for what is elsewhere.
    pub(crate) reactor: &'a mut Reactor,
    client: ClientId,
    socket: Option<BorrowedFd<'a>>,
    terms: &'a mut ExchangeTerms,
}

/// What an application may do and know that is called for itself, and for no exchange.
pub(crate) struct ServiceContext<'a> {
    /// What all workers go by.
    pub(crate) rules: &'a Rules,
    /// What this worker has of its own.
    pub(crate) worker: &'a mut WorkerState,
    /// Where to ask for what is elsewhere.
    pub(crate) reactor: &'a mut Reactor,
}

impl ServiceContext<'_> {
    /// The same call where other rules hold: another site's.
    pub(crate) fn with_rules<'t>(&'t mut self, rules: &'t Rules) -> ServiceContext<'t> {
        ServiceContext { rules, worker: self.worker, reactor: self.reactor }
    }

    /// A call for an errand.
    pub(crate) fn context<'t>(
        &'t mut self,
        background: ExchangeId,
        terms: &'t mut ExchangeTerms,
    ) -> RequestContext<'t> {
        let Self { rules, worker, reactor } = self;
        RequestContext { rules, worker, reactor, client: background.client, socket: None, terms }
    }
}

impl RequestContext<'_> {
    /// The same call where other rules hold: another site's.
    pub(crate) fn with_rules<'t>(&'t mut self, rules: &'t Rules) -> RequestContext<'t> {
        RequestContext { rules, ..self.reborrow() }
    }

    /// The same call, for a shorter time.
    pub(crate) fn reborrow(&mut self) -> RequestContext<'_> {
        let Self { rules, worker, reactor, client, socket, terms } = self;
        RequestContext { rules, worker, reactor, client: *client, socket: *socket, terms }
    }

    /// A call for an errand in this one.
    pub(crate) fn of<'t>(
        &'t mut self,
        background: ExchangeId,
        terms: &'t mut ExchangeTerms,
    ) -> RequestContext<'t> {
        let Self { rules, worker, reactor, .. } = self;
        RequestContext { rules, worker, reactor, client: background.client, socket: None, terms }
    }

    /// Who the exchange is, to be woken or told of something later.
    pub(crate) fn id(&self) -> ExchangeId {
        ExchangeId { client: self.client, number: self.terms.number }
    }

    /// Who the client is: the address at the other end of its connection. None of a UNIX socket.
    /// It costs a system call.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        self.socket.and_then(listener::peer)
    }

    /// What becomes of the connection after the answer: to be said in its head
    /// ([`KeepAlive::line`]).
    #[inline]
    pub(crate) fn keep_alive(&self) -> KeepAlive {
        self.terms.keep_alive
    }

    /// Closes the connection after the answer; to be called before its head is written.
    pub(crate) fn close_after(&mut self) {
        self.terms.keep_alive.alive = false;
    }

    /// Writes a line of the access log, if there is one. `request` is the request line.
    #[inline]
    pub(crate) fn log(&mut self, request: &[u8], answer: Answer) {
        self.worker.log(self.socket, request, answer);
    }

    /// The same with a status that need not be one of ours, and the bytes of content.
    #[inline]
    pub(crate) fn log_code(&mut self, request: &[u8], status: u16, len: u64) {
        self.worker.log_code(self.socket, request, status, len);
    }
}

/// An application, as a connection sees it.
pub(crate) struct Adapter<'a, A> {
    pub(crate) service: &'a mut A,
    pub(crate) rules: &'a Rules,
    pub(crate) worker: &'a mut WorkerState,
    pub(crate) reactor: &'a mut Reactor,
    pub(crate) client: ClientId,
    /// The client's connection, for as long as there is one.
    pub(crate) socket: Option<BorrowedFd<'a>>,
}

impl<A: Service> Adapter<'_, A> {
    #[inline]
    fn context<'t>(&'t mut self, terms: &'t mut ExchangeTerms) -> (&'t mut A, RequestContext<'t>) {
        let Self { service, rules, worker, reactor, client, socket } = self;
        (
            service,
            RequestContext { rules, worker, reactor, client: *client, socket: *socket, terms },
        )
    }

    /// Calls [`Service::resume`]; for [`Iteration::resume`](crate::protocol::Round::resume).
    pub(crate) fn wake(
        &mut self,
        terms: &mut ExchangeTerms,
        exchange: A::Exchange,
        event: Event<'_>,
        outbox: &mut Outbox,
    ) -> Flow<A::Exchange> {
        let (service, mut context) = self.context(terms);
        service.resume(&mut context, exchange, event, outbox)
    }
}

impl<A: Service> Handler for Adapter<'_, A> {
    type Exchange = A::Exchange;

    #[inline]
    fn keeps_connections(&self) -> bool {
        !self.worker.is_stopping
    }

    #[inline]
    fn head(
        &mut self,
        terms: &mut ExchangeTerms,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<A::Exchange> {
        self.worker.counters.add(Counter::Requests, 1);
        let (service, mut context) = self.context(terms);
        service.begin(&mut context, request, outbox)
    }

    fn body(
        &mut self,
        terms: &mut ExchangeTerms,
        exchange: A::Exchange,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<A::Exchange> {
        let (service, mut context) = self.context(terms);
        service.body(&mut context, exchange, part, outbox)
    }

    fn refused(&mut self, reject: &Reject, method: Method<'_>, outbox: &mut Outbox) {
        self.worker.counters.add(Counter::Requests, 1);
        // Without `Cache-Status` also where there is a cache: it has not been asked (RFC 9211 §2).
        let page = Page { status: reject.status, reason: reject.reason, fields: b"" };
        let answer = page.put(self.rules, self.worker, outbox, method, KeepAlive::CLOSE);
        self.worker.log(self.socket, b"-", answer);
    }

    fn cancelled(&mut self, terms: &ExchangeTerms, exchange: A::Exchange) {
        let mut terms = *terms;
        let (service, mut context) = self.context(&mut terms);
        service.cancel(&mut context, exchange);
    }
}

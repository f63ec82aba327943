//! The interface between protocol and services: the trait that a service implements, and the types of its
//! arguments and results.
//!
//! A service never knows which engine, architecture, transport or protocol version drives it, and
//! none of these knows which service it drives. A service does no I/O on sockets. It answers
//! through a [`ResponseWriter`], sets timers and wakes exchanges through the [`Reactor`] of its context, and learns the
//! outcome from an [`Event`]. Connections to other servers, names, hand-over and hub streams are for the services of this
//! crate only: their events never reach another service, which needs a thread of its own to use other servers.
//!
//! # A service in ten lines
//!
//! ```
//! use pollux_server::service::{Flow, Request, RequestContext, ResponseWriter, Service, Status};
//!
//! struct Hello;
//!
//! impl Service for Hello {
//!     type Exchange = ();
//!
//!     fn begin(
//!         &mut self,
//!         context: &mut RequestContext<'_>,
//!         _request: &Request<'_>,
//!         response: &mut ResponseWriter<'_>,
//!     ) -> Flow<()> {
//!         let mut body =
//!             response.head(context, Status::Ok).field("Content-Type", b"text/plain").length(6);
//!         body.data(b"hello\n");
//!         body.end()
//!     }
//! }
//! ```
//!
//! # Later answers and streams
//!
//! A call that cannot finish the response returns [`Flow::Waiting`] with the state of its exchange. The
//! service keeps the [`ExchangeId`] of its context and later calls [`Reactor::wake`]; the exchange is then
//! resumed with [`Event::Woken`]. A stream (server-sent events, a long poll) is the same with a head already
//! written: see [`HeadWriter::stream`] and `examples/clock.rs`. A stream that has nothing to send costs at
//! most 64 bytes beyond its connection, plus the data that the service itself keeps for it.

mod events;
mod page;
mod refusal;
mod response;
pub(crate) mod worker_state;

pub(crate) use crate::protocol::ExchangeTerms;
pub use crate::{
    protocol::{Flow, Part},
    reactor::{
        AlarmId, ClientId, EventTarget, ExchangeId, HandoverError, LookupId, Reactor, ResolveError,
        UpstreamError, UpstreamId, WakeReason,
    },
};
pub use events::{Event, StreamSend};
pub(crate) use page::{ALL_METHODS, Page};
pub use pollux_http::{
    Status,
    request::{Method, Request, Target},
    response::SharedChunk,
};
pub(crate) use response::HeadPosition;
pub use response::{BodyWriter, HeadWriter, PreparedHead, ResponseWriter};

use crate::{
    policy::OriginNumber,
    protocol::{Handler, KeepAlive, rules::Rules},
    service::worker_state::{Answer, WorkerState},
    stats::{Counter, latency},
    transport::{listener, outbox::Outbox, tls},
};
use pollux_http::{Reject, proxy_protocol::Header};
use pollux_hub::subscribers::Delivery;
use std::{borrow::Cow, cell::Cell, net::IpAddr, os::fd::BorrowedFd, sync::Arc, time::Duration};

/// Answers requests.
///
/// One value serves all connections of one worker, and is never called from another thread. The output of a
/// call is sent after the call returns, in the order of the requests on each connection.
pub trait Service {
    /// The state of an exchange that is not answered at once. Each call takes the state and returns it in the
    /// [`Flow`], so a finished exchange has none. Keep it small: each waiting exchange holds its state in
    /// memory.
    type Exchange;

    /// Called when the head of a request has been parsed. Most requests are answered here, with
    /// [`Flow::Done`].
    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Self::Exchange>;

    /// Returns the request line for the log, if the request is refused before [`Service::begin`]. A service whose
    /// targets may contain secrets hides them here. By default it is the line of the request.
    fn log_line<'b>(&self, request: &Request<'b>) -> Cow<'b, [u8]> {
        Cow::Borrowed(request.line)
    }

    /// Called with a request whose content is too long, instead of [`Service::begin`]. Returns whether it is answered; by
    /// default the server answers it.
    fn refuse_large(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> bool {
        let _ = (context, request, response);
        false
    }

    /// Called with each part of the request body that [`Flow::NeedBody`] requested. By default the
    /// body is read and dropped; at its end the exchange waits.
    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Self::Exchange,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Self::Exchange> {
        let _ = (context, response);
        match part {
            Part::Data(_) => Flow::NeedBody(exchange),
            Part::End { .. } => Flow::Waiting(exchange),
        }
    }

    /// Called when an event of a waiting exchange occurs. By default the exchange continues to wait.
    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Self::Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Self::Exchange> {
        let _ = (context, event, response);
        Flow::Waiting(exchange)
    }

    /// Called when an exchange ends without a complete response: the client closed the connection,
    /// a timeout ended it, or the request body was malformed.
    fn cancel(&mut self, context: &mut RequestContext<'_>, exchange: Self::Exchange) {
        let _ = (context, exchange);
    }

    /// Called after an exchange has ended because its connection became a tunnel or went to another process.
    fn exchange_has_left(&mut self, _: &mut ServiceContext<'_>) {}

    /// Called for a background task: an exchange that the service began itself and that has no client.
    /// Returns false if the service has no such task.
    fn background(
        &mut self,
        context: &mut ServiceContext<'_>,
        task: ExchangeId,
        event: Event<'_>,
    ) -> bool {
        let _ = (context, task, event);
        false
    }

    /// Returns whether [`Service::pump_streams`] has work to do. Called in each pass of the loop.
    #[inline]
    fn has_stream_work(&self) -> bool {
        false
    }

    /// Sends data to streams (`Reactor::stream`). Limit the work of one call: other connections wait
    /// meanwhile. `send` returns whether the stream accepted the data.
    fn pump_streams(
        &mut self,
        context: &mut ServiceContext<'_>,
        send: impl FnMut(ClientId, StreamSend<'_>) -> Delivery,
    ) {
        let _ = (context, send);
    }

    /// Called when a stream that was full can accept more data.
    fn stream_has_room(&mut self, number: u32) {
        let _ = number;
    }

    /// Called when the connection of a stream has ended.
    fn stream_has_ended(&mut self, number: u32) {
        let _ = number;
    }

    /// Returns whether streams are handed over to the new process of a live upgrade.
    fn hands_over_streams(&self) -> bool {
        false
    }

    /// Called when this process is about to end: the server stops, or the new process of a live upgrade has taken over.
    /// Exchanges that wait for news should be answered now. The engine wakes those that are parked.
    fn end_waiting(&mut self, context: &mut ServiceContext<'_>) {
        let _ = context;
    }

    /// Releases a stream that another process adopts. Returns the state that [`Service::adopt_stream`] needs
    /// there, or `None` if the stream has to stay in this process.
    fn release_stream(&mut self, number: u32) -> Option<Vec<u8>> {
        let _ = number;
        None
    }

    /// Adopts a stream that another process has released. Returns the number of the stream in this process,
    /// or `None` if this process cannot serve it.
    fn adopt_stream(
        &mut self,
        context: &mut ServiceContext<'_>,
        client: ClientId,
        state: &[u8],
    ) -> Option<u32> {
        let _ = (context, client, state);
        None
    }

    /// Takes the state of an exchange that the engine parks (`Reactor::park`). Returns the number by which
    /// [`Service::unpark`] finds it. By default, and if the exchange cannot be parked, the state is returned.
    fn park(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: Self::Exchange,
    ) -> Result<u32, Self::Exchange> {
        let _ = context;
        Err(exchange)
    }

    /// Returns the state of a parked exchange, which ends its parking. `left` is the number of ticks that are left of the
    /// time for which it was parked.
    fn unpark(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: ExchangeId,
        number: u32,
        left: u32,
    ) -> Option<Self::Exchange> {
        let _ = (context, exchange, number, left);
        None
    }

    /// Called for events whose receiver is [`EventTarget::Service`]: events that concern several exchanges,
    /// such as a timer for all of them.
    fn event(&mut self, context: &mut ServiceContext<'_>, event: Event<'_>) {
        let _ = (context, event);
    }
}

/// The resources that a service may use while it handles an exchange.
pub struct RequestContext<'a> {
    /// The rules, the same for all workers.
    pub(crate) rules: &'a Rules,
    /// This worker's own state.
    pub(crate) worker: &'a mut WorkerState,
    /// Accepts requests for events: timers, wake-ups, upstream connections.
    pub reactor: &'a mut Reactor,
    client: ClientId,
    socket: Option<BorrowedFd<'a>>,
    /// Shared with the [`ResponseWriter`] of the same call.
    terms: &'a Cell<ExchangeTerms>,
}

/// The resources that a service may use in a call that belongs to no exchange.
pub struct ServiceContext<'a> {
    /// The rules, the same for all workers.
    pub(crate) rules: &'a Rules,
    /// This worker's own state.
    pub(crate) worker: &'a mut WorkerState,
    /// Accepts requests for events: timers, wake-ups, upstream connections.
    pub reactor: &'a mut Reactor,
}

impl ServiceContext<'_> {
    /// Returns the context of the same call with the rules of another site.
    pub(crate) fn with_rules<'t>(&'t mut self, rules: &'t Rules) -> ServiceContext<'t> {
        ServiceContext { rules, worker: self.worker, reactor: self.reactor }
    }

    /// Returns the Unix time in whole seconds, as of this iteration of the loop.
    pub fn unix_second(&self) -> u64 {
        self.worker.clock.date().unix_second()
    }

    /// Returns the context of a background task.
    pub(crate) fn context<'t>(
        &'t mut self,
        background: ExchangeId,
        terms: &'t mut ExchangeTerms,
    ) -> RequestContext<'t> {
        let Self { rules, worker, reactor } = self;
        let terms = Cell::from_mut(terms);
        RequestContext { rules, worker, reactor, client: background.client, socket: None, terms }
    }
}

impl<'a> RequestContext<'a> {
    /// Returns a writer to another output for the same exchange.
    pub(crate) fn writer_to<'r>(&self, outbox: &'r mut Outbox) -> ResponseWriter<'r>
    where
        'a: 'r,
    {
        ResponseWriter::new(outbox, self.terms)
    }

    /// Returns the context of the same call with the rules of another site.
    pub(crate) fn with_rules<'t>(&'t mut self, rules: &'t Rules) -> RequestContext<'t> {
        RequestContext { rules, ..self.reborrow() }
    }

    /// Returns the same context with a shorter lifetime.
    pub(crate) fn reborrow(&mut self) -> RequestContext<'_> {
        let Self { rules, worker, reactor, client, socket, terms } = self;
        let (client, socket, terms) = (*client, *socket, *terms);
        RequestContext { rules, worker, reactor, client, socket, terms }
    }

    /// Returns the Unix time in whole seconds, as of this iteration of the loop.
    pub fn unix_second(&self) -> u64 {
        self.worker.clock.date().unix_second()
    }

    /// Returns the context of a background task, within this call.
    pub(crate) fn of<'t>(
        &'t mut self,
        background: ExchangeId,
        terms: &'t mut ExchangeTerms,
    ) -> RequestContext<'t> {
        let Self { rules, worker, reactor, .. } = self;
        let terms = Cell::from_mut(terms);
        RequestContext { rules, worker, reactor, client: background.client, socket: None, terms }
    }

    /// Returns the identifier of this exchange, which names it as the receiver of a later event.
    pub fn id(&self) -> ExchangeId {
        ExchangeId { client: self.client, number: self.terms.get().number }
    }

    /// Returns the address of the client, or `None` for a UNIX socket. Costs at most one system call.
    pub fn peer(&self) -> Option<IpAddr> {
        let known = self.worker.clients.address(self.client.fd);
        known.or_else(|| self.socket.and_then(listener::peer))
    }

    /// Returns the certificate that the client has presented, as the value of `Client-Cert` (RFC 9440).
    pub(crate) fn client_certificate(&self) -> Option<Arc<[u8]>> {
        if !self.rules.requests_client_certificates() {
            return None;
        }
        self.socket.and_then(tls::client_certificate)
    }

    /// Returns the PROXY protocol header for an origin: the addresses of this client's connection.
    pub(crate) fn proxy_header(&self) -> Header {
        let own = self.socket.and_then(listener::own_address);
        let known = self.worker.clients.socket_address(self.client.fd);
        let client = known.or_else(|| self.socket.and_then(listener::peer_address));
        match (client, own) {
            (Some(source), Some(destination)) => Header::Proxied { source, destination },
            // Behind a balancer that connects through a UNIX socket, no other address is known.
            (Some(source), None) => Header::Proxied { source, destination: source },
            (None, _) => Header::Local,
        }
    }

    /// Returns whether the connection continues after the response.
    #[inline]
    pub(crate) fn keep_alive(&self) -> KeepAlive {
        self.terms.get().keep_alive
    }

    /// Notes that the password of the request was for this server, so that it is not sent to origins.
    pub(crate) fn hide_authorization(&mut self) {
        let mut terms = self.terms.get();
        terms.hides_authorization = true;
        self.terms.set(terms);
    }

    /// Returns whether the password of the request is hidden from origins.
    pub(crate) fn hides_authorization(&self) -> bool {
        self.terms.get().hides_authorization
    }

    /// Notes the origin whose scripts may read the response, if the server itself generates the response.
    pub(crate) fn allow_origin(&mut self, origin: Option<OriginNumber>) {
        let mut terms = self.terms.get();
        terms.allowed_origin = origin;
        self.terms.set(terms);
    }

    /// Returns the origin whose scripts may read the response, until the head contains that origin.
    pub(crate) fn allowed_origin(&self) -> Option<OriginNumber> {
        self.terms.get().allowed_origin
    }

    /// Notes the user who sent the request, for the log.
    pub(crate) fn set_user(&mut self, name: &[u8]) {
        if let Some(records) = &mut self.worker.records {
            records.set_user(name);
        }
    }

    /// Closes the connection after the response. Call this before the head is written.
    pub fn close_after(&mut self) {
        let mut terms = self.terms.get();
        terms.keep_alive.alive = false;
        self.terms.set(terms);
    }

    /// Writes a line of the access log, if there is one. `line` is the request line, `bytes` the
    /// length of the content.
    #[inline]
    pub fn log_response(&mut self, line: &[u8], status: u16, bytes: u64) {
        self.count_response(status);
        self.worker.log_code(self.socket, line, status, bytes);
    }

    /// Writes a line of the access log, if there is one. `request` is the request line.
    #[inline]
    pub(crate) fn log(&mut self, request: &[u8], answer: Answer) {
        self.count_response(answer.status);
        self.worker.log(self.socket, request, answer);
    }

    /// Counts a response by its status and its duration. Responses of background tasks are not counted,
    /// because no client waited for them.
    #[inline]
    fn count_response(&mut self, status: u16) {
        if self.client.fd < 0 {
            return;
        }
        let elapsed = self.worker.clock.elapsed_ms().wrapping_sub(self.terms.get().begun_ms);
        latency::record(&self.worker.counters, status, elapsed);
    }
}

/// The view that a connection has of a service.
pub(crate) struct Adapter<'a, A> {
    pub(crate) service: &'a mut A,
    pub(crate) rules: &'a Rules,
    pub(crate) worker: &'a mut WorkerState,
    pub(crate) reactor: &'a mut Reactor,
    pub(crate) client: ClientId,
    /// The socket of the client, as long as it is connected.
    pub(crate) socket: Option<BorrowedFd<'a>>,
}

impl<A: Service> Adapter<'_, A> {
    /// Returns the service and the arguments for one call.
    #[inline]
    fn call<'t>(
        &'t mut self,
        terms: &'t mut ExchangeTerms,
        outbox: &'t mut Outbox,
    ) -> (&'t mut A, RequestContext<'t>, ResponseWriter<'t>) {
        let Self { service, rules, worker, reactor, client, socket } = self;
        let (client, socket, terms) = (*client, *socket, Cell::from_mut(terms));
        let context = RequestContext { rules, worker, reactor, client, socket, terms };
        (service, context, ResponseWriter::new(outbox, terms))
    }

    /// Answers a request of a client that has exceeded its request rate.
    #[cold]
    fn too_many(
        &mut self,
        terms: &mut ExchangeTerms,
        request: &Request<'_>,
        outbox: &mut Outbox,
        wait: Duration,
    ) -> Flow<A::Exchange> {
        self.worker.counters.add(Counter::OverRequestRate, 1);
        let seconds = wait.as_nanos().div_ceil(1_000_000_000);
        let fields = format!("Retry-After: {seconds}\r\n");
        let page = Page {
            status: Status::TooManyRequests,
            reason: "This client sends more requests than this server allows one client.",
            fields: fields.as_bytes(),
        };
        let line = self.service.log_line(request);
        self.answer_with(terms, &line, outbox, page);
        Flow::Done
    }

    /// Calls [`Service::resume`], for [`Iteration::resume`](crate::protocol::Iteration::resume).
    pub(crate) fn wake(
        &mut self,
        terms: &mut ExchangeTerms,
        exchange: A::Exchange,
        event: Event<'_>,
        outbox: &mut Outbox,
    ) -> Flow<A::Exchange> {
        let before = self.resume_record(outbox);
        let (service, mut context, mut response) = self.call(terms, outbox);
        let flow = service.resume(&mut context, exchange, event, &mut response);
        self.leave_record(&flow, outbox, before);
        flow
    }

    /// Makes the waiting request of this connection the present one, to which log lines refer. If the head of
    /// its response still needs the identifier, returns the end of the output, where that head would begin.
    #[inline]
    fn resume_record(&mut self, outbox: &mut Outbox) -> Option<(usize, usize)> {
        let records = self.worker.records.as_mut()?;
        records.resume(self.client.fd);
        records.has_id_to_send().then(|| outbox.end())
    }

    /// Puts the identifier into the head that the call has written, if any. After this call, log lines refer
    /// to no request. `flow` is the result of the service's call.
    #[inline]
    fn leave_record<X>(
        &mut self,
        flow: &Flow<X>,
        outbox: &mut Outbox,
        before: Option<(usize, usize)>,
    ) {
        let Some(records) = &mut self.worker.records else { return };
        if let Some(before) = before
            && let Some((bytes, start)) = outbox.bytes_since(before)
        {
            records.put_id(bytes, start);
        }
        records.leave(self.client.fd, matches!(flow, Flow::Waiting(_) | Flow::NeedBody(_)));
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
        terms.begun_ms = self.worker.clock.elapsed_ms();
        let before = match &mut self.worker.records {
            None => None,
            Some(records) => {
                records.begin(request, terms.begun_ms);
                records.has_id_to_send().then(|| outbox.end())
            }
        };
        if let Some(guard) = &self.rules.guard
            && let Some(address) = self.worker.clients.address(self.client.fd)
            && let Err(wait) = guard.request(address)
        {
            let flow = self.too_many(terms, request, outbox, wait);
            self.leave_record(&flow, outbox, before);
            return flow;
        }
        let (service, mut context, mut response) = self.call(terms, outbox);
        let flow = service.begin(&mut context, request, &mut response);
        self.leave_record(&flow, outbox, before);
        flow
    }

    fn body(
        &mut self,
        terms: &mut ExchangeTerms,
        exchange: A::Exchange,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<A::Exchange> {
        let before = self.resume_record(outbox);
        let (service, mut context, mut response) = self.call(terms, outbox);
        let flow = service.body(&mut context, exchange, part, &mut response);
        self.leave_record(&flow, outbox, before);
        flow
    }

    fn refused(&mut self, reject: &Reject, method: Method<'_>, head: &[u8], outbox: &mut Outbox) {
        self.refuse(reject, method, head, outbox);
    }

    fn cancelled(&mut self, terms: &ExchangeTerms, exchange: A::Exchange) {
        let (mut terms, mut nowhere) = (*terms, Outbox::default());
        self.resume_record(&mut nowhere);
        let (service, mut context, _) = self.call(&mut terms, &mut nowhere);
        service.cancel(&mut context, exchange);
        self.leave_record::<()>(&Flow::Done, &mut nowhere, None);
    }
}

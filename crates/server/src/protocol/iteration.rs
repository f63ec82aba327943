//! One iteration of a connection.

use super::{
    Connection, ExchangeTerms, Flow, Framing, Handler, KeepAlive, Part,
    connection::{ActiveExchange, ConnectionPhase, ConnectionWork, Flags},
};
use crate::{protocol::rules::Rules, transport::outbox::Outbox};
use pollux_http::{
    Reject, Status,
    body::Decoder,
    request::{self, Framing as BodyFraming, Method, ParseStatus, Request},
    response::CONTINUE,
};

/// The maximum number of requests that one iteration answers before other connections are served: to answer
/// a request may mean to open a file.
pub(crate) const REPLIES_A_TURN: u32 = 64;

/// One iteration of a connection, with the worker's scratch outbox.
///
/// # How an engine drives it
///
/// - The engine passes all received bytes to [`Iteration::receive`], and reports the end of the stream to
///   [`Connection::end_of_input`].
/// - The engine sends [`Iteration::output`], and reports the number of sent bytes to
///   [`Iteration::record_sent`].
/// - The engine drops the iteration, which stores unsent output; [`Connection::need`] then says what to do
///   next.
///
/// Any call is allowed at any time: responses are sent in the order of their requests, and no input or
/// output is lost. Input that is received while the connection waits for something else is stored
/// ([`Connection::takes_input`] says for how long that is useful).
#[derive(Debug)]
pub(crate) struct Iteration<'r, X> {
    connection: &'r mut Connection<X>,
    /// The worker's outbox: empty at the beginning, and used only while the connection has no output of its
    /// own.
    scratch: &'r mut Outbox,
}

impl<X> Drop for Iteration<'_, X> {
    #[inline]
    fn drop(&mut self) {
        if !self.scratch.is_empty() || self.connection.ongoing.is_some() {
            self.put_away();
        }
    }
}

impl<'r, X> Iteration<'r, X> {
    #[inline]
    pub(super) fn new(connection: &'r mut Connection<X>, scratch: &'r mut Outbox) -> Self {
        debug_assert!(scratch.is_empty());
        Self { connection, scratch }
    }

    /// Processes received bytes, and answers the requests that they complete.
    #[inline]
    pub(crate) fn receive<H: Handler<Exchange = X>>(
        &mut self,
        rules: &Rules,
        handler: &mut H,
        input: &[u8],
    ) {
        if self.connection.ongoing.is_some() || self.connection.phase != ConnectionPhase::Open {
            return self.receive_more(rules, handler, input);
        }
        let mut at = 0;
        let mut replies = 0;
        while at < input.len() {
            if !self.scratch.takes_more() || replies == REPLIES_A_TURN {
                return self.keep(input[at..].to_vec(), true);
            }
            replies += 1;
            match request::parse(&input[at..], &rules.limits) {
                // The request is borrowed: it has some 300 bytes, which a move would copy.
                Ok(ParseStatus::Complete { ref request, len }) => {
                    at += len;
                    self.begin(rules, handler, request);
                    if self.connection.ongoing.is_some()
                        || self.connection.phase != ConnectionPhase::Open
                    {
                        return self.receive_more(rules, handler, &input[at..]);
                    }
                }
                Ok(ParseStatus::Partial) => return self.keep(input[at..].to_vec(), false),
                Err(reject) => return self.refuse_head(handler, &reject, &input[at..]),
            }
        }
    }

    /// Continues with input that was received before and could not be processed then.
    pub(crate) fn go_on<H: Handler<Exchange = X>>(&mut self, rules: &Rules, handler: &mut H) {
        if self.connection.work().is_some() {
            self.receive_more(rules, handler, b"");
        }
    }

    /// Lets the service continue the exchange that is waiting, if there is one, and then continues with the
    /// requests behind it.
    pub(crate) fn resume<H: Handler<Exchange = X>>(
        &mut self,
        rules: &Rules,
        handler: &mut H,
        call: impl FnOnce(&mut H, &mut ExchangeTerms, X, &mut Outbox) -> Flow<X>,
    ) {
        self.call(handler, call);
        self.go_on(rules, handler);
    }

    /// Returns the output to send now.
    #[inline]
    pub(crate) fn output(&mut self) -> &mut Outbox {
        match self.connection.work_mut() {
            Some(work) if !work.output.is_empty() => &mut work.output,
            _ => self.scratch,
        }
    }

    /// Records that `sent` bytes of output were sent, when not all of it was. Returns whether at least
    /// `step` bytes were sent since this last returned true.
    pub(crate) fn record_sent(&mut self, sent: u64, step: u64) -> bool {
        let work = self.work();
        work.sent += sent;
        work.given += sent;
        let is_progress = work.sent >= step;
        if is_progress {
            work.sent = 0;
        }
        is_progress
    }

    /// Returns whether an exchange that had filled the outbox must now receive an event that there is room
    /// again. Clears the request for the event.
    pub(crate) fn takes_owed_room(&mut self) -> bool {
        if !self.output().is_low() {
            return false;
        }
        let exchange = self.connection.exchange_mut();
        exchange.is_some_and(|exchange| std::mem::take(&mut exchange.is_owed_room))
    }

    /// Handles the timeout of a head or a body. Sends 408 if a request had begun.
    pub(crate) fn on_timeout<H: Handler<Exchange = X>>(&mut self, handler: &mut H) {
        const REASON: &str = "the request did not come in time";
        let reject = Reject { status: Status::RequestTimeout, reason: REASON };
        if let Some(work) = self.connection.work_mut() {
            let input = std::mem::take(&mut work.input);
            let has_body = work.body.is_some();
            work.forget_input();
            if has_body {
                self.refuse_body(handler, &reject);
            } else if input.iter().any(|byte| !byte.is_ascii_whitespace()) {
                self.refuse_head(handler, &reject, &input);
            }
        }
        self.connection.phase = ConnectionPhase::Closing;
    }

    /// Continues [`Iteration::receive`] when an exchange or partial data is present, or the connection is
    /// no longer open.
    #[cold]
    #[inline(never)]
    fn receive_more<H: Handler<Exchange = X>>(
        &mut self,
        rules: &Rules,
        handler: &mut H,
        input: &[u8],
    ) {
        match self.connection.phase {
            ConnectionPhase::Open => {}
            ConnectionPhase::Closing if input.is_empty() => return,
            ConnectionPhase::Closing => return self.connection.flags |= Flags::UNREAD,
            ConnectionPhase::Lingering => return self.work().discarded += input.len() as u64,
        }
        let mut buffer = self
            .connection
            .work_mut()
            .map(|work| std::mem::take(&mut work.input))
            .unwrap_or_default();
        if buffer.is_empty() {
            // Nothing is buffered: the new input is parsed where it is.
            let (at, has_more) = self.run(rules, handler, input);
            self.keep(input[at..].to_vec(), has_more);
        } else {
            buffer.extend_from_slice(input);
            let (at, has_more) = self.run(rules, handler, &buffer);
            buffer.drain(..at);
            self.keep(buffer, has_more);
        }
    }

    /// Stores input that is not processed. `has_more` says whether a further iteration could process more
    /// of it.
    fn keep(&mut self, input: Vec<u8>, has_more: bool) {
        if self.connection.phase != ConnectionPhase::Open {
            if !input.is_empty() {
                self.connection.flags |= Flags::UNREAD;
            }
            return;
        }
        if input.is_empty() && !has_more && self.connection.work().is_none() {
            return;
        }
        let work = self.work();
        work.has_more = has_more;
        work.input = input;
    }

    /// Processes as many of `bytes` as possible. Returns the number of processed bytes, and whether a
    /// further iteration could process more.
    fn run<H: Handler<Exchange = X>>(
        &mut self,
        rules: &Rules,
        handler: &mut H,
        bytes: &[u8],
    ) -> (usize, bool) {
        let mut at = 0;
        let mut replies = 0;
        while self.connection.phase == ConnectionPhase::Open {
            let rest = &bytes[at..];
            if self.connection.exchange().is_some_and(|exchange| !exchange.wants_body) {
                return (at, false);
            }
            if let Some(body) = self.connection.work().and_then(|work| work.body.as_ref()) {
                if body.is_done() {
                    self.end_body(handler);
                } else if rest.is_empty() {
                    return (at, false);
                } else {
                    at += self.read_body(rules, handler, rest);
                }
                continue;
            }
            if rest.is_empty() {
                return (at, false);
            }
            if replies == REPLIES_A_TURN || !self.output().takes_more() {
                return (at, true);
            }
            replies += 1;
            match self.work().resume.parse(rest, &rules.limits) {
                Ok(ParseStatus::Complete { request, len }) => {
                    self.begin(rules, handler, &request);
                    at += len;
                }
                Ok(ParseStatus::Partial) => return (at, false),
                Err(reject) => {
                    self.refuse_head(handler, &reject, rest);
                    at = bytes.len();
                }
            }
        }
        (at, false)
    }

    /// Begins an exchange for a request.
    #[inline]
    fn begin<H: Handler<Exchange = X>>(
        &mut self,
        rules: &Rules,
        handler: &mut H,
        request: &Request<'_>,
    ) {
        let connection = &mut *self.connection;
        connection.requests = connection.requests.saturating_add(1);
        // What follows a refused CONNECT may be meant for a tunnel: to read it as requests would let other
        // programs write requests in the client's name (RFC 9931). No service opens a tunnel.
        let alive = request.keep_alive
            && request.method != Method::Connect
            && handler.keeps_connections()
            && connection.requests < rules.max_requests;
        let mut terms = ExchangeTerms {
            remaining: 0,
            number: connection.requests,
            begun_ms: 0,
            framing: Framing::None,
            keep_alive: KeepAlive { alive, version: request.version },
            hides_authorization: false,
            allowed_origin: None,
            is_head: request.method == Method::Head,
            wants_more: request.keep_alive,
            expects_continue: request.expect_continue,
        };
        let flow = handler.head(&mut terms, request, self.output());
        if matches!(flow, Flow::Done) && request.framing == BodyFraming::None {
            if !terms.keep_alive.alive {
                self.close_after(&terms);
            }
            return;
        }
        self.follow_head(flow, terms, request.framing);
    }

    #[cold]
    #[inline(never)]
    fn follow_head(&mut self, flow: Flow<X>, terms: ExchangeTerms, framing: BodyFraming) {
        if framing != BodyFraming::None || matches!(flow, Flow::NeedBody(_)) {
            self.work().body = Some(Decoder::with_trailers(framing));
        }
        self.follow(flow, terms);
    }

    /// Acts on the service's result.
    fn follow(&mut self, flow: Flow<X>, mut terms: ExchangeTerms) {
        let (state, is_for_body) = match flow {
            Flow::Done => return self.end_exchange(&terms),
            Flow::Cut => {
                terms.keep_alive.alive = false;
                self.connection.flags.insert(Flags::CUT);
                return self.end_exchange(&terms);
            }
            Flow::NeedBody(state) => (state, true),
            Flow::Waiting(state) => (state, false),
        };
        // After the head of a final response, 100 Continue would be read as a part of its content.
        if is_for_body
            && std::mem::take(&mut terms.expects_continue)
            && terms.framing == Framing::None
        {
            self.output().bytes().extend_from_slice(CONTINUE);
        }
        let is_owed_room = self.output().is_full();
        // If the body is complete, the service cannot receive more of it: the exchange then waits to be
        // woken.
        let wants_body =
            is_for_body && self.connection.work().is_some_and(|work| work.body.is_some());
        self.connection.ongoing.get_or_insert_default().exchange =
            Some(ActiveExchange { state, terms, wants_body, is_owed_room });
    }

    /// Ends an exchange whose response is complete, or was cut.
    fn end_exchange(&mut self, terms: &ExchangeTerms) {
        let has_body = self.connection.work().is_some_and(|work| work.body.is_some());
        // Nothing shows whether a body that was only announced will follow (RFC 9110 §10.1.1).
        if !terms.keep_alive.alive || has_body && terms.expects_continue {
            self.close_after(terms);
            if has_body {
                self.connection.flags |= Flags::UNREAD;
            }
        }
    }

    #[inline]
    fn close_after(&mut self, terms: &ExchangeTerms) {
        self.connection.phase = ConnectionPhase::Closing;
        // A client that received 100 (Continue) may have sent more by now.
        self.connection.flags.set(Flags::UNREAD, terms.wants_more);
        self.connection.flags.set(Flags::UNFRAMED, terms.framing == Framing::Close);
        if let Some(work) = self.connection.work_mut() {
            let has_input = !work.input.is_empty();
            work.forget_input();
            if has_input {
                self.connection.flags |= Flags::UNREAD;
            }
        }
    }

    /// Passes a part of the body to the service, or discards it. Returns the number of bytes.
    fn read_body<H: Handler<Exchange = X>>(
        &mut self,
        rules: &Rules,
        handler: &mut H,
        bytes: &[u8],
    ) -> usize {
        let Some(body) = &mut self.work().body else { return 0 };
        match body.decode(bytes, &rules.limits) {
            Ok(step) => {
                self.work().received += step.consumed as u64;
                if !step.data.is_empty() {
                    let bytes = &bytes[step.data];
                    self.call(handler, |handler, terms, state, outbox| {
                        handler.body(terms, state, Part::Data(bytes), outbox)
                    });
                }
                step.consumed
            }
            Err(reject) => {
                self.refuse_body(handler, &reject);
                bytes.len()
            }
        }
    }

    /// Ends the request's body, which is complete.
    fn end_body<H: Handler<Exchange = X>>(&mut self, handler: &mut H) {
        let Some(body) = self.work().body.take() else { return };
        let trailers = body.trailers();
        self.call(handler, |handler, terms, state, outbox| {
            handler.body(terms, state, Part::End { trailers }, outbox)
        });
    }

    /// Calls the service for the exchange in progress, if there is one.
    fn call<H: Handler<Exchange = X>>(
        &mut self,
        handler: &mut H,
        call: impl FnOnce(&mut H, &mut ExchangeTerms, X, &mut Outbox) -> Flow<X>,
    ) {
        let Some(running) = self.connection.ongoing.as_mut().and_then(|o| o.exchange.take()) else {
            return;
        };
        let ActiveExchange { state, mut terms, .. } = running;
        let flow = call(handler, &mut terms, state, self.output());
        self.follow(flow, terms);
    }

    /// Refuses input that is no valid request, or a request that is not accepted.
    #[cold]
    fn refuse_head<H: Handler<Exchange = X>>(
        &mut self,
        handler: &mut H,
        reject: &Reject,
        head: &[u8],
    ) {
        self.connection.requests = self.connection.requests.saturating_add(1);
        let method = if request::is_head(head) { Method::Head } else { Method::Get };
        self.refuse(handler, reject, method, head);
    }

    /// Ends the exchange because its body is malformed or does not arrive. Sends a refusal if no part of a
    /// response has been written.
    #[cold]
    fn refuse_body<H: Handler<Exchange = X>>(&mut self, handler: &mut H, reject: &Reject) {
        let exchange = self.connection.ongoing.as_mut().and_then(|o| o.exchange.take());
        if let Some(exchange) = exchange {
            handler.cancelled(&exchange.terms, exchange.state);
            // Nothing of the final response is written; an interim reply may be.
            if exchange.terms.framing == Framing::None {
                let method = if exchange.terms.is_head { Method::Head } else { Method::Get };
                return self.refuse(handler, reject, method, b"");
            }
        }
        self.connection.phase = ConnectionPhase::Closing;
        self.connection.flags |= Flags::UNREAD;
    }

    fn refuse<H: Handler<Exchange = X>>(
        &mut self,
        handler: &mut H,
        reject: &Reject,
        method: Method<'_>,
        head: &[u8],
    ) {
        handler.refused(reject, method, head, self.output());
        self.connection.phase = ConnectionPhase::Closing;
        self.connection.flags |= Flags::UNREAD;
    }

    fn work(&mut self) -> &mut ConnectionWork {
        self.connection.ongoing.get_or_insert_default().work.get_or_insert_default()
    }

    /// Stores unsent output, and frees the memory of completed work.
    #[cold]
    fn put_away(&mut self) {
        if !self.scratch.is_empty() {
            let rest = self.scratch.take_rest();
            // The scratch outbox is used only while the connection's own outbox is empty.
            self.work().output = rest;
        }
        if self.connection.phase != ConnectionPhase::Open
            && let Some(work) = self.connection.work_mut()
        {
            work.forget_input();
        }
        self.connection.tidy();
    }
}

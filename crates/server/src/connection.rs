//! One connection's protocol, without I/O: bytes in, output out, and what to wait for next.
//!
//! The engine, whichever it is, receives and sends; here is decided what. An idle connection is
//! 16 bytes; it owns memory (an [`Exchange`]) only while a request or a response is partial.
//!
//! # How an engine drives it
//!
//! - Received bytes go to [`Connection::receive`], which fills the engine's scratch [`Outbox`] and
//!   says how many bytes it dealt with: fewer than all when the outbox is full. Send the outbox,
//!   then offer the rest again.
//! - When a send blocks, [`Connection::park`] keeps what is left to send and the input not yet
//!   dealt with. When the peer takes more, send [`Connection::take_parked`], and once all of it has
//!   left call [`Connection::receive`] without bytes to go on with the input.
//! - At the end of the stream [`Connection::end_of_input`].
//! - After all was sent, [`Connection::next_step`] says what to do.
//!
//! # Bodies
//!
//! No resource here reads one, but a request is answered only when all of it has come: then what
//! is malformed behind the head is refused like any other malformed request, and how the input was
//! cut makes no difference. The head is kept meanwhile, the body is not.

use crate::{handler, outbox::Outbox, service::Service, table::Class};
use pollux_http::{
    Reject, Status,
    body::Decoder,
    request::{self, Framing, Method, Parsed, Request, Resume},
    response::CONTINUE,
};

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct State: u8 {
        /// No further request is taken; when the output is gone, the connection ends.
        const CLOSING = 1;
        /// The peer may still be sending: closing at once would turn into a reset, which can
        /// overtake the response (RFC 9112 §9.6).
        const UNREAD = 1 << 1;
        /// We have closed our side and wait for the peer to close his.
        const LINGERING = 1 << 2;
        /// The peer has closed his side.
        const INPUT_ENDED = 1 << 3;
    }
}

/// What a connection is to the protocol.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    exchange: Option<Box<Exchange>>,
    /// Requests answered.
    requests: u32,
    state: State,
}

/// A request or a response that is partial.
#[derive(Debug, Default)]
struct Exchange {
    /// Input not yet dealt with: a part of a head, or requests that wait for output to leave.
    input: Vec<u8>,
    /// How far `input` has been looked at.
    resume: Resume,
    /// The body that is being read past.
    body: Option<Decoder>,
    /// The head of the request that has it.
    head: Vec<u8>,
    /// `input` holds requests that could be answered but for the output before them.
    waits_for_output: bool,
    /// What a send did not take.
    output: Outbox,
    /// Octets of `output` that the peer has taken since the send timeout began.
    sent: u64,
    /// Octets discarded while lingering.
    discarded: u64,
}

/// The most input that is read and thrown away after the last response, so that the peer can read
/// it before he is reset.
const LINGER_BYTES: u64 = 4 << 20;

/// What to do when all output is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Receive.
    Receive,
    /// Close our side, receive until the peer closes his.
    Linger,
    /// Close.
    Close,
}

impl Connection {
    /// Takes received bytes and answers the requests in them into `outbox`. Returns how many bytes
    /// are dealt with; the others are to be offered again when the outbox has been sent.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        service: &mut Service,
        outbox: &mut Outbox,
        input: &[u8],
    ) -> usize {
        if self.exchange.is_some() || !self.state.is_empty() {
            return self.receive_more(service, outbox, input);
        }
        let mut at = 0;
        while at < input.len() && outbox.takes_more() {
            match request::parse(&input[at..], &service.limits) {
                // Borrowed: a request is some 300 bytes, and to move it out would copy them.
                Ok(Parsed::Complete { ref request, len }) => {
                    self.take(service, outbox, request, &input[at..at + len]);
                    at += len;
                    if self.exchange.is_some() || !self.state.is_empty() {
                        return at + self.receive_more(service, outbox, &input[at..]);
                    }
                }
                Ok(Parsed::Partial) => {
                    self.exchange().input = input[at..].to_vec();
                    return input.len();
                }
                Err(reject) => {
                    self.refuse(service, outbox, &reject, &input[at..]);
                    return input.len();
                }
            }
        }
        at
    }

    /// As [`Connection::receive`], where something is partial or over.
    #[cold]
    #[inline(never)]
    fn receive_more(&mut self, service: &mut Service, outbox: &mut Outbox, input: &[u8]) -> usize {
        if self.state.contains(State::LINGERING) {
            self.exchange().discarded += input.len() as u64;
            return input.len();
        }
        if self.state.contains(State::CLOSING) {
            if !input.is_empty() {
                self.state |= State::UNREAD;
            }
            return input.len();
        }
        let mut buffer = std::mem::take(&mut self.exchange().input);
        if buffer.is_empty() {
            // Nothing is waiting: what comes can be taken from where it is.
            let at = self.take_requests(service, outbox, input);
            if !outbox.takes_more() || self.state.contains(State::CLOSING) {
                self.tidy();
                return if self.state.contains(State::CLOSING) { input.len() } else { at };
            }
            buffer.extend_from_slice(&input[at..]);
        } else {
            buffer.extend_from_slice(input);
            let at = self.take_requests(service, outbox, &buffer);
            buffer.drain(..at);
        }
        if self.state.contains(State::CLOSING) {
            self.state.set(State::UNREAD, self.state.contains(State::UNREAD) || !buffer.is_empty());
        } else {
            let exchange = self.exchange();
            exchange.waits_for_output = !outbox.takes_more() && !buffer.is_empty();
            exchange.input = buffer;
        }
        self.tidy();
        input.len()
    }

    /// Whether requests are kept that waited for output to leave: offer more input, or none, to
    /// [`Connection::receive`] to go on with them.
    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| exchange.waits_for_output)
    }

    /// Reads bodies past and answers requests, as many as `bytes` has and `outbox` takes. Returns
    /// how many bytes are dealt with; what is left, if the outbox takes more, is partial.
    fn take_requests(&mut self, service: &mut Service, outbox: &mut Outbox, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && outbox.takes_more() && !self.state.contains(State::CLOSING) {
            let exchange = self.exchange();
            if let Some(body) = &mut exchange.body {
                match body.decode(&bytes[at..], &service.limits) {
                    Ok(step) => {
                        at += step.consumed;
                        if step.done {
                            self.end_body(service, outbox);
                        } else if step.consumed == 0 {
                            break;
                        }
                    }
                    Err(reject) => {
                        let head = std::mem::take(&mut exchange.head);
                        exchange.body = None;
                        self.refuse(service, outbox, &reject, &head);
                        at = bytes.len();
                    }
                }
                continue;
            }
            match exchange.resume.parse(&bytes[at..], &service.limits) {
                Ok(Parsed::Complete { request, len }) => {
                    self.take(service, outbox, &request, &bytes[at..at + len]);
                    at += len;
                }
                Ok(Parsed::Partial) => break,
                Err(reject) => {
                    self.refuse(service, outbox, &reject, &bytes[at..]);
                    at = bytes.len();
                }
            }
        }
        at
    }

    /// Takes a request, whose head has these octets: answers it, or reads its body first.
    #[inline]
    fn take(
        &mut self,
        service: &mut Service,
        outbox: &mut Outbox,
        request: &Request<'_>,
        head: &[u8],
    ) {
        self.requests = self.requests.saturating_add(1);
        if request.framing == Framing::None {
            self.answer(service, outbox, request);
        } else {
            self.begin_body(service, outbox, request, head);
        }
    }

    #[inline]
    fn answer(&mut self, service: &mut Service, outbox: &mut Outbox, request: &Request<'_>) {
        let keep =
            request.keep_alive && !service.is_stopping && self.requests < service.max_requests;
        if !handler::answer(service, outbox, request, keep) {
            self.state |= State::CLOSING;
            // Who asked to go on may have sent more by now.
            self.state.set(State::UNREAD, request.keep_alive);
        }
    }

    #[cold]
    fn begin_body(
        &mut self,
        service: &mut Service,
        outbox: &mut Outbox,
        request: &Request<'_>,
        head: &[u8],
    ) {
        if request.expect_continue {
            if !handler::wants_body(request) {
                self.answer(service, outbox, request);
                self.state |= State::UNREAD;
                return;
            }
            outbox.bytes().extend_from_slice(CONTINUE);
        }
        let exchange = self.exchange();
        exchange.body = Some(Decoder::new(request.framing));
        exchange.head = head.to_vec();
    }

    /// The whole body has come.
    fn end_body(&mut self, service: &mut Service, outbox: &mut Outbox) {
        let exchange = self.exchange();
        exchange.body = None;
        let head = std::mem::take(&mut exchange.head);
        match request::parse(&head, &service.limits) {
            Ok(Parsed::Complete { request, .. }) => self.answer(service, outbox, &request),
            // It was parsed before; should it be none now, nothing sensible can be said.
            _ => self.state |= State::CLOSING | State::UNREAD,
        }
    }

    /// Answers that `request`, the first octets of it at least, is not taken.
    #[cold]
    fn refuse(
        &mut self,
        service: &mut Service,
        outbox: &mut Outbox,
        reject: &Reject,
        request: &[u8],
    ) {
        self.requests = self.requests.saturating_add(1);
        let method = if request::is_head(request) { Method::Head } else { Method::Get };
        handler::refuse(service, outbox, reject, method);
        self.state |= State::CLOSING | State::UNREAD;
    }

    /// The time for the head or the body is over. Says so if a request had begun.
    pub(crate) fn give_up_waiting(&mut self, service: &mut Service, outbox: &mut Outbox) {
        let begun = self.exchange.as_mut().and_then(|exchange| {
            let is_begun =
                exchange.body.is_some() || exchange.input.iter().any(|b| !b.is_ascii_whitespace());
            let head =
                if exchange.body.is_some() { &mut exchange.head } else { &mut exchange.input };
            is_begun.then(|| std::mem::take(head))
        });
        if let Some(request) = begun {
            const REASON: &str = "the request did not come in time";
            let reject = Reject { status: Status::RequestTimeout, reason: REASON };
            self.refuse(service, outbox, &reject, &request);
            self.drop_input();
        }
        self.state |= State::CLOSING;
    }

    /// The peer has closed his side. What he asked before is still answered.
    pub(crate) fn end_of_input(&mut self) {
        self.state |= State::INPUT_ENDED;
        if !self.has_output() {
            // Whatever is kept can never become whole.
            self.state |= State::CLOSING;
        }
    }

    /// Keeps what is left in `outbox`, and `input` which is not yet dealt with.
    pub(crate) fn park(&mut self, outbox: &mut Outbox, input: &[u8]) {
        let rest = outbox.take_rest();
        let exchange = self.exchange();
        exchange.output = rest;
        exchange.waits_for_output |= !input.is_empty();
        exchange.input.extend_from_slice(input);
    }

    /// What was kept to be sent. Give back what does not leave with [`Connection::put_parked`].
    pub(crate) fn take_parked(&mut self) -> Outbox {
        let parked = self.exchange.as_mut().map(|exchange| std::mem::take(&mut exchange.output));
        self.tidy();
        parked.unwrap_or_default()
    }

    /// Keeps on what has not left, after `sent` octets have. Returns whether the peer has taken
    /// `step` octets since that was last so.
    pub(crate) fn put_parked(&mut self, parked: Outbox, sent: u64, step: u64) -> bool {
        let exchange = self.exchange();
        exchange.output = parked;
        exchange.sent += sent;
        let is_progress = exchange.sent >= step;
        if is_progress {
            exchange.sent = 0;
        }
        is_progress
    }

    /// Whether output is kept.
    #[inline]
    pub(crate) fn has_output(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| !exchange.output.is_empty())
    }

    /// What to do now that all output is gone.
    #[inline]
    pub(crate) fn next_step(&self) -> Step {
        if self.state.is_empty() {
            return Step::Receive;
        }
        self.last_step()
    }

    fn last_step(&self) -> Step {
        if self.state.contains(State::LINGERING) {
            let discarded = self.exchange.as_ref().map_or(0, |exchange| exchange.discarded);
            let ended = self.state.contains(State::INPUT_ENDED);
            return if ended || discarded > LINGER_BYTES { Step::Close } else { Step::Receive };
        }
        if self.state.contains(State::INPUT_ENDED) {
            return Step::Close;
        }
        match (self.state.contains(State::CLOSING), self.state.contains(State::UNREAD)) {
            (true, true) => Step::Linger,
            (true, false) => Step::Close,
            (false, _) => Step::Receive,
        }
    }

    /// Our side has been closed: from now on input is discarded.
    pub(crate) fn linger(&mut self) {
        self.state |= State::LINGERING;
        self.drop_input();
    }

    /// What the connection waits for, while it has no output.
    #[inline]
    pub(crate) fn class(&self) -> Class {
        if self.state.contains(State::LINGERING) {
            Class::Linger
        } else if self.has_output() {
            Class::Send
        } else if self.exchange.is_some() || self.requests == 0 {
            Class::Header
        } else {
            Class::KeepAlive
        }
    }

    /// Whether nothing is under way: no part of a request, no part of a response.
    pub(crate) fn is_idle(&self) -> bool {
        self.exchange.is_none() && self.state.is_empty()
    }

    /// Requests answered so far.
    #[inline]
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    fn exchange(&mut self) -> &mut Exchange {
        self.exchange.get_or_insert_default()
    }

    fn drop_input(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.input = Vec::new();
            exchange.body = None;
            exchange.head = Vec::new();
        }
    }

    /// Gives the memory back when nothing is partial.
    fn tidy(&mut self) {
        let is_over = self.exchange.as_ref().is_some_and(|exchange| {
            exchange.input.is_empty() && exchange.body.is_none() && exchange.output.is_empty()
        });
        if is_over && !self.state.contains(State::LINGERING) {
            self.exchange = None;
        }
    }
}

#[cfg(test)]
mod tests;

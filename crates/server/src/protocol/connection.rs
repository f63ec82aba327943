//! The state of a connection between two iterations, and what it needs next.

use super::{ExchangeTerms, Framing, Handler, Iteration};
use crate::{config::RECEIVE_PROGRESS_BYTES, stats::census::Busy, transport::outbox::Outbox};
use pollux_http::{body::Decoder, request::HeadParser};

/// The maximum number of bytes of input that are read and discarded after the last response, so that the
/// peer can read the response before its connection is reset.
const LINGER_BYTES: u64 = 4 << 20;

/// The maximum number of bytes of input that are buffered behind a request that is not answered yet. Input
/// is read then only to notice the end of the client's stream.
const BUFFERED_INPUT_MAX: usize = 16 << 10;

/// The state of a connection. Between requests it has 16 bytes and owns no heap memory.
#[derive(Debug)]
pub(crate) struct Connection<X> {
    pub(super) ongoing: Option<Box<ExchangeMemory<X>>>,
    /// The number of requests received.
    pub(super) requests: u32,
    pub(super) phase: ConnectionPhase,
    pub(super) flags: Flags,
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    /// Requests are accepted.
    Open,
    /// No further request is accepted; the connection ends when all output was sent.
    Closing,
    /// This side has closed its direction and waits for the peer to close the other.
    Lingering,
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Flags: u8 {
        /// The peer may still be sending. Closing at once would cause a reset, which can overtake the
        /// response (RFC 9112 §9.6).
        const UNREAD = 1;
        /// The peer has closed its side.
        const INPUT_ENDED = 1 << 1;
        /// The last response is incomplete, and the connection's end must not make it look complete.
        const CUT = 1 << 2;
        /// Only the end of the connection ends the content of the last response.
        const UNFRAMED = 1 << 3;
    }
}

/// The memory that a connection owns while an exchange is in progress. An exchange that only waits, such as
/// a stream that has nothing to send, has no more than this.
#[derive(Debug)]
pub(super) struct ExchangeMemory<X> {
    /// The exchange.
    pub(super) exchange: Option<ActiveExchange<X>>,
    /// Partial input and unsent output.
    pub(super) work: Option<Box<ConnectionWork>>,
    _busy: Busy,
}

/// Parts of requests and responses that could not be processed at once.
#[derive(Debug)]
pub(super) struct ConnectionWork {
    /// Input that is not processed yet: a part of a head, or input that must wait.
    pub(super) input: Vec<u8>,
    /// The state of the parser, which has read a part of `input`.
    pub(super) resume: HeadParser,
    /// Whether `input` contains requests that only wait until earlier output was sent or other connections
    /// were served.
    pub(super) has_more: bool,
    /// The decoder of the request's body, which is incomplete; the body may be read only to discard it.
    pub(super) body: Option<Decoder>,
    /// The number of bytes of the body that were received since [`Connection::takes_progress`] last
    /// returned true.
    pub(super) received: u64,
    /// Output that was not sent yet.
    pub(super) output: Outbox,
    /// The number of bytes of `output` that were sent since the send timeout began.
    pub(super) sent: u64,
    /// The number of bytes of output that the kernel held at the last call of [`Connection::has_taken`],
    /// and the number given to it since.
    pub(super) held: Option<u64>,
    pub(super) given: u64,
    /// The number of bytes discarded while lingering.
    pub(super) discarded: u64,
}

/// An exchange that was not answered at once.
#[derive(Debug)]
pub(super) struct ActiveExchange<X> {
    pub(super) state: X,
    pub(super) terms: ExchangeTerms,
    /// Whether the exchange receives the parts of the request's body as they arrive.
    pub(super) wants_body: bool,
    /// Whether the outbox was full after the last call: the exchange then receives an event when the outbox
    /// is low.
    pub(super) is_owed_room: bool,
}

/// What a connection needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Bytes from the peer.
    Receive(Awaits),
    /// The output must be sent ([`Iteration::output`]). Input may be received meanwhile.
    Send,
    /// The service must continue ([`Iteration::resume`]). Input may be received meanwhile, for as long as
    /// [`Connection::takes_input`] returns true.
    Service,
    /// Another iteration, after other connections were served ([`Iteration::go_on`]).
    Requeue,
    /// This side's direction must be closed, followed by [`Connection::linger`].
    Linger,
    /// The connection must be closed.
    Close,
}

/// The input that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaits {
    /// The first request, or the rest of one that has begun.
    Request,
    /// The next request.
    Next,
    /// The end of the stream, after this side has closed its direction.
    End,
}

impl<X> Default for Connection<X> {
    fn default() -> Self {
        Self { ongoing: None, requests: 0, phase: ConnectionPhase::Open, flags: Flags::empty() }
    }
}

impl Default for ConnectionWork {
    fn default() -> Self {
        Self {
            input: Vec::new(),
            resume: HeadParser::new(),
            has_more: false,
            body: None,
            received: 0,
            output: Outbox::default(),
            sent: 0,
            held: None,
            given: 0,
            discarded: 0,
        }
    }
}

impl<X> Default for ExchangeMemory<X> {
    fn default() -> Self {
        Self { exchange: None, work: None, _busy: Busy::default() }
    }
}

impl<X> Connection<X> {
    /// Returns the exchange in progress.
    pub(super) fn exchange(&self) -> Option<&ActiveExchange<X>> {
        self.ongoing.as_ref()?.exchange.as_ref()
    }

    /// Returns the exchange in progress.
    pub(super) fn exchange_mut(&mut self) -> Option<&mut ActiveExchange<X>> {
        self.ongoing.as_mut()?.exchange.as_mut()
    }

    /// Returns the partial input and unsent output.
    pub(super) fn work(&self) -> Option<&ConnectionWork> {
        self.ongoing.as_ref()?.work.as_deref()
    }

    /// Returns the partial input and unsent output.
    pub(super) fn work_mut(&mut self) -> Option<&mut ConnectionWork> {
        self.ongoing.as_mut()?.work.as_deref_mut()
    }

    /// Begins an iteration. Output that is not sent before it ends, in `scratch` too, is stored in the
    /// connection.
    #[inline]
    pub(crate) fn iteration<'r>(&'r mut self, scratch: &'r mut Outbox) -> Iteration<'r, X> {
        Iteration::new(self, scratch)
    }

    /// Records that the peer has closed its side. Requests that it sent before are still answered.
    pub(crate) fn end_of_input(&mut self) {
        self.flags |= Flags::INPUT_ENDED;
    }

    /// Returns whether the peer has closed its side.
    pub(crate) fn has_ended(&self) -> bool {
        self.flags.contains(Flags::INPUT_ENDED)
    }

    /// Returns whether there is room for more input while the connection waits for something else.
    pub(crate) fn takes_input(&self) -> bool {
        !self.has_ended() && self.work().is_none_or(|work| work.input.len() < BUFFERED_INPUT_MAX)
    }

    /// Returns what the connection needs next, after all output of the iteration was sent or stored.
    #[inline]
    pub(crate) fn need(&self) -> Need {
        if self.ongoing.is_none() && self.phase == ConnectionPhase::Open && self.flags.is_empty() {
            let awaits = if self.requests == 0 { Awaits::Request } else { Awaits::Next };
            return Need::Receive(awaits);
        }
        self.special_need()
    }

    #[cold]
    fn special_need(&self) -> Need {
        let work = self.work();
        if work.is_some_and(|work| !work.output.is_empty()) {
            return Need::Send;
        }
        let ended = self.has_ended();
        match self.phase {
            ConnectionPhase::Closing if ended || !self.flags.contains(Flags::UNREAD) => Need::Close,
            // To close this side's direction first would look like the end of the response.
            ConnectionPhase::Closing if self.needs_reset() => Need::Close,
            ConnectionPhase::Closing => Need::Linger,
            ConnectionPhase::Lingering => {
                let discarded = work.map_or(0, |work| work.discarded);
                if ended || discarded > LINGER_BYTES {
                    Need::Close
                } else {
                    Need::Receive(Awaits::End)
                }
            }
            ConnectionPhase::Open => match work {
                _ if self.exchange().is_some_and(|exchange| !exchange.wants_body) => Need::Service,
                Some(work) if work.has_more => Need::Requeue,
                // The stored input can never become complete.
                _ if ended => Need::Close,
                _ => Need::Receive(Awaits::Request),
            },
        }
    }

    /// Discards input from now on, after this side has closed its direction.
    pub(crate) fn linger(&mut self) {
        self.phase = ConnectionPhase::Lingering;
        if let Some(work) = self.work_mut() {
            work.forget_input();
        }
    }

    /// Cancels the exchange in progress, because the connection is about to end.
    pub(crate) fn abandon<H: Handler<Exchange = X>>(&mut self, handler: &mut H) {
        if let Some(ongoing) = &mut self.ongoing
            && let Some(exchange) = ongoing.exchange.take()
        {
            handler.cancelled(&exchange.terms, exchange.state);
        }
    }

    /// Returns whether the exchange with this number is still waiting for something.
    pub(crate) fn is_running(&self, number: u32) -> bool {
        self.exchange().is_some_and(|exchange| exchange.terms.number == number)
    }

    /// Returns whether the peer has acknowledged `step` bytes since the last call; true at the first call.
    /// `unacknowledged` is the number of bytes that the kernel still holds for the peer.
    pub(crate) fn has_taken(&mut self, unacknowledged: u64, step: u64) -> bool {
        let Some(work) = self.work_mut() else { return false };
        let given = work.held.map(|held| held + work.given);
        work.held = Some(unacknowledged);
        work.given = 0;
        given.is_none_or(|given| given.saturating_sub(unacknowledged) >= step)
    }

    /// Returns whether [`RECEIVE_PROGRESS_BYTES`] of a body have arrived since this last returned true. A
    /// body may be as long as the limits allow, so each timeout applies to one such piece of it.
    pub(crate) fn takes_progress(&mut self) -> bool {
        let Some(work) = self.work_mut() else { return false };
        let has_progressed = work.received >= RECEIVE_PROGRESS_BYTES;
        if has_progressed {
            work.received = 0;
        }
        has_progressed
    }

    /// Returns the raw input that was received behind the request in progress; `None` if output for the
    /// client was not sent yet.
    pub(crate) fn raw(&self) -> Option<&[u8]> {
        let Some(work) = self.work() else { return Some(&[]) };
        work.output.is_empty().then_some(&work.input)
    }

    /// Ends HTTP on this connection. Returns the input that was received behind the last request, and the
    /// unsent output. The exchange receives no event.
    pub(crate) fn take_raw(&mut self) -> (Vec<u8>, Outbox) {
        let work = self.ongoing.take().and_then(|ongoing| ongoing.work);
        work.map_or_else(Default::default, |work| (work.input, work.output))
    }

    /// Ends HTTP on this connection as [`Self::take_raw`] does. The content of the present response continues
    /// as a stream, with the framing that is returned.
    pub(crate) fn take_stream(&mut self) -> (Framing, Vec<u8>, Outbox) {
        let framing = self.exchange().map_or(Framing::None, |exchange| exchange.terms.framing);
        let (input, output) = self.take_raw();
        (framing, input, output)
    }

    /// Creates an idle connection that has already received this number of requests.
    pub(crate) fn resumed(requests: u32) -> Self {
        Self { requests, ..Self::default() }
    }

    /// Returns whether the connection is idle: it has no part of a request and no part of a response.
    pub(crate) fn is_idle(&self) -> bool {
        self.ongoing.is_none() && self.phase == ConnectionPhase::Open && self.flags.is_empty()
    }

    /// Returns whether all responses are complete and sent. The end of the connection may then be
    /// announced, if the transport can do so (close_notify).
    pub(crate) fn has_ended_well(&self) -> bool {
        !self.is_cut()
            && self.exchange().is_none()
            && self.work().is_none_or(|work| work.output.is_empty())
    }

    /// Returns whether the last response is incomplete.
    pub(crate) fn is_cut(&self) -> bool {
        self.flags.contains(Flags::CUT)
    }

    /// Returns whether a response is incomplete that the end of the connection would make look complete,
    /// because nothing else ends its content: a client of HTTP/1.0 has no chunks. Only a reset shows it.
    pub(crate) fn needs_reset(&self) -> bool {
        let exchange = self.exchange();
        let is_unframed = self.flags.contains(Flags::UNFRAMED)
            || exchange.is_some_and(|exchange| exchange.terms.framing == Framing::Close);
        is_unframed && !self.has_ended_well()
    }

    /// Returns the number of requests received so far.
    #[inline]
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// Frees memory that is no longer needed.
    pub(super) fn tidy(&mut self) {
        if self.phase == ConnectionPhase::Lingering {
            return;
        }
        let Some(ongoing) = &mut self.ongoing else { return };
        if ongoing.work.as_ref().is_some_and(|work| work.is_over()) {
            ongoing.work = None;
        }
        if ongoing.exchange.is_none() && ongoing.work.is_none() {
            self.ongoing = None;
        }
    }
}

impl ConnectionWork {
    /// Returns whether there is no partial input, no body and no unsent output.
    fn is_over(&self) -> bool {
        self.input.is_empty() && self.body.is_none() && self.output.is_empty()
    }

    /// Discards received input that was not answered.
    pub(super) fn forget_input(&mut self) {
        self.input = Vec::new();
        self.body = None;
        self.has_more = false;
    }
}

//! What is kept of a connection between two turns, and what it needs next.

use super::{ExchangeTerms, Handler, Iteration};
use crate::{config::RECEIVE_PROGRESS_BYTES, stats::census::Busy, transport::outbox::Outbox};
use pollux_http::{body::Decoder, request::HeadParser};

/// The most input that is read and thrown away after the last response, so that the peer can read
/// it before he is reset.
const LINGER_BYTES: u64 = 4 << 20;

/// The maximum of input that is buffered behind a request that is not answered yet. Input is read then only
/// to notice the end of the client's stream.
const KEPT_INPUT: usize = 16 << 10;

/// A connection. Between requests it owns nothing: 16 bytes.
#[derive(Debug)]
pub(crate) struct Connection<X> {
    pub(super) ongoing: Option<Box<Ongoing<X>>>,
    /// Requests that have come.
    pub(super) requests: u32,
    pub(super) phase: Phase,
    pub(super) flags: Flags,
}

/// How far a connection's life has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Requests are taken.
    Open,
    /// No further request is taken; when the output is gone, the connection ends.
    Closing,
    /// We have closed our side and wait for the peer to close his.
    Lingering,
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Flags: u8 {
        /// The peer may still be sending: closing at once would turn into a reset, which can
        /// overtake the response (RFC 9112 §9.6).
        const UNREAD = 1;
        /// The peer has closed his side.
        const INPUT_ENDED = 1 << 1;
        /// The last response is not whole, and its end must not look as if it were.
        const CUT = 1 << 2;
    }
}

/// What a connection owns while an exchange is under way. An exchange that only waits, such as a
/// stream that has nothing to send, has no more than this.
#[derive(Debug)]
pub(super) struct Ongoing<X> {
    /// The exchange.
    pub(super) exchange: Option<ActiveExchange<X>>,
    /// Input and output that are partial.
    pub(super) work: Option<Box<ConnectionWork>>,
    _busy: Busy,
}

/// A part of a request or of a response, which could not be dealt with at once.
#[derive(Debug)]
pub(super) struct ConnectionWork {
    /// Input not yet dealt with: a part of a head, or what must wait.
    pub(super) input: Vec<u8>,
    /// How far `input` has been looked at.
    pub(super) resume: HeadParser,
    /// `input` holds requests that could be answered but for the output before them, or for others
    /// whose turn it is.
    pub(super) has_more: bool,
    /// The body that is still to come, or is being read past.
    pub(super) body: Option<Decoder>,
    /// Bytes of it that were received since [`Connection::takes_progress`] last counted them.
    pub(super) received: u64,
    /// What a send did not take.
    pub(super) output: Outbox,
    /// Bytes of `output` that the peer has taken since the send timeout began.
    pub(super) sent: u64,
    /// What the kernel held of the output at the last call of [`Connection::has_taken`], and what
    /// it was given since.
    pub(super) held: Option<u64>,
    pub(super) given: u64,
    /// Bytes discarded while lingering.
    pub(super) discarded: u64,
}

/// An exchange that was not answered at once.
#[derive(Debug)]
pub(super) struct ActiveExchange<X> {
    pub(super) state: X,
    pub(super) terms: ExchangeTerms,
    /// The body goes to it as it comes.
    pub(super) wants_body: bool,
    /// Something of the answer has been written.
    pub(super) has_begun: bool,
    /// The outbox was full at the last call: the exchange receives an event when the outbox is low.
    pub(super) is_owed_room: bool,
}

/// What a connection needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Bytes from the peer.
    Receive(Awaits),
    /// The output to leave ([`Iteration::output`]). Bytes may be received meanwhile.
    Send,
    /// The service to go on ([`Iteration::resume`]). Bytes may be received meanwhile, for as long
    /// as [`Connection::takes_input`].
    Service,
    /// Another turn, when the others have had theirs ([`Iteration::go_on`]).
    Requeue,
    /// Our side to be closed, and then [`Connection::linger`].
    Linger,
    /// To be closed.
    Close,
}

/// What is to be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaits {
    /// The first request, or the rest of one that has begun.
    Request,
    /// The next request.
    Next,
    /// The end of the stream, after we have closed our side.
    End,
}

impl<X> Default for Connection<X> {
    fn default() -> Self {
        Self { ongoing: None, requests: 0, phase: Phase::Open, flags: Flags::empty() }
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

impl<X> Default for Ongoing<X> {
    fn default() -> Self {
        Self { exchange: None, work: None, _busy: Busy::default() }
    }
}

impl<X> Connection<X> {
    /// The exchange that is under way.
    pub(super) fn exchange(&self) -> Option<&ActiveExchange<X>> {
        self.ongoing.as_ref()?.exchange.as_ref()
    }

    /// The exchange that is under way.
    pub(super) fn exchange_mut(&mut self) -> Option<&mut ActiveExchange<X>> {
        self.ongoing.as_mut()?.exchange.as_mut()
    }

    /// What is partial.
    pub(super) fn work(&self) -> Option<&ConnectionWork> {
        self.ongoing.as_ref()?.work.as_deref()
    }

    /// What is partial.
    pub(super) fn work_mut(&mut self) -> Option<&mut ConnectionWork> {
        self.ongoing.as_mut()?.work.as_deref_mut()
    }

    /// A turn. What is not sent in it, of `scratch` too, is kept.
    #[inline]
    pub(crate) fn iteration<'r>(&'r mut self, scratch: &'r mut Outbox) -> Iteration<'r, X> {
        Iteration::new(self, scratch)
    }

    /// The peer has closed its side. Requests that it sent before are still answered.
    pub(crate) fn end_of_input(&mut self) {
        self.flags |= Flags::INPUT_ENDED;
    }

    /// Whether the peer has closed his side.
    pub(crate) fn has_ended(&self) -> bool {
        self.flags.contains(Flags::INPUT_ENDED)
    }

    /// Whether there is room for more input while something else is waited for.
    pub(crate) fn takes_input(&self) -> bool {
        !self.has_ended() && self.work().is_none_or(|work| work.input.len() < KEPT_INPUT)
    }

    /// What it needs next, where all output of the turn has left or is kept.
    #[inline]
    pub(crate) fn need(&self) -> Need {
        if self.ongoing.is_none() && self.phase == Phase::Open && self.flags.is_empty() {
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
            Phase::Closing if ended || !self.flags.contains(Flags::UNREAD) => Need::Close,
            Phase::Closing => Need::Linger,
            Phase::Lingering => {
                let discarded = work.map_or(0, |work| work.discarded);
                if ended || discarded > LINGER_BYTES {
                    Need::Close
                } else {
                    Need::Receive(Awaits::End)
                }
            }
            Phase::Open => match work {
                _ if self.exchange().is_some_and(|exchange| !exchange.wants_body) => Need::Service,
                Some(work) if work.has_more => Need::Requeue,
                // Whatever is kept can never become whole.
                _ if ended => Need::Close,
                _ => Need::Receive(Awaits::Request),
            },
        }
    }

    /// Our side has been closed: from now on input is discarded.
    pub(crate) fn linger(&mut self) {
        self.phase = Phase::Lingering;
        if let Some(work) = self.work_mut() {
            work.forget_input();
        }
    }

    /// The connection is about to end: the exchange that was answering receives its end.
    pub(crate) fn abandon<H: Handler<Exchange = X>>(&mut self, handler: &mut H) {
        if let Some(ongoing) = &mut self.ongoing
            && let Some(exchange) = ongoing.exchange.take()
        {
            handler.cancelled(&exchange.terms, exchange.state);
        }
    }

    /// Whether the exchange of this number is still waiting for something.
    pub(crate) fn is_running(&self, number: u32) -> bool {
        self.exchange().is_some_and(|exchange| exchange.terms.number == number)
    }

    /// Whether the peer has acknowledged `step` bytes since the last call; true at the first call.
    /// `unacknowledged` is the number of bytes that the kernel still holds for the peer.
    pub(crate) fn has_taken(&mut self, unacknowledged: u64, step: u64) -> bool {
        let Some(work) = self.work_mut() else { return false };
        let given = work.held.map(|held| held + work.given);
        work.held = Some(unacknowledged);
        work.given = 0;
        given.is_none_or(|given| given.saturating_sub(unacknowledged) >= step)
    }

    /// Whether [`RECEIVE_PROGRESS_BYTES`] of a body have come since that was last so. A body may be as
    /// long as the limits allow: its time is for so much of it.
    pub(crate) fn takes_progress(&mut self) -> bool {
        let Some(work) = self.work_mut() else { return false };
        let has_progressed = work.received >= RECEIVE_PROGRESS_BYTES;
        if has_progressed {
            work.received = 0;
        }
        has_progressed
    }

    /// What was received behind the request that is being answered, byte by byte; nothing where
    /// output for the client is still to leave.
    pub(crate) fn raw(&self) -> Option<&[u8]> {
        let Some(work) = self.work() else { return Some(&[]) };
        work.output.is_empty().then_some(&work.input)
    }

    /// HTTP is over on this connection: what was received behind the last request, and what is
    /// still to be sent. The exchange receives no event.
    pub(crate) fn take_raw(&mut self) -> (Vec<u8>, Outbox) {
        let work = self.ongoing.take().and_then(|ongoing| ongoing.work);
        work.map_or_else(Default::default, |work| (work.input, work.output))
    }

    /// A connection that is idle, after so many requests.
    pub(crate) fn resumed(requests: u32) -> Self {
        Self { requests, ..Self::default() }
    }

    /// Whether nothing is under way: no part of a request, no part of a response.
    pub(crate) fn is_idle(&self) -> bool {
        self.ongoing.is_none() && self.phase == Phase::Open && self.flags.is_empty()
    }

    /// Whether the peer has all that it is owed: then the end of the connection may be announced, where
    /// the transport can (close_notify).
    pub(crate) fn has_ended_well(&self) -> bool {
        !self.is_cut()
            && self.exchange().is_none()
            && self.work().is_none_or(|work| work.output.is_empty())
    }

    /// Whether the last response is not whole.
    pub(crate) fn is_cut(&self) -> bool {
        self.flags.contains(Flags::CUT)
    }

    /// Requests that have come so far.
    #[inline]
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// Gives the memory back when nothing is under way.
    pub(super) fn tidy(&mut self) {
        if self.phase == Phase::Lingering {
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
    /// Whether nothing is partial.
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

//! What is answered: the trait of whoever answers, and what it is given.
//!
//! An application never knows which engine or architecture drives it, and an engine never knows
//! which application it drives. It does no I/O on sockets itself: what it needs from elsewhere it
//! asks for through its [`Turn`], and is told by a [`Wake`].

mod page;
pub(crate) mod worker_state;

pub(crate) use crate::protocol::{Flow, Keep, Part, Terms};
pub(crate) use page::Page;

use crate::{
    protocol::{Host, rules::Rules},
    reactor::{AlarmId, ClientId, ExchangeId, LinkId, NotTaken, Outside},
    service::worker_state::{Answer, Local},
    transport::{listener, outbox::Outbox},
};
use pollux_http::{
    Reject,
    request::{Method, Request},
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
};

/// Answers requests.
///
/// One value serves all connections of one worker. Each call gets a [`Turn`] and the outbox of the
/// connection: what is put into it leaves after the call, in the order of the requests. Content of
/// unknown length is framed by the application (`pollux_http::response::chunk`).
pub(crate) trait Application {
    /// The state of an exchange that is not answered at once. Handed over with each call and
    /// handed back in the [`Flow`], so that an exchange that is over has none.
    type Exchange;

    /// A request's head has come. The path of nearly all requests ends here, with [`Flow::Done`].
    fn begin(
        &mut self,
        turn: &mut Turn<'_>,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange>;

    /// Some of the body that [`Flow::NeedBody`] asked for.
    fn body(
        &mut self,
        turn: &mut Turn<'_>,
        exchange: Self::Exchange,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange>;

    /// Something that the exchange waited for has come.
    fn resume(
        &mut self,
        turn: &mut Turn<'_>,
        exchange: Self::Exchange,
        wake: Wake<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange>;

    /// The exchange has ended without an answer: the client has gone, its time is over, or its
    /// body was malformed.
    fn cancel(&mut self, turn: &mut Turn<'_>, exchange: Self::Exchange);

    /// Something has come that an errand waited for: an exchange of the application's own, which no
    /// client owns ([`Outside::begin_errand`]). Returns whether it is still there.
    fn errand(&mut self, world: &mut World<'_>, errand: ExchangeId, wake: Wake<'_>) -> bool {
        let _ = (world, errand, wake);
        false
    }

    /// Something that the application itself waited for has come
    /// ([`To::Application`](crate::reactor::To)): what several exchanges share.
    fn event(&mut self, world: &mut World<'_>, wake: Wake<'_>) {
        let _ = (world, wake);
    }
}

/// Why an exchange, or an application, is called again.
#[derive(Debug)]
pub(crate) enum Wake<'b> {
    /// The outbox was full when the exchange last had its say, and is low now.
    Room,
    /// The client has closed its side of the connection. It may still read: HTTP lets it close
    /// its side after its last request. It may also have gone: nothing tells until more is sent.
    ClientEnded,
    /// A link is connected.
    Connected(LinkId),
    /// Octets have come on a link. They are all to be taken: to get no more, pause the link.
    Received(LinkId, &'b [u8]),
    /// The peer of a link has closed its side. Ours is open still.
    Ended(LinkId),
    /// A link was full, and is low now.
    LinkRoom(LinkId),
    /// A link could not be dialled, or has broken; it is gone.
    Failed(LinkId, io::ErrorKind),
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
pub(crate) struct Turn<'a> {
    /// What all workers go by.
    pub(crate) rules: &'a Rules,
    /// What this worker has of its own.
    pub(crate) local: &'a mut Local,
    /// Where to ask for what is elsewhere.
    pub(crate) outside: &'a mut Outside,
    client: ClientId,
    socket: Option<BorrowedFd<'a>>,
    terms: &'a mut Terms,
}

/// What an application may do and know that is called for itself, and for no exchange.
pub(crate) struct World<'a> {
    /// What all workers go by.
    pub(crate) rules: &'a Rules,
    /// What this worker has of its own.
    pub(crate) local: &'a mut Local,
    /// Where to ask for what is elsewhere.
    pub(crate) outside: &'a mut Outside,
}

impl World<'_> {
    /// A call for an errand.
    pub(crate) fn turn<'t>(&'t mut self, errand: ExchangeId, terms: &'t mut Terms) -> Turn<'t> {
        let Self { rules, local, outside } = self;
        Turn { rules, local, outside, client: errand.client, socket: None, terms }
    }
}

impl Turn<'_> {
    /// A call for an errand in this one.
    pub(crate) fn of<'t>(&'t mut self, errand: ExchangeId, terms: &'t mut Terms) -> Turn<'t> {
        let Self { rules, local, outside, .. } = self;
        Turn { rules, local, outside, client: errand.client, socket: None, terms }
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
    /// ([`Keep::line`]).
    #[inline]
    pub(crate) fn keep(&self) -> Keep {
        self.terms.keep
    }

    /// Closes the connection after the answer; to be called before its head is written.
    pub(crate) fn close_after(&mut self) {
        self.terms.keep.alive = false;
    }

    /// Writes a line of the access log, if there is one. `request` is the request line.
    #[inline]
    pub(crate) fn log(&mut self, request: &[u8], answer: Answer) {
        self.local.log(self.socket, request, answer);
    }

    /// The same with a status that need not be one of ours, and the octets of content.
    #[inline]
    pub(crate) fn log_code(&mut self, request: &[u8], status: u16, len: u64) {
        self.local.log_code(self.socket, request, status, len);
    }
}

/// An application, as a connection sees it.
pub(crate) struct Stage<'a, A> {
    pub(crate) application: &'a mut A,
    pub(crate) rules: &'a Rules,
    pub(crate) local: &'a mut Local,
    pub(crate) outside: &'a mut Outside,
    pub(crate) client: ClientId,
    /// The client's connection, for as long as there is one.
    pub(crate) socket: Option<BorrowedFd<'a>>,
}

impl<A: Application> Stage<'_, A> {
    #[inline]
    fn turn<'t>(&'t mut self, terms: &'t mut Terms) -> (&'t mut A, Turn<'t>) {
        let Self { application, rules, local, outside, client, socket } = self;
        (application, Turn { rules, local, outside, client: *client, socket: *socket, terms })
    }

    /// Calls [`Application::resume`]; for [`Round::resume`](crate::protocol::Round::resume).
    pub(crate) fn wake(
        &mut self,
        terms: &mut Terms,
        exchange: A::Exchange,
        wake: Wake<'_>,
        outbox: &mut Outbox,
    ) -> Flow<A::Exchange> {
        let (application, mut turn) = self.turn(terms);
        application.resume(&mut turn, exchange, wake, outbox)
    }
}

impl<A: Application> Host for Stage<'_, A> {
    type Exchange = A::Exchange;

    #[inline]
    fn keeps_connections(&self) -> bool {
        !self.local.is_stopping
    }

    #[inline]
    fn head(
        &mut self,
        terms: &mut Terms,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<A::Exchange> {
        self.local.requests += 1;
        let (application, mut turn) = self.turn(terms);
        application.begin(&mut turn, request, outbox)
    }

    fn body(
        &mut self,
        terms: &mut Terms,
        exchange: A::Exchange,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<A::Exchange> {
        let (application, mut turn) = self.turn(terms);
        application.body(&mut turn, exchange, part, outbox)
    }

    fn refused(&mut self, reject: &Reject, method: Method<'_>, outbox: &mut Outbox) {
        self.local.requests += 1;
        // Without `Cache-Status` also where there is a cache: it has not been asked (RFC 9211 §2).
        let page = Page { status: reject.status, reason: reject.reason, fields: b"" };
        let answer = page.put(self.rules, self.local, outbox, method, Keep::CLOSE);
        self.local.log(self.socket, b"-", answer);
    }

    fn cancelled(&mut self, terms: &Terms, exchange: A::Exchange) {
        let mut terms = *terms;
        let (application, mut turn) = self.turn(&mut terms);
        application.cancel(&mut turn, exchange);
    }
}
